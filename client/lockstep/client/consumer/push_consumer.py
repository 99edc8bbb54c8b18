"""The push consumer as users hold it. RocketMQ: DefaultMQPushConsumer, DefaultMQPushConsumerImpl, RebalancePushImpl.

NEW --start()--> STARTING --joined--> RUNNING --stop()--> STOPPING --drained--> STOPPED
                 STARTING --refused--> NEW                RUNNING --refused, died--> STOPPING --drained--> FAILED
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar, Unpack

from lockstep.client.config import nameserver_addresses, takes_settings_of
from lockstep.client.consumer.broadcast import LocalOwnership, LocalProgress
from lockstep.client.consumer.concurrently import Crew, consume_concurrently
from lockstep.client.consumer.config import ConsumerConfig, ConsumerOptions
from lockstep.client.consumer.events import ConsumerEvent
from lockstep.client.consumer.health import BrokerHealth, ConsumerHealth, ConsumerState, QueueHealth
from lockstep.client.consumer.joining import is_routed, join, ready_retries
from lockstep.client.consumer.listener import (
    ConcurrentlyListener,
    Listener,
    OrderlyListener,
    check_listener,
    is_async,
    listener_name,
)
from lockstep.client.consumer.loop_watch import LoopWatch
from lockstep.client.consumer.membership import Membership
from lockstep.client.consumer.orderly import consume
from lockstep.client.consumer.ownership import QueueOwnership
from lockstep.client.consumer.sessions import Sessions
from lockstep.client.consumer.shared_ownership import SharedOwnership
from lockstep.client.consumer.worker import Consumption
from lockstep.client.features import (
    CONSUMING_ALONE,
    CONSUMING_AND_GIVING_UP,
    CONSUMING_CONCURRENTLY,
    CONSUMING_IN_ORDER,
    check_features,
)
from lockstep.client.instance import ConsumerHooks, Instance
from lockstep.protocol.allocate import BY_BROKER, may_order, word_of
from lockstep.protocol.bodies import ConsumerGroup, StartPolicy, Subscription
from lockstep.protocol.errors import (
    ConfigError,
    StateError,
    SubscriptionConflict,
)
from lockstep.protocol.names import check_group, check_topic, retry_topic
from lockstep.protocol.tags import TagFilter
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from lockstep.runtime.log import get_logger

log = get_logger("client.consumer")

ListenerT = TypeVar("ListenerT", bound=OrderlyListener)
ConcurrentT = TypeVar("ConcurrentT", bound=ConcurrentlyListener)
CallbackT = TypeVar("CallbackT", bound=Callable[[ConsumerEvent], object])

ANSWER_WAIT_MS = 2_000
"""How long a stop waits, after the last drain limit, for the answers to its releases."""
CANCEL_WAIT_MS = 1_000
"""How long it then waits for listeners that do not end when cancelled."""


class PushConsumer:
    """Consumes topics, in order within each queue (`orderly`) or not (`concurrently`).

    One listener per consumer; everything runs on the event loop that `start` ran on.

    It takes the settings of ConsumerConfig, which says what each is (docs/guide.md those that matter). Raises ConfigError for one out of
    range and for an address that is none, LocalProtocolError for a bad group or topic name.
    """

    @takes_settings_of(ConsumerConfig)
    def __init__(
        self,
        group: str,
        *,
        nameserver: str | list[str] | tuple[str, ...] = "127.0.0.1:9876",
        host: Host | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        check_group(group)
        nameserver_addresses(nameserver)
        self.group = group
        self.config = ConsumerConfig(**options)
        self.state = ConsumerState.NEW
        self._nameserver = nameserver
        self._host = host
        self._expressions: dict[str, str] = {}
        self._listener: Listener | None = None
        self._is_concurrent = False
        self._callbacks: list[Callable[[ConsumerEvent], object]] = []
        self.failure: BaseException | None = None
        """What killed it."""
        self.ended = asyncio.Event()
        """Set when it has stopped or died."""
        self._instance: Instance | None = None
        self._membership: Membership | None = None
        self._sessions: Sessions | None = None
        self._use: Consumption | None = None
        self._registered = False
        self._tasks = Tasks(on_failure=self._die)
        self._runs = Tasks(on_failure=self._die)
        self._closing = Tasks()

    def __repr__(self) -> str:
        return f"<PushConsumer {self.group} {self.state.value}>"

    # --------------------------------------------------------------------------------------------------------------- set-up

    def subscribe(self, topic: str, expression: str = "*") -> "PushConsumer":
        """Before `start`: consume `topic`, all of it or the tags of `expression` ("created || paid"). Again: replaces the expression."""
        if self.state is not ConsumerState.NEW:
            raise StateError(f"{self.group}: subscriptions are the group's contract and stand from the start; stop, subscribe, start anew")
        check_topic(topic)
        for tag in TagFilter.parse(expression).looks_mistyped():
            log.warning("subscription.odd_tag", group=self.group, topic=topic, tag=tag, taken_as="one tag; several are written: a || b")
        self._expressions[topic] = expression
        return self

    def orderly(self, listener: ListenerT) -> ListenerT:
        """Decorator: `async def` listeners are awaited on the loop, plain functions run in daemon threads.

        ConfigError for what can't be called with (messages, context), and where `allocate` is one that only concurrent groups may have.
        """
        if not self.config.broadcasting and not may_order(word := word_of(self.config.allocate)):
            raise ConfigError(
                f'{self.group} can\'t be ordered: its members could differ about a queue by allocate "{word}"; use another one'
            )
        self._take_listener(listener)
        return listener

    def concurrently(self, listener: ConcurrentT) -> ConcurrentT:
        """Decorator, as `orderly`: up to `concurrency` calls at a time over all queues, in no order. What fails is sent back to the broker
        and comes again after a delay, `max_reconsume_times` times; then it is dead-lettered.

        LocalProtocolError where the group's name is too long for the topics `%RETRY%group` and `%DLQ%group`.
        """
        if not self.config.broadcasting:
            retry_topic(self.group)
        self._take_listener(listener)
        self._is_concurrent = True
        return listener

    def _take_listener(self, listener: Listener) -> None:
        if self._listener is not None:
            raise StateError(f"{self.group} has a listener already: {listener_name(self._listener)}")
        check_listener(listener)
        self._listener = listener

    def on_event(self, callback: CallbackT) -> CallbackT:
        """Call back with each QueueAssigned, QueueRevoked, QueueGap, QueueBlocked, on the event loop. Usable as a decorator."""
        self._callbacks.append(callback)
        return callback

    # ---------------------------------------------------------------------------------------------------------------- start

    async def start(self) -> "PushConsumer":
        """Join the group and begin to consume.

        Raises StateError (second start, no listener), ConfigError (no subscription), TransportError (no nameserver answers),
        SubscriptionConflict (the group's members agreed on another contract: both sides are named) and other BrokerErrors.
        """
        if self.state is not ConsumerState.NEW:
            raise StateError(f"{self.group} is {self.state.value}: a consumer starts once; make a new one")
        if self._listener is None:
            raise StateError(f"{self.group} has no listener: decorate one with @consumer.orderly or @consumer.concurrently")
        if not self._expressions:
            raise ConfigError(f"{self.group} subscribes to nothing: call consumer.subscribe(topic) before the start")
        self.state = ConsumerState.STARTING
        instance = self._instance = Instance.current(self._nameserver, group=self.group, host=self._host)
        try:
            await instance.start()
            use = self._assemble(instance, self._listener)
            if use.local is not None:
                await use.local.open()
            for topic in self._expressions:
                if not await is_routed(instance, topic):
                    log.warning("topic.missing", group=self.group, topic=topic, then="consumption begins when it is there")
            if self._has_retries:
                await ready_retries(instance, self.group)
            instance.register_consumer(self.group, self._contract, self._hooks())
            self._registered = True
            await join(instance, self.group)
            if self.failure is not None:
                raise self.failure
            for link in instance.links():
                if link.up and link.view is not None:
                    check_features(link.view, use.features)
        except BaseException as error:  # re-raised
            await self._undo_start(instance, refused=isinstance(error, SubscriptionConflict))
            raise
        self.state = ConsumerState.RUNNING
        assert self._membership is not None
        use.watch.start()
        self._membership.begin()
        log.info("consumer.started", group=self.group, client_id=instance.client_id, topics=list(self._expressions))
        return self

    def _assemble(self, instance: Instance, listener: Listener) -> Consumption:
        self._sessions = sessions = instance.one_of(Sessions, lambda: Sessions(instance.host, lambda: instance.closing))
        in_loop = is_async(listener)
        name = listener_name(listener)
        watch = LoopWatch(instance.host, name, lambda: in_loop and self._membership is not None and self._membership.any_running)
        filters = {topic: TagFilter.parse(expression) for topic, expression in self._subscribed().items()}
        self._use = use = Consumption(
            group=self.group,
            config=self.config,
            listener=listener,
            listener_name=name,
            in_loop=in_loop,
            filters=filters,
            host=instance.host,
            tasks=self._tasks,
            runs=self._runs,
            watch=watch,
            tell=self._tell,
            start_policy=self._start_policy,
            heard_since=lambda topic, since: self._membership.hear_since(topic, since) if self._membership else None,
            lapsed_subscription=lambda: self._membership.beat_soon() if self._membership else None,
            failed=self._die,
            finished=lambda worker: self._membership.forget(worker) if self._membership else None,
            ownership=LocalOwnership if self.config.broadcasting else SharedOwnership if self._is_concurrent else QueueOwnership,
            run=consume_concurrently if self._is_concurrent else consume,
            features=self._features(),
            local=LocalProgress(instance, self.config, self.group) if self.config.broadcasting else None,
        )
        if self._is_concurrent:
            use.crew = Crew(use)
        if use.local is not None:
            self._tasks.spawn(use.local.run(), f"{self.group} offsets")
        membership = self._membership = Membership(instance, sessions, use)
        sessions.enter(self.group, membership)
        return use

    def _features(self) -> tuple[str, ...]:
        if self.config.broadcasting:
            return CONSUMING_ALONE
        if self._is_concurrent:
            return CONSUMING_CONCURRENTLY
        return CONSUMING_AND_GIVING_UP if self.config.retry.on_exhausted == "dlq" else CONSUMING_IN_ORDER

    def _hooks(self) -> ConsumerHooks:
        membership = self._membership
        assert membership is not None
        return ConsumerHooks(
            on_up=membership.link_up,
            on_down=membership.link_down,
            on_view=membership.view,
            on_notice=membership.notice,
            on_queue_free=membership.queue_free,
            on_layout=lambda _: membership.rebalance(),
            on_refused=lambda link, error: self._die(error),
            on_failed=self._die,
        )

    def _contract(self) -> ConsumerGroup:
        return ConsumerGroup(
            self.group,
            tuple(Subscription(topic, expression) for topic, expression in sorted(self._subscribed().items())),
            message_model=self.config.message_model,
            consume_from_where=self.config.consume_from_where,
            consume_timestamp_ms=self.config.consume_timestamp_ms,
            ordered=not self._is_concurrent,
            allocate=BY_BROKER if self.config.broadcasting else word_of(self.config.allocate),
            retry=self._retry_policy(),
        )

    def _retry_policy(self) -> str:
        if not self._is_concurrent:
            return str(self.config.retry)
        return f"{self.config.max_reconsume_times} retries, then dlq" if self._has_retries else "none: what fails is dropped"

    @property
    def _has_retries(self) -> bool:
        return self._is_concurrent and not self.config.broadcasting

    def _subscribed(self) -> dict[str, str]:
        """Topic → expression; a concurrent group's retries are its own business."""
        return {**self._expressions, retry_topic(self.group): "*"} if self._has_retries else self._expressions

    def _start_policy(self, topic: str) -> StartPolicy:
        since = None if self._membership is None else self._membership.since(topic)
        return StartPolicy(self.group, topic, self.config.consume_from_where, self.config.consume_timestamp_ms, since)

    async def _undo_start(self, instance: Instance, *, refused: bool) -> None:
        self.state = ConsumerState.NEW
        self.failure = None
        if self._registered:
            self._registered = False
            if not refused:  # a refused join has left already
                await instance.leave(self.group)
            instance.unregister_consumer(self.group)
        await self._let_go(instance)
        self._instance = self._membership = self._use = None

    # ----------------------------------------------------------------------------------------------------------------- stop

    async def stop(self) -> None:
        """Leave the group at once, drain each queue (`stop_timeout_ms`), release it with its final offset, close.

        Called again it waits for the same. StateError when a listener of this consumer calls it: a queue can't drain while its listener
        waits for the drain.
        """
        if self.state is ConsumerState.NEW:
            self.state = ConsumerState.STOPPED
            self.ended.set()
        if self.state is ConsumerState.STARTING:
            raise StateError(f"{self.group} is starting: cancel start() instead")
        membership, current = self._membership, asyncio.current_task()
        if membership is not None and any(current is task for task in self._running_tasks(membership)):
            raise StateError("stop() inside a listener would wait for that very listener: call it from another task")
        self._stop_soon()
        await self.ended.wait()

    def _stop_soon(self) -> None:
        if self.state is ConsumerState.RUNNING:
            self.state = ConsumerState.STOPPING
            self._closing.spawn(self._stop(), f"{self.group} stop")

    async def _stop(self) -> None:
        instance, membership = self._instance, self._membership
        assert instance is not None
        assert membership is not None
        log.info("consumer.stopping", group=self.group)
        try:
            leaving = self._tasks.spawn(instance.leave(self.group), f"{self.group} leave")
            await asyncio.sleep(0)  # UNREGISTER_CLIENT is written before the first release
            async with asyncio.timeout((self.config.stop_timeout_ms + ANSWER_WAIT_MS) / 1000):
                await membership.drain(self.config.stop_timeout_ms)
                await asyncio.wait([leaving])
        except TimeoutError:
            left = [str(worker.queue) for worker in membership.workers]
            log.warning("consumer.stopped_unclean", group=self.group, queues=left)
        finally:
            instance.unregister_consumer(self.group)
            await self._let_go(instance)
            self.state = ConsumerState.STOPPED if self.failure is None else ConsumerState.FAILED
            log.info("consumer.stopped", group=self.group, failure=None if self.failure is None else str(self.failure))
            self.ended.set()

    async def _let_go(self, instance: Instance) -> None:
        """End what runs, give the instance back. A listener that does not end when cancelled is left alone."""
        membership, sessions = self._membership, self._sessions
        if self._use is not None:
            self._use.watch.stop()
        if membership is not None:
            runs = self._running_tasks(membership)
            membership.abandon()
            for task in runs:
                task.cancel()
            if runs:
                _, left = await asyncio.wait(runs, timeout=CANCEL_WAIT_MS / 1000)
                if left:
                    log.warning("listener.left_running", group=self.group, calls=len(left))
        await self._tasks.cancel_all()
        if self._use is not None and self._use.local is not None:
            await self._use.local.close()
        if sessions is not None:
            sessions.leave(self.group)
        await instance.close(group=self.group)

    def _running_tasks(self, membership: Membership) -> list[asyncio.Task[None]]:
        """The tasks in which listeners run."""
        crew = None if self._use is None else self._use.crew
        return [*(task for worker in membership.workers for task in worker.running_tasks()), *(() if crew is None else crew.tasks)]

    def _die(self, error: BaseException) -> None:
        """What makes going on impossible: drain, then `wait_closed()` raises it."""
        if self.failure is None and self.state in (ConsumerState.STARTING, ConsumerState.RUNNING):
            self.failure = error
            log.error("consumer.failed", group=self.group, error=f"{type(error).__name__}: {error}")
            self._stop_soon()

    async def wait_closed(self) -> None:
        """Returns when the consumer has stopped; raises what killed it.

        That may be the SubscriptionConflict of a running member, a listener's SystemExit or KeyboardInterrupt, an internal error.
        StateError before the start: nothing would ever end it.
        """
        if self.state is ConsumerState.NEW:
            raise StateError(f"{self.group} is new: start it (`async with`, or await start()) before waiting for its end")
        await self.ended.wait()
        if self.failure is not None:
            raise self.failure

    async def __aenter__(self) -> "PushConsumer":
        return await self.start()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    # --------------------------------------------------------------------------------------------------------- while running

    def pause(self) -> None:
        """No further pull and no further batch; locks, heartbeats and rebalance go on. Running calls end in their own time."""
        if self._use is None:
            raise StateError(f"{self.group} is {self.state.value}: start it before pausing it")
        self._use.paused = True
        log.info("consumer.paused", group=self.group)

    def resume(self) -> None:
        """Go on after `pause`; a queue that stands still because its attempts are exhausted gets one call more."""
        if self._use is None or self._membership is None:
            raise StateError(f"{self.group} is {self.state.value}: start it before resuming it")
        self._use.paused = False
        self._membership.resume()
        log.info("consumer.resumed", group=self.group)

    def health(self) -> ConsumerHealth:
        """A snapshot; cheap enough to ask every second."""
        brokers: tuple[BrokerHealth, ...] = ()
        queues: tuple[QueueHealth, ...] = ()
        if self._instance is not None and self._membership is not None:
            now_ms = self._instance.host.clock.boot_ms()
            brokers, queues = self._membership.broker_health(now_ms), self._membership.queue_health(now_ms)
        client_id = None if self._instance is None else self._instance.client_id
        paused = self._use is not None and self._use.paused
        failure = None if self.failure is None else f"{type(self.failure).__name__}: {self.failure}"
        return ConsumerHealth(self.group, client_id, self.state, paused, failure, brokers, queues)

    def _tell(self, event: ConsumerEvent) -> None:
        for callback in self._callbacks:
            try:
                callback(event)
            except Exception:  # listener: a user's callback must not end consumption
                log.exception("callback.failed", group=self.group, told=type(event).__name__)
