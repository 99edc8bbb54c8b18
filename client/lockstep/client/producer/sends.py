"""The steps of each kind of send: find the topic, enter the in-flight limit, enqueue, wait for the result."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from lockstep.client.errors import NotDurableError, Outcome, QueueUnavailableError, SendError, SendTimeoutError, TooManySendsError
from lockstep.client.producer.batch import Batch, Division, Share
from lockstep.client.producer.config import DURABLE, ProducerConfig, Require, check_terms
from lockstep.client.producer.machines.pending import EncodedRecords, PendingSend, held_bytes_of
from lockstep.client.producer.machines.queue_machine import QueueMachine
from lockstep.client.producer.machines.routing import QUEUE_WIDE, UNKEYED, Route, Selector, route_of
from lockstep.client.producer.machines.topic_machine import TopicMachine
from lockstep.client.producer.pacing.flow_control import InFlightLimit
from lockstep.client.producer.result import SendResult, SendStatus
from lockstep.client.producer.shell import ProducerShell
from lockstep.client.producer.topics import Topics
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError, StateError, TransportError, broker_error, without_frames
from lockstep.protocol.fields import from_plain
from lockstep.protocol.frame import FRAME_BYTES_MAX, HEADER_BYTES_MAX
from lockstep.protocol.headers.send import RecallMessageHeader, RecallMessageReply
from lockstep.protocol.messages.message import Message, encode_message, with_reserved
from lockstep.protocol.messages.properties import TRANSACTION_ID, VALUE_END
from lockstep.protocol.messages.recall import RecallHandle
from lockstep.protocol.messages.record import record_bounds, split_records
from lockstep.protocol.messages.rooms import half_properties
from lockstep.protocol.names import HALF_TOPIC, TIMER_TOPIC
from lockstep.protocol.topics.queue import MessageQueue, TopicLayout
from lockstep.runtime.host import Host

RECORDS_BYTES_MAX = FRAME_BYTES_MAX - HEADER_BYTES_MAX
"""The longest body of one `send_records`: a frame without its header."""
ALONE: Sequence[int] = (0,)
"""The position of the only message of a `send`."""


class Demand(NamedTuple):
    """What a send needs of the in-flight limit, and the time that it has (monotonic ms)."""

    message_count: int
    held_bytes: int
    begun_ms: int
    deadline_ms: int


class Sends:
    """Runs the sends of a started producer. Producer's methods document the arguments and errors."""

    def __init__(self, group: str, config: ProducerConfig, topics: Topics, limit: InFlightLimit, shell: ProducerShell, host: Host) -> None:
        self._group = group
        self._config = config
        self._topics = topics
        self._open_topics = topics.open_topics
        self._limit = limit
        self._shell = shell
        self._clock = host.clock
        self._loop = asyncio.get_running_loop()

    # ----------------------------------------------------------------------------------------------------------------- steps

    def pending_send(
        self, message: Message, selector: Selector | None, queue: MessageQueue | None, timeout_ms: int | None, durable: bool | None
    ) -> "tuple[PendingSend, asyncio.Future[SendResult]]":
        """Return a send that is called now, and the future of its result."""
        route, begun_ms, future = route_of(message, selector, queue), self._clock.monotonic_ms(), self._loop.create_future()
        default_ms = self._config.send_timeout_ms if route is UNKEYED else self._config.keyed_send_timeout_ms
        deadline_ms = begun_ms + (timeout_ms or default_ms)
        return PendingSend((message,), route, held_bytes_of(message), future, begun_ms, deadline_ms, durable), future

    def enqueue(self, pending: PendingSend) -> TopicMachine | None:
        """Add a send to its queue and return its topic. Return None if it has to wait first: for the topic's route, or for room in the
        in-flight limit."""
        topic, limit = self._open_topics.get(pending.messages[0].topic), self._limit
        if topic is None or limit.must_wait:
            return None
        machine = topic.machine_for(pending.route, pending.begun_ms, limit.count)
        limit.add(1, pending.held_bytes)
        self._shell.add(topic, machine, pending)
        return topic

    async def open_topic(self, message: Message, deadline_ms: int) -> None:
        """Wait until the topic's route is known."""
        await self._open_topic(message.topic, Demand(1, held_bytes_of(message), self._clock.monotonic_ms(), deadline_ms))

    async def enqueue_later(self, pending: PendingSend) -> TopicMachine:
        """Wait for the topic's route and for room in the in-flight limit, then do the same as `enqueue`."""
        demand = demand_of(pending)
        topic = await self._open_topic(pending.messages[0].topic, demand)
        machine = await self._wait_for_queue(topic, pending.route, demand)
        self._shell.add(topic, machine, pending)
        return topic

    async def _wait_for_queue(self, topic: TopicMachine, route: Route, demand: Demand, *, ordered: bool = True) -> QueueMachine:
        """Wait until the in-flight limit has room for a send to one queue. Return the queue, according to the layout at that time."""
        ((_, machine, _, _),) = await self._wait_for_room(partial(self._single_share, topic, route), demand, ordered=ordered)
        return machine

    def withdraw(self, topic: TopicMachine, pending: PendingSend, future: "asyncio.Future[SendResult]") -> None:
        """Withdraw a cancelled send, unless it is written."""
        self._shell.withdraw(topic, pending)
        if future.done() and not future.cancelled():
            future.exception()  # it has failed meanwhile: mark the error as retrieved
        future.cancel()

    async def enqueue_waiting(self, pending: PendingSend, room: str) -> TopicMachine:
        """Do the same as `enqueue_later` for a message that is to wait in this room. It keeps no order with others, not even of its key."""
        demand, name = demand_of(pending), pending.messages[0].topic
        await self._open_topic(name, demand)
        topic = await self._topics.open_room(room, name, demand.deadline_ms)
        machine = await self._wait_for_queue(topic, pending.route, demand, ordered=False)
        self._shell.add(topic, machine, pending)
        return topic

    async def send_half(
        self, message: Message, transaction_id: str, selector: Selector | None, queue: MessageQueue | None, timeout_ms: int | None
    ) -> SendResult:
        """Store a half message of a transaction, on disk."""
        check_terms(timeout_ms, "durable")
        pending, future = self.pending_send(with_reserved(message, {TRANSACTION_ID: transaction_id}), selector, queue, timeout_ms, True)
        try:
            pending.waits = half_properties(self._group, self._shell.instance.client_id).removesuffix(VALUE_END.encode())
            topic = await self.enqueue_waiting(pending, HALF_TOPIC)
            try:
                result = await future
            except asyncio.CancelledError:
                self.withdraw(topic, pending, future)
                raise
        finally:
            del pending, future  # a future that fails holds the error, whose traceback holds this frame
        check_durable([result])
        return result

    async def recall(self, handle: str, timeout_ms: int) -> str:
        """Ask the broker of a handle to take its message back. Return the message's id."""
        named = RecallHandle.decode(handle)
        end_ms = self._clock.monotonic_ms() + timeout_ms
        await self._topics.open(named.topic, end_ms)
        link = self._shell.instance.link(named.broker_name)
        if link is None:
            raise TransportError(f"no address of broker {named.broker_name}, at which the message waits, is known")
        if not link.up:
            await link.wait_up(max(1, end_ms - self._clock.monotonic_ms()))
        header = RecallMessageHeader(named.topic, handle, self._group)
        response = await link.request(RequestCode.RECALL_MESSAGE, header, timeout_ms=max(1, end_ms - self._clock.monotonic_ms()))
        if response.code != ResponseCode.SUCCESS:
            raise broker_error(response.code, response.remark)
        return from_plain(RecallMessageReply, response.fields).msg_id

    async def send_batch(
        self,
        messages: Sequence[Message],
        selector: Selector | None,
        queue: MessageQueue | None,
        timeout_ms: int | None,
        require: Require,
        timer: bytes = b"",
    ) -> list[SendResult]:
        """Send a batch. `timer`: the property of messages that are to wait."""
        begun_ms = self._clock.monotonic_ms()
        division = Division(messages, selector, queue)
        end_ms = self._end_ms(begun_ms, timeout_ms, keyed=division.keyed)
        demand = Demand(len(messages), sum(division.held_bytes), begun_ms, end_ms)
        topics = {name: await self._open_topic(name, demand) for name in division.topics}
        if timer:
            topics = {name: await self._topics.open_room(TIMER_TOPIC, name, end_ms) for name in topics}
        batch = Batch(len(messages), self._loop.create_future(), durable=DURABLE[require])
        try:
            for begin, end in division.chunks(self._config):
                try:
                    await self._send_chunk(batch, division, topics, begin, end, demand, timer)
                except SendError as error:
                    batch.failed(range(begin, len(messages)), without_frames(error))
                    break
            results = await batch.results()
        except BaseException:  # re-raised
            for topic, pending in batch.sends:
                self._shell.withdraw(topic, pending)
            batch.future.cancel()
            raise
        finally:
            batch.sends.clear()  # they hold the batch
        if batch.durable:
            check_durable(results)
        return results

    def known_layouts(self) -> dict[str, TopicLayout]:
        """Return the present layout of each topic that is open."""
        return {name: topic.layout for name, topic in self._open_topics.items()}

    async def layout(self, topic: str, timeout_ms: int | None) -> TopicLayout:
        return (await self._topics.open(topic, self._end_ms(self._clock.monotonic_ms(), timeout_ms, keyed=False))).layout

    async def send_records(
        self, queue: MessageQueue, records: bytes, sizes: list[int], timeout_ms: int | None, epoch: int | None
    ) -> SendResult:
        check_records(records, sizes)
        begun_ms, route = self._clock.monotonic_ms(), Route((QUEUE_WIDE,), None, queue, may_be_closed=epoch is not None)
        end_ms = self._end_ms(begun_ms, timeout_ms, keyed=True)
        future: asyncio.Future[SendResult] = self._loop.create_future()
        encoded = EncodedRecords(records, sizes)
        pending = PendingSend((), route, len(records), future, begun_ms, end_ms, records=encoded)
        demand = demand_of(pending)
        topic = await self._open_topic(queue.topic, demand)
        machine = topic.machine_for(route, begun_ms)
        try:
            machine = await self._wait_for_queue(topic, route, demand)
        except BaseException:  # re-raised
            machine.end_given_stream()
            raise
        try:
            if epoch is not None:
                machine.begin_epoch(epoch)
        except StateError:
            self._limit.release(pending.count, pending.held_bytes)
            raise
        self._shell.add(topic, machine, pending)
        try:
            return await future
        except asyncio.CancelledError:
            machine.end_given_stream()
            self.withdraw(topic, pending, future)
            raise
        finally:
            del pending, future  # a future that fails holds the error, whose traceback holds this frame

    async def send_oneway(self, message: Message, selector: Selector | None, queue: MessageQueue | None) -> None:
        begun_ms, route = self._clock.monotonic_ms(), route_of(message, selector, queue)
        end_ms = self._end_ms(begun_ms, None, keyed=False)
        topic = await self._open_topic(message.topic, Demand(1, held_bytes_of(message), begun_ms, end_ms))
        machine = topic.machine_for(route, begun_ms)
        link = self._shell.instance.link(machine.queue.broker_name)
        if link is None:
            raise TransportError(f"{machine.queue}: no address of broker {machine.queue.broker_name} is known")
        if not link.up:
            await link.wait_up(self._config.send_timeout_ms)
        endpoint = link.endpoint
        if endpoint is not None and endpoint.unsent_bytes + self._shell.oneway_bytes(machine) > self._config.unsent_bytes_max:
            await endpoint.drain()
        born_ms = self._clock.wall_ms()
        message_id = self._shell.keys.next(born_ms)
        record = encode_message(message, machine.queue.queue_id, message_id, born_ms, None, self._config.compress_over_bytes)
        self._shell.add_oneway(topic, machine, record, None if route.pick is None else topic.layout.version)

    # ----------------------------------------------------------------------------------------------------------------- parts

    async def _open_topic(self, name: str, demand: Demand) -> TopicMachine:
        """Return the topic's machine. Wait for its route if that is not known."""
        topic = self._open_topics.get(name)
        if topic is None:
            self._check_waiting(name, demand)
            waiting = self._limit.waiting
            waiting.enter(demand.message_count, demand.held_bytes)
            try:
                topic = await self._topics.open(name, demand.deadline_ms)
            finally:
                waiting.leave(demand.message_count, demand.held_bytes)
        return topic

    def _check_waiting(self, topic: str, demand: Demand) -> None:
        """Raise TooManySendsError if a send that has so much time may not wait."""
        waiting, timeout_ms = self._limit.waiting, demand.deadline_ms - demand.begun_ms
        if not waiting.has_place(demand.message_count, demand.held_bytes, timeout_ms):
            waits = f"{waiting.count} messages with {waiting.byte_count} bytes wait to be sent, and brokers store {waiting.stored_per_s}/s"
            do = "send less, or raise waiting_count_max and waiting_bytes_max"
            raise TooManySendsError(topic, f"refused at once: {waits}, too few for this one within its {timeout_ms} ms ({do})")

    def _single_share(self, topic: TopicMachine, route: Route) -> Sequence[Share]:
        """Return the share of a single send in the present layout."""
        return ((topic, topic.machine_for(route, self._clock.monotonic_ms(), self._limit.count), route, ALONE),)

    def _end_ms(self, begun_ms: int, timeout_ms: int | None, *, keyed: bool) -> int:
        """Return the deadline (monotonic ms) of a send that was called at `begun_ms`."""
        return begun_ms + (timeout_ms or (self._config.keyed_send_timeout_ms if keyed else self._config.send_timeout_ms))

    async def _wait_for_room(self, find: Callable[[], Sequence[Share]], demand: Demand, *, ordered: bool = True) -> Sequence[Share]:
        """Wait until the in-flight limit has room. Return the shares that `find` returns then: the layout may have changed meanwhile.

        If `ordered`, a failed send also fails the later sends with one of its keys that wait here.
        """
        self._check_open()
        shares = find()
        limit = self._limit
        count, held_bytes, begun_ms, end_ms = demand
        if not limit.must_wait:
            limit.add(count, held_bytes)
            return shares
        topic, first, route, _ = shares[0]
        self._check_waiting(topic.layout.topic, demand)
        queue_keys = [(machine.queue, route.keys) for _, machine, route, _ in shares] if ordered else []

        def in_time() -> bool:
            nonlocal shares
            self._check_open()
            shares = find()
            now_ms = self._clock.monotonic_ms()
            return all(machine.in_time(now_ms, begun_ms, end_ms) for _, machine, _, _ in shares)

        await limit.enter(count, held_bytes, queue_keys, end_ms, lambda: self._too_late(route, first), in_time)
        return shares

    def _check_open(self) -> None:
        """Raise StateError if the producer writes no more frames."""
        if self._shell.closed:
            raise not_running(self._group, closed=True)

    async def _send_chunk(
        self, batch: Batch, division: Division, topics: Mapping[str, TopicMachine], begin: int, end: int, demand: Demand, timer: bytes
    ) -> None:
        """Send messages[begin:end], those of one queue together. If one can't be routed, none is enqueued.

        `demand` is that of the whole batch.
        """
        shares = await self._wait_for_room(
            lambda: division.shares(begin, end, topics, self._clock.monotonic_ms()),
            demand._replace(message_count=end - begin, held_bytes=sum(division.held_bytes[begin:end])),
        )
        for topic, machine, route, places in shares:
            messages, held_bytes = division.of(places)
            pending = PendingSend(messages, route, held_bytes, batch, demand.begun_ms, demand.deadline_ms, batch.durable, places)
            pending.waits = timer
            batch.sends.append((topic, pending))
            self._shell.add(topic, machine, pending)

    def _too_late(self, route: Route, machine: QueueMachine) -> SendError:
        """Return the error of a send that waited for the in-flight limit until its deadline, or until too little time was left for a
        response."""
        limit, queue = self._limit, machine.queue
        full = f"{limit.count} messages with {limit.byte_count} bytes are in flight"
        where = f"broker {queue.broker_name} is {'connected' if machine.broker.up else 'not connected'}"
        why = f"not sent in time for a response before its deadline: it waited for the producer's in-flight limit ({full}; {where})"
        if route is UNKEYED:
            return SendTimeoutError(queue.topic, Outcome.NOT_STORED, why)
        return QueueUnavailableError(queue, Outcome.NOT_STORED, why)


