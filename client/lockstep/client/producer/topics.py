"""The topics that a producer has sent to."""

import asyncio

from lockstep.client.broker_link import BrokerLink
from lockstep.client.errors import Outcome, SendTimeoutError
from lockstep.client.features import SENDING, check_brokers
from lockstep.client.producer.expiry import Expiry
from lockstep.client.producer.topic_machine import Shared, TopicMachine
from lockstep.client.topics import create_topic
from lockstep.protocol.errors import LockstepError, RouteNotReadyError, StateError, TopicNotExistError
from lockstep.protocol.queue import TopicLayout
from lockstep.runtime.daemon import Tasks

ROUTE_PAUSE_MS = 100
"""Between two questions to nameservers that have heard of no broker yet."""


class _Waiter:
    """A send that waits until its topic is open."""

    __slots__ = ("_opening", "_topic", "opened")

    def __init__(self, topic: str, opening: "_Opening") -> None:
        self._topic = topic
        self._opening = opening
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(self) -> bool:
        return self.opened.done()

    def expire(self) -> None:
        not_ready = self._opening.not_ready
        if not_ready is not None:
            self.opened.set_exception(RouteNotReadyError(not_ready.remark))
            return
        why = "not sent before its deadline (no nameserver or broker has answered yet where its queues are)"
        self.opened.set_exception(SendTimeoutError(self._topic, Outcome.NOT_STORED, why))


class _Opening:
    """A topic whose route is asked for."""

    __slots__ = ("not_ready", "waiters")

    def __init__(self) -> None:
        self.waiters: list[_Waiter] = []
        self.not_ready: RouteNotReadyError | None = None
        """The nameservers' last answer, where they knew no broker yet."""


class Topics:
    """Opened at their first send; told of links and layouts from then on."""

    __slots__ = ("_closed", "_expiry", "_group", "_opening", "_shared", "_tasks", "open_ones")

    def __init__(self, group: str) -> None:
        self._group = group
        self._shared: Shared | None = None
        self._expiry: Expiry | None = None
        self._closed = False
        self.open_ones: dict[str, TopicMachine] = {}
        """By name. Read directly where a send finds its topic."""
        self._opening: dict[str, _Opening] = {}
        self._tasks = Tasks()

    def begin(self, shared: Shared, expiry: Expiry) -> None:
        """The producer has started."""
        self._shared = shared
        self._expiry = expiry

    def shut(self) -> list[TopicMachine]:
        """The producer closes: no send gets a topic any more. Those that were open: what is in flight goes on."""
        self._closed = True
        leaving = list(self.open_ones.values())
        self.open_ones.clear()
        return leaving

    async def close(self) -> None:
        """Stop looking for routes: sends that wait for one raise StateError."""
        await self._tasks.cancel_all()

    async def open(self, name: str, deadline_ms: int) -> TopicMachine:
        """The first send to a topic: its route, or the topic itself.

        Raises StateError unless the producer runs, SendTimeoutError at the deadline (monotonic ms), and what keeps the topic from being
        opened.
        """
        while (topic := self.open_ones.get(name)) is None:
            if self._shared is None or self._closed or self._expiry is None:
                raise self._state_error()
            opening = self._opening.get(name)
            if opening is None:
                opening = self._opening[name] = _Opening()
                self._tasks.spawn(self._open(self._shared, name, opening), f"producer.open {name}")
            waiter = _Waiter(name, opening)
            opening.waiters.append(waiter)
            self._expiry.add(deadline_ms, waiter)
            await waiter.opened
        return topic

    async def _open(self, shared: Shared, name: str, opening: _Opening) -> None:
        error: Exception = StateError(f"producer {self._group} is closed")
        try:
            layout = await self._find(shared, name, opening)
            if not layout.write_total:
                raise TopicNotExistError(f"topic {name} has no writable queue: see `lockstep topic show {name}`")
            check_brokers(shared.instance, layout, SENDING)
            if not self._closed:
                self.open_ones[name] = TopicMachine(shared, layout)
        except LockstepError as caught:
            error = caught
        finally:
            del self._opening[name]
            for waiter in opening.waiters:
                if waiter.done():
                    continue
                if name in self.open_ones:
                    waiter.opened.set_result(None)
                else:
                    waiter.opened.set_exception(error)

    def _state_error(self) -> StateError:
        return StateError(f"producer {self._group} is {'closed' if self._closed else 'not started: use `async with`, or await start()'}")

    async def _find(self, shared: Shared, name: str, opening: _Opening) -> TopicLayout:
        """Its layout. A nameserver that has just been started hears of its brokers within a second: ask it again while a send waits."""
        while True:
            try:
                return await self._find_or_create(shared, name)
            except RouteNotReadyError as error:
                opening.not_ready = error
                if all(waiter.done() for waiter in opening.waiters):
                    raise
                await asyncio.sleep(ROUTE_PAUSE_MS / 1000)

    async def _find_or_create(self, shared: Shared, name: str) -> TopicLayout:
        layout = await shared.instance.watch.route(name)
        if layout is not None:
            return layout
        if not shared.config.auto_create_topics:
            raise TopicNotExistError(f"topic {name} does not exist: create it with `lockstep topic create {name}`")
        return await create_topic(shared.instance, name, shared.config.topic_queue_count, auto=True)

    def link_changed(self, link: BrokerLink) -> None:
        for name, topic in list(self.open_ones.items()):
            if not topic.link_changed(link):
                del self.open_ones[name]

    def layout_changed(self, layout: TopicLayout) -> None:
        topic = self.open_ones.get(layout.topic)
        if topic is not None:
            if not layout.write_total:
                del self.open_ones[layout.topic]
            topic.adopt(layout)
