"""GROUP_STATUS: what one broker knows of a group. RocketMQ: AdminBrokerProcessor (GET_CONSUME_STATS, GET_CONSUMER_CONNECTION_LIST)."""

from collections.abc import Callable, Iterator, Sequence

from lockstep.broker.group_state import GroupState
from lockstep.broker.legacy_clients import LegacyClients
from lockstep.broker.membership import Membership
from lockstep.broker.tables.lock_table import Key
from lockstep.protocol.bodies import GroupStatus, MemberStatus, QueueStatus

SESSION_DIGITS_SHOWN = 8
"""The whole session is a secret."""


def group_names(state: GroupState) -> tuple[str, ...]:
    """Every group with members, a contract, locks, progress or settings, sorted."""
    return tuple(sorted(state.activity))


def group_status(state: GroupState, name: str, members: Sequence[MemberStatus], queues: Sequence[QueueStatus]) -> GroupStatus | None:
    """None: nothing is known of the group. `queues`: what `queue_status` says of each of `queue_keys`; `members` likewise."""
    if name not in state.activity:
        return None
    group = state.groups.get(name)
    return GroupStatus(
        group=name,
        version=state.version(name),
        contract=None if group is None else group.contract,
        members=tuple(members),
        queues=tuple(queues),
        settings=state.settings.get(name),
        overruled_count=state.overruled.get(name, 0),
    )


def member_status(
    state: GroupState, membership: Membership, name: str, client_id: str, now_ms: int, address: Callable[[int], str]
) -> MemberStatus | None:
    """None: it is no member. `address` names the peer of a connection."""
    group = state.groups.get(name)
    if group is None or client_id not in group.members:
        return None
    session_id = group.members[client_id]
    if session_id is None:
        connection, heard_ms = membership.classic_heard(group.name, client_id)
    else:
        session = state.sessions.get(session_id)
        connection, heard_ms = (None, now_ms) if session is None else (session.connection, session.heard_ms)
    said = group.said.get(client_id)
    return MemberStatus(
        client_id=client_id,
        session=None if session_id is None else session_id[:SESSION_DIGITS_SHOWN],
        address="" if connection is None else address(connection),
        connected=connection is not None,
        heard_ago_ms=max(0, now_ms - heard_ms),
        subscriptions=None if group.contract is not None and group.contract.subscriptions == said else said,
    )


def queue_status(state: GroupState, classic: LegacyClients, key: Key, now_ms: int) -> QueueStatus:
    lock, progress, committed_ms = state.locks.get(key), state.progress.get(key), state.progress.committed_ms(key)
    failing = state.progress.failing(key)
    return QueueStatus(
        topic=key[1],
        queue_id=key[2],
        owner=lock.client_id if lock is not None and lock.held else None,
        epoch=0 if lock is None else lock.epoch,
        generation=0 if progress is None else progress.generation,
        committed_offset=-1 if progress is None else progress.offset,
        max_offset=state.bounds.end_offset(key[1], key[2]),
        attempts=0 if progress is None else progress.attempts,
        committed_ago_ms=None if committed_ms is None else max(0, now_ms - committed_ms),
        classic_lease_left_ms=classic.lease_left_ms(key, now_ms),
        failing_ms=None if failing is None else max(0, now_ms - failing.since_ms),
        error=None if failing is None else failing.error,
    )


def queue_keys(state: GroupState, name: str) -> Iterator[Key]:
    """The queues to which the group subscribes, and those in which it has progress or a lock, sorted. A topic is looked at in its turn."""
    group = state.groups.get(name)
    subscribed = {} if group is None else group.subscribed
    for topic in sorted({*subscribed, *state.progress.topics(name), *state.locks.topics(name)}):
        ids = {queue.queue_id for queue in state.own_queues(topic)} if topic in subscribed else set()
        ids |= {queue_id for queue_id, _ in state.progress.of_topic(name, topic)}
        for queue_id in sorted(ids.union(state.locks.queue_ids(name, topic))):
            yield name, topic, queue_id
