"""A broker's coordination under test: a clock that the test sets, queues of given lengths, and clients with one call per request.

Every change goes through a journal whose records are kept, so that a test can check that replay yields the same state.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from lockstep.broker.groups.coordination import Coordination, CoordinationConfig
from lockstep.broker.groups.effects import CloseConnection, GroupEffect, Notify, PushQueueFree, StalePulls
from lockstep.broker.groups.heartbeats import Heartbeat
from lockstep.broker.journal import Journal, decode_changes
from lockstep.protocol.bodies import (
    ConsumeFromWhere,
    ConsumerGroup,
    HeartbeatBody,
    HeartbeatReply,
    Limits,
    ListVersion,
    LockBatchBody,
    LockItem,
    LockResult,
    LockVerdict,
    QueueRef,
    SessionLockBody,
    SessionLockReply,
    StartPolicy,
    Subscription,
    SyncBody,
    SyncItem,
    SyncResult,
)
from lockstep.protocol.topics.layouts import LayoutTable
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout

E = TypeVar("E", bound=GroupEffect)

BROKER, OTHER_BROKER = "broker-a", "broker-b"
GROUP, TOPIC = "billing", "orders"
CONFIG = CoordinationConfig(BROKER, Limits(1 << 24, 1 << 18, 1 << 22))
GRACE, TIMEOUT = CONFIG.disconnect_grace_ms, CONFIG.session_timeout_ms


def layout(topic: str = TOPIC, queues: int = 4, *, counter: int = 1, others: int = 0) -> TopicLayout:
    """Return a layout with `queues` of this broker, then `others` of another one."""
    entries = [LayoutEntry(BROKER, queues, queues, counter)] if queues else []
    entries += [LayoutEntry(OTHER_BROKER, others, others, counter)] if others else []
    return TopicLayout(topic, LayoutVersion(counter, 7), tuple(entries))


def ordered(group: str = GROUP, topics: Sequence[str] = (TOPIC,), expression: str = "*", **changes: object) -> ConsumerGroup:
    """Return an ordered group that starts at the first message."""
    subscriptions = tuple(Subscription(topic, expression) for topic in topics)
    made = ConsumerGroup(group, subscriptions, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, ordered=True)
    return replace(made, **changes)  # type: ignore[arg-type]


@dataclass
class Ends:
    """The bounds of a store: (topic, queue id) → (min, end)."""

    queues: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        return self.queues.get((topic, queue_id), (0, 1_000))

    def end_offset(self, topic: str, queue_id: int) -> int:
        return self.bounds(topic, queue_id)[1]


class Bench:
    """A started broker. `advance` moves time in ticks, as the shell does."""

    def __init__(self, *layouts: TopicLayout, config: CoordinationConfig = CONFIG) -> None:
        self.config = config
        self.layouts = LayoutTable(layouts or (layout(),))
        self.ends = Ends()
        self.now_ms = 1_000_000
        self.records: list[bytes] = []
        self.connections = 0
        self.journal = Journal()
        self.c = Coordination(config, self.layouts, self.ends, self.journal)
        self.start()

    def start(self, *, assumed_loss: bool = False) -> None:
        self.c.enter_term(self.c.state.term + 1, assumed_loss=assumed_loss, now_ms=self.now_ms)
        self.c.port_opened(self.now_ms)
        self.flush()

    def restart(self, *, assumed_loss: bool = False, opened: bool = True) -> None:
        """Kill and restart the broker: only the journal's records remain."""
        self.flush()
        self.journal = Journal()
        self.c = replay(self)
        self.c.enter_term(self.c.state.term + 1, assumed_loss=assumed_loss, now_ms=self.now_ms)
        if opened:
            self.c.port_opened(self.now_ms)
        self.flush()

    def flush(self) -> None:
        """End a loop turn."""
        self.records += self.journal.encode(1 << 30)

    def advance(self, ms: int, step_ms: int = 500) -> None:
        end = self.now_ms + ms
        while self.now_ms < end:
            self.now_ms = min(end, self.now_ms + step_ms)
            self.c.tick(self.now_ms)

    def retention_moved(self, minimums: dict[tuple[str, int], int]) -> None:
        """Remove the messages below these minimums of (topic, queue id) as by retention. All groups are moved."""
        for _ in self.c.skip_removed(minimums):
            pass

    def drain(self, kind: type[E]) -> list[E]:
        """Drain all pending effects. Return those of one kind."""
        return [effect for effect in self.c.state.pending.drain() if isinstance(effect, kind)]

    def closed(self) -> list[int]:
        return [effect.connection for effect in self.drain(CloseConnection)]

    def notified(self) -> dict[str, tuple[int, ...]]:
        return {effect.group: effect.connections for effect in self.drain(Notify)}

    def pushed(self) -> dict[int, list[int]]:
        """Return connection → ids of the queues in QUEUE_FREE."""
        return {effect.connection: [queue.queue_id for queue in effect.queues] for effect in self.drain(PushQueueFree)}

    def stale(self) -> list[tuple[str, str, int]]:
        return [(effect.group, effect.topic, effect.queue_id) for effect in self.drain(StalePulls)]

    def lists(self, group: str = GROUP) -> tuple[str, ...]:
        members = self.c.membership.member_list(group)
        return () if members is None else members.members

    def epoch(self, queue_id: int, group: str = GROUP, topic: str = TOPIC) -> int:
        status = self.c.status.read(group, self.now_ms, str)
        assert status is not None
        return {(queue.topic, queue.queue_id): queue.epoch for queue in status.queues}[topic, queue_id]

    def owner(self, queue_id: int, group: str = GROUP, topic: str = TOPIC) -> str | None:
        status = self.c.status.read(group, self.now_ms, str)
        assert status is not None
        return {(queue.topic, queue.queue_id): queue.owner for queue in status.queues}[topic, queue_id]

    def progress(self, queue_id: int, group: str = GROUP, topic: str = TOPIC) -> tuple[int, int]:
        """Return (committed offset, attempts)."""
        status = self.c.status.read(group, self.now_ms, str)
        assert status is not None
        return {(q.topic, q.queue_id): (q.committed_offset, q.attempts) for q in status.queues}[topic, queue_id]

    def new_connection(self) -> int:
        self.connections += 1
        return self.connections


