"""What a client logs in with: a user's name and where the password comes from."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.protocol.errors import ConfigError
from lockstep.runtime.security.scram import Challenge, salted_password
from lockstep.runtime.security.users import check_user_name
from lockstep.runtime.security.watched_files import read_file

PasswordSource = str | Path | Callable[[], str]
"""The password, the path of a file that has it in its first line, or what returns it. Files are read and functions called at each login."""


@dataclass(slots=True)
class Credentials:
    """A user and the source of the password."""

    user: str
    password: PasswordSource = field(repr=False)
    optional: bool = False
    """Whether to go on with a server that asks for no login."""
    _salted: dict[tuple[bytes, bytes, int], bytes] = field(default_factory=dict, repr=False)
    """The last salted password, by a digest of the password, salt and iterations."""

    def __post_init__(self) -> None:
        check_user_name(self.user)
        if not (isinstance(self.password, str | Path) or callable(self.password)):
            raise ConfigError("password: expected a text, a Path of a file, or a function")

    def answer(self, challenge: Challenge) -> bytes:
        """Return the salted password. It takes milliseconds the first time. Raise ConfigError if the password can't be had."""
        password = self._read()
        key = hashlib.sha256(password.encode("utf-8", "surrogatepass")).digest(), challenge.salt, challenge.iterations
        if key not in self._salted:
            salted = salted_password(password, challenge.salt, challenge.iterations)
            self._salted.clear()
            self._salted[key] = salted
        return self._salted[key]

    def _read(self) -> str:
        if isinstance(self.password, str):
            return self.password
        if isinstance(self.password, Path):
            try:
                return read_file(str(self.password)).decode().partition("\n")[0].rstrip("\r")
            except UnicodeDecodeError:
                raise ConfigError(f"{self.password}: it is not UTF-8") from None
        found = self.password()
        if not isinstance(found, str):
            raise ConfigError(f"the function for the password of {self.user} returned {type(found).__name__}: expected a text")
        return found
