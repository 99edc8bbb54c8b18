"""Facts that several checkers derive from a history: clocks, runs of brokers, losses by power cuts, holders of epochs."""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from sweep.events.locks import GrantReceived, ProofReceived
from sweep.events.replicas import MasterOpened
from sweep.events.sends import LayoutSent
from sweep.events.universe import BrokerOpened, ClockSet, Fault, PauseBegan, PauseEnded, PowerCut, ProcessEnded, ProcessStarted
from sweep.history import Event, History, QueueKey

MARGIN_MS = 500
"""ordering.md 1.4: after proven + grace − 500 ms the client starts no new batch."""
SYNC_S = 1.0
"""The longest time of an fdatasync without a disk fault."""
SLOW_S = 14.0
"""The time after which a slow disk is fast again, and its last delayed operation has ended."""
ENDING_S = 10.0
"""The longest time in which a broker ends whose disk has failed; it sends no responses any more."""

DISK_FAILS = ("disk eio", "disk full")

SessionAtBroker = tuple[str, str]
"""(session, broker)."""
QueueEpoch = tuple[QueueKey, int]
"""(queue, epoch)."""


class RisingMax:
    """The highest of some values so far, at any earlier time."""

    __slots__ = ("_times", "_values")

    def __init__(self) -> None:
        self._times: list[float] = []
        self._values: list[int] = []

    def add(self, t: float, value: int) -> None:
        """Add a value. Times never fall."""
        if not self._values or value > self._values[-1]:
            self._times.append(t)
            self._values.append(value)

    def before(self, t: float) -> int | None:
        """Return the highest value that was added at a time < t; None if there is none."""
        at = bisect_left(self._times, t)
        return self._values[at - 1] if at else None


class Clocks:
    """The boot clocks of all machines at any time, from ClockSet; without it a machine runs at rate 1 from its last reported reading."""

    def __init__(self, history: History) -> None:
        self._set: dict[str, list[ClockSet]] = {}
        for event in history.of(ClockSet):
            self._set.setdefault(event.machine, []).append(event)
        self._reported: dict[str, tuple[list[float], list[int]]] = {}
        for proof in history.of(ProofReceived):
            times, clocks = self._reported.setdefault(proof.machine, ([], []))
            if not times or proof.request_t > times[-1]:
                times.append(proof.request_t)
                clocks.append(proof.request_boot_ms)

    def boot_ms(self, machine: str, t: float) -> float | None:
        """Return the boot clock of a machine; None if nothing is known of it."""
        last = None
        for event in self._set.get(machine, ()):
            if event.t > t:
                break
            last = event
        if last is not None:
            return last.boot_ms + (t - last.t) * 1000 * last.rate
        times, clocks = self._reported.get(machine, ([], []))
        if not times:
            return None
        at = max(0, bisect_left(times, t) - 1)
        return clocks[at] + (t - times[at]) * 1000

    def passed_s(self, machine: str, since: float, until: float) -> float:
        """Return the time that passed by the boot clock between two times, also over a boot of the machine, which sets that clock."""
        passed, at, rate = 0.0, since, 1.0
        for event in self._set.get(machine, ()):
            if event.t >= until:
                break
            if event.t > at:
                passed += (event.t - at) * rate
                at = event.t
            rate = event.rate
        return passed + (until - at) * rate


@dataclass(slots=True)
class Life:
    """One process of a broker, from its open port to its end or the opening of another copy. `opened`, `ended`: places in the history."""

    broker: str
    machine: str
    process: int
    flush: str
    interval_s: float
    term: int
    opened: int
    opened_t: float
    ended: int | None = None
    ended_t: float | None = None


