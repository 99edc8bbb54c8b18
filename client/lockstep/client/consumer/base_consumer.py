"""The common part of push and pull consumers: they join and leave a group, and report failures. RocketMQ: MQConsumerInner.

NEW --start()--> STARTING --joined--> RUNNING --stop()--> STOPPING --drained--> STOPPED
                 STARTING --refused--> NEW                RUNNING --refused, failed--> STOPPING --drained--> FAILED
STOPPED, FAILED --start()--> STARTING
"""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from lockstep.client.broker_link import BrokerLink
from lockstep.client.client import Client
from lockstep.client.consumer.calls.consume_model import ConsumeModel
from lockstep.client.consumer.config import ConsumerConfig
from lockstep.client.consumer.context import ConsumerContext
from lockstep.client.consumer.events import ConsumerEvent
from lockstep.client.consumer.grants.broker_sessions import BrokerSessions
from lockstep.client.consumer.grants.ownership import GrantPolicy
from lockstep.client.consumer.health import BrokerHealth, ConsumerHealth, ConsumerState, QueueHealth
from lockstep.client.consumer.joining import join
from lockstep.client.consumer.membership import Membership
from lockstep.client.consumer.replies import REPLY_TIMEOUT_MS, send_reply
from lockstep.client.consumer.running_info import oldest_call, running_queue
from lockstep.client.consumer.subscription import Expression, tag_filter_of
from lockstep.client.instance import ConsumerHooks, Instance
from lockstep.client.life import Life
from lockstep.protocol.bodies import ConsumerGroup, RunningInfo
from lockstep.protocol.errors import StateError, SubscriptionConflictError
from lockstep.protocol.headers.tools import RunningInfoHeader
from lockstep.protocol.messages.message import NO_PROPERTIES, MessageExt
from lockstep.protocol.names import check_group, check_topic
from lockstep.protocol.object_text import text_of
from lockstep.protocol.topics.queue import MessageQueue
from lockstep.runtime.daemon import Tasks, call_isolated
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.waiting import to_its_end

log = get_logger("client.consumer")

CallbackT = TypeVar("CallbackT", bound=Callable[[ConsumerEvent], object])

RELEASE_WAIT_MS = 2_000
"""How long a stop waits, after the last drain limit, for the responses to its releases."""
CANCEL_WAIT_MS = 1_000
"""How long it then waits for listeners that don't end when they are cancelled."""


