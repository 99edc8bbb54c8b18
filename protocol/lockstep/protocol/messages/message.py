"""Messages: Message, which a user sends, and MessageExt, which a consumer receives. RocketMQ: Message, MessageExt, MessageDecoder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from struct import Struct
from types import MappingProxyType
from typing import Any, Never, Self, final

from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError
from lockstep.protocol.frame import BODY_BYTES_MAX
from lockstep.protocol.messages.compression import compress_body, decompress_body
from lockstep.protocol.messages.ids import KeyRange, message_id_of
from lockstep.protocol.messages.properties import (
    KEYS,
    OWN_PREFIX,
    RETRY_TOPIC,
    SHARDING_KEY,
    TAGS,
    UNIQ_KEY,
    check_sent_bytes,
    check_text,
    check_user_properties,
    encode_properties,
    sent_bytes,
    split_properties,
)
from lockstep.protocol.messages.record import (
    BODY_AT,
    BORN_TIMESTAMP_AT,
    FLAG_AT,
    INT32,
    INT64,
    MAGIC,
    PHYSICAL_OFFSET_AT,
    QUEUE_ID_AT,
    RECONSUME_TIMES_AT,
    RECORD_BYTES_MIN,
    STORE_HOST_FIELD,
    SYS_COMPRESSED,
    SYS_FLAG_AT,
    SYS_IPV6_MASK,
    encode_record,
    head_of,
    record_bounds,
    store_time_of,
)
from lockstep.protocol.messages.request_reply import ttl_ms
from lockstep.protocol.names import RETRY_PREFIX, check_topic, is_sendable_topic
from lockstep.protocol.native import kernels

_UNUSUAL = SYS_COMPRESSED | SYS_IPV6_MASK
"""A record with none of these flags has its body, as it was sent, at BODY_AT."""
NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_9999_MS = 253_402_300_799_999
_INT32 = 0x80000000
_UNIQ_KEY_HEAD = f"{UNIQ_KEY}\x01".encode()
_SHARDING_KEY_HEAD = f"{SHARDING_KEY}\x01".encode()


class _Draft:
    """A mutable message under construction. Assigning to it costs half of `object.__setattr__`; then it becomes a Message."""

    __slots__ = ("body", "flag", "keys", "properties", "sharding_key", "stored_properties", "stored_topic", "tags", "topic")


@final
@dataclass(frozen=True, init=False)
class Message(_Draft):
    """A message to send. It is immutable and checked when it is created.

    Args:
        topic: The topic to send to.
        body: 1 byte to 4 MiB.
        tags: One tag, by which consumers can filter.
        keys: For finding the message later (`lockstep tail --key`): a str, which is split at blanks, or several str without blanks.
        properties: The user's properties; reserved names are rejected. A subscription by SQL92 can only select by names of letters of
            ASCII, digits, `_` and `$`, which begin with no digit: a producer logs others, once each.
        sharding_key: Messages of a topic with the same key go to the same queue and are consumed in the order in which they were sent.
            None: the producer may choose any queue.
        flag: An int32 that the broker stores and lockstep does not interpret.

    Tags, keys, properties and sharding key have at most 30,720 bytes together, as stored.

    Raises:
        LocalProtocolError: If an argument is not as described; the error names it.
    """

    __slots__ = ()

    topic: str
    body: bytes
    tags: str | None
    keys: tuple[str, ...]
    properties: Mapping[str, str] = field(hash=False)
    sharding_key: str | None
    flag: int
    stored_topic: bytes = field(repr=False, compare=False)
    """The topic as it is stored."""
    stored_properties: bytes = field(repr=False, compare=False)
    """The user's properties, TAGS, KEYS and the sharding key as they are stored."""

    def __new__(
        cls,
        topic: str,
        body: bytes | bytearray | memoryview,
        *,
        tags: str | None = None,
        keys: str | Sequence[str] = (),
        properties: Mapping[str, str] = NO_PROPERTIES,
        sharding_key: str | None = None,
        flag: int = 0,
    ) -> Self:
        if type(topic) is not str:
            raise LocalProtocolError(f"topic is a {type(topic).__name__}: expected str")
        stored_topic = topic_bytes(topic)
        if type(body) is not bytes:
            body = _body_bytes(body)
        if not 0 < len(body) <= BODY_BYTES_MAX:
            raise _body_size(len(body))
        if type(flag) is not int or not -_INT32 <= flag < _INT32:
            raise LocalProtocolError(f"flag {flag!r} is not an int32")
        stored_properties = b""
        if sharding_key is not None:
            if type(sharding_key) is not str:
                check_text("sharding_key", sharding_key)
                sharding_key = str.__str__(sharding_key)  # a subclass, such as an enum, may hash, compare and encode as it likes
            stored_properties = _stored_sharding_key(sharding_key)
        if tags is not None or keys or properties:
            keys = tuple(keys.split()) if isinstance(keys, str) else tuple(keys)
            properties = MappingProxyType(dict(properties))
            stored_properties = _stored_properties(tags, keys, properties, stored_properties)
        else:
            keys, properties = (), NO_PROPERTIES
        message: Any = _Draft()
        message.topic = topic
        message.body = body
        message.tags = tags
        message.keys = keys
        message.properties = properties
        message.sharding_key = sharding_key
        message.flag = flag
        message.stored_topic = stored_topic
        message.stored_properties = stored_properties
        message.__class__ = cls
        made: Self = message
        return made

    def __init_subclass__(cls) -> Never:
        raise TypeError("Message can't be subclassed: use properties for additional data")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.topic, self.body, self._options())

    def with_properties(self, properties: Mapping[str, str]) -> "Message":
        """Return a copy of the message with additional properties.

        Args:
            properties: The properties to add; they replace those of the same name.

        Returns:
            The new message.

        Raises:
            LocalProtocolError: As `Message` does.
        """
        return Message(self.topic, self.body, **self._options() | {"properties": {**self.properties, **properties}})

    def _options(self) -> dict[str, Any]:
        return {
            "tags": self.tags,
            "keys": self.keys,
            "properties": dict(self.properties),
            "sharding_key": self.sharding_key,
            "flag": self.flag,
        }


