"""How long messages have waited at a broker, by its clocks, and when users were given them: for the checkers of D1."""

from math import inf

from sweep.checkers.concurrent_facts import Walls
from sweep.checkers.facts import Brokers, Clocks
from sweep.events.consumers import CallBegan, ConcurrentCallBegan
from sweep.events.members import MemberCallBegan
from sweep.events.readers import PollReturned
from sweep.history import Event, History, QueueKey

LATE_S = 20.0
"""The longest time from due to delivered, in the running time of its broker: its disk may be slow."""
DRIFT = 0.025
"""By how much the boot clocks of a universe differ from true time, at most: Setting.drift, with room."""
START_S = 30.0
"""The longest time of a broker from the reading of its log to its open port."""
MS = 0.002
"""Clocks count whole milliseconds."""
STEP_S = 0.3
"""The largest difference of store times from the wall clock, which is the only clock that counts over a boot."""

Giving = tuple[Event, QueueKey, tuple[bytes, ...]]
"""(event, queue, bodies)."""


def givings(history: History) -> list[Giving]:
    """Return when consumers of any kind were given messages of users' topics."""
    shared = history.of(ConcurrentCallBegan)
    plain: list[CallBegan | MemberCallBegan | PollReturned] = []
    plain += [*history.of(CallBegan), *history.of(MemberCallBegan), *history.of(PollReturned)]
    found: list[Giving] = [(call, call.queue, tuple(body for _, body in call.messages)) for call in plain]
    return found + [(call, call.queue, tuple(each.body for each in call.given if not each.retries)) for call in shared]


class Ages:
    """Measures the time that has passed at a broker: by its boot clock, which may drift; over a boot of its machine by true time."""

    def __init__(self, history: History) -> None:
        self.walls, self.brokers = Walls(history), Brokers(history)
        self._clocks = Clocks(history)
        self._boots = {broker: self.brokers.boots(broker) for broker in self.brokers.lives}

    def passed_s(self, broker: str, since: float, until: float) -> float:
        if self._booted(broker, since, until):
            return until - since
        lives = self.brokers.lives.get(broker)
        return self._clocks.passed_s(lives[0].machine if lives else "", since, until)

    def forward_s(self, broker: str, since: float, until: float) -> float:
        return self.walls.forward_s(since, until, self._boots.get(broker, ()))

    def unknown_s(self, broker: str, since: float, until: float) -> float:
        """Return by how much the time that a broker measures may differ. It is 0 within one boot. Before the boot its stamps followed the
        boot clock, perhaps since its first start; over the boot only the wall clock counts.
        """
        if not self._booted(broker, since, until):
            return 0.0
        return STEP_S + DRIFT * (until - min(since, *(life.opened_t for life in self.brokers.lives[broker])))

    def is_known(self, broker: str, until: float) -> bool:
        """Return whether no boot up to then has met a wall clock that was wrong for long before, or afterwards."""
        for boot in self._boots.get(broker, ()):
            if boot.opened_t > until:
                break
            for begin, end in self.walls.wrong.get(boot.machine, ()):
                if begin < boot.opened_t and (end - begin > self.walls.GLITCH_S or boot.opened_t - START_S < end):
                    return False
        return True

    def wall_ahead(self, broker: str, since: float, until: float) -> list[tuple[float, float, float]]:
        """Return the times (from, until) at which the broker served, and by how many seconds the wall clock of its machine was ahead then
        of the true time, in order. It was constant in each."""
        found = []
        for life in self.brokers.lives.get(broker, ()):
            first, last = max(since, life.opened_t), min(until, inf if life.ended_t is None else life.ended_t)
            ahead_s = 0.0
            for jump in self.walls.jumps.get(life.machine, ()):
                if jump.t >= last:
                    break
                if jump.t > first:
                    found.append((first, jump.t, ahead_s))
                    first = jump.t
                ahead_s += jump.jump_s
            if first < last:
                found.append((first, last, ahead_s))
        return found

    def _booted(self, broker: str, since: float, until: float) -> bool:
        return any(since <= life.opened_t <= until for life in self._boots.get(broker, ()))
