"""A Deployment's rolling update changes a group's contract under load, and is rolled back, with real processes."""

import re
from pathlib import Path

import pytest

from support.cluster import Cluster, Report, now_us

pytestmark = pytest.mark.e2e

WORKER = (Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "worker.yaml").read_text()
OLD = ("--contract-version", "0", "--tags", "*")
NEW = ("--contract-version", "1", "--tags", "even || odd", "--give-up-after", "50")
"""Narrower, although it matches every message that is sent; and another retry policy."""


async def roll(cluster: Cluster, old: list[str], new: list[str], *options: str) -> None:
    """Replace members as a Deployment's controller does: at most `maxSurge` more, and none fewer, that are ready."""
    surge = number_of("maxSurge")
    assert number_of("maxUnavailable") == 0
    for first in range(0, len(old), surge):
        for name in new[first : first + surge]:
            await cluster.consumer(name, *options)
        await cluster.stop(*old[first : first + surge])


def number_of(field: str) -> int:
    """Return a number of the Deployment in the manifest."""
    found = re.search(rf"\b{field}: (\d+)", WORKER)
    assert found is not None, field
    return int(found[1])


def names(prefix: str) -> list[str]:
    return [f"{prefix}-{number}" for number in range(number_of("replicas"))]


async def refusal(cluster: Cluster, name: str, *options: str) -> str:
    """Return the output of a member that can't join."""
    files = ["--file", str(cluster.folder / f"{name}.handled"), "--accepted", str(cluster.folder / f"{name}.accepted")]
    command = ["-m", "support.worker_consumer", "--nameserver", cluster.nameservers, "--name", name, *files, *options]
    process = await cluster.start(name, command)
    assert await process.wait() != 0
    return (cluster.folder / f"{name}-1.log").read_text()


async def test_rolling_update_of_a_contract_and_its_undo_lose_and_reorder_nothing(cluster: Cluster, report: Report) -> None:
    old, new, again = names("old"), names("new"), names("again")
    await cluster.servers()
    for name in old:
        await cluster.consumer(name, *OLD)
    await cluster.producer("producer", "--keys", "60", "--pause-ms", "5")
    await cluster.until_handled(200)
    assert "subscription of orders: '*' here, 'even || odd' asked for" in await refusal(cluster, "unannounced", *NEW[2:])

    began_us = now_us()
    await roll(cluster, old, new, *NEW)
    report(f"{len(new)} members with another contract replaced the old ones within {(now_us() - began_us) / 1e6:.1f} s")
    members = (await cluster.group())["members"]
    assert {(member["contract_version"], member["subscription"]["orders"]) for member in members} == {(1, "even || odd")}

    command = "lockstep group update billing --next-contract-version 0"
    advice = f"Version 0 is older than 1: announce a change by contract_version=2, or go back to it: {command}"
    assert advice in await refusal(cluster, "outdated", *OLD)
    await cluster.command(*command.split()[1:])
    await roll(cluster, new, again, *OLD)
    members = (await cluster.group())["members"]
    assert {(member["contract_version"], member["subscription"]["orders"]) for member in members} == {(0, "*")}

    await cluster.until_handled_more(1_000)
    await cluster.finish_producer()
    verdict = await cluster.prove(*again)
    idle_ms = max(each.idle_us for each in verdict.handovers) / 1_000
    report(f"{verdict.events} events in order, {verdict.repeats} repeats, {len(verdict.handovers)} handovers, the longest {idle_ms:.0f} ms")
