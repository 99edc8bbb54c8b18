"""The hooks: a span for each send and for each call of a listener, with the context of the trace in the properties of the message.

A send is a span `send TOPIC` (PRODUCER), and its context goes with each of its messages as `traceparent`, `tracestate` and `baggage` (W3C),
or as the global propagator writes it. A call is a span `process TOPIC` (CONSUMER): the child of the send if it has one message, otherwise
the root of a trace that is linked to each message's. Copies of a message keep its properties, so retries, dead letters and their replays
continue its trace. Bodies and the user's properties are not recorded.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextvars import Token
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version

from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.metrics import Histogram, Meter, MeterProvider
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, TracerProvider

from lockstep.client import (
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    Consuming,
    Message,
    MessageExt,
    OrderlyContext,
    Sending,
)
from lockstep.otel import names
from lockstep.protocol.object_text import name_of, text_of, traceback_of
from lockstep.protocol.topics.queue import MessageQueue
from lockstep.runtime.extras import DISTRIBUTION
from lockstep.runtime.host import Host

Attributes = dict[str, str | int | Sequence[str]]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def context_of(message: MessageExt) -> Context:
    """Return the context of the send of a message, for a span of your own: of a pull consumer, or for one message of a batch.

    Without a context in the message it is empty.
    """
    return propagate.extract(message.all_properties, context=Context())


@dataclass(slots=True)
class _Running:
    """A span that has begun."""

    span: Span
    begun_us: int
    token: Token[Context] | None = None


class SendTracing:
    """A SendHook: `producer.add_hook(SendTracing())`.

    Metrics: `messaging.client.operation.duration` and `messaging.client.sent.messages`.

    Args:
        tracer_provider, meter_provider: Default: the global ones.
    """

    def __init__(self, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None) -> None:
        self._clock = Host.current().clock
        self._tracer, meter = _tools(tracer_provider, meter_provider)
        self._duration = _histogram(
            meter, names.MESSAGING_CLIENT_OPERATION_DURATION, "Duration of messaging operation initiated by a producer or consumer client."
        )
        self._sent = meter.create_counter(
            names.MESSAGING_CLIENT_SENT_MESSAGES, names.MESSAGES, "Number of messages producer attempted to send to the broker."
        )

    def before_send(self, sending: Sending) -> None:
        """Begin the span, and put its context into the properties."""
        attributes = _operation(names.SEND) | _destination(_topics(sending.messages)) | _batch(sending.messages)
        if sending.method != "batch":
            (message,) = sending.messages
            attributes |= dict(_of_message(message)) | self._kind(message, sending)
        name = _span_name(names.SEND, attributes)
        span = self._tracer.start_span(name, kind=SpanKind.PRODUCER, attributes=attributes)
        sending.memory[self] = _Running(span, self._clock.monotonic_us())
        propagate.inject(sending.properties, trace.set_span_in_context(span))

    def after_send(self, sending: Sending) -> None:
        """End the span, and count the send."""
        running: _Running | None = sending.memory.pop(self, None)
        if running is None:
            return
        for result in sending.results if sending.method != "batch" else ():
            running.span.set_attribute(names.MESSAGING_MESSAGE_ID, result.message_id)
            running.span.set_attribute(names.MESSAGING_DESTINATION_PARTITION_ID, _partition(result.queue))
        failed = _end(running.span, sending.error)
        topics = _topics(sending.messages)
        facts = _operation(names.SEND) | failed
        self._duration.record(self._seconds_since(running), facts | _destination(topics))
        counted = {key: value for key, value in facts.items() if key != names.MESSAGING_OPERATION_TYPE}
        for topic, count in topics.items():
            self._sent.add(count, {**counted, names.MESSAGING_DESTINATION_NAME: topic})

    def _kind(self, message: Message, sending: Sending) -> Attributes:
        due: Attributes = {}
        kind = names.NORMAL if message.sharding_key is None else names.FIFO
        if sending.method == "transaction":
            kind = names.TRANSACTION
        elif sending.delay_level is not None:
            kind, due = names.DELAY, {names.MESSAGING_ROCKETMQ_MESSAGE_DELAY_TIME_LEVEL: sending.delay_level}
        elif (due_ms := self._due_ms(sending)) is not None:
            kind, due = names.DELAY, {names.MESSAGING_ROCKETMQ_MESSAGE_DELIVERY_TIMESTAMP: due_ms}
        return {names.MESSAGING_ROCKETMQ_MESSAGE_TYPE: kind, **due}

    def _due_ms(self, sending: Sending) -> int | None:
        """Return when the messages are due, in ms since 1970; None without a delay, and for one that the send will refuse."""
        if isinstance(sending.delay, timedelta):
            return self._clock.wall_ms() + sending.delay // timedelta(milliseconds=1)
        if isinstance(sending.deliver_at, datetime) and sending.deliver_at.utcoffset() is not None:
            return (sending.deliver_at - EPOCH) // timedelta(milliseconds=1)
        return None

    def _seconds_since(self, running: _Running) -> float:
        return (self._clock.monotonic_us() - running.begun_us) / 1e6


class ConsumeTracing:
    """A ConsumeHook: `consumer.add_hook(ConsumeTracing())`. In the listener the span is the current one.

    Metric: `messaging.process.duration`.

    Args:
        tracer_provider, meter_provider: Default: the global ones.
    """

    def __init__(self, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None) -> None:
        self._clock = Host.current().clock
        self._tracer, meter = _tools(tracer_provider, meter_provider)
        self._duration = _histogram(meter, names.MESSAGING_PROCESS_DURATION, "Duration of processing operation.")

    def before_consume(self, consuming: Consuming) -> None:
        """Begin the span, and make it the current one of the listener's task or thread."""
        messages, context = consuming.messages, consuming.context
        parent, links = _origin(messages)
        attributes = self._facts(consuming) | _batch(messages)
        attributes[names.MESSAGING_DESTINATION_PARTITION_ID] = _partition(consuming.queue)
        if isinstance(context, OrderlyContext):
            attributes |= {names.LOCKSTEP_ATTEMPT: context.attempt, names.LOCKSTEP_EPOCH: context.fence.epoch}
        if len(messages) == 1:
            (message,) = messages
            attributes |= dict(_of_message(message)) | {names.MESSAGING_MESSAGE_ID: message.message_id}
            attributes.setdefault(names.LOCKSTEP_ATTEMPT, message.reconsume_times)
        name = _span_name(names.PROCESS, attributes)
        span = self._tracer.start_span(name, context=parent, kind=SpanKind.CONSUMER, attributes=attributes, links=links)
        token = attach(trace.set_span_in_context(span, parent))
        consuming.memory[self] = _Running(span, self._clock.monotonic_us(), token)

    def after_consume(self, consuming: Consuming) -> None:
        """End the span, restore the context, and count the call."""
        running: _Running | None = consuming.memory.pop(self, None)
        if running is None:
            return
        if running.token is not None:
            detach(running.token)
        failed = _end(running.span, consuming.error, None if consuming.succeeded else consuming.result)
        facts = {key: value for key, value in self._facts(consuming).items() if key != names.MESSAGING_OPERATION_TYPE}
        self._duration.record((self._clock.monotonic_us() - running.begun_us) / 1e6, facts | failed)

    @staticmethod
    def _facts(consuming: Consuming) -> Attributes:
        topics = _topics(consuming.messages)
        return _operation(names.PROCESS) | _destination(topics) | {names.MESSAGING_CONSUMER_GROUP_NAME: consuming.group}


