"""The broker's metrics for Prometheus, read from its tables during a scrape. RocketMQ: BrokerMetricsManager.

A metric has RocketMQ 5's name if its meaning is the same, or else `lockstep_…`. There are no series per client or queue: `lockstep group
show` reports those.
"""

from collections.abc import Awaitable, Callable, Sequence

from lockstep.broker.config import BrokerConfig
from lockstep.broker.delivery.room_bytes import RoomBytes
from lockstep.broker.delivery.timer_delivery import TimerDelivery
from lockstep.broker.figures.figures import Figures
from lockstep.broker.figures.replica_metrics import add_replicas
from lockstep.broker.nameserver_registration import RegistrationState
from lockstep.broker.processors.pull import PullProcessor
from lockstep.broker.processors.user_quotas import UserQuotas
from lockstep.broker.state import BrokerState
from lockstep.broker.store import Store
from lockstep.broker.tables.timer_table import PendingTimer
from lockstep.broker.tables.topic_table import NAMES_MAX
from lockstep.protocol.bodies import FlowFigures, GroupFigures, ReplicaStatus, TopicFigures
from lockstep.protocol.names import DLQ_PREFIX, TIMER_TOPIC
from lockstep.runtime.connections.figures import add_access, add_connections
from lockstep.runtime.connections.server import Server
from lockstep.runtime.metrics import MetricFamilies
from lockstep.runtime.requests.audit import RequestAudit


