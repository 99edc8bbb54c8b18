"""Hooks around the calls of a listener. RocketMQ: ConsumeMessageHook, ConsumeMessageContext."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from lockstep.client.consumer.listener import (
    ConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    Listener,
    OrderlyContext,
    is_async,
)
from lockstep.client.hooks import call_hooks
from lockstep.protocol.message import MessageExt
from lockstep.protocol.queue import MessageQueue

Context = OrderlyContext | ConcurrentlyContext
SUCCESSES = (None, ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.COMMIT, ConsumeConcurrentlyStatus.CONSUME_SUCCESS)


@dataclass(slots=True, eq=False)
class Consuming:
    """One call of a listener, as its hooks see it."""

    group: str
    queue: MessageQueue
    messages: Sequence[MessageExt]
    context: Context
    result: object = None
    """What the listener returned."""
    error: BaseException | None = None
    """What it raised; CancelledError where the call was cancelled."""
    memory: dict[object, Any] = field(default_factory=dict)
    """Where hooks keep what they need afterwards: `memory[self] = span`."""

    @property
    def succeeded(self) -> bool:
        """Whether the call has ended with None, SUCCESS, COMMIT or CONSUME_SUCCESS. The broker may still refuse the result as stale."""
        return self.error is None and any(self.result is success for success in SUCCESSES)


class ConsumeHook(Protocol):
    """Is told of every call, in the task or thread of the listener. Given to `PushConsumer.add_hook`."""

    def before_consume(self, consuming: Consuming) -> None:
        """Right before the listener is called."""

    def after_consume(self, consuming: Consuming) -> None:
        """Right after it."""


def watched(listener: Listener, group: str, hooks: Sequence[ConsumeHook]) -> Listener:
    """The listener with the hooks around each call; itself where there are none."""
    if not hooks:
        return listener
    given, call = tuple(hooks), cast("Callable[..., Any]", listener)

    @contextmanager
    def told(messages: Sequence[MessageExt], context: Context) -> Iterator[Consuming]:
        consuming = Consuming(group, context.queue, messages, context)
        call_hooks(consuming, given, "before_consume")
        try:
            yield consuming
        except BaseException as error:  # re-raised
            consuming.error = error
            raise
        finally:
            call_hooks(consuming, reversed(given), "after_consume")

    async def awaited(messages: Sequence[MessageExt], context: Context) -> Any:
        with told(messages, context) as consuming:
            consuming.result = await call(messages, context)
        return consuming.result

    def plain(messages: Sequence[MessageExt], context: Context) -> Any:
        with told(messages, context) as consuming:
            consuming.result = call(messages, context)
        return consuming.result

    return awaited if is_async(listener) else plain
