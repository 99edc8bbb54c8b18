"""The requests of a machine of parked keys to its shell: values, in the order in which they are to be carried out. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lockstep.client.consumer.calls.parking.replay import Replay
from lockstep.protocol.messages.message import MessageExt

Level = Literal["debug", "info", "warning"]


@dataclass(frozen=True, slots=True)
class RunSoon:
    """Call `ParkMachine.run` for the replay in the next turn of the loop."""

    replay: Replay


@dataclass(frozen=True, slots=True)
class Pause:
    """Call `ParkMachine.run` for the replay after a pause."""

    replay: Replay
    pause_ms: int


@dataclass(frozen=True, slots=True)
class PullPage:
    """Pull the key's messages from an offset on, and report the page, the refusal or the error."""

    replay: Replay
    offset: int


@dataclass(frozen=True, slots=True)
class SendParkEnd:
    """Send PARK_END, and report the response or the error if it is awaited."""

    replay: Replay
    next: int
    pulled: int | None = None
    awaited: bool = True


@dataclass(frozen=True, slots=True)
class PassOn:
    """Pass messages of a replayed key to its lane, in order."""

    key: str
    messages: Sequence[MessageExt]


@dataclass(frozen=True, slots=True)
class TakeBack:
    """Remove the replay's messages that wait for a call from their lane, and report their number by `ParkMachine.left_out`."""

    replay: Replay


@dataclass(frozen=True, slots=True)
class StopPull:
    """Do not pull the main flow until `LetPull`."""


@dataclass(frozen=True, slots=True)
class LetPull:
    """Pull the main flow again."""


@dataclass(frozen=True, slots=True)
class WakeRunner:
    """Let the runner look at the main flow again: whether its messages may be taken may have changed."""


@dataclass(frozen=True, slots=True)
class RequestLocks:
    """Send a LOCK soon: its response names the keys to replay that had to wait."""


@dataclass(frozen=True, slots=True)
class EndStaleGrant:
    """The broker has refused the epoch: end the grant."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """Report that the key is in the main flow again from this offset on."""

    key: str
    offset: int


@dataclass(frozen=True, slots=True)
class Log:
    """Log an event of the replay of a key."""

    level: Level
    event: str
    key: str
    facts: Mapping[str, object]


Effect = (
    RunSoon
    | Pause
    | PullPage
    | SendParkEnd
    | PassOn
    | TakeBack
    | StopPull
    | LetPull
    | WakeRunner
    | RequestLocks
    | EndStaleGrant
    | Resumed
    | Log
)
