"""One queue of one producer, as a state machine: no event loop, no clock, no connection, no log (docs/wire.md, idempotent sends).

At most one frame is in flight; other sends gather until it has ended.

    IDLE      nothing is pending                   --add--> a frame is written at the end of the loop turn
    SENDING   a frame is written, no response yet  --stored--> its sends end; the next frame is written
                                                   --no response for attempt_timeout_ms, closed, refused temporarily--> RETRYING
    RETRYING  a frame has to be written again      the same bytes, the same sequence, when the link is up and the pause is over

The effect of a response on the frame in flight:

    code                                   stored?   then
    0, 10, 11, 12, DUPLICATE               yes       done
    OUT_OF_SEQUENCE, STALE_EPOCH           no        the broker lost a suffix: epoch + 1, the same records as sequence 0
    LAYOUT_STALE of a picked queue         no        wait for the higher layout and pick again; retry every 5 s
    MESSAGE_ILLEGAL, several sends or keys no        each alone, so that only the invalid one fails
    retriable or route-refreshing codes    no *      unkeyed: another broker; otherwise retry after a pause
    other refusals                         no *      fail
    no response (timed out, closed)        unknown   retry; unkeyed: from half the deadline on another broker, counted

* unless an earlier write of the same frame got no response: then its outcome remains unknown.

A send of which half the time has passed is written only if the response can be expected before its deadline; otherwise it fails as not
stored. A send whose deadline comes while its frame has no response fails as unknown; the frame continues for the other sends in it.

With a given producer id OUT_OF_SEQUENCE and STALE_EPOCH fail the frame, and a frame that failed ends the queue for this producer: the owner
of the id begins again, from sequence 0 and with the same bytes.

Inputs are methods. What the shell is to do is appended to `effects`, which it takes after each input. Then it calls `TopicMachine.run` at
`run_at_ms`, or at the end of this loop turn if that is 0.
"""

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple, Protocol

from lockstep.client.errors import Outcome
from lockstep.client.producer.config import ProducerConfig
from lockstep.client.producer.machines.backoff import QueueBackoff
from lockstep.client.producer.machines.broker_state import BrokerResponses
from lockstep.client.producer.machines.effects import (
    Complete,
    Fail,
    LogWarning,
    PossibleDuplicates,
    RefreshRoute,
    Release,
    SendEffect,
    Write,
)
from lockstep.client.producer.machines.encoder import FrameEncoder
from lockstep.client.producer.machines.in_flight_frame import InFlightFrame, seal_frame
from lockstep.client.producer.machines.latency_fault import BrokerLatencies
from lockstep.client.producer.machines.pending import PendingSend
from lockstep.client.producer.machines.send_buffer import SendBuffer
from lockstep.client.producer.machines.send_fifo import AHEAD_OF_ALL, NEVER_MS
from lockstep.client.producer.machines.sequencer import Sequencer
from lockstep.client.producer.result import STATUS_OF_CODE, FrameResult
from lockstep.protocol.command import RETRY_AFTER_FIELD, Command
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
    TopicNotExistError,
    broker_error,
)
from lockstep.protocol.topics.queue import LayoutVersion, MessageQueue

KEYED_RETRY_MS = 5_000
"""A keyed send that waits for a higher layout is retried with its own layout after this time: its broker may have lost the higher one."""

SENDS_PER_RUN = 256
"""The number of sends that fail or move to another queue in one run; the others do in the next ones, as loop turns have time for them."""


class SendConnection(Protocol):
    """An open connection to the queue's broker."""

    @property
    def backlog_bytes(self) -> int:
        """Return the bytes that were written and that the peer has not read yet."""
        ...


class KeyedWait(NamedTuple):
    """Keyed sends wait for a layout above this one, or until this time."""

    above: LayoutVersion
    until_ms: int
    error: LayoutStaleError
    """The broker's refusal."""


