"""The parts of a broker, created and connected when its store has been read. The only file that knows all of them."""

import asyncio
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

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
from lockstep.broker.config import MIB, BrokerConfig
from lockstep.broker.delivery.delayed_delivery import DelayedDelivery
from lockstep.broker.delivery.failed_messages import FailedMessages
from lockstep.broker.delivery.group_topics import GroupTopics
from lockstep.broker.delivery.home_delivery import HomeDelivery
from lockstep.broker.delivery.parked_copies import ParkedCopies
from lockstep.broker.delivery.room_bytes import RoomBytes
from lockstep.broker.delivery.room_carry import RoomCarry
from lockstep.broker.delivery.timer_delivery import TimerDelivery
from lockstep.broker.figures.figures import Figures
from lockstep.broker.figures.metrics import BrokerMetrics
from lockstep.broker.groups.coordination import next_term
from lockstep.broker.groups.effect_runner import EffectRunner
from lockstep.broker.groups.lease_timer import LeaseTimer
from lockstep.broker.maintenance import StoreMaintenance
from lockstep.broker.nameserver_registration import BrokerIdentity, NameserverRegistration, RegistrationRefusedError, RegistrationState
from lockstep.broker.office.office import Office
from lockstep.broker.office.ruling import Ruling
from lockstep.broker.office.standing import Tenure
from lockstep.broker.processors.client import ClientProcessor
from lockstep.broker.processors.group_changes import GroupChangesProcessor
from lockstep.broker.processors.group_events import GroupEventsProcessor
from lockstep.broker.processors.lock import LockProcessor
from lockstep.broker.processors.offset import OffsetProcessor
from lockstep.broker.processors.overview import OverviewProcessor
from lockstep.broker.processors.park import ParkProcessor
from lockstep.broker.processors.pull import UNSENT_BYTES_MAX, PullProcessor
from lockstep.broker.processors.purge import PURGE_LANE, PurgeProcessor
from lockstep.broker.processors.query import QUERY_LANE, QueryProcessor
from lockstep.broker.processors.replication import ReplicaServerProcessor, StatusOfCopyProcessor
from lockstep.broker.processors.rooms.check_back import CheckBack
from lockstep.broker.processors.rooms.end_transaction import TRANSACTION_LANE, EndTransactionProcessor
from lockstep.broker.processors.rooms.list_halves import ListHalvesProcessor
from lockstep.broker.processors.rooms.recall import RecallProcessor
from lockstep.broker.processors.rooms.waiting import WaitingProcessor
from lockstep.broker.processors.send import SendProcessor
from lockstep.broker.processors.send_back import SEND_BACK_LANE, SendBackProcessor
from lockstep.broker.processors.send_message import SendMessageProcessor
from lockstep.broker.processors.sent_frames import UNCONFIRMED_MAX, SentFrames, WaitingLimits
from lockstep.broker.processors.settings import SettingsProcessor
from lockstep.broker.processors.start_offsets import START_LANE
from lockstep.broker.processors.status import StatusProcessor
from lockstep.broker.processors.topic import ROUTE_LANE, TopicProcessor
from lockstep.broker.processors.user_quotas import UserQuotas
from lockstep.broker.replication.asking import RoleChangesError, RoleError, ask_before_start
from lockstep.broker.replication.copy_identity import Role, read_copy_identity
from lockstep.broker.replication.serving import REPLICA_LANE, ReplicaServer
from lockstep.broker.replication.start_rules import CopyStatus
from lockstep.broker.rocketmq_store.adoption import take_over
from lockstep.broker.rocketmq_store.opening import OpenedStore
from lockstep.broker.running_settings import RunningSettings
from lockstep.broker.state import BrokerState
from lockstep.broker.store import Recovery
from lockstep.broker.store.start.directory import StoreDirectory
from lockstep.broker.tables.send_gate import SendGate
from lockstep.broker.tables.topic_table import TOMBSTONES_MAX
from lockstep.broker.tables.write_holds import WriteHolds
from lockstep.protocol.bodies import BrokerStatus, ReplicaStatus
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import Command
from lockstep.protocol.delays import format_delay
from lockstep.protocol.errors import LocalProtocolError, NotLeaderError
from lockstep.protocol.messages.ids import store_host_of
from lockstep.protocol.messages.record import RecordView
from lockstep.protocol.names import HALF_TOPIC, INTERNAL_LISTENER, SCHEDULE_TOPIC, TIMER_TOPIC, TRACE_TOPIC
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.connections.server import Server
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from lockstep.runtime.limits import EndpointLimits
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.requests.audit import RequestAudit
from lockstep.runtime.requests.dispatch import Dispatcher
from lockstep.runtime.requests.lanes import LANE_ITEMS_PER_TURN, LaneLimits
from lockstep.runtime.requests.login import LoginProcessor
from lockstep.runtime.requests.request import Request
from lockstep.runtime.security.server_security import ServerSecurity
from lockstep.runtime.turn import TurnBudget

