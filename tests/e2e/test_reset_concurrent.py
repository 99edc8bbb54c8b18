"""A concurrent group's offsets are reset while it runs under load: its members continue at the new offsets without a restart."""

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


async def member(cluster: Cluster, name: str, *options: str) -> None:
    command = ["-m", "support.worker_concurrent", "--nameserver", cluster.nameservers, "--file", str(cluster.folder / f"{name}.lines")]
    await cluster.start(name, [*command, *options], "worker.ready")


def done(folder: Path) -> Counter[str]:
    """Return body → how often it was handled successfully, by any member."""
    found: Counter[str] = Counter()
    for path in folder.glob("*.lines"):
        text = path.read_text()
        rows = [line.split(" ") for line in text[: text.rfind("\n") + 1].splitlines()]
        found.update(body for body, _, result, _ in rows if result == "done")
    return found


def often(folder: Path, count: int) -> set[str]:
    return {body for body, number in done(folder).items() if number >= count}


async def send(cluster: Cluster, sent: dict[str, tuple[str, int]], enough: asyncio.Event) -> None:
    """Send until stopped; return body → (queue, offset) of the acknowledged messages."""
    async with Producer("test", nameserver=cluster.nameservers) as producer:
        while not enough.is_set():
            body = f"m{len(sent)}"
            result = await producer.send(Message("orders", body.encode()))
            sent[body] = str(result.queue), result.queue_offset


async def reset(cluster: Cluster, *options: str) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads(await cluster.command("group", "reset-offset", "mailing", *options, "--json"))
    return plan


async def progress(cluster: Cluster) -> tuple[dict[str, int], dict[str, int]]:
    """Return queue → generation, and queue → committed offset, from the brokers."""
    lines = {f"{each['topic']}@{each['broker']}:{each['queue_id']}": each for each in (await cluster.group("mailing"))["queues"]}
    own = {queue: each for queue, each in lines.items() if each["topic"] == "orders"}
    return {queue: int(each["generation"]) for queue, each in own.items()}, {queue: each["committed_offset"] for queue, each in own.items()}


async def test_reset_of_a_concurrent_group_under_load_needs_no_restart(cluster: Cluster, report: Report) -> None:
    await cluster.servers(*QUICK, queues=2)
    for name in MEMBERS:
        await member(cluster, name, "--work-ms", "1")
    sent: dict[str, tuple[str, int]] = {}
    enough = asyncio.Event()
    load = asyncio.ensure_future(send(cluster, sent, enough))
    await cluster.until("some are handled", lambda: len(done(cluster.folder)) >= 300)
    generated, committed = await progress(cluster)
    plan = await reset(cluster, "--to", "beginning", "--dry-run")
    assert (plan["done"], len(plan["queues"])) == (False, 4)
    now = await progress(cluster)
    assert now[0] == generated, "a dry run ends no generation"
    assert all(now[1][queue] >= committed[queue] for queue in committed), "and sets nothing back"
    plan = await reset(cluster, "--to", "beginning")
    before = {queue["queue"]: queue["before"] for queue in plan["queues"]}
    again = [body for body, (queue, offset) in list(sent.items()) if offset < before[queue]]
    assert len(again) >= 300 - 2 * 20, "calls that were under way had not committed"
    await cluster.until("what was done is done again", lambda: often(cluster.folder, 2).issuperset(again))
    now = await progress(cluster)
    assert all(now[0][queue] > generated[queue] for queue in generated), "what shows a reset can be seen"
    enough.set()
    await load
    await cluster.until("everything is handled", lambda: done(cluster.folder).keys() == sent.keys())
    await cluster.until_lag(0, "mailing")
    assert all(cluster.processes[name].exit_code is None for name in MEMBERS)
    await cluster.stop(*MEMBERS)
    report(f"{len(again)} of {len(sent)} messages again")


async def test_stopped_group_continues_at_the_first_message_of_a_time(cluster: Cluster) -> None:
    """Messages before the time stay consumed, messages after it are consumed again."""
    await cluster.servers(queues=1, brokers=("broker-a",))
    await member(cluster, "one")
    for body in ("old-0", "old-1", "new-0", "new-1", "new-2"):
        await cluster.command("send", "orders", body)
    await cluster.until("all are handled", lambda: len(done(cluster.folder)) == 5)
    await cluster.until_lag(0, "mailing")
    await cluster.stop("one")
    stored = [json.loads(line) for line in (await cluster.command("tail", "orders", "--from-start", "--count", "5", "--json")).splitlines()]
    moment = stored[2]["stored_at"]
    assert stored[1]["stored_at"] < moment, "each was sent by a command of its own"
    expected = {"queue": "orders@broker-a:0", "before": 5, "after": 2, "change": -3, "parked": 0}
    assert (await reset(cluster, "--to", moment, "--dry-run"))["queues"] == [expected]
    assert (await reset(cluster, "--to", moment.removesuffix("Z")))["queues"] == [expected], "without a zone it is UTC"
    await member(cluster, "two")
    await cluster.until("the new ones again", lambda: len(often(cluster.folder, 2)) == 3)
    await cluster.until_lag(0, "mailing")
    await cluster.stop("two")
    assert done(cluster.folder) == {"old-0": 1, "old-1": 1, "new-0": 2, "new-1": 2, "new-2": 2}
