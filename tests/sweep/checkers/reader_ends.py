"""O5 and R5 of pull consumers, at the end: d and e of readers.py."""

from collections.abc import Callable
from math import inf

from sweep.checkers.delivery import RECOVERY_S, messages_removed_by_retention
from sweep.checkers.messages import Messages, Passes, lies_in, reported_gaps
from sweep.checkers.violation import Violation
from sweep.events.progress import CommitResponded, ProgressResponded
from sweep.events.universe import CalmBegan, MessageStored
from sweep.history import History, ItemVerdict, QueueKey


def skipped(
    history: History,
    groups: dict[str, str],
    passes: Passes,
    polled: set[tuple[QueueKey, int, bytes]],
    left_out: Callable[[QueueKey, int, bytes], bool],
) -> list[Violation]:
    """Check d for the messages in the logs at the end, and for those that retention has removed."""
    if not history.of(CalmBegan) or not history.of(MessageStored):
        return []
    messages, begins = passes.messages, dict[QueueKey, int]()
    for response in history.of(ProgressResponded):
        begins[response.queue] = min(response.offset, begins.get(response.queue, response.offset))
    gaps, found = reported_gaps(history), []
    for group, topic in groups.items():
        for stored in history.of(MessageStored):
            queue, at = stored.queue._replace(group=group), stored.offset
            known = messages.acknowledged(stored.body)
            if queue.topic != topic or known is None or at < begins.get(queue, 0) or (stored.queue, at, stored.body) in polled:
                continue
            if not (passes.may_pass(queue, at, 0) or left_out(queue, at, stored.body)):
                text = f"{queue} offset {at}, {stored.body!r:.60} acknowledged at {known.t:.3f}: no poll has returned it"
                found.append(Violation("O5", stored.t, text))
        for acked in messages_removed_by_retention(history, messages):
            queue, at = acked.queue._replace(group=group), acked.offset
            if at < begins.get(queue, inf) or (acked.queue, at, acked.body) in polled or lies_in(at, gaps.get(queue, ())):
                continue
            if not left_out(queue, at, acked.body):
                text = f"{queue} offset {at}, {acked.body!r:.60}: removed, returned by no poll and in no reported gap"
                found.append(Violation("O5", acked.t, text))
    return found


def recovered(history: History, groups: dict[str, str]) -> list[Violation]:
    """Check e: in its last generation the group reaches the end of each log."""
    calms = history.of(CalmBegan)
    if not calms:
        return []
    reached: dict[QueueKey, list[tuple[float, int, int]]] = {}
    for event in history:
        if isinstance(event, CommitResponded) and event.verdict is not ItemVerdict.OK:
            continue
        if isinstance(event, ProgressResponded | CommitResponded) and event.generation is not None and event.offset is not None:
            reached.setdefault(event.queue, []).append((event.t, event.generation, event.offset))
    messages, ends, found = Messages(history), dict[QueueKey, MessageStored](), []
    for stored in history.of(MessageStored):
        ends[stored.queue] = stored
    for group, topic in groups.items():
        for last in [last for last in ends.values() if last.queue.topic == topic]:
            queue, end = last.queue._replace(group=group), last.offset + 1
            responses = reached.get(queue, [])
            newest = max((generation for _, generation, _ in responses), default=0)
            since = messages.due_since(last, calms[-1].t)
            first_t = next((t for t, generation, offset in responses if generation == newest and offset >= end), None)
            if first_t is None or first_t - since > RECOVERY_S:
                when = "never" if first_t is None else f"{first_t - since:.1f} s after the calm"
                found.append(Violation("R5", last.t, f"{queue} ends at {end}: its group reached that {when}, limit {RECOVERY_S:.0f} s"))
    return found
