"""The logins that `lockstep login` stores: the file ~/.lockstep/client.toml, or the one that LOCKSTEP_CLIENT_FILE names.

    [cluster.default]
    nameserver = "ns1.example:9876;ns2.example:9876"
    user = "billing"
    password = "…"
    tls = true                          implied by tls_ca, tls_cert, tls_key and tls_server_name

Commands read it, programs and servers do not. It has passwords, so nobody but its owner may read it.
"""

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from lockstep.operations.administrator_files import replace_file
from lockstep.operations.errors import OperationError
from lockstep.protocol.errors import ConfigError
from lockstep.runtime.connections.cluster_address import PREFIX, ClusterAddress
from lockstep.runtime.security.tls import Tls
from lockstep.runtime.security.users import check_user_name
from lockstep.runtime.security.watched_files import check_mode, read_file

FILE_VARIABLE = "LOCKSTEP_CLIENT_FILE"
HOME_FILE = "~/.lockstep/client.toml"
DEFAULT_LOGIN = "default"
LOGIN_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""No address is one: it has a colon."""
_TLS_KEYS = {f"{PREFIX}{each.name}": each.name for each in fields(Tls)}
_KEYS = ("nameserver", "user", "password", "tls", *_TLS_KEYS)
_COMMENT = "# Written by `lockstep login`. It has passwords: keep it readable by its owner only."


@dataclass(frozen=True, slots=True)
class ClientFile:
    """The file of stored logins. Each change is written at once."""

    path: Path

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] | None = None) -> "ClientFile":
        """Return the file of who runs this process."""
        environment = os.environ if environment is None else environment
        return cls(Path(environment.get(FILE_VARIABLE) or os.path.expanduser(HOME_FILE)))

    def exists(self) -> bool:
        """Return whether the file is there, and its directory can be looked into."""
        return os.path.exists(self.path)

    def read(self) -> dict[str, ClusterAddress]:
        """Return the logins by name: none if there is no file. Raise ConfigError if it can't be used, or if others may read it."""
        if not self.exists():
            return {}
        check_mode(str(self.path), private=True)
        try:
            return parse_logins(read_file(str(self.path)))
        except ConfigError as error:
            raise ConfigError(f"{self.path}: {error}") from None

    def login(self, name: str) -> ClusterAddress:
        """Return a login. Raise ConfigError if there is none of this name, or for the reasons of `read`."""
        found = self.read()
        if name not in found:
            raise ConfigError(f"there is no login {name[:80]!r} in {self.path}: there are {', '.join(sorted(found)) or 'none'}")
        return found[name]

    def store(self, name: str, address: ClusterAddress) -> None:
        """Add or replace a login, and make the file and its directory if there is none. Raise ConfigError, or OperationError if the file
        can't be written."""
        check_login_name(name)
        self._write(self.read() | {name: address})

    def remove(self, name: str) -> None:
        """Remove a login. Raise ConfigError if there is none of this name, and the errors of `store`."""
        self.login(name)
        self._write({other: address for other, address in self.read().items() if other != name})

    def _write(self, logins: Mapping[str, ClusterAddress]) -> None:
        if str(self.path) == HOME_FILE:
            raise ConfigError(f"there is no home directory: name a file for logins by {FILE_VARIABLE}")
        tables = [[f"[cluster.{name}]", *_lines(address)] for name, address in sorted(logins.items())]
        content = ("\n\n".join("\n".join(lines) for lines in [[_COMMENT], *tables]) + "\n").encode("utf-8", "surrogateescape")
        if parse_logins(content) != logins:
            raise ConfigError(f"{self.path}: it would have another content when it is read again")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # world: as administrator_files.py
        except OSError as error:
            raise OperationError(f"{error.filename}: {str(error.strerror).lower()}") from error
        replace_file(self.path, content, 0o600)


def check_login_name(name: str) -> None:
    """Raise ConfigError if it is not one."""
    if not LOGIN_NAME.fullmatch(name):
        raise ConfigError(f"{name[:80]!r} is not the name of a login: expected 1 to 64 letters, digits, - and _")


def parse_logins(content: bytes) -> dict[str, ClusterAddress]:
    """Return the logins that the content of a file has. Raise ConfigError, which shows no value."""
    try:
        table = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"it is not TOML: {error}") from None
    named = table.pop("cluster", {})
    if table or not isinstance(named, dict):
        raise ConfigError("expected tables [cluster.NAME] and nothing else")
    return {name: _address(name, entry) for name, entry in named.items()}


def _address(name: str, entry: Any) -> ClusterAddress:
    if not isinstance(entry, dict):
        raise ConfigError(f"cluster.{name}: expected a table")
    for key, value in entry.items():
        if key not in _KEYS:
            raise ConfigError(f"cluster.{name}: unknown key {key!r}: expected {', '.join(_KEYS)}")
        if not isinstance(value, bool if key == "tls" else str):
            raise ConfigError(f"cluster.{name}: {key}: expected {'true or false' if key == 'tls' else 'a text'}")
    tls = {_TLS_KEYS[key]: value for key, value in entry.items() if key in _TLS_KEYS}
    try:
        address = ClusterAddress.parse(entry.get("nameserver", ""), Tls(**tls) if tls or entry.get("tls") else None)
        user = None if entry.get("user") is None else check_user_name(entry["user"])
    except ConfigError as error:
        raise ConfigError(f"cluster.{name}: {error}") from None
    return replace(address, user=user, password=entry.get("password"))


def _lines(address: ClusterAddress) -> list[str]:
    tls = {} if address.tls is None else {key: getattr(address.tls, name) for key, name in _TLS_KEYS.items()}
    values = {"nameserver": ";".join(address.nameservers), "user": address.user, "password": address.password}
    values |= {"tls": True if address.tls is not None else None} | tls
    given = {key: json.dumps(value, ensure_ascii=False) for key, value in values.items() if value is not None}
    return [f"{key} = {text}".replace("\x7f", r"\u007f") for key, text in given.items()]  # TOML has texts as JSON, but for this character
