"""One grant of one queue: its fetched messages and its pull loop."""

import asyncio
from dataclasses import dataclass, field

from lockstep.client.consumer.calls.process_queue import ProcessQueue


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
    """The pull loop waits for room, a resume or the link. Who makes room calls `pull_if_room`."""
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

    def pull_if_room(self) -> bool:
        """Wake the pull loop if it waits and there is enough room. Return whether it was woken."""
        if not self.pull_waits or not self.messages.room():
            return False
        self.pull_wake.set()
        return True

    async def rest(self) -> None:
        """Wait for a wake-up. A runner calls it in the step in which it found nothing to do, so no wake-up is lost."""
        self.run_wake.clear()
        await self.run_wake.wait()
