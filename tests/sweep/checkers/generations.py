"""O1 (ordering.md 2.4): progress begins again, or jumps, only for a cause.

a  a new generation has a cause: a reset that was sent, a topic that was deleted, a commit without an epoch, a suffix that may be
   lost; after a reset it begins at the reset's offset
b  within a generation a grant names its first offset or one that was committed in it, none beyond: no jump
c  a confirmed reset is in force: the response to a later LOCK does not have the generation from before it, and nothing under an epoch
   from before it is accepted or served
"""

from dataclasses import dataclass, field
from math import inf

from lockstep.protocol.codes import ResponseCode
from sweep.checkers.facts import Brokers
from sweep.checkers.violation import Violation, process_name
from sweep.events.consumers import QueueGapSeen
from sweep.events.locks import LockGranted
from sweep.events.progress import CommitResponded, CommitSent, ProgressReset, PullReceived, ResetSent
from sweep.events.sends import DeadLetterSent, LayoutSent
from sweep.events.universe import BrokerOpened, Fault, ReadingEnded
from sweep.history import History, ItemVerdict, QueueKey


@dataclass(slots=True)
class _Queue:
    """One queue of a group."""

    generation: int | None = None
    """The generation of the last grant."""
    epoch: int = 0
    """The epoch of the last grant."""
    top: int = 0
    """The first offset of the last grant's generation, or the highest that was committed in it."""
    possible: list[ResetSent] = field(default_factory=list)
    """Resets that may have been executed since."""
    excuse: bool = False
    """Another cause may have begun a new generation since: a lossy power cut, a deleted topic, a commit without an epoch."""
    confirmed: ProgressReset | None = None
    """The last confirmed reset, and the generation and epoch of the last grant before that."""
    before_reset: tuple[int | None, int] = (None, 0)


def check(history: History) -> list[Violation]:
    return _Generations(history).run()


