"""A real Prometheus scrapes a real broker: it answers every expression of the alerts and of the Grafana dashboard."""

import asyncio
import json
import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from support.cluster import QUICK, Cluster
from support.http import raw
from support.ports import free_ports

pytestmark = pytest.mark.e2e

LOOK_S = 0.2
DEPLOY = Path(__file__).parents[2] / "deploy"
SECONDS = {"$__rate_interval": "5s", "$group": ".*", "$topic": ".*"}
"""What Grafana puts in for its variables."""
RARE = ("lockstep_parked", "lockstep_replica", "lockstep_register_")
"""Metrics that have no series while no key is parked, and of brokers without replicas or a register."""


def panels() -> list[str]:
    """Return the expressions of the Grafana dashboard."""
    found = [
        each["expr"]
        for panel in json.loads((DEPLOY / "grafana" / "lockstep.json").read_text())["panels"]
        for each in panel.get("targets", ())
    ]
    return [re.sub(r"\$\w+", lambda name: SECONDS[name[0]], each) for each in found]


class Prometheus:
    """A Prometheus server, and its answers."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"

    async def start(self, targets: list[str]) -> None:
        program = shutil.which("prometheus")
        assert program is not None
        rules = self.cluster.folder / "alerts.yaml"
        rules.write_text((DEPLOY / "prometheus" / "alerts.yaml").read_text())
        config = self.cluster.folder / "prometheus.yml"
        config.write_text(
            yaml.safe_dump(
                {
                    "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                    "rule_files": [str(rules)],
                    "scrape_configs": [{"job_name": "lockstep", "static_configs": [{"targets": targets}]}],
                }
            )
        )
        options = [f"--config.file={config}", f"--web.listen-address={self.address}", f"--storage.tsdb.path={self.cluster.folder / 'tsdb'}"]
        await self.cluster.start("prometheus", options, program=program)
        await self.until("it scrapes", f"up == 1 and on() (count(up == 1) == {len(targets)})")

    async def get(self, path: str) -> Any:
        try:
            status, text = await raw(self.address, f"GET /api/v1/{path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        except OSError:
            return {}
        return json.loads(text)["data"] if status == 200 else {"error": text}

    async def query(self, expression: str) -> Any:
        """Return the series of the result."""
        answer = await self.get(f"query?query={quote(expression)}")
        return answer.get("result", answer.get("error"))

    async def until(self, what: str, expression: str) -> None:
        """Wait until the result has a series."""
        last: Any = None
        try:
            async with asyncio.timeout(60):
                while True:
                    last = await self.query(expression)
                    if last and isinstance(last, list):
                        return
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise AssertionError(f"not within 60 s: {what}: {expression}: {last}\n{self.cluster.output_tails()}") from None


async def test_every_expression_of_alerts_and_panels_is_answered(cluster: Cluster) -> None:
    if shutil.which("prometheus") is None:
        pytest.skip("Prometheus is not installed: apt-get install prometheus")
    await cluster.servers(*QUICK, "--admin-listen", "127.0.0.1:0")
    await cluster.consumer("worker")
    await cluster.producer("producer", "--keys", "4", "--pause-ms", "20")
    server = Prometheus(cluster)
    await server.start([cluster.reported_events(name, "broker.started")[0]["admin"] for name in ("broker-a", "broker-b")])
    expressions = panels()
    assert len(expressions) > 20
    await server.until("messages are consumed", "sum(rate(rocketmq_messages_out_total[5s])) > 0")
    for expression in expressions:
        if any(each in expression for each in RARE):
            assert await server.query(expression) == []
        else:
            await server.until("the panel has a value", expression)
    groups = (await server.get("rules"))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == len(yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())["groups"][0]["rules"])
    assert {rule["health"] for rule in rules} == {"ok"}, rules
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []
    await cluster.kill("broker-b")
    await server.until("the alert of a broker that is down", 'ALERTS{alertname="LockstepServerDown"}')
