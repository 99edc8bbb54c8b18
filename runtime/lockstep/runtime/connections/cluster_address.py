"""The address of a cluster: its nameservers, and how connections to its servers are secured.

    HOST:PORT;HOST:PORT                                     plain connections
    lockstep://HOST:PORT,HOST:PORT/?tls=on&tls_ca=FILE      a URL, wherever an address is expected

The parameters of the URL are tls (on or off), tls_ca, tls_cert, tls_key and tls_server_name, the fields of Tls. Each of the latter turns
TLS on. They hold for nameservers and brokers alike.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from urllib.parse import parse_qsl, quote, unquote

from lockstep.protocol.errors import ConfigError
from lockstep.runtime.security.client_security import NO_SECURITY, ClientSecurity
from lockstep.runtime.security.tls import ClientTls, Tls

SCHEME = "lockstep://"
PREFIX = "tls_"
_URL = re.compile(r"lockstep://(?P<hosts>[^/?#@]*)/?(?:\?(?P<query>[^#]*))?")


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """The nameservers of a cluster, and the settings of TLS. It can be pickled: it has the paths of files, not their contents."""

    nameservers: tuple[str, ...]
    tls: Tls | None = None
    """None: connections are plain."""

    @classmethod
    def parse(cls, address: "ClusterAddress | str | Sequence[str]", tls: Tls | bool | None = None) -> "ClusterAddress":
        """Return the address that a text in one of the forms above has, or a list of nameservers. `tls`: True is the same as Tls().

        Raises:
            ConfigError: The address is invalid, or it has settings of TLS of its own besides `tls`.
        """
        found = (
            address if isinstance(address, ClusterAddress) else _parse_text(address) if isinstance(address, str) else cls(_checked(address))
        )
        if tls is None:
            return found
        if found.tls is not None:
            raise ConfigError(f"nameserver={str(found)!r} and tls={tls!r}: give one of them; the address has settings of TLS already")
        return replace(found, tls=tls if isinstance(tls, Tls) else Tls() if tls else None)

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        if self.tls is None:
            return ";".join(self.nameservers)
        given = [f"{PREFIX}{each.name}={quote(str(value))}" for each in fields(Tls) if (value := getattr(self.tls, each.name)) is not None]
        return f"{SCHEME}{','.join(self.nameservers)}/?{'&'.join(['tls=on', *given])}"

    def security(self) -> ClientSecurity:
        """Read the files of TLS. Raise ConfigError if they can't be used."""
        return NO_SECURITY if self.tls is None else ClientSecurity(ClientTls(self.tls))


def _parse_text(text: str) -> ClusterAddress:
    if not text.strip().startswith(SCHEME):
        return ClusterAddress(_checked(text.replace(",", ";").split(";")))
    url = _URL.fullmatch(text.strip())
    if url is None:
        raise ConfigError("nameserver is an invalid URL: expected lockstep://HOST:PORT,HOST:PORT/?tls=on&tls_ca=FILE")
    nameservers = _checked(unquote(url["hosts"]).replace(";", ",").split(","))
    known = {f"{PREFIX}{each.name}": each.name for each in fields(Tls)}
    given: dict[str, str] = {}
    switch: str | None = None
    for name, value in parse_qsl(url["query"] or "", keep_blank_values=True):
        if name == "tls" and value in ("on", "off"):
            switch = value
        elif name in known and known[name] not in given:
            given[known[name]] = value
        else:
            names = ", ".join(known)
            raise ConfigError(f"nameserver URL: unexpected {name[:80]}={value[:80]}: expected tls=on, tls=off, and each of {names} once")
    if given and switch == "off":
        raise ConfigError(f"nameserver URL: tls=off and {PREFIX}{next(iter(given))}: leave one of them out")
    return ClusterAddress(nameservers, Tls(**given) if given or switch == "on" else None)


def _checked(given: Iterable[str]) -> tuple[str, ...]:
    """Return the addresses of nameservers without repetitions. Raise a ConfigError that names an invalid one, or if there is none."""
    addresses = tuple(dict.fromkeys(address.strip() for address in given if address.strip()))
    if not addresses:
        raise ConfigError('no nameserver address: give nameserver="HOST:PORT" (several are separated by ";")')
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if not (colon and host and port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65_536):
            raise ConfigError(f'nameserver address "{address}": expected HOST:PORT with a port of 1 to 65535')
    return addresses
