"""Stored records as they are pulled → the columns of a read. The layout is protocol.record's; nothing is decoded that no column needs."""

from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Any

import pyarrow as pa

from lockstep.protocol.compression import decompress_body
from lockstep.protocol.errors import RemoteProtocolError
from lockstep.protocol.message import MessageExt, decode_messages
from lockstep.protocol.properties import KEYS, RESERVED, SHARDING_KEY, TAGS
from lockstep.protocol.queue import MessageQueue
from lockstep.protocol.record import BODY_AT, MAGIC, RECORD_BYTES_MIN, SYS_COMPRESSED, record_bounds
from lockstep.spark.options import SourceOptions

_HEAD = Struct(">II12xq8xiq8xq8xi8xi")
"""Bytes 0 … 88: total size, magic, queue offset, sys flag, born and store timestamps, reconsume times, body length."""
STORE_TIME = 1
"""timestampType, as Kafka's LogAppendTime."""
_TIME = pa.timestamp("us", tz="UTC")
_HEADERS = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))
ARROW_TYPES: Mapping[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": _TIME,
    "timestampType": pa.int32(),
    "bornTimestamp": _TIME,
    "tags": pa.string(),
    "keys": pa.string(),
    "messageId": pa.string(),
    "queueId": pa.int32(),
    "brokerName": pa.string(),
    "reconsumeTimes": pa.int32(),
    "headers": _HEADERS,
}


class Page:
    """Records below `end` of one queue, pull by pull, as far as a tag filter lets them pass.

    One loop for what every record needs; the rest is taken out of `heads` by the column that wants it.
    """

    __slots__ = ("_end", "_tags", "bodies", "bytes", "heads", "properties", "pulled")

    def __init__(self, end: int, tags: frozenset[str] | None = None) -> None:
        self._end = end
        self._tags = tags
        self.pulled: list[bytes] = []
        self.bytes = 0
        """Of everything that was pulled."""
        self.heads: list[tuple[int, ...]] = []
        """_HEAD of each record."""
        self.bodies: list[bytes] = []
        """As they are stored: some may be compressed."""
        self.properties: list[bytes] = []

    @property
    def count(self) -> int:
        return len(self.heads)

    def take(self, data: bytes) -> None:
        """The records of one more pull. RemoteProtocolError where they are no whole records."""
        self.pulled.append(data)
        self.bytes += len(data)
        end, tags = self._end, self._tags
        add_head, add_body, add_properties = self.heads.append, self.bodies.append, self.properties.append
        unpack, length, at = _HEAD.unpack_from, len(data), 0
        while at < length:
            if length - at < RECORD_BYTES_MIN:
                raise RemoteProtocolError(f"record at {at}: {length - at} bytes are left, a record has at least {RECORD_BYTES_MIN}")
            head = unpack(data, at)
            body_bytes = head[7]
            next_at, topic_at = at + head[0], at + 89 + body_bytes
            if head[1] != MAGIC or body_bytes < 0 or next_at > length or topic_at + 2 > next_at:
                raise _broken(data, at)
            properties_at = topic_at + 2 + data[topic_at - 1]
            if properties_at > next_at or (data[properties_at - 2] << 8 | data[properties_at - 1]) != next_at - properties_at:
                raise _broken(data, at)
            if head[2] >= end:
                break
            properties = data[properties_at:next_at]
            if tags is None or _tag_of(properties) in tags:
                add_head(head)
                add_body(data[at + BODY_AT : topic_at - 1])
                add_properties(properties)
            at = next_at

    @property
    def offsets(self) -> list[int]:
        return [head[2] for head in self.heads]

    def plain_bodies(self) -> list[bytes]:
        """As they were sent. RemoteProtocolError names the first that can't be decompressed."""
        return [_plain_body(body, head) if head[3] & SYS_COMPRESSED else body for body, head in zip(self.bodies, self.heads, strict=True)]

    def messages(self, broker_name: str) -> list[MessageExt]:
        """The same records, whole."""
        kept = set(self.offsets)
        return [message for data in self.pulled for message in decode_messages(data, broker_name) if message.queue_offset in kept]


