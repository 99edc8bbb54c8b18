"""The token of the admin port: what is secret there, and who may have it."""

import hmac
import re
from dataclasses import dataclass, field

from lockstep.protocol.errors import ConfigError
from lockstep.runtime.security.watched_files import check_mode, read_line

GUARDED = frozenset({"/metrics", "/log-level", "/reload"})
"""The pages that need the token: the others say only whether the process works."""
TOKEN_LENGTH_MIN, TOKEN_LENGTH_MAX = 16, 256
_TOKEN = re.compile(f"[!-~]{{{TOKEN_LENGTH_MIN},{TOKEN_LENGTH_MAX}}}")


@dataclass(frozen=True, slots=True)
class AdminToken:
    """The content of the file."""

    token: bytes = field(repr=False)

    def is_in(self, authorization: str) -> bool:
        """Return whether the field Authorization of a request has the token: `Bearer TOKEN`."""
        scheme, _, given = authorization.partition(" ")
        return hmac.compare_digest(given.strip().encode("latin-1", "replace"), self.token) and scheme.lower() == "bearer"


def read_token(path: str) -> AdminToken:
    """Read the file. Raise ConfigError, which names it and does not show the token."""
    token = read_line(path)
    check_mode(path)
    if not _TOKEN.fullmatch(token):
        expected = f"{TOKEN_LENGTH_MIN} to {TOKEN_LENGTH_MAX} printable ASCII characters without a space"
        raise ConfigError(f"{path}: its first line is no token: expected {expected}, as `openssl rand -hex 32` makes them")
    return AdminToken(token.encode())