def _rebuild(topic: str, body: bytes, options: dict[str, Any]) -> Message:
    """Create a message that is copied or unpickled."""
    return Message(topic, body, **options)


class RoomMessage:
    """A message as it is stored in a waiting room. It can be encoded like the message itself."""

    __slots__ = ("body", "flag", "stored_properties", "stored_topic")

    def __init__(self, message: Message, room: bytes, properties: bytes) -> None:
        """`properties` are those of the room, which come first."""
        self.body = message.body
        self.flag = message.flag
        self.stored_topic = room
        self.stored_properties = b"%b\x02%b" % (properties, message.stored_properties) if message.stored_properties else properties


def with_reserved(message: Message, properties: Mapping[str, str]) -> Message:
    """Return a copy that is sent with properties that users can't set, before the others. Its `properties` does not have them.

    Raise LocalProtocolError if all properties together are too long.
    """
    copy: Any = _Draft()
    for name in _Draft.__slots__:
        setattr(copy, name, getattr(message, name))
    stored = encode_properties(properties)
    copy.stored_properties = b"%b\x02%b" % (stored, message.stored_properties) if message.stored_properties else stored
    check_sent_bytes(sent_bytes(copy.stored_properties), "properties, tags, keys, sharding key, and those of a request,")
    copy.__class__ = Message
    made: Message = copy
    return made


@lru_cache(maxsize=4096)
def topic_bytes(topic: str) -> bytes:
    """Return the topic as it is stored. Raise LocalProtocolError if it is not a topic's name, or if only the broker writes to it."""
    check_topic(topic)
    if not is_sendable_topic(topic):
        raise LocalProtocolError(f"topic {topic!r} is the broker's own: clients can't send to it")
    return topic.encode()


def _stored_properties(tags: str | None, keys: tuple[str, ...], properties: Mapping[str, str], sharding_key: bytes) -> bytes:
    """Return all properties as they are stored. `sharding_key` is in its stored form already."""
    check_user_properties(properties)
    stored = dict(properties)
    if tags is not None:
        check_tag(tags)
        stored[TAGS] = tags
    for key in keys:
        check_text("key", key)
        if key.split() != [key]:
            raise LocalProtocolError(f"key {key[:40]!r} holds a blank: keys are stored separated by blanks")
    if keys:
        stored[KEYS] = " ".join(keys)
    encoded = encode_properties(stored)
    if sharding_key:
        encoded = b"%b\x02%b" % (encoded, sharding_key) if encoded else sharding_key
    check_sent_bytes(len(encoded))
    return encoded


