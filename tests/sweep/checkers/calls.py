"""O3 and R4b: the times at which a listener may be called, and at which two calls may overlap.

    a  no call of a newer epoch starts before the last call of the older one ended, its client's deadline (proven + grace − 500 ms, or the
       drain limit) passed, or its client was notified that the epoch is over
    b  no call of an epoch starts after a newer one was granted
    c  no call starts before a proof of life, nor at the deadline or later
    d  a queue is released with an offset only when its call has ended, without one only past the drain limit
    e  a queue whose listener still runs in a process is not locked again by it, and has one call at a time

Calls in threads are recorded some time after they were scheduled: b and c are checked at the earliest time of that, a only at the end of
their calls.
"""

from dataclasses import dataclass
from math import inf

from sweep.checkers.facts import Clocks, Deletions, Leases, QueueEpoch, holders
from sweep.checkers.violation import Violation, process_name
from sweep.events.consumers import CallBegan, CallEnded, ConsumerStarted, ConsumerStopBegan
from sweep.events.locks import LeaveSent, LockGranted, LockSent, ProofReceived, StaleReceived
from sweep.events.progress import CommitSent
from sweep.events.universe import PauseBegan, PauseEnded, ProcessEnded
from sweep.history import History, QueueKey

DRIFT = 0.05
"""The fastest rate of a machine's clock."""
THREAD_S = 0.01
"""The longest time from the scheduling of a thread to its start, pauses of its process not counted."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two calls of one queue at the same time, which R4b allows: counted and published."""

    t: float
    queue: QueueKey
    older: int
    newer: int
    excuse: str


def check(history: History) -> list[Violation]:
    return _Calls(history).run()[0]


def overlaps(history: History) -> list[Overlap]:
    """Return all overlaps that R4b allows."""
    return _Calls(history).run()[1]