class _Generations:
    """One pass over a history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.queues: dict[QueueKey, _Queue] = {}
        self.generations: dict[tuple[QueueKey, int], int] = {}
        """(queue, epoch) → generation."""
        brokers = Brokers(history)
        self.cuts = {cut: broker for broker in brokers.lives for cut in brokers.assumed_cuts(broker)}
        self.machines = {event.broker: event.machine for event in history.of(BrokerOpened)}
        self.gaps: dict[QueueKey, set[int]] = {}
        for gap in history.of(QueueGapSeen):
            self.gaps.setdefault(gap.queue, set()).add(gap.end)
        self.first: dict[QueueKey, int] = {event.queue: event.first for event in history.of(ReadingEnded)}
        self.deleted: set[str] = set()
        """Topics whose deletion a broker may get late."""
        self.found: list[Violation] = []

    def run(self) -> list[Violation]:
        for place, event in enumerate(self.history):
            if place in self.cuts:
                self._excuse_broker(self.cuts[place])
            if isinstance(event, LockGranted):
                self._granted(event)
            elif isinstance(event, ResetSent):
                self._queue(event.queue).possible.append(event)
            elif isinstance(event, ProgressReset):
                queue = self._queue(event.queue)
                queue.confirmed, queue.before_reset = event, (queue.generation, queue.epoch)
            elif isinstance(event, CommitSent):
                self._sent(event)
            elif isinstance(event, DeadLetterSent):
                if self.generations.get((event.queue, event.epoch)) == self._queue(event.queue).generation:
                    self._queue(event.queue).top = max(self._queue(event.queue).top, event.offset + 1)
            elif isinstance(event, CommitResponded):
                if event.verdict is ItemVerdict.OK and event.epoch is not None:
                    self._served(event.queue, event.epoch, event.request_t, event.t, f"a commit of {event.offset}")
            elif isinstance(event, PullReceived):
                if event.code == ResponseCode.SUCCESS and event.epoch is not None:
                    self._served(event.queue, event.epoch, event.request_t, event.t, f"a pull from {event.offset}")
            elif isinstance(event, LayoutSent):
                if event.deleted:
                    self.deleted.add(event.topic)
            elif isinstance(event, Fault) and event.kind.startswith("disk"):
                for broker in [broker for broker, machine in self.machines.items() if machine == event.machine]:
                    self._excuse_broker(broker)
        return self.found

    def _queue(self, key: QueueKey) -> _Queue:
        return self.queues.setdefault(key, _Queue())

    def _excuse_broker(self, broker: str) -> None:
        for key in [key for key in self.queues if key.broker == broker]:
            self._excuse(key)

    def _excuse(self, key: QueueKey) -> None:
        self.queues[key].excuse = True
        self.queues[key].confirmed = None

    # -------------------------------------------------------------------------------------------------------------- grants

    def _granted(self, grant: LockGranted) -> None:
        queue = self._queue(grant.queue)
        self.generations.setdefault((grant.queue, grant.epoch), grant.generation)
        where = f"{grant.queue} epoch {grant.epoch} {'renewed' if grant.renewal else 'granted'} by {process_name(grant)}"
        reset = queue.confirmed
        if (
            reset is not None
            and grant.request_t > reset.t
            and queue.before_reset[0] is not None
            and grant.generation <= queue.before_reset[0]
        ):
            text = f"{where} in generation {grant.generation}: the reset to {reset.offset} was confirmed at {reset.t:.3f}"
            self._report(grant.t, text)
        if queue.generation is None or grant.generation > queue.generation:
            self._began(grant, queue, where)
        elif grant.generation == queue.generation:
            if grant.offset > queue.top and not self._removed(grant.queue, grant.offset):
                self._report(grant.t, f"{where} at offset {grant.offset}: nothing beyond {queue.top} was committed in its generation")
            queue.top = max(queue.top, grant.offset)
        queue.epoch = max(queue.epoch, grant.epoch)

    def _began(self, grant: LockGranted, queue: _Queue, where: str) -> None:
        """Check the first grant in this generation, in which there can be no commits yet."""
        known = any(reset.offset == grant.offset for reset in queue.possible)
        if (
            queue.generation is not None
            and not queue.excuse
            and not known
            and grant.queue.topic not in self.deleted
            and not self._removed(grant.queue, grant.offset)
        ):
            resets = ", ".join(str(reset.offset) for reset in queue.possible) or "none"
            text = f"{where} at offset {grant.offset} in generation {grant.generation} after {queue.generation}; possible resets: {resets}"
            self._report(grant.t, text)
        # A first grant, and one after a start that assumed a loss, need no cause: a reset that was sent to just this offset may not have
        # been executed yet.
        later = -inf if queue.excuse else grant.request_t if queue.generation is None else inf
        queue.generation, queue.top, queue.excuse = grant.generation, grant.offset, False
        at = next((number for number, reset in enumerate(queue.possible) if reset.offset == grant.offset and reset.t <= later), None)
        if at is not None:
            responded = queue.confirmed is not None and queue.confirmed.offset == grant.offset
            queue.possible = [] if responded and len(queue.possible) == 1 else queue.possible[:at] + queue.possible[at + 1 :]

    def _removed(self, key: QueueKey, offset: int) -> bool:
        """Return whether retention has moved the group to this offset."""
        return offset in self.gaps.get(key, ()) or 0 < offset <= self.first.get(key.stored, 0)

    # ------------------------------------------------------------------------------------------------------------- commits

    def _sent(self, event: CommitSent) -> None:
        queue = self._queue(event.queue)
        if event.offset is None:
            return
        if event.epoch is None:
            queue.excuse = True
            queue.top = max(queue.top, event.offset)
        elif self.generations.get((event.queue, event.epoch)) == queue.generation:
            queue.top = max(queue.top, event.offset, *event.done[-1:])  # a dead letter below a done range moves progress to its end

    def _served(self, key: QueueKey, epoch: int, request_t: float, t: float, what: str) -> None:
        queue = self._queue(key)
        if queue.confirmed is not None and epoch <= queue.before_reset[1] and request_t > queue.confirmed.t:
            reset = queue.confirmed
            text = f"{key}: {what} under epoch {epoch} was served after the reset to {reset.offset}, confirmed at {reset.t:.3f}"
            self._report(t, text)

    def _report(self, t: float, text: str) -> None:
        self.found.append(Violation("O1", t, text))
