"""What a user's object does when it is looked at ends no more than one call: exceptions, results, attributes, hooks and callbacks."""

import asyncio
import io
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Any, cast

import pytest

from lockstep.client import (
    Backoff,
    ConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    ConsumerEvent,
    ConsumerState,
    Consuming,
    LocalProtocolError,
    Message,
    MessageDeadLettered,
    MessageExt,
    MessageModel,
    MessageQueue,
    OrderedRetry,
    OrderlyContext,
    Producer,
    PullConsumer,
    PushConsumer,
    Sending,
)
from lockstep.runtime.logs import log
from lockstep.testing import TestCluster, simulate
from support.bad_objects import ERRORS, RESULTS, OwnKind, pretending

GROUP = "billing"
LAST = "last"
FAST = Backoff(first_ms=100)


def raising(make: Callable[[], BaseException]) -> Callable[[Any], object]:
    def call(_: object) -> object:
        raise make()

    return call


def setting(name: str, value: object) -> Callable[[Any], object]:
    """Return a call that sets an attribute of its context, and raises unless that is what fails it."""

    def call(context: object) -> object:
        setattr(context, name, value)
        if name in ("auto_commit", "ack_index"):
            return None
        raise ValueError("no")

    return call


def stubborn() -> object:
    """Return a coroutine that has begun, and does not let itself be closed."""

    async def runs_on() -> None:
        try:
            await asyncio.sleep(0)
        except GeneratorExit:
            await asyncio.sleep(0)

    coroutine = runs_on()
    coroutine.send(None)
    kept.append(coroutine)
    return coroutine


kept: list[Coroutine[Any, Any, None]] = []
"""Coroutines that have begun."""
ODD = RESULTS["repr raises"]()
UNTRUE = RESULTS["bool raises"]()
CALLS: dict[str, Callable[[Any], object]] = {
    **{f"raises: {name}": raising(make) for name, make in ERRORS.items()},
    **{f"returns: {name}": lambda _, make=make: make() for name, make in RESULTS.items()},  # type: ignore[misc]
    "returns: a coroutine that has begun": lambda _: stubborn(),
}
ORDERED = {
    **CALLS,
    "returns: what says it is a status": lambda _: pretending(ConsumeOrderlyStatus),
    "sets: auto_commit": setting("auto_commit", ODD),
    "sets: auto_commit without a truth": setting("auto_commit", UNTRUE),
    "sets: a pause of words": setting("suspend_current_queue_time_ms", "soon"),
    "sets: no number as a pause": setting("suspend_current_queue_time_ms", float("nan")),
    "sets: a pause without text": setting("suspend_current_queue_time_ms", ODD),
}
CONCURRENT = {
    **CALLS,
    "returns: what says it is a status": lambda _: pretending(ConsumeConcurrentlyStatus),
    "sets: ack_index": setting("ack_index", RESULTS["equals raises"]()),
    "sets: ack_index without text": setting("ack_index", ODD),
    "sets: a level": setting("delay_level_when_next_consume", ODD),
}
ATTEMPTS = 2
BLOCKS, LETTERS, PARKS = (OrderedRetry(ATTEMPTS, FAST, each) for each in ("block", "dlq", "park"))
UNLIMITED = OrderedRetry(backoff=FAST)
BROADCASTING = {"message_model": MessageModel.BROADCASTING, "consume_from_where": ConsumeFromWhere.FIRST_OFFSET}
GROUPS: dict[str, dict[str, Any]] = {
    "ordered": {"retry": UNLIMITED},
    "ordered, dlq": {"retry": LETTERS},
    "by key": {"retry": UNLIMITED, "order_by": "sharding_key"},
    "by key, blocks": {"retry": BLOCKS, "order_by": "sharding_key"},
    "by key, dlq": {"retry": LETTERS, "order_by": "sharding_key"},
    "ordered, parks": {"retry": PARKS},
    "by key, parks": {"retry": PARKS, "order_by": "sharding_key"},
    "broadcasting, ordered": {"retry": UNLIMITED, **BROADCASTING},
    "concurrent": {"max_reconsume_times": 1},
    "broadcasting, concurrent": BROADCASTING,
}


@pytest.fixture(params=["program", "application"])
def begin_log(request: pytest.FixtureRequest, logging_as_it_was: None) -> Iterator[Callable[[], None]]:
    """Yield what sets up the log as that of a program of lockstep, or as an application may, instead of pytest's handlers: those raise what
    they can't format, and what they keep can't be sent by pytest-xdist."""
    root = logging.getLogger(log.ROOT)

    def begin() -> None:
        log.configure("debug", stream=io.StringIO())
        if request.param == "application":
            root.handlers[:] = [logging.StreamHandler(io.StringIO())]

    before, logging.raiseExceptions = logging.raiseExceptions, False
    yield begin
    logging.raiseExceptions = before
    for coroutine in kept:
        with suppress(RuntimeError):
            coroutine.close()
        coroutine.close()
    kept.clear()


