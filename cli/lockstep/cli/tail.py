"""Read the messages of a topic as `lockstep tail` prints them. It uses no group's progress and takes no lock, so it changes nothing."""

import asyncio
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lockstep.cli.options import print_error
from lockstep.operations.admin_client import AdminClient, by_name, gather_results
from lockstep.operations.errors import OperationError, raise_if_incomplete
from lockstep.operations.messages.queue_reader import Pick, QueueReader
from lockstep.operations.targets import Target
from lockstep.protocol.bodies import BrokerAddress, OffsetRange, TopicRoute
from lockstep.protocol.errors import BrokerError, NoPermissionError, RemoteProtocolError, TransportError
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.tags import TagFilter
from lockstep.protocol.topics.queue import MessageQueue
from lockstep.runtime.daemon import Tasks

HOLD_MS = 15_000
"""How long the broker holds a pull that finds no messages. RocketMQ: brokerSuspendMaxTimeMillis."""
REFRESH_S = 10
"""Time between two reads of the route, which may have new queues or broker addresses."""
PAUSE_S = 1
"""After a failed pull."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The messages that are read, and those of them that are shown."""

    start: Target
    """Where each queue is begun."""
    queues: frozenset[tuple[str, int]] = frozenset()
    """The (broker name, queue id) of each queue that is read; empty for all."""
    tags: str = "*"
    """The tag expression that a message must match."""
    key: str | None = None
    """A key or an id (the producer's or the broker's) that a message must have."""
    follow: bool = True
    """Whether reading goes on after the last message that was stored when it began."""


def matches(selection: Selection, tags: TagFilter, message: MessageExt) -> bool:
    """Return whether a message that was read is to be shown. `tags`: the parsed `selection.tags`."""
    if not tags.matches_tag(message.tags):
        return False
    if selection.start.kind == "time" and message.stored_ms < selection.start.value:
        return False  # its broker could not be asked for the offset, so its queue is read from its first message
    key = selection.key
    return key is None or key in message.keys or key.upper() in (message.message_id, message.offset_message_id)


