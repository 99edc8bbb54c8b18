"""Asks every broker for its figures and events, again and again, and keeps the last hour in memory."""

import asyncio
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from functools import partial

from lockstep.operations.admin_client import AdminClient, by_name
from lockstep.operations.brokers.rates import ClusterRates, Looks, TopicRates, appends, rates, rates_with_topics
from lockstep.operations.watch.absence import AWAITED_MS, Absence, Answers, Why
from lockstep.operations.watch.events import EventHistory
from lockstep.operations.watch.latency import LatencyHistory
from lockstep.operations.watch.requests import Requests
from lockstep.operations.watch.series import Series
from lockstep.protocol.bodies import BrokerAddress, Overview
from lockstep.protocol.errors import (
    BrokerError,
    LockstepError,
    RemoteProtocolError,
    TransportError,
)
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host

INTERVAL_MS = 5_000
RESPONSE_MS = 4_000
"""A broker that has not responded by then is shown as silent; a later response still counts."""
LISTED_MS = 500
"""A nameserver that has not responded by then delays no broker: those that are known are asked. 0.5 s and 4 s are less than INTERVAL_MS."""
NAMESERVERS = "nameservers"
NOT_REGISTERED = TransportError("it is not registered")


class Watch:
    """The cluster as it is now, as far as it is known, and its last hour. `run` keeps it up to date."""

    def __init__(self, host: Host, nameserver: str, tasks: Tasks) -> None:
        self.admin = AdminClient(host, nameserver)
        self.series = Series()
        self.latency = LatencyHistory()
        """Of appends, by broker."""
        self.events = EventHistory()
        self.brokers: dict[str, BrokerAddress] = {}
        """Name → the address that the nameservers last gave."""
        self.looks: Looks = {}
        """Broker → its last figures, or why it did not respond."""
        self.rates: ClusterRates = rates({}, {})
        self.topics: tuple[TopicRates, ...] = ()
        self.absent: dict[str, Absence] = {}
        """Brokers without figures: sums are without them."""
        """Broker → why its events of groups are not known, although its figures are."""
        self.problem: str | None = None
        """Why the nameservers could not be asked."""
        self.looked_ms: int | None = None
        """When the figures were last brought up to date, by the monotonic clock."""
        self.ticked_ms = 0
        """When the last values of the series were taken, by the wall clock."""
        self.looked_wall_ms: int | None = None
        """The same in ms since 1970."""
        self._clock = host.clock
        self._answers = Answers()
        self._following: dict[str, asyncio.Lock] = {}
        """Broker → held while its events are read."""
        self._requests: Requests[Overview] = Requests(tasks, RESPONSE_MS)
        self._listing: Requests[tuple[BrokerAddress, ...]] = Requests(tasks, RESPONSE_MS)
        self._began_ms = host.clock.monotonic_ms()

    async def run(self) -> None:
        """Look at the cluster every INTERVAL_MS, until the task is cancelled."""
        async with self.admin.keep_connections(redial=True):
            while True:
                await self.look()
                passed_ms = self._clock.monotonic_ms() - self._began_ms
                await asyncio.sleep((INTERVAL_MS - passed_ms % INTERVAL_MS) / 1000)

    async def look(self) -> None:
        """Look at the cluster once. A broker or nameserver that does not respond in time delays no other one.

        A broker that is not registered any more is asked for as long as it responds: it may have lost the nameservers alone.
        """
        recent = self._answers.within(AWAITED_MS, self._clock.monotonic_ms())
        await self._list_brokers(recent)
        asked = {name: broker for name, broker in self.brokers.items() if broker.registered or name in recent}
        for name, broker in asked.items():
            self._requests.start(name, partial(self._ask, broker))
        responses = await self._requests.responses(asked)
        now: dict[str, Overview | LockstepError] = {name: responses[name] if name in asked else NOT_REGISTERED for name in self.brokers}
        now_ms = self._clock.monotonic_ms()
        tick = (now_ms - self._began_ms) // INTERVAL_MS
        looks = {name: each if isinstance(each, Overview) else str(each) for name, each in now.items()}
        self.looked_wall_ms = self._clock.wall_ms()
        self._answers.add(looks, now_ms, self.looked_wall_ms)
        self.absent = {name: self._absence(name, each) for name, each in now.items() if not isinstance(each, Overview)}
        self.latency.add(tick, appends(self.looks, looks))
        (self.rates, self.topics), self.looks = rates_with_topics(self.looks, looks), looks
        self.looked_ms = now_ms
        if tick > self.series.tick:
            awaited = self._answers.within(AWAITED_MS, now_ms)
            self.series.add(tick, figures(self.rates, self.topics, [awaited[name] for name in self.absent if name in awaited]))
            self.ticked_ms = self._clock.wall_ms()

    async def _list_brokers(self, recent: Collection[str]) -> None:
        """Bring the brokers up to date, of which those that have responded recently remain."""
        self._listing.start(NAMESERVERS, self.admin.brokers)
        patience_ms = LISTED_MS if self.brokers else RESPONSE_MS
        found = (await self._listing.responses((NAMESERVERS,), patience_ms=patience_ms))[NAMESERVERS]
        if not isinstance(found, LockstepError):
            self.brokers = {name: broker for name, broker in self.brokers.items() if name in recent} | by_name(found)
            self.problem = None
        elif NAMESERVERS not in self._listing or not self.brokers:  # else it may still respond
            self.problem = str(found)

    def _absence(self, name: str, error: LockstepError) -> Absence:
        why = Why.SILENT if self.brokers[name].registered else Why.GONE
        return Absence(why, str(error), self._answers.wall_ms(name))

    async def _ask(self, broker: BrokerAddress) -> Overview:
        """Return the broker's figures. Its events are added to the history."""
        found = await self.admin.overview(broker)
        if found.status.broker_name != broker.name:
            raise RemoteProtocolError(f"{found.status.broker_name} responds at its address")
        with suppress(BrokerError):  # the figures count without the events, which the next look requests again
            await self.follow(broker)
        return found

    async def follow(self, broker: BrokerAddress) -> None:
        """Add the broker's new events to the history, all those up to now. Raise what the request raises."""
        async with self._following.setdefault(broker.name, asyncio.Lock()):
            more = True
            while more:
                sent_ms = self._clock.wall_ms()
                reply = await self.admin.group_events_after(broker, *self.events.after(broker.name))
                more = self.events.add(broker.name, reply, (sent_ms, self._clock.wall_ms()))


