"""Sending. RocketMQ: DefaultMQProducer, DefaultMQProducerImpl."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from lockstep.client.client import ConnectionArguments
from lockstep.client.producer.batch import held_bytes_of
from lockstep.client.producer.config import ProducerConfig, Require, check_terms
from lockstep.client.producer.delayed import delay_of
from lockstep.client.producer.flow_control import InFlightLimit
from lockstep.client.producer.hooks import SendHook, Sending, begun, ended, send_watched
from lockstep.client.producer.result import SendResult
from lockstep.client.producer.routing import UNKEYED, Selector, route_of
from lockstep.client.producer.sends import Sends, check_durable, not_running
from lockstep.client.producer.sequencer import GivenId
from lockstep.client.producer.shell import ProducerShell
from lockstep.client.producer.topics import Topics
from lockstep.client.settings import takes_arguments_of
from lockstep.protocol.errors import StateError
from lockstep.protocol.message import Message
from lockstep.protocol.names import check_group
from lockstep.protocol.queue import MessageQueue


@dataclass(frozen=True, kw_only=True)
class ProducerArguments(ProducerConfig, ConnectionArguments):
    """The arguments of Producer."""

    given_id: GivenId | None = None
    """Give the frames of `send_records` the same sequences in every process that sends them."""


class Producer:
    """Sends messages to topics. Use it as `async with Producer("group", nameserver="host:port") as producer`.

    - Many sends at once share frames by themselves: whatever gathers for a queue while its last frame is in flight goes out together.
    - `await send(…)` is back-pressure: it waits while the in-flight limit (`in_flight_count_max`, `in_flight_bytes_max`) is reached.
    - A frame that was not answered is repeated with its sequence, and a broker stores it once.
    - Not for several threads or event loops: make one producer in each.

    It takes the settings of ProducerConfig, which says what each is. Raises ConfigError for one out of range and for an address that is
    none, LocalProtocolError for a bad group name.
    """

    @takes_arguments_of(ProducerArguments)
    def __init__(self, arguments: ProducerArguments) -> None:
        check_group(arguments.group)
        self.group = arguments.group
        self.config: ProducerConfig = arguments
        self._client = arguments.open_client()
        self._given_id = arguments.given_id
        self._starting = False
        self._closed = False
        self._hooks: tuple[SendHook, ...] = ()
        self._limit = InFlightLimit(self.config.in_flight_count_max, self.config.in_flight_bytes_max)
        self._shell: ProducerShell | None = None
        self._topics: Topics | None = None
        self._sends: Sends | None = None

    # ------------------------------------------------------------------------------------------------------------------ life

    async def start(self) -> None:
        """Reach the cluster. TransportError where no nameserver answers; StateError if it was started or closed before."""
        if self._shell is not None or self._starting or self._closed:
            raise StateError(f"producer {self.group} was {'closed' if self._closed else 'started'} before: make a new one")
        self._starting = True
        instance = self._client.instance()
        try:
            await instance.start()
            if self._closed:
                raise StateError(f"producer {self.group} was closed while it was started")
        except BaseException:  # re-raised
            await instance.close()
            raise
        finally:
            self._starting = False
        self._shell = shell = ProducerShell(instance, self.config, self._limit, self._given_id)
        self._topics = topics = Topics(self.group, shell)
        self._sends = Sends(self.group, self.config, topics, self._limit, shell, instance.host)

    async def close(self) -> None:
        """Take no more sends, wait until those in flight have ended (each has its deadline), and leave.

        Cancelling leaves at once: the sends in flight fail, as unknown if they may be stored.
        """
        if self._closed:
            return
        self._closed = True
        shell, topics = self._shell, self._topics
        if shell is None or topics is None:
            return
        topics.shut()
        try:
            await topics.close()
            await self._limit.idle()
            await asyncio.sleep(0)  # one-way sends of this turn are written at its end
        finally:
            shell.close()
            topics.fail_all()  # nothing is in flight unless this task was cancelled
            await shell.instance.close()

    async def __aenter__(self) -> "Producer":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Producer {self.group} {'closed' if self._closed else 'new' if self._shell is None else 'running'}>"

    def add_hook(self, hook: SendHook) -> SendHook:
        """Tell it of every `send`, `send_batch` and `send_oneway` from now on (hooks.py); not of `send_records`."""
        self._hooks = (*self._hooks, hook)
        return hook

    @property
    def possible_duplicates(self) -> int:
        """Unkeyed messages that went to another broker, and delayed ones that were sent again, while the first one may have been stored."""
        return 0 if self._shell is None else self._shell.possible_duplicates

    @property
    def in_flight_count(self) -> int:
        """Messages that are sent and not acknowledged."""
        return self._limit.count

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of the same, as the in-flight limit counts them."""
        return self._limit.byte_count

    @property
    def _running(self) -> Sends:
        if self._sends is None:
            raise not_running(self.group, closed=self._closed)
        return self._sends

    # ------------------------------------------------------------------------------------------------------------------ send

    async def send(
        self,
        message: Message,
        *,
        selector: Selector | None = None,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
        require: Require = "stored",
        delay_level: int | None = None,
        delay: timedelta | None = None,
    ) -> SendResult:
        """Sends one message and returns when a broker has stored it.

        Without a sharding key, `selector` or `queue` any live broker will do. A keyed, selected or named send goes to its own queue
        and no other.

        A send whose deadline comes while nothing of it was written fails as not stored. So does one of which half the time has passed,
        if the broker's response can't be expected in time (twice the slowest of its last 128). Cancelling withdraws the message if it
        is not written yet; later its outcome is unknown.

        Args:
            message: The message. With a `sharding_key` it goes to the queue of that key.
            selector: Picks the queue: called with the topic's writable queues and the message, and again when the layout changes.
            queue: The queue to send to (`SendResult.queue` of an earlier message).
            timeout_ms: The deadline in milliseconds, counted from this call whatever the send waits for: the topic's route, the
                in-flight limit, the connection, the queue. Default: 3,000, for a send that belongs to one queue 30,000.
            require: "stored": as the broker's flush is set. "durable": the disk has it, also if the flush is async (there it waits for
                a sync, some ms, shared by all who wait). "written": the broker's operating system has it, also if the flush is sync:
                a power cut may take it back, and its offset may then be another message's. RocketMQ: waitStoreMsgOK=false.
            delay_level: 1 to 18: consumers get the message later, by the broker's table (1 s, 5 s, 10 s, 30 s, 1 to 10 min, 20 min,
                30 min, 1 h, 2 h), in no order with others. Such a send is not idempotent: when its response is lost it is sent again
                and may be stored twice. Its result has no queue offset yet (−1).
            delay: The same as a time, which must be one of the broker's levels.

        Returns:
            SendResult: where the message is stored.

        Raises:
            SendTimeoutError: No broker took an unkeyed send before the deadline, or the topic's route was not known by then.
            QueueUnavailableError: The queue of a keyed, selected or named send did not take it before the deadline.
            PrecedingSendError: An earlier send with the same key failed while this one waited behind it.
            NotDurableError: `require="durable"`, and the broker stored the message without confirming that in time.
            TopicNotExistError: The topic was deleted, or does not exist and the broker creates none.
            LocalProtocolError: Two of sharding key, `selector` and `queue` were given, or one of them names no queue of the topic.
            BrokerError: The broker refused the message, and a retry would not help (MessageIllegalError: a delay that is none of its
            levels).
        """
        hooks, sends, result = self._hooks, self._running, None
        sending = Sending(self.group, (message,), "send") if hooks else None
        if sending is not None:
            (message,) = begun(hooks, sending)
        try:
            # No coroutine within: thousands of these are in flight.
            begun_ms = sends.now_ms()
            if timeout_ms is not None or require != "stored":
                check_terms(timeout_ms, require)
            unkeyed = message.sharding_key is None and selector is None and queue is None
            route = UNKEYED if unkeyed else route_of(message, selector, queue)
            end_ms = sends.end_ms(begun_ms, timeout_ms, keyed=not unkeyed)
            if delay_level is not None or delay is not None:
                result = await sends.delayed(message, delay_of(delay_level, delay), route, begun_ms, end_ms, require)
                return result
            topic = sends.open_topics.get(message.topic) or await sends.open(message.topic, end_ms)
            machine = topic.next(begun_ms) if unkeyed else topic.machine_for(route, begun_ms)
            if require == "durable":
                sends.check_durable(topic)
            limit, held_bytes = self._limit, held_bytes_of(message)
            if limit.shut:
                machine = await sends.enter_alone(topic, route, 1, held_bytes, begun_ms, end_ms)
            else:
                limit.add(1, held_bytes)
            pending, future = sends.enqueue(message, topic, route, machine, held_bytes, begun_ms, end_ms, require)
            try:
                result = await future
            except asyncio.CancelledError:
                sends.withdraw(topic, pending, future)
                raise
            if require == "durable":
                check_durable([result])
            return result
        except BaseException as error:  # re-raised
            if sending is not None:
                sending.error = error
            raise
        finally:
            if sending is not None:
                ended(hooks, sending, [] if result is None else [result])

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        selector: Selector | None = None,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
        require: Require = "stored",
    ) -> list[SendResult]:
        """Sends many messages: one frame for each queue, several where they exceed a frame's limits.

        Messages with a sharding key go to the queue of their key. Those without one go together to one queue of their topic, the next in
        turn. Arguments are those of `send`; the deadline is that of keyed sends if any message belongs to one queue.

        Returns:
            A SendResult for each message, in the order of `messages`.

        Raises:
            BatchSendError: Some messages were not acknowledged; it holds the result or the error of each.
            NotDurableError: As `send`; it holds all results.
            LocalProtocolError: As `send`, or `messages` is not a sequence of messages.
        """
        check_terms(timeout_ms, require)
        if not messages:
            return []
        how = (selector, queue, timeout_ms, require)
        if not self._hooks:
            return await self._running.many(messages, *how)
        return await send_watched(self._hooks, Sending(self.group, messages, "batch"), lambda given: self._running.many(given, *how))

    async def send_records(self, queue: MessageQueue, records: bytes, sizes: list[int], *, timeout_ms: int | None = None) -> SendResult:
        """Send records that are encoded already (record.py, the broker's fields zero) as one frame to this queue: where the first one is.

        `sizes`: bytes of each. Frames of one queue leave one after the other, cut as they were given, in the order of the calls (await the
        first one of a topic: calls that wait for its route may overtake one another). With a `given_id` whoever sends the same frames
        again has them stored once; such a producer fails where another would begin anew, and a frame that failed or was cancelled ends
        the queue for it. Errors as `send` with a queue; NonDeterministicRetryError where a repeat has other bytes; LocalProtocolError for
        bytes that are not records of these sizes, or do not fit a frame.
        """
        return await self._running.records(queue, records, sizes, timeout_ms)

    async def send_oneway(
        self,
        message: Message,
        *,
        selector: Selector | None = None,
        queue: MessageQueue | None = None,
    ) -> None:
        """Writes one message without waiting for a response: no retry, no sequence. It may be lost, and may overtake sends in flight.

        It waits only for a connection, and while the connection has too much unsent. Arguments are those of `send`.

        Raises:
            TransportError: No connection within 3 s.
            LocalProtocolError: As `send`.
        """
        if not self._hooks:
            await self._running.oneway(message, selector, queue)
            return

        async def write(given: Sequence[Message]) -> list[SendResult]:
            await self._running.oneway(given[0], selector, queue)
            return []

        await send_watched(self._hooks, Sending(self.group, (message,), "oneway"), write)
