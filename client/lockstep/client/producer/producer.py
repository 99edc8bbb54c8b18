"""Sending. RocketMQ: DefaultMQProducer, DefaultMQProducerImpl."""

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

from lockstep.client.errors import NotDurable
from lockstep.client.instance import Instance, ProducerHooks
from lockstep.client.producer.batch import RECORD_OVERHEAD_BYTES, Batch, chunks, share_out
from lockstep.client.producer.batcher import Parcel
from lockstep.client.producer.config import ProducerConfig
from lockstep.client.producer.gate import Gate
from lockstep.client.producer.queue_sender import QueueSender
from lockstep.client.producer.result import SendResult, SendStatus
from lockstep.client.producer.selector import Selector
from lockstep.client.producer.topic_sender import Shared, TopicSender
from lockstep.client.producer.way import UNKEYED, Way, way_of
from lockstep.client.topics import create_topic
from lockstep.protocol.errors import LocalProtocolError, LockstepError, RouteNotReady, StateError, TopicNotExist, TransportError
from lockstep.protocol.ids import UNIQUE_PREFIX_BYTES, UniqueKeys
from lockstep.protocol.message import Message, encode_message
from lockstep.protocol.names import check_group
from lockstep.protocol.queue import MessageQueue, TopicLayout
from lockstep.runtime.host import Host

DEFAULT_NAMESERVER = "127.0.0.1:9876"

ROUTE_PAUSE_MS = 100
"""Between two questions to nameservers that have heard of no broker yet."""

Require = Literal["stored", "durable"]


