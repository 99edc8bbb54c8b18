"""The position of a frame in an idempotent producer's stream: the property `__LS_SEQ`, the first property of the frame's first record.

    0   32  producer id, lower-case hex
    32  8   partition
    40  16  producer epoch
    56  16  first sequence of the frame
    72  6   count of records
    78  1   flags: bit 0 = the producer knows of no earlier frame in this scope, bit 1 = the user provided the producer id
    79  8   running CRC-32 of all frames of the scope since sequence 0, including this one

All digits are lower-case hex, unsigned. The CRC covers the records as sent: the broker's fields zero, these 8 digits as '0'. The client
writes it and the broker rebuilds it from the log, so the width is fixed.
"""

import re
from dataclasses import dataclass

from lockstep.protocol.crc import crc32
from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError
from lockstep.protocol.messages.properties import LS_SEQ, SEQUENCE_DIGITS
from lockstep.protocol.messages.record import PROPERTIES_BYTES_MAX, UINT16, UINT32, record_bounds

COUNT_AT = 72
COUNT_DIGITS = 6
CRC_AT = 79
"""The position of the CRC's digits within the property's value."""
COUNT_MAX = 0xFFFFFF
NUMBER_MAX = (1 << 63) - 1
"""The maximum epoch and sequence after a frame: tables, snapshots and other languages store them as signed 64 bits."""
STAMP_HEAD = f"{LS_SEQ}\x01".encode()

_ZERO_DIGITS = b"00000000"
_PATTERN = re.compile(rb"([0-9a-f]{32})([0-9a-f]{8})([0-9a-f]{16})([0-9a-f]{16})([0-9a-f]{6})([0-3])([0-9a-f]{8})")
_PRODUCER = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class FrameSequence:
    """The scope, which is (producer id, partition) with topic and queue, and the position of the frame in it."""

    producer_id: str
    partition: int
    epoch: int
    first: int
    count: int
    first_known: bool
    """The producer knows of no earlier frame in this scope: the broker accepts the frame even without such a scope and with `first` > 0."""
    crc: int
    given: bool = False
    """Whether the user provided the producer id (a query, a job). It is remembered longer, since it is used again."""

    @property
    def next(self) -> int:
        """Return the sequence after this frame."""
        return self.first + self.count

    @property
    def flags(self) -> int:
        """Return the digit of the flags."""
        return self.first_known | self.given << 1

    def encode(self) -> str:
        """Return the property's value: 87 characters. Raise LocalProtocolError if a number does not fit its width."""
        numbers = f"{self.partition:08x}{self.epoch:016x}{self.first:016x}{self.count:06x}{self.flags}{self.crc:08x}"
        text = self.producer_id + numbers
        valid = len(text) == SEQUENCE_DIGITS and "-" not in text and self.epoch <= NUMBER_MAX and self.next <= NUMBER_MAX
        if not valid or not _PRODUCER.fullmatch(self.producer_id):
            raise LocalProtocolError(f"{self}: a number or the producer id does not fit its fixed width")
        return text

    @classmethod
    def parse(cls, value: str | bytes | bytearray | memoryview) -> "FrameSequence":
        """Parse the property's value. Raise RemoteProtocolError if it is malformed."""
        found = _PATTERN.fullmatch(value.encode("utf-8", "replace") if isinstance(value, str) else value)
        if found is None:
            raise RemoteProtocolError(f"{LS_SEQ} does not have the fixed form of {SEQUENCE_DIGITS} lower-case hex digits")
        producer_id, partition, epoch, first, count, flags, crc = found.groups()
        numbers = int(partition, 16), int(epoch, 16), int(first, 16), int(count, 16)
        sequence = cls(producer_id.decode(), *numbers, flags in b"13", int(crc, 16), flags in b"23")
        if sequence.epoch > NUMBER_MAX or sequence.next > NUMBER_MAX:
            raise RemoteProtocolError(f"{LS_SEQ} has epoch {sequence.epoch} and next sequence {sequence.next}, expected signed 64 bits")
        return sequence


def find_sequence(properties: bytes | bytearray | memoryview) -> FrameSequence | None:
    """Return the frame's sequence from the properties of its first record, or None if they do not begin with one.

    Raises RemoteProtocolError if it is malformed.
    """
    head = len(STAMP_HEAD)
    if properties[:head] != STAMP_HEAD:
        return None
    end = head + SEQUENCE_DIGITS
    if len(properties) > end and properties[end] != 2:
        raise RemoteProtocolError(f"{LS_SEQ} is longer than its {SEQUENCE_DIGITS} digits")
    return FrameSequence.parse(properties[head:end])


def crc_digits_at(frame: bytes | bytearray | memoryview, start: int = 0) -> int:
    """Return the position of the CRC's 8 digits in a frame whose first record, at `start`, begins its properties with `__LS_SEQ`."""
    _, properties_at, _ = record_bounds(frame, start)
    return properties_at + len(STAMP_HEAD) + CRC_AT


def frame_crc(previous_crc: int, frame: bytes | bytearray | memoryview, crc_digits_at: int) -> int:
    """Return the running CRC-32 after this frame: over its bytes with those 8 digits as '0'. The broker's fields must be zero already."""
    view = memoryview(frame)
    crc = crc32(view[:crc_digits_at], previous_crc)
    return crc32(view[crc_digits_at + 8 :], crc32(_ZERO_DIGITS, crc))


def add_sequence(record: bytes, sequence: FrameSequence) -> bytes:
    """Return the record with `__LS_SEQ` inserted before its other properties. Raise LocalProtocolError if they would be too long.

    The CRC digits of the result are at `crc_digits_at(result)`; `seal_frame` fills them in.
    """
    _, properties_at, end = record_bounds(record)
    value = sequence.encode().encode()
    added = STAMP_HEAD + value + (b"\x02" if end > properties_at else b"")
    properties_bytes = end - properties_at + len(added)
    if properties_bytes > PROPERTIES_BYTES_MAX:
        raise LocalProtocolError(f"the properties would have {properties_bytes} bytes with {LS_SEQ}: at most {PROPERTIES_BYTES_MAX}")
    return b"".join(
        (UINT32.pack(end + len(added)), record[4 : properties_at - 2], UINT16.pack(properties_bytes), added, record[properties_at:])
    )


def seal_frame(records: list[bytes], sequence: FrameSequence, previous_crc: int) -> tuple[bytes, FrameSequence]:
    """Return the frame's body, with the sequence in its first record, and the sequence with the running CRC. `sequence.crc` is ignored."""
    first = bytearray(add_sequence(records[0], FrameSequence(*_without_crc(sequence), 0, sequence.given)))
    at = crc_digits_at(first)
    crc = crc32(first, previous_crc)
    for record in records[1:]:
        crc = crc32(record, crc)
    first[at : at + 8] = b"%08x" % crc
    return b"".join((first, *records[1:])), FrameSequence(*_without_crc(sequence), crc, sequence.given)


def _without_crc(sequence: FrameSequence) -> tuple[str, int, int, int, int, bool]:
    return sequence.producer_id, sequence.partition, sequence.epoch, sequence.first, sequence.count, sequence.first_known
