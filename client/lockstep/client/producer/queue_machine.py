"""One queue of one producer: at most one frame in flight, everything else gathers behind it (wire.md: auto-batching, idempotent sends).

    IDLE      nothing waits                        --add--> a frame leaves at the end of the loop turn
    SENDING   a frame is written, unanswered       --stored--> its parcels end; the next frame leaves at once
                                                   --unanswered for attempt_timeout_ms, closed, refused for now--> RETRYING
    RETRYING  a frame has to be written again      the same bytes, the same sequence, when the link is up and the pause is over

What an answer means for the frame in flight:

    code                                   stored?   then
    0, 10, 11, 12, DUPLICATE               yes       done
    OUT_OF_SEQUENCE, STALE_EPOCH           no        the broker lost a suffix: epoch + 1, the same records as sequence 0
    LAYOUT_STALE                           no        wait for the higher layout, pick again; every 5 s the same again
    MESSAGE_ILLEGAL, several sends or keys no        each alone, so that only the bad one fails
    retriable or route-refreshing codes    no *      unkeyed: another broker; else again after a pause
    other refusals                         no *      fail
    no answer (timed out, closed)          unknown   again; unkeyed: from half the deadline on another broker, counted

* unless an earlier write of the same frame went unanswered: then its outcome stays unknown.

A parcel of which half the time has passed is written only if the answer can be expected before its deadline; else it fails as not
stored. A parcel whose deadline comes while its frame is unanswered fails as unknown; the frame goes on for its other parcels.

With a given producer id OUT_OF_SEQUENCE and STALE_EPOCH fail the frame, and a frame that failed ends the queue for this producer:
whoever gave the id begins again, from sequence 0 and with the same bytes.
"""

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from lockstep.client.broker_link import BrokerLink
from lockstep.client.errors import Outcome
from lockstep.client.producer.backoff import QueueBackoff
from lockstep.client.producer.config import ProducerConfig
from lockstep.client.producer.endings import Endings, Stage
from lockstep.client.producer.in_flight_frame import InFlightFrame, seal_frame
from lockstep.client.producer.oneway import OnewayRecords
from lockstep.client.producer.pending import PendingSend
from lockstep.client.producer.result import STATUS_OF_CODE, FrameAnswer
from lockstep.client.producer.send_buffer import SendBuffer
from lockstep.client.producer.sequencer import Sequencer
from lockstep.client.producer.write_scheduler import WriteScheduler
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import (
    BrokerError,
    BrokerSystemError,
    LayoutStaleError,
    MessageIllegalError,
    OutOfSequenceError,
    RemoteProtocolError,
    RequestTimeoutError,
    StaleEpochError,
    StateError,
    broker_error,
)
from lockstep.protocol.queue import LayoutVersion, MessageQueue
from lockstep.runtime.alarm import Alarm
from lockstep.runtime.clock import Clock
from lockstep.runtime.dispatch import RETRY_AFTER_FIELD
from lockstep.runtime.endpoint import Endpoint
from lockstep.runtime.limits import DEFAULT_LIMITS
from lockstep.runtime.log import get_logger

if TYPE_CHECKING:
    from lockstep.client.producer.topic_machine import BrokerState, TopicMachine

log = get_logger("lockstep.client.producer")

KEYED_AGAIN_MS = 5_000
"""A keyed send that waits for a higher layout is tried with its own again after this: its broker may have lost the higher one."""

SENDS_PER_TURN = 256
"""Of those that fail or move to another queue at once: the others have the next loop turn."""


class KeyedWait(NamedTuple):
    """Keyed sends wait for a layout above this one, or until then."""

    above: LayoutVersion
    until_ms: int
    error: LayoutStaleError
    """Why."""


