"""SEND_MESSAGE: the sends of RocketMQ's clients, single ones, batches and retries, and delayed ones of all clients.

RocketMQ: SendMessageProcessor. The record of each message is made here, and then stored like any frame (send.py has the order of the
checks).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate

from lockstep.broker.classic.batch import joined_properties, read_batch
from lockstep.broker.classic.connections import ClientConnections
from lockstep.broker.classic.retry import MARKS, as_stored, check_retry_topic, is_retry, retries_used_up
from lockstep.broker.classic.traces import REGION
from lockstep.broker.delivery.failed_messages import FailedMessages
from lockstep.broker.delivery.home_delivery import store_copy
from lockstep.broker.delivery.message_copy import MessageCopy
from lockstep.broker.processors.sent_frames import UNTIL, SentFrames, born_host, host_text
from lockstep.broker.processors.topic import TopicProcessor, topic_change
from lockstep.broker.store import Appended
from lockstep.broker.store.log.waiting_records import DAY_MS
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import VERSION_5_0
from lockstep.protocol.delays import exhausted_reason
from lockstep.protocol.errors import (
    BrokerSystemError,
    LocalProtocolError,
    MessageIllegalError,
    NoPermissionError,
    RequestCodeNotSupportedError,
)
from lockstep.protocol.frame import BODY_BYTES_MAX, HEADER_BYTES_MAX
from lockstep.protocol.headers.send import SendMessageHeader, SendMessageV2Header, SendReply
from lockstep.protocol.messages.ids import offset_message_id
from lockstep.protocol.messages.properties import (
    CLUSTER,
    DELAY,
    OWN_PREFIX,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    REASON,
    SENT_PROPERTIES_BYTES_MAX,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_PREFIX,
    TRAN_MSG,
    UNIQ_KEY,
    WAIT,
    check_sent_bytes,
    encode_properties,
    has_property,
    sent_bytes,
    split_properties,
)
from lockstep.protocol.messages.recall import RecallHandle
from lockstep.protocol.messages.record import RecordView, encode_record
from lockstep.protocol.messages.rooms import TIMER_MS_MAX, due_ms_of
from lockstep.protocol.names import HALF_TOPIC, RETRY_PREFIX, TIMER_TOPIC, check_group, check_topic, dlq_topic, is_sendable_topic
from lockstep.runtime.host import Random
from lockstep.runtime.limits import RECORDS_BYTES_MAX
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import PUB, inside, on_topic
from lockstep.runtime.requests.request import HandlerResult, PendingResponse, Request

classic_send = partial(handles, classic=True, body_bytes_max=RECORDS_BYTES_MAX, header_bytes_max=HEADER_BYTES_MAX)
"""Marks a handler of a send by RocketMQ's clients, with the limits of SEND_RECORDS."""
BATCH_PROPERTIES_MAX = 1_024
"""Characters of the properties of a batch, which each of its messages gets. Java's have WAIT and UNIQ_KEY."""
TRANSACTION_BITS = 0xC
"""RocketMQ: MessageSysFlag.TRANSACTION_ROLLBACK_TYPE, the mask of a message's transaction state."""
TIMERS = (
    (TIMER_DELAY_SEC, TIMER_DELAY_MS, 1_000),
    (TIMER_DELAY_MS, TIMER_DELAY_MS, 1),
    (TIMER_DELIVER_MS, TIMER_DELIVER_MS, 1),
)
"""Properties by which messages of RocketMQ's clients wait, in the order in which its broker looks at them: the one that is stored, and the
unit. RocketMQ: HookUtils.handleScheduleMessage."""
TIMER_DELETION = "TIMER_DEL_UNIQKEY"
"""By this property RocketMQ's brokers store the recall of a message. RocketMQ: MessageConst.PROPERTY_TIMER_DEL_UNIQKEY."""
NUMBER_DIGITS = 16
KEPT_FOR_LATER = (REAL_TOPIC, REAL_QID, PGROUP)
"""Properties with which a broker keeps a message for later: where it belongs, and whose transaction it is."""


