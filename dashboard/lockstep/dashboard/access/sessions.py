"""The sessions of browsers that have logged in. Each has a client of the cluster that logs in as its user.

In memory are, of each session, a digest of the cookie, the user's name, and the salted password, by which the servers of this cluster let
the user in. The password itself is forgotten when the login is over, the rest when the session ends: by a logout, SESSION_S after its
begin, when a server refuses the user, when SESSIONS_MAX newer ones have begun, or with the process.

A session is for who may see all topics and groups, because the pages that all users share show them. A nameserver is asked for that at the
login, and again every CHECK_MS while the session is used. As long as none responds, sessions go on.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from starlette.requests import Request

from lockstep.operations.admin_client import AdminClient
from lockstep.protocol.errors import AuthenticationError, LockstepError, NoPermissionError
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.security.credentials import Credentials

SESSIONS_MAX = 64
SESSION_S = 8 * 3_600
CHECK_MS = 5_000
CHECK_WAIT_S = 1.0
"""How long a page waits for the answer of a nameserver about its user."""
TOKEN_BYTES = 32
SESSION = "lockstep.session"
"""The key of the session in the scope of a request."""
log = get_logger("lockstep.dashboard")


@dataclass(slots=True, eq=False)
class BrowserSession:
    """Who looks. If there is no login, all browsers have one session, with the dashboard's own client."""

    user: str | None
    admin: AdminClient
    form_token: str
    """Forms of its pages have it."""
    credentials: Credentials | None = None
    end: asyncio.TimerHandle | None = None
    checked_ms: int = 0
    """When its user was last asked about, by the monotonic clock."""
    check: "asyncio.Task[None] | None" = None
    has_ended: bool = False


def session_of(request: Request) -> BrowserSession:
    """Return the session of a request, which the gate has found."""
    found: BrowserSession = request.scope[SESSION]
    return found


class Sessions:
    """Begins, finds and ends sessions. `on_end` is called with each that ends."""

    def __init__(self, admin: AdminClient, tasks: Tasks, on_end: Callable[[BrowserSession], None]) -> None:
        self._admin = admin
        self._host = admin.host
        self._tasks = tasks
        self._on_end = on_end
        self._sessions: dict[bytes, BrowserSession] = {}
        """By the digest of the cookie, the oldest first."""

    async def begin(self, user: str, password: str) -> str:
        """Log a user in at a nameserver. Return what the cookie has.

        Raises:
            ConfigError: The name or the password can't be one.
            AuthenticationError: The login is refused; the server answers that after a second.
            NoPermissionError: The user may not see the whole cluster.
            TransportError: No nameserver responds.
        """
        credentials = Credentials(user, password)
        admin = await self._host.threads.run(self._admin.as_user, credentials)
        await _check(user, admin)
        credentials.forget_password()
        token, now_ms = self._host.random.token(TOKEN_BYTES).hex(), self._host.clock.monotonic_ms()
        session = BrowserSession(user, admin, self._host.random.token(16).hex(), credentials, checked_ms=now_ms)
        session.end = asyncio.get_running_loop().call_later(SESSION_S, self.end, session, f"it began {SESSION_S // 3_600} h ago")
        self._sessions[_digest(token)] = session
        if len(self._sessions) > SESSIONS_MAX:
            self.end(next(iter(self._sessions.values())), f"{SESSIONS_MAX} others have begun after it")
        log.info("session.begun", user=user)
        return token

    async def find(self, token: str) -> BrowserSession | None:
        """Return the session of a cookie, if there is one and its user may go on."""
        session = self._sessions.get(_digest(token))
        if session is None:
            return None
        if self._host.clock.monotonic_ms() - session.checked_ms >= CHECK_MS:
            if session.check is None or session.check.done():
                session.check = self._tasks.spawn(self._look(session), f"check of user {session.user}")
            await asyncio.wait([session.check], timeout=CHECK_WAIT_S)
        return None if session.has_ended else session

    def end(self, session: BrowserSession, reason: str) -> None:
        """End a session, if it has not ended."""
        if session.has_ended:
            return
        session.has_ended = True
        if session.end is not None:
            session.end.cancel()
        if session.credentials is not None:
            session.credentials.forget()
        self._sessions = {token: each for token, each in self._sessions.items() if each is not session}
        self._on_end(session)
        log.info("session.ended", user=session.user, reason=reason)

    def end_all(self) -> None:
        """End all sessions, with the process."""
        for session in list(self._sessions.values()):
            self.end(session, "the dashboard stops")

    async def _look(self, session: BrowserSession) -> None:
        try:
            await _check(session.user or "", session.admin)
        except (AuthenticationError, NoPermissionError) as error:
            self.end(session, str(error))
        except LockstepError:
            pass  # no nameserver responds
        finally:
            session.checked_ms = self._host.clock.monotonic_ms()


async def _check(user: str, admin: AdminClient) -> None:
    """Raise NoPermissionError unless the user may see what all pages show, and what the request raises."""
    if not (await admin.access()).sees_all:
        needs = "the pages show all topics and groups, so it needs Get on all of them: role = viewer without names"
        raise NoPermissionError(f"user {user} may not use the dashboard: {needs}")


def _digest(token: str) -> bytes:
    return sha256(token.encode()).digest()
