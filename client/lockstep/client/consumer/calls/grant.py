"""One grant of one queue: its fetched messages, its pull loop and its runner."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lockstep.client.consumer.calls.process_queue import ProcessQueue
from lockstep.client.consumer.health import LaneHealth
from lockstep.protocol.bodies import ReplayKey


@dataclass(frozen=True, slots=True)
class RunnerStatus:
    """What a runner is doing, for reports."""

    lanes: LaneHealth | None = None
    """The queue's keys, if they are consumed in parallel."""
    blocked: bool = False
    """The listener is not called any more, because attempts are exhausted; with `lanes`, with messages of some keys."""
    again_ms: int | None = None
    """The boot time at which a failed batch is called again; None if none waits for its backoff."""
    uncommitted: int = 0
    """Messages that wait for a commit by the application."""


class Runner(Protocol):
    """Consumes the messages of one grant, in one task."""

    async def run(self) -> None:
        """Consume until the grant ends."""

    def position_moved(self) -> None:
        """Handle that the fetched part of the queue grew by messages that the subscription does not match: progress may move past them."""

    def resume(self) -> None:
        """Call the listener once more even if its attempts are exhausted."""

    def give_up(self) -> None:
        """Cancel the running call: its result no longer counts."""

    def replay(self, keys: Sequence[ReplayKey]) -> None:
        """Replay these parked keys, if the runner does that."""

    def before_release(self) -> None:
        """Commit what has a request of its own: the queue may be released by the next request."""

    def status(self) -> RunnerStatus:
        """Return what it is doing."""


@dataclass(slots=True, eq=False)
class Grant:
    """A grant that is being consumed. `alive` until its token is no longer current."""

    token: int
    """QueueOwnership.token."""
    generation: int | None
    """QueueOwnership.generation."""
    messages: ProcessQueue
    alive: bool = True
    pull_stops: int = 0
    """The number of replays that can't end while the main flow is pulled."""
    pull_waits: bool = False
    """The pull loop waits for room, a resume or the link. Who makes room sets `pull_wake` if there is enough."""
    pulled_ms: int | None = None
    """The boot time at which the last pull was sent."""
    pulling: bool = False
    """That pull has no response yet."""
    run_wake: asyncio.Event = field(default_factory=asyncio.Event)
    pull_wake: asyncio.Event = field(default_factory=asyncio.Event)
    pull_task: "asyncio.Task[None] | None" = None

    def wake(self) -> None:
        self.run_wake.set()
        self.pull_wake.set()

    async def rest(self) -> None:
        """Wait for a wake-up. A runner calls it in the step in which it found nothing to do, so no wake-up is lost."""
        self.run_wake.clear()
        await self.run_wake.wait()