def check_tag(tag: str) -> None:
    """Raise LocalProtocolError for a tag to which no subscription could match."""
    check_text("tag", tag)
    if tag != tag.strip() or "||" in tag or tag == "*":
        raise LocalProtocolError(f"tag {tag[:40]!r} could not be subscribed to: a tag has no blanks around it, no `||`, and is not `*`")


def encode_message(
    message: Message | RoomMessage,
    queue_id: int,
    unique_key: str,
    born_ms: int,
    extra: Mapping[str, str] | None = None,
    compress_over: int | None = None,
) -> bytes:
    """Return the record that a client sends: the broker's fields are zero. `extra` properties (lockstep's own) come first.

    A body of `compress_over` bytes or more is compressed. None disables compression.
    """
    if kernels is not None and not extra and (compress_over is None or len(message.body) < compress_over):
        record = kernels.encode_message(
            message.stored_topic, queue_id, message.body, message.stored_properties, unique_key, message.flag, born_ms
        )
        if record is not None:
            return record
    properties = _UNIQ_KEY_HEAD + unique_key.encode()
    if message.stored_properties:
        properties = message.stored_properties + b"\x02" + properties
    if extra:
        properties = encode_properties(extra) + b"\x02" + properties
    body, sys_flag = message.body, 0
    if compress_over is not None and len(body) >= compress_over:
        body, sys_flag = compress_body(body)
    return encode_record(message.stored_topic, queue_id, body, properties, flag=message.flag, sys_flag=sys_flag, born_ms=born_ms)


def encode_messages(
    messages: Sequence[Message | RoomMessage],
    queue_id: int,
    unique_keys: Sequence[str],
    born_ms: Sequence[int],
    compress_over: int | None = None,
) -> tuple[bytes, list[int]]:
    """Return the records of messages of one queue, one after the other as from `encode_message`, and the size of each."""
    if kernels is not None and type(unique_keys) is KeyRange:
        body_bytes_max = BODY_BYTES_MAX if compress_over is None else compress_over - 1
        keys = unique_keys.head, unique_keys.counters.start, len(unique_keys)
        encoded = kernels.encode_messages(messages, queue_id, *keys, born_ms, body_bytes_max)
        if encoded is not None:
            return encoded
    each = zip(messages, unique_keys, born_ms, strict=True)
    records = [encode_message(message, queue_id, key, born, None, compress_over) for message, key, born in each]
    return b"".join(records), list(map(len, records))


@lru_cache(maxsize=4096)
def _stored_sharding_key(sharding_key: str) -> bytes:
    """Return the key as it is stored without other properties. Raise LocalProtocolError if it is invalid."""
    check_text("sharding_key", sharding_key)
    stored = _SHARDING_KEY_HEAD + sharding_key.encode()
    check_sent_bytes(len(stored))
    return stored


def _body_bytes(body: object) -> bytes:
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    hint = ": call .encode() on it" if isinstance(body, str) else ""
    raise LocalProtocolError(f"body is a {type(body).__name__}, expected bytes{hint}")


def _body_size(size: int) -> LocalProtocolError:
    if size == 0:
        return LocalProtocolError("the message body length is zero: a message has at least 1 byte")
    return LocalProtocolError(f"the message body has {size} bytes, over max value, MAX: {BODY_BYTES_MAX}")


BODY_CACHE_BYTES_MAX = 64 * 1024
"""Decompressed bodies of this size and above are not cached in their messages."""


