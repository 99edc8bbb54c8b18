"""A nameserver and brokers for consumers, on loopback and under a clock that only the test moves.

A ScriptedBroker keeps members, locks, epochs, progress and messages as simply as the rules allow, and writes down every request. A test
bends it: requests of `mute` codes are kept until `answer_kept` (an empty SYNC counts as −SYNC), the scripts answer for it, `steal` fences a
queue, `cut` drops connections.
"""

import asyncio
import functools
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from lockstep.client.client import Client
from lockstep.protocol.bodies import (
    BrokerAddress,
    FreeQueue,
    GroupView,
    HeartbeatBody,
    HeartbeatReply,
    Limits,
    ListVersion,
    LockItem,
    LockResult,
    LockVerdict,
    MemberList,
    QueueFreeBody,
    SessionLockBody,
    SessionLockReply,
    SyncBody,
    SyncItem,
    SyncReply,
    SyncResult,
    TopicRoute,
)
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.fields import from_plain, to_plain
from lockstep.protocol.headers.clients import GroupHeader, NotifyHeader, UnregisterClientHeader
from lockstep.protocol.headers.offsets import TopicHeader
from lockstep.protocol.headers.pull import PullHeader, PullReply
from lockstep.protocol.message import Message, encode_message
from lockstep.protocol.queue import LayoutEntry, LayoutVersion, TopicLayout
from lockstep.protocol.record import QUEUE_OFFSET_AT
from lockstep.runtime.clock import Clock
from lockstep.runtime.endpoint import Endpoint
from lockstep.runtime.host import Host
from lockstep.runtime.server import Server
from support.loops import FrozenLoop, turns

SETTLE_TURNS = 60
"""Enough for several requests and answers over loopback."""
GRACE_MS = 3_000
QueueKey = tuple[str, str, int]


class LoopClock(Clock):
    """Every clock of the host shows the loop's time; `slept_ms` of it only the one that counts suspension."""

    __slots__ = ("_loop", "slept_ms")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.slept_ms = 0

    def monotonic_ms(self) -> int:
        return round(self._loop.time() * 1_000)

    wall_ms = monotonic_ms

    def boot_ms(self) -> int:
        return self.monotonic_ms() + self.slept_ms

    def monotonic_us(self) -> int:
        return round(self._loop.time() * 1_000_000)


def loop_host() -> Host:
    return replace(Host.real(), clock=LoopClock(asyncio.get_running_loop()))


async def settle() -> None:
    await turns(SETTLE_TURNS)


