"""What a server demands of those who connect: TLS, and a login."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.security.authenticated_user import AuthenticatedUser
from lockstep.runtime.security.client_security import NO_SECURITY, ClientSecurity
from lockstep.runtime.security.tls import ServerTls
from lockstep.runtime.security.users import Users
from lockstep.runtime.security.watched_files import LOOK_MS, WatchedFiles

log = get_logger("runtime.security")

Renew = Callable[[str, Callable[[Any], bool]], None]
"""Closes gradually, with a reason, the connections (Endpoint) for which the function returns True."""


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
    peers: ClientSecurity = NO_SECURITY
    """How this server connects to others."""

    @property
    def failure(self) -> str | None:
        """Return why a file can't be used, although it has had the time to be replaced; or None."""
        failures = [None if each is None else each.failure for each in (self.tls, self.users)]
        return next((failure for failure in failures if failure is not None), None)

    def watch(self, host: Host, tasks: Tasks, renew: Renew) -> None:
        """Begin to read files again when they change."""
        if self.tls is not None or self.users is not None:
            tasks.spawn(self._watch(host, renew), "security.watch")

    async def _watch(self, host: Host, renew: Renew) -> None:
        reported: str | None = None
        while True:
            await asyncio.sleep(LOOK_MS / 1000)
            changed = await host.threads.run(self._look, host.clock.monotonic_ms())
            if changed:
                log.info("security.reloaded", files=list(changed))
            if self.tls is not None and self.tls.files.client_ca in changed:
                renew("the authorities of clients' certificates have changed", lambda _: True)
            if changed and self.users is not None:
                renew("its user, or the password that it used, was taken away", self._is_gone)
            if self.failure is not None and self.failure != reported:
                log.error("security.reload_failed", reason=self.failure, then="what was read before remains in force")
            reported = self.failure

    def _look(self, now_ms: int) -> tuple[str, ...]:
        return tuple(path for each in (self.tls, self.users) if each is not None for path in each.look(now_ms))

    def _is_gone(self, endpoint: Any) -> bool:
        identity: AuthenticatedUser | None = endpoint.identity
        if identity is None or self.users is None:
            return False
        return not self.users.value.is_valid(identity.name, identity.verifier, endpoint.peer.rpartition(":")[0])


OPEN = ServerSecurity()
"""Connections are plain, and nobody logs in."""
