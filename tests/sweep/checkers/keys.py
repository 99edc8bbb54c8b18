"""O4: the order of a key, from the producer's acknowledgement to the listener.

If A was acknowledged before B of the same key was sent, both over one version of the layout, then A lies before B in the same queue, and
every group's first successful call of A is before its first successful call of B, unless the consumer of that call may pass over A.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lockstep.protocol.order import overtakings
from sweep.checkers.messages import Messages, Passes
from sweep.checkers.violation import Violation, process_name
from sweep.events.consumers import CallBegan, CallEnded
from sweep.events.producers import SendAcked, SendBegan
from sweep.events.progress import CommitSent
from sweep.events.sends import FrameResponded, FrameWritten
from sweep.events.universe import MessageStored
from sweep.history import CallResult, History, QueueKey

Layout = tuple[int, int]
Chain = tuple[str, str, Layout]
"""(topic, key, layout)."""
Commits = dict[QueueKey, list[CommitSent]]


@dataclass(frozen=True, slots=True)
class _First:
    """The first successful call of a group with a message."""

    rank: int
    """The position of the message among all: those of one call keep their order."""
    end: CallEnded


def check(history: History) -> list[Violation]:
    messages = Messages(history)
    layouts = _layouts(history, messages)
    firsts, excuses = _first_successful_calls(history), _Excuses(history, Passes(history, messages))
    sent = {event.body: at for at, event in enumerate(history) if isinstance(event, SendBegan)}
    acked = {event.body: at for at, event in enumerate(history) if isinstance(event, SendAcked)}
    chains: dict[Chain, list[MessageStored]] = {}
    for began in history.of(SendBegan):
        chain, stored = _chain(began, layouts), _place(messages, began.body)
        if chain is not None and stored is not None:
            chains.setdefault(chain, []).append(stored)
    found = []
    for chain, stored_messages in chains.items():
        judged = _Chain(chain, messages, stored_messages, sent, acked)
        found += judged.stored_in_order() or [wrong for calls in firsts.values() for wrong in judged.handled_in_order(calls, excuses)]
    return found


class _Excuses:
    """Decides whether a call may have come before that of an earlier message."""

    def __init__(self, history: History, passes: Passes) -> None:
        self._passes = passes
        self._commits: Commits = {}
        for commit in history.of(CommitSent):
            self._commits.setdefault(commit.queue, []).append(commit)

    def hold(self, call: CallEnded, offset: int) -> bool:
        """Return whether the consumer of `call` may pass over `offset`, or another one had."""
        queue = call.queue
        if self._passes.may_pass(queue, offset, call.process) or self._passes.skipped(queue, offset):
            return True
        return _passed_over(self._commits.get(queue, []), offset, call.t, self._passes)


@dataclass(frozen=True, slots=True)
class _Chain:
    """The stored messages of one key under one layout, in the order in which their sends began."""

    chain: Chain
    messages: Messages
    stored: list[MessageStored]
    sent: dict[bytes, int]
    acked: dict[bytes, int]
    """Body → place of the event in the history."""

    def _overtakings(
        self, work: list[MessageStored], excused: Callable[[MessageStored, MessageStored], bool]
    ) -> Iterator[tuple[MessageStored, MessageStored]]:
        return overtakings(work, lambda one: self.sent[one.body], lambda one: self.acked.get(one.body), excused)

    def stored_in_order(self) -> list[Violation]:
        found = []
        others = sorted(self.stored, key=lambda one: self.sent[one.body], reverse=True)
        for began, acked in self._overtakings(others, lambda one, other: one.queue == other.queue):
            found.append(self._wrong(acked, began, "the key moved to another queue"))
        by_offset = sorted(self.stored, key=lambda one: (one.queue, one.offset))
        for began, acked in self._overtakings(by_offset, lambda one, other: one.queue != other.queue):
            found.append(self._wrong(acked, began, "stored in the wrong order"))
        return found

    def _wrong(self, one: MessageStored, other: MessageStored, what: str) -> Violation:
        acked, began = self.messages.acked[one.body], self.messages.began[other.body]
        both = (
            f"{one.body!r:.40} ({one.queue} offset {one.offset}, acknowledged at {acked.t:.3f}), then {other.body!r:.40} "
            f"({other.queue} offset {other.offset}, sent at {began.t:.3f})"
        )
        return Violation("O4", began.t, f"{_name(self.chain)}: {both}: {what}")

    def handled_in_order(self, calls: dict[bytes, _First], excuses: _Excuses) -> list[Violation]:
        """Check the order of the first successful calls of one group."""
        work = sorted((one for one in self.stored if one.body in calls), key=lambda one: calls[one.body].rank)
        found = []
        for other, one in self._overtakings(work, lambda other, one: excuses.hold(calls[other.body].end, one.offset)):
            after, before = calls[other.body].end, calls[one.body].end
            text = (
                f"{_name(self.chain)}: group {after.queue.group} handled {other.body!r:.40} ({other.queue} offset {other.offset}) in call "
                f"{after.call} by {process_name(after)} first, {one.body!r:.40} (offset {one.offset}) in call {before.call} "
                f"by {process_name(before)} at {before.t:.3f}"
            )
            found.append(Violation("O4", after.t, text))
        return found


def _passed_over(commits: list[CommitSent], offset: int, until: float, passes: Passes) -> bool:
    """Return whether another member's subscription had filtered it by then, so that only a later decrease of progress delivered it."""
    later = (commit for commit in commits if commit.t <= until and (commit.offset or 0) > offset)
    return any(passes.may_pass(commit.queue, offset, commit.process, commit.t) for commit in later)


def _name(chain: Chain) -> str:
    return f'key "{chain[1]}" layout {chain[2][0]}'


def _chain(began: SendBegan, layouts: dict[bytes, Layout]) -> Chain | None:
    layout = layouts.get(began.body)
    return None if began.key is None or layout is None else (began.topic, began.key, layout)


def _place(messages: Messages, body: bytes) -> MessageStored | None:
    """Return the message in the final logs; None if it is not stored, or in several places (R9 reports that)."""
    places = messages.places.get(body, [])
    return places[0] if len(places) == 1 else None


def _layouts(history: History, messages: Messages) -> dict[bytes, Layout]:
    """Return the layout over which each stored message was hashed: of the frame with response OK, else of the last one for its queue."""
    responded = {event.request for event in history.of(FrameResponded) if event.offset >= 0}
    found: dict[bytes, Layout] = {}
    sure: set[bytes] = set()
    for frame in history.of(FrameWritten):
        if frame.layout is None:
            continue
        for body in frame.bodies:
            stored = _place(messages, body)
            if stored is None or stored.queue != frame.queue or body in sure:
                continue
            found[body] = frame.layout
            if frame.request in responded:
                sure.add(body)
    return found


def _first_successful_calls(history: History) -> dict[str, dict[bytes, _First]]:
    """Return the first successful call of each message: group → body → call."""
    calls = {call.call: call for call in history.of(CallBegan)}
    found: dict[str, dict[bytes, _First]] = {}
    rank = 0
    for end in history.of(CallEnded):
        call = calls.get(end.call)
        if call is None or end.result not in (CallResult.SUCCESS, CallResult.COUNTED, CallResult.CANCEL_IGNORED):
            continue
        for _, body in call.messages:
            rank += 1
            found.setdefault(call.queue.group, {}).setdefault(body, _First(rank, end))
    return found
