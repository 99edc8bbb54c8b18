"""Sending. RocketMQ: DefaultMQProducer, DefaultMQProducerImpl."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Unpack

from lockstep.client.config import nameserver_addresses, takes_settings_of
from lockstep.client.errors import NotDurable, PrecedingSendFailed
from lockstep.client.features import SENDING, check_brokers
from lockstep.client.instance import Instance, ProducerHooks
from lockstep.client.producer.batch import Batch, Division, Placed, Share, held_bytes_of
from lockstep.client.producer.config import ProducerConfig, ProducerOptions, Require, check_terms
from lockstep.client.producer.delayed import DelayedSend, delay_level_of
from lockstep.client.producer.departures import Departures
from lockstep.client.producer.gate import Gate
from lockstep.client.producer.parcel import QUEUE_WIDE, Parcel
from lockstep.client.producer.queue_sender import QueueSender
from lockstep.client.producer.result import SendResult, SendStatus
from lockstep.client.producer.selector import Selector
from lockstep.client.producer.sequencer import GivenId
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


class Producer:
    """Sends messages to topics. Use it as `async with Producer("group", nameserver="host:port") as producer`.

    - Many sends at once share frames by themselves: whatever gathers for a queue while its last frame is in flight goes out together.
    - `await send(…)` is back-pressure: it waits while the in-flight limit (`in_flight_count_max`, `in_flight_bytes_max`) is reached.
    - A frame that was not answered is repeated with its sequence, and a broker stores it once.
    - Not for several threads or event loops: make one producer in each.

    It takes the settings of ProducerConfig, which says what each is. Raises ConfigError for one out of range and for an address that is
    none, LocalProtocolError for a bad group name.
    """

    @takes_settings_of(ProducerConfig)
    def __init__(
        self,
        group: str,
        *,
        nameserver: str | list[str] | tuple[str, ...] = DEFAULT_NAMESERVER,
        host: Host | None = None,
        given_id: GivenId | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        check_group(group)
        nameserver_addresses(nameserver)
        self.group = group
        self.config = ProducerConfig(**options)
        self._compress_over = self.config.compress_over_bytes
        self._nameserver = nameserver
        self._host = host
        self._given_id = given_id
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
        self._shared = Shared(instance, self.config, self._gate, Departures(), self._given_id)
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

    def __repr__(self) -> str:
        return f"<Producer {self.group} {'closed' if self._closed else 'new' if self._shared is None else 'running'}>"

    @property
    def possible_duplicates(self) -> int:
        """Unkeyed messages that went to another broker, and delayed ones that were sent again, while the first one may have been stored."""
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
        delay_level: int | None = None,
        delay: timedelta | None = None,
    ) -> SendResult:
        """Send one message; returns when a broker has stored it.

        At most one of `sharding_key` (same key, same queue), `selector` (with `arg`; picks one of the layout's queues) and `queue` (this
        one). Such a send tries its own queue until the deadline (30 s) and raises QueueUnavailable; without them any live broker will do
        within 3 s, else SendTimeout. Also raises PrecedingSendFailed, TopicNotExist, LocalProtocolError, and the BrokerError of a refusal
        that no retry mends. `require="durable"`: NotDurable where the broker stored it and could not confirm it in time.

        `delay_level` 1 … 18, or a `delay` that is one of them (1 s, 5 s, 10 s, 30 s, 1 … 10 min, 20 min, 30 min, 1 h, 2 h): consumers get
        it so much later, in no order with others. Such a send is not idempotent: repeated after a lost answer it may be stored twice. Its
        result has no queue offset yet (−1).

        Cancelling withdraws the message if it is not written yet; later its outcome is unknown.
        """
        if timeout_ms is not None or require != "stored":
            check_terms(timeout_ms, require)
        if delay_level is not None or delay is not None:
            way = way_of(message, sharding_key, selector, arg, queue)
            return await self._send_delayed(message, delay_level_of(delay_level, delay), way, sharding_key, timeout_ms, require)
        topic = self._topics.get(message.topic)
        if topic is None:
            topic = await self._open(message.topic)
        if sharding_key is None and selector is None and queue is None and arg is None:
            way, sender = UNKEYED, topic.next()
        else:
            way = way_of(message, sharding_key, selector, arg, queue)
            sender = way.sender(topic)
        held_bytes = held_bytes_of(message)
        gate = self._gate
        if gate.shut:
            sender = await self._wait(topic, way, sender, held_bytes)
        else:
            gate.add(1, held_bytes)
        born_ms = self._clock.wall_ms()
        message_id = self._ids.next(born_ms)
        try:
            record = encode_message(message, sender.queue.queue_id, message_id, born_ms, sharding_key, None, self._compress_over)
        except LocalProtocolError:
            gate.release(1, held_bytes)
            raise
        future = self._loop.create_future()
        parcel = self._parcel(topic, way, record, None, message_id, held_bytes, future, timeout_ms)
        sender.add(parcel)
        try:
            result: SendResult = await future
        except asyncio.CancelledError:
            _withdraw(parcel, future)
            raise
        if require == "durable":
            _check_durable([result])
        return result

    async def _send_delayed(
        self, message: Message, level: int, way: Way, sharding_key: str | None, timeout_ms: int | None, require: Require
    ) -> SendResult:
        topic = self._topics.get(message.topic) or await self._open(message.topic)
        shared, held_bytes = self._shared, held_bytes_of(message)
        assert shared is not None
        await self._gate.enter(1, held_bytes, [])
        try:
            sending = DelayedSend(shared, self.group, topic, way, message, self._ids.next(self._clock.wall_ms()), level)
            whole_ms = self.config.send_timeout_ms if way is UNKEYED else self.config.keyed_send_timeout_ms
            result = await sending.run(sharding_key, timeout_ms or whole_ms)
        finally:
            self._gate.release(1, held_bytes)
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
        check_terms(timeout_ms, require)
        if not messages:
            return []
        division = Division(messages, sharding_key, sharding_keys, selector, arg, queue)
        topics = {name: self._topics.get(name) or await self._open(name) for name in division.topics}
        batch = Batch(len(messages), self._loop.create_future())
        try:
            for begin, end in division.chunks(self.config):
                try:
                    await self._send_chunk(batch, division, topics, messages, begin, end, timeout_ms)
                except PrecedingSendFailed as error:
                    batch.failed(range(begin, len(messages)), error)
                    break
            results = await batch.results()
        except BaseException:  # re-raised
            batch.withdraw()
            raise
        if require == "durable":
            _check_durable(results)
        return results

    async def send_records(self, queue: MessageQueue, records: bytes, sizes: list[int], *, timeout_ms: int | None = None) -> SendResult:
        """Send records that are encoded already (record.py, the broker's fields zero) as one frame to this queue: where the first one is.

        `sizes`: bytes of each. Frames of one queue leave one after the other, cut as they were given, in the order of the calls (await the
        first one of a topic: calls that wait for its route may overtake one another). With a `given_id` whoever sends the same frames
        again has them stored once; such a producer fails where another would begin anew, and a frame that failed or was cancelled ends
        the queue for it. Errors as `send` with a queue; NonDeterministicRetry where a repeat has other bytes.
        """
        topic = self._topics.get(queue.topic) or await self._open(queue.topic)
        way = Way((QUEUE_WIDE,), None, queue)
        held_bytes, gate = len(records), self._gate
        if gate.shut:
            await gate.enter(len(sizes), held_bytes, [(queue, way.keys)])
        else:
            gate.add(len(sizes), held_bytes)
        try:
            sender = way.sender(topic)
        except BaseException:  # re-raised
            gate.release(len(sizes), held_bytes)
            raise
        future = self._loop.create_future()
        parcel = self._parcel(topic, way, records, sizes, "", held_bytes, future, timeout_ms)
        parcel.alone = True
        sender.add(parcel)
        try:
            result: SendResult = await future
        except asyncio.CancelledError:
            sender.end_given()
            _withdraw(parcel, future)
            raise
        return result

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
        message_id = self._ids.next(born_ms)
        record = encode_message(message, sender.queue.queue_id, message_id, born_ms, sharding_key, None, self._compress_over)
        sender.add_oneway(record, None if way.pick is None else topic.layout.version)

    # ----------------------------------------------------------------------------------------------------------------- parts

    async def _send_chunk(
        self,
        batch: Batch,
        division: Division,
        topics: Mapping[str, TopicSender],
        messages: Sequence[Message],
        begin: int,
        end: int,
        timeout_ms: int | None,
    ) -> None:
        """messages[begin:end], one parcel for each queue; none of them is posted where one can't be."""
        gate, count = self._gate, end - begin
        held_bytes = sum([held_bytes_of(message) for message in messages[begin:end]])
        shares = division.shares(begin, end, topics)
        if gate.shut:
            await gate.enter(count, held_bytes, [(sender.queue, way.keys) for _, sender, way, _ in shares])
            waited = True
        else:
            gate.add(count, held_bytes)
            waited = False
        try:
            if waited:  # the layout may have changed meanwhile, a broker may have gone
                shares = division.shares(begin, end, topics)
            parcels = [self._pack(batch, share, messages, timeout_ms) for share in shares]
        except BaseException:  # re-raised
            gate.release(count, held_bytes)
            raise
        batch.parcels += parcels
        for (_, sender, _, _), parcel in zip(shares, parcels, strict=True):
            sender.add(parcel)

    def _pack(self, batch: Batch, share: Placed, messages: Sequence[Message], timeout_ms: int | None) -> Parcel:
        """Messages that are acknowledged together."""
        topic, sender, way, places = share
        born_ms, queue_id = self._clock.wall_ms(), sender.queue.queue_id
        own = [messages[place] for place in places]
        ids = self._ids.many(born_ms, len(own))
        keys, over = way.sharding_keys(len(own)), self._compress_over
        records = [
            encode_message(message, queue_id, id_, born_ms, key, None, over) for message, id_, key in zip(own, ids, keys, strict=True)
        ]
        held_bytes = sum([held_bytes_of(message) for message in own])
        sizes = list(map(len, records))
        return self._parcel(topic, way, b"".join(records), sizes, ids, held_bytes, Share(batch, places), timeout_ms)

    def _parcel(
        self,
        topic: TopicSender,
        way: Way,
        data: bytes,
        sizes: list[int] | None,
        ids: str | list[str],
        held_bytes: int,
        future: "asyncio.Future[Any] | Share",
        timeout_ms: int | None,
    ) -> Parcel:
        now_ms = self._clock.monotonic_ms()
        if way is UNKEYED:
            whole_ms = timeout_ms or self.config.send_timeout_ms
            return Parcel(data, sizes, ids, held_bytes, future, now_ms + whole_ms, now_ms + whole_ms // 2)
        end_ms = now_ms + (timeout_ms or self.config.keyed_send_timeout_ms)
        version = None if way.pick is None else topic.layout.version
        return Parcel(data, sizes, ids, held_bytes, future, end_ms, end_ms, way.keys, version, way.pick)

    async def _wait(self, topic: TopicSender, way: Way, sender: QueueSender, held_bytes: int) -> QueueSender:
        """Wait at the gate, and look again for the queue: the layout may have changed meanwhile, the broker may have gone."""
        layout = topic.layout
        await self._gate.enter(1, held_bytes, [(sender.queue, way.keys)])
        if way is not UNKEYED and topic.layout is layout:
            return sender
        try:
            return way.sender(topic)
        except BaseException:  # re-raised
            self._gate.release(1, held_bytes)
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
                check_brokers(shared.instance, layout, SENDING)
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
        for name, topic in list(self._topics.items()):
            if not topic.links_changed():
                del self._topics[name]

    def _layout_changed(self, layout: TopicLayout) -> None:
        topic = self._topics.get(layout.topic)
        if topic is not None:
            if not layout.write_queues:
                del self._topics[layout.topic]
            topic.adopt(layout)


def _withdraw(parcel: Parcel, future: "asyncio.Future[Any]") -> None:
    """Its send was cancelled: take it back unless it is written."""
    if parcel.sender is not None and not parcel.sender.withdraw(parcel) and future.done() and not future.cancelled():
        future.exception()  # its end is known and nobody waits for it
    future.cancel()


def _check_durable(results: Sequence[SendResult]) -> None:
    for result in results:
        if result.status is not SendStatus.SEND_OK:
            raise NotDurable(f"{result.queue} offset {result.queue_offset}: stored with {result.status.value}, not as durably as required")