def _broken(data: bytes, at: int) -> RemoteProtocolError:
    try:
        record_bounds(data, at)
    except RemoteProtocolError as error:
        return error
    return RemoteProtocolError(f"record at {at}: its magic or lengths do not fit a stored record")


def _plain_body(body: bytes, head: tuple[int, ...]) -> bytes:
    try:
        return decompress_body(body, head[3])
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"message at offset {head[2]}: {error}") from None


def property_of(properties: bytes, head: bytes) -> bytes | None:
    """The value behind `head` (name and 0x01); None where there is no such property."""
    at = properties.find(head)
    while at > 0 and properties[at - 1] != 2:
        at = properties.find(head, at + 1)
    if at < 0:
        return None
    end = properties.find(b"\x02", at)
    return properties[at + len(head) : end if end >= 0 else len(properties)]


_KEY, _TAGS, _KEYS = (f"{name}\x01".encode() for name in (SHARDING_KEY, TAGS, KEYS))


def _tag_of(properties: bytes) -> str | None:
    tag = property_of(properties, _TAGS)
    return None if tag is None else tag.decode("utf-8", "replace")


def _keys(properties: Sequence[bytes]) -> list[bytes | None]:
    """The sharding key of each: mostly it comes first."""
    skip = len(_KEY)
    keys: list[bytes | None] = []
    for each in properties:
        if each.startswith(_KEY):
            end = each.find(b"\x02", skip)
            keys.append(each[skip:] if end < 0 else each[skip:end])
        else:
            keys.append(property_of(each, _KEY))
    return keys


def _texts(properties: Sequence[bytes], head: bytes) -> list[str | None]:
    values = [property_of(each, head) for each in properties]
    return [None if value is None else value.decode("utf-8", "replace") for value in values]


def _headers(message: MessageExt) -> list[dict[str, object]]:
    """The user's own properties."""
    return [{"key": name, "value": value.encode()} for name, value in message.properties.items() if name not in RESERVED]


class Columns:
    """The columns of one queue's pages, as the options name them. `number`: the queue's place in the layout."""

    def __init__(self, options: SourceOptions, queue: MessageQueue, number: int) -> None:
        self.schema = pa.schema([pa.field(name, ARROW_TYPES[name]) for name in options.all_columns])
        self._queue = queue
        constant: dict[str, Any] = {
            "topic": queue.topic,
            "partition": number,
            "timestampType": STORE_TIME,
            "queueId": queue.queue_id,
            "brokerName": queue.broker_name,
        }
        self._constants = {name: pa.scalar(constant[name], ARROW_TYPES[name]) for name in options.all_columns if name in constant}
        self._whole = {"messageId", "headers"} & set(options.all_columns)

    def batch(self, page: Page) -> pa.RecordBatch:
        """The page as Arrow; of the types that the schema declares, no other will do for Spark."""
        messages = page.messages(self._queue.broker_name) if self._whole else []
        made: dict[str, Callable[[], Sequence[Any]]] = {
            "key": lambda: _keys(page.properties),
            "value": page.plain_bodies,
            "offset": lambda: page.offsets,
            "timestamp": lambda: [head[5] * 1_000 for head in page.heads],
            "bornTimestamp": lambda: [head[4] * 1_000 for head in page.heads],
            "reconsumeTimes": lambda: [head[6] for head in page.heads],
            "tags": lambda: _texts(page.properties, _TAGS),
            "keys": lambda: _texts(page.properties, _KEYS),
            "messageId": lambda: [message.message_id for message in messages],
            "headers": lambda: [_headers(message) for message in messages],
        }
        arrays = [
            pa.repeat(self._constants[field.name], page.count)
            if field.name in self._constants
            else pa.array(made[field.name](), type=field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