class QueueMachine:
    """SendBuffer, sequencer and the frame in flight of one queue."""

    __slots__ = (
        "_alarm",
        "_batcher",
        "_clock",
        "_config",
        "_connects",
        "_departures",
        "_due_ms",
        "_endings",
        "_frame",
        "_keyed_blocked",
        "_last_error",
        "_loop",
        "_lost",
        "_oneway",
        "_patience",
        "_rang",
        "_sequencer",
        "_side",
        "_topic",
        "_woken",
        "any_asks",
        "number",
        "queue",
        "stalled",
    )

    def __init__(
        self,
        topic: "TopicMachine",
        queue: MessageQueue,
        side: "BrokerState",
        *,
        sequencer: Sequencer,
        config: ProducerConfig,
        clock: Clock,
        departures: WriteScheduler,
    ) -> None:
        self.queue = queue
        self.number: int | None = None
        """Its number among the writable queues of the layout; None: the layout no longer has it."""
        self.stalled = False
        """A frame is RETRYING here, or the link was down when one was to be written: unkeyed sends go elsewhere if they can."""
        self.any_asks = False
        """There was a send that asks for more or less than the broker's flush."""
        self._topic = topic
        self._side = side
        self._connects = side.connects
        """As many connects of the broker have been noticed here."""
        self._config = config
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._batcher = SendBuffer(config.batch_bytes_max, config.batch_count_max)
        self._endings = Endings(topic, queue, self._batcher)
        self._sequencer = sequencer
        self._frame: InFlightFrame | None = None
        self._departures = departures
        self._patience = QueueBackoff()
        self._keyed_blocked: KeyedWait | None = None
        """What keyed sends wait for."""
        self._last_error: Exception | None = None
        """Why the last frame was refused; None once one was stored."""
        self._oneway = OnewayRecords()
        self._alarm = Alarm(self._loop, self._timed, DEFAULT_LIMITS.late_ms)
        self._due_ms = 0
        """When the alarm rings."""
        self._rang = False
        """The alarm has rung, and what is due has not been done."""
        self._woken = False
        """There may be something to do beside sending what waits."""
        self._lost: list[tuple[InFlightFrame, Exception]] = []
        """Writes that will not be answered, and why."""

    @property
    def link(self) -> BrokerLink | None:
        return self._side.link

    @property
    def up(self) -> bool:
        link = self._side.link
        return link is not None and link.up

    @property
    def oneway_bytes(self) -> int:
        """One-way records of this loop turn."""
        return self._oneway.byte_count

    # --------------------------------------------------------------------------------------------------------------- waiting

    def in_time(self, begun_ms: int, deadline_ms: int) -> bool:
        """Whether a send that comes now can be expected to be answered before its deadline, or half its time has not passed yet.

        Without this check sends that will fail when their frame is sealed would take the places of others meanwhile.
        """
        now_ms = self._clock.monotonic_ms()
        if now_ms < (begun_ms + deadline_ms) // 2:
            return True
        times, frame = self._side.answer_times, self._frame
        wait_ms = 0 if frame is None else max(0, times.slowest_ms - (now_ms - frame.begun_ms))
        return now_ms + wait_ms + times.expected_ms <= deadline_ms

    def add(self, parcel: PendingSend, *, ahead: bool = False) -> None:
        """Let it wait here; its frame leaves at the end of this loop turn unless one is in flight.

        `ahead`: before all that waits here. It was refused, and what waits was sent behind it.
        """
        parcel.sender = self
        if parcel.durable is not None:
            self.any_asks = True
        if ahead:
            self._batcher.put_back([parcel])
        else:
            self._batcher.add(parcel)
        if self.stalled and not parcel.keys:
            self._relieve_soon()
        if self._frame is None:
            self._departures.add(self)
        elif parcel.deadline_ms < self._due_ms:
            self.wake()

    def add_oneway(self, record: bytes, version: LayoutVersion | None) -> None:
        """Send without an answer, at the end of this loop turn: no sequence, no retry."""
        self._oneway.add(record, version)
        self._departures.add(self)

    def withdraw(self, parcel: PendingSend) -> bool:
        """Take back what is not written yet."""
        if not self._batcher.withdraw(parcel):
            return False
        self._topic.end([parcel])
        return True

    def end_given(self) -> None:
        """A frame of a given id failed unsent: none behind it may take its place, so this queue is over for the producer."""
        if self._sequencer.given:
            self._sequencer.give_up()

    def take_older(self, version: LayoutVersion) -> list[PendingSend]:
        """A higher layout is known: what waits and was picked from a lower one."""
        if self._keyed_blocked is not None and self._keyed_blocked.above < version:
            self._keyed_blocked = None
        return self._batcher.take_older(version)

    def take_all(self) -> list[PendingSend]:
        """Everything that waits, a refused frame included: the topic is gone."""
        frame = self._frame
        refused = []
        if frame is not None and frame.certain:
            self._unseal(frame)
            refused = frame.parcels
        return refused + self._batcher.take_all()

    def wake(self) -> None:
        """Do what can be done now, at the end of this loop turn: something has changed for many queues at once."""
        self._woken = True
        self._departures.add(self)

    # --------------------------------------------------------------------------------------------------------------- writing

    def depart(self) -> None:
        """The end of the loop turn: what waits leaves, if it may."""
        if self._oneway:
            self._oneway.write(self.queue, self._side.endpoint)
        if self._lost:
            lost, self._lost = self._lost, []
            for frame, error in lost:
                self._unanswered(frame, error)
        woken, self._woken = self._woken, False
        if woken or (
            self._frame is None and self._batcher and (self.up or not self._alarm.armed or self._batcher.earliest_ms < self._due_ms)
        ):
            self._pump()

    def _pump(self) -> None:
        """Do what can be done now; arm the timer where something waits for more than an answer."""
        now_ms = self._clock.monotonic_ms()
        if self._connects != self._side.connects:
            self._connects = self._side.connects
            self._patience.reconnected()
            self._set_stalled(self._frame is not None and self._frame.retry)
        if self._rang:
            self._check_overdue(now_ms)
        if self._frame is not None and self._frame.earliest_ms <= now_ms < self._frame.deadline_ms:
            self._expire(self._frame, now_ms)
        deletion = self._topic.deletion
        if deletion is not None and self._batcher:
            self._endings.fail(self._batcher.take_all(), Outcome.NOT_STORED, deletion, connected=self.up)
        self._fail_expired(now_ms)
        if self.stalled and self._frame is None and self.up and now_ms >= self._patience.trusted_ms:
            self._set_stalled(False)
        self._relieve()
        if self._frame is None or self._frame.retry:
            self._write_next(now_ms)
        self._arm(now_ms)

    def _write_next(self, now_ms: int) -> None:
        """No frame waits for its answer: write the refused one again, or the next one, if that may be."""
        frame = self._frame
        if self._keyed_blocked is not None and now_ms >= self._keyed_blocked.until_ms:
            self._keyed_blocked = None
        if frame is not None:
            self._may_retry(frame, now_ms)
        endpoint = self._side.endpoint
        if endpoint is None:
            self._set_stalled(True)
        elif now_ms >= self._patience.not_before_ms:
            frame = self._frame or self._seal(now_ms)
            if frame is not None:
                self._write(frame, endpoint, now_ms)

    def _seal(self, now_ms: int) -> InFlightFrame | None:
        if self._sequencer.over:
            self._endings.fail(self._batcher.take_all(), Outcome.NOT_STORED, _over(self._sequencer), connected=self.up)
        answered_ms = now_ms + self._side.answer_times.expected_ms
        failed_count = 0
        while failed_count < SENDS_PER_TURN:
            parcels = self._batcher.cut(keyed_blocked=self._keyed_blocked is not None)
            if not parcels:
                return None
            late = [parcel for parcel in parcels if parcel.deadline_ms < answered_ms and parcel.half_ms <= now_ms]
            if late or [parcel for parcel in parcels if parcel.future.done()]:
                parcels, late = self._sort_out(parcels, frozenset(late))
                if late:
                    failed_count += len(late)
                    self.end_given()
                    self._endings.fail(late, Outcome.NOT_STORED, self._too_late(), connected=self.up)
            if parcels:
                self._frame = seal_frame(self, self._sequencer, parcels)
                return self._frame
        self.wake()
        return None

    def _sort_out(self, parcels: list[PendingSend], late: frozenset[PendingSend]) -> tuple[list[PendingSend], list[PendingSend]]:
        """What leaves of these, and what fails. Of keyed ones all up to a change from one to the other: the rest goes back."""
        self._topic.end([parcel for parcel in parcels if parcel.future.done()])
        living = [parcel for parcel in parcels if not parcel.future.done()]
        if not living or not living[0].keys:
            return [parcel for parcel in living if parcel not in late], [parcel for parcel in living if parcel in late]
        fails = living[0] in late
        count = next((at for at, parcel in enumerate(living) if (parcel in late) is not fails), len(living))
        self._batcher.put_back(living[count:])
        return ([], living[:count]) if fails else (living[:count], [])

    def _too_late(self) -> RequestTimeoutError:
        answer_ms = self._side.answer_times.expected_ms
        return RequestTimeoutError(f"not written: less than {answer_ms} ms were left, twice the slowest recent answer of the broker")

    def _write(self, frame: InFlightFrame, endpoint: Endpoint, now_ms: int) -> None:
        if not frame.begun_ms:
            frame.begin(now_ms)
        limit_ms = frame.deadline_ms if frame.keyed or now_ms >= frame.move_ms else min(frame.move_ms, frame.deadline_ms)
        frame.due_ms = min(now_ms + self._config.attempt_timeout_ms, limit_ms)
        frame.retry = False
        if endpoint is frame.endpoint and frame.unanswered and endpoint.backlog_bytes:
            # The peer does not read. What was written is still on its way; more of the same would only pile up here.
            return
        frame.endpoint = endpoint
        timeout_ms = max(1, frame.deadline_ms - now_ms)
        frame.unanswered += 1
        endpoint.ask(RequestCode.SEND_RECORDS, frame.fields, frame.sealed.body, timeout_ms=timeout_ms, answer=frame)

    # -------------------------------------------------------------------------------------------------------------- answered

    def lost(self, frame: InFlightFrame, error: Exception) -> None:
        """A write of the frame will not be answered. Noticed at the end of the loop turn: the connection may be in the midst of closing."""
        self._lost.append((frame, error))
        self._departures.add(self)

    def _unanswered(self, frame: InFlightFrame, error: Exception) -> None:
        frame.unanswered -= 1
        if frame is self._frame:
            frame.unknown = True
            frame.error = error
            if not frame.unanswered:
                self._retry(frame)

    def answered(self, frame: InFlightFrame, response: Command) -> None:
        """A write of the frame was answered: a late answer to an early one is as good as any."""
        frame.unanswered -= 1
        if frame is not self._frame:
            return
        if response.code in STATUS_OF_CODE:
            self._stored(frame, response)
        else:
            self._refused(frame, broker_error(response.code, response.remark), response)

    def _stored(self, frame: InFlightFrame, response: Command) -> None:
        get = response.fields.get
        offset, physical_offset, host = get("queueOffset"), get("physicalOffset"), get("storeHost", "")
        if type(offset) is not int or type(physical_offset) is not int or type(host) is not str:
            frame.unknown = True
            frame.error = RemoteProtocolError(f"broker {self.queue.broker_name} answered a send without saying where it is stored")
            self._retry(frame)
            return
        answer = FrameAnswer(STATUS_OF_CODE[response.code], self.queue, offset, physical_offset, host, frame.sizes)
        self._frame = self._last_error = None
        now_ms = self._clock.monotonic_ms()
        self._patience.stored()
        if frame.error is None:
            self._side.answer_times.took(now_ms - frame.begun_ms)
        if self._topic.latencies is not None:
            self._topic.latencies.answered(self.queue.broker_name, now_ms - frame.begun_ms, now_ms)
        if self.stalled:
            self._set_stalled(not self.up)
        frame.stored(answer)
        self._topic.end(frame.parcels)
        self._departures.add_behind(self)

    def _refused(self, frame: InFlightFrame, error: BrokerError, response: Command) -> None:
        frame.error = self._last_error = error
        self._patience.refusals += 1
        if isinstance(error, OutOfSequenceError | StaleEpochError) and not self._sequencer.given:
            # Nothing that this client did: the broker lost a suffix of the log, this frame's predecessors in it or the scope itself.
            log.warning("sequence.restarted", queue=str(self.queue), epoch=self._sequencer.epoch + 1, error=str(error))
            self._sequencer.give_up()
            self._frame = seal_frame(self, self._sequencer, frame.parcels)
            if self._patience.refusals > 1:
                self._frame.error = error
                self._pause(response)
            self._pump()
        elif isinstance(error, LayoutStaleError) and (version := frame.parcels[0].version) is not None:
            # The sequence is checked before the layout, so the frame is certainly not stored, even after an unanswered write.
            self._unseal(frame)
            self._batcher.put_back(frame.parcels)
            self._keyed_blocked = KeyedWait(version, self._clock.monotonic_ms() + KEYED_AGAIN_MS, error)
            self._topic.layout_stale(self, version)
            self._pump()
        elif isinstance(error, MessageIllegalError) and not frame.unknown and len(singles := frame.singles()) > 1:
            self._unseal(frame)
            self._patience.refusals = 0
            for parcel in singles:
                parcel.alone = True
            self._batcher.put_back(singles)
            self._pump()
        elif error.retriable or error.refresh_route:
            if error.refresh_route:
                self._topic.refresh_route()
            # A handler that failed says nothing of what it had done by then.
            frame.unknown = frame.unknown or isinstance(error, BrokerSystemError)
            self._pause(response)
            self._retry(frame)
        else:
            self._fail(frame)
            self._pump()

    # ---------------------------------------------------------------------------------------------------- retry, move, fail

    def _pause(self, response: Command) -> None:
        self._patience.refused(response.fields.get(RETRY_AFTER_FIELD), self._clock.monotonic_ms())

    def _retry(self, frame: InFlightFrame) -> None:
        frame.retry = True
        self._set_stalled(True)
        self._pump()

    def _may_retry(self, frame: InFlightFrame, now_ms: int) -> None:
        """Unless it may be written again the frame is moved or failed."""
        deletion = self._topic.deletion
        if deletion is not None and not frame.unanswered:
            frame.error = deletion
            self._fail(frame)
            return
        if now_ms >= frame.deadline_ms:
            self._fail(frame)
            return
        failed_here = frame.error is not None or not self.up
        if not frame.keyed and failed_here and (now_ms >= frame.move_ms or not frame.unknown) and self._topic.has_other(self):
            self._move(frame)

    def _move(self, frame: InFlightFrame) -> None:
        """An unkeyed frame goes to another broker."""
        self._unseal(frame)
        self._strike()
        self._endings.move(frame, self)

    def _fail(self, frame: InFlightFrame) -> None:
        """The frame ends unacknowledged: its parcels fail, and what waits behind a keyed one with the same key."""
        self._unseal(frame)
        if self._sequencer.given:
            self._sequencer.give_up()
        if frame.unknown:
            self._strike()
        self._patience.refusals = 0
        log.warning("frame.failed", queue=str(self.queue), count=frame.sealed.count, outcome=frame.outcome.value, error=str(frame.error))
        self._endings.fail(frame.parcels, frame.outcome, frame.error, connected=self.up)

    def _expire(self, frame: InFlightFrame, now_ms: int) -> None:
        """The deadline of a parcel of the frame has come, and not that of all."""
        if frame.certain:
            self._unseal(frame)
            self._batcher.put_back(frame.parcels)  # those whose deadline has come fail there
            return
        error = frame.error or RequestTimeoutError(f"broker {self.queue.broker_name}: no answer within {now_ms - frame.begun_ms} ms")
        self._endings.fail(frame.take_expired(now_ms), Outcome.UNKNOWN, error, connected=self.up, stage=Stage.IN_FLIGHT)

    def _fail_expired(self, now_ms: int) -> None:
        """What waited here until its deadline was never written."""
        expired = self._batcher.take_expired(now_ms, SENDS_PER_TURN)
        if expired:
            self.end_given()
            waits = self._frame or self._keyed_blocked
            cause = self._last_error if waits is None else waits.error
            self._endings.fail(expired, Outcome.NOT_STORED, cause, connected=self.up, stage=Stage.WAITING)
            if self._batcher.earliest_ms <= now_ms:
                self.wake()

    def _strike(self) -> None:
        now_ms = self._clock.monotonic_ms()
        self._patience.struck(now_ms)
        if self._topic.latencies is not None:
            self._topic.latencies.failed(self.queue.broker_name, now_ms)

    def _unseal(self, frame: InFlightFrame) -> None:
        """The frame is not the one in flight any more; nothing that is still on its way may pass for the next one."""
        if frame.unknown:
            self._sequencer.give_up()
        else:
            self._sequencer.withdraw(frame.sealed)
        self._frame = None

    def _set_stalled(self, stalled: bool) -> None:
        if self.stalled != stalled:
            self.stalled = stalled
            self._topic.stalled_changed(self)
        self._relieve()

    def _relieve(self) -> None:
        """While this queue is stalled its waiting unkeyed sends go on elsewhere, if there is such a place."""
        if self.stalled and self._batcher.unkeyed:
            if self._topic.any_live:
                self._topic.move(self._batcher.take_unkeyed(SENDS_PER_TURN), self)
            if self._batcher.unkeyed:
                self._relieve_soon()

    def _relieve_soon(self) -> None:
        """In another loop turn, or as soon as there is another place."""
        if self._topic.any_live:
            self.wake()
        else:
            self._topic.strand(self)

    # ----------------------------------------------------------------------------------------------------------------- timer

    def _arm(self, now_ms: int) -> None:
        """Ring when something is due, or earlier: then this is called again."""
        frame = self._frame
        due = [self._batcher.earliest_ms] if self._batcher else []
        if frame is not None:
            due.append(frame.earliest_ms)
        if frame is not None and not frame.retry:
            due.append(frame.due_ms)
        else:
            if frame is not None:
                due += [frame.deadline_ms, frame.move_ms]
            elif self.stalled and self.up:
                due.append(self._patience.trusted_ms)
            if due:
                due.append(self._patience.not_before_ms)
                if self._keyed_blocked is not None:
                    due.append(self._keyed_blocked.until_ms)
        if due:
            due_ms = min([at_ms for at_ms in due if at_ms > now_ms], default=now_ms + 1)
            if not self._alarm.armed or due_ms < self._due_ms:
                self._due_ms = due_ms
                self._alarm.set(self._loop.time() + (due_ms - now_ms) / 1000)

    def _timed(self) -> None:
        self._rang = True
        self.wake()

    def _check_overdue(self, now_ms: int) -> None:
        """The alarm has rung: the frame in flight may have been unanswered for too long."""
        self._rang = False
        frame = self._frame
        if frame is not None and not frame.retry and now_ms >= frame.due_ms:
            took_ms = min(now_ms - frame.begun_ms, self._config.attempt_timeout_ms)
            self._side.answer_times.took(took_ms)
            frame.unknown = True
            frame.error = RequestTimeoutError(f"broker {self.queue.broker_name}: no answer within {took_ms} ms")
            frame.retry = True
            self._set_stalled(True)

    def close(self) -> None:
        """Nobody waits for anything here any more."""
        self._frame = None
        self._lost.clear()
        self._batcher.take_all()
        self._alarm.cancel()


def _over(sequencer: Sequencer) -> StateError:
    return StateError(
        f"a frame of producer id {sequencer.producer_id}, epoch {sequencer.epoch}, has failed here: begin again from its first"
    )
