"""The laws of a handler's work, whatever happens to the cluster. Pure: sends and handlings in, broken laws out.

order     The handlings of one key follow the order of its queue without a gap. They may jump back, as after a hand-over, and then repeat
          from there: 1 2 3 · 2 3 4 is in order; 1 2 3 · 2 4 is not, nor is 1 2 3 4 · 2 at the end.
stale     No work is done under a lower fence than the queue has seen: its owner had lost the queue. (The fence is known if the context is
          passed; if it is not, such work shows as disorder.)
acked     If A of one key was acknowledged before B was sent, A is handled first.
lost      Every acknowledged message is handled.
repeats   No message is handled more than 1 + max_repeats times.
stranger  No message is handled that was not sent.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from lockstep.protocol.order import fence_falls, overtakings, skips

FAULTS_MAX = 20
"""The most violations of one law that are shown: the first ones."""


class Fate(Enum):
    """The result of a send, as its producer got it."""

    ACKED = "acknowledged"
    UNKNOWN = "in an unknown state"
    NOT_STORED = "not stored"


@dataclass(slots=True)
class ReportedSend:
    """One send. `began` and `ended` are numbers in one count of all reports to the checker."""

    topic: str
    body: bytes
    group: str | None
    """Its key or its queue, within which messages are ordered. None if it has no order."""
    began: int
    began_s: float
    ended: int | None = None
    ended_s: float | None = None
    fate: Fate = Fate.UNKNOWN
    message_id: str = ""
    """Known if it was acknowledged."""
    expected: bool = True
    """Whether the handler's subscription includes it."""


@dataclass(frozen=True, slots=True)
class Handling:
    """The handler's work for one message, done."""

    number: int
    t: float
    by: str
    """The program that did it."""
    epoch: int | None
    """The epoch of its fence; None if the context was not passed."""
    message_id: str
    topic: str
    key: str | None
    queue: str
    offset: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Broken:
    """One violation of a law. `group` and `t` select the events that are shown with it."""

    law: str
    text: str
    group: str | None
    t: float
    by: str = ""
    """The member that caused it, if that is known."""


def judge(sends: Sequence[ReportedSend], handlings: Sequence[Handling], *, max_repeats: int) -> list[Broken]:
    """Return the violations, at most FAULTS_MAX of each law; empty if all laws hold."""
    matched, strangers = match(sends, handlings)
    stale = _stale(handlings)
    timely = [(send, handling) for send, handling in matched if handling.number not in stale]
    groups: dict[str, list[tuple[ReportedSend, Handling]]] = {}
    for send, handling in timely:
        if send.group is not None:
            groups.setdefault(f"{send.topic} {send.group}", []).append((send, handling))
    found = [*_lost(sends, matched), *strangers, *stale.values(), *_repeated(handlings, max_repeats)]
    for group, work in groups.items():
        found += _acked_first(group, work)
        by_queue: dict[str, list[Handling]] = {}
        for _, handling in work:
            by_queue.setdefault(handling.queue, []).append(handling)
        for handlings in by_queue.values():  # a key has several queues one after the other if the layout changes: `acked` judges these
            found += _gaps(group, handlings)
    counts: Counter[str] = Counter()
    kept = []
    for each in sorted(found, key=lambda broken: broken.t):
        counts[each.law] += 1
        if counts[each.law] <= FAULTS_MAX:
            kept.append(each)
    return kept


def match(sends: Sequence[ReportedSend], handlings: Sequence[Handling]) -> tuple[list[tuple[ReportedSend, Handling]], list[Broken]]:
    """Match each handling with its send: by its id, or by its body if the send was never acknowledged and the id is unknown."""
    by_id = {send.message_id: send for send in sends if send.message_id}
    open_sends: dict[tuple[str, bytes], list[ReportedSend]] = {}
    for send in sends:
        if send.fate is Fate.UNKNOWN:
            open_sends.setdefault((send.topic, send.body), []).append(send)
    matched, strangers = [], []
    for handling in handlings:
        send_or_none = by_id.get(handling.message_id)
        if send_or_none is None and (unknown := open_sends.get((handling.topic, handling.body))):
            send_or_none = by_id[handling.message_id] = unknown.pop(0)
        if send_or_none is None:
            text = f"{name(handling)} was handled, and its send is not known: send through checker.producer(…)"
            strangers.append(Broken("stranger", text, None, handling.t))
        else:
            matched.append((send_or_none, handling))
    return matched, strangers


