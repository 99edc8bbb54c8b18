"""O1, O2, O6, R6: accepted offsets never fall, none is accepted twice, and no crash forgets an acknowledged commit.

The facts are grants (each has the committed offset, the generation and the epoch) and confirmed commits. Order is real time: a LOCK must
reflect only commits that were confirmed before it was written.
"""

from sweep.checkers.facts import Brokers, Deletions, QueueEpoch, RisingMax, falls
from sweep.checkers.violation import Violation, process_name
from sweep.events.locks import LockGranted
from sweep.events.progress import CommitResponded, ProgressReset, ProgressResponded, ResetSent
from sweep.events.universe import BrokerOpened
from sweep.history import Event, History, ItemVerdict, QueueKey


def check(history: History) -> list[Violation]:
    return [*_terms(history), *_never_falls(history), *_accepted_once(history), *_not_forgotten(history)]


def _terms(history: History) -> list[Violation]:
    """Check O1: fences never fall over a start, so the term rises with each start."""
    found = []
    opened: dict[str, list[BrokerOpened]] = {}
    for event in history.of(BrokerOpened):
        opened.setdefault(event.broker, []).append(event)
    for broker, starts in opened.items():
        for one, next_ in falls([event.term for event in starts]):
            at = next(event for event in starts[1:] if event.term == next_)
            found.append(Violation("O1", at.t, f"{broker} opened with term {next_} after term {one}"))
    return found


def _generations(history: History) -> dict[QueueEpoch, int]:
    """Return the generation that the grants of each (queue, epoch) name."""
    return {(event.queue, event.epoch): event.generation for event in history.of(LockGranted)}


def _never_falls(history: History) -> list[Violation]:
    """Check O1: offsets never fall within a generation, epochs and generations never fall."""
    found = []
    generations = _generations(history)
    terms: dict[int, int] = {}
    """By process: it may open again as the master, in a later term."""
    offsets: dict[tuple[QueueKey, int], RisingMax] = {}
    epochs: dict[QueueKey, RisingMax] = {}
    numbers: dict[QueueKey, RisingMax] = {}
    for event in history:
        if type(event) is CommitResponded and event.epoch is not None and event.offset is not None:
            generation = generations.get((event.queue, event.epoch))
            if generation is not None and event.verdict in (ItemVerdict.OK, ItemVerdict.NOT_YOURS):
                offsets.setdefault((event.queue, generation), RisingMax()).add(event.t, event.offset)
        elif type(event) is BrokerOpened:
            terms[event.process] = event.term
        elif type(event) is LockGranted:
            what = f"{event.queue} epoch {event.epoch} {'renewed for' if event.renewal else 'granted to'} session {_short(event.session)}"
            where = f"{what} by {process_name(event)} (requested {event.request_t:.3f})"
            accepted = offsets.setdefault((event.queue, event.generation), RisingMax())
            top = accepted.before(event.request_t)
            if top is not None and event.offset < top:
                text = f"{where} at offset {event.offset}: generation {event.generation} had accepted {top}"
                found.append(Violation("O1", event.t, text))
            seen = epochs.setdefault(event.queue, RisingMax())
            highest = seen.before(event.request_t)
            if highest is not None and (event.epoch < highest or (event.epoch == highest and not event.renewal)):
                found.append(Violation("O1", event.t, f"{where}: epoch {highest} was granted before"))
            term = terms.get(event.process)
            if not event.renewal and term is not None and event.epoch >> 32 != term:
                found.append(Violation("O1", event.t, f"{where}: its term is {event.epoch >> 32}, the broker's {term}"))
            number = numbers.setdefault(event.queue, RisingMax())
            last = number.before(event.request_t)
            if last is not None and event.generation < last:
                found.append(Violation("O1", event.t, f"{where} in generation {event.generation}: generation {last} was used before"))
            accepted.add(event.t, event.offset)
            number.add(event.t, event.generation)
            seen.add(event.t, event.epoch)
    return found


