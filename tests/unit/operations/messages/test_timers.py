"""lockstep timer ls | recall: what waits at all brokers, as it is due, and what is taken back."""

from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lockstep.cli.change_command import carry_out
from lockstep.cli.commands.timer import _list
from lockstep.client import Message, MessageQueue, Producer
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.brokers.doctor_query import examine
from lockstep.operations.changes.waiting.timer_recall import AT_ONCE, LISTED_MAX, TimerRecall
from lockstep.operations.errors import OperationError
from lockstep.operations.messages import timers
from lockstep.operations.messages.timers import Position, TimerCriteria, TimerList, format_positions, list_timers, parse_positions
from lockstep.protocol.errors import ConfigError, LocalProtocolError, LockstepError, TooLateToRecallError, TopicNotExistError
from lockstep.protocol.messages.recall import RecallHandle
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support.delayed import listening
from support.ended_command import Run

TOPIC = "orders"


def ls(
    cluster: TestCluster,
    topic: str | None = None,
    before: str | None = None,
    key: str | None = None,
    sharding_key: str | None = None,
    *,
    limit: int = 20,
    as_json: bool = False,
) -> Coroutine[Any, Any, None]:
    return _list(topic, before, key, sharding_key, limit, cluster.nameserver, as_json)  # type: ignore[arg-type]


def recall(cluster: TestCluster, *, dry_run: bool = False, as_json: bool = False, **fields: Any) -> Coroutine[Any, Any, None]:
    return carry_out(TimerRecall(**fields), cluster.nameserver, dry_run=dry_run, as_json=as_json)  # type: ignore[arg-type]


def admin(cluster: TestCluster) -> AdminClient:
    return AdminClient(Host.current(), cluster.nameserver)


async def send(producer: Producer, cluster: TestCluster, count: int, *keys: str, topic: str = TOPIC) -> list[str]:
    """Send messages that are due in an hour and every second from then on, to one broker after the other. Return their handles."""
    found = []
    for number in range(count):
        queue = MessageQueue(topic, cluster.brokers[number % len(cluster.brokers)], 0)
        message = Message(topic, b"%d" % number, keys=[f"n{number}", *keys])
        result = await producer.send(message, queue=queue, delay=timedelta(hours=1, seconds=number))
        found.append(result.recall_handle)
    return found


def numbers(found: TimerList) -> list[int]:
    return [int(each.keys[0][1:]) for each in found.found]


# -------------------------------------------------------------------------------------------------------------------- ls