class _Calls:
    """One pass over a history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.clocks = Clocks(history)
        self.holders = holders(history)
        self.leases = Leases()
        self.deletions = Deletions(history)
        self.running: dict[QueueKey, dict[int, CallBegan]] = {}
        self.granted: dict[QueueKey, LockGranted] = {}
        self.notified: dict[QueueEpoch, float] = {}
        self.given_up: dict[QueueEpoch, float] = {}
        self.consumers: dict[tuple[int, str], ConsumerStarted] = {}
        self.stopping: dict[tuple[int, str], float] = {}
        self.paused: dict[int, tuple[float, float]] = {}
        """Process → its last pause."""
        self.found: list[Violation] = []
        self.excused: list[Overlap] = []

    def run(self) -> tuple[list[Violation], list[Overlap]]:
        for event in self.history:
            if isinstance(event, ProofReceived):
                self.leases.proven(event)
            elif isinstance(event, CallBegan):
                self._began(event)
            elif isinstance(event, CallEnded):
                self.running.get(event.queue, {}).pop(event.call, None)
            elif isinstance(event, CommitSent):
                if event.released:
                    self._released(event)
            elif isinstance(event, LockGranted):
                newest = self.granted.get(event.queue)
                if not event.renewal and (newest is None or event.epoch > newest.epoch):
                    self.granted[event.queue] = event
            elif isinstance(event, PauseBegan):
                self.paused[event.process] = (event.t, inf)
            elif isinstance(event, PauseEnded):
                self.paused[event.process] = (self.paused[event.process][0], event.t)
            elif isinstance(event, StaleReceived):
                self.notified.setdefault((event.queue, event.epoch), event.t)
            elif isinstance(event, LockSent):
                self._locked(event)
            elif isinstance(event, ProcessEnded):
                for calls in self.running.values():
                    for call in [call for call in calls.values() if call.process == event.process]:
                        del calls[call.call]
            elif isinstance(event, ConsumerStarted):
                self.consumers[event.process, event.group] = event
                self.stopping.pop((event.process, event.group), None)
            elif isinstance(event, ConsumerStopBegan | LeaveSent):
                # A consumer that fails leaves the group itself.
                self.stopping.setdefault((event.process, event.group), event.t)
        return self.found, self.excused

    def _report(self, t: float, text: str) -> None:
        self.found.append(Violation("O3", t, text))

    # --------------------------------------------------------------------------------------------------------------- calls

    def _began(self, call: CallBegan) -> None:
        if not call.epoch:
            return  # a classic client's call: classic.py checks it
        calls = self.running.setdefault(call.queue, {})
        self._check_start(call, self._decided_before_s(call))
        for other in calls.values():
            self._check_overlap(other, call)
        calls[call.call] = call

    def _threaded(self, call: CallBegan) -> bool:
        consumer = self.consumers.get((call.process, call.queue.group))
        return consumer is not None and consumer.threaded

    def _decided_before_s(self, call: CallBegan) -> float:
        """Return how long before its record a call may have been scheduled."""
        if not self._threaded(call):
            return 0.0
        began, ended = self.paused.get(call.process, (-inf, -inf))
        return THREAD_S if ended < call.t - THREAD_S else call.t - began + THREAD_S

    def _check_start(self, call: CallBegan, decided_before_s: float) -> None:
        newest = self.granted.get(call.queue)
        known = newest is not None and newest.t <= call.t - decided_before_s
        if newest is not None and known and newest.epoch > call.epoch and not self.deletions.within(call.queue.topic, newest.t, newest.t):
            text = (
                f"{_name(call)} started after epoch {newest.epoch} had been granted to session {_short(newest.session)} at {newest.t:.3f}"
            )
            self._report(call.t, text)
        deadline_ms = self._deadline_ms(call)
        if deadline_ms is None:
            self._report(call.t, f"{_name(call)} started, and nothing was proven at {call.queue.broker}")
        elif (late_ms := call.boot_ms - decided_before_s * 1000 * (1 + DRIFT) - deadline_ms) >= 0:
            self._report(call.t, f"{_name(call)} started {late_ms:.0f} ms past proven + grace − 500 ms (its boot clock: {call.boot_ms})")

    def _deadline_ms(self, call: CallBegan) -> int | None:
        grant = self.holders.get((call.queue, call.epoch))
        if grant is None or grant.session is None:
            return None
        return self.leases.deadline_ms.get((grant.session, call.queue.broker))

    def _check_overlap(self, other: CallBegan, call: CallBegan) -> None:
        consumer = self.consumers.get((call.process, call.queue.group))
        if other.process == call.process and other.epoch == call.epoch and consumer is not None and consumer.lanes is not None:
            return  # lanes.py checks them
        if other.process == call.process:
            self._report(call.t, f"{_name(call)} started while {_name(other)} ran in the same process since {other.t:.3f}")
        elif other.epoch == call.epoch:
            self._report(call.t, f"{_name(call)} started while {_name(other)} ran under the same epoch since {other.t:.3f}")
        elif other.epoch < call.epoch:
            excuse = self._excuse(other, call.t)
            if excuse is None:
                deadline = self._deadline_ms(other)
                now_ms = self.clocks.boot_ms(other.machine, call.t)
                text = (
                    f"{_name(call)} started while {_name(other)} ran since {other.t:.3f}; its client had not been notified, had not "
                    f"given it up, and its deadline is {deadline} on its boot clock, which showed {now_ms}"
                )
                self._report(call.t, text)
            else:
                self.excused.append(Overlap(call.t, call.queue, other.epoch, call.epoch, excuse))

    def _excuse(self, other: CallBegan, t: float) -> str | None:
        held = (other.queue, other.epoch)
        if held in self.notified:
            return "notified that its epoch is over"
        if self.deletions.within(other.queue.topic, other.t, t):
            return "its topic was deleted"
        if held in self.given_up:
            return "released past its drain limit"
        now_ms = self.clocks.boot_ms(other.machine, t)
        deadline_ms = self._deadline_ms(other)
        if deadline_ms is None or (now_ms is not None and now_ms >= deadline_ms):
            return "its deadline passed"
        stopping = self.stopping.get((other.process, other.queue.group))
        consumer = self.consumers.get((other.process, other.queue.group))
        if stopping is not None and consumer is not None and now_ms is not None:
            stopped_ms = self.clocks.boot_ms(other.machine, stopping)
            if stopped_ms is not None and now_ms - stopped_ms >= consumer.stop_ms:
                return "its consumer's stop ran out of time"
        return None

    # ----------------------------------------------------------------------------------------------------------- releases

    def _released(self, event: CommitSent) -> None:
        for call in self.running.get(event.queue, {}).values():
            if call.epoch != event.epoch or call.process != event.process:
                continue
            if event.offset is not None:
                self._report(event.t, f"{_name(call)} still ran when its queue was released at offset {event.offset}")
                continue
            ran_ms, limit_ms = event.boot_ms - call.boot_ms, self._limit_ms(call)
            if ran_ms < limit_ms:
                self._report(event.t, f"{_name(call)} was given up after {ran_ms} ms: the drain limit is {limit_ms} ms")
        if event.offset is None and event.epoch is not None:
            self.given_up.setdefault((event.queue, event.epoch), event.t)

    def _limit_ms(self, call: CallBegan) -> int:
        """Return the drain limit, for which the call must have run before it is given up; 0 if its consumer is not known."""
        consumer = self.consumers.get((call.process, call.queue.group))
        if consumer is None:
            return 0
        stopping = (call.process, call.queue.group) in self.stopping
        return min(consumer.drain_ms, consumer.stop_ms) if stopping else consumer.drain_ms

    def _locked(self, event: LockSent) -> None:
        for queue, epoch in event.items:
            if epoch is None:
                for call in self.running.get(queue, {}).values():
                    if call.process == event.process:
                        self._report(event.t, f"{queue} was locked again by {process_name(event)} while {_name(call)} ran")
            else:
                self.given_up.pop((queue, epoch), None)  # its release was lost: the call may still count


def _name(call: CallBegan) -> str:
    return f"call {call.call} of {call.queue} epoch {call.epoch} offsets {call.first}…{call.last} in {process_name(call)}"


def _short(session: str | None) -> str:
    return "none" if session is None else session[:8]