class Brokers:
    """The lives of all brokers, and the power cuts that may have removed writes."""

    def __init__(self, history: History) -> None:
        self.lives: dict[str, list[Life]] = {}
        """By broker, in order."""
        self.cuts: dict[str, list[int]] = {}
        """Places of power cuts, by machine."""
        self._lossy: dict[str, list[int]] = {}
        self._masters: dict[str, list[tuple[int, MasterOpened]]] = {}
        """Of each broker with replicas: its masters, and the places at which they opened. A loss of such a broker is at such a place: power
        cuts of its machines are none by themselves.
        """
        self._starts: dict[str, list[tuple[int, str]]] = {}
        """Starts of brokers, whether or not they opened their port: (place, flush), by machine."""
        self._pauses: dict[int, list[list[float]]] = {}
        self._slow: dict[str, list[float]] = {}
        self._failing: dict[str, float] = {}
        """Machine → when its disk began to fail; the fault may be met much later."""
        by_process: dict[int, Life] = {}
        for place, event in enumerate(history):
            kind = type(event)
            if kind is BrokerOpened:
                assert isinstance(event, BrokerOpened)
                where = (event.broker, event.machine, event.process)
                life = Life(*where, event.flush, event.flush_interval_ms / 1000, event.term, place, event.t)
                lives = self.lives.setdefault(event.broker, [])
                if lives and lives[-1].ended is None:  # deposed
                    lives[-1].ended, lives[-1].ended_t = place, event.t
                lives.append(life)
                by_process[event.process] = life
            elif kind is MasterOpened:
                assert isinstance(event, MasterOpened)
                self._masters.setdefault(event.broker, []).append((place, event))
            elif kind is ProcessStarted:
                assert isinstance(event, ProcessStarted)
                if event.flush:
                    self._starts.setdefault(event.machine, []).append((place, event.flush))
            elif kind is ProcessEnded:
                ending = by_process.get(event.process)
                if ending is not None and ending.ended is None:
                    ending.ended, ending.ended_t = place, event.t
                assert isinstance(event, ProcessEnded)
                if event.how == "power":
                    self._cut(event, place)
            elif kind is PowerCut:
                self._cut(event, place)
            elif kind is PauseBegan:
                self._pauses.setdefault(event.process, []).append([event.t, float("inf")])
            elif kind is PauseEnded:
                self._pauses[event.process][-1][1] = event.t
            elif kind is Fault:
                assert isinstance(event, Fault)
                if event.kind == "disk slow":
                    self._slow.setdefault(event.machine, []).append(event.t)
                elif event.kind in DISK_FAILS:
                    self._failing.setdefault(event.machine, event.t)

    def _cut(self, event: Event, place: int) -> None:
        self.cuts.setdefault(event.machine, []).append(place)

    def life(self, broker: str, process: int) -> Life | None:
        return next((life for life in self.lives.get(broker, ()) if life.process == process), None)

    def has_copies(self, broker: str) -> bool:
        """Return whether the broker has replicas."""
        return broker in self._masters

    def lossy_cuts(self, broker: str) -> list[int]:
        """Return the places of the power cuts that may have removed writes of this broker: those after a life under async flush."""
        if broker in self._masters:
            return [place for place, opened in self._masters[broker] if opened.may_lack]
        if broker not in self._lossy:
            found = []
            for cut in self.all_cuts(broker):
                last = next((life for life in reversed(self.lives[broker]) if life.opened < cut), None)
                if last is not None and last.flush != "sync":
                    found.append(cut)
            self._lossy[broker] = found
        return self._lossy[broker]

    def assumed_cuts(self, broker: str) -> list[int]:
        """Return the places of the power cuts after which this broker may assume a loss: also those during a start under async flush.

        A start stores its flush mode before it opens the port, and the next one can't determine whether it had opened the port.
        """
        if broker in self._masters:
            return [place for place, opened in self._masters[broker] if opened.assumes_loss]
        found = set(self.lossy_cuts(broker))
        for cut in self.all_cuts(broker):
            starts = self._starts.get(self.lives[broker][0].machine, [])
            last = next((flush for place, flush in reversed(starts) if place < cut), "")
            if last == "async":
                found.add(cut)
        return sorted(found)

    def boots(self, broker: str) -> list[Life]:
        """Return its first life after each power cut of that life's machine. A copy that was up when it was elected has not booted."""
        lives = self.lives.get(broker, [])
        return [
            life for before, life in pairwise(lives) if any(before.opened < cut < life.opened for cut in self.cuts.get(life.machine, ()))
        ]

    def all_cuts(self, broker: str) -> list[int]:
        """Return the places of all power cuts of this broker's machine: each may remove messages that were only written."""
        if broker in self._masters:
            masters = self._masters[broker]
            return [at for (_, old), (at, new) in pairwise(masters) if new.may_lack or new.assumes_loss or new.machine != old.machine]
        lives = self.lives.get(broker, [])
        return self.cuts.get(lives[0].machine, []) if lives else []

    def removing_cut(self, broker: str, process: int, place: int, t: float, *, written: bool = False) -> int | None:
        """Return the place of the power cut that may remove a write that this process confirmed at `t`; None if it must survive.
        `written`: its producer required only that it is written.

        A write may be lost only if the power was cut before another start had opened the port (a start makes all found writes durable), and
        the process had confirmed it at most one flush interval and one sync before its own end, pauses not counted. A sync of a slow disk
        may take until the disk is fast again; if the disk has failed, the broker still ends in order.
        """
        if broker in self._masters:
            cuts = self.all_cuts(broker) if written else self.lossy_cuts(broker)
            return next((cut for cut in cuts if cut > place), None)
        life = self.life(broker, process)
        if life is None or (life.flush == "sync" and not written):
            return None
        later = next((other.opened for other in self.lives[broker] if other.opened > place), None)
        cut = next((cut for cut in self.cuts.get(life.machine, ()) if cut > place), None)
        if cut is None or (later is not None and later < cut):
            return None
        ended_t = t if life.ended_t is None else life.ended_t
        limit_s = life.interval_s + SYNC_S
        if self._failing.get(life.machine, inf) <= ended_t:
            limit_s += ENDING_S
        for slow_t in self._slow.get(life.machine, ()):
            if slow_t <= t + limit_s:
                limit_s = max(limit_s, slow_t + SLOW_S - t + life.interval_s + SYNC_S)
        return cut if self._ran_s(process, t, ended_t) <= limit_s else None

    def away_s(self, broker: str, since: float, until: float) -> float:
        """Return how long the broker did not run between two times: down, starting or paused."""
        lives = self.lives.get(broker, [])
        ran, paused_s = 0.0, 0.0
        for life in lives:
            first, last = max(life.opened_t, since), min(inf if life.ended_t is None else life.ended_t, until)
            ran += max(0.0, last - first)
            paused_s += sum(max(0.0, min(end, last) - max(begin, first)) for begin, end in self._pauses.get(life.process, ()))
        return until - since - ran + paused_s

    def _ran_s(self, process: int, since: float, until: float) -> float:
        paused_s = sum(max(0.0, min(end, until) - max(begin, since)) for begin, end in self._pauses.get(process, ()))
        return until - since - paused_s


