"""The fake broker's groups: a minimal implementation of members, locks, epochs, progress and pulls.

A test can script them: `lock_script` replaces a response, `steal` fences a queue, `free` releases it, `set_members` changes a list.
"""

import functools
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from lockstep.protocol.bodies import (
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
    SyncItem,
    SyncReply,
    SyncResult,
)
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.clients import NotifyHeader
from lockstep.protocol.headers.pull import SUSPEND, PullHeader, PullReply
from lockstep.protocol.messages.message import Message
from lockstep.runtime.connections.endpoint import Endpoint
from support.fake_broker.wire import ANY_GROUP, Wire, stored

LIMITS = Limits(16 << 20, 256 << 10, 4 << 20)
SESSION_TIMEOUT_MS = 20_000
QueueKey = tuple[str, str, int]


@dataclass
class Lock:
    holder: str | None = None
    epoch: int = 0


@dataclass
class Groups(Wire):
    """Responds to HEART_BEAT, LOCK, SYNC, PULL_MESSAGE and related requests."""

    since: int = 1
    """The layout counter at which it resolved every group's start policy."""
    names_since: bool = True
    """Whether the response to HEART_BEAT contains `since`. Otherwise only grants do."""
    last_decides: bool = False
    """Whether every group has the classic policy."""
    delay_levels_ms: tuple[int, ...] = ()
    """The table of delay levels that it tells; by default none."""
    members: dict[str, list[str]] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    locks: dict[QueueKey, Lock] = field(default_factory=dict)
    progress: dict[QueueKey, tuple[int, int]] = field(default_factory=dict)
    """Queue → (offset, attempts)."""
    lock_script: deque[Callable[[LockItem], LockResult | None]] = field(default_factory=deque)
    """For the next LOCKs: functions that return the response to an item, or None for the default one."""
    sync_script: deque[Callable[[SyncItem], SyncResult | None]] = field(default_factory=deque)
    pull_script: deque[Callable[[PullHeader], Command | None]] = field(default_factory=deque)
    polls: list[tuple[Command, Endpoint, PullHeader]] = field(default_factory=list)
    """Pending pulls."""
    clients: dict[int, str] = field(default_factory=dict)
    """Connection → client id."""
    lists_only: dict[str, list[str]] = field(default_factory=dict)
    """Group → the reported member list, regardless of the members."""
    left: list[str] = field(default_factory=list)
    """The group of each UNREGISTER_CLIENT."""

    # ------------------------------------------------------------------------------------------------------------ for the test

    def lock_items(self) -> list[tuple[LockItem, ...]]:
        return [body.items for body in self.received(RequestCode.LOCK_BATCH_MQ)]

    def sync_items(self) -> list[SyncItem]:
        return [item for body in self.received(RequestCode.SYNC) for item in body.items]

    def committed(self, group: str, topic: str, queue_id: int) -> int:
        return self.progress.get((group, topic, queue_id), (0, 0))[0]

    def store(self, topic: str, queue_id: int, bodies: Iterable[bytes], tags: str | None = None) -> None:
        """Store messages, and respond to the pulls that wait for them."""
        for body in bodies:
            self.append(topic, queue_id, stored(Message(topic, body, tags=tags), queue_id, 0, 0), body)
        for command, endpoint, header in [poll for poll in self.polls if (poll[2].topic, poll[2].queue_id) == (topic, queue_id)]:
            self.polls.remove((command, endpoint, header))
            self._pull(command, endpoint, header)

    def steal(self, group: str, topic: str, queue_id: int, thief: str = "another") -> None:
        """Give the queue to another client."""
        lock = self.locks[group, topic, queue_id]
        lock.holder, lock.epoch = thief, lock.epoch + 1
        self._end_polls(lambda header: (header.consumer_group, header.topic, header.queue_id) == (group, topic, queue_id))

    def free(self, group: str, topic: str, queue_id: int, *, push: bool = True) -> None:
        self.locks[group, topic, queue_id].holder = None
        if push:
            self.push_free(group, topic, queue_id)

    def set_members(self, group: str, *names: str, notify: bool = True) -> None:
        """Replace the list, as if others had joined or left."""
        self.members[group] = list(names)
        self._list_changed(group, notify)

    def me(self) -> str:
        """The client id of the latest heartbeat."""
        return next(reversed(self.clients.values()))

    # --------------------------------------------------------------------------------------------------------------- serving

    def response(self, command: Command, endpoint: Endpoint, body: Any) -> None:
        match command.code:
            case RequestCode.HEART_BEAT:
                reply = command.reply(body=encode_body(self._heartbeat(endpoint, body)))
            case RequestCode.LOCK_BATCH_MQ:
                reply = command.reply(body=encode_body(self._reconcile(self.clients[endpoint.id], body)))
            case RequestCode.SYNC:
                script = self.sync_script.popleft() if self.sync_script and body.items else lambda _: None
                items = tuple(script(item) or self._sync(item) for item in body.items)
                reply = command.reply(body=encode_body(SyncReply(items, self._versions())))
            case RequestCode.PULL_MESSAGE:
                self._pull(command, endpoint, body)
                return
            case RequestCode.UNREGISTER_CLIENT:
                self._unregister(body.consumer_group, body.client_id)
                reply = command.reply()
            case RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                reply = command.reply(body=encode_body(self._list(body.consumer_group)))
            case _:
                super().response(command, endpoint, body)
                return
        endpoint.send(reply)

    def _heartbeat(self, endpoint: Endpoint, body: HeartbeatBody) -> HeartbeatReply:
        for group in body.consumers:
            error = self.refuse.get(group.group) or self.refuse.get(ANY_GROUP)
            if error is not None:
                raise error
        self.clients[endpoint.id] = body.client_id
        for group in body.consumers:
            members = self.members.setdefault(group.group, [])
            if body.client_id not in members:
                members.append(body.client_id)
                self._list_changed(group.group, notify=False)
        since = dict.fromkeys(self.layouts, self.since) if self.names_since else {}
        groups = {group.group: GroupView(self._list(group.group), since, self.last_decides) for group in body.consumers}
        return HeartbeatReply(self.name, self.term, LIMITS, self.grace_ms, SESSION_TIMEOUT_MS, groups, self.delay_levels_ms)

    def _reconcile(self, client: str, body: SessionLockBody) -> SessionLockReply:
        script = self.lock_script.popleft() if self.lock_script else lambda _: None
        responses = tuple(script(item) or self._lock(client, item) for item in body.items)
        self._free_unnamed(client, body)
        return SessionLockReply(responses, self._versions(), self.grace_ms, SESSION_TIMEOUT_MS)

    def _unregister(self, group: str, client_id: str) -> None:
        self.left.append(group)
        members = self.members.get(group, [])
        if client_id in members:
            members.remove(client_id)
            self._list_changed(group, notify=True)

    def _list(self, group: str) -> MemberList:
        names = self.lists_only.get(group, self.members.get(group, []))
        return MemberList(tuple(sorted(names)), ListVersion(self.term, self.counters.get(group, 0)))

    def _versions(self) -> dict[str, ListVersion]:
        return {group: ListVersion(self.term, counter) for group, counter in self.counters.items()}

    def _list_changed(self, group: str, notify: bool) -> None:
        self.counters[group] = self.counters.get(group, 0) + 1
        if notify:
            header = to_plain(NotifyHeader(group, self.term, self.counters[group]))
            for endpoint in self.endpoints:
                endpoint.oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header)

    def _lock(self, client: str, item: LockItem) -> LockResult:
        key = (item.group, item.topic, item.queue_id)
        lock = self.locks.setdefault(key, Lock())
        response = functools.partial(LockResult, *key)
        if item.epoch is not None:
            if item.epoch != lock.epoch:
                return response(LockVerdict.STALE)
            lock.holder = client
            self._commit(key, item.offset, item.attempts)
            return response(LockVerdict.OK, epoch=lock.epoch)
        if lock.holder not in (None, client):
            return response(LockVerdict.HELD)
        lock.holder, lock.epoch = client, lock.epoch + 1
        offset, attempts = self.progress.get(key, (0, 0))
        return response(LockVerdict.OK, epoch=lock.epoch, offset=offset, attempts=attempts, generation=1, since=self.since)

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
        for endpoint in self.endpoints:
            endpoint.oneway(RequestCode.QUEUE_FREE, body=body)

    def _commit(self, key: QueueKey, offset: int | None, attempts: int) -> None:
        if offset is not None and (offset, attempts) > self.progress.get(key, (0, 0)):
            self.progress[key] = (offset, attempts)

    def _pull(self, command: Command, endpoint: Endpoint, header: PullHeader) -> None:
        scripted = self.pull_script.popleft()(header) if self.pull_script else None
        if scripted is not None:
            scripted.opaque = command.opaque
            endpoint.send(scripted)
            return
        lock = self.locks.get((header.consumer_group, header.topic, header.queue_id))
        if header.epoch != (None if lock is None else lock.epoch):
            endpoint.send(command.reply(ResponseCode.STALE_EPOCH, "another epoch"))
            return
        records = self.records.get((header.topic, header.queue_id), [])
        found = records[header.queue_offset : header.queue_offset + header.max_msg_nums]
        if found:
            reply = PullReply(header.queue_offset + len(found), 0, len(records))
            endpoint.send(command.reply(fields=to_plain(reply), body=b"".join(found)))
        elif header.sys_flag & SUSPEND:
            self.polls.append((command, endpoint, header))
        else:
            endpoint.send(command.reply(ResponseCode.PULL_NOT_FOUND, fields=to_plain(PullReply(header.queue_offset, 0, len(records)))))

    def _end_polls(self, ends: Callable[[PullHeader], bool]) -> None:
        for poll in [poll for poll in self.polls if ends(poll[2])]:
            self.polls.remove(poll)
            poll[1].send(poll[0].reply(ResponseCode.STALE_EPOCH, "another epoch"))


def pulled(code: int, next_offset: int, *, body: bytes = b"", gap: tuple[int, int] | None = None) -> Command:
    """Return a response to PULL_MESSAGE for `pull_script`."""
    first, end = gap if gap else (None, None)
    return Command(0).reply(code, fields=to_plain(PullReply(next_offset, 0, next_offset, gap_first=first, gap_end=end)), body=body)
