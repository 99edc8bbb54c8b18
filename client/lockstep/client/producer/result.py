"""The results of sends. RocketMQ: SendResult, SendStatus."""

from collections.abc import Sequence
from enum import Enum
from typing import TypeAlias, TypeVar

from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.messages.ids import offset_message_id
from lockstep.protocol.topics.queue import MessageQueue


class SendStatus(Enum):
    """How durably a message is stored: SEND_OK as the broker's flush setting guarantees. With the others it is stored, but the broker could
    not confirm that guarantee in time."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


STATUS_OF_CODE: dict[int, SendStatus] = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.DUPLICATE: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}
"""Response codes which mean that the message is stored."""


class FrameResult:
    """The position of a stored frame. The results of its messages refer to it and compute their own position when it is read."""

    __slots__ = ("first_offset", "ids", "physical_offset", "queue", "sizes", "status", "store_host")

    def __init__(
        self,
        status: SendStatus,
        queue: MessageQueue,
        first_offset: int,
        physical_offset: int,
        store_host: str,
        sizes: Sequence[int],
        ids: Sequence[str],
    ) -> None:
        self.status = status
        self.queue = queue
        self.first_offset = first_offset
        self.physical_offset = physical_offset
        self.store_host = store_host
        self.sizes = sizes
        """The size of each stored record in bytes, in order."""
        self.ids = ids
        """The id of each message, in order."""

    def handle(self, index: int) -> str:
        """Return the recall handle of one message: empty, unless it waits."""
        return ""


Place: TypeAlias = tuple[SendStatus, MessageQueue, int, int, str, Sequence[int], Sequence[str]]
"""The arguments of FrameResult."""


class RoomResult(FrameResult):
    """The position of a stored frame of messages that wait. Their own offsets are not known yet."""

    __slots__ = ("room_offset",)
    room_offset: int
    """The offset of the first message in the waiting room; −1 if it is not known."""


R = TypeVar("R", bound=RoomResult)


def room_result(kind: type[R], place: Place) -> R:
    """Return the result of a frame that is stored in a waiting room. The offset of `place` is that in the room."""
    status, queue, offset, _, _, sizes, ids = place
    result = kind(status, queue, -1, -1, "", sizes, ids)
    result.room_offset = offset
    return result


class SendResult:
    """The position of one acknowledged message."""

    __slots__ = ("_frame", "_index")

    def __init__(self, frame: FrameResult, index: int) -> None:
        self._frame = frame
        self._index = index

    @property
    def message_id(self) -> str:
        """Return the id that this producer gave the message (UNIQ_KEY), 32 hex digits."""
        return self._frame.ids[self._index]

    @property
    def status(self) -> SendStatus:
        """Return how durably the message is stored. All messages of a frame have the same status."""
        return self._frame.status

    @property
    def queue(self) -> MessageQueue:
        """Return the queue in which the message is stored, or for a delayed message the queue to which it was sent."""
        return self._frame.queue

    @property
    def queue_offset(self) -> int:
        """Return the offset of the message in its queue; −1 if it is stored at an unknown offset: a late repeat, or a delayed message."""
        first = self._frame.first_offset
        return -1 if first < 0 else first + self._index

    @property
    def offset_message_id(self) -> str:
        """Return the broker's id of the message: store host and log offset in hex. Empty if the broker no longer knows it, or has no IPv4
        address."""
        frame = self._frame
        if frame.first_offset < 0:
            return ""
        try:
            return offset_message_id(frame.store_host, frame.physical_offset + sum(frame.sizes[: self._index]))
        except LocalProtocolError:
            return ""

    @property
    def recall_handle(self) -> str:
        """Return the text by which `Producer.recall` finds a message that waits. Empty for one without a delay, and for a late
        repeat."""
        return self._frame.handle(self._index)

    @property
    def room_offset(self) -> int:
        """Return the offset of a message that waits in its waiting room; −1 if it does not wait, or the offset is not known."""
        frame = self._frame
        return frame.room_offset + self._index if isinstance(frame, RoomResult) and frame.room_offset >= 0 else -1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SendResult):
            return NotImplemented
        mine = (self.message_id, self.status, self.queue, self.queue_offset)
        return mine == (other.message_id, other.status, other.queue, other.queue_offset)

    def __hash__(self) -> int:
        return hash(self.message_id)

    def __repr__(self) -> str:
        return f"SendResult({self.status.value}, {self.queue}, offset {self.queue_offset}, {self.message_id})"
