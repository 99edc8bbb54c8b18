"""One ordered group with members of RocketMQ's Java client and of lockstep's SDK, under faults and under load.

A Java member that is killed keeps its queues for the rest of its lease (60 s), so the test takes some minutes.
"""

from pathlib import Path

import pytest

from lockstep.cli.demo.proof import HandledEvent
from support.cluster import DEFAULTS, Cluster, Report, running_cluster
from support.java_programs import compiled
from support.mixed_groups import faults, java, java_member, repeats, until_every_queue_is_handled

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

JAVA_FIRST, JAVA_KEYS = 1_000, 16
"""The keys of the Java producer."""


@pytest.fixture(scope="module", params=[("4.9.8", "JSON"), ("5.3.3", "ROCKETMQ")], ids="-".join)
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the options with which java runs the programs, for a version of the client and a kind of headers."""
    version, form = request.param
    class_path = compiled(version, tmp_path_factory.mktemp("java"), "OrderedMember", "KeyedProducer")
    return [f"-Drocketmq.serialize.type={form}", "-cp", class_path]


def test_checker_finds_each_fault() -> None:
    def event(offset: int, step: int, begun_us: int, queue: str = "q", order: int = 0) -> HandledEvent:
        return HandledEvent("c", order, step, queue, 0, offset, begun_us, begun_us + 5)

    right = [event(0, 0, 10), event(1, 1, 20), event(0, 0, 30), event(1, 1, 40), event(2, 2, 50), event(3, 2, 60), event(4, 3, 70)]
    assert faults(right) == [], "repeats, and a step that is stored twice"
    for wrong in (
        [*right, event(6, 4, 80)],
        [*right, event(5, 5, 80)],
        [*right, event(5, 4, 72)],
        [*right, event(0, 4, 80, "other")],
        right[1:],
    ):
        assert faults(wrong) != []


async def begin(cluster: Cluster, programs: list[str], *members: str) -> None:
    """Start servers, members and both producers."""
    await cluster.servers(*DEFAULTS)
    for name in members:
        await join(cluster, programs, name)
    await cluster.producer("producer", "--keys", "30", "--pause-ms", "100", "--again")
    await java(cluster, programs, "KeyedProducer", "java-producer", str(JAVA_FIRST), str(JAVA_KEYS), "10")


async def join(cluster: Cluster, programs: list[str], name: str) -> None:
    await (java_member(cluster, programs, name) if name.startswith("java") else cluster.consumer(name))


async def until_has_a_queue(cluster: Cluster, name: str) -> None:
    await cluster.until(f"{name} has a queue", lambda: any(each.consumer == name for each in cluster.handled_events()))


async def sessions(cluster: Cluster) -> list[str | None]:
    """Return the session of each member, None for those of RocketMQ's clients."""
    return [member["session"] for member in (await cluster.group())["members"]]


async def check_order(cluster: Cluster, *members: str) -> str:
    """Stop the producers, and the members when they have handled everything. Check the order, and return what was done."""
    for producer in ("producer", "java-producer"):
        await cluster.finish_producer(producer)
    await cluster.until_done()
    await cluster.stop(*members)
    events = cluster.handled_events()
    assert faults(events) == []
    assert {key >= JAVA_FIRST for key, sent in cluster.reported.items() if sent.acknowledged} == {True, False}, "both producers have sent"
    return f"{len(events)} events, {repeats(events)} repeats"


async def test_order_is_kept_while_members_and_a_broker_of_a_mixed_group_are_killed(
    programs: list[str], tmp_path: Path, report: Report
) -> None:
    async with running_cluster(tmp_path) as cluster:
        members = ["java-1", "java-2", "native-1", "native-2"]
        await begin(cluster, programs, *members)
        seconds = {"begin": await until_every_queue_is_handled(cluster, *members)}
        assert (await cluster.command("group", "show", "billing")).count("classic") == 2
        found = await sessions(cluster)
        assert (len(found), found.count(None)) == (4, 2)

        for killed, started in (("java-1", "java-3"), ("native-1", "native-3")):
            await cluster.kill(killed)
            members.remove(killed)
            seconds[f"{killed} killed"] = await until_every_queue_is_handled(cluster, *members)
            await join(cluster, programs, started)
            members.append(started)
            await until_has_a_queue(cluster, started)

        await cluster.kill("broker-a")
        await cluster.restart("broker-a")
        seconds["broker killed"] = await until_every_queue_is_handled(cluster, *members)
        done = await check_order(cluster, *members)
    report(f"{done}; " + ", ".join(f"{what}: {took:.1f} s" for what, took in seconds.items()))


async def test_group_changes_from_java_to_the_sdk_and_back_under_load(programs: list[str], tmp_path: Path, report: Report) -> None:
    async with running_cluster(tmp_path) as cluster:
        old = ["java-1", "java-2"]
        await begin(cluster, programs, *old)
        await until_every_queue_is_handled(cluster, *old)
        seconds = {}
        for new, classic_count in ((["native-1", "native-2"], 0), (["java-3", "java-4"], 2)):
            for stopped, started in zip(old, new, strict=True):
                await join(cluster, programs, started)
                await until_has_a_queue(cluster, started)
                await cluster.stop(stopped)
            seconds[f"to {' and '.join(new)}"] = await until_every_queue_is_handled(cluster, *new)
            found = await sessions(cluster)
            assert (len(found), found.count(None)) == (2, classic_count)
            old = new
        done = await check_order(cluster, *old)
    report(f"{done}; " + ", ".join(f"{what}: {took:.1f} s" for what, took in seconds.items()))
