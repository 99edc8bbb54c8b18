"""What a client knows of topics and brokers. Pure. RocketMQ: topicRouteTable and brokerAddrTable of MQClientInstance.

Nothing is forgotten because a route shrank: the highest layout of a topic and the last address of a broker stand until better ones come,
so nameservers that are down, restarted empty or behind change nothing for a running client.
"""

from dataclasses import dataclass

from lockstep.protocol.bodies import BrokerAddress, TopicRoute
from lockstep.protocol.queue import LayoutVersion, TopicLayout


@dataclass(frozen=True, slots=True)
class RouteChange:
    """What one answer of a nameserver taught."""

    layout: bool
    """The topic's layout is new or higher."""
    moved: tuple[str, ...]
    """Brokers that are new or have another address, by name."""

    def __bool__(self) -> bool:
        return self.layout or bool(self.moved)


class RouteCache:
    """Highest layout per topic, last address per broker."""

    def __init__(self) -> None:
        self._layouts: dict[str, TopicLayout] = {}
        self._brokers: dict[str, BrokerAddress] = {}
        self._announced: dict[str, tuple[LayoutVersion, int]] = {}
        """Topic → a version that a broker has, and until when (ms) a nameserver is expected to have it."""

    def merge(self, route: TopicRoute) -> RouteChange:
        """Take over what is newer in `route`."""
        return RouteChange(self.adopt(route.layout), self.merge_brokers(route.brokers))

    def adopt(self, layout: TopicLayout) -> bool:
        """Take over the layout if its version is higher than the known one's."""
        known = self._layouts.get(layout.topic)
        if known is not None and layout.version <= known.version:
            return False
        self._layouts[layout.topic] = layout
        return True

    def announce(self, topic: str, version: LayoutVersion, until_ms: int) -> None:
        """A broker has a layout of this version, and may not have stored it yet: only what a nameserver tells is adopted."""
        before = self._announced.get(topic)
        self._announced[topic] = (version if before is None else max(version, before[0])), until_ms

    def awaited(self, now_ms: int) -> list[str]:
        """Topics of which a layout was announced that no nameserver has told yet."""
        for topic, (version, until_ms) in list(self._announced.items()):
            known = self._layouts.get(topic)
            if now_ms >= until_ms or (known is not None and known.version >= version):
                del self._announced[topic]
        return list(self._announced)

    def merge_brokers(self, brokers: tuple[BrokerAddress, ...]) -> tuple[str, ...]:
        """Take over addresses of a term at least as high as the known one; answers whose address changed."""
        moved = []
        for broker in brokers:
            known = self._brokers.get(broker.name)
            if known is not None and (
                broker.term < known.term or (broker.term == known.term and known.registered and not broker.registered)
            ):
                continue
            self._brokers[broker.name] = broker
            if known is None or known.address != broker.address:
                moved.append(broker.name)
        return tuple(sorted(moved))

    def layout(self, topic: str) -> TopicLayout | None:
        """The highest layout known, a deleted one included."""
        return self._layouts.get(topic)

    def address(self, broker_name: str) -> str | None:
        """The last address known, host:port."""
        broker = self._brokers.get(broker_name)
        return None if broker is None else broker.address

    def term(self, broker_name: str) -> int:
        """The highest term heard of; 0: never heard of the broker."""
        broker = self._brokers.get(broker_name)
        return 0 if broker is None else broker.term

    def broker_names(self) -> list[str]:
        """Every broker with an address, sorted by name."""
        return sorted(self._brokers)

    def brokers_of(self, topic: str) -> list[str]:
        """The brokers in the topic's layout, sorted by name, whether or not an address is known."""
        layout = self._layouts.get(topic)
        return [] if layout is None else sorted({entry.broker_name for entry in layout.entries})