class SendMessageProcessor:
    """Makes the records of single messages and of batches, and stores them: at once, after a delay, or as a retry of a group."""

    def __init__(
        self,
        frames: SentFrames,
        creator: TopicProcessor,
        failed: FailedMessages,
        random: Random,
        connections: ClientConnections,
        *,
        broker_name: str,
        cluster: str,
        traced: bool = False,
    ) -> None:
        """`cluster`: the value of the property CLUSTER. `traced`: the broker has the topic for traces."""
        self._broker_name = broker_name
        self._frames = frames
        self._store = frames.store
        self._topics = frames.topics
        self._creator = creator
        self._failed = failed
        self._random = random
        self._connections = connections
        self._cluster = cluster
        self._traced = traced

    @classic_send(RequestCode.SEND_MESSAGE, SendMessageHeader, bytes, needs=[on_topic(PUB), inside("Create topic, if the send creates it")])
    def send_message(self, request: Request) -> HandlerResult:
        """Take RocketMQ's single send: its record is made here, and then stored like any frame."""
        return self._send(request, request.header)

    @classic_send(
        RequestCode.SEND_MESSAGE_V2, SendMessageV2Header, bytes, needs=[on_topic(PUB), inside("Create topic, if the send creates it")]
    )
    def send_message_v2(self, request: Request) -> HandlerResult:
        header: SendMessageV2Header = request.header
        return self._send(request, header.long_form())

    @classic_send(
        RequestCode.SEND_BATCH_MESSAGE, SendMessageV2Header, bytes, needs=[on_topic(PUB), inside("Create topic, if the send creates it")]
    )
    def send_batch(self, request: Request) -> HandlerResult:
        header: SendMessageV2Header = request.header
        return self._send(request, header.long_form(batch=True))

    def _send(self, request: Request, header: SendMessageHeader) -> HandlerResult:
        check_topic(header.topic)
        if not is_sendable_topic(header.topic):
            raise NoPermissionError(f"topic {header.topic} is written by the broker alone")
        retry = is_retry(header)
        self._check_supported(request, header, retry=retry)
        if retry:
            return self._retry(request, header, check_retry_topic(header))
        before = self._topics.find_layout(header.topic)
        layout = self._creator.find_or_create(header.topic, header.default_topic_queue_nums, header.queue_id, request.user)
        is_new = layout is not before
        if is_new:
            request.change = topic_change(header.topic, before, layout)
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = self._random.below(max(1, self._topics.own_write_count(layout)))
        if header.batch and not request.is_native:
            result = self._send_messages(request, header, queue_id)
            return self._creator.respond_when_known(request, result) if is_new else result
        record = record_of_send(header, queue_id, request.body, self._cluster_for(request))
        level = delay_level(header.properties)
        timer, handle = None if level else timer_of(header.properties), None
        if is_half(header):
            self._frames.admit(request, header.topic, queue_id)
            appended = self._append_half(request, header, self._copy_of(request, record))
            reply = self._send_reply(request, header, queue_id, appended, (0,))
            # A sender that gets a weaker response rolls back, although the message may be stored.
            result = PendingResponse(request.reply(reply), "synced")
            return self._creator.respond_when_known(request, result) if is_new else result
        if level > 0:
            self._frames.admit(request, header.topic, queue_id)
            appended = self._failed.delays.append(self._copy_of(request, record), level)
        elif timer is not None:
            self._frames.admit(request, header.topic, queue_id)
            appended, handle = self._append_timer(request, header, self._copy_of(request, record), *timer)
        else:
            appended = self._frames.append(request, header.topic, queue_id, record, 1)
        reply = self._send_reply(request, header, queue_id, appended, (0,), handle)
        result = PendingResponse(request.reply(reply), UNTIL[requested_durability(header)])
        return self._creator.respond_when_known(request, result) if is_new else result

    def _append_timer(
        self, request: Request, header: SendMessageHeader, copy: MessageCopy, name: str, value: int
    ) -> tuple[Appended, str | None]:
        """Store a message of RocketMQ's clients that is to wait. Return where, and its recall handle."""
        self._frames.check_pending(TIMER_TOPIC, 1, len(request.body))
        layout = self._topics.find_layout(header.topic)
        now_ms = self._store.now_ms()
        wait_ms = due_ms_of(name.encode(), value, now_ms) - now_ms
        if wait_ms > self._frames.limits.wait_max_ms:
            days, days_max = wait_ms / DAY_MS, self._frames.limits.wait_max_ms / DAY_MS
            raise MessageIllegalError(f"property {name}: the message would wait for {days:.2f} days, at most {days_max:g} (timer_days_max)")
        timer = copy.as_timer(0 if layout is None else layout.began, name, value)
        appended = store_copy(self._store, timer)
        due_ms = due_ms_of(name.encode(), value, appended.store_timestamp)
        unique = copy.properties.get(UNIQ_KEY)
        if unique is None:
            return appended, None
        return appended, RecallHandle(header.topic, self._broker_name, due_ms, unique, appended.queue_offset).encode()

    def _append_half(self, request: Request, header: SendMessageHeader, copy: MessageCopy) -> Appended:
        """Store a half message of RocketMQ's clients."""
        self._frames.check_pending(HALF_TOPIC, 1, 0)
        layout = self._topics.find_layout(header.topic)
        group = copy.properties.get(PGROUP, header.producer_group)
        try:
            check_group(group)
        except LocalProtocolError as error:
            raise MessageIllegalError(f"property {PGROUP}: {error}") from None
        self._connections.sends_halves(request.endpoint.id)
        client_id = self._connections.client_id(request.endpoint.id)
        return store_copy(self._store, copy.as_half(0 if layout is None else layout.began, group, client_id))

    def _check_supported(self, request: Request, header: SendMessageHeader, *, retry: bool) -> None:
        """Raise MessageIllegalError for what the broker can't do with a message, and for what only a broker may set. It is refused even if
        the message names a delay level as well. `retry`: whether the send has anything that only a retry may have."""
        if TIMER_PREFIX in header.properties:
            names = [each for each in split_properties(header.properties) if each.startswith(TIMER_PREFIX)]
            if TIMER_DELETION in names:
                raise MessageIllegalError(f"property {TIMER_DELETION}: a message that waits is taken back by RECALL_MESSAGE (370)")
            if names and request.is_native:
                raise MessageIllegalError(f"property {names[0]}: lockstep's clients send it with SEND_RECORDS")
            if names and (retry or header.batch):
                raise MessageIllegalError(f"property {names[0]}: send the message alone, and to no topic of retries")
        half = has_property(header.properties, TRAN_MSG)
        if half and not is_half(header):
            raise MessageIllegalError(f"property {TRAN_MSG} is not true: leave it out of a message that is not of a transaction")
        if half and request.is_native:
            raise MessageIllegalError("lockstep's clients send the messages of a transaction with SEND_RECORDS")
        if half and (retry or header.batch or header.topic.startswith(RETRY_PREFIX)):
            raise MessageIllegalError("a message of a transaction is sent alone, and to no topic of retries")
        if half and (delay_level(header.properties) > 0 or timer_of(header.properties) is not None):
            raise MessageIllegalError("a message of a transaction can't be delayed")
        if not half and header.sys_flag & TRANSACTION_BITS:
            raise MessageIllegalError(f"sysFlag {header.sys_flag:#x} has bits of a transaction, and property {TRAN_MSG} is not true")
        if retry and request.is_native:
            raise MessageIllegalError(f"reconsume times and the properties {', '.join(MARKS)} are set by the broker: leave them out")
        if not retry:  # clients repeat what the message had that they consumed
            for name in KEPT_FOR_LATER:
                if has_property(header.properties, name) and not (half and name == PGROUP):
                    raise MessageIllegalError(f"property {name} is set by the broker, for messages that it keeps for later: leave it out")
        if header.batch and not request.is_native and header.topic.startswith(RETRY_PREFIX):
            raise BrokerSystemError(f"a batch for {header.topic}: send messages to a topic of retries one by one")

    def _retry(self, request: Request, header: SendMessageHeader, group: str) -> HandlerResult:
        """Take a message that a client sends to the retries of its group: it is stored as if the client had sent it back."""
        self._frames.check_load()
        used_up = retries_used_up(header, request.version)
        stored = as_stored(header)
        copy = self._copy_of(request, record_of_send(stored, 0, request.body, self._cluster))
        if used_up:
            properties = {**copy.properties, REASON: exhausted_reason(stored.reconsume_times)}
            copy = replace(copy, topic=dlq_topic(group), properties=properties)
        is_new = self._failed.is_missing(copy.topic)
        appended = self._failed.store(group, copy, 0 if used_up else delay_level(header.properties))
        reply = self._send_reply(request, header, 0, appended, (0,))
        result = PendingResponse(request.reply(reply), UNTIL[requested_durability(header)])
        return self._creator.respond_when_known(request, result) if is_new else result

    def _copy_of(self, request: Request, record: bytes) -> MessageCopy:
        """Return a record that was sent as a message that the broker stores itself, without the properties of timers.

        Raise MessageIllegalError if copies would not fit.
        """
        size_max = self._store.sent_record_bytes_max
        if len(record) > size_max:
            raise MessageIllegalError(f"a record of {len(record)} bytes: at most {size_max}, so that copies fit")
        copy = MessageCopy.of(RecordView(record))
        kept = {name: value for name, value in copy.properties.items() if not name.startswith(TIMER_PREFIX)}
        return replace(copy, properties=kept, born_host=born_host(request.endpoint.peer))

    def _cluster_for(self, request: Request) -> str | None:
        """Return the value of the property CLUSTER, which the messages of RocketMQ's clients get."""
        return None if request.is_native else self._cluster

    def _send_messages(self, request: Request, header: SendMessageHeader, queue_id: int) -> PendingResponse:
        """Take RocketMQ's batch: its messages become one frame, each with the properties of the batch after its own."""
        if delay_level(header.properties) > 0:
            raise MessageIllegalError("a batch can't be delayed: send the messages one by one")
        if len(header.properties) > BATCH_PROPERTIES_MAX:
            raise MessageIllegalError(
                f"the batch has {len(header.properties)} characters of properties: at most {BATCH_PROPERTIES_MAX}, which each message gets"
            )
        self._frames.check_room(header.topic, queue_id)
        single, records, size = replace(header, batch=False), list[bytes](), 0
        for flag, body, properties in read_batch(request.body):
            message = replace(single, flag=flag, properties=joined_properties(properties, header.properties))
            self._check_batched(request, message, len(records) + 1)
            records.append(record_of_send(message, queue_id, body, self._cluster))
            size += len(records[-1])
            if size > RECORDS_BYTES_MAX:
                raise MessageIllegalError(f"the records of the batch have more than {RECORDS_BYTES_MAX} bytes: send fewer messages")
        if not records:
            raise MessageIllegalError("a batch without messages")
        appended = self._frames.append(request, header.topic, queue_id, b"".join(records), len(records))
        reply = self._send_reply(request, header, queue_id, appended, [0, *accumulate(map(len, records[:-1]))])
        return PendingResponse(request.reply(reply), UNTIL[requested_durability(header)])

    def _check_batched(self, request: Request, message: SendMessageHeader, number: int) -> None:
        """Raise MessageIllegalError, which names the message, for what a message of a batch can't be."""
        if delay_level(message.properties) > 0 or timer_of(message.properties) is not None or is_retry(message):
            raise MessageIllegalError(f"batch: message {number} is delayed or a retry: send it alone")
        if is_half(message):
            raise MessageIllegalError(f"batch, message {number}: a message of a transaction is sent alone")
        self._check_supported(request, message, retry=False)

    def _send_reply(
        self,
        request: Request,
        header: SendMessageHeader,
        queue_id: int,
        appended: Appended,
        starts: Sequence[int],
        handle: str | None = None,
    ) -> SendReply:
        """Return the response to a send. `starts`: where its messages begin within the frame. `handle`: its recall handle."""
        host = host_text(self._store.store_host)
        ids = ",".join(offset_message_id(host, appended.physical_offset + start) for start in starts)
        if request.is_native:
            return SendReply(ids, queue_id, appended.queue_offset)
        # Clients read the `transactionId` from 5.0 on.
        unique = split_properties(header.properties).get(UNIQ_KEY) if request.version >= VERSION_5_0 else None
        return SendReply(ids, queue_id, appended.queue_offset, REGION, self._traced, unique, handle)


