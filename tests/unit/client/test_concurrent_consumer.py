"""Concurrent consumption against a complete cluster under a virtual clock: calls, retries with their delays, commits."""

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lockstep.broker.config import BrokerConfig
from lockstep.client import (
    ConcurrentlyContext,
    ConfigError,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    LocalProtocolError,
    LockstepError,
    Message,
    MessageDeadLettered,
    MessageExt,
    Producer,
    PushConsumer,
    StateError,
    SubscriptionConflictError,
    TransportError,
)
from lockstep.protocol.delays import LEVELS_MS
from lockstep.protocol.errors import MessageIllegalError, QueryNotFoundError, ServiceNotAvailableError
from lockstep.testing import TestCluster, simulate
from support.effort import usually

GROUP = "billing"
DONE, LATER = ConsumeConcurrentlyStatus.CONSUME_SUCCESS, ConsumeConcurrentlyStatus.RECONSUME_LATER


class World:
    """A cluster with topic `orders`, a producer, and the messages that the listeners saw: (seconds, body, retries)."""

    def __init__(self, cluster: TestCluster, producer: Producer) -> None:
        self.cluster = cluster
        self.producer = producer
        self.seen: list[tuple[float, bytes, int]] = []
        self.dead_lettered: list[MessageDeadLettered] = []

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body, _ in self.seen]

    async def send(self, *bodies: bytes, topic: str = "orders", **how: Any) -> None:
        for body in bodies:
            await self.producer.send(Message(topic, body), **how)

    def consumer(self, judge: Callable[[MessageExt], Any] = lambda message: DONE, group: str = GROUP, **settings: Any) -> PushConsumer:
        """Return a consumer whose listener notes each message and returns `judge` of the batch's first one."""
        made = PushConsumer(group, nameserver=self.cluster.nameserver, **settings)
        made.subscribe("orders")

        made.on_event(lambda event: self.dead_lettered.append(event) if isinstance(event, MessageDeadLettered) else None)

        @made.concurrently
        async def listen(messages: Sequence[MessageExt], context: ConcurrentlyContext) -> Any:
            for message in messages:
                assert message.topic == "orders"
                self.seen.append((asyncio.get_running_loop().time(), message.body, message.reconsume_times))
            return judge(messages[0])

        return made


@asynccontextmanager
async def world(queues: int = 2, **settings: Any) -> AsyncIterator[World]:
    async with TestCluster(**settings) as cluster:
        await cluster.create_topic("orders", queues=queues)
        async with Producer("shop", nameserver=cluster.nameserver) as producer:
            yield World(cluster, producer)


