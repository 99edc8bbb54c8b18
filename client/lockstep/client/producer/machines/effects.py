"""The requests of a producer's machines to their shell: values, in the order in which they are to be carried out. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lockstep.client.errors import Outcome
from lockstep.client.producer.machines.in_flight_frame import InFlightFrame
from lockstep.client.producer.machines.pending import PendingSend
from lockstep.client.producer.result import FrameResult
from lockstep.protocol.topics.queue import LayoutVersion, MessageQueue


@dataclass(slots=True)
class Write:
    """Write the frame to the connection for which the machine was run, and report the response or the loss of this write."""

    frame: InFlightFrame
    timeout_ms: int


@dataclass(slots=True)
class Complete:
    """Complete the sends of a stored frame: callers that still wait get their results, and none counts as in flight any more."""

    frame: InFlightFrame
    result: FrameResult


@dataclass(slots=True)
class Fail:
    """Fail these sends. A later send of one of their keys that waits for the in-flight limit fails too, and is not sent."""

    queue: MessageQueue
    failed: list[PendingSend]
    """They fail first, because earlier calls fail before later ones of the same key."""
    outcome: Outcome
    cause: Exception | None
    connected: bool
    later: list[PendingSend] = field(default_factory=list)
    """Later sends with one of their keys. They fail next, in order."""
    keys: frozenset[str] = frozenset()
    """The keys of the failed sends."""
    released: list[PendingSend] = field(default_factory=list)
    """Sends that no longer count as in flight."""


@dataclass(slots=True)
class Refuse:
    """Fail a send that can't be sent: its selector raised, or its topic is gone."""

    pending: PendingSend
    error: Exception


@dataclass(slots=True)
class Release:
    """Stop counting these sends as in flight, because their callers no longer wait."""

    sends: list[PendingSend]


@dataclass(slots=True)
class PossibleDuplicates:
    """Count this many unkeyed messages, which are sent to another queue although they may be stored."""

    count: int


@dataclass(slots=True)
class ExpectLayout:
    """Request the route until a layout above this one is available: a broker knows one."""

    above: LayoutVersion


@dataclass(slots=True)
class RefreshRoute:
    """Request the route, because a broker's refusal means that it is out of date."""


@dataclass(slots=True)
class LogWarning:
    """Log a warning."""

    event: str
    facts: Mapping[str, object]


SendEffect = Write | Complete | Fail | Refuse | Release | PossibleDuplicates | ExpectLayout | RefreshRoute | LogWarning
