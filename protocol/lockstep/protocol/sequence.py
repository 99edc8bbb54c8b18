"""The place of a frame in an idempotent producer's stream, as the property `__LS_SEQ`, first of the frame's first record.

    0   32  producer id, lower-case hex
    32  8   partition
    40  16  producer epoch
    56  16  first sequence of the frame
    72  6   count of records
    78  1   flags: bit 0 = the producer knows of no earlier frame in this scope, bit 1 = its id was given, not drawn at its start
    79  8   running CRC-32 of everything in the scope since sequence 0, up to and including this frame

All digits are lower-case hex, unsigned. The CRC is taken of the records as sent: the broker's fields zero, these 8 digits as '0'. It is
written by the client and rebuilt from the log by the broker, so the width never varies.
"""

import re
from dataclasses import dataclass

from lockstep.protocol.crc import crc32
from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError
from lockstep.protocol.properties import LS_SEQ, SEQUENCE_DIGITS
from lockstep.protocol.record import PROPERTIES_BYTES_MAX, UINT16, UINT32, record_bounds

COUNT_AT = 72
COUNT_DIGITS = 6
CRC_AT = 79
"""Where the CRC's digits begin within the property's value."""
COUNT_MAX = 0xFFFFFF
NUMBER_MAX = (1 << 63) - 1
"""Of an epoch, and of the sequence behind a frame: tables, snapshots and other languages hold them as signed 64 bits."""
STAMP_HEAD = f"{LS_SEQ}\x01".encode()

_ZERO_DIGITS = b"00000000"
_PATTERN = re.compile(rb"([0-9a-f]{32})([0-9a-f]{8})([0-9a-f]{16})([0-9a-f]{16})([0-9a-f]{6})([0-3])([0-9a-f]{8})")
_PRODUCER = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class FrameSequence:
    """(producer id, partition) with topic and queue is the scope; the rest is the frame's place in it."""

    producer_id: str
    partition: int
    epoch: int
    first: int
    count: int
    first_known: bool
    """The producer knows of no earlier frame in this scope: taken even where the broker has no such scope and `first` > 0."""
    crc: int
    given: bool = False
    """The producer id was given (a query, a job): remembered for longer, it comes back."""

    @property
    def next(self) -> int:
        """The sequence after this frame."""
        return self.first + self.count

    def encode(self) -> str:
        """The property's value: 87 characters. Raises LocalProtocolError where a number does not fit its width."""
        flags = self.first_known | self.given << 1
        text = f"{self.producer_id}{self.partition:08x}{self.epoch:016x}{self.first:016x}{self.count:06x}{flags}{self.crc:08x}"
        fits = len(text) == SEQUENCE_DIGITS and "-" not in text and self.epoch <= NUMBER_MAX and self.next <= NUMBER_MAX
        if not fits or not _PRODUCER.fullmatch(self.producer_id):
            raise LocalProtocolError(f"{self}: a number or the producer id does not fit its fixed width")
        return text

    @classmethod
    def parse(cls, value: str | bytes | bytearray | memoryview) -> "FrameSequence":
        """From the property's value. Raises RemoteProtocolError."""
        found = _PATTERN.fullmatch(value.encode("utf-8", "replace") if isinstance(value, str) else value)
        if found is None:
            raise RemoteProtocolError(f"{LS_SEQ} has not the fixed form of {SEQUENCE_DIGITS} lower-case hex digits")
        producer_id, partition, epoch, first, count, flags, crc = found.groups()
        numbers = int(partition, 16), int(epoch, 16), int(first, 16), int(count, 16)
        sequence = cls(producer_id.decode(), *numbers, flags in b"13", int(crc, 16), flags in b"23")
        if sequence.epoch > NUMBER_MAX or sequence.next > NUMBER_MAX:
            raise RemoteProtocolError(f"{LS_SEQ} has epoch {sequence.epoch} and next sequence {sequence.next}, expected signed 64 bits")
        return sequence


def find_sequence(properties: bytes | bytearray | memoryview) -> FrameSequence | None:
    """The frame's sequence from its first record's properties; None where they do not begin with it.

    Raises RemoteProtocolError where it is malformed.
    """
    head = len(STAMP_HEAD)
    if properties[:head] != STAMP_HEAD:
        return None
    end = head + SEQUENCE_DIGITS
    if len(properties) > end and properties[end] != 2:
        raise RemoteProtocolError(f"{LS_SEQ} is longer than its {SEQUENCE_DIGITS} digits")
    return FrameSequence.parse(properties[head:end])


def crc_digits_at(frame: bytes | bytearray | memoryview, start: int = 0) -> int:
    """Where the CRC's 8 digits stand in a frame whose first record, at `start`, begins its properties with `__LS_SEQ`."""
    _, properties_at, _ = record_bounds(frame, start)
    return properties_at + len(STAMP_HEAD) + CRC_AT


def frame_crc(previous_crc: int, frame: bytes | bytearray | memoryview, crc_digits_at: int) -> int:
    """The running CRC-32 after this frame: over its bytes with those 8 digits as '0'. The broker's fields must be zero already."""
    view = memoryview(frame)
    crc = crc32(view[:crc_digits_at], previous_crc)
    return crc32(view[crc_digits_at + 8 :], crc32(_ZERO_DIGITS, crc))


def stamp(record: bytes, sequence: FrameSequence) -> bytes:
    """The record with `__LS_SEQ` put before its other properties. Raises LocalProtocolError where they would be too long.

    The result's CRC digits stand at `crc_digits_at(result)`; `seal` puts the right ones in.
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


def seal(records: list[bytes], sequence: FrameSequence, previous_crc: int) -> tuple[bytes, FrameSequence]:
    """(the frame's body, its sequence with the running CRC): `records` joined, the first one stamped. `sequence.crc` is ignored."""
    first = bytearray(stamp(records[0], FrameSequence(*_without_crc(sequence), 0, sequence.given)))
    at = crc_digits_at(first)
    crc = crc32(first, previous_crc)
    for record in records[1:]:
        crc = crc32(record, crc)
    first[at : at + 8] = b"%08x" % crc
    return b"".join((first, *records[1:])), FrameSequence(*_without_crc(sequence), crc, sequence.given)


def _without_crc(sequence: FrameSequence) -> tuple[str, int, int, int, int, bool]:
    return sequence.producer_id, sequence.partition, sequence.epoch, sequence.first, sequence.count, sequence.first_known
