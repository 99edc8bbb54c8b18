"""Pull consumers as processes: after the kill of a broker and of a member nothing is lost, and only uncommitted messages are repeated."""

from collections import Counter
from pathlib import Path

import pytest

from lockstep.client import Message, Producer
from support.cluster import QUICK, Cluster, Report
from support.effort import usually

pytestmark = pytest.mark.e2e


def seen(folder: Path) -> list[tuple[int, str, int, str]]:
    """Return (pid, queue, offset, body) of every process."""
    found = []
    for path in sorted(folder.glob("*.seen")):
        text = path.read_text()
        rows = [line.split(" ") for line in text[: text.rfind("\n") + 1].splitlines()]
        found += [(int(pid), queue, int(offset), body) for pid, queue, offset, body in rows]
    return found


async def member(cluster: Cluster, name: str, mode: str) -> None:
    common = ["--nameserver", cluster.nameservers, "--file", str(cluster.folder / f"{name}.seen")]
    await cluster.start(name, ["-m", "support.worker_member", mode, *common, "--work-ms", "3"], "worker.ready")


@pytest.mark.parametrize("mode", usually(["poll"], ["poll", "loop"]))
async def test_kill_of_a_broker_and_a_member_loses_nothing(cluster: Cluster, report: Report, mode: str) -> None:
    await cluster.servers(*QUICK, queues=3)
    for name in ("one", "two"):
        await member(cluster, name, mode)
    bodies = [f"m{number}" for number in range(900)]
    async with Producer("test", nameserver=cluster.nameservers) as producer:
        for body in bodies:
            await producer.send(Message("orders", body.encode()))
    await cluster.until("some are handled", lambda: len(seen(cluster.folder)) >= 150)
    await cluster.kill("broker-a")
    await cluster.restart("broker-a")
    await cluster.until("more are handled", lambda: len(seen(cluster.folder)) >= 350)
    await cluster.kill("one")
    committed = {
        f"{line['topic']}@{line['broker']}:{line['queue_id']}": line["committed_offset"]
        for line in (await cluster.group("prices"))["queues"]
    }
    victims = {pid for pid, *_ in seen(cluster.folder)}
    before = {(queue, offset) for _, queue, offset, _ in seen(cluster.folder)}
    await cluster.restart("one")
    await cluster.until("all are handled", lambda: {body for *_, body in seen(cluster.folder)} == set(bodies))
    await cluster.until_lag(0, "prices")
    repeats = [line for line in seen(cluster.folder) if line[0] not in victims and (line[1], line[2]) in before]
    assert all(offset >= committed[queue] for _, queue, offset, _ in repeats), "what is committed does not come again"
    twice = sum(count - 1 for count in Counter(body for *_, body in seen(cluster.folder)).values())
    report(f"{twice} of {len(bodies)} handled a second time, a kill of a broker and of a member")
    await cluster.stop("one", "two")
