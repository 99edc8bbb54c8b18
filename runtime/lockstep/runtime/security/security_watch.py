"""Reads the files of a server's security again while the server runs."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.security.last_good import keep_users
from lockstep.runtime.security.server_security import ServerSecurity
from lockstep.runtime.security.watched_files import LOOK_MS
from lockstep.runtime.waiting import is_set_within

log = get_logger("runtime.security")

Renew = Callable[[str, Callable[[Any], bool]], None]
"""Closes gradually, with a reason, the connections (Endpoint) for which the function returns True."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What a look at the files has found."""

    files: tuple[str, ...]
    """Those that have changed and are in force now."""
    problem: str | None
    """Why a file can't be used: what was read before remains in force."""
    digest: str | None
    """The digest of the users in force, if there are users."""


class SecurityWatch:
    """Looks at the files every LOOK_MS, and when it is asked to, and closes the connections of users and authorities that are gone."""

    def __init__(self, security: ServerSecurity, host: Host, also: Callable[[], None] | None = None) -> None:
        """`also`: what SIGHUP does besides."""
        self._also = also
        self._security = security
        self._host = host
        self._renew: Renew = lambda _reason, _concerns: None
        self._looking = asyncio.Lock()
        self._asked = asyncio.Event()
        self._reported: str | None = None
        """The problem that the log has."""
        self._may_copy = False
        """Whether the store is open."""
        self._kept = ""
        """The digest of the users of which there is a copy."""

    async def begin(self, tasks: Tasks, renew: Renew) -> None:
        """Look, and begin to do so again and again, if there are files. The store, if the server has one, is open: it gets the copy of the
        users first. Its recovery may have taken long since the files were read."""
        self._renew = renew
        self._may_copy = True
        if self._security.has_files:
            async with self._looking:
                await self._look(asked=False)
            tasks.spawn(self._watch(), "security.watch")

    async def _watch(self) -> None:
        while True:
            asked = await is_set_within(self._asked, LOOK_MS / 1000)
            self._asked.clear()
            async with self._looking:
                await self._look(asked=asked)

    @property
    def on_hangup(self) -> Callable[[], None] | None:
        """Return what SIGHUP does: it asks for a look at once, or as soon as the watch has begun. None if there is nothing to do."""
        return self._hung_up if self._security.has_files or self._also is not None else None

    def _hung_up(self) -> None:
        self._asked.set()
        if self._also is not None:
            self._also()

    async def reload(self) -> Reloaded:
        """Look at the files now, and log what was found, nothing too."""
        async with self._looking:
            return await self._look(asked=True)

    async def _look(self, *, asked: bool) -> Reloaded:
        security = self._security
        changed = await self._host.threads.run(security.look, self._host.clock.monotonic_ms())
        problem = security.problem if asked else security.failure
        if changed or (problem is None and (asked or (self._reported is not None and security.problem is None))):
            log.info("security.reloaded", files=list(changed))
        if security.tls is not None and security.tls.files.client_ca in changed:
            self._renew("the authorities of clients' certificates have changed", lambda _: True)
        if changed and security.users is not None:
            self._renew("its user, or the password that it used, was taken away", security.is_gone)
        if problem is not None and (asked or problem != self._reported):
            log.error("security.reload_failed", reason=problem, then="what was read before remains in force")
        if problem is not None or security.problem is None:
            self._reported = problem
        await self._keep_users()
        return Reloaded(changed, security.problem, None if security.users is None else security.users.value.digest)

    async def _keep_users(self) -> None:
        """Copy the file of users, if that has not been done."""
        security = self._security
        if not self._may_copy or security.users is None or security.users_copy is None or security.users.value.digest == self._kept:
            return
        self._kept = security.users.value.digest
        (path,) = security.users.paths
        reason = await self._host.threads.run(keep_users, path, security.users_copy)
        if reason is not None:
            log.warning("security.copy_failed", reason=reason)
