"""Sessions: one per client start, each bound to one connection (ordering.md 1.1, 1.2, 1.8).

Sessions are not durable. After a start they are those that the recorded members and grants name.

HEART_BEAT of a session with connection number n on connection c:

| the session here             | n                       | result                                                          |
|------------------------------|-------------------------|-----------------------------------------------------------------|
| unknown                      | any                     | BOUND to c                                                      |
| bound to c                   | not below its own       | BOUND to c                                                      |
| bound to another, or closed  | above its own           | BOUND to c; the caller closes the older connection              |
| any                          | any other               | OLD: the caller closes c without a response                     |
| of another client id or user, or c is another session's  | any | FOREIGN: the caller closes c without a response         |

A second session of one client id is a DUPLICATE while the first one is connected. During the grace of the first one the second one is
bound and takes its place in the member lists; the locks of the first one remain until it ends.

A session, and with it its client id, belongs to the user who began it, whose name is a part of its id here and in the log: another user can
neither bind it nor take the place of its client id. One that began without a login belongs to the first user who binds it.
A session ends when its connection has been closed for the grace, or when nothing was received from it for the session timeout.
"""

from dataclasses import dataclass
from enum import Enum

USER_MARK = "@"
"""Between the id that a client sends, which is hexadecimal, and the name of its user."""


def _own_id(session_id: str, user: str) -> str:
    """Return the id of a user's session, by the id that the client sends. Without a login they are the same."""
    return f"{session_id}{USER_MARK}{user}" if user else session_id


@dataclass(slots=True, eq=False)
class Session:
    """One start of a client.

    `number` is the number of the connection that the session is, or was last, bound to. `connection` is None since `closed_ms`, when the
    connection was closed.
    """

    id: str
    client_id: str
    connection: int | None
    number: int
    received_ms: int
    closed_ms: int
    user: str = ""
    """The user to whom it belongs; an empty text if nobody has logged in."""


class SessionRefusal(Enum):
    OLD = "its session has a newer connection"
    FOREIGN = "its session has another client id or user, or the connection another session"
    DUPLICATE = "a connected session, or one of another user, has this client id"


@dataclass(frozen=True, slots=True)
class BoundSession:
    session: Session
    older_connection: int | None
    """The previous connection of the session, which the caller closes without reading the rest of it."""


