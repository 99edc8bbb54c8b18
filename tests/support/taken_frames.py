"""Append one frame by the kernel `take_frame` and by the Python form, and compare."""

from typing import Any

from lockstep.broker.store.log import append
from lockstep.broker.store.log.append import STAMP, TopicField, take_frame
from lockstep.protocol.native import kernels
from support.kernels import outcome, pure

ORDERS = TopicField("orders")
STORED_MS = 1_700_000_000_123
STAMPED = STAMP.pack(b"\x7f\0\0\1\0\0\x1f\x90", STORED_MS, b"\x0a\0\0\2\0\0\x2a\x9f")
DEFAULT: dict[str, Any] = {
    "queue_offset": 40,
    "position": 1000,
    "stamp": STAMPED,
    "size_max": 5000,
    "trusted": False,
    "sequenced": True,
    "room": None,
}


def taken(frame: bytes, count: int, topic: TopicField = ORDERS, queue_id: int = 3, **arguments: Any) -> tuple[object, bytes]:
    """Return the entries or the error, and what is in memory then."""
    tail = bytearray(b"before")
    result = outcome(lambda: bytes(take_frame(tail, frame, count, topic, queue_id, **DEFAULT | arguments)))
    return result, bytes(tail)


def check_take(frame: bytes, count: int, topic: TopicField = ORDERS, queue_id: int = 3, **arguments: Any) -> bool:
    """Check that both forms do the same, and that the kernel declines what Python refuses. Return whether the kernel took the frame."""
    native = taken(frame, count, topic, queue_id, **arguments)
    with pure(append):
        python = taken(frame, count, topic, queue_id, **arguments)
    assert native == python, (frame, count)
    tail = bytearray()
    *given, room = (DEFAULT | arguments).values()
    home, due_max = (b"", None) if room is None else (room.home, room.due_max(STORED_MS))
    values = [*given, home, due_max]
    direct = kernels.take_frame(tail, frame, count, topic.field, queue_id, *values)
    assert direct is None or direct == python[0]
    assert bytes(tail) == (b"" if direct is None else python[1][len(b"before") :])
    return direct is not None
