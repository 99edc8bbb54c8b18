"""What a server demands of those who connect: TLS."""

from collections.abc import Callable
from dataclasses import dataclass

from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from lockstep.runtime.security.client_security import NO_SECURITY, ClientSecurity
from lockstep.runtime.security.tls import ServerTls


@dataclass(frozen=True, slots=True)
class ServerSecurity:
    """How the ports of one server are secured."""

    tls: ServerTls | None = None
    requires_tls: Callable[[str], bool] = lambda _: False
    """Returns whether a listener at a host refuses connections without TLS."""
    peers: ClientSecurity = NO_SECURITY
    """How this server connects to others."""

    def watch(self, host: Host, tasks: Tasks, renew: Callable[[str], None]) -> None:
        """Begin to read files again when they change. `renew` closes the connections of a port gradually, for a reason."""
        if self.tls is not None:
            tasks.spawn(self.tls.watch(host, lambda: renew("the authorities of clients' certificates have changed")), "tls.watch")


OPEN = ServerSecurity()
"""Connections are plain."""