class BrokerMetrics:
    """Renders all metrics of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        store: Store,
        state: BrokerState,
        pulls: PullProcessor,
        figures: Figures,
        audit: RequestAudit,
        quotas: UserQuotas,
        copies: Callable[[], ReplicaStatus],
        timers: TimerDelivery,
        timers_max: Callable[[], int],
        timer_bytes: RoomBytes[PendingTimer],
        transactions: Callable[[], tuple[int, int, int]],
        expired: Callable[[], Awaitable[int]],
    ) -> None:
        """`copies` returns the status of this master, with its replicas. `timers_max`: that of pending timers. `transactions`: how many
        half messages were committed and rolled back since the start, and questions sent. `expired`: how many are too old for them."""
        self._expired = expired
        self._transactions = transactions
        self._timers = timers
        self._timers_max = timers_max
        self._timer_bytes = timer_bytes
        self._audit = audit
        self._copies = copies
        self._quotas = quotas
        self._labels = {"cluster": config.cluster, "node_type": "broker", "node_id": config.name}
        self._store = store
        self._state = state
        self._pulls = pulls
        self._figures = figures

    async def render(self, registrations: dict[str, RegistrationState], server: Server) -> bytes:
        """Return all metrics as text. `registrations` maps each nameserver to the state of the broker's registration there."""
        families = MetricFamilies(self._labels)
        groups = self._state.coordination.status.groups()
        self._topics(families, await self._figures.topics(), groups)
        self._flows(families, await self._figures.flows(groups))
        self._groups(families, await self._figures.groups(groups))
        self._waiting(families)
        self._halves(families, await self._expired())
        self._limits(families)
        self._log(families)
        add_replicas(families, self._copies())
        rows = [((address,), float(state is RegistrationState.ACCEPTED)) for address, state in registrations.items()]
        families.gauge("lockstep_registered", "1 if this nameserver has accepted the broker.", ("nameserver",), rows)
        add_connections(families, server)
        add_access(families, self._audit)
        text = "Sends that were refused, pulls that waited, and others that were refused, because of a limit of their user."
        families.counter("lockstep_quota_exceeded", text, ("user", "limit"), list(self._quotas.exceeded.items()))
        return await families.render()

    def _topics(self, families: MetricFamilies, topics: Sequence[TopicFigures], groups: Sequence[str]) -> None:
        dead = dict.fromkeys(groups, 0)  # 0 too: a series that begins with 1 has not increased
        dead |= {each.topic.removeprefix(DLQ_PREFIX): each.messages for each in topics if each.topic.startswith(DLQ_PREFIX)}
        text = "Messages stored since the topic's first queue was created. Survives restarts."
        families.counter("rocketmq_messages_in", text, ("topic",), (((each.topic,), each.messages) for each in topics))
        rows = (((each.topic,), each.size) for each in topics)
        families.counter("rocketmq_throughput_in", "Bytes stored since the start.", ("topic",), rows)
        text = "Messages dead-lettered since the group's first one. Survives restarts."
        families.counter("rocketmq_send_to_dlq_messages", text, ("consumer_group",), (((group,), count) for group, count in dead.items()))
        layouts = self._state.layouts
        families.gauge("rocketmq_topic_number", "Topics of the cluster.", rows=[((), layouts.user_count)])
        families.gauge("lockstep_topics_max", "The maximum number of topics.", rows=[((), self._state.topics.topics_max)])
        families.gauge("lockstep_topics_deleted", "Deleted topics that are remembered.", rows=[((), layouts.deleted_count)])
        families.gauge("lockstep_topic_names", "Topics and deleted topics.", rows=[((), len(layouts))])
        text = "The number of topic names above which not even a group's topics are created."
        families.gauge("lockstep_topic_names_limit", text, rows=[((), NAMES_MAX)])

    def _flows(self, families: MetricFamilies, flows: Sequence[FlowFigures]) -> None:
        names = ("topic", "consumer_group")
        given = [each for each in flows if (each.topic, each.group) in self._pulls.delivered]
        rows = (((each.topic, each.group), each.given) for each in given)
        families.counter("rocketmq_messages_out", "Messages returned to consumers.", names, rows)
        rows = (((each.topic, each.group), each.given_size) for each in given)
        families.counter("rocketmq_throughput_out", "Bytes returned to consumers, as stored.", names, rows)
        rows = (((each.topic, each.group), each.filtered) for each in given)
        families.counter("lockstep_filtered_messages", "Messages that the subscriptions of consumers did not match.", names, rows)
        rows = (((each.topic, each.group), each.lag) for each in flows if each.lag is not None)
        families.gauge("rocketmq_consumer_lag_messages", "Messages stored and not committed yet.", names, rows)
        text = "Milliseconds since the oldest uncommitted message was stored."
        rows = (((each.topic, each.group), each.oldest_ms) for each in flows if each.oldest_ms is not None)
        families.gauge("rocketmq_consumer_lag_latency", text, names, rows)

    def _groups(self, families: MetricFamilies, groups: Sequence[GroupFigures]) -> None:
        text = "Members of the group; 0 if the broker knows it and it has none."  # an alert on a missing series never fires
        families.gauge("rocketmq_consumer_connections", text, ("consumer_group",), (((each.group,), each.members) for each in groups))
        held = (((each.group,), each.held) for each in groups if each.held is not None)
        families.gauge("lockstep_queues_held", "Queues whose lock a member holds.", ("consumer_group",), held)
        granted = (((each.group,), each.grants) for each in groups if each.grants)
        families.counter(
            "lockstep_queue_grants", "Locks granted since the start; each move of a queue counts.", ("consumer_group",), granted
        )
        text = "Keys that were set aside and wait, or are being replayed or dropped."
        parked = [each for each in groups if each.parked_since_ms is not None]
        families.gauge("lockstep_parked_keys", text, ("consumer_group",), (((each.group,), each.parked) for each in parked))
        now_ms = self._store.now_ms()
        ages = (((each.group,), max(0, now_ms - (each.parked_since_ms or 0)) / 1000) for each in parked)
        families.gauge("lockstep_parked_oldest_seconds", "Time since the first of them was set aside.", ("consumer_group",), ages)
        text = "Time from the last sign of a queue's owner, or from when the next one joined if that is later, to its grant."
        families.histogram("lockstep_handover_seconds", text, self._state.coordination.state.events.handovers)

    def _waiting(self, families: MetricFamilies) -> None:
        pending, deferred = len(self._state.timers), sum(self._timers.deferred_counts.values())
        families.gauge("rocketmq_timing_messages", "Messages that wait for a delay of any length.", rows=[((), pending)])
        families.gauge("lockstep_timers_limit", "The maximum number of such messages.", rows=[((), self._timers_max())])
        text = "The bytes of the log that such messages may take up to now; exact within a minute if they are more than half of the limit."
        families.gauge("lockstep_timers_bytes", text, rows=[((), self._timer_bytes.bytes)])
        families.gauge("lockstep_timers_bytes_limit", "The maximum number of such bytes.", rows=[((), self._timer_bytes.limit)])
        families.gauge("lockstep_timers_deferred", "Such messages that are due and can't be delivered now.", rows=[((), deferred)])
        stored = self._store.end_offset(TIMER_TOPIC, 0)
        families.counter("rocketmq_timer_enqueue", "Such messages ever stored, again before retention too.", rows=[((), stored)])
        families.counter("rocketmq_timer_dequeue", "Such messages delivered since the start.", rows=[((), self._timers.delivered_count)])

    def _halves(self, families: MetricFamilies, expired: int) -> None:
        committed, rolled_back, asked = self._transactions()
        families.gauge("rocketmq_half_messages", "Messages of undecided transactions.", rows=[((), len(self._state.transactions))])
        families.gauge("lockstep_transactions_expired", "Such messages that are too old to be asked about.", rows=[((), expired)])
        families.counter("rocketmq_commit_messages", "Such messages committed since the start.", rows=[((), committed)])
        families.counter("rocketmq_rollback_messages", "Such messages rolled back since the start.", rows=[((), rolled_back)])
        families.counter("lockstep_transaction_checks", "Questions to their producers since the start.", rows=[((), asked)])

    def _limits(self, families: MetricFamilies) -> None:
        coordination = self._state.coordination
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
