"""What a send answers. RocketMQ: SendResult, SendStatus."""

from enum import Enum

from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.ids import offset_message_id
from lockstep.protocol.queue import MessageQueue


class SendStatus(Enum):
    """SEND_OK: stored as durably as the broker is set to. The others: stored, and the broker could not confirm that much in time."""

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
"""Response codes that mean: the message is stored."""


class FrameResult:
    """Where a whole frame was stored; its messages' results point here and work out their own place when they are asked."""

    __slots__ = ("first_offset", "physical_offset", "queue", "sizes", "status", "store_host")

    def __init__(
        self, status: SendStatus, queue: MessageQueue, first_offset: int, physical_offset: int, store_host: str, sizes: list[int]
    ) -> None:
        self.status = status
        self.queue = queue
        self.first_offset = first_offset
        self.physical_offset = physical_offset
        self.store_host = store_host
        self.sizes = sizes
        """Bytes of each stored record, in order."""


class SendResult:
    """One acknowledged message."""

    __slots__ = ("_answer", "_index", "message_id")

    message_id: str
    """The id that this producer gave it (UNIQ_KEY), 32 hex digits."""

    def __init__(self, answer: FrameResult, index: int, message_id: str) -> None:
        self._answer = answer
        self._index = index
        self.message_id = message_id

    @property
    def status(self) -> SendStatus:
        return self._answer.status

    @property
    def queue(self) -> MessageQueue:
        return self._answer.queue

    @property
    def queue_offset(self) -> int:
        """Its place in the queue; −1: stored, and not known where: a late repeat, or a message that waits for its delay."""
        first = self._answer.first_offset
        return -1 if first < 0 else first + self._index

    @property
    def offset_message_id(self) -> str:
        """The broker's id: store host and log offset in hex. Empty where the broker no longer knows, or its address is no IPv4."""
        answer = self._answer
        if answer.first_offset < 0:
            return ""
        try:
            return offset_message_id(answer.store_host, answer.physical_offset + sum(answer.sizes[: self._index]))
        except LocalProtocolError:
            return ""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SendResult):
            return NotImplemented
        mine = (self.message_id, self.status, self.queue, self.queue_offset)
        return mine == (other.message_id, other.status, other.queue, other.queue_offset)

    def __hash__(self) -> int:
        return hash(self.message_id)

    def __repr__(self) -> str:
        return f"SendResult({self.status.value}, {self.queue}, offset {self.queue_offset}, {self.message_id})"
