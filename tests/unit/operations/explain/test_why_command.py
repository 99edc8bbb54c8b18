"""lockstep why: which queue it is asked about, and what it prints."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import pytest
import typer

from lockstep.cli.commands.why import _why
from lockstep.client import Backoff, MessageExt, OrderedRetry, OrderlyContext
from lockstep.client.producer.machines.routing import number_of_key
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.explain.why import QueueState
from lockstep.operations.explain.why_query import diagnose
from lockstep.protocol.bodies import BrokerAddress, GroupSettings, GroupStatusReply, ParkControlBody, ParkControlReply
from lockstep.protocol.errors import LockstepError, TransportError
from lockstep.protocol.names import RETRY_PREFIX
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support.why_kit import GROUP, TOPIC, Member, explanations, hang, send

one_broker = pytest.mark.lockstep(brokers=1)
Run = Callable[[Coroutine[Any, Any, None]], Awaitable[str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs the work of a command, and returns what it has printed, or why it has failed."""

    async def ended(work: Coroutine[Any, Any, None]) -> str:
        try:
            await work
        except LockstepError as error:
            capsys.readouterr()
            return f"failed: {error}"
        except typer.Exit as exit_:
            return f"{capsys.readouterr().out}exit {exit_.exit_code}"
        return capsys.readouterr().out

    return ended


def why(
    cluster: TestCluster, target: str | None = None, *, key: str | None = None, topic: str | None = None, as_json: bool = False
) -> Coroutine[Any, Any, None]:
    return _why(GROUP, target, key, topic, cluster.nameserver, as_json)


async def hung(cluster: TestCluster, *, queues: int = 4, topic: str = TOPIC, **settings: Any) -> Member:
    """Return a member whose listener hangs in each queue."""
    await cluster.create_topic(topic, queues=queues)
    member = Member(cluster, hang, settings, topic=topic)
    await cluster.start("a", member.run)
    await cluster.settled(GROUP)
    return member


@one_broker
async def test_all_queues_of_a_group_are_counted_and_those_that_stand_are_explained(lockstep_cluster: TestCluster, run: Run) -> None:
    await hung(lockstep_cluster)
    await send(lockstep_cluster, 40, keys=1)  # one key, so one queue
    await lockstep_cluster.advance(seconds=5)
    first, summary, because, *stack, held, step = (await run(why(lockstep_cluster))).splitlines()
    assert first == f"group {GROUP}: stalled queues: 1, queues with nothing to do: 3"
    assert f"of group {GROUP} is stalled at offset 0: 40 messages wait" in summary
    assert because.startswith("  because  the listener support.why_kit.hang has been running for ")
    assert all(line.startswith("           at ") for line in stack)
    assert " in hang" in "".join(stack)
    assert held.startswith("  also     the queue is held under epoch ")
    assert step.startswith("  next     look at ")


@one_broker
async def test_queues_with_the_same_cause_are_named_together(lockstep_cluster: TestCluster, run: Run) -> None:
    member = await hung(lockstep_cluster)
    member.started.pause()
    await send(lockstep_cluster, 40, keys=20)
    _, summary, also, because, _, step = (await run(why(lockstep_cluster))).splitlines()
    assert summary.startswith(f"{TOPIC}@broker-a:")
    assert also.startswith("  and so   ")
    assert also.count("@broker-a:") == 3
    assert because.endswith(" is paused by its application")
    assert step == "  next     call consumer.resume() in that program"


async def test_one_queue_is_named_with_or_without_its_broker(lockstep_cluster: TestCluster, run: Run) -> None:
    await hung(lockstep_cluster, queues=2)
    assert (await run(why(lockstep_cluster, f"{TOPIC}@broker-b:1"))).startswith(f"{TOPIC}@broker-b:1 of group {GROUP} has nothing to do")
    assert (await run(why(lockstep_cluster, f"{TOPIC}:1"))) == f"group {GROUP}: queues with nothing to do: 2\n"
    assert await run(why(lockstep_cluster, f"{TOPIC}@broker-b:7")) == (
        f"failed: group {GROUP} has no queue broker-b:7 of topic {TOPIC}: run `lockstep group show {GROUP}` to list its queues"
    )