async def advance(seconds: float) -> None:
    """Virtual time passes in steps of 10 ms, with the I/O that belongs to each."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, FrozenLoop)
    for _ in range(max(1, round(seconds * 100))):
        await loop.advance(min(seconds, 0.01))
        await turns(8)
    await settle()


@dataclass(frozen=True)
class Seen:
    code: int
    body: Any
    """The decoded header or body."""
    at_ms: int
    connection: int


@dataclass
class Lock:
    holder: str | None = None
    epoch: int = 0


@dataclass
class ScriptedBroker:
    name: str
    host: Host
    topics: dict[str, int]
    grace_ms: int = GRACE_MS
    features: tuple[str, ...] = ("ordered", "sync")
    term: int = 1
    since: int = 1
    """The layout counter at which it resolved every group's start policy."""
    names_since: bool = True
    """HEART_BEAT's answer names it; else grants alone do."""
    last_decides: bool = False
    """The policy of every group is classic."""
    seen: list[Seen] = field(default_factory=list)
    members: dict[str, list[str]] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    locks: dict[QueueKey, Lock] = field(default_factory=dict)
    progress: dict[QueueKey, tuple[int, int]] = field(default_factory=dict)
    stored: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    mute: set[int] = field(default_factory=set)
    kept: list[tuple[Command, Endpoint]] = field(default_factory=list)
    lock_script: deque[Callable[[LockItem], LockResult | None]] = field(default_factory=deque)
    """For the next LOCKs: an answer for an item, or None for the usual one."""
    sync_script: deque[Callable[[SyncItem], SyncResult | None]] = field(default_factory=deque)
    pull_script: deque[Callable[[PullHeader], Command | None]] = field(default_factory=deque)
    refuse: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Group → (response code, remark) with which its HEART_BEAT is refused."""
    polls: list[tuple[Command, Endpoint, PullHeader]] = field(default_factory=list)
    clients: dict[int, str] = field(default_factory=dict)
    lists_only: dict[str, list[str]] = field(default_factory=dict)
    """Group → the list that is told, whatever the members are."""
    on_commit: list[Callable[[QueueKey, int, int], None]] = field(default_factory=list)
    """Called with (queue, offset before, offset after) before a commit is taken."""
    server: Server = field(init=False)

    async def start(self) -> None:
        self.server = Server(self.host, {"internal": ("127.0.0.1", 0)}, self._handle)
        await self.server.start()

    @property
    def address(self) -> str:
        return self.server.addresses["internal"]

    # --------------------------------------------------------------------------------------------------------- what a test does

    def bodies(self, code: int) -> list[Any]:
        return [seen.body for seen in self.seen if seen.code == code]

    def lock_items(self) -> list[tuple[LockItem, ...]]:
        return [body.items for body in self.bodies(RequestCode.LOCK_BATCH_MQ)]

    def sync_items(self) -> list[SyncItem]:
        return [item for body in self.bodies(RequestCode.SYNC) for item in body.items]

    def committed(self, group: str, topic: str, queue_id: int) -> int:
        return self.progress.get((group, topic, queue_id), (0, 0))[0]

    def store(self, topic: str, queue_id: int, bodies: Iterable[bytes], tags: str | None = None) -> None:
        queue = self.stored.setdefault((topic, queue_id), [])
        for body in bodies:
            record = bytearray(encode_message(Message(topic, body, tags=tags), queue_id, f"{len(queue):032X}", 1))
            record[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8] = len(queue).to_bytes(8, "big")
            queue.append(bytes(record))
        for command, endpoint, header in [poll for poll in self.polls if (poll[2].topic, poll[2].queue_id) == (topic, queue_id)]:
            self.polls.remove((command, endpoint, header))
            self._pull(command, endpoint, header)

    def steal(self, group: str, topic: str, queue_id: int, thief: str = "another") -> None:
        """Somebody else acquires the queue."""
        lock = self.locks[group, topic, queue_id]
        lock.holder, lock.epoch = thief, lock.epoch + 1
        self._end_polls(lambda header: (header.consumer_group, header.topic, header.queue_id) == (group, topic, queue_id))

    def free(self, group: str, topic: str, queue_id: int, *, push: bool = True) -> None:
        self.locks[group, topic, queue_id].holder = None
        if push:
            self.push_free(group, topic, queue_id)

    def set_members(self, group: str, *names: str, notify: bool = True) -> None:
        """The list changes by itself (others came or went)."""
        self.members[group] = list(names)
        self._list_changed(group, notify)

    def me(self) -> str:
        """The client id that beat last."""
        return next(reversed(self.clients.values()))

    def cut(self) -> None:
        for endpoint in list(self.server.endpoints.values()):
            endpoint.abort("cut by the test")

    def answer_kept(self) -> None:
        self.mute.clear()
        kept, self.kept = self.kept, []
        for command, endpoint in kept:
            self._answer(command, endpoint)

    # -------------------------------------------------------------------------------------------------------------- answering

    def _handle(self, command: Command, endpoint: Endpoint) -> None:
        body = self._decode(command)
        self.seen.append(Seen(command.code, body, self.host.clock.boot_ms(), endpoint.id))
        empty_sync = command.code == RequestCode.SYNC and not body.items
        if (command.code in self.mute and not empty_sync) or (empty_sync and -RequestCode.SYNC in self.mute):
            self.kept.append((command, endpoint))
        else:
            self._answer(command, endpoint)

    def _decode(self, command: Command) -> Any:
        match command.code:
            case RequestCode.HEART_BEAT:
                return decode_body(HeartbeatBody, command.body)
            case RequestCode.LOCK_BATCH_MQ:
                return decode_body(SessionLockBody, command.body)
            case RequestCode.SYNC:
                return decode_body(SyncBody, command.body)
            case RequestCode.PULL_MESSAGE:
                return from_plain(PullHeader, command.fields)
            case RequestCode.UNREGISTER_CLIENT:
                return from_plain(UnregisterClientHeader, command.fields)
            case RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                return from_plain(GroupHeader, command.fields)
        return None

    def _answer(self, command: Command, endpoint: Endpoint) -> None:
        body = self._decode(command)
        match command.code:
            case RequestCode.HEART_BEAT:
                self._heartbeat(command, endpoint, body)
            case RequestCode.LOCK_BATCH_MQ:
                script = self.lock_script.popleft() if self.lock_script else lambda _: None
                client = self.clients[endpoint.id]
                answers = tuple(script(item) or self._lock(client, item) for item in body.items)
                self._free_unnamed(client, body)
                reply = SessionLockReply(answers, self._versions(), self.grace_ms, 20_000)
                endpoint.send(command.reply(body=encode_body(reply)))
            case RequestCode.SYNC:
                sync = self.sync_script.popleft() if self.sync_script and body.items else lambda _: None
                items = tuple(sync(item) or self._sync(item) for item in body.items)
                endpoint.send(command.reply(body=encode_body(SyncReply(items, self._versions()))))
            case RequestCode.PULL_MESSAGE:
                self._pull(command, endpoint, body)
            case RequestCode.UNREGISTER_CLIENT:
                members = self.members.get(body.consumer_group, [])
                if body.client_id in members:
                    members.remove(body.client_id)
                    self._list_changed(body.consumer_group, notify=True)
                endpoint.send(command.reply())
            case RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                endpoint.send(command.reply(body=encode_body(self._list(body.consumer_group))))
            case _:
                endpoint.send(command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"scripted broker: {command.code}"))

    def _heartbeat(self, command: Command, endpoint: Endpoint, body: HeartbeatBody) -> None:
        for group in body.consumers:
            if group.group in self.refuse:
                code, remark = self.refuse[group.group]
                endpoint.send(command.reply(code, remark))
                return
        self.clients[endpoint.id] = body.client_id
        for group in body.consumers:
            members = self.members.setdefault(group.group, [])
            if body.client_id not in members:
                members.append(body.client_id)
                self._list_changed(group.group, notify=False)
        since = dict.fromkeys(self.topics, self.since) if self.names_since else {}
        groups = {group.group: GroupView(self._list(group.group), since, self.last_decides) for group in body.consumers}
        limits = Limits(16 << 20, 256 << 10, 4 << 20)
        reply = HeartbeatReply(self.name, self.term, self.features, limits, self.grace_ms, 20_000, groups)
        endpoint.send(command.reply(body=encode_body(reply)))

    def _list(self, group: str) -> MemberList:
        names = self.lists_only.get(group, self.members.get(group, []))
        return MemberList(tuple(sorted(names)), ListVersion(self.term, self.counters.get(group, 0)))

    def _versions(self) -> dict[str, ListVersion]:
        return {group: ListVersion(self.term, counter) for group, counter in self.counters.items()}

    def _list_changed(self, group: str, notify: bool) -> None:
        self.counters[group] = self.counters.get(group, 0) + 1
        if notify:
            header = to_plain(NotifyHeader(group, self.term, self.counters[group]))
            for endpoint in self.server.endpoints.values():
                endpoint.oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header)

    def _lock(self, client: str, item: LockItem) -> LockResult:
        key = (item.group, item.topic, item.queue_id)
        lock = self.locks.setdefault(key, Lock())
        answer = functools.partial(LockResult, *key)
        if item.epoch is not None:
            if item.epoch != lock.epoch:
                return answer(LockVerdict.STALE)
            lock.holder = client
            self._commit(key, item.offset, item.attempts)
            return answer(LockVerdict.OK, epoch=lock.epoch)
        if lock.holder not in (None, client):
            return answer(LockVerdict.HELD)
        lock.holder, lock.epoch = client, lock.epoch + 1
        offset, attempts = self.progress.get(key, (0, 0))
        return answer(LockVerdict.OK, epoch=lock.epoch, offset=offset, attempts=attempts, generation=1, since=self.since)

    def _free_unnamed(self, client: str, body: SessionLockBody) -> None:
        named = {(item.group, item.topic, item.queue_id) for item in body.items}
        for key, lock in self.locks.items():
            if lock.holder == client and key not in named:
                lock.holder = None

    def _sync(self, item: SyncItem) -> SyncResult:
        key = (item.group, item.topic, item.queue_id)
        lock = self.locks[key]
        if item.epoch != lock.epoch:
            return SyncResult(LockVerdict.STALE, item.epoch)
        self._commit(key, item.offset, item.attempts)
        if item.release:
            lock.holder = None
            if item.offset is None:
                lock.epoch += 1
            self._end_polls(lambda header: (header.consumer_group, header.topic, header.queue_id) == key)
            if self.members.get(item.group):
                self.push_free(*key)
        return SyncResult(LockVerdict.OK, item.epoch)

    def push_free(self, group: str, topic: str, queue_id: int) -> None:
        body = encode_body(QueueFreeBody((FreeQueue(group, topic, queue_id),)))
        for endpoint in self.server.endpoints.values():
            endpoint.oneway(RequestCode.QUEUE_FREE, body=body)

    def _commit(self, key: QueueKey, offset: int | None, attempts: int) -> None:
        if offset is not None and (offset, attempts) > self.progress.get(key, (0, 0)):
            for watcher in self.on_commit:
                watcher(key, self.progress.get(key, (0, 0))[0], offset)
            self.progress[key] = (offset, attempts)

    def _pull(self, command: Command, endpoint: Endpoint, header: PullHeader) -> None:
        scripted = self.pull_script.popleft()(header) if self.pull_script else None
        if scripted is not None:
            scripted.opaque = command.opaque
            endpoint.send(scripted)
            return
        lock = self.locks.get((header.consumer_group, header.topic, header.queue_id), Lock())
        if header.epoch != lock.epoch:
            endpoint.send(command.reply(ResponseCode.STALE_EPOCH, "another epoch"))
            return
        stored = self.stored.get((header.topic, header.queue_id), [])
        found = stored[header.queue_offset : header.queue_offset + header.max_msg_nums]
        if found:
            end = header.queue_offset + len(found)
            endpoint.send(command.reply(fields=to_plain(PullReply(end, 0, len(stored))), body=b"".join(found)))
        else:
            self.polls.append((command, endpoint, header))

    def _end_polls(self, ends: Callable[[PullHeader], bool]) -> None:
        for poll in [poll for poll in self.polls if ends(poll[2])]:
            self.polls.remove(poll)
            poll[1].send(poll[0].reply(ResponseCode.STALE_EPOCH, "another epoch"))


def pulled(code: int, next_offset: int, *, body: bytes = b"", gap: tuple[int, int] | None = None) -> Command:
    """An answer to PULL_MESSAGE for `pull_script`."""
    first, end = gap if gap else (None, None)
    return Command(0).reply(code, fields=to_plain(PullReply(next_offset, 0, next_offset, gap_first=first, gap_end=end)), body=body)


@dataclass
class ScriptedCluster:
    host: Host
    brokers: dict[str, ScriptedBroker]
    layouts: dict[str, TopicLayout]
    server: Server
    ready: bool = True
    """A broker has registered since the nameserver's start."""

    @functools.cached_property
    def client(self) -> Client:
        """What the test's consumers and producers share."""
        return Client(self.nameserver, host=self.host)

    @property
    def nameserver(self) -> str:
        return self.server.addresses["internal"]

    def __getitem__(self, name: str) -> ScriptedBroker:
        return self.brokers[name]


