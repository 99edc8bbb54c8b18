"""Encode rows as records and group them into frames. Deterministic: the same rows in the same order give the same frames.

A row's queue is its `partition` (the queue's position in the layout), else crc32(key) mod the number of writable queues as in the SDK's
keyed send, else the frames go round robin to the queues. A frame ends by count and bytes, never by the clock.
"""

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from struct import Struct
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lockstep.protocol.crc import crc32
from lockstep.protocol.errors import LocalProtocolError, StateError
from lockstep.protocol.frame import BODY_BYTES_MAX
from lockstep.protocol.messages.message import check_tag, topic_bytes
from lockstep.protocol.messages.properties import (
    KEYS,
    SHARDING_KEY,
    TAGS,
    check_sent_bytes,
    check_text,
    check_user_properties,
    encode_properties,
)
from lockstep.protocol.messages.record import BODY_AT, CRC_MASK, MAGIC
from lockstep.protocol.topics.queue import MessageQueue, TopicLayout

_HEAD = Struct(">IIIii16xiq24xi8xI")
"""The HEAD of protocol/messages/record.py, with zeros in the broker's fields: size, magic, CRC, queue, flag, sys flag, born, reconsume
times, body length."""
SPAN_MS = 20
"""Maximum range of `bornTimestamp`s in a frame if rows are sent at these times: a frame is sent when its last row is due."""
TAILS_MAX = 100_000
"""Maximum number of keys with cached encoded properties."""
SINK_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int", "bigint", "smallint", "tinyint"),
    "tags": ("string",),
    "keys": ("string",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "bornTimestamp": ("timestamp",),
}
"""The columns that a write may have, with their Spark types."""
PLACED_OVER = "lockstep.queues"
"""Metadata of the column `partition`: the number of queues over which `keyed` has placed the rows."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Records of one queue that are sent in one request."""

    queue: MessageQueue
    records: bytes
    sizes: list[int]
    due_ms: int
    """The `bornTimestamp` of its last record; 0 without that column."""


def check_columns(types: Mapping[str, str], *, topic_given: bool) -> None:
    """Check the columns of a write and their Spark types. Raise LocalProtocolError for an unsupported or missing column."""
    for name, type_ in types.items():
        if name not in SINK_COLUMNS:
            close = difflib.get_close_matches(name, SINK_COLUMNS, n=1, cutoff=0.5)
            hint = f', did you mean "{close[0]}"?' if close else ""
            raise LocalProtocolError(
                f'column "{name}" can\'t be sent{hint} (the columns of a write are {", ".join(SINK_COLUMNS)}): drop or rename it'
            )
        if type_ not in SINK_COLUMNS[name]:
            raise LocalProtocolError(f'column "{name}" is {type_}: expected {" or ".join(SINK_COLUMNS[name])}')
    if "value" not in types:
        raise LocalProtocolError('a write needs the column "value" (binary or string): the message body')
    if not topic_given and "topic" not in types:
        raise LocalProtocolError('the topic is missing: use the option "topic", or a column "topic"')


def check_placement(placed_over: int | None, layout: TopicLayout) -> None:
    """Raise StateError if rows were placed over another number of queues than the topic has. None: that number is not known."""
    count = len(layout.write_queues)
    if placed_over is not None and placed_over != count:
        raise StateError(
            f"keyed() placed the rows over {placed_over} queues, and topic {layout.topic} has {count} writable queues now, so keys belong "
            "elsewhere: call queue_count() again for each job or micro-batch and pass its result to keyed(). Nothing was sent"
        )


class _Open:
    """A frame that is being filled."""

    __slots__ = ("byte_count", "due_ms", "first_ms", "parts", "queue", "sizes")

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.parts: list[bytes] = []
        self.sizes: list[int] = []
        self.byte_count = 0
        self.first_ms = 0
        self.due_ms = 0

    def cut(self) -> Frame:
        frame = Frame(self.queue, b"".join(self.parts), self.sizes, self.due_ms)
        self.parts, self.sizes, self.byte_count = [], [], 0
        return frame