def consumer_of(cluster: TestCluster, kind: str, calls: dict[str, Callable[[Any], object]], seen: Counter[str]) -> PushConsumer:
    """Return a consumer of this kind. What is called `ATTEMPTS` times succeeds afterwards, unless it is given up then."""
    consumer = PushConsumer(GROUP, nameserver=cluster.nameserver, **GROUPS[kind])
    consumer.subscribe("orders")
    gives_up = any(word in kind for word in ("dlq", "parks", "blocks")) or kind == "concurrent"

    async def listen(messages: Sequence[MessageExt], context: Any) -> Any:
        name = messages[0].body.decode()
        cast(list[MessageExt], messages).clear()  # it is the listener's own
        seen[name] += 1
        return calls[name](context) if name != LAST and (gives_up or seen[name] <= ATTEMPTS) else None

    if "concurrent" in kind:
        consumer.concurrently(listen)
    else:
        consumer.orderly(listen)
    return consumer


async def dead_letters(cluster: TestCluster) -> dict[str, str]:
    """Return why each message of the group's dead-letter topic is there."""
    found: dict[str, str] = {}
    reader = PushConsumer("morgue", nameserver=cluster.nameserver)
    reader.subscribe(f"%DLQ%{GROUP}")

    @reader.concurrently
    async def read(messages: Sequence[MessageExt], _: ConcurrentlyContext) -> None:
        found.update((message.body.decode(), message.all_properties["__LS_REASON"]) for message in messages)

    async with reader:
        await cluster.advance(seconds=5)
    return found


@pytest.mark.parametrize("kind", GROUPS)
def test_call_that_fails_in_an_odd_way_ends_no_more_than_itself(kind: str, begin_log: Callable[[], None]) -> None:
    begin_log()
    calls = CONCURRENT if "concurrent" in kind else ORDERED
    once = kind == "broadcasting, concurrent"  # it drops what fails

    async def main() -> None:
        async with TestCluster() as cluster:
            await cluster.create_topic("orders", queues=1)
            async with Producer("shop", nameserver=cluster.nameserver) as producer:
                for name in (*calls, LAST):
                    await producer.send(Message("orders", name.encode(), sharding_key=name))
            seen: Counter[str] = Counter()
            reported: list[ConsumerEvent] = []
            consumer = consumer_of(cluster, kind, calls, seen)
            consumer.on_event(reported.append)
            async with consumer:
                await cluster.advance(seconds=90)
                assert (consumer.state, consumer.failure) == (ConsumerState.RUNNING, None)
            tried = 1 if once else ATTEMPTS
            gone_on = 0 if once or "dlq" in kind or "parks" in kind or "blocks" in kind or kind == "concurrent" else 1
            assert seen == Counter({**dict.fromkeys(calls, tried + gone_on), LAST: 1})
            if "dlq" in kind or kind == "concurrent":
                letters = await dead_letters(cluster)
                assert letters.keys() == calls.keys()
                told = {event.error for event in reported if isinstance(event, MessageDeadLettered)}
                assert all(error.encode() for error in told)
                shown = {
                    "raises: half a surrogate pair": "ValueError: bad \\udcff",
                    "raises: str raises": "Unread, whose text can't be shown: RuntimeError",
                    "raises: str is a subclass": "Unread: some text",
                    "raises: no name": "Unread",
                    "raises: cancelled": "CancelledError: \\udcff",
                }
                assert {name: letters[name] for name in shown} == shown
                odd = "Odd, whose text can't be shown: RuntimeError"
                assert letters["returns: repr raises"].startswith(f"the listener returned {odd}, expected None or a Consume")
                assert letters["raises: str is huge"] == ("ValueError: " + "x" * 200)[:200]

    simulate(main)


