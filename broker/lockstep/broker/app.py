"""The broker as a service: start, stop, and what happens when it fails. RocketMQ: BrokerController.

start   lock and identity of the store ─▶ recover ─▶ bind the ports ─▶ new term, made durable ─▶ boot id ─▶ register with
        the nameservers ─▶ clear the mark of a restored backup ─▶ open the ports ─▶ `broker.started`
stop    reject sends ─▶ respond to held pulls ─▶ sync ─▶ unregister ─▶ close connections ─▶ snapshot ─▶ close the store in order
failed  a failed write or sync: no further response leaves, every connection is cut, the store is left as it is
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

from lockstep.broker.advertise import advertise
from lockstep.broker.config import BrokerConfig
from lockstep.broker.figures.replica_metrics import render_replica, render_starting
from lockstep.broker.office.beginning import begin_under_register
from lockstep.broker.office.office import DeposedError, Office
from lockstep.broker.office.opening import RegisterUrl, open_register
from lockstep.broker.office.standing import Tenure
from lockstep.broker.replication.asking import is_replica
from lockstep.broker.replication.copy_identity import clock_ahead_ms, read_copy_identity
from lockstep.broker.rocketmq_store.opening import open_store
from lockstep.broker.running import RunningBroker, warn_of_short_retention
from lockstep.broker.running_replica import RunningReplica
from lockstep.broker.running_settings import RunningSettings
from lockstep.broker.state import BrokerState
from lockstep.broker.store import Store
from lockstep.broker.store.errors import StoreCorruptError
from lockstep.broker.tables.send_gate import SendGate
from lockstep.protocol.bodies import BrokerStatus
from lockstep.protocol.errors import ServiceNotAvailableError, StateError
from lockstep.protocol.names import INTERNAL_LISTENER
from lockstep.protocol.native import implementation
from lockstep.runtime.admin_port import AdminPages, AdminPort, Health
from lockstep.runtime.connections.address import parse_address
from lockstep.runtime.connections.listen_address import ADMIN
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import announce, get_logger
from lockstep.runtime.security.security_watch import SecurityWatch
from lockstep.runtime.security.server_security import ServerSecurity

log = get_logger("broker")


class Broker:
    """The broker. `on_fatal` is called with an error after which it can't continue."""

    def __init__(
        self,
        config: BrokerConfig,
        host: Host,
        origins: Mapping[str, str] | None = None,
        security: ServerSecurity | None = None,
    ) -> None:
        """`origins`: the source of each setting, if known. `security`: instead of that of the settings."""
        self.settings = RunningSettings(config, origins or {}, lambda changed: self.running.apply(changed))
        self.on_fatal: Callable[[BaseException], None] | None = None
        self._host = host
        self._tasks = Tasks(self._fail)
        self._gate = SendGate()
        self._listeners = config.listeners()
        self._store: Store | None = None
        """The store, from the start's lock of it to its close."""
        self._running: RunningBroker | None = None
        self._replica: RunningReplica | None = None
        """What this broker is until it is promoted, if it copies another one."""
        self._changing = asyncio.Lock()
        """Held while this broker stops being a master without ending."""
        self._promotion: asyncio.Task[None] | None = None
        self._office: Office | None = None
        """What the register says, if the copies of this broker elect their master."""
        self._security = config.open_security() if security is None else security
        self._audit = config.open_audit(config.name, host.clock)
        self._watch = SecurityWatch(self._security, host, self._audit.on_hangup)
        self.admin_port: AdminPort | None = None
        """The admin port, if the settings have one. It opens first and closes last, so that a probe learns why the broker is not ready."""
        for listen in config.admin_listener().values():
            self.admin_port = AdminPort(
                listen, AdminPages(self.health, self._render_metrics, self._watch.reload), config.admin_hosts(host.name), self._security
            )

    @property
    def config(self) -> BrokerConfig:
        """Return the settings in force."""
        return self.settings.config

    @property
    def running(self) -> RunningBroker:
        """Return the broker's parts, also after a stop. Raises StateError before the start has read the store."""
        if self._running is None:
            raise StateError("the broker is not started")
        return self._running

    @property
    def state(self) -> BrokerState:
        """Return the tables. Raises StateError as `running`."""
        return self.running.state

    @property
    def addresses(self) -> dict[str, str]:
        """Return listener name → advertised address. Empty before the ports are bound."""
        return {} if self._running is None else self._running.addresses

    @property
    def is_replica(self) -> bool:
        """Return whether the broker copies another one."""
        return self._replica is not None

    @property
    def address(self) -> str:
        """Return the address of the listener named `internal`."""
        return self.addresses[INTERNAL_LISTENER]

    @property
    def term(self) -> int:
        return self.running.term

    @property
    def on_hangup(self) -> Callable[[], None] | None:
        """Return what SIGHUP does: it reads the files of the security again, and opens that of the audit again. None if there are none."""
        return self._watch.on_hangup

    async def start(self) -> None:
        """Start, and return when the ports are open.

        Raises StoreError (exit 3 to 6), IdentityError, RegistrationRefusedError and RoleError (exit 4), RoleChangesError, ConfigError.
        """
        config = self.config
        warn_of_short_retention(config)
        if config.security_last_good:
            log.warning("security.last_good", users=config.users_copy(), not_read=config.security)
        if self.admin_port is not None:
            await self.admin_port.start()
        if config.ha is not None:
            await self._start_under_register(config.ha)
        elif await is_replica(self._host, config, self._security.peers):
            await self._start_replica()
        else:
            await self._start_master()

    async def _start_under_register(self, url: str) -> None:
        """Begin as what the register says. Raises OfficeError."""
        config, host = self.config, self._host
        register = open_register(RegisterUrl.parse(url), config.cluster, config.name, host, self._security.peers)
        self._office = office = Office(host, register, url)
        name, (listen, port) = INTERNAL_LISTENER, config.listeners()[INTERNAL_LISTENER]
        addresses = await advertise({name: f"{listen}:{port}"}, config.advertised(), config.nameservers())
        tenure = await begin_under_register(host, config, office, addresses[name], self._security.peers)
        if tenure is None:
            await self._start_replica()
        else:
            await self._rule(tenure)

    async def _rule(self, tenure: Tenure) -> None:
        """Start as the elected master, and step down when another copy is elected, or if this one is damaged and others have everything."""
        office = self._office
        assert office is not None
        office.deposed.clear()
        try:
            await self._start_master(tenure)
        except DeposedError:
            await self._step_down()
        except StoreCorruptError as error:
            if not tenure.others:
                raise
            then = "another copy of the set is elected after the silence of this one, and mends it"
            log.error("office.damaged", error=str(error), then=then)
            await self._end_master(is_clean=False)
            await self._start_replica()
        else:
            self._tasks.spawn(self._until_deposed(office), "broker.deposed")

    async def _until_deposed(self, office: Office) -> None:
        await office.deposed.wait()
        await self._step_down()

    def _hand_over(self, successor: str) -> None:
        """Begin to hand over. Raises ServiceNotAvailableError while this broker takes no sends: then it can't."""
        if self._gate.closed_because is not None:
            raise ServiceNotAvailableError(f"{self._gate.closed_because}: nothing was handed over. `lockstep ha show` says more")
        self._tasks.spawn(self._step_down_in_order(successor), "broker.hand_over")

    async def _step_down_in_order(self, successor: str) -> None:
        """Stop as a master, so that a replica of the set is elected at once, and go on as a replica of that one."""
        async with self._changing:
            if self._running is None or self._gate.closed_because is not None:
                return
            self._gate.closed_because = "the broker hands over to another copy"
            log.warning("office.hands_over", to=successor or None, term=self._running.term)
            await self._end_master(await self._running.stop(successor))
            await self._start_replica()

    async def _step_down(self) -> None:
        """Go on as a replica. Nothing more is answered, and the store is left as a killed process leaves it."""
        async with self._changing:
            if self._running is None or self._gate.has_failed:
                return
            self._gate.has_failed, self._gate.closed_because = True, "another copy of this broker was elected"
            if self._store is not None:
                # What the set has not confirmed has no effect any more, not even by the sync of an ordered end.
                self._store.writer.on_fatal = None
                self._store.writer.fail(DeposedError(self._gate.closed_because))
            self._running.cut_connections(self._gate.closed_because)
            await self._running.stop()
            await self._end_master(is_clean=False)
            await self._start_replica()

    async def _end_master(self, is_clean: bool) -> None:
        if self._store is not None:
            await self._store.close(clean=is_clean)
        self._running = self._store = None
        self._gate.has_failed, self._gate.closed_because = False, None

    async def _start_replica(self) -> None:
        config, host = self.config, self._host
        budget = config.budget(host.descriptors.limit)
        parts = config, host, self._tasks
        self._replica = replica = RunningReplica(
            *parts,
            connections_max=budget.connections_max,
            security=self._security,
            audit=self._audit,
            on_promoted=self._promoted,
            office=self._office,
        )
        await replica.start()
        await self._watch.begin(self._tasks, replica.server.renew)
        admin = {} if self.admin_port is None else {ADMIN: self.admin_port.address}
        address = replica.addresses[INTERNAL_LISTENER]
        announce(
            "broker.started", name=config.name, address=address, listeners=replica.addresses, replica_of=replica.status().master, **admin
        )

    def _promoted(self, tenure: Tenure | None) -> None:
        """Go on as a master: the store says so already."""
        self._promotion = self._tasks.spawn(self._become_master(tenure), "broker.promotion")

    async def _become_master(self, tenure: Tenure | None) -> None:
        assert self._replica is not None
        await self._replica.stop()
        bound = self._replica.server.addresses  # clients of a port that the system chose know it
        self._listeners = {name: (at, parse_address(bound[name])[1]) for name, (at, _) in self._listeners.items()}
        self._replica = None
        if tenure is None:
            await self._start_master()
        else:
            await self._rule(tenure)

    async def _start_master(self, tenure: Tenure | None = None) -> None:
        config, host = self.config, self._host
        began_ms = host.clock.monotonic_ms()
        budget = config.budget(host.descriptors.limit)
        cut_corrupt = config.cut_corrupt and (tenure is None or not tenure.others)  # otherwise another copy has what is damaged here
        store_config = replace(config.store_config(), open_file_count_max=budget.open_files_max, cut_corrupt=cut_corrupt)
        log_id, without = "" if tenure is None else tenure.log, config.adopt_without
        opened = await open_store(store_config, host, config.identity(), adopt=config.adopt, without=without, new_store_id=log_id)
        self._store = store = opened.store
        store.writer.on_fatal = self._fail
        state = BrokerState(config.coordination(), store, host.random, topics_max=config.topics_max)
        ahead_ms = clock_ahead_ms(read_copy_identity(opened.directory), host.boot_id())
        recovery = await store.recover(state, clock_ahead_ms=ahead_ms)
        parts = host, self._tasks, self.settings, self._gate, opened, state
        self._running = running = RunningBroker(
            *parts,
            listeners=self._listeners,
            connections_max=budget.connections_max,
            security=self._security,
            audit=self._audit,
            office=self._office,
            tenure=tenure,
            hand_over=self._hand_over,
        )
        await running.bind()
        await running.ask_replicas(recovery)
        await self._watch.begin(self._tasks, running.server.renew)
        await running.enter_term(recovery)
        await running.take_office()
        await running.register()
        await running.open()
        announce(
            "broker.started",
            name=config.name,
            address=running.address,
            listeners=running.addresses,
            term=running.term,
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

    def health(self) -> Health:
        """Return the health for the admin port."""
        if self._gate.has_failed:
            return Health("the broker has failed")
        if self._gate.closed_because is not None:
            return Health(unready=(self._gate.closed_because,))
        if self._replica is not None:
            return Health(unready=self._replica.unready_reasons())
        if self._running is None or not self._running.is_open:
            if self._office is not None and self._office.unreachable:
                return Health(unready=(f"starting: its register has not answered: {self._office.unreachable}",))
            read_to = 0 if self._store is None else self._store.reading.position
            return Health(
                unready=(f"starting: the store is recovering (log read to {read_to}), or no nameserver has accepted the broker yet",)
            )
        return Health(unready=self._running.unready_reasons())

    def status(self) -> BrokerStatus:
        """Return the status for tools. Raise StateError before the store has been read, and after a stop."""
        if self._store is None:
            raise StateError("the broker is not started")
        return self.running.status()

    async def _render_metrics(self) -> bytes:
        if self._replica is not None:
            return await render_replica(self.config, self._replica.status(), self._replica.server, self._audit)
        if self._running is None or not self._running.is_open:
            return b"" if self._office is None else await render_starting(self.config, self._office.standing())
        return await self._running.render_metrics()

    def _fail(self, error: BaseException) -> None:
        """Stop responding: acknowledged data may not be on the disk."""
        if self._gate.has_failed:
            return
        self._gate.has_failed = True
        self._gate.closed_because = "the broker has failed"
        if self._running is not None:
            self._running.cut_connections("the broker has failed")
        if self.on_fatal is not None:
            self.on_fatal(error)

    async def stop(self) -> None:
        """Stop in order. After a start that failed, close what it had opened."""
        if self._promotion is not None and not self._promotion.done():
            self._promotion.cancel()
            await asyncio.wait([self._promotion])
        async with self._changing:
            await self._stop()

    async def _stop(self) -> None:
        if not self._gate.has_failed:
            self._gate.closed_because = "the broker is shutting down"
        store, running = self._store, self._running
        if self._replica is not None:
            await self._replica.stop()
        if self._office is not None:
            await self._office.close()
        if store is None:
            await self._close_admin_port()
            return
        clean = running is not None and await running.stop()
        await self._close_admin_port()
        is_refused = not self._gate.has_failed and (running is None or not running.is_marked)
        await store.close(clean=clean, refused=is_refused)
        self._store = None
        if running is not None and running.is_open:
            log.info("broker.stopped", name=self.config.name, clean=clean)

    async def _close_admin_port(self) -> None:
        if self.admin_port is not None:
            await self.admin_port.stop()
