"""SEND_RECORDS and SEND_MESSAGE: checks a send and appends it. RocketMQ: SendMessageProcessor.

The order of the checks is a rule (wire.md): the sequence first, so that a repeat gets its first response whatever else has changed; then
the layout, topic and queue; then whether the broker takes sends at all; then disk space and every record, by the store. There is no await
between the decoding of a send and its append. Every response waits until the log is confirmed up to its end, or as `durable` requires: also
that of a repeat, because the first one may not be durable yet, and a refusal that reports a layout. Only refusals that depend on the
request alone are sent at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import accumulate

from lockstep.broker.classic.batch import joined_properties, read_batch
from lockstep.broker.classic.retry import MARKS, as_stored, check_retry_topic, is_retry, retries_used_up
from lockstep.broker.classic.traces import REGION
from lockstep.broker.delivery.delayed_delivery import DelayedDelivery
from lockstep.broker.delivery.failed_messages import FailedMessages
from lockstep.broker.delivery.message_copy import MessageCopy
from lockstep.broker.processors.topic import TopicProcessor
from lockstep.broker.store import Appended, Store
from lockstep.broker.tables.sequence_table import ACCEPT, Scope, SequenceTable, SequenceVerdict, StoredFrame
from lockstep.broker.tables.topic_table import TopicTable
from lockstep.broker.tables.write_holds import WriteHolds
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import VERSION_5_0
from lockstep.protocol.delays import exhausted_reason
from lockstep.protocol.errors import (
    BrokerSystemError,
    LocalProtocolError,
    MessageIllegalError,
    NoPermissionError,
    RemoteProtocolError,
    RequestCodeNotSupportedError,
    ServiceNotAvailableError,
)
from lockstep.protocol.frame import BODY_BYTES_MAX, HEADER_BYTES_MAX
from lockstep.protocol.headers.send import SendMessageHeader, SendMessageV2Header, SendRecordsHeader, SendRecordsReply, SendReply
from lockstep.protocol.ids import offset_message_id
from lockstep.protocol.names import RETRY_PREFIX, check_topic, dlq_topic, is_sendable_topic
from lockstep.protocol.native import kernels
from lockstep.protocol.properties import (
    CLUSTER,
    DELAY,
    LS_SEQ,
    OWN_PREFIX,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    REASON,
    SENT_PROPERTIES_BYTES_MAX,
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
from lockstep.protocol.queue import LayoutVersion, TopicLayout
from lockstep.protocol.record import NO_HOST, RecordView, encode_record, host_address, pack_host, record_bounds
from lockstep.protocol.sequence import CRC_AT, STAMP_HEAD, FrameSequence, frame_crc
from lockstep.runtime.dispatch import handles
from lockstep.runtime.host import Host
from lockstep.runtime.limits import RECORDS_BYTES_MAX
from lockstep.runtime.request import HandlerResult, PendingResponse, Request, RetryLaterError, Until

Body = bytes | bytearray | memoryview

UNTIL: Mapping[bool | None, Until] = {None: "confirmed", True: "synced", False: "written"}
"""Header field `durable` → how far the log must be before the response is sent."""

UNCONFIRMED_MAX = 100_000
"""Responses that may wait for the disk: about 40 MB, fifty producers with the usual 2,000 in flight. One more send is refused with
SYSTEM_BUSY.
"""
BUSY_RETRY_MS = 200
HELD_RETRY_MS = 100

classic_send = partial(handles, classic=True, body_bytes_max=RECORDS_BYTES_MAX, header_bytes_max=HEADER_BYTES_MAX)
"""Marks a handler of a send by RocketMQ's clients, with the limits of SEND_RECORDS."""
BATCH_PROPERTIES_MAX = 1_024
"""Characters of the properties of a batch, which each of its messages gets. Java's have WAIT and UNIQ_KEY."""
TRANSACTION_BITS = 0xC
"""RocketMQ: MessageSysFlag.TRANSACTION_ROLLBACK_TYPE, the mask of a message's transaction state."""
KEPT_FOR_LATER = (REAL_TOPIC, REAL_QID, PGROUP)
"""Properties with which a broker keeps a message for later: where it belongs, and whose transaction it is."""

