"""B1–B4 and R5 of broadcasting groups: each consumer machine is a member, whose progress is in a file on its disk.

    B1  at a broker the group locks nothing, commits nothing, queries no progress and sends no message back
    B2  every message of the final logs from the member's first offset on was handled on each machine: a crash loses nothing
    B3  repeats on a machine: none after a stop in order; after a crash the messages handled since the file last had to be written
        (a second and the write), with commit="each" the running call; any number while its disk fails. Two members never share a file
    B4  within one grant an ordered listener is given offset after offset, a concurrent one each message once; messages that it fails are
        dropped

An ordered listener has handled a message when a call of it succeeded, a concurrent one when its call ended, with success or not. Under
async flush a power cut of a broker gives offsets to other messages: a member that was past them may leave these out, unless a pull reported
it to a grant that had not ended, and then all messages are repeated.
"""

from math import inf

from lockstep.protocol.order import skips
from sweep.checkers.delivery import RECOVERY_S
from sweep.checkers.facts import Brokers
from sweep.checkers.members import Repeats
from sweep.checkers.messages import Messages
from sweep.checkers.pulls import went_back
from sweep.checkers.violation import Violation, process_name
from sweep.events.consumers import QueueGapSeen
from sweep.events.locks import LockSent
from sweep.events.members import MemberAssigned, MemberCallBegan, MemberCallEnded, MemberRevoked, MemberStarted, MemberStopBegan
from sweep.events.progress import CommitSent, ProgressResponded, PullReceived
from sweep.events.sends import DeadLetterSent, FrameWritten, SendBackSent
from sweep.events.universe import CalmBegan, MessageStored, ProcessEnded
from sweep.history import CallResult, Event, History, QueueKey

DROPPED_SHARE = 0.95
"""The share of a concurrent call's time limit after which its messages may be dropped, whether or not it ends."""

HEEDED_S = 1.0
"""The time within which a member begins a queue again after it was notified that the queue ends before its offset."""


def check(history: History) -> list[Violation]:
    groups = {started.group: started for started in history.of(MemberStarted)}
    if not groups:
        return []
    return [*_at_brokers(history, groups), *_Steps(history, groups).run(), *Repeats(history).run(), *_End(history, groups).run()]


def _at_brokers(history: History, groups: dict[str, MemberStarted]) -> list[Violation]:
    """Check B1: the group sends no such request to a broker."""
    requests: list[tuple[str, Event, str]] = []
    for lock in history.of(LockSent):
        requests += [(key.group, lock, f"LOCK of {key}") for key, _ in lock.items]
    requests += [(commit.queue.group, commit, f"{commit.by} of {commit.queue} at {commit.offset}") for commit in history.of(CommitSent)]
    requests += [(sent.queue.group, sent, f"DEAD_LETTER of {sent.queue} {sent.offset}") for sent in history.of(DeadLetterSent)]
    requests += [(sent.group, sent, f"send back at {sent.position} of {sent.broker}") for sent in history.of(SendBackSent)]
    requests += [(event.queue.group, event, f"progress of {event.queue} requests for") for event in history.of(ProgressResponded)]
    return [
        Violation("B1", event.t, f"{text} by {process_name(event)}: progress is the member's own")
        for group, event, text in requests
        if group in groups
    ]


class _Steps:
    """B4: one pass over a history."""

    def __init__(self, history: History, groups: dict[str, MemberStarted]) -> None:
        self.history = history
        self.ordered = {group for group, started in groups.items() if started.ordered}
        self.next: dict[tuple[int, QueueKey, int], int] = {}
        """(process, queue, grant) → the offset that an ordered listener is given next."""
        self.given: dict[tuple[int, QueueKey, int], set[int]] = {}
        self.calls: dict[int, MemberCallBegan] = {}
        self.gaps: dict[tuple[int, QueueKey], list[tuple[int, int]]] = {}
        self.found: list[Violation] = []

    def run(self) -> list[Violation]:
        for event in self.history:
            if isinstance(event, MemberAssigned):
                self.next.setdefault((event.process, event.queue, event.epoch), event.offset)
            elif isinstance(event, QueueGapSeen):
                self.gaps.setdefault((event.process, event.queue), []).append((event.first, event.end))
            elif isinstance(event, MemberCallBegan):
                self.calls[event.call] = event
                self._called(event)
            elif isinstance(event, MemberCallEnded) and event.result is CallResult.SUCCESS:
                call = self.calls.get(event.call)
                if call is not None and call.queue.group in self.ordered:
                    self.next[call.process, call.queue, call.epoch] = call.messages[-1][0] + 1
        return self.found

    def _called(self, event: MemberCallBegan) -> None:
        if not event.epoch:
            return
        grant = (event.process, event.queue, event.epoch)
        what = f"call {event.call} of {event.queue} in {process_name(event)}"
        given = self.given.setdefault(grant, set())
        expected = self.next.get(grant)
        if expected is None:
            self._report(event, f"{what}: the queue was not assigned to it")
        elif event.queue.group not in self.ordered:
            again = [offset for offset, _ in event.messages if offset in given]
            if again:
                self._report(event, f"{what} is given {again} again: messages that a concurrent listener fails are dropped")
        else:
            for skip in skips(event.messages, lambda message: message[0], first=expected, backward=False):
                offset = skip.after[0]
                if offset < skip.expected or self._passed(event, skip.expected) < offset:
                    self._report(event, f"{what} is given {offset}: {skip.expected} is next")
                    break
        given.update(offset for offset, _ in event.messages)

    def _passed(self, event: MemberCallBegan, offset: int) -> int:
        """Return how far the member may pass over reported gaps. It need not: a queue that has lost its end gets new messages there."""
        for first, end in sorted(self.gaps.get((event.process, event.queue), ())):
            if first <= offset < end:
                offset = end
        return offset

    def _report(self, event: Event, text: str) -> None:
        self.found.append(Violation("B4", event.t, text))