class Tail:
    """Reads every queue of a topic, with one task per queue and one connection per broker."""

    def __init__(self, admin: AdminClient, topic: str, selection: Selection, show: Callable[[MessageExt], None]) -> None:
        self._admin = admin
        self._topic = topic
        self._selection = selection
        self._tags = TagFilter.parse(selection.tags)
        self._show = show
        self._brokers: dict[str, BrokerAddress] = {}
        """By name, as the last route has them."""
        self._queues: dict[MessageQueue, None] = {}
        self._unfinished: dict[MessageQueue, int] = {}
        """Without `follow`: the queues that are not read to their end yet, with that end."""
        self._failing: dict[str, None] = {}
        """Brokers whose failure was printed, and that have not responded since."""
        self._remaining: int | None = None
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks = Tasks(on_failure=self._fail)

    async def run(self, count: int | None) -> None:
        """Show `count` messages, or if it is None all: until cancelled, or without `follow` to the end of each queue.

        Raises:
            TopicNotExistError: The topic does not exist.
            OperationError: The topic has no such queue, or without `follow` a broker does not respond.
        """
        self._remaining = count
        async with self._admin.keep_connections(redial=True):
            try:
                await self._begin()
                if self._selection.follow:
                    self._tasks.spawn(self._watch(), "tail.watch")
                elif not self._unfinished:
                    return
                await self._done
            finally:
                await self._tasks.cancel_all()

    async def _begin(self) -> None:
        """Read the ends of all queues at once, so that every message that is stored from now on is shown."""
        route = await self._admin.route(self._topic)
        self._check_queues(route)
        brokers = by_name(route.brokers)
        results = await gather_results({name: self._admin.offsets(broker, self._topic) for name, broker in brokers.items()})
        held = {MessageQueue(self._topic, name, at.queue_id): at for name, ranges in results.values.items() for at in ranges}
        failed = dict(results.failed)
        starts = await self._starts(brokers, {queue: at for queue, at in held.items() if self._is_selected(queue)}, failed)
        if not self._selection.follow:
            raise_if_incomplete(failed)
            self._unfinished = {queue: held[queue].max_offset for queue, start in starts.items() if start < held[queue].max_offset}
        for name, why in failed.items():
            self._report_failure(name, why)
        self._follow(route, starts)
        ending = "; press Ctrl-C to stop" if self._selection.follow else " to their present ends"
        print(f"lockstep: reading {len(self._queues)} queues of {self._topic}{ending}", file=sys.stderr, flush=True)

    def _check_queues(self, route: TopicRoute) -> None:
        existing = {(queue.broker_name, queue.queue_id) for queue in route.layout.read_queues}
        if missing := self._selection.queues - existing:
            name, number = min(missing)
            raise OperationError(f"{self._topic} has no queue {name}:{number}; run `lockstep topic show {self._topic}` to list the queues")

    def _is_selected(self, queue: MessageQueue) -> bool:
        return not self._selection.queues or (queue.broker_name, queue.queue_id) in self._selection.queues

    async def _starts(
        self, brokers: Mapping[str, BrokerAddress], held: Mapping[MessageQueue, OffsetRange], failed: dict[str, str]
    ) -> dict[MessageQueue, int]:
        """Return the first offset to read of each queue. Brokers that do not respond are added to `failed`."""
        start = self._selection.start
        if start.kind != "time":
            return {queue: {"beginning": at.min_offset, "end": at.max_offset}.get(start.kind, start.value) for queue, at in held.items()}
        found = await gather_results(
            {str(each): self._admin.offset_by_time(brokers[each.broker_name], each.topic, each.queue_id, start.value) for each in held}
        )
        failed.update({each.broker_name: found.failed[str(each)] for each in held if str(each) in found.failed})
        return {each: found.values[str(each)] for each in held if str(each) in found.values}

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                self._follow(await self._admin.route(self._topic), {})
            except (TransportError, BrokerError):
                # Keep reading the known queues: nameservers come back, and pulls from a deleted topic's queues fail with that error.
                continue

    def _follow(self, route: TopicRoute, starts: Mapping[MessageQueue, int]) -> None:
        """Start reading every queue of the route that is not read yet, from its offset in `starts`, else from its first message."""
        self._brokers |= by_name(route.brokers)
        for queue in route.layout.read_queues:
            if queue not in self._queues and queue.broker_name in self._brokers and self._is_selected(queue):
                self._queues[queue] = None
                self._tasks.spawn(self._read(queue, starts.get(queue, 0)), f"tail {queue}")

    async def _read(self, queue: MessageQueue, offset: int) -> None:
        pick = Pick(tags=self._selection.tags)
        place = self._brokers[queue.broker_name], queue.topic, queue.queue_id, offset
        reader = QueueReader(self._admin, *place, pick=pick, hold_ms=HOLD_MS)
        while self._selection.follow or reader.offset < self._unfinished.get(queue, 0):
            reader.broker = self._brokers[queue.broker_name]
            try:
                page = await reader.next()
            except NoPermissionError:
                raise  # it does not pass by waiting
            except (TransportError, BrokerError, RemoteProtocolError) as error:
                self._report_failure(queue.broker_name, str(error))
                await asyncio.sleep(PAUSE_S)
                continue
            self._failing.pop(queue.broker_name, None)
            for message in page.messages if page is not None else ():
                self._show_matching(message)
        if self._unfinished.pop(queue, None) is not None and not self._unfinished and not self._done.done():
            self._done.set_result(None)

    def _show_matching(self, message: MessageExt) -> None:
        if self._done.done() or not matches(self._selection, self._tags, message):
            return
        self._show(message)
        if self._remaining is not None:
            self._remaining -= 1
            if self._remaining <= 0:
                self._done.set_result(None)

    def _report_failure(self, broker: str, why: str) -> None:
        if broker not in self._failing:
            self._failing[broker] = None
            print_error(f"broker {broker}: {why}; retrying every {PAUSE_S} s")

    def _fail(self, error: BaseException) -> None:
        if not self._done.done():
            self._done.set_exception(error)
