"""The settings that a broker and a nameserver have in common."""

from dataclasses import dataclass
from typing import Annotated, Literal

from lockstep.runtime.configuration.settings import Range
from lockstep.runtime.configuration.tls_settings import TlsSettings
from lockstep.runtime.connections.address import parse_address
from lockstep.runtime.connections.listen_address import ADMIN, parse_listeners, require_loopback_or_insecure
from lockstep.runtime.connections.server import CONNECTIONS_MAX


@dataclass(frozen=True, kw_only=True)
class ServerSettings(TlsSettings):
    """Where a server listens, its certificate, its admin port, its limit of connections and its log level.

    Each server has its own default for `listen`.
    """

    listen: Annotated[tuple[str, ...], Range(1)]
    admin_listen: Annotated[
        str | None, "HOST:PORT of the admin port: /livez, /readyz, /metrics, /log-level. Disabled by default. Port 0: any free port."
    ] = None
    admin_host: Annotated[
        tuple[str, ...], "A name that clients of the admin port may use (HTTP's Host), besides addresses and this machine's name."
    ] = ()
    connections_max: Annotated[int, Range(1), "Connections at a time; fewer if the limit of file descriptors (ulimit -n) is low."] = (
        CONNECTIONS_MAX
    )
    insecure: Annotated[bool, "Accept connections from other machines although there is no authentication yet."] = False
    log_level: Annotated[Literal["debug", "info", "warning", "error"], "The lowest level that is logged."] = "info"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_loopback_or_insecure({**self.listeners(), **self.admin_listener()}, insecure=self.insecure)

    def listeners(self) -> dict[str, tuple[str, int]]:
        """Return the (host, port) that each listener binds, by its name."""
        return parse_listeners(self.listen)

    def admin_listener(self) -> dict[str, tuple[str, int]]:
        """Return `admin` and its (host, port), or nothing if the admin port is disabled."""
        return {} if self.admin_listen is None else {ADMIN: parse_address(self.admin_listen)}
