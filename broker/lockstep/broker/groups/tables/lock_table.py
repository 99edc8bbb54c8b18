"""Queue locks and their epochs (ordering.md 2.1 to 2.3). RocketMQ: RebalanceLockManager, with fencing.

A lock of (group, topic, queue) has the last epoch, the session or client that the epoch was granted to, and whether the queue is held:

    change             epoch    grantee            held
    granted            raised   session or client  yes
    freed              same     same               no     Others may be granted the queue. The epoch is valid until a higher one exists.
    held again         same     same               yes    A freed epoch was renewed.
    superseded         raised   same session       yes    A reset, or its user may not consume the group any more. The session does not
                                                          know the new epoch; it keeps the queue until it releases it.
    ended              raised   none               no     A reset, an assumed loss, or a dropped or changed contract. No earlier epoch is
                                                          valid any more.

An epoch is valid only for the session to which it was granted, and only if it equals the recorded one. The lock of a classic client has no
session and no valid epoch; legacy_clients.py keeps its lease.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from lockstep.broker.journal import Change, Journal
from lockstep.broker.snapshot_rows import SnapshotRows
from lockstep.broker.stored_form import unknown_change

QueueKey = tuple[str, str, int]
"""(group, topic, queue id)"""


class FencingCounter:
    """Draws the broker's fencing numbers, term << 32 | counter, each only once. Epochs and generations are drawn from it."""

    __slots__ = ("_counter", "term")

    def __init__(self) -> None:
        self.term = 0
        self._counter = 0

    def start_term(self, term: int) -> None:
        assert term > self.term, "a term never falls"
        self.term = term
        self._counter = 0

    def draw(self) -> int:
        self._counter += 1
        assert self.term, "fencing numbers need a term"
        assert self._counter < 1 << 32, "a term has 2^32 fencing numbers"
        return self.term << 32 | self._counter


@dataclass(frozen=True, slots=True)
class Lock:
    epoch: int
    session: str | None
    """The session to which the epoch was granted. None if a classic client holds the queue or the grant has ended."""
    client_id: str | None
    held: bool
    superseded: bool = False
    """The grant was ended, which its session may not know yet (ordering.md 6.7, 7.6)."""

    @property
    def held_by_classic(self) -> bool:
        """Return whether a classic client holds the queue."""
        return self.held and self.session is None

    def accepts_epoch(self, session: str, epoch: int) -> bool:
        """Return whether the epoch is the recorded one and was granted to this session."""
        return self.session == session and self.epoch == epoch