MemberQueue = tuple[str, QueueKey]
"""(machine, queue of the group)."""


class _End:
    """B2 and R5, checked in a run that had a calm and a final reading."""

    def __init__(self, history: History, groups: dict[str, MemberStarted]) -> None:
        self.history = history
        self.groups = groups
        self.messages = Messages(history)
        self.begins: dict[MemberQueue, MemberAssigned] = {}
        for assigned in history.of(MemberAssigned):
            self.begins.setdefault((assigned.machine, assigned.queue), assigned)
        self.handled = self._handled()

    def _handled(self) -> dict[tuple[MemberQueue, int, bytes], float]:
        """Return when each message was handled first on each machine."""
        found: dict[tuple[MemberQueue, int, bytes], float] = {}
        calls: dict[int, MemberCallBegan] = {}
        for event in self.history:
            if isinstance(event, MemberCallBegan):
                calls[event.call] = event
            elif isinstance(event, MemberCallEnded):
                call = calls.pop(event.call)
                failed = event.result in (CallResult.SUSPEND, CallResult.ERROR) and not self.groups[event.queue.group].ordered
                if event.result is CallResult.SUCCESS or failed or self._too_long(call, event.t):
                    self._note(found, call, event.t)
            elif isinstance(event, ProcessEnded):
                for call in [call for call in calls.values() if call.process == event.process]:
                    if self._too_long(calls.pop(call.call), event.t):
                        self._note(found, call, event.t)
        return found

    def _too_long(self, call: MemberCallBegan, t: float) -> bool:
        """Return whether a call has run so long that its messages may have been dropped."""
        group = self.groups[call.queue.group]
        return not group.ordered and (t - call.t) * 1000 > DROPPED_SHARE * group.timeout_ms

    @staticmethod
    def _note(found: dict[tuple[MemberQueue, int, bytes], float], call: MemberCallBegan, t: float) -> None:
        for offset, body in call.messages:
            found.setdefault(((call.machine, call.queue), offset, body), t)

    def run(self) -> list[Violation]:
        calms = self.history.of(CalmBegan)
        if not calms or not self.messages.read:
            return []
        excuses = _Excuses(self.history)
        topics = sorted({key.topic for _, key in self.begins})
        logs = [log for topic in topics for log in self.messages.by_queue(topic).items()]
        found: list[Violation] = []
        for group, machine in dict.fromkeys((started.group, started.machine) for started in self.history.of(MemberStarted)):
            for queue, stored in logs:
                place = (machine, queue._replace(group=group))
                begin = self.begins.get(place)
                if begin is None:
                    found.append(
                        Violation("R5", calms[-1].t, f"{place[1]} on {machine}: it never began, {len(stored)} messages are pending")
                    )
                    continue
                found += self._begun_wrong(place, begin, stored, excuses)
                found += self._missed(place, begin, stored, excuses)
                found += self._late(place, stored[-1], calms[-1].t)
        return found

    def _begun_wrong(self, place: MemberQueue, begin: MemberAssigned, stored: list[MessageStored], excuses: "_Excuses") -> list[Violation]:
        """Check B2: FIRST_OFFSET begins at the first message, LAST_OFFSET between the messages from before and after its start."""
        if excuses.lossy_t(begin.queue.broker) >= begin.t:
            return []  # the offset may have belonged to another message
        first = self.groups[place[1].group].where == "FIRST_OFFSET"
        started_t = min(started.t for started in self.history.of(MemberStarted) if started.machine == place[0])
        for one in stored:
            sent_t, acked = excuses.written.get((one.queue, one.body), 0.0), self.messages.acked.get(one.body)
            late = one.offset < begin.offset and (first or sent_t > begin.t)
            there = acked is not None and not acked.written and acked.t < started_t
            if late or (one.offset >= begin.offset and there and not first):
                text = f"{place[1]} on {place[0]} began at {begin.offset}: {one.offset}, {one.body!r:.40} was sent at {sent_t:.3f}"
                return [Violation("B2", begin.t, text)]
        return []

    def _missed(self, place: MemberQueue, begin: MemberAssigned, stored: list[MessageStored], excuses: "_Excuses") -> list[Violation]:
        machine, key = place
        found = []
        for one in stored:
            known = self.messages.acknowledged(one.body)
            if one.offset < begin.offset or known is None or (place, one.offset, one.body) in self.handled:
                continue
            if excuses.unseen(place, one.offset):
                continue
            text = f"{key} offset {one.offset}, {one.body!r:.60} acknowledged at {known.t:.3f}: no call on {machine} has handled it"
            found.append(Violation("B2", one.t, text))
        return found

    def _late(self, place: MemberQueue, last: MessageStored, calm_t: float) -> list[Violation]:
        since = self.messages.due_since(last, calm_t)
        t = self.handled.get((place, last.offset, last.body), since)
        if t - since <= RECOVERY_S:
            return []
        text = f"{place[1]} on {place[0]} reached its end {last.offset + 1} {t - since:.1f} s after the calm, limit {RECOVERY_S:.0f} s"
        return [Violation("R5", t, text)]


