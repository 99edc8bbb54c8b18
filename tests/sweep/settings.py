"""The settings of one universe, and the default choices from which worlds draw them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

TOPIC = "orders"
RETURNS = "returns"
"""The second topic, which is deleted and created again."""
GROUP = "billing"
CLASSIC = "oldtimers"
"""A group of classic clients only."""
AUDIT = "audit"
"""The second group, in the same processes."""
MAILING = "mailing"
"""The concurrent group, in the same processes."""
NEWS = "news"
"""The broadcasting group, in the same processes."""
READERS = "readers"
"""The group of pull consumers, in the same processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The settings of one universe. Seconds are those of the universe's clock."""

    seed: int
    world: str
    faults: Mapping[str, int]
    """Kind → weight."""
    fault_every_s: float = 2.0
    faults_max: int | None = None
    storm_s: float = 60.0
    checked: tuple[str, ...] | None = None
    """The families of laws that are checked in this world; None for all."""
    brokers: int = 2
    replicas: int = 0
    """Replicas of each broker."""
    operated: bool = False
    """An operator promotes replicas."""
    register: Literal["", "etcd", "witness"] = ""
    """What keeps the register by which the copies elect their master; empty: they have none."""
    nameservers: int = 1
    consumers: int = 3
    producers: int = 2
    queues: int = 4
    """Queues of the topic on each broker."""
    creators: int = 1
    """The number of processes that create the topic at the same time, each with another number of queues."""
    users: bool = False
    """All servers have users, and all programs log in."""
    auto_create: bool = False
    """Brokers create a topic with its first send."""
    topics_max: int = 16_384
    """The limit of topics in the cluster."""
    groups: tuple[str, ...] = (GROUP,)
    classic: int = 0
    """Consumers without a session, in the last of the groups: in GROUP together with native ones, in CLASSIC alone."""
    topics: tuple[str, ...] = (TOPIC,)
    late_groups: tuple[str, ...] = ()
    """The groups that begin within the storm, or at its end: at the end of each queue, or at a time."""
    settle_s: float = 3.0
    """The time from the start of the clients to the first fault."""
    early: bool = False
    """The consumers start before their topic exists, and begin at the end (LAST_OFFSET)."""
    exile: bool = False
    """The first consumer can't reach the first broker, from the start to the calm."""
    drift: float = 0.02
    """The maximum share by which clocks run fast or slow."""

    flush: str = "async"
    flush_interval_ms: int = 500
    grace_ms: int = 3_000
    session_timeout_ms: int = 20_000
    segment_bytes: int = 1 << 20
    snapshot_interval_ms: int = 60_000
    log_bytes_max: int | None = None
    reserve_bytes: int = 0
    state_bytes: int | None = None
    """The longest body of a state record; None if it is limited by the file of the log."""
    tail_bytes: int = 64 << 10
    """Recent bytes of the log in memory, at most one segment."""
    queue_tail_bytes: int = 4 << 10
    """Recent entries of all consume queues in memory."""
    short_writes: bool = False
    cached_reads: bool = True

    send_every_s: float = 0.15
    """The mean time between two sends of one producer."""
    keys: int = 20
    batch_share: float = 0.1
    """The share of sends that are batches."""
    unkeyed_share: float = 0.05
    in_flight_max: int = 10_000
    """The limit of each producer; further sends wait."""
    written_share: float = 0.0
    """The share of sends with `require="written"`, which is less than the broker's flush."""
    tag_b_share: float = 0.0
    """The share of messages with the tag B, which the subscription "A" leaves out."""
    large_share: float = 0.0
    """The share of messages with a body of 4 KiB or more, which is compressed."""

    batch_count: int = 3
    pull_bytes: int = 1 << 20
    """The record bytes that one pull of an ordered group requests."""
    order_by: Literal["queue", "sharding_key"] = "queue"
    """The unit of order of ordered groups."""
    commit: str = "interval"
    allocate: str = "by_broker"
    drain_ms: int = 2_000
    stop_ms: int = 2_000
    threaded: bool = False
    """Plain `def` listeners."""
    manual: bool = False
    """Listeners commit manually."""
    long_share: float = 0.02
    """Calls that take 3 to 12 s."""
    slow_share: float = 0.04
    """Calls that take 0.3 to 2 s."""
    fail_share: float = 0.03
    poison_share: float = 0.0
    """The share of the storm's messages on which every call fails, also in the calm."""
    attempts_max: int | None = None
    """In ordered groups, the failed calls after which a batch is dead-lettered, or blocks its queue, or its key is parked; None for no
    limit."""
    exhausted: Literal["dlq", "block", "park"] = "dlq"
    """The action after that: "dlq", "block" or "park"."""
    failing_keys: float = 0.0
    """The share of keys of which every call fails for some time in the storm, once or twice."""
    control_every_s: float = 4.0
    """The mean time between two actions of the operator who replays and drops parked keys."""
    drop_share: float = 0.0
    """The share of keys that the operator drops instead of replaying them."""

    concurrent: bool = False
    """The group MAILING consumes the topic too."""
    concurrency: int = 20
    shared_batch: int = 1
    shared_threaded: bool = False
    shared_fail_share: float = 0.1
    retries_max: int = 2
    call_timeout_ms: int = 900_000
    """The limit of concurrent calls; a longer one is sent back."""
    delayed_share: float = 0.0
    """The share of sends of timers whose delay is given as a level."""
    timer_share: float = 0.0
    """The share of sends with a delay of any length, or until a time of day; a third of them are small batches."""
    recall_share: float = 0.0
    """The share of the acknowledged timers that are recalled, before they are due or too late, some with a forged handle."""
    transaction_share: float = 0.0
    """The share of sends that are transactions with a few messages."""
    stubborn_share: float = 0.0
    """The share of calls that swallow their cancellation and continue."""

    broadcast: bool = False
    """The group NEWS consumes every message of the topic on every consumer machine."""
    news_ordered: bool = False
    news_threaded: bool = False
    news_where: str = "FIRST_OFFSET"
    news_timeout_ms: int = 900_000
    """The limit of its concurrent calls; a longer one is dropped."""
    readers: bool = False
    """The group READERS polls the topic too."""
    by_hand: bool = False
    """Its members call assign(), else they subscribe."""
    poll_count: int = 100
    reader_expression: str = "*"
    """Their subscription, if they subscribe."""
    iterators_share: float = 0.0
    """The share of them that read by `async for`, not by poll()."""

    latency_s: float = 0.0005
    jitter_s: float = 0.002
    late_chance: float = 0.001
    chop: float = 0.2

    def facts(self) -> str:
        """Return the settings that differ from the defaults, as one line."""
        usual = Setting(seed=0, world="", faults={})
        shown = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("seed", "world", "faults")}
        changed = [f"{name}={value}" for name, value in shown.items() if value != getattr(usual, name)]
        return " ".join([*changed, "faults=" + ",".join(self.faults)])