def _lost(sends: Iterable[ReportedSend], matched: Iterable[tuple[ReportedSend, Handling]]) -> list[Broken]:
    handled = {id(send) for send, _ in matched}
    return [
        Broken(
            "lost",
            f"{show(send.body)} ({send.topic}, {send.group or 'no key'}) was acknowledged at {send.ended_s:.3f} s and never handled",
            send.group and f"{send.topic} {send.group}",
            send.ended_s or 0.0,
        )
        for send in sends
        if send.fate is Fate.ACKED and send.expected and id(send) not in handled
    ]


def _stale(handlings: Iterable[Handling]) -> dict[int, Broken]:
    """Return violations of the fence, by the number of the handling."""
    fenced: dict[tuple[str, str], list[Handling]] = {}
    for each in handlings:
        if each.epoch is not None:
            fenced.setdefault((each.topic, each.queue), []).append(each)
    return {
        other.number: Broken("stale", _stale_text(one, other), _group(other), other.t, other.by)
        for work in fenced.values()
        for one, other in fence_falls(work, lambda each: each.epoch or 0)
    }


def _stale_text(one: Handling, other: Handling) -> str:
    return (
        f"{other.by} did {name(other)} at {other.t:.3f} s with fence {other.epoch}, after {one.by} had done {show(one.body)} "
        f"at {one.t:.3f} s with fence {one.epoch}: {other.by} had lost the queue. Let the write refuse a lower context.fence.epoch"
    )


def _repeated(handlings: Sequence[Handling], max_repeats: int) -> list[Broken]:
    counts: Counter[str] = Counter()
    found = []
    for handling in handlings:
        counts[handling.message_id] += 1
        if counts[handling.message_id] == max_repeats + 2:
            times = sum(each.message_id == handling.message_id for each in handlings)
            text = f"{name(handling)} was handled {times} times, allowed are {1 + max_repeats}"
            found.append(Broken("repeats", text, _group(handling), handling.t))
    return found


def _acked_first(group: str, work: Sequence[tuple[ReportedSend, Handling]]) -> list[Broken]:
    """Check the first handlings of a group's messages."""
    firsts: dict[int, tuple[ReportedSend, Handling]] = {}
    for send, handling in work:
        firsts.setdefault(id(send), (send, handling))
    return [
        Broken(
            "acked",
            f"{group}: {show(send.body)} was handled at {handling.t:.3f} s, before {show(other.body)} at {later.t:.3f} s, "
            f"which had been acknowledged before the other was sent",
            group,
            handling.t,
        )
        for (send, handling), (other, later) in overtakings(
            list(firsts.values()), lambda one: one[0].began, lambda one: one[0].ended if one[0].fate is Fate.ACKED else None
        )
    ]


def _gaps(group: str, work: Sequence[Handling]) -> list[Broken]:
    """Check the order of all handlings of a group in one queue: positions are counted among the handled messages, by their offsets."""
    order = sorted({each.offset: each for each in work}.values(), key=lambda each: each.offset)
    ranks = {each.offset: rank for rank, each in enumerate(order)}
    found = []
    for skip in skips(work, lambda each: ranks[each.offset], first=0):
        each = skip.after
        missing = ", ".join(show(one.body) for one in order[skip.expected : ranks[each.offset]][:3])
        after = "at the beginning" if skip.before is None else f"after {show(skip.before.body)}"
        text = f"{group}: {after} expected {missing}, got {show(each.body)} from {each.by or 'a handler'} at {each.t:.3f} s"
        found.append(Broken("order", text, group, each.t))
    end = work[-1] if work else None
    if end is not None and ranks[end.offset] < len(order) - 1:
        text = (
            f"{group}: {end.by or 'a handler'} did {show(end.body)} last, at {end.t:.3f} s, after {show(order[-1].body)}: "
            f"it had lost the queue; write with context.fence"
        )
        found.append(Broken("order", text, group, end.t))
    return found


def _group(handling: Handling) -> str:
    return f"{handling.topic} {key_group(handling.key) if handling.key is not None else handling.queue}"


def key_group(key: str) -> str:
    return f'key "{key}"'


def name(handling: Handling) -> str:
    """Return a description of a message."""
    key = "no key" if handling.key is None else key_group(handling.key)
    return f"{show(handling.body)} ({handling.topic}, {key}, offset {handling.offset} of {handling.queue})"


def show(body: bytes) -> str:
    """Return a body as one line."""
    text = body.decode("utf-8", "backslashreplace")
    return repr(text if len(text) <= 60 else text[:57] + "…")
