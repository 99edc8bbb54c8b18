"""What a server demands of those who connect: TLS, and a login."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.runtime.security.admin_token import AdminToken
from lockstep.runtime.security.authenticated_user import AuthenticatedUser
from lockstep.runtime.security.client_security import NO_SECURITY, ClientSecurity
from lockstep.runtime.security.tls import ServerTls
from lockstep.runtime.security.users import Users
from lockstep.runtime.security.watched_files import WatchedFiles


@dataclass(frozen=True, slots=True)
class ServerSecurity:
    """How the ports of one server are secured."""

    tls: ServerTls | None = None
    requires_tls: Callable[[str], bool] = lambda _: False
    """Returns whether a listener at a host refuses connections without TLS."""
    users: WatchedFiles[Users] | None = None
    """None: nobody has to log in, or can."""
    users_optional: bool = False
    """Whether clients may work without a login, although there are users."""
    users_copy: str | None = None
    """Where a copy of the file of users is kept (last_good.py); None: nowhere."""
    admin_token: WatchedFiles[AdminToken] | None = None
    """The token of the admin port; None: nobody has one."""
    guarded: frozenset[str] = frozenset()
    """The pages of the admin port that need it."""
    peers: ClientSecurity = NO_SECURITY
    """How this server connects to others."""

    @property
    def has_files(self) -> bool:
        """Return whether there are files to look at."""
        return bool(self._files)

    @property
    def failure(self) -> str | None:
        """Return why a file can't be used, although it has had the time to be replaced; or None."""
        return next((each.failure for each in self._files if each.failure is not None), None)

    @property
    def problem(self) -> str | None:
        """Return why the last look could not use a file, or None."""
        return next((each.problem for each in self._files if each.problem is not None), None)

    def is_gone(self, endpoint: Any) -> bool:
        """Return whether the user of a connection (Endpoint), or the password that it used, was taken away."""
        identity: AuthenticatedUser | None = endpoint.identity
        if identity is None or self.users is None:
            return False
        return not self.users.value.is_valid(identity.name, identity.verifier, endpoint.peer.rpartition(":")[0])

    def look(self, now_ms: int) -> tuple[str, ...]:
        """Read the files. Return those that have changed and are in force now. Blocks."""
        return tuple(path for each in self._files for path in each.look(now_ms))

    @property
    def _files(self) -> Sequence[ServerTls | WatchedFiles[Users] | WatchedFiles[AdminToken]]:
        return [each for each in (self.tls, self.users, self.admin_token) if each is not None]


OPEN = ServerSecurity()
"""Connections are plain, and nobody logs in."""
