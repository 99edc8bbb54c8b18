"""Changes the file of users and keeps its comments. It needs the package tomlkit and no server: servers read the file again."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from lockstep.operations.administrator_files import replace_file
from lockstep.operations.errors import OperationError, UnknownUserError
from lockstep.protocol.errors import ConfigError
from lockstep.runtime.security.access_keys import SecretSource
from lockstep.runtime.security.scram import ITERATIONS, SALT_BYTES, Verifier
from lockstep.runtime.security.users import Users, check_user_name, parse_users, read_users
from lockstep.runtime.security.watched_files import FILE_BYTES_MAX, read_file

NO_ENTRIES: Mapping[str, Any] = {}
NO_SECRETS: Mapping[Path, bytes] = {}


@dataclass(slots=True)
class UsersFile:
    """The file of users of a cluster. Each change is written at once."""

    path: Path
    random_bytes: Callable[[int], bytes]
    """Returns unpredictable bytes."""

    def add(self, name: str, password: str | None, entries: Mapping[str, Any] = NO_ENTRIES) -> None:
        """Add a user, and make the file if there is none. `entries`: what the user's table has besides: rights, networks, limits, a secret
        instead of a password.

        Raise OperationError if the user exists, ConfigError for an invalid name, password or entry.
        """
        check_user_name(name)
        self.add_all({name: {**({} if password is None else {"verifier": str(self._verifier(password))}), **entries}})

    def add_all(self, tables: Mapping[str, Mapping[str, Any]], secrets: Mapping[Path, bytes] = NO_SECRETS) -> None:
        """Add users with their tables, and write the files of their secrets before; all of them or none.

        Raise OperationError if a user or another file of a secret exists, ConfigError for an invalid table.
        """
        document = self._document()
        users = document.setdefault("user", tomlkit.table(is_super_table=True))
        for name, entries in tables.items():
            if name in users:
                raise OperationError(f"user {name} exists: `lockstep user passwd {name}` changes its password, `… rm {name}` removes it")
            entry = tomlkit.table()
            entry.update({key: _inline(value) for key, value in entries.items() if value})
            users[name] = entry
        for path, secret in secrets.items():
            if path.exists() and read_file(str(path)) != secret:
                raise OperationError(f"{path} exists and has another secret: remove it first")
        self._write(document, secrets)

    def secret_entry(self, path: Path) -> dict[str, str]:
        """Return how a user's table names the file of a secret: beside the file of users by a relative path.

        Raise ConfigError if there is such a file here, and it can't be used.
        """
        absolute, directory = path.absolute(), self.path.absolute().parent
        source = SecretSource(str(absolute.relative_to(directory) if absolute.is_relative_to(directory) else absolute))
        if absolute.exists():
            source.read(str(directory))
        return {"file": source.file}

    def change_password(self, name: str, password: str) -> None:
        """Replace all passwords of a user by one. Raise OperationError if there is no such user."""
        document, entry = self._entry(name)
        entry["verifier"] = str(self._verifier(password))
        self._write(document)

    def add_password(self, name: str, password: str) -> int:
        """Add a password to those of a user. Return how many it has now. Raise OperationError if there is no such user, or it has it."""
        document, entry = self._entry(name)
        known = self._texts(name, entry)
        first = Verifier.parse(known[0])
        added = str(self._verifier(password, first.salt, first.iterations))
        if added in known:
            raise OperationError(f"user {name} has this password already: nothing was changed")
        known.append(added)
        entry["verifier"] = known
        self._write(document)
        return len(known)

    def end_rotation(self, name: str) -> int:
        """Remove all passwords of a user but the last one that was added. Return how many were removed."""
        document, entry = self._entry(name)
        known = self._texts(name, entry)
        entry["verifier"] = known[-1]
        self._write(document)
        return len(known) - 1

    def remove(self, name: str) -> None:
        """Remove a user. Raise OperationError if there is no such user."""
        document, _ = self._entry(name)
        del document["user"][name]
        self._write(document)

    def read(self) -> Users:
        """Return the users, as a server reads them. Raises ConfigError."""
        return read_users(str(self.path))

    def _document(self) -> Any:
        if not self.path.exists():
            document = tomlkit.document()
            document.add(tomlkit.comment("The users of a lockstep cluster. All its servers have this file (--security). docs/security.md"))
            document["key"] = self.random_bytes(32).hex()
            return document
        content = read_file(str(self.path))
        try:
            parse_users(content)
            return tomlkit.parse(content.decode())
        except (ConfigError, TOMLKitError) as error:
            raise ConfigError(f"{self.path}: {error}") from None

    def _entry(self, name: str) -> tuple[Any, Any]:
        if not self.path.exists():
            raise OperationError(f"{self.path}: no such file: `lockstep user add {name}` makes it")
        document = self._document()
        users = document.get("user", {})
        if name not in users:
            raise UnknownUserError(name, users)
        return document, users[name]

    @staticmethod
    def _texts(name: str, entry: Any) -> list[str]:
        value = entry.get("verifier")
        if value is None:
            raise OperationError(f"user {name} has no password: `lockstep user passwd {name}` gives it one")
        return [str(value)] if isinstance(value, str) else [str(each) for each in value]

    def _write(self, document: Any, secrets: Mapping[Path, bytes] = NO_SECRETS) -> None:
        content = tomlkit.dumps(document).encode()
        parse_users(content)
        if len(content) > FILE_BYTES_MAX:
            raise OperationError(f"{self.path}: it would have {len(content)} bytes, and servers read {FILE_BYTES_MAX}: nothing was changed")
        for path, secret in secrets.items():
            replace_file(path, secret, 0o600)
        replace_file(self.path, content, 0o600)

    def _verifier(self, password: str, salt: bytes | None = None, iterations: int = ITERATIONS) -> Verifier:
        return Verifier.of(password, self.random_bytes(SALT_BYTES) if salt is None else salt, iterations)


def _inline(value: Any) -> Any:
    """Return a value for a table; a map of its own in one line."""
    if not isinstance(value, dict):
        return value
    table = tomlkit.inline_table()
    table.update(value)
    return table