def _tools(tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None) -> tuple[Tracer, Meter]:
    release = version(DISTRIBUTION)
    tracer = trace.get_tracer(names.SCOPE, release, tracer_provider, names.SCHEMA_URL)
    return tracer, metrics.get_meter(names.SCOPE, release, meter_provider, names.SCHEMA_URL)


def _histogram(meter: Meter, name: str, description: str) -> Histogram:
    return meter.create_histogram(name, names.SECONDS, description, explicit_bucket_boundaries_advisory=names.BUCKETS)


def _origin(messages: Sequence[MessageExt]) -> tuple[Context, list[Link]]:
    """Return the parent of the span of a call, and its links. Never the context in which the consumer was started."""
    contexts = [context_of(message) for message in messages]
    if len(contexts) == 1:
        return contexts[0], []
    found = [trace.get_current_span(context).get_span_context() for context in contexts]
    return Context(), [Link(each) for each in {(each.trace_id, each.span_id): each for each in found if each.is_valid}.values()]


def _end(span: Span, error: BaseException | None, refusal: object = None) -> Attributes:
    """End a span. Return why the operation failed, if it did: an error, or a result that is not a success."""
    kind = None
    if error is not None:
        kind = type(error).__qualname__
        shown = {names.EXCEPTION_TYPE: name_of(type(error)), names.EXCEPTION_MESSAGE: text_of(error)}
        span.add_event("exception", {**shown, names.EXCEPTION_STACKTRACE: traceback_of(error)})
        span.set_status(Status(StatusCode.ERROR, text_of(error)))
    elif refusal is not None:
        kind = refusal.name if isinstance(refusal, ConsumeOrderlyStatus | ConsumeConcurrentlyStatus) else type(refusal).__qualname__
        span.set_status(Status(StatusCode.ERROR, f"the listener returned {text_of(refusal):.100}"))
    failed: Attributes = {} if kind is None else {names.ERROR_TYPE: kind}
    span.set_attributes(failed)
    span.end()
    return failed


def _operation(name: str) -> Attributes:
    return {names.MESSAGING_SYSTEM: names.ROCKETMQ, names.MESSAGING_OPERATION_NAME: name, names.MESSAGING_OPERATION_TYPE: name}


def _topics(messages: Sequence[Message] | Sequence[MessageExt]) -> Mapping[str, int]:
    """Return the topics to which messages were sent, and the number of messages of each."""
    counts: dict[str, int] = {}
    for message in messages:
        counts[message.topic] = counts.get(message.topic, 0) + 1
    return counts


def _destination(topics: Mapping[str, int]) -> Attributes:
    return {names.MESSAGING_DESTINATION_NAME: next(iter(topics))} if len(topics) == 1 else {}


def _batch(messages: Sequence[object]) -> Attributes:
    return {names.MESSAGING_BATCH_MESSAGE_COUNT: len(messages)} if len(messages) > 1 else {}


def _span_name(operation: str, attributes: Attributes) -> str:
    topic = attributes.get(names.MESSAGING_DESTINATION_NAME)
    return operation if topic is None else f"{operation} {topic}"


def _of_message(message: Message | MessageExt) -> Iterator[tuple[str, str | Sequence[str]]]:
    if message.tags is not None:
        yield names.MESSAGING_ROCKETMQ_MESSAGE_TAG, message.tags
    if message.keys:
        yield names.MESSAGING_ROCKETMQ_MESSAGE_KEYS, message.keys
    if message.sharding_key is not None:
        yield names.MESSAGING_ROCKETMQ_MESSAGE_GROUP, message.sharding_key


def _partition(queue: MessageQueue) -> str:
    return f"{queue.broker_name}:{queue.queue_id}"
