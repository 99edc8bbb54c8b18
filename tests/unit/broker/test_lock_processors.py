"""The processors of clients, locks and offsets with a dispatcher: when each response is sent, and each refusal on the wire."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

import pytest

from lockstep.broker.delivery.group_topics import GroupTopics
from lockstep.broker.groups import start_policy
from lockstep.broker.groups.coordination import CoordinationConfig
from lockstep.broker.groups.effects import CloseConnection, PushQueueFree
from lockstep.broker.groups.group_status import GroupStatusReader
from lockstep.broker.groups.tables.lock_table import QueueKey
from lockstep.broker.processors.client import ClientProcessor
from lockstep.broker.processors.lock import LockProcessor
from lockstep.broker.processors.offset import OffsetProcessor
from lockstep.broker.processors.start_offsets import START_LANE
from lockstep.broker.processors.topic import TopicProcessor
from lockstep.broker.running import LANES
from lockstep.protocol.bodies import (
    ConsumeFromWhere,
    ConsumerGroup,
    FreeQueue,
    GroupStatusReply,
    HeartbeatBody,
    HeartbeatReply,
    LockBatchBody,
    LockBatchReply,
    LockItem,
    LockVerdict,
    MemberList,
    QueueRef,
    QueueStatus,
    SessionLockBody,
    SessionLockReply,
    SyncBody,
    SyncItem,
    SyncReply,
)
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import MSGPACK, Command
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.clients import GroupHeader, GroupStatusHeader, UnregisterClientHeader
from lockstep.protocol.headers.offsets import QueryConsumerOffsetHeader, UpdateConsumerOffsetHeader
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.host import Host
from lockstep.runtime.requests.dispatch import Dispatcher
from lockstep.runtime.requests.lanes import LANE_ITEMS_PER_TURN
from support.broker_fakes import FakeEndpoint, FakeHost
from support.coordination_kit import BROKER, CONFIG, GROUP, TOPIC, Bench, layout, ordered
from support.until import until

T = TypeVar("T")


class Peer(FakeEndpoint):
    """An endpoint on which heartbeats can be recorded."""

    def __init__(self, id: int) -> None:
        super().__init__(id, f"10.0.0.{id}:5000")
        self.codec = 0
        self.on_close: list[Callable[[Endpoint, str], None]] = []


@dataclass
class FakeStore:
    """A log that confirms when the test calls `confirm`."""

    young: bool = True
    waiting: list[Callable[[], None]] = field(default_factory=list)
    requested: list[tuple[str, int, int]] = field(default_factory=list)

    def young_queue(self, topic: str, queue_id: int, first: int) -> bool:
        return self.young

    def when_confirmed(self, callback: Callable[[], None]) -> None:
        self.waiting.append(callback)

    def when_written(self, callback: Callable[[], None]) -> None:
        raise AssertionError("locks and progress wait for the confirmed log")

    when_synced = when_written

    async def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        self.requested.append((topic, queue_id, timestamp_ms))
        await asyncio.sleep(0)
        return 100 + queue_id

    def confirm(self) -> None:
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback()


class DispatcherBench:
    """A bench with a dispatcher."""

    def __init__(self, config: CoordinationConfig = CONFIG) -> None:
        self.bench = Bench(config=config)
        self.store = FakeStore()
        host = FakeHost()
        host.clock.now_ms = self.bench.now_ms
        processors = [
            ClientProcessor(cast(Host, host), self.bench.c, cast(GroupTopics, None), cast(TopicProcessor, None)),
            LockProcessor(cast(Host, host), self.bench.c, self.store),
            OffsetProcessor(cast(Host, host), self.bench.c, self.store),
        ]
        self.dispatcher = Dispatcher(processors, self.store, LANES)

    def send(self, peer: Peer, code: int, header: object | None = None, body: object | None = None) -> None:
        raw = b"" if body is None else body if isinstance(body, bytes) else encode_body(body)
        command = Command(code, 1, fields={} if header is None else to_plain(header), body=raw)
        self.dispatcher(command, cast(Endpoint, peer))

    def send_request(self, peer: Peer, code: int, header: object | None = None, body: object | None = None) -> Command:
        """Return the response that is sent at once."""
        self.send(peer, code, header, body)
        assert not self.store.waiting, "the response waits for the log"
        return peer.sent.pop()

    def wait(self, peer: Peer, code: int, header: object | None = None, body: object | None = None) -> Command:
        """Return the response that is sent when the log is confirmed."""
        self.send(peer, code, header, body)
        assert not peer.sent, "the response did not wait for the log"
        self.store.confirm()
        return peer.sent.pop()

    async def later(self, peer: Peer, body: SessionLockBody) -> SessionLockReply:
        """Return the response to a LOCK, which first waits for its turn in the lane."""
        self.send(peer, RequestCode.LOCK_BATCH_MQ, None, body)
        await until(lambda: bool(self.store.waiting))
        self.store.confirm()
        return read(SessionLockReply, peer.sent.pop())

    def native(self, id: int = 1, *groups: ConsumerGroup) -> Peer:
        peer = Peer(id)
        body = HeartbeatBody(f"client-{id}", groups or (ordered(),), session=f"{id:032x}", connection=1)
        assert self.send_request(peer, RequestCode.HEART_BEAT, None, body).code == ResponseCode.SUCCESS
        return peer


def read(cls: type[T], command: Command) -> T:
    assert command.code == ResponseCode.SUCCESS, command.remark
    return decode_body(cls, command.body)


def test_heartbeat_response_is_sent_at_once_and_sets_the_connections_codec() -> None:
    desk = DispatcherBench()
    peer = Peer(1)
    body = HeartbeatBody("a", (ordered(),), session="1" * 32, connection=1)
    reply = read(HeartbeatReply, desk.send_request(peer, RequestCode.HEART_BEAT, None, body))
    assert reply.groups[GROUP].list.members == ("a",)
    assert peer.codec == MSGPACK


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (HeartbeatBody("b", (ordered(expression="x"),), session="b" * 32), ResponseCode.SUBSCRIPTION_CONFLICT),
        (HeartbeatBody("client-1", (ordered(),), session="b" * 32), ResponseCode.DUPLICATE_CLIENT_ID),
        (HeartbeatBody("b", (ordered(),), session="short"), ResponseCode.SYSTEM_ERROR),
    ],
)
def test_rejected_heartbeat_has_a_code_and_a_remark(body: HeartbeatBody, code: int) -> None:
    desk = DispatcherBench()
    desk.native()
    response = desk.send_request(Peer(2), RequestCode.HEART_BEAT, None, body)
    assert response.code == code
    assert response.remark


def test_late_heartbeat_gets_no_response_and_closes_its_connection() -> None:
    desk = DispatcherBench()
    desk.native()
    late = Peer(2)
    desk.send(late, RequestCode.HEART_BEAT, None, HeartbeatBody("client-1", (), session=f"{1:032x}", connection=0))
    assert late.sent == []
    assert desk.bench.closed() == [2]


def test_lock_and_sync_with_items_wait_for_the_log_even_without_a_change() -> None:
    desk = DispatcherBench()
    peer = desk.native()
    wanted = SessionLockBody((LockItem(GROUP, TOPIC, 0),))
    epoch = read(SessionLockReply, desk.wait(peer, RequestCode.LOCK_BATCH_MQ, None, wanted)).items[0].epoch
    named = SessionLockBody((LockItem(GROUP, TOPIC, 0, epoch),))
    commit = SyncBody((SyncItem(GROUP, TOPIC, 0, epoch, offset=3),))
    for _ in range(2):
        assert read(SessionLockReply, desk.wait(peer, RequestCode.LOCK_BATCH_MQ, None, named)).items[0].verdict is LockVerdict.OK
        assert read(SyncReply, desk.wait(peer, RequestCode.SYNC, None, commit)).items[0].verdict is LockVerdict.OK


def test_empty_sync_gets_its_response_before_a_waiting_one() -> None:
    desk = DispatcherBench()
    peer = desk.native()
    desk.send(peer, RequestCode.SYNC, None, SyncBody((SyncItem(GROUP, TOPIC, 0, 1, offset=3),)))
    assert peer.sent == []
    desk.send(peer, RequestCode.SYNC, None, SyncBody())
    assert len(peer.sent) == 1
    desk.store.confirm()
    assert len(peer.sent) == 2


@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.SYNC])
def test_session_request_on_an_unbound_connection_closes_it_without_a_response(code: int) -> None:
    desk = DispatcherBench()
    stranger = Peer(9)
    body = SessionLockBody((LockItem(GROUP, TOPIC, 0),)) if code == RequestCode.LOCK_BATCH_MQ else SyncBody()
    desk.send(stranger, code, None, body)
    assert stranger.sent == []
    assert desk.bench.drain(CloseConnection)[0].connection == 9


def test_classic_client_locks_and_unlocks_by_broker_name() -> None:
    desk = DispatcherBench()
    peer = Peer(1)
    batch = LockBatchBody("c", GROUP, (QueueRef(TOPIC, BROKER, 0), QueueRef(TOPIC, "elsewhere", 1)))
    reply = read(LockBatchReply, desk.wait(peer, RequestCode.LOCK_BATCH_MQ, None, batch))
    assert reply.lock_ok_mq_set == batch.mq_set[:1]
    assert desk.wait(peer, RequestCode.UNLOCK_BATCH_MQ, None, batch).code == ResponseCode.SUCCESS
    assert desk.bench.owner(0) is None


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x80", b"\x90"])
@pytest.mark.parametrize("session", [True, False])
def test_lock_with_an_invalid_body_is_rejected_with_a_remark(body: bytes, session: bool) -> None:
    desk = DispatcherBench()
    response = desk.send_request(desk.native() if session else Peer(2), RequestCode.LOCK_BATCH_MQ, None, body)
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert response.remark


async def test_start_by_time_is_looked_up_before_the_lock_and_only_once() -> None:
    desk = DispatcherBench()
    peer = desk.native(1, ordered(consume_from_where=ConsumeFromWhere.TIMESTAMP, consume_timestamp_ms=77))
    desk.send(peer, RequestCode.LOCK_BATCH_MQ, None, SessionLockBody((LockItem(GROUP, TOPIC, 2),)))
    assert desk.bench.owner(2) is None
    await until(lambda: bool(desk.store.waiting))
    assert peer.sent == []
    desk.store.confirm()
    assert read(SessionLockReply, peer.sent.pop()).items[0].offset == 102
    assert desk.store.requested == [(TOPIC, queue_id, 77) for queue_id in range(4)]
    again = desk.wait(peer, RequestCode.LOCK_BATCH_MQ, None, SessionLockBody((LockItem(GROUP, TOPIC, 3),)))
    assert read(SessionLockReply, again).items[0].offset == 103
    await desk.dispatcher.close()


async def test_concurrent_lookups_by_time_are_limited_by_the_lane() -> None:
    desk = DispatcherBench()
    peer = desk.native(1, ordered(consume_from_where=ConsumeFromWhere.TIMESTAMP, consume_timestamp_ms=77))
    for _ in range(20):
        desk.send(peer, RequestCode.LOCK_BATCH_MQ, None, SessionLockBody((LockItem(GROUP, TOPIC, 2),)))
    await until(lambda: len(desk.store.waiting) == 20)
    assert len(desk.store.requested) == 4 * LANES[START_LANE].concurrency
    await desk.dispatcher.close()


async def test_lookups_by_time_per_lock_are_limited_and_the_member_retries_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(start_policy, "LOOKUPS_MAX", 6)
    desk = DispatcherBench()
    topics = [f"t{number}" for number in range(3)]
    for topic in topics:
        desk.bench.layouts.adopt(layout(topic, 3))
    group = ordered(topics=topics, consume_from_where=ConsumeFromWhere.TIMESTAMP, consume_timestamp_ms=77)
    peer = desk.native(1, group)
    wanted = tuple(LockItem(GROUP, topic, queue_id) for topic in ("not-subscribed", *topics) for queue_id in (7, 0))
    desk.bench.c.state.pending.drain()
    first = await desk.later(peer, SessionLockBody(wanted))
    granted, waits = LockVerdict.OK, LockVerdict.WAIT
    assert [item.verdict for item in first.items if item.queue_id == 0] == [LockVerdict.REFUSED, granted, granted, waits]
    assert len(desk.store.requested) == 6
    assert desk.bench.drain(PushQueueFree) == [PushQueueFree(1, (FreeQueue(GROUP, "t2", 0),))]
    second = await desk.later(peer, SessionLockBody(wanted[-1:]))
    assert [(item.verdict, item.offset) for item in second.items] == [(granted, 100)]
    await desk.dispatcher.close()


async def test_lock_above_the_progress_limit_looks_up_nothing() -> None:
    desk = DispatcherBench(replace(CONFIG, progress_max=3))
    peer = desk.native(1, ordered(consume_from_where=ConsumeFromWhere.TIMESTAMP, consume_timestamp_ms=77))
    response = desk.wait(peer, RequestCode.LOCK_BATCH_MQ, None, SessionLockBody((LockItem(GROUP, TOPIC, 2),)))
    assert read(SessionLockReply, response).items[0].verdict is LockVerdict.REFUSED
    assert desk.store.requested == []
    await desk.dispatcher.close()


async def test_rejected_lock_by_time_gets_an_error_response() -> None:
    desk = DispatcherBench()
    peer = desk.native(1, ordered(consume_from_where=ConsumeFromWhere.TIMESTAMP, consume_timestamp_ms=77))
    twice = SessionLockBody((LockItem(GROUP, TOPIC, 2), LockItem(GROUP, TOPIC, 2)))
    desk.send(peer, RequestCode.LOCK_BATCH_MQ, None, twice)
    await until(lambda: bool(peer.sent))
    assert peer.sent.pop().code == ResponseCode.SYSTEM_ERROR
    await desk.dispatcher.close()


async def test_disk_error_in_a_lookup_by_time_rejects_the_lock_and_is_not_fatal() -> None:
    desk = DispatcherBench()
    desk.store.offset_by_time = broken_disk  # type: ignore[method-assign]
    peer = desk.native(1, ordered(consume_from_where=ConsumeFromWhere.TIMESTAMP, consume_timestamp_ms=77))
    desk.send(peer, RequestCode.LOCK_BATCH_MQ, None, SessionLockBody((LockItem(GROUP, TOPIC, 2),)))
    await until(lambda: bool(peer.sent))
    response = peer.sent.pop()
    assert (response.code, "input/output" in (response.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    await desk.dispatcher.close()


async def broken_disk(*_: object) -> int:
    raise OSError(5, "input/output error")


async def test_lock_by_time_of_a_closed_connection_leaves_no_state() -> None:
    desk = DispatcherBench()
    peer = desk.native(1, ordered(consume_from_where=ConsumeFromWhere.TIMESTAMP, consume_timestamp_ms=77))
    desk.bench.c.state.pending.drain()
    desk.send(peer, RequestCode.LOCK_BATCH_MQ, None, SessionLockBody((LockItem(GROUP, TOPIC, 2),)))
    peer.closed = True
    desk.bench.c.membership.connection_closed(peer.id, desk.bench.now_ms)
    await until(lambda: not len(desk.dispatcher._tasks))
    assert desk.bench.c.state.pending.drain() == []
    assert desk.store.waiting == []


def test_unregister_removes_a_consumer_and_ignores_producer_groups() -> None:
    desk = DispatcherBench()
    peer = desk.native()
    assert desk.send_request(peer, RequestCode.UNREGISTER_CLIENT, UnregisterClientHeader("client-1", producer_group="p")).code == 0
    assert desk.bench.lists() == ("client-1",)
    assert desk.send_request(peer, RequestCode.UNREGISTER_CLIENT, UnregisterClientHeader("client-1", consumer_group=GROUP)).code == 0
    assert desk.bench.lists() == ()


def test_member_list_is_returned_and_an_unknown_group_is_rocketmqs_error() -> None:
    desk = DispatcherBench()
    peer = desk.native()
    assert read(MemberList, desk.send_request(peer, RequestCode.GET_CONSUMER_LIST_BY_GROUP, GroupHeader(GROUP))).members == ("client-1",)
    response = desk.send_request(peer, RequestCode.GET_CONSUMER_LIST_BY_GROUP, GroupHeader("none"))
    assert (response.code, response.remark) == (ResponseCode.SYSTEM_ERROR, "no consumer for this group, none")


async def request_status(desk: DispatcherBench, peer: Peer, group: str | None = None) -> Command:
    """The request has a lane: the response is sent some turns later."""
    desk.send(peer, RequestCode.GROUP_STATUS, GroupStatusHeader(group))
    await until(lambda: bool(peer.sent))
    return peer.sent.pop()


async def test_group_status_returns_all_group_names_or_one_status() -> None:
    desk = DispatcherBench()
    peer = desk.native()
    assert read(GroupStatusReply, await request_status(desk, peer)) == GroupStatusReply((GROUP,))
    reply = read(GroupStatusReply, await request_status(desk, peer, GROUP))
    assert reply.status is not None
    assert (reply.groups, reply.status.members[0].address) == ((), peer.peer)
    response = await request_status(desk, peer, "none")
    assert response.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    for callback in peer.on_close:
        callback(cast(Endpoint, peer), "gone")
    reply = read(GroupStatusReply, await request_status(desk, peer, GROUP))
    assert reply.status is not None
    assert reply.status.members[0].address == ""


async def test_status_of_a_group_with_thousands_of_queues_is_built_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = DispatcherBench()
    peer = desk.native()
    keys = [(GROUP, TOPIC, queue_id) for queue_id in range(4 * LANE_ITEMS_PER_TURN)]
    turns = [0]
    status = GroupStatusReader.read_queue

    def counted(self: GroupStatusReader, key: QueueKey, now_ms: int, *pulls: int | None) -> QueueStatus:
        turns[-1] += 1
        return status(self, key, now_ms, *pulls)

    monkeypatch.setattr(GroupStatusReader, "queue_keys_of", lambda self, group: keys)
    monkeypatch.setattr(GroupStatusReader, "read_queue", counted)
    desk.send(peer, RequestCode.GROUP_STATUS, GroupStatusHeader(GROUP))
    while not peer.sent:
        turns.append(0)
        await asyncio.sleep(0)
    assert (max(turns), sum(turns)) == (LANE_ITEMS_PER_TURN, len(keys))


def test_updated_offset_is_found_and_a_missing_one_has_its_own_code() -> None:
    desk = DispatcherBench()
    peer, query = Peer(1), QueryConsumerOffsetHeader(GROUP, TOPIC, 0)
    assert desk.send_request(peer, RequestCode.QUERY_CONSUMER_OFFSET, query).fields == {"offset": 0}
    desk.store.young = False
    assert desk.send_request(peer, RequestCode.QUERY_CONSUMER_OFFSET, query).code == ResponseCode.QUERY_NOT_FOUND
    assert desk.wait(peer, RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader(GROUP, TOPIC, 0, 9)).code == 0
    assert desk.send_request(peer, RequestCode.QUERY_CONSUMER_OFFSET, query).fields == {"offset": 9}


def test_update_offset_of_a_held_queue_is_rejected_with_its_holder() -> None:
    desk = DispatcherBench()
    peer = desk.native()
    desk.wait(peer, RequestCode.LOCK_BATCH_MQ, None, SessionLockBody((LockItem(GROUP, TOPIC, 0),)))
    response = desk.send_request(Peer(2), RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader(GROUP, TOPIC, 0, 9))
    assert response.code == ResponseCode.NO_PERMISSION
    assert "held by client-1" in (response.remark or "")
