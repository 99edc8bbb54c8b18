"""Hooks around sends. RocketMQ: SendMessageHook, SendMessageContext."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol

from lockstep.client.hooks import call_hooks, hook_failed
from lockstep.client.producer.result import SendResult
from lockstep.protocol.messages.message import Message


@dataclass(slots=True, eq=False)
class Sending:
    """One `send`, `post`, `send_batch` or `send_oneway`, as hooks see it, or the send of a `request`, without the wait for its reply."""

    group: str
    messages: Sequence[Message]
    method: Literal["send", "post", "batch", "oneway", "request", "transaction"]
    delay_level: int | None = None
    """The delay of the messages, as it was given: a level of the broker, or"""
    delay: timedelta | None = None
    """a time, or"""
    deliver_at: datetime | None = None
    """a moment. At most one of the three is given."""
    properties: dict[str, str] = field(default_factory=dict)
    """`before_send` can add properties here, which are sent with each message as user properties: the context of a trace."""
    results: Sequence[SendResult] = ()
    """The results in the order of `messages`, after all are stored; empty for a one-way send."""
    error: BaseException | None = None
    """The error that the send raised; CancelledError if it was cancelled."""
    memory: dict[object, Any] = field(default_factory=dict)
    """Storage for hooks from `before_send` to `after_send`: `memory[self] = span`."""


class SendHook(Protocol):
    """Called before and after every send, in the task that sends. Register it with `Producer.add_hook`.

    `after_send` of a `post` is called in a callback of the event loop when its future is done; that of a `request` when the message is
    stored.
    """

    def before_send(self, sending: Sending) -> None:
        """Called before anything is checked or written."""

    def after_send(self, sending: Sending) -> None:
        """Called after the send has ended, whether it succeeded or not."""


def call_before_send(hooks: Sequence[SendHook], sending: Sending) -> Sequence[Message]:
    """Call the hooks' `before_send`. Return the messages to send, with the properties that the hooks added."""
    call_hooks(sending, hooks, "before_send")
    return _with_properties(sending) if sending.properties else sending.messages


def call_after_send(hooks: Sequence[SendHook], sending: Sending, results: Sequence[SendResult]) -> None:
    """Call the hooks' `after_send`. `sending.error` is set if the send failed."""
    sending.results = results
    call_hooks(sending, reversed(hooks), "after_send")


def call_after_post(hooks: Sequence[SendHook], sending: Sending, future: "asyncio.Future[SendResult]") -> None:
    """Call the hooks' `after_send` for a `post` with this future, which is done."""
    results: list[SendResult] = []
    if future.cancelled():
        sending.error = asyncio.CancelledError()
    else:
        sending.error = future.exception()
        if sending.error is None:
            results.append(future.result())
    call_after_send(hooks, sending, results)


async def send_watched(
    hooks: Sequence[SendHook], sending: Sending, send: Callable[[Sequence[Message]], Awaitable[list[SendResult]]]
) -> list[SendResult]:
    """Call `send` between the hooks' two methods. Return its results, or raise its error."""
    results: list[SendResult] = []
    messages = call_before_send(hooks, sending)
    try:
        results = await send(messages)
    except BaseException as error:  # re-raised
        sending.error = error
        raise
    finally:
        call_after_send(hooks, sending, results)
        del sending  # it holds the error, whose traceback holds this frame
    return results


def _with_properties(sending: Sending) -> Sequence[Message]:
    """Return the messages with the added properties, or the original messages if the properties are invalid."""
    try:
        return [message.with_properties(sending.properties) for message in sending.messages]
    except Exception as error:  # listener: what a hook has put there
        hook_failed(sending.group, sending.properties, "properties", error)
        return sending.messages
