"""Where a group begins in a topic: its start policy, resolved once for all queues of this broker (ordering.md 7.1 to 7.4, 7.8)."""

from collections.abc import Mapping

from lockstep.broker.groups.group_state import GroupState
from lockstep.broker.groups.tables.group import Group
from lockstep.broker.groups.tables.lock_table import QueueKey
from lockstep.protocol.bodies import ConsumeFromWhere, ConsumerGroup, SessionLockBody, StartPolicy
from lockstep.protocol.errors import BrokerError
from lockstep.protocol.headers.offsets import QueryConsumerOffsetHeader
from lockstep.protocol.names import RETRY_PREFIX
from lockstep.protocol.topics.allocate import MANUAL

LOOKUPS_MAX = 65_536
"""Queues for which one LOCK looks up the offset at a time, about 16 MB. The others are resolved by the member's next LOCK."""

STARTS_MAX = 16_384
"""Queues in which groups may begin in START_WINDOW_MS: as many as the largest topic has, which takes some 50 ms. Members retry for the
others."""
START_WINDOW_MS = 100

OffsetsByTime = Mapping[QueueKey, int]
"""(group, topic, queue id) → offset at the time that the group's start policy names."""
NO_OFFSETS: OffsetsByTime = {}


class StartPositions:
    """Decides whether a group may begin in a queue, and records where."""

    def __init__(self, state: GroupState) -> None:
        self._state = state
        self._start_window_ms = 0
        self._start_count = 0
        """Queues in which groups have begun since `_start_window_ms`."""

    def own_queue_ids(self, topic: str) -> list[int]:
        """Return this broker's readable queues of the topic."""
        return [queue.queue_id for queue in self._state.own_queues(topic)]

    def policies_to_look_up(self, connection: int, body: SessionLockBody) -> tuple[StartPolicy, ...]:
        """Return the start policies by time that this LOCK will resolve, for at most LOOKUPS_MAX queues. Skip queues that it can't get."""
        state, left = self._state, LOOKUPS_MAX
        session = state.sessions.session_on(connection)
        if session is None:
            return ()
        starts = {(start.group, start.topic): start for start in body.starts}
        found: dict[tuple[str, str], StartPolicy] = {}
        for item in body.items:
            group, key = state.groups.get(item.group), (item.group, item.topic, item.queue_id)
            contract = None if group is None else group.contract_of(session.client_id)
            if item.epoch is not None or group is None or contract is None or key[:2] in found:
                continue
            policy = _policy(contract, item.topic, starts.get(key[:2]))
            if policy.where is not ConsumeFromWhere.TIMESTAMP or state.progress.since(*key[:2]) is not None:
                continue
            count = state.own_queue_count(item.topic)
            refused = self.refusal(group, contract, key, ordered=contract.ordered) or self.room_refusal(key)
            if count <= left and not refused and group.members.get(session.client_id) == session.id:
                left -= count
                found[key[:2]] = policy
        return tuple(found.values())

    def resolve(self, contract: ConsumerGroup, key: QueueKey, start: StartPolicy | None, by_time: OffsetsByTime, now_ms: int) -> bool:
        """Record where the group begins in this topic, for all queues of this broker at once, unless it is recorded.

        Return False if the member has to try again: the group begins by time and the offset of the queue was not looked up, or groups
        begin in too many queues at once.
        """
        state = self._state
        group, topic, _ = key
        layout = state.layouts.get(topic)
        if layout is None or state.progress.since(group, topic) is not None:
            return True
        policy = _policy(contract, topic, start)
        if policy.where is ConsumeFromWhere.TIMESTAMP and key not in by_time:
            return False
        if not self._reserve_starts(state.own_queue_count(topic), now_ms):
            return False
        since = min(layout.version.counter, policy.since or layout.version.counter)
        begins = []
        for queue_id, added_in in layout.each_added(state.config.broker_name):
            if state.progress.get((group, topic, queue_id)) is None:
                first = state.progress.first_offset(topic, queue_id)
                begins.append((queue_id, first if added_in > since else self._start_offset(queue_id, policy, by_time)))
        state.progress.record_start(group, topic, since=since, generation=state.fence.draw(), offsets=begins)
        return True

    def begin_at_first(self, group: Group, topic: str) -> None:
        """Record that the group begins at the first message of a topic that was just created, if it would begin at the end.

        The other start policies find that message by themselves.
        """
        policies = [each for each in group.contracts.values() if group.subscribes(each, topic) and not each.broadcasting]
        layout = self._state.layouts.get(topic)
        if layout is not None and any(each.consume_from_where is ConsumeFromWhere.LAST_OFFSET for each in policies):
            self._state.progress.record_start(group.name, topic, since=layout.version.counter, generation=0, offsets=())

    def _reserve_starts(self, count: int, now_ms: int) -> bool:
        """Return whether a group may begin in `count` queues now, and count them."""
        if now_ms - self._start_window_ms >= START_WINDOW_MS:
            self._start_window_ms, self._start_count = now_ms, 0
        if self._start_count and self._start_count + count > STARTS_MAX:
            return False
        self._start_count += count
        return True

    def _start_offset(self, queue_id: int, policy: StartPolicy, by_time: OffsetsByTime) -> int:
        minimum, _ = self._state.bounds.bounds(policy.topic, queue_id)
        end = self._state.bounds.end_offset(policy.topic, queue_id)
        if policy.where is ConsumeFromWhere.FIRST_OFFSET:
            return minimum
        if policy.where is ConsumeFromWhere.LAST_OFFSET:
            return end
        return max(minimum, min(end, by_time.get((policy.group, policy.topic, queue_id), 0)))

    def refusal(self, group: Group, contract: ConsumerGroup, key: QueueKey, *, ordered: bool) -> str | None:
        """Return why a member with this contract may not consume the queue, or None."""
        if contract.ordered != ordered or contract.broadcasting:
            if ordered:
                return f"group {contract.group} is not an ordered group in clustering mode: its queues are not locked"
            return (
                f"group {contract.group} is not a concurrent group in clustering mode: its queues are locked, or each member consumes all"
            )
        if contract.allocate != MANUAL and not group.subscribes(contract, key[1]):
            return f"group {contract.group} does not subscribe to {key[1]}"
        if not self._state.has_queue(key[1], key[2]):
            return f"{key[1]} has no readable queue {key[2]} at {self._state.config.broker_name}"
        return None

    def room_refusal(self, key: QueueKey) -> str | None:
        """Return why there is no room for the group to begin in the queue (and in the others of the topic, if it begins in them too)."""
        state, (group, topic, _) = self._state, key
        resolved = state.progress.since(group, topic) is not None
        count = int(state.progress.get(key) is None) if resolved else state.missing_progress_count(group, topic)
        try:
            state.limits.check_progress_room(group, topic, count)
        except BrokerError as error:
            return error.remark
        return None


def start_policy(header: QueryConsumerOffsetHeader) -> StartPolicy:
    """Return the start policy that a concurrent member's query names."""
    assert header.where is not None, header
    return StartPolicy(header.consumer_group, header.topic, header.where, header.timestamp_ms, header.since)


def _policy(contract: ConsumerGroup, topic: str, start: StartPolicy | None) -> StartPolicy:
    """Return the LOCK's own start policy, or the contract's.

    If a time is missing, the group begins at the first message. So do the group's own retries always: it has seen them once already.
    """
    policy = start or StartPolicy(contract.group, topic, contract.consume_from_where, contract.consume_timestamp_ms)
    if (policy.where is ConsumeFromWhere.TIMESTAMP and policy.timestamp_ms is None) or topic == RETRY_PREFIX + contract.group:
        return StartPolicy(policy.group, topic, ConsumeFromWhere.FIRST_OFFSET, None, policy.since)
    return policy