def _accepted_once(history: History) -> list[Violation]:
    """Check O2: within a generation an epoch begins at or above all commits of lower epochs that were confirmed."""
    begins: dict[tuple[QueueKey, int], dict[int, LockGranted]] = {}
    for grant in history.of(LockGranted):
        if not grant.renewal:
            begins.setdefault((grant.queue, grant.generation), {}).setdefault(grant.epoch, grant)
    tops: dict[QueueEpoch, CommitResponded] = {}
    for commit in history.of(CommitResponded):
        if commit.verdict is ItemVerdict.OK and commit.epoch is not None and commit.offset is not None:
            top = tops.get((commit.queue, commit.epoch))
            if top is None or top.offset is None or commit.offset > top.offset:
                tops[commit.queue, commit.epoch] = commit
    found = []
    for (queue, generation), grants in begins.items():
        above: CommitResponded | None = None
        for epoch in sorted(grants):
            grant = grants[epoch]
            own = tops.get((queue, epoch))
            accepted = own is not None and own.offset is not None and own.offset > grant.offset
            if own is not None and accepted and above is not None and above.offset is not None and grant.offset < above.offset:
                text = (
                    f"{queue} generation {generation}: epoch {above.epoch} had commits confirmed up to {above.offset} at {above.t:.3f}, "
                    f"epoch {epoch} began at {grant.offset} ({grant.t:.3f}) and had commits confirmed up to {own.offset} at {own.t:.3f}"
                )
                found.append(Violation("O2", own.t, text))
            if own is not None and (above is None or above.offset is None or (own.offset or 0) > above.offset):
                above = own
    return found


class _Acknowledged:
    """The commits of one queue that must still be known."""

    __slots__ = ("commits", "top")

    def __init__(self) -> None:
        self.commits: list[tuple[int, CommitResponded]] = []
        """(place, commit), offsets rising."""
        self.top = RisingMax()

    def add(self, place: int, commit: CommitResponded) -> None:
        assert commit.offset is not None
        if not self.commits or commit.offset > (self.commits[-1][1].offset or 0):
            self.commits.append((place, commit))
            self.top.add(commit.t, commit.offset)

    def keep(self, kept: list[tuple[int, CommitResponded]]) -> None:
        self.commits, self.top = [], RisingMax()
        for place, commit in kept:
            self.add(place, commit)


def _not_forgotten(history: History) -> list[Violation]:
    """Check O6, or R6 if the broker was started in between: a grant begins at or above every acknowledged commit.

    Under async flush a power cut may remove commits of the lost suffix; a reset removes all.
    """
    brokers = Brokers(history)
    cuts = {cut: broker for broker in brokers.lives for cut in brokers.lossy_cuts(broker)}
    known: dict[QueueKey, _Acknowledged] = {}
    deletions = Deletions(history)
    maybe: dict[QueueKey, list[int]] = {}
    """Resets that were sent."""
    opened: dict[str, float] = {}
    found = []
    for place, event in enumerate(history):
        if place in cuts:
            for queue, acknowledged in known.items():
                if queue.broker == cuts[place]:
                    acknowledged.keep([one for one in acknowledged.commits if not _may_be_gone(brokers, one, place)])
        if type(event) is BrokerOpened:
            opened[event.broker] = event.t
        elif type(event) is ProgressReset or (type(event) is CommitResponded and event.by == "UPDATE"):
            _reset(known, event)
        elif type(event) is CommitResponded:
            if event.verdict is ItemVerdict.OK and event.offset is not None:
                known.setdefault(event.queue, _Acknowledged()).add(place, event)
        elif type(event) is ResetSent:
            maybe.setdefault(event.queue, []).append(event.offset)
        elif isinstance(event, LockGranted | ProgressResponded) and event.queue in known:
            top = known[event.queue].top.before(event.request_t)
            if top is not None and event.offset < top:
                if event.offset in maybe.get(event.queue, ()) or deletions.any_of(event.queue.topic):
                    # No client got the response, or the topic was created again. generations.py checks whether the generation is new.
                    del known[event.queue]
                    continue
                commit = next(commit for _, commit in known[event.queue].commits if commit.offset == top)
                law = "R6" if opened.get(event.queue.broker, 0.0) > commit.t else "O6"
                what = f"epoch {event.epoch}" if isinstance(event, LockGranted) else f"generation {event.generation}"
                text = (
                    f"{event.queue}: {what} was granted at offset {event.offset} (requested {event.request_t:.3f}), but {top} "
                    f"under epoch {commit.epoch} of session {_short(commit.session)} was acknowledged at {commit.t:.3f}"
                )
                found.append(Violation(law, event.t, text))
    return found


def _reset(known: dict[QueueKey, _Acknowledged], event: Event) -> None:
    assert isinstance(event, ProgressReset | CommitResponded)
    if isinstance(event, ProgressReset) or event.verdict is ItemVerdict.OK:
        known.pop(event.queue, None)


def _may_be_gone(brokers: Brokers, one: tuple[int, CommitResponded], cut: int) -> bool:
    place, commit = one
    return brokers.removing_cut(commit.queue.broker, commit.process, place, commit.t) == cut


def _short(session: str | None) -> str:
    return "none" if session is None else session[:8]
