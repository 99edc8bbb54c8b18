"""Asks every broker for its figures and events, again and again, and keeps the last hour in memory."""

import asyncio
from collections.abc import Iterable, Iterator
from functools import partial

from lockstep.admin.client import AdminClient
from lockstep.admin.rates import ClusterRates, Looks, TopicRates, rates, rates_with_topics, total
from lockstep.admin.watch.events import EventHistory
from lockstep.admin.watch.requests import Requests
from lockstep.admin.watch.series import Series
from lockstep.protocol.bodies import BrokerAddress, Overview
from lockstep.protocol.errors import LockstepError
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host

INTERVAL_MS = 5_000
RESPONSE_MS = 4_000
"""A broker that has not responded by then is told to be silent; its response is taken when it comes."""


class Watch:
    """The cluster as it is now, as far as it is known, and its last hour. `run` keeps it up to date."""

    def __init__(self, host: Host, nameserver: str, tasks: Tasks) -> None:
        self.admin = AdminClient(host, nameserver)
        self.series = Series()
        self.events = EventHistory()
        self.brokers: dict[str, BrokerAddress] = {}
        """Name → the address that the nameservers last gave."""
        self.looks: Looks = {}
        """Broker → its last figures, or why it did not respond."""
        self.rates: ClusterRates = rates({}, {})
        self.topics: tuple[TopicRates, ...] = ()
        self.problem: str | None = None
        """Why the nameservers could not be asked."""
        self.looked_ms: int | None = None
        """When the figures were last brought up to date, by the monotonic clock."""
        self.ticked_ms = 0
        """When the last values of the series were taken, by the wall clock."""
        self._clock = host.clock
        self._requests: Requests[Overview] = Requests(tasks, RESPONSE_MS)
        self._began_ms = host.clock.monotonic_ms()

    async def run(self) -> None:
        """Look at the cluster every INTERVAL_MS, until the task is cancelled."""
        async with self.admin.keep_connections(redial=True):
            while True:
                await self.look()
                passed_ms = self._clock.monotonic_ms() - self._began_ms
                await asyncio.sleep((INTERVAL_MS - passed_ms % INTERVAL_MS) / 1000)

    async def look(self) -> None:
        """Look at the cluster once. A broker that does not respond in time delays no other one."""
        try:
            self.brokers = {broker.name: broker for broker in await self.admin.brokers()}
            self.problem = None
        except LockstepError as error:
            self.problem = str(error)
        for name, broker in self.brokers.items():
            self._requests.start(name, partial(self._ask, broker))
        responses = await self._requests.responses(self.brokers)
        now: dict[str, Overview | str] = {
            name: each if isinstance(each := responses[name], Overview) else str(each) for name in self.brokers
        }
        tick = (self._clock.monotonic_ms() - self._began_ms) // INTERVAL_MS
        (self.rates, self.topics), self.looks = rates_with_topics(self.looks, now), now
        self.looked_ms = self._clock.monotonic_ms()
        if tick > self.series.tick:
            self.series.add(tick, figures(self.rates, self.topics))
            self.ticked_ms = self._clock.wall_ms()

    async def _ask(self, broker: BrokerAddress) -> Overview:
        """Return the broker's figures. Its events are added to the history."""
        found = await self.admin.overview(broker)
        more = True
        while more:
            more = self.events.add(broker.name, await self.admin.group_events_after(broker, *self.events.after(broker.name)))
        return found


def figures(found: ClusterRates, topics: Iterable[TopicRates]) -> Iterator[tuple[str, float | None]]:
    """Yield the figures that have a series, the most important first."""
    if found.brokers:
        yield "in", total(each.stored_s for each in found.brokers)
        yield "out", total(each.given_s for each in found.brokers)
        yield "lag", total(each.lag for each in found.brokers)
        yield "moves", total(each.grants_min for each in found.groups)
    for broker in found.brokers:
        yield f"broker/{broker.broker}/in", broker.stored_s
        yield f"broker/{broker.broker}/out", broker.given_s
    for group in found.groups:  # the one with the largest lag first
        yield f"group/{group.group}/lag", group.lag
        yield f"group/{group.group}/oldest", group.oldest_ms
        yield f"group/{group.group}/out", group.given_s
    for topic in sorted(topics, key=lambda each: -(each.stored_s or 0)):
        yield f"topic/{topic.topic}/in", topic.stored_s