@dataclass(frozen=True, slots=True)
class World:
    """`faults` kind → weight; `settings`: name → the values to draw from, instead of the default choices."""

    faults: Mapping[str, int]
    settings: Mapping[str, tuple[object, ...]] = field(default_factory=lambda: MappingProxyType({}))


COMMON: Mapping[str, tuple[object, ...]] = {
    "flush": ("async", "async", "sync"),
    "grace_ms": (1_000, 3_000, 3_000, 3_000, 8_000),
    "session_timeout_ms": (20_000, 20_000, 10_000),
    "queues": (1, 3, 4, 6),
    "consumers": (2, 3, 3, 5),
    "nameservers": (1, 1, 2),
    "creators": (1, 1, 2),
    "batch_count": (1, 3, 16),
    "commit": ("interval", "interval", "each"),
    "allocate": ("by_broker", "by_broker", "by_broker", "average", "average_by_circle"),
    "drain_ms": (500, 2_000, 8_000),
    "stop_ms": (500, 2_000, 8_000),
    "threaded": (False, False, False, True),
    "manual": (False, False, False, True),
    "long_share": (0.0, 0.01, 0.03),
    "fail_share": (0.0, 0.03, 0.1),
    "send_every_s": (0.08, 0.15, 0.3, 1.0),
    "batch_share": (0.0, 0.1, 0.3),
    "unkeyed_share": (0.0, 0.05, 0.2),
    "written_share": (0.0, 0.0, 0.1, 0.4),
    "keys": (5, 20, 60),
    "large_share": (0.0, 0.0, 0.05),
    "segment_bytes": (32 << 10, 256 << 10, 1 << 20),
    "snapshot_interval_ms": (5_000, 60_000),
    "short_writes": (False, False, True),
    "cached_reads": (True, True, False),
    "exile": (False, False, False, False, False, False, False, True),
    "late_chance": (0.0, 0.001, 0.01),
    "chop": (0.0, 0.2, 0.6),
}
"""The choices of every world, unless it has its own."""

CONCURRENT: Mapping[str, tuple[object, ...]] = {
    "concurrency": (2, 20),
    "shared_batch": (1, 3, 16),
    "shared_threaded": (False, False, True),
    "shared_fail_share": (0.05, 0.2),
    "retries_max": (0, 1, 2, 2, 3),
    "call_timeout_ms": (900_000, 2_000, 6_000),
    "poison_share": (0.01, 0.04),
    "attempts_max": (None, 2, 4),
    "exhausted": ("dlq", "dlq", "block"),
    "delayed_share": (0.05, 0.15),
}
"""The further choices of a universe with a concurrent group."""
CONCURRENT_SHARE = 0.3
"""The share of the swarm's seeds that have one."""

BROADCAST: Mapping[str, tuple[object, ...]] = {
    "news_ordered": (False, True),
    "news_threaded": (False, False, True),
    "news_where": ("FIRST_OFFSET", "FIRST_OFFSET", "LAST_OFFSET"),
    "news_timeout_ms": (900_000, 900_000, 4_000),
}
"""The further choices of a universe with a broadcasting group."""
BROADCAST_SHARE = 0.2
"""The share of the swarm's seeds that have one."""

READING: Mapping[str, tuple[object, ...]] = {
    "by_hand": (False, False, True),
    "poll_count": (1, 5, 100),
    "reader_expression": ("*", "*", "A", "B", "A || B"),
    "iterators_share": (0.0, 0.0, 0.4, 1.0),
}
"""The further choices of a universe with pull consumers."""
READERS_SHARE = 0.2
"""The share of the swarm's seeds that have some."""

TIMERS: Mapping[str, tuple[object, ...]] = {
    "timer_share": (0.05, 0.15),
    "recall_share": (0.1, 0.4),
}
"""The further choices of a universe with timers."""
TIMERS_SHARE = 0.12
"""The share of the swarm's seeds that have some."""

TRANSACTIONS_SHARE = 0.1
"""The share of the swarm's seeds that have transactions."""

USERS: Mapping[str, int] = {"lose_sub": 3, "lose_pub": 1, "remove_user": 1, "rotate_password": 2, "intrude": 3}
"""The further faults of a universe with users."""
USERS_SHARE = 0.06
"""The share of the swarm's seeds that have some."""
