"""Users for tests."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from lockstep.runtime.security.client_security import ClientSecurity
from lockstep.runtime.security.credentials import Credentials, PasswordSource
from lockstep.runtime.security.scram import ITERATIONS_MIN, Verifier
from lockstep.runtime.security.server_security import ServerSecurity
from lockstep.runtime.security.users import read_users
from lockstep.runtime.security.watched_files import WatchedFiles

PASSWORD = "correct horse"
SALT = b"0123456789abcdef"
NO_RULES: Mapping[str, str] = {}


def write_users(path: Path, passwords: Mapping[str, Sequence[str]], rules: Mapping[str, str] = NO_RULES, **networks: list[str]) -> str:
    """Write the file of users with their passwords, and return its path. `rules`: TOML of a user's rights; without it a super user."""
    lines = [f'key = "{"0a" * 32}"']
    for name, texts in passwords.items():
        verifiers = ", ".join(f'"{Verifier.of(text, SALT, ITERATIONS_MIN)}"' for text in texts)
        lines += [
            f"[user.{name}]",
            f"verifier = [{verifiers}]",
            rules.get(name, "super = true"),
            *([f"from = {networks[name]}"] if name in networks else []),
        ]
    path.touch(0o600)
    path.write_text("\n".join(lines))
    return str(path)


def with_users(path: str, *, optional: bool = False) -> ServerSecurity:
    """Return the security of a server without TLS."""
    return ServerSecurity(users=WatchedFiles([path], lambda: read_users(path)), users_optional=optional)


def logging_in(user: str = "billing", password: PasswordSource = PASSWORD, *, optional: bool = False) -> ClientSecurity:
    """Return the security of a client without TLS."""
    return ClientSecurity(credentials=Credentials(user, password, optional))
