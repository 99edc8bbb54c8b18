"""A consumer without a session, as RocketMQ's clients are (ordering.md 12): locks of 60 s, offsets by UPDATE_CONSUMER_OFFSET.

lock all every 20 s · a lock is trusted for 30 s · rebalance every 20 s, by one broker's list, shared evenly · offsets stored every 5 s
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random

from lockstep.operations.admin_client import AdminClient
from lockstep.protocol.bodies import ConsumerGroup, HeartbeatBody, LockBatchBody, LockBatchReply, MemberList, QueueRef, Subscription
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import LockstepError, TransportError
from lockstep.protocol.fields import from_plain, to_plain
from lockstep.protocol.headers.clients import GroupHeader, UnregisterClientHeader
from lockstep.protocol.headers.offsets import ProgressReply, QueryConsumerOffsetHeader, UpdateConsumerOffsetHeader
from lockstep.protocol.headers.pull import SUBSCRIPTION, SUSPEND, PullHeader, PullReply
from lockstep.protocol.messages.message import decode_messages
from lockstep.protocol.responses import PULLED
from lockstep.protocol.topics.allocate import allocate
from lockstep.protocol.topics.queue import MessageQueue
from lockstep.runtime.connections.dial import connect
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from lockstep.testing.simulated import BROKER_PORT
from sweep.access import member_name
from sweep.events.consumers import CallBegan, CallEnded, ConsumerStarted
from sweep.history import CallResult, QueueKey
from sweep.universe import Main, Universe

TIMEOUT_MS = 3_000
HOLD_MS = 5_000
LOCK_ALL_S, REBALANCE_S, HEARTBEAT_S, PERSIST_S, TRUST_S = 20.0, 20.0, 30.0, 5.0, 30.0


@dataclass(slots=True, eq=False)
class _AssignedQueue:
    """One queue that the member list assigns to this client."""

    queue: MessageQueue
    locked_at: float | None = None
    """The loop time of the last LOCK that granted it; None if it is not locked."""
    dropped: bool = False
    offset: int | None = None
    stored: int | None = None
    """The offset that was stored at the broker last."""


class ClassicConsumer:
    """One process of the group."""

    def __init__(self, universe: Universe, group: str) -> None:
        self._universe, self._group = universe, group
        self._process = universe.loop.current
        self._topic = universe.setting.topics[0]
        self._host = Host.current()
        self._client_id = f"{self._process.machine.name}@{self._process.number}"
        self._random = Random(f"{universe.setting.seed}/{self._process.machine.name}/{self._process.machine.starts}/classic")
        self._user = member_name(group, self._process.machine.name)
        self._links: dict[str, Endpoint] = {}
        self._held: dict[MessageQueue, _AssignedQueue] = {}
        self._tasks = Tasks(universe.task_failed)
        self._stopping = False

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def run(self, stop: asyncio.Event) -> None:
        universe = self._universe
        expressions = ((self._topic, "*"),)
        universe.history.append(ConsumerStarted(*universe.origin(), self._group, expressions))
        for every_s, first_s, action in (
            (HEARTBEAT_S, 0.0, self._heartbeat),
            (REBALANCE_S, 0.5, self._rebalance),
            (LOCK_ALL_S, 1.0, self._lock_all),
            (PERSIST_S, PERSIST_S, self._persist_all),
        ):
            self._tasks.spawn(self._regularly(every_s, first_s, action), action.__name__)
        await stop.wait()
        self._stopping = True
        for held in self._held.values():
            held.dropped = True
        await asyncio.sleep(0.5)
        await self._persist_all()
        for held in list(self._held.values()):
            await self._unlock(held)
        header = UnregisterClientHeader(self._client_id, consumer_group=self._group)
        for name in universe.brokers:
            await self._request(name, RequestCode.UNREGISTER_CLIENT, to_plain(header))

    async def _regularly(self, every_s: float, first_s: float, action: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(first_s)
        while not self._stopping:
            await action()
            await asyncio.sleep(every_s)

    # ------------------------------------------------------------------------------------------------------------- requests

    async def _request(self, broker: str, code: RequestCode, fields: dict[str, object] | None = None, body: bytes = b"") -> Command | None:
        """Return the response; None if there was none."""
        try:
            link = self._links.get(broker)
            if link is None or link.closed:
                address = f"{self._universe.brokers[broker]}:{BROKER_PORT}"
                security = self._universe.security(self._user)
                link = self._links[broker] = await connect(
                    self._host, address, security=security, handler=self._handle_push, timeout_ms=TIMEOUT_MS
                )
                await self._send_heartbeat(broker, link)
            return await link.request(code, fields, body, timeout_ms=TIMEOUT_MS + HOLD_MS)
        except LockstepError as error:
            if isinstance(error, TransportError) and broker in self._links:
                self._forget(broker)
            return None

    def _forget(self, broker: str) -> None:
        link = self._links.pop(broker, None)
        if link is not None:
            link.abort("no response")

    def _handle_push(self, command: Command, endpoint: Endpoint) -> None:
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED and not self._stopping:
            self._tasks.spawn(self._rebalance(), "rebalance")

    async def _send_heartbeat(self, broker: str, link: Endpoint) -> None:
        group = ConsumerGroup(self._group, (Subscription(self._topic, "*", sub_version=1),), ordered=True)
        await link.request(RequestCode.HEART_BEAT, None, encode_body(HeartbeatBody(self._client_id, (group,))), timeout_ms=TIMEOUT_MS)

    async def _heartbeat(self) -> None:
        for name in self._universe.brokers:
            link = self._links.get(name)
            if link is None or link.closed:
                await self._request(name, RequestCode.GET_CONSUMER_LIST_BY_GROUP, to_plain(GroupHeader(self._group)))
            else:
                try:
                    await self._send_heartbeat(name, link)
                except LockstepError:
                    self._forget(name)

    # ----------------------------------------------------------------------------------------------------------------- queues

    async def _rebalance(self) -> None:
        """Rebalance by the member list of the first broker that responds, which native members of such a group use too."""
        try:
            layout = (await AdminClient(self._host, self._universe.cluster).route(self._topic)).layout
        except LockstepError:
            return
        for name in self._universe.brokers:
            response = await self._request(name, RequestCode.GET_CONSUMER_LIST_BY_GROUP, to_plain(GroupHeader(self._group)))
            if response is not None and response.code == ResponseCode.SUCCESS:
                break
        else:
            return
        mine = allocate("average", None, layout, decode_body(MemberList, response.body).members, self._client_id)
        lost = [held for queue, held in self._held.items() if queue not in mine]
        for held in lost:
            held.dropped = True
            del self._held[held.queue]
        for held in lost:
            await self._persist(held)
            await self._unlock(held)
        for queue in mine:
            if queue not in self._held and not self._stopping:
                held = self._held[queue] = _AssignedQueue(queue)
                await self._lock([held])
                self._tasks.spawn(self._work(held), f"work {queue}")

    async def _lock_all(self) -> None:
        for name in self._universe.brokers:
            await self._lock([held for queue, held in self._held.items() if queue.broker_name == name])

    async def _lock(self, wanted: list[_AssignedQueue]) -> None:
        """Lock queues of one broker. A queue that the response does not name is not locked any more; without a response nothing changes."""
        if not wanted:
            return
        sent_at = self._now()
        response = await self._request(wanted[0].queue.broker_name, RequestCode.LOCK_BATCH_MQ, None, self._batch(wanted))
        if response is None or response.code != ResponseCode.SUCCESS:
            return
        given = [(ref.topic, ref.queue_id) for ref in decode_body(LockBatchReply, response.body).lock_ok_mq_set]
        for held in wanted:
            locked = (held.queue.topic, held.queue.queue_id) in given
            if locked and held.locked_at is None:
                held.offset = None  # others may have worked on it
            held.locked_at = sent_at if locked else None

    async def _unlock(self, held: _AssignedQueue) -> None:
        if held.locked_at is not None:
            held.locked_at = None
            await self._request(held.queue.broker_name, RequestCode.UNLOCK_BATCH_MQ, None, self._batch([held]))

    def _batch(self, some: list[_AssignedQueue]) -> bytes:
        refs = tuple(QueueRef(held.queue.topic, held.queue.broker_name, held.queue.queue_id) for held in some)
        return encode_body(LockBatchBody(self._client_id, self._group, refs))

    async def _persist_all(self) -> None:
        for held in list(self._held.values()):
            await self._persist(held)

    async def _persist(self, held: _AssignedQueue) -> None:
        if held.offset is not None and held.offset != held.stored:
            offset, queue = held.offset, held.queue
            header = UpdateConsumerOffsetHeader(self._group, queue.topic, queue.queue_id, offset)
            response = await self._request(queue.broker_name, RequestCode.UPDATE_CONSUMER_OFFSET, to_plain(header))
            if response is not None and response.code == ResponseCode.SUCCESS:
                held.stored = offset

    # ------------------------------------------------------------------------------------------------------------------ work

    def _trusted(self, held: _AssignedQueue) -> bool:
        return not held.dropped and held.locked_at is not None and self._now() - held.locked_at < TRUST_S

    async def _work(self, held: _AssignedQueue) -> None:
        queue = held.queue
        while not held.dropped:
            if not self._trusted(held):
                await asyncio.sleep(0.5)
                if held.locked_at is None and not held.dropped:
                    await self._lock([held])
                continue
            if held.offset is None:
                await self._find_offset(held)
                continue
            header = PullHeader(
                self._group,
                queue.topic,
                queue.queue_id,
                held.offset,
                max_msg_nums=8,
                sys_flag=SUSPEND | SUBSCRIPTION,
                suspend_timeout_millis=HOLD_MS,
                subscription="*",
                expression_type="TAG",
            )
            response = await self._request(queue.broker_name, RequestCode.PULL_MESSAGE, to_plain(header))
            if response is None or response.code not in PULLED:
                await asyncio.sleep(0.5)
            elif self._trusted(held):
                await self._consume(held, response)

    async def _find_offset(self, held: _AssignedQueue) -> None:
        queue = held.queue
        header = QueryConsumerOffsetHeader(self._group, queue.topic, queue.queue_id)
        response = await self._request(queue.broker_name, RequestCode.QUERY_CONSUMER_OFFSET, to_plain(header))
        if response is not None and response.code == ResponseCode.SUCCESS:
            held.offset = held.stored = from_plain(ProgressReply, response.fields).offset
        elif response is not None and response.code == ResponseCode.QUERY_NOT_FOUND:
            held.offset = 0
        else:
            await asyncio.sleep(0.5)

    async def _consume(self, held: _AssignedQueue, response: Command) -> None:
        next_offset = from_plain(PullReply, response.fields).next_begin_offset
        messages = decode_messages(bytes(response.body), held.queue.broker_name) if response.code == ResponseCode.SUCCESS else []
        universe, process, queue = self._universe, self._process, held.queue
        for message in messages:
            if not self._trusted(held):
                return
            key = QueueKey(self._group, queue.broker_name, queue.topic, queue.queue_id)
            call, given = universe.next_call(), ((message.queue_offset, message.body),)
            universe.history.append(CallBegan(*universe.origin(process), key, 0, given, call, self._host.clock.boot_ms()))
            await asyncio.sleep(max(self._random.uniform(0.001, 0.02), universe.apply_call_fault(process)))
            universe.history.append(CallEnded(*universe.origin(process), key, 0, call, CallResult.SUCCESS))
            held.offset = message.queue_offset + 1
        held.offset = max(next_offset, held.offset or 0) if messages else next_offset


def classic_main(universe: Universe, group: str) -> Main:
    async def main(stop: asyncio.Event) -> int:
        await ClassicConsumer(universe, group).run(stop)
        return 0

    return main
