"""The kernels of native/src. Each returns None for what it does not handle (native.py)."""

from collections.abc import Callable, Sequence
from typing import Any, Self

from lockstep.protocol.command import Command
from lockstep.protocol.messages.message import Message, RoomMessage

INTERFACE: int

def next_frame(
    data: bytes, start: int, frame_bytes_max: int, header_bytes_max: int
) -> tuple[tuple[int, int, int, int, str | None, dict[str, Any], bytes, int, int], int] | None: ...
def encode_frame(command: Command, header_bytes_max: int, frame_bytes_max: int) -> bytes | None: ...

class FieldPlan:
    def __new__(cls, made: type, draft: type, fields: list[tuple[str, str, type | None, bool, object]]) -> Self: ...
    def read(self, plain: dict[str, Any]) -> Any | None: ...

def carries_sequence(
    frame: bytes,
    producer_id: str,
    partition: int,
    epoch: int,
    first: int,
    count: int,
    flags: int,
    crc: int,
    crc_before: int | None,
) -> bool: ...
def take_frame(
    tail: bytearray,
    frame: bytes,
    count: int,
    topic: bytes,
    queue_id: int,
    queue_offset: int,
    position: int,
    stamp: bytes,
    size_max: int,
    trusted: bool,
    sequenced: bool,
    home: bytes,
    due_max: int | None,
) -> bytearray | None: ...
def encode_message(
    topic: bytes, queue_id: int, body: bytes, properties: bytes, unique_key: str, flag: int, born_ms: int
) -> bytes | None: ...
def encode_messages(
    messages: Sequence[Message | RoomMessage],
    queue_id: int,
    key_head: str,
    key_first: int,
    key_count: int,
    born_ms: Sequence[int],
    body_bytes_max: int,
) -> tuple[bytes, list[int]] | None: ...
def split_records(data: bytes) -> list[int] | None: ...
def check_run(
    data: bytes,
    position: int,
    entries: bytes,
    indexes: list[int] | None,
    count: int,
    ordinal: int,
    offset: int,
    queue_id: int,
    topic: bytes,
) -> int | None: ...
def join_entries(entries: bytes, indexes: list[int] | None, count: int) -> list[tuple[int, int]] | None: ...
def scan_run(
    window: bytes,
    start: int,
    end: int,
    position: int,
    queue_of: Callable[[bytes, int], tuple[str, int] | None],
    scopes: dict[tuple[str, int, str, int], tuple[int, int, int, int, bool]],
    crc_before: Callable[[tuple[str, int, str, int], int, int, int], int | None],
    condense: bool,
) -> (
    tuple[
        int,
        int,
        int,
        int,
        int,
        list[tuple[str, int, int, int, bytes]],
        list[tuple[tuple[str, int, str, int], tuple[int, int, int, int, bool], tuple[int, int, int]]],
    ]
    | None
): ...