class _Excuses:
    """The messages that a lossy power cut of a broker may have hidden from a member."""

    def __init__(self, history: History) -> None:
        brokers = Brokers(history)
        places = {name: brokers.lossy_cuts(name) for name in brokers.lives}
        self._cuts = {name: [history.events[place].t for place in found] for name, found in places.items()}
        self._pulls: dict[MemberQueue, list[tuple[PullReceived, bool]]] = {}
        """Each with whether it told the member that the queue had lost its end."""
        held: dict[tuple[int, QueueKey], float] = {}
        """(process, queue) → when the grant began that has not ended."""
        for event in history:
            if isinstance(event, MemberAssigned):
                held[event.process, event.queue] = event.t
            elif isinstance(event, MemberRevoked):
                held.pop((event.process, event.queue), None)
            elif isinstance(event, PullReceived):
                told = went_back(event) and held.get((event.process, event.queue), inf) <= event.request_t
                self._pulls.setdefault((event.machine, event.queue), []).append((event, told))
        self._ends: dict[int, list[float]] = {}
        """Process → when it, or its consumer, began to end."""
        for end in (*history.of(ProcessEnded), *history.of(MemberStopBegan)):
            self._ends.setdefault(end.process, []).append(end.t)
        self._assigned = {(one.process, one.queue): one.t for one in history.of(MemberAssigned)}
        """The last time."""
        self.written: dict[tuple[QueueKey, bytes], float] = {}
        for frame in history.of(FrameWritten):
            for body in frame.bodies:
                self.written.setdefault((frame.queue, body), frame.t)

    def lossy_t(self, broker: str) -> float:
        """Return the time of the last lossy cut; −1 if there was none."""
        return max(self._cuts.get(broker, ()), default=-1.0)

    def unseen(self, place: MemberQueue, offset: int) -> bool:
        """Return whether the member was past this offset when its broker lost messages, and no pull of a grant that it still had reported
        it afterwards."""
        seen, cuts = 0, iter(self._cuts.get(place[1].broker, ()))
        cut, hidden = next(cuts, None), 0
        for pull, told in sorted(self._pulls.get(place, ()), key=lambda one: one[0].request_t):
            while cut is not None and pull.request_t >= cut:
                hidden, cut = max(hidden, seen), next(cuts, None)
            if told and self._heeded(pull):
                seen = hidden = 0
            elif pull.next_offset is not None:
                seen = max(seen, pull.next_offset)
        return offset < (hidden if cut is None else max(hidden, seen))

    def _heeded(self, pull: PullReceived) -> bool:
        """Return whether the member began the queue again, or had the time to."""
        begun = self._assigned.get((pull.process, pull.queue), 0.0) > pull.t
        return begun or not any(pull.t <= t < pull.t + HEEDED_S for t in self._ends.get(pull.process, ()))
