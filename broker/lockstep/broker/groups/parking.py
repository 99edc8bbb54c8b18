"""Setting keys of ordered groups aside, and bringing them back (ordering.md 15): the rules of PARK, PARK_END and PARK_CONTROL."""

from collections.abc import Callable, Iterator

from lockstep.broker.groups.group_state import GroupState
from lockstep.broker.groups.tables.lock_table import Lock, QueueKey
from lockstep.broker.groups.tables.park_table import ParkFilter
from lockstep.protocol.bodies import ParkAction, ParkControlBody, ParkControlReply, ParkedKey, ParkState
from lockstep.protocol.bodies.parks import LISTED_MAX
from lockstep.protocol.errors import LocalProtocolError, ParkRefusedError
from lockstep.protocol.headers.park import ParkEndHeader, ParkEndReply, ParkHeader
from lockstep.protocol.messages.properties import one_line_reason

_STATES = {ParkAction.REPLAY: ParkState.REPLAYING, ParkAction.DROP: ParkState.DROPPING}


def queue_of(row: ParkedKey) -> QueueKey:
    return row.group, row.topic, row.queue_id


LISTED_BYTES_MAX = 4 << 20
ROW_BYTES = 512
"""Bytes of the other fields of a row in a response, with the longest names of a group and a topic."""