def replay(bench: Bench) -> Coordination:
    """Return a new Coordination from the records alone."""
    made = Coordination(bench.config, bench.layouts, bench.ends, bench.journal)
    for record in bench.records:
        for change in decode_changes(record):
            made.apply(change)
    return made


class Client:
    """A client with a session. `held` is queue id → epoch, of GROUP and TOPIC."""

    def __init__(self, bench: Bench, name: str, *groups: ConsumerGroup, session: str | None = None) -> None:
        self.bench = bench
        self.name = name
        self.groups = groups or (ordered(),)
        self.session = session or (name.encode().hex() * 32)[:32]
        self.connection = 0
        self.number = 0
        self.held: dict[int, int] = {}

    def connect(self) -> HeartbeatReply | None:
        self.connection = self.bench.new_connection()
        self.number += 1
        return self.beat()

    def body(self) -> HeartbeatBody:
        return HeartbeatBody(self.name, self.groups, session=self.session, connection=self.number)

    def beat(self) -> HeartbeatReply | None:
        return self.bench.c.membership.heartbeat(self.connection, Heartbeat.from_body(self.body()), self.bench.now_ms)

    def close(self) -> None:
        self.bench.c.membership.connection_closed(self.connection, self.bench.now_ms)

    def leave(self, group: str = GROUP) -> bool:
        self.groups = tuple(each for each in self.groups if each.group != group)
        return self.bench.c.membership.unregister(self.connection, self.name, group, self.bench.now_ms)

    def send_lock(self, *items: LockItem, starts: tuple[StartPolicy, ...] = ()) -> SessionLockReply | None:
        return self.bench.c.lock_sync.lock(self.connection, SessionLockBody(items, starts), self.bench.now_ms)

    def lock(self, *wanted: int, held: dict[int, int] | None = None) -> dict[int, LockResult]:
        """Send a LOCK of the held and the wanted queues. Store the granted ones."""
        items = [LockItem(GROUP, TOPIC, queue_id, epoch) for queue_id, epoch in (self.held if held is None else held).items()]
        items += [LockItem(GROUP, TOPIC, queue_id) for queue_id in wanted]
        reply = self.send_lock(*items)
        assert reply is not None
        self.held = {response.queue_id: response.epoch for response in reply.items if response.verdict is LockVerdict.OK}
        return {response.queue_id: response for response in reply.items}

    def verdicts(self, *wanted: int, held: dict[int, int] | None = None) -> dict[int, LockVerdict]:
        return {queue_id: response.verdict for queue_id, response in self.lock(*wanted, held=held).items()}

    def send_sync(self, *items: SyncItem) -> tuple[SyncResult, ...] | None:
        reply = self.bench.c.lock_sync.sync(self.connection, SyncBody(items), self.bench.now_ms)
        return None if reply is None else reply.items

    def commit(
        self, queue_id: int, offset: int | None, *, epoch: int | None = None, attempts: int = 0, release: bool = False
    ) -> LockVerdict:
        epoch = self.held[queue_id] if epoch is None else epoch
        responses = self.send_sync(SyncItem(GROUP, TOPIC, queue_id, epoch, offset=offset, attempts=attempts, release=release))
        assert responses is not None
        return responses[0].verdict

    def pull(self, queue_id: int, epoch: int | None = None) -> bool | None:
        """Return True if served, False if STALE, None if the connection is being closed."""
        check = self.bench.c.pulls.admit(self.connection, (GROUP, TOPIC, queue_id), self.held.get(queue_id) if epoch is None else epoch)
        return None if check is None else not check.stale


