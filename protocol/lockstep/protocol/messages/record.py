"""The stored message, byte for byte as Apache RocketMQ 4.9 stores it (v1). RocketMQ: MessageDecoder, CommitLog.

    0   4   total size           91 + n + t + p
    4   4   magic                DA A3 20 A7
    8   4   body CRC             CRC-32 of the body & 7F FF FF FF
    12  4   queue id
    16  4   flag                 the user's
    20  8   queue offset         *
    28  8   physical offset      *
    36  4   sys flag
    40  8   born timestamp       ms since 1970
    48  8   born host            *  IPv4 4, port 4
    56  8   store timestamp      *  ms since 1970
    64  8   store host           *  IPv4 4, port 4
    72  4   reconsume times
    76  8   prepared transaction offset
    84  4   body length n,           88    body
    88+n      1   topic length t,        89+n      topic
    89+n+t    2   properties length p,   91+n+t    properties

If a bit of the sys flag says so (SYS_BORN_IPV6, SYS_STORE_IPV6), a host has an IPv6 address of 16 bytes, and the fields behind it are 12
bytes further on. lockstep's brokers write IPv4 only; such records are in the logs that they take over from RocketMQ's brokers.

All integers are big-endian and signed. The broker writes the fields marked *: a client leaves them zero, and digests of a frame are
computed with them zero. Records follow one another without padding.
"""

from collections.abc import Iterator
from functools import lru_cache
from ipaddress import IPv6Address
from struct import Struct
from struct import error as StructError

from lockstep.protocol.crc import crc32
from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError

MAGIC = 0xDAA320A7
BLANK_MAGIC = 0xCBD43194
"""Marks the unused rest of a commit log segment; never on the wire."""

TOTAL_SIZE_AT = 0
MAGIC_AT = 4
BODY_CRC_AT = 8
QUEUE_ID_AT = 12
FLAG_AT = 16
QUEUE_OFFSET_AT = 20
PHYSICAL_OFFSET_AT = 28
SYS_FLAG_AT = 36
BORN_TIMESTAMP_AT = 40
BORN_HOST_AT = 48
STORE_TIMESTAMP_AT = 56
STORE_HOST_AT = 64
RECONSUME_TIMES_AT = 72
PREPARED_OFFSET_AT = 76
BODY_LENGTH_AT = 84
BODY_AT = 88
RECORD_BYTES_MIN = 91
"""The size of a record without body, topic and properties."""

TOPIC_BYTES_MAX = 127
PROPERTIES_BYTES_MAX = 32767
CRC_MASK = 0x7FFFFFFF

SYS_COMPRESSED = 0x1
SYS_TRANSACTION_MASK = 0xC
SYS_BORN_IPV6 = 0x10
SYS_STORE_IPV6 = 0x20
SYS_IPV6_MASK = 0x30
IPV6_MORE_BYTES = 12
"""By how much an IPv6 address is longer."""

SIZE_AND_MAGIC = Struct(">II")
HEAD = Struct(">IIIiiqqiq8sq8siqi")
"""Bytes 0 … 88: every field before the body, in order."""
HEADS = (HEAD, Struct(">IIIiiqqiq20sq8siqi"), Struct(">IIIiiqqiq8sq20siqi"), Struct(">IIIiiqqiq20sq20siqi"))
"""HEAD by the two bits of SYS_IPV6_MASK: with IPv4 hosts, with a born host, a store host, and both of IPv6."""
HEAD_BYTES_MAX = HEADS[3].size
STORE_HOST_FIELD = 11
"""The number of the store host in a head."""
OFFSETS = Struct(">qq")
"""At QUEUE_OFFSET_AT: queue offset, physical offset."""
HOSTS = Struct(">8sq8s")
"""At BORN_HOST_AT: born host, store timestamp, store host."""
INT32 = Struct(">i")
UINT32 = Struct(">I")
INT64 = Struct(">q")
UINT16 = Struct(">H")

_CLIENT_HEAD = Struct(">IIIii16xiq24xi8xI")
"""HEAD with the broker's fields zero: size, magic, CRC, queue, flag, sys flag, born, reconsume times, body length."""
NO_HOST = bytes(8)
"""The born host of a peer whose address is not IPv4."""
_HOST = Struct(">4sI")
_IPV6_HOST = Struct(">16sI")
_IPV6_BITS = SYS_FLAG_AT + 3
"""The byte of the sys flag that has the bits of SYS_IPV6_MASK."""
_ZERO_16 = bytes(16)
_ZERO_24 = bytes(24)
_BYTE = [bytes((i,)) for i in range(TOPIC_BYTES_MAX + 1)]


