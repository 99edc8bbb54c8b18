"""What waits for a topic, and is never delivered when the topic is deleted: messages with a delay of any length, and half messages."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.operations.admin_client import AdminClient
from lockstep.operations.messages.halves import list_halves
from lockstep.operations.messages.timers import TimerCriteria, TimerList
from lockstep.protocol.headers.transactions import ListHalvesHeader

COUNTED_MAX = 10_000
"""The number of messages with a delay that are counted."""


@dataclass(frozen=True, slots=True)
class Undelivered:
    """What waits for a topic."""

    timers: int
    """Messages with a delay of any length, or that wait until a time of day; at most COUNTED_MAX."""
    halves: int
    """Messages of transactions that are not decided."""
    failed: Mapping[str, str]
    """Broker → why what waits there is not known."""

    @property
    def sentences(self) -> list[str]:
        """Return the sentences that an operator has to read before, without full stops; nothing if nothing waits."""
        found = []
        if self.timers:
            least = "at least " if self.timers >= COUNTED_MAX else ""
            found.append(f"{least}{self.timers:,} messages that wait for their delay or a time of day are never delivered")
        if self.halves:
            found.append(f"{self.halves:,} messages of transactions that are not decided are rolled back")
        return found + [f"broker {name} does not say what waits there: {why}" for name, why in self.failed.items()]

    def as_json(self) -> dict[str, Any]:
        return {"timers": self.timers, "timers_complete": self.timers < COUNTED_MAX and not self.failed, "half_messages": self.halves}


async def count_undelivered(admin: AdminClient, topic: str) -> Undelivered:
    """Count what waits for a topic. Raise TransportError if no nameserver responds, and TopicNotExistError if there is no such topic."""
    async with admin.keep_connections():
        timers = TimerList(admin, TimerCriteria(topic))
        await timers.read(COUNTED_MAX)
        halves = await list_halves(admin, ListHalvesHeader(topic=topic))
    return Undelivered(len(timers.found), len(halves.found), {**timers.failed, **halves.failed})