class BaseConsumer(Life):
    """A member of a consumer group, from its start to its end."""

    def __init__(self, group: str, client: Client, settings: ConsumerConfig) -> None:
        check_group(group)
        super().__init__()
        self.group = group
        self._settings = settings
        self._client = client
        self._expressions: dict[str, Expression] = {}
        self._callbacks: list[Callable[[ConsumerEvent], object]] = []
        self._reset()

    def _reset(self) -> None:
        """Forget everything of an earlier start."""
        self.state = ConsumerState.NEW
        self.failure: BaseException | None = None
        """The error for which it failed."""
        self.ended = asyncio.Event()
        """Set when it has stopped or failed."""
        self._instance: Instance | None = None
        self._membership: Membership | None = None
        self._sessions: BrokerSessions | None = None
        self._ctx: ConsumerContext | None = None
        self._model: ConsumeModel | None = None
        self._registered = False
        self._start_task: asyncio.Task[None] | None = None
        """The start in the background (`start_in_background`)."""
        self._tasks = Tasks(on_failure=self._fail)
        self._runs = Tasks(on_failure=self._fail)
        self._closing = Tasks()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.group} {self.state.value}>"

    def subscribe(self, topic: str, expression: Expression = "*") -> Self:
        """Consume a topic. Call it before `start`; a second call for a topic replaces its expression.

        Args:
            topic: The name of the topic.
            expression: "*" for all messages, the tags of the messages to consume: "created || paid", or a condition on properties:
                `sql("amount > 100")`.

        Returns:
            The consumer.

        Raises:
            StateError: The consumer runs.
            LocalProtocolError: The topic name or the expression is invalid.
        """
        if not self._may_start:
            raise StateError(f"{self.group}: subscriptions are part of the group's contract and can't change while the consumer runs")
        check_topic(topic)
        for tag in tag_filter_of(expression).suspicious_tags():
            log.warning("subscription.odd_tag", group=self.group, topic=topic, tag=tag, taken_as="one tag; write several tags as a || b")
        self._expressions[topic] = expression
        return self

    def on_event(self, callback: CallbackT) -> CallbackT:
        """Call `callback` on the event loop with each QueueAssigned, QueueRevoked, QueueGap, QueueBlocked and MessageDeadLettered.

        It can be used as a decorator, and returns the callback.
        """
        self._callbacks.append(callback)
        return callback

    # -------------------------------------------------------------------------------------------------------------- replies

    async def reply(
        self,
        message: MessageExt,
        body: bytes,
        *,
        properties: Mapping[str, str] = NO_PROPERTIES,
        timeout_ms: int = REPLY_TIMEOUT_MS,
    ) -> None:
        """Reply to a message that a `request` has sent, and wait until its requester has the reply.

        The reply goes to the broker from which the message came, which passes it on and does not store it. The requester takes the first
        reply that comes in time. A request that gets no reply is done as any other message.

        While the broker is not connected, or the requester connects again, the reply waits for it. In a listener that is not `async def`,
        call it by `asyncio.run_coroutine_threadsafe(consumer.reply(…), loop).result()`.

        Args:
            message: The request.
            body: 1 byte to 4 MiB.
            properties: The user's properties.
            timeout_ms: How long to try, in milliseconds. Default: 3,000.

        Raises:
            ReplyUndeliveredError: The requester is gone, or waits no more: its time has passed, or another reply has come before.
            LocalProtocolError: The message is no request, or the body or a property is invalid, as in Message.
            NoPermissionError: The user may not Pub to the topic CLUSTER_REPLY_TOPIC.
            BrokerError: The broker refused the reply for another reason.
            StateError: The consumer does not run, or runs on another event loop.
        """
        await send_reply(self._consuming(), self.group, message, body, properties, timeout_ms)

    def expired(self, message: MessageExt) -> bool:
        """Return whether the time of a request has passed, so that its requester waits no more. False for a message that is no request.

        The time is that of this machine, and that of the requester when it sent the message: their clocks should agree.

        Raises:
            StateError: The consumer does not run, or runs on another event loop.
        """
        now_ms, expires_ms = self._consuming().host.clock.wall_ms(), message.expires_ms
        return expires_ms is not None and now_ms >= expires_ms

    def _consuming(self) -> Instance:
        """Return the instance. Raise StateError unless the consumer runs, or drains its queues."""
        self._check_loop()
        if self._instance is None or self.state not in (ConsumerState.RUNNING, ConsumerState.STOPPING):
            raise StateError(f"{self.group} is {self.state.value}: it can reply while it runs")
        return self._instance

    # -------------------------------------------------------------------------------------------------- parts of each subclass

    @property
    def _may_start(self) -> bool:
        return self.state in (ConsumerState.NEW, ConsumerState.STOPPED, ConsumerState.FAILED)

    @abstractmethod
    def _check_start(self) -> None:
        """Raise StateError or ConfigError if something is missing that must be set before the start."""

    @abstractmethod
    def _make_context(self, instance: Instance) -> ConsumerContext:
        """Return the context that the consumer's queues share."""

    @abstractmethod
    def _make_model(self, ctx: ConsumerContext) -> ConsumeModel:
        """Return the model by which the messages of its queues are consumed."""

    @abstractmethod
    async def _prepare(self, instance: Instance) -> None:
        """Prepare the join of the group."""

    @abstractmethod
    def _contract(self) -> ConsumerGroup:
        """Return the contract that HEART_BEAT declares for the group."""

    # ---------------------------------------------------------------------------------------------------------------- start

    async def start(self) -> Self:
        """Join the group and begin to consume. A consumer that has stopped or failed, or whose event loop was closed, can be started again,
        on any event loop.

        With `start_in_background` it returns at once. A start that fails there for another reason than a missing nameserver ends the
        consumer as FAILED.

        Returns:
            The consumer.

        Raises:
            StateError: The consumer runs, also on another event loop, or has no listener.
            ConfigError: It has no subscription.
            TransportError: No nameserver responds, for `start_timeout_ms`.
            SubscriptionConflictError: The other members of the group have another contract. The error names both.
            BrokerError: A broker refused the group.
        """
        self._enter_loop()
        if not self._may_start:
            raise StateError(f"{self.group} is {self.state.value} already: it can be started again when it has stopped")
        self._reset()
        self._check_start()
        self.state = ConsumerState.STARTING
        self._own_loop()
        if self._settings.start_in_background:
            self._start_task = task = self._closing.spawn(self._start_in_background(), f"{self.group} start")
            task.add_done_callback(partial(self._start_ended, self.ended))
            return self
        ended = self.ended
        try:
            await self._start_patiently(self._start, self._settings.start_timeout_ms)
        except BaseException:  # re-raised
            if self.ended is ended:  # it was not dropped with a closed loop, and started again
                self.state, self._loop = ConsumerState.NEW, None
            raise
        return self

    async def _start_in_background(self) -> None:
        try:
            await self._start_patiently(self._start, None)
        except Exception as error:  # listener: reported by `wait_closed()`, as the failure of a consumer that runs
            self._failed(error)

    def _start_ended(self, ended: asyncio.Event, _: "asyncio.Task[None]") -> None:
        """Handle the end of a start in the background: if the consumer does not run now, it has failed or was stopped."""
        if self.state is ConsumerState.STARTING:
            self._end(ended)

    async def _start(self) -> None:
        instance = self._instance = self._client.instance(self.group)
        try:
            await instance.start()
            ctx = self._ctx = self._make_context(instance)
            model = self._model = self._make_model(ctx)
            sessions = self._sessions = instance.sessions
            membership = self._membership = Membership(instance, sessions, ctx, model)
            sessions.enter(self.group, membership)
            await self._prepare(instance)
            instance.register_consumer(self.group, self._contract, self._hooks())
            self._registered = True
            await join(instance, self.group)
            if self.failure is not None:
                raise self.failure
        except BaseException as error:  # re-raised
            # Neither connections nor the lock of a file may be left, also if the caller is cancelled meanwhile.
            undoing = self._undo_start(instance, refused=isinstance(error, SubscriptionConflictError))
            await to_its_end(self._closing.spawn(undoing, f"{self.group} undo"))
            raise
        self.state = ConsumerState.RUNNING
        model.start()
        membership.begin()
        log.info("consumer.started", group=self.group, client_id=instance.client_id, topics=list(ctx.filters))

    def _hooks(self) -> ConsumerHooks:
        membership = self._membership
        assert membership is not None
        return ConsumerHooks(
            on_up=membership.link_up,
            on_down=membership.link_down,
            on_heartbeat_reply=membership.heartbeat_reply,
            on_notice=membership.notice,
            on_queue_free=membership.queue_free,
            on_layout=membership.layout_learned,
            queue_count=membership.queue_count,
            on_refused=lambda link, error: self._fail(error),
            on_failed=self._fail,
            running_info=self._running_info,
        )

    def _running_info(self, link: BrokerLink, header: RunningInfoHeader) -> RunningInfo:
        """Return what a broker is told that asks on behalf of an operator."""
        ctx, model, membership, instance = self._ctx, self._model, self._membership, self._instance
        assert ctx is not None
        assert model is not None
        assert membership is not None
        assert instance is not None
        now_ms = instance.host.clock.boot_ms()
        worker = None
        if header.topic is not None and header.queue_id is not None:
            worker = membership.worker(MessageQueue(header.topic, link.name, header.queue_id))
        call, queue = oldest_call(model, worker, now_ms, with_stack=header.jstack_enable)
        locked = worker is not None and ctx.policy is GrantPolicy.LOCKED
        return RunningInfo(
            client_id=instance.client_id,
            group=self.group,
            state=self.state.value,
            paused=ctx.paused,
            listener=ctx.listener_name,
            calls=sum(1 for _ in model.running_calls()),
            concurrency=model.concurrency,
            proof_left_ms=max(0, worker.session.proof.deadline_ms - now_ms) if worker is not None and locked else None,
            queue=None if worker is None else running_queue(worker, now_ms),
            oldest=call,
            oldest_queue=queue,
            loop_blocked_ms=model.loop_blocked_ms(now_ms),
        )

    async def _undo_start(self, instance: Instance, *, refused: bool) -> None:
        self.failure = None
        if self._registered:
            self._registered = False
            if not refused:  # a refused join has left already
                await instance.leave(self.group)
            instance.unregister_consumer(self.group)
        await self._release_instance(instance)
        self._instance = self._membership = self._ctx = self._model = None

    # ----------------------------------------------------------------------------------------------------------------- stop

    async def stop(self) -> None:
        """Leave the group at once, drain each queue (`stop_timeout_ms`), release it with its final offset, and disconnect.

        A second call waits until the first has ended. If the event loop of the consumer was closed, its connections are closed, and nothing
        is committed.

        Raises:
            StateError: A listener of this consumer called it, and its queue can't drain while the listener waits for the drain; the
                consumer is starting, and not in the background; or it runs on another event loop.
        """
        self._enter_loop()
        if self.state is ConsumerState.NEW:
            self.state = ConsumerState.STOPPED
            self.ended.set()
            return
        if self.state is ConsumerState.STARTING:
            if self._start_task is None:
                raise StateError(f"{self.group} is starting: cancel start() instead")
            self._start_task.cancel()
        membership, current = self._membership, asyncio.current_task()
        if membership is not None and any(current is task for task in self._running_tasks(membership)):
            raise StateError("stop() in a listener would wait for that listener: call it from another task")
        self._stop_soon()
        await self.ended.wait()

    def _stop_soon(self) -> None:
        if self.state is ConsumerState.RUNNING:
            self.state = ConsumerState.STOPPING
            self._closing.spawn(self._stop(), f"{self.group} stop")

    async def _stop(self) -> None:
        instance, membership, ended = self._instance, self._membership, self.ended
        assert instance is not None
        assert membership is not None
        log.info("consumer.stopping", group=self.group)
        try:
            leaving = self._tasks.spawn(instance.leave(self.group), f"{self.group} leave")
            await asyncio.sleep(0)  # UNREGISTER_CLIENT is written before the first release
            async with asyncio.timeout((self._settings.stop_timeout_ms + RELEASE_WAIT_MS) / 1000):
                await membership.drain(self._settings.stop_timeout_ms)
                await asyncio.wait([leaving])
        except TimeoutError:
            left = [str(worker.queue) for worker in membership.workers]
            log.warning("consumer.stopped_unclean", group=self.group, queues=left)
        finally:
            instance.unregister_consumer(self.group)
            await self._release_instance(instance)
            self._end(ended)

    def _end(self, ended: asyncio.Event) -> None:
        """Become STOPPED or FAILED, unless the consumer has been started again since: a coroutine of a closed loop may end at any time."""
        if self.ended is ended:
            self.state = ConsumerState.STOPPED if self.failure is None else ConsumerState.FAILED
            self._loop = None
            log.info("consumer.stopped", group=self.group, failure=None if self.failure is None else text_of(self.failure))
            ended.set()

    def _drop(self) -> None:
        if self._membership is not None:
            self._membership.drop()
        if self._ctx is not None and self._ctx.local is not None:
            self._ctx.local.release()
        if self._instance is not None:
            self._instance.abandon()
        self.ended = asyncio.Event()  # those who wait for the other one are of the closed loop
        self._end(self.ended)

    async def _release_instance(self, instance: Instance) -> None:
        """End all tasks and release the instance. A listener that does not end when it is cancelled is left running."""
        membership, sessions = self._membership, self._sessions
        if self._model is not None:
            self._model.stop()
        if membership is not None:
            runs = self._running_tasks(membership)
            for worker in membership.workers:
                for task in worker.running_tasks():
                    worker.register_outliving_call(task)
            membership.abandon()
            for task in runs:
                task.cancel()
            if runs:
                _, left = await asyncio.wait(runs, timeout=CANCEL_WAIT_MS / 1000)
                if left:
                    log.warning("listener.left_running", group=self.group, calls=len(left))
        await self._tasks.cancel_all()
        if self._ctx is not None and self._ctx.local is not None:
            await self._ctx.local.close()
        if sessions is not None:
            sessions.leave(self.group)
        await instance.close(group=self.group)

    def _running_tasks(self, membership: Membership) -> list[asyncio.Task[None]]:
        """Return the tasks in which listeners run."""
        runners = [task for worker in membership.workers for task in worker.running_tasks()]
        return list(dict.fromkeys(runners))

    def _fail(self, error: BaseException) -> None:
        """Stop because of an error: drain, then `wait_closed()` raises the error."""
        if self.failure is None and self.state in (ConsumerState.STARTING, ConsumerState.RUNNING):
            self._failed(error)
            self._stop_soon()

    def _failed(self, error: BaseException) -> None:
        self.failure = error
        log.error("consumer.failed", group=self.group, error=text_of(error))

    async def wait_closed(self) -> None:
        """Wait until the consumer has stopped.

        Raises:
            StateError: The consumer was not started, or runs on another event loop.
            Exception: The error for which it failed: a running member's SubscriptionConflictError, a listener's SystemExit or
                KeyboardInterrupt, or an internal error.
        """
        self._check_loop()
        if self.state is ConsumerState.NEW:
            raise StateError(f"{self.group} is new: start it (`async with`, or await start()) before waiting for its end")
        await self.ended.wait()
        if self.failure is not None:
            raise self.failure

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    def health(self) -> ConsumerHealth:
        """Return a snapshot of the consumer's state, in any state of the consumer. It is cheap enough to be taken every second."""
        brokers: tuple[BrokerHealth, ...] = ()
        queues: tuple[QueueHealth, ...] = ()
        instance, membership, ctx, failure = self._instance, self._membership, self._ctx, self.failure  # it may be called in any thread
        if instance is not None and membership is not None:
            now_ms = instance.host.clock.boot_ms()
            brokers, queues = membership.broker_health(now_ms), membership.queue_health(now_ms)
        client_id = None if instance is None else instance.client_id
        paused = ctx is not None and ctx.paused
        why = None if failure is None else text_of(failure)
        return ConsumerHealth(self.group, client_id, self.state, paused, why, brokers, queues, self._awaited)

    def _report(self, event: ConsumerEvent) -> None:
        for callback in self._callbacks:
            call_isolated("callback.failed", callback, event, group=self.group, reported=type(event).__name__)
