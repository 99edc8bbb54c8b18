"""`delay` and `deliver_at`: never early, stored once, and taken back by `recall`."""

import asyncio
from base64 import b64encode
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from lockstep.client import (
    BatchSendError,
    LocalProtocolError,
    Message,
    MessageIllegalError,
    Producer,
    QueryNotFoundError,
    SendResult,
    SendStatus,
    StateError,
    TooLateToRecallError,
    TransportError,
)
from lockstep.client.sync import Producer as BlockingProducer
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes.topic_delete import delete_topic, plan_deletion
from lockstep.protocol.messages.recall import RecallHandle
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster, simulate
from support.cluster_thread import cluster_in_a_thread
from support.delayed import listening, now

MINUTE = timedelta(minutes=1)
FORMS = "send", "post", "send_batch"


def wall(after: timedelta = timedelta(0)) -> datetime:
    """Return the time of day so long from now."""
    return datetime.fromtimestamp(Host.current().clock.wall_ms() / 1000, UTC) + after


def keyed(body: str) -> Message:
    return Message("orders", body.encode(), sharding_key="k")


async def send(producer: Producer, form: str, message: Message, **when: Any) -> SendResult:
    if form == "post":
        return await (await producer.post(message, **when))
    if form == "send_batch":
        (result,) = await producer.send_batch([message], **when)
        return result
    return await producer.send(message, **when)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["delay", "deliver_at"])
def test_message_is_delivered_when_its_time_has_come_and_not_before(form: str, kind: str) -> None:
    async def main() -> None:
        async with TestCluster() as cluster, listening(cluster) as (producer, seen):
            due: dict[bytes, float] = {}
            for number, wait in enumerate([timedelta(minutes=11), timedelta(milliseconds=1), timedelta(seconds=7), timedelta(seconds=3)]):
                body = b"%d" % number
                due[body] = now() + wait.total_seconds()
                result = await send(producer, form, Message("orders", body), **{kind: wait if kind == "delay" else wall(wait)})
                assert (result.status, result.queue_offset) == (SendStatus.SEND_OK, -1)
            await cluster.advance(minutes=12)
            assert [message.body for _, message in seen] == sorted(due, key=due.__getitem__)
            late = [at - due[message.body] for at, message in seen]
            assert all(0 <= seconds < 1 for seconds in late), late

    simulate(main)


def test_message_that_waited_is_the_one_that_was_sent() -> None:
    async def main() -> None:
        async with TestCluster() as cluster, listening(cluster) as (producer, seen):
            message = Message("orders", b"x", tags="paid", keys=["a", "b"], properties={"tenant": "t"}, sharding_key="1001", flag=7)
            result = await producer.send(message, delay=timedelta(seconds=5))
            await cluster.advance(seconds=8)
            ((_, found),) = seen
            place = result.message_id, result.queue.broker_name, result.queue.queue_id
            assert (found.message_id, found.broker_name, found.queue_id) == place
            assert (found.body, found.tags, found.keys, found.sharding_key, found.flag) == (b"x", "paid", ("a", "b"), "1001", 7)
            assert {name: value for name, value in found.properties.items() if name not in ("TAGS", "KEYS", "UNIQ_KEY")} == {
                "tenant": "t",
                "__SHARDINGKEY": "1001",
            }

    simulate(main)


def test_messages_of_a_batch_wait_for_the_queues_of_their_keys() -> None:
    async def main() -> None:
        async with TestCluster() as cluster, listening(cluster) as (producer, seen):
            messages = [Message("orders", b"%d" % number, sharding_key=str(number)) for number in range(40)]
            results = await producer.send_batch(messages, delay=timedelta(seconds=7))
            plain = await producer.send_batch(messages)
            assert [result.queue for result in results] == [result.queue for result in plain]
            assert len({result.queue for result in results}) == 4
            assert len({result.recall_handle for result in results}) == 40
            await cluster.advance(seconds=9)
            assert {message.message_id for _, message in seen} == {result.message_id for result in [*results, *plain]}
            assert len(seen) == 80

    simulate(main)


