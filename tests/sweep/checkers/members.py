"""B3: the messages that may be repeated to a broadcasting member, by the offsets that its file must have at the end of a process."""

from bisect import bisect_right
from dataclasses import dataclass, field

from sweep.checkers.facts import Brokers
from sweep.checkers.pulls import went_back
from sweep.checkers.violation import Violation, process_name
from sweep.events.members import MemberAssigned, MemberCallBegan, MemberCallEnded, MemberStarted, MemberStopBegan, MemberStopped
from sweep.events.progress import PullReceived
from sweep.events.universe import CalmBegan, Fault, PauseBegan, PauseEnded, ProcessEnded
from sweep.history import CallResult, History, QueueKey

WRITTEN_S = 1.1
"""The longest time from handled to written: a second between two writes, by a clock that may be slow, and the write."""
STOP_SHARE = 0.95
"""The share of the stop's limit after which a call may have been cancelled."""

MemberQueue = tuple[str, QueueKey]
"""(machine, queue of the group)."""


@dataclass(slots=True)
class _MemberRun:
    """One process at one queue, under one grant."""

    place: MemberQueue
    process: int
    epoch: int
    group: MemberStarted
    done: int
    """Every message below is handled, or was passed over."""
    given: int
    """The offset after the highest one that was given to the listener. What is between it and the next call is passed over: B2 and B4 check
    whether that is allowed."""
    finished: set[int] = field(default_factory=set)
    times: list[float] = field(default_factory=list)
    dones: list[int] = field(default_factory=list)
    settled: int = 0
    """With commit="each", the offset in the file when the last call began."""

    def called(self, first: int, last: int) -> None:
        self.finished.update(range(self.given, first))
        self.given = max(self.given, last + 1)

    def handled(self, t: float, offsets: list[int]) -> None:
        self.finished.update(offset for offset in offsets if offset >= self.done)
        before = self.done
        while self.done in self.finished:
            self.finished.discard(self.done)
            self.done += 1
        if self.done > before:
            self.times.append(t)
            self.dones.append(self.done)

    def done_at(self, t: float) -> int:
        at = bisect_right(self.times, t)
        return self.dones[at - 1] if at else 0


