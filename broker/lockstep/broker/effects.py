"""What the coordination tables want done in the world, as values. The shell drains them and acts; nothing here sends or closes."""

from dataclasses import dataclass

from lockstep.protocol.bodies import FreeQueue, ListVersion
from lockstep.protocol.queue import TopicLayout


@dataclass(frozen=True, slots=True)
class Notify:
    """NOTIFY_CONSUMER_IDS_CHANGED to these connections: the group's list has this version now."""

    group: str
    connections: tuple[int, ...]
    version: ListVersion


@dataclass(frozen=True, slots=True)
class PushLayout:
    """LAYOUTS_CHANGED to these connections: their groups subscribe to the topic, and this is its layout now."""

    layout: TopicLayout
    connections: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PushQueueFree:
    """QUEUE_FREE to this connection: these queues are its member's by the list, and free."""

    connection: int
    queues: tuple[FreeQueue, ...]


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Close it now, without an answer and without reading what it still holds."""

    connection: int
    reason: str


@dataclass(frozen=True, slots=True)
class StalePulls:
    """The epoch of this queue has risen: held pulls of the group that carry another one are answered STALE_EPOCH at once."""

    group: str
    topic: str
    queue_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class DrainFault:
    """The effects that would follow could not be made: what was taken for them is lost. Members ask for lists and queues by themselves."""

    error: Exception


Effect = PushLayout | Notify | PushQueueFree | CloseConnection | StalePulls | DrainFault
