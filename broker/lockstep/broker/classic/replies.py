"""Request–reply: a consumer's reply is passed on to the producer that waits for it, and is stored nowhere.

RocketMQ: ReplyMessageProcessor. The request is a message with the properties CORRELATION_ID, REPLY_TO_CLIENT and TTL. The consumer sends
its reply, with the same properties, to the topic <cluster>_REPLY_TOPIC. Consumer and producer may be of RocketMQ or of lockstep's SDK.

A producer that is not connected is gone, and a consumer gets SYSTEM_ERROR. If it may come back, because its session has not ended or the
broker has just started, a consumer of the SDK gets SYSTEM_BUSY instead, and sends the reply again.
"""

from functools import partial

from lockstep.broker.classic.batch import joined_properties
from lockstep.broker.classic.connections import ClientConnections
from lockstep.broker.processors.send_message import classic_send
from lockstep.broker.processors.user_quotas import UserQuotas
from lockstep.protocol.codec import CODECS
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import (
    BrokerError,
    BrokerSystemError,
    MessageIllegalError,
    RequestTimeoutError,
    SystemBusyError,
    TransportError,
)
from lockstep.protocol.headers.send import SendMessageHeader, SendMessageV2Header, SendReply
from lockstep.protocol.headers.tools import PushReplyHeader
from lockstep.protocol.messages.properties import NAME_END, PUSH_REPLY_TIME, REPLY_TO_CLIENT, split_properties
from lockstep.runtime.clock import Clock
from lockstep.runtime.requests.needs import PUB, on_topic
from lockstep.runtime.requests.request import NO_RESPONSE, HandlerResult, Request, RetryLaterError

PRODUCER_MS = 10_000
"""How long a producer may take to accept a reply. RocketMQ: the same."""
UNSENT_BYTES_MAX = 16 << 20
"""Bytes that may wait for a producer that reads too slowly."""
RETURN_MS = 100
"""When a reply may be sent again to a producer that may come back."""


class ReplyProcessor:
    """Passes replies on to producers."""

    def __init__(self, connections: ClientConnections, clock: Clock, quotas: UserQuotas) -> None:
        self._quotas = quotas
        self._connections = connections
        self._clock = clock

    @classic_send(RequestCode.SEND_REPLY_MESSAGE, SendMessageHeader, bytes, needs=[on_topic(PUB)])
    def send_reply(self, request: Request) -> HandlerResult:
        return self._push(request, request.header)

    @classic_send(RequestCode.SEND_REPLY_MESSAGE_V2, SendMessageV2Header, bytes, needs=[on_topic(PUB)], native=False)
    def send_reply_v2(self, request: Request) -> HandlerResult:
        header: SendMessageV2Header = request.header
        return self._push(request, header.long_form())

    def _push(self, request: Request, header: SendMessageHeader) -> HandlerResult:
        """Send the reply to its producer. The response follows when the producer has accepted it."""
        client_id = split_properties(header.properties).get(REPLY_TO_CLIENT)
        if not client_id:
            raise MessageIllegalError(f"the reply has no property {REPLY_TO_CLIENT}: make it of the request's message")
        producer = self._connections.producer(client_id)
        if producer is None:
            why = f"no producer with the client id {client_id[:80]} is connected to this broker: the reply was dropped"
            raise self._not_connected(request, client_id, why)
        if producer.endpoint.unsent_bytes > UNSENT_BYTES_MAX:
            raise SystemBusyError(f"client {client_id} reads too slowly: the reply was dropped")
        if self._quotas.limited:
            self._quotas.admit_send(request.user.name, request.size)
        now_ms = self._clock.wall_ms()
        endpoint = producer.endpoint
        pushed = PushReplyHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=joined_properties(header.properties, f"{PUSH_REPLY_TIME}{NAME_END}{now_ms}"),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
            born_host=request.endpoint.peer,
            store_host=request.endpoint.local,
            store_timestamp=now_ms,
        )
        fields = CODECS[endpoint.codec].write_fields(pushed)
        code, body = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, request.body
        request.header = request.body = None  # many may wait for their producers
        done = partial(self._pushed, request, client_id, header.queue_id)
        endpoint.send_request(code, fields, body, timeout_ms=PRODUCER_MS, on_result=done)
        return NO_RESPONSE

    def _pushed(self, request: Request, client_id: str, queue_id: int, result: Command | TransportError | RequestTimeoutError) -> None:
        """Respond to the consumer with what became of its reply."""
        try:
            if isinstance(result, RequestTimeoutError):
                raise BrokerSystemError(f"client {client_id} did not accept the reply within {PRODUCER_MS // 1000} s")
            if isinstance(result, TransportError):
                raise self._not_connected(request, client_id, f"client {client_id} did not accept the reply: {result}")
            if result.code != ResponseCode.SUCCESS:
                raise BrokerSystemError(f"client {client_id} responded to the reply with {result.code}: {result.remark}")
            request.respond(request.reply(SendReply("0", queue_id, 0)))
        except Exception as error:
            request.fail(error)

    def _not_connected(self, request: Request, client_id: str, why: str) -> BrokerError:
        """Return the error of a reply to a producer without a connection."""
        if request.is_native and self._connections.may_return(client_id, self._clock.boot_ms()):
            return RetryLaterError(why, RETURN_MS)
        return BrokerSystemError(why)