class TopicFrames:
    """The frames of one topic in one task."""

    def __init__(self, layout: TopicLayout, task: int, *, records_max: int, bytes_max: int, born_ms: int, scheduled: bool) -> None:
        if not layout.write_queues:
            raise LocalProtocolError(f"topic {layout.topic} has no writable queue")
        self._queues = layout.write_queues
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._born_ms = born_ms
        self._span_ms = SPAN_MS if scheduled else 1 << 62
        topic = topic_bytes(layout.topic)
        self._topic = bytes((len(topic),)) + topic
        self._plain_tail = self._tail(b"")
        self._tails: dict[bytes | None, tuple[bytes, int]] = {None: (self._plain_tail, -1)}
        """Key → (the bytes after the body, the number of the key's queue)."""
        self._open = [_Open(queue) for queue in self._queues]
        self._unkeyed = _Open(self._queues[task % len(self._queues)])
        """Collects rows with neither partition nor key; these frames go round robin to the queues."""
        self._next_unkeyed = task + 1

    def add(self, rows: "pa.RecordBatch | pa.Table") -> Iterator[Frame]:
        """Add rows, and yield the frames that they complete."""
        columns = {name: rows.column(name) for name in rows.schema.names}
        bodies = _bytes_of(columns["value"])
        tails, numbers = self._tails_and_numbers(columns, len(bodies))
        born: Any = _born_ms(columns["bornTimestamp"]) if "bornTimestamp" in columns else repeat(self._born_ms)
        scheduled = "bornTimestamp" in columns
        pack, records_max, bytes_max, span_ms = _HEAD.pack, self._records_max, self._bytes_max, self._span_ms
        for body, tail, number, born_ms in zip(bodies, tails, numbers, born):  # noqa: B905
            if not body or len(body) > BODY_BYTES_MAX:
                raise _bad_body(body)
            size = BODY_AT + len(body) + len(tail)
            frame = self._unkeyed if number < 0 else self._open[number]
            if frame.sizes and (
                len(frame.sizes) >= records_max or frame.byte_count + size > bytes_max or born_ms - frame.first_ms > span_ms
            ):
                yield frame.cut()
                if number < 0:
                    frame = self._open_unkeyed()
            if not frame.sizes:
                frame.first_ms = born_ms
            frame.parts += (
                pack(size, MAGIC, crc32(body) & CRC_MASK, frame.queue.queue_id, 0, 0, born_ms, 0, len(body)),
                body,
                tail,
            )
            frame.sizes.append(size)
            frame.byte_count += size
            frame.due_ms = born_ms if scheduled else 0

    def finish(self) -> Iterator[Frame]:
        """Yield the incomplete frames."""
        for frame in (*self._open, self._unkeyed):
            if frame.sizes:
                yield frame.cut()

    def _open_unkeyed(self) -> _Open:
        self._unkeyed = _Open(self._queues[self._next_unkeyed % len(self._queues)])
        self._next_unkeyed += 1
        return self._unkeyed

    def _tails_and_numbers(self, columns: Mapping[str, Any], count: int) -> tuple[Sequence[bytes], Sequence[int]]:
        keys: Sequence[bytes | None] = _bytes_of(columns["key"]) if "key" in columns else [None] * count
        known = self._tails
        if len(known) > TAILS_MAX:
            known.clear()
            known[None] = (self._plain_tail, -1)
        for key in keys:
            if key not in known:
                assert key is not None
                known[key] = (self._tail(_stored_key(key)), crc32(key) % len(self._queues))
        found = [known[key] for key in keys]
        tails = [tail for tail, _ in found]
        if columns.keys() & {"tags", "keys", "headers"}:
            tails = self._whole_tails(columns, keys)
        if "partition" not in columns:
            return tails, [number for _, number in found]
        return tails, self._numbers(columns["partition"])

    def _numbers(self, column: Any) -> Sequence[int]:
        numbers, queues = [] if column.null_count else _ints_of(column), len(self._queues)
        if column.null_count or (numbers and not 0 <= min(numbers) <= max(numbers) < queues):
            found = next((number for number in numbers if not 0 <= number < queues), "null in a row (keyed() sets null if the key is null)")
            raise LocalProtocolError(f"partition is {found}: topic {self._queues[0].topic} has {queues} writable queues, numbered from 0")
        return numbers

    def _whole_tails(self, columns: Mapping[str, Any], keys: Sequence[bytes | None]) -> list[bytes]:
        none: Sequence[None] = [None] * len(keys)
        tags, words, headers = (columns[name].to_pylist() if name in columns else none for name in ("tags", "keys", "headers"))
        return [
            self._tail(_stored_properties(key, tag, text, header))
            for key, tag, text, header in zip(keys, tags, words, headers, strict=True)
        ]

    def _tail(self, properties: bytes) -> bytes:
        check_sent_bytes(len(properties), "key, tags, keys and headers of a row")
        return self._topic + len(properties).to_bytes(2, "big") + properties


