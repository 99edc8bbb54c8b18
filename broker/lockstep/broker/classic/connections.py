"""The contents of each connection's last HEART_BEAT, and requests to clients. RocketMQ: ProducerManager, ClientChannelInfo.

The member lists have the members; here is what RocketMQ's tools show of them besides, and which producers are connected.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from lockstep.broker.groups.coordination import Coordination
from lockstep.protocol.bodies import ConsumeFromWhere, ConsumerGroup, ConsumeType, HeartbeatBody, MessageModel
from lockstep.protocol.codec.java import LANGUAGES, OWN_LANGUAGE
from lockstep.protocol.errors import DuplicateClientIdError
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.requests.needs import PUB
from lockstep.runtime.requests.request import Request
from lockstep.runtime.security.authenticated_user import ANYBODY, RequestUser
from lockstep.runtime.security.rights import Kind

GROUP_LENGTH_MAX = 255
"""Characters of a producer group's name, as in RocketMQ. A longer name is not kept: nobody checks it otherwise."""


@dataclass(slots=True)
class Consumption:
    """How a member consumes, as its heartbeat says."""

    consume_type: ConsumeType
    message_model: MessageModel
    consume_from_where: ConsumeFromWhere

    @classmethod
    def of(cls, entry: ConsumerGroup) -> "Consumption":
        return cls(entry.consume_type, entry.message_model, entry.consume_from_where)


@dataclass(slots=True)
class ClassicConnection:
    """A connection that has sent HEART_BEAT."""

    endpoint: Endpoint
    client_id: str
    is_native: bool
    language: str
    """One of LANGUAGES."""
    version: int
    heard_ms: int
    """When its last HEART_BEAT came, in ms since 1970."""
    producers: tuple[str, ...] = ()
    """Its producer groups."""
    consumers: dict[str, Consumption] = field(default_factory=dict)
    """Its consumer groups."""
    user: str = ""
    """Who has logged in."""
    rights: RequestUser = ANYBODY
    """What that user may do."""
    checks: frozenset[str] = frozenset()
    """The producer groups for which it is asked how transactions have ended. A client of RocketMQ is asked for all of its groups."""
    is_sender: bool = False
    """Whether it has sent half messages. A client of RocketMQ does not say that it answers to checks."""

    def may_be_asked(self, group: str, topic: str) -> bool:
        """Return whether it may be asked how a transaction of the producer group has ended, of a message of this topic."""
        return group in (self.checks if self.is_native else self.producers) and self.rights.may((PUB,), Kind.TOPIC, topic)


class ClientConnections:
    """The connections that have sent HEART_BEAT."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self._clients: dict[int, ClassicConnection] = {}
        self._by_id: dict[str, dict[int, None]] = {}
        """Client id → its connections."""

    def __iter__(self) -> Iterator[ClassicConnection]:
        return iter(list(self._clients.values()))

    def record(self, request: Request, body: HeartbeatBody, wall_ms: int) -> None:
        """Keep the contents of a HEART_BEAT in place of those of the previous one on its connection.

        Raise DuplicateClientIdError if a client of another user has this client id, or a session that may come back: replies and requests
        to members go by it.
        """
        endpoint, language = request.endpoint, request.language
        if request.is_native:
            language = OWN_LANGUAGE
        known, user = self._clients.get(endpoint.id), request.user.name
        same = next(iter(self._by_id.get(body.client_id, ())), endpoint.id)
        session = self._coordination.state.sessions.of_client(body.client_id)
        of_another = session is not None and session.user not in ("", user)
        if of_another or (same != endpoint.id and self._clients[same].user != user):
            raise DuplicateClientIdError(
                f"client id {body.client_id} is in use by a client of another user: give each client an id of its own"
            )
        if known is None:
            endpoint.on_close.append(self._forget)
        elif known.client_id != body.client_id:
            self._remove(endpoint.id)
        self._clients[endpoint.id] = ClassicConnection(
            endpoint,
            body.client_id,
            request.is_native,
            language if isinstance(language, str) and language in LANGUAGES else "OTHER",
            request.version,
            wall_ms,
            tuple([each.group for each in body.producers if len(each.group) <= GROUP_LENGTH_MAX]),
            {entry.group: Consumption.of(entry) for entry in body.consumers},
            user,
            request.user,
            frozenset(each.group for each in body.producers if each.checks),
            known is not None and known.is_sender,
        )
        self._by_id.setdefault(body.client_id, {})[endpoint.id] = None

    def client_id(self, connection: int) -> str:
        """Return the client id of a connection, or "" if it has sent no HEART_BEAT."""
        known = self._clients.get(connection)
        return "" if known is None else known.client_id

    def sends_halves(self, connection: int) -> None:
        """Note that a connection has sent a half message."""
        if (known := self._clients.get(connection)) is not None:
            known.is_sender = True

    def peer(self, connection: int) -> str:
        """Return the address of a connection, or "" if it has sent no HEART_BEAT."""
        known = self._clients.get(connection)
        return "" if known is None else known.endpoint.peer

    def members(self, group: str) -> list[tuple[str, ClassicConnection]]:
        """Return (client id, connection) of the group's connected members, sorted."""
        status, found = self._coordination.status, []
        for client_id in status.member_ids(group):
            client = self.member(group, client_id)
            if client is not None:
                found.append((client_id, client))
        return found

    def member(self, group: str, client_id: str) -> ClassicConnection | None:
        """Return the connection of a member of the group, or None if it is no member or not connected."""
        connection = self._coordination.status.connection_of(group, client_id)
        return None if connection is None else self._clients.get(connection)

    def producers(self, group: str) -> list[ClassicConnection]:
        """Return the connections that have named this producer group."""
        return [client for client in self if group in client.producers]

    def producer(self, client_id: str) -> ClassicConnection | None:
        """Return the newest connection of a client that has producers, or None.

        Any client of the SDK counts: its next HEART_BEAT, which names a new producer beside older members, may be 30 s away.
        """
        for connection in reversed(self._by_id.get(client_id, {})):
            client = self._clients[connection]
            if (client.producers or client.is_native) and not client.endpoint.closed:
                return client
        return None

    def may_return(self, client_id: str, boot_ms: int) -> bool:
        """Return whether a client of the SDK that is not connected may come back within its grace."""
        return self._coordination.state.sessions.may_return(client_id, boot_ms)

    def _forget(self, endpoint: Endpoint, _reason: str) -> None:
        self._remove(endpoint.id)

    def _remove(self, connection: int) -> None:
        client = self._clients.pop(connection)
        same = self._by_id[client.client_id]
        del same[connection]
        if not same:
            del self._by_id[client.client_id]
