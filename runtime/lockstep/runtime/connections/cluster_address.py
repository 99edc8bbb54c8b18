"""The address of a cluster: its nameservers, and how connections to its servers are secured.

    HOST:PORT;HOST:PORT                                     plain connections
    lockstep://USER@HOST:PORT,HOST:PORT/?tls=on&tls_ca=FILE a URL, wherever an address is expected

The parameters of the URL are tls (on or off), tls_ca, tls_cert, tls_key and tls_server_name, the fields of Tls. Each of the latter turns
TLS on. They hold for nameservers and brokers alike.

A user logs in with the password of the file `password_file`, or else of LOCKSTEP_PASSWORD or LOCKSTEP_PASSWORD_FILE in the environment.
LOCKSTEP_USER is the user of an address without one.

A URL that a program or LOCKSTEP_URL gives may have the password itself, lockstep://USER:PASSWORD@HOST:PORT. Arguments of commands, settings
of servers and options of Spark may not: others can see them. User and password are percent-encoded. Nothing shows a password: neither the
text of an address nor an error about it, which quotes no part of a text that may have one.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote

from lockstep.protocol.errors import ConfigError
from lockstep.runtime.security.client_security import NO_SECURITY, ClientSecurity
from lockstep.runtime.security.credentials import Credentials, PasswordSource
from lockstep.runtime.security.tls import ClientTls, Tls
from lockstep.runtime.security.users import check_user_name

SCHEME = "lockstep://"
PREFIX = "tls_"
PASSWORD_FILE = "password_file"
URL_VARIABLE, NAMESERVER_VARIABLE = "LOCKSTEP_URL", "LOCKSTEP_NAMESERVER"
_URL = re.compile(r"lockstep://(?:(?P<user>[^/?#@:]*)(?::(?P<password>[^/?#@]*))?@)?(?P<hosts>[^/?#@]*)/?(?:\?(?P<query>[^#@]*))?")


@dataclass(frozen=True, slots=True)
class Login:
    """The arguments of a login that a program gives."""

    user: str | None = None
    password: PasswordSource | None = field(default=None, repr=False)
    optional: bool = False
    """Whether to go on with servers that ask for no login."""


NO_LOGIN = Login()


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """The nameservers of a cluster, and the settings of TLS. It can be pickled: it has the paths of files, not their contents."""

    nameservers: tuple[str, ...]
    tls: Tls | None = None
    """None: connections are plain."""
    user: str | None = None
    """None: there is no login, unless the environment has a user."""
    password_file: str | None = None
    password: str | None = field(default=None, repr=False)
    """It is not part of the text of the address."""
    credentials: Credentials | None = field(default=None, repr=False, compare=False)
    """What a program logs in with instead: no text has them."""

    @classmethod
    def parse(
        cls, address: "ClusterAddress | str | Sequence[str]", tls: Tls | bool | None = None, *, may_have_password: bool = False
    ) -> "ClusterAddress":
        """Return the address that a text in one of the forms above has, or a list of nameservers. `tls`: True is the same as Tls().

        Raises:
            ConfigError: The address is invalid, it has settings of TLS of its own besides `tls`, or it is a text with a password and
                `may_have_password` is False: others can see the text.
        """
        if isinstance(address, ClusterAddress):
            found = address
        else:
            found = _parse_text(address) if isinstance(address, str) else cls(_checked(address))
            if found.password is not None and not may_have_password:
                instead = f"{PASSWORD_FILE}=FILE, or for clients LOCKSTEP_PASSWORD or {URL_VARIABLE}"
                raise ConfigError(f"nameserver URL: others may see a password that it has: use {instead}")
        if tls is None:
            return found
        if found.tls is not None:
            raise ConfigError(f"nameserver={str(found)!r} and tls={tls!r}: give one of them; the address has settings of TLS already")
        return replace(found, tls=tls if isinstance(tls, Tls) else Tls() if tls else None)

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] | None = None) -> "ClusterAddress | None":
        """Return the address that LOCKSTEP_URL or LOCKSTEP_NAMESERVER has, or None.

        Raises:
            ConfigError: An address is invalid, or both are set and differ.
        """
        environment = os.environ if environment is None else environment
        found: dict[str, ClusterAddress] = {}
        for name in (URL_VARIABLE, NAMESERVER_VARIABLE):
            text = environment.get(name, "").strip()
            if name == URL_VARIABLE and text and not text.startswith(SCHEME):
                raise ConfigError(f"{name} is not a URL: expected lockstep://USER:PASSWORD@HOST:PORT/, or {NAMESERVER_VARIABLE}=HOST:PORT")
            try:
                if text:
                    found[name] = cls.parse(text, may_have_password=name == URL_VARIABLE)
            except ConfigError as error:
                raise ConfigError(f"{name}: {error}") from None
        if len(set(map(str, found.values()))) > 1:
            given = " and ".join(f"{name} ({address})" for name, address in found.items())
            raise ConfigError(f"{given} differ: unset one of them")
        return next(iter(found.values()), None)

    def __str__(self) -> str:
        """Return the text that `parse` reads, without the password."""
        if self.tls is None and self.user is None:
            return ";".join(self.nameservers)
        tls = {} if self.tls is None else {each.name: getattr(self.tls, each.name) for each in fields(Tls)}
        given = [f"{PREFIX}{name}={_quoted(str(value))}" for name, value in tls.items() if value is not None]
        given = ([] if self.tls is None else ["tls=on"]) + given
        given += [] if self.password_file is None else [f"{PASSWORD_FILE}={_quoted(self.password_file)}"]
        user = "" if self.user is None else f"{quote(self.user)}@"
        return f"{SCHEME}{user}{','.join(self.nameservers)}/{'?' if given else ''}{'&'.join(given)}"

    def security(self, login: Login = NO_LOGIN, environment: Mapping[str, str] | None = None) -> ClientSecurity:
        """Read the files of TLS. Return how to connect, with the login of the caller, else of the address, else of the environment.

        Raises:
            ConfigError: A file can't be used, or a user has no password or a password no user.
        """
        tls = None if self.tls is None else ClientTls(self.tls)
        if self.credentials is not None:
            return ClientSecurity(tls, self.credentials)
        environment = os.environ if environment is None else environment
        user = login.user or self.user or environment.get("LOCKSTEP_USER")
        password: PasswordSource | None = self.password if login.password is None else login.password
        if password is None and self.password_file is not None:
            password = Path(self.password_file)
        if password is None and user is not None:
            password = environment.get("LOCKSTEP_PASSWORD")
            if password is None and "LOCKSTEP_PASSWORD_FILE" in environment:
                password = Path(environment["LOCKSTEP_PASSWORD_FILE"])
        if user is None and password is not None:
            raise ConfigError("a password without a user: give the client a user too")
        if user is not None and password is None:
            given = "password=, password_file in the address, LOCKSTEP_PASSWORD or LOCKSTEP_PASSWORD_FILE"
            raise ConfigError(f"user {user} has no password: give it by {given}")
        credentials = None if user is None or password is None else Credentials(user, password, login.optional)
        return NO_SECURITY if tls is None and credentials is None else ClientSecurity(tls, credentials)


PATHS = "surrogateescape"
"""How a text has the bytes of a path that are not UTF-8."""


def _quoted(value: str) -> str:
    return quote(value, errors=PATHS)


def _parse_text(text: str) -> ClusterAddress:
    if not text.strip().startswith(SCHEME):
        return ClusterAddress(_checked(text.replace(",", ";").split(";")))
    url = _URL.fullmatch(text.strip())
    if url is None or re.search("%(?![0-9A-Fa-f]{2})", text):
        raise ConfigError(
            "nameserver is an invalid URL: expected lockstep://HOST:PORT,HOST:PORT/?tls_ca=FILE, / ? # @ : % of user and password as %XX"
        )
    nameservers = _checked(unquote(url["hosts"]).replace(";", ",").split(","))
    known = {f"{PREFIX}{each.name}": each.name for each in fields(Tls)}
    given: dict[str, str] = {}
    password_file: str | None = None
    switch: str | None = None
    for name, value in parse_qsl(url["query"] or "", keep_blank_values=True, errors=PATHS):
        if name == "tls" and value in ("on", "off"):
            switch = value
        elif name == PASSWORD_FILE and password_file is None and value:
            password_file = value
        elif name in known and known[name] not in given:
            given[known[name]] = value
        else:
            names = ", ".join([*known, PASSWORD_FILE])
            raise ConfigError(f"nameserver URL: unexpected {name[:80]}: expected tls=on, tls=off, and each of {names} once")
    if given and switch == "off":
        raise ConfigError(f"nameserver URL: tls=off and {PREFIX}{next(iter(given))}: leave one of them out")
    user, password = (None if url[part] is None else unquote(url[part]) for part in ("user", "password"))
    if ":" in (user or ""):
        raise ConfigError("nameserver URL: its user has an encoded colon: expected lockstep://USER:PASSWORD@HOST:PORT")
    if password is not None and password_file is not None:
        raise ConfigError(f"nameserver URL: {PASSWORD_FILE} and a password: leave one of them out")
    if password_file is not None and user is None:
        raise ConfigError(f"nameserver URL: {PASSWORD_FILE} without a user: expected lockstep://USER@HOST:PORT/…")
    tls = Tls(**given) if given or switch == "on" else None
    return ClusterAddress(nameservers, tls, None if user is None else check_user_name(user), password_file, password)


def _checked(given: Iterable[str]) -> tuple[str, ...]:
    """Return the addresses of nameservers without repetitions. Raise a ConfigError that names an invalid one, or if there is none."""
    addresses = tuple(dict.fromkeys(address.strip() for address in given if address.strip()))
    if not addresses:
        raise ConfigError('no nameserver address: give nameserver="HOST:PORT" (several are separated by ";")')
    if any("@" in address for address in addresses):  # they are not shown: there may be a password
        raise ConfigError("nameserver address with @: expected HOST:PORT, or one URL, lockstep://USER@HOST:PORT,HOST:PORT/")
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if not (colon and host and port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65_536):
            raise ConfigError(f'nameserver address "{address}": expected HOST:PORT with a port of 1 to 65535')
    return addresses
