"""Settings of the nameserver."""

from typing import Literal

from pydantic import Field, model_validator

from lockstep.protocol.errors import ConfigError
from lockstep.runtime.config import ADMIN, Settings, parse_listeners, require_loopback_or_insecure
from lockstep.runtime.link import parse_address
from lockstep.runtime.server import CONNECTIONS_MAX


class NameserverConfig(Settings):
    """The nameserver tells clients which brokers live, where, and how every topic is laid out."""

    listen: tuple[str, ...] = Field(
        default=("127.0.0.1:9876",),
        min_length=1,
        description="[NAME=]HOST:PORT to listen on; who asks there is told the brokers' addresses of that NAME. Port 0: any free one.",
    )
    admin_listen: str | None = Field(
        default=None, description="HOST:PORT of the admin port: /livez, /readyz, /metrics, /log-level. Unset: none. Port 0: any free one."
    )
    admin_host: tuple[str, ...] = Field(
        default=(), description="Name by which the admin port may be asked (HTTP's Host), beside addresses and this machine's own name."
    )
    connections_max: int = Field(
        default=CONNECTIONS_MAX,
        ge=1,
        description="Connections at once; fewer where the limit of file descriptors (ulimit -n) is low.",
    )
    insecure: bool = Field(default=False, description="Listen beyond this machine although there is no authentication yet.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="What is logged, from this level on.")

    @model_validator(mode="after")
    def _check(self) -> "NameserverConfig":
        try:
            require_loopback_or_insecure({**self.listeners(), **self.admin_listener()}, insecure=self.insecure)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    def listeners(self) -> dict[str, tuple[str, int]]:
        """Listener name → (host, port)."""
        return parse_listeners(self.listen)

    def admin_listener(self) -> dict[str, tuple[str, int]]:
        """`admin` → (host, port); empty where there is no admin port."""
        return {} if self.admin_listen is None else {ADMIN: parse_address(self.admin_listen)}
