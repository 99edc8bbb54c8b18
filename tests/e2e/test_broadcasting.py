"""Broadcasting with real processes: each one gets every message, and continues from its own file after a kill."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from lockstep.client import Message, Producer
from support.cluster import QUICK, Cluster

pytestmark = pytest.mark.e2e

NAMES = ("one", "two", "three")


class Member:
    """A broadcasting process, and the lines that it writes: (pid, queue, offset, body)."""

    def __init__(self, cluster: Cluster, name: str, *options: str) -> None:
        self.cluster, self.name = cluster, name
        self.path = cluster.folder / f"{name}.seen"
        self.folder = cluster.folder / "offsets"
        common = ["--nameserver", cluster.nameservers, "--file", str(self.path)]
        own = ["--offset-dir", str(self.folder), "--instance", name]
        self.command = ["-m", "support.worker_member", "broadcast", *common, *own, *options]

    async def start(self) -> "Member":
        await self.cluster.start(self.name, self.command, "worker.ready")
        return self

    def lines(self) -> list[tuple[int, str, int, str]]:
        text = self.path.read_text() if self.path.exists() else ""
        rows = [line.split(" ") for line in text[: text.rfind("\n") + 1].splitlines()]
        return [(int(pid), queue, int(offset), body) for pid, queue, offset, body in rows]

    def bodies(self) -> Counter[str]:
        return Counter(body for *_, body in self.lines())

    def damage(self) -> None:
        path = self.folder / "prices" / self.name / "offsets.json"
        path.write_text(path.read_text().replace('"starts":1', '"starts":2'))

    def stored(self) -> dict[str, int]:
        """Return queue → next offset, from the file."""
        path = self.folder / "prices" / self.name / "offsets.json"
        plain: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"topics": {}}
        return {f"{topic}@{queue}": place[0] for topic, reported in plain["topics"].items() for queue, place in reported["queues"].items()}


async def send(cluster: Cluster, bodies: Sequence[str]) -> None:
    async with Producer("test", nameserver=cluster.nameservers) as producer:
        for body in bodies:
            await producer.send(Message("orders", body.encode()))


@pytest.mark.parametrize("options", [pytest.param((), id="concurrent", marks=pytest.mark.slow), pytest.param(("--ordered",), id="ordered")])
async def test_killed_member_continues_from_its_own_file_and_others_are_unaffected(cluster: Cluster, options: tuple[str, ...]) -> None:
    await cluster.servers(*QUICK, queues=2)
    members = [await Member(cluster, name, *options, "--work-ms", "5").start() for name in NAMES]
    victim, sent = members[0], [f"m{number}" for number in range(600)]
    await send(cluster, sent)
    for goal in (200, 400):
        await cluster.until(f"{goal} are handled", lambda goal=goal: len(victim.bodies()) >= goal)  # type: ignore[misc]
        await cluster.until("the file keeps pace", lambda: sum(victim.stored().values()) > 0)
        before = victim.lines()
        await cluster.kill("one")
        stored, handled = victim.stored(), victim.lines()
        meanwhile = [f"{goal}-{number}" for number in range(100)]
        await send(cluster, meanwhile)
        sent += meanwhile
        await cluster.restart("one")
        await cluster.until("it goes on", lambda: len(victim.lines()) > len(handled) + 20)  # noqa: B023
        pids = {pid for pid, *_ in before}
        for _, queue, offset, _ in [line for line in victim.lines() if line[0] not in pids]:
            assert offset >= stored.get(queue, 0), "nothing before the file's offset is repeated"
    last = [f"n{number}" for number in range(100)]
    await send(cluster, last)
    sent += last
    for member in members:
        await cluster.until(f"{member.name} has all", lambda member=member: set(member.bodies()) == set(sent))  # type: ignore[misc]
    await cluster.stop(*NAMES)
    assert all(set(member.bodies().values()) == {1} for member in members[1:]), "nobody else has repeated anything"
    if options:
        for member in members[1:]:
            for queue in {line[1] for line in member.lines()}:
                offsets = [offset for _, where, offset, _ in member.lines() if where == queue]
                assert offsets == sorted(offsets), "in order within each queue"
    ends = [member.stored() for member in members]
    assert ends[0] == ends[1] == ends[2]
    assert sum(ends[0].values()) == 900, "a stop writes the end"


async def test_members_continue_after_the_kill_of_a_broker(cluster: Cluster) -> None:
    await cluster.servers(*QUICK, queues=2)
    members = [await Member(cluster, name).start() for name in NAMES[:2]]
    bodies = [f"m{number}" for number in range(200)]
    await send(cluster, bodies[:100])
    await cluster.kill("broker-a")
    await cluster.restart("broker-a")
    await send(cluster, bodies[100:])
    for member in members:
        await cluster.until(f"{member.name} has all", lambda member=member: set(member.bodies()) == set(bodies))  # type: ignore[misc]
    await cluster.stop(*NAMES[:2])
    assert all(set(member.bodies().values()) == {1} for member in members)


async def test_second_process_on_an_offset_file_and_a_damaged_file_are_rejected(cluster: Cluster) -> None:
    await cluster.servers(*QUICK, queues=1, brokers=("broker-a",))
    member = await Member(cluster, "one").start()
    await send(cluster, ["a", "b"])
    await cluster.until("both are handled", lambda: len(member.bodies()) == 2)
    second = await cluster.start("second", member.command)
    assert await second.wait() == 1
    assert "is in use by another consumer of prices" in second.stderr_tail()
    await cluster.stop("one")
    assert sum(member.stored().values()) == 2, "the first has kept its progress"
    member.damage()
    damaged = await cluster.start("third", member.command)
    assert await damaged.wait() == 1
    assert "offsets.json is damaged" in damaged.stderr_tail()


async def test_group_show_describes_a_broadcast_group(cluster: Cluster) -> None:
    await cluster.servers(*QUICK, queues=1, brokers=("broker-a",))
    for name in NAMES[:2]:
        await Member(cluster, name, "--ordered").start()
    await send(cluster, ["a"])
    shown = await cluster.command("group", "show", "prices")
    assert "group prices: broadcasting, ordered, members: 2; each consumes all queues" in shown
    assert "no broker knows the lag" in shown
    reported = await cluster.group("prices")
    assert (reported["broadcasting"], reported["lag"]) == (True, None)
    refused = await cluster.command("group", "reset-offset", "prices", "--to", "beginning", code=1)
    assert "group prices is broadcasting: each member keeps its progress in a file of its own" in refused
    careful = await cluster.command("topic", "alter", "orders", "--queues", "2", code=1)
    assert "prices: unknown, because it is broadcasting" in careful
    await cluster.stop(*NAMES[:2])
