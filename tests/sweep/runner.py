"""The loop of one group in one consumer process: a consumer after the other, as faults stop and start them."""

import asyncio
from abc import ABC, abstractmethod
from random import Random
from typing import Any, Generic, TypeVar

from lockstep.client import MessageQueue, PullConsumer, PushConsumer
from lockstep.runtime.host import Host
from lockstep.testing.simulation import Process
from sweep.access import member_name
from sweep.history import QueueKey
from sweep.universe import Universe

BEGIN_LOOK_S = 0.25
"""How often a process looks whether a group has begun."""
REFUSED_S = 0.5
"""How long it waits after a refused start."""
TOGGLED_S = (0, 0, 0.01, 0.5, 3)
"""How long a group that was stopped by a fault has no consumer."""

ConsumerT = TypeVar("ConsumerT", bound=PushConsumer | PullConsumer)


class Runner(ABC, Generic[ConsumerT]):
    """Runs the consumers of one group in one process. `stop` ends it, `toggle` ends the present consumer."""

    def __init__(self, universe: Universe, process: Process, group: str, host: Host, stop: asyncio.Event, toggle: asyncio.Event) -> None:
        self._universe = universe
        self._process = process
        self._group = group
        self._host = host
        self._stop = stop
        self._toggle = toggle
        self._random = self._seeded(group)

    def _seeded(self, use: str) -> Random:
        machine = self._process.machine
        return Random(f"{self._universe.setting.seed}/{machine.name}/{machine.starts}/{use}")

    def _key(self, queue: MessageQueue) -> QueueKey:
        return QueueKey(self._group, queue.broker_name, queue.topic, queue.queue_id)

    async def run(self) -> None:
        while not self._stop.is_set():
            if self._group not in self._universe.start_policies:
                await asyncio.sleep(BEGIN_LOOK_S)
                continue
            consumer = self._consumer()
            if await self._start(consumer):
                await self._consume(consumer)
            else:
                await asyncio.sleep(REFUSED_S)
            if self._toggle.is_set():
                self._toggle.clear()
                await asyncio.sleep(self._random.choice(TOGGLED_S))

    def _login(self) -> dict[str, Any]:
        """Return the arguments by which a consumer logs in, as the user of this group on this machine."""
        return self._universe.login(member_name(self._group, self._process.machine.name))

    @abstractmethod
    def _consumer(self) -> ConsumerT:
        """Return the next consumer."""

    @abstractmethod
    async def _start(self, consumer: ConsumerT) -> bool:
        """Start it. Return False if the start was refused."""

    @abstractmethod
    async def _consume(self, consumer: ConsumerT) -> None:
        """Let it consume until `stop`, `toggle` or its own end, then stop it."""
