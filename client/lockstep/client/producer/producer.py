"""The producer. RocketMQ: DefaultMQProducer, DefaultMQProducerImpl."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from lockstep.client.client import ConnectionArguments
from lockstep.client.instance import Instance, OnCheck
from lockstep.client.life import Life
from lockstep.client.producer.config import DURABLE, ProducerConfig, Require, check_terms
from lockstep.client.producer.health import ProducerHealth, ProducerState
from lockstep.client.producer.hooks import SendHook, Sending, call_after_post, call_after_send, call_before_send, send_watched
from lockstep.client.producer.machines.routing import Selector
from lockstep.client.producer.machines.sequencer import GivenId
from lockstep.client.producer.pacing.flow_control import InFlightLimit
from lockstep.client.producer.pacing.waiting_room import WaitingRoom
from lockstep.client.producer.reply import Reply
from lockstep.client.producer.requests import ProducerRequests
from lockstep.client.producer.result import SendResult
from lockstep.client.producer.sends import Sends, check_durable, not_running
from lockstep.client.producer.shell import ProducerShell
from lockstep.client.producer.topics import Topics
from lockstep.client.producer.waiting import timer_of
from lockstep.client.settings import takes_arguments_of
from lockstep.protocol.errors import StateError
from lockstep.protocol.messages.message import Message
from lockstep.protocol.names import TIMER_TOPIC, check_group
from lockstep.protocol.topics.queue import MessageQueue, TopicLayout
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.event_loop import running_loop

RECALL_TIMEOUT_MS = 3_000
POSTS_PER_TURN = 512
"""A task that posts returns to the loop after so many messages: frames are written meanwhile, and other tasks run."""


@dataclass(frozen=True, kw_only=True)
class ProducerArguments(ProducerConfig, ConnectionArguments):
    """The arguments of Producer."""

    given_id: GivenId | None = None
    """The producer id, partition and epoch of its frames, so that another process can repeat them and the broker stores them once."""


class Producer(Life):
    """Sends messages to topics: `async with Producer("group", nameserver="host:port") as producer: await producer.send(message)`.

    - Messages that gather for a queue while its last frame is in flight leave together in the next frame: concurrent sends need no
      batching.
    - `await send(…)` applies back-pressure: it waits while the in-flight limit (`in_flight_count_max`, `in_flight_bytes_max`) is reached.
    - A frame without a response is written again with the same sequence, and the broker stores it once.
    - A producer runs on the event loop on which it was started, one at a time: a call from another loop raises StateError. It can be made
      before there is a loop, as a global of a module, and started again after a `close` or after its loop was closed, on the same loop or
      another one.

    Args:
        group: The name of the producer group.
        nameserver: "HOST:PORT", several separated by ";", a list of them, or "lockstep://HOST:PORT/?tls_ca=FILE". Default: 127.0.0.1:9876.
        tls: Connect by TLS: True, or Tls(ca=FILE), which says what the client trusts and shows. Default: plain connections.
        user: The user to log in as. Default: that of the URL, or LOCKSTEP_USER, or none.
        password: The password, the Path of a file that has it, or a function that returns it; the latter two are asked at each login.
            Default: the URL's password or password_file, LOCKSTEP_PASSWORD, or the file that LOCKSTEP_PASSWORD_FILE names.
        login_optional: Go on with servers that ask for no login.
        client: The connections to use, instead of `nameserver`. Default: the producer has its own.
        host: The clock, randomness and files to use; for tests. Default: those of this machine.
        given_id: The identity of its frames, for `send_records`. Default: a new one for each topic.

    The other arguments are the settings of ProducerConfig.

    Raises:
        ConfigError: A setting has the wrong type or is out of range, an address is invalid, or both `client` and `nameserver` are given.
        LocalProtocolError: The group name is invalid.
    """

    @takes_arguments_of(ProducerArguments)
    def __init__(self, arguments: ProducerArguments) -> None:
        check_group(arguments.group)
        super().__init__()
        self.group = arguments.group
        self.config: ProducerConfig = arguments
        self._client = arguments.open_client()
        self._given_id = arguments.given_id
        self._state = ProducerState.NEW
        self._post_count = 0
        self._hooks: tuple[SendHook, ...] = ()
        self._limit = self._make_limit()
        self._instance: Instance | None = None
        self._shell: ProducerShell | None = None
        self._topics: Topics | None = None
        self._sends: Sends | None = None
        """Exists while the producer accepts sends, and while it is being closed."""
        self._requests: ProducerRequests | None = None
        """Those of the last start."""
        self._tasks = Tasks()

    _on_check: OnCheck | None = None
    """Takes a broker's question how a transaction has ended; None: this producer is not asked."""

    def _runs_transaction(self, transaction_id: str) -> bool:
        return False

    # ------------------------------------------------------------------------------------------------------------------ life

    async def start(self) -> None:
        """Connect to the cluster. A closed producer can be started again, unless it has a given id.

        With `start_in_background` it returns at once, and a send waits for the connection until its deadline.

        Raises:
            TransportError: No nameserver responds, for `start_timeout_ms`.
            StateError: The producer is started already, also on another event loop; or it has a given id and was started before: its
                sequence would begin again.
        """
        self._enter_loop()
        before = self._state
        if before not in (ProducerState.NEW, ProducerState.CLOSED):
            raise StateError(f"producer {self.group} is {before.value} already: it can be started again when it is closed")
        if self._given_id is not None and self._shell is not None:
            raise StateError(f"producer {self.group} was started before, and its given id is for one start: make a new one")
        self._state = ProducerState.STARTING
        self._own_loop()
        instance = self._instance = self._client.instance()
        if self.config.start_in_background:
            instance.begin()
            self._open(instance)
            self._tasks.spawn(self._connect(None), f"producer {self.group} start")
            return
        try:
            await self._connect(self.config.start_timeout_ms)
        except BaseException:  # re-raised
            self._ended(instance, ProducerState.CLOSED if self._state is ProducerState.CLOSING else before)
            await instance.close()
            raise
        self._open(instance)

    async def _connect(self, limit_ms: int | None) -> None:
        """Connect, and be running. Raise StateError if the producer is closed meanwhile."""
        instance = self._instance
        assert instance is not None

        async def attempt() -> None:
            self._check_open()
            await instance.start()
            self._check_open()

        await self._start_patiently(attempt, limit_ms)
        self._state = ProducerState.RUNNING

    def _check_open(self) -> None:
        if self._state not in (ProducerState.STARTING, ProducerState.RUNNING):
            raise StateError(f"producer {self.group} was closed while it was started")

    def _open(self, instance: Instance) -> None:
        """Accept sends."""
        self._limit = self._make_limit()
        self._shell = shell = ProducerShell(instance, self.config, self._limit, self._given_id)
        self._requests = requests = ProducerRequests(self.group, self.config, shell)
        self._topics = topics = Topics(
            self.group,
            shell,
            knows_request=requests.knows,
            on_reply=requests.take,
            on_check=self._on_check,
            runs_transaction=self._runs_transaction,
        )
        self._sends = Sends(self.group, self.config, topics, self._limit, shell, instance.host)

    def _ended(self, instance: Instance, state: ProducerState) -> None:
        """Become new or closed, unless the producer has been started again since: a coroutine of a closed loop may end at any time."""
        if self._instance is instance:
            self._state, self._loop, self._sends = state, None, None

    def _drop(self) -> None:
        instance = self._instance
        assert instance is not None
        instance.abandon()
        self._ended(instance, ProducerState.CLOSED)
        self._limit = self._make_limit()
        self._requests = None
        self._tasks = Tasks()

    async def close(self) -> None:
        """Refuse further sends, wait until those in flight, and requests, have ended (each has its deadline), and disconnect.

        If this call is cancelled, the producer disconnects at once: the sends in flight fail, with an unknown outcome if they may be
        stored, and so do requests. If the event loop of the producer was closed, its connections are closed, and nothing is waited for.

        Raises:
            StateError: The producer runs on another event loop.
        """
        self._enter_loop()
        if self._sends is None or self._state is ProducerState.CLOSING:
            self._state = ProducerState.CLOSING if self._state in (ProducerState.STARTING, ProducerState.CLOSING) else ProducerState.CLOSED
            return
        self._state = ProducerState.CLOSING
        shell, topics, requests = self._shell, self._topics, self._requests
        assert shell is not None
        assert topics is not None
        assert requests is not None
        topics.stop_opening()
        try:
            await self._tasks.cancel_all()
            await topics.close()
            await self._limit.idle()
            await requests.idle()
            await asyncio.sleep(0)  # one-way sends of this turn are written at its end
        finally:
            shell.close()
            topics.fail_all()  # nothing is in flight unless this task was cancelled
            requests.close()
            try:
                await shell.instance.close()
            finally:
                self._ended(shell.instance, ProducerState.CLOSED)

    async def __aenter__(self) -> "Producer":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Producer {self.group} {self._state.value}>"

    def add_hook(self, hook: SendHook) -> SendHook:
        """Call the hook before and after every send from now on, except `send_records`. Return the hook."""
        self._hooks = (*self._hooks, hook)
        return hook

    @property
    def possible_duplicates(self) -> int:
        """Return the number of messages that may be stored twice: unkeyed ones that failed over."""
        return 0 if self._shell is None else self._shell.possible_duplicates

    @property
    def in_flight_count(self) -> int:
        """Return the number of messages that are sent and not acknowledged."""
        return self._limit.count

    @property
    def in_flight_bytes(self) -> int:
        """Return the number of bytes that are sent and not acknowledged, as the in-flight limit counts them."""
        return self._limit.byte_count

    def _make_limit(self) -> InFlightLimit:
        config = self.config
        waiting = WaitingRoom(config.waiting_count_max, config.waiting_bytes_max)
        return InFlightLimit(config.in_flight_count_max, config.in_flight_bytes_max, waiting)

    def health(self) -> ProducerHealth:
        """Return a snapshot of the producer's state, in any state of the producer and in any thread. It is cheap enough to be taken every
        second."""
        links = [] if self._sends is None or self._instance is None else self._instance.links()
        down = tuple(link.name for link in links if not link.up)
        in_flight = self.in_flight_count, self.in_flight_bytes
        requests = (0, 0) if self._requests is None else (self._requests.count, self._requests.dropped_reply_count)
        return ProducerHealth(self.group, self._state, self._awaited, down, *in_flight, *requests)

    @property
    def _started(self) -> Sends:
        self._check_loop()
        if self._sends is None:
            raise not_running(self.group, closed=self._state is ProducerState.CLOSED)
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
        deliver_at: datetime | None = None,
    ) -> SendResult:
        """Send one message and wait until a broker has stored it.

        A message without a sharding key, `selector` or `queue` goes to any connected broker. A keyed, selected or named send goes to its
        own queue and no other.

        A send fails as not stored if nothing of it was written before its deadline, or if half of its time has passed and no response can
        be expected before the deadline (which takes twice the slowest of the broker's last 128 responses). Cancelling withdraws the message
        if it is not written yet; later its outcome is unknown.

        Args:
            message: The message. With a `sharding_key` it goes to the queue of that key.
            selector: Picks the queue. It is called with the topic's writable queues and the message, and again when the layout changes.
            queue: The queue to send to (`SendResult.queue` of an earlier message).
            timeout_ms: The deadline in milliseconds, counted from this call. It includes every wait: for the topic's route, the in-flight
                limit, the connection and the queue. Default: 3,000; 30,000 for a send that belongs to one queue.
            require: "stored": the guarantee of the broker's flush setting. "durable": the message is on disk, even if the flush is async
                (the send then waits some ms for a sync, which all such sends share). "written": the broker's operating system has the
                message, even if the flush is sync: a power failure may lose it, and its offset may then be given to another message.
                RocketMQ: waitStoreMsgOK=false.
            delay_level: 1 to 18: the same as a `delay` of the time that this level has in the broker's table (1 s, 5 s, 10 s, 30 s, 1 to
                10 min, 20 min, 30 min, 1 h, 2 h). A level above a shorter table is its last one.
            delay: Consumers receive the message after this time, a millisecond to 40 days (the broker's `timer_days_max`), counted from
                when it is stored, in no order relative to other messages. Its result has a `recall_handle`, and no queue offset yet (−1).
            deliver_at: The same, from this moment on; a datetime with a time zone.

        Returns:
            SendResult: The queue and offset at which the message is stored.

        Raises:
            SendTimeoutError: No broker stored an unkeyed send before the deadline, or the topic's route was not known by then.
            QueueUnavailableError: The queue of a keyed, selected or named send did not store it before the deadline.
            PrecedingSendError: An earlier send with the same key failed while this one waited for it.
            TooManySendsError: So many sends wait that this one could not be sent before its deadline. It is raised at once.
            NotDurableError: With `require="durable"`: the broker stored the message but did not confirm in time that it is on disk.
            TopicNotExistError: The topic was deleted, or does not exist and the broker does not create it.
            LocalProtocolError: More than one of sharding key, `selector` and `queue` is given, or one of them names a queue that the topic
                does not have.
            BrokerError: The broker refused the message, and a retry would not help (MessageIllegalError: the delay is too long).
            StateError: The producer is not started, or is closed.
        """
        hooks, sends, result = self._hooks, self._sends, None
        if sends is None or self._loop is not running_loop():
            sends = self._started
        sending = Sending(self.group, (message,), "send", delay_level, delay, deliver_at) if hooks else None
        if sending is not None:
            (message,) = call_before_send(hooks, sending)
        try:
            # No coroutine is created here: thousands of sends are in flight at a time.
            durable = None
            if timeout_ms is not None or require != "stored":
                check_terms(timeout_ms, require)
                durable = DURABLE[require]
            pending, future = sends.pending_send(message, selector, queue, timeout_ms, durable)
            if delay_level is None and delay is None and deliver_at is None:
                topic = sends.enqueue(pending) or await sends.enqueue_later(pending)
            else:
                pending.waits = timer_of(delay_level, delay, deliver_at)
                topic = await sends.enqueue_waiting(pending, TIMER_TOPIC)
            try:
                result = await future
            except asyncio.CancelledError:
                sends.withdraw(topic, pending, future)
                raise
            finally:
                del pending, future  # a future that fails holds the error, whose traceback holds this frame
            if durable:
                check_durable([result])
            return result
        except BaseException as error:  # re-raised
            if sending is not None:
                sending.error = error
            raise
        finally:
            if sending is not None:
                call_after_send(hooks, sending, [] if result is None else [result])
                del sending  # it holds the error

    async def post(
        self,
        message: Message,
        *,
        selector: Selector | None = None,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
    ) -> "asyncio.Future[SendResult]":
        """Add one message to its queue and return the future of its result, without waiting for the broker.

        It sends as `send` does, but needs no task for each message, so that one task sends at the full rate. Awaiting it applies
        back-pressure: it waits for the topic's route, and while the in-flight limit is reached. Messages with the same key are stored in
        the order of the calls.

        A future that failed and is never awaited is reported by the event loop, or to the hooks if there are any. Cancelling the future
        drops the message if it is not written yet.

        Args:
            message: The message.
            selector, queue, timeout_ms, delay, deliver_at: As in `send`.

        Returns:
            A future of the SendResult. It fails with the errors that `send` raises.

        Raises:
            SendTimeoutError, QueueUnavailableError, PrecedingSendError: The wait took until the deadline, or was in vain.
            TooManySendsError: As in `send`.
            TopicNotExistError, LocalProtocolError, StateError: As in `send`.
        """
        hooks, sends = self._hooks, self._sends
        if sends is None or self._loop is not running_loop():
            sends = self._started
        sending = Sending(self.group, (message,), "post", None, delay, deliver_at) if hooks else None
        if sending is not None:
            (message,) = call_before_send(hooks, sending)
        try:
            self._post_count += 1
            if not self._post_count % POSTS_PER_TURN:
                await asyncio.sleep(0)
            if timeout_ms is not None:
                check_terms(timeout_ms, "stored")
            pending, future = sends.pending_send(message, selector, queue, timeout_ms, None)
            if delay is not None or deliver_at is not None:
                pending.waits = timer_of(None, delay, deliver_at)
                await sends.enqueue_waiting(pending, TIMER_TOPIC)
            elif sends.enqueue(pending) is None:
                await sends.enqueue_later(pending)
        except BaseException as error:  # re-raised
            if sending is not None:
                sending.error = error
                call_after_send(hooks, sending, [])
                del sending
            raise
        if sending is not None:
            future.add_done_callback(partial(call_after_post, hooks, sending))
        return future

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        selector: Selector | None = None,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
        require: Require = "stored",
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
    ) -> list[SendResult]:
        """Send many messages: one frame for each queue, or several if they exceed a frame's limits.

        Messages with a sharding key go to the queue of their key. Those without one go together to one queue of their topic, by round
        robin. The deadline is that of keyed sends if any message belongs to one queue.

        Args:
            messages: The messages, of any topics. With none, nothing is sent.
            selector, queue, timeout_ms, require, delay, deliver_at: As in `send`, for all messages.

        Returns:
            A SendResult for each message, in the order of `messages`.

        Raises:
            BatchSendError: Some messages were not acknowledged. It holds the result or the error of each message.
            NotDurableError: As in `send`. It holds all results.
            LocalProtocolError: As in `send`, or `messages` is not a sequence of messages.
        """
        check_terms(timeout_ms, require)
        if not messages:
            return []

        async def send(given: Sequence[Message]) -> list[SendResult]:
            timer = b"" if delay is None and deliver_at is None else timer_of(None, delay, deliver_at)
            return await self._started.send_batch(given, selector, queue, timeout_ms, require, timer)

        if not self._hooks:
            return await send(messages)
        return await send_watched(self._hooks, Sending(self.group, messages, "batch", None, delay, deliver_at), send)

    async def recall(self, handle: str, *, timeout_ms: int = RECALL_TIMEOUT_MS) -> str:
        """Take back a message that waits. When this returns, the message will never be delivered. Recalling it once more does no harm.

        Args:
            handle: `SendResult.recall_handle` of the message, or that of one of RocketMQ's clients.
            timeout_ms: How long to wait for the broker, in milliseconds.

        Returns:
            The id of the message.

        Raises:
            TooLateToRecallError: The message was delivered, or its topic was deleted.
            QueryNotFoundError: The broker has no such message.
            TransportError: The broker at which the message waits was not reached in time. The message may have been recalled: try again.
            LocalProtocolError: It is no recall handle.
            StateError: The producer is not started, or is closed.
        """
        check_terms(timeout_ms, "stored")
        return await self._started.recall(handle, timeout_ms)

    async def request(
        self,
        message: Message,
        *,
        selector: Selector | None = None,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> Reply:
        """Send one message and wait until a consumer has replied to it (`reply` of PushConsumer and PullConsumer, or one of RocketMQ's).

        The message is stored and consumed as any other. The reply is stored nowhere: the broker passes it on to this client, also if that
        has connected again meanwhile. The first reply counts, and later ones are dropped. A broker that stores the message twice, or a
        consumer that gets it again, may cause a second reply.

        Cancelling ends the wait, and withdraws the message if it is not written yet.

        Args:
            message: The message. With a `sharding_key` it goes to the queue of that key.
            selector, queue: As in `send`.
            timeout_ms: The deadline of the reply in milliseconds, counted from this call; that of the send too. Default: 3,000
                (`send_timeout_ms`).

        Returns:
            Reply: The body and the properties of the reply.

        Raises:
            ReplyTimeoutError: The message is stored, and no reply came before the deadline.
            TooManyRequestsError: As many requests as `request_count_max` wait for their replies. It is raised at once.
            SendTimeoutError, QueueUnavailableError, PrecedingSendError, TooManySendsError, TopicNotExistError, BrokerError: As in `send`.
            LocalProtocolError: As in `send`; or the message has too many properties, to which those of a request are added.
            RemoteProtocolError: The reply is compressed, and can't be decompressed.
            StateError: The producer is not started, or is closed.
        """
        hooks, sends, requests = self._hooks, self._started, self._requests
        assert requests is not None
        sending = Sending(self.group, (message,), "request") if hooks else None
        if sending is not None:
            (message,) = call_before_send(hooks, sending)
        try:
            check_terms(timeout_ms, "stored")
            waiting = await requests.send(sends, message, selector, queue, timeout_ms)
        except BaseException as error:  # re-raised
            if sending is not None:
                sending.error = error
                call_after_send(hooks, sending, [])
                del sending
            raise
        if sending is not None and waiting.sent is not None:
            waiting.sent.add_done_callback(partial(call_after_post, hooks, sending))
        del sending  # it may hold the error, whose traceback holds this frame
        try:
            return await requests.wait(sends, waiting)
        finally:
            del waiting  # so does a future that fails

    async def layout(self, topic: str, *, timeout_ms: int | None = None) -> TopicLayout:
        """Return the present layout of a topic: `write_queues` are those that take messages. RocketMQ: fetchPublishMessageQueues.

        Args:
            topic: The topic, which is created if the brokers allow that.
            timeout_ms: The deadline in milliseconds. Default: 3,000 (`send_timeout_ms`).

        Raises:
            SendTimeoutError: No nameserver returned the route before the deadline.
            TopicNotExistError: As in `send`.
            StateError: The producer is not started, or is closed.
        """
        check_terms(timeout_ms, "stored")
        return await self._started.layout(topic, timeout_ms)

    async def send_records(
        self, queue: MessageQueue, records: bytes, sizes: list[int], *, timeout_ms: int | None = None, epoch: int | None = None
    ) -> SendResult:
        """Send encoded records (record.py, with the broker's fields zero) as one frame to this queue.

        Frames of one queue are sent one after the other, as they were given, in the order of the calls. Await the first call for a topic:
        calls that wait for its route may overtake each other. With a `given_id`, a process that sends the same frames again has them stored
        once. Such a producer fails in cases in which another would begin a new epoch, and after a frame that failed or was cancelled it
        sends nothing more to the queue, unless the next frame has an `epoch`.

        Args:
            queue: The queue to send to.
            records: The encoded records, one after the other.
            sizes: The size of each record in bytes.
            timeout_ms: The deadline in milliseconds. Default: 30,000.
            epoch: The unit of work that begins with this frame, instead of the epoch of the `given_id`: from 0 on, below 2**63. The queue
                may be one that takes no messages any more: its broker is asked whether it has stored the frame before that.

        Returns:
            SendResult: The queue and offset at which the first record is stored. The offset is −1 if the broker has stored the frame, but
                has forgotten where.

        Raises:
            ConfigError: The epoch is out of range.
            StateError: `epoch` is given without a `given_id`, or while a frame of the queue has not ended.
            StaleEpochError: The broker has stored a frame of a later epoch in this queue.
            NonDeterministicRetryError: The broker has stored other bytes for this frame.
            LocalProtocolError: `records` is not a series of records of these sizes, or does not fit a frame.
            SendError: As in `send` with a queue.
        """
        if epoch is not None:
            if self._given_id is None:
                raise StateError(f"producer {self.group} has no given_id, and epoch={epoch} is given: epochs belong to a given id")
            replace(self._given_id, epoch=epoch)  # checks it
        return await self._started.send_records(queue, records, sizes, timeout_ms, epoch)

    async def send_oneway(
        self,
        message: Message,
        *,
        selector: Selector | None = None,
        queue: MessageQueue | None = None,
    ) -> None:
        """Write one message without waiting for a response: no retry, no sequence. It may be lost, and it may overtake sends in flight.

        This waits for a connection, and while the connection has too many unsent bytes.

        Args:
            message: The message.
            selector, queue: As in `send`.

        Raises:
            TransportError: The broker was not connected within 3 s.
            LocalProtocolError: As in `send`.
        """
        if not self._hooks:
            await self._started.send_oneway(message, selector, queue)
            return

        async def write(given: Sequence[Message]) -> list[SendResult]:
            await self._started.send_oneway(given[0], selector, queue)
            return []

        await send_watched(self._hooks, Sending(self.group, (message,), "oneway"), write)
