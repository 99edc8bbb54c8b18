"""Recall handles: texts that name a message that waits. RocketMQ: RecallMessageHandle.HandleV1.

    base64url of `v1 TOPIC BROKER DUE UNIQ_KEY OFFSET`

DUE is when the message is due, in ms since 1970, by the clock that stamped it. RocketMQ's handles end after UNIQ_KEY, and its clients read
no further; lockstep's name the offset in the room of timers as well.
"""

import base64
import binascii
from typing import NamedTuple

from lockstep.protocol.errors import LocalProtocolError

VERSION = "v1"
HANDLE_LENGTH_MAX = 1_024
NUMBER_DIGITS_MAX = 18


class RecallHandle(NamedTuple):
    """What a handle says."""

    topic: str
    broker_name: str
    due_ms: int
    message_id: str
    """UNIQ_KEY."""
    offset: int | None = None
    """The offset in the room of timers; None in a handle of RocketMQ."""

    def encode(self) -> str:
        """Return the handle as text: letters, digits, `-` and `_`."""
        words = [VERSION, self.topic, self.broker_name, str(self.due_ms), self.message_id]
        if self.offset is not None:
            words.append(str(self.offset))
        return base64.urlsafe_b64encode(" ".join(words).encode()).decode()

    @classmethod
    def decode(cls, text: str) -> "RecallHandle":
        """Return what a handle says. Raise LocalProtocolError if it is not one."""
        try:
            data = base64.b64decode(text.encode("ascii"), b"-_", validate=True) if len(text) <= HANDLE_LENGTH_MAX else b""
            version, topic, broker_name, due_ms, message_id, *more = data.decode().split(" ")
        except (UnicodeError, binascii.Error, ValueError):
            raise _not_one(text) from None
        numbers = [due_ms, *more[:1]]
        if version != VERSION or not all(map(_is_number, numbers)):
            raise _not_one(text)
        return cls(topic, broker_name, int(due_ms), message_id, int(more[0]) if more else None)


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) <= NUMBER_DIGITS_MAX


def _not_one(text: str) -> LocalProtocolError:
    return LocalProtocolError(f"{text[:60]!r} is no recall handle: expected SendResult.recall_handle of a message that waits")