class LockTable:
    """A durable table of (group, topic, queue id) → lock. Every change goes through the journal."""

    KINDS = frozenset(
        {
            "lock.granted",
            "lock.freed",
            "lock.held",
            "lock.superseded",
            "lock.ended",
            "lock.group_ended",
            "lock.all_ended",
            "lock.topic_dropped",
            "lock.forgotten",
        }
    )

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._groups: dict[str, dict[str, dict[int, Lock]]] = {}
        """Group → topic → queue id → lock."""
        self._held_by: dict[str, dict[QueueKey, None]] = {}
        self._session_held: dict[str, int] = {}
        """Group → number of its queues that sessions hold."""
        self._held: dict[str, int] = {}
        """Group → number of its queues that are held."""
        self._count = 0
        self._topics: Counter[str] = Counter()
        """Topic → number of its locks. A topic without locks has no entry."""
        self.grant_counts: Counter[str] = Counter()
        """Group → number of grants since this start."""

    def get(self, key: QueueKey) -> Lock | None:
        topics = self._groups.get(key[0])
        queues = None if topics is None else topics.get(key[1])
        return None if queues is None else queues.get(key[2])

    def holder(self, key: QueueKey) -> Lock | None:
        """Return the lock if the queue is held."""
        lock = self.get(key)
        return lock if lock is not None and lock.held else None

    def accepts_epoch(self, key: QueueKey, session: str, epoch: int) -> bool:
        """Return whether this session may commit, pull, release or renew under this epoch."""
        lock = self.get(key)
        return lock is not None and lock.accepts_epoch(session, epoch)

    def keys_held_by(self, session: str) -> list[QueueKey]:
        return list(self._held_by.get(session, ()))

    def locks_of_group(self, group: str) -> Iterator[tuple[QueueKey, Lock]]:
        topics = self._groups.get(group, {})
        return (((group, topic, queue_id), lock) for topic, queues in topics.items() for queue_id, lock in queues.items())

    def keys_in_topic(self, topic: str) -> list[QueueKey]:
        if topic not in self._topics:
            return []
        return [(group, topic, queue_id) for group, topics in self._groups.items() for queue_id in topics.get(topic, ())]

    def topics_of_group(self, group: str) -> list[str]:
        """Return the topics in which the group has a lock, held or not."""
        return list(self._groups.get(group, ()))

    def queue_ids(self, group: str, topic: str) -> list[int]:
        """Return the queues of the topic for which the group has a lock, held or not."""
        return list(self._groups.get(group, {}).get(topic, ()))

    def is_any_held(self, group: str, topic: str) -> bool:
        """Return whether a client holds a queue of the topic for the group."""
        return any(lock.held for lock in self._groups.get(group, {}).get(topic, {}).values())

    def any_session_holds(self, group: str) -> bool:
        """Return whether a session holds a queue of the group. Called for each queue that is freed, so it must be cheap."""
        return group in self._session_held

    def sessions_holding(self, group: str) -> list[str]:
        """Return the sessions that hold a queue of the group, each once."""
        return list(dict.fromkeys(lock.session for _, lock in self.locks_of_group(group) if lock.held and lock.session is not None))

    def __len__(self) -> int:
        """Return the number of (group, topic, queue id) that have a lock, held or not."""
        return self._count

    def groups(self) -> list[str]:
        """Return the groups that have a lock, held or not."""
        return list(self._groups)

    def __iter__(self) -> Iterator[tuple[QueueKey, Lock]]:
        return (item for group in self._groups for item in self.locks_of_group(group))

    def held_count(self, group: str) -> int:
        return self._held.get(group, 0)

    def record_grant(self, key: QueueKey, epoch: int, session: str | None, client_id: str) -> None:
        self.grant_counts[key[0]] += 1
        self._record(("lock.granted", *key, epoch, session, client_id))

    def record_free(self, key: QueueKey) -> None:
        self._record(("lock.freed", *key))

    def record_held_again(self, key: QueueKey) -> None:
        """Record the renewal of an epoch that was freed and is still valid."""
        self._record(("lock.held", *key))

    def record_superseded(self, key: QueueKey, epoch: int) -> None:
        """Raise the epoch of a held queue. The queue remains with its session until that session releases it."""
        self._record(("lock.superseded", *key, epoch))

    def record_end(self, key: QueueKey, epoch: int) -> None:
        self._record(("lock.ended", *key, epoch))

    def record_group_end(self, group: str, epoch: int) -> None:
        """End every grant of the group's sessions, free or held. Classic locks do not depend on a contract and remain."""
        self._record(("lock.group_ended", group, epoch))

    def record_end_of_all(self, epoch: int) -> None:
        """End every grant of sessions, free or held. A classic lock gives its client no epoch, and its lease goes on."""
        self._record(("lock.all_ended", epoch))

    def drop_topic(self, topic: str) -> None:
        self._record(("lock.topic_dropped", topic))

    def forget(self, group: str, topic: str) -> None:
        """Remove the locks of one group in one topic. The caller ends its progress there in the same turn."""
        self._record(("lock.forgotten", group, topic))

    def apply(self, change: Change) -> None:
        """Apply one change, made now or read from the log."""
        match change:
            case ("lock.granted", group, topic, queue_id, epoch, session, client_id):
                self._put((group, topic, queue_id), Lock(epoch, session, client_id, True))
            case ("lock.freed", group, topic, queue_id):
                self._hold_or_free((group, topic, queue_id), held=False)
            case ("lock.held", group, topic, queue_id):
                self._hold_or_free((group, topic, queue_id), held=True)
            case ("lock.superseded", group, topic, queue_id, epoch):
                if (lock := self.get((group, topic, queue_id))) is not None:
                    self._put((group, topic, queue_id), replace(lock, epoch=epoch, superseded=True))
            case ("lock.ended", group, topic, queue_id, epoch):
                self._put((group, topic, queue_id), Lock(epoch, None, None, False))
            case ("lock.group_ended", group, epoch):
                for key, lock in list(self.locks_of_group(group)):
                    if lock.session is not None:
                        self._put(key, Lock(epoch, None, None, False))
            case ("lock.all_ended", epoch):
                for key, lock in list(self):
                    if not lock.held_by_classic:
                        self._put(key, Lock(epoch, None, None, False))
            case ("lock.topic_dropped", topic):
                self._drop_all(self.keys_in_topic(topic))
            case ("lock.forgotten", group, topic):
                self._drop_all([(group, topic, queue_id) for queue_id in self.queue_ids(group, topic)])
            case _:
                raise unknown_change(change)

    def snapshot(self) -> SnapshotRows:
        groups = sorted(self._groups.items())
        copies = [(group, topic, dict(locks)) for group, topics in groups for topic, locks in sorted(topics.items())]

        def rows() -> Iterator[list[Any]]:
            for group, topic, locks in copies:
                for queue_id in sorted(locks):
                    lock = locks[queue_id]
                    yield [group, topic, queue_id, lock.epoch, lock.session, lock.client_id, lock.held, lock.superseded]

        return SnapshotRows(self._count, rows)

    def restore(self, plain: Iterable[list[Any]]) -> None:
        for group, topic, queue_id, epoch, session, client_id, held, superseded in plain:
            self._put((group, topic, queue_id), Lock(epoch, session, client_id, held, superseded))

    def _record(self, change: Change) -> None:
        self._journal.record(change, self.apply)

    def _put(self, key: QueueKey, lock: Lock) -> None:
        locks = self._groups.setdefault(key[0], {}).setdefault(key[1], {})
        before = locks.get(key[2])
        if before is not None and before.held and before.session is not None:
            self._unindex(before.session, key)
        if before is None:
            self._count += 1
            self._topics[key[1]] += 1
        self._held[key[0]] = self._held.get(key[0], 0) + lock.held - (before is not None and before.held)
        locks[key[2]] = lock
        if lock.held and lock.session is not None:
            self._held_by.setdefault(lock.session, {})[key] = None
            self._session_held[key[0]] = self._session_held.get(key[0], 0) + 1

    def _unindex(self, session: str, key: QueueKey) -> None:
        held = self._held_by[session]
        del held[key]
        if not held:
            del self._held_by[session]
        self._session_held[key[0]] -= 1
        if not self._session_held[key[0]]:
            del self._session_held[key[0]]

    def _hold_or_free(self, key: QueueKey, *, held: bool) -> None:
        lock = self.get(key)
        if lock is not None:
            self._put(key, replace(lock, held=held, superseded=lock.superseded and held))

    def _drop_all(self, keys: Iterable[QueueKey]) -> None:
        for key in keys:
            self._drop(key)

    def drop_group(self, group: str) -> None:
        """Remove a group. This is not recorded as a change: `group.forgotten` of activity_table.py implies it."""
        self._drop_all([key for key, _ in self.locks_of_group(group)])
        self.grant_counts.pop(group, None)

    def _drop(self, key: QueueKey) -> None:
        topics = self._groups[key[0]]
        lock = topics[key[1]].pop(key[2])
        self._count -= 1
        self._topics[key[1]] -= 1
        if not self._topics[key[1]]:
            del self._topics[key[1]]
        self._held[key[0]] -= lock.held
        if lock.held and lock.session is not None:
            self._unindex(lock.session, key)
        if not topics[key[1]]:
            del topics[key[1]]
        if not topics:
            del self._groups[key[0]], self._held[key[0]]
