"""O7: how long a queue is idle when its owner changes. Asserted if nothing else happened at the time, else reported.

    cause     from                                                    to the next owner's first call, at most
    release   the end of the owner's last call, or the release        0.5 s (not before a member began to start or to stop)
    crash     kill −9 of the owner                                    grace + 1 s
    silent    the owner was stopped, or its machine lost its power    session timeout + 1 s
    restart   the broker's open port, or the running call's end       grace + 1 s
    all       the last start after all processes were killed at once        grace + 2 s (5 s with the usual grace: ordering.md 8.2)

The time counts from when the first call's message was acknowledged. A fault of kind "late" (segments that may be lost at any
time) counts for the whole run; others count for `FAULT_S`, starts and stops of clients and brokers for `CHANGE_S`. Groups that consume by
key are left out: they have a number of calls at a time over all queues. So are those that park keys: their first call may be one of a
replay.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from math import inf

from sweep.checkers.messages import Messages
from sweep.checkers.violation import Violation, process_name
from sweep.events.consumers import CallBegan, CallEnded, ConsumerStarted, ConsumerStopBegan, ConsumerStopped
from sweep.events.locks import GrantReceived, LeaveSent
from sweep.events.progress import CommitSent
from sweep.events.universe import BrokerOpened, Fault, PauseBegan, PauseEnded, PowerCut, ProcessEnded, ProcessStarted
from sweep.history import Event, History, QueueKey

CLEAN_S = 0.5
SLACK_S = 1.0
FAULT_S = 120.0
CHANGE_S = 5.0
AT_ONCE_S = 0.5
"""The longest time from a call's end to its release."""
STOPPED_S = 0.05
"""So much later UNREGISTER_CLIENT does not belong to the call of stop() any more."""

_FAULTS = (Fault, ProcessEnded, PauseBegan, PauseEnded, PowerCut)
_CHANGES = (ConsumerStarted, ConsumerStopBegan, ConsumerStopped, BrokerOpened, ProcessStarted)


@dataclass(frozen=True, slots=True)
class Handover:
    """One change of a queue's owner, or a restart of its broker."""

    queue: QueueKey
    cause: str
    since: float
    until: float
    limit_s: float
    undisturbed: bool
    """Whether nothing else happened at the time, so that the limit holds."""
    text: str

    @property
    def seconds(self) -> float:
        return self.until - self.since


def check(history: History) -> list[Violation]:
    by_key = {event.group for event in history.of(ConsumerStarted) if event.lanes is not None or event.parks is not None}
    found = [
        Violation("O7", one.until, f"{one.text}: {one.seconds:.3f} s after {one.since:.3f}, at most {one.limit_s:.1f} s ({one.cause})")
        for one in handovers(history)
        if one.undisturbed and one.seconds > one.limit_s + 1e-9 and one.queue.group not in by_key
    ]
    return found + _leaves_before_releases(history)


def handovers(history: History) -> list[Handover]:
    """Return every change of an owner and every restart of a broker that was followed by a call, in order."""
    finder = _Finder(history)
    return sorted([*finder.owners(), *finder.restarts(), *finder.everything()], key=lambda one: one.until)


