"""What a client, or a server that connects to another one, needs to know about the servers, and they about it."""

from dataclasses import dataclass

from lockstep.runtime.security.credentials import Credentials
from lockstep.runtime.security.tls import ClientTls


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """How connections to one cluster are secured."""

    tls: ClientTls | None = None
    """None: connections are plain."""
    credentials: Credentials | None = None
    """None: the client does not log in."""


NO_SECURITY = ClientSecurity()
"""Plain connections without a login."""