@one_broker
async def test_key_is_in_the_queue_to_which_the_layout_gives_it(lockstep_cluster: TestCluster, run: Run) -> None:
    await hung(lockstep_cluster)
    await send(lockstep_cluster, 40, keys=20)
    await lockstep_cluster.advance(seconds=2)
    first, summary, because, *_ = (await run(why(lockstep_cluster, key="k7"))).splitlines()
    queue = first.removeprefix(f"key k7 of topic {TOPIC} belongs to ")
    assert summary.startswith(f"{queue} of group {GROUP} is stalled at offset ")
    assert "(key k" in because
    await lockstep_cluster.create_topic("bills", queues=1)
    assert "nothing" not in await run(why(lockstep_cluster, key="k7", topic=TOPIC))
    assert await run(why(lockstep_cluster, key="k7", topic="bills")) == (
        f"failed: group {GROUP} has nothing to do with bills@broker-a:0: no member subscribes to its topic, and it has no progress there"
    )


@one_broker
async def test_topic_of_a_key_has_to_be_named_if_the_group_has_several(lockstep_cluster: TestCluster, run: Run) -> None:
    await lockstep_cluster.create_topic("bills", queues=1)
    await lockstep_cluster.create_topic(TOPIC, queues=1)
    member = Member(lockstep_cluster, concurrent=True)

    async def both() -> None:
        await member.run()

    await lockstep_cluster.start("a", both)
    await lockstep_cluster.advance(seconds=3)
    await lockstep_cluster.stop("a")
    other = Member(lockstep_cluster, concurrent=True, topic="bills")
    await lockstep_cluster.start("b", other.run)
    await lockstep_cluster.advance(seconds=3)
    said = await run(why(lockstep_cluster, key="k7"))
    assert said == f"failed: group {GROUP} has queues of 2 topics (bills, {TOPIC}): name one with --topic"
    assert RETRY_PREFIX not in said
    assert (await run(why(lockstep_cluster, topic="bills"))).startswith(f"bills@broker-a:0 of group {GROUP} has nothing to do")


