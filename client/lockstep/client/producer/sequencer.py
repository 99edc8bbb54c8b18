"""Where a frame stands in the idempotent stream of one scope (producer id, partition, topic, queue). Pure; the law is wire.md.

A frame is sealed once, with the epoch, first sequence and running CRC that come next, and keeps those bytes through every retry.

    sealed --acknowledged--> the next frame goes on from it
    sealed --withdrawn--> (certainly not stored, never written again) its sequences are used anew
    sealed --given up--> (outcome unknown, or written and abandoned) the epoch rises, sequences and CRC begin at 0
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.protocol.sequence import FrameSequence, crc_digits_at, stamp


@dataclass(frozen=True, slots=True)
class SealedFrame:
    """A frame's body and its place in the scope."""

    body: bytes
    sequence: FrameSequence
    crc_before: int


class Sequencer:
    """Epoch, next sequence and running CRC of one scope; at most one sealed frame is open at a time."""

    __slots__ = ("crc", "epoch", "next_sequence", "partition", "producer_id")

    def __init__(self, producer_id: str, partition: int = 0) -> None:
        self.producer_id = producer_id
        self.partition = partition
        self.epoch = 0
        self.next_sequence = 0
        self.crc = 0

    def seal(self, records: Sequence[bytes]) -> SealedFrame:
        """One frame of these records (encoded, without `__LS_SEQ`). Flagged `first` where it begins a stream at sequence 0."""
        first, count, before = self.next_sequence, len(records), self.crc
        unsealed = FrameSequence(self.producer_id, self.partition, self.epoch, first, count, first == 0, 0)
        head = bytearray(stamp(records[0], unsealed))
        rest = b"".join(records[1:])
        crc = zlib.crc32(rest, zlib.crc32(head, before))
        digits_at = crc_digits_at(head)
        head[digits_at : digits_at + 8] = b"%08x" % crc
        self.next_sequence = first + count
        self.crc = crc
        sealed = FrameSequence(self.producer_id, self.partition, self.epoch, first, count, first == 0, crc)
        return SealedFrame(b"".join((head, rest)), sealed, before)

    def withdraw(self, frame: SealedFrame) -> None:
        """The frame is certainly not stored and no copy of it is on its way: the next one takes its place."""
        assert self.next_sequence == frame.sequence.next
        assert self.epoch == frame.sequence.epoch
        self.next_sequence = frame.sequence.first
        self.crc = frame.crc_before

    def give_up(self) -> None:
        """The frame is abandoned with its outcome unknown: whatever of it still arrives is below the new epoch."""
        self.epoch += 1
        self.next_sequence = 0
        self.crc = 0