def record_of_send(header: SendMessageHeader, queue_id: int, body: bytes | bytearray | memoryview, cluster: str | None = None) -> bytes:
    """Return the record of a SEND_MESSAGE, the broker's fields zero, with the property CLUSTER if its value is given.

    Raise MessageIllegalError with the limit that the message breaks.
    """
    if header.batch:
        raise RequestCodeNotSupportedError(
            "RocketMQ's batch body is not supported: send the messages one by one, or as SEND_RECORDS (30003)"
        )
    if not body:
        raise MessageIllegalError("the body is empty: RocketMQ's clients refuse it too, put one byte in")
    if len(body) > BODY_BYTES_MAX:
        raise MessageIllegalError(f"the body has {len(body)} bytes: at most {BODY_BYTES_MAX} (4 MiB)")
    properties = header.properties.encode("utf-8", "surrogatepass")
    if WAIT in header.properties or cluster is not None:
        pairs = split_properties(header.properties)
        pairs.pop(WAIT, None)
        if cluster is not None:
            pairs[CLUSTER] = cluster
        properties = encode_properties(pairs)
    if OWN_PREFIX in header.properties and any(name.startswith(OWN_PREFIX) for name in split_properties(header.properties)):
        raise MessageIllegalError(f"property names beginning with {OWN_PREFIX} are lockstep's own: choose another name")
    try:
        if len(properties) > SENT_PROPERTIES_BYTES_MAX:
            check_sent_bytes(sent_bytes(properties), "the properties")
        return encode_record(
            header.topic.encode(),
            queue_id,
            body,
            properties,
            flag=header.flag,
            sys_flag=header.sys_flag & ~TRANSACTION_BITS,
            born_ms=header.born_timestamp,
            reconsume_times=header.reconsume_times,
        )
    except LocalProtocolError as error:
        raise MessageIllegalError(str(error)) from None