def figures(found: ClusterRates, topics: Iterable[TopicRates], awaited: Collection[Overview] = ()) -> Iterator[tuple[str, float | None]]:
    """Yield the figures that have a series, the most important first.

    `awaited`: the last figures of brokers that sums wait for. Sums that include such a broker are not known.
    """
    if found.brokers:
        yield "in", None if awaited else found.total(lambda each: each.stored_s)
        yield "out", None if awaited else found.total(lambda each: each.given_s)
        yield "lag", None if awaited else found.total(lambda each: each.lag)
        yield "moves", None if awaited else found.grants_min
    for broker in found.brokers:
        yield f"broker/{broker.broker}/in", broker.stored_s
        yield f"broker/{broker.broker}/out", broker.given_s
    groups_there = {each.group for overview in awaited for each in overview.groups}
    for group in found.groups:  # the one with the largest lag first
        whole = group.group not in groups_there
        yield f"group/{group.group}/lag", group.lag if whole else None
        yield f"group/{group.group}/oldest", group.oldest_ms if whole else None
        yield f"group/{group.group}/out", group.given_s if whole else None
    topics_there = {each.topic for overview in awaited for each in overview.topics}
    for topic in sorted(topics, key=lambda each: -(each.stored_s or 0)):
        yield f"topic/{topic.topic}/in", topic.stored_s if topic.topic not in topics_there else None