class Repeats:
    """One pass over a history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.brokers = Brokers(history)
        self.cut_t = {
            name: min((history.events[place].t for place in self.brokers.lossy_cuts(name)), default=float("inf"))
            for name in self.brokers.lives
        }
        self.floors: dict[MemberQueue, int] = {}
        """No message below is delivered again on that machine."""
        self.runs: dict[tuple[int, QueueKey], _MemberRun] = {}
        self.calls: dict[int, tuple[MemberCallBegan, _MemberRun]] = {}
        self.members: dict[int, MemberStarted] = {}
        """Process → its member, while it has one."""
        self.users: dict[tuple[str, str], int] = {}
        """(machine, group) → the process that uses the file."""
        self.stopping: dict[int, MemberStopBegan] = {}
        self.pauses: dict[int, list[list[float]]] = {}
        self.failures: dict[str, list[list[float]]] = {}
        """Machine → [from, until] of its disk's failures."""
        self.found: list[Violation] = []

    def run(self) -> list[Violation]:
        for event in self.history:
            if isinstance(event, MemberCallBegan):
                self._called(event)
            elif isinstance(event, MemberCallEnded):
                self._returned(event)
            elif isinstance(event, MemberAssigned):
                self._assigned(event)
            elif isinstance(event, MemberStarted):
                self.members[event.process] = event
            elif isinstance(event, MemberStopBegan):
                self.stopping[event.process] = event
            elif isinstance(event, MemberStopped):
                self._stopped(event)
            elif isinstance(event, ProcessEnded):
                self._ended(event, None)
            elif isinstance(event, PullReceived):
                self._pulled(event)
            elif isinstance(event, PauseBegan):
                self.pauses.setdefault(event.process, []).append([event.t, float("inf")])
            elif isinstance(event, PauseEnded):
                self.pauses[event.process][-1][1] = event.t
            elif isinstance(event, Fault):
                self._fault(event)
            elif isinstance(event, CalmBegan):
                for spans in filter(None, self.failures.values()):
                    spans[-1][1] = min(spans[-1][1], event.t)
        return self.found

    def _fault(self, event: Fault) -> None:
        spans = self.failures.setdefault(event.machine, []) if event.machine else []
        if event.kind.startswith("disk"):
            if not spans or spans[-1][1] <= event.t:
                spans.append([event.t, float("inf")])
        elif event.kind == "heal" and spans:
            spans[-1][1] = min(spans[-1][1], event.t)

    # --------------------------------------------------------------------------------------------------------------- calls

    def _assigned(self, event: MemberAssigned) -> None:
        place = (event.machine, event.queue)
        user = self.users.setdefault((event.machine, event.queue.group), event.process)
        if user != event.process:
            text = f"{process_name(event)} has {event.queue}: process {user} uses the file of this machine's member"
            self.found.append(Violation("B3", event.t, text))
        group = self.members[event.process]
        run = self.runs[event.process, event.queue] = _MemberRun(place, event.process, event.epoch, group, event.offset, event.offset)
        run.times.append(event.t)
        run.dones.append(event.offset)
        self.floors[place] = max(self.floors.get(place, 0), event.offset)

    def _called(self, event: MemberCallBegan) -> None:
        run = self.runs.get((event.process, event.queue))
        if run is None or run.epoch != event.epoch:
            return
        self.calls[event.call] = (event, run)
        run.called(event.messages[0][0], event.messages[-1][0])
        floor, first = self.floors.get(run.place, 0), event.messages[0][0]
        if first < floor:
            what = f"call {event.call} of {event.queue} in {process_name(event)}"
            self.found.append(Violation("B3", event.t, f"{what} is given {first}, the file of this machine had {floor}"))
        if run.group.each:
            run.settled = run.done

    def _returned(self, event: MemberCallEnded) -> None:
        call, run = self.calls.pop(event.call, (None, None))
        if call is None or run is None or self.runs.get((event.process, event.queue)) is not run:
            return
        stop = self.stopping.get(event.process)
        if stop is not None and event.t - stop.t > STOP_SHARE * run.group.stop_ms / 1000:
            return
        if event.result is CallResult.SUCCESS or not (run.group.ordered or event.result is CallResult.CANCELLED):
            run.handled(event.t, [offset for offset, _ in call.messages])

    def _pulled(self, event: PullReceived) -> None:
        """Note that the queue ends before the member's offset: all messages may be repeated."""
        if event.t >= self.cut_t.get(event.queue.broker, float("inf")) and went_back(event):
            self.floors.pop((event.machine, event.queue), None)
            self.runs.pop((event.process, event.queue), None)

    # ----------------------------------------------------------------------------------------------------------------- ends

    def _stopped(self, event: MemberStopped) -> None:
        stop = self.stopping.pop(event.process, None)
        since = event.t if stop is None else stop.t
        fails = any(end > since - WRITTEN_S for _, end in self.failures.get(event.machine, ()))
        self._ended(event, None if fails else event.t)

    def _ended(self, event: ProcessEnded | MemberStopped, written_t: float | None) -> None:
        """Close the runs of a process. `written_t`: the file has the messages handled by then; None if it was not closed in order."""
        self.members.pop(event.process, None)
        self.stopping.pop(event.process, None)
        for user in [user for user, process in self.users.items() if process == event.process]:
            del self.users[user]
        for key in [key for key in self.runs if key[0] == event.process]:
            run = self.runs.pop(key)
            t = self._written_t(event.machine, event.process, event.t) if written_t is None else written_t
            self.floors[run.place] = max(self.floors.get(run.place, 0), run.done_at(t), run.settled)

    def _written_t(self, machine: str, process: int, t: float) -> float:
        """Return the time up to which handled messages are in the file at `t`: the process ran long enough after it with a working disk."""
        found = self._before(process, t)
        for begin, end in reversed(self.failures.get(machine, ())):
            if begin < t and end > found:
                found = min(found, self._before(process, begin))
        return found

    def _before(self, process: int, t: float) -> float:
        """Return the time from which to `t` the process ran for WRITTEN_S, pauses not counted."""
        left = WRITTEN_S
        for begin, end in reversed(self.pauses.get(process, ())):
            if begin >= t:
                continue
            if t - min(end, t) >= left:
                break
            left -= t - min(end, t)
            t = begin
        return t - left
