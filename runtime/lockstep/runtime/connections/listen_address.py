"""The addresses on which a server listens, as its settings have them."""

from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import NamedTuple

from lockstep.protocol.errors import ConfigError
from lockstep.protocol.names import INTERNAL_LISTENER
from lockstep.runtime.connections.address import parse_address

ADMIN = "admin"
"""The name of the admin port in reports of the listeners."""


class ListenAddress(NamedTuple):
    """The address of one listener."""

    name: str
    host: str
    port: int


def parse_listen_address(text: str) -> ListenAddress:
    """Parse "[NAME=]HOST:PORT"; without a name it is `internal`. Raise ConfigError if it is invalid."""
    name, equals, address = text.rpartition("=")
    if equals and not name.strip():
        raise ConfigError(f"{text!r}: expected [NAME=]HOST:PORT")
    return ListenAddress(name.strip() if equals else INTERNAL_LISTENER, *parse_address(address))


def parse_listeners(texts: Iterable[str]) -> dict[str, tuple[str, int]]:
    """Return listener name → (host, port), as Server expects. Raise ConfigError if a name occurs twice."""
    listeners: dict[str, tuple[str, int]] = {}
    for listen in map(parse_listen_address, texts):
        if listen.name in listeners:
            raise ConfigError(f"listener {listen.name!r} occurs twice")
        listeners[listen.name] = (listen.host, listen.port)
    return listeners


def require_loopback_or_insecure(listeners: Mapping[str, tuple[str, int]], *, insecure: bool) -> None:
    """Raise ConfigError if a listener can be reached from other machines without `insecure`."""
    for name, (host, port) in listeners.items():
        if not insecure and not is_loopback(host):
            raise ConfigError(
                f"listener {name!r} on {host}:{port} can be reached from other machines, where any client could read, write and delete: "
                "give it users and a certificate (--security, --tls-cert, --tls-key), listen on 127.0.0.1, or pass --insecure if the "
                "network is trusted"
            )


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
