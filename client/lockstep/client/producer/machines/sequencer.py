"""The sequences of the frames in one idempotent stream (producer id, partition, topic, queue). Pure. wire.md has the rules.

A frame is sealed once, with the next epoch, first sequence and running CRC, and keeps those bytes in every retry.

    sealed --acknowledged--> the next frame continues after it
    sealed --withdrawn-->    (certainly not stored, never written again) its sequences are used again
    sealed --given up-->     (outcome unknown, or written and abandoned) the epoch rises, sequences and CRC begin at 0

A given producer id (that of a job or a query) comes with an epoch that only its owner may raise: if a frame is given up, the stream ends.
"""

from dataclasses import dataclass

from lockstep.protocol.crc import crc32
from lockstep.protocol.errors import ConfigError, LocalProtocolError
from lockstep.protocol.messages.properties import SEQUENCE_DIGITS
from lockstep.protocol.messages.record import BODY_AT, BODY_LENGTH_AT, INT32, UINT16, UINT32
from lockstep.protocol.messages.sequence import STAMP_HEAD, FrameSequence

_ZERO_DIGITS = b"00000000"
"""The digits of the CRC are these while the CRC is computed."""


@dataclass(slots=True)
class SealedFrame:
    """A frame's body and its position in the stream."""

    body: bytes
    epoch: int
    first: int
    """The sequence of its first record."""
    count: int
    crc: int
    """The running CRC-32 up to and including this frame."""
    crc_before: int


@dataclass(frozen=True, slots=True)
class GivenId:
    """A producer id that outlives its producer: a process that starts again with it sends the same frames again, and they are stored once
    (wire.md).

    Raises:
        ConfigError: A part is invalid.
    """

    producer_id: str
    """32 lower-case hex digits: the id of a job or a query."""
    partition: int = 0
    """Distinguishes the producers that share the id: the number of a task. From 0 on, below 2**32."""
    epoch: int = 0
    """Rises with each unit of work, such as a micro-batch. A unit is never repeated after the next one has begun. From 0 on, below
    2**63."""

    def __post_init__(self) -> None:
        try:
            FrameSequence(self.producer_id, self.partition, self.epoch, 0, 1, True, 0, True).encode()
        except LocalProtocolError:
            raise ConfigError(
                f"producer id {self.producer_id!r}, partition {self.partition!r}, epoch {self.epoch!r}: expected 32 lower-case hex digits, "
                "and numbers from 0 on (partition below 2**32, epoch below 2**63)"
            ) from None


class Sequencer:
    """The epoch, next sequence and running CRC of one stream. At most one sealed frame is open at a time."""

    __slots__ = ("_flags", "_head", "crc", "epoch", "given", "next_sequence", "over", "partition", "producer_id")

    def __init__(self, producer_id: str, partition: int = 0, given_epoch: int | None = None) -> None:
        self.producer_id = producer_id
        self.partition = partition
        self.given = given_epoch is not None
        self.over = False
        """A frame was given up with a given id: no further frame can be sealed."""
        self.epoch = given_epoch or 0
        self.next_sequence = 0
        self.crc = 0
        self._flags = "23" if self.given else "01"
        """The flags of the property: the first digit in a later frame, the second one in a frame that begins a stream."""
        self._head = self._digits()
        """The digits of the property that are the same in a whole epoch."""

    def seal(self, records: bytes, count: int) -> SealedFrame:
        """Return a frame of `count` records, encoded without `__LS_SEQ`; `first` is set if it begins a stream.

        It does the same as protocol.messages.sequence.seal_frame in a third of the time, which matters for single sends.
        """
        first, before = self.next_sequence, self.crc
        head_bytes = UINT32.unpack_from(records)[0]
        properties_at = BODY_AT + INT32.unpack_from(records, BODY_LENGTH_AT)[0] + 3
        properties_at += records[properties_at - 3]
        properties_bytes = head_bytes - properties_at
        end = b"\x02" if properties_bytes else b""
        added = len(STAMP_HEAD) + SEQUENCE_DIGITS + len(end)
        digits = f"{self._head}{first:016x}{count:06x}{self._flags[first == 0]}".encode()
        opening = b"".join(
            (UINT32.pack(head_bytes + added), records[4 : properties_at - 2], UINT16.pack(properties_bytes + added), STAMP_HEAD, digits)
        )
        closing = end + records[properties_at:]
        crc = crc32(closing, crc32(_ZERO_DIGITS, crc32(opening, before)))
        self.next_sequence = first + count
        self.crc = crc
        return SealedFrame(b"".join((opening, b"%08x" % crc, closing)), self.epoch, first, count, crc, before)

    def begin(self, epoch: int) -> None:
        """Begin another unit of work of a given producer id, at sequence 0. No sealed frame may be open."""
        assert self.given
        self.over = False
        self.epoch = epoch
        self.next_sequence = 0
        self.crc = 0
        self._head = self._digits()

    def withdraw(self, frame: SealedFrame) -> None:
        """Reuse the sequences of a frame that is certainly not stored and of which no copy is on its way."""
        assert self.next_sequence == frame.first + frame.count
        assert self.epoch == frame.epoch
        self.next_sequence = frame.first
        self.crc = frame.crc_before

    def give_up(self) -> None:
        """Abandon a frame with an unknown outcome: a copy that still arrives is below the new epoch."""
        if self.given:
            self.over = True
            return
        self.epoch += 1
        self.next_sequence = 0
        self.crc = 0
        self._head = self._digits()

    def _digits(self) -> str:
        return f"{self.producer_id}{self.partition:08x}{self.epoch:016x}"
