"""The topics and brokers that a client knows. Pure. RocketMQ: topicRouteTable and brokerAddrTable of MQClientInstance.

Nothing is forgotten because a route became smaller: the highest layout of a topic and the last address of a broker remain until newer ones
come. So nameservers that are down, out of date or restarted without state change nothing for a running client. The term of a broker never
falls, whether a nameserver or the broker itself has named it (ordering.md 1.10).
"""

from dataclasses import dataclass, replace

from lockstep.protocol.bodies import BrokerAddress, TopicRoute
from lockstep.protocol.topics.queue import LayoutVersion, TopicLayout


@dataclass(frozen=True, slots=True)
class RouteDifference:
    """The changes that a nameserver's response made."""

    layout: bool
    """The topic's layout is new or higher."""
    moved: tuple[str, ...]
    """The names of brokers that are new, or have another address or a higher term."""

    def __bool__(self) -> bool:
        return self.layout or bool(self.moved)


class RouteCache:
    """The highest layout of each topic, and the last address of each broker."""

    def __init__(self) -> None:
        self._layouts: dict[str, TopicLayout] = {}
        self._brokers: dict[str, BrokerAddress] = {}
        self._terms: dict[str, int] = {}
        """Broker name → the highest term that the client has heard of."""
        self._announced: dict[str, tuple[LayoutVersion, int]] = {}
        """By topic: a version that a broker has, and the time (ms) until which a nameserver is expected to have it."""

    def merge(self, route: TopicRoute) -> RouteDifference:
        """Adopt the newer parts of `route`."""
        return RouteDifference(self.adopt(route.layout), self.merge_brokers(route.brokers))

    def adopt(self, layout: TopicLayout) -> bool:
        """Adopt the layout if its version is higher than the known one."""
        known = self._layouts.get(layout.topic)
        if known is not None and layout.version <= known.version:
            return False
        self._layouts[layout.topic] = layout
        return True

    def announce(self, topic: str, version: LayoutVersion, until_ms: int) -> None:
        """Record that a broker has a layout of this version. It may not have stored it yet, so only a nameserver's layout is adopted."""
        before = self._announced.get(topic)
        self._announced[topic] = (version if before is None else max(version, before[0])), until_ms

    def awaited(self, now_ms: int) -> list[str]:
        """Return the topics with an announced layout that no nameserver has returned yet."""
        for topic, (version, until_ms) in list(self._announced.items()):
            known = self._layouts.get(topic)
            if now_ms >= until_ms or (known is not None and known.version >= version):
                del self._announced[topic]
        return list(self._announced)

    def merge_brokers(self, brokers: tuple[BrokerAddress, ...]) -> tuple[str, ...]:
        """Adopt addresses of a term at least as high as the known one. Return the brokers with a changed address or a higher term."""
        moved = []
        for broker in brokers:
            known, term = self._brokers.get(broker.name), self.term(broker.name)
            if not self.hear(broker.name, broker.term):
                continue
            if known is not None and known.term == broker.term and known.registered and not broker.registered:
                continue
            self._brokers[broker.name] = broker
            if known is None or known.address != broker.address or broker.term > term:
                moved.append(broker.name)
        return tuple(sorted(moved))

    def hear(self, broker_name: str, term: int) -> bool:
        """Record a term of the broker. Return False if a higher one is known: whoever has this term is not the broker any more."""
        if term < self.term(broker_name):
            return False
        self._terms[broker_name] = term
        return True

    def found(self, broker_name: str, address: str, term: int) -> None:
        """Record that the broker answers under this term at an address, which may be that of a copy."""
        known = self._brokers.get(broker_name)
        if known is not None and address != known.address:
            others = tuple(each for each in known.addresses if each != address)
            self._brokers[broker_name] = replace(known, address=address, registered=True, term=term, replicas=others)

    def layout(self, topic: str) -> TopicLayout | None:
        """Return the highest known layout, also that of a deleted topic."""
        return self._layouts.get(topic)

    def address(self, broker_name: str) -> str | None:
        """Return the last known address, host:port."""
        broker = self._brokers.get(broker_name)
        return None if broker is None else broker.address

    def addresses(self, broker_name: str) -> tuple[str, ...]:
        """Return the last known address of the broker, and those of its copies; none if it is unknown."""
        broker = self._brokers.get(broker_name)
        return () if broker is None else broker.addresses

    def cluster_of(self, topic: str) -> str | None:
        """Return the name of the cluster of the topic's brokers, or None if no address of one is known."""
        known = [self._brokers[name] for name in self.brokers_of(topic) if name in self._brokers]
        return known[0].cluster if known else None

    def term(self, broker_name: str) -> int:
        """Return the highest known term; 0 if the broker is unknown."""
        return self._terms.get(broker_name, 0)

    def broker_names(self) -> list[str]:
        """Return every broker with an address, sorted by name."""
        return sorted(self._brokers)

    def brokers_of(self, topic: str) -> list[str]:
        """Return the brokers that have queues in the topic's layout, sorted by name, whether or not their addresses are known."""
        layout = self._layouts.get(topic)
        return [] if layout is None else list(layout.brokers)
