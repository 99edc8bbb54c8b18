"""The coordination tables of one broker, and the queries that need several of them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from lockstep.broker.groups.tables.activity_table import ActivityTable
from lockstep.broker.groups.tables.group import Group
from lockstep.broker.groups.tables.group_table import GroupTable
from lockstep.broker.groups.tables.lock_table import FencingCounter, LockTable, QueueKey
from lockstep.broker.groups.tables.park_table import ParkTable
from lockstep.broker.groups.tables.progress_table import ProgressTable
from lockstep.broker.groups.tables.session_table import SessionTable
from lockstep.broker.groups.tables.settings_table import SettingsTable
from lockstep.broker.journal import Change, Journal
from lockstep.broker.stored_form import unknown_change
from lockstep.protocol.bodies import Limits, ListVersion
from lockstep.protocol.delays import LEVELS_MS
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.topics.allocate import BY_BROKER, owner_of
from lockstep.protocol.topics.layouts import LayoutTable
from lockstep.protocol.topics.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class CoordinationConfig:
    """Settings of coordination. Grants and heartbeats carry these times, so that both ends use one value."""

    broker_name: str
    limits: Limits
    disconnect_grace_ms: int = 3_000
    """How long a session keeps its locks and its place in the member lists after its connection closed."""
    session_timeout_ms: int = 20_000
    """Silence after which a session ends. Never below the grace: a silent client stops its calls only when the grace is over."""
    classic_lock_ms: int = 60_000
    """RocketMQ: rebalance.lockMaxLiveTime of the broker."""
    classic_trust_ms: int = 30_000
    """How long a classic client trusts a lock. RocketMQ: rocketmq.client.rebalance.lockMaxLiveTime."""
    classic_member_ms: int = 120_000
    """RocketMQ: CHANNEL_EXPIRED_TIMEOUT."""
    classic_restart_ms: int = 30_000
    """How long a recorded classic member may take to return after a start: one heartbeat interval of RocketMQ's clients."""
    delay_levels_ms: tuple[int, ...] = LEVELS_MS
    """The delay of each delay level, level 1 first."""
    groups_max: int = 10_000
    """Number of known groups."""
    progress_max: int = 2_000_000
    """Number of (group, topic, queue id) with progress, and as many with a lock."""
    members_max: int = 50_000
    """Number of members of all groups."""
    subscription_bytes_max: int = 128 << 20
    """Estimated memory of all subscriptions. Equal ones count once, except for what each group stores for a topic."""
    group_idle_days: int = 30
    """A group without a member and without a commit for this long is forgotten. 0 disables this."""

    def __post_init__(self) -> None:
        if self.disconnect_grace_ms < 1_000:
            raise ConfigError(
                f"disconnect_grace_ms is {self.disconnect_grace_ms}: expected at least 1000, clients stop 500 ms before it is over"
            )
        if self.session_timeout_ms < self.disconnect_grace_ms:
            object.__setattr__(self, "session_timeout_ms", self.disconnect_grace_ms)


class QueueBounds(Protocol):
    """The offsets of a queue in the store."""

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return (minimum, end) of the visible messages, (0, 0) for a queue that never had a message."""
        ...

    def end_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of the next message."""
        ...