@one_broker
async def test_parked_key_and_its_messages_are_explained_by_its_error(
    lockstep_cluster: TestCluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []
    control = AdminClient.control_parked

    async def counted(admin: AdminClient, broker: BrokerAddress, body: ParkControlBody) -> ParkControlReply:
        asked.append(body.key)
        return await control(admin, broker, body)

    monkeypatch.setattr(AdminClient, "control_parked", counted)

    async def fails_on_k3(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        if messages[0].sharding_key == "k3":
            raise ValueError("no such account")

    await lockstep_cluster.create_topic(TOPIC, queues=1)
    retry = OrderedRetry(max_attempts=2, on_exhausted="park", backoff=Backoff(first_ms=100, max_ms=100))
    await lockstep_cluster.start("a", Member(lockstep_cluster, fails_on_k3, {"retry": retry}).run)
    ids = await send(lockstep_cluster, 20, keys=10)
    await lockstep_cluster.advance(seconds=5)
    expected = (
        f"{TOPIC}@broker-a:0 of group {GROUP}: key k3 is parked at offset 3\n"
        "  because  its message failed 2 times: ValueError: no such account\n"
        f"  next     remove the cause, then run `lockstep park replay {GROUP} k3`\n"
    )
    assert await run(why(lockstep_cluster, key="k3")) == f"key k3 of topic {TOPIC} belongs to {TOPIC}@broker-a:0\n{expected}"
    asked.clear()
    assert await run(why(lockstep_cluster, ids[13])) == f"message {ids[13]} is at offset 13 of {TOPIC}@broker-a:0\n{expected}"
    assert asked == ["k3"], "once"
    asked.clear()
    consumed = await run(why(lockstep_cluster, ids[4]))
    assert asked == ["k4", None], "once for the message, and once for the keys that the queue has"
    assert consumed.startswith(
        f"message {ids[4]} is at offset 4 of {TOPIC}@broker-a:0: the group's progress is past the message; the group's progress is 20\n"
    )
    assert "has nothing to do" in consumed


@one_broker
async def test_what_concerns_the_group_is_told_once_although_no_queue_stands(lockstep_cluster: TestCluster, run: Run) -> None:
    async def fails_on_k0(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        if messages[0].sharding_key == "k0":
            raise ValueError("no such account")

    await lockstep_cluster.create_topic(TOPIC, queues=20)
    retry = OrderedRetry(max_attempts=1, on_exhausted="park")
    await lockstep_cluster.start("a", Member(lockstep_cluster, fails_on_k0, {"retry": retry}).run)
    await lockstep_cluster.settled(GROUP)
    await send(lockstep_cluster, 20, keys=10)
    await lockstep_cluster.advance(seconds=5)
    admin = AdminClient(Host.current(), lockstep_cluster.nameserver)
    (broker,) = await admin.brokers()
    await admin.configure(broker, GroupSettings(GROUP, consume_enable=False))
    queue = (await admin.route(TOPIC)).layout.write_queues[number_of_key("k0", 20)]
    assert await run(why(lockstep_cluster)) == (
        f"group {GROUP}: queues with nothing to do: 20\n"
        f"  also     consumption of group {GROUP} is switched off by an operator\n"
        f"  next     allow it with `lockstep group update {GROUP} --consume`\n"
        f"  also     parked keys, whose messages wait: k0 ({queue})\n"
        f"  next     run `lockstep park ls {GROUP}`\n"
    )


@one_broker
async def test_message_that_waits_is_explained_by_what_its_queue_waits_for(lockstep_cluster: TestCluster, run: Run) -> None:
    await hung(lockstep_cluster, queues=1)
    ids = await send(lockstep_cluster, 10)
    await lockstep_cluster.advance(seconds=2)
    first, _, because, *_ = (await run(why(lockstep_cluster, ids[7]))).splitlines()
    place = f"message {ids[7]} is at offset 7 of {TOPIC}@broker-a:0"
    assert first == f"{place}: the group's progress has not reached the message; the group's progress is 0"
    assert because.startswith("  because  the listener support.why_kit.hang ")


@one_broker
async def test_json_has_the_whole_explanation(lockstep_cluster: TestCluster, run: Run) -> None:
    await hung(lockstep_cluster, queues=1)
    await send(lockstep_cluster, 10)
    await lockstep_cluster.advance(seconds=2)
    shown = json.loads(await run(why(lockstep_cluster, as_json=True)))
    assert (shown["group"], shown["note"], shown["counts"], shown["failed"]) == (GROUP, None, {"stalled": 1}, {})
    (queue,) = shown["queues"]
    assert (queue["topic"], queue["broker"], queue["queue_id"], queue["state"]) == (TOPIC, "broker-a", 0, "stalled")
    assert (queue["because"]["name"], [each["name"] for each in queue["also"]]) == ("listener_runs", ["held"])
    assert queue["because"]["stack"]
    facts = queue["facts"]
    assert (facts["line"]["committed_offset"], facts["info"]["queue"]["state"], facts["parked"]) == (0, "held", [])


@one_broker
async def test_exit_1_if_nothing_explains_it(lockstep_cluster: TestCluster, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    await hung(lockstep_cluster, queues=1)
    await send(lockstep_cluster, 10)
    await lockstep_cluster.advance(seconds=2)
    monkeypatch.setattr("lockstep.operations.explain.why._obstacles", lambda report, facts: ())
    said = await run(why(lockstep_cluster))
    assert "  because  unknown: nothing of what the brokers and the member report explains it\n  fact     broker: " in said
    assert said.endswith("exit 1")


async def test_result_without_one_broker_is_incomplete(lockstep_cluster: TestCluster, run: Run) -> None:
    await hung(lockstep_cluster)
    await lockstep_cluster.kill("broker-b")
    assert "failed: the result is incomplete: broker broker-b: " in await run(why(lockstep_cluster))


@one_broker
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"target": "orders:1", "key": "k"}, "name a queue or message, or use --key and --topic: not both"),
        ({"target": "orders:1", "topic": "orders"}, "name a queue or message, or use --key and --topic: not both"),
        ({"key": ""}, "--key is empty: no message has an empty sharding key"),
        ({"target": "or/ders:1"}, "topic"),
        ({"target": "what"}, "what"),
    ],
)
async def test_wrong_arguments_are_explained(lockstep_cluster: TestCluster, run: Run, arguments: dict[str, str], words: str) -> None:
    said = await run(why(lockstep_cluster, **arguments))  # type: ignore[arg-type]
    assert said.startswith("failed: ")
    assert words in said


@one_broker
async def test_unknown_group_names_the_next_step(lockstep_cluster: TestCluster, run: Run) -> None:
    said = await run(why(lockstep_cluster))
    assert said.startswith(f"failed: no broker knows group {GROUP}; run `lockstep group list` to list the known groups")