class Leases:
    """The time until which each session may start calls at each broker, by its own machine's boot clock. Events are added in order."""

    __slots__ = ("_grace", "_locked", "deadline_ms")

    def __init__(self) -> None:
        self.deadline_ms: dict[SessionAtBroker, int] = {}
        """proven + grace − 500 ms."""
        self._locked: set[tuple[SessionAtBroker, int]] = set()
        """Connections on which a response to LOCK has arrived: before that nothing is proven on them."""
        self._grace: dict[SessionAtBroker, int] = {}

    def proven(self, event: ProofReceived) -> None:
        if event.session is None:
            return
        key = (event.session, event.broker)
        if event.lock:
            self._locked.add((key, event.connection))
            if event.grace_ms is not None:
                self._grace[key] = event.grace_ms
        if (key, event.connection) in self._locked:
            deadline_ms = event.request_boot_ms + self._grace[key] - MARGIN_MS
            self.deadline_ms[key] = max(deadline_ms, self.deadline_ms.get(key, deadline_ms))


class Deletions:
    """The deletions of topics that were requested."""

    LATE_S = 60.0
    """The longest time until a broker that was down is notified."""

    def __init__(self, history: History) -> None:
        self._sent: dict[str, list[LayoutSent]] = {}
        for event in history.of(LayoutSent):
            if event.deleted:
                self._sent.setdefault(event.topic, []).append(event)

    def any_of(self, topic: str) -> bool:
        return topic in self._sent

    def within(self, topic: str, since: float, until: float) -> bool:
        """Return whether the topic may have been deleted between these times."""
        return any(since - self.LATE_S <= event.t <= until for event in self._sent.get(topic, ()))

    def after(self, topic: str, layout: tuple[int, int] | None) -> bool:
        """Return whether a deletion was requested that removes messages stored over this layout; None if the layout is not known."""
        return any(layout is None or event.counter > layout[0] for event in self._sent.get(topic, ()))

    def between(self, topic: str, older: tuple[int, int] | None, newer: tuple[int, int] | None) -> bool:
        """Return whether a deletion was requested that removes messages stored over the older layout, and not those over the newer."""
        if older is None or newer is None:
            return False
        return any(older[0] < event.counter < newer[0] for event in self._sent.get(topic, ()))


class Losses:
    """When queues may have lost messages, so that others got their offsets: power cuts of their broker, deletions of their topic."""

    def __init__(self, history: History) -> None:
        brokers = Brokers(history)
        self._cuts = {name: [history.events[place].t for place in brokers.all_cuts(name)] for name in brokers.lives}
        self._deletions = Deletions(history)

    def between(self, queue: QueueKey, since: float, until: float) -> bool:
        cut = any(since <= t <= until for t in self._cuts.get(queue.broker, ()))
        return cut or self._deletions.within(queue.topic, since, until)


def holders(history: History) -> dict[QueueEpoch, GrantReceived]:
    """Return the grant that the client of each epoch received first, by (queue, epoch)."""
    found: dict[QueueEpoch, GrantReceived] = {}
    for event in history.of(GrantReceived):
        found.setdefault((event.queue, event.epoch), event)
    return found


def falls(values: list[int]) -> list[tuple[int, int]]:
    """Return adjacent values that do not rise."""
    return [(one, next_) for one, next_ in pairwise(values) if next_ <= one]
