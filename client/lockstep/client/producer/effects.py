"""What the machines of a producer ask their shell to do: values, in the order in which they are to be carried out. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lockstep.client.errors import Outcome
from lockstep.client.producer.in_flight_frame import InFlightFrame
from lockstep.client.producer.pending import PendingSend
from lockstep.client.producer.result import FrameResult
from lockstep.protocol.queue import LayoutVersion, MessageQueue


@dataclass(slots=True)
class Write:
    """Write the frame to the connection for which the machine was run, and report the response or the loss of this write."""

    frame: InFlightFrame
    timeout_ms: int


@dataclass(slots=True)
class Complete:
    """Every send of the frame is stored: those that are still waited for get their result, and none counts as in flight."""

    frame: InFlightFrame
    answer: FrameResult


@dataclass(slots=True)
class Fail:
    """These sends have failed. A send of one of their keys that waits at the in-flight limit fails too: none of it may be sent any more."""

    queue: MessageQueue
    failed: list[PendingSend]
    """They learn it at once: a send of the same key that was called before waits behind them."""
    outcome: Outcome
    cause: Exception | None
    connected: bool
    behind: list[PendingSend] = field(default_factory=list)
    """What waited behind them with one of their keys: it learns it in this loop turn or a later one, in order."""
    keys: frozenset[str] = frozenset()
    """The keys of those that failed."""
    released: list[PendingSend] = field(default_factory=list)
    """Those that count as in flight no longer."""


@dataclass(slots=True)
class Refuse:
    """These sends can't be sent: a selector raised, their topic is gone, or a broker lacks a feature. `error` makes what each raises."""

    sends: list[PendingSend]
    error: Callable[[], Exception]


@dataclass(slots=True)
class Release:
    """These count as in flight no longer: nobody waits for them."""

    sends: list[PendingSend]


@dataclass(slots=True)
class MayBeTwice:
    """So many unkeyed messages go to another queue although they may be stored."""

    count: int


@dataclass(slots=True)
class ExpectLayout:
    """A broker knows a higher layout than this one: have the route asked for until it is there."""

    above: LayoutVersion


@dataclass(slots=True)
class RefreshRoute:
    """A broker's refusal says that the route is old."""


@dataclass(slots=True)
class Log:
    """Log a warning."""

    event: str
    facts: Mapping[str, object]


Effect = Write | Complete | Fail | Refuse | Release | MayBeTwice | ExpectLayout | RefreshRoute | Log
