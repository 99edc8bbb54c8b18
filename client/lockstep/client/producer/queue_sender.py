"""One queue of one producer: at most one frame in flight, everything else gathers behind it (wire.md: auto-batching, idempotent sends).

    IDLE      nothing waits                        --add--> a frame leaves at the end of the loop turn
    SENDING   a frame is written, unanswered       --stored--> its parcels end; the next frame leaves at once
    RETRYING  a frame has to be written again      the same bytes, the same sequence, when the link is up and the pause is over

What an answer means for the frame in flight:

    code                                   stored?   then
    0, 10, 11, 12, DUPLICATE               yes       done
    OUT_OF_SEQUENCE, STALE_EPOCH           no        the broker lost a suffix: epoch + 1, the same records as sequence 0
    LAYOUT_STALE                           no        wait for the higher layout, pick again
    MESSAGE_ILLEGAL, several parcels       no        each parcel alone, so that only the bad one fails
    retriable or route-refreshing codes    no *      unkeyed: another broker; else again after a pause
    other refusals                         no *      fail
    no answer (timed out, closed)          unknown   again; unkeyed: from half the deadline on another broker, counted

* unless an earlier write of the same frame went unanswered: then its outcome stays unknown.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstep.client.broker_link import BrokerLink
from lockstep.client.errors import Outcome, PrecedingSendFailed, QueueUnavailable, SendTimeout
from lockstep.client.producer.batcher import Batcher, Parcel
from lockstep.client.producer.config import ProducerConfig
from lockstep.client.producer.result import STATUS_OF_CODE, FrameAnswer, SendResult
from lockstep.client.producer.sequencer import SealedFrame, Sequencer
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import BrokerError, LayoutStale, MessageIllegal, OutOfSequence, RemoteProtocolError, StaleEpoch, broker_error
from lockstep.protocol.fields import from_plain
from lockstep.protocol.headers.send import SendRecordsReply
from lockstep.protocol.queue import LayoutVersion, MessageQueue
from lockstep.runtime.clock import Clock
from lockstep.runtime.endpoint import Endpoint
from lockstep.runtime.log import get_logger

if TYPE_CHECKING:
    from lockstep.client.producer.topic_sender import TopicSender

log = get_logger("lockstep.client.producer")

BUSY_PAUSE_MS = 50
"""Pause after a refusal, doubled by each further one."""
BUSY_PAUSE_MS_MAX = 1_000
LAYOUT_ASK_MS = 1_000
"""While a keyed send waits for a higher layout the route is asked for again this often."""


@dataclass(slots=True)
class _Frame:
    """A sealed frame and what has become of it so far."""

    parcels: list[Parcel]
    sealed: SealedFrame
    fields: dict[str, object]
    keyed: bool
    deadline_ms: int
    """That of its oldest message."""
    move_ms: int
    writes: int = 0
    unknown: bool = False
    """A write of it went unanswered: it may be stored."""
    endpoint: Endpoint | None = None
    answer: "asyncio.Future[Command] | None" = None
    """Pending while the frame is SENDING, None while it is RETRYING."""
    error: Exception | None = None
    """Why the last write of it did not do."""
    refusals: int = 0

    @property
    def outcome(self) -> Outcome:
        return Outcome.UNKNOWN if self.unknown else Outcome.NOT_STORED


class QueueSender:
    """Batcher, sequencer and the frame in flight of one queue."""

    __slots__ = (
        "_batcher",
        "_clock",
        "_config",
        "_flush_due",
        "_frame",
        "_keyed_blocked",
        "_loop",
        "_not_before_ms",
        "_oneway",
        "_sequencer",
        "_timer",
        "_topic",
        "link",
        "oneway_bytes",
        "queue",
        "stalled",
    )

    def __init__(self, topic: "TopicSender", queue: MessageQueue, *, producer_id: str, config: ProducerConfig, clock: Clock) -> None:
        self.queue = queue
        self.link: BrokerLink | None = None
        self.stalled = False
        """A frame is RETRYING here or the link is down: unkeyed sends go elsewhere if they can."""
        self._topic = topic
        self._config = config
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._batcher = Batcher(config.batch_bytes_max, config.batch_count_max)
        self._sequencer = Sequencer(producer_id)
        self._frame: _Frame | None = None
        self._flush_due = False
        self._not_before_ms = 0
        self._keyed_blocked: LayoutVersion | None = None
        """Keyed sends wait for a layout above this one."""
        self._oneway: list[tuple[bytes, LayoutVersion | None]] = []
        self.oneway_bytes = 0
        """One-way records of this loop turn."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def up(self) -> bool:
        return self.link is not None and self.link.up

    @property
    def busy(self) -> bool:
        """Something waits or is in flight."""
        return self._frame is not None or bool(self._batcher)

    # --------------------------------------------------------------------------------------------------------------- waiting

    def add(self, parcel: Parcel) -> None:
        """Let it wait here; its frame leaves at the end of this loop turn unless one is in flight."""
        parcel.sender = self
        self._batcher.add(parcel)
        if self._frame is None and not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def add_oneway(self, record: bytes, version: LayoutVersion | None) -> None:
        """Send without an answer, at the end of this loop turn: no sequence, no retry."""
        self._oneway.append((record, version))
        self.oneway_bytes += len(record)
        self._flush_soon()

    def withdraw(self, parcel: Parcel) -> bool:
        """Take back what is not written yet."""
        if not self._batcher.withdraw(parcel):
            return False
        self._topic.end([parcel])
        return True

    def take_older(self, version: LayoutVersion) -> list[Parcel]:
        """A higher layout is known: what waits and was picked from a lower one."""
        if self._keyed_blocked is not None and self._keyed_blocked < version:
            self._keyed_blocked = None
        return self._batcher.take_older(version)

    def take_all(self) -> list[Parcel]:
        """Everything that waits: the topic is gone."""
        return self._batcher.take_expired(1 << 62)

    def link_changed(self) -> None:
        """The link came up or went down."""
        self._set_stalled(not self.up or (self._frame is not None and self._frame.answer is None))
        self._pump()

    # --------------------------------------------------------------------------------------------------------------- writing

    def _flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self._oneway:
            self._write_oneway()
        if self._frame is None and self._batcher:
            self._pump()

    def _pump(self) -> None:
        """Do what can be done now; arm the timer where something waits for more than an answer."""
        frame = self._frame
        if frame is not None and frame.answer is not None:
            return
        now_ms = self._clock.monotonic_ms()
        if self.stalled:
            self._fail_expired(now_ms)
        if frame is not None and not self._may_retry(frame, now_ms):
            frame = self._frame
        link = self.link
        endpoint = None if link is None else link.endpoint
        if endpoint is None or endpoint.closed:
            self._set_stalled(True)
        elif now_ms >= self._not_before_ms:
            frame = self._frame or self._seal()
            if frame is not None:
                self._write(frame, endpoint, now_ms)
        self._arm(now_ms)

    def _seal(self) -> _Frame | None:
        while parcels := self._batcher.cut(keyed_blocked=self._keyed_blocked is not None):
            cancelled = [parcel for parcel in parcels if parcel.future.done()]
            if cancelled:
                self._topic.end(cancelled)
                parcels = [parcel for parcel in parcels if not parcel.future.done()]
                if not parcels:
                    continue
            return self._seal_parcels(parcels)
        return None

    def _seal_parcels(self, parcels: list[Parcel]) -> _Frame:
        if len(parcels) == 1:
            head = parcels[0]
            records, deadline_ms, move_ms = head.records, head.deadline_ms, head.move_ms
        else:
            head = parcels[0]
            records = [record for parcel in parcels for record in parcel.records]
            deadline_ms = min([parcel.deadline_ms for parcel in parcels])
            move_ms = min([parcel.move_ms for parcel in parcels])
        sealed = self._sequencer.seal(records)
        sequence = sealed.sequence
        fields: dict[str, object] = {
            "topic": self.queue.topic,
            "queueId": self.queue.queue_id,
            "count": sequence.count,
            "producerId": sequence.producer_id,
            "partition": sequence.partition,
            "producerEpoch": sequence.epoch,
            "firstSequence": sequence.first,
            "first": sequence.first_known,
            "crc": sequence.crc,
        }
        if head.version is not None:
            fields["layoutCounter"] = head.version.counter
            fields["layoutWriter"] = head.version.writer
        self._frame = frame = _Frame(parcels, sealed, fields, head.key is not None, deadline_ms, move_ms)
        return frame

    def _write(self, frame: _Frame, endpoint: Endpoint, now_ms: int) -> None:
        left_ms = (frame.deadline_ms if now_ms >= frame.move_ms else frame.move_ms) - now_ms
        timeout_ms = max(1, min(self._config.attempt_timeout_ms, left_ms))
        frame.writes += 1
        frame.endpoint = endpoint
        frame.answer = answer = endpoint.request(RequestCode.SEND_RECORDS, frame.fields, frame.sealed.body, timeout_ms=timeout_ms)
        answer.add_done_callback(self._answered)

    def _write_oneway(self) -> None:
        waiting, self._oneway = self._oneway, []
        self.oneway_bytes = 0
        endpoint = None if self.link is None else self.link.endpoint
        if endpoint is None:
            return
        while waiting:
            version = waiting[0][1]
            records = [record for record, its_version in waiting if its_version == version]
            waiting = [item for item in waiting if item[1] != version]
            fields: dict[str, object] = {"topic": self.queue.topic, "queueId": self.queue.queue_id, "count": len(records)}
            if version is not None:
                fields |= {"layoutCounter": version.counter, "layoutWriter": version.writer}
            endpoint.oneway(RequestCode.SEND_RECORDS, fields, b"".join(records))

    # -------------------------------------------------------------------------------------------------------------- answered

    def _answered(self, answer: "asyncio.Future[Command]") -> None:
        frame = self._frame
        if frame is None or frame.answer is not answer:
            return
        frame.answer = None
        error = answer.exception()
        if error is not None:
            frame.unknown = True
            frame.error = error if isinstance(error, Exception) else None
            self._retry()
            return
        response = answer.result()
        if response.code in STATUS_OF_CODE:
            self._stored(frame, response)
        else:
            self._refused(frame, broker_error(response.code, response.remark))

    def _stored(self, frame: _Frame, response: Command) -> None:
        try:
            reply = from_plain(SendRecordsReply, response.fields)
        except RemoteProtocolError as error:
            frame.unknown = True
            frame.error = error
            self._retry()
            return
        sizes = [len(record) for parcel in frame.parcels for record in parcel.records]
        sizes[0] += len(frame.sealed.body) - sum(sizes)
        status = STATUS_OF_CODE[response.code]
        answer = FrameAnswer(status, self.queue, reply.queue_offset, reply.physical_offset, reply.store_host, sizes)
        self._frame = None
        self._not_before_ms = 0
        if self.stalled:
            self._set_stalled(False)
        index = 0
        for parcel in frame.parcels:
            ids = parcel.message_ids
            if not parcel.future.done():
                if len(ids) == 1:
                    parcel.future.set_result([SendResult(answer, index, ids[0])])
                else:
                    parcel.future.set_result([SendResult(answer, place, id_) for place, id_ in enumerate(ids, index)])
            index += len(ids)
        self._topic.end(frame.parcels)
        if self._batcher:
            # Not before the end of the turn: those who were just answered may have more to send.
            self._flush_soon()

    def _refused(self, frame: _Frame, error: BrokerError) -> None:
        frame.error = error
        frame.refusals += 1
        if isinstance(error, OutOfSequence | StaleEpoch):
            # Nothing that this client did: the broker lost a suffix of the log, this frame's predecessors in it or the scope itself.
            log.warning("sequence.restarted", queue=str(self.queue), epoch=self._sequencer.epoch + 1, error=str(error))
            self._sequencer.give_up()
            self._seal_parcels(frame.parcels).refusals = frame.refusals
            if frame.refusals > 1:
                self._pause(frame)
            self._pump()
        elif isinstance(error, LayoutStale):
            self._unseal(frame)
            self._batcher.put_back(frame.parcels)
            self._keyed_blocked = frame.parcels[0].version
            self._topic.layout_stale(self)
            self._pump()
        elif isinstance(error, MessageIllegal) and len(frame.parcels) > 1 and not frame.unknown:
            self._unseal(frame)
            for parcel in frame.parcels:
                parcel.alone = True
            self._batcher.put_back(frame.parcels)
            self._pump()
        elif error.retriable or error.refresh_route:
            if error.refresh_route:
                self._topic.refresh_route()
            self._pause(frame)
            self._retry()
        else:
            self._fail(frame)
            self._pump()

    # ---------------------------------------------------------------------------------------------------- retry, move, fail

    def _pause(self, frame: _Frame) -> None:
        pause_ms = min(BUSY_PAUSE_MS << min(frame.refusals - 1, 10), BUSY_PAUSE_MS_MAX)
        self._not_before_ms = self._clock.monotonic_ms() + pause_ms

    def _retry(self) -> None:
        self._set_stalled(True)
        self._pump()

    def _may_retry(self, frame: _Frame, now_ms: int) -> bool:
        """False: the frame has been moved or failed instead."""
        if now_ms >= frame.deadline_ms:
            self._fail(frame)
            return False
        failed_here = frame.error is not None or not self.up
        if not frame.keyed and failed_here and (now_ms >= frame.move_ms or not frame.unknown) and self._topic.has_other(self):
            self._move(frame)
            return False
        return True

    def _move(self, frame: _Frame) -> None:
        """An unkeyed frame goes to another broker; if it may be stored here, that is counted."""
        self._unseal(frame)
        living = self._living(frame)
        if frame.unknown:
            count = sum([len(parcel.records) for parcel in living])
            self._topic.count_possible_duplicates(count)
            log.warning("frame.moved", queue=str(self.queue), possible_duplicates=count, error=str(frame.error))
        self._topic.move(living, self)

    def _fail(self, frame: _Frame) -> None:
        """The frame ends unacknowledged: its parcels fail, and what waits behind a keyed one with the same key."""
        self._unseal(frame)
        living = self._living(frame)
        log.warning("frame.failed", queue=str(self.queue), count=len(living), outcome=frame.outcome.value, error=str(frame.error))
        for parcel in living:
            parcel.future.set_exception(self._error_of(parcel, frame.outcome, frame.error))
        self._topic.end(living)
        self._fail_behind(frame.parcels)

    def _fail_expired(self, now_ms: int) -> None:
        """What waited here until its deadline was never written."""
        expired = self._batcher.take_expired(now_ms)
        cause = None if self._frame is None else self._frame.error
        for parcel in expired:
            if not parcel.future.done():
                parcel.future.set_exception(self._error_of(parcel, Outcome.NOT_STORED, cause))
        self._topic.end(expired)
        self._fail_behind(expired)

    def _fail_behind(self, failed: Iterable[Parcel]) -> None:
        keys = dict.fromkeys(parcel.key for parcel in failed if parcel.key is not None)
        if not keys:
            return
        behind = self._batcher.take_keys(keys)
        for parcel in behind:
            if not parcel.future.done():
                parcel.future.set_exception(PrecedingSendFailed(self.queue, parcel.key or None))
        self._topic.end(behind)
        self._topic.refuse_behind(self.queue, keys)

    def _error_of(self, parcel: Parcel, outcome: Outcome, cause: Exception | None) -> Exception:
        where = f"broker {self.queue.broker_name} {'is connected' if self.up else 'is not connected'}"
        why = f"not acknowledged before its deadline ({where}; last: {cause if cause is not None else 'nothing was written'})"
        error: Exception
        if isinstance(cause, BrokerError) and outcome is Outcome.NOT_STORED and not (parcel.key is not None and cause.retriable):
            error = broker_error(cause.wire_code, cause.remark)
        elif parcel.key is not None:
            error = QueueUnavailable(self.queue, outcome, why)
        else:
            error = SendTimeout(self.queue.topic, outcome, why)
        error.__cause__ = cause
        return error

    def _unseal(self, frame: _Frame) -> None:
        """The frame is not the one in flight any more; nothing that is still on its way may pass for the next one."""
        if frame.unknown:
            self._sequencer.give_up()
        else:
            self._sequencer.withdraw(frame.sealed)
        self._frame = None

    def _living(self, frame: _Frame) -> list[Parcel]:
        """The frame's parcels without those whose send was cancelled; these end here."""
        self._topic.end([parcel for parcel in frame.parcels if parcel.future.done()])
        return [parcel for parcel in frame.parcels if not parcel.future.done()]

    def _set_stalled(self, stalled: bool) -> None:
        if self.stalled != stalled:
            self.stalled = stalled
            self._topic.recount()
        if stalled and self._batcher.unkeyed and self._topic.has_live(self):
            self._topic.move(self._batcher.take_unkeyed(), self)

    # ----------------------------------------------------------------------------------------------------------------- timer

    def _arm(self, now_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        frame = self._frame
        if frame is not None and frame.answer is not None:
            return
        due = [] if frame is None else [frame.deadline_ms, frame.move_ms]
        deadline_ms = self._batcher.next_deadline_ms()
        if deadline_ms is not None:
            due.append(deadline_ms)
            if self._keyed_blocked is not None:
                due.append(now_ms + LAYOUT_ASK_MS)
        if due:
            due_ms = min([at_ms for at_ms in (*due, self._not_before_ms) if at_ms > now_ms], default=now_ms)
            self._timer = self._loop.call_later(max(1, due_ms - now_ms) / 1000, self._timed)

    def _timed(self) -> None:
        self._timer = None
        if self._keyed_blocked is not None:
            self._topic.refresh_route()
            self._fail_expired(self._clock.monotonic_ms())
        self._pump()

    def close(self) -> None:
        """Stop the timer; nothing waits here any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
