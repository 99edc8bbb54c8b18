"""Keeps a client's routes up to date: requests the routes of the topics in use. RocketMQ: updateTopicRouteInfoFromNameServer and its
timer."""

import asyncio
from collections.abc import Callable, Collection, Container, Iterable

from lockstep.client.cluster_client import ClusterClient
from lockstep.client.config import ClientConfig
from lockstep.client.route_cache import RouteCache, RouteDifference
from lockstep.protocol.bodies import TopicRoute
from lockstep.protocol.errors import BrokerError, LockstepError, RemoteProtocolError, TopicNotExistError, TransportError
from lockstep.protocol.topics.queue import LayoutVersion, TopicLayout
from lockstep.runtime.clock import Clock
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.waiting import is_set_within

log = get_logger("lockstep.client")


class RouteWatch:
    """Requests the routes of the watched topics every 30 s; every second while a layout or an address is expected and missing."""

    def __init__(
        self,
        known: RouteCache,
        cluster: ClusterClient,
        config: ClientConfig,
        clock: Clock,
        *,
        learned: Callable[[TopicLayout, RouteDifference], None],
    ) -> None:
        self._known = known
        self._cluster = cluster
        self._config = config
        self._clock = clock
        self._learned = learned
        """Called with each response."""
        self._topics: dict[str, None] = {}
        self._asked_ms: int | None = None
        self._wanted = asyncio.Event()
        self._all_wanted = False

    async def route(self, topic: str, *, refresh: bool = False) -> TopicLayout | None:
        """Return the topic's highest known layout, or None if the topic does not exist now. Request it if it is unknown or `refresh` is
        set.

        The topic is watched from then on: its route is requested every 30 s, and its brokers are linked.

        Raises:
            TransportError: No nameserver responds, and the layout is unknown.
        """
        self._topics.setdefault(topic)
        known = self._known.layout(topic)
        if known is None or refresh:
            try:
                self._learn(await self._cluster.route(topic, deleted=True))
            except TopicNotExistError:
                if known is None:
                    return None
            except (TransportError, BrokerError, RemoteProtocolError):
                if known is None:
                    raise
        layout = self._known.layout(topic)
        return None if layout is None or layout.deleted else layout

    def adopt(self, route: TopicRoute) -> None:
        """Adopt the route of a topic that was just created, and watch the topic."""
        self._topics.setdefault(route.layout.topic)
        self._learn(route)

    def refresh_soon(self) -> None:
        """Request the watched routes again at once, but at most once per second."""
        self._all_wanted = True
        self._wanted.set()

    def expect(self, topic: str, version: LayoutVersion) -> None:
        """Request the topic's route until a nameserver has this layout, which a broker has already: at once, then every second."""
        if topic not in self._topics:
            return
        now_ms = self._clock.monotonic_ms()
        self._known.announce(topic, version, now_ms + self._config.route_interval_ms)
        if self._known.awaited(now_ms):
            self._wanted.set()

    def broker_names(self) -> list[str]:
        """Return the brokers in the watched topics' layouts, whether or not their addresses are known."""
        return list(dict.fromkeys(name for topic in self._topics for name in self._known.brokers_of(topic)))

    def unlinked(self, topic: str, moved: Collection[str], linked: Container[str]) -> list[str]:
        """Return the brokers of watched topics with a known address that are not among `linked`, after a response for `topic`.

        Only those that the response can have changed are checked: the topic's own brokers, and the other topics' if addresses have `moved`.
        """
        names = self.broker_names() if any(name not in linked for name in moved) else self._known.brokers_of(topic)
        return [name for name in names if name not in linked and self._known.address(name) is not None]

    async def run(self) -> None:
        """Request routes as long as the client runs."""
        config, clock = self._config, self._clock
        all_asked_ms = clock.monotonic_ms()
        while True:
            due_ms = all_asked_ms + (config.route_refresh_spacing_ms if self._address_missing() else config.route_interval_ms)
            wait_ms = due_ms - clock.monotonic_ms()
            if self._known.awaited(clock.monotonic_ms()):
                wait_ms = min(wait_ms, config.route_refresh_spacing_ms)
            await is_set_within(self._wanted, max(0, wait_ms) / 1000)
            if self._asked_ms is not None:
                wait_ms = self._asked_ms + config.route_refresh_spacing_ms - clock.monotonic_ms()
                if wait_ms > 0:
                    await asyncio.sleep(wait_ms / 1000)
            self._wanted.clear()
            self._asked_ms = now_ms = clock.monotonic_ms()
            if self._all_wanted or now_ms >= due_ms:
                self._all_wanted, all_asked_ms = False, now_ms
                await self._refresh(list(self._topics))
            else:
                await self._refresh(self._known.awaited(now_ms))

    async def _refresh(self, topics: Iterable[str]) -> None:
        for topic in topics:
            try:
                self._learn(await self._cluster.route(topic, deleted=True))
            except TopicNotExistError:
                continue
            except LockstepError as error:
                # No nameserver responds, so the requests for the other topics would fail too.
                log.warning("routes.failed", topic=topic, error=str(error))
                return

    def _learn(self, route: TopicRoute) -> None:
        change = self._known.merge(route)
        self._learned(route.layout, change)
        if any(self._known.address(name) is None for name in self._known.brokers_of(route.layout.topic)):
            self.refresh_soon()

    def _address_missing(self) -> bool:
        """Return whether the address of a broker is missing. A nameserver that has just started knows layouts before it knows all
        addresses."""
        return any(self._known.address(name) is None for name in self.broker_names())