def test_message_without_a_delay_has_no_recall_handle() -> None:
    async def main() -> None:
        async with TestCluster() as cluster, listening(cluster) as (producer, _):
            assert (await producer.send(Message("orders", b"x"))).recall_handle == ""
            waiting = await producer.send(Message("orders", b"x"), deliver_at=wall(MINUTE))
            named = RecallHandle.decode(waiting.recall_handle)
            assert named.offset is not None
            assert named[:2] == ("orders", waiting.queue.broker_name)
            assert named.message_id == waiting.message_id

    simulate(main)


def test_time_of_day_in_any_zone_is_the_same_moment_and_a_past_one_is_due_at_once() -> None:
    async def main() -> None:
        async with TestCluster() as cluster, listening(cluster) as (producer, seen):
            at = wall(MINUTE)
            handles = [
                (await producer.send(Message("orders", b"zone"), deliver_at=at.astimezone(timezone(timedelta(hours=hours))))).recall_handle
                for hours in (-11, 0, 13)
            ]
            assert len({RecallHandle.decode(handle).due_ms for handle in handles}) == 1
            await producer.send(Message("orders", b"past"), deliver_at=datetime(1969, 12, 31, tzinfo=UTC))
            await cluster.advance(seconds=1)
            assert [message.body for _, message in seen] == [b"past"]
            await cluster.advance(minutes=1)
            assert Counter(message.body for _, message in seen) == {b"past": 1, b"zone": 3}

    simulate(main)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("when", "error", "words"),
    [
        ({"delay": timedelta(0)}, LocalProtocolError, "expected a millisecond or more"),
        ({"delay": timedelta(microseconds=999)}, LocalProtocolError, "expected a millisecond or more"),
        ({"delay": timedelta(seconds=-1)}, LocalProtocolError, "expected a millisecond or more"),
        ({"delay": 5}, LocalProtocolError, r"delay 5: expected a datetime.timedelta, such as timedelta\(seconds=5\)"),
        ({"delay": timedelta.max}, LocalProtocolError, "at most 999999999999999"),
        ({"deliver_at": datetime(2030, 1, 1)}, LocalProtocolError, "2030-01-01 00:00:00 has no time zone"),
        ({"deliver_at": "2030-01-01T00:00Z"}, LocalProtocolError, "deliver_at is a str: expected a datetime.datetime with a time zone"),
        ({"delay": MINUTE, "deliver_at": datetime(2030, 1, 1, tzinfo=UTC)}, LocalProtocolError, "are both given: give one of them"),
        ({"delay": timedelta(days=40, milliseconds=1)}, MessageIllegalError, r"at most 40 \(timer_days_max\)"),
        ({"deliver_at": datetime(2030, 1, 1, tzinfo=UTC)}, MessageIllegalError, r"at most 40 \(timer_days_max\)"),
    ],
)
def test_invalid_delay_is_refused_with_what_is_expected(form: str, when: dict[str, Any], error: type[Exception], words: str) -> None:
    async def main() -> None:
        async with TestCluster(brokers=1) as cluster, Producer("shop", nameserver=cluster.nameserver) as producer:
            await cluster.create_topic("orders", queues=1)
            reported = BatchSendError if form == "send_batch" and error is MessageIllegalError else error
            with pytest.raises(reported, match=words):
                await send(producer, form, Message("orders", b"x"), **when)
            longest = await send(producer, form, Message("orders", b"x"), delay=timedelta(days=40))
            assert longest.status is SendStatus.SEND_OK
            assert producer.in_flight_count == 0

    simulate(main)