async def dead_letters(world: World, group: str = GROUP) -> list[bytes]:
    """Return the bodies in the group's dead-letter topic."""
    found: list[bytes] = []
    reader = PushConsumer(f"{group}-morgue", nameserver=world.cluster.nameserver)
    reader.subscribe(f"%DLQ%{group}")

    @reader.concurrently
    async def read(messages: Sequence[MessageExt], _: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        found.extend(message.body for message in messages)
        return DONE

    async with reader:
        await world.cluster.advance(seconds=5)
    return found


def test_each_message_is_consumed_once_and_the_next_consumer_resumes_after_it() -> None:
    async def main() -> None:
        async with world() as w:
            await w.send(*(b"%d" % i for i in range(50)))
            async with w.consumer():
                await w.cluster.advance(seconds=2)
            assert sorted(w.bodies) == sorted(b"%d" % i for i in range(50))
            await w.send(b"later")
            async with w.consumer():
                await w.cluster.advance(seconds=2)
            assert w.bodies[50:] == [b"later"]

    simulate(main)


def test_failed_message_is_redelivered_with_rocketmqs_retry_delays_without_blocking_others() -> None:
    async def main() -> None:
        async with world(queues=1) as w:
            async with w.consumer(lambda message: LATER if message.body == b"bad" and message.reconsume_times < 4 else DONE):
                await w.send(b"bad", b"good")
                await w.cluster.advance(seconds=300)
            assert sorted((body, times) for _, body, times in w.seen) == [*((b"bad", times) for times in range(5)), (b"good", 0)]
            at = [seconds for seconds, body, _ in w.seen if body == b"bad"]
            waits = [later - earlier for earlier, later in itertools.pairwise(at)]
            assert all(due <= wait < due + 1 for wait, due in zip(waits, (10, 30, 60, 120), strict=True)), waits

    simulate(main)


@pytest.mark.parametrize(
    ("response", "calls"), [(None, [0]), ("nonsense", [0, 1]), (ValueError("no"), [0, 1])], ids=["none", "nonsense", "raises"]
)
def test_listener_result_none_acknowledges_and_invalid_results_and_exceptions_retry(response: object, calls: list[int]) -> None:
    def judge(message: MessageExt) -> object:
        if message.reconsume_times:
            return DONE
        if isinstance(response, Exception):
            raise response
        return response

    async def main() -> None:
        async with world() as w, w.consumer(judge):
            await w.send(b"x")
            await w.cluster.advance(seconds=15)
            assert [times for _, _, times in w.seen] == calls

    simulate(main)


def test_messages_after_ack_index_are_redelivered() -> None:
    async def main() -> None:
        async with world(queues=1) as w:
            calls: list[list[bytes]] = []
            consumer = PushConsumer(GROUP, nameserver=w.cluster.nameserver, batch_count=4, concurrency=1)
            consumer.subscribe("orders")

            @consumer.concurrently
            async def listen(messages: Sequence[MessageExt], context: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
                calls.append([message.body for message in messages])
                assert context.ack_index == len(messages) - 1
                if messages[0].reconsume_times == 0:
                    context.ack_index = 1
                return DONE

            await w.producer.send_batch([Message("orders", b"%d" % i) for i in range(4)])
            async with consumer:
                await w.cluster.advance(seconds=15)
            assert calls[0] == [b"0", b"1", b"2", b"3"]
            assert sorted(body for call in calls[1:] for body in call) == [b"2", b"3"]

    simulate(main)


def test_message_is_dead_lettered_after_its_last_retry() -> None:
    async def main() -> None:
        async with world() as w:
            async with w.consumer(lambda _: LATER, max_reconsume_times=2):
                await w.send(b"poison")
                await w.cluster.advance(seconds=120)
                assert [times for _, _, times in w.seen] == [0, 1, 2]
            assert await dead_letters(w) == [b"poison"]
            assert [(reported.queue.topic, reported.attempts, reported.error) for reported in w.dead_lettered] == [
                (f"%RETRY%{GROUP}", 3, "the listener returned RECONSUME_LATER")
            ]

    simulate(main)


def test_dead_letter_is_logged_with_the_error_of_the_last_attempt(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object) -> None:
        raise ValueError("no address")

    async def main() -> None:
        async with world() as w, w.consumer(fail, max_reconsume_times=0):
            await w.send(b"poison")
            await w.cluster.advance(seconds=20)

    simulate(main)
    (logged,) = (record for record in caplog.records if record.msg == "message.dead_lettered %s")
    assert logged.exc_info is not None
    assert isinstance(logged.exc_info[1], ValueError)


QUICK_LEVELS_MS = (1_000,) * 18


@pytest.mark.parametrize("levels_ms", usually([(QUICK_LEVELS_MS,)], [(QUICK_LEVELS_MS,), (LEVELS_MS,)]), ids=["1 s each", "the table"])
def test_message_is_retried_sixteen_times_by_default_and_then_dead_lettered(
    levels_ms: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BrokerConfig, "delay_levels_ms", lambda _: levels_ms)

    async def main() -> None:
        async with world() as w:
            async with w.consumer(lambda _: LATER):
                await w.send(b"poison")
                await w.cluster.advance(seconds=sum(levels_ms[2:]) // 1_000 + 30)
                assert [times for _, _, times in w.seen] == list(range(17))
            assert await dead_letters(w) == [b"poison"]

    simulate(main)


def test_concurrent_creation_of_the_dead_letter_topic_by_two_brokers_keeps_every_dead_letter() -> None:
    """Both write a first layout. One wins, and the other broker's queue is added to it at that broker's next registration."""

    async def main() -> None:
        async with world(queues=2) as w:
            async with w.consumer(lambda _: LATER, max_reconsume_times=0):
                await w.send(*(b"%d" % i for i in range(8)))
                await w.cluster.advance(seconds=60)
            assert sorted(await dead_letters(w)) == [b"%d" % i for i in range(8)]

    simulate(main)


def test_listener_chooses_the_retry_delay_or_dead_letters_the_message() -> None:
    async def main() -> None:
        async with world() as w:
            consumer = PushConsumer(GROUP, nameserver=w.cluster.nameserver)
            consumer.subscribe("orders")
            at: list[float] = []

            @consumer.concurrently
            async def listen(messages: Sequence[MessageExt], context: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
                at.append(asyncio.get_running_loop().time())
                context.delay_level_when_next_consume = 1 if messages[0].reconsume_times == 0 else -1
                return LATER

            async with consumer:
                await w.send(b"x")
                await w.cluster.advance(seconds=30)
            assert len(at) == 2
            assert 1 <= at[1] - at[0] < 2
            assert await dead_letters(w) == [b"x"]

    simulate(main)


def test_committed_offset_does_not_pass_the_lowest_unfinished_message() -> None:
    """After a consumer is killed during a call, only that message and the later ones of its queue are redelivered."""

    async def main() -> None:
        async with world(queues=1, brokers=1) as w:
            await w.send(b"0", b"1", b"slow", b"3", b"4")

            async def program() -> None:
                consumer = PushConsumer(GROUP, nameserver=w.cluster.nameserver)
                consumer.subscribe("orders")

                @consumer.concurrently
                async def listen(messages: Sequence[MessageExt], _: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
                    if messages[0].body == b"slow":
                        await asyncio.sleep(1_000)
                    return DONE

                async with consumer:
                    await consumer.wait_closed()

            await w.cluster.start("worker", program)
            await w.cluster.advance(seconds=3)
            await w.cluster.kill("worker")
            async with w.consumer():
                await w.cluster.advance(seconds=30)
            assert w.bodies == [b"slow", b"3", b"4"]

    simulate(main)


def test_concurrency_limits_the_calls_across_all_queues() -> None:
    async def main() -> None:
        async with world(queues=4) as w:
            running = most = 0
            consumer = PushConsumer(GROUP, nameserver=w.cluster.nameserver, concurrency=3)
            consumer.subscribe("orders")

            @consumer.concurrently
            async def listen(_: Sequence[MessageExt], context: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
                nonlocal running, most
                running += 1
                most = max(most, running)
                await asyncio.sleep(0.1)
                running -= 1
                return DONE

            await w.send(*(b"%d" % i for i in range(30)))
            async with consumer:
                await w.cluster.advance(seconds=5)
            assert (running, most) == (0, 3)

    simulate(main)


def test_call_past_consume_timeout_is_cancelled_and_its_messages_are_redelivered_once() -> None:
    async def main() -> None:
        async with world() as w:
            reported: list[bool] = []
            consumer = PushConsumer(GROUP, nameserver=w.cluster.nameserver, consume_timeout_ms=1_000)
            consumer.subscribe("orders")

            @consumer.concurrently
            async def listen(messages: Sequence[MessageExt], context: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
                w.seen.append((0, messages[0].body, messages[0].reconsume_times))
                if messages[0].reconsume_times == 0:
                    reported.append(await context.cancelled.wait())
                    await asyncio.sleep(1)
                    return LATER  # ignored after the timeout: otherwise there would be two copies
                return DONE

            async with consumer:
                await w.send(b"x")
                await w.cluster.advance(seconds=60)
            assert reported == [True]
            assert [times for _, _, times in w.seen] == [0, 1]

    simulate(main)


def test_failed_send_back_repeats_the_call_locally_after_five_seconds() -> None:
    async def main() -> None:
        async with world(queues=1, brokers=1) as w:
            async with w.consumer(lambda message: LATER if len(w.seen) == 1 else DONE) as consumer:
                session = consumer._membership.workers[0].session  # type: ignore[union-attr]
                original, refused = session.link.call, []

                async def call(code: int, *args: Any, **how: Any) -> Any:
                    if code == 36 and not refused:
                        refused.append(code)
                        raise TransportError("the broker restarts")
                    return await original(code, *args, **how)

                session.link.call = call  # type: ignore[method-assign, assignment]
                await w.send(b"x")
                await w.cluster.advance(seconds=20)
            assert [(body, times) for _, body, times in w.seen] == [(b"x", 0), (b"x", 0)]
            assert 5 <= w.seen[1][0] - w.seen[0][0] < 5.5

    simulate(main)


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (TransportError("the broker restarts"), ["send_back.deferred"] * 3),
        (ServiceNotAvailableError("no disk"), ["send_back.deferred"] * 3),
        (MessageIllegalError("too long"), ["send_back.refused"] * 2),
        (QueryNotFoundError("retention has removed it"), ["send_back.refused"] * 2),
    ],
)
def test_each_failed_send_back_is_logged_and_a_permanent_refusal_once_per_message(
    error: LockstepError, reported: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with world(queues=1, brokers=1) as w, w.consumer(lambda _: LATER, batch_count=2, concurrency=1) as consumer:
            session = consumer._membership.workers[0].session  # type: ignore[union-attr]
            original = session.link.call

            async def call(code: int, *args: Any, **how: Any) -> Any:
                if code == 36 and len(w.seen) <= 6:
                    raise error
                return await original(code, *args, **how)

            session.link.call = call  # type: ignore[method-assign, assignment]
            await w.producer.send_batch([Message("orders", body) for body in (b"x", b"y")])
            await w.cluster.advance(seconds=17)
            assert len(w.seen) == 8, "called, and again after 5, 10 and 15 s"
            assert not next(iter(consumer._membership.workers))._runner.refused  # type: ignore[union-attr]

    caplog.set_level("WARNING")
    simulate(main)
    found = [record.getMessage() for record in caplog.records if "send_back." in record.getMessage()]
    assert all(str(error) in line for line in found)
    assert [word for line in found for word in ("send_back.deferred", "send_back.refused") if word in line] == reported


@pytest.mark.parametrize("takes_s", [0.5, 1.5, 2.5])
def test_failed_send_back_repeats_the_call_however_long_the_call_took(takes_s: float) -> None:
    """Send-backs wait 2 s for a response that never arrives. The call ends before its timeout, or is sent back because of it."""

    async def main() -> None:
        async with world(queues=1, brokers=1) as w:
            consumer = PushConsumer(GROUP, nameserver=w.cluster.nameserver, consume_timeout_ms=1_000)
            consumer.subscribe("orders")

            @consumer.concurrently
            async def listen(messages: Sequence[MessageExt], _: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
                w.seen.append((0, messages[0].body, messages[0].reconsume_times))
                if len(w.seen) == 1:
                    await asyncio.sleep(takes_s)
                    return LATER
                return DONE

            async with consumer:
                session = consumer._membership.workers[0].session  # type: ignore[union-attr]
                original, requested = session.link.call, []

                async def call(code: int, *args: Any, **how: Any) -> Any:
                    if code == 36:
                        requested.append(code)
                        await asyncio.sleep(2)
                        raise TransportError("the broker is silent")
                    return await original(code, *args, **how)

                session.link.call = call  # type: ignore[method-assign, assignment]
                await w.send(b"x")
                await w.cluster.advance(seconds=20)
                assert [times for _, _, times in w.seen] == [0, 0]
                assert len(requested) == 1
                assert {queue.queue.topic: queue.committed_offset for queue in consumer.health().queues}["orders"] == 1

    simulate(main)


def test_committed_offset_does_not_pass_a_message_whose_send_back_failed() -> None:
    """If the consumer stops before it can retry, the next consumer gets the message."""

    async def main() -> None:
        async with world(queues=1, brokers=1) as w:
            async with w.consumer(lambda _: LATER) as consumer:
                session = consumer._membership.workers[0].session  # type: ignore[union-attr]
                original = session.link.call

                async def call(code: int, *args: Any, **how: Any) -> Any:
                    if code == 36:
                        raise TransportError("the broker restarts")
                    return await original(code, *args, **how)

                session.link.call = call  # type: ignore[method-assign, assignment]
                await w.send(b"x")
                await w.cluster.advance(seconds=2)
            async with w.consumer():
                await w.cluster.advance(seconds=2)
            assert [(body, times) for _, body, times in w.seen] == [(b"x", 0), (b"x", 0)]

    simulate(main)


def test_two_members_divide_the_queues_and_a_stopped_members_queues_move_to_the_other() -> None:
    async def main() -> None:
        async with world(queues=4) as w:
            first, second = w.consumer(), w.consumer()
            async with first:
                async with second:
                    await w.cluster.advance(seconds=2)
                    held = [len([q for q in each.health().queues if q.queue.topic == "orders"]) for each in (first, second)]
                    assert held == [4, 4]
                    await w.send(*(b"%d" % i for i in range(40)))
                    await w.cluster.advance(seconds=2)
                await w.send(b"last")
                await w.cluster.advance(seconds=2)
            assert Counter(w.bodies) == Counter([b"%d" % i for i in range(40)] + [b"last"])

    simulate(main)


def test_consumption_resumes_without_loss_after_a_broker_kill_or_stop() -> None:
    async def main() -> None:
        async with world(queues=2, brokers=1) as w, w.consumer():
            for number, end in enumerate((w.cluster.kill, w.cluster.stop, w.cluster.kill)):
                await w.send(*(b"%d-%d" % (number, i) for i in range(20)))
                await end("broker-a")
                await w.cluster.advance(seconds=1 + 30 * number)
                await w.cluster.restart("broker-a")
                await w.cluster.advance(seconds=10)
                assert {b"%d-%d" % (number, i) for i in range(20)} <= set(w.bodies)

    simulate(main)


@pytest.mark.parametrize("point", list(ConsumeFromWhere))
def test_new_group_starts_at_consume_from_where_and_skips_no_later_message(point: ConsumeFromWhere) -> None:
    async def main() -> None:
        async with world(queues=1) as w:
            times: list[int] = []
            async with w.consumer(lambda message: times.append(message.stored_ms) or DONE, group="first"):
                for body in (b"0", b"1", b"2"):
                    await w.send(body)
                    await w.cluster.advance(seconds=10)
            w.seen.clear()
            at = times[1] - 1 if point is ConsumeFromWhere.TIMESTAMP else None
            async with w.consumer(consume_from_where=point, consume_timestamp_ms=at):
                await w.cluster.advance(seconds=5)
                await w.send(b"3")
                await w.cluster.advance(seconds=5)
            begin = {ConsumeFromWhere.FIRST_OFFSET: 0, ConsumeFromWhere.TIMESTAMP: 1, ConsumeFromWhere.LAST_OFFSET: 3}[point]
            assert sorted(w.bodies) == [b"%d" % i for i in range(begin, 4)]

    simulate(main)


def test_topic_created_after_the_consumer_is_consumed_from_its_first_message() -> None:
    async def main() -> None:
        async with TestCluster() as cluster, Producer("shop", nameserver=cluster.nameserver) as producer:
            w = World(cluster, producer)
            async with w.consumer():
                await cluster.create_topic("orders", queues=2)
                await w.send(b"x")
                await cluster.advance(seconds=40)
            assert w.bodies == [b"x"]

    simulate(main)


def test_synchronous_concurrent_listener_is_called() -> None:
    async def main() -> None:
        async with world() as w:
            consumer = PushConsumer(GROUP, nameserver=w.cluster.nameserver)
            consumer.subscribe("orders")
            names: list[str] = []

            @consumer.concurrently
            def listen(messages: Sequence[MessageExt], _: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
                names.append(threading.current_thread().name)
                return DONE

            async with consumer:
                await w.send(b"x")
                await w.cluster.advance(seconds=2)
            assert len(names) == 1

    simulate(main)


def test_stop_waits_for_the_running_call_and_commits_its_message() -> None:
    async def main() -> None:
        async with world() as w:
            consumer = PushConsumer(GROUP, nameserver=w.cluster.nameserver)
            consumer.subscribe("orders")
            begun = asyncio.Event()

            @consumer.concurrently
            async def listen(_: Sequence[MessageExt], context: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
                begun.set()
                await asyncio.sleep(3)
                return DONE

            await consumer.start()
            await w.send(b"x")
            await begun.wait()
            await consumer.stop()
            async with w.consumer():
                await w.cluster.advance(seconds=3)
            assert w.bodies == []

    simulate(main)


def test_pause_stops_listener_calls_until_resume() -> None:
    async def main() -> None:
        async with world() as w, w.consumer() as consumer:
            consumer.pause()
            await w.send(b"x")
            await w.cluster.advance(seconds=3)
            assert w.bodies == []
            consumer.resume()
            await w.cluster.advance(seconds=3)
            assert w.bodies == [b"x"]

    simulate(main)


def test_ordered_member_is_rejected_by_a_concurrent_group() -> None:
    async def main() -> None:
        async with world() as w, w.consumer():
            other = PushConsumer(GROUP, nameserver=w.cluster.nameserver)
            other.subscribe("orders")

            @other.orderly
            async def listen(*_: object) -> None: ...

            with pytest.raises(SubscriptionConflictError, match="ordered: False here, True asked for"):
                await other.start()

    simulate(main)


def test_invalid_group_second_listener_and_invalid_concurrency_are_rejected() -> None:
    consumer = PushConsumer("g" * 121, nameserver="127.0.0.1:1")
    with pytest.raises(LocalProtocolError, match="at most 120"):
        consumer.concurrently(lambda messages, context: None)
    fine = PushConsumer("g", nameserver="127.0.0.1:1")
    fine.concurrently(lambda messages, context: None)
    with pytest.raises(StateError, match="a listener already"):
        fine.orderly(lambda messages, context: None)
    with pytest.raises(ConfigError, match="concurrency is 0"):
        PushConsumer("g", nameserver="127.0.0.1:1", concurrency=0)
