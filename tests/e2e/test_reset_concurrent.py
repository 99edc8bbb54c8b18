"""A concurrent group's offsets are set while it works under load: its members pick it up by themselves."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lockstep.client import Message, Producer
from support.cluster import QUICK, Cluster, Report

pytestmark = pytest.mark.e2e

MEMBERS = ("one", "two")


def done(folder: Path) -> Counter[str]:
    """Body → how often it was handled well, by whichever member."""
    found: Counter[str] = Counter()
    for path in folder.glob("*.lines"):
        text = path.read_text()
        rows = [line.split(" ") for line in text[: text.rfind("\n") + 1].splitlines()]
        found.update(body for body, _, result, _ in rows if result == "done")
    return found


def often(folder: Path, count: int) -> set[str]:
    return {body for body, number in done(folder).items() if number >= count}


async def send(cluster: Cluster, sent: dict[str, tuple[str, int]], enough: asyncio.Event) -> None:
    """Body → (queue, offset) of what was acknowledged, until it is told to stop."""
    async with Producer("test", nameserver=cluster.nameservers) as producer:
        while not enough.is_set():
            body = f"m{len(sent)}"
            result = await producer.send(Message("orders", body.encode()))
            sent[body] = str(result.queue), result.queue_offset


async def reset(cluster: Cluster, *options: str) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads(await cluster.command("group", "reset-offset", "mailing", *options, "--json"))
    return plan


async def test_running_members_go_back_to_the_beginning_under_load_without_a_restart(cluster: Cluster, report: Report) -> None:
    await cluster.servers(*QUICK, queues=2)
    for name in MEMBERS:
        command = ["-m", "support.worker_concurrent", "--nameserver", cluster.nameservers, "--file", str(cluster.folder / f"{name}.lines")]
        await cluster.start(name, [*command, "--work-ms", "1"], "worker.ready")
    sent: dict[str, tuple[str, int]] = {}
    enough = asyncio.Event()
    load = asyncio.ensure_future(send(cluster, sent, enough))
    await cluster.until("some are handled", lambda: len(done(cluster.folder)) >= 300)
    plan = await reset(cluster, "--to", "beginning", "--dry-run")
    assert (plan["done"], len(plan["queues"])) == (False, 4)
    assert not [body for body, count in done(cluster.folder).items() if count > 1], "a dry run changes nothing"
    plan = await reset(cluster, "--to", "beginning")
    before = {queue["queue"]: queue["before"] for queue in plan["queues"]}
    again = [body for body, (queue, offset) in list(sent.items()) if offset < before[queue]]
    assert len(again) >= 300 - 2 * 20, "calls that were under way had not committed"
    await cluster.until("what was done is done again", lambda: often(cluster.folder, 2).issuperset(again))
    enough.set()
    await load
    await cluster.until("everything is handled", lambda: done(cluster.folder).keys() == sent.keys())
    await cluster.until_lag(0, "mailing")
    assert all(cluster.processes[name].exit_code is None for name in MEMBERS)
    await cluster.stop(*MEMBERS)
    report(f"{len(again)} of {len(sent)} messages again")
