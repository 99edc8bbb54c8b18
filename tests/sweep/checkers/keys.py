"""O4: the order of a key, from the producer's acknowledgement to the listener.

If A was acknowledged before B of the same key was sent, both over one version of the layout, then A lies before B in the same queue, and
every group's first good call of A comes before its first good call of B, unless the consumer of that call may pass over A.
"""

from dataclasses import dataclass

from sweep.checkers.messages import Messages, Passes
from sweep.checkers.violation import Violation, who
from sweep.events import CallBegan, CallEnded, CommitSent, FrameAnswered, FrameWritten, SendAcked, SendBegan, Stored
from sweep.history import CallResult, History, QueueKey

Layout = tuple[int, int]
Chain = tuple[str, str, Layout]
"""(topic, key, layout)."""
Commits = dict[QueueKey, list[CommitSent]]


@dataclass(frozen=True, slots=True)
class _First:
    """The first call of a group that did a message well."""

    rank: int
    """Of the message among all: those of one call keep their order."""
    end: CallEnded


def check(history: History) -> list[Violation]:
    messages = Messages(history)
    layouts = _layouts(history, messages)
    firsts, passes = _first_good_calls(history), Passes(history, messages)
    commits: Commits = {}
    for commit in history.of(CommitSent):
        commits.setdefault(commit.queue, []).append(commit)
    found = []
    tops: dict[Chain, tuple[SendAcked, Stored]] = {}
    """Of each chain the acknowledged message with the highest offset so far."""
    for event in history:
        if isinstance(event, SendBegan):
            chain, stored = _chain(event, layouts), _place(messages, event.body)
            top = None if chain is None else tops.get(chain)
            if chain is not None and stored is not None and top is not None:
                found += _compare(chain, top, event, stored) or _done_in_order(chain, top[1], stored, firsts, passes, commits)
        elif isinstance(event, SendAcked):
            began = messages.began.get(event.body)
            chain = None if began is None else _chain(began, layouts)
            stored = _place(messages, event.body)
            if chain is not None and stored is not None and (chain not in tops or tops[chain][1].offset < stored.offset):
                tops[chain] = (event, stored)
    return found


def _compare(chain: Chain, top: tuple[SendAcked, Stored], began: SendBegan, other: Stored) -> list[Violation]:
    acked, one = top
    what = (
        f"{_name(chain)}: {one.body!r:.40} ({one.queue} offset {one.offset}, acknowledged at {acked.t:.3f}), then {other.body!r:.40} "
        f"({other.queue} offset {other.offset}, sent at {began.t:.3f})"
    )
    if one.queue != other.queue:
        return [Violation("O4", began.t, f"{what}: the key moved to another queue")]
    if other.offset <= one.offset:
        return [Violation("O4", began.t, f"{what}: stored in the wrong order")]
    return []


def _done_in_order(
    chain: Chain, one: Stored, other: Stored, firsts: dict[str, dict[bytes, _First]], passes: Passes, commits: Commits
) -> list[Violation]:
    found = []
    for group, calls in firsts.items():
        before, after = calls.get(one.body), calls.get(other.body)
        if before is None or after is None or before.rank < after.rank:
            continue
        queue = after.end.queue
        if passes.may_pass(queue, one.offset, after.end.process) or passes.skipped(queue, one.offset):
            continue
        if not _passed_over(commits.get(queue, []), one.offset, after.end.t, passes):
            text = (
                f"{_name(chain)}: group {group} did {other.body!r:.40} ({other.queue} offset {other.offset}) in call {after.end.call} by "
                f"{who(after.end.machine, after.end.process)} first, {one.body!r:.40} (offset {one.offset}) in call {before.end.call} "
                f"by {who(before.end.machine, before.end.process)} at {before.end.t:.3f}"
            )
            found.append(Violation("O4", after.end.t, text))
    return found


def _passed_over(commits: list[CommitSent], offset: int, until: float, passes: Passes) -> bool:
    """By then another member's subscription had left it out, and only somebody who set progress back brought it up again."""
    behind = (commit for commit in commits if commit.t <= until and (commit.offset or 0) > offset)
    return any(passes.may_pass(commit.queue, offset, commit.process, commit.t) for commit in behind)


def _name(chain: Chain) -> str:
    return f'key "{chain[1]}" layout {chain[2][0]}'


def _chain(began: SendBegan, layouts: dict[bytes, Layout]) -> Chain | None:
    layout = layouts.get(began.body)
    return None if began.key is None or layout is None else (began.topic, began.key, layout)


def _place(messages: Messages, body: bytes) -> Stored | None:
    """Where it is in the final logs; None: nowhere, or in several places (R9 tells)."""
    places = messages.places.get(body, [])
    return places[0] if len(places) == 1 else None


def _layouts(history: History, messages: Messages) -> dict[bytes, Layout]:
    """The layout over which each stored message was hashed: of the frame that was answered OK, else the last one written to its queue."""
    answered = {event.request for event in history.of(FrameAnswered) if event.offset >= 0}
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
            if frame.request in answered:
                sure.add(body)
    return found


def _first_good_calls(history: History) -> dict[str, dict[bytes, _First]]:
    """Group → body → the first call that did it."""
    calls = {call.call: call for call in history.of(CallBegan)}
    found: dict[str, dict[bytes, _First]] = {}
    rank = 0
    for end in history.of(CallEnded):
        call = calls.get(end.call)
        if call is None or end.result not in (CallResult.SUCCESS, CallResult.COUNTED, CallResult.DEFIED):
            continue
        for _, body in call.messages:
            rank += 1
            found.setdefault(call.queue.group, {}).setdefault(body, _First(rank, end))
    return found