def test_level_out_of_range_is_refused_by_no_broker(begin_log: Callable[[], None]) -> None:
    """A level above the brokers' highest is their highest: the message waits for two hours, and is not called again and again."""
    begin_log()

    async def main() -> None:
        async with TestCluster() as cluster:
            await cluster.create_topic("orders", queues=1)
            async with Producer("shop", nameserver=cluster.nameserver) as producer:
                await producer.send(Message("orders", b"x"))
            seen: list[int] = []
            consumer = PushConsumer(GROUP, nameserver=cluster.nameserver)
            consumer.subscribe("orders")

            @consumer.concurrently
            async def listen(messages: Sequence[MessageExt], context: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
                seen.append(messages[0].reconsume_times)
                context.delay_level_when_next_consume = 10**30
                return ConsumeConcurrentlyStatus.RECONSUME_LATER

            async with consumer:
                await cluster.advance(seconds=60)
            assert seen == [0]

    simulate(main)


OUTSIDE: dict[str, Callable[[], BaseException]] = {**ERRORS, "no Exception": OwnKind, "stop": StopIteration}
"""What hooks and callbacks raise."""


class BadHook:
    """A hook of a producer or a consumer that raises in both of its methods."""

    def __init__(self, make: Callable[[], BaseException]) -> None:
        self._make = make

    def before_send(self, sending: Sending) -> None:
        sending.properties = ODD  # type: ignore[assignment]
        raise self._make()

    def after_send(self, sending: Sending) -> None:
        raise self._make()

    def before_consume(self, consuming: Consuming) -> None:
        raise self._make()

    def after_consume(self, consuming: Consuming) -> None:
        raise self._make()


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "concurrent"])
def test_hooks_and_callbacks_that_fail_in_an_odd_way_change_nothing(ordered: bool, begin_log: Callable[[], None]) -> None:
    begin_log()

    async def main() -> None:
        async with TestCluster() as cluster:
            await cluster.create_topic("orders", queues=1)
            producer = Producer("shop", nameserver=cluster.nameserver)
            consumer = PushConsumer(GROUP, nameserver=cluster.nameserver)
            consumer.subscribe("orders")
            seen: list[bytes] = []

            async def listen(messages: Sequence[MessageExt], context: OrderlyContext | ConcurrentlyContext) -> None:
                seen.extend(message.body for message in messages)

            consumer.orderly(listen) if ordered else consumer.concurrently(listen)
            reported: list[ConsumerEvent] = []
            for make in OUTSIDE.values():
                producer.add_hook(BadHook(make))
                consumer.add_hook(BadHook(make))
                consumer.on_event(lambda event, make=make: raising(make)(event))  # type: ignore[misc]
            consumer.on_event(reported.append)
            async with producer, consumer:
                await producer.send(Message("orders", b"1"))
                await (await producer.post(Message("orders", b"2")))
                await producer.send_batch([Message("orders", b"3")])
                await producer.send_oneway(Message("orders", b"4"))
                await cluster.advance(seconds=20)
                assert consumer.state is ConsumerState.RUNNING
            assert sorted(seen) == [b"1", b"2", b"3", b"4"]
            assert reported

    simulate(main)


def test_callbacks_of_a_pull_consumer_that_fail_in_an_odd_way_change_nothing(begin_log: Callable[[], None]) -> None:
    begin_log()

    async def main() -> None:
        async with TestCluster() as cluster:
            await cluster.create_topic("orders", queues=1)
            consumer = PullConsumer(GROUP, nameserver=cluster.nameserver)
            consumer.subscribe("orders")
            for make in OUTSIDE.values():
                consumer.on_event(lambda event, make=make: raising(make)(event))  # type: ignore[misc]
            async with Producer("shop", nameserver=cluster.nameserver) as producer, consumer:
                await producer.send(Message("orders", b"1"))
                found = await consumer.poll(10_000)
                assert [message.body for message in found] == [b"1"]
                assert consumer.state is ConsumerState.RUNNING

    simulate(main)


@pytest.mark.parametrize("make", [StopIteration, asyncio.CancelledError, OwnKind, lambda: ValueError("\udcff")])
def test_selector_that_fails_in_an_odd_way_fails_its_send_alone(make: Callable[[], BaseException], begin_log: Callable[[], None]) -> None:
    """Also when it is called again, because the layout has changed while its broker was away."""
    begin_log()

    async def main() -> None:
        async with TestCluster(brokers=1) as cluster:
            await cluster.create_topic("orders", queues=1)
            async with Producer("shop", nameserver=cluster.nameserver) as producer:

                def select(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
                    raise make()

                expected = ValueError if isinstance(make(), ValueError) else LocalProtocolError
                with pytest.raises(expected):
                    await producer.send(Message("orders", b"1"), selector=select)
                with pytest.raises(LocalProtocolError, match="the selector returned Odd, whose text can't be shown"):
                    await producer.send(Message("orders", b"1"), selector=lambda *_: ODD)  # type: ignore[arg-type, return-value]
                assert (await producer.send(Message("orders", b"2"))).queue_offset == 0

    simulate(main)
