"""Effects that the coordination tables request, as values. EffectRunner carries them out; nothing here sends or closes."""

from dataclasses import dataclass

from lockstep.protocol.bodies import FreeQueue, ListVersion
from lockstep.protocol.queue import TopicLayout


@dataclass(frozen=True, slots=True)
class Notify:
    """NOTIFY_CONSUMER_IDS_CHANGED to these connections: the group's list now has this version."""

    group: str
    connections: tuple[int, ...]
    version: ListVersion


@dataclass(frozen=True, slots=True)
class PushLayout:
    """LAYOUTS_CHANGED to these connections: their groups subscribe to the topic, and this is its new layout."""

    layout: TopicLayout
    connections: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PushQueueFree:
    """QUEUE_FREE to this connection: these queues are assigned to its member and free."""

    connection: int
    queues: tuple[FreeQueue, ...]


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Close the connection now, without a response and without reading frames that it still holds."""

    connection: int
    reason: str


@dataclass(frozen=True, slots=True)
class StalePulls:
    """The epoch of this queue has risen: held pulls of the group with another epoch get STALE_EPOCH at once."""

    group: str
    topic: str
    queue_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class DrainFault:
    """The next effects could not be made and are lost. Members ask for lists and queues again on their own."""

    error: Exception


Effect = PushLayout | Notify | PushQueueFree | CloseConnection | StalePulls | DrainFault
