"""What a client logs in with: a user's name and where the password comes from."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.protocol.errors import AuthenticationError, ConfigError
from lockstep.runtime.security.scram import Challenge, prepare_password, salted_password
from lockstep.runtime.security.users import check_user_name
from lockstep.runtime.security.watched_files import read_line

PasswordSource = str | Path | Callable[[], str]
"""The password, the path of a file that has it in its first line, or what returns it. Files are read and functions called at each login."""


def password_of_file(path: Path) -> str:
    """Return the password that a file has in its first line. Raise ConfigError, which names the file and does not show the password."""
    password = read_line(str(path))
    try:
        prepare_password(password)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return password


@dataclass(slots=True)
class Credentials:
    """A user and the source of the password."""

    user: str
    password: PasswordSource | None = field(repr=False)
    """None: it was forgotten."""
    optional: bool = False
    """Whether to go on with a server that asks for no login."""
    _salted: dict[tuple[bytes, bytes, int], bytes] = field(default_factory=dict, repr=False)
    """The last salted password, by a digest of the password, salt and iterations."""

    def __post_init__(self) -> None:
        check_user_name(self.user)
        if not (isinstance(self.password, str | Path) or callable(self.password)):
            raise ConfigError("password: expected a text, a Path of a file, or a function")

    def forget_password(self) -> None:
        """Keep only the salted password of the last login, which is of use at the servers of this cluster alone."""
        self.password = None

    def forget(self) -> None:
        """Log in nowhere any more."""
        self.password = None
        self._salted.clear()

    def answer(self, challenge: Challenge) -> bytes:
        """Return the salted password. It takes milliseconds the first time.

        Raise ConfigError if the password can't be had, and AuthenticationError if it was forgotten and the server has another one.
        """
        if self.password is None:
            return self._kept(challenge)
        password = self._read(self.password)
        key = hashlib.sha256(password.encode("utf-8", "surrogatepass")).digest(), challenge.salt, challenge.iterations
        if key not in self._salted:
            salted = salted_password(password, challenge.salt, challenge.iterations)
            self._salted.clear()
            self._salted[key] = salted
        return self._salted[key]

    def _kept(self, challenge: Challenge) -> bytes:
        for (_, salt, iterations), salted in tuple(self._salted.items()):
            if (salt, iterations) == (challenge.salt, challenge.iterations):
                return salted
        raise AuthenticationError("the password is not known any more: log in again")

    def _read(self, password: PasswordSource) -> str:
        if isinstance(password, str):
            return password
        if isinstance(password, Path):
            return password_of_file(password)
        found = password()
        if not isinstance(found, str):
            raise ConfigError(f"the function for the password of {self.user} returned {type(found).__name__}: expected a text")
        return found
