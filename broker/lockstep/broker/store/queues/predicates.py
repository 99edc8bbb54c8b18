"""Reads that let only some messages pass by what their records contain. RocketMQ: ExpressionMessageFilter.

The reader fetches the records of a page as for any read. A predicate then examines the properties of each, and those that pass are returned
as they are stored.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lockstep.protocol.messages.properties import VALUE_END
from lockstep.protocol.messages.record import INT64, QUEUE_OFFSET_AT, UINT16, UINT32, head_of

EXAMINED_BYTES_MAX = 1 << 20
"""Bytes of records that a read with a predicate examines before it returns what matched. The first record is always examined."""
Keep = Callable[[bytes, int], bool]
"""Returns whether a message passes. It gets the record's properties as they are stored, after one VALUE_END, and its queue offset. It does
not raise."""
_VALUE_END = VALUE_END.encode()


@dataclass(slots=True)
class Selected:
    """The records that a predicate lets pass."""

    parts: list[bytes]
    count: int = 0
    examined: int = 0
    """Records that were examined. If it is not all of them, the page was full."""
    examined_bytes: int = 0


def select(parts: Sequence[bytes], sizes: Sequence[int], keep: Keep, max_count: int, max_bytes: int) -> Selected:
    """Return the records for which `keep` returns True, up to a full page: the first one always fits. Adjacent ones are one part.

    `sizes`: of the records in the parts, in order.
    """
    found = Selected([])
    ordinal, total = 0, 0
    for part in parts:
        at = begin = 0
        while at < len(part):
            size = sizes[ordinal]
            if keep(stored_properties(part, at, at + size), INT64.unpack_from(part, at + QUEUE_OFFSET_AT)[0]):
                if found.count and (found.count == max_count or total + size > max_bytes):
                    if begin < at:
                        found.parts.append(part[begin:at])
                    return found
                found.count += 1
                total += size
            else:
                if begin < at:
                    found.parts.append(part[begin:at])
                begin = at + size
            at += size
            ordinal += 1
            found.examined = ordinal
            found.examined_bytes += size
        if begin < at:
            found.parts.append(part[begin:at])
    return found


def stored_properties(data: bytes, at: int, end: int) -> bytes:
    """Return the properties of the record at `at`, after one VALUE_END; without any if the record does not fit before `end`."""
    body_at = at + head_of(data, at).size
    if body_at > end:
        return _VALUE_END
    topic_at = body_at + UINT32.unpack_from(data, body_at - UINT32.size)[0]
    if topic_at < end:
        length_at = topic_at + 1 + data[topic_at]
        if length_at + UINT16.size <= end:
            begin = length_at + UINT16.size
            return _VALUE_END + data[begin : min(end, begin + UINT16.unpack_from(data, length_at)[0])]
    return _VALUE_END
