"""Count each topic to one broker, and decide whether a broker may bring one more. Pure: time is `now_ms`.

A topic counts to the broker that brought it first. A broker may bring topics while fewer count to it than are free: it leaves as much room
as it takes, so one broker alone gets half, and the next one half of the rest. No topic is removed to make room for another broker's.

A topic moves to the next broker that registers with it when its own broker is not registered. It is forgotten when its broker is
forgotten and no other broker has registered with it for `SILENCE_MS`, in which every broker registers four times.
"""

from collections.abc import Collection, Iterable

LAYOUTS_MAX = 262_144
"""The maximum number of topics, deleted ones included, that a nameserver keeps: twice what a broker has (65,536 topics, as many
deleted)."""
SILENCE_MS = 120_000
"""Brokers register every 30 s, so four registrations are missing after this time. RocketMQ's value."""


class TopicQuota:
    """The topics per broker of a RouteTable. It has the same topics as the table's layouts."""

    def __init__(self) -> None:
        self._broker_of: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        """Broker name → the number of topics that count to it, if any."""
        self._away: dict[str, int] = {}
        """Broker name without a record → when that was first seen."""

    def has_room(self, name: str) -> bool:
        """Return whether this broker may bring one more topic."""
        return self._counts.get(name, 0) < LAYOUTS_MAX - len(self._broker_of)

    def count(self, topic: str, name: str, registered: Collection[str]) -> None:
        """Record that the broker has the topic. The topic counts to it, unless it counts to another registered broker."""
        before = self._broker_of.get(topic)
        if before == name or before in registered:
            return
        if before is not None:
            self._decrement(before)
        self._broker_of[topic] = name
        self._counts[name] = self._counts.get(name, 0) + 1

    def forget(self, topics: Iterable[str]) -> None:
        """Remove these topics."""
        for topic in topics:
            self._decrement(self._broker_of.pop(topic))

    def expire(self, known: Collection[str], now_ms: int) -> list[str]:
        """Return the topics to forget. `known` are the brokers that have a record."""
        self._away = {name: self._away.get(name, now_ms) for name in self._counts if name not in known}
        due = {name for name, since_ms in self._away.items() if now_ms - since_ms >= SILENCE_MS}
        return [topic for topic, name in self._broker_of.items() if name in due] if due else []

    def exclude_pause(self, pause_ms: int, now_ms: int) -> None:
        """Exclude a time in which this process was suspended or blocked and read no registration."""
        self._away = {name: min(since_ms + pause_ms, now_ms) for name, since_ms in self._away.items()}

    def _decrement(self, name: str) -> None:
        self._counts[name] -= 1
        if not self._counts[name]:
            del self._counts[name]
