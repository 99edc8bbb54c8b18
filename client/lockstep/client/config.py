"""What a client instance may be told; every number has its unit in its name and its source beside it."""

from dataclasses import dataclass

from lockstep.protocol.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceConfig:
    """Times and limits that all producers and consumers of one instance share."""

    heartbeat_interval_ms: int = 30_000
    """RocketMQ: heartbeatBrokerInterval."""
    route_interval_ms: int = 30_000
    """RocketMQ: pollNameServerInterval."""
    keepalive_interval_ms: int = 5_000
    """A native client sends something at least this often (ordering.md 1)."""
    request_timeout_ms: int = 3_000
    """RocketMQ: mqClientApiTimeout. Heartbeats, routes, leaving."""
    route_refresh_spacing_ms: int = 1_000
    """A refused connection or a stale layout asks for routes at most this often (ordering.md 1)."""


def nameserver_addresses(nameserver: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """`"host:port;host:port"` or a list of them as a tuple; ConfigError names what does not fit."""
    given = nameserver.replace(",", ";").split(";") if isinstance(nameserver, str) else list(nameserver)
    addresses = tuple(dict.fromkeys(address.strip() for address in given if address.strip()))
    if not addresses:
        raise ConfigError('no nameserver address: give nameserver="HOST:PORT" (several are separated by ";")')
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
            raise ConfigError(f'nameserver address "{address}": expected HOST:PORT with a port of 1 to 65535')
    return addresses
