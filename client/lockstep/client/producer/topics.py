"""The topics that a producer has sent to."""

import asyncio

from lockstep.client.features import SENDING, check_brokers
from lockstep.client.producer.topic_sender import Shared, TopicSender
from lockstep.client.topics import create_topic
from lockstep.protocol.errors import LockstepError, RouteNotReady, StateError, TopicNotExist
from lockstep.protocol.queue import TopicLayout

ROUTE_PAUSE_MS = 100
"""Between two questions to nameservers that have heard of no broker yet."""


class Topics:
    """Opened at their first send; told of links and layouts from then on."""

    __slots__ = ("_closed", "_group", "_opening", "_shared", "open_ones")

    def __init__(self, group: str) -> None:
        self._group = group
        self._shared: Shared | None = None
        self._closed = False
        self.open_ones: dict[str, TopicSender] = {}
        """By name. Read directly where a send finds its topic."""
        self._opening: dict[str, asyncio.Future[None]] = {}

    def begin(self, shared: Shared) -> None:
        """The producer has started."""
        self._shared = shared

    def shut(self) -> list[TopicSender]:
        """The producer closes: no send gets a topic any more. Those that were open: what is in flight goes on."""
        self._closed = True
        leaving = list(self.open_ones.values())
        self.open_ones.clear()
        return leaving

    async def open(self, name: str) -> TopicSender:
        """The first send to a topic: its route, or the topic itself. StateError unless the producer runs."""
        shared = self._shared
        if shared is None or self._closed:
            raise StateError(f"producer {self._group} is {'closed' if self._closed else 'not started: use `async with`, or await start()'}")
        while name not in self.open_ones:
            opening = self._opening.get(name)
            if opening is not None:
                await asyncio.shield(opening)
                continue
            self._opening[name] = opening = asyncio.get_running_loop().create_future()
            try:
                layout = await self._find(shared, name)
                if self._closed:
                    raise StateError(f"producer {self._group} is closed")
                if not layout.write_total:
                    raise TopicNotExist(f"topic {name} has no writable queue: see `lockstep topic show {name}`")
                check_brokers(shared.instance, layout, SENDING)
                self.open_ones[name] = TopicSender(shared, layout)
            except LockstepError as error:
                opening.set_exception(error)
                opening.exception()
                raise
            finally:
                del self._opening[name]
                if not opening.done():
                    opening.set_result(None)
        return self.open_ones[name]

    async def _find(self, shared: Shared, name: str) -> TopicLayout:
        """Its layout. A nameserver that has just been started hears of its brokers within a second: it is asked again for a send's time."""
        clock = shared.instance.host.clock
        end_ms = clock.monotonic_ms() + shared.config.send_timeout_ms
        while True:
            try:
                return await self._find_or_create(shared, name)
            except RouteNotReady:
                if clock.monotonic_ms() >= end_ms:
                    raise
                await asyncio.sleep(ROUTE_PAUSE_MS / 1000)

    async def _find_or_create(self, shared: Shared, name: str) -> TopicLayout:
        layout = await shared.instance.watch.route(name)
        if layout is not None:
            return layout
        if not shared.config.auto_create_topics:
            raise TopicNotExist(f"topic {name} does not exist: create it with `lockstep topic create {name}`")
        return await create_topic(shared.instance, name, shared.config.topic_queue_count, auto=True)

    def links_changed(self) -> None:
        for name, topic in list(self.open_ones.items()):
            if not topic.links_changed():
                del self.open_ones[name]

    def layout_changed(self, layout: TopicLayout) -> None:
        topic = self.open_ones.get(layout.topic)
        if topic is not None:
            if not layout.write_total:
                del self.open_ones[layout.topic]
            topic.adopt(layout)