class _Finder:
    """Computes the hand-overs of one history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.messages = Messages(history)
        self.ends = {event.process: event for event in history.of(ProcessEnded)}
        self.pauses = history.of(PauseBegan)
        self.resumes = history.of(PauseEnded)
        self.opened = history.of(BrokerOpened)
        self.disturbing = [event for event in history if isinstance(event, _FAULTS + _CHANGES)]
        self.times = [event.t for event in self.disturbing]
        self.late = any(event.kind == "late" for event in history.of(Fault))
        self.calls: dict[QueueKey, list[CallBegan]] = {}
        for call in (call for call in history.of(CallBegan) if call.epoch):
            self.calls.setdefault(call.queue, []).append(call)
        self.call_ends = {event.call: event.t for event in history.of(CallEnded)}
        self.hosts = {event.broker: event.machine for event in self.opened}
        self.exiles = {(fault.target, fault.facts) for fault in history.of(Fault) if fault.kind == "exile"}
        """(machine of a consumer, machine of a broker that it can't reach)."""
        self.members: dict[str, list[tuple[str, float, float]]] = {}
        """Group → machine of each of its consumers, when it began to start, and to stop or ended."""
        stops = {(stop.process, stop.group): stop.t for stop in history.of(ConsumerStopBegan)}
        for start in history.of(ConsumerStarted):
            process = self.ends.get(start.process)
            left = min(stops.get((start.process, start.group), inf), inf if process is None else process.t)
            self.members.setdefault(start.group, []).append((start.machine, start.t, left))
        self.changes: dict[str, list[float]] = {}
        """Group → when its members began to start or to stop, rising."""
        for event in history:
            if isinstance(event, ConsumerStarted | ConsumerStopBegan):
                self.changes.setdefault(event.group, []).append(event.t)

    def _end_t(self, call: CallBegan) -> float:
        """Return when the call ended; a call without an end ends with its process."""
        ended = self.call_ends.get(call.call)
        if ended is not None:
            return ended
        process = self.ends.get(call.process)
        return inf if process is None else process.t

    # -------------------------------------------------------------------------------------------------------------- owners

    def owners(self) -> list[Handover]:
        found = []
        releases: dict[tuple[QueueKey, int | None], CommitSent] = {}
        for event in self.history.of(CommitSent):
            if event.released:
                releases.setdefault((event.queue, event.epoch), event)
        stops: dict[tuple[int, str], ConsumerStopBegan] = {(stop.process, stop.group): stop for stop in self.history.of(ConsumerStopBegan)}
        last: dict[QueueKey, GrantReceived] = {}
        for grant in self.history.of(GrantReceived):
            before = last.get(grant.queue)
            if grant.renewal or (before is not None and grant.epoch <= before.epoch):
                continue
            last[grant.queue] = grant
            call = next((call for call in self.calls.get(grant.queue, ()) if call.epoch == grant.epoch), None)
            if before is None or call is None or before.session == grant.session:
                continue
            one = self._owner_changed(before, grant, call, releases.get((grant.queue, before.epoch)), stops)
            if one is not None:
                found.append(one)
        return found

    def _owner_changed(
        self,
        before: GrantReceived,
        grant: GrantReceived,
        call: CallBegan,
        release: CommitSent | None,
        stops: dict[tuple[int, str], ConsumerStopBegan],
    ) -> Handover | None:
        end = self.ends.get(before.process)
        pause = next((pause for pause in reversed(self.pauses) if pause.process == before.process and before.t <= pause.t <= grant.t), None)
        opened = next((event for event in reversed(self.opened) if event.broker == grant.queue.broker and event.t <= grant.t), None)
        grace_s = (3_000 if opened is None else opened.grace_ms) / 1000
        session_s = (20_000 if opened is None else opened.session_timeout_ms) / 1000
        if release is not None and release.t <= grant.t:
            stop = stops.get((before.process, grant.queue.group))
            since = self._released_since(before, release, stop)
            return self._handover("release", before, grant, call, since, CLEAN_S)
        if end is not None and end.t <= grant.t:
            limit_s = (session_s if end.how == "power" else grace_s) + SLACK_S
            return self._handover("silent" if end.how == "power" else "crash", before, grant, call, end.t, limit_s)
        if pause is not None:
            return self._handover("silent", before, grant, call, pause.t, session_s + SLACK_S)
        return None

    def _released_since(self, before: GrantReceived, release: CommitSent, stop: ConsumerStopBegan | None) -> float:
        if release.offset is None:
            return release.t  # the call was given up: it may continue
        ended = [self._end_t(call) for call in self.calls.get(release.queue, ()) if call.epoch == before.epoch and call.t <= release.t]
        last = max((t for t in ended if t <= release.t), default=before.t)
        if stop is not None and before.t <= stop.t <= release.t:
            return max(last, stop.t)
        changes = self.changes.get(release.queue.group, [])
        at = bisect_right(changes, release.t)
        last = max(last, changes[at - 1] if at else 0.0)  # before that no other member was assigned it
        return last if release.t - last <= AT_ONCE_S else release.t

    def _handover(self, cause: str, before: GrantReceived, grant: GrantReceived, call: CallBegan, since: float, limit_s: float) -> Handover:
        since = self._first_member_t(grant.queue, max(since, self._available_t(call)))
        lost: set[int | str] = {before.process, before.machine} if cause != "release" else set()
        undisturbed = not self.late and self._undisturbed({before.process, grant.process}, lost, since, call.t)
        text = (
            f"{grant.queue} from {process_name(before)} epoch {before.epoch} to {process_name(grant)} "
            f"epoch {grant.epoch}, first call {call.call} at {call.t:.3f}"
        )
        return Handover(grant.queue, cause, since, max(since, call.t), limit_s, undisturbed, text)

    def _first_member_t(self, queue: QueueKey, t: float) -> float:
        """Return the first time from `t` on at which a consumer of the group reaches the broker; `t` if no later one is known."""
        host = self.hosts.get(queue.broker, "")
        members = [(start, end) for machine, start, end in self.members.get(queue.group, ()) if (machine, host) not in self.exiles]
        if any(start <= t < end for start, end in members):
            return t
        return min((start for start, _ in members if start > t), default=t)

    def _available_t(self, call: CallBegan) -> float:
        """Return when the first message of the call could be pulled."""
        body = call.messages[0][1]
        acked, began = self.messages.acked.get(body), self.messages.began.get(body)
        if (began is not None and began.waits) or (acked is not None and acked.written):
            return call.t  # it was delivered when it was due, or when it was durable
        return acked.t if acked is not None else began.t if began is not None else 0.0

    def _undisturbed(self, changed: set[int], lost: set[int | str], since: float, until: float) -> bool:
        """Return whether only `changed` processes started or stopped, and only `lost` processes and machines had faults."""
        for at in range(bisect_left(self.times, since - FAULT_S), bisect_right(self.times, until)):
            event = self.disturbing[at]
            if not _is_fault(event):
                own, recent = event.process in changed, event.t >= since - CHANGE_S
            else:
                own, recent = bool({event.process, event.machine, getattr(event, "target", "")} & lost), True
            if not own and recent:
                return False
        return True

    # ------------------------------------------------------------------------------------------------------------ restarts

    def restarts(self) -> list[Handover]:
        found = []
        lives: dict[str, BrokerOpened] = {}
        for opened in self.opened:
            before = lives.get(opened.broker)
            lives[opened.broker] = opened
            if before is None:
                continue
            processes, machines = {before.process, opened.process}, {opened.machine}
            for queue, calls in self.calls.items():
                if queue.broker == opened.broker and calls[0].t < opened.t:
                    one = self._restarted(queue, calls, opened, processes, machines)
                    if one is not None:
                        found.append(one)
        return found

    # ---------------------------------------------------------------------------------------------------------- everything

    def everything(self) -> list[Handover]:
        found = []
        for fault in self.history.of(Fault):
            if fault.kind == "everything":
                until = next((event.t for event in self.history.of(Fault) if event.t > fault.t), inf)
                starts = [
                    event for event in self.disturbing if fault.t < event.t < until and isinstance(event, BrokerOpened | ConsumerStarted)
                ]
                brokers = [event for event in starts if isinstance(event, BrokerOpened)]
                if not brokers:
                    continue
                limit_s = max(event.grace_ms for event in brokers) / 1000 + 2 * SLACK_S
                last = max(event.t for event in starts)
                earlier = any(_is_fault(event) and fault.t - FAULT_S <= event.t < fault.t for event in self.disturbing)
                for queue, calls in self.calls.items():
                    call = next((one for one in calls if one.t > fault.t), None)
                    if call is not None and call.t < until and calls[0].t < fault.t:
                        since = max(last, self._available_t(call))
                        text = f"{queue} after all processes were killed at {fault.t:.3f}, first call {call.call} at {call.t:.3f}"
                        undisturbed = not self.late and not earlier
                        found.append(Handover(queue, "all", since, max(since, call.t), limit_s, undisturbed, text))
        return found

    def _restarted(
        self, queue: QueueKey, calls: list[CallBegan], opened: BrokerOpened, processes: set[int], machines: set[str]
    ) -> Handover | None:
        call = next((call for call in calls if call.t >= opened.t), None)
        if call is None:
            return None
        busy = max((self._end_t(one) for one in calls if one.t < opened.t <= self._end_t(one) <= call.t), default=opened.t)
        since = max(opened.t, busy, self._available_t(call))
        undisturbed = not self.late and self._undisturbed(processes, {*processes, *machines}, since, call.t)
        text = f"{queue} after {opened.broker} had opened as {process_name(opened)}, first call {call.call} at {call.t:.3f}"
        return Handover(queue, "restart", since, max(since, call.t), opened.grace_ms / 1000 + SLACK_S, undisturbed, text)


def _is_fault(event: Event) -> bool:
    """Return whether the event is a fault. A process that exits is a change like its start."""
    return isinstance(event, _FAULTS) and not (isinstance(event, ProcessEnded) and event.how == "exit")


def _leaves_before_releases(history: History) -> list[Violation]:
    """Check ordering.md 6.1: a consumer that stops leaves the lists before it releases anything, else the released queues are idle."""
    found = []
    stops: dict[tuple[int, str], ConsumerStopBegan] = {}
    left: set[tuple[int, str, str]] = set()
    """(process, group, broker) since the stop began."""
    early: dict[tuple[int, str, str], CommitSent] = {}
    """The first release of a stopping consumer that has not left this broker."""
    for event in history:
        if isinstance(event, ConsumerStopBegan):
            stops.setdefault((event.process, event.group), event)
        elif isinstance(event, CommitSent) and event.released:
            key = (event.process, event.queue.group, event.queue.broker)
            if key[:2] in stops and key not in left:
                early.setdefault(key, event)
        elif isinstance(event, LeaveSent):
            stop = stops.get((event.process, event.group))
            left.add((event.process, event.group, event.broker))
            release = early.pop((event.process, event.group, event.broker), None)
            if stop is not None and release is not None and event.t > stop.t + STOPPED_S:
                found.append(_released_early(event, release, stop, f"left {event.broker} only after it"))
        elif isinstance(event, ConsumerStopped | ConsumerStarted):
            stop = stops.pop((event.process, event.group), None)
            left = {key for key in left if key[:2] != (event.process, event.group)}
            for key in [key for key in early if key[:2] == (event.process, event.group)]:
                release = early.pop(key)
                if stop is not None:
                    found.append(_released_early(event, release, stop, f"never left {key[2]}"))
    return found


def _released_early(event: Event, release: CommitSent, stop: ConsumerStopBegan, what: str) -> Violation:
    text = f"{process_name(event)} released {release.queue} at {release.t:.3f} and {what}: stop() was called at {stop.t:.3f}"
    return Violation("O7", event.t, text)