class SessionTable:
    """A table of session id → session, with the connection that each session is bound to."""

    def __init__(self, *, grace_ms: int, timeout_ms: int) -> None:
        assert timeout_ms >= grace_ms, "a silent client stops its calls only when the grace is over"
        self._grace_ms = grace_ms
        self._timeout_ms = timeout_ms
        self._no_expiry_before_ms: int | None = None
        """No session ends before this time: an earlier start of the broker may have promised a longer grace."""
        self._by_id: dict[str, Session] = {}
        self._by_connection: dict[int, Session] = {}
        self._by_client: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, session_id: str | None) -> Session | None:
        return None if session_id is None else self._by_id.get(session_id)

    def find(self, session_id: str, user: str) -> Session | None:
        """Return the session of a user by the id that the client sends. One that began without a login is found by every user."""
        return self._by_id.get(_own_id(session_id, user)) or self._by_id.get(session_id)

    def of_client(self, client_id: str) -> Session | None:
        """Return the newest session of a client id."""
        return self._by_client.get(client_id)

    def may_return(self, client_id: str, now_ms: int) -> bool:
        """Return whether a client that is not connected may come back: its session has not ended, or clients of an earlier start of the
        broker still have their grace."""
        return client_id in self._by_client or (self._no_expiry_before_ms is not None and now_ms < self._no_expiry_before_ms)

    def session_on(self, connection: int) -> Session | None:
        """Return the session that is bound to this connection."""
        return self._by_connection.get(connection)

    def restore_session(self, session_id: str, client_id: str, now_ms: int) -> None:
        """Add a session that the log names. It has the grace from now on to reconnect, and any connection number binds it."""
        if session_id not in self._by_id:
            session = Session(session_id, client_id, None, -1, now_ms, now_ms, session_id.partition(USER_MARK)[2])
            self._by_id[session_id] = session
            self._by_client[client_id] = session

    def bind(
        self, session_id: str, client_id: str, *, connection: int, number: int, now_ms: int, user: str = ""
    ) -> BoundSession | SessionRefusal:
        """Bind a session to the connection of a HEART_BEAT. The table above has the results."""
        bound_here = self._by_connection.get(connection)
        session = self.find(session_id, user)
        if (bound_here is not None and bound_here is not session) or (session is not None and session.client_id != client_id):
            return SessionRefusal.FOREIGN
        if session is not None and session.user not in ("", user):
            return SessionRefusal.FOREIGN
        if session is not None and (number < session.number or (number == session.number and session.connection != connection)):
            return SessionRefusal.OLD
        other = self._by_client.get(client_id)
        if other is not None and other is not session and (other.connection is not None or other.user not in ("", user)):
            return SessionRefusal.DUPLICATE
        if session is None:
            own = _own_id(session_id, user)
            session = self._by_id[own] = Session(own, client_id, None, number, now_ms, now_ms)
        older = session.connection if session.connection != connection else None
        if older is not None:
            del self._by_connection[older]
        self._by_client[client_id] = session
        self._by_connection[connection] = session
        session.connection, session.number, session.received_ms, session.user = connection, number, now_ms, user
        return BoundSession(session, older)

    def touch(self, connection: int, now_ms: int) -> Session | None:
        """Record that data arrived on this connection. Return the session that is bound to it."""
        session = self._by_connection.get(connection)
        if session is not None:
            session.received_ms = now_ms
        return session

    def unbind(self, connection: int, now_ms: int) -> Session | None:
        """Record that the connection was closed. Return the session that was bound to it, or None if there was none."""
        session = self._by_connection.pop(connection, None)
        if session is not None:
            session.connection, session.closed_ms = None, now_ms
        return session

    def remove(self, session: Session) -> None:
        """Remove a session that has ended."""
        self._by_id.pop(session.id, None)
        if session.connection is not None:
            self._by_connection.pop(session.connection, None)
        if self._by_client.get(session.client_id) is session:
            del self._by_client[session.client_id]

    def due_ms(self, session: Session) -> int:
        """Return when the session ends if nothing more is received from it."""
        due_ms = session.received_ms + self._timeout_ms
        if session.connection is None:
            due_ms = min(due_ms, session.closed_ms + self._grace_ms)
        return due_ms if self._no_expiry_before_ms is None else max(due_ms, self._no_expiry_before_ms)

    def expired_sessions(self, now_ms: int) -> list[Session]:
        """Return the sessions that have ended."""
        return [session for session in self._by_id.values() if self.due_ms(session) <= now_ms]

    def next_due_ms(self) -> int | None:
        return min(map(self.due_ms, self._by_id.values()), default=None)

    def exclude_pause(self, pause_ms: int, now_ms: int) -> None:
        """Exclude a pause of this process from the silence of its clients: it could receive nothing for `pause_ms` (ordering.md 1.7)."""
        for session in self._by_id.values():
            session.received_ms = min(session.received_ms + pause_ms, now_ms)
            session.closed_ms = min(session.closed_ms + pause_ms, now_ms)

    def restart_timeouts(self, now_ms: int, no_expiry_before_ms: int) -> None:
        """Start every grace again, because the port opens now. No session ends before `no_expiry_before_ms`."""
        self._no_expiry_before_ms = no_expiry_before_ms
        for session in self._by_id.values():
            session.received_ms = session.closed_ms = now_ms

    def postpone_expiry(self, no_expiry_before_ms: int) -> None:
        """Let no session end before this time."""
        self._no_expiry_before_ms = max(no_expiry_before_ms, self._no_expiry_before_ms or 0)
