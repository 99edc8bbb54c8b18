"""Progress of groups: (generation, offset, attempts) of each queue (ordering.md 2.4, 7, 13.1). RocketMQ: ConsumerOffsetManager.

Within a generation the offset never falls. A generation is a fencing number, drawn when progress begins or is set back (by a reset, by a
loss of a suffix of the log, real or assumed, or because the topic was created again). It is never used twice, not even after such a loss.

`since` of (group, topic) is the layout counter at which the group's start policy was resolved for all queues of this broker. A queue that
a later layout adds begins at its first message after it was added (ordering.md 7.2): at 0, or at `first_offset` if it had messages before.
So do all queues of a topic that was created while the group subscribed to it (7.8): it has `since`, and no progress yet.

A reset by an operator, and a loss, is `unannounced` until the classic members know of it: their requests carry no generation (ordering.md
12.5).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from lockstep.broker.groups.tables.lock_table import QueueKey
from lockstep.broker.journal import Change, Journal
from lockstep.broker.snapshot_rows import SnapshotRows
from lockstep.broker.stored_form import check_parts, unknown_change
from lockstep.protocol.done_ranges import Ranges, above, count, union


@dataclass(frozen=True, slots=True)
class Progress:
    generation: int
    offset: int
    """Offset of the next message to consume."""
    attempts: int = 0
    """Number of failed calls of the batch that begins at `offset`."""
    gap: tuple[int, int] | None = None
    """[first, end) that retention or a purge removed before the group consumed it. Kept until a commit passes its end (ordering.md 7.5)."""
    unannounced: bool = False
    """Whether the group was reset to `offset`, or a suffix of the log may have been lost, and no classic client has pulled from there or
    committed since."""
    done: Ranges = ()
    """Finished offsets above `offset`: those of a group that consumes the keys of a queue in parallel (ordering.md 14)."""

    def lag(self, end: int) -> int:
        """Return the number of unfinished messages in a queue that ends at `end`."""
        unfinished = end - self.offset - (count(self.done) if self.done else 0)
        return unfinished if unfinished > 0 else 0


@dataclass(frozen=True, slots=True)
class FailingBatch:
    """The listener fails on the batch at `offset`."""

    offset: int
    since_ms: int
    error: str | None
    """Error of the last failed call."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Messages from `first` to `end` that retention or a purge removed before the group consumed them."""

    first: int
    end: int
    seen_ms: int | None
    """When this process moved the group past them; None if another one did, or it was done at a start."""


class _Queues(dict[int, Progress]):
    """Queue id → progress of one group in one topic. Queues are added one at a time and removed only together."""

    __slots__ = ("ids_end",)

    def __init__(self) -> None:
        super().__init__()
        self.ids_end = 0
        """One more than the highest id."""


