"""The broker's metrics for Prometheus, read from its tables during a scrape. RocketMQ: BrokerMetricsManager.

A metric has RocketMQ 5's name if its meaning is the same, or else `lockstep_…`. There are no series per client or queue: `lockstep group
show` reports those.
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
from lockstep.protocol.bodies import ParkState
from lockstep.protocol.errors import SystemBusyError
from lockstep.protocol.names import DLQ_PREFIX, is_system_topic
from lockstep.protocol.record import RecordView
from lockstep.runtime.metrics import MetricFamilies, Slices

LATENCY_QUEUES_MAX = 1_000
"""The maximum number of queues with lag for which one scrape reads the oldest message: one read each, from disk if it is old."""
READS_PER_SLICE = 50
"""The number of messages read in one turn of the loop."""
READ_BYTES = 1
"""The first message is always returned, and no other is needed."""


class BrokerMetrics:
    """Renders all metrics of one broker."""

    def __init__(self, config: BrokerConfig, store: Store, state: BrokerState, pulls: PullProcessor) -> None:
        self._labels = {"cluster": config.cluster, "node_type": "broker", "node_id": config.name}
        self._store = store
        self._state = state
        self._pulls = pulls

    async def render(self, registrations: dict[str, RegistrationState], connection_count: int) -> bytes:
        """Return all metrics as text. `registrations` maps each nameserver to the state of the broker's registration there.

        No turn of the loop reads more than a slice of the tables.
        """
        families = MetricFamilies(self._labels)
        groups = self._state.coordination.status.groups()
        await self._topics(families, groups)
        behind = await self._lag(families, groups)
        await self._latency(families, behind)
        await self._groups(families, groups)
        self._log(families)
        rows = [((address,), float(state is RegistrationState.ACCEPTED)) for address, state in registrations.items()]
        families.gauge("lockstep_registered", "1 if this nameserver has accepted the broker.", ("nameserver",), rows)
        families.gauge("lockstep_connections", "Open connections.", rows=[((), connection_count)])
        return await families.render()

    async def _topics(self, families: MetricFamilies, groups: Sequence[str]) -> None:
        stored: dict[str, tuple[int, int]] = {}
        dead = dict.fromkeys(groups, 0)  # 0 too: a series that begins with 1 has not increased
        slices = Slices()
        for topic, count, size in self._store.queue_totals():
            await slices.step()
            if not is_system_topic(topic):
                before = stored.get(topic, (0, 0))
                stored[topic] = before[0] + count, before[1] + size
                if topic.startswith(DLQ_PREFIX):
                    dead[topic.removeprefix(DLQ_PREFIX)] = stored[topic][0]
        text = "Messages stored since the topic's first queue was created. Survives restarts."
        families.counter("rocketmq_messages_in", text, ("topic",), (((topic,), count) for topic, (count, _) in stored.items()))
        rows = (((topic,), size) for topic, (_, size) in stored.items())
        families.counter("rocketmq_throughput_in", "Bytes stored since the start.", ("topic",), rows)
        text = "Messages dead-lettered since the group's first one. Survives restarts."
        families.counter("rocketmq_send_to_dlq_messages", text, ("consumer_group",), (((group,), count) for group, count in dead.items()))
        names = ("topic", "consumer_group")
        given = list(self._pulls.delivered.items())
        families.counter("rocketmq_messages_out", "Messages returned to consumers.", names, ((key, each.messages) for key, each in given))
        families.counter(
            "rocketmq_throughput_out", "Bytes returned to consumers, as stored.", names, ((key, each.size) for key, each in given)
        )
        text = "Messages that the subscriptions of consumers did not match."
        families.counter("lockstep_filtered_messages", text, names, ((key, each.filtered) for key, each in given))
        layouts = self._state.layouts
        families.gauge("rocketmq_topic_number", "Topics of the cluster.", rows=[((), layouts.user_count)])
        families.gauge("lockstep_topics_max", "The maximum number of topics.", rows=[((), self._state.topics.topics_max)])
        families.gauge("lockstep_topics_deleted", "Deleted topics that are remembered.", rows=[((), layouts.deleted_count)])
        families.gauge("lockstep_topic_names", "Topics and deleted topics.", rows=[((), len(layouts))])
        text = "The number of topic names above which not even a group's topics are created."
        families.gauge("lockstep_topic_names_limit", text, rows=[((), NAMES_MAX)])

    async def _lag(self, families: MetricFamilies, groups: Sequence[str]) -> list[QueueKey]:
        """Add the lag of each group and topic. Return the queues with lag, LATENCY_QUEUES_MAX at most."""
        coordination, bounds = self._state.coordination, self._store.bounds
        lag: Counter[tuple[str, str]] = Counter()
        behind: list[QueueKey] = []
        slices = Slices()
        for group in groups:
            await slices.step()
            for topic in coordination.state.progress.topics_of_group(group):
                for queue_id, progress in coordination.state.progress.progress_in_topic(group, topic):
                    await slices.step()
                    missing = progress.lag(bounds(topic, queue_id)[1])
                    lag[topic, group] += missing
                    if missing and len(behind) < LATENCY_QUEUES_MAX:
                        behind.append((group, topic, queue_id))
        names = ("topic", "consumer_group")
        families.gauge("rocketmq_consumer_lag_messages", "Messages stored and not committed yet.", names, lag.items())
        return behind

    async def _latency(self, families: MetricFamilies, behind: Iterable[QueueKey]) -> None:
        """Add the age of the oldest uncommitted message of each group and topic."""
        now_ms = self._store.now_ms()
        worst: dict[tuple[str, str], int] = {}
        slices = Slices(READS_PER_SLICE)
        for group, topic, queue_id in behind:
            await slices.step()
            progress = self._state.coordination.state.progress.get((group, topic, queue_id))
            if progress is None:
                continue  # its topic has been deleted
            offset = max(progress.offset, self._store.bounds(topic, queue_id)[0])
            try:
                read = await self._store.read_or_wait(topic, queue_id, offset, 1, READ_BYTES)
            except (OSError, StoreCorruptError, SystemBusyError):
                continue  # a pull of it fails with the reason; the other metrics are still reported
            if read.parts:
                record = RecordView(b"".join(read.parts))
                age_ms = now_ms - self._store.stored_ms(record.physical_offset, record.store_ms)
                worst[topic, group] = max(worst.get((topic, group), 0), age_ms)
        names = ("topic", "consumer_group")
        text = "Milliseconds since the oldest uncommitted message was stored."
        families.gauge("rocketmq_consumer_lag_latency", text, names, worst.items())

    async def _groups(self, families: MetricFamilies, groups: Sequence[str]) -> None:
        coordination = self._state.coordination
        members: list[tuple[tuple[str], int]] = []
        held: list[tuple[tuple[str], int]] = []
        slices = Slices()
        for name in groups:
            await slices.step()
            # 0 too: an alert on a missing series never fires.
            members.append(((name,), coordination.membership.member_count(name)))
            if (count := coordination.status.held_count(name)) is not None:
                held.append(((name,), count))
        text = "Members of the group; 0 if the broker knows it and it has none."
        families.gauge("rocketmq_consumer_connections", text, ("consumer_group",), members)
        families.gauge("lockstep_queues_held", "Queues whose lock a member holds.", ("consumer_group",), held)
        granted = (((group,), count) for group, count in dict(coordination.state.locks.grant_counts).items())
        families.counter(
            "lockstep_queue_grants", "Locks granted since the start; each move of a queue counts.", ("consumer_group",), granted
        )
        parked: Counter[tuple[str]] = Counter()
        oldest_ms: dict[tuple[str], int] = {}
        for row in list(coordination.state.parks):
            if row.state is not ParkState.ENDED:
                await slices.step()
                parked[(row.group,)] += 1
                oldest_ms[(row.group,)] = min(row.since_ms, oldest_ms.get((row.group,), row.since_ms))
        text = "Keys that were set aside and wait, or are being replayed or dropped."
        families.gauge("lockstep_parked_keys", text, ("consumer_group",), parked.items())
        now_ms = self._store.now_ms()
        ages = (((group,), max(0, now_ms - since_ms) / 1000) for (group,), since_ms in oldest_ms.items())
        families.gauge("lockstep_parked_oldest_seconds", "Time since the first of them was set aside.", ("consumer_group",), ages)
        config = coordination.state.config
        for metric, text, value in (
            ("rocketmq_consumer_group_number", "Known groups.", len(coordination.state.activity)),
            ("lockstep_groups_limit", "The maximum number of known groups.", config.groups_max),
            ("lockstep_groups_configured", "Groups with settings, which are never forgotten.", len(coordination.state.settings)),
            ("lockstep_progress_entries", "Queues with progress of a group: (group, topic, queue).", len(coordination.state.progress)),
            ("lockstep_progress_entries_limit", "The maximum number of queues with progress of a group.", config.progress_max),
            ("lockstep_members", "Members of all groups.", coordination.state.groups.member_count),
            ("lockstep_members_limit", "The maximum number of members of all groups.", config.members_max),
            (
                "lockstep_subscription_bytes",
                "Approximate memory of subscriptions; equal ones count once.",
                coordination.state.groups.subscription_bytes,
            ),
            ("lockstep_subscription_bytes_limit", "The maximum memory of subscriptions.", config.subscription_bytes_max),
            ("lockstep_held_pulls", "Pulls that wait for messages.", self._pulls.held_count),
            ("lockstep_held_pulls_limit", "The maximum number of pulls that wait for messages.", self._pulls.held_max),
        ):
            families.gauge(metric, text, rows=[((), value)])
        text = "Pulls responded to early since the start, because of the limit of waiting pulls in total, or of their group at a queue."
        families.counter("lockstep_held_pulls_evicted", text, rows=[((), self._pulls.excess_count)])
        refused = [((), coordination.legacy.refused_update_count)]
        families.counter(
            "lockstep_refused_commits", "Rejected commits without an epoch, of queues that another client holds.", rows=refused
        )

    def _log(self, families: MetricFamilies) -> None:
        store, disk = self._store, self._store.disk_status()
        families.gauge("rocketmq_storage_size", "Bytes of the log.", rows=[((), disk.log_bytes)])
        families.gauge("rocketmq_storage_flush_behind_bytes", "Bytes written and not synced.", rows=[((), store.writer.unsynced_bytes)])
        families.gauge(
            "rocketmq_broker_permission",
            "6: readable and writable; 4: sends are refused for lack of room.",
            rows=[((), 6 if disk.refusal is None else 4)],
        )
        text = "Messages stored and lost to damage of the log. Consumers are notified of the gaps."
        families.gauge("lockstep_store_damaged_messages", text, rows=[((), store.damage.message_count)])
        families.gauge(
            "lockstep_store_damaged_bytes", "Bytes of the log without a valid record.", rows=[((), store.scrubber.damaged_bytes)]
        )
        families.gauge("lockstep_disk_free_bytes", "Free space of the log's disk.", rows=[((), disk.free_bytes)])
        families.gauge("lockstep_disk_reserve_bytes", "Free space below which sends fail.", rows=[((), disk.reserve_bytes)])
        families.gauge("lockstep_term", "The term, which rises with each start.", rows=[((), self._state.coordination.state.term)])
        text = "Time from the first append of a turn of the loop until its messages were confirmed and responded to."
        families.histogram("lockstep_append_latency_seconds", text, store.writer.append_latency)
