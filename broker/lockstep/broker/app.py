"""The broker as a service: it creates and connects all parts. RocketMQ: BrokerController.

start   lock and identity of the store ─▶ recover ─▶ bind the ports ─▶ new term, made durable ─▶ boot id ─▶ register with
        the nameservers ─▶ clear the mark of a restored backup ─▶ open the ports ─▶ `broker.started`
stop    reject sends ─▶ respond to held pulls ─▶ sync ─▶ unregister ─▶ close connections ─▶ snapshot ─▶ close the store in order
failed  a failed write or sync: no further response leaves, every connection is cut, the store is left as it is
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

from lockstep.broker.advertise import advertise
from lockstep.broker.classic.admin_broker import BrokerAdminProcessor
from lockstep.broker.classic.admin_groups import GroupAdminProcessor
from lockstep.broker.classic.admin_topics import TopicAdminProcessor
from lockstep.broker.classic.assignment import AssignmentProcessor
from lockstep.broker.classic.connections import ClientConnections
from lockstep.broker.classic.consume_stats import ConsumeStatsProcessor
from lockstep.broker.classic.groups import GroupsProcessor
from lockstep.broker.classic.relay import RELAY_LANE, RelayProcessor
from lockstep.broker.classic.replies import ReplyProcessor
from lockstep.broker.classic.resets import ResetProcessor
from lockstep.broker.classic.runtime_info import runtime_info
from lockstep.broker.classic.statistics import Statistics
from lockstep.broker.classic.topic_changes import TopicChanges
from lockstep.broker.config import BrokerConfig
from lockstep.broker.delivery.delayed_delivery import DelayedDelivery
from lockstep.broker.delivery.failed_messages import FailedMessages
from lockstep.broker.delivery.group_topics import GroupTopics
from lockstep.broker.delivery.parked_copies import ParkedCopies
from lockstep.broker.figures.figures import Figures
from lockstep.broker.figures.metrics import BrokerMetrics
from lockstep.broker.groups.coordination import next_term
from lockstep.broker.groups.effect_runner import EffectRunner
from lockstep.broker.groups.lease_timer import LeaseTimer
from lockstep.broker.maintenance import StoreMaintenance
from lockstep.broker.nameserver_registration import BrokerIdentity, NameserverRegistration, RegistrationRefusedError, RegistrationState
from lockstep.broker.processors.client import ClientProcessor
from lockstep.broker.processors.group_events import GroupEventsProcessor
from lockstep.broker.processors.lock import LockProcessor
from lockstep.broker.processors.offset import OffsetProcessor
from lockstep.broker.processors.overview import OverviewProcessor
from lockstep.broker.processors.park import ParkProcessor
from lockstep.broker.processors.pull import UNSENT_BYTES_MAX, PullProcessor
from lockstep.broker.processors.query import QUERY_LANE, QueryProcessor
from lockstep.broker.processors.send import SendProcessor
from lockstep.broker.processors.send_back import SEND_BACK_LANE, SendBackProcessor
from lockstep.broker.processors.send_message import SendMessageProcessor
from lockstep.broker.processors.sent_frames import SentFrames
from lockstep.broker.processors.settings import SettingsProcessor
from lockstep.broker.processors.start_offsets import START_LANE
from lockstep.broker.processors.status import StatusProcessor
from lockstep.broker.processors.topic import ROUTE_LANE, TopicProcessor
from lockstep.broker.rocketmq_store.adoption import take_over
from lockstep.broker.rocketmq_store.opening import OpenedStore, open_store
from lockstep.broker.running_settings import RunningSettings
from lockstep.broker.state import BrokerState
from lockstep.broker.store import Recovery, Store
from lockstep.broker.tables.send_gate import SendGate
from lockstep.broker.tables.topic_table import TOMBSTONES_MAX
from lockstep.broker.tables.write_holds import WriteHolds
from lockstep.protocol.bodies import BrokerStatus, TopicRoute
from lockstep.protocol.command import Command
from lockstep.protocol.delays import format_delay
from lockstep.protocol.errors import StateError, TransportError
from lockstep.protocol.ids import store_host_of
from lockstep.protocol.names import INTERNAL_LISTENER, SCHEDULE_TOPIC, TRACE_TOPIC
from lockstep.protocol.native import implementation
from lockstep.runtime.admin_port import AdminPages, AdminPort, Health
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.dispatch import Dispatcher
from lockstep.runtime.endpoint import Endpoint
from lockstep.runtime.host import Host
from lockstep.runtime.lanes import LANE_ITEMS_PER_TURN, LaneLimits
from lockstep.runtime.limits import EndpointLimits
from lockstep.runtime.listen_address import ADMIN
from lockstep.runtime.log import announce, get_logger
from lockstep.runtime.server import Server
from lockstep.runtime.turn import TurnBudget

log = get_logger("broker")

LIMITS = EndpointLimits(unsent_bytes_high=UNSENT_BYTES_MAX, unsent_bytes_low=UNSENT_BYTES_MAX // 4)
LANES = {
    QUERY_LANE: LaneLimits(concurrency=2, queue_max=256),
    START_LANE: LaneLimits(concurrency=2, queue_max=1_024, bytes_max=16 << 20),
    SEND_BACK_LANE: LaneLimits(concurrency=2, queue_max=16_384),
    ROUTE_LANE: LaneLimits(concurrency=256, queue_max=4_096),
    RELAY_LANE: LaneLimits(concurrency=64, queue_max=256),
}
"""At most six searches and reads of single messages run at a time, since they use threads of the host. The queues hold 256 requests of
tools, one LOCK of each of 1,024 members that start by time, and thousands of messages that consumers send back. A response in ROUTE_LANE
waits for nameservers and one in RELAY_LANE for a member of a group; they use no thread."""


class Broker:
    """The broker. `on_fatal` is called with an error after which it can't continue. `origins`: the source of each setting, if known."""

    def __init__(self, config: BrokerConfig, host: Host, origins: Mapping[str, str] | None = None) -> None:
        self.settings = RunningSettings(config, origins or {}, self._apply)
        self.on_fatal: Callable[[BaseException], None] | None = None
        self.addresses: dict[str, str] = {}
        """Listener name → advertised address."""
        self._host = host
        self._tasks = Tasks(self._fail)
        self._gate = SendGate()
        self._failed = False
        self._marked = False
        """Whether this start's term is durable and its boot id stored: from then on a stop can be clean."""
        self._previous_term = 0
        """The term of the store's start before this one; 0 if there was none."""
        self._opened = False
        self._opened_ms = 0
        self._store: Store | None = None
        self._state: BrokerState | None = None
        self._server: Server | None = None
        self._dispatcher: Dispatcher | None = None
        self._registration: NameserverRegistration | None = None
        self._pulls: PullProcessor | None = None
        self._topics: TopicProcessor | None = None
        self._leases: LeaseTimer | None = None
        self._copies: ParkedCopies | None = None
        self._failures: FailedMessages | None = None
        self._maintenance: StoreMaintenance | None = None
        self._maintenance_tasks: list[asyncio.Task[None]] = []
        self._delivering: asyncio.Task[None] | None = None
        self._metrics: BrokerMetrics | None = None
        self._statistics = Statistics(config.cluster)
        self.admin_port: AdminPort | None = None
        """The admin port, if the settings have one. It opens first and closes last, so that a probe learns why the broker is not ready."""
        for listen in config.admin_listener().values():
            self.admin_port = AdminPort(listen, AdminPages(self.health, self._render_metrics), config.admin_hosts(host.name))

    @property
    def config(self) -> BrokerConfig:
        """Return the settings in force."""
        return self.settings.config

    @property
    def address(self) -> str:
        """Return the address of the listener named `internal`."""
        return self.addresses[INTERNAL_LISTENER]

    @property
    def term(self) -> int:
        return self.state.coordination.state.term

    @property
    def state(self) -> BrokerState:
        """Return the tables. Raises StateError before the store is open."""
        if self._state is None:
            raise StateError("the broker is not started")
        return self._state

    # ----------------------------------------------------------------------------------------------------------------- start

    async def start(self) -> None:
        """Start, and return when the ports are open.

        Raises StoreError (exit 3, 5, 6), IdentityError and RegistrationRefusedError (exit 4), ConfigError.
        """
        config, host = self.config, self._host
        began_ms = host.clock.monotonic_ms()
        _check_delays(config)
        if self.admin_port is not None:
            await self.admin_port.start()
        budget = config.budget(host.descriptors.limit)
        store_config = replace(config.store_config(), open_file_count_max=budget.open_files_max)
        opened = await open_store(store_config, host, config.identity(), adopt=config.adopt, without=config.adopt_without)
        self._store = store = opened.store
        store.writer.on_fatal = self._fail
        self._state = state = BrokerState(config.coordination(), store, host.random, topics_max=config.topics_max)
        recovery = await store.recover(state)
        server = self._build(store, state, budget.connections_max)
        assert self._copies is not None
        self._maintenance = StoreMaintenance(host, store, state, self._copies.copy_before)
        await server.bind()
        self.addresses = await advertise(server.addresses, config.advertised(), config.nameservers())
        store.store_host = store_host_of(self.address, store.store_id)
        await self._enter_term(opened, state, recovery)
        state.topics.log_invalid_layouts()
        state.topics.keep_stored_queues()
        await self._register(store, state)
        if config.trace_topic:  # now the layouts of the other brokers are known
            state.topics.create_system(TRACE_TOPIC)
        await server.start()
        self._opened_ms = host.clock.monotonic_ms()
        self._open(state)
        self._opened = True
        announce(
            "broker.started",
            name=config.name,
            address=self.address,
            listeners=self.addresses,
            term=self.term,
            store=config.store_path(),
            recovered_bytes=recovery.end - recovery.from_position,
            cut_bytes=recovery.cut_bytes,
            clean=recovery.clean,
            connections_max=budget.connections_max,
            descriptor_limit=budget.limit,
            took_ms=host.clock.monotonic_ms() - began_ms,
            kernels=implementation(),
            **({} if self.admin_port is None else {ADMIN: self.admin_port.address}),
        )

    def _build(self, store: Store, state: BrokerState, connections_max: int) -> Server:
        """Create processors, dispatcher and server for the recovered state."""
        host, config, coordination = self._host, self.config, state.coordination
        holds = WriteHolds()
        auto_create = config.auto_create_topics
        self._topics = topic = TopicProcessor(
            state.topics,
            holds,
            host.clock,
            auto_create=auto_create,
            wait_until_known=self._wait_until_known,
            may_begin=store.check_new_state,
        )
        limits = {"held_max": config.held_pulls_max, "held_per_group_max": config.held_pulls_per_group_max}
        self._pulls = pulls = PullProcessor(host, self._tasks, store, state.topics, coordination, **limits, traced=config.trace_topic)
        group_topics = GroupTopics(state.topics, store.check_new_state, lambda topic: holds.holds(topic, host.clock.boot_ms()))
        budget = TurnBudget(LANE_ITEMS_PER_TURN)
        connections = ClientConnections(coordination)
        self._delays = delays = DelayedDelivery(store, state.delays, group_topics, config.delay_levels_ms())
        self._failures = failed = FailedMessages(store, coordination, delays, group_topics)
        self._copies = copies = ParkedCopies(store, coordination, failed, self._gate)
        frames = SentFrames(store, state.topics, self._gate, holds, host.clock)
        status = StatusProcessor(coordination, self.status)
        figures = Figures(store, state, pulls)
        changes = TopicChanges(state.topics, coordination, holds, topic.check_disk, store)
        processors = [
            SendProcessor(state.sequences, frames),
            SendMessageProcessor(frames, topic, failed, host.random, cluster=config.cluster, traced=config.trace_topic),
            SendBackProcessor(host, store, coordination, failed, self._gate),
            ParkProcessor(store, coordination, copies),
            pulls,
            QueryProcessor(store, state.topics, delays.waits, state.coordination.state.progress.first_offset, host.clock),
            topic,
            ClientProcessor(host, coordination, group_topics, topic, budget, connections, pulls.held_offset, pulls.disk_count),
            GroupsProcessor(coordination, connections, budget),
            ConsumeStatsProcessor(host, coordination, store, state.topics, budget),
            RelayProcessor(coordination, connections, store),
            OverviewProcessor(coordination, figures, store, budget, self.status, self._connection_count, lambda: pulls.held_count),
            GroupEventsProcessor(coordination, host.clock, budget),
            ResetProcessor(coordination, connections, store, state.topics, budget),
            ReplyProcessor(connections, host.clock),
            AssignmentProcessor(coordination, self._route),
            status,
            SettingsProcessor(self.settings),
            TopicAdminProcessor(
                topic, changes, state.topics, store, host.clock, budget, self._learn_layouts, (config.name, config.cluster)
            ),
            GroupAdminProcessor(status, coordination, host.clock, budget),
            BrokerAdminProcessor(
                self.settings,
                self._statistics,
                lambda: runtime_info(self.status(), self._statistics, state, store, self.config),
                lambda: self.address,
            ),
            LockProcessor(host, coordination, store),
            OffsetProcessor(host, coordination, store),
        ]
        self._dispatcher = Dispatcher(processors, store.writer, LANES, self._on_request, budget)
        self._server = server = Server(
            host, config.listeners(), self._handle, LIMITS, on_close=self._on_close, connections_max=connections_max
        )
        self._effects = EffectRunner(coordination.state.pending, server.endpoints, pulls.stale, self._date_events)
        self._leases = LeaseTimer(host, coordination)
        store.writer.on_arrival = self._on_arrival
        store.writer.after_arrivals = pulls.serve_woken
        state.on_topic_changed += [pulls.topic_changed, topic.topic_changed]
        self._metrics = BrokerMetrics(config, store, state, pulls, figures)
        return server

    def _date_events(self) -> None:
        clock = self._host.clock
        self.state.coordination.state.events.stamp(clock.boot_ms(), clock.wall_ms())

    async def _wait_until_known(self) -> None:
        """Wait until the nameservers know the layouts of this broker, for a short time at most."""
        if self._registration is not None:
            await self._registration.wait_until_known()

    async def _learn_layouts(self) -> None:
        """Adopt the layouts that other brokers have registered before, within a short time at most."""
        if self._registration is not None:
            await self._registration.learn()

    async def _route(self, topic: str) -> TopicRoute | None:
        """Return a topic's route as clients get it from the nameservers."""
        if self._registration is None:
            raise TransportError("this broker has no nameserver")
        return await self._registration.route(topic)

    async def _enter_term(self, opened: OpenedStore, state: BrokerState, recovery: Recovery) -> None:
        """Begin a new term, durable before the first response under it. Then store the boot id: a second crash must not hide the first."""
        clock, boot_id, store = self._host.clock, self._host.boot_id(), opened.store
        assumed_loss = store.may_have_forgotten(boot_id) or recovery.lost_synced
        last_term = max(state.coordination.state.term, store.last_term)
        # A version that does not write lockstep/term may have run since: then only the log has its term.
        self._previous_term = store.accepted_term if last_term == store.last_term else last_term
        term = next_term(last_term, clock.wall_ms())
        if store.restored:
            # Nameservers may have accepted later terms of the original, all below this one: from now on they refuse the original.
            self._previous_term = term - 1
            log.warning("store.restored", term=term, then="every generation rises; the original of this store is refused from now on")
        state.coordination.set_day(store.safe_now_ms())
        store.record_clock()
        state.record_store_id()
        state.coordination.enter_term(term, assumed_loss=assumed_loss, now_ms=clock.boot_ms())
        if opened.foreign is not None:
            await take_over(self._host, self.config.nameservers(), self.config.store_path(), state, opened.foreign)
        state.write_changes()
        await store.sync()
        await opened.mark_adopted()
        await store.mark_terms(accepted=term, last=term)
        await store.mark_boot(boot_id)
        self._marked = True
        log.info(
            "log.recovered", end=recovery.end, cut_bytes=recovery.cut_bytes, clean=recovery.clean, assumed_loss=assumed_loss, term=term
        )

    async def _register(self, store: Store, state: BrokerState) -> None:
        """Return when one nameserver has accepted this broker and none has refused it, or at once without nameservers.

        The mark of a restored backup is cleared then, and not before: a start that was refused or killed is repeated as the first one. A
        start without nameservers keeps it.
        """
        nameservers = self.config.nameservers()
        if not nameservers:
            return
        names = self.config.name, self.config.cluster
        identity = BrokerIdentity(*names, store.store_id, self.term, self.addresses, store.proof, self._previous_term)
        self._registration = registration = NameserverRegistration(
            self._host,
            self._tasks,
            identity,
            nameservers,
            layouts=state.layouts.all,
            adopt=state.topics.adopt,
            full=lambda: state.topics.is_full,
            auto_create=lambda: self._topics is not None and self._topics.auto_create,
        )
        state.on_topic_changed.append(lambda _topic: registration.register_soon())
        registration.start()
        try:
            await registration.wait_until_accepted()
        except RegistrationRefusedError:
            if registration.is_accepted_nowhere:
                # A refused start is not part of the store's history: a copy that is started repeatedly must not become part of it.
                await store.mark_terms(accepted=self._previous_term, last=self.term)
            raise
        await store.clear_restored()

    def _open(self, state: BrokerState) -> None:
        """Begin leases and background work, when the port is open."""
        assert self._maintenance is not None
        assert self._leases is not None
        assert self._copies is not None
        state.coordination.port_opened(self._host.clock.boot_ms())
        self._leases.start()
        self._effects.run_slice()
        maintenance = self._maintenance
        loops = {
            "snapshots": maintenance.keep_snapshots(),
            "retention": maintenance.keep_retention(),
            "scrub": maintenance.keep_scrubbed(),
            "dropped keys": self._copies.keep_dropping(),
        }
        for name, loop in loops.items():
            self._maintenance_tasks.append(self._tasks.spawn(loop, f"broker.{name}"))
        self._delivering = self._tasks.spawn(self._delays.run(), "broker.delays")
        assert self._store is not None
        assert self._pulls is not None
        assert self._failures is not None
        self._tasks.spawn(self._statistics.run(self._store, self._pulls, self._failures, self._host.clock), "broker.statistics")

    # --------------------------------------------------------------------------------------------------------------- running

    def health(self) -> Health:
        """Return the health for the admin port."""
        if self._failed:
            return Health("the broker has failed")
        if self._gate.closed_because is not None:
            return Health(unready=(self._gate.closed_because,))
        if not self._opened or self._store is None:
            read_to = 0 if self._store is None else self._store.reading.position
            return Health(
                unready=(f"starting: the store is recovering (log read to {read_to}), or no nameserver has accepted the broker yet",)
            )
        reasons = []
        disk = self._store.disk_status()
        if disk.refusal is not None:
            reasons.append(disk.refusal)
        states = {} if self._registration is None else self._registration.states()
        if states and RegistrationState.ACCEPTED not in states.values():
            reasons.append(
                "not registered with any nameserver: " + ", ".join(f"{address} {state.value}" for address, state in states.items())
            )
        return Health(unready=tuple(reasons))

    def status(self) -> BrokerStatus:
        """Return the status for tools. Raise StateError before the store is open."""
        if self._store is None:
            raise StateError("the broker is not started")
        config, clock, disk = self.config, self._host.clock, self._store.disk_status()
        return BrokerStatus(
            broker_name=config.name,
            cluster=config.cluster,
            store_id=self._store.store_id[:8],
            term=self.term,
            listeners=self.addresses,
            wall_ms=clock.wall_ms(),
            up_ms=clock.monotonic_ms() - self._opened_ms,
            log_bytes=disk.log_bytes,
            disk_total_bytes=disk.total_bytes,
            disk_free_bytes=disk.free_bytes,
            disk_reserve_bytes=disk.reserve_bytes,
            nameservers=() if self._registration is None else self._registration.statuses(),
            descriptor_limit=self._host.descriptors.limit,
            damaged_messages=self._store.damage.message_count,
            damaged_bytes=self._store.scrubber.damaged_bytes,
            topics_deleted=self.state.layouts.deleted_count,
            topics_deleted_max=TOMBSTONES_MAX,
            disk_refusal=disk.refusal,
            delayed_messages=None if self._delays is None else self._delays.pending_count(),
        )

    def _apply(self, config: BrokerConfig) -> None:
        """Hand changed settings to every part that uses one, except the log level (RunningSettings)."""
        assert self._store is not None
        assert self._topics is not None
        assert self._pulls is not None
        before, state = self.config, self.state
        self._store.apply(config.store_config())
        state.coordination.state.config = config.coordination()
        state.topics.topics_max = config.topics_max
        self._topics.auto_create = config.auto_create_topics
        self._pulls.limit_held(config.held_pulls_max, config.held_pulls_per_group_max)
        if config.retention_hours != before.retention_hours:
            _check_delays(config)

    async def _render_metrics(self) -> bytes:
        if self._metrics is None or not self._opened or self._server is None:
            return b""
        states = {} if self._registration is None else self._registration.states()
        return await self._metrics.render(states, self._connection_count())

    def _connection_count(self) -> int:
        return 0 if self._server is None else len(self._server.endpoints)

    async def _close_admin_port(self) -> None:
        if self.admin_port is not None:
            await self.admin_port.stop()

    def _handle(self, command: Command, endpoint: Endpoint) -> None:
        assert self._dispatcher is not None
        if self._failed:
            return
        self._dispatcher(command, endpoint)

    def _on_request(self, endpoint: Endpoint) -> None:
        self.state.coordination.state.sessions.touch(endpoint.id, self._host.clock.boot_ms())

    def _on_arrival(self, topic: str, queue_id: int) -> None:
        assert self._pulls is not None
        if topic == SCHEDULE_TOPIC:
            self._delays.on_arrival(queue_id)
        else:
            self._pulls.arrived(topic, queue_id)

    def _on_close(self, endpoint: Endpoint, _reason: str) -> None:
        assert self._pulls is not None
        self._pulls.connection_closed(endpoint)
        if not self._failed and self._gate.closed_because is None:
            self.state.coordination.membership.connection_closed(endpoint.id, self._host.clock.boot_ms())

    def _fail(self, error: BaseException) -> None:
        """Stop responding: acknowledged data may not be on the disk."""
        if self._failed:
            return
        self._failed = True
        self._gate.closed_because = "the broker has failed"
        for endpoint in list(self._server.endpoints.values()) if self._server is not None else []:
            endpoint.abort("the broker has failed")
        if self.on_fatal is not None:
            self.on_fatal(error)

    # ------------------------------------------------------------------------------------------------------------------ stop

    async def stop(self) -> None:
        """Stop in order. After a start that failed, close what it had opened."""
        self._gate.closed_because = self._gate.closed_because or "the broker is shutting down"
        store, server = self._store, self._server
        if store is None:
            await self._close_admin_port()
            return
        if self._leases is not None:
            self._leases.stop()
        if self._delivering is not None:
            self._delivering.cancel()
        if not self._failed and self._marked:
            await self._drain(store)
        if server is not None:
            await server.close("the broker is shutting down")
        if self._dispatcher is not None:
            await self._dispatcher.close()
        clean = self._marked and not self._failed
        if self._maintenance is not None:
            self._maintenance.stop()
            if self._copies is not None:
                self._copies.stop()
            await asyncio.gather(*self._maintenance_tasks, return_exceptions=True)
        await self._tasks.cancel_all()
        if clean and self._maintenance is not None:
            await self._maintenance.snapshot()
        await self._close_admin_port()
        await store.close(clean=clean, refused=not self._marked and not self._failed)
        self._store = None
        if self._opened:
            log.info("broker.stopped", name=self.config.name, clean=clean)

    async def _drain(self, store: Store) -> None:
        """Respond to held pulls, sync everything that was acknowledged, and unregister from the nameservers."""
        assert self._pulls is not None
        assert self._server is not None
        self._server.stop_accepting()
        self._pulls.stop()
        await store.sync()
        if self._registration is not None:
            await self._registration.stop()


def _check_delays(config: BrokerConfig) -> None:
    """Log a warning if retention removes messages before their delay is over."""
    retention_ms = config.retention_hours * 3_600_000
    if too_long := [format_delay(delay_ms) for delay_ms in config.delay_levels_ms() if delay_ms >= retention_ms]:
        why = "retention may remove messages with this delay before they are due"
        log.warning("delay.outlives_retention", delays=too_long, retention_hours=config.retention_hours, why=why)
