"""What a response says: whether the request was carried out, and what a pull found."""

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.command import ADDRESS_FIELD, RETRY_AFTER_FIELD, TERM_FIELD, Command
from lockstep.protocol.errors import BrokerError, broker_error
from lockstep.protocol.fields import from_plain
from lockstep.protocol.headers.pull import PullReply

SUCCEEDED = frozenset({ResponseCode.SUCCESS})
RETRY_AFTER_MS_MAX = 60_000
"""The longest pause that a response may ask for."""
PULLED = frozenset({ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED})
"""The codes of responses to PULL_MESSAGE that have a PullReply."""


def checked(response: Command, accepted: Container[int] = SUCCEEDED) -> Command:
    """Return the response if its code is one of `accepted`. Otherwise raise the BrokerError of its code."""
    if response.code not in accepted:
        raise _error_of(response)
    return response


def _error_of(response: Command) -> BrokerError:
    error = broker_error(response.code, response.remark)
    error.retry_after_ms = retry_after_ms(response)
    error.address, error.term = responsible(response)
    return error


def error_fields(error: BrokerError) -> dict[str, Any] | None:
    """Return the fields of the response for an error, or None if it has none."""
    named = {RETRY_AFTER_FIELD: error.retry_after_ms, ADDRESS_FIELD: error.address, TERM_FIELD: error.term}
    return {name: value for name, value in named.items() if value is not None} or None


def responsible(response: Command) -> tuple[str | None, int | None]:
    """Return the address and the term of whoever is responsible instead of the sender of a refusal, each None if it is not named."""
    address, term = response.fields.get(ADDRESS_FIELD), response.fields.get(TERM_FIELD)
    return (address if isinstance(address, str) else None), (term if type(term) is int else None)


def retry_after_ms(response: Command) -> int | None:
    """Return the pause that a refusal asks for before the request is repeated, or None."""
    named_ms = response.fields.get(RETRY_AFTER_FIELD)
    return min(max(named_ms, 0), RETRY_AFTER_MS_MAX) if isinstance(named_ms, int) else None


@dataclass(frozen=True, slots=True)
class Pulled:
    """The result of a pull."""

    data: bytes
    """Records as stored; empty if there are none at the offset."""
    next_offset: int
    """The offset of the next pull."""
    min_offset: int
    max_offset: int
    moved: bool
    """True if the offset is outside the range that is stored."""


def pulled(response: Command) -> Pulled:
    """Return the result of a pull. Raise the BrokerError of a response that reports an error, or RemoteProtocolError."""
    reply = from_plain(PullReply, checked(response, PULLED).fields)
    data = bytes(response.body) if response.code == ResponseCode.SUCCESS else b""
    return Pulled(data, reply.next_begin_offset, reply.min_offset, reply.max_offset, response.code == ResponseCode.PULL_OFFSET_MOVED)
