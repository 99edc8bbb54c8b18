"""A copy of the last file of users that a server could use, for a start when the file itself can't be used."""

import os

from lockstep.protocol.errors import ConfigError
from lockstep.runtime.security.users import parse_users
from lockstep.runtime.security.watched_files import read_file, write_file


def keep_users(path: str, copy: str) -> str | None:
    """Copy the file, if it can be used, for its owner only. Return why that failed, or None. Blocks."""
    try:
        content = read_file(path)
        parse_users(content)
        write_file(copy, content, 0o600)
    except (ConfigError, OSError) as error:
        return str(error)
    return None


def last_good_hint(copy: str) -> str:
    """Return the end of an error about a file that can't be used: what its copy is for, if there is one. Blocks."""
    if not os.path.exists(copy):
        return ""
    return f". {copy} has the users that this server could read last: --security-last-good starts with them"
