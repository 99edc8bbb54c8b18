"""Convert pulled records to arrays. Their format is that of protocol/messages/record.py.

No Python object is created per record: numbers, bodies and properties are extracted for a whole page at once.
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from struct import error as StructError
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.lib.stride_tricks import sliding_window_view
from pyarrow import compute

from lockstep.protocol.errors import RemoteProtocolError
from lockstep.protocol.messages.compression import decompress_body
from lockstep.protocol.messages.message import MessageExt, decode_messages
from lockstep.protocol.messages.properties import SHARDING_KEY, TAGS
from lockstep.protocol.messages.record import (
    BODY_AT,
    BORN_HOST_AT,
    IPV6_MORE_BYTES,
    MAGIC,
    RECORD_BYTES_MIN,
    STORE_HOST_AT,
    SYS_BORN_IPV6,
    SYS_COMPRESSED,
    SYS_IPV6_MASK,
    SYS_STORE_IPV6,
    record_bounds,
)

Ints: TypeAlias = Any
"""A one-dimensional array of int64."""

_SIZE = Struct(">I")
INT32, UINT32, INT64 = ">i4", ">u4", ">i8"
QUEUE_OFFSET, SYS_FLAG, BORN_MS, STORE_MS, RECONSUME_TIMES, BODY_BYTES = 20, 36, 40, 56, 72, 84
"""Positions of fields in a record with IPv4 hosts."""
TEXT_KEY, TEXT_TAGS = (f"{name}\x01".encode() for name in (SHARDING_KEY, TAGS))
_END = 2
"""Separates properties."""
PLAIN_BYTES_MAX = 16 << 20
"""Decompressed bodies per batch: 2 MiB of records may decompress to a thousand times as much."""


class RangePage:
    """Collects the records of several pulls from one queue that are below offset `end` and match the tag filter."""

    def __init__(self, end: int, tags: frozenset[str] | None = None) -> None:
        self._end = end
        self._tags = tags
        self._pulls: list[Records] = []
        self.bytes = 0
        """Bytes of everything that was pulled, matching or not."""
        self.count = 0

    def take(self, data: bytes) -> None:
        """Add the records of one pull. Raise RemoteProtocolError if they are malformed."""
        if not data:
            return
        records = Records.of(data)
        keep = records.numbers(QUEUE_OFFSET, INT64) < self._end
        if self._tags is not None:
            tags = texts(records.properties(), TEXT_TAGS)
            keep &= np.fromiter((tag in self._tags for tag in tags), bool, len(tags))
        self._pulls.append(records if keep.all() else records.only(keep))
        self.bytes += len(data)
        self.count += int(keep.sum())

    def numbers(self, place: int, kind: str) -> Ints:
        """Return one field of each record."""
        return np.concatenate([np.empty(0, np.int64), *(records.numbers(place, kind) for records in self._pulls)])

    def properties(self) -> pa.Array:
        return _joined([records.properties() for records in self._pulls])

    def bodies(self) -> Iterator[tuple[slice, pa.Array]]:
        """Yield the bodies as they were sent: all at once, or in runs of about PLAIN_BYTES_MAX if any is stored compressed.

        Raise RemoteProtocolError for the first body that can't be decompressed.
        """
        stored = _joined([records.bodies() for records in self._pulls])
        flags = self.numbers(SYS_FLAG, INT32)
        if not (flags & SYS_COMPRESSED).any():
            yield slice(0, self.count), stored
            return
        first, size, run = 0, 0, []
        places = zip(flags.tolist(), self.numbers(QUEUE_OFFSET, INT64).tolist(), strict=True)
        for number, (body, place) in enumerate(zip(stored.to_pylist(), places, strict=True), 1):
            run.append(_plain(body, *place))
            size += len(run[-1])
            if size >= PLAIN_BYTES_MAX or number == self.count:
                part, made = slice(first, number), pa.array(run, pa.binary())
                first, size, run = number, 0, []
                yield part, made

    def messages(self, broker_name: str) -> list[MessageExt]:
        """Return the same records as messages."""
        kept = set(self.numbers(QUEUE_OFFSET, INT64).tolist())
        return [message for each in self._pulls for message in decode_messages(each.data, broker_name) if message.queue_offset in kept]


class Records:
    """The positions of each record's parts in `data`: arrays with one element per record."""

    def __init__(self, data: bytes, at: Ints, body_end: Ints, properties_at: Ints, end: Ints) -> None:
        self.data = data
        self._at = at
        self._body_end = body_end
        self._properties_at = properties_at
        self._end = end

    @classmethod
    def of(cls, data: bytes) -> "Records":
        """Parse records. Raise RemoteProtocolError for the first malformed one."""
        at = _starts(data)
        end = np.append(at[1:], len(data))
        # If a length leads out of the record, read at its last bytes instead: the checks below reject it.
        body_at = at + BODY_AT + _more(data, at, BODY_AT)
        body_bytes = _numbers(data, np.minimum(body_at, end) - 4, INT32)
        body_end = np.where(body_bytes < 0, end, body_at + body_bytes)
        properties_at = body_end + 3 + _numbers(data, np.minimum(body_end, end - 1), "u1")
        fits = np.minimum(properties_at, end)
        magic, properties_bytes = _numbers(data, at + 4, UINT32), _numbers(data, fits - 2, ">u2")
        wrong = (magic != MAGIC) | (properties_at > end) | (properties_bytes != end - properties_at)
        if wrong.any():
            raise _broken(data, int(at[wrong.argmax()]))
        return cls(data, at, body_end, properties_at, end)

    def only(self, keep: Any) -> "Records":
        return Records(self.data, self._at[keep], self._body_end[keep], self._properties_at[keep], self._end[keep])

    def numbers(self, place: int, kind: str) -> Ints:
        return _numbers(self.data, self._at + place + _more(self.data, self._at, place), kind)

    def bodies(self) -> pa.Array:
        return _cut(self.data, self._at + BODY_AT + _more(self.data, self._at, BODY_AT), self._body_end)

    def properties(self) -> pa.Array:
        return _cut(self.data, self._properties_at, self._end)