class GroupTables:
    """The coordination tables, and the broker-wide facts that are durable with them."""

    KINDS = frozenset({"broker.term", "broker.hold", "broker.classic_hold", "broker.grace"})

    def __init__(self, config: CoordinationConfig, layouts: LayoutTable, bounds: QueueBounds, journal: Journal) -> None:
        self.config = config
        self.layouts = layouts
        self.bounds = bounds
        self.journal = journal
        self.fence = FencingCounter()
        self.sessions = SessionTable(grace_ms=config.disconnect_grace_ms, timeout_ms=config.session_timeout_ms)
        self.groups = GroupTable(journal)
        self.locks = LockTable(journal)
        self.progress = ProgressTable(journal)
        self.parks = ParkTable(journal)
        self.settings = SettingsTable(journal)
        self.activity = ActivityTable(journal)
        self.disk_check: Callable[[str], None] | None = None
        """Raises ServiceNotAvailableError, which names the subject, if the disk has no room for new state."""
        self.term = 0
        """The term of the last start."""
        self.grants_suspended = False
        """Durable: a suffix of the log is assumed to be lost, and no queue is granted for the grace (ordering.md 8.5)."""
        self.classic_suspended = False
        """Durable: as `grants_suspended`, for `classic_trust_ms`: no classic client is granted a queue, and no session one of a group with
        classic members (ordering.md 12.6)."""
        self.promised_grace_ms = 0
        """Durable: the longest grace that a client may still rely on. Above the configured one only after a start with a shorter one."""
        self.start_grace_ends_ms: int | None = None
        """When the grace of the last start is over, during which suspended grants remain so; None before the port is open."""
        self.classic_hold_ends_ms: int | None = None
        """When `classic_suspended` ends; None before the port is open."""
        self.classic_connections: dict[str, int] = {}
        """Client id of a classic member → its current connection."""

    def apply(self, change: Change) -> None:
        """Apply one change of a broker-wide fact, made now or read from the log."""
        match change:
            case ("broker.term", int(term)):
                self.term = term
            case ("broker.hold", bool(suspended)):
                self.grants_suspended = suspended
            case ("broker.classic_hold", bool(suspended)):
                self.classic_suspended = suspended
            case ("broker.grace", int(promised_ms)):
                self.promised_grace_ms = promised_ms
            case _:
                raise unknown_change(change)

    def record(self, change: Change) -> None:
        """Apply and journal one change of a broker-wide fact."""
        self.journal.record(change, self.apply)

    def accepts_epoch(self, connection: int, key: QueueKey, epoch: int) -> bool:
        """Return whether the connection is that of a session which may commit to the queue under this epoch."""
        session = self.sessions.session_on(connection)
        return session is not None and self.locks.accepts_epoch(key, session.id, epoch)

    def suspends(self, group: Group | None) -> bool:
        """Return whether no session is granted a queue of the group yet: holders of grants that were lost may still rely on them."""
        return self.grants_suspended or (self.classic_suspended and group is not None and group.has_classic_members)

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Return whether the layout has this readable queue at this broker."""
        layout = self.layouts.get(topic)
        return layout is not None and 0 <= queue_id < layout.read_count(self.config.broker_name)

    def own_queues(self, topic: str) -> list[MessageQueue]:
        """Return this broker's readable queues of the topic, in layout order."""
        layout = self.layouts.get(topic)
        return [] if layout is None else layout.queues_of(self.config.broker_name)

    def own_queue_count(self, topic: str) -> int:
        """Return the number of this broker's readable queues of the topic."""
        layout = self.layouts.get(topic)
        return 0 if layout is None else layout.read_count(self.config.broker_name)

    def missing_progress_count(self, group: str, topic: str) -> int:
        """Return how many of this broker's readable queues of the topic have no progress of the group: what its start adds.

        The result is never too low; it is too high only if the group has progress in queues that were removed.
        """
        return self.progress.missing_count(group, topic, self.own_queue_count(topic))

    def has_left(self, group: str, topic: str) -> bool:
        """Return whether members of the group are here, none of them consumes the topic, and no client holds a queue of it.

        What is stored in such a topic does not count as the group's lag, and no change of the topic waits for it (ordering.md 11.6).
        """
        return bool(self.left_topics(group, (topic,)))

    def left_topics(self, group: str, topics: Iterable[str] | None = None) -> list[str]:
        """Return those of the topics, by default of all in which it has progress, that the group has left."""
        known = self.groups.get(group)
        consumed = None if known is None else known.consumed_topics
        if consumed is None:
            return []
        candidates = self.progress.topics_of_group(group) if topics is None else topics
        return [topic for topic in candidates if topic not in consumed and not self.locks.is_any_held(group, topic)]

    def decides_owners(self, group: Group) -> bool:
        """Return whether this broker's member list decides the owners of its queues, not one list for all brokers (ordering.md 5.5)."""
        return group.contract is not None and group.contract.allocate == BY_BROKER and not group.has_classic_members

    def owner(self, group: Group, topic: str, queue_id: int) -> str | None:
        """Return the member to which this broker's list gives the queue. Only for a group whose owners this broker decides."""
        layout = self.layouts.get(topic)
        if layout is None:
            return None
        return owner_of(layout, MessageQueue(topic, self.config.broker_name, queue_id), group.members_of(topic))

    def version(self, group: str) -> ListVersion:
        """Return the version of the group's member list."""
        known = self.groups.get(group)
        return ListVersion(self.term, 0 if known is None else known.version)