class Frames:
    """The frames of one task, for one or several topics. `make` makes the TopicFrames of a layout."""

    def __init__(self, topic: str | None, make: Callable[[TopicLayout], TopicFrames]) -> None:
        self._topic = topic
        self._make = make
        self._topics: dict[str, TopicFrames] = {}
        self.layouts: list[TopicLayout] = []
        """The layout of each topic that is open."""

    def open(self, layout: TopicLayout) -> None:
        """Set the topic's queues for the rest of the task."""
        self._topics[layout.topic] = self._make(layout)
        self.layouts.append(layout)

    def missing(self, batch: pa.RecordBatch) -> list[str]:
        """Return the topics of these rows that must be opened first."""
        return [topic for topic in self._named(batch) if topic not in self._topics]

    def add(self, batch: pa.RecordBatch) -> Iterator[Frame]:
        """Add a batch, and yield the frames that it completes."""
        if self._topic is not None:
            yield from self._topics[self._topic].add(batch)
            return
        column = batch.column("topic")
        for topic in self._named(batch):
            yield from self._topics[topic].add(batch.filter(pc.equal(column, topic)))

    def finish(self) -> Iterator[Frame]:
        """Yield the incomplete frames."""
        for name in sorted(self._topics):
            yield from self._topics[name].finish()

    def _named(self, batch: pa.RecordBatch) -> list[str]:
        if self._topic is not None:
            return [self._topic]
        names = pc.unique(batch.column("topic")).to_pylist()
        if None in names:
            raise LocalProtocolError('topic is null in a row: set it in each row, or for all rows with the option "topic"')
        return sorted(names)


# --------------------------------------------------------------------------------------------------------------------- columns


def _bytes_of(column: Any) -> list[Any]:
    """Return the values of a binary or string column, with None for null. Slicing its buffer is four times as fast as `to_pylist`."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    large = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    if not len(array):
        return []
    _, offsets, data = array.buffers()
    bounds = memoryview(offsets).cast("q" if large else "i")[array.offset : array.offset + len(array) + 1]
    first = bounds[0]
    raw = bytes(memoryview(data)[first : bounds[-1]]) if data is not None else b""
    values: list[Any] = [raw[start - first : end - first] for start, end in pairwise(bounds)]
    if array.null_count:
        for index, valid in enumerate(array.is_valid().to_pylist()):
            if not valid:
                values[index] = None
    return values


def _born_ms(column: Any) -> list[int]:
    if column.null_count:
        raise LocalProtocolError("bornTimestamp is null in a row: omit the column, or set it in each row")
    return [micros // 1_000 for micros in _ints_of(column.cast(pa.timestamp("us")))]


def _ints_of(column: Any) -> list[int]:
    """Return the numbers of a column without nulls, from its buffer as in `_bytes_of`."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    array = array.cast(pa.int64())
    return memoryview(array.buffers()[1]).cast("q")[array.offset : array.offset + len(array)].tolist() if len(array) else []


def _bad_body(body: bytes | None) -> LocalProtocolError:
    if body is None:
        return LocalProtocolError("value is null in a row: a message body has at least 1 byte; filter such rows out")
    if not body:
        return LocalProtocolError("value is empty in a row: a message body has at least 1 byte; filter such rows out")
    return LocalProtocolError(f"value has {len(body)} bytes in a row: at most {BODY_BYTES_MAX} (4 MiB) are allowed")


def _text_of(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise LocalProtocolError(
            f"key {key[:40]!r} is not UTF-8: a sharding key is text; encode it, for example as base64 or hex"
        ) from None


def _stored_key(key: bytes) -> bytes:
    check_text("key", _text_of(key))
    return f"{SHARDING_KEY}\x01".encode() + key


def _stored_properties(key: bytes | None, tag: str | None, words: str | None, headers: Sequence[Mapping[str, Any]] | None) -> bytes:
    stored: dict[str, str] = {}
    if headers:
        own = {header["key"]: (header["value"] or b"").decode("utf-8", "surrogateescape") for header in headers if header is not None}
        check_user_properties(own)
        stored |= own
    if tag is not None:
        check_tag(tag)
        stored[TAGS] = tag
    if words is not None:
        check_text("keys", words)
        stored[KEYS] = " ".join(words.split())
    if key is not None:
        check_text("key", _text_of(key))
        stored[SHARDING_KEY] = key.decode()
    return encode_properties(stored)
