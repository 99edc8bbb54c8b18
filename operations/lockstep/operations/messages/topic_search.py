"""Find messages of a topic by time, tag, sharding key or text: the newest first, at most a given number, also of very many queues."""

import asyncio
from dataclasses import dataclass
from typing import TypeVar

from lockstep.operations.admin_client import AdminClient, by_name, gather_results, within_patience, without_address
from lockstep.operations.messages.find import Criteria, Found
from lockstep.operations.messages.newest_first import MessagePosition, NewestFirst, Rest
from lockstep.operations.messages.queue_reader import Pick, QueueReader
from lockstep.protocol.bodies import BrokerAddress
from lockstep.protocol.errors import ConfigError, LockstepError, RequestTimeoutError
from lockstep.protocol.headers.offsets import TIMESTAMP_MAX
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.tags import TagFilter
from lockstep.protocol.topics.queue import MessageQueue

T = TypeVar("T")

READS_MAX = 16
"""Queues that are read at the same time."""


@dataclass(frozen=True, slots=True)
class TopicSearchLimits:
    """After what a search ends early, so that a page can show what was found."""

    seconds: float
    messages: int
    """Messages that were looked at."""
    bytes: int
    """Bytes of messages that brokers have sent."""
    patience_s: float
    """After what a broker that does not respond is left out."""


async def find_in_topic(
    admin: AdminClient,
    found: Found,
    topic: str,
    criteria: Criteria,
    *,
    before: MessagePosition | None = None,
    limits: TopicSearchLimits | None = None,
) -> None:
    """Read the messages of a topic, from the newest of each queue on, or from the first one that is older than `before`.

    `found` has the result, also if the search is cancelled. With `limits` the search may end early, and has only messages that no message
    that was not read can precede, unless some queues were not looked at; `found.older` says where it goes on.

    Raises LocalProtocolError for an invalid tag expression, ConfigError if the topic has no such queue, TopicNotExistError, and
    TransportError if no nameserver responds.
    """
    TagFilter.parse(criteria.tags)
    search = _TopicSearch(admin, found, topic, criteria, before, limits)
    try:
        async with admin.keep_connections():
            await search.run()
    finally:
        search.conclude()


