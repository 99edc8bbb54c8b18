"""Settings of the nameserver."""

from typing import Literal

from pydantic import Field, model_validator

from lockstep.protocol.errors import ConfigError
from lockstep.runtime.config import Settings, parse_listeners, require_loopback_or_insecure


class NameserverConfig(Settings):
    """The nameserver tells clients which brokers live, where, and how every topic is laid out."""

    listen: tuple[str, ...] = Field(
        default=("127.0.0.1:9876",),
        min_length=1,
        description="[NAME=]HOST:PORT to listen on; who asks there is told the brokers' addresses of that NAME. Port 0: any free one.",
    )
    insecure: bool = Field(default=False, description="Listen beyond this machine although there is no authentication yet.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="What is logged, from this level on.")

    @model_validator(mode="after")
    def _check(self) -> "NameserverConfig":
        try:
            require_loopback_or_insecure(self.listeners(), insecure=self.insecure)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    def listeners(self) -> dict[str, tuple[str, int]]:
        """Listener name → (host, port)."""
        return parse_listeners(self.listen)