async def test_messages_of_all_brokers_are_listed_as_they_are_due(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    async with listening(cluster) as (producer, _):
        handles = await send(producer, cluster, 30)
        for limit in (1, 2, 29, 30, 31, None):
            found = await list_timers(admin(cluster), TimerCriteria(), limit)
            assert numbers(found) == list(range(min(limit or 30, 30)))
            assert (found.pending, found.unread, found.failed, bool(found.positions)) == (30, 0, {}, limit is not None and limit < 30)
        shown = await run(ls(cluster))
        assert shown.lines[0][:6] == ["topic", "due", "queue", "id", "tag", "keys"]
        assert [line[5] for line in shown.lines[1:21]] == [f"n{number}" for number in range(20)]
        assert [line[-1] for line in shown.lines[1:21]] == handles[:20]
        assert " ".join(shown.lines[21]) == "these are the first 20, others are due later; pass --limit N to list more"
        assert (len(shown.lines), shown.error) == (22, "")


async def test_list_has_only_messages_that_meet_the_options(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic("bills", queues=1)
    async with listening(cluster) as (producer, _):
        await send(producer, cluster, 6)
        now_ms = Host.current().clock.wall_ms()
        noon = datetime.fromtimestamp(now_ms / 1000, UTC) + timedelta(hours=3)
        await producer.send(Message("bills", b"x", tags="t", keys=["a", "b"], sharding_key="s"), deliver_at=noon)
        for options, expected in [
            ({}, [*(f"n{number}" for number in range(6)), "a"]),
            ({"topic": "bills"}, ["a"]),
            ({"key": "b"}, ["a"]),
            ({"sharding_key": "s"}, ["a"]),
            ({"before": "2h"}, [f"n{number}" for number in range(6)]),
            ({"before": "2h", "key": "n3"}, ["n3"]),
            ({"before": "30m"}, []),
        ]:
            found = (await run(ls(cluster, as_json=True, **options))).json  # type: ignore[arg-type]
            assert [each["keys"][0] for each in found["messages"]] == expected, options
        (message,) = (await run(ls(cluster, "bills", as_json=True))).json["messages"]
        handle = RecallHandle.decode(message.pop("recall_handle"))
        assert (handle.topic, handle.message_id) == ("bills", message.pop("message_id"))
        assert message.pop("record_bytes") > 200
        assert message.pop("stored_at") < message["due_at"]
        assert message == {
            "topic": "bills",
            "broker": handle.broker_name,
            "queue_id": 0,
            "tags": "t",
            "keys": ["a", "b"],
            "sharding_key": "s",
            "due_at": noon.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "time_of_day": True,
        }
        assert (await run(ls(cluster, "bills", before="1m"))).out == "no such message waits\n"
        for wrong, error in [
            ({"topic": "nobody"}, TopicNotExistError),
            ({"topic": "a b"}, LocalProtocolError),
            ({"key": "a b"}, ConfigError),
            ({"sharding_key": ""}, LocalProtocolError),
            ({"before": "1500"}, ConfigError),
        ]:
            with pytest.raises(error):
                await ls(cluster, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("page", [1, 3, 50])
async def test_list_is_continued_where_it_ended_although_messages_have_gone_meanwhile(
    lockstep_cluster: TestCluster, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = lockstep_cluster
    monkeypatch.setattr(timers, "PAGE_MAX", page)
    async with listening(cluster) as (producer, _):
        handles = await send(producer, cluster, 12)
        found = await list_timers(admin(cluster), TimerCriteria(), 5)
        listed = numbers(found)
        for gone in (4, 5, 6):
            await producer.recall(handles[gone])
        while positions := found.positions:
            found = TimerList(admin(cluster), TimerCriteria(), parse_positions(format_positions(positions)))
            await found.read(2)
            listed += numbers(found)
        assert listed == [0, 1, 2, 3, 4, 7, 8, 9, 10, 11]


@pytest.mark.parametrize("text", ["", "a", "a:b", "a::1", "a::1:2;", "a:x y:1:2", "a b::1:2", f"a::{'9' * 19}:1"])
def test_text_that_is_no_place_to_go_on_from_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="use the link to later messages"):
        parse_positions(text)


def test_positions_are_read_from_their_text() -> None:
    positions = {"broker-a": Position(), "b": Position("0,-1,2", 5, 7), "c": Position("any:text;/é", 1, 2)}
    assert parse_positions(format_positions(positions)) == positions


async def test_broker_that_does_not_respond_is_named_and_the_others_are_listed(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    async with listening(cluster) as (producer, _):
        await send(producer, cluster, 6)
        await cluster.kill("broker-b")
        found = await run(ls(cluster, as_json=True))
        assert [each["broker"] for each in found.json["messages"]] == ["broker-a"] * 3
        assert (found.json["complete"], list(found.json["failed"])) == (False, ["broker-b"])
        assert "the result is incomplete: broker broker-b" in found.error


# -------------------------------------------------------------------------------------------------------------------- recall


async def test_message_of_a_handle_is_recalled_only_with_yes(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    async with listening(cluster) as (producer, seen):
        handle, other = await send(producer, cluster, 2)
        named = RecallHandle.decode(handle)
        for fields in ({"dry_run": True}, {}):
            shown = await run(recall(cluster, handle=handle, **fields))
            assert shown.lines[0] == ["due", "topic", "queue", "id", "keys"]
            assert shown.lines[1][1:] == [TOPIC, "broker-a:0", named.message_id, "n0"]
            assert f"Message {named.message_id} of topic {TOPIC}, which is due at 20" in shown.out
            assert "(in 59 min), will not be delivered." in shown.out
            refusal = f"nothing was changed: to do it, run `lockstep timer recall {handle} --yes`"
            assert shown.error == ("" if fields else refusal)
        done = await run(recall(cluster, handle=handle, yes=True))
        assert (done.out, done.error) == (f"message {named.message_id} of topic {TOPIC} was recalled: it will not be delivered\n", "")
        again = await run(recall(cluster, handle=handle, yes=True, as_json=True))
        assert (again.json["messages"], again.json["recalled"], again.error) == ([], 1, ""), "to repeat it does no harm"
        nothing = await run(recall(cluster, handle=handle))
        assert f"message {named.message_id} of topic {TOPIC} does not wait at broker-a" in nothing.out
        await cluster.advance(minutes=65)
        assert [message.body for _, message in seen] == [b"1"]
        with pytest.raises(TooLateToRecallError, match="does not wait any more"):
            await recall(cluster, handle=other, yes=True)


async def test_all_messages_with_a_key_are_recalled_at_all_brokers(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    count = AT_ONCE + 10
    async with listening(cluster) as (producer, seen):
        await send(producer, cluster, count, "run-1")
        await send(producer, cluster, 2, "run-2")
        plan = await run(recall(cluster, topic=TOPIC, key="run-1", dry_run=True))
        assert [line[-1] for line in plan.lines[1 : LISTED_MAX + 1]] == ["run-1"] * LISTED_MAX
        assert f"{count} messages of topic {TOPIC} with the key run-1, which are due at 20" in plan.out
        assert f"The first {LISTED_MAX} of them are listed." in plan.out
        refused = await run(recall(cluster, topic=TOPIC, key="run-1"))
        assert refused.error == f"nothing was changed: to do it, run `lockstep timer recall --topic {TOPIC} --key run-1 --yes`"
        assert len((await list_timers(admin(cluster), TimerCriteria())).found) == count + 2
        done = (await run(recall(cluster, topic=TOPIC, key="run-1", yes=True, as_json=True))).json
        assert (len(done["messages"]), done["recalled"], done["delivered"], done["failed"]) == (count, count, 0, {})
        again = await run(recall(cluster, topic=TOPIC, key="run-1", yes=True))
        assert (again.out, again.error) == (f"no message of topic {TOPIC} with the key run-1 waits, or none that can be recalled\n", "")
        await cluster.advance(minutes=70)
        assert [message.keys[1] for _, message in seen] == ["run-2"] * 2


async def test_message_that_was_delivered_before_its_recall_is_counted(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    async with listening(cluster) as (producer, seen):
        await send(producer, cluster, 4, "k")
        plan = await TimerRecall(topic=TOPIC, key="k", yes=True).plan(admin(cluster))
        await cluster.advance(minutes=59)
        while len(seen) < 2:
            await cluster.advance(seconds=1)
        outcome = await plan.carry_out()
        assert list(outcome.lines) == [
            f"2 messages of topic {TOPIC} with the key k were recalled: they will not be delivered",
            "2 others were delivered before",
        ]
        assert outcome.failed is None


async def test_messages_of_brokers_that_are_away_are_said_to_be_left(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    async with listening(cluster) as (producer, _):
        handles = await send(producer, cluster, 4, "k")
        early = await TimerRecall(topic=TOPIC, key="k", yes=True).plan(admin(cluster))
        await cluster.kill("broker-b")
        plan = await TimerRecall(topic=TOPIC, key="k", yes=True).plan(admin(cluster))
        with pytest.raises(OperationError, match="nothing was changed: some brokers did not say what waits: broker broker-b"):
            plan.check_complete()
        outcome = await early.carry_out()
        assert outcome.lines[0].startswith("2 messages")
        assert outcome.failed is not None
        assert "some messages may not have been recalled: broker broker-b" in outcome.failed
        assert f"run `lockstep timer recall --topic {TOPIC} --key k --yes` again" in outcome.failed
        with pytest.raises(LockstepError):
            await recall(cluster, handle=handles[1], yes=True)


@pytest.mark.parametrize(
    "fields",
    [{}, {"topic": TOPIC}, {"key": "k"}, {"handle": "x", "key": "k"}, {"handle": "x", "topic": TOPIC}],
    ids=lambda fields: " ".join(fields) or "nothing",
)
async def test_recall_needs_a_handle_or_a_topic_and_a_key(lockstep_cluster: TestCluster, fields: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="name a HANDLE, or use --topic TOPIC --key KEY"):
        await recall(lockstep_cluster, yes=True, **fields)


async def test_handle_of_an_unknown_broker_is_refused(lockstep_cluster: TestCluster) -> None:
    await lockstep_cluster.create_topic(TOPIC, queues=1)
    with pytest.raises(OperationError, match="the handle is of broker broker-z, which is not known"):
        await recall(lockstep_cluster, handle=RecallHandle(TOPIC, "broker-z", 1, "A", 0).encode(), yes=True)
    with pytest.raises(LocalProtocolError, match="no recall handle"):
        await recall(lockstep_cluster, handle="x", yes=True)


async def test_doctor_names_messages_that_are_due_while_the_writes_of_their_topic_are_held(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    async with listening(cluster) as (producer, seen):
        await send(producer, cluster, 3)
        asked = admin(cluster)
        await cluster.advance(minutes=59, seconds=50)
        for each in await asked.brokers():
            await asked.hold_writes(each, TOPIC, "h", 60_000)
        await cluster.advance(seconds=20)
        found = [(each.where.partition(" ")[0], each.problem) for each in await examine(asked) if each.check == "timers delivered"]
        words = f"messages to topic {TOPIC} are due and can't be delivered now: they are tried again each second"
        assert (found, seen) == ([("broker-a", f"2 {words}"), ("broker-b", f"1 {words}")], [])
        for each in await asked.brokers():
            await asked.hold_writes(each, TOPIC, "h", 0)
        await cluster.advance(seconds=5)
        assert [each.problem for each in await examine(asked) if each.check == "timers delivered"] == [None, None]
        assert len(seen) == 3
