"""What the pages of RocketMQ's dashboard ask, and its exporter of metrics.

Both are in no repository of packages: a Java program asks by the same libraries.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.cluster import Cluster, running_cluster
from support.java_tools import JavaTools
from support.java_wire import JSON, java_wire

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

BROKERS, QUEUES, MESSAGES = ("broker-a", "broker-b"), 2, 3
PAGES = (
    *("cluster", "topics", "route", "stats", "rates", "exporter", "groups", "group-of-topic", "connection", "producers"),
    *("messages", "message", "topic-changes", "reset"),
)


@pytest.fixture(scope="module", params=["4.9.8", "5.3.3"])
def tools(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> JavaTools:
    return JavaTools.fetch(request.param, tmp_path_factory.mktemp(f"tools-{request.param}"), "Member", "Pages")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Run two brokers with the topic `orders`."""
    async with running_cluster(tmp_path) as cluster:
        await cluster.nameserver()
        for name in BROKERS:
            await cluster.broker(name)
        await cluster.command("topic", "create", "orders", "--queues", str(QUEUES))
        yield cluster


async def send_to_each_queue(address: str) -> None:
    async with java_wire(address, JSON) as wire:
        for queue_id in range(QUEUES):
            for number in range(MESSAGES):
                header = {"a": "pg", "b": "orders", "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": 1, "h": 0, "i": "TAGS\x01TagA"}
                stored = await wire.call(310, header, str(number).encode())
                assert stored.code == 0, stored.remark


async def until_consumed(address: str) -> None:
    async with java_wire(address, JSON) as wire:
        for queue_id in range(QUEUES):
            asked = {"consumerGroup": "cg", "topic": "orders", "queueId": queue_id}
            while (await wire.call(14, asked)).fields.get("offset") != str(MESSAGES):
                pass


async def test_each_page_has_what_it_shows(tools: JavaTools, cluster: Cluster) -> None:
    addresses = [cluster.addresses[name] for name in BROKERS]
    async with tools.running("Member", cluster.nameservers, "cg", "orders", "m1") as member:
        await member.until(lambda lines: any(line.startswith("started ") for line in lines))
        for address in addresses:
            await send_to_each_queue(address)
        for address in addresses:
            await until_consumed(address)
        async with tools.running("Pages", cluster.nameservers, "cg", "orders", str(len(BROKERS) * QUEUES * MESSAGES)) as pages:
            lines = await pages.until(lambda lines: any(line.split()[-1:] == ["reset"] or "failed reset" in line for line in lines))
    assert [line for line in lines if line.startswith(("ok ", "failed "))] == [f"ok {page}" for page in PAGES], lines
