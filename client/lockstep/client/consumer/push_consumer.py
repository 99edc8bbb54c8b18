"""The push consumer: it calls a listener with messages. RocketMQ: DefaultMQPushConsumer, RebalancePushImpl."""

from dataclasses import dataclass
from typing import TypeVar

from lockstep.client.client import ConnectionArguments
from lockstep.client.consumer.base_consumer import BaseConsumer
from lockstep.client.consumer.calls.concurrent_model import ConcurrentModel
from lockstep.client.consumer.calls.consume_model import ConsumeModel
from lockstep.client.consumer.calls.hooks import ConsumeHook
from lockstep.client.consumer.calls.listener import (
    ConcurrentlyListener,
    Listener,
    OrderlyListener,
    check_listener,
    listener_name,
)
from lockstep.client.consumer.calls.listener_calls import ListenerCalls
from lockstep.client.consumer.calls.ordered_model import OrderedModel
from lockstep.client.consumer.config import ConsumerConfig
from lockstep.client.consumer.context import ConsumerContext
from lockstep.client.consumer.grants.broadcast import LocalProgress
from lockstep.client.consumer.grants.ownership import GrantPolicy
from lockstep.client.consumer.joining import find_topics, ready_retries
from lockstep.client.consumer.subscription import Expression, subscription_of, tag_filter_of
from lockstep.client.instance import Instance
from lockstep.client.settings import takes_arguments_of
from lockstep.protocol.bodies import ConsumerGroup
from lockstep.protocol.errors import (
    ConfigError,
    StateError,
)
from lockstep.protocol.names import dlq_topic, retry_topic
from lockstep.protocol.topics.allocate import BY_BROKER, is_allowed_when_ordered, strategy_spec
from lockstep.runtime.event_loop import running_loop
from lockstep.runtime.logs.log import get_logger

log = get_logger("client.consumer")

ListenerT = TypeVar("ListenerT", bound=OrderlyListener)
ConcurrentT = TypeVar("ConcurrentT", bound=ConcurrentlyListener)


@dataclass(frozen=True, kw_only=True)
class PushConsumerArguments(ConsumerConfig, ConnectionArguments):
    """The arguments of PushConsumer."""


