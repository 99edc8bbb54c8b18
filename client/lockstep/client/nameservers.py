"""Requests to nameservers: several addresses that are independent of each other, one of which is kept while it responds. RocketMQ:
NettyRemotingClient.

The list is begun at a random position. A nameserver that refuses, closes, times out or knows no broker yet (ROUTE_NOT_READY) is skipped.
"""

import asyncio

from lockstep.protocol.bodies import ClusterInfo, TopicRoute
from lockstep.protocol.codec.msgpack_body import decode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import BrokerError, RouteNotReadyError, TransportError, broker_error
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.offsets import TopicHeader
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.endpoint import Endpoint
from lockstep.runtime.host import Host
from lockstep.runtime.link import connect


def not_a_nameserver(address: str, code: int) -> BrokerError:
    """Return the error for REQUEST_CODE_NOT_SUPPORTED: every nameserver supports these requests, so this is another server."""
    what = f"{address} does not know {RequestCode(code).name}: is it a nameserver's address, and not a broker's?"
    return broker_error(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, what)


def _check(response: Command) -> None:
    if response.code != ResponseCode.SUCCESS:
        raise broker_error(response.code, response.remark)


class Nameservers:
    """A connection to one of `addresses`, opened by a request and kept while it responds."""

    def __init__(self, host: Host, addresses: tuple[str, ...], *, timeout_ms: int) -> None:
        self.addresses = addresses
        self.local_ip: str | None = None
        """This machine's address as the first nameserver that responded sees it; None before."""
        self._host = host
        self._timeout_ms = timeout_ms
        self._index = host.random.below(len(addresses))
        self._endpoint: Endpoint | None = None
        self._opening: asyncio.Task[TransportError | None] | None = None
        """The one attempt to connect, for which all requests wait."""
        self._tasks = Tasks()

    async def connect(self) -> None:
        """Connect to one of them. Raise a TransportError that names all that were tried."""
        tried = []
        for _ in self.addresses:
            index = self._index
            try:
                await self._connected()
                return
            except TransportError as error:
                tried.append(str(error))
                self._leave(index)
        raise TransportError(f"no nameserver can be reached: {', '.join(tried)}. Is one running there?")

    async def route(self, topic: str) -> TopicRoute:
        """Return the topic's layout and the brokers' present addresses; for a deleted topic its last layout, which has no queues.

        Raises:
            TopicNotExistError: The nameserver does not know the topic.
            TransportError: No nameserver responds.
        """
        response = await self._request(RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicHeader(topic))
        if response.code != ResponseCode.TOPIC_NOT_EXIST or not response.body:
            _check(response)
        return decode_body(TopicRoute, response.body)

    async def cluster(self) -> ClusterInfo:
        """Return every broker that the nameserver knows."""
        return decode_body(ClusterInfo, (await self.call(RequestCode.GET_BROKER_CLUSTER_INFO)).body)

    async def call(self, code: int, header: object | None = None, body: bytes = b"") -> Command:
        """Send a request to the kept nameserver, then to each other one (a single one twice: its connection may have been lost unnoticed).

        Raises:
            BrokerError: A nameserver refused the request.
            TransportError: No nameserver responds. It is the error of the last one.
        """
        response = await self._request(code, header, body)
        _check(response)
        return response

    async def _request(self, code: int, header: object | None = None, body: bytes = b"") -> Command:
        fields = None if header is None else to_plain(header)
        last: TransportError | RouteNotReadyError | None = None
        for _ in range(max(2, len(self.addresses))):
            index = self._index
            try:
                endpoint = await self._connected()
                response = await endpoint.request(code, fields, body, timeout_ms=self._timeout_ms)
            except TransportError as error:
                last = TransportError(f"nameserver {error}")
            else:
                if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise not_a_nameserver(self._address(), code)
                if response.code != ResponseCode.ROUTE_NOT_READY:
                    return response
                last = RouteNotReadyError(f"nameserver {self._address()} knows no broker yet: none has registered since it started")
            self._leave(index)
        assert last is not None
        try:
            raise last
        finally:
            del last  # its traceback holds this frame

    async def close(self) -> None:
        """Close the connection. A later call opens a new one."""
        await self._tasks.cancel_all()
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            endpoint.close("client closed")
            await endpoint.wait_closed()

    def abandon(self) -> None:
        """Close the connection of an event loop that is closed."""
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            endpoint.abandon()

    def _address(self) -> str:
        return self.addresses[self._index % len(self.addresses)]

    async def _connected(self) -> Endpoint:
        """Return the kept connection, or open one: requests at the same time share it. Raise TransportError if that fails."""
        while self._endpoint is None or self._endpoint.closed:
            if self._opening is None or self._opening.done():
                self._opening = self._tasks.spawn(self._open(), f"nameserver {self._address()}")
            opening = self._opening
            await asyncio.wait([opening])  # a request that is cancelled leaves the others their connection
            if opening.cancelled():
                raise TransportError("the client was closed")
            failed = opening.result()
            if failed is not None:
                raise TransportError(str(failed))
        return self._endpoint

    async def _open(self) -> TransportError | None:
        try:
            self._endpoint = endpoint = await connect(self._host, self._address(), timeout_ms=self._timeout_ms)
        except TransportError as error:
            return error
        self.local_ip = self.local_ip or endpoint.local.rpartition(":")[0]
        return None

    def _leave(self, index: int) -> None:
        """Switch to the nameserver after that of `index`, unless another request has done so; if there is only one, drop its connection."""
        if self._index != index:
            return
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            endpoint.close("another nameserver is asked")
        self._index += 1