NOT_STORED = StoredFrame(-1, -1, 0)


@dataclass(slots=True)
class SendGate:
    """Whether the broker takes sends. It is closed while the broker stops."""

    closed_because: str | None = None

    def check(self) -> None:
        if self.closed_because is not None:
            raise ServiceNotAvailableError(f"{self.closed_because}: send to another broker, or again later")


class SendProcessor:
    """Decodes sends, checks them against the tables and appends them."""

    def __init__(
        self,
        host: Host,
        store: Store,
        topics: TopicTable,
        sequences: SequenceTable,
        creator: TopicProcessor,
        gate: SendGate,
        delays: DelayedDelivery,
        holds: WriteHolds,
        failed: FailedMessages,
        cluster: str,
        *,
        traced: bool = False,
    ) -> None:
        """`cluster`: the value of the property CLUSTER. `traced`: the broker has the topic for traces."""
        self._random = host.random
        self._clock = host.clock
        self._holds = holds
        self._store = store
        self._topics = topics
        self._sequences = sequences
        self._creator = creator
        self._gate = gate
        self._delays = delays
        self._failed = failed
        self._cluster = cluster
        self._traced = traced

    @property
    def store_host(self) -> str:
        """Return the host:port that records carry as store host."""
        return host_address(self._store.store_host)

    # ------------------------------------------------------------------------------------------------------------ SEND_RECORDS

    @handles(RequestCode.SEND_RECORDS, SendRecordsHeader, bytes, body_bytes_max=RECORDS_BYTES_MAX)
    def send_records(self, request: Request) -> HandlerResult:
        header: SendRecordsHeader = request.header
        if header.producer_id is not None:
            return self._send_in_sequence(request, header, header.producer_id)
        stale = self._stale(header)
        if stale is not None:
            return self._refuse_stale(request, stale)
        return PendingResponse(request.reply(self._reply(self._append(request, header))), UNTIL[header.durable])

    def _send_in_sequence(self, request: Request, header: SendRecordsHeader, producer_id: str) -> HandlerResult:
        scope = Scope(producer_id, header.partition, header.topic, header.queue_id)
        place = header.partition, header.producer_epoch, header.first_sequence, header.count
        frame = FrameSequence(producer_id, *place, header.first, header.crc, bool(header.given))
        now_ms = self._store.now_ms()
        verdict = self._sequences.check_frame(scope, frame, now_ms=now_ms)
        if verdict is not ACCEPT:
            return self._respond_again(request, verdict, UNTIL[header.durable])
        stale = self._stale(header) or self._closed(header)
        if stale is not None:
            return self._refuse_stale(request, stale)
        check_stamp(request.body, frame, self._sequences.crc_before(scope, frame, now_ms=now_ms))
        appended = self._append(request, header)
        try:
            self._sequences.record_frame(
                scope, frame, StoredFrame(appended.queue_offset, appended.physical_offset, appended.store_timestamp)
            )
        except Exception as error:  # re-raised
            # The frame is stored, but not recorded as stored: the sender's repeat would be stored a second time.
            self._store.writer.fail_inconsistent(error)
            raise
        return PendingResponse(request.reply(self._reply(appended)), UNTIL[header.durable])

    def _respond_again(self, request: Request, verdict: SequenceVerdict, until: Until) -> HandlerResult:
        """Respond to a repeat, or to a frame that is out of order."""
        place = verdict.stored or NOT_STORED
        reply = SendRecordsReply(*place, store_host=self._host_text(), next_sequence=verdict.next)
        return PendingResponse(request.reply(reply, code=verdict.code, remark=verdict.remark), until)

    def _stale(self, header: SendRecordsHeader) -> TopicLayout | None:
        """Return the layout in force if a keyed send used an older one. An unknown topic is checked later."""
        if header.layout_counter is None or header.layout_writer is None:
            return None
        layout = self._topics.find_layout(header.topic)
        stale = layout is not None and LayoutVersion(header.layout_counter, header.layout_writer) < layout.version
        return layout if stale else None

    def _closed(self, header: SendRecordsHeader) -> TopicLayout | None:
        """Return the layout in force if an unkeyed send names a queue that it has not, or that is closed to writers now.

        SYSTEM_ERROR, the response to frames without a sequence, would not say whether the frame is stored: the producer would send it
        elsewhere only after half its deadline, and count it as a possible duplicate.
        """
        if header.layout_counter is not None or self._topics.is_writable(header.topic, header.queue_id):
            return None
        return self._topics.find_layout(header.topic)

    def _refuse_stale(self, request: Request, layout: TopicLayout) -> HandlerResult:
        version = layout.version
        reply = SendRecordsReply(*NOT_STORED, layout_counter=version.counter, layout_writer=version.writer)
        remark = f"topic {layout.topic} has layout {version.counter}: refresh the route and choose the queue again"
        return PendingResponse(request.reply(reply, code=ResponseCode.LAYOUT_STALE, remark=remark))

    def _append(self, request: Request, header: SendRecordsHeader) -> Appended:
        if header.count < 1:
            raise MessageIllegalError(f"a frame of {header.count} records: expected 1 or more")
        sequenced = header.producer_id is not None
        return self._store_frame(request, header.topic, header.queue_id, request.body, header.count, sequenced=sequenced)

    def _reply(self, appended: Appended) -> SendRecordsReply:
        return SendRecordsReply(appended.queue_offset, appended.physical_offset, appended.store_timestamp, self._host_text())

    # ------------------------------------------------------------------------------------------------------------ SEND_MESSAGE

    @classic_send(RequestCode.SEND_MESSAGE, SendMessageHeader, bytes)
    def send_message(self, request: Request) -> HandlerResult:
        """Take RocketMQ's single send: its record is made here, and then stored like any frame."""
        return self._send(request, request.header)

    @classic_send(RequestCode.SEND_MESSAGE_V2, SendMessageV2Header, bytes)
    def send_message_v2(self, request: Request) -> HandlerResult:
        header: SendMessageV2Header = request.header
        return self._send(request, header.long_form())

    @classic_send(RequestCode.SEND_BATCH_MESSAGE, SendMessageV2Header, bytes)
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
        layout = self._creator.find_or_create(header.topic, header.default_topic_queue_nums, header.queue_id)
        is_new = layout is not before
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = self._random.below(max(1, self._topics.own_write_count(layout)))
        if header.batch and not request.is_native:
            result = self._send_messages(request, header, queue_id)
            return self._creator.respond_when_known(request, result) if is_new else result
        record = encode_message(header, queue_id, request.body, self._cluster_for(request))
        level = delay_level(header.properties) if header.delay_ms is None else self._delays.find_delay_level(header.delay_ms)
        if level > 0:
            self._check_room(header.topic, queue_id)
            appended = self._delays.append(self._copy_of(request, record), level)
        else:
            appended = self._store_frame(request, header.topic, queue_id, record, 1)
        reply = self._send_reply(request, header, queue_id, appended, (0,))
        result = PendingResponse(request.reply(reply), UNTIL[requested_durability(header)])
        return self._creator.respond_when_known(request, result) if is_new else result

    def _check_supported(self, request: Request, header: SendMessageHeader, *, retry: bool) -> None:
        """Raise MessageIllegalError for what the broker can't do with a message, and for what only a broker may set. It is refused even if
        the message names a delay level as well. `retry`: whether the send has anything that only a retry may have."""
        if TIMER_PREFIX in header.properties:
            name = next((each for each in split_properties(header.properties) if each.startswith(TIMER_PREFIX)), None)
            if name is not None:
                raise MessageIllegalError(f"property {name}: only delay levels are supported, choose one of {self._delays.levels}")
        if header.sys_flag & TRANSACTION_BITS or has_property(header.properties, TRAN_MSG):
            raise MessageIllegalError("transactions are not supported: send the message without one")
        if retry and request.is_native:
            raise MessageIllegalError(f"reconsume times and the properties {', '.join(MARKS)} are set by the broker: leave them out")
        if not retry:  # clients repeat what the message had that they consumed
            for name in KEPT_FOR_LATER:
                if has_property(header.properties, name):
                    raise MessageIllegalError(f"property {name} is set by the broker, for messages that it keeps for later: leave it out")
        if header.batch and not request.is_native and header.topic.startswith(RETRY_PREFIX):
            raise BrokerSystemError(f"a batch for {header.topic}: send messages to a topic of retries one by one")

    def _retry(self, request: Request, header: SendMessageHeader, group: str) -> HandlerResult:
        """Take a message that a client sends to the retries of its group: it is stored as if the client had sent it back."""
        self._check_load()
        used_up = retries_used_up(header, request.version)
        stored = as_stored(header)
        copy = self._copy_of(request, encode_message(stored, 0, request.body, self._cluster))
        if used_up:
            properties = {**copy.properties, REASON: exhausted_reason(stored.reconsume_times)}
            copy = replace(copy, topic=dlq_topic(group), properties=properties)
        is_new = self._failed.is_missing(copy.topic)
        appended = self._failed.store(group, copy, 0 if used_up else delay_level(header.properties))
        reply = self._send_reply(request, header, 0, appended, (0,))
        result = PendingResponse(request.reply(reply), UNTIL[requested_durability(header)])
        return self._creator.respond_when_known(request, result) if is_new else result

    def _copy_of(self, request: Request, record: bytes) -> MessageCopy:
        """Return a record that was sent as a message that the broker stores itself. Raise MessageIllegalError if copies would not fit."""
        size_max = self._store.sent_record_bytes_max
        if len(record) > size_max:
            raise MessageIllegalError(f"a record of {len(record)} bytes: at most {size_max}, so that copies fit")
        return replace(MessageCopy.of(RecordView(record)), born_host=born_host(request.endpoint.peer))

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
        self._check_room(header.topic, queue_id)
        single, records, size = replace(header, batch=False), list[bytes](), 0
        for flag, body, properties in read_batch(request.body):
            message = replace(single, flag=flag, properties=joined_properties(properties, header.properties))
            self._check_batched(request, message, len(records) + 1)
            records.append(encode_message(message, queue_id, body, self._cluster))
            size += len(records[-1])
            if size > RECORDS_BYTES_MAX:
                raise MessageIllegalError(f"the records of the batch have more than {RECORDS_BYTES_MAX} bytes: send fewer messages")
        if not records:
            raise MessageIllegalError("a batch without messages")
        appended = self._store_frame(request, header.topic, queue_id, b"".join(records), len(records))
        reply = self._send_reply(request, header, queue_id, appended, [0, *accumulate(map(len, records[:-1]))])
        return PendingResponse(request.reply(reply), UNTIL[requested_durability(header)])

    def _check_batched(self, request: Request, message: SendMessageHeader, number: int) -> None:
        """Raise MessageIllegalError, which names the message, for what a message of a batch can't be."""
        if delay_level(message.properties) > 0 or is_retry(message):
            raise MessageIllegalError(f"batch: message {number} is delayed or a retry: send it alone")
        self._check_supported(request, message, retry=False)

    def _send_reply(
        self, request: Request, header: SendMessageHeader, queue_id: int, appended: Appended, starts: Sequence[int]
    ) -> SendReply:
        """Return the response to a send. `starts`: where its messages begin within the frame."""
        host = self._host_text()
        ids = ",".join(offset_message_id(host, appended.physical_offset + start) for start in starts)
        if request.is_native:
            return SendReply(ids, queue_id, appended.queue_offset)
        # Clients read the `transactionId` from 5.0 on.
        unique = split_properties(header.properties).get(UNIQ_KEY) if request.version >= VERSION_5_0 else None
        return SendReply(ids, queue_id, appended.queue_offset, REGION, self._traced, unique)

    # ------------------------------------------------------------------------------------------------------------------ common

    def _store_frame(self, request: Request, topic: str, queue_id: int, frame: Body, count: int, *, sequenced: bool = False) -> Appended:
        """Append a frame; every send is stored by this."""
        self._check_room(topic, queue_id)
        host = born_host(request.endpoint.peer)
        return self._store.append_frame(topic, queue_id, _plain(frame), count, born_host=host, sequenced=sequenced)

    def _check_room(self, topic: str, queue_id: int) -> None:
        self._topics.check_writable(topic, queue_id)
        self._check_load()
        if self._holds and self._holds.holds(topic, self._clock.boot_ms()):
            raise RetryLaterError(f"the queues of topic {topic} are being moved", HELD_RETRY_MS)

    def _check_load(self) -> None:
        """Check that the broker takes sends now."""
        self._gate.check()
        if self._store.writer.waiting_count >= UNCONFIRMED_MAX:
            raise RetryLaterError(f"{UNCONFIRMED_MAX} responses wait for the disk", BUSY_RETRY_MS)

    def _host_text(self) -> str:
        """Return the host:port that records carry as store host."""
        return _host_text(self._store.store_host)


