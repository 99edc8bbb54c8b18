"""The one connection of an instance to one broker: the session's connection (ordering.md 1.1). RocketMQ: MQClientAPIImpl.

    DOWN --connect--> HANDSHAKE (HEART_BEAT with the next connection number) --accepted--> UP --closed--> DOWN
                      HANDSHAKE --refused or closed--> DOWN (the pool retries: at once, then with a backoff of at most 1 s)

A link is UP only from the response to HEART_BEAT until that connection closes. While it is not UP, requests are refused at once. It is cut,
and the present address dialed, as soon as the client hears of a higher term of the broker than that of the response (ordering.md 1.10).

The broker may have copies. While the known address does not answer, theirs are dialed too, and the connection is kept that answers under
the highest term (dial_order.py): that copy is the master now. NOT_LEADER leads to the address that it names, else to the next one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from lockstep.protocol.bodies import HeartbeatBody, HeartbeatReply, QueueFreeBody, RegisterReply, RunningInfo
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import BrokerError, RemoteProtocolError, TransportError, without_frames
from lockstep.protocol.fields import from_plain, to_plain
from lockstep.protocol.headers.clients import NotifyHeader
from lockstep.protocol.headers.tools import PushReplyHeader, RunningInfoHeader
from lockstep.protocol.headers.transactions import CheckTransactionHeader
from lockstep.protocol.responses import checked, responsible
from lockstep.protocol.topics.queue import TopicLayout
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.connections.link import Link, Offer
from lockstep.runtime.host import Host
from lockstep.runtime.logs.safe_text import printable
from lockstep.runtime.security.client_security import ClientSecurity

T = TypeVar("T")

SHORTEST_SESSION_MS = 1_000
"""A lockstep broker never ends a session sooner."""


@dataclass(frozen=True, slots=True)
class LinkHooks:
    """The callbacks of a link. All are called on the event loop and must not block."""

    describe: Callable[["BrokerLink", int], HeartbeatBody]
    """Returns the body of the next HEART_BEAT on this link, on the connection of this number."""
    refused: Callable[["BrokerLink", BrokerError], Awaitable[bool]]
    """HEART_BEAT was refused. Returns True if the body has been changed and HEART_BEAT is to be repeated."""
    up: Callable[["BrokerLink", HeartbeatReply], None]
    down: Callable[["BrokerLink"], None]
    heartbeat_reply: Callable[["BrokerLink", HeartbeatReply], None]
    """The broker responded to a later HEART_BEAT of the same connection."""
    notice: Callable[["BrokerLink", NotifyHeader], None]
    queue_free: Callable[["BrokerLink", QueueFreeBody], None]
    layouts_changed: Callable[[Sequence[TopicLayout]], None]
    running_info: Callable[["BrokerLink", RunningInfoHeader], RunningInfo | None]
    """Returns what a consumer of this instance is doing; None if the group has none."""
    reply: Callable[["BrokerLink", PushReplyHeader, bytes], str | None]
    """Takes a consumer's reply to a request. Returns why it is dropped; None if it is not."""
    check: Callable[["BrokerLink", CheckTransactionHeader, bytes], None]
    """Takes the broker's question how the transaction of a half message has ended."""
    unreachable: Callable[["BrokerLink"], None]
    """A connect failed, or the broker is not the leader of its name: the route is to be requested again."""
    heard: Callable[["BrokerLink", int], bool]
    """The broker's response has this term. Returns False if a higher one is known."""