def joined(bench: Bench, name: str, *groups: ConsumerGroup, session: str | None = None) -> Client:
    """Return a client that is connected."""
    client = Client(bench, name, *groups, session=session)
    client.connect()
    return client


class ClassicClient:
    """A client without a session."""

    def __init__(self, bench: Bench, name: str, *groups: ConsumerGroup) -> None:
        self.bench = bench
        self.name = name
        self.groups = groups or (ordered(),)
        self.connection = 0

    def connect(self) -> None:
        self.connection = self.bench.new_connection()
        self.beat()

    def beat(self) -> None:
        self.bench.c.membership.heartbeat(self.connection, Heartbeat.from_body(HeartbeatBody(self.name, self.groups)), self.bench.now_ms)

    def close(self) -> None:
        self.bench.c.membership.connection_closed(self.connection, self.bench.now_ms)

    def lock(self, *queue_ids: int, group: str = GROUP, broker: str = BROKER, topic: str = TOPIC) -> list[int]:
        body = LockBatchBody(self.name, group, tuple(QueueRef(topic, broker, queue_id) for queue_id in queue_ids))
        return [ref.queue_id for ref in self.bench.c.legacy.lock(body, self.bench.now_ms).lock_ok_mq_set]

    def unlock(self, *queue_ids: int) -> None:
        self.bench.c.legacy.unlock(LockBatchBody(self.name, GROUP, tuple(QueueRef(TOPIC, BROKER, queue_id) for queue_id in queue_ids)))

    def update(self, queue_id: int, offset: int) -> None:
        self.bench.c.legacy.update_offset(self.connection, (GROUP, TOPIC, queue_id), offset, self.bench.now_ms)


def versions(*replies: HeartbeatReply | None) -> list[ListVersion]:
    """Return the version of GROUP's list in each response to a heartbeat."""
    found = []
    for reply in replies:
        assert reply is not None
        version = reply.groups[GROUP].list.version
        assert version is not None
        found.append(version)
    return found
