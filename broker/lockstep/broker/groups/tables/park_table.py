"""Parked keys: keys of ordered groups that were set aside after a message failed for the last time (ordering.md 15).

A row says that of one key, in one queue, everything below `next` is accepted. The waiting messages are not copied: they are the key's
messages from `next` on, and pulls of the group leave them out of the main flow while the row hides them.

    state      hides          set by
    PARKED     every message  PARK, from each other state except DROPPING
    REPLAYING  every message  `replay`, by an operator
    DROPPING   every message  `drop`, by an operator
    ENDED      those < upto   PARK_END, from REPLAYING and DROPPING

No message may be in neither flow, and none in both. So a replay ends at an offset that no pull of the main flow has passed while the key
was hidden, and the row remains until the group's progress has passed that offset: a later owner may begin below it.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from lockstep.broker.groups.tables.lock_table import QueueKey
from lockstep.broker.journal import Change, Journal
from lockstep.broker.snapshot_rows import SnapshotRows
from lockstep.broker.stored_form import unknown_change
from lockstep.protocol.bodies import ParkedKey, ParkState, ReplayKey
from lockstep.protocol.bodies.parks import KEY_BYTES_MAX, KEYS_PER_QUEUE_MAX, REPLAYS_MAX
from lockstep.protocol.errors import ParkRefusedError
from lockstep.protocol.headers.park import ParkEndReply
from lockstep.protocol.messages.properties import SHARDING_KEY

KEYS_MAX = 200_000
"""The number of parked keys of all groups: 100 MB if each has a long key and a long error."""

NEAR_OFFSETS = 1_000
"""A drop that is this far from its end, or further, goes on for a while: the owner need not stop to pull for it."""

_NAME = f"\x02{SHARDING_KEY}\x01".encode()
_LEAVING = (ParkState.REPLAYING, ParkState.DROPPING)
_Rows = dict[str, ParkedKey]


def sharding_key_in(properties: bytes) -> bytes | None:
    """Return the sharding key in a record's stored properties, which begin with 0x02, or None. The last value that is not empty counts."""
    at = len(properties)
    while (at := properties.rfind(_NAME, 0, at)) >= 0:
        begin = at + len(_NAME)
        end = properties.find(b"\x02", begin)
        if key := properties[begin : len(properties) if end < 0 else end]:
            return key
    return None


class KeyFilter:
    """Lets pass what has this sharding key."""

    __slots__ = ("_key",)

    def __init__(self, key: str) -> None:
        self._key = key.encode()

    def keep(self, properties: bytes, offset: int) -> bool:
        return sharding_key_in(properties) == self._key


class ParkFilter:
    """What the rows of one queue hide. It never changes: after a change of the rows the table has another one."""

    __slots__ = ("_upto", "first_end")

    def __init__(self, rows: _Rows) -> None:
        self._upto = {key.encode(): row.upto if row.state is ParkState.ENDED else None for key, row in rows.items()}
        """Key → the end of the offsets that are hidden, or None if all are."""
        self.first_end = min((upto for upto in self._upto.values() if upto is not None), default=sys.maxsize)
        """The lowest of these ends: the progress that ends a row."""

    def keep(self, properties: bytes, offset: int) -> bool:
        """Return whether a message is in the main flow."""
        key = sharding_key_in(properties)
        if key is None or key not in self._upto:
            return True
        upto = self._upto[key]
        return upto is not None and offset >= upto


class WaitingFilter:
    """Lets pass what waits in the rows of one queue."""

    __slots__ = ("_next",)

    def __init__(self, rows: Iterable[ParkedKey]) -> None:
        self._next = {row.key.encode(): row.next for row in rows if row.state is not ParkState.ENDED}

    def keep(self, properties: bytes, offset: int) -> bool:
        key = sharding_key_in(properties)
        return key is not None and offset >= self._next.get(key, offset + 1)


