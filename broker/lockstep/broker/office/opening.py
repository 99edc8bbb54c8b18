"""The URL of a register, and the register that it opens.

    etcd://HOST:PORT,HOST:PORT/PREFIX                   the members of one etcd; PREFIX of its keys: lockstep, if there is none
    etcds://HOST:PORT/?ca=FILE&cert=FILE&key=FILE       the same with TLS; without ca the authorities of the system
    etcd://USER@HOST:PORT/?password_file=FILE           with a login: the password is the first line of the file
    witness://HOST:PORT                                 the one `lockstep witness`; TLS and login are the broker's own

A URL has no password: others can see the settings of a process. Names and files are percent-encoded.
"""

import re
from dataclasses import dataclass, fields
from urllib.parse import parse_qsl, unquote

from lockstep.broker.office.register import Register
from lockstep.broker.office.witness import WitnessRegister
from lockstep.protocol.errors import ConfigError
from lockstep.runtime.connections.address import parse_address
from lockstep.runtime.extras import installation_advice
from lockstep.runtime.host import Host
from lockstep.runtime.security.client_security import ClientSecurity
from lockstep.runtime.security.tls import ClientTls, Tls

PREFIX = "lockstep"
EXPECTED = "expected etcd://HOST:PORT,HOST:PORT/PREFIX, etcds://… for TLS, or witness://HOST:PORT"
_URL = re.compile(
    r"(?P<scheme>etcds?|witness)://(?:(?P<user>[^/?#@]*)@)?(?P<hosts>[^/?#@]*)(?:/(?P<prefix>[^?#@]*))?(?:\?(?P<query>[^#]*))?"
)
_PREFIX = re.compile(r"[a-zA-Z0-9._-]+(/[a-zA-Z0-9._-]+)*")


@dataclass(frozen=True, slots=True)
class RegisterUrl:
    """Where a register is, and how to get there."""

    scheme: str
    addresses: tuple[str, ...]
    prefix: str = PREFIX
    user: str | None = None
    password_file: str | None = None
    tls: Tls | None = None

    @classmethod
    def parse(cls, text: str) -> "RegisterUrl":
        """Return what a URL says. Raise ConfigError, which shows no part of a URL with an @: it may have a password."""
        url = _URL.fullmatch(text.strip())
        if url is None or re.search("%(?![0-9A-Fa-f]{2})", text):
            shown = "" if "@" in text else f" {text[:80]!r}"
            raise ConfigError(f"register{shown}: {EXPECTED}, / ? # @ : % of names and files as %XX")
        if ":" in (url["user"] or ""):
            raise ConfigError("register URL: others may see the password that it has: give it by password_file=FILE")
        scheme, user = url["scheme"], None if url["user"] is None else unquote(url["user"])
        addresses = _checked_addresses(unquote(url["hosts"]))
        given = _parameters(url["query"] or "")
        prefix = unquote(url["prefix"] or "").strip("/")
        if prefix and not _PREFIX.fullmatch(prefix):
            raise ConfigError(f"register URL: the prefix {prefix[:80]!r} has other characters than a-z A-Z 0-9 . _ - and / between names")
        password_file = given.pop("password_file", None)
        if scheme == "witness":
            _check_witness(addresses, prefix, user, {**given, **({} if password_file is None else {"password_file": password_file})})
            return cls(scheme, addresses)
        if scheme == "etcd" and given:
            raise ConfigError(f"register URL: {next(iter(given))} is of TLS: use etcds://, or leave it out")
        if (user is None) != (password_file is None) or user == "":
            raise ConfigError("register URL: a login is a user and a password_file: etcd://USER@HOST:PORT/?password_file=FILE")
        return cls(scheme, addresses, prefix or PREFIX, user, password_file, Tls(**given) if scheme == "etcds" else None)


def open_register(url: RegisterUrl, cluster: str, broker_name: str, host: Host, security: ClientSecurity) -> Register:
    """Return the register of a broker name. Nothing is connected yet.

    `security`: of the broker's own connections to other servers, for a witness. Raise ConfigError if a file of TLS can't be used, or if
    what etcd needs is not installed.
    """
    if url.scheme == "witness":
        return WitnessRegister(host, url.addresses[0], cluster, broker_name, security)
    try:
        from lockstep.broker.office.etcd import EtcdPlace, EtcdRegister
    except ModuleNotFoundError as error:
        raise ConfigError(f"register {url.scheme}://: {installation_advice(error) or error}") from error
    key = f"{url.prefix}/{cluster}/brokers/{broker_name}"
    tls = None if url.tls is None else ClientTls(url.tls)
    return EtcdRegister(host, EtcdPlace(url.addresses, key, tls, url.user, url.password_file))


def _checked_addresses(hosts: str) -> tuple[str, ...]:
    addresses = tuple(dict.fromkeys(address.strip() for address in hosts.split(",")))
    for address in addresses:
        try:
            is_right = parse_address(address)[1] > 0
        except ConfigError:
            is_right = False
        if not is_right:
            raise ConfigError(f"register URL: {address[:80]!r} is not an address: {EXPECTED}")
    return addresses


def _parameters(query: str) -> dict[str, str]:
    """Return the parameters of a URL: fields of Tls, and password_file."""
    known = [*(each.name for each in fields(Tls)), "password_file"]
    given: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True, errors="surrogateescape"):
        if name not in known or name in given or not value:
            raise ConfigError(f"register URL: unexpected {name[:80]!r}: expected each of {', '.join(known)} once, with a value")
        given[name] = value
    return given


def _check_witness(addresses: tuple[str, ...], prefix: str, user: str | None, given: dict[str, str]) -> None:
    if len(addresses) > 1:
        raise ConfigError(
            f"register URL: {len(addresses)} witnesses: two would be two registers, which know nothing of each other. Name one, or use etcd"
        )
    if prefix or user is not None or given:
        what = "a prefix" if prefix else "a user" if user is not None else next(iter(given))
        raise ConfigError(f"register URL: leave {what} out: expected witness://HOST:PORT; TLS and login are the broker's own")
