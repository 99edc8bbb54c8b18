"""Message ids. RocketMQ: MessageDecoder.createMessageId, MessageClientIDSetter.

    offsetMsgId   store host IPv4 4, port 4, physical offset 8                       → 32 hex digits, upper case
    UNIQ_KEY      prefix 10 (IPv4 4, pid 2, random 4), ms of the month 4, counter 2  → 32 hex digits, upper case

RocketMQ's Java clients on a machine without an IPv4 address make UNIQ_KEYs with an IPv6 address: 56 hex digits.
A UNIQ_KEY is opaque to all programs but RocketMQ's tools, which read the time from it.

A broker that advertises an IPv4 address stores that address as its store host, as RocketMQ does. A broker that advertises anything else
(a DNS name, IPv6) stores a host derived from its store id: an address of 240.0.0.0/4, which is reserved and never assigned (ADR 16).
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from struct import Struct
from typing import overload

from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.messages.record import host_address, pack_host

UNIQUE_PREFIX_BYTES = 10
UNIQUE_KEY_DIGITS = (32, 56)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OFFSET_ID = Struct(">8sq")
RESERVED_FIRST, RESERVED_COUNT = 240, 15
"""The first bytes of the reserved addresses, without 255: 255.255.255.255 is the broadcast address."""


def store_host_of(address: str, store_id: str) -> bytes:
    """Return the 8 bytes that a broker stores as its store host: its advertised address, or else an address derived from its store id."""
    try:
        return pack_host(address)
    except LocalProtocolError:
        digest = sha256(store_id.encode()).digest()
        ip = bytes((RESERVED_FIRST + digest[0] % RESERVED_COUNT,)) + digest[1:4]
        return ip + bytes(2) + digest[4:6]  # a port above 65,535 would make the whole message unreadable for RocketMQ's Java clients


def is_derived_store_host(host: str) -> bool:
    """Return whether a store host ("ip:port") is derived from a store id, so that it is not an address."""
    return int(host.partition(".")[0]) >= RESERVED_FIRST


def offset_message_id(host: str, physical_offset: int) -> str:
    """Return the id of the record at `physical_offset` of the broker with the store host `host` ("ip:port")."""
    return message_id_of(pack_host(host), physical_offset)


def message_id_of(host: bytes, physical_offset: int) -> str:
    """Return `offset_message_id` for a store host in its stored bytes: 8, or 20 with an IPv6 address, for which RocketMQ's id is longer."""
    return (host + physical_offset.to_bytes(8, "big", signed=True)).hex().upper()


def parse_offset_message_id(message_id: str) -> tuple[str, int]:
    """Return (store host "ip:port", physical offset). Raise LocalProtocolError unless the text is an offsetMsgId with an IPv4 host.

    A UNIQ_KEY has the same form: its host and offset are then meaningless.
    """
    try:
        raw = bytes.fromhex(message_id)
    except ValueError:
        raw = b""
    if len(raw) != 16 or len(message_id) != 32:
        raise LocalProtocolError(f"message id {message_id[:80]!r}: expected 32 hex digits (IPv4, port, log offset)")
    host, offset = _OFFSET_ID.unpack(raw)
    return host_address(host), offset


def is_unique_key(message_id: str) -> bool:
    """Return whether the text has the form of a UNIQ_KEY. An offsetMsgId has it too."""
    return len(message_id) in UNIQUE_KEY_DIGITS and not message_id.strip("0123456789abcdefABCDEF")


def unique_key_time(message_id: str, now_ms: int) -> int | None:
    """Return when a producer made this UNIQ_KEY, in ms since 1970, or None if it contains no time of a month.

    The key has the ms of its month only: it is taken to be of the latest month in which it is not later than a day after `now_ms`.
    RocketMQ's Java clients begin the month in their own time zone, so the time of their keys is off by that zone's difference from UTC.
    """
    ms = int(message_id[-12:-4], 16)
    latest = datetime.fromtimestamp(now_ms / 1000 + 86_400, UTC)
    month = latest.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    since = timedelta(milliseconds=ms)
    if month + since > latest:
        month = (month - timedelta(days=1)).replace(day=1)
    return None if (month + since).month != month.month else (month + since - _EPOCH) // timedelta(milliseconds=1)


class KeyRange(Sequence[str]):
    """UNIQ_KEYs with rising counters. Each is made when it is read: a thousand of them take as little memory as one."""

    __slots__ = ("counters", "head")

    def __init__(self, head: str, counters: range) -> None:
        self.head = head
        self.counters = counters

    def __len__(self) -> int:
        return len(self.counters)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> "KeyRange": ...

    def __getitem__(self, index: int | slice) -> "str | KeyRange":
        if isinstance(index, slice):
            return KeyRange(self.head, self.counters[index])
        return f"{self.head}{self.counters[index]:04X}"

    def __iter__(self) -> Iterator[str]:
        head = self.head
        return iter([f"{head}{counter:04X}" for counter in self.counters])


class UniqueKeys:
    """Generates UNIQ_KEYs that never repeat within one prefix: (ms, counter) only rises, and the prefix's last 4 bytes change each
    month."""

    __slots__ = ("_counter", "_head", "_month", "_month_end_ms", "_month_start_ms", "_ms", "_prefix")

    def __init__(self, prefix: bytes) -> None:
        if len(prefix) != UNIQUE_PREFIX_BYTES:
            raise LocalProtocolError(f"a unique-key prefix has {UNIQUE_PREFIX_BYTES} bytes, not {len(prefix)}")
        self._prefix = prefix
        self._month = ""
        """The digits of the prefix in this month."""
        self._head = ""
        """The digits of the prefix and of this ms."""
        self._counter = -1
        self._month_start_ms = 0
        self._month_end_ms = 0
        self._enter(0)

    def next(self, now_ms: int) -> str:
        """Return a new key. `now_ms` is wall time, and may stop or go back."""
        if now_ms > self._ms:
            self._enter(now_ms)
        self._counter += 1
        if self._counter > 0xFFFF:
            self._counter = 0
            self._enter(self._ms + 1)
        return f"{self._head}{self._counter:04X}"

    def next_many(self, now_ms: int, count: int) -> Sequence[str]:
        """Return `count` new keys, the same as from `next`."""
        if now_ms > self._ms:
            self._enter(now_ms)
        first = self._counter + 1
        if first + count > 0x10000:
            return [self.next(now_ms) for _ in range(count)]
        self._counter += count
        return KeyRange(self._head, range(first, first + count))

    def _enter(self, ms: int) -> None:
        self._ms = ms
        if ms >= self._month_end_ms:
            self._enter_month()
        self._head = f"{self._month}{ms - self._month_start_ms:08X}"

    def _enter_month(self) -> None:
        start = (_EPOCH + timedelta(milliseconds=self._ms)).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        end = (start + timedelta(days=32)).replace(day=1)
        self._month_start_ms = (start - _EPOCH) // timedelta(milliseconds=1)
        self._month_end_ms = (end - _EPOCH) // timedelta(milliseconds=1)
        months = start.year * 12 + start.month
        salt = (int.from_bytes(self._prefix[6:], "big") + months) & 0xFFFFFFFF
        self._month = f"{self._prefix[:6].hex().upper()}{salt:08X}"