def keys(properties: pa.Array) -> pa.Array:
    """Return the sharding key of each record. It usually comes first and is sliced; elsewhere, as after a frame's stamp, it is searched."""
    if not has(properties, TEXT_KEY):
        return pa.nulls(len(properties), pa.binary())
    _, places, data = properties.buffers()
    bounds = np.frombuffer(places, np.int32)[properties.offset :][: len(properties) + 1].astype(np.int64)
    at, end, skip, octets = bounds[:-1], bounds[1:], len(TEXT_KEY), np.frombuffer(data, np.uint8)
    heads = sliding_window_view(octets, skip)[np.minimum(at, len(octets) - skip)]
    first = (heads == np.frombuffer(TEXT_KEY, np.uint8)).all(axis=1) & (end - at >= skip)
    marks = np.append(np.flatnonzero(octets == _END), len(octets))
    ends = np.minimum(marks[np.searchsorted(marks, np.minimum(at + skip, len(octets)))], end)
    found = _cut(data, np.where(first, at + skip, at), np.where(first, ends, at))
    if first.all():
        return found
    others = [property_of(each, TEXT_KEY) for each in properties.filter(pa.array(~first)).to_pylist()]
    return compute.replace_with_mask(found, pa.array(~first), pa.array(others, pa.binary()))


def has(properties: pa.Array, head: bytes) -> bool:
    """Return False if no record has this property."""
    data = properties.buffers()[2]
    return data is not None and head in data.to_pybytes()


def _starts(data: bytes) -> Ints:
    """Return the position of each record. Raise RemoteProtocolError for an impossible length."""
    length = len(data)
    size = _SIZE.unpack_from(data)[0] if length >= RECORD_BYTES_MIN else 0
    if size >= RECORD_BYTES_MIN and not length % size:
        starts = np.arange(0, length, size)
        if (_numbers(data, starts, UINT32) == size).all():
            return starts
    found: list[int] = []
    at, unpack, add = 0, _SIZE.unpack_from, found.append
    try:
        while at < length:
            add(at)
            at += unpack(data, at)[0] or length + 1
    except StructError:
        raise _broken(data, at) from None
    starts = np.array(found, np.int64)
    short = np.diff(starts, append=at) < RECORD_BYTES_MIN
    if short.any() or at > length:
        raise _broken(data, int(starts[short.argmax() if short.any() else -1]))
    return starts


def _more(data: bytes, at: Ints, place: int) -> Ints:
    """Return by how much a field of each record is further on than `place`, because of IPv6 hosts before it. Usually 0."""
    flags = _numbers(data, at + SYS_FLAG, INT32)
    if not (flags & SYS_IPV6_MASK).any():
        return 0
    hosts = [(flags & bit != 0) for bit, host in ((SYS_BORN_IPV6, BORN_HOST_AT), (SYS_STORE_IPV6, STORE_HOST_AT)) if place > host]
    return IPV6_MORE_BYTES * sum(host.astype(np.int64) for host in hosts)


def _numbers(data: bytes, at: Ints, kind: str) -> Ints:
    """Return the number at each position."""
    everywhere: Any = np.ndarray(max(0, len(data) - np.dtype(kind).itemsize + 1), kind, data, strides=(1,))
    return everywhere[at].astype(np.int64)


def _joined(parts: Sequence[pa.Array]) -> pa.Array:
    return parts[0] if len(parts) == 1 else pa.concat_arrays([pa.array([], pa.binary()), *parts])


def _cut(data: "bytes | pa.Buffer", start: Ints, end: Ints) -> pa.Array:
    """Return data[start:end] of each record. The slices must be ascending and disjoint: every second piece between the positions is one."""
    count = len(start)
    if not count:
        return pa.array([], pa.binary())
    places = np.empty(2 * count, np.int32)
    places[0::2], places[1::2] = start, end
    pieces = pa.BinaryArray.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(places), pa.py_buffer(data)])
    return pieces.take(pa.array(np.arange(0, 2 * count, 2)))


def _broken(data: bytes, at: int) -> RemoteProtocolError:
    if len(data) - at < RECORD_BYTES_MIN:
        return RemoteProtocolError(f"record at {at}: {len(data) - at} bytes remain, and a record has at least {RECORD_BYTES_MIN}")
    try:
        record_bounds(data, at)
    except RemoteProtocolError as error:
        return error
    return RemoteProtocolError(f"record at {at}: its magic or lengths do not fit a stored record")


def _plain(body: bytes, flags: int, offset: int) -> bytes:
    try:
        return decompress_body(body, flags) if flags & SYS_COMPRESSED else body
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"message at offset {offset}: {error}") from None


def property_of(properties: bytes, head: bytes) -> bytes | None:
    """Return the value of the property that begins with `head` (name and 0x01), or None if there is none."""
    at = properties.find(head)
    while at > 0 and properties[at - 1] != _END:
        at = properties.find(head, at + 1)
    if at < 0:
        return None
    end = properties.find(b"\x02", at)
    return properties[at + len(head) : end if end >= 0 else len(properties)]


def texts(properties: pa.Array, head: bytes) -> list[str | None]:
    """Return this property of each record as text."""
    values = [property_of(each, head) for each in properties.to_pylist()]
    return [None if value is None else value.decode("utf-8", "replace") for value in values]
