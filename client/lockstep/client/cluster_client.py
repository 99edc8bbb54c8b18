"""Requests to the servers of one cluster, whoever sends them: the SDK, the commands, Spark. RocketMQ: NettyRemotingClient.

Nameservers are independent of each other. One of them is asked, as long as it responds. If it refuses the connection, closes it, does not
respond in time or knows no broker yet (ROUTE_NOT_READY), its connection is dropped and the next one is asked.

A request has a connection of its own, unless connections are kept (kept_connection.py). The connection of a session is another thing: see
broker_link.py.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from lockstep.client.kept_connection import KeptConnection
from lockstep.protocol.bodies import BrokerAddress, ClusterInfo, TopicList, TopicRoute
from lockstep.protocol.codec.msgpack_body import decode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import RequestCodeNotSupportedError, RouteNotReadyError, TransportError
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.offsets import TopicHeader
from lockstep.protocol.responses import checked
from lockstep.runtime.connections.dial import CONNECT_MS, call
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.host import Host
from lockstep.runtime.security.client_security import ClientSecurity

T = TypeVar("T")


class ClusterClient:
    """Sends requests to the nameservers of a cluster, and to any other address."""

    def __init__(
        self,
        host: Host,
        nameservers: tuple[str, ...],
        *,
        security: ClientSecurity,
        timeout_ms: int,
        first: int = 0,
        tries: int | None = None,
    ) -> None:
        """`first`: the position of the nameserver that is asked first. `tries`: how often a request is sent to nameservers until one
        responds; None: to each once."""
        self.nameservers = nameservers
        self.local_ip: str | None = None
        """This machine's address as the first server that was connected sees it, of those to which connections are kept; None before."""
        self._host = host
        self._security = security
        self._timeout_ms = timeout_ms
        self._tries = tries or len(nameservers)
        self._asked = first
        """The number of the nameserver that is asked: its position, counted on from the end of the list to its beginning."""
        self._kept: dict[str, KeptConnection] | None = None
        """By address; None while no connections are kept."""
        self._kept_by = 0
        self._redial_ms: int | None = None

    # ------------------------------------------------------------------------------------------------------------ connections

    def keep(self, redial_ms: int | None) -> None:
        """Keep one connection for each address until `close` was called as often as this. An address that can't be dialled is not dialled
        again for `redial_ms`, or if it is None, never."""
        self._kept_by += 1
        if redial_ms is not None:
            self._redial_ms = redial_ms
        if self._kept is None:
            self._kept = {}

    async def close(self) -> None:
        """End a `keep`. The last one closes the connections."""
        self._kept_by -= 1
        if self._kept_by > 0 or self._kept is None:
            return
        kept, self._kept, self._redial_ms = self._kept, None, None
        for connection in kept.values():
            connection.end()
        for connection in kept.values():  # after the end of all: this may be cancelled
            await connection.wait_ended()

    def abandon(self) -> None:
        """Close the kept connections of an event loop that is closed."""
        kept, self._kept = self._kept or {}, None
        for connection in kept.values():
            connection.abandon()

    async def request(self, address: str, code: int, header: object | None = None, body: bytes = b"", *, hold_ms: int = 0) -> Command:
        """Return the response of the server at an address, whatever its code. Raise TransportError or RequestTimeoutError.

        `hold_ms`: how long the server may hold the request, in addition to the time in which others are responded to.
        """
        fields = None if header is None else to_plain(header)
        timeout_ms = self._timeout_ms + hold_ms
        if self._kept is None:
            return await call(self._host, address, code, fields, body, security=self._security, timeout_ms=timeout_ms)
        endpoint = await self._open(address)
        return await endpoint.request(code, fields, body, timeout_ms=timeout_ms)

    async def _open(self, address: str) -> Endpoint:
        if self._kept is None:
            raise TransportError(f"{address}: the client was closed")
        if address not in self._kept:
            dial_ms = min(self._timeout_ms, CONNECT_MS)
            self._kept[address] = KeptConnection(self._host, address, security=self._security, dial_ms=dial_ms, redial_ms=self._redial_ms)
        endpoint = await self._kept[address].open()
        self.local_ip = self.local_ip or endpoint.local.rpartition(":")[0]
        return endpoint

    # ------------------------------------------------------------------------------------------------------------ nameservers

    async def connect(self) -> None:
        """Connect to a nameserver, and keep the connection. Raise a TransportError that names all that were tried."""
        await self._first(self._open, len(self.nameservers), "can be reached")

    async def ask(self, code: RequestCode, header: object | None = None) -> Command:
        """Return the response of a nameserver, whatever its code.

        Raises:
            TransportError: No nameserver responds.
            RouteNotReadyError: Those that respond know no broker.
            RequestCodeNotSupportedError: The server is no nameserver.
        """
        return await self._first(partial(self.ask_at, code=code, header=header), self._tries, "responds")

    async def ask_at(self, address: str, code: RequestCode, header: object | None = None) -> Command:
        """Return the response of one nameserver. Raise the errors of `ask`."""
        response = await self.request(address, code, header)
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # every nameserver supports these requests
            what = f"{address} does not know {RequestCode(code).name}: is it a nameserver's address, and not a broker's?"
            raise RequestCodeNotSupportedError(what)
        if response.code == ResponseCode.ROUTE_NOT_READY:
            raise RouteNotReadyError(
                f"nameserver {address} knows no broker yet: none has registered since it started. "
                f"Start one with `lockstep broker --nameserver {address} …`"
            )
        return response

    async def brokers(self) -> tuple[BrokerAddress, ...]:
        """Return every broker that the nameserver knows. Raise the errors of `ask`."""
        return decode_body(ClusterInfo, checked(await self.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).body).brokers

    async def topics(self) -> tuple[str, ...]:
        """Return every topic of the cluster except deleted and system ones, sorted. Raise the errors of `ask`."""
        return decode_body(TopicList, checked(await self.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).body).topics

    async def route(self, topic: str, *, deleted: bool = False) -> TopicRoute:
        """Return the topic's layout and the brokers' present addresses. Raise TopicNotExistError, or the errors of `ask`.

        `deleted`: of a deleted topic return the last layout, which has no queues.
        """
        response = await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicHeader(topic))
        if not (deleted and response.code == ResponseCode.TOPIC_NOT_EXIST and response.body):
            checked(response)
        return decode_body(TopicRoute, response.body)

    async def _first(self, attempt: Callable[[str], Awaitable[T]], tries: int, what: str) -> T:
        """Return the result of the first nameserver for which `attempt` succeeds."""
        failed: dict[str, str] = {}
        known = True
        begin = self._asked
        for number in range(begin, begin + tries):
            address = self.nameservers[number % len(self.nameservers)]
            try:
                return await attempt(address)
            except TransportError as error:
                failed[address] = str(error)
            except RouteNotReadyError as error:
                failed[address], known = error.remark, False
            self._leave(number)
        reasons = "; ".join(failed.values())
        if not known:
            raise RouteNotReadyError(reasons)
        raise TransportError(f"no nameserver {what}: {reasons}. Check that one is running there, or pass another address")

    def _leave(self, number: int) -> None:
        """Ask the next nameserver from now on, unless another request has left this one. If it is the only one, use a new connection: this
        one may be lost without notice."""
        if self._asked != number:
            return
        self._asked += 1
        connection = (self._kept or {}).get(self.nameservers[number % len(self.nameservers)])
        if connection is not None:
            connection.drop("another nameserver is asked")
