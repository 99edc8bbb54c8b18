"""delay_level: the time of delivery, refusals, and survival of restarts. The other delays are in test_timers.py."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lockstep.broker.config import BrokerConfig
from lockstep.client import (
    LocalProtocolError,
    Message,
    MessageQueue,
    Outcome,
    Producer,
    QueueUnavailableError,
    SendError,
    SendStatus,
    SendTimeoutError,
    TopicNotExistError,
)
from lockstep.protocol.delays import DELAY_LEVELS, LEVELS_MS, check_delay_level, format_delay, parse_levels
from lockstep.protocol.errors import BrokerSystemError, NoPermissionError, ServiceNotAvailableError
from lockstep.protocol.messages.recall import RecallHandle
from lockstep.protocol.topics.queue import LayoutVersion, TopicLayout
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster, simulate
from support.delayed import listening, now
from support.effort import usually
from support.fake_broker import Sent, Step, fake_cluster, refuse, store_and_disconnect, store_without_response, take
from support.fake_broker.sends import Sends
from support.loops import until
from support.producing import message, one_queue, producing


def due_after_ms(sent: Sent) -> int:
    """Return after how many ms the only message of a frame of the room of timers is due."""
    ((_, value),) = [item for item in sent.messages[0].properties.items() if item[0].startswith(("TIMER_", "DELAY"))]
    return int(value)


@pytest.mark.parametrize("levels", usually([9], [9, 18]))
def test_each_delay_level_is_delivered_on_time_and_never_early(levels: int) -> None:
    """Level 9 waits for 5 minutes, level 18 for two hours of simulated time."""

    async def main() -> None:
        async with TestCluster() as cluster, listening(cluster) as (producer, seen):
            began = now()
            for level in range(levels, 0, -1):
                result = await producer.send(Message("orders", b"%d" % level), delay_level=level)
                assert (result.status, result.queue_offset) == (SendStatus.SEND_OK, -1)
            await cluster.advance(seconds=LEVELS_MS[levels - 1] / 1000 + 60)
            assert [int(message.body) for _, message in seen] == list(range(1, levels + 1))
            late = [at - began - LEVELS_MS[int(message.body) - 1] / 1000 for at, message in seen]
            assert all(0 <= seconds < 1 for seconds in late), late

    simulate(main)


def test_message_with_a_delay_level_is_delivered_unchanged() -> None:
    async def main() -> None:
        async with TestCluster() as cluster, listening(cluster) as (producer, seen):
            message = Message("orders", b"x", tags="paid", keys=["a", "b"], properties={"tenant": "t"}, sharding_key="1001", flag=7)
            result = await producer.send(message, delay_level=2)
            await cluster.advance(seconds=8)
            ((_, found),) = seen
            assert (found.message_id, found.queue_id, found.broker_name) == (
                result.message_id,
                result.queue.queue_id,
                result.queue.broker_name,
            )
            assert (found.body, found.tags, found.keys, found.sharding_key, found.flag) == (b"x", "paid", ("a", "b"), "1001", 7)
            assert found.properties["tenant"] == "t"
            assert "DELAY" not in found.properties

    simulate(main)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"delay_level": 0}, r"expected 1 … 18, which wait 1s 5s"),
        ({"delay_level": 19}, r"expected 1 … 18"),
        ({"delay_level": True}, r"expected 1 … 18"),
        ({"delay_level": 1, "delay": timedelta(seconds=1)}, "delay_level and delay are both given: give one of them"),
        ({"delay_level": 1, "deliver_at": datetime(2030, 1, 1, tzinfo=UTC)}, "delay_level and deliver_at are both given: give one of them"),
    ],
)
def test_invalid_delay_level_is_refused_with_what_is_expected(how: dict[str, Any], words: str) -> None:
    async def main() -> None:
        async with TestCluster(brokers=1) as cluster, Producer("shop", nameserver=cluster.nameserver) as producer:
            await cluster.create_topic("orders", queues=1)
            with pytest.raises(LocalProtocolError, match=words):
                await producer.send(Message("orders", b"x"), **how)

    simulate(main)


def test_delay_levels_equal_rocketmqs_and_parse_levels_reads_every_unit() -> None:
    assert [LEVELS_MS[level - 1] // 1000 for level in (1, 2, 3, 4, 5, 14, 15, 16, 17, 18)] == [
        1,
        5,
        10,
        30,
        60,
        600,
        1200,
        1800,
        3600,
        7200,
    ]
    assert " ".join(map(format_delay, LEVELS_MS)) == DELAY_LEVELS
    for level in range(1, 19):
        check_delay_level(level)
    assert parse_levels("100ms 2s 1d") == (100, 2_000, 86_400_000)
    for bad in ("", "1", "s", "0s", "1y", "-1s", "1.5s"):
        with pytest.raises(LocalProtocolError):
            parse_levels(bad)


def test_delayed_messages_survive_broker_restarts_and_are_never_early() -> None:
    async def main() -> None:
        async with TestCluster(brokers=1) as cluster, listening(cluster) as (producer, seen):
            sent: dict[bytes, float] = {}
            for number in range(60):
                body = b"%d" % number
                await producer.send(Message("orders", body), delay_level=1 + number % 5)
                sent[body] = now()
            for stop in (cluster.kill, cluster.stop, cluster.kill):
                await cluster.advance(seconds=4)
                await stop("broker-a")
                await cluster.advance(seconds=2)
                await cluster.restart("broker-a")
            await cluster.advance(seconds=90)
            early = [body for at, m in seen if at < sent[body := m.body] + LEVELS_MS[int(body) % 5] / 1000 - 0.01]
            assert early == []
            assert {message.body for _, message in seen} == set(sent)

    simulate(main)


def test_delayed_message_is_sent_to_a_running_broker() -> None:
    async def main() -> None:
        async with TestCluster() as cluster, listening(cluster) as (producer, seen):
            await cluster.kill("broker-a")
            for number in range(6):
                await producer.send(Message("orders", b"%d" % number), delay_level=1)
            await cluster.advance(seconds=5)
            assert sorted(int(message.body) for _, message in seen) == list(range(6))

    simulate(main)


def test_delayed_send_without_a_broker_fails_as_not_stored() -> None:
    async def main() -> None:
        async with TestCluster(brokers=1) as cluster, listening(cluster) as (producer, _):
            await cluster.kill("broker-a")
            await cluster.advance(seconds=1)
            began = now()
            with pytest.raises(SendTimeoutError) as unkeyed:
                await producer.send(Message("orders", b"x"), delay_level=1)
            assert (unkeyed.value.outcome, 2 < now() - began < 4) == (Outcome.NOT_STORED, True)
            with pytest.raises(QueueUnavailableError) as keyed:
                await producer.send(Message("orders", b"x", sharding_key="1001"), delay_level=1, timeout_ms=5_000)
            assert keyed.value.outcome is Outcome.NOT_STORED
            assert producer.in_flight_count == 0

    simulate(main)


def store_and_fail(broker: Sends, sent: Sent) -> None:
    """Store the frame, and respond as a handler that failed behind the write."""
    broker.store_frame(sent)
    refuse(BrokerSystemError("the handler failed behind the write"))(broker, sent)


@pytest.mark.simulated
@pytest.mark.parametrize("lost", [store_and_disconnect, store_without_response, store_and_fail])
async def test_delayed_send_refused_after_an_unknown_attempt_has_outcome_unknown(lost: Step) -> None:
    async with one_queue() as (broker, producer):
        denied = refuse(NoPermissionError("the topic is read only now"))
        broker.script.extend([lost, denied])
        with pytest.raises(QueueUnavailableError, match="read only now") as reported:
            await producer.send(message("x", sharding_key="k"), delay_level=1)
        assert reported.value.outcome is Outcome.UNKNOWN
        broker.script.append(denied)
        with pytest.raises(NoPermissionError):
            await producer.send(message("y", sharding_key="k"), delay_level=1)
        assert broker.stored == [b"first", b"x"]
        assert (producer.in_flight_count, producer.possible_duplicates) == (0, 0)


@pytest.mark.simulated
@pytest.mark.parametrize("lost", [store_and_disconnect, store_without_response, store_and_fail])
async def test_delayed_send_that_is_repeated_is_stored_once(lost: Step) -> None:
    async with one_queue() as (broker, producer):
        broker.script.append(lost)
        result = await producer.send(message("x", sharding_key="k"), delay_level=2)
        assert [due_after_ms(sent) for sent in broker.sends[1:]] == [5_000, 5_000]
        assert broker.stored == [b"first", b"x"]
        assert RecallHandle.decode(result.recall_handle).message_id == result.message_id
        assert producer.possible_duplicates == 0


@pytest.mark.simulated
async def test_delayed_send_that_moves_to_a_broker_with_another_table_keeps_its_time() -> None:
    """The first broker may have stored it: both copies are due after the same time, and the handle names it."""
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster:
        first, second = cluster.brokers["a"], cluster.brokers["b"]
        first.delay_levels_ms, second.delay_levels_ms = (10, 2_000), (10, 7_000)
        async with producing(cluster) as producer:
            await producer.send_batch([message("warm")])
            await until(lambda: all(broker.heartbeats for broker in cluster.brokers.values()))
            second.otherwise = refuse(ServiceNotAvailableError("full"))
            first.otherwise = store_without_response
            sending = asyncio.ensure_future(producer.send(message("x"), delay_level=2))
            await until(lambda: b"x" in first.stored)
            second.otherwise = take
            result = await sending
            assert (result.queue.broker_name, producer.possible_duplicates) == ("b", 1)
            assert {due_after_ms(sent) for broker in (first, second) for sent in broker.sends if sent.bodies == [b"x"]} == {2_000}
            assert RecallHandle.decode(result.recall_handle).due_ms == 1 + 2_000
            named = await producer.send(message("y"), delay_level=2, queue=result.queue)
            assert RecallHandle.decode(named.recall_handle).due_ms == 1 + 7_000


@pytest.mark.simulated
async def test_broker_that_tells_no_table_has_rocketmqs() -> None:
    async with one_queue() as (broker, producer):
        for level in (1, 9, 18):
            await producer.send(message("x"), delay_level=level)
        assert [due_after_ms(sent) for sent in broker.sends[1:]] == [1_000, 300_000, 7_200_000]


@pytest.mark.parametrize("then", ["stays", "is killed and starts with another table"])
def test_table_of_the_broker_is_obeyed_and_a_level_above_it_is_its_last(monkeypatch: pytest.MonkeyPatch, then: str) -> None:
    tables = {"broker-a": "10ms 2s", "broker-b": "3s"}
    monkeypatch.setattr(BrokerConfig, "delay_levels_ms", lambda config: parse_levels(tables[config.name]))

    async def main() -> None:
        async with TestCluster() as cluster, listening(cluster) as (producer, seen):
            due: dict[bytes, float] = {}
            sends = [("a", 1, 0.01), ("a", 2, 2), ("a", 3, 2), ("a", 18, 2), ("b", 1, 3), ("b", 9, 3)]
            for number, (broker, level, seconds) in enumerate(sends):
                body = b"%d" % number
                await producer.send(Message("orders", body), queue=MessageQueue("orders", f"broker-{broker}", 0), delay_level=level)
                due[body] = now() + seconds
            await cluster.advance(seconds=0.5)
            if then != "stays":
                tables["broker-a"] = "1h"
                await cluster.kill("broker-a")
                await cluster.restart("broker-a")
            await cluster.advance(seconds=10)
            assert {message.body for _, message in seen} == set(due)
            late = [at - due[message.body] for at, message in seen]
            assert all(-0.05 <= seconds < (1 if then == "stays" else 6) for seconds in late), late
            if then != "stays":
                later = await producer.send(Message("orders", b"later"), queue=MessageQueue("orders", "broker-a", 0), delay_level=2)
                due_s = RecallHandle.decode(later.recall_handle).due_ms / 1_000 - Host.current().clock.wall_ms() / 1_000
                assert due_s == pytest.approx(3_600, abs=1)

    simulate(main)


def test_message_with_a_delay_level_can_be_recalled() -> None:
    async def main() -> None:
        async with TestCluster(brokers=1) as cluster, listening(cluster) as (producer, seen):
            results = [await producer.send(Message("orders", b"%d" % number), delay_level=5) for number in range(4)]
            for result in results[::2]:
                assert await producer.recall(result.recall_handle) == result.message_id
            await cluster.advance(seconds=70)
            assert sorted(message.body for _, message in seen) == [b"1", b"3"]

    simulate(main)


@pytest.mark.parametrize("is_written", [False, True])
def test_cancelled_delayed_send_is_withdrawn_unless_it_is_written(is_written: bool) -> None:
    async def main() -> None:
        async with TestCluster(brokers=1) as cluster, listening(cluster) as (producer, seen):
            if is_written:
                cluster.partition("broker-a", "test", one_way=True)
            else:
                await cluster.kill("broker-a")
                await cluster.advance(seconds=1)
            sending = asyncio.ensure_future(producer.send(Message("orders", b"x", sharding_key="1001"), delay_level=1))
            await cluster.advance(seconds=1)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            assert producer.in_flight_count == is_written
            if is_written:
                cluster.heal()
            else:
                await cluster.restart("broker-a")
            await cluster.advance(seconds=30)
            assert [message.body for _, message in seen] == ([b"x"] if is_written else [])
            assert producer.in_flight_count == 0

    simulate(main)


def test_delayed_send_succeeds_across_a_broker_restart() -> None:
    async def main() -> None:
        async with TestCluster(brokers=1) as cluster, listening(cluster) as (producer, seen):
            await cluster.kill("broker-a")
            sending = asyncio.ensure_future(producer.send(Message("orders", b"x", sharding_key="1001"), delay_level=1))
            await cluster.advance(seconds=5)
            await cluster.restart("broker-a")
            assert (await sending).status is SendStatus.SEND_OK
            await cluster.advance(seconds=10)
            assert [message.body for _, message in seen] == [b"x"]
            assert producer.possible_duplicates == 0

    simulate(main)


@pytest.mark.parametrize("how", [{"sharding_key": "1001"}, {}, {"selector": lambda queues, _: queues[7 % len(queues)]}])
@pytest.mark.parametrize("maybe_stored", [False, True])
def test_delayed_send_waiting_for_its_broker_fails_when_its_topic_is_deleted(how: dict[str, Any], maybe_stored: bool) -> None:
    async def main() -> None:
        async with TestCluster(brokers=1) as cluster, listening(cluster) as (producer, _):
            await cluster.kill("broker-a")
            if not maybe_stored:
                await cluster.advance(seconds=1)  # the producer sees that it is away, and writes nothing
            selector = how.get("selector")
            message = Message("orders", b"x", sharding_key=how.get("sharding_key"))
            sending = asyncio.ensure_future(producer.send(message, delay_level=1, timeout_ms=60_000, selector=selector))
            await cluster.advance(seconds=5)
            deleted = TopicLayout("orders", LayoutVersion(2, 7), ())
            producer._topics.layout_changed(deleted)
            began = now()
            with pytest.raises((SendError, TopicNotExistError), match="was deleted") as reported:
                await sending
            assert now() - began <= 3
            assert isinstance(reported.value, SendError) is maybe_stored
            if isinstance(reported.value, SendError):
                assert reported.value.outcome is Outcome.UNKNOWN
            assert producer.in_flight_count == 0

    simulate(main)