@pytest.mark.parametrize("then", ["nothing", "kill", "cut_power"])
def test_recalled_message_is_never_delivered(then: str) -> None:
    async def main() -> None:
        async with TestCluster(brokers=1) as cluster, listening(cluster) as (producer, seen):
            messages = [Message("orders", b"%d" % number) for number in range(20)]
            results = await producer.send_batch(messages, delay=MINUTE)
            for result in results[::2]:
                assert await producer.recall(result.recall_handle) == result.message_id
            if then != "nothing":
                await getattr(cluster, then)("broker-a")
                await cluster.restart("broker-a")
            await cluster.advance(minutes=3)
            assert Counter(int(message.body) for _, message in seen) == Counter(range(1, 20, 2))

    simulate(main)


def test_recall_may_be_repeated_also_after_the_message_would_have_been_due() -> None:
    async def main() -> None:
        async with TestCluster(brokers=1) as cluster, listening(cluster) as (producer, seen):
            result = await producer.send(Message("orders", b"x"), delay=MINUTE)
            for minutes in (0, 3, 60):
                await cluster.advance(minutes=minutes)
                assert await producer.recall(result.recall_handle) == result.message_id
            assert seen == []

    simulate(main)


def test_recall_after_the_delivery_is_too_late() -> None:
    async def main() -> None:
        async with TestCluster(brokers=1) as cluster, listening(cluster) as (producer, seen):
            result = await producer.send(Message("orders", b"x"), delay=timedelta(seconds=2))
            for _ in range(2):
                await cluster.advance(seconds=3)
                assert [message.body for _, message in seen] == [b"x"]
                with pytest.raises(TooLateToRecallError, match=f"message {result.message_id} does not wait any more"):
                    await producer.recall(result.recall_handle)

    simulate(main)


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "bills"},
        {"broker_name": "broker-b"},
        {"message_id": "0" * 32},
        {"due_ms": 1},
        {"due_ms": 1, "offset": None},
        {"message_id": "0" * 32, "offset": None},
        {"topic": "bills", "offset": None},
    ],
)
def test_forged_handle_recalls_nothing(change: dict[str, Any]) -> None:
    async def main() -> None:
        async with TestCluster() as cluster, listening(cluster) as (producer, seen):
            await cluster.create_topic("bills", queues=1)
            result = await producer.send(Message("orders", b"x", sharding_key="1"), delay=MINUTE)
            named = RecallHandle.decode(result.recall_handle)
            if change.get("broker_name") == named.broker_name:
                change["broker_name"] = "broker-a"
            with pytest.raises(QueryNotFoundError, match="no message"):
                await producer.recall(named._replace(**change).encode())
            await cluster.advance(minutes=2)
            assert [message.body for _, message in seen] == [b"x"]

    simulate(main)


def test_handle_without_an_offset_as_those_of_rocketmqs_clients_is_recalled() -> None:
    async def main() -> None:
        async with TestCluster(brokers=1) as cluster, listening(cluster) as (producer, seen):
            results = await producer.send_batch([Message("orders", b"%d" % number) for number in range(3)], delay=MINUTE)
            await producer.recall(RecallHandle.decode(results[1].recall_handle)._replace(offset=None).encode())
            await cluster.advance(minutes=2)
            assert sorted(message.body for _, message in seen) == [b"0", b"2"]

    simulate(main)


def test_recall_without_its_broker_fails_at_its_deadline_and_can_be_repeated() -> None:
    async def main() -> None:
        async with TestCluster(brokers=1) as cluster, listening(cluster) as (producer, seen):
            result = await producer.send(Message("orders", b"x"), delay=timedelta(minutes=5))
            unknown = RecallHandle.decode(result.recall_handle)._replace(broker_name="broker-z").encode()
            with pytest.raises(TransportError, match="no address of broker broker-z"):
                await producer.recall(unknown)
            for invalid in ("", "nothing", "é", "A" * 1_025, b64encode(b"v2 orders broker-a 1 id").decode()):
                with pytest.raises(LocalProtocolError, match="no recall handle"):
                    await producer.recall(invalid)
            await cluster.kill("broker-a")
            began = now()
            with pytest.raises(TransportError):
                await producer.recall(result.recall_handle, timeout_ms=2_000)
            assert now() - began <= 3
            await cluster.restart("broker-a")
            assert await producer.recall(result.recall_handle, timeout_ms=30_000) == result.message_id
            await cluster.advance(minutes=6)
            assert seen == []
        with pytest.raises(StateError, match="closed"):
            await producer.recall(result.recall_handle)

    simulate(main)


