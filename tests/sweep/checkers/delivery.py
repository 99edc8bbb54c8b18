"""O5 and R5, at the end: every acknowledged message that survived was handled by every group, within a time after the calm.

Checked only in a run with a calm and a final reading. Handled: a call that succeeded was given this message (its place and its body).
Accepted: the group's committed offset has passed it.
"""

from collections.abc import Iterator

from sweep.checkers.facts import Brokers, Deletions
from sweep.checkers.messages import Messages, Passes, StoredPlace, first_offsets, lies_in, reported_gaps
from sweep.checkers.violation import Violation
from sweep.events.consumers import CallBegan, CallEnded
from sweep.events.locks import LockGranted
from sweep.events.producers import SendAcked
from sweep.events.progress import CommitResponded
from sweep.events.universe import CalmBegan
from sweep.history import CallResult, History, ItemVerdict, QueueKey

RECOVERY_S = 90.0
"""R5: a classic lease of 60 s, a rebalance of 20 s, 10 s."""


def check(history: History) -> list[Violation]:
    calms = history.of(CalmBegan)
    if not calms:
        return []
    found = []
    messages = Messages(history)
    passes = Passes(history, messages)
    done = _handled_messages(history)
    begins = first_offsets(history)
    found += _removed_messages_are_reported(history, messages, passes, done, begins)
    reached = _reached(history)
    for (group, topic), processes in passes.groups().items():
        for queue, stored in messages.by_queue(topic).items():
            key = queue._replace(group=group)
            begin = begins.get(key)
            if begin is None:
                found.append(Violation("R5", calms[-1].t, f"{key} was never granted to a client: {len(stored)} messages are pending in it"))
                continue
            for one in stored:
                known = messages.acknowledged(one.body)
                if one.offset >= begin and known is not None and (group, (queue, one.offset), one.body) not in done:
                    if passes.some_may_pass(key, one.offset, processes):
                        continue
                    text = f"{key} offset {one.offset}, {one.body!r:.60} acknowledged at {known.t:.3f}: no call has handled it"
                    found.append(Violation("O5", one.t, text))
            found += _recovered(key, stored[-1].offset + 1, reached.get(key, []), calms[-1].t, messages)
    return found


def _removed_messages_are_reported(
    history: History, messages: Messages, passes: Passes, done: set[tuple[str, StoredPlace, bytes]], begins: dict[QueueKey, int]
) -> list[Violation]:
    """Check O5: the group was notified of messages that retention removed before it had them as a gap."""
    gaps, found = reported_gaps(history), []
    for acked in messages_removed_by_retention(history, messages):
        for (group, topic), processes in passes.groups().items():
            key = acked.queue._replace(group=group)
            begin = begins.get(key)
            known = begin is None or topic != key.topic or acked.offset < begin or (group, (acked.queue, acked.offset), acked.body) in done
            if known or lies_in(acked.offset, gaps.get(key, ())):
                continue
            if not passes.some_may_pass(key, acked.offset, processes):
                where = f"{key} offset {acked.offset}, {acked.body!r:.60}: removed (the log begins at {messages.read[acked.queue].first})"
                text = f"{where}, given to no call and in no reported gap"
                found.append(Violation("O5", acked.t, text))
    return found


def messages_removed_by_retention(history: History, messages: Messages) -> Iterator[SendAcked]:
    """Yield the acknowledged messages that retention has removed since; none after a lossy power cut, when this can't be decided.

    For sends with `require="written"` any power cut is lossy.
    """
    brokers, deletions = Brokers(history), Deletions(history)
    for acked in messages.acked.values():
        read, broker = messages.read.get(acked.queue), acked.queue.broker
        if read is None or not 0 <= acked.offset < read.first or deletions.any_of(acked.queue.topic):
            continue
        if not (brokers.all_cuts(broker) if acked.written else brokers.lossy_cuts(broker)):
            yield acked


def recovery_s(history: History) -> float | None:
    """Return the seconds from the calm until every queue's end is accepted; None without a calm, or if one never is."""
    calms, messages, reached = history.of(CalmBegan), Messages(history), _reached(history)
    if not calms:
        return None
    slowest = 0.0
    for group, topic in Passes(history, messages).groups():
        for queue, stored in messages.by_queue(topic).items():
            end = stored[-1].offset + 1
            times = [t for t, offset in reached.get(queue._replace(group=group), []) if offset >= end]
            if not times:
                return None
            slowest = max(slowest, times[0] - calms[-1].t)
    return slowest


def _recovered(key: QueueKey, end: int, reached: list[tuple[float, int]], calm_t: float, messages: Messages) -> list[Violation]:
    last = messages.stored[key.stored, end - 1]
    since = messages.due_since(last, calm_t)
    top = max((offset for _, offset in reached), default=0)
    times = [t for t, offset in reached if offset >= end]
    if not times:
        return [
            Violation(
                "R5",
                last.t,
                f"{key} ends at {end}: commits of its group were accepted up to {top} only, {last.t - since:.1f} s after the calm",
            )
        ]
    # The generation may have risen since: what counts is when the present log's end was reached.
    if times[0] - since > RECOVERY_S:
        return [Violation("R5", times[0], f"{key} reached its end {end} {times[0] - since:.1f} s after the calm, limit {RECOVERY_S:.0f} s")]
    return []


def _handled_messages(history: History) -> set[tuple[str, StoredPlace, bytes]]:
    calls = {call.call: call for call in history.of(CallBegan)}
    found: set[tuple[str, StoredPlace, bytes]] = set()
    for end in history.of(CallEnded):
        call = calls.get(end.call)
        if call is not None and end.result in (CallResult.SUCCESS, CallResult.COUNTED, CallResult.CANCEL_IGNORED):
            queue = call.queue.stored
            found.update((call.queue.group, (queue, offset), body) for offset, body in call.messages)
    return found


def _reached(history: History) -> dict[QueueKey, list[tuple[float, int]]]:
    """Return (time, accepted offset) of each queue in its last generation, by grants and confirmed commits."""
    last: dict[QueueKey, int] = {}
    generations: dict[tuple[QueueKey, int], int] = {}
    for grant in history.of(LockGranted):
        last[grant.queue] = max(grant.generation, last.get(grant.queue, grant.generation))
        generations[grant.queue, grant.epoch] = grant.generation
    found: dict[QueueKey, list[tuple[float, int]]] = {}
    for event in history:
        if isinstance(event, LockGranted):
            if event.generation == last[event.queue]:
                found.setdefault(event.queue, []).append((event.t, event.offset))
        elif isinstance(event, CommitResponded) and event.offset is not None and event.verdict in (ItemVerdict.OK, ItemVerdict.NOT_YOURS):
            known = event.epoch is None or generations.get((event.queue, event.epoch)) == last.get(event.queue)
            if known:
                found.setdefault(event.queue, []).append((event.t, event.offset))
    return found