class _TopicSearch:
    def __init__(
        self,
        admin: AdminClient,
        found: Found,
        topic: str,
        criteria: Criteria,
        before: MessagePosition | None,
        limits: TopicSearchLimits | None,
    ) -> None:
        self._admin = admin
        self._found = found
        self._topic = topic
        self._criteria = criteria
        self._before = before
        self._limits = limits
        self._patience_s = None if limits is None else limits.patience_s
        self._order = NewestFirst(found.limit)
        self._brokers: dict[str, BrokerAddress] = {}
        self._bytes = 0
        self._selected = criteria.tags.strip() not in ("", "*") or criteria.sharding_key is not None
        """Whether brokers return only some of the messages that they read."""
        self._finished = False

    async def run(self) -> None:
        """Read until the newest messages are known, or a limit is reached."""
        try:
            async with asyncio.timeout(None if self._limits is None else self._limits.seconds):
                await self._open()
                while rests := self._order.next_rests(READS_MAX):
                    if self._is_spent():
                        self._found.ended_early = True
                        return
                    await asyncio.gather(*map(self._advance, rests))
                self._finished = True
        except RequestTimeoutError:
            raise  # of a nameserver
        except TimeoutError:
            self._found.ended_early = True

    def conclude(self) -> None:
        """Put the result into `found`."""
        found, order = self._found, self._order
        found.messages = order.messages()
        found.unlooked = order.unlooked
        proven, older = order.proven()
        found.cut = order.cut or (self._finished and older is not None)
        found.complete = self._finished and not found.failed
        if self._limits is not None and not found.unlooked:
            found.messages = proven
            found.older = None if older is None or older == self._before else str(older)

    def _is_spent(self) -> bool:
        limits = self._limits
        return limits is not None and (self._found.progress.done >= limits.messages or self._bytes >= limits.bytes)

    async def _open(self) -> None:
        """Add the queues that are searched. A broker that fails is left out from then on."""
        route = await self._admin.route(self._topic)
        queues = [each for each in route.layout.read_queues if self._criteria.has_queue(each.broker_name, each.queue_id)]
        if self._criteria.queue is not None and not queues:
            raise ConfigError(f"topic {self._topic} has no queue {':'.join(map(str, self._criteria.queue))}")
        self._brokers = by_name(route.brokers)
        names = dict.fromkeys(each.broker_name for each in queues)
        self._found.failed.update(without_address(list(names), self._brokers))
        known = [self._brokers[name] for name in names if name in self._brokers]
        results = await gather_results(
            {each.name: within_patience(self._admin.offsets(each, self._topic), self._patience_s) for each in known}
        )
        self._found.failed.update(results.failed)
        for name, ranges in results.values.items():
            held = {each.queue_id: each for each in ranges}
            own = (each for each in queues if each.broker_name == name and each.queue_id in held)
            self._order.open(self._rest(each, held[each.queue_id].min_offset, held[each.queue_id].max_offset) for each in own)

    def _rest(self, queue: MessageQueue, first: int, end: int) -> Rest:
        last = self._criteria.offset_max
        rest = Rest(queue, first, max(first, end if last is None else min(end, last + 1)))
        if self._before is not None:
            rest.newest_ms = self._before.stored_ms
            if (queue.broker_name, queue.queue_id) == (self._before.broker, self._before.queue_id):
                rest.end = max(first, min(rest.end, self._before.offset))
        self._found.progress.update(str(queue), 0, rest.end - rest.first)
        return rest

    async def _advance(self, rest: Rest) -> None:
        name = rest.queue.broker_name
        try:
            if name not in self._found.failed:
                await (self._read_some(rest) if rest.looked else self._look(rest))
        except (LockstepError, OSError) as error:
            self._found.failed[name] = " ".join(str(error).split())
            self._order.drop(name)

    async def _look(self, rest: Rest) -> None:
        """Find the end of a queue, and read its last message: it says how old and how large messages are there."""
        too_late_ms = self._too_late_ms(rest.queue)
        if too_late_ms <= TIMESTAMP_MAX:
            rest.end = max(rest.first, min(rest.end, await self._offset_by_time(rest.queue, too_late_ms)))
            rest.newest_ms = min(rest.newest_ms, too_late_ms - 1)
        if rest.end > rest.first:
            self._take(rest, rest.end - 1, await self._pull(rest.queue, rest.end - 1, rest.end, selected=False))
        rest.looked = True
        if rest.end > rest.first and self._criteria.begin_ms > 0:
            rest.first = min(rest.end, max(rest.first, await self._offset_by_time(rest.queue, self._criteria.begin_ms)))
        self._found.progress.update(str(rest.queue), 0, rest.end - rest.first)

    def _too_late_ms(self, queue: MessageQueue) -> int:
        """Return the first time at which a message of the queue was stored too late."""
        too_late_ms, before = self._criteria.end_ms + 1, self._before
        if before is None or (queue.broker_name, queue.queue_id) == (before.broker, before.queue_id):
            return too_late_ms
        is_earlier = (queue.broker_name, queue.queue_id) < (before.broker, before.queue_id)
        return min(too_late_ms, before.stored_ms + is_earlier)

    async def _offset_by_time(self, queue: MessageQueue, time_ms: int) -> int:
        broker = self._brokers[queue.broker_name]
        return await within_patience(self._admin.offset_by_time(broker, queue.topic, queue.queue_id, time_ms), self._patience_s)

    async def _read_some(self, rest: Rest) -> None:
        """Read the last messages of what is left of a queue, and the first one of them in any case: it says how old what remains is."""
        begin = rest.end - rest.next_count(selected=self._selected)
        messages = await self._pull(rest.queue, begin, rest.end, selected=True)
        if self._selected and (not messages or messages[0].queue_offset > begin):
            messages = [*await self._pull(rest.queue, begin, begin + 1, selected=False), *messages]
        rest.reads += 1
        self._take(rest, begin, messages)

    def _take(self, rest: Rest, begin: int, messages: list[MessageExt]) -> None:
        """Note that the messages of a queue from `begin` on have been read."""
        for message in reversed(messages):
            place = rest.place_of(message)
            rest.newest_ms = place.stored_ms
            rest.record_bytes = max(rest.record_bytes, message.record_bytes)
            if self._criteria.accepts(message):
                self._order.add(place, message)
        if rest.newest_ms < self._criteria.begin_ms:
            rest.first = begin  # the others are older still
        self._found.progress.update(str(rest.queue), rest.end - begin, begin - rest.first)
        rest.end = begin

    async def _pull(self, queue: MessageQueue, begin: int, end: int, *, selected: bool) -> list[MessageExt]:
        """Return the messages with the offsets from `begin` up to `end`, with `selected` only those that the broker finds to match."""
        broker = self._brokers[queue.broker_name]
        pick = Pick(tags=self._criteria.tags, key=self._criteria.sharding_key) if selected else Pick()
        place = queue.topic, queue.queue_id, begin, end
        reader = QueueReader(self._admin, broker, *place, pick, count=end - begin, patience_s=self._patience_s)
        messages: list[MessageExt] = []
        while (page := await reader.next()) is not None:
            self._bytes += len(page.data)
            messages += page.messages
        return messages
