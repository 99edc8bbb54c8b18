"""The addresses on which a server listens, as its settings have them."""

from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Literal, NamedTuple

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


Waiver = bool | Literal["plaintext", "anonymous"]
"""What a listener that other machines reach may do without: TLS (plaintext), logins (anonymous), both (True), nothing (False)."""

MEANINGS: dict[Waiver, str] = {
    True: "ports that other machines reach need not require TLS or logins: whoever reaches one that does not may use all of it",
    "plaintext": "ports that other machines reach need not require TLS: on the way to one that does not, requests can be read and changed",
    "anonymous": "ports that other machines reach need not require logins: whoever reaches one that does not may use all of it",
}
"""What each waiver means, for the log."""
NO_TLS = "does not require TLS (`lockstep security init DIRECTORY` makes certificates, for --tls-cert and --tls-key)"
NO_USERS = "requires no login (`lockstep user add NAME --security FILE` makes users, for --security)"


def check_exposure(
    listeners: Mapping[str, tuple[str, int]],
    waiver: Waiver,
    *,
    tls: bool,
    users: bool,
    no_tls: str = NO_TLS,
    no_users: str = NO_USERS,
) -> None:
    """Raise ConfigError if a listener can be reached from other machines, and lacks what is not waived.

    `tls` and `users`: whether it requires TLS and logins there. `no_tls` and `no_users`: the words for a listener without.
    """
    lacks = {**({} if tls else {"plaintext": no_tls}), **({} if users else {"anonymous": no_users})}
    refused = [words for word, words in lacks.items() if waiver not in (True, word)]
    for name, (host, port) in listeners.items():
        if refused and not is_loopback(host):
            option = " ".join(["--insecure", *(lacks if len(lacks) == 1 else ())])
            raise ConfigError(
                f"listener {name!r} on {host}:{port} can be reached from other machines, and {' and '.join(refused)}: change that, listen "
                f"on 127.0.0.1, or pass {option} if the network is trusted"
            )


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