class BrokerLink:
    """One broker, by name. `connection` and `address` are the number and the address of the current (or last) connection, `last_reply` is
    its last response to HEART_BEAT."""

    def __init__(
        self,
        host: Host,
        name: str,
        known: Callable[[], Sequence[str]],
        hooks: LinkHooks,
        *,
        security: ClientSecurity,
        request_timeout_ms: int,
    ) -> None:
        """`known` returns the known addresses of the broker and its copies, the broker's first."""
        self.name = name
        self.connection = 0
        self.address = ""
        self.last_reply: HeartbeatReply | None = None
        self.endpoint: Endpoint | None = None
        """The connection while the link is UP, otherwise None."""
        self.why_down = "it is being connected"
        """Why it is not UP: why the last connection ended, or the last attempt failed."""
        self._hooks = hooks
        self._known = known
        self._drawn = 0
        """The highest number of a connection."""
        self._named: str | None = None
        """The master's address by a response NOT_LEADER to this attempt, or to the connection before it."""
        self._left: str | None = None
        """The address of the connection before, if that has responded NOT_LEADER."""
        self._request_timeout_ms = request_timeout_ms
        self._attempted = asyncio.Event()
        self._link = Link(
            host,
            self._addresses,
            security=security,
            on_connected=self._handshake,
            on_refused=self._refused,
            on_lost=self._lost,
            handler=self._inbound,
            name=f"broker {name}",
        )
        self._link.start()

    def __repr__(self) -> str:
        return f"BrokerLink({self.name}, connection {self.connection}, {'up' if self.up else 'down'})"

    @property
    def up(self) -> bool:
        return self.endpoint is not None and not self.endpoint.closed

    @property
    def grace_ms(self) -> int:
        """Return the broker's `disconnect_grace_ms` from its last response to HEART_BEAT; 3,000 before the first."""
        return 3_000 if self.last_reply is None else self.last_reply.disconnect_grace_ms

    @property
    def session_timeout_ms(self) -> int:
        """Return the silence after which the broker ends the session, by its last response to HEART_BEAT; the shortest before the first."""
        return SHORTEST_SESSION_MS if self.last_reply is None else max(SHORTEST_SESSION_MS, self.last_reply.session_timeout_ms)

    async def wait_first_attempt(self) -> bool:
        """Wait until the link is up or a connect has failed. Return `up`."""
        await self._attempted.wait()
        return self.up

    async def wait_up(self, timeout_ms: int) -> None:
        """Wait until the link is up. Raise TransportError after `timeout_ms`."""
        await self._link.endpoint(timeout_ms)

    def request(
        self, code: int, header: object | None = None, body: object | bytes | None = None, *, timeout_ms: int | None = None
    ) -> asyncio.Future[Command]:
        """Write a request. Return the future of its response, whatever its code.

        `header` is a header dataclass, `body` bytes or a body dataclass. The future raises TransportError or RequestTimeoutError.

        Raises:
            TransportError: The link is down.
        """
        raw = body if isinstance(body, bytes | bytearray | memoryview) else b"" if body is None else encode_body(body)
        fields = None if header is None else to_plain(header)
        return self._open().request(code, fields, raw, timeout_ms=self._request_timeout_ms if timeout_ms is None else timeout_ms)

    def request_then(self, code: int, header: object, handle: Callable[[Command], T], *, timeout_ms: int) -> asyncio.Future[T]:
        """Write a request. Return the future of what `handle` returns for its response, or of the error that it raises.

        `handle` is called in the callback in which the response is received, an iteration of the loop before a task that awaits the
        response would run. It is not called if the future was cancelled.

        Raises:
            TransportError: The link is down.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        on_result = partial(_handle_result, future, handle)
        self._open().send_request(code, to_plain(header), b"", timeout_ms=timeout_ms, on_result=on_result)
        return future

    def _open(self) -> Endpoint:
        """Return the connection. Raise TransportError if the link is down."""
        endpoint = self.endpoint
        if endpoint is None or endpoint.closed:
            raise TransportError(f"broker {self.name} is not connected")
        return endpoint

    async def call(
        self, code: int, header: object | None = None, body: object | bytes | None = None, *, timeout_ms: int | None = None
    ) -> Command:
        """Return the response to a request. Raise the BrokerError of its code unless that is SUCCESS."""
        return checked(await self.request(code, header, body, timeout_ms=timeout_ms))

    def oneway(self, code: int, header: object | None = None, body: object | bytes | None = None) -> None:
        """Write a request that has no response. Raise TransportError if the link is down."""
        raw = body if isinstance(body, bytes | bytearray | memoryview) else b"" if body is None else encode_body(body)
        self._open().oneway(code, None if header is None else to_plain(header), raw)

    async def heartbeat(self) -> HeartbeatReply:
        """Send HEART_BEAT now. Raise BrokerError if it is refused, TransportError without a response.

        Raise RemoteProtocolError if the response is invalid, or its sender is not the broker any more: then the link is cut.
        """
        endpoint = self._open()
        try:
            reply = await self._send_heartbeat(endpoint, self.connection)
        except RemoteProtocolError as error:
            endpoint.abort(str(error))
            raise
        if self.endpoint is endpoint:
            self.last_reply = reply
            self._hooks.heartbeat_reply(self, reply)
        return reply

    def reconnect(self, reason: str) -> None:
        """Close the connection (its session binding is then unproven) and connect again at once."""
        if self.endpoint is not None:
            self.endpoint.abort(reason)

    def follow(self, term: int) -> None:
        """Connect to the broker's present address now, unless the link is up under this term: it is the highest known one."""
        self._named = self._left = None
        if self.last_reply is not None and self.last_reply.term < term:
            self.reconnect(f"the broker has term {term} now, this connection was under term {self.last_reply.term}")
        self._link.retry()

    def _addresses(self) -> Sequence[str]:
        """Return the addresses to dial, in this order."""
        known = sorted(self._known(), key=lambda address: address == self._left)
        return known if self._named is None else list(dict.fromkeys((self._named, *known)))

    async def close(self) -> None:
        """Flush, close, and stop connecting."""
        await self._link.close()

    def abandon(self) -> None:
        """Close the connection of a link whose event loop is closed."""
        self.endpoint = None
        self._link.abandon()

    async def _send_heartbeat(self, endpoint: Endpoint, connection: int) -> HeartbeatReply:
        body = encode_body(self._hooks.describe(self, connection))
        response = await endpoint.request(RequestCode.HEART_BEAT, None, body, timeout_ms=self._request_timeout_ms)
        if response.code == ResponseCode.NOT_LEADER:
            raise self._route_is_old(endpoint, f"a broker that is not its leader responded ({response.remark})")
        reply = decode_body(HeartbeatReply, checked(response).body)
        if reply.broker_name != self.name:
            raise self._route_is_old(endpoint, f"{printable(reply.broker_name)} responded")
        if not self._hooks.heard(self, reply.term):
            raise self._route_is_old(endpoint, f"its start of term {reply.term} responded, and a later one is known")
        return reply

    def _route_is_old(self, endpoint: Endpoint, found: str) -> RemoteProtocolError:
        return RemoteProtocolError(f"expected broker {self.name} at {endpoint.peer}, but {found}: the route is out of date")

    async def _handshake(self, endpoint: Endpoint) -> Offer:
        self._drawn = connection = self._drawn + 1
        endpoint.on_not_leader = partial(self._not_leader, endpoint)
        try:
            reply = await self._send_heartbeat(endpoint, connection)
        except BrokerError as error:
            if not await self._hooks.refused(self, error):
                raise
            reply = await self._send_heartbeat(endpoint, connection)
        # A broker that was dialed at two addresses has bound the session to the later connection.
        return Offer((reply.term, connection), partial(self._keep, endpoint, connection, reply))

    def _keep(self, endpoint: Endpoint, connection: int, reply: HeartbeatReply, address: str) -> None:
        if not self._hooks.heard(self, reply.term):
            endpoint.abort(f"its term {reply.term} is over")  # another one has been heard of since it has responded
            return
        self.endpoint, self.connection, self.last_reply, self.address = endpoint, connection, reply, address
        self._named = self._left = None
        self._attempted.set()
        self._hooks.up(self, reply)

    def _not_leader(self, endpoint: Endpoint, response: Command) -> None:
        """Go where the master is, by a response of whoever is not: its address if that is named, else the other known ones."""
        address, term = responsible(response)
        if term is not None and not self._hooks.heard(self, term):
            address = term = None  # another one has replaced that master
        self._hooks.unreachable(self)
        if address is not None:
            self._named = address
        if endpoint is not self.endpoint:
            if address is not None:
                self._link.dial_too(address)
            return
        is_replaced = term is not None and self.last_reply is not None and term > self.last_reply.term
        if is_replaced or any(each != self.address for each in self._addresses()):
            self._left = self.address
            self.reconnect(f"the broker is not the leader ({response.remark})")

    def _refused(self) -> None:
        self._named = self._left = None
        self.why_down = str(self._link.last_error)
        self._attempted.set()
        self._hooks.unreachable(self)

    def _lost(self, endpoint: Endpoint, reason: str) -> None:
        if self.endpoint is endpoint:
            self.endpoint = None
            self.why_down = reason
            self._hooks.down(self)

    def _running_info(self, command: Command) -> Command:
        header = from_plain(RunningInfoHeader, command.fields)
        info = self._hooks.running_info(self, header)
        if info is None:
            return command.reply(ResponseCode.CONSUMER_NOT_ONLINE, f"this client has no member of group {header.consumer_group}")
        return command.reply(body=encode_body(info))

    def _reply(self, command: Command) -> Command:
        dropped = self._hooks.reply(self, from_plain(PushReplyHeader, command.fields), bytes(command.body))
        return command.reply() if dropped is None else command.reply(ResponseCode.SYSTEM_ERROR, dropped)

    def _inbound(self, command: Command, endpoint: Endpoint) -> None:
        try:
            if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
                self._hooks.notice(self, from_plain(NotifyHeader, command.fields))
            elif command.code == RequestCode.QUEUE_FREE:
                self._hooks.queue_free(self, decode_body(QueueFreeBody, command.body))
            elif command.code == RequestCode.LAYOUTS_CHANGED:
                self._hooks.layouts_changed(decode_body(RegisterReply, command.body).layouts)
            elif command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
                endpoint.send(self._running_info(command))
            elif command.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
                endpoint.send(self._reply(command))
            elif command.code == RequestCode.CHECK_TRANSACTION_STATE:
                self._hooks.check(self, from_plain(CheckTransactionHeader, command.fields), bytes(command.body))
            elif not command.is_oneway:
                remark = f"a client does not handle requests of code {command.code}"
                endpoint.send(command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))
        except RemoteProtocolError as error:
            endpoint.abort(f"broker {self.name} sent an invalid request of code {command.code}: {error}")


def _handle_result(future: asyncio.Future[T], handle: Callable[[Command], T], result: Command | Exception) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
        return
    try:
        handled = handle(result)
    except Exception as error:  # re-raised by the future
        if not future.done():
            future.set_exception(without_frames(error))
        return
    if not future.done():  # `handle` may have cancelled it
        future.set_result(handled)