def encode_record(
    topic: bytes,
    queue_id: int,
    body: bytes | bytearray | memoryview,
    properties: bytes,
    *,
    flag: int = 0,
    sys_flag: int = 0,
    born_ms: int,
    reconsume_times: int = 0,
) -> bytes:
    """Return one record with the broker's fields zero. Raise LocalProtocolError if a length or number does not fit the layout."""
    topic_bytes = len(topic)
    properties_bytes = len(properties)
    body_bytes = len(body)
    if topic_bytes > TOPIC_BYTES_MAX or properties_bytes > PROPERTIES_BYTES_MAX:
        raise _too_long(topic_bytes, properties_bytes)
    try:
        return b"".join(
            (
                _CLIENT_HEAD.pack(
                    RECORD_BYTES_MIN + body_bytes + topic_bytes + properties_bytes,
                    MAGIC,
                    crc32(body) & CRC_MASK,
                    queue_id,
                    flag,
                    sys_flag,
                    born_ms,
                    reconsume_times,
                    body_bytes,
                ),
                body,
                _BYTE[topic_bytes],
                topic,
                properties_bytes.to_bytes(2, "big"),
                properties,
            )
        )
    except StructError as error:
        raise LocalProtocolError(
            f"a record's numbers do not fit its layout (queue {queue_id}, flag {flag}, born {born_ms}): {error}"
        ) from None


def head_of(data: bytes | bytearray | memoryview, start: int = 0) -> Struct:
    """Return the layout of the head of the record at `start`, of which RECORD_BYTES_MIN bytes are there. The body begins behind it."""
    return HEADS[data[start + _IPV6_BITS] >> 4 & 3]


def store_time_of(data: bytes | bytearray | memoryview, start: int = 0) -> int:
    """Return the store time of the record at `start`, of which RECORD_BYTES_MIN bytes are there."""
    at = STORE_TIMESTAMP_AT + (IPV6_MORE_BYTES if data[start + _IPV6_BITS] & SYS_BORN_IPV6 else 0)
    return int(INT64.unpack_from(data, start + at)[0])


def _too_long(topic_bytes: int, properties_bytes: int) -> LocalProtocolError:
    if topic_bytes > TOPIC_BYTES_MAX:
        return LocalProtocolError(f"the topic has {topic_bytes} bytes: at most {TOPIC_BYTES_MAX}")
    return LocalProtocolError(f"the properties have {properties_bytes} bytes: at most {PROPERTIES_BYTES_MAX}")


