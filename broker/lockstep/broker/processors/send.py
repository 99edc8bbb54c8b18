"""SEND_RECORDS: checks a send of lockstep's clients and appends it.

The order of the checks is a rule (wire.md): the sequence first, so that a repeat gets its first response whatever else has changed; then
the layout, topic and queue; then whether the broker takes sends at all, and more of this user; then disk space and every record, by the
store. There is no await between the decoding of a send and its append. Every response waits until the log is confirmed up to its end, or as
`durable` requires: also that of a repeat, because the first one may not be durable yet, and a refusal that reports a layout. Only refusals
that depend on the request alone are sent at once.
"""

from collections.abc import Callable

from lockstep.broker.processors.producer_owners import ProducerOwners
from lockstep.broker.processors.sent_frames import UNTIL, SentFrames, host_text
from lockstep.broker.store import Appended
from lockstep.broker.store.log.waiting_records import ROOMS, Room
from lockstep.broker.tables.sequence_table import ACCEPT, Scope, SequenceTable, SequenceVerdict, StoredFrame
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.errors import LocalProtocolError, MessageIllegalError, RemoteProtocolError
from lockstep.protocol.headers.send import SendRecordsHeader, SendRecordsReply
from lockstep.protocol.messages.properties import LS_SEQ
from lockstep.protocol.messages.record import record_bounds
from lockstep.protocol.messages.rooms import half_properties, home_properties
from lockstep.protocol.messages.sequence import CRC_AT, STAMP_HEAD, FrameSequence, frame_crc
from lockstep.protocol.names import HALF_TOPIC, RETRY_PREFIX, TIMER_TOPIC, check_group
from lockstep.protocol.native import kernels
from lockstep.protocol.topics.queue import LayoutVersion, TopicLayout
from lockstep.runtime.limits import RECORDS_BYTES_MAX
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import PUB, on_topic
from lockstep.runtime.requests.request import HandlerResult, PendingResponse, Request, Until
from lockstep.runtime.security.authenticated_user import ANYBODY

NOT_STORED = StoredFrame(-1, -1, 0)


class SendProcessor:
    """Decodes frames of records, checks them against the tables and appends them."""

    def __init__(self, sequences: SequenceTable, frames: SentFrames, client_id: Callable[[int], str] = lambda _: "") -> None:
        """`client_id` returns that of a connection, "" if it is not known."""
        self._client_id = client_id
        self._sequences = sequences
        self._frames = frames
        self._store = frames.store
        self._topics = frames.topics
        self._owners = ProducerOwners(frames.quotas)

    @handles(RequestCode.SEND_RECORDS, SendRecordsHeader, bytes, needs=[on_topic(PUB)], body_bytes_max=RECORDS_BYTES_MAX)
    def send_records(self, request: Request) -> HandlerResult:
        header: SendRecordsHeader = request.header
        if header.producer_id is not None:
            return self._send_in_sequence(request, header, header.producer_id)
        stale = self._stale(header)
        if stale is not None:
            return self._refuse_stale(request, stale)
        return PendingResponse(request.reply(self._reply(self._append(request, header))), UNTIL[header.durable])

    def _send_in_sequence(self, request: Request, header: SendRecordsHeader, producer_id: str) -> HandlerResult:
        if request.user is not ANYBODY:
            self._owners.check(producer_id, request.user.name, self._store.now_ms())
        place = (header.topic, header.queue_id) if header.room is None else (header.room, 0)
        scope = Scope(producer_id, header.partition, *place)
        numbers = header.partition, header.producer_epoch, header.first_sequence, header.count
        frame = FrameSequence(producer_id, *numbers, header.first, header.crc, bool(header.given))
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
        reply = SendRecordsReply(*place, store_host=host_text(self._store.store_host), next_sequence=verdict.next)
        return PendingResponse(request.reply(reply, code=verdict.code, remark=verdict.remark), until)

    def _stale(self, header: SendRecordsHeader) -> TopicLayout | None:
        """Return the layout in force if a keyed send used an older one, or a send to a waiting room names another creation of the topic.
        An unknown topic is checked later."""
        if header.layout_counter is None and header.room is None:
            return None
        layout = self._topics.find_layout(header.topic)
        if header.room is not None and layout is not None and header.began != layout.began:
            return layout  # the topic was deleted, and created again, since the sender has seen it
        if header.layout_counter is None or header.layout_writer is None:
            return None
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
        if header.room is not None:
            room = self._room(request, header)
            return self._frames.append_waiting(request, header.topic, header.queue_id, header.room, room, header.count, sequenced=sequenced)
        return self._frames.append(request, header.topic, header.queue_id, request.body, header.count, sequenced=sequenced)

    def _room(self, request: Request, header: SendRecordsHeader) -> Room:
        """Return what the records of a frame for a waiting room have to comply with. Raise MessageIllegalError if it is none."""
        home = home_properties(header.topic, header.queue_id, header.began or 0)
        if header.room == TIMER_TOPIC:
            return Room(home, self._frames.limits.wait_max_ms)
        if header.room != HALF_TOPIC:
            raise MessageIllegalError(f"{header.room!r} is no room for messages that wait: expected {', '.join(sorted(ROOMS))}")
        if header.topic.startswith(RETRY_PREFIX):
            raise MessageIllegalError("a message of a transaction goes to no topic of retries")
        try:
            check_group(header.producer_group or "")
        except LocalProtocolError as error:
            raise MessageIllegalError(f"half messages name the producer group of their sender: {error}") from None
        return Room(home + half_properties(header.producer_group or "", self._client_id(request.endpoint.id)), None)

    def _reply(self, appended: Appended) -> SendRecordsReply:
        return SendRecordsReply(
            appended.queue_offset, appended.physical_offset, appended.store_timestamp, host_text(self._store.store_host)
        )


def check_stamp(body: bytes | bytearray | memoryview, frame: FrameSequence, crc_before: int | None) -> None:
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