class Producer:
    """Sends messages to topics. Use it as `async with Producer("group", nameserver="host:port") as producer`.

    - Many sends at once share frames by themselves: whatever gathers for a queue while its last frame is in flight goes out together.
    - `await send(…)` is back-pressure: it waits while the in-flight limit (`ProducerConfig`) is reached.
    - A frame that was not answered is repeated with its sequence, and a broker stores it once.
    - Not for several threads or event loops: make one producer in each.
    """

    def __init__(
        self,
        group: str,
        *,
        nameserver: str | list[str] | tuple[str, ...] = DEFAULT_NAMESERVER,
        config: ProducerConfig | None = None,
        host: Host | None = None,
    ) -> None:
        check_group(group)
        self.group = group
        self.config = config or ProducerConfig()
        self._nameserver = nameserver
        self._host = host
        self._shared: Shared | None = None
        self._closed = False
        self._topics: dict[str, TopicSender] = {}
        self._opening: dict[str, asyncio.Future[None]] = {}
        self._gate = Gate(self.config.in_flight_count_max, self.config.in_flight_bytes_max)

    # ------------------------------------------------------------------------------------------------------------------ life

    async def start(self) -> None:
        """Reach the cluster. TransportError where no nameserver answers; StateError when it was started or closed before."""
        if self._shared is not None or self._closed:
            raise StateError(f"producer {self.group} was {'closed' if self._closed else 'started'} before: make a new one")
        instance = Instance.current(self._nameserver, host=self._host)
        try:
            await instance.start()
        except BaseException:  # re-raised
            await instance.close()
            raise
        random = instance.host.random
        self._loop = asyncio.get_running_loop()
        self._clock = instance.host.clock
        self._ids = UniqueKeys(random.token(UNIQUE_PREFIX_BYTES))
        self._shared = Shared(instance, self.config, self._gate, random.token(16).hex())
        instance.register_producer(self, self.group, ProducerHooks(on_links=self._links_changed, on_layout=self._layout_changed))

    async def close(self) -> None:
        """Take no more sends, wait until those in flight have ended (each has its deadline), and leave."""
        if self._closed:
            return
        self._closed = True
        shared, topics, self._topics = self._shared, self._topics, {}
        if shared is None:
            return
        try:
            await self._gate.idle()
            await asyncio.sleep(0)  # one-way sends of this turn are written at its end
        finally:
            shared.instance.unregister_producer(self)
            for topic in topics.values():
                topic.close()
            await shared.instance.close()

    async def __aenter__(self) -> "Producer":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def possible_duplicates(self) -> int:
        """Unkeyed messages that went to another broker while the first one may have stored them."""
        return 0 if self._shared is None else self._shared.possible_duplicates

    @property
    def in_flight_count(self) -> int:
        """Messages that are sent and not acknowledged."""
        return self._gate.count

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of the same, as the in-flight limit counts them."""
        return self._gate.byte_count

    # ------------------------------------------------------------------------------------------------------------------ send

    async def send(
        self,
        message: Message,
        *,
        sharding_key: str | None = None,
        selector: Selector | None = None,
        arg: object = None,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
        require: Require = "stored",
    ) -> SendResult:
        """Send one message; returns when a broker has stored it.

        At most one of `sharding_key` (same key, same queue), `selector` (with `arg`; picks one of the layout's queues) and `queue` (this
        one). Such a send tries its own queue until the deadline (30 s) and raises QueueUnavailable; without them any live broker will do
        within 3 s, else SendTimeout. Also raises PrecedingSendFailed, TopicNotExist, LocalProtocolError, and the BrokerError of a refusal
        that no retry mends. `require="durable"`: NotDurable where the broker stored it and could not confirm it in time.

        Cancelling withdraws the message if it is not written yet; later its outcome is unknown.
        """
        topic = self._topics.get(message.topic)
        if topic is None:
            topic = await self._open(message.topic)
        if sharding_key is None and selector is None and queue is None:
            way, sender = UNKEYED, topic.next()
        else:
            way = way_of(message, sharding_key, selector, arg, queue)
            sender = way.sender(topic)
        held_bytes = len(message.body) + len(message.stored_properties) + RECORD_OVERHEAD_BYTES
        gate = self._gate
        if gate.shut:
            sender = await self._wait(topic, way, sender, 1, held_bytes)
        else:
            gate.add(1, held_bytes)
        parcel = self._post(topic, way, sender, message, held_bytes, sharding_key, timeout_ms)
        try:
            result: SendResult = await parcel.future
        except asyncio.CancelledError:
            _withdraw([parcel])
            raise
        if require == "durable":
            _check_durable([result])
        return result

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        sharding_key: str | None = None,
        sharding_keys: Sequence[str] | None = None,
        selector: Selector | None = None,
        arg: object = None,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
        require: Require = "stored",
    ) -> list[SendResult]:
        """Send many; one frame per queue (several where they exceed a frame's limits), results in the order of `messages`.

        Without a key the messages of one topic go to one queue, the next in turn. `sharding_keys` gives each message its own key.
        Otherwise as `send`. Where any message fails BatchSendError holds what became of each.
        """
        if not messages:
            return []
        if sharding_keys is not None and (sharding_key is not None or len(sharding_keys) != len(messages)):
            raise LocalProtocolError(f"sharding_keys: give one for each of the {len(messages)} messages, and no sharding_key beside them")
        ways = share_out(messages, sharding_key, sharding_keys, selector, arg, queue)
        for name in dict.fromkeys([topic for topic, _ in ways]):
            if name not in self._topics:
                await self._open(name)
        batch = Batch(len(messages))
        try:
            for (name, _), (way, key, indices) in ways.items():
                share = messages if len(indices) == len(messages) else [messages[index] for index in indices]
                topic = self._topics.get(name) or await self._open(name)
                await self._send_share(batch, topic, way, share, indices, key, timeout_ms)
            results = await batch.results()
        except BaseException:  # re-raised
            _withdraw(batch.parcels)
            raise
        if require == "durable":
            _check_durable(results)
        return results

    async def send_oneway(
        self,
        message: Message,
        *,
        sharding_key: str | None = None,
        selector: Selector | None = None,
        arg: object = None,
        queue: MessageQueue | None = None,
    ) -> None:
        """Write one message and wait for nothing: no answer, no retry, no sequence; it may be lost, and may overtake sends in flight.

        Waits only for a connection (TransportError after 3 s) and while the connection has too much unsent.
        """
        topic = self._topics.get(message.topic) or await self._open(message.topic)
        way = way_of(message, sharding_key, selector, arg, queue)
        sender = way.sender(topic)
        if not sender.up:
            await self._wait_up(sender)
        endpoint = None if sender.link is None else sender.link.endpoint
        if endpoint is not None and endpoint.unsent_bytes + sender.oneway_bytes > self.config.unsent_bytes_max:
            await endpoint.drain()
        born_ms = self._clock.wall_ms()
        record = encode_message(message, sender.queue.queue_id, self._ids.next(born_ms), born_ms, sharding_key)
        sender.add_oneway(record, None if way.pick is None else topic.layout.version)

    # ----------------------------------------------------------------------------------------------------------------- parts

    def _post(
        self, topic: TopicSender, way: Way, sender: QueueSender, message: Message, held_bytes: int, key: str | None, timeout_ms: int | None
    ) -> Parcel:
        """Encode what the gate has let in, and let it wait at its queue."""
        born_ms = self._clock.wall_ms()
        message_id = self._ids.next(born_ms)
        try:
            record = encode_message(message, sender.queue.queue_id, message_id, born_ms, key)
        except LocalProtocolError:
            self._gate.release(1, held_bytes)
            raise
        return self._parcel(topic, way, sender, record, None, message_id, held_bytes, timeout_ms)

    def _post_many(
        self,
        topic: TopicSender,
        way: Way,
        sender: QueueSender,
        messages: Sequence[Message],
        held_bytes: int,
        key: str | None,
        timeout_ms: int | None,
    ) -> Parcel:
        """`_post` of messages that are acknowledged together."""
        born_ms = self._clock.wall_ms()
        queue_id = sender.queue.queue_id
        ids = self._ids.many(born_ms, len(messages))
        try:
            records = [encode_message(message, queue_id, id_, born_ms, key) for message, id_ in zip(messages, ids, strict=True)]
        except LocalProtocolError:
            self._gate.release(len(messages), held_bytes)
            raise
        return self._parcel(topic, way, sender, b"".join(records), list(map(len, records)), ids, held_bytes, timeout_ms)

    def _parcel(
        self,
        topic: TopicSender,
        way: Way,
        sender: QueueSender,
        data: bytes,
        sizes: list[int] | None,
        ids: str | list[str],
        held_bytes: int,
        timeout_ms: int | None,
    ) -> Parcel:
        now_ms = self._clock.monotonic_ms()
        future: asyncio.Future[Any] = self._loop.create_future()
        if way is UNKEYED:
            whole_ms = timeout_ms or self.config.send_timeout_ms
            parcel = Parcel(data, sizes, ids, held_bytes, future, now_ms + whole_ms, now_ms + whole_ms // 2)
        else:
            end_ms = now_ms + (timeout_ms or self.config.keyed_send_timeout_ms)
            version = None if way.pick is None else topic.layout.version
            parcel = Parcel(data, sizes, ids, held_bytes, future, end_ms, end_ms, way.key, version, way.pick)
        sender.add(parcel)
        return parcel

    async def _send_share(
        self,
        batch: Batch,
        topic: TopicSender,
        way: Way,
        messages: Sequence[Message],
        indices: Sequence[int],
        sharding_key: str | None,
        timeout_ms: int | None,
    ) -> None:
        """One way's messages, in parcels that fit a frame."""
        gate = self._gate
        for begin, end, held_bytes in chunks(messages, self.config):
            sender = way.sender(topic)
            if gate.shut:
                sender = await self._wait(topic, way, sender, end - begin, held_bytes)
            else:
                gate.add(end - begin, held_bytes)
            chunk = messages if end - begin == len(messages) else messages[begin:end]
            batch.add(self._post_many(topic, way, sender, chunk, held_bytes, sharding_key, timeout_ms), indices[begin:end])

    async def _wait(self, topic: TopicSender, way: Way, sender: QueueSender, count: int, held_bytes: int) -> QueueSender:
        """Wait at the gate, and look again for the queue: the layout may have changed meanwhile, the broker may have gone."""
        layout = topic.layout
        await self._gate.enter(count, held_bytes, (sender.queue, way.key))
        if way is not UNKEYED and topic.layout is layout:
            return sender
        try:
            return way.sender(topic)
        except BaseException:  # re-raised
            self._gate.release(count, held_bytes)
            raise

    async def _wait_up(self, sender: QueueSender) -> None:
        if sender.link is None:
            raise TransportError(f"{sender.queue}: no address of broker {sender.queue.broker_name} is known")
        await sender.link.wait_up(self.config.send_timeout_ms)

    # ---------------------------------------------------------------------------------------------------------------- topics

    async def _open(self, name: str) -> TopicSender:
        """The first send to a topic: its route, or the topic itself."""
        shared = self._shared
        if shared is None or self._closed:
            raise StateError(f"producer {self.group} is {'closed' if self._closed else 'not started: use `async with`, or await start()'}")
        while name not in self._topics:
            opening = self._opening.get(name)
            if opening is not None:
                await asyncio.shield(opening)
                continue
            self._opening[name] = opening = self._loop.create_future()
            try:
                layout = await self._find(shared.instance, name)
                if self._closed:
                    raise StateError(f"producer {self.group} is closed")
                if not layout.write_queues:
                    raise TopicNotExist(f"topic {name} has no writable queue: see `lockstep topic show {name}`")
                self._topics[name] = TopicSender(shared, layout)
            except LockstepError as error:
                opening.set_exception(error)
                opening.exception()
                raise
            finally:
                del self._opening[name]
                if not opening.done():
                    opening.set_result(None)
        return self._topics[name]

    async def _find(self, instance: Instance, name: str) -> TopicLayout:
        """Its layout. A nameserver that has just been started hears of its brokers within a second: it is asked again for a send's time."""
        end_ms = self._clock.monotonic_ms() + self.config.send_timeout_ms
        while True:
            try:
                return await self._find_or_create(instance, name)
            except RouteNotReady:
                if self._clock.monotonic_ms() >= end_ms:
                    raise
                await asyncio.sleep(ROUTE_PAUSE_MS / 1000)

    async def _find_or_create(self, instance: Instance, name: str) -> TopicLayout:
        layout = await instance.route(name)
        if layout is not None:
            return layout
        if not self.config.auto_create_topics:
            raise TopicNotExist(f"topic {name} does not exist: create it with `lockstep topic create {name}`")
        return await create_topic(instance, name, self.config.topic_queue_count, auto=True)

    def _links_changed(self) -> None:
        for topic in list(self._topics.values()):
            topic.links_changed()

    def _layout_changed(self, layout: TopicLayout) -> None:
        topic = self._topics.get(layout.topic)
        if topic is not None:
            if not layout.write_queues:
                del self._topics[layout.topic]
            topic.adopt(layout)


def _withdraw(parcels: Sequence[Parcel]) -> None:
    """Their send was cancelled: take back what is not written."""
    for parcel in parcels:
        if parcel.sender is not None and not parcel.sender.withdraw(parcel) and parcel.future.done() and not parcel.future.cancelled():
            parcel.future.exception()  # its end is known and nobody waits for it
        parcel.future.cancel()


def _check_durable(results: Sequence[SendResult]) -> None:
    for result in results:
        if result.status is not SendStatus.SEND_OK:
            raise NotDurable(f"{result.queue} offset {result.queue_offset}: stored with {result.status.value}, not as durably as required")
