"""Progress of groups: (generation, offset, attempts) of each queue (ordering.md 2.4, 7, 13.1). RocketMQ: ConsumerOffsetManager.

Within a generation the offset never falls. A generation is a fencing number drawn when the progress begins or is set back (reset,
truncation real or assumed, re-creation): it is never used twice, not even after a lost suffix of the log.

`since` of (group, topic) is the layout counter at which the group's start policy was resolved for all of this broker's queues: a queue
that a later layout adds begins at 0.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from lockstep.broker.journal import Change, Journal
from lockstep.broker.snapshot_rows import SnapshotRows
from lockstep.broker.tables.lock_table import QueueKey
from lockstep.protocol.errors import StoreError


@dataclass(frozen=True, slots=True)
class Progress:
    generation: int
    offset: int
    """Next offset to consume."""
    attempts: int = 0
    """Failed calls of the batch that begins at `offset`."""
    gap: tuple[int, int] | None = None
    """[first, end) that retention removed before the group consumed it; stands until a commit passes its end."""


@dataclass(frozen=True, slots=True)
class FailingBatch:
    """The batch at `offset` can't be handled."""

    offset: int
    since_ms: int
    error: str | None
    """Of the last failed call."""


class _Queues(dict[int, Progress]):
    """Queue id → progress of one group in one topic. Queues are added one by one, and dropped all together."""

    __slots__ = ("ids_end",)

    def __init__(self) -> None:
        super().__init__()
        self.ids_end = 0
        """Above every id."""