def requested_durability(header: SendMessageHeader) -> bool | None:
    """Return the header's `durable`; else what RocketMQ's clients request by WAIT ("false": don't wait for the flush)."""
    if header.durable is None and WAIT in header.properties and split_properties(header.properties).get(WAIT) == "false":
        return False
    return header.durable


def is_half(header: SendMessageHeader) -> bool:
    """Return whether the message is a half message: its transaction is not decided."""
    return TRAN_MSG in header.properties and split_properties(header.properties).get(TRAN_MSG) == "true"


def timer_of(properties: str) -> tuple[str, int] | None:
    """Return the property by which a message of RocketMQ's clients is to wait, and its value in ms; None if it is not.

    If there are several, the one counts that RocketMQ's broker looks at first. Raise MessageIllegalError if it is not a number.
    """
    if TIMER_PREFIX not in properties:
        return None
    found = split_properties(properties)
    for given, name, unit_ms in TIMERS:
        if (text := found.get(given)) is not None:
            is_number = text.isascii() and text.isdecimal() and len(text) <= NUMBER_DIGITS
            if not is_number or not 0 < int(text) * unit_ms <= TIMER_MS_MAX:
                raise MessageIllegalError(f"property {given} is {text[:40]!r}: expected a number above 0 (at most {TIMER_MS_MAX} ms)")
            return name, int(text) * unit_ms
    return None


def delay_level(properties: str) -> int:
    """Return the delay level that a single send requests; 0 if none. Raise MessageIllegalError if it is not a number."""
    if DELAY not in properties:
        return 0
    level = split_properties(properties).get(DELAY, "0")
    if not level.isascii() or not level.isdecimal() or len(level) > 9:
        raise MessageIllegalError(f"property {DELAY} is {level[:40]!r}: expected the number of a delay level")
    return int(level)
