"""The hooks of lockstep.otel, with the SDK's exporters in memory: spans from the producer to the consumer, baggage, metrics."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest
from opentelemetry import baggage, propagate, trace
from opentelemetry.context import attach, detach, get_current
from opentelemetry.trace import SpanKind, StatusCode

from lockstep.cli.change_command import carry_out
from lockstep.client import (
    Backoff,
    ConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    Consuming,
    LocalProtocolError,
    Message,
    MessageExt,
    OrderedRetry,
    OrderlyContext,
    Producer,
    PullConsumer,
    PushConsumer,
    SendError,
    TransactionProducer,
)
from lockstep.client.consumer.calls.hooks import watched
from lockstep.operations.changes.replay import DeadLetterReplay
from lockstep.otel import context_of
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster, message, orderly_context
from support.bad_objects import ERRORS
from support.telemetry import Telemetry, id_of, trace_of

GROUP, TOPIC = "billing", "orders"
S, C = ConsumeOrderlyStatus, ConsumeConcurrentlyStatus
pytestmark = pytest.mark.lockstep(brokers=1)
Handle = Callable[[Sequence[MessageExt]], Any]


@pytest.fixture
async def telemetry() -> Telemetry:
    return Telemetry()


class Service:
    """A producer and a consumer with their hooks, in a cluster of one queue."""

    def __init__(self, cluster: TestCluster, telemetry: Telemetry) -> None:
        self.cluster = cluster
        self.telemetry = telemetry
        self.producer = Producer("shop", nameserver=cluster.nameserver)
        self.producer.add_hook(telemetry.sending)

    async def send(self, *messages: Message, **how: Any) -> None:
        async with self.producer:
            if len(messages) == 1:
                await self.producer.send(messages[0], **how)
            else:
                await self.producer.send_batch(messages, **how)

    def consumer(self, handle: Handle, *, topic: str = TOPIC, group: str = GROUP, **settings: Any) -> PushConsumer:
        """Return an ordered consumer. `handle` returns the result of a call, or an awaitable of it."""
        made = PushConsumer(group, nameserver=self.cluster.nameserver, **settings).subscribe(topic)
        made.add_hook(self.telemetry.consuming)

        @made.orderly
        async def listen(messages: Sequence[MessageExt], context: OrderlyContext) -> Any:
            result = handle(messages)
            return await result if asyncio.iscoroutine(result) else result

        return made

    async def until_spans(self, name: str, count: int) -> None:
        await self.cluster.until(lambda: len(self.telemetry.spans(name)) == count, f"{count} spans {name}", timeout=3_600)


@pytest.fixture
async def service(lockstep_cluster: TestCluster, telemetry: Telemetry) -> Service:
    await lockstep_cluster.create_topic(TOPIC, queues=1)
    return Service(lockstep_cluster, telemetry)


# ---------------------------------------------------------------------------------------------------------------- one message


async def test_call_is_a_child_of_the_send_in_the_trace_of_the_caller(service: Service, telemetry: Telemetry) -> None:
    inside: list[int] = []

    def handle(messages: Sequence[MessageExt]) -> None:
        inside.append(trace.get_current_span().get_span_context().span_id)

    with telemetry.tracer.start_as_current_span("request") as request:
        await service.send(Message(TOPIC, b"paid", tags="paid", keys=["order-1"], sharding_key="1001"))
    async with service.consumer(handle):
        await service.until_spans("process orders", 1)
    (send,), (process,) = telemetry.spans("send orders"), telemetry.spans("process orders")
    assert trace_of(send) == trace_of(process) == request.get_span_context().trace_id
    assert send.parent is not None
    assert process.parent is not None
    assert send.parent.span_id == request.get_span_context().span_id
    assert process.parent.span_id == id_of(send)
    assert inside == [id_of(process)], "it is the current span in the listener"
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    message_id = (send.attributes or {})["messaging.message.id"]
    common = {
        "messaging.system": "rocketmq",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "broker-a:0",
        "messaging.message.id": message_id,
        "messaging.rocketmq.message.tag": "paid",
        "messaging.rocketmq.message.keys": ("order-1",),
        "messaging.rocketmq.message.group": "1001",
    }
    assert dict(send.attributes or {}) == {
        **common,
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.rocketmq.message.type": "fifo",
    }
    epoch = (process.attributes or {})["lockstep.epoch"]
    assert isinstance(epoch, int)
    assert epoch > 1 << 32
    assert dict(process.attributes or {}) == {
        **common,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "billing",
        "lockstep.attempt": 0,
        "lockstep.epoch": epoch,
    }
    assert send.status.status_code is process.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, {"messaging.rocketmq.message.type": "normal"}),
        ({"delay_level": 3}, {"messaging.rocketmq.message.type": "delay", "messaging.rocketmq.message.delay_time_level": 3}),
        ({"delay": timedelta(seconds=10)}, {"messaging.rocketmq.message.type": "delay"}),
    ],
)
async def test_span_of_a_send_has_the_kind_of_its_message(
    service: Service, telemetry: Telemetry, how: dict[str, Any], expected: dict[str, Any]
) -> None:
    await service.send(Message(TOPIC, b"paid"), **how)
    async with service.consumer(lambda messages: None):
        await service.until_spans("process orders", 1)
    (send,), (process,) = telemetry.spans("send orders"), telemetry.spans("process orders")
    found = {key: value for key, value in (send.attributes or {}).items() if key.startswith("messaging.rocketmq.")}
    if "delay" in how:
        sent_ms = Host.current().clock.wall_ms()
        assert abs(int(found.pop("messaging.rocketmq.message.delivery_timestamp")) - sent_ms) < 120_000  # type: ignore[arg-type]
    assert found == expected
    assert trace_of(send) == trace_of(process), "a delayed message is a copy"


async def test_message_of_a_transaction_is_of_that_kind_and_its_trace_goes_on(service: Service, telemetry: Telemetry) -> None:
    producer = TransactionProducer("shop", nameserver=service.cluster.nameserver)
    producer.check(lambda *_: False)
    producer.add_hook(telemetry.sending)
    async with producer, producer.transaction() as block:
        await block.send(Message(TOPIC, b"paid"))
    async with service.consumer(lambda messages: None):
        await service.until_spans("process orders", 1)
    (send,), (process,) = telemetry.spans("send orders"), telemetry.spans("process orders")
    assert (send.attributes or {})["messaging.rocketmq.message.type"] == "transaction"
    assert (send.attributes or {})["messaging.message.id"] == block.results[0].message_id
    assert trace_of(send) == trace_of(process)


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=-7))])
async def test_span_of_a_send_has_the_moment_at_which_its_message_is_due(service: Service, telemetry: Telemetry, zone: tzinfo) -> None:
    due_ms = Host.current().clock.wall_ms() + 86_400_123
    due = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=due_ms)
    await service.send(Message(TOPIC, b"paid"), deliver_at=due.astimezone(zone))
    (send,) = telemetry.spans("send orders")
    found = {key: value for key, value in (send.attributes or {}).items() if key.startswith("messaging.rocketmq.")}
    assert found == {"messaging.rocketmq.message.type": "delay", "messaging.rocketmq.message.delivery_timestamp": due_ms}


@pytest.mark.parametrize("how", [{"delay": 5}, {"deliver_at": "tomorrow"}, {"deliver_at": datetime(2030, 1, 1)}])
async def test_span_of_a_send_with_an_invalid_delay_has_its_error(service: Service, telemetry: Telemetry, how: dict[str, Any]) -> None:
    with pytest.raises(LocalProtocolError):
        await service.send(Message(TOPIC, b"paid"), **how)
    (send,) = telemetry.spans("send orders")
    assert (send.attributes or {})["error.type"] == "LocalProtocolError"


async def test_baggage_of_the_caller_is_in_the_listener(service: Service) -> None:
    found: list[object] = []
    token = attach(baggage.set_baggage("customer", "Ada & Bob"))
    try:
        await service.send(Message(TOPIC, b"paid"))
    finally:
        detach(token)

    def handle(messages: Sequence[MessageExt]) -> None:
        found.append(baggage.get_baggage("customer"))

    async with service.consumer(handle):
        await service.until_spans("process orders", 1)
    assert found == ["Ada & Bob"]


async def test_message_without_a_context_begins_a_trace(service: Service, telemetry: Telemetry) -> None:
    """Not the one in which the consumer was started."""
    async with Producer("other", nameserver=service.cluster.nameserver) as producer:
        await producer.send(Message(TOPIC, b"paid"))
    with telemetry.tracer.start_as_current_span("start of the service"):
        async with service.consumer(lambda messages: None):
            await service.until_spans("process orders", 1)
    (process,) = telemetry.spans("process orders")
    assert process.parent is None


async def test_send_within_a_listener_continues_the_trace(service: Service, telemetry: Telemetry) -> None:
    await service.cluster.create_topic("bills", queues=1)
    other = Producer("billing", nameserver=service.cluster.nameserver)
    other.add_hook(telemetry.sending)

    async def handle(messages: Sequence[MessageExt]) -> None:
        await other.send(Message("bills", b"bill"))

    await service.send(Message(TOPIC, b"paid"))
    async with other, service.consumer(handle):
        await service.until_spans("process orders", 1)
    (process,), (send,) = telemetry.spans("process orders"), telemetry.spans("send bills")
    assert send.parent is not None
    assert send.parent.span_id == id_of(process)


# -------------------------------------------------------------------------------------------------------------------- batches


async def test_batch_has_a_trace_of_its_own_with_links_to_its_messages(service: Service, telemetry: Telemetry) -> None:
    for number in range(3):
        await service.send(Message(TOPIC, b"%d" % number))
    async with service.consumer(lambda messages: None, batch_count=3):
        await service.until_spans("process orders", 1)
    sends, (process,) = telemetry.spans("send orders"), telemetry.spans("process orders")
    assert len({trace_of(send) for send in sends}) == 3
    assert process.parent is None
    assert [link.context.span_id for link in process.links] == [id_of(send) for send in sends]
    facts = process.attributes or {}
    assert facts["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in facts


async def test_batch_of_a_producer_is_one_span_of_which_the_calls_are_children(service: Service, telemetry: Telemetry) -> None:
    await service.cluster.create_topic("bills", queues=1)
    await service.send(Message(TOPIC, b"0"), Message(TOPIC, b"1"))
    await service.send(Message(TOPIC, b"2"), Message("bills", b"3"))
    async with service.consumer(lambda messages: None):
        await service.until_spans("process orders", 3)
    (same,), (mixed,) = telemetry.spans("send orders"), telemetry.spans("send")
    assert [process.parent.span_id for process in telemetry.spans("process orders") if process.parent] == [
        *(id_of(same), id_of(same)),
        id_of(mixed),
    ]
    assert (same.attributes or {})["messaging.batch.message_count"] == 2
    assert "messaging.destination.name" not in (mixed.attributes or {}), "it has two"
    counts = {facts["messaging.destination.name"]: point.value for facts, point in telemetry.points("messaging.client.sent.messages")}
    assert counts == {"orders": 3, "bills": 1}


# ------------------------------------------------------------------------------------------------------ retries, dead letters


async def test_trace_continues_over_attempts_a_dead_letter_and_its_replay(service: Service, telemetry: Telemetry) -> None:
    """An ordered group: two attempts, the dead-letter topic, and the message that a replay sends."""
    broken = True

    def handle(messages: Sequence[MessageExt]) -> None:
        if broken:
            raise ValueError("no such account")

    retry = OrderedRetry(max_attempts=2, on_exhausted="dlq", backoff=Backoff(first_ms=50))
    await service.send(Message(TOPIC, b"paid", sharding_key="1001"))
    async with service.consumer(handle, retry=retry), service.consumer(lambda messages: None, topic=f"%DLQ%{GROUP}", group="letters"):
        await service.until_spans("process orders", 2)
        await service.until_spans(f"process %DLQ%{GROUP}", 1)
        broken = False
        await carry_out(DeadLetterReplay(group=GROUP), service.cluster.nameserver)
        await service.until_spans("process orders", 3)
    (send,) = telemetry.spans("send orders")
    first, second, again = telemetry.spans("process orders")
    (letter,) = telemetry.spans(f"process %DLQ%{GROUP}")
    for span in (first, second, again, letter):
        assert trace_of(span) == trace_of(send)
        assert span.parent is not None
        assert span.parent.span_id == id_of(send)
    assert [(span.attributes or {})["lockstep.attempt"] for span in (first, second, again)] == [0, 1, 0]
    assert [span.status.status_code for span in (first, second, again)] == [StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET]
    assert (first.attributes or {})["error.type"] == "ValueError"
    assert first.status.description == "ValueError: no such account"
    assert [event.name for event in first.events] == ["exception"]


async def test_trace_continues_over_the_retries_of_a_concurrent_group(service: Service, telemetry: Telemetry) -> None:
    """Each retry is a copy in %RETRY%billing, and the last one in %DLQ%billing."""
    consumer = PushConsumer(GROUP, nameserver=service.cluster.nameserver, max_reconsume_times=2).subscribe(TOPIC)
    consumer.add_hook(telemetry.consuming)

    @consumer.concurrently
    async def listen(messages: Sequence[MessageExt], context: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        return C.RECONSUME_LATER

    await service.send(Message(TOPIC, b"paid"))
    async with consumer, service.consumer(lambda messages: None, topic=f"%DLQ%{GROUP}", group="letters"):
        await service.until_spans(f"process %DLQ%{GROUP}", 1)
    (send,), calls = telemetry.spans("send orders"), telemetry.spans("process orders")
    assert [(span.attributes or {})["lockstep.attempt"] for span in calls] == [0, 1, 2]
    assert {(span.attributes or {})["error.type"] for span in calls} == {"RECONSUME_LATER"}
    assert {trace_of(span) for span in (*calls, *telemetry.spans(f"process %DLQ%{GROUP}"))} == {trace_of(send)}


# ------------------------------------------------------------------------------------------------------------ calls, one by one


def received(*sent: Message, telemetry: Telemetry) -> list[MessageExt]:
    """Return messages as a consumer receives them, each with the context of a span of its own."""
    made = []
    for number, each in enumerate(sent):
        with telemetry.tracer.start_as_current_span(f"origin {number}"):
            carrier: dict[str, str] = {}
            propagate.inject(carrier)
            made.append(message(each.topic, each.body, properties=carrier, queue_offset=number))
    return made


def test_context_of_a_call_ends_with_it(telemetry: Telemetry) -> None:
    """The next call in the same task, of a message without a context, is in no trace; and a hook that was added later sees the span."""
    (first,) = received(Message(TOPIC, b"1"), telemetry=telemetry)
    current: list[bool] = []

    def listen(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        current.append(trace.get_current_span().get_span_context().is_valid)
        if len(current) == 2:
            raise ValueError("no such account")

    call: Any = watched(listen, GROUP, [telemetry.consuming])
    before = get_current()
    call([first], orderly_context([first]))
    assert get_current() == before
    with pytest.raises(ValueError, match="no such account"):
        call([first], orderly_context([first]))
    assert get_current() == before, "an error ends it as well"
    other = message(TOPIC, b"2")
    call([other], orderly_context([other]))
    assert telemetry.spans("process orders")[-1].parent is None


@pytest.mark.parametrize("kind", [kind for kind in ERRORS if kind != "no name"])
def test_span_of_a_call_ends_whatever_its_error_is(telemetry: Telemetry, kind: str) -> None:
    """And its attributes can be exported, which are UTF-8."""
    (first,) = received(Message(TOPIC, b"1"), telemetry=telemetry)

    def listen(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        raise ERRORS[kind]()

    call: Any = watched(listen, GROUP, [telemetry.consuming])
    with pytest.raises(BaseException):  # noqa: B017, PT011
        call([first], orderly_context([first]))
    (span,) = telemetry.spans("process orders")
    (event,) = span.events
    shown = event.attributes or {}
    assert {"exception.type", "exception.message", "exception.stacktrace"} == set(shown)
    assert all(str(value).encode() for value in shown.values())
    assert (span.status.description or "").encode()


def test_plain_listener_has_the_context_in_its_thread(telemetry: Telemetry) -> None:
    (first,) = received(Message(TOPIC, b"1"), telemetry=telemetry)
    seen: list[int] = []

    def listen(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        seen.append(trace.get_current_span().get_span_context().trace_id)

    call: Any = watched(listen, GROUP, [telemetry.consuming])
    for _ in range(2):
        thread = threading.Thread(target=call, args=([first], orderly_context([first])))
        thread.start()
        thread.join()
    (origin,) = telemetry.spans("origin 0")
    assert seen == [trace_of(origin)] * 2


@pytest.mark.parametrize(
    ("result", "kind"),
    [(S.SUSPEND_CURRENT_QUEUE_A_MOMENT, "SUSPEND_CURRENT_QUEUE_A_MOMENT"), (S.ROLLBACK, "ROLLBACK"), ("SUCCESS", "str"), (S.SUCCESS, None)],
)
def test_result_that_is_no_success_is_an_error_of_the_span(telemetry: Telemetry, result: object, kind: str | None) -> None:
    (first,) = received(Message(TOPIC, b"1"), telemetry=telemetry)
    call: Any = watched(lambda messages, context: result, GROUP, [telemetry.consuming])  # type: ignore[arg-type, return-value]
    call([first], orderly_context([first]))
    (process,) = telemetry.spans("process orders")
    assert (process.attributes or {}).get("error.type") == kind
    assert (process.status.status_code is StatusCode.ERROR) == (kind is not None)
    ((facts, point),) = telemetry.points("messaging.process.duration")
    assert facts == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "process",
        "messaging.destination.name": "orders",
        "messaging.consumer.group.name": "billing",
        **({} if kind is None else {"error.type": kind}),
    }
    assert point.count == 1


# -------------------------------------------------------------------------------------------------------- metrics, pull consumers


async def test_metrics_of_a_producer_and_a_consumer(service: Service, telemetry: Telemetry) -> None:
    await service.send(Message(TOPIC, b"paid"))

    async def handle(messages: Sequence[MessageExt]) -> None:
        await asyncio.sleep(0.3)

    async with service.consumer(handle):
        await service.until_spans("process orders", 1)
    operation = {"messaging.system": "rocketmq", "messaging.operation.name": "send", "messaging.destination.name": "orders"}
    ((facts, sent),) = telemetry.points("messaging.client.sent.messages")
    assert (facts, sent.value) == (operation, 1)
    ((facts, duration),) = telemetry.points("messaging.client.operation.duration")
    assert facts == {**operation, "messaging.operation.type": "send"}
    assert duration.count == 1
    assert duration.explicit_bounds[0] == 0.005
    ((_, process),) = telemetry.points("messaging.process.duration")
    assert 0.3 <= process.sum < 0.31, "in seconds of the virtual clock"


async def test_send_that_fails_is_an_error(service: Service, telemetry: Telemetry) -> None:
    async with service.producer as producer:
        await service.cluster.kill("broker-a")
        with pytest.raises(SendError):
            await producer.send(Message(TOPIC, b"paid"), timeout_ms=500)
        with pytest.raises(SendError):
            await (await producer.post(Message(TOPIC, b"paid"), timeout_ms=500))
        await asyncio.sleep(0)
    for span in telemetry.spans("send orders"):
        assert (span.attributes or {})["error.type"] == "SendTimeoutError"
        assert span.status.status_code is StatusCode.ERROR
    ((facts, point),) = telemetry.points("messaging.client.sent.messages")
    assert (facts["error.type"], point.value) == ("SendTimeoutError", 2)


async def test_pull_consumer_gets_the_context_of_a_message(service: Service, telemetry: Telemetry) -> None:
    await service.send(Message(TOPIC, b"paid"))
    async with PullConsumer(GROUP, nameserver=service.cluster.nameserver).subscribe(TOPIC) as consumer:
        (found,) = await consumer.poll()
    with telemetry.tracer.start_as_current_span("report", context=context_of(found)):
        pass
    (send,), (report,) = telemetry.spans("send orders"), telemetry.spans("report")
    assert trace_of(report) == trace_of(send)
    assert not trace.get_current_span(context_of(message(TOPIC, b"paid"))).get_span_context().is_valid


def test_hook_without_its_beginning_does_nothing(telemetry: Telemetry) -> None:
    """A context that can't be read fails `before_consume`, which is logged, and changes nothing for the listener."""
    consuming = Consuming(GROUP, orderly_context([message(TOPIC, b"1")]).queue, [], orderly_context([message(TOPIC, b"1")]))
    telemetry.consuming.after_consume(consuming)
    assert not telemetry.spans()