class ParkTable:
    """A durable table of (group, topic, queue id) → sharding key → row."""

    KINDS = frozenset({"park.set", "park.removed", "park.cleared", "park.topic_dropped"})

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._queues: dict[QueueKey, _Rows] = {}
        self.count = 0
        """The number of rows."""
        self._filters: dict[QueueKey, ParkFilter] = {}
        """The filters of the rows as they are now, made when a pull first needs one."""
        self._passed: dict[QueueKey, int] = {}
        """Queue → the end of what pulls of the main flow have looked at since the queue has rows. Of this process only."""

    def __contains__(self, queue: QueueKey) -> bool:
        """Return whether the queue has rows."""
        return queue in self._queues

    def __iter__(self) -> Iterator[ParkedKey]:
        return (row for rows in self._queues.values() for row in rows.values())

    def get(self, queue: QueueKey, key: str) -> ParkedKey | None:
        return self._queues.get(queue, {}).get(key)

    def rows(self, queue: QueueKey) -> list[ParkedKey]:
        return list(self._queues.get(queue, {}).values())

    def waiting_count(self, queue: QueueKey) -> int:
        """Return the number of keys of the queue that wait: all but those whose replay has ended."""
        rows = self._queues.get(queue)
        return 0 if rows is None else sum(row.state is not ParkState.ENDED for row in rows.values())

    def replays(self, queue: QueueKey) -> tuple[ReplayKey, ...]:
        """Return the keys that the owner has to replay or to drop now: those that wait longest in the queue."""
        rows = self._queues.get(queue)
        if rows is None:
            return ()
        found = sorted((row.next, row.key, row.state) for row in rows.values() if row.state in _LEAVING)
        return tuple(ReplayKey(key, offset, state is ParkState.DROPPING) for offset, key, state in found[:REPLAYS_MAX])

    # --------------------------------------------------------------------------------------------------------- the main flow

    def filter(self, queue: QueueKey, progress: int = 0) -> ParkFilter | None:
        """Return what is hidden from pulls of the queue now, or None. `progress`: the group's, which ends rows that it has passed."""
        rows = self._queues.get(queue)
        if rows is None:
            return None
        found = self._filter_of(queue, rows)
        if found.first_end <= progress:
            for row in [row for row in rows.values() if row.state is ParkState.ENDED and row.upto <= progress]:
                self._record(("park.removed", *queue, row.key))
            return self._filter_of(queue, rows) if rows else None
        return found

    def _filter_of(self, queue: QueueKey, rows: _Rows) -> ParkFilter:
        found = self._filters.get(queue)
        if found is None:
            found = self._filters[queue] = ParkFilter(rows)
        return found

    def note_passed(self, queue: QueueKey, end: int) -> None:
        """Note that a pull of the main flow has left out what was hidden below `end`, whether it was answered or is held there."""
        if queue in self._queues:
            self._passed[queue] = max(self._passed.get(queue, 0), end)

    # ----------------------------------------------------------------------------------------------------------------- rows

    def park(self, queue: QueueKey, key: str, offset: int, attempts: int, error: str, now_ms: int) -> None:
        """Set a key aside at `offset`. A key that is set aside already, at that offset or before, or accepted beyond it, stays as it is.

        Raises ParkRefusedError if there are too many rows, or the key is too long.
        """
        row = self.get(queue, key)
        if row is None:
            self._check_room(queue, key)
        elif row.state in (ParkState.PARKED, ParkState.DROPPING) or offset < max(row.next, row.upto):
            return
        self._put(ParkedKey(*queue, key, offset, ParkState.PARKED, attempts, error, now_ms))

    def _check_room(self, queue: QueueKey, key: str) -> None:
        if (size := len(key.encode())) > KEY_BYTES_MAX:
            raise ParkRefusedError(f"the sharding key {key[:40]!r}… has {size} bytes: at most {KEY_BYTES_MAX} can be parked")
        if len(self._queues.get(queue, ())) >= KEYS_PER_QUEUE_MAX:
            group, topic, queue_id = queue
            raise ParkRefusedError(
                f"{KEYS_PER_QUEUE_MAX} keys of group {group} are parked in {topic} queue {queue_id}, which is the limit: replay or drop "
                f"some with `lockstep park`"
            )
        if self.count >= KEYS_MAX:
            raise ParkRefusedError(f"{KEYS_MAX} keys are parked at this broker, which is the limit: replay or drop some")

    def check_state(self, row: ParkedKey, state: ParkState) -> None:
        """Raise ParkRefusedError if a row may not be replayed or dropped now."""
        if row.state is ParkState.DROPPING and state is ParkState.REPLAYING:
            raise ParkRefusedError(f"key {row.key!r} of group {row.group} in {row.topic} queue {row.queue_id} is being dropped already")

    def set_state(self, row: ParkedKey, state: ParkState) -> ParkedKey:
        """Let a row be replayed or dropped, and return it as it is then."""
        return row if row.state is state else self._put(replace(row, state=state))

    def advance(self, row: ParkedKey, offset: int) -> ParkedKey:
        """Record that everything of the key below `offset` is accepted, and return the row."""
        return row if offset <= row.next else self._put(replace(row, next=offset))

    def commit_replay(self, queue: QueueKey, key: str, offset: int) -> None:
        """Record that a replay has accepted everything below `offset`. Raises ParkRefusedError if the key is not replayed."""
        row = self._leaving(queue, key)
        if row is not None and row.state is ParkState.REPLAYING:
            self.advance(row, offset)

    def end_replay(self, queue: QueueKey, key: str, least: int) -> ParkEndReply:
        """End a replay at the offset that it has reached, or return up to where it has to go on.

        `least`: the owner has pulled the main flow up to here, or a later owner begins here or passes over done ranges up to here. The key
        was left out below it, and below the end of what pulls have passed. A repeated request changes nothing. Raises ParkRefusedError if
        the key is not replayed.
        """
        row = self._leaving(queue, key)
        if row is None:
            ended = self.get(queue, key)
            return ParkEndReply(upto=0 if ended is None else ended.upto)
        least = max(least, self._passed.get(queue, 0))
        if row.next < least:
            far = row.state is ParkState.DROPPING and least - row.next > NEAR_OFFSETS
            return ParkEndReply() if far else ParkEndReply(until=least)
        return ParkEndReply(upto=self._put(replace(row, state=ParkState.ENDED, upto=row.next)).upto)

    def _leaving(self, queue: QueueKey, key: str) -> ParkedKey | None:
        """Return the row of a key that is replayed or dropped; None if that has ended."""
        row = self.get(queue, key)
        if row is not None and row.state is ParkState.PARKED:
            raise ParkRefusedError(f"key {key!r} of group {queue[0]} in {queue[1]} queue {queue[2]} is parked: it is not replayed")
        return None if row is None or row.state is ParkState.ENDED else row

    # ------------------------------------------------------------------------------------------------- resets and retention

    def clear(self, queue: QueueKey) -> None:
        """Forget the rows of a queue: the group's progress was reset."""
        if queue in self._queues:
            self._record(("park.cleared", *queue))

    def move_within(self, queue: QueueKey, first: int, end: int) -> None:
        """Move rows into the bounds of the queue: messages before `first` were removed, or the log lost what was from `end` on."""
        for row in self.rows(queue):
            moved = replace(row, next=min(max(row.next, first), end), upto=min(row.upto, end))
            if moved != row:
                self._put(moved)

    def drop_topic(self, topic: str) -> None:
        if any(queue[1] == topic for queue in self._queues):
            self._record(("park.topic_dropped", topic))

    def drop_group(self, group: str) -> None:
        """Remove a group. This is not recorded as a change: `group.forgotten` of activity_table.py implies it."""
        for queue in [queue for queue in self._queues if queue[0] == group]:
            self._forget(queue)

    # -------------------------------------------------------------------------------------------------------------- durable

    def apply(self, change: Change) -> None:
        """Apply one change, made now or read from the log."""
        match change:
            case ("park.set", group, topic, queue_id, key, offset, state, attempts, error, since_ms, upto):
                queue = (group, topic, queue_id)
                rows = self._queues.setdefault(queue, {})
                self.count += key not in rows
                before, row = rows.get(key), ParkedKey(*queue, key, offset, ParkState(state), attempts, error, since_ms, upto)
                rows[key] = row
                if before is None or ParkState.ENDED in (before.state, row.state):  # otherwise it hides what it hid
                    self._filters.pop(queue, None)
            case ("park.removed", group, topic, queue_id, key):
                queue = (group, topic, queue_id)
                rows = self._queues.get(queue, {})
                self.count -= rows.pop(key, None) is not None
                self._filters.pop(queue, None)
                if not rows:
                    self._forget(queue)
            case ("park.cleared", group, topic, queue_id):
                self._forget((group, topic, queue_id))
            case ("park.topic_dropped", topic):
                for queue in [queue for queue in self._queues if queue[1] == topic]:
                    self._forget(queue)
            case _:
                raise unknown_change(change)

    def snapshot(self) -> SnapshotRows:
        rows = list(self)
        return SnapshotRows(len(rows), lambda: map(_plain, rows))

    def restore(self, plain: list[Any]) -> None:
        for row in plain:
            self.apply(("park.set", *row))

    def _put(self, row: ParkedKey) -> ParkedKey:
        self._record(("park.set", *_plain(row)))
        return row

    def _forget(self, queue: QueueKey) -> None:
        self.count -= len(self._queues.pop(queue, ()))
        self._filters.pop(queue, None)
        self._passed.pop(queue, None)

    def _record(self, change: Change) -> None:
        self._journal.record(change, self.apply)


def _plain(row: ParkedKey) -> list[Any]:
    state = row.state.value
    return [row.group, row.topic, row.queue_id, row.key, row.next, state, row.attempts, row.error, row.since_ms, row.upto]
