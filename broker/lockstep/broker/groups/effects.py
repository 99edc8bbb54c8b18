"""Effects of the coordination tables, as values. EffectRunner (effect_runner.py) carries them out; no table sends or closes."""

from dataclasses import dataclass

from lockstep.protocol.bodies import FreeQueue, ListVersion
from lockstep.protocol.topics.queue import TopicLayout


@dataclass(frozen=True, slots=True)
class Notify:
    """Send NOTIFY_CONSUMER_IDS_CHANGED to these connections: the group's member list now has this version."""

    group: str
    connections: tuple[int, ...]
    version: ListVersion


@dataclass(frozen=True, slots=True)
class PushLayout:
    """Send LAYOUTS_CHANGED to these connections: their groups subscribe to the topic, and this is its layout now."""

    layout: TopicLayout
    connections: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PushQueueFree:
    """Send QUEUE_FREE to this connection, whose member then sends a LOCK: for queues that are free and that the list gives to it, and for
    those that it holds and whose grant was superseded, or that have keys to replay."""

    connection: int
    queues: tuple[FreeQueue, ...]


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Close the connection now, without a response and without reading what it still holds."""

    connection: int
    reason: str


@dataclass(frozen=True, slots=True)
class StalePulls:
    """Check the held pulls of the group at this queue again at once: its epoch has risen, and those that carry another one are stale."""

    group: str
    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class DrainFault:
    """The remaining effects could not be made and are lost. Members request lists and queues again at their usual times."""

    error: Exception


GroupEffect = PushLayout | Notify | PushQueueFree | CloseConnection | StalePulls | DrainFault