log = get_logger("broker")

COMPLETE_S = 5
"""How long a master that stops waits for its set, which may be unable to shrink."""
REGISTER_S = 0.3
"""How long an elected master waits for its nameservers before it opens its ports."""
ASK_AGAIN_S = 1
"""How often a start asks replicas of its set that do not answer."""
EARLY = frozenset(
    {
        *(RequestCode.REPLICA_FOLLOW, RequestCode.REPLICA_FETCH, RequestCode.REPLICA_ACK, RequestCode.REPLICA_FILE),
        *(RequestCode.REPLICA_STATUS, RequestCode.AUTHENTICATE),
    }
)
"""What an elected master serves before it opens."""
LIMITS = EndpointLimits(unsent_bytes_high=UNSENT_BYTES_MAX, unsent_bytes_low=UNSENT_BYTES_MAX // 4)
LANES = {
    QUERY_LANE: LaneLimits(concurrency=2, queue_max=256),
    START_LANE: LaneLimits(concurrency=2, queue_max=1_024, bytes_max=16 << 20),
    SEND_BACK_LANE: LaneLimits(concurrency=2, queue_max=16_384),
    ROUTE_LANE: LaneLimits(concurrency=256, queue_max=4_096),
    TRANSACTION_LANE: LaneLimits(concurrency=2, queue_max=4_096),
    RELAY_LANE: LaneLimits(concurrency=64, queue_max=256),
    PURGE_LANE: LaneLimits(concurrency=1, queue_max=16),
    REPLICA_LANE: LaneLimits(concurrency=2, queue_max=64),
}
"""At most eight searches and reads of single messages run at a time, since they use threads of the host. The queues hold 256 requests of
tools, one LOCK of each of 1,024 members that start by time, thousands of messages that consumers send back, and of ends of transactions. A
response in ROUTE_LANE waits for nameservers and one in RELAY_LANE for a member of a group; they use no thread, nor do purges."""
TRIED_MAX = 16
"""Starts in a row that may end before it is certain that a nameserver has accepted them; of more, the latest are known."""


class RunningBroker:
    """A broker whose store has been read. All parts exist from the beginning to the end.

    `Broker` calls `bind`, `enter_term`, `register` and `open` in this order, and `stop` at any time.
    """

    def __init__(
        self,
        host: Host,
        tasks: Tasks,
        settings: RunningSettings,
        gate: SendGate,
        opened: OpenedStore,
        state: BrokerState,
        *,
        listeners: Mapping[str, tuple[str, int]],
        connections_max: int,
        security: ServerSecurity,
        audit: RequestAudit,
        office: Office | None = None,
        tenure: Tenure | None = None,
        hand_over: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`office`, `tenure`: the register, and what it says of this master; None without one. `hand_over` begins to hand it over to a
        member of the set."""
        self._hand_over = hand_over
        self._office = office
        self._host = host
        self._tasks = tasks
        self._settings = settings
        self._gate = gate
        self._opened = opened
        self._peers = security.peers
        self.store = store = opened.store
        self.state = state
        self.addresses: dict[str, str] = {}
        """Listener name → advertised address."""
        self.is_marked = False
        """Whether this start's term is durable and its boot id stored: from then on a stop can be clean."""
        self.is_open = False
        self._opened_ms = 0
        self._previous_term = 0
        """The term of the store's last start that was certainly accepted; 0 if there was none."""
        self._tried: tuple[int, ...] = ()
        """The terms of the starts since then."""
        self._deliveries: list[asyncio.Task[None]] = []
        """The task that delivers delayed messages, which ends before everything else."""
        self._loops: list[asyncio.Task[None]] = []
        """Tasks that end by themselves after a stop, because their work is never interrupted half-way."""
        config, coordination, holds, budget = settings.config, state.coordination, WriteHolds(), TurnBudget(LANE_ITEMS_PER_TURN)
        self.registration = registration = NameserverRegistration(
            host,
            tasks,
            self._identity,
            config.nameservers(),
            security=security.peers,
            when_confirmed=store.writer.when_confirmed,
            layouts=state.layouts.all,
            adopt=state.topics.adopt,
            full=lambda: state.topics.is_full,
            auto_create=lambda: self.topics.auto_create,
            replicas=lambda: self.replicas.other_addresses(),
            superseded=lambda _term: None if self.ruling is None else self.ruling.look_soon(),
        )
        self.topics = topics = TopicProcessor(
            state.topics,
            holds,
            host.clock,
            auto_create=config.auto_create_topics,
            wait_until_known=registration.wait_until_known,
            may_begin=store.check_new_state,
        )
        self.quotas = quotas = UserQuotas(security.users, host.clock)
        self.pulls = pulls = PullProcessor(
            host,
            tasks,
            store,
            state.topics,
            coordination,
            quotas=quotas,
            held_max=config.held_pulls_max,
            held_per_group_max=config.held_pulls_per_group_max,
            traced=config.trace_topic,
        )
        group_topics = GroupTopics(state.topics, store.check_new_state, lambda topic: holds.holds(topic, host.clock.boot_ms()))
        self.home = home = HomeDelivery(store, group_topics)
        self.delays = delays = DelayedDelivery(store, state.delays, group_topics, home, config.delay_levels_ms())
        self.timers = TimerDelivery(store, state.timers, home, host.clock)
        self.carries: tuple[RoomCarry[Any], ...] = (
            RoomCarry(store, TIMER_TOPIC, state.timers),
            RoomCarry(store, HALF_TOPIC, state.transactions),
        )
        self.failed = failed = FailedMessages(store, coordination, delays, group_topics)
        self.copies = ParkedCopies(store, coordination, failed, gate)
        self.tenure = tenure
        self.ruling: Ruling | None = None
        store.writer.proves_office = tenure is not None
        ask, store_members, lost = self._ask_again if tenure is None else None, None, ""
        if office is not None and tenure is not None:
            self.ruling = ruling = Ruling(host, tasks, office, tenure, gate, config.silence_ms, lambda: self.address)
            store_members, lost = partial(self._store_members, ruling), tenure.deposed
        copy_identity, other = read_copy_identity(opened.directory), config.replica_of or ""
        of_log = host, tasks, store, state, lambda: self.address, copy_identity
        self.replicas = ReplicaServer(*of_log, ask, other, store_members, lost)
        self.replicas.catch_up_bytes_s = config.catch_up_mib_s << 20
        self.replicas.on_recorded = registration.register_soon
        self.replicas.on_forgotten = self._store_known
        self.timer_bytes = RoomBytes(store, TIMER_TOPIC, state.timers, lambda: self._timer_bytes_max(self._settings.config))
        self.maintenance = StoreMaintenance(host, store, state, self._before_removal)
        self.statistics = Statistics(config.cluster)
        figures = Figures(host.clock, store, state, pulls)
        login = LoginProcessor(host, security, audit)
        processors = self._make_processors(holds, group_topics, figures, budget, login)
        self.dispatcher = Dispatcher(
            [*processors, login],
            store.writer,
            LANES,
            self._on_request,
            budget,
            login.gate,
            audit,
            in_office=None if tenure is None else store.writer.when_in_office,
            check_office=self._check_office,
        )
        self.server = server = Server(
            host,
            listeners,
            self._handle,
            LIMITS,
            on_connect=login.connected,
            on_close=self._on_close,
            connections_max=connections_max,
            security=security,
        )
        parts = coordination.state.pending, server.endpoints, pulls.stale, self._date_events
        self._effects = EffectRunner(*parts, when_confirmed=store.writer.when_confirmed)
        self._leases = LeaseTimer(
            host, coordination, lambda: server.half_open_count > 0 or login.awaited_count > 0, lambda: self._is_suspended
        )
        self._metrics = BrokerMetrics(
            config,
            store,
            state,
            pulls,
            figures,
            audit,
            quotas,
            self.replica_status,
            self.timers,
            lambda: self._settings.config.timer_pending_max,
            self.timer_bytes,
            lambda: (self.ends.committed_count, self.ends.rolled_back_count, self.checks.asked_count),
            self.checks.expired_count,
        )
        store.writer.on_arrival = self._on_arrival
        store.writer.after_arrivals = pulls.serve_woken
        state.on_topic_changed += [pulls.topic_changed, topics.topic_changed]

    def _make_processors(
        self, holds: WriteHolds, group_topics: GroupTopics, figures: Figures, budget: TurnBudget, login: LoginProcessor
    ) -> list[object]:
        """Return one processor for each family of requests."""
        host, store, state, settings, gate = self._host, self.store, self.state, self._settings, self._gate
        topics, pulls, failed, copies = self.topics, self.pulls, self.failed, self.copies
        coordination, config, registration, statistics = state.coordination, settings.config, self.registration, self.statistics
        connections = ClientConnections(coordination)
        self.checks = CheckBack(host, store, state.transactions, connections, self._check_terms, group_topics.deleted_since)
        self.ends = EndTransactionProcessor(store, state.transactions, self.home, self.checks.ask_soon)
        rooms = state.timers, state.transactions, waiting_limits(config)
        self.frames = frames = SentFrames(store, state.topics, gate, holds, host.clock, self.quotas, *rooms, self.timer_bytes)
        groups = GroupChangesProcessor(coordination)
        changes = TopicChanges(state.topics, coordination, holds, topics.check_disk, store, state.transactions.__len__)
        names = config.name, config.cluster
        return [
            SendProcessor(state.sequences, frames, connections.client_id),
            SendMessageProcessor(
                frames,
                topics,
                failed,
                host.random,
                connections,
                broker_name=config.name,
                cluster=config.cluster,
                traced=config.trace_topic,
            ),
            SendBackProcessor(host, store, coordination, failed, gate),
            ParkProcessor(store, coordination, copies),
            pulls,
            QueryProcessor(store, state.topics, self._waits, self.timers.recalled, coordination.state.progress.first_offset, host.clock),
            RecallProcessor(store, state.timers, config.name),
            ListHalvesProcessor(
                store, state.transactions, self.checks.expires_ms, lambda client_id: connections.producer(client_id) is not None, budget
            ),
            self.ends,
            WaitingProcessor(store, state.timers, group_topics.deleted_since, budget, config.name),
            PurgeProcessor(store, state, self.maintenance.move_groups),
            topics,
            ClientProcessor(host, coordination, group_topics, topics, budget, connections, pulls.held_offset, pulls.disk_count),
            GroupsProcessor(coordination, connections, budget),
            ConsumeStatsProcessor(host, coordination, store, state.topics, budget),
            RelayProcessor(coordination, connections, store),
            OverviewProcessor(coordination, figures, store, budget, self.status, self._connection_count, lambda: pulls.held_count),
            GroupEventsProcessor(coordination, host.clock, budget),
            ReplicaServerProcessor(self.replicas, store, *names, self._hand_over, self._restore_entry),
            StatusOfCopyProcessor(self.replica_status, config.name, lambda: (store, state)),
            ResetProcessor(coordination, connections, store, state.topics, budget),
            ReplyProcessor(connections, host.clock, self.quotas),
            AssignmentProcessor(coordination, registration.route),
            StatusProcessor(self.status),
            groups,
            SettingsProcessor(settings, login),
            TopicAdminProcessor(topics, changes, state.topics, store, host.clock, budget, registration.learn, names),
            GroupAdminProcessor(groups, coordination, host.clock, budget),
            BrokerAdminProcessor(
                settings,
                statistics,
                lambda: runtime_info(self.status(), statistics, state, store, settings.config),
                lambda: self.address,
            ),
            LockProcessor(host, coordination, store),
            OffsetProcessor(host, coordination, store),
        ]

    @property
    def address(self) -> str:
        """Return the address of the listener named `internal`. Raises KeyError before `bind`."""
        return self.addresses[INTERNAL_LISTENER]

    @property
    def term(self) -> int:
        return self.state.coordination.state.term

    # ----------------------------------------------------------------------------------------------------------------- start

    async def bind(self) -> None:
        """Bind the ports. No connection is accepted yet. Raises ConfigError if there is no address to advertise."""
        config = self._settings.config
        await self.server.bind()
        self.addresses = await advertise(self.server.addresses, config.advertised(), config.nameservers())
        self.store.store_host = store_host_of(self.address, self.store.store_id)

    async def ask_replicas(self, recovery: Recovery) -> None:
        """Return when the replicas that this store knows have nothing against its start (start_rules.py).

        Raises RoleError (exit 4), or RoleChangesError (exit 1) because of the copy that the settings name.
        """
        copy_identity, config, store = self.replicas.copy_identity, self._settings.config, self.store
        if self.tenure is not None or copy_identity is None or config.alone or not (copy_identity.known or copy_identity.members):
            return
        if copy_identity.promoted and store.restored:
            return  # it was promoted, and others were asked then, unless that was forced
        forgot = store.may_have_forgotten(self._host.boot_id()) or recovery.lost_synced
        await self._until_answered(CopyStatus(self.state.coordination.state.term, recovery.end, forgot))

    async def _ask_again(self) -> None:
        """Do the same after the process was suspended. No replica has more than a master that runs. Raises RoleError."""
        if not self._settings.config.alone:
            await self._until_answered(CopyStatus(self.term, sys.maxsize, may_have_forgotten=False))

    async def _until_answered(self, own: CopyStatus) -> None:
        config, store, waited = self._settings.config, self.store, False
        while (copy_identity := self.replicas.copy_identity) is not None:
            known = copy_identity.members, copy_identity.known
            verdict = await ask_before_start(self._host, config.name, store.store_id, self.address, own, *known, self._peers)
            if verdict.refused:
                raise (RoleChangesError if verdict.refused_by == config.replica_of else RoleError)(verdict.refused)
            if not verdict.waiting_for:
                return
            if not waited:
                waited = True
                then = "start these, promote one of them, or start with --alone and lose what only they have"
                log.warning("broker.waits_for_replicas", replicas=verdict.waiting_for, then=then)
            await asyncio.sleep(ASK_AGAIN_S)

    def replica_status(self) -> ReplicaStatus:
        """Return the status of this copy of the log."""
        config, store, copy_identity = self._settings.config, self.store, self.replicas.copy_identity
        ends = store.log_bounds[1], store.writer.confirmed, store.log_bounds[1]
        member = "" if copy_identity is None else copy_identity.member
        identity = config.name, config.cluster, store.store_id
        register = None if self._office is None else self._office.standing()
        standings = self.replicas.standings()
        return ReplicaStatus(*identity, str(Role.MASTER), member, self.term, *ends, replicas=standings, register=register)

    async def enter_term(self, recovery: Recovery) -> None:
        """Begin a new term, durable before the first response under it. Then store the boot id: a second crash must not hide the first."""
        clock, boot_id, store, state = self._host.clock, self._host.boot_id(), self.store, self.state
        assumed_loss = store.may_have_forgotten(boot_id) or recovery.lost_synced
        log_term, accepted = state.coordination.state.term, store.accepted_term
        if log_term > accepted and log_term not in store.tried_terms:
            accepted = log_term  # of a master that this copy has followed since
        self._previous_term = accepted
        term = next_term(max(log_term, store.last_term), clock.wall_ms())
        self._tried = tuple(each for each in store.tried_terms if each > accepted)[-TRIED_MAX:]
        if (tenure := self.tenure) is not None:
            # Whoever was elected has what was confirmed, or the register says that it may not.
            term, assumed_loss = tenure.term, tenure.assumed_loss or recovery.lost_synced
            self._previous_term = tenure.replaced_term or self._previous_term
        elif store.restored:
            # Nameservers may have accepted later terms of the original, all below this one: from now on they refuse the original.
            self._previous_term = term - 1
            log.warning("store.restored", term=term, then="every generation rises; the original of this store is refused from now on")
        state.coordination.set_day(store.safe_now_ms())
        store.record_clock()
        state.record_store_id()
        state.coordination.enter_term(term, assumed_loss=assumed_loss, now_ms=clock.boot_ms())
        self.replicas.began(recovery.end, assumed_loss=assumed_loss, has_lost=recovery.lost_synced)
        if (foreign := self._opened.foreign) is not None:
            config = self._settings.config
            await take_over(self._host, config.nameservers(), self._peers, config.store_path(), store, state, foreign)
        state.write_changes()
        await store.sync()
        await self._opened.mark_adopted()
        # Whether nameservers accept it is not known yet: a copy that is killed before must not count as one that was accepted.
        decided = self.tenure is not None or not self._settings.config.nameservers()
        await store.mark_terms(accepted=term if decided else accepted, tried=(*self._tried, term))
        await store.mark_boot(boot_id)
        self.is_marked = True
        log.info(
            "log.recovered", end=recovery.end, cut_bytes=recovery.cut_bytes, clean=recovery.clean, assumed_loss=assumed_loss, term=term
        )
        state.topics.keep_stored_queues()

    async def take_office(self) -> None:
        """Return when every copy that may be elected has this term, or has left the set. Raises DeposedError."""
        if self.ruling is not None:
            self._tasks.spawn(self.ruling.watch(self.replicas.unheard_ms), "broker.office")
            await self.server.start()  # for its replicas: whoever follows at once stays in the set
            await self.ruling.while_in_office(self.store.writer.wait_confirmed())

    async def register(self) -> None:
        """Return when one nameserver has accepted this broker and none has refused it, or at once without nameservers.

        The mark of a restored backup is cleared then, and not before: a start that was refused or killed is repeated as the first one. A
        start without nameservers keeps it, unless it is that of a promoted replica. Raises RegistrationRefusedError.
        """
        config, state, store, registration = self._settings.config, self.state, self.store, self.registration
        if config.nameservers():
            state.on_topic_changed.append(lambda _topic: registration.register_soon())
            registration.start()
            try:
                # Nobody waits for the nameservers of an elected master: the register is the authority.
                async with asyncio.timeout(None if self.tenure is None else REGISTER_S):
                    await registration.wait_until_accepted()
            except TimeoutError:
                log.warning("registration.later", nameservers=list(registration.states()), then="the ports open before they have answered")
            except RegistrationRefusedError:
                if self.replicas.is_complete_copy:
                    # Its old master has served again after its orderly stop: the next start assumes a loss.
                    await store.change_directory(StoreDirectory.mark_restored)
                raise
            if self.tenure is None:  # otherwise the register has decided, and a failover need not wait for another sync
                await store.mark_terms(accepted=self.term, tried=(self.term,))
            await store.clear_restored()
            await self.replicas.accepted()
        elif self.replicas.is_promoted:  # nobody else decides about it, and its next start has to ask its replicas
            await store.clear_restored()
            await self.replicas.accepted()
        if config.trace_topic:  # now the layouts of the other brokers are known
            state.topics.create_system(TRACE_TOPIC)

    def _identity(self) -> BrokerIdentity:
        config, store = self._settings.config, self.store
        identity = config.name, config.cluster, store.store_id, self.term, self.addresses, store.proof, self._previous_term
        return BrokerIdentity(*identity, self._tried, office=self.tenure is not None)

    async def _store_members(self, ruling: Ruling, members: dict[str, str]) -> None:
        await ruling.store_members(members, self.replicas.known())

    def _store_known(self) -> None:
        if self.ruling is not None:
            self._tasks.spawn(self.ruling.store_known(self.replicas.known), "broker.known_replicas")

    async def _restore_entry(self) -> None:
        """Write this master's entry into a register that has lost it. Raises LocalProtocolError if there is nothing to restore."""
        if self.ruling is None or not await self.ruling.restore(self.replicas.members(), self.replicas.known()):
            raise LocalProtocolError(f"{self.address} is the master of broker {self._settings.config.name} already: nothing was changed")

    async def open(self) -> None:
        """Open the ports, and begin leases and background work."""
        clock, maintenance = self._host.clock, self.maintenance
        await self.server.start()
        self._opened_ms = clock.monotonic_ms()
        self.state.coordination.port_opened(clock.boot_ms())
        self._leases.start()
        self._effects.run_slice()
        loops = {
            "snapshots": maintenance.keep_snapshots(),
            "retention": maintenance.keep_retention(),
            "scrub": maintenance.keep_scrubbed(),
            "dropped keys": self.copies.keep_dropping(),
        }
        for name, loop in loops.items():
            self._loops.append(self._tasks.spawn(loop, f"broker.{name}"))
        self._deliveries.append(self._tasks.spawn(self.delays.run(), "broker.delays"))
        self._deliveries.append(self._tasks.spawn(self.timers.run(), "broker.timers"))
        self._deliveries.append(self._tasks.spawn(self.checks.run(), "broker.transactions"))
        self._deliveries.append(self._tasks.spawn(self.timer_bytes.run(), "broker.timer_bytes"))
        self._tasks.spawn(self.statistics.run(self.store, self.pulls, self.failed, clock), "broker.statistics")
        self.is_open = True

    def _waits(self, data: bytes) -> bool:
        """Return whether the message of a stored record of a topic of waiting messages may still be delivered."""
        record = RecordView(data)
        if record.topic == HALF_TOPIC.encode():
            return self.state.transactions.find(record.queue_offset) is not None and self.home.still_waits(record)
        return self.timers.waits(data) if record.topic == TIMER_TOPIC.encode() else self.delays.waits(data)

    def _timer_bytes_max(self, config: BrokerConfig) -> int:
        """Return how many bytes of the log pending timers may take."""
        if config.timer_mib_max is not None:
            return config.timer_mib_max * MIB
        kept = self.store.disk_status().total_bytes * config.disk_used_percent_max // 100
        return max(MIB, min(kept, kept if config.log_mib_max is None else config.log_mib_max * MIB) // 4)

    def _check_terms(self) -> tuple[int, float]:
        config = self._settings.config
        return config.transaction_check_ms, config.transaction_hours_max

    async def _before_removal(self, position: int) -> int:
        await self.copies.copy_before(position)
        for carry in self.carries:
            position = await carry.carry_before(position)
        return position

    # --------------------------------------------------------------------------------------------------------------- running

    def unready_reasons(self) -> tuple[str, ...]:
        """Return why clients can't use the broker fully, for the admin port."""
        reasons = []
        disk = self.store.disk_status()
        if disk.refusal is not None:
            reasons.append(disk.refusal)
        reasons += [f"old log files can't be removed: {carry.refusal}" for carry in self.carries if carry.refusal]
        if self.replicas.is_in_doubt:
            reasons.append("it was suspended, and its replicas have not said yet whether one of them was promoted meanwhile")
        states = self.registration.states()
        if states and RegistrationState.ACCEPTED not in states.values():
            reasons.append(
                "not registered with any nameserver: " + ", ".join(f"{address} {state.value}" for address, state in states.items())
            )
        return tuple(reasons)

    def status(self) -> BrokerStatus:
        """Return the status for tools."""
        store, clock, config = self.store, self._host.clock, self._settings.config
        disk = store.disk_status()
        return BrokerStatus(
            broker_name=config.name,
            cluster=config.cluster,
            store_id=store.store_id[:8],
            term=self.term,
            listeners=self.addresses,
            wall_ms=clock.wall_ms(),
            up_ms=clock.monotonic_ms() - self._opened_ms,
            log_bytes=disk.log_bytes,
            disk_total_bytes=disk.total_bytes,
            disk_free_bytes=disk.free_bytes,
            disk_reserve_bytes=disk.reserve_bytes,
            nameservers=self.registration.statuses(),
            descriptor_limit=self._host.descriptors.limit,
            damaged_messages=store.damage.message_count,
            damaged_bytes=store.scrubber.damaged_bytes,
            topics_deleted=self.state.layouts.deleted_count,
            topics_deleted_max=TOMBSTONES_MAX,
            disk_refusal=disk.refusal,
            deferred_timers=self.timers.undelivered(),
            held_log="; ".join(carry.refusal for carry in self.carries if carry.refusal) or None,
            delayed_messages=self.delays.pending_count() + len(self.state.timers) + len(self.state.transactions),
        )

    def apply(self, config: BrokerConfig) -> None:
        """Hand changed settings to every part that uses one, except the log level (RunningSettings)."""
        before, state = self._settings.config, self.state
        self.store.apply(config.store_config())
        state.coordination.state.config = config.coordination()
        state.topics.topics_max = config.topics_max
        self.topics.auto_create = config.auto_create_topics
        self.replicas.catch_up_bytes_s = config.catch_up_mib_s << 20
        self.frames.limits = waiting_limits(config)
        self.timer_bytes.limit = self._timer_bytes_max(config)
        self.pulls.limit_held(config.held_pulls_max, config.held_pulls_per_group_max)
        if config.retention_hours != before.retention_hours:
            warn_of_short_retention(config)

    async def render_metrics(self) -> bytes:
        """Return the metrics for Prometheus."""
        return await self._metrics.render(self.registration.states(), self.server)

    def _connection_count(self) -> int:
        return len(self.server.endpoints)

    def _date_events(self) -> None:
        clock = self._host.clock
        self.state.coordination.state.events.stamp(clock.boot_ms(), clock.wall_ms())

    def _handle(self, command: Command, endpoint: Endpoint) -> None:
        if self._gate.has_failed:
            return
        if self.is_open or command.code in EARLY:
            self.dispatcher(command, endpoint)
        else:
            Request(command, endpoint).fail(NotLeaderError(f"{self.address} is not yet the master of broker {self._settings.config.name}"))

    @property
    def _is_suspended(self) -> bool:
        return self.ruling is not None and self.ruling.is_suspended

    def _check_office(self) -> None:
        """Raise NotLeaderError while nobody can say who the master is, or too many wait to hear it: clients ask the other copies."""
        if self._is_suspended or self.store.writer.unproven_count >= UNCONFIRMED_MAX:
            raise NotLeaderError(f"{self.address} can't prove now that it is the master of broker {self._settings.config.name}")

    def _on_request(self, endpoint: Endpoint) -> None:
        self.state.coordination.state.sessions.touch(endpoint.id, self._host.clock.boot_ms())

    def _on_arrival(self, topic: str, queue_id: int) -> None:
        if topic == SCHEDULE_TOPIC:
            self.delays.on_arrival(queue_id)
        elif topic == TIMER_TOPIC:
            self.timers.on_arrival()
        elif topic == HALF_TOPIC:
            self.checks.on_arrival()
        else:
            self.pulls.arrived(topic, queue_id)

    def _on_close(self, endpoint: Endpoint, _reason: str) -> None:
        self.pulls.connection_closed(endpoint)
        if self._gate.closed_because is None:
            self.state.coordination.membership.connection_closed(endpoint.id, self._host.clock.boot_ms())

    # ------------------------------------------------------------------------------------------------------------------ stop

    def cut_connections(self, reason: str) -> None:
        """Close every connection without sending what waits to be sent."""
        for endpoint in list(self.server.endpoints.values()):
            endpoint.abort(reason)

    async def stop(self, successor: str = "") -> bool:
        """Stop everything but the store, in order. Return whether the store has all that was acknowledged, and may be closed as clean.

        The gate is closed before. After a start that failed, stop what it had begun. `successor`: the only replica that may be elected at
        once.
        """
        self._leases.stop()
        for task in self._deliveries:
            task.cancel()
        if self._is_sound:
            await self._drain(successor)
        await self.server.close("the broker is shutting down")
        self.replicas.stop()
        await self.dispatcher.close()
        is_clean = self._is_sound
        self.maintenance.stop()
        self.copies.stop()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self._tasks.cancel_all()
        if is_clean:
            await self.maintenance.snapshot()
        return is_clean

    @property
    def _is_sound(self) -> bool:
        """Return whether all that was acknowledged is on the disk, or will be by a sync that needs no answer of a lost replica."""
        return self.is_marked and not self._gate.has_failed and not self.replicas.is_in_doubt

    async def _drain(self, successor: str) -> None:
        """Respond to held pulls, sync everything that was acknowledged, and unregister from the nameservers."""
        self.server.stop_accepting()
        self.pulls.stop()
        await self.store.sync()
        # Where another copy is elected now, nameservers route this broker until that one is registered.
        await self.registration.stop(unregisters=self.tenure is None or not self.replicas.replicas.members)
        try:
            async with asyncio.timeout(None if self.tenure is None else COMPLETE_S):
                await self.replicas.complete(successor)
        except TimeoutError:
            log.error(
                "office.not_handed_over", why=f"the set has not stored all of the log within {COMPLETE_S} s", then="it is elected anew"
            )


def warn_of_short_retention(config: BrokerConfig) -> None:
    """Log a warning if retention removes messages before their delay is over."""
    retention_ms = config.retention_hours * 3_600_000
    if too_long := [format_delay(delay_ms) for delay_ms in config.delay_levels_ms() if delay_ms >= retention_ms]:
        why = "retention may remove messages with this delay before they are due"
        log.warning("delay.outlives_retention", delays=too_long, retention_hours=config.retention_hours, why=why)


def waiting_limits(config: BrokerConfig) -> WaitingLimits:
    """Return the limits of the waiting rooms."""
    return WaitingLimits(config.timer_pending_max, config.timer_ms_max(), config.transactions_open_max)
