"""Which broker each topic counts to, and whether a nameserver takes one more from a broker. Pure: time is `now_ms`.

A topic counts to the broker that brought it first. A broker may bring topics while fewer count to it than are free: it leaves as much room
as it takes, so one alone gets half, and the next one half of what is left. No topic is taken from a broker to make room for another's.

A topic moves to the next broker that registers with it when the one that it counts to is not registered. It is forgotten when its broker is
forgotten and no other has registered with it for `SILENCE_MS`, in which every broker registers four times.
"""

from collections.abc import Collection, Iterable

LAYOUTS_MAX = 262_144
"""Topics, deleted ones included, that a nameserver keeps: twice what a broker has (65,536 topics, as many deleted ones)."""
SILENCE_MS = 120_000
"""A broker registers every 30 s: four in a row are missing. RocketMQ's figure."""


class TopicQuota:
    """One for each RouteTable: it has the same topics as its layouts."""

    def __init__(self) -> None:
        self._broker_of: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        """Broker name → how many topics count to it; none at 0."""
        self._away: dict[str, int] = {}
        """Broker name without a record → when that was seen first."""

    def fits(self, name: str) -> bool:
        """Whether this broker may bring one more topic."""
        return self._counts.get(name, 0) < LAYOUTS_MAX - len(self._broker_of)

    def count(self, topic: str, name: str, registered: Collection[str]) -> None:
        """The broker has the topic. It counts to it, unless it counts to a broker that is registered."""
        before = self._broker_of.get(topic)
        if before == name or before in registered:
            return
        if before is not None:
            self._less(before)
        self._broker_of[topic] = name
        self._counts[name] = self._counts.get(name, 0) + 1

    def forget(self, topics: Iterable[str]) -> None:
        """These topics are not kept any more."""
        for topic in topics:
            self._less(self._broker_of.pop(topic))

    def expire(self, known: Collection[str], now_ms: int) -> list[str]:
        """Returns the topics to forget. `known`: the brokers of which there is a record."""
        self._away = {name: self._away.get(name, now_ms) for name in self._counts if name not in known}
        due = {name for name, since_ms in self._away.items() if now_ms - since_ms >= SILENCE_MS}
        return [topic for topic, name in self._broker_of.items() if name in due] if due else []

    def stood_still(self, pause_ms: int, now_ms: int) -> None:
        """This process stood still for `pause_ms` and read no registration in that time."""
        self._away = {name: min(since_ms + pause_ms, now_ms) for name, since_ms in self._away.items()}

    def _less(self, name: str) -> None:
        self._counts[name] -= 1
        if not self._counts[name]:
            del self._counts[name]
