"""The frame of one queue that is in flight. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.client.errors import Outcome
from lockstep.client.producer.machines.encoder import FrameEncoder
from lockstep.client.producer.machines.pending import PendingSend
from lockstep.client.producer.machines.sequencer import SealedFrame, Sequencer
from lockstep.protocol.topics.queue import MessageQueue

EXPIRY_STEP_MS = 10
"""Deadlines of one frame that are less than this apart are handled together, at the end of that time."""


@dataclass(slots=True, eq=False)
class InFlightFrame:
    """A sealed frame and the state of its writes."""

    sends: list[PendingSend]
    sealed: SealedFrame
    encoded_sizes: list[int]
    """The size of each record in bytes, without the sequence."""
    ids: Sequence[str]
    """The ids of its messages."""
    held_bytes: int
    """The bytes that the in-flight limit counts for its sends."""
    fields: dict[str, object]
    """SendRecordsHeader under its wire names."""
    keyed: bool
    deadline_ms: int
    """The latest deadline of its sends (monotonic ms)."""
    earliest_ms: int
    """No deadline of a send whose caller still waits is earlier."""
    half_ms: int
    """When half the time of each of its sends has passed (monotonic ms)."""
    move_ms: int = 0
    """Until then it is retried at the same queue; later an unkeyed frame may go to another one although it may be stored."""
    unknown: bool = False
    """A write got no response for too long: the frame may be stored."""
    connection: object | None = None
    """The connection of the last write."""
    responses_due: int = 0
    """Writes to which a response may still come."""
    begun_ms: int = 0
    """When it was written first."""
    due_ms: int = 0
    """When it is written again without a response."""
    retry: bool = True
    """Whether it is to be written (again)."""
    error: Exception | None = None
    """Why the last write did not succeed."""

    @property
    def certain(self) -> bool:
        """Return whether it is certainly not stored, because each write of it was refused."""
        return self.retry and not self.unknown and not self.responses_due

    @property
    def outcome(self) -> Outcome:
        return Outcome.UNKNOWN if self.unknown else Outcome.NOT_STORED

    @property
    def sizes(self) -> list[int]:
        """Return the size of each record as stored, in bytes: the first one carries the sequence."""
        sizes = self.encoded_sizes[:]
        sizes[0] += len(self.sealed.body) - sum(sizes)
        return sizes

    def keep_ids(self) -> None:
        """Store the ids in its sends, because they will be in another frame."""
        at = 0
        for pending in self.sends:
            if pending.records is None:
                pending.message_ids = self.ids[at : at + pending.count]
            at += pending.count

    def begin(self, now_ms: int) -> None:
        """Record the first write. The broker gets half of the remaining time before an unkeyed frame goes to another one."""
        self.begun_ms = now_ms
        self.move_ms = max(self.half_ms, (now_ms + self.deadline_ms) // 2)

    def take_expired(self, now_ms: int) -> list[PendingSend]:
        """Return the sends whose deadline has come, and the later ones with one of their keys, each once."""
        expired: list[PendingSend] = []
        keys: set[str] = set()
        left: list[int] = []
        for pending in self.sends:
            if pending.done():
                continue
            if pending.deadline_ms <= now_ms or not keys.isdisjoint(pending.keys):
                keys.update(pending.keys)
                expired.append(pending)
            else:
                left.append(pending.deadline_ms)
        # Checking the whole frame for each millisecond in which a deadline comes would keep the loop busy.
        self.earliest_ms = max(min(left, default=now_ms), now_ms + EXPIRY_STEP_MS)
        self.deadline_ms = max(left, default=now_ms)
        self.due_ms = min(self.due_ms, self.deadline_ms)
        return expired

    def singles(self) -> list[PendingSend]:
        """Return the smallest parts that may fail separately: those of one send or one key."""
        return [part for pending in self.sends for part in (pending.split(str).values() if pending.keys else (pending,))]


def seal_frame(
    queue: MessageQueue, sequencer: Sequencer, encoder: FrameEncoder, sends: list[PendingSend], now_ms: int, *, any_durability: bool
) -> InFlightFrame:
    """Return the next frame of a queue: sends of one FIFO and one layout version.

    `any_durability`: a send requires more or less durability than the broker's flush setting.
    """
    head = sends[0]
    records, sizes, ids = encoder.encode(sends, queue, now_ms)
    sealed = sequencer.seal(records, len(sizes))
    if len(sends) == 1:
        held_bytes, deadline_ms, earliest_ms, half_ms = head.held_bytes, head.deadline_ms, head.deadline_ms, head.half_ms
    else:
        deadlines = [pending.deadline_ms for pending in sends]
        held_bytes, deadline_ms, earliest_ms = sum([pending.held_bytes for pending in sends]), max(deadlines), min(deadlines)
        half_ms = max([pending.begun_ms + pending.deadline_ms for pending in sends]) // 2
    fields: dict[str, object] = {
        "topic": queue.topic,
        "queueId": queue.queue_id,
        "count": sealed.count,
        "producerId": sequencer.producer_id,
        "partition": sequencer.partition,
        "producerEpoch": sealed.epoch,
        "firstSequence": sealed.first,
        "first": sealed.first == 0,
        "crc": sealed.crc,
    }
    if sequencer.given:
        fields["given"] = True
    fields |= encoder.fields()
    if any_durability:
        asked = {pending.durable for pending in sends}
        if True in asked or asked == {False}:  # the send with the highest requirement decides
            fields["durable"] = True in asked
    if head.version is not None:
        fields["layoutCounter"] = head.version.counter
        fields["layoutWriter"] = head.version.writer
    return InFlightFrame(sends, sealed, sizes, ids, held_bytes, fields, bool(head.keys), deadline_ms, earliest_ms, half_ms)