@pytest.mark.parametrize("form", FORMS)
def test_send_whose_response_is_lost_is_stored_once(form: str) -> None:
    async def main() -> None:
        async with TestCluster(brokers=1) as cluster, listening(cluster) as (producer, seen):
            await producer.send(keyed("first"), delay=MINUTE)
            cluster.partition("broker-a", "test", one_way=True)
            sending = asyncio.ensure_future(
                send(producer, form, Message("orders", b"x", sharding_key="k"), delay=MINUTE, timeout_ms=60_000)
            )
            await cluster.advance(seconds=5)
            assert not sending.done()
            cluster.reset_connections("broker-a", "test")
            cluster.heal()
            result = await sending
            assert (result.queue_offset, producer.possible_duplicates) == (-1, 0)
            await cluster.advance(minutes=2)
            assert Counter(message.body for _, message in seen) == {b"first": 1, b"x": 1}

    simulate(main)


def test_messages_wait_over_restarts_of_their_broker() -> None:
    async def main() -> None:
        async with TestCluster(brokers=1) as cluster, listening(cluster) as (producer, seen):
            due: dict[bytes, float] = {}
            for number in range(40):
                body, wait = b"%d" % number, timedelta(seconds=2 + number)
                await producer.send(Message("orders", body), **({"delay": wait} if number % 2 else {"deliver_at": wall(wait)}))
                due[body] = now() + wait.total_seconds() - 0.01
            for stop in (cluster.kill, cluster.stop, cluster.kill):
                await cluster.advance(seconds=4)
                await stop("broker-a")
                await cluster.advance(seconds=2)
                await cluster.restart("broker-a")
            await cluster.advance(seconds=60)
            assert {message.body for _, message in seen} == set(due)
            assert [message.body for at, message in seen if at < due[message.body]] == []

    simulate(main)


def test_message_for_a_topic_that_was_created_again_goes_to_the_new_one_and_those_of_the_old_one_to_none() -> None:
    async def main() -> None:
        async with TestCluster(brokers=1) as cluster, listening(cluster) as (producer, seen):
            old = await producer.send(Message("orders", b"old"), delay=MINUTE)
            admin = AdminClient(Host.current(), cluster.nameserver)
            await delete_topic(admin, await plan_deletion(admin, "orders", force=True))
            await cluster.create_topic("orders", queues=2)
            await producer.send(Message("orders", b"new"), delay=MINUTE, timeout_ms=60_000)
            await cluster.advance(minutes=3)
            assert [message.body for _, message in seen] == [b"new"]
            with pytest.raises(TooLateToRecallError):
                await producer.recall(old.recall_handle)

    simulate(main)


def test_blocking_producer_sends_messages_that_wait_and_recalls_them(tmp_path: Path) -> None:
    with cluster_in_a_thread(tmp_path) as nameserver, BlockingProducer("shop", nameserver=nameserver) as producer:
        day = timedelta(days=1)
        one = producer.send(Message("orders", b"x"), delay=day)
        others = producer.send_batch([Message("orders", b"y"), Message("orders", b"z")], deliver_at=datetime.now(UTC) + day)
        for result in (one, *others):
            assert result.queue_offset == -1
            assert producer.recall(result.recall_handle) == result.message_id
        forged = RecallHandle.decode(one.recall_handle)._replace(message_id="0" * 32).encode()
        with pytest.raises(QueryNotFoundError):
            producer.recall(forged)
