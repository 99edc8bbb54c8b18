"""The messages of a topic as they come, for several who look at once: one reader, which reads a limited part, for each client, topic and
filter.

It begins at the end of each queue. Every ROUND_S it requests the bounds of the queues, and of what is new it reads at most READ_MAX
messages, or FILTERED_MAX with a filter (tail_plan.py). It uses no group's progress and takes no lock, so it changes nothing.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from lockstep.operations.admin_client import AdminClient, by_name, without_address
from lockstep.operations.messages.find import Criteria
from lockstep.operations.messages.queue_reader import Pick, QueueReader
from lockstep.operations.watch.requests import Requests
from lockstep.operations.watch.tail_plan import SHOWN_MAX, Part, ReadBatch, TailPlan, merged
from lockstep.protocol.bodies import BrokerAddress, OffsetRange, TopicRoute
from lockstep.protocol.errors import LockstepError, TopicNotExistError
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.tags import TagFilter
from lockstep.protocol.topics.queue import MessageQueue
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.waiting import is_set_within

T = TypeVar("T")

ROUND_S = 1.0
PATIENCE_MS = 500
"""How long a round waits for brokers, once for bounds and once for messages. What comes later belongs to the next round."""
ROUTE_MS = 5_000
"""Time between two reads of the route, which may have new queues or brokers."""
READ_MAX = SHOWN_MAX
FILTERED_MAX = 256
"""Messages that are read in one round."""
ROWS_MAX = 100
KEPT_MS = 10_000
"""A reader ends this long after the last look."""
READERS_MAX = 8
FIRST_S = 3.0
"""How long the first look waits for the topic."""
NAMESERVERS = "nameservers"


@dataclass(frozen=True, slots=True)
class Reading:
    """The messages that were read at one broker, up to a failure."""

    batches: Sequence[ReadBatch[MessageExt]]
    error: LockstepError | None


class LiveTail(Generic[T]):
    """One reader. `row` makes of a message what is kept of it."""

    def __init__(self, admin: AdminClient, tasks: Tasks, topic: str, criteria: Criteria, row: Callable[[MessageExt], T]) -> None:
        """Raise LocalProtocolError for an invalid tag expression."""
        TagFilter.parse(criteria.tags)
        self.began_ms = admin.host.clock.wall_ms()
        self.exists: bool | None = None
        """Whether the topic exists; None until a nameserver has responded."""
        self.problem: str | None = None
        """Why the nameservers could not be asked."""
        self.failed: Mapping[str, str] = {}
        """Broker → why its messages are missing."""
        self.looked_ms = admin.host.clock.monotonic_ms()
        """The time of the last look, by the monotonic clock."""
        self.first_round = asyncio.Event()
        self._admin = admin
        self._clock = admin.host.clock
        self._topic = topic
        self._criteria = criteria
        self._count_max = READ_MAX if criteria == Criteria() else FILTERED_MAX
        self._row = row
        self._route: TopicRoute | None = None
        self._queues: dict[str, list[MessageQueue]] = {}
        """Broker → its readable queues."""
        self._route_due_ms = 0
        self._plan: TailPlan[MessageExt] = TailPlan(())
        self._rows: list[tuple[int, T]] = []
        self._routes: Requests[TopicRoute] = Requests(tasks, PATIENCE_MS)
        self._bounds: Requests[Mapping[MessageQueue, OffsetRange]] = Requests(tasks, PATIENCE_MS)
        self._readings: Requests[Reading] = Requests(tasks, PATIENCE_MS)

    @property
    def rows(self) -> list[T]:
        """Return the last rows, the newest first."""
        return [row for _, row in reversed(self._rows)]

    @property
    def missing(self) -> bool:
        """Return whether the topic does not exist, and has not since the first look."""
        return self.exists is False and self._route is None

    @property
    def passed_over(self) -> int:
        """Return the number of messages that came and were not shown, although they may meet the filter."""
        return self._plan.passed_over

    @property
    def unmatched(self) -> int:
        """Return the number of messages that were read and are not shown, because they do not meet the filter or are damaged."""
        return self._plan.unmatched

    async def run(self) -> None:
        """Follow the topic until KEPT_MS after the last look, or until it is known that it did not exist at the beginning."""
        try:
            async with self._admin.keep_connections(redial=True):
                while self._clock.monotonic_ms() - self.looked_ms < KEPT_MS and not self.missing:
                    await self.round()
                    self.first_round.set()
                    await asyncio.sleep(ROUND_S)
        finally:
            self.first_round.set()
            for requests in (self._routes, self._bounds, self._readings):
                await requests.cancel()

    async def round(self) -> None:
        """Read the new messages, up to the limits of a round."""
        await self._look_at_route()
        if self._route is None or not self.exists:
            return
        layout, addresses = self._route.layout, by_name(self._route.brokers)
        idle = {name: broker for name, broker in addresses.items() if name not in self._readings}
        for name, broker in idle.items():
            self._bounds.start(name, partial(self._read_bounds, broker, self._queues[name]))
        failed = without_address(layout.brokers, addresses)
        ranges: dict[MessageQueue, OffsetRange] = {}
        for name, bounds in (await self._bounds.responses(idle)).items():
            if isinstance(bounds, LockstepError):
                failed[name] = str(bounds)
            elif name in addresses:
                self._plan.look(name, bounds)
                ranges |= bounds
        parts: dict[str, list[Part]] = {}
        for part in self._plan.parts(ranges, self._count_max):
            parts.setdefault(part.queue.broker_name, []).append(part)
        for name, own in parts.items():
            self._readings.start(name, partial(self._read, addresses[name], own))
        batches: list[ReadBatch[MessageExt]] = []
        for name, reading in (await self._readings.responses(parts)).items():
            error = reading if isinstance(reading, LockstepError) else reading.error
            if error is not None:
                failed[name] = str(error)
            if isinstance(reading, Reading):
                batches += reading.batches
        newer = [(at_ms, self._row(message)) for at_ms, message in self._plan.take(batches)]
        self._rows = merged(self._rows, newer, ROWS_MAX)
        self.failed = {name: failed[name] for name in sorted(failed) if name in layout.brokers}

    async def _look_at_route(self) -> None:
        if self._clock.monotonic_ms() >= self._route_due_ms:
            self._route_due_ms = self._clock.monotonic_ms() + ROUTE_MS
            self._routes.start(NAMESERVERS, partial(self._admin.route, self._topic))
        if NAMESERVERS not in self._routes:
            return
        route = (await self._routes.responses([NAMESERVERS]))[NAMESERVERS]
        self.problem = None if isinstance(route, TopicRoute | TopicNotExistError) else str(route)
        if isinstance(route, TopicNotExistError):
            self.exists = False
        elif isinstance(route, TopicRoute):
            if self._route is None:
                self._plan = TailPlan(route.layout.brokers)
            self._route, self.exists = route, True
            self._queues = {broker.name: route.layout.queues_of(broker.name) for broker in route.brokers}

    async def _read_bounds(self, broker: BrokerAddress, queues: Collection[MessageQueue]) -> Mapping[MessageQueue, OffsetRange]:
        """Return the bounds of those of these queues that the broker has."""
        held = {each.queue_id: each for each in await self._admin.offsets(broker, self._topic)}
        return {queue: held[queue.queue_id] for queue in queues if queue.queue_id in held}

    async def _read(self, broker: BrokerAddress, parts: Sequence[Part]) -> Reading:
        """Read parts of queues of one broker, one after the other."""
        batches: list[ReadBatch[MessageExt]] = []
        pick = Pick(tags=self._criteria.tags, key=self._criteria.sharding_key)
        try:
            for part in parts:
                reader = QueueReader(self._admin, broker, self._topic, part.queue.queue_id, part.first, part.end, pick)
                page = await reader.next()
                matching = [] if page is None else [each for each in page.messages if self._criteria.accepts(each)]
                batches.append(ReadBatch(part, reader.offset, matching))
        except LockstepError as error:
            return Reading(batches, error)
        return Reading(batches, None)


class LiveTails(Generic[T]):
    """The readers of all who look."""

    def __init__(self, tasks: Tasks, row: Callable[[MessageExt], T]) -> None:
        self._tasks = tasks
        self._row = row
        self._readers: dict[tuple[AdminClient, str, Criteria], LiveTail[T]] = {}

    def __len__(self) -> int:
        return len(self._readers)

    async def look(self, admin: AdminClient, topic: str, criteria: Criteria) -> LiveTail[T] | None:
        """Return the reader of this client, at once if there is one. The first look begins it and waits for its first round, for at most
        FIRST_S. Return None if there are READERS_MAX others.

        Raise LocalProtocolError for an invalid tag expression.
        """
        key = admin, topic, criteria
        reader = self._readers.get(key)
        if reader is None:
            if len(self._readers) >= READERS_MAX:
                return None
            reader = self._readers[key] = LiveTail(admin, self._tasks, topic, criteria, self._row)
            self._tasks.spawn(self._run(key, reader), f"tail {topic}")
        reader.looked_ms = admin.host.clock.monotonic_ms()
        await is_set_within(reader.first_round, FIRST_S)  # otherwise the page says that nothing is known yet
        return reader

    async def _run(self, key: tuple[AdminClient, str, Criteria], reader: LiveTail[T]) -> None:
        try:
            await reader.run()
        finally:
            del self._readers[key]