@asynccontextmanager
async def scripted_cluster(*names: str, topics: dict[str, int] | None = None) -> AsyncIterator[ScriptedCluster]:
    """Brokers `names` (default: a), each with every topic ("orders": 2 queues unless told otherwise)."""
    host = loop_host()
    topics = topics or {"orders": 2}
    brokers = {name: ScriptedBroker(name, host, topics) for name in names or ("a",)}
    for broker in brokers.values():
        await broker.start()
    layouts = {
        topic: TopicLayout(topic, LayoutVersion(1, 1), tuple(LayoutEntry(name, count, count, 1) for name in brokers))
        for topic, count in topics.items()
    }

    def route(command: Command, endpoint: Endpoint) -> None:
        layout = cluster.layouts.get(from_plain(TopicHeader, command.fields).topic)
        if not cluster.ready:
            endpoint.send(command.reply(ResponseCode.ROUTE_NOT_READY, "no broker yet"))
            return
        if layout is None:
            endpoint.send(command.reply(ResponseCode.TOPIC_NOT_EXIST, "no such topic"))
            return
        addresses = tuple(BrokerAddress(broker.name, "c", broker.address, True, broker.term) for broker in brokers.values())
        endpoint.send(command.reply(body=encode_body(TopicRoute(layout, addresses))))

    server = Server(host, {"internal": ("127.0.0.1", 0)}, route)
    await server.start()
    cluster = ScriptedCluster(host, brokers, layouts, server)
    try:
        yield cluster
    finally:
        for one in [server, *(broker.server for broker in brokers.values())]:
            await one.close()
