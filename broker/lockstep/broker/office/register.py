"""The entry of a broker name, and the register that keeps it. Pure.

A register changes an entry by compare-and-swap. A swap whose answer is lost may have been carried out, or be carried out yet: that is
settled only when the version is another one.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Protocol

from lockstep.protocol.errors import LockstepError

FORMAT = 1
"""The format of the JSON form. A version that writes what this one can't read has a higher number."""
ENTRY_BYTES_MAX = 8 * 1024
Version = int
"""Which state of the entry was read. 0: there was none."""

_MEMBER = re.compile(r"[0-9a-f]{16}")
_WORD = re.compile(r"[a-z_]{1,40}")
_WRITE = re.compile(r"[0-9a-f]{16}-[0-9]{1,19}")


class RegisterError(LockstepError):
    """The register has not done what was asked."""


class RegisterUnreachableError(RegisterError):
    """Nothing is known about the entry, and it was not changed by this call."""


class RegisterUnknownError(RegisterError):
    """It is unknown whether the entry was changed, or will be."""


class RegisterEntryError(RegisterError):
    """The register has no valid entry at its place, or one can't be stored: an operator has to look."""

    exit_code: ClassVar[int] = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """Who rules a broker name."""

    log: str
    """The store id of the log, which all copies have."""
    term: int
    master: str
    """Member id: 16 hex digits."""
    in_sync: tuple[str, ...]
    """Member ids, the master's included."""
    replicas: dict[str, str]
    """Member id → address of the listener `internal`, of all known copies, the master's included."""
    write: str
    """Who wrote this value: MEMBER-NUMBER, another one for each swap."""
    why: str
    """elected, shrunk, grown, switched, unclean, roll_call or created."""
    assumed_loss: bool = False
    """Whether the term began with a loss that nobody can rule out."""

    def to_json(self) -> bytes:
        """Return the stored form. Raise RegisterEntryError if it has more than ENTRY_BYTES_MAX bytes, or `from_json` would refuse it."""
        problem = _problem_of(self)
        if problem is not None:
            raise RegisterEntryError(f"this entry can't be stored: {problem}")
        stored = json.dumps({"format": FORMAT, **asdict(self)}, separators=(",", ":")).encode()
        if len(stored) > ENTRY_BYTES_MAX:
            raise RegisterEntryError(
                f"the entry has {len(stored)} bytes, at most {ENTRY_BYTES_MAX}: it knows {len(self.replicas)} copies of the log; forget "
                "those that will not come back, by `lockstep replica forget`"
            )
        return stored

    @classmethod
    def from_json(cls, stored: bytes) -> "Entry":
        """Return the entry of a stored form. Raise RegisterEntryError, which says what is wrong with it."""
        if len(stored) > ENTRY_BYTES_MAX:
            raise RegisterEntryError(f"it has {len(stored)} bytes, an entry has at most {ENTRY_BYTES_MAX}")
        try:
            found = json.loads(stored)
        except (ValueError, RecursionError):
            raise RegisterEntryError("it is not JSON") from None
        if not isinstance(found, dict):
            raise RegisterEntryError(f"expected an object of JSON, found {_shown(found)}")
        if type(found.get("format")) is not int or found["format"] != FORMAT:
            raise RegisterEntryError(
                f"it has format {_shown(found.get('format'))}, this version of lockstep reads format {FORMAT}: start one that reads it"
            )
        names = {each.name for each in fields(cls)}
        given = {name: value for name, value in found.items() if name != "format"}
        if wrong := given.keys() ^ names:
            name = min(wrong)
            raise RegisterEntryError(f"{'unexpected field' if name in given else 'it lacks the field'} {_shown(name)}")
        values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
        entry = cls(**values)
        problem = _problem_of(entry)
        if problem is not None:
            raise RegisterEntryError(problem)
        return entry


def _problem_of(entry: Entry) -> str | None:
    """Return what is wrong with an entry, None if it is valid."""
    for name, expected, is_right in (
        ("log", "a store id", isinstance(entry.log, str) and 0 < len(entry.log) <= 64),
        ("term", "a number from 1 on", type(entry.term) is int and 0 < entry.term < 1 << 63),
        ("master", "a member id of 16 hex digits", _is_member(entry.master)),
        ("in_sync", "different member ids", _are_members(entry.in_sync)),
        ("replicas", "member id → HOST:PORT", _are_addresses(entry.replicas)),
        ("write", "MEMBER-NUMBER", isinstance(entry.write, str) and _WRITE.fullmatch(entry.write)),
        ("why", "a word", isinstance(entry.why, str) and _WORD.fullmatch(entry.why)),
        ("assumed_loss", "true or false", isinstance(entry.assumed_loss, bool)),
    ):
        if not is_right:
            return f"{name} is {_shown(getattr(entry, name))}: expected {expected}"
    if entry.master not in entry.in_sync:
        return f"in_sync lacks the master {entry.master}"
    if unknown := set(entry.in_sync) - entry.replicas.keys():
        return f"in_sync has {min(unknown)}, replicas has no address of it"
    return None


def _is_member(value: object) -> bool:
    return isinstance(value, str) and _MEMBER.fullmatch(value) is not None


def _are_members(value: object) -> bool:
    return isinstance(value, tuple) and all(map(_is_member, value)) and len(set(value)) == len(value)


def _are_addresses(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        _is_member(member) and isinstance(address, str) and 0 < len(address) <= 300 for member, address in value.items()
    )


def _shown(value: Any) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= 60 else f"{text[:60]}…"


class Register(Protocol):
    """The entry of one broker name of one cluster. Each call takes at most CALL_S (endpoints.py)."""

    async def read(self) -> tuple[Entry | None, Version]:
        """Return the entry as it is now (linearizable), None if there is none, and its version.

        Raises RegisterUnreachableError, or RegisterEntryError for something else in its place.
        """
        ...

    async def swap(self, version: Version, entry: Entry) -> bool:
        """Store the entry if the version is still this one. Return whether that was so.

        Raises:
            RegisterUnknownError: The entry may have been stored, or may be yet.
            RegisterUnreachableError: It certainly was not, and will not be.
            RegisterEntryError: It is no valid one.
        """
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...