class SendStage(Enum):
    """Where sends were when they failed."""

    WAITING = "waiting"
    """In the buffer: earlier sends are not affected."""
    UNSEALED = "unsealed"
    """In a frame that has ended: everything in the buffer comes later."""
    IN_FLIGHT = "in flight"
    """In a frame that continues for its other sends: their bytes count as in flight until it ends."""


class QueueMachine:
    """The buffer, the sequencer and the frame in flight of one queue."""

    __slots__ = (
        "_backoff",
        "_buffer",
        "_config",
        "_connects",
        "_encoder",
        "_frame",
        "_keyed_wait",
        "_last_error",
        "_latencies",
        "_lost_writes",
        "_sequencer",
        "any_durability",
        "broker",
        "deletion",
        "effects",
        "leaving",
        "queue",
        "run_at_ms",
        "stalled",
    )

    def __init__(
        self,
        queue: MessageQueue,
        broker: BrokerResponses,
        sequencer: Sequencer,
        encoder: FrameEncoder,
        config: ProducerConfig,
        latencies: BrokerLatencies | None = None,
    ) -> None:
        self.queue = queue
        self.broker = broker
        self.effects: list[SendEffect] = []
        """What the shell is to do for this queue, in order. It takes them after each input."""
        self.stalled = False
        """A frame is RETRYING here, or there was no connection when one was to be written: unkeyed sends go to another queue if
        possible."""
        self.any_durability = False
        """A send has required more or less durability than the broker's flush setting."""
        self.deletion: TopicNotExistError | None = None
        """An input: why nothing can be sent any more. The topic was deleted, or has no writable queue."""
        self.leaving: list[PendingSend] = []
        """Unkeyed sends that go to another broker. The topic takes them from here."""
        self.run_at_ms = NEVER_MS
        """When the topic is to run this queue next (monotonic ms); 0: at the end of this loop turn."""
        self._connects = broker.connects
        """The number of the broker's connects that were handled here."""
        self._config = config
        self._latencies = latencies
        self._buffer = SendBuffer(config.batch_bytes_max, config.batch_count_max)
        self._sequencer = sequencer
        self._encoder = encoder
        self._frame: InFlightFrame | None = None
        self._backoff = QueueBackoff()
        self._keyed_wait: KeyedWait | None = None
        self._last_error: Exception | None = None
        """Why the last frame was refused; None after one was stored."""
        self._lost_writes: list[tuple[InFlightFrame, Exception]] = []
        """Writes that will get no response, and why."""

    # --------------------------------------------------------------------------------------------------------------- waiting

    @property
    def idle(self) -> bool:
        """Return whether nothing is pending and nothing is in flight."""
        return self._frame is None and not self._buffer

    @property
    def send_count(self) -> int:
        """Return how many sends are pending or in flight here. A batch counts as one for each of its frames."""
        return len(self._buffer.keyed) + len(self._buffer.unkeyed) + (0 if self._frame is None else len(self._frame.sends))

    @property
    def retries(self) -> bool:
        """Return whether a frame is to be written again, or was not written yet."""
        return self._frame is not None and self._frame.retry

    @property
    def unkeyed_waits(self) -> bool:
        """Return whether there are pending sends that may go to another queue."""
        return bool(self._buffer.unkeyed)

    def in_time(self, now_ms: int, begun_ms: int, deadline_ms: int) -> bool:
        """Return whether a response to a send that comes now can be expected before its deadline, or half of its time has not passed yet.

        Without this check, sends that will fail when their frame is sealed would take up the in-flight limit meanwhile.
        """
        if now_ms < (begun_ms + deadline_ms) // 2:
            return True
        broker, frame = self.broker, self._frame
        wait_ms = 0 if frame is None else max(0, broker.slowest_ms - (now_ms - frame.begun_ms))
        return now_ms + wait_ms + broker.expected_ms <= deadline_ms

    def add(self, pending: PendingSend, *, ahead: bool = False) -> None:
        """Add a send. Its frame is written at the end of this loop turn unless one is in flight.

        `ahead`: before all pending sends. It was refused, and they were sent after it.
        """
        pending.queue = self.queue
        if pending.durable is not None:
            self.any_durability = True
        fifo = self._buffer.keyed if pending.keys else self._buffer.unkeyed
        if ahead:
            fifo.push(pending)
        else:
            fifo.append(pending)
        if self._frame is None and (self.broker.up or self.run_at_ms == NEVER_MS):
            self.run_at_ms = 0
        elif self.stalled and not pending.keys:
            self.run_at_ms = 0  # the run moves it to another queue
        elif pending.deadline_ms < self.run_at_ms:
            self.run_at_ms = pending.deadline_ms

    def withdraw(self, pending: PendingSend) -> bool:
        """Withdraw a send that is not written yet: it no longer counts as in flight. Return False if it does not wait here."""
        return self._buffer.fifo_of(pending).remove(pending)

    def begin_epoch(self, epoch: int) -> None:
        """Begin another unit of work of a given producer id. Raise StateError if a frame of the last one is not finished."""
        if not self.idle:
            raise StateError(f"{self.queue}: a frame is pending or in flight; begin epoch {epoch} when its send has ended")
        self._sequencer.begin(epoch)

    def end_given_stream(self) -> None:
        """End the stream of a given producer id, because a frame failed unsent: no later one may take its sequence."""
        if self._sequencer.given:
            self._sequencer.give_up()

    def take_older(self, version: LayoutVersion) -> list[PendingSend]:
        """Remove and return the pending sends that were picked from a lower layout than this one."""
        if self._keyed_wait is not None and self._keyed_wait.above < version:
            self._keyed_wait = None
            self.run_at_ms = 0
        return self._buffer.keyed.take_older(version)

    def fail_all(self, error: Exception, now_ms: int) -> None:
        """Fail the frame in flight, as unknown if it may be stored, and all pending sends, after the last write."""
        frame = self._frame
        if frame is not None:
            frame.unknown = frame.unknown or frame.responses_due > 0
            frame.error = error
            self._fail_frame(frame, now_ms)
        self._fail(self._buffer.take_all(), Outcome.NOT_STORED, error)

    def take_unkeyed(self) -> list[PendingSend]:
        """Remove and return the first of the sends that may go to another queue, at most SENDS_PER_RUN."""
        return self._buffer.unkeyed.take(SENDS_PER_RUN)

    # --------------------------------------------------------------------------------------------------------------- running

    def handle_due(self, now_ms: int, *, connected: bool) -> None:
        """Handle everything that is due except writing: lost writes, a new connection, deadlines."""
        if self._lost_writes:
            lost, self._lost_writes = self._lost_writes, []
            for frame, error in lost:
                self._handle_no_response(frame, error)
        if self._connects != self.broker.connects:
            self._connects = self.broker.connects
            self._backoff.reconnected()
            self.stalled = self._frame is not None and self._frame.retry
        frame_now = self._frame
        if frame_now is not None and not frame_now.retry and now_ms >= frame_now.due_ms:
            self._overdue(frame_now, now_ms)
        if frame_now is not None and frame_now.earliest_ms <= now_ms < frame_now.deadline_ms:
            self._expire(frame_now, now_ms)
        if self.deletion is not None and self._buffer:
            self._fail(self._buffer.take_all(), Outcome.NOT_STORED, self.deletion)
        more = now_ms >= self._buffer.earliest_ms and self._fail_expired(now_ms)
        if self.stalled and self._frame is None and connected and now_ms >= self._backoff.trusted_ms:
            self.stalled = False
        self.run_at_ms = 0 if more else NEVER_MS

    def write_next(self, now_ms: int, connection: SendConnection | None, *, may_move: bool) -> None:
        """Write the refused frame again, or the next one, unless a frame waits for its response. `may_move`: another broker has a live
        queue."""
        more = self.run_at_ms == 0
        if self._frame is None or self._frame.retry:
            more |= self._write_next(now_ms, connection, may_move=may_move)
        self.run_at_ms = 0 if more else self._next_run_ms(now_ms)

    def _write_next(self, now_ms: int, connection: SendConnection | None, *, may_move: bool) -> bool:
        """Return whether there is more to do in another run."""
        if self._keyed_wait is not None and now_ms >= self._keyed_wait.until_ms:
            self._keyed_wait = None
        if self._frame is not None:
            self._move_or_fail(self._frame, now_ms, may_move=may_move)  # also without a connection: its sends may move to another broker
        if connection is None:
            self.stalled = True
            return False
        if now_ms < self._backoff.not_before_ms:
            return False
        more = False
        if self._frame is None:
            more = self._seal(now_ms)
        if self._frame is not None:
            self._write(self._frame, connection, now_ms)
        return more

    def _seal(self, now_ms: int) -> bool:
        """Seal the next frame if a send may leave. Return whether there is more to do in another run."""
        if self._sequencer.over:
            self._fail(self._buffer.take_all(), Outcome.NOT_STORED, _over(self._sequencer))
        failed_count = 0
        while failed_count < SENDS_PER_RUN:
            sends = self._buffer.cut(keyed_blocked=self._keyed_wait is not None)
            if not sends:
                return False
            # As `in_time`: more than half of a send's time has passed, and its response could come too late. The sum that decides for
            # almost all sends is computed first, without a look at the broker's recent responses.
            late = [pending for pending in sends if pending.begun_ms + pending.deadline_ms <= 2 * now_ms + 1]
            if late:
                response_ms = now_ms + self.broker.expected_ms
                late = [pending for pending in late if pending.deadline_ms < response_ms]
            if late or [pending for pending in sends if pending.failed or pending.waiter.done()]:
                sends, late = self._split_late(sends, frozenset(late))
                if late:
                    failed_count += len(late)
                    self.end_given_stream()
                    self._fail(late, Outcome.NOT_STORED, self._too_late())
            if sends:
                self._frame = self._sealed(sends, now_ms)
                return False
        return True

    def _sealed(self, sends: list[PendingSend], now_ms: int) -> InFlightFrame:
        return seal_frame(self.queue, self._sequencer, self._encoder, sends, now_ms, any_durability=self.any_durability)

    def _split_late(self, sends: list[PendingSend], late: frozenset[PendingSend]) -> tuple[list[PendingSend], list[PendingSend]]:
        """Return which of these are sent, and which fail. Keyed sends are taken up to a change from one to the other: the rest goes
        back."""
        gone = [pending for pending in sends if pending.done()]
        if gone:
            self.effects.append(Release(gone))
        living = [pending for pending in sends if not pending.done()]
        if not living or not living[0].keys:
            return [pending for pending in living if pending not in late], [pending for pending in living if pending in late]
        fails = living[0] in late
        count = next((at for at, pending in enumerate(living) if (pending in late) is not fails), len(living))
        self._buffer.put_back(living[count:])
        return ([], living[:count]) if fails else (living[:count], [])

    def _too_late(self) -> RequestTimeoutError:
        expected_ms = self.broker.expected_ms
        return RequestTimeoutError(f"not written: less than {expected_ms} ms were left, twice the broker's slowest recent response")

    def _write(self, frame: InFlightFrame, connection: SendConnection, now_ms: int) -> None:
        if not frame.begun_ms:
            frame.begin(now_ms)
        limit_ms = frame.deadline_ms if frame.keyed or now_ms >= frame.move_ms else min(frame.move_ms, frame.deadline_ms)
        frame.due_ms = min(now_ms + self._config.attempt_timeout_ms, limit_ms)
        frame.retry = False
        if connection is frame.connection and frame.responses_due and connection.backlog_bytes:
            # The peer does not read. The bytes that were written are still on their way, and another copy would only add to them.
            return
        frame.connection = connection
        frame.responses_due += 1
        self.effects.append(Write(frame, max(1, frame.deadline_ms - now_ms)))

    def _next_run_ms(self, now_ms: int) -> int:
        """Return when something is due, or an earlier time."""
        frame = self._frame
        due = [self._buffer.earliest_ms] if self._buffer else []
        if frame is not None:
            due.append(frame.earliest_ms)
        if frame is not None and not frame.retry:
            due.append(frame.due_ms)
        else:
            if frame is not None:
                due += [frame.deadline_ms, frame.move_ms]
            elif self.stalled and self.broker.up and self._backoff.trusted_ms > now_ms:
                due.append(self._backoff.trusted_ms)
            if due:
                due.append(self._backoff.not_before_ms)
                if self._keyed_wait is not None:
                    due.append(self._keyed_wait.until_ms)
        if not due:
            return NEVER_MS
        next_ms = min(due)
        # What is due already was tried in this run and waits for one of the other times: a run that can do nothing is not repeated.
        return next_ms if next_ms > now_ms else min([at_ms for at_ms in due if at_ms > now_ms], default=now_ms + 1)

    # --------------------------------------------------------------------------------------------------------------- responses

    def write_lost(self, frame: InFlightFrame, error: Exception) -> None:
        """Record that a write of the frame will get no response. The next run handles it, because the connection may be closing now."""
        self._lost_writes.append((frame, error))
        self.run_at_ms = 0

    def _handle_no_response(self, frame: InFlightFrame, error: Exception) -> None:
        frame.responses_due -= 1
        if frame is self._frame:
            frame.unknown = True
            frame.error = error
            if not frame.responses_due:
                self._retry(frame)

    def handle_response(self, frame: InFlightFrame, response: Command, now_ms: int) -> LayoutVersion | None:
        """Handle the response to a write of the frame. A late response to an early write is as good as any.

        Return the layout version for which a keyed frame was refused: earlier sends are to be picked again.
        """
        frame.responses_due -= 1
        if frame is not self._frame:
            return None  # the response to another write of it came first, or it has failed
        if response.code in STATUS_OF_CODE:
            self._stored(frame, response, now_ms)
            return None
        return self._refused(frame, broker_error(response.code, response.remark), response.fields, now_ms)

    def _stored(self, frame: InFlightFrame, response: Command, now_ms: int) -> None:
        get = response.fields.get
        offset, physical_offset, host = get("queueOffset"), get("physicalOffset"), get("storeHost", "")
        if type(offset) is not int or type(physical_offset) is not int or type(host) is not str:
            frame.unknown = True
            frame.error = RemoteProtocolError(f"broker {self.queue.broker_name} responded to a send without an offset")
            self._retry(frame)
            return
        self._frame = self._last_error = None
        self._backoff.stored()
        if frame.error is None:
            self.broker.record_response(now_ms - frame.begun_ms)
        if self._latencies is not None:
            self._latencies.responded(self.queue.broker_name, now_ms - frame.begun_ms, now_ms)
        if self.stalled:
            self.stalled = not self.broker.up
        place = STATUS_OF_CODE[response.code], self.queue, offset, physical_offset, host, frame.sizes, frame.ids
        result = FrameResult(*place) if self._encoder.room is None else self._encoder.result(place, frame.sends, get("storeTimestamp"))
        self.effects.append(Complete(frame, result))
        self.run_at_ms = 0 if self._buffer else NEVER_MS

    def _refused(self, frame: InFlightFrame, error: BrokerError, fields: Mapping[str, object], now_ms: int) -> LayoutVersion | None:
        frame.error = self._last_error = error
        self._backoff.refusals += 1
        self.run_at_ms = 0
        if isinstance(error, OutOfSequenceError | StaleEpochError) and not self._sequencer.given:
            # This client has not caused it: the broker lost a suffix of its log, with this frame's predecessors or the whole stream.
            facts = {"queue": str(self.queue), "epoch": self._sequencer.epoch + 1, "error": str(error)}
            self.effects.append(LogWarning("sequence.restarted", facts))
            self._sequencer.give_up()
            frame.keep_ids()
            if frame.unknown:  # an earlier write may have been stored, and read before it was lost or its topic deleted
                for pending in frame.sends:
                    pending.may_be_stored = True
            self._frame = self._sealed(frame.sends, now_ms)
            if self._backoff.refusals > 1:
                self._frame.error = error
                self._backoff.refused(fields.get(RETRY_AFTER_FIELD), now_ms)
        elif isinstance(error, LayoutStaleError) and (version := frame.sends[0].version) is not None:
            # The broker checks the sequence before the layout, so the frame is certainly not stored, even after a write without a response.
            self._unseal(frame)
            self._buffer.put_back(frame.sends)
            self._keyed_wait = KeyedWait(version, now_ms + KEYED_RETRY_MS, error)
            return version
        elif isinstance(error, LayoutStaleError) and self._encoder.room is not None:
            # The topic was deleted and created again. The frame is certainly not stored, see above.
            self.effects.append(RefreshRoute())
            self._unseal(frame)
            self._buffer.put_back(frame.sends)
            self._backoff.refused(fields.get(RETRY_AFTER_FIELD), now_ms)
        elif isinstance(error, MessageIllegalError) and not frame.unknown and len(singles := frame.singles()) > 1:
            self._unseal(frame)
            self._backoff.refusals = 0
            for pending in singles:
                pending.alone = True
            self._buffer.put_back(singles)
        elif error.retriable or error.refresh_route:
            if error.refresh_route:
                self.effects.append(RefreshRoute())
            # A handler that failed may have stored the frame before.
            frame.unknown = frame.unknown or isinstance(error, BrokerSystemError)
            self._backoff.refused(fields.get(RETRY_AFTER_FIELD), now_ms)
            self._retry(frame)
        else:
            self._last_error = None  # it was about these sends: the next ones may be allowed
            self._fail_frame(frame, now_ms)
        return None

    # ---------------------------------------------------------------------------------------------------- retry, move, fail

    def _retry(self, frame: InFlightFrame) -> None:
        frame.retry = True
        self.stalled = True
        self.run_at_ms = 0

    def _overdue(self, frame: InFlightFrame, now_ms: int) -> None:
        """Handle that the frame in flight has had no response for too long."""
        took_ms = min(now_ms - frame.begun_ms, self._config.attempt_timeout_ms)
        self.broker.record_response(took_ms)
        frame.unknown = True
        frame.error = RequestTimeoutError(f"broker {self.queue.broker_name}: no response within {took_ms} ms")
        frame.retry = True
        self.stalled = True

    def _move_or_fail(self, frame: InFlightFrame, now_ms: int, *, may_move: bool) -> None:
        """Move the frame to another broker or fail it, unless it may be written again."""
        failed_here = frame.error is not None or not self.broker.up
        if self.deletion is not None and not frame.responses_due:
            frame.error = self.deletion
            self._fail_frame(frame, now_ms)
        elif now_ms >= frame.deadline_ms:
            self._fail_frame(frame, now_ms)
        elif may_move and failed_here and not frame.keyed and (now_ms >= frame.move_ms or not frame.unknown):
            self._move(frame, now_ms)

    def _move(self, frame: InFlightFrame, now_ms: int) -> None:
        """Move an unkeyed frame to another broker, and count it if it may be stored here."""
        self._unseal(frame)
        self._strike(now_ms)
        self.leaving = [pending for pending in frame.sends if not pending.done()]
        if frame.unknown:
            count = sum([pending.count for pending in self.leaving])
            for pending in self.leaving:
                pending.may_be_stored = True
            facts = {"queue": str(self.queue), "possible_duplicates": count, "error": str(frame.error)}
            self.effects += [PossibleDuplicates(count), LogWarning("frame.moved", facts)]
        gone = [pending for pending in frame.sends if pending.done()]
        if gone:
            self.effects.append(Release(gone))

    def _fail_frame(self, frame: InFlightFrame, now_ms: int) -> None:
        """End the frame without an acknowledgement: its sends fail, and so do the later ones with the same key."""
        self._unseal(frame)
        if self._sequencer.given:
            self._sequencer.give_up()
        if frame.unknown:
            self._strike(now_ms)
        self._backoff.refusals = 0
        facts = {"queue": str(self.queue), "count": frame.sealed.count, "outcome": frame.outcome.value, "error": str(frame.error)}
        self.effects.append(LogWarning("frame.failed", facts))
        self._fail(frame.sends, frame.outcome, frame.error)

    def _expire(self, frame: InFlightFrame, now_ms: int) -> None:
        """Handle that the deadline of some sends of the frame has come."""
        if frame.certain:
            self._unseal(frame)
            self._buffer.put_back(frame.sends)  # those whose deadline has come fail there
            return
        error = frame.error or RequestTimeoutError(f"broker {self.queue.broker_name}: no response within {now_ms - frame.begun_ms} ms")
        self._fail(frame.take_expired(now_ms), Outcome.UNKNOWN, error, stage=SendStage.IN_FLIGHT)

    def _fail_expired(self, now_ms: int) -> bool:
        """Fail sends that waited here until their deadline and were never written. Return whether there are more."""
        expired = self._buffer.take_expired(now_ms, SENDS_PER_RUN)
        if not expired:
            return False
        self.end_given_stream()
        waits = self._frame or self._keyed_wait
        self._fail(expired, Outcome.NOT_STORED, self._last_error if waits is None else waits.error, stage=SendStage.WAITING)
        return self._buffer.earliest_ms <= now_ms

    def _fail(self, sends: list[PendingSend], outcome: Outcome, cause: Exception | None, *, stage: SendStage = SendStage.UNSEALED) -> None:
        """Fail these sends, and the later ones with one of their keys."""
        keys: dict[str, int] = {}
        failed: list[PendingSend] = []
        for pending in sends:
            if pending.done():
                continue  # failed: its later sends have failed too, those that are there now came afterwards; cancelled: it fails no other
            failed.append(pending)
            for key in pending.keys:
                keys.setdefault(key, pending.ticket if stage is SendStage.WAITING else AHEAD_OF_ALL)
        taken = self._buffer.keyed.take_keys(keys) if keys else []
        later = [pending for pending in taken if not pending.failed]
        released = [] if stage is SendStage.IN_FLIGHT else list(sends)
        if len(later) < len(taken):
            released += [pending for pending in taken if pending.failed]
        for pending in failed:
            pending.failed = True
        for pending in later:
            pending.failed = True
        self.effects.append(Fail(self.queue, failed, outcome, cause, self.broker.up, later, frozenset(keys), released))

    def _strike(self, now_ms: int) -> None:
        self._backoff.frame_lost(now_ms)
        if self._latencies is not None:
            self._latencies.failed(self.queue.broker_name, now_ms)

    def _unseal(self, frame: InFlightFrame) -> None:
        """End the frame in flight, so that no copy that is still on its way can be taken for the next one."""
        frame.keep_ids()
        if frame.unknown:
            self._sequencer.give_up()
        else:
            self._sequencer.withdraw(frame.sealed)
        self._frame = None


def _over(sequencer: Sequencer) -> StateError:
    return StateError(
        f"a frame of producer id {sequencer.producer_id}, epoch {sequencer.epoch}, has failed here: begin again from its first"
    )