def demand_of(pending: PendingSend) -> Demand:
    """Return what a send needs and the time that it has."""
    return Demand(pending.count, pending.held_bytes, pending.begun_ms, pending.deadline_ms)


def check_records(records: bytes, sizes: list[int]) -> None:
    """Raise LocalProtocolError unless these are whole records of these sizes that fit one frame."""
    if not 0 < len(records) <= RECORDS_BYTES_MAX:
        raise LocalProtocolError(f"send_records got {len(records)} bytes: expected 1 to {RECORDS_BYTES_MAX}, what fits one frame")
    try:
        bounds = split_records(records)
        record_bounds(records)
    except RemoteProtocolError as error:
        raise LocalProtocolError(f"send_records takes encoded records (encode_message): {error}") from None
    if [end - begin for begin, end in bounds] != sizes:
        raise LocalProtocolError(f"send_records got {len(sizes)} sizes that are not those of its {len(bounds)} records")


def check_durable(results: Sequence[SendResult]) -> None:
    """Raise NotDurableError if a result has a weaker status than SEND_OK."""
    for result in results:
        if result.status is not SendStatus.SEND_OK:
            raise NotDurableError(results, result)


def not_running(group: str, *, closed: bool) -> StateError:
    """Return the error of a send before the start or after the end of its producer."""
    return StateError(f"producer {group} is {'closed' if closed else 'not started: use `async with`, or await start()'}")