class Parking:
    """Handles the requests about parked keys. Responses wait until the log is confirmed."""

    def __init__(self, state: GroupState) -> None:
        self._state = state

    def park(self, header: ParkHeader, key: bytes | None, wall_ms: int) -> None:
        """Set a key aside. The caller has checked the epoch. `key`: that of the message at the header's offset.

        Raises ParkRefusedError if the message has no key, or the table has no room for it.
        """
        queue = (header.consumer_group, header.topic, header.queue_id)
        place = f"the message at offset {header.offset} of {header.topic} queue {header.queue_id}"
        if key is None:
            raise ParkRefusedError(f"{place} has no sharding key: nothing says which later messages have to wait for it")
        try:
            text = key.decode()
        except UnicodeDecodeError:
            raise ParkRefusedError(f"the sharding key of {place} is not UTF-8") from None
        self._state.parks.park(queue, text, header.offset, header.attempts, one_line_reason(header.reason), wall_ms)

    def commit_replay(self, header: ParkEndHeader) -> ParkEndReply:
        """Record the progress of a replay, and end it if the request asks for that and nothing is left. The caller has checked the epoch.

        Raises LocalProtocolError for an offset beyond the queue, ParkRefusedError if the key is not replayed.
        """
        state, queue = self._state, (header.consumer_group, header.topic, header.queue_id)
        end = state.bounds.end_offset(header.topic, header.queue_id)
        if not (0 <= header.next <= end and 0 <= (header.pulled or 0) <= end):
            at = f"{header.topic} queue {header.queue_id}"
            raise LocalProtocolError(f"replay of {at}: next {header.next}, pulled {header.pulled}: the queue ends at {end}")
        state.parks.commit_replay(queue, header.key, header.next)
        if header.pulled is None:
            return ParkEndReply()
        return state.parks.end_replay(queue, header.key, max(header.pulled, self.least_end(queue)))

    def end_unpolled_drop(self, row: ParkedKey) -> None:
        """End the drop of a key if no owner asks for that, and nothing of it is left below where the next owner begins.

        Nobody holds the queue, or a member does that does not replay keys. If nobody does, an epoch that was freed ends as well: a member
        that renewed it would go on leaving the key out.
        """
        queue = queue_of(row)
        holder = self._state.locks.holder(queue)
        if holder is not None and self._replays_keys(row.group, holder):
            return
        reply = self._state.parks.end_replay(queue, row.key, self.least_end(queue))
        if reply.upto is not None and holder is None:
            self._state.end_grant(queue, "a parked key was dropped")

    def _replays_keys(self, group: str, holder: Lock) -> bool:
        """Return whether the holder of a queue replays and drops keys, or is not known well enough to say that it does not."""
        if holder.session is None:
            return False
        known, session = self._state.groups.get(group), self._state.sessions.get(holder.session)
        if known is None or session is None or known.members.get(session.client_id) != session.id:
            return True
        contract = known.contract_of(session.client_id)
        return contract is None or contract.parks

    def filter(self, queue: QueueKey) -> ParkFilter | None:
        """Return what is hidden from pulls of the main flow, or None."""
        if queue not in self._state.parks:
            return None
        progress = self._state.progress.get(queue)
        return self._state.parks.filter(queue, 0 if progress is None else progress.offset)

    def rows(self, queue: QueueKey) -> list[ParkedKey]:
        """Return the rows of one queue."""
        return self._state.parks.rows(queue)

    def note_passed(self, queue: QueueKey, hidden: ParkFilter | None, end: int) -> bool:
        """Note that a pull of the main flow has left out what was hidden below `end`, whether it is answered or held there then.

        `hidden`: what `filter` returned when the pull was read. Return False if that has changed since: the pull is to be read again,
        because a key that has come back must not be left out.
        """
        if self.filter(queue) is not hidden:
            return False
        self._state.parks.note_passed(queue, end)
        return True

    @property
    def any_parked(self) -> bool:
        """Return whether the broker has parked keys, of any group."""
        return self._state.parks.count > 0

    def least_end(self, queue: QueueKey) -> int:
        """Return the offset up to which the group has passed over hidden messages for good: by its progress and by done ranges."""
        progress = self._state.progress.get(queue)
        if progress is None:
            return 0
        return max(progress.offset, progress.done[-1]) if progress.done else progress.offset

    def control(self, body: ParkControlBody, sees: Callable[[str], bool] = lambda _: True) -> ParkControlReply:
        """List parked keys, or let them be replayed or dropped: all that are named, or none. `sees`: whether a list shows a group.

        Raises LocalProtocolError if the request names no group, ParkRefusedError if a named key is not parked or can't change so.
        """
        rows = [row for row in self._named(body) if sees(row.group)]
        if body.action is not ParkAction.LIST:
            if body.group is None:
                raise LocalProtocolError(f"{body.action.value}: expected a group")
            if not rows and body.key is not None:
                where = "" if body.topic is None else f" in {body.topic}"
                raise ParkRefusedError(f"key {body.key!r} of group {body.group} is not parked{where}")
            state = _STATES[body.action]
            if state is ParkState.REPLAYING:
                self._check_replays(body.group)
            if body.key is None and state is ParkState.REPLAYING:
                rows = [row for row in rows if row.state is not ParkState.DROPPING]
            rows = self._change(rows, state)
        listed = list(_first(rows))
        return ParkControlReply(tuple(listed), len(listed) < len(rows))

    def _check_replays(self, group: str) -> None:
        """Raise ParkRefusedError if the group's members would not replay a key."""
        known = self._state.groups.get(group)
        contract = None if known is None else known.contract
        if contract is not None and not contract.parks:
            raise ParkRefusedError(
                f'the members of group {group} do not replay keys: their retry policy is "{contract.retry}". '
                'Start them with on_exhausted="park", or drop the keys'
            )

    def _change(self, rows: list[ParkedKey], state: ParkState) -> list[ParkedKey]:
        parks = self._state.parks
        for row in rows:
            parks.check_state(row, state)
        changed = [parks.set_state(row, state) for row in rows]
        for queue in dict.fromkeys(map(queue_of, rows)):
            self._state.pending.notify_replays(queue)
        return changed

    def _named(self, body: ParkControlBody) -> Iterator[ParkedKey]:
        for row in self._state.parks:
            if (
                row.state is not ParkState.ENDED
                and body.group in (None, row.group)
                and body.topic in (None, row.topic)
                and body.key in (None, row.key)
            ):
                yield row


def _first(rows: list[ParkedKey]) -> Iterator[ParkedKey]:
    """Yield the rows that one response holds."""
    size = 0
    for row in rows[:LISTED_MAX]:
        size += ROW_BYTES + len(row.key.encode()) + len(row.error.encode())
        if size > LISTED_BYTES_MAX:
            return
        yield row
