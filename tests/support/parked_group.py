"""A group that parks keys, for tests of the commands: members whose listener fails for poisoned keys, and what the brokers list."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from lockstep.client import Backoff, MessageExt, OrderedRetry, OrderlyContext, PushConsumer
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.groups.parked import Parked, list_parked
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support import park_kit

GROUP, TOPIC = park_kit.GROUP, park_kit.TOPIC
send = partial(park_kit.send, tags="t")
"""Send numbers as messages with the tag `t`: see park_kit.send."""


@dataclass
class Group:
    """The members of one group, which fail the messages of the keys in `poison`."""

    cluster: TestCluster
    name: str = GROUP
    on_exhausted: Literal["park", "block"] = "park"
    backoff_ms: int = 100
    poison: set[str] = field(default_factory=set)
    got: list[tuple[str | None, int]] = field(default_factory=list)
    """The (key, number) of each accepted message."""
    failed: int = 0
    """The number of failed calls."""

    async def member(self) -> None:
        """Run one member."""
        retry = OrderedRetry(
            max_attempts=3, on_exhausted=self.on_exhausted, backoff=Backoff(first_ms=self.backoff_ms, max_ms=self.backoff_ms)
        )
        consumer = PushConsumer(self.name, nameserver=self.cluster.nameserver, retry=retry).subscribe(TOPIC)
        consumer.orderly(self._listen)
        async with consumer:
            await consumer.wait_closed()

    async def _listen(self, messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        await asyncio.sleep(0.01)
        if any(message.sharding_key in self.poison for message in messages):
            self.failed += 1
            raise RuntimeError("card declined")
        self.got += [(message.sharding_key, int(message.body)) for message in messages]

    def of_key(self, key: str) -> list[int]:
        return [number for found, number in self.got if found == key]

    async def parked(self) -> tuple[Parked, ...]:
        """Return what the brokers list of this group."""
        return (await list_parked(AdminClient(Host.current(), self.cluster.nameserver), self.name)).keys

    async def park(self, count: int, keys: int, *poisoned: str) -> None:
        """Start the member `worker`, send the numbers below `count`, and return when exactly the poisoned keys are parked and the group has
        no lag."""
        self.poison.update(poisoned)
        await self.cluster.start("worker", self.member)
        await send(self.cluster, count, keys)
        await self.cluster.settled(self.name)
        assert {each.row.key for each in await self.parked()} == set(poisoned)


async def until_parked(group: Group, *keys: str) -> None:
    """Return when exactly these keys are parked."""
    async with asyncio.timeout(300):
        while True:
            if sorted(each.row.key for each in await group.parked()) == sorted(keys):
                return
            await asyncio.sleep(0.5)