class MessageExt:
    """A message as it was stored.

    Fields are decoded from the pulled bytes when they are first read; only `body` can raise then. A message keeps the bytes of its whole
    pull in memory; `body` is a copy.
    """

    __slots__ = ("_body", "_data", "_end", "_properties", "_properties_at", "_start", "_topic_at", "broker_name", "queue_offset")

    broker_name: str
    """The broker that stored it."""
    queue_offset: int
    """The position in its queue: without gaps, from 0."""
    _data: bytes
    _start: int
    _topic_at: int
    _properties_at: int
    _end: int
    _body: bytes | None
    _properties: dict[str, str] | None

    @property
    def topic(self) -> str:
        """Return the topic to which the message was sent. For a retry it is the original topic."""
        stored = self.stored_topic
        return self.all_properties.get(RETRY_TOPIC, stored) if stored.startswith(RETRY_PREFIX) else stored

    @property
    def stored_topic(self) -> str:
        """Return the topic of the queue from which the message was read."""
        return str(self._data[self._topic_at : self._properties_at - 2], "utf-8", "replace")

    @property
    def body(self) -> bytes:
        """Return the body as it was sent, decompressed if necessary.

        It is cached, except a compressed body of BODY_CACHE_BYTES_MAX or more, which each call decompresses again: it may be a thousand
        times as large as its stored bytes, by which the memory of a consumer is limited.

        Raises:
            RemoteProtocolError: If the body is stored compressed and can't be decompressed, or exceeds 4 MiB decompressed.
        """
        body = self._body
        if body is None:
            data, start = self._data, self._start
            flags = data[start + SYS_FLAG_AT + 3]  # these flags are in the last of its four bytes
            if not flags & _UNUSUAL:
                body = data[start + BODY_AT : self._topic_at - 1]
            elif flags & SYS_COMPRESSED:
                body = self._decompressed()
                if len(body) >= BODY_CACHE_BYTES_MAX:
                    return body
            else:
                body = self.stored_body
            self._body = body
        return body

    def _decompressed(self) -> bytes:
        try:
            return decompress_body(self.stored_body, self.sys_flag)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"message {self.offset_message_id}: {error}") from None

    @property
    def stored_body(self) -> bytes:
        """Return a copy of the stored bytes of the body, which are compressed if its `sys_flag` has SYS_COMPRESSED."""
        return self._data[self._start + head_of(self._data, self._start).size : self._topic_at - 1]

    @property
    def body_bytes(self) -> int:
        """Return the size of `stored_body` in bytes, without copying it."""
        return self._topic_at - 1 - self._start - head_of(self._data, self._start).size

    @property
    def record_bytes(self) -> int:
        """Return the size of the whole stored record in bytes."""
        return self._end - self._start

    @property
    def all_properties(self) -> Mapping[str, str]:
        """Return all stored properties, including lockstep's own."""
        properties = self._properties
        if properties is None:
            properties = self._properties = split_properties(str(self._data[self._properties_at : self._end], "utf-8", "replace"))
        return properties

    @property
    def stored_properties(self) -> bytes:
        """Return a copy of the properties as they are stored."""
        return self._data[self._properties_at : self._end]

    @property
    def properties(self) -> dict[str, str]:
        """Return the stored properties without lockstep's own, as a new dict. As in RocketMQ, TAGS, KEYS and UNIQ_KEY are included."""
        return {name: value for name, value in self.all_properties.items() if not name.startswith(OWN_PREFIX)}

    @property
    def tags(self) -> str | None:
        """Return the tag of the message, or None."""
        return self.all_properties.get(TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the keys by which the message can be found, in the order in which they were sent. Often empty."""
        return tuple(self.all_properties.get(KEYS, "").split())

    @property
    def sharding_key(self) -> str | None:
        """Return the key that chose the queue, or None. Messages with the same key are in order."""
        return self.all_properties.get(SHARDING_KEY)

    @property
    def message_id(self) -> str:
        """Return the id that the producer gave (UNIQ_KEY), or else `offset_message_id`. RocketMQ: msgId."""
        return self.all_properties.get(UNIQ_KEY) or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """Return the store host and log offset in hex, unique in the cluster. RocketMQ: offsetMsgId."""
        store_host: bytes = head_of(self._data, self._start).unpack_from(self._data, self._start)[STORE_HOST_FIELD]
        return message_id_of(store_host, self.physical_offset)

    @property
    def queue_id(self) -> int:
        """Return the number of the queue at its broker, from 0."""
        return self._int32(QUEUE_ID_AT)

    @property
    def physical_offset(self) -> int:
        """Return the offset of the record in its broker's log, in bytes."""
        return self._int64(PHYSICAL_OFFSET_AT)

    @property
    def flag(self) -> int:
        """Return the int32 that the producer set for its own use; lockstep does not read it."""
        return self._int32(FLAG_AT)

    @property
    def sys_flag(self) -> int:
        """Return the bits that describe the stored record, such as SYS_COMPRESSED."""
        return self._int32(SYS_FLAG_AT)

    @property
    def reconsume_times(self) -> int:
        """Return how often the message was sent back for a retry; 0 at its first delivery. RocketMQ: reconsumeTimes."""
        return self._int32(RECONSUME_TIMES_AT + head_of(self._data, self._start).size - BODY_AT)

    @property
    def born_ms(self) -> int:
        """Return when the producer created the message, by its own clock: ms since 1970."""
        return self._int64(BORN_TIMESTAMP_AT)

    @property
    def stored_ms(self) -> int:
        """Return when the broker stored the message: ms since 1970. It never decreases within a queue."""
        return store_time_of(self._data, self._start)

    @property
    def born_at(self) -> datetime:
        """Return `born_ms` as an aware datetime (UTC), limited to the years 1970 … 9999."""
        return _instant(self.born_ms)

    @property
    def stored_at(self) -> datetime:
        """Return `stored_ms` as an aware datetime (UTC), limited to the years 1970 … 9999."""
        return _instant(self.stored_ms)

    @property
    def expires_ms(self) -> int | None:
        """Return when the requester of this request stops waiting, by its own clock: ms since 1970. None if it is no request."""
        waits_ms = ttl_ms(self.all_properties)
        return None if waits_ms is None else self.born_ms + waits_ms

    def __repr__(self) -> str:
        position = f"{self.topic}@{self.broker_name}:{self.queue_id} offset {self.queue_offset}"
        return f"MessageExt({position}, {self.body_bytes} bytes, {self.message_id})"

    def _int32(self, at: int) -> int:
        value: int = INT32.unpack_from(self._data, self._start + at)[0]
        return value

    def _int64(self, at: int) -> int:
        value: int = INT64.unpack_from(self._data, self._start + at)[0]
        return value


def _instant(ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=min(max(ms, 0), _YEAR_9999_MS))


_CHECKED_FIELDS = Struct(">II12xq8xI44xi")
"""Bytes 0 … 88, but only total size, magic, queue offset, sys flag and body length."""


def decode_messages(data: bytes, broker_name: str) -> list[MessageExt]:
    """Return the messages in the body of a pull response.

    Every length is checked here, so that no later access raises; the other fields are decoded on demand. Raises RemoteProtocolError unless
    the bytes are whole records of v1.
    """
    numbers = None if kernels is None else kernels.split_records(data)
    if numbers is None:
        numbers = _split_records(data)
    messages: list[MessageExt] = []
    append = messages.append
    each = iter(numbers)
    start = 0
    for topic_at, properties_at, end, queue_offset in zip(each, each, each, each, strict=True):
        message = MessageExt()  # with no __init__ this takes half as long as MessageExt.__new__(MessageExt)
        message._data = data
        message._start = start
        message._topic_at = topic_at
        message._properties_at = properties_at
        message._end = end
        message._body = None
        message._properties = None
        message.broker_name = broker_name
        message.queue_offset = queue_offset
        append(message)
        start = end
    return messages


def _split_records(data: bytes) -> list[int]:
    """Return four numbers for each record: the start of its topic, the start of its properties, its end, and its queue offset."""
    numbers: list[int] = []
    unpack = _CHECKED_FIELDS.unpack_from
    start = 0
    data_bytes = len(data)
    while start < data_bytes:
        if data_bytes - start < RECORD_BYTES_MIN:
            raise RemoteProtocolError(f"record at {start}: {data_bytes - start} bytes are left, a record has at least {RECORD_BYTES_MIN}")
        size, magic, queue_offset, sys_flag, body_bytes = unpack(data, start)
        end = start + size
        topic_at = start + 89 + body_bytes
        if sys_flag & SYS_IPV6_MASK:
            body_at = start + head_of(data, start).size
            if body_at > data_bytes:
                raise _record_error(data, start)
            body_bytes = INT32.unpack_from(data, body_at - INT32.size)[0]
            topic_at = body_at + body_bytes + 1
        if magic != MAGIC or body_bytes < 0 or end > data_bytes or topic_at + 2 > end:
            raise _record_error(data, start)
        properties_at = topic_at + 2 + data[topic_at - 1]
        if properties_at > end or (data[properties_at - 2] << 8 | data[properties_at - 1]) != end - properties_at:
            raise _record_error(data, start)
        numbers += (topic_at, properties_at, end, queue_offset)
        start = end
    return numbers


def _record_error(data: bytes, start: int) -> RemoteProtocolError:
    """Return the error for the record that `decode_messages` rejected."""
    magic = int.from_bytes(data[start + 4 : start + 8], "big")
    if magic != MAGIC:
        return RemoteProtocolError(f"record at {start}: magic {magic:08X}, expected {MAGIC:08X}")
    try:
        record_bounds(data, start)
    except RemoteProtocolError as error:
        return error
    return RemoteProtocolError(f"record at {start}: its lengths do not agree")
