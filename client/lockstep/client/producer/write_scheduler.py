"""The moment when the queues of one producer write: once, at the end of a loop turn.

Whatever happens to many queues at once (their broker is connected, is gone, their deadlines come) is done here too, some in each turn.
"""

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.client.producer.queue_machine import QueueMachine

QUEUES_PER_TURN = 256
"""The others have the next turn: 10,000 queues of a broker that is back must not stop the loop for as long as all of them take."""


class WriteScheduler:
    """Calls `QueueMachine.depart` of each queue that asked for it, and writes once to each connection."""

    __slots__ = ("_due", "_handle", "_loop")

    def __init__(self) -> None:
        self._due: OrderedDict[QueueMachine, None] = OrderedDict()
        """In the order in which they asked."""
        self._handle: asyncio.Handle | None = None
        self._loop = asyncio.get_running_loop()

    def add(self, sender: "QueueMachine") -> None:
        """At the end of this loop turn, behind whatever else sends in it."""
        self._due[sender] = None
        if self._handle is None:
            self._handle = self._loop.call_soon(self._depart)

    def add_behind(self, sender: "QueueMachine") -> None:
        """As `add`, behind all that the loop has been given to do by now: who was just answered may send more first."""
        if self._handle is not None:
            self._handle.cancel()
        self._due[sender] = None
        self._handle = self._loop.call_soon(self._depart)

    def _depart(self) -> None:
        self._handle = None
        due = [self._due.popitem(last=False)[0] for _ in range(min(len(self._due), QUEUES_PER_TURN))]
        if self._due:
            self._handle = self._loop.call_soon(self._depart)
        links = dict.fromkeys(sender.link for sender in due)
        endpoints = [link.endpoint for link in links if link is not None and link.endpoint is not None]
        for endpoint in endpoints:
            endpoint.hold()
        try:
            for sender in due:
                sender.depart()
        finally:
            for endpoint in endpoints:
                endpoint.flush()
