"""Settings of the nameserver."""

from pydantic import Field

from lockstep.runtime.server_settings import ServerSettings


class NameserverConfig(ServerSettings):
    """The nameserver informs clients of the live brokers, their addresses and the layout of every topic."""

    listen: tuple[str, ...] = Field(
        default=("127.0.0.1:9876",),
        min_length=1,
        description="[NAME=]HOST:PORT to listen on; its clients receive the brokers' addresses of that NAME. Port 0: any free port.",
    )