class ProgressTable:
    """A durable table of (group, topic, queue id) → progress. Commit times, failing batches and losses that a commit has passed are kept
    for this process only."""

    KINDS = frozenset(
        {
            "progress.committed",
            "progress.set",
            "progress.resolved",
            "progress.renewed",
            "progress.reopened",
            "progress.topic_dropped",
            "progress.forgotten",
        }
    )

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._groups: dict[str, dict[str, _Queues]] = {}
        """Group → topic → queue id → progress."""
        self._count = 0
        self._topics: Counter[str] = Counter()
        """Topic → number of groups in `groups_in_topic`. A topic without any has no entry."""
        self._since: dict[str, dict[str, int]] = {}
        """Topic → group → layout counter. By topic first: deleting a topic looks at its own entries only."""
        self._first: dict[str, dict[int, int]] = {}
        """Topic → queue id → the offset of its first message after it was last added, if it had messages before."""
        self._committed_ms: dict[QueueKey, int] = {}
        self._failing: dict[QueueKey, FailingBatch] = {}
        self._losses: dict[QueueKey, Loss] = {}

    def get(self, key: QueueKey) -> Progress | None:
        topics = self._groups.get(key[0])
        queues = None if topics is None else topics.get(key[1])
        return None if queues is None else queues.get(key[2])

    def __len__(self) -> int:
        """Return the number of (group, topic, queue id) that have progress."""
        return self._count

    def __iter__(self) -> Iterator[tuple[QueueKey, Progress]]:
        return ((key, progress) for group in self._groups for key, progress in self.progress_of_group(group))

    def progress_of_group(self, group: str) -> Iterator[tuple[QueueKey, Progress]]:
        topics = self._groups.get(group, {})
        return (((group, topic, queue_id), progress) for topic, queues in topics.items() for queue_id, progress in queues.items())

    def progress_in_topic(self, group: str, topic: str) -> list[tuple[int, Progress]]:
        """Return (queue id, progress) of one group in one topic."""
        return list(self._groups.get(group, {}).get(topic, {}).items())

    def queue_count(self, group: str) -> int:
        """Return the number of queues in which the group has progress."""
        return sum(map(len, self._groups.get(group, {}).values()))

    def missing_count(self, group: str, topic: str, id_count: int) -> int:
        """Return how many of the queues 0 … id_count−1 have no progress of the group.

        Computed from counts, in constant time. The result is never too low; it is too high only if the group has progress in queues above
        these.
        """
        queues = self._groups.get(group, {}).get(topic)
        if queues is None:
            return id_count
        return min(id_count, id_count - len(queues) + max(0, queues.ids_end - id_count))

    def groups_in_topic(self, topic: str) -> list[str]:
        """Return the groups that have progress in the topic, or begin there at the first message."""
        return [group for group, topics in self._groups.items() if topic in topics] if topic in self._topics else []

    def topics_of_group(self, group: str) -> list[str]:
        """Return the topics in which the group has progress, or begins at the first message."""
        return list(self._groups.get(group, ()))

    def since(self, group: str, topic: str) -> int | None:
        """Return the layout counter, or None if the group's start policy was not resolved for this topic yet."""
        return self._since.get(topic, {}).get(group)

    def first_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of the first message after the queue was added. A group that consumed the topic before begins there."""
        return self._first.get(topic, {}).get(queue_id, 0)

    def has_reopened(self, topic: str) -> bool:
        """Return whether queues of the topic that had messages before were added."""
        return topic in self._first

    def first_offsets(self) -> list[tuple[str, int, int]]:
        """Return (topic, queue id, `first_offset`) of the queues that had messages before they were added."""
        return [(topic, *pair) for topic, offsets in sorted(self._first.items()) for pair in sorted(offsets.items())]

    def committed_ms(self, key: QueueKey) -> int | None:
        """Return when this process received the last commit, or None if it received none."""
        return self._committed_ms.get(key)

    def failing(self, key: QueueKey) -> FailingBatch | None:
        """Return what members have reported, since this process started, about the batch at the committed offset."""
        found, progress = self._failing.get(key), self.get(key)
        return found if found is not None and progress is not None and found.offset == progress.offset else None

    def loss(self, key: QueueKey) -> Loss | None:
        """Return the last messages that were removed before the group consumed them: of this process, or those of a gap that no
        commit has passed yet."""
        progress = self.get(key)
        if (found := self._losses.get(key)) is not None or progress is None or progress.gap is None:
            return found
        return Loss(*progress.gap, None)

    def failing_keys(self) -> list[QueueKey]:
        """Return the queues of which `failing` returns something."""
        return [key for key in self._failing if self.failing(key) is not None]

    def groups(self) -> list[str]:
        return list(self._groups)

    def record_commit(self, key: QueueKey, offset: int, attempts: int, now_ms: int, error: str | None = None, done: Ranges = ()) -> None:
        """Record finished work. A lower offset moves nothing, at the same offset attempts only rise, and done ranges are added to those
        that are known, so a repeat is harmless."""
        self._committed_ms[key] = now_ms
        self._record_failing(key, offset, attempts, now_ms, error)
        progress = self._existing(key)
        if (offset, attempts) < (progress.offset, progress.attempts):
            offset, attempts = progress.offset, progress.attempts
        if done or progress.done:
            done = union(above(progress.done, offset), above(done, offset))
        if (offset, attempts, done) != (progress.offset, progress.attempts, progress.done):
            self._record(("progress.committed", *key, offset, attempts, *((done,) if done else ())))

    def set_progress(self, key: QueueKey, progress: Progress) -> None:
        """Begin, reset or move progress, whatever its value was."""
        self._record(("progress.set", *_row(key, progress)))

    def skip_lost(self, key: QueueKey, moved: Progress, now_ms: int | None) -> None:
        """Move progress past messages that are lost: `moved.gap`. `now_ms`: None if they may have been lost long ago."""
        self.set_progress(key, moved)
        if moved.gap is not None:
            self._losses[key] = Loss(*moved.gap, now_ms)

    def record_start(self, group: str, topic: str, *, since: int, generation: int, offsets: Iterable[tuple[int, int]]) -> None:
        """Record where the group begins in a topic, in one change: (queue id, offset) of every queue without progress. It begins at
        `first_offset` in the others."""
        self._record(("progress.resolved", group, topic, since, generation, [list(pair) for pair in offsets]))

    def renew_generations(self, generation: int) -> None:
        """Raise every generation: a visible suffix of the log is assumed to be lost (ordering.md 8.5)."""
        self._record(("progress.renewed", generation))

    def record_reopened(self, topic: str, offsets: Iterable[tuple[int, int]]) -> None:
        """Record (queue id, first offset) of queues that are added now and had messages before."""
        self._record(("progress.reopened", topic, [list(pair) for pair in offsets]))

    def drop_topic(self, topic: str) -> None:
        self._record(("progress.topic_dropped", topic))

    def forget(self, group: str, topic: str) -> None:
        """End the progress of one group in one topic: if it comes back, its start policy is resolved again."""
        self._record(("progress.forgotten", group, topic))

    def apply(self, change: Change) -> None:
        """Apply one change, made now or read from the log."""
        match change:
            case ("progress.committed", group, topic, queue_id, offset, attempts, *done):
                key = (group, topic, queue_id)
                if (before := self.get(key)) is not None:
                    # Retention may have moved progress past the gap, to the end of a done range.
                    gap = before.gap if before.gap is not None and (offset <= before.gap[1] or offset == before.offset) else None
                    self._put(key, Progress(before.generation, offset, attempts, gap, done=tuple(*done)))
            case ("progress.set", group, topic, queue_id, generation, offset, attempts, first, end, *more) if len(more) <= 2:
                gap = None if first is None else (first, end)
                ranges: Ranges = tuple(more[1]) if len(more) > 1 else ()
                self._put((group, topic, queue_id), Progress(generation, offset, attempts, gap, more[:1] == [True], ranges))
            case ("progress.resolved", group, topic, since, generation, offsets):
                self._put_since(group, topic, since)
                for queue_id, offset in offsets:
                    self._put((group, topic, queue_id), Progress(generation, offset))
            case ("progress.renewed", generation):
                for topics in self._groups.values():
                    for queues in topics.values():
                        for queue_id, progress in queues.items():
                            queues[queue_id] = replace(progress, generation=generation, unannounced=True)
            case ("progress.reopened", topic, offsets):
                self._first.setdefault(topic, {}).update(offsets)
            case ("progress.topic_dropped", topic):
                self._drop_topic(topic)
            case ("progress.forgotten", group, topic):
                if topic in self._groups.get(group, ()):
                    self._forget(group, topic)
            case _:
                raise unknown_change(change)

    def snapshot(self) -> dict[str, Any]:
        copies = [
            (group, topic, dict(queues)) for group, topics in sorted(self._groups.items()) for topic, queues in sorted(topics.items())
        ]
        since = {(group, topic): counter for topic, groups in self._since.items() for group, counter in groups.items()}
        first = self.first_offsets()

        def rows() -> Iterator[list[Any]]:
            for group, topic, queues in copies:
                for queue_id in sorted(queues):
                    yield _row((group, topic, queue_id), queues[queue_id])

        return {
            "queues": SnapshotRows(self._count, rows),
            "since": SnapshotRows(len(since), lambda: ([*key, since[key]] for key in sorted(since))),
            "first": SnapshotRows(len(first), lambda: first),
        }

    def restore(self, plain: dict[str, Any]) -> None:
        check_parts("the progress", plain, self.snapshot())
        for row in plain["queues"]:
            self.apply(("progress.set", *row))
        for group, topic, since in plain["since"]:
            self._put_since(group, topic, since)
        for topic, queue_id, first in plain["first"]:
            self._first.setdefault(topic, {})[queue_id] = first

    def _record_failing(self, key: QueueKey, offset: int, attempts: int, now_ms: int, error: str | None) -> None:
        if not attempts or offset < self._existing(key).offset:
            return
        before = self._failing.get(key)
        if before is None or before.offset != offset:
            self._failing[key] = FailingBatch(offset, now_ms, error)
        elif error is not None:
            self._failing[key] = replace(before, error=error)

    def _existing(self, key: QueueKey) -> Progress:
        return self._groups[key[0]][key[1]][key[2]]

    def _put(self, key: QueueKey, progress: Progress) -> None:
        queues = self._queues_of(key[0], key[1])
        self._count += key[2] not in queues
        queues.ids_end = max(queues.ids_end, key[2] + 1)
        queues[key[2]] = progress

    def _put_since(self, group: str, topic: str, since: int) -> None:
        self._queues_of(group, topic)
        self._since.setdefault(topic, {})[group] = since

    def _queues_of(self, group: str, topic: str) -> _Queues:
        """Return the progress of the group in the topic, for a change."""
        topics = self._groups.setdefault(group, {})
        queues = topics.get(topic)
        if queues is None:
            queues = topics[topic] = _Queues()
            self._topics[topic] += 1
        return queues

    def _record(self, change: Change) -> None:
        self._journal.record(change, self.apply)

    def _drop_topic(self, topic: str) -> None:
        for group in self.groups_in_topic(topic):
            self._drop(group, topic)
        self._since.pop(topic, None)
        self._first.pop(topic, None)

    def drop_group(self, group: str) -> None:
        """Remove a group. This is not recorded as a change: `group.forgotten` of activity_table.py implies it."""
        for topic in self.topics_of_group(group):
            self._forget(group, topic)

    def _forget(self, group: str, topic: str) -> None:
        self._drop(group, topic)
        groups = self._since.get(topic, {})
        groups.pop(group, None)
        if not groups:
            self._since.pop(topic, None)

    def _drop(self, group: str, topic: str) -> None:
        for queue_id in self._groups[group].pop(topic):
            self._count -= 1
            self._committed_ms.pop((group, topic, queue_id), None)
            self._failing.pop((group, topic, queue_id), None)
            self._losses.pop((group, topic, queue_id), None)
        if not self._groups[group]:
            del self._groups[group]
        self._topics[topic] -= 1
        if not self._topics[topic]:
            del self._topics[topic]


def _row(key: QueueKey, progress: Progress) -> list[Any]:
    """Return the values of a change `progress.set`; the last two are left out if they have their defaults."""
    more = (progress.unannounced, progress.done) if progress.done else (True,) if progress.unannounced else ()
    return [*key, progress.generation, progress.offset, progress.attempts, *(progress.gap or (None, None)), *more]