def check_stamp(body: Body, frame: FrameSequence, crc_before: int | None) -> None:
    """Check that the first record carries the sequence of the header, and that the CRC is right.

    Recovery has nothing but `__LS_SEQ`, and treats a frame with a wrong CRC as torn.
    """
    if kernels is not None and type(body) is bytes:
        place = frame.partition, frame.epoch, frame.first, frame.count
        if kernels.carries_sequence(body, frame.producer_id, *place, frame.flags, frame.crc, crc_before):
            return
    try:
        stamp = STAMP_HEAD + frame.encode().encode()
        _, properties_at, _ = record_bounds(body)
    except (LocalProtocolError, RemoteProtocolError) as error:
        raise MessageIllegalError(f"idempotent frame: {error}") from None
    if body[properties_at : properties_at + len(stamp)] != stamp:
        raise MessageIllegalError(
            f"the first record does not begin its properties with the header's {LS_SEQ}: {stamp[len(STAMP_HEAD) :].decode()}"
        )
    if crc_before is not None:
        found = frame_crc(crc_before, body, properties_at + len(STAMP_HEAD) + CRC_AT)
        if found != frame.crc:
            raise MessageIllegalError(f"the frame's running CRC is {frame.crc:08x}, its bytes after {crc_before:08x} give {found:08x}")


def encode_message(header: SendMessageHeader, queue_id: int, body: Body, cluster: str | None = None) -> bytes:
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
            sys_flag=header.sys_flag,
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


def delay_level(properties: str) -> int:
    """Return the delay level that a single send requests; 0 if none. Raise MessageIllegalError if it is not a number."""
    if DELAY not in properties:
        return 0
    level = split_properties(properties).get(DELAY, "0")
    if not level.isascii() or not level.isdecimal() or len(level) > 9:
        raise MessageIllegalError(f"property {DELAY} is {level[:40]!r}: expected the number of a delay level")
    return int(level)


@lru_cache(maxsize=4096)
def born_host(peer: str) -> bytes:
    """Return the sender's "ip:port" in its 8 stored bytes."""
    try:
        return pack_host(peer)
    except LocalProtocolError:
        return NO_HOST


@lru_cache(maxsize=8)
def _host_text(store_host: bytes) -> str:
    return host_address(store_host)


def _plain(frame: Body) -> bytes | bytearray:
    return bytes(frame) if isinstance(frame, memoryview) else frame