@one_broker
async def test_many_standing_queues_are_not_all_looked_at(lockstep_cluster: TestCluster, run: Run) -> None:
    await hung(lockstep_cluster, queues=20)
    await send(lockstep_cluster, 400, keys=200)
    await lockstep_cluster.advance(seconds=2)
    said = await run(why(lockstep_cluster))
    assert said.splitlines()[0] == f"group {GROUP}: stalled queues: 20"
    assert said.splitlines()[-1] == (
        f"4 more queues are stalled and were not examined: name one, as in `lockstep why {GROUP} TOPIC@BROKER:QUEUE`"
    )


async def test_queue_that_the_first_look_did_not_reach_does_not_move(
    lockstep_cluster: TestCluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = False

    async def listener(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        if hangs:
            await asyncio.Event().wait()

    await lockstep_cluster.create_topic(TOPIC, queues=1)
    await lockstep_cluster.start("a", Member(lockstep_cluster, listener).run)
    await lockstep_cluster.settled(GROUP)
    await send(lockstep_cluster, 40, keys=20)
    await lockstep_cluster.advance(seconds=2)
    hangs = True
    await send(lockstep_cluster, 40, keys=20)
    await lockstep_cluster.advance(seconds=2)
    status = AdminClient.group_status
    refused: list[str] = []

    async def first_fails(admin: AdminClient, broker: BrokerAddress, group: str | None, *, summaries: bool = False) -> GroupStatusReply:
        if broker.name not in refused:
            refused.append(broker.name)
            if broker.name == "broker-a":
                raise TransportError("the connection was closed")
        return await status(admin, broker, group, summaries=summaries)

    monkeypatch.setattr(AdminClient, "group_status", first_fails)
    found = await diagnose(AdminClient(Host.current(), lockstep_cluster.nameserver), GROUP, lambda line: line.broker == "broker-a")
    (queue,) = found.explanations
    assert queue.state is QueueState.STALLED
    assert queue.because is not None
    assert queue.because.name == "listener_runs"
    assert found.failed == {"broker-a": "it did not respond to the first of two looks: the connection was closed"}


@one_broker
async def test_operators_who_ask_at_the_same_time_get_the_same_answer(lockstep_cluster: TestCluster) -> None:
    """A member is asked one question at a time."""
    await hung(lockstep_cluster, queues=8)
    await send(lockstep_cluster, 80, keys=40)
    await lockstep_cluster.advance(seconds=2)
    for each in await asyncio.gather(*(explanations(lockstep_cluster) for _ in range(3))):
        names = [found.because.name for found in each if found.because is not None]
        assert names == ["listener_runs"] * 8


@one_broker
async def test_silent_member_is_the_finding_of_every_operator_who_asks(lockstep_cluster: TestCluster) -> None:
    """The second operator waits for the end of the first one's question, then for that of an own one. The others get no turn."""
    await hung(lockstep_cluster, queues=1)
    await send(lockstep_cluster, 10)
    await lockstep_cluster.advance(seconds=2)
    await lockstep_cluster.pause("a")
    began = lockstep_cluster.now
    for (found,) in await asyncio.gather(*(explanations(lockstep_cluster) for _ in range(8))):
        assert found.because is not None
        assert found.because.name == "member_silent"
    assert lockstep_cluster.now - began < 8
    await lockstep_cluster.resume("a")


@one_broker
async def test_member_whose_session_ends_while_it_is_asked_is_known_to_be_gone(lockstep_cluster: TestCluster) -> None:
    """The look before the question still shows it. Operators ask before the broker ends its session, meanwhile and after."""
    await hung(lockstep_cluster, queues=1)
    await send(lockstep_cluster, 10)
    await lockstep_cluster.advance(seconds=2)
    await lockstep_cluster.pause("a")

    async def asked(after_s: float) -> str:
        await asyncio.sleep(after_s)
        (found,) = await explanations(lockstep_cluster)
        assert found.because is not None
        return found.because.name

    names = await asyncio.gather(*(asked(6 + number / 4) for number in range(68)))
    assert set(names) == {"member_silent", "no_member"}
    assert (names[0], names[-1]) == ("member_silent", "no_member")
    await lockstep_cluster.resume("a")
