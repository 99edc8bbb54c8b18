"""The settings that a broker and a nameserver have in common."""

from typing import Literal

from pydantic import Field, model_validator

from lockstep.protocol.errors import ConfigError
from lockstep.runtime.config import Settings
from lockstep.runtime.link import parse_address
from lockstep.runtime.listen_address import ADMIN, parse_listeners, require_loopback_or_insecure
from lockstep.runtime.server import CONNECTIONS_MAX


class ServerSettings(Settings):
    """Where a server listens, its admin port, its limit of connections and its log level. Each server has its own default for `listen`."""

    listen: tuple[str, ...] = Field(min_length=1)
    admin_listen: str | None = Field(
        default=None,
        description="HOST:PORT of the admin port: /livez, /readyz, /metrics, /log-level. Disabled by default. Port 0: any free port.",
    )
    admin_host: tuple[str, ...] = Field(
        default=(), description="A name that clients of the admin port may use (HTTP's Host), besides addresses and this machine's name."
    )
    connections_max: int = Field(
        default=CONNECTIONS_MAX,
        ge=1,
        description="Connections at a time; fewer if the limit of file descriptors (ulimit -n) is low.",
    )
    insecure: bool = Field(default=False, description="Accept connections from other machines although there is no authentication yet.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="The lowest level that is logged.")

    @model_validator(mode="after")
    def _check_listeners(self) -> "ServerSettings":
        try:
            require_loopback_or_insecure({**self.listeners(), **self.admin_listener()}, insecure=self.insecure)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    def listeners(self) -> dict[str, tuple[str, int]]:
        """Return the (host, port) that each listener binds, by its name."""
        return parse_listeners(self.listen)

    def admin_listener(self) -> dict[str, tuple[str, int]]:
        """Return `admin` and its (host, port), or nothing if the admin port is disabled."""
        return {} if self.admin_listen is None else {ADMIN: parse_address(self.admin_listen)}
