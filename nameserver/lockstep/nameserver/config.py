"""Settings of the nameserver."""

from dataclasses import dataclass
from typing import Annotated

from lockstep.runtime.configuration.server_settings import ServerSettings
from lockstep.runtime.configuration.settings import Range


@dataclass(frozen=True, kw_only=True)
class NameserverConfig(ServerSettings):
    """The nameserver informs clients of the live brokers, their addresses and the layout of every topic."""

    listen: Annotated[
        tuple[str, ...],
        Range(1),
        "[NAME=]HOST:PORT to listen on; its clients receive the brokers' addresses of that NAME. Port 0: any free port.",
    ] = ("127.0.0.1:9876",)
