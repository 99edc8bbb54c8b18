"""The settings of a client, and the arguments that all producers and consumers take."""

from dataclasses import dataclass, field
from typing import Annotated

from lockstep.protocol.errors import ConfigError
from lockstep.runtime.configuration.settings import Range, check_settings

NameserverAddresses = str | list[str] | tuple[str, ...]
"""One address or several: "HOST:PORT;HOST:PORT", or a list of them."""
DEFAULT_NAMESERVER = "127.0.0.1:9876"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Intervals and timeouts that all producers and consumers of one client share, in milliseconds.

    Raises:
        ConfigError: A setting has the wrong type or is out of range.
    """

    heartbeat_interval_ms: Annotated[int, Range(1)] = 30_000
    """Time between two heartbeats to a broker. RocketMQ: heartbeatBrokerInterval."""
    route_interval_ms: Annotated[int, Range(1)] = 30_000
    """Time between two requests for the routes of the topics in use. RocketMQ: pollNameServerInterval."""
    keepalive_interval_ms: Annotated[int, Range(1)] = 5_000
    """The client sends something to each broker at least this often (ordering.md 1.6)."""
    request_timeout_ms: Annotated[int, Range(1)] = 3_000
    """Deadline of heartbeats, of route requests and of the request that leaves a group. RocketMQ: mqClientApiTimeout."""
    route_refresh_spacing_ms: Annotated[int, Range(1)] = 1_000
    """A refused connection or a stale layout requests routes at most this often."""

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartConfig:
    """How producers and consumers start while no nameserver responds."""

    start_timeout_ms: Annotated[int, Range(0, 86_400_000)] = 0
    """How long a start that finds no nameserver tries again, every second. 0: it fails at once."""
    start_in_background: bool = False
    """A start returns at once and goes on in the background, without a limit of time: for applications that run without the brokers, too.
    `health()` tells how far it is."""


@dataclass(frozen=True, kw_only=True)
class GroupArguments:
    """The arguments that every producer and consumer takes. It has no slots, so that it can be combined with a dataclass that has."""

    group: str = field(kw_only=False)
    nameserver: NameserverAddresses | None = None


def nameserver_addresses(nameserver: NameserverAddresses) -> tuple[str, ...]:
    """Return the addresses as a tuple. Raise a ConfigError that names an invalid one, or if there is none."""
    given = nameserver.replace(",", ";").split(";") if isinstance(nameserver, str) else list(nameserver)
    addresses = tuple(dict.fromkeys(address.strip() for address in given if address.strip()))
    if not addresses:
        raise ConfigError('no nameserver address: give nameserver="HOST:PORT" (several are separated by ";")')
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if not (colon and host and port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65_536):
            raise ConfigError(f'nameserver address "{address}": expected HOST:PORT with a port of 1 to 65535')
    return addresses
