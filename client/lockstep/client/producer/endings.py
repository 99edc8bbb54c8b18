"""How sends of one queue end without being acknowledged here: they fail, and those behind them with their key, or go on elsewhere."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lockstep.client.errors import Outcome, PrecedingSendFailed
from lockstep.client.producer.batcher import Batcher
from lockstep.client.producer.frame import Frame, error_of
from lockstep.client.producer.parcel import Parcel
from lockstep.protocol.queue import MessageQueue
from lockstep.runtime.log import get_logger

if TYPE_CHECKING:
    from lockstep.client.producer.queue_sender import QueueSender
    from lockstep.client.producer.topic_sender import TopicSender

log = get_logger("lockstep.client.producer")


class Endings:
    """Of one queue's parcels."""

    __slots__ = ("_batcher", "_queue", "_topic")

    def __init__(self, topic: "TopicSender", queue: MessageQueue, batcher: Batcher) -> None:
        self._topic = topic
        self._queue = queue
        self._batcher = batcher

    def move(self, frame: Frame, sender: "QueueSender") -> None:
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

    def fail(self, parcels: list[Parcel], outcome: Outcome, cause: Exception | None, *, connected: bool) -> None:
        """These end unacknowledged."""
        for parcel in parcels:
            if not parcel.future.done():
                own = Outcome.UNKNOWN if parcel.left_behind else outcome
                parcel.future.set_exception(error_of(parcel, self._queue, own, cause, connected=connected))
        # Before `end` lets in who waits for the in-flight limit: that may be somebody behind.
        self._fail_behind(parcels)
        self._topic.end(parcels)

    def _fail_behind(self, failed: Iterable[Parcel]) -> None:
        keys = dict.fromkeys(key for parcel in failed for key in parcel.keys)
        if not keys:
            return
        behind = self._batcher.take_keys(keys)
        for parcel in behind:
            if not parcel.future.done():
                parcel.future.set_exception(PrecedingSendFailed(self._queue, parcel.keys[0] or None))
        self._topic.end(behind)
        self._topic.gate.refuse_behind(self._queue, keys)
