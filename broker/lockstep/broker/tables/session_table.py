"""Sessions: one per client start, each bound to one connection (ordering.md 1.1, 1.2, 1.8).

They are not durable: after a start the sessions are those that recorded members and grants name.

HEART_BEAT of a session with connection number n on connection c:

| the session here             | n                       | result                                             |
|------------------------------|-------------------------|----------------------------------------------------|
| unknown                      | any                     | BOUND to c                                         |
| bound to c                   | not below its own       | BOUND to c                                         |
| bound to another, or closed  | above its own           | BOUND to c; the older connection is to be closed   |
| any                          | anything else           | OLD: c is to be closed unanswered                  |
| of another client id, or c is another session's | any  | FOREIGN: c is to be closed unanswered              |

A second session of one client id is a DUPLICATE while the first one is connected. While that is in its grace the second one is bound, and
takes its place on the lists; the first one's locks stay until it is over.
A session is over when its connection has been closed for the grace, or when nothing was heard of it for the session timeout.
"""

from dataclasses import dataclass
from enum import Enum


@dataclass(slots=True, eq=False)
class Session:
    """`number` is the connection number that it is (or was last) bound by; `connection` None: closed since `closed_ms`."""

    id: str
    client_id: str
    connection: int | None
    number: int
    received_ms: int
    closed_ms: int


class SessionRefusal(Enum):
    OLD = "its session has a newer connection"
    FOREIGN = "its session has another client id, or the connection another session"
    DUPLICATE = "a living session has this client id"


@dataclass(frozen=True, slots=True)
class BoundSession:
    session: Session
    older_connection: int | None
    """The session's connection until now: to be closed, unread."""


class SessionTable:
    """Session id → session, with the connection that each is bound to."""

    def __init__(self, *, grace_ms: int, timeout_ms: int) -> None:
        assert timeout_ms >= grace_ms, "a silent client stops by itself only when the grace is over"
        self._grace_ms = grace_ms
        self._timeout_ms = timeout_ms
        self._no_expiry_before_ms: int | None = None
        """Nobody's session is over before this: an earlier start of the broker may have told a longer grace."""
        self._by_id: dict[str, Session] = {}
        self._by_connection: dict[int, Session] = {}
        self._by_client: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, session_id: str | None) -> Session | None:
        return None if session_id is None else self._by_id.get(session_id)

    def session_on(self, connection: int) -> Session | None:
        """The session whose connection this is now."""
        return self._by_connection.get(connection)

    def restore_session(self, session_id: str, client_id: str, now_ms: int) -> None:
        """A session that the log names: it has the grace from now to come back. Any connection number binds it."""
        if session_id not in self._by_id:
            session = Session(session_id, client_id, None, -1, now_ms, now_ms)
            self._by_id[session_id] = session
            self._by_client[client_id] = session

    def bind(self, session_id: str, client_id: str, *, connection: int, number: int, now_ms: int) -> BoundSession | SessionRefusal:
        """The table above."""
        bound_here = self._by_connection.get(connection)
        session = self._by_id.get(session_id)
        if (bound_here is not None and bound_here is not session) or (session is not None and session.client_id != client_id):
            return SessionRefusal.FOREIGN
        if session is not None and (number < session.number or (number == session.number and session.connection != connection)):
            return SessionRefusal.OLD
        other = self._by_client.get(client_id)
        if other is not None and other is not session and other.connection is not None:
            return SessionRefusal.DUPLICATE
        if session is None:
            session = self._by_id[session_id] = Session(session_id, client_id, None, number, now_ms, now_ms)
        older = session.connection if session.connection != connection else None
        if older is not None:
            del self._by_connection[older]
        self._by_client[client_id] = session
        self._by_connection[connection] = session
        session.connection, session.number, session.received_ms = connection, number, now_ms
        return BoundSession(session, older)

    def touch(self, connection: int, now_ms: int) -> Session | None:
        """Something arrived on this connection; the session whose connection it is."""
        session = self._by_connection.get(connection)
        if session is not None:
            session.received_ms = now_ms
        return session

    def unbind(self, connection: int, now_ms: int) -> Session | None:
        """The session that had this connection; None where the close means nothing."""
        session = self._by_connection.pop(connection, None)
        if session is not None:
            session.connection, session.closed_ms = None, now_ms
        return session

    def remove(self, session: Session) -> None:
        """The session is over."""
        self._by_id.pop(session.id, None)
        if session.connection is not None:
            self._by_connection.pop(session.connection, None)
        if self._by_client.get(session.client_id) is session:
            del self._by_client[session.client_id]

    def due_ms(self, session: Session) -> int:
        """When the session is over if nothing happens."""
        due_ms = session.received_ms + self._timeout_ms
        if session.connection is None:
            due_ms = min(due_ms, session.closed_ms + self._grace_ms)
        return due_ms if self._no_expiry_before_ms is None else max(due_ms, self._no_expiry_before_ms)

    def expired_sessions(self, now_ms: int) -> list[Session]:
        """The sessions that are over."""
        return [session for session in self._by_id.values() if self.due_ms(session) <= now_ms]

    def next_due_ms(self) -> int | None:
        return min(map(self.due_ms, self._by_id.values()), default=None)

    def exclude_pause(self, pause_ms: int, now_ms: int) -> None:
        """This process stood still for `pause_ms` and could hear nobody: that was no silence of theirs."""
        for session in self._by_id.values():
            session.received_ms = min(session.received_ms + pause_ms, now_ms)
            session.closed_ms = min(session.closed_ms + pause_ms, now_ms)

    def restart_timeouts(self, now_ms: int, spared_until_ms: int) -> None:
        """The port opens now: who is not connected has the grace from here, and nobody is over before `spared_until_ms`."""
        self._no_expiry_before_ms = spared_until_ms
        for session in self._by_id.values():
            session.received_ms = session.closed_ms = now_ms
