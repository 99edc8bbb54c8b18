"""The kernels of native/src. Each returns None for what it does not handle (native.py)."""

INTERFACE: int

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
) -> bytearray | None: ...
def encode_message(
    topic: bytes, queue_id: int, body: bytes, properties: bytes, unique_key: str, flag: int, born_ms: int
) -> bytes | None: ...
def split_records(data: bytes) -> list[tuple[int, int, int, int, int]] | None: ...
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
