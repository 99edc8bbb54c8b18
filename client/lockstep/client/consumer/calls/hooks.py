"""Hooks around the calls of a listener. RocketMQ: ConsumeMessageHook, ConsumeMessageContext."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from lockstep.client.consumer.calls.listener import (
    ConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    Listener,
    OrderlyContext,
    is_async,
)
from lockstep.client.hooks import call_hooks
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.topics.queue import MessageQueue

Context = OrderlyContext | ConcurrentlyContext
SUCCESSES = (None, ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.COMMIT, ConsumeConcurrentlyStatus.CONSUME_SUCCESS)


@dataclass(slots=True, eq=False)
class Consuming:
    """One call of a listener, as hooks see it."""

    group: str
    queue: MessageQueue
    messages: Sequence[MessageExt]
    context: Context
    result: object = None
    """The listener's return value."""
    error: BaseException | None = None
    """The error that it raised; CancelledError if the call was cancelled."""
    memory: dict[object, Any] = field(default_factory=dict)
    """Storage for hooks from `before_consume` to `after_consume`: `memory[self] = span`."""

    @property
    def succeeded(self) -> bool:
        """Return whether the call ended with None, SUCCESS, COMMIT or CONSUME_SUCCESS. The broker may still refuse the result as stale."""
        return self.error is None and any(self.result is success for success in SUCCESSES)


class ConsumeHook(Protocol):
    """Called before and after every call of the listener, in its task or thread. Register it with `PushConsumer.add_hook`."""

    def before_consume(self, consuming: Consuming) -> None:
        """Called right before the listener."""

    def after_consume(self, consuming: Consuming) -> None:
        """Called right after the listener, whether it succeeded or not."""


def watched(listener: Listener, group: str, hooks: Sequence[ConsumeHook]) -> Listener:
    """Return the listener with the hooks called around each call, or the listener itself if there are none."""
    if not hooks:
        return listener
    given, call = tuple(hooks), cast("Callable[..., Any]", listener)

    @contextmanager
    def watching(consuming: Consuming) -> Iterator[None]:
        call_hooks(consuming, given, "before_consume")
        try:
            yield
        except BaseException as error:  # re-raised
            consuming.error = error
            raise
        finally:
            call_hooks(consuming, reversed(given), "after_consume")
            del consuming  # it holds the error, whose traceback holds this frame

    async def awaited(messages: Sequence[MessageExt], context: Context) -> Any:
        consuming = Consuming(group, context.queue, messages, context)
        try:
            with watching(consuming):
                consuming.result = await call(messages, context)
            return consuming.result
        finally:
            del consuming

    def plain(messages: Sequence[MessageExt], context: Context) -> Any:
        consuming = Consuming(group, context.queue, messages, context)
        try:
            with watching(consuming):
                consuming.result = call(messages, context)
            return consuming.result
        finally:
            del consuming

    return awaited if is_async(listener) else plain
