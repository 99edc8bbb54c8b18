"""A frame in flight, and the error of a send that it could not carry."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstep.client.errors import Outcome, QueueUnavailableError, SendTimeoutError
from lockstep.client.producer.pending import PendingSend
from lockstep.client.producer.result import FrameAnswer, SendResult
from lockstep.client.producer.sequencer import SealedFrame, Sequencer
from lockstep.protocol.command import Command
from lockstep.protocol.errors import BrokerError, TopicNotExistError, broker_error
from lockstep.protocol.queue import MessageQueue
from lockstep.runtime.endpoint import Endpoint

if TYPE_CHECKING:
    from lockstep.client.producer.queue_machine import QueueMachine

EXPIRY_STEP_MS = 10
"""Deadlines of one frame that come within this time are met together, at its end."""


@dataclass(slots=True)
class InFlightFrame:
    """A sealed frame and what has become of it so far. Stands where a request has its future."""

    sender: "QueueMachine"
    parcels: list[PendingSend]
    sealed: SealedFrame
    fields: dict[str, object]
    """SendRecordsHeader under its wire names."""
    keyed: bool
    deadline_ms: int
    """The last one of its parcels."""
    earliest_ms: int
    """No deadline of a parcel that is still waited for is earlier."""
    half_ms: int
    """When half the time of each of its parcels has passed."""
    move_ms: int = 0
    """Until then the same queue is tried; later an unkeyed frame may go elsewhere although it may be stored."""
    unknown: bool = False
    """A write of it went unanswered for too long: it may be stored."""
    endpoint: Endpoint | None = None
    """Where it was written last."""
    unanswered: int = 0
    """Writes of it that may still be answered."""
    begun_ms: int = 0
    """When it was written first."""
    due_ms: int = 0
    """When it is written again unless it is answered."""
    retry: bool = True
    """It is to be written (again)."""
    error: Exception | None = None
    """Why the last write of it did not do."""

    def done(self) -> bool:
        """An answer always matters, if only to tell that the frame is not the one in flight any more."""
        return False

    def set_result(self, response: Command) -> None:
        self.sender.answered(self, response)

    def set_exception(self, error: Exception) -> None:
        self.sender.lost(self, error)

    def stored(self, answer: FrameAnswer) -> None:
        """Every send of it that is still waited for has its result."""
        index = 0
        for parcel in self.parcels:
            ids, future = parcel.message_ids, parcel.future
            if not future.done():
                if type(ids) is str:
                    future.set_result(SendResult(answer, index, ids))
                else:
                    future.set_result([SendResult(answer, place, id_) for place, id_ in enumerate(ids, index)])
            index += parcel.count

    @property
    def certain(self) -> bool:
        """It is not stored: each write of it was refused."""
        return self.retry and not self.unknown and not self.unanswered

    def begin(self, now_ms: int) -> None:
        """It is written first. The broker is given half of what is left before an unkeyed frame goes elsewhere."""
        self.begun_ms = now_ms
        self.move_ms = max(self.half_ms, (now_ms + self.deadline_ms) // 2)

    def take_expired(self, now_ms: int) -> list[PendingSend]:
        """Those whose deadline has come, and those behind them with one of their keys: each once."""
        expired: list[PendingSend] = []
        keys: set[str] = set()
        left: list[int] = []
        for parcel in self.parcels:
            if parcel.future.done():
                continue
            if parcel.deadline_ms <= now_ms or not keys.isdisjoint(parcel.keys):
                keys.update(parcel.keys)
                expired.append(parcel)
            else:
                left.append(parcel.deadline_ms)
        # Looking at the whole frame for each millisecond in which a deadline comes would keep the loop busy.
        self.earliest_ms = max(min(left, default=now_ms), now_ms + EXPIRY_STEP_MS)
        self.deadline_ms = max(left, default=now_ms)
        self.due_ms = min(self.due_ms, self.deadline_ms)
        return expired

    @property
    def outcome(self) -> Outcome:
        return Outcome.UNKNOWN if self.unknown else Outcome.NOT_STORED

    def singles(self) -> list[PendingSend]:
        """The smallest parcels that may fail each by itself: of one send, or one key."""
        return [part for parcel in self.parcels for part in (parcel.split(str).values() if parcel.keys else (parcel,))]

    @property
    def sizes(self) -> list[int]:
        """Bytes of each record as stored: the first one carries the sequence."""
        sizes: list[int] = []
        for parcel in self.parcels:
            if parcel.sizes is None:
                sizes.append(len(parcel.data))
            else:
                sizes += parcel.sizes
        sizes[0] += len(self.sealed.body) - sum(sizes)
        return sizes


def seal_frame(sender: "QueueMachine", sequencer: Sequencer, parcels: list[PendingSend]) -> InFlightFrame:
    """The next frame of a queue: parcels of one lane and one layout version."""
    queue = sender.queue
    head = parcels[0]
    if len(parcels) == 1:
        deadline_ms, earliest_ms, half_ms = head.deadline_ms, head.deadline_ms, head.half_ms
        sealed = sequencer.seal([head.data], head.count)
    else:
        sealed = sequencer.seal([parcel.data for parcel in parcels], sum([parcel.count for parcel in parcels]))
        deadlines = [parcel.deadline_ms for parcel in parcels]
        deadline_ms, earliest_ms, half_ms = max(deadlines), min(deadlines), max([parcel.half_ms for parcel in parcels])
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
    if sender.any_asks:
        asked = {parcel.durable for parcel in parcels}
        if True in asked or asked == {False}:  # who asks for most decides
            fields["durable"] = True in asked
    if head.version is not None:
        fields["layoutCounter"] = head.version.counter
        fields["layoutWriter"] = head.version.writer
    return InFlightFrame(sender, parcels, sealed, fields, bool(head.keys), deadline_ms, earliest_ms, half_ms)


def error_of(parcel: PendingSend, queue: MessageQueue, outcome: Outcome, cause: Exception | None, *, connected: bool) -> Exception:
    """What the parcel's send raises: the broker's refusal where that is the whole truth, else which queue did not answer."""
    error: Exception
    if isinstance(cause, BrokerError) and outcome is Outcome.NOT_STORED and not (parcel.keys and cause.retriable):
        error = broker_error(cause.wire_code, cause.remark)
    else:
        last = "nothing was written" if cause is None else str(cause)
        where = f"broker {queue.broker_name} is {'connected' if connected else 'not connected'}"
        end = "its topic was deleted" if isinstance(cause, TopicNotExistError) else "its deadline"
        why = f"not acknowledged before {end} ({where}; last: {last})"
        error = QueueUnavailableError(queue, outcome, why) if parcel.keys else SendTimeoutError(queue.topic, outcome, why)
    error.__cause__ = cause
    return error
