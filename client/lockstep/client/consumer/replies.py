"""Sends a consumer's reply to the requester, by the broker from which the request came. RocketMQ: MessageUtil.createReplyMessage.

| what happened                                                    | then                                                |
|------------------------------------------------------------------|-----------------------------------------------------|
| the requester has taken the reply                                | it is delivered                                     |
| the requester is gone, or has dropped it                         | ReplyUndeliveredError                               |
| the broker is away or can't serve it now, the requester may come | the same reply is sent again until the deadline,    |
| back, or the connection was lost before the response             | then ReplyUndeliveredError                          |
| the broker refuses it for another reason                         | the error of its response                           |

A requester that gets the same reply again knows it by its id, and takes it as delivered.
"""

import asyncio
from collections.abc import Mapping

from lockstep.client.errors import ReplyUndeliveredError
from lockstep.client.instance import Instance
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import (
    BrokerSystemError,
    LocalProtocolError,
    NotEnoughReplicasError,
    NotLeaderError,
    ServiceNotAvailableError,
    SystemBusyError,
    TransportError,
)
from lockstep.protocol.headers.send import SendMessageHeader
from lockstep.protocol.messages.message import Message, MessageExt
from lockstep.protocol.messages.properties import CLUSTER, VALUE_END, encode_properties
from lockstep.protocol.messages.request_reply import reply_properties
from lockstep.protocol.names import reply_topic

REPLY_TIMEOUT_MS = 3_000
"""How long a reply is sent again while the broker or the requester is away, unless its caller says otherwise."""
AGAIN_MS = 100
"""Pause between two attempts."""
REPLY_ID_BYTES = 16


async def send_reply(
    instance: Instance, group: str, request: MessageExt, body: bytes, properties: Mapping[str, str], timeout_ms: int
) -> None:
    """Send a reply. Return when the requester has it.

    Raises:
        ReplyUndeliveredError: The requester is gone or has dropped the reply, or it could not be passed on before the deadline.
        LocalProtocolError: The message is no request, or the reply's body or properties are invalid.
        BrokerError: The broker refused the reply for another reason.
    """
    if type(timeout_ms) is not int or timeout_ms < 1:
        raise LocalProtocolError(f"timeout_ms is {timeout_ms!r}: expected an integer of at least 1")
    clock = instance.host.clock
    deadline_ms = clock.monotonic_ms() + timeout_ms
    header, body = _frame(instance, group, request, body, properties)
    while True:
        pause_ms = AGAIN_MS
        try:
            await _attempt(instance, request.broker_name, header, body, deadline_ms - clock.monotonic_ms())
            return
        except BrokerSystemError as error:
            raise ReplyUndeliveredError(request.broker_name, request.message_id, error.remark) from error
        except TransportError as error:
            why = str(error)
        except (SystemBusyError, ServiceNotAvailableError, NotLeaderError, NotEnoughReplicasError) as error:
            why, pause_ms = error.remark, error.retry_after_ms or AGAIN_MS
        if clock.monotonic_ms() + pause_ms >= deadline_ms:
            raise ReplyUndeliveredError(request.broker_name, request.message_id, f"not within {timeout_ms} ms: {why}")
        await asyncio.sleep(pause_ms / 1000)


def _frame(
    instance: Instance, group: str, request: MessageExt, body: bytes, properties: Mapping[str, str]
) -> tuple[SendMessageHeader, bytes]:
    """Return the header and the body of the reply. Raise LocalProtocolError."""
    host = instance.host
    asked = request.all_properties
    own = encode_properties(reply_properties(asked, host.random.token(REPLY_ID_BYTES).hex().upper()))
    checked = Message(request.topic, body, properties=properties)
    stored = [own, checked.stored_properties] if checked.stored_properties else [own]
    text = VALUE_END.encode().join(stored).decode()
    return SendMessageHeader(group, reply_topic(asked[CLUSTER]), 0, 0, host.clock.wall_ms(), 0, text), checked.body


async def _attempt(instance: Instance, broker_name: str, header: SendMessageHeader, body: bytes, left_ms: int) -> None:
    link = instance.link(broker_name)
    if link is None:
        raise TransportError(f"no address of broker {broker_name} is known")
    if not link.up:
        await link.wait_up(max(1, left_ms))
    await link.call(RequestCode.SEND_REPLY_MESSAGE, header, body, timeout_ms=max(1, left_ms))
