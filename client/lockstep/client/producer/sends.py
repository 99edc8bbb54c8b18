"""What the ways of sending do: find the queue, pass the gate, encode, hand over, wait for the end."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.client.errors import NotDurableError, Outcome, QueueUnavailableError, SendError, SendTimeoutError
from lockstep.client.features import SENDING_DURABLY, check_brokers
from lockstep.client.producer.batch import Batch, Division, Placed, Share, held_bytes_of
from lockstep.client.producer.config import DURABLE, ProducerConfig, Require
from lockstep.client.producer.delayed import Delay, DelayedSend
from lockstep.client.producer.flow_control import InFlightLimit
from lockstep.client.producer.pending import QUEUE_WIDE, PendingSend
from lockstep.client.producer.queue_machine import QueueMachine
from lockstep.client.producer.result import SendResult, SendStatus
from lockstep.client.producer.routing import UNKEYED, Route, route_of
from lockstep.client.producer.selector import Selector
from lockstep.client.producer.topic_machine import Shared, TopicMachine
from lockstep.client.producer.topics import Topics
from lockstep.protocol.errors import TransportError
from lockstep.protocol.ids import UNIQUE_PREFIX_BYTES, UniqueKeys
from lockstep.protocol.message import Message, encode_message
from lockstep.protocol.queue import MessageQueue
from lockstep.runtime.clock import Clock


class Sends:
    """Of one producer. What each argument means and what is raised: Producer's own methods say."""

    def __init__(self, group: str, config: ProducerConfig, topics: Topics, gate: InFlightLimit) -> None:
        self._group = group
        self._config = config
        self._compress_over = config.compress_over_bytes
        self.topics = topics
        self.open_ones = topics.open_ones
        self.gate = gate
        self._shared: Shared | None = None
        self._clock: Clock | None = None

    def begin(self, shared: Shared) -> None:
        """The producer has started."""
        host = shared.instance.host
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._clock = host.clock
        self._ids = UniqueKeys(host.random.token(UNIQUE_PREFIX_BYTES))

    def now_ms(self) -> int:
        """The time from which the deadline of a send counts that is called now (monotonic ms); 0 before the producer has started."""
        return 0 if self._clock is None else self._clock.monotonic_ms()

    def deadline_ms(self, begun_ms: int, timeout_ms: int | None, *, keyed: bool) -> int:
        """Returns the deadline (monotonic ms) of a send that was called at `begun_ms`."""
        return begun_ms + (timeout_ms or (self._config.keyed_send_timeout_ms if keyed else self._config.send_timeout_ms))

    def encoded(
        self,
        message: Message,
        topic: TopicMachine,
        way: Route,
        sender: QueueMachine,
        held_bytes: int,
        begun_ms: int,
        end_ms: int,
        require: Require,
    ) -> "tuple[PendingSend, asyncio.Future[SendResult]]":
        """A single message that has passed the gate, ready for its queue."""
        assert self._clock is not None
        born_ms = self._clock.wall_ms()
        message_id = self._ids.next(born_ms)
        record = encode_message(message, sender.queue.queue_id, message_id, born_ms, None, self._compress_over)
        future: asyncio.Future[SendResult] = self._loop.create_future()
        parcel = self._parcel(topic, way, record, None, message_id, held_bytes, future, begun_ms, end_ms)
        parcel.durable = DURABLE[require]
        return parcel, future

    def check_durable(self, topic: TopicMachine) -> None:
        """RequestCodeNotSupportedError where a broker of the topic could not do as is asked."""
        assert self._shared is not None
        check_brokers(self._shared.instance, topic.layout, SENDING_DURABLY)

    async def delayed(self, message: Message, delay: Delay, way: Route, begun_ms: int, deadline_ms: int, require: Require) -> SendResult:
        topic = self.open_ones.get(message.topic) or await self.topics.open(message.topic, deadline_ms)
        if require == "durable":
            self.check_durable(topic)
        shared, held_bytes = self._shared, held_bytes_of(message)
        assert shared is not None
        assert self._clock is not None
        sender = way.sender(topic)
        await self.gate.enter(
            1,
            held_bytes,
            [],
            deadline_ms,
            lambda: self._too_late(way, sender),
            lambda: way.sender(topic).in_time(begun_ms, deadline_ms),
        )
        try:
            sending = DelayedSend(shared, self._group, topic, way, message, self._ids.next(self._clock.wall_ms()), delay)
            return await sending.run(deadline_ms, durable=DURABLE[require])
        finally:
            self.gate.release(1, held_bytes)

    async def many(
        self,
        messages: Sequence[Message],
        selector: Selector | None,
        queue: MessageQueue | None,
        timeout_ms: int | None,
        require: Require,
    ) -> list[SendResult]:
        begun_ms = self.now_ms()
        division = Division(messages, selector, queue)
        end_ms = self.deadline_ms(begun_ms, timeout_ms, keyed=division.keyed)
        topics = {name: self.open_ones.get(name) or await self.topics.open(name, end_ms) for name in division.topics}
        if require == "durable":
            for topic in topics.values():
                self.check_durable(topic)
        batch = Batch(len(messages), self._loop.create_future(), durable=DURABLE[require])
        try:
            for begin, end in division.chunks(self._config):
                try:
                    await self._chunk(batch, division, topics, messages, begin, end, begun_ms, end_ms)
                except SendError as error:
                    batch.failed(range(begin, len(messages)), error)
                    break
            results = await batch.results()
        except BaseException:  # re-raised
            batch.withdraw()
            raise
        if require == "durable":
            check_durable(results)
        return results

    async def records(self, queue: MessageQueue, records: bytes, sizes: list[int], timeout_ms: int | None) -> SendResult:
        begun_ms, way = self.now_ms(), Route((QUEUE_WIDE,), None, queue)
        end_ms = self.deadline_ms(begun_ms, timeout_ms, keyed=True)
        topic = self.open_ones.get(queue.topic) or await self.topics.open(queue.topic, end_ms)
        held_bytes, gate = len(records), self.gate
        sender = way.sender(topic)
        if gate.shut:
            try:
                await gate.enter(
                    len(sizes),
                    held_bytes,
                    [(queue, way.keys)],
                    end_ms,
                    lambda: self._too_late(way, sender),
                    lambda: way.sender(topic).in_time(begun_ms, end_ms),
                )
            except BaseException:  # re-raised
                sender.end_given()
                raise
        else:
            gate.add(len(sizes), held_bytes)
        try:
            sender = way.sender(topic)
        except BaseException:  # re-raised
            gate.release(len(sizes), held_bytes)
            raise
        future = self._loop.create_future()
        parcel = self._parcel(topic, way, records, sizes, "", held_bytes, future, begun_ms, end_ms)
        parcel.alone = True
        sender.add(parcel)
        try:
            result: SendResult = await future
        except asyncio.CancelledError:
            sender.end_given()
            withdraw(parcel, future)
            raise
        return result

    async def oneway(self, message: Message, selector: Selector | None, queue: MessageQueue | None) -> None:
        way = route_of(message, selector, queue)
        topic = self.open_ones.get(message.topic)
        if topic is None:
            topic = await self.topics.open(message.topic, self.now_ms() + self._config.send_timeout_ms)
        sender = way.sender(topic)
        if not sender.up:
            await self._wait_up(sender)
        endpoint = None if sender.link is None else sender.link.endpoint
        if endpoint is not None and endpoint.unsent_bytes + sender.oneway_bytes > self._config.unsent_bytes_max:
            await endpoint.drain()
        assert self._clock is not None
        born_ms = self._clock.wall_ms()
        message_id = self._ids.next(born_ms)
        record = encode_message(message, sender.queue.queue_id, message_id, born_ms, None, self._compress_over)
        sender.add_oneway(record, None if way.pick is None else topic.layout.version)

    # ----------------------------------------------------------------------------------------------------------------- parts

    async def _chunk(
        self,
        batch: Batch,
        division: Division,
        topics: Mapping[str, TopicMachine],
        messages: Sequence[Message],
        begin: int,
        end: int,
        begun_ms: int,
        end_ms: int,
    ) -> None:
        """messages[begin:end], one parcel for each queue; none of them is posted where one can't be."""
        gate, count = self.gate, end - begin
        held_bytes = sum([held_bytes_of(message) for message in messages[begin:end]])
        shares = division.shares(begin, end, topics)
        if gate.shut:
            tag = [(sender.queue, way.keys) for _, sender, way, _ in shares]
            _, first, way, _ = shares[0]

            def in_time() -> bool:
                nonlocal shares  # the layout may have changed meanwhile, a broker may have gone
                shares = division.shares(begin, end, topics)
                return all(sender.in_time(begun_ms, end_ms) for _, sender, _, _ in shares)

            await gate.enter(count, held_bytes, tag, end_ms, lambda: self._too_late(way, first), in_time)
        else:
            gate.add(count, held_bytes)
        try:
            parcels = [self._pack(batch, share, messages, begun_ms, end_ms) for share in shares]
        except BaseException:  # re-raised
            gate.release(count, held_bytes)
            raise
        batch.parcels += parcels
        for (_, sender, _, _), parcel in zip(shares, parcels, strict=True):
            sender.add(parcel)

    def _pack(self, batch: Batch, share: Placed, messages: Sequence[Message], begun_ms: int, end_ms: int) -> PendingSend:
        """Messages that are acknowledged together."""
        assert self._clock is not None
        topic, sender, way, places = share
        born_ms, queue_id = self._clock.wall_ms(), sender.queue.queue_id
        own = [messages[place] for place in places]
        ids = self._ids.many(born_ms, len(own))
        over = self._compress_over
        records = [encode_message(message, queue_id, id_, born_ms, None, over) for message, id_ in zip(own, ids, strict=True)]
        held_bytes = sum([held_bytes_of(message) for message in own])
        sizes = list(map(len, records))
        parcel = self._parcel(topic, way, b"".join(records), sizes, ids, held_bytes, Share(batch, places), begun_ms, end_ms)
        parcel.durable = batch.durable
        return parcel

    def _parcel(
        self,
        topic: TopicMachine,
        way: Route,
        data: bytes,
        sizes: list[int] | None,
        ids: str | list[str],
        held_bytes: int,
        future: "asyncio.Future[Any] | Share",
        begun_ms: int,
        end_ms: int,
    ) -> PendingSend:
        half_ms = (begun_ms + end_ms) // 2
        if way is UNKEYED:
            return PendingSend(data, sizes, ids, held_bytes, future, end_ms, half_ms)
        version = None if way.pick is None else topic.layout.version
        return PendingSend(data, sizes, ids, held_bytes, future, end_ms, half_ms, way.keys, version, way.pick)

    async def wait(
        self, topic: TopicMachine, way: Route, sender: QueueMachine, held_bytes: int, begun_ms: int, end_ms: int
    ) -> QueueMachine:
        """Wait at the gate, and look again for the queue: the layout may have changed meanwhile, the broker may have gone."""
        layout, chosen = topic.layout, sender

        def in_time() -> bool:
            nonlocal chosen
            if way is UNKEYED or topic.layout is not layout:
                chosen = way.sender(topic)
            return chosen.in_time(begun_ms, end_ms)

        await self.gate.enter(1, held_bytes, [(sender.queue, way.keys)], end_ms, lambda: self._too_late(way, sender), in_time)
        return chosen

    def _too_late(self, way: Route, sender: QueueMachine) -> SendError:
        """What a send raises that waited for the in-flight limit until its deadline, or until too little time was left for an answer."""
        gate, queue = self.gate, sender.queue
        limit = f"{gate.count} messages with {gate.byte_count} bytes are in flight"
        where = f"broker {queue.broker_name} is {'connected' if sender.up else 'not connected'}"
        why = f"not sent in time for an answer before its deadline: it waited for the producer's in-flight limit ({limit}; {where})"
        return (
            SendTimeoutError(queue.topic, Outcome.NOT_STORED, why)
            if way is UNKEYED
            else QueueUnavailableError(queue, Outcome.NOT_STORED, why)
        )

    async def _wait_up(self, sender: QueueMachine) -> None:
        if sender.link is None:
            raise TransportError(f"{sender.queue}: no address of broker {sender.queue.broker_name} is known")
        await sender.link.wait_up(self._config.send_timeout_ms)


def withdraw(parcel: PendingSend, future: "asyncio.Future[Any]") -> None:
    """Its send was cancelled: take it back unless it is written."""
    if parcel.sender is not None and not parcel.sender.withdraw(parcel) and future.done() and not future.cancelled():
        future.exception()  # its end is known and nobody waits for it
    future.cancel()


def check_durable(results: Sequence[SendResult]) -> None:
    """NotDurableError where one has a weaker status than SEND_OK."""
    for result in results:
        if result.status is not SendStatus.SEND_OK:
            raise NotDurableError(results, result)
