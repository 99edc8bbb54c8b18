"""Metrics of a broker for Prometheus, read from its tables with each scrape. RocketMQ: BrokerMetricsManager.

Names are RocketMQ 5's if the meaning is the same, else `lockstep_…`. There are no series per client or per queue: `lockstep group show`
shows those.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from lockstep.broker.config import BrokerConfig
from lockstep.broker.nameserver_registration import RegistrationState
from lockstep.broker.processors.pull import PullProcessor
from lockstep.broker.state import BrokerState
from lockstep.broker.store import Store, StoreCorruptError
from lockstep.broker.tables.lock_table import QueueKey
from lockstep.broker.tables.topic_table import NAMES_MAX
from lockstep.protocol.errors import SystemBusyError
from lockstep.protocol.names import DLQ_PREFIX, is_system_topic
from lockstep.protocol.record import RecordView
from lockstep.runtime.metrics import MetricFamilies, Slices

LATENCY_QUEUES_MAX = 1_000
"""Queues with a lag whose oldest message is read in one scrape; old ones are read from the disk."""
READS_PER_SLICE = 50
"""Messages read in one turn of the loop."""
READ_BYTES = 1
"""Bytes to read: the first message is always returned, and no other one is needed."""


class BrokerMetrics:
    """Renders the metrics of one broker."""

    def __init__(self, config: BrokerConfig, store: Store, state: BrokerState, pulls: PullProcessor) -> None:
        self._labels = {"cluster": config.cluster, "node_type": "broker", "node_id": config.name}
        self._store = store
        self._state = state
        self._pulls = pulls

    async def render(self, standings: dict[str, RegistrationState], connection_count: int) -> bytes:
        """Return one scrape. `standings` has the registration at each nameserver. No turn of the loop looks at more than a slice, however
        many groups there are.
        """
        figures = MetricFamilies(self._labels)
        groups = self._state.coordination.status.groups()
        await self._topics(figures, groups)
        behind = await self._lag(figures, groups)
        await self._latency(figures, behind)
        await self._groups(figures, groups)
        self._log(figures)
        rows = [((address,), float(standing is RegistrationState.ACCEPTED)) for address, standing in standings.items()]
        figures.gauge("lockstep_registered", "1: this nameserver has accepted the broker.", ("nameserver",), rows)
        figures.gauge("lockstep_connections", "Open connections.", rows=[((), connection_count)])
        return await figures.render()

    async def _topics(self, figures: MetricFamilies, groups: Sequence[str]) -> None:
        stored: dict[str, tuple[int, int]] = {}
        dead = dict.fromkeys(groups, 0)  # 0 too: a series that begins with 1 shows no increase
        slices = Slices()
        for topic, count, size in self._store.queue_totals():
            await slices.step()
            if not is_system_topic(topic):
                before = stored.get(topic, (0, 0))
                stored[topic] = before[0] + count, before[1] + size
                if topic.startswith(DLQ_PREFIX):
                    dead[topic.removeprefix(DLQ_PREFIX)] = stored[topic][0]
        text = "Messages stored since the topic's first queue was made: survives restarts."
        figures.counter("rocketmq_messages_in", text, ("topic",), (((topic,), count) for topic, (count, _) in stored.items()))
        rows = (((topic,), size) for topic, (_, size) in stored.items())
        figures.counter("rocketmq_throughput_in", "Bytes stored since the start.", ("topic",), rows)
        text = "Messages given up since the group's first one: survives restarts."
        figures.counter("rocketmq_send_to_dlq_messages", text, ("consumer_group",), (((group,), count) for group, count in dead.items()))
        names = ("topic", "consumer_group")
        given = list(self._pulls.delivered.items())
        figures.counter("rocketmq_messages_out", "Messages given to consumers.", names, ((key, count) for key, (count, _) in given))
        figures.counter("rocketmq_throughput_out", "Bytes of them, as stored.", names, ((key, size) for key, (_, size) in given))
        layouts = self._state.layouts
        figures.gauge("rocketmq_topic_number", "Topics of the cluster.", rows=[((), layouts.user_count)])
        figures.gauge("lockstep_topics_max", "One topic more is refused.", rows=[((), self._state.topics.topics_max)])
        figures.gauge("lockstep_topics_deleted", "Deleted topics that are remembered.", rows=[((), layouts.deleted_count)])
        figures.gauge("lockstep_topic_names", "Topics and deleted topics together.", rows=[((), len(layouts))])
        text = "Names of topics above which not even the topic of a group is created."
        figures.gauge("lockstep_topic_names_limit", text, rows=[((), NAMES_MAX)])

    async def _lag(self, figures: MetricFamilies, groups: Sequence[str]) -> list[QueueKey]:
        """Return queues with a lag, at most LATENCY_QUEUES_MAX."""
        coordination, bounds = self._state.coordination, self._store.bounds
        lag: Counter[tuple[str, str]] = Counter()
        behind: list[QueueKey] = []
        slices = Slices()
        for group in groups:
            await slices.step()
            for topic in coordination.state.progress.topics_of_group(group):
                for queue_id, progress in coordination.state.progress.progress_in_topic(group, topic):
                    await slices.step()
                    missing = max(0, bounds(topic, queue_id)[1] - progress.offset)
                    lag[topic, group] += missing
                    if missing and len(behind) < LATENCY_QUEUES_MAX:
                        behind.append((group, topic, queue_id))
        names = ("topic", "consumer_group")
        figures.gauge("rocketmq_consumer_lag_messages", "Stored and not committed yet.", names, lag.items())
        return behind

    async def _latency(self, figures: MetricFamilies, behind: Iterable[QueueKey]) -> None:
        """Return how long the oldest message that is not committed has been stored."""
        now_ms = self._store.now_ms()
        worst: dict[tuple[str, str], int] = {}
        slices = Slices(READS_PER_SLICE)
        for group, topic, queue_id in behind:
            await slices.step()
            progress = self._state.coordination.state.progress.get((group, topic, queue_id))
            if progress is None:
                continue  # the topic was deleted meanwhile
            offset = max(progress.offset, self._store.bounds(topic, queue_id)[0])
            try:
                read = await self._store.read_some(topic, queue_id, offset, 1, READ_BYTES)
            except (OSError, StoreCorruptError, SystemBusyError):
                continue  # a pull of this message fails with the reason; the other figures are still rendered
            if read.parts:
                record = RecordView(b"".join(read.parts))
                age_ms = now_ms - self._store.stored_ms(record.physical_offset, record.store_ms)
                worst[topic, group] = max(worst.get((topic, group), 0), age_ms)
        names = ("topic", "consumer_group")
        text = "Milliseconds since the oldest message that is not committed was stored."
        figures.gauge("rocketmq_consumer_lag_latency", text, names, worst.items())

    async def _groups(self, figures: MetricFamilies, groups: Sequence[str]) -> None:
        coordination = self._state.coordination
        members: list[tuple[tuple[str], int]] = []
        held: list[tuple[tuple[str], int]] = []
        slices = Slices()
        for name in groups:
            await slices.step()
            # 0 too: an alert on a series that does not exist never fires.
            members.append(((name,), coordination.membership.member_count(name)))
            if (count := coordination.status.held_count(name)) is not None:
                held.append(((name,), count))
        text = "Members of the group, 0 where it is known and none is there."
        figures.gauge("rocketmq_consumer_connections", text, ("consumer_group",), members)
        figures.gauge("lockstep_queues_held", "Queues that a member holds the lock of.", ("consumer_group",), held)
        granted = (((group,), count) for group, count in dict(coordination.state.locks.grant_counts).items())
        figures.counter("lockstep_queue_grants", "Locks granted since the start: each move is one.", ("consumer_group",), granted)
        config = coordination.state.config
        for metric, text, value in (
            ("rocketmq_consumer_group_number", "Groups of which anything is known.", len(coordination.state.activity)),
            ("lockstep_groups_limit", "Groups of which anything may be known.", config.groups_max),
            ("lockstep_groups_configured", "Groups with settings: they are never forgotten.", len(coordination.state.settings)),
            ("lockstep_progress_entries", "Queues with progress of a group: (group, topic, queue).", len(coordination.state.progress)),
            ("lockstep_progress_entries_limit", "Queues that may have progress of a group.", config.progress_max),
            ("lockstep_members", "Members of all groups.", coordination.state.groups.member_count),
            ("lockstep_members_limit", "Members that all groups may have.", config.members_max),
            (
                "lockstep_subscription_bytes",
                "About the memory of subscriptions; equal ones count once.",
                coordination.state.groups.subscription_bytes,
            ),
            ("lockstep_subscription_bytes_limit", "Memory that subscriptions may take.", config.subscription_bytes_max),
            ("lockstep_held_pulls", "Pulls that wait for messages.", self._pulls.held_count),
            ("lockstep_held_pulls_limit", "Pulls that may wait at a time.", self._pulls.held_max),
        ):
            figures.gauge(metric, text, rows=[((), value)])
        text = "Pulls answered before their time since the start: more waited than may, at all or of their group at a queue."
        figures.counter("lockstep_held_pulls_evicted", text, rows=[((), self._pulls.excess_count)])
        refused = [((), coordination.legacy.refused_update_count)]
        figures.counter("lockstep_refused_commits", "Commits without an epoch of queues that somebody else holds.", rows=refused)

    def _log(self, figures: MetricFamilies) -> None:
        store, disk = self._store, self._store.disk_status()
        figures.gauge("rocketmq_storage_size", "Bytes of the log.", rows=[((), disk.log_bytes)])
        figures.gauge("rocketmq_storage_flush_behind_bytes", "Bytes written and not synced.", rows=[((), store.writer.unsynced_bytes)])
        figures.gauge(
            "rocketmq_broker_permission", "6: reads and writes; 4: the disk is full, reads only.", rows=[((), 6 if disk.writable else 4)]
        )
        text = "Stored and lost to damage of the log: consumers are told of the gaps."
        figures.gauge("lockstep_store_damaged_messages", text, rows=[((), store.damage.message_count)])
        figures.gauge(
            "lockstep_store_damaged_bytes", "Bytes of the log that hold no good record.", rows=[((), store.scrubber.damaged_bytes)]
        )
        figures.gauge("lockstep_disk_free_bytes", "Free space beside the log.", rows=[((), disk.free_bytes)])
        figures.gauge("lockstep_disk_reserve_bytes", "Free space below which sends are refused.", rows=[((), disk.reserve_bytes)])
        figures.gauge("lockstep_term", "Rises with each start.", rows=[((), self._state.coordination.state.term)])
        text = "From the first append of a loop turn until its messages were confirmed and its senders answered."
        figures.histogram("lockstep_append_latency_seconds", text, store.writer.append_latency)
