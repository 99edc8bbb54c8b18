"""Find messages by key or id in the logs of all brokers, or by time in a topic: the newest first, at most a given number."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from lockstep.admin.client import AdminClient, by_name, gather_results
from lockstep.admin.search_progress import SearchProgress
from lockstep.protocol.bodies import BrokerAddress
from lockstep.protocol.errors import LockstepError, RemoteProtocolError
from lockstep.protocol.headers.offsets import TIMESTAMP_MAX, QueryMessageHeader
from lockstep.protocol.ids import is_unique_key, unique_key_time
from lockstep.protocol.message import MessageExt, decode_messages
from lockstep.protocol.queue import MessageQueue
from lockstep.protocol.tags import TagFilter

BEFORE_BIRTH_MS = 1_000
AFTER_BIRTH_MS = 600_000
"""A message is stored soon after its producer made its id, by a clock that may be ahead."""
PAGE_COUNT = 64
PAGE_COUNT_MAX = 256
"""Messages of one queue that are read at a time: more if few of them pass."""


@dataclass(frozen=True, slots=True)
class Criteria:
    """What a message must have to be shown."""

    topic: str | None = None
    begin_ms: int = 0
    end_ms: int = TIMESTAMP_MAX
    """The store times, both included."""
    tags: str = "*"
    sharding_key: str | None = None
    body: str | None = None
    """A text that is in the body."""

    def accepts(self, message: MessageExt) -> bool:
        if not self.begin_ms <= message.stored_ms <= self.end_ms or not TagFilter.parse(self.tags).matches_tag(message.tags):
            return False
        if self.sharding_key is not None and message.sharding_key != self.sharding_key:
            return False
        if self.body is None:
            return True
        try:
            return self.body.encode() in bytes(message.body)
        except RemoteProtocolError:
            return False  # it can't be decompressed


@dataclass(slots=True)
class Found:
    """The result of a search, also of one that was interrupted."""

    limit: int
    progress: SearchProgress
    messages: list[MessageExt] = field(default_factory=list)
    """The newest first."""
    cut: bool = False
    """Whether the limit was reached: older messages may match."""
    complete: bool = False
    """Whether everything was searched, or the limit was reached."""
    unread_bytes: int = 0
    """Bytes that the disks of the brokers could not read."""
    failed: dict[str, str] = field(default_factory=dict)
    """Broker → why its search has ended."""

    def add(self, message: MessageExt) -> None:
        self.messages.append(message)
        self.messages.sort(key=lambda each: -each.stored_ms)
        if len(self.messages) > self.limit:
            self.messages.pop()
            self.cut = True


async def find_key(
    admin: AdminClient,
    found: Found,
    key: str,
    criteria: Criteria,
    *,
    unique: bool = False,
    brokers: Sequence[BrokerAddress] | None = None,
) -> None:
    """Search the logs of `brokers`, or of all, for a key, or with `unique` for the id that a producer gave.

    Messages that wait for their delay or their next retry are found too, by the topic to which they go (waiting.py). What is found is added
    to `found`, also if the search is cancelled. Raises TransportError if no nameserver responds.
    """
    header = QueryMessageHeader(
        criteria.topic, key, begin_timestamp=criteria.begin_ms, end_timestamp=criteria.end_ms, unique_key=unique, waiting=True
    )
    async with admin.keep_connections():
        if brokers is None:
            brokers = await admin.brokers()
        results = await gather_results({each.name: _search_broker(admin, each, found, header, criteria) for each in brokers})
    found.failed.update(results.failed)
    found.complete = not found.failed


async def find_id(
    admin: AdminClient,
    found: Found,
    message_id: str,
    criteria: Criteria,
    *,
    everywhere: bool = False,
    brokers: Sequence[BrokerAddress] | None = None,
) -> None:
    """Search for the id that a producer gave a message: first near the time that it contains, and if nothing is there, everywhere.

    With `everywhere`, copies that were stored later are found too: retries, dead letters, replays.
    """
    if is_unique_key(message_id):
        message_id = message_id.upper()
        born_ms = unique_key_time(message_id, admin.host.clock.wall_ms())
        if born_ms is not None and not everywhere:
            near = replace(
                criteria,
                begin_ms=max(criteria.begin_ms, born_ms - BEFORE_BIRTH_MS),
                end_ms=min(criteria.end_ms, born_ms + AFTER_BIRTH_MS),
            )
            await find_key(admin, found, message_id, near, unique=True, brokers=brokers)
            if found.messages:
                return
            found.failed.clear()
    await find_key(admin, found, message_id, criteria, unique=True, brokers=brokers)


async def _search_broker(admin: AdminClient, broker: BrokerAddress, found: Found, header: QueryMessageHeader, criteria: Criteria) -> None:
    count = 0
    while True:
        reply, data = await admin.query(broker, header)
        for message in decode_messages(data, broker.name):
            if count < found.limit and criteria.accepts(message):
                found.add(message)
                count += 1
        found.unread_bytes += reply.unread_bytes or 0
        found.progress.update(broker.name, reply.scanned_bytes or 0, reply.remaining_bytes or 0)
        if reply.next_cursor is None:
            return
        if count >= found.limit:
            found.cut = True
            return
        header = replace(header, cursor=reply.next_cursor)


# -- a time range of a topic -----------------------------------------------------------------------


class _QueueEnd:
    """The part of a queue that is not read yet, and what was read of it and has passed. It is read from the end backwards."""

    def __init__(self, admin: AdminClient, broker: BrokerAddress, queue: MessageQueue, first: int, end: int) -> None:
        self._admin = admin
        self.broker = broker
        self._queue = queue
        self._first = first
        self._end = end
        self._page = PAGE_COUNT
        self._passed: list[MessageExt] = []

    async def newest(self, criteria: Criteria, progress: SearchProgress) -> MessageExt | None:
        """Return the newest message that passes, or None if none is left."""
        while not self._passed and self._end > self._first:
            begin = max(self._first, self._end - self._page)
            self._passed = await self._read(begin, criteria)
            progress.update(str(self._queue), self._end - begin, begin - self._first)
            self._end = begin
            self._page = PAGE_COUNT if self._passed else min(2 * self._page, PAGE_COUNT_MAX)
        return self._passed[-1] if self._passed else None

    def take(self) -> None:
        """Remove the message that `newest` returned."""
        self._passed.pop()

    async def _read(self, begin: int, criteria: Criteria) -> list[MessageExt]:
        passed: list[MessageExt] = []
        queue, offset = self._queue, begin
        while offset < self._end:
            data, following = await self._admin.pull(
                self.broker, queue.topic, queue.queue_id, offset, self._end - offset, tags=criteria.tags, key=criteria.sharding_key
            )
            messages = decode_messages(data, queue.broker_name)
            passed += [each for each in messages if each.queue_offset < self._end and criteria.accepts(each)]
            if following <= offset:
                break
            offset = following
        return passed


async def find_in_topic(admin: AdminClient, found: Found, topic: str, criteria: Criteria) -> None:
    """Read the messages of a topic that were stored in a range of time, from the newest of each queue on.

    Raises TopicNotExistError, and TransportError if no nameserver responds.
    """
    async with admin.keep_connections():
        route = await admin.route(topic)
        brokers = by_name(route.brokers)
        queues = route.layout.read_queues
        known = [each for each in queues if each.broker_name in brokers]
        found.failed.update({each.broker_name: "no address is known" for each in queues if each.broker_name not in brokers})
        parts = await gather_results({str(each): _bounds(admin, brokers[each.broker_name], each, criteria) for each in known})
        found.failed.update({each.broker_name: parts.failed[str(each)] for each in known if str(each) in parts.failed})
        ends = [parts.values[str(each)] for each in known if str(each) in parts.values]
        await _merge(ends, found, criteria)
    found.complete = not found.failed


async def _bounds(admin: AdminClient, broker: BrokerAddress, queue: MessageQueue, criteria: Criteria) -> _QueueEnd:
    held = next((each for each in await admin.offsets(broker, queue.topic) if each.queue_id == queue.queue_id), None)
    if held is None:
        return _QueueEnd(admin, broker, queue, 0, 0)  # the topic was altered just now
    first, end = held.min_offset, held.max_offset
    if criteria.begin_ms > 0:
        first = max(first, await admin.offset_by_time(broker, queue.topic, queue.queue_id, criteria.begin_ms))
    if criteria.end_ms < TIMESTAMP_MAX:
        end = min(end, await admin.offset_by_time(broker, queue.topic, queue.queue_id, criteria.end_ms + 1))
    return _QueueEnd(admin, broker, queue, first, max(first, end))


async def _merge(ends: Sequence[_QueueEnd], found: Found, criteria: Criteria) -> None:
    """Add the messages of all queues, the newest first. A broker that fails is left out from then on."""
    newest: dict[_QueueEnd, MessageExt] = {}

    async def look(end: _QueueEnd) -> None:
        newest.pop(end, None)
        if end.broker.name not in found.failed:
            try:
                message = await end.newest(criteria, found.progress)
            except (LockstepError, OSError) as error:
                found.failed[end.broker.name] = " ".join(str(error).split())
            else:
                if message is not None:
                    newest[end] = message

    for end in ends:
        await look(end)
    while newest:
        end, message = max(newest.items(), key=_stored_ms)
        if len(found.messages) == found.limit:
            found.cut = True
            return
        found.messages.append(message)
        end.take()
        await look(end)


def _stored_ms(item: tuple[_QueueEnd, MessageExt]) -> int:
    return item[1].stored_ms
