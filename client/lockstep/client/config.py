"""The settings of a client, and the arguments that all producers and consumers take."""

from dataclasses import dataclass, field
from typing import Annotated

from lockstep.runtime.configuration.settings import Range, check_settings
from lockstep.runtime.connections.cluster_address import ClusterAddress
from lockstep.runtime.security.credentials import PasswordSource
from lockstep.runtime.security.tls import Tls

NameserverAddresses = str | list[str] | tuple[str, ...] | ClusterAddress
"""One address or several: "HOST:PORT;HOST:PORT", or a list of them; or a URL (cluster_address.py)."""
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
    nameserver: NameserverAddresses | None = field(default=None, repr=False)
    """It is not shown, because a URL may have a password."""
    tls: Tls | bool | None = None
    user: str | None = None
    password: PasswordSource | None = field(default=None, repr=False)
    login_optional: bool = False
