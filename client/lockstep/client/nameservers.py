"""Asking nameservers: several addresses that know nothing of one another, one of them kept while it answers. RocketMQ: NettyRemotingClient.

The list is begun at a random place. One that refuses, closes, times out or has no broker yet (ROUTE_NOT_READY) is left for the next.
"""

from lockstep.protocol.bodies import ClusterInfo, TopicRoute
from lockstep.protocol.codec.msgpack_body import decode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import BrokerError, RouteNotReadyError, TransportError, broker_error
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.offsets import TopicHeader
from lockstep.runtime.endpoint import Endpoint
from lockstep.runtime.host import Host
from lockstep.runtime.link import connect


def not_a_nameserver(address: str, code: int) -> BrokerError:
    """For an answer of REQUEST_CODE_NOT_SUPPORTED: every nameserver knows what is asked of it."""
    what = f"{address} does not know {RequestCode(code).name}: is it a nameserver's address, and not a broker's?"
    return broker_error(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, what)


def _check(response: Command) -> None:
    if response.code != ResponseCode.SUCCESS:
        raise broker_error(response.code, response.remark)


class Nameservers:
    """A sticky connection to one of `addresses`, made when it is asked and lost."""

    def __init__(self, host: Host, addresses: tuple[str, ...], *, timeout_ms: int) -> None:
        self.addresses = addresses
        self.local_ip: str | None = None
        """This machine's address as the first nameserver that answered sees it; None before."""
        self._host = host
        self._timeout_ms = timeout_ms
        self._index = host.random.below(len(addresses))
        self._endpoint: Endpoint | None = None

    async def connect(self) -> None:
        """Reach one of them; TransportError names all that were tried."""
        tried = []
        for _ in self.addresses:
            try:
                await self._connected()
                return
            except TransportError as error:
                tried.append(str(error))
                self._next()
        raise TransportError(f"no nameserver can be reached: {', '.join(tried)}. Is one running there?")

    async def route(self, topic: str) -> TopicRoute:
        """The topic's layout and the addresses known now; of a deleted topic its last layout, which has no queues.

        TopicNotExistError where the nameserver has never heard of it, TransportError where none answers.
        """
        response = await self._ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicHeader(topic))
        if response.code != ResponseCode.TOPIC_NOT_EXIST or not response.body:
            _check(response)
        return decode_body(TopicRoute, response.body)

    async def cluster(self) -> ClusterInfo:
        """Every broker that the nameserver knows."""
        return decode_body(ClusterInfo, (await self.call(RequestCode.GET_BROKER_CLUSTER_INFO)).body)

    async def call(self, code: int, header: object | None = None, body: bytes = b"") -> Command:
        """Ask the kept nameserver, then each other one (a single one twice: its connection may have been lost unseen).

        Raises the BrokerError of an answer that refuses, and what the last one said where none answers.
        """
        response = await self._ask(code, header, body)
        _check(response)
        return response

    async def _ask(self, code: int, header: object | None = None, body: bytes = b"") -> Command:
        fields = None if header is None else to_plain(header)
        last: TransportError | RouteNotReadyError | None = None
        for _ in range(max(2, len(self.addresses))):
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
            self._next()
        assert last is not None
        raise last

    async def close(self) -> None:
        """Close the connection; a later call makes a new one."""
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            endpoint.close("client closed")
            await endpoint.wait_closed()

    def _address(self) -> str:
        return self.addresses[self._index % len(self.addresses)]

    async def _connected(self) -> Endpoint:
        if self._endpoint is None or self._endpoint.closed:
            self._endpoint = endpoint = await connect(self._host, self._address(), timeout_ms=self._timeout_ms)
            self.local_ip = self.local_ip or endpoint.local.rpartition(":")[0]
        return self._endpoint

    def _next(self) -> None:
        """Leave this one for the next; of a single one only the connection."""
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            endpoint.close("another nameserver is asked")
        self._index += 1
