"""Who held which queue when, from the history of a universe: lanes, and a picture of each group. Pure.

A grant begins when its broker wrote the response. It ends when the broker accepted the release or responded that the epoch is over, when
its client's next LOCK did not name the queue, or when another session was granted the queue. No connection shows that a broker ended a
session by itself: the bar of an owner that died or was silent is pale from its last sign on, until the next grant.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from lockstep.operations.groups.ownership import OwnershipLane, Span
from lockstep.operations.pictures.owners import owners_picture
from sweep.checkers.violation import Violation
from sweep.events.locks import ClassicLocked, ClassicUnlockSent, LockGranted, LockRefused, LockSent, ProofReceived
from sweep.events.progress import CommitResponded
from sweep.events.universe import Fault, ProcessEnded, ProcessStarted
from sweep.history import History, ItemVerdict, QueueKey

OVER = (ItemVerdict.STALE, ItemVerdict.NOT_YOURS)
SUMMARY_MAX = 130
"""The characters that fit the width of a picture."""


@dataclass(slots=True)
class _Hold:
    """A grant that has not ended."""

    session: str | None
    process: int
    span: Span


def lanes(history: History) -> dict[str, list[OwnershipLane]]:
    """Return the lanes of each group, from 0 to the end of the history in ms of virtual time. An owner is named "machine#process"."""
    return _Owners(history).run()


def pictures(history: History, violations: Sequence[Violation], title: str) -> list[tuple[str, str]]:
    """Return (group, SVG) for each group that was granted a queue: those that a violation names come first. `title` begins the summary."""
    found = lanes(history)
    period = 0, _ms(history.events[-1].t)
    drawn = []
    for group, own in found.items():
        named = [each for each in violations if any(f"{group} {lane.topic}@" in each.text for lane in own)]
        violated = next(iter(named or violations), None)
        summary = f"{title}: {'no violation' if violated is None else violated}"
        shown = summary if len(summary) <= SUMMARY_MAX else summary[: SUMMARY_MAX - 1] + "…"
        drawn.append((not named, group, owners_picture(group, own, (), period, shown)))
    return [(group, picture) for _, group, picture in sorted(drawn)]


def _ms(t: float) -> int:
    return round(t * 1000)


class _Owners:
    """One pass over a history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._machines = {event.process: event.machine for event in history.of(ProcessStarted)}
        self._holds: dict[QueueKey, _Hold] = {}
        self._spans: dict[QueueKey, list[Span]] = {}
        """The spans that have ended, without those in which nobody held the queue."""
        self._heard: dict[tuple[str | None, str], float] = {}
        """(session, broker) → when the last request was written that the broker received."""
        self._ended: set[int] = set()
        """Processes."""

    def run(self) -> dict[str, list[OwnershipLane]]:
        for event in self._history:
            if isinstance(event, LockGranted):
                self._heard[event.session, event.queue.broker] = event.request_t
                self._granted(event)
            elif isinstance(event, ClassicLocked):
                if event.granted:
                    self._begin(event.queue, event.t, event.client_id, event.client, None)
            elif isinstance(event, ProofReceived):
                self._heard[event.session, event.broker] = event.request_t
            elif isinstance(event, CommitResponded):
                if event.epoch is not None and event.released and event.verdict is ItemVerdict.OK:
                    self._end_epoch(event.queue, event.epoch, event.t, "released")
                elif event.epoch is not None and event.verdict in OVER:
                    self._end_epoch(event.queue, event.epoch, event.t, f"a commit was {event.verdict.value}")
            elif isinstance(event, LockRefused):
                if event.epoch is not None and event.verdict in OVER:
                    self._end_epoch(event.queue, event.epoch, event.t, f"a renewal was {event.verdict.value}")
            elif isinstance(event, LockSent) and event.session is not None:
                named = {queue for queue, epoch in event.items if epoch is not None}
                self._end_all(event.t, event.broker, "not named in a LOCK", session=event.session, but=named)
            elif isinstance(event, ClassicUnlockSent):
                if (hold := self._holds.get(event.queue)) is not None and hold.session == event.client_id:
                    self._end(event.queue, event.t, "released")
            elif isinstance(event, ProcessEnded):
                self._end_process(event)
            elif isinstance(event, Fault) and event.kind == "wipe":
                self._end_all(event.t, event.target, "the store was emptied")
        return self._lanes(self._history.events[-1].t if self._history.events else 0.0)

    def _granted(self, event: LockGranted) -> None:
        hold, spans = self._holds.get(event.queue), self._spans.get(event.queue, ())
        newest = max((span.epoch or 0 for span in (*spans, *([] if hold is None else [hold.span]))), default=0)
        ended_ms = max((span.until_ms for span in spans if span.epoch == event.epoch), default=0)
        if event.epoch < newest or (event.renewal and _ms(event.request_t) < ended_ms):
            return  # the response to a LOCK from before the end
        self._begin(event.queue, event.t, event.session, event.client, event.epoch)

    def _begin(self, queue: QueueKey, t: float, session: str | None, process: int, epoch: int | None) -> None:
        hold = self._holds.get(queue)
        if hold is not None and (hold.session, hold.span.epoch) == (session, epoch):
            return
        if hold is not None and (heard_t := self._heard.get((hold.session, queue.broker))) is not None and hold.process not in self._ended:
            hold.span = replace(hold.span, alive_until_ms=max(_ms(heard_t), hold.span.from_ms))
        self._end(queue, t, "granted to another session")
        self._holds[queue] = _Hold(session, process, Span(_ms(t), _ms(t), f"{self._machines.get(process, '')}#{process}", epoch))

    def _end(self, queue: QueueKey, t: float, why: str | None) -> None:
        if (hold := self._holds.pop(queue, None)) is not None:
            self._spans.setdefault(queue, []).append(replace(hold.span, until_ms=_ms(t), ended=why))

    def _end_epoch(self, queue: QueueKey, epoch: int, t: float, why: str) -> None:
        if (hold := self._holds.get(queue)) is not None and hold.span.epoch == epoch:
            self._end(queue, t, why)

    def _end_all(self, t: float, broker: str, why: str, *, session: str | None = None, but: Collection[QueueKey] = ()) -> None:
        """End the grants of a broker, of one session if it is given, except those of some queues."""
        for queue, hold in list(self._holds.items()):
            if queue.broker == broker and session in (None, hold.session) and queue not in but:
                self._end(queue, t, why)

    def _end_process(self, event: ProcessEnded) -> None:
        self._ended.add(event.process)
        for hold in self._holds.values():
            if hold.process == event.process:
                hold.span = replace(hold.span, alive_until_ms=_ms(event.t))

    def _lanes(self, end_t: float) -> dict[str, list[OwnershipLane]]:
        for queue in list(self._holds):
            self._end(queue, end_t, None)
        found: dict[str, list[OwnershipLane]] = {}
        for queue, held in sorted(self._spans.items(), key=lambda each: (each[0].group, each[0].topic, each[0].broker, each[0].queue)):
            spans: list[Span] = []
            for span in held:
                spans += [*_gap(spans, span.from_ms), span]
            spans += _gap(spans, _ms(end_t))
            found.setdefault(queue.group, []).append(OwnershipLane(queue.topic, queue.broker, queue.queue, tuple(spans)))
        return found


def _gap(spans: Sequence[Span], until_ms: int) -> list[Span]:
    """Return the span in which nobody held the queue, from the last of these to `until_ms`; empty if there is no time between."""
    begin_ms = spans[-1].until_ms if spans else 0
    return [Span(begin_ms, until_ms)] if begin_ms < until_ms else []
