"""How sends of one queue end without being acknowledged here: they fail, and those behind them with their key, or go on elsewhere."""

from collections.abc import Iterator
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING

from lockstep.client.errors import Outcome, PrecedingSendError
from lockstep.client.producer.in_flight_frame import InFlightFrame, error_of
from lockstep.client.producer.lane import AHEAD_OF_ALL
from lockstep.client.producer.pending import ENDED, PendingSend
from lockstep.client.producer.send_buffer import SendBuffer
from lockstep.protocol.queue import MessageQueue
from lockstep.runtime.log import get_logger

if TYPE_CHECKING:
    from lockstep.client.producer.queue_machine import QueueMachine
    from lockstep.client.producer.topic_machine import TopicMachine

log = get_logger("lockstep.client.producer")


class Stage(Enum):
    """Where parcels were when they failed."""

    WAITING = "waiting"
    """In a lane: what was ahead of them there goes on."""
    UNSEALED = "unsealed"
    """In a frame that has ended: everything in the lane is behind them."""
    IN_FLIGHT = "in flight"
    """In a frame that goes on for its other parcels: their bytes count as in flight until it ends."""


class Endings:
    """Of one queue's parcels."""

    __slots__ = ("_batcher", "_queue", "_topic")

    def __init__(self, topic: "TopicMachine", queue: MessageQueue, batcher: SendBuffer) -> None:
        self._topic = topic
        self._queue = queue
        self._batcher = batcher

    def move(self, frame: InFlightFrame, sender: "QueueMachine") -> None:
        """An unkeyed frame's parcels go to another broker; if they may be stored here, that is counted."""
        living = [parcel for parcel in frame.parcels if not parcel.future.done()]
        if frame.unknown:
            count = sum([parcel.count for parcel in living])
            self._topic.count_possible_duplicates(count)
            for parcel in living:
                parcel.left_behind = True
            log.warning("frame.moved", queue=str(self._queue), possible_duplicates=count, error=str(frame.error))
        self._topic.end([parcel for parcel in frame.parcels if parcel.future.done()])
        self._topic.move(living, sender)

    def fail(
        self, parcels: list[PendingSend], outcome: Outcome, cause: Exception | None, *, connected: bool, stage: Stage = Stage.UNSEALED
    ) -> None:
        """These end unacknowledged, and with them what waits behind one of their keys. None of it is written any more when this returns.

        The sends of these learn it at once: a send of the same key that is called before is one that waits behind them. Those behind them
        learn it in this loop turn and the next ones.
        """
        behind = self._fail_behind(parcels, waited=stage is Stage.WAITING)
        for parcel in parcels:
            future = parcel.end()
            if not future.done():
                own = Outcome.UNKNOWN if parcel.left_behind else outcome
                future.set_exception(error_of(parcel, self._queue, own, cause, connected=connected))
        if stage is not Stage.IN_FLIGHT:
            self._topic.end(parcels)
        self._topic.failures.add(behind)

    def _fail_behind(self, failed: list[PendingSend], *, waited: bool) -> Iterator[None]:
        """Take what is behind these with one of their keys from the lane and the gate. Returns what ends it.

        What was behind those that had failed before has been taken: what is there now came later.
        """
        keys: dict[str, int] = {}
        for parcel in failed:
            if parcel.future is ENDED:
                continue
            for key in parcel.keys:
                keys.setdefault(key, parcel.ticket if waited else AHEAD_OF_ALL)
        if not keys:
            return iter(())
        behind = self._batcher.take_keys(keys)
        refused = self._topic.gate.refuse_behind(self._queue, keys)
        return chain(self._topic.endings(behind, lambda parcel: PrecedingSendError(self._queue, parcel.keys[0] or None)), refused)
