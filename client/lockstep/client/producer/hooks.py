"""Hooks around sends. RocketMQ: SendMessageHook, SendMessageContext."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from lockstep.client.hooks import hook_failed, tell
from lockstep.client.producer.result import SendResult
from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.message import Message


@dataclass(slots=True, eq=False)
class Sending:
    """One `send`, `send_batch` or `send_oneway`, as its hooks see it."""

    group: str
    messages: Sequence[Message]
    way: Literal["send", "batch", "oneway"]
    properties: dict[str, str] = field(default_factory=dict)
    """What `before_send` puts here goes with each message as properties of the user's: the context of a trace."""
    results: Sequence[SendResult] = ()
    """In the order of `messages`, once all are stored; none of a one-way send."""
    error: BaseException | None = None
    """What the send raised; CancelledError where it was cancelled."""
    memory: dict[object, Any] = field(default_factory=dict)
    """Where hooks keep what they need afterwards: `memory[self] = span`."""


class SendHook(Protocol):
    """Is told of every send, in the task that sends. Given to `Producer.add_hook`."""

    def before_send(self, sending: Sending) -> None:
        """Before anything is checked, waited for or written."""

    def after_send(self, sending: Sending) -> None:
        """When it has ended, however it did."""


def begun(hooks: Sequence[SendHook], sending: Sending) -> Sequence[Message]:
    """Tells the hooks; the messages to send, with what they put into `properties`."""
    tell(sending, hooks, "before_send")
    return _with_properties(sending) if sending.properties else sending.messages


def ended(hooks: Sequence[SendHook], sending: Sending, results: Sequence[SendResult]) -> None:
    """Tells the hooks; `sending.error` is set where it failed."""
    sending.results = results
    tell(sending, reversed(hooks), "after_send")


async def send_watched(
    hooks: Sequence[SendHook], sending: Sending, send: Callable[[Sequence[Message]], Awaitable[list[SendResult]]]
) -> list[SendResult]:
    """What `send` answers or raises for the messages."""
    results: list[SendResult] = []
    messages = begun(hooks, sending)
    try:
        results = await send(messages)
    except BaseException as error:  # re-raised
        sending.error = error
        raise
    finally:
        ended(hooks, sending, results)
    return results


def _with_properties(sending: Sending) -> Sequence[Message]:
    """As they are where that can't be."""
    try:
        return [message.with_properties(sending.properties) for message in sending.messages]
    except (LocalProtocolError, TypeError, AttributeError) as error:
        hook_failed(sending.group, sending.properties, "properties", error)
        return sending.messages
