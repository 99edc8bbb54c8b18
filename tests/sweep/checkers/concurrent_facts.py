"""Facts about concurrent groups for several checkers: the message of each send back, how often each was requested, wall clocks."""

from collections import Counter
from collections.abc import Iterable, Iterator
from math import inf

from lockstep.protocol.names import DLQ_PREFIX, RETRY_PREFIX
from sweep.checkers.facts import Life
from sweep.events.consumers import ConcurrentCallBegan, ReceivedMessage
from sweep.events.sends import SendBackSent
from sweep.events.universe import CopyStored, WallClockJumped
from sweep.history import History

Try = tuple[str, str, bytes, int]
"""(group, broker, body, retries): one message at one of its tries."""


class SendBacks:
    """Every send back, by the message that its consumer had received from that place of the log."""

    def __init__(self, history: History) -> None:
        self.tries: dict[Try, list[SendBackSent]] = {}
        self.unknown: list[SendBackSent] = []
        """Send backs of messages that their process had never received."""
        received: dict[tuple[int, str, int], ReceivedMessage] = {}
        for event in history:
            if isinstance(event, ConcurrentCallBegan):
                for each in event.given:
                    received[event.process, event.queue.broker, each.position] = each
            elif isinstance(event, SendBackSent):
                message = received.get((event.process, event.broker, event.position))
                if message is None:
                    self.unknown.append(event)
                    continue
                self.tries.setdefault((event.group, event.broker, message.body, message.retries), []).append(event)


class StoredCopies:
    """The copies in `%RETRY%group` and `%DLQ%group` in the final reading."""

    def __init__(self, history: History) -> None:
        self.retries: dict[Try, list[CopyStored]] = {}
        self.dead: dict[Try, list[CopyStored]] = {}
        self.dead_bodies: dict[str, Counter[bytes]] = {}
        for copy in history.of(CopyStored):
            topic = copy.queue.topic
            found = self.dead if topic.startswith(DLQ_PREFIX) else self.retries
            group = topic.removeprefix(DLQ_PREFIX).removeprefix(RETRY_PREFIX)
            found.setdefault((group, copy.queue.broker, copy.body, copy.retries), []).append(copy)
            if found is self.dead:
                self.dead_bodies.setdefault(group, Counter())[copy.body] += 1


class Walls:
    """When the wall clocks of machines were wrong, and how far they were set forward."""

    GLITCH_S = 30.0
    """A running broker never follows a wall clock that is right again within this time."""

    def __init__(self, history: History) -> None:
        self.jumps: dict[str, list[WallClockJumped]] = {}
        """Machine → when its wall clock was set, in order."""
        self.wrong: dict[str, list[tuple[float, float]]] = {}
        """Machine → times (from, until) at which its wall clock differed from its initial setting."""
        ahead: dict[str, float] = {}
        for jump in history.of(WallClockJumped):
            self.jumps.setdefault(jump.machine, []).append(jump)
            before = ahead.get(jump.machine, 0.0)
            ahead[jump.machine] = before + jump.jump_s
            times = self.wrong.setdefault(jump.machine, [])
            if not before:
                times.append((jump.t, inf))
            elif not ahead[jump.machine]:
                times[-1] = (times[-1][0], jump.t)

    def forward_s(self, since: float, until: float, boots: Iterable[Life]) -> float:
        """Return by how much a message stored at `since` may be due sooner at `until`. `boots`: when its broker opened its port after its
        machine had been off: only the wall clock shows for how long. Within one boot only the boot clock counts.
        """
        within = [life for life in boots if since <= life.opened_t <= until]
        return max((sum(max(0.0, jump.jump_s) for jump in self._jumps(at)) for at in within), default=0.0)

    def _jumps(self, life: Life) -> Iterator[WallClockJumped]:
        """Yield the jumps before a broker opened its port."""
        return (jump for jump in self.jumps.get(life.machine, ()) if jump.t <= life.opened_t)