class ProgressTable:
    """(group, topic, queue) → progress, durable; when each was committed last, and what fails, is known for this process only."""

    KINDS = frozenset({"progress.committed", "progress.set", "progress.resolved", "progress.renewed", "progress.topic_dropped"})

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._groups: dict[str, dict[str, _Queues]] = {}
        """Group → topic → queue id → progress."""
        self._count = 0
        self._topics: Counter[str] = Counter()
        """Topic → how many groups have progress in it; none at 0."""
        self._since: dict[str, dict[str, int]] = {}
        """Topic → group → layout counter: a topic that ends looks at its own alone."""
        self._committed_ms: dict[QueueKey, int] = {}
        self._failing: dict[QueueKey, FailingBatch] = {}

    def get(self, key: QueueKey) -> Progress | None:
        topics = self._groups.get(key[0])
        queues = None if topics is None else topics.get(key[1])
        return None if queues is None else queues.get(key[2])

    def __len__(self) -> int:
        """(group, topic, queue) that have progress."""
        return self._count

    def __iter__(self) -> Iterator[tuple[QueueKey, Progress]]:
        return ((key, progress) for group in self._groups for key, progress in self.progress_of_group(group))

    def progress_of_group(self, group: str) -> Iterator[tuple[QueueKey, Progress]]:
        topics = self._groups.get(group, {})
        return (((group, topic, queue_id), progress) for topic, queues in topics.items() for queue_id, progress in queues.items())

    def progress_in_topic(self, group: str, topic: str) -> list[tuple[int, Progress]]:
        """(queue id, progress) of one group in one topic."""
        return list(self._groups.get(group, {}).get(topic, {}).items())

    def queue_count(self, group: str) -> int:
        """Queues in which the group has progress."""
        return sum(map(len, self._groups.get(group, {}).values()))

    def missing_count(self, group: str, topic: str, id_count: int) -> int:
        """How many of the queues 0 … id_count−1 have no progress of the group. Counted, not walked: never too low, and too high only where
        the group has progress in queues above them.
        """
        queues = self._groups.get(group, {}).get(topic)
        if queues is None:
            return id_count
        return min(id_count, id_count - len(queues) + max(0, queues.ids_end - id_count))

    def groups_in_topic(self, topic: str) -> list[str]:
        """Groups that have progress in the topic."""
        return [group for group, topics in self._groups.items() if topic in topics] if topic in self._topics else []

    def topics_of_group(self, group: str) -> list[str]:
        """Topics in which the group has progress."""
        return list(self._groups.get(group, ()))

    def since(self, group: str, topic: str) -> int | None:
        """None: the group's start policy was not resolved for this topic yet."""
        return self._since.get(topic, {}).get(group)

    def committed_ms(self, key: QueueKey) -> int | None:
        """When this process took the last commit; None: not since it started."""
        return self._committed_ms.get(key)

    def failing(self, key: QueueKey) -> FailingBatch | None:
        """What was told since this process started of the batch at the committed offset."""
        found, progress = self._failing.get(key), self.get(key)
        return found if found is not None and progress is not None and found.offset == progress.offset else None

    def groups(self) -> list[str]:
        return list(self._groups)

    def record_commit(self, key: QueueKey, offset: int, attempts: int, now_ms: int, error: str | None = None) -> None:
        """Finished work. A lower offset changes nothing; at the same one attempts only rise: a repeat is harmless."""
        self._committed_ms[key] = now_ms
        self._record_failing(key, offset, attempts, now_ms, error)
        progress = self._existing(key)
        if offset > progress.offset or (offset == progress.offset and attempts > progress.attempts):
            self._record(("progress.committed", *key, offset, attempts))

    def set_progress(self, key: QueueKey, progress: Progress) -> None:
        """Begins, resets or moves progress, whatever it was."""
        first, end = progress.gap or (None, None)
        self._record(("progress.set", *key, progress.generation, progress.offset, progress.attempts, first, end))

    def record_start(self, group: str, topic: str, *, since: int, generation: int, offsets: Iterable[tuple[int, int]]) -> None:
        """Where the group begins in a topic: (queue id, offset) of every queue without progress, in one record."""
        self._record(("progress.resolved", group, topic, since, generation, [list(pair) for pair in offsets]))

    def renew_generations(self, generation: int) -> None:
        """A visible suffix of the log is assumed lost: every generation rises."""
        self._record(("progress.renewed", generation))

    def drop_topic(self, topic: str) -> None:
        self._record(("progress.topic_dropped", topic))

    def apply(self, change: Change) -> None:
        """One change: live or from the log."""
        match change:
            case ("progress.committed", group, topic, queue_id, offset, attempts):
                key = (group, topic, queue_id)
                if (before := self.get(key)) is not None:
                    gap = before.gap if before.gap is not None and offset <= before.gap[1] else None
                    self._put(key, Progress(before.generation, offset, attempts, gap))
            case ("progress.set", group, topic, queue_id, generation, offset, attempts, first, end):
                gap = None if first is None else (first, end)
                self._put((group, topic, queue_id), Progress(generation, offset, attempts, gap))
            case ("progress.resolved", group, topic, since, generation, offsets):
                self._since.setdefault(topic, {})[group] = since
                for queue_id, offset in offsets:
                    self._put((group, topic, queue_id), Progress(generation, offset))
            case ("progress.renewed", generation):
                for topics in self._groups.values():
                    for queues in topics.values():
                        for queue_id, progress in queues.items():
                            queues[queue_id] = replace(progress, generation=generation)
            case ("progress.topic_dropped", topic):
                self._drop_topic(topic)
            case _:
                raise StoreError(f"state change {change[:1]} is unknown to the progress")

    def snapshot(self) -> dict[str, Any]:
        copies = [
            (group, topic, dict(queues)) for group, topics in sorted(self._groups.items()) for topic, queues in sorted(topics.items())
        ]
        since = {(group, topic): counter for topic, groups in self._since.items() for group, counter in groups.items()}

        def rows() -> Iterator[list[Any]]:
            for group, topic, queues in copies:
                for queue_id in sorted(queues):
                    yield _row((group, topic, queue_id), queues[queue_id])

        return {
            "queues": SnapshotRows(self._count, rows),
            "since": SnapshotRows(len(since), lambda: ([*key, since[key]] for key in sorted(since))),
        }

    def restore(self, plain: dict[str, Any]) -> None:
        for row in plain["queues"]:
            self.apply(("progress.set", *row))
        for group, topic, since in plain["since"]:
            self._since.setdefault(topic, {})[group] = since

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
        topics = self._groups.setdefault(key[0], {})
        queues = topics.get(key[1])
        if queues is None:
            queues = topics[key[1]] = _Queues()
            self._topics[key[1]] += 1
        self._count += key[2] not in queues
        queues.ids_end = max(queues.ids_end, key[2] + 1)
        queues[key[2]] = progress

    def _record(self, change: Change) -> None:
        self._journal.record(change, self.apply)

    def _drop_topic(self, topic: str) -> None:
        for group in self.groups_in_topic(topic):
            self._drop(group, topic)
        self._since.pop(topic, None)

    def drop_group(self, group: str) -> None:
        """Forgets a group. Not a change of its own: the group's end is one (activity_table.py)."""
        for topic in self.topics_of_group(group):
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
        if not self._groups[group]:
            del self._groups[group]
        self._topics[topic] -= 1
        if not self._topics[topic]:
            del self._topics[topic]


def _row(key: QueueKey, progress: Progress) -> list[Any]:
    return [*key, progress.generation, progress.offset, progress.attempts, *(progress.gap or (None, None))]