def iter_records(data: bytes | bytearray | memoryview, start: int = 0, end: int | None = None) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each record in data[start:end], in order. Raise RemoteProtocolError at the first with an invalid size or
    magic."""
    end = len(data) if end is None else end
    read = SIZE_AND_MAGIC.unpack_from
    while start < end:
        if end - start < RECORD_BYTES_MIN:
            raise RemoteProtocolError(f"record at {start}: {end - start} bytes are left, a record has at least {RECORD_BYTES_MIN}")
        size, magic = read(data, start)
        if magic != MAGIC:
            raise RemoteProtocolError(f"record at {start}: magic {magic:08X}, expected {MAGIC:08X}")
        if size < RECORD_BYTES_MIN or size > end - start:
            raise RemoteProtocolError(f"record at {start}: size {size}, expected {RECORD_BYTES_MIN} … {end - start}")
        yield start, start + size
        start += size


def split_records(data: bytes | bytearray | memoryview) -> list[tuple[int, int]]:
    """Return all of `iter_records`."""
    return list(iter_records(data))


class RecordView:
    """One decoded and checked record. `body`, `topic` and `properties` are copies, so the buffer may be reused.

    Hosts have 8 bytes, or 20 with an IPv6 address. Raises RemoteProtocolError if sizes disagree or the magic is wrong. `crc_matches`
    compares the body's CRC.
    """

    __slots__ = (
        "body",
        "body_crc",
        "born_host",
        "born_ms",
        "flag",
        "magic",
        "physical_offset",
        "prepared_offset",
        "properties",
        "queue_id",
        "queue_offset",
        "reconsume_times",
        "start",
        "store_host",
        "store_ms",
        "sys_flag",
        "topic",
        "total_size",
    )

    def __init__(self, data: bytes | bytearray | memoryview, start: int = 0) -> None:
        if start < 0 or len(data) - start < RECORD_BYTES_MIN:
            raise RemoteProtocolError(f"record at {start}: fewer than {RECORD_BYTES_MIN} bytes are left")
        self.start = start
        head = head_of(data, start)
        if len(data) - start < head.size:
            raise RemoteProtocolError(f"record at {start}: {len(data) - start} bytes are left, its head has {head.size}")
        (
            self.total_size,
            self.magic,
            self.body_crc,
            self.queue_id,
            self.flag,
            self.queue_offset,
            self.physical_offset,
            self.sys_flag,
            self.born_ms,
            self.born_host,
            self.store_ms,
            self.store_host,
            self.reconsume_times,
            self.prepared_offset,
            body_bytes,
        ) = head.unpack_from(data, start)
        if self.magic != MAGIC:
            raise RemoteProtocolError(f"record at {start}: magic {self.magic:08X}, expected {MAGIC:08X}")
        topic_at, properties_at, end = record_bounds(data, start)
        self.body = bytes(data[start + head.size : start + head.size + body_bytes])
        self.topic = bytes(data[topic_at : properties_at - 2])
        self.properties = bytes(data[properties_at:end])

    def crc_matches(self) -> bool:
        """Return whether the body has the stored CRC."""
        return bool(crc32(self.body) & CRC_MASK == self.body_crc)


def record_bounds(data: bytes | bytearray | memoryview, start: int = 0) -> tuple[int, int, int]:
    """Return the start of the topic, the start of the properties and the end of the record. Every inner length is checked against the
    total.

    The magic is not checked. Raises RemoteProtocolError if the lengths disagree.
    """
    left = len(data) - start
    if left < RECORD_BYTES_MIN:
        raise RemoteProtocolError(f"record at {start}: {left} bytes are left, a record has at least {RECORD_BYTES_MIN}")
    size: int = UINT32.unpack_from(data, start)[0]
    body_at = head_of(data, start).size
    if left < body_at:
        raise RemoteProtocolError(f"record at {start}: {left} bytes are left, its head has {body_at}")
    body_bytes: int = INT32.unpack_from(data, start + body_at - INT32.size)[0]
    rest = size - body_at - 3 - body_bytes
    if size > left or body_bytes < 0 or rest < 0:
        raise RemoteProtocolError(f"record at {start}: size {size} and body length {body_bytes} do not fit the {left} bytes that are left")
    topic_at = start + body_at + body_bytes + 1
    topic_bytes = data[topic_at - 1]
    if topic_bytes > TOPIC_BYTES_MAX or topic_bytes > rest:
        raise RemoteProtocolError(f"record at {start}: topic length {topic_bytes}, expected 0 … {min(rest, TOPIC_BYTES_MAX)}")
    properties_at = topic_at + topic_bytes + 2
    properties_bytes = data[properties_at - 2] << 8 | data[properties_at - 1]
    if properties_bytes != rest - topic_bytes or properties_bytes > PROPERTIES_BYTES_MAX:
        raise RemoteProtocolError(f"record at {start}: properties length {properties_bytes}, the total size implies {rest - topic_bytes}")
    return topic_at, properties_at, start + size


def zero_broker_fields(buffer: bytearray | memoryview, start: int = 0) -> None:
    """Reset the record at `start` to the form in which a client sends it: queue and physical offset, hosts and store time zero.

    Its hosts are IPv4 ones, as of every record that a lockstep client has sent.
    """
    buffer[start + QUEUE_OFFSET_AT : start + SYS_FLAG_AT] = _ZERO_16
    buffer[start + BORN_HOST_AT : start + RECONSUME_TIMES_AT] = _ZERO_24


@lru_cache(maxsize=1024)
def pack_host(address: str) -> bytes:
    """Return "ip:port" as the 8 bytes of a born or store host (IPv4 4, port 4). Raise LocalProtocolError unless it is IPv4:port."""
    ip, _, port = address.rpartition(":")
    parts = ip.split(".")
    if len(parts) != 4 or not all(part.isdecimal() and part.isascii() and int(part) < 256 for part in parts):
        raise LocalProtocolError(f"address {address[:80]!r}: expected IPv4:port, the stored layout has room for nothing else")
    if not (port.isdecimal() and port.isascii() and int(port) < 65536):
        raise LocalProtocolError(f"address {address[:80]!r}: expected a port 0 … 65535")
    return _HOST.pack(bytes(map(int, parts)), int(port))


def host_address(host: bytes) -> str:
    """Return the bytes of a born or store host, 8 or 20, as "ip:port" or "[ip]:port"."""
    if len(host) == _IPV6_HOST.size:
        address, port = _IPV6_HOST.unpack(host)
        return f"[{IPv6Address(address)}]:{port}"
    ip, port = _HOST.unpack(host)
    return f"{ip[0]}.{ip[1]}.{ip[2]}.{ip[3]}:{port}"
