"""What a user may use of one server at most: `limits` in the user's table of the file of users, or `--limit KEY=VALUE`.

Numbers are whole ones from 1, bytes may have a unit ("20MiB"). What is not named has no limit.
"""

import re
from dataclasses import dataclass, fields
from typing import Any

from lockstep.protocol.errors import ConfigError

UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = re.compile(r"([0-9]{1,15})\s*([A-Za-z]*)")
LIMIT_MAX = 1 << 50


@dataclass(frozen=True, slots=True)
class UserLimits:
    """The limits of one user. None: none."""

    connections: int | None = None
    """Connections on which the user has logged in, of a broker or nameserver."""
    requests_per_s: int | None = None
    """Sends and pulls."""
    bytes_in_per_s: int | None = None
    """Bytes of sends."""
    bytes_out_per_s: int | None = None
    """Bytes of messages that pulls return."""
    held_pulls: int | None = None
    """Pulls that wait at a time."""
    producer_ids: int | None = None
    """Ids under which the user's producers have sent within an hour."""

    @classmethod
    def parse(cls, table: Any) -> "UserLimits":
        """Return the limits of a table. Raise ConfigError, whose text begins with the key concerned (".connections: …")."""
        known = [each.name for each in fields(cls)]
        if not isinstance(table, dict):
            raise ConfigError(": expected a table, as { connections = 50 }")
        if unknown := sorted(table.keys() - set(known)):
            raise ConfigError(f": unknown key {unknown[0][:80]!r}: expected {', '.join(known)}")
        return cls(**{key: _number(key, value) for key, value in table.items()})


NO_LIMITS = UserLimits()


def _number(key: str, value: Any) -> int:
    in_bytes = key.startswith("bytes_")
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    number = int(found[1]) * UNITS[found[2]] if found is not None and found[2] in (UNITS if in_bytes else ("",)) else value
    if type(number) is not int or not 1 <= number <= LIMIT_MAX:
        form = 'a number of bytes, as 1000000, "500KiB", "20MiB" or "1GiB",' if in_bytes else "a number"
        raise ConfigError(f".{key}: {str(value)[:40]!r}: expected {form} from 1 to {LIMIT_MAX}")
    return number