class PushConsumer(BaseConsumer):
    """Consumes topics with one listener, in order within each queue (`orderly`) or not (`concurrently`).

    Everything except plain (not async) listeners runs on the event loop on which `start` was called. A consumer can be made before there is
    a loop, as a global of a module, and started again after its end, on the same loop or another one.

    Args:
        group: The name of the consumer group.
        nameserver: "HOST:PORT", several separated by ";", a list of them, or "lockstep://HOST:PORT/?tls_ca=FILE". Default: 127.0.0.1:9876.
        tls: Connect by TLS: True, or Tls(ca=FILE), which says what the client trusts and shows. Default: plain connections.
        user: The user to log in as. Default: that of the URL, or LOCKSTEP_USER, or none.
        password: The password, the Path of a file that has it, or a function that returns it; the latter two are asked at each login.
            Default: the URL's password or password_file, LOCKSTEP_PASSWORD, or the file that LOCKSTEP_PASSWORD_FILE names.
        login_optional: Go on with servers that ask for no login.
        client: The connections to use, instead of `nameserver`. Default: the consumer has its own.
        host: The clock, randomness and files to use; for tests. Default: those of this machine.

    The other arguments are the settings of ConsumerConfig.

    Raises:
        ConfigError: A setting has the wrong type or is out of range, an address is invalid, or both `client` and `nameserver` are given.
        LocalProtocolError: The group name is invalid.
    """

    @takes_arguments_of(PushConsumerArguments)
    def __init__(self, arguments: PushConsumerArguments) -> None:
        self.config: ConsumerConfig = arguments
        super().__init__(arguments.group, arguments.open_client(), arguments)
        self._listener: Listener | None = None
        self._is_concurrent = False
        self._call_hooks: list[ConsumeHook] = []

    # --------------------------------------------------------------------------------------------------------------- set-up

    def orderly(self, listener: ListenerT) -> ListenerT:
        """Set the listener, as a decorator. Each queue's messages are passed to it in order, one call per queue at a time. With
        order_by="sharding_key", the messages of each key are, one call per key at a time.

        Args:
            listener: Takes the messages and an OrderlyContext. An `async def` function is awaited on the loop, a plain one is called in
                daemon threads.

        Returns:
            The listener.

        Raises:
            ConfigError: The listener can't be called with (messages, context), or `allocate` is only for concurrent groups.
            LocalProtocolError: Messages are to be dead-lettered, and the group name is too long for the topic `%DLQ%group`.
            StateError: The consumer has a listener.
        """
        if self.config.retry.on_exhausted != "block":
            dlq_topic(self.group)
        if not self.config.broadcasting and not is_allowed_when_ordered(word := strategy_spec(self.config.allocate)):
            raise ConfigError(
                f'{self.group}: allocate "{word}" can\'t be used with @orderly, because members could disagree about the owner of a queue'
            )
        self._take_listener(listener)
        return listener

    def concurrently(self, listener: ConcurrentT) -> ConcurrentT:
        """Set the listener, as a decorator. Up to `concurrency` calls run at a time over all queues, in no order.

        The broker stores a failed message again, and the listener gets it after a delay, up to `max_reconsume_times` times; then the
        message is dead-lettered.

        Args:
            listener: Takes the messages and a ConcurrentlyContext. An `async def` function is awaited on the loop, a plain one is called in
                daemon threads.

        Returns:
            The listener.

        Raises:
            ConfigError: The listener can't be called with (messages, context), or `order_by` is "sharding_key".
            LocalProtocolError: The group name is too long for the topics `%RETRY%group` and `%DLQ%group`.
            StateError: The consumer has a listener.
        """
        if self.config.order_by != "queue":
            raise ConfigError(f'{self.group}: order_by "{self.config.order_by}" is for @orderly: a concurrent listener has no order')
        if not self.config.broadcasting:
            retry_topic(self.group)
        self._take_listener(listener)
        self._is_concurrent = True
        return listener

    def add_hook(self, hook: ConsumeHook) -> ConsumeHook:
        """Call the hook before and after every call of the listener. Return the hook.

        Raises:
            StateError: The consumer runs.
        """
        if not self._may_start:
            raise StateError(f"{self.group} is {self.state.value}: add_hook() comes before the start")
        self._call_hooks.append(hook)
        return hook

    def _take_listener(self, listener: Listener) -> None:
        if self._listener is not None:
            raise StateError(f"{self.group} has a listener already: {listener_name(self._listener)}")
        check_listener(listener)
        self._listener = listener

    # ---------------------------------------------------------------------------------------------------------------- start

    def _check_start(self) -> None:
        if self._listener is None:
            raise StateError(f"{self.group} has no listener: decorate one with @consumer.orderly or @consumer.concurrently")
        if not self._expressions:
            raise ConfigError(f"{self.group} subscribes to nothing: call consumer.subscribe(topic) before the start")

    async def _prepare(self, instance: Instance) -> None:
        assert self._ctx is not None
        if self._ctx.local is not None:
            await self._ctx.local.open()
        await find_topics(instance, self.group, self._expressions)
        if self._has_retries:
            await ready_retries(instance, self.group)

    def _make_context(self, instance: Instance) -> ConsumerContext:
        assert self._listener is not None
        local = LocalProgress(instance, self.config, self.group) if self.config.broadcasting else None
        if local is not None:
            self._tasks.spawn(local.run(), f"{self.group} offsets")
        return ConsumerContext(
            group=self.group,
            config=self.config,
            policy=GrantPolicy.LOCAL if local is not None else GrantPolicy.SHARED if self._is_concurrent else GrantPolicy.LOCKED,
            listener_name=listener_name(self._listener),
            filters={topic: tag_filter_of(expression) for topic, expression in self._subscribed().items()},
            host=instance.host,
            tasks=self._tasks,
            runs=self._runs,
            report=self._report,
            fail=self._fail,
            local=local,
            cluster=instance.cluster.nameservers,
        )

    def _make_model(self, ctx: ConsumerContext) -> ConsumeModel:
        assert self._listener is not None
        calls = ListenerCalls(ctx, self._listener, self._call_hooks)
        return ConcurrentModel(ctx, calls) if self._is_concurrent else OrderedModel(ctx, calls)

    def _contract(self) -> ConsumerGroup:
        return ConsumerGroup(
            self.group,
            tuple(
                subscription_of(topic, expression, 0 if self._membership is None else self._membership.sub_versions.get(topic, 0))
                for topic, expression in sorted(self._subscribed().items())
            ),
            message_model=self.config.message_model,
            consume_from_where=self.config.consume_from_where,
            consume_timestamp_ms=self.config.consume_timestamp_ms,
            ordered=not self._is_concurrent,
            order_by=self._order(),
            allocate=BY_BROKER if self.config.broadcasting else strategy_spec(self.config.allocate),
            retry=self._retry_policy(),
            contract_version=self.config.contract_version,
        )

    def _order(self) -> str:
        return f"{self.config.order_by}, unkeyed alone" if self.config.unkeyed == "alone" else self.config.order_by

    def _retry_policy(self) -> str:
        if not self._is_concurrent:
            return str(self.config.retry)
        return f"{self.config.max_reconsume_times} retries, then dlq" if self._has_retries else "none: what fails is dropped"

    @property
    def _has_retries(self) -> bool:
        return self._is_concurrent and not self.config.broadcasting

    def _subscribed(self) -> dict[str, Expression]:
        """Return the expressions by topic, including the topic of a concurrent group's retries."""
        return {**self._expressions, retry_topic(self.group): "*"} if self._has_retries else self._expressions

    # --------------------------------------------------------------------------------------------------------- while running

    def pause(self) -> None:
        """Stop pulling and calling the listener. Running calls finish; locks, heartbeats and rebalancing continue.

        Raises:
            StateError: The consumer was not started, or runs on another event loop.
        """
        self._check_loop()
        if self._ctx is None:
            raise StateError(f"{self.group} is {self.state.value}: start it before pausing it")
        self._ctx.paused = True
        log.info("consumer.paused", group=self.group)

    def resume(self) -> None:
        """Continue after `pause`. A queue that is blocked because its attempts are exhausted gets one more call.

        Raises:
            StateError: The consumer was not started, or runs on another event loop.
        """
        self._check_loop()
        if self._ctx is None or self._membership is None:
            raise StateError(f"{self.group} is {self.state.value}: start it before resuming it")
        self._ctx.paused = False
        if self._loop is None or self._loop is running_loop():
            self._membership.resume()
        else:  # a thread without an event loop
            self._loop.call_soon_threadsafe(self._membership.resume)
        log.info("consumer.resumed", group=self.group)
