"""A broker that copies another one: the counterpart of running.py. It serves its status, and nothing else, until it is promoted.

    no store, or a half copy ─▶ install ──┐
    an unfinished cut ─────────▶ cut ─────┼─▶ open, recover ─▶ follow ─▶ told to cut, or to begin anew, or damaged: from the left again
    damage ────────────────────▶ refetch ─┘

Each store that is opened is closed as a killed process leaves it: tables are never changed backwards.
"""

import asyncio
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from lockstep.broker.advertise import advertise
from lockstep.broker.config import BrokerConfig
from lockstep.broker.maintenance import SCRUB_FIRST_MS, SCRUB_REST_MS
from lockstep.broker.office.office import Office
from lockstep.broker.office.rules import Called, OwnCopy
from lockstep.broker.office.standing import Standing, Tenure
from lockstep.broker.processors.replication import ReplicaProcessor, StatusOfCopyProcessor
from lockstep.broker.replication.asking import ask_status
from lockstep.broker.replication.closed_copy import ClosedCopy, RottenLogError
from lockstep.broker.replication.copy_identity import (
    CopyIdentity,
    Role,
    begin_as_replica,
    clock_ahead_ms,
    save_copy_identity,
    with_clock,
)
from lockstep.broker.replication.following import Following
from lockstep.broker.replication.promotion import check_promotion
from lockstep.broker.replication.serving import REPLICA_LANE
from lockstep.broker.state import BrokerState
from lockstep.broker.store import Store
from lockstep.broker.store.errors import StoreCorruptError
from lockstep.broker.store.start.directory import StoreDirectory, held_directory, locked_directory
from lockstep.broker.store.start.snapshot import recorded_start
from lockstep.protocol.bodies import ReplicaStatus
from lockstep.protocol.command import Command
from lockstep.protocol.errors import NotLeaderError, ServiceNotAvailableError
from lockstep.protocol.headers.replication import ReplicaFollowHeader, ReplicaFollowReply
from lockstep.protocol.names import INTERNAL_LISTENER
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.connections.server import Server
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.extras import VERSION
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited
from lockstep.runtime.requests.audit import RequestAudit
from lockstep.runtime.requests.dispatch import Dispatcher
from lockstep.runtime.requests.lanes import LaneLimits
from lockstep.runtime.requests.login import LoginProcessor
from lockstep.runtime.security.server_security import ServerSecurity
from lockstep.runtime.waiting import is_set_within, to_its_end

log = get_logger("broker")

KNOWN_S = 2
"""How long a start waits until the register says who the master is."""
PAUSE_S = 1
"""How often a master that does not answer is asked for a copy."""
SAVE_S = 1
"""How late the recorded confirmed position may be."""


class RunningReplica:
    """A replica from its start to its stop or its promotion."""

    def __init__(
        self,
        config: BrokerConfig,
        host: Host,
        tasks: Tasks,
        *,
        connections_max: int,
        security: ServerSecurity,
        audit: RequestAudit,
        on_promoted: Callable[[Tenure | None], None],
        office: Office | None = None,
    ) -> None:
        """`on_promoted` is called when the store is one of a master: start it as such, for the tenure to which it was elected if there is
        one. `office`: what the register says; None without one."""
        self._config = config
        self._host = host
        self._tasks = tasks
        self._peers = security.peers
        self._office = office
        self.standing: Standing | None = None
        if office is not None:
            self.standing = Standing(host, office, config.name, lambda: self.addresses[INTERNAL_LISTENER], config.silence_ms, self._peers)
        self._on_promoted = on_promoted
        self._copy = ClosedCopy(host, config, self._peers, lambda: self.master, self._header)
        self._changing = asyncio.Lock()
        """Held while the store is closed, changed or promoted."""
        self._promoting = False
        """From when its master is asked until it has refused the promotion. If it was promoted, for good."""
        self._store: Store | None = None
        self._state: BrokerState | None = None
        self._following: Following | None = None
        self.addresses: dict[str, str] = {}
        login = LoginProcessor(host, security, audit)
        processors = [StatusOfCopyProcessor(self._told_status, config.name, self._tables), ReplicaProcessor(self._promote), login]
        lanes = {REPLICA_LANE: LaneLimits(concurrency=1, queue_max=16)}
        self._dispatcher = Dispatcher(processors, None, lanes, None, None, login.gate, audit, self._refuse)
        self.server = Server(
            host,
            config.listeners(),
            self._handle,
            on_connect=login.connected,
            connections_max=connections_max,
            security=security,
        )

    async def start(self) -> None:
        """Open the ports and begin to follow. Raises StoreError, ConfigError."""
        config = self._config
        await self.server.bind()
        self.addresses = await advertise(self.server.addresses, config.advertised(), config.nameservers())
        host, flush, address = self._host, config.store_config().flush, self.addresses[INTERNAL_LISTENER]
        begun_by = host.random, host.boot_id(), flush, address
        with self._locked() as directory:
            begin = partial(begin_as_replica, directory, *begun_by, registered=self._office is not None)
            self._copy.identity = await host.threads.run(begin)
            self._copy.is_blank = not directory.has_log and not self._copy.identity.installing
        await self.server.start()
        self._tasks.spawn(self._live(), "broker.replica")
        if self.standing is not None:
            self._tasks.spawn(self._stand(self.standing), "broker.office")

    @property
    def master(self) -> str | None:
        """The address of the master, by the settings or by the register. None while that has not said it, or names this copy.

        A copy that was elected and may lack what it acknowledged since is another member, at the address that the register still names.
        """
        if self.standing is None:
            return self._config.replica_of
        return None if self.standing.master == self.addresses.get(INTERNAL_LISTENER) else self.standing.master

    async def _stand(self, standing: Standing) -> None:
        """Become the master when this copy is elected. If its store has to be mended first, the register goes on naming it meanwhile."""
        is_master = False
        while not is_master:
            tenure = await standing.follow(self)
            if tenure.member != self._copy.identity.member:
                continue  # its log was repaired since it stood: it may lack what it acknowledged
            if self._following is not None:
                self._following.halt()
            is_master = await self._promote_to(tenure)

    # -------------------------------------------------------------------------------------------------------------- a Copy

    def own(self) -> OwnCopy:
        store, state = self._store, self._state
        log_id = "" if store is None else store.store_id
        term = 0 if state is None else state.coordination.state.term
        return OwnCopy(self._copy.identity.member, log_id, term, may_create=False)

    def called(self) -> Called:
        copy_identity, own, store = self._copy.identity, self.own(), self._store
        return Called(copy_identity.member, tuple(copy_identity.was), own.term, 0 if store is None else store.log_bounds[1])

    def is_whole(self) -> bool:
        following = self._following
        return following is not None and not following.stopping.is_set() and not self._copy.identity.installing

    def redirect(self, master: str) -> None:
        log_limited(log, "info", "office.follows", master=master)
        if self._following is not None:
            self._following.drop_connection("another copy is the master")

    def _handle(self, command: Command, endpoint: Endpoint) -> None:
        self._dispatcher(command, endpoint)

    def _refuse(self, endpoint: Endpoint) -> Exception:
        """Return the error for what only a master does. It names the master that is followed now, where its address is the one to use."""
        words = f"{self.addresses.get(INTERNAL_LISTENER)} is a replica of broker {self._config.name}; its master is "
        words += self.master or "not known yet"
        master = None if self._following is None or endpoint.listener != INTERNAL_LISTENER else self._following.master
        return NotLeaderError(words) if master is None else NotLeaderError(words, address=master.address, term=master.term)

    # ------------------------------------------------------------------------------------------------------------- following

    def _is_promoted(self) -> bool:
        return self._copy.identity.role is Role.MASTER

    def _locked(self) -> AbstractContextManager[StoreDirectory]:
        return held_directory(self._host.files, self._config.store_path())

    async def _live(self) -> None:
        if self.standing is not None:
            # A new copy has nothing else to do before. Any other opens its store: it may be the one to go on from.
            await is_set_within(self.standing.known, KNOWN_S)
        while True:
            try:
                async with self._changing:
                    if self._is_promoted():
                        return
                    with self._locked() as directory:
                        if self._copy.is_blank and await self._begins_log(directory):
                            break
                        is_ready = await self._copy.prepare(directory)
                if not is_ready:
                    await asyncio.sleep(PAUSE_S)
                    continue
                reply = await self._follow()
                self._copy.damage = None
                async with self._changing:
                    if self._is_promoted():
                        return
                    with self._locked() as directory:
                        await self._copy.change_as_told(directory, reply)
            except StoreCorruptError as error:
                await self._copy.note_damage(error)
        self._on_promoted(None)

    async def _begins_log(self, directory: StoreDirectory) -> bool:
        """Make this store the master's of a pair that has never had a log, if this is the copy that begins it.

        Two copies that name each other, and are both blank, have nothing to lose: the one whose address sorts first begins.
        """
        mine, master = self.addresses[INTERNAL_LISTENER], self.master
        if self._office is not None or master is None or mine >= master:
            return False
        other = await ask_status(self._host, master, self._peers)
        if other is None or not other.blank or other.master != mine or other.broker_name != self._config.name:
            return False
        self._copy.identity = CopyIdentity(self._copy.identity.member, Role.MASTER, instead_of=master)
        await self._host.threads.run(save_copy_identity, directory, self._copy.identity)
        log.info("replica.begins_log", other=master, why="neither copy has ever had a log, and this one's address sorts first")
        return True

    async def _follow(self) -> ReplicaFollowReply:
        """Open the store, and follow until it has to be changed. It is closed then. Raises StoreError."""
        config, host = self._config, self._host
        store_config = replace(config.store_config(), cut_corrupt=False)  # the master has what is damaged here
        with locked_directory(host.files, store_config.path) as directory:

            def begins() -> int | None:
                return recorded_start(host.files, directory)

            survey = directory.survey(config.identity(), store_config, "", begins)
            store = Store.open_surveyed(store_config, host, directory, survey)
        self._store, work = store, Tasks()
        try:
            failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            store.writer.on_fatal = lambda error: None if failed.done() else failed.set_exception(error)
            self._state = state = BrokerState(config.coordination(), store, host.random, topics_max=config.topics_max)
            await store.recover(state)
            state.journal.refusal = "a replica changes nothing by itself"
            replica_log, before = store.follow(state, self._reason), partial(self._begin_copying, store)
            self._following = following = Following(host, store, state, replica_log, self._header, before, lambda: self.master)
            if (standing := self.standing) is not None:
                following.on_heard = lambda: standing.silence.heard(host.clock.boot_ms())
                following.on_complete = standing.stand_now
                following.on_refused = lambda: standing.silence.refused(host.clock.boot_ms())
            following.is_complete = self._copy.identity.complete  # until a master says otherwise
            tasks = set[asyncio.Future[Any]]()
            copying: asyncio.Task[ReplicaFollowReply] = work.spawn(following.run(self._peers), "replica.copy")
            for name, loop in (
                ("apply", following.keep_applying()),
                ("keep", self._keep(store, following)),
                ("scrub", scrub(store, following, self._copy.replaced)),
            ):
                tasks.add(work.spawn(loop, f"replica.{name}"))
            everything: set[asyncio.Future[Any]] = {copying, failed, *tasks}
            try:
                await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
            finally:
                # What runs in a worker thread ends before the store is changed by others.
                following.stop()
                copying.cancel()
                await to_its_end(work.spawn(asyncio.wait(everything - {failed}), "replica.close"))
            for each in (failed, *tasks):
                if each.done() and not each.cancelled() and (error := each.exception()) is not None:
                    raise error
            return copying.result()
        finally:
            await to_its_end(work.spawn(self._close(store), "replica.close"))

    async def _close(self, store: Store) -> None:
        async with self._changing:
            self._store = self._following = None
            await store.close(clean=False)

    async def _keep(self, store: Store, following: Following) -> None:
        """Record, once a second, up to where the log is known to be confirmed, and whether it is complete. Remove what the master has."""
        while not following.stopping.is_set():
            await following.wait_noteworthy(SAVE_S)
            async with self._changing:
                known, confirmed = self._copy.identity, max(self._copy.identity.confirmed, following.confirmed)
                forgot = known.forgot and not following.has_everything
                was = [] if following.has_everything else known.was
                in_set, complete = self._is_in_set(), following.is_complete
                wanted = replace(known, confirmed=confirmed, complete=complete, forgot=forgot, was=was, in_set=in_set)
                wanted = with_clock(wanted, self._host.boot_id(), following.clock.ahead_ms)
                if wanted != known and known.role is Role.REPLICA:
                    await self._store_identity(store, wanted)
            if following.log_start > store.log_bounds[0]:
                await store.follow_retention(following.log_start)

    async def _begin_copying(self, store: Store) -> None:
        """Store that the log may end before its master's from now on."""
        async with self._changing:
            if self._copy.identity.complete and not self._is_promoted():
                wanted = replace(self._copy.identity, complete=False)
                await self._store_identity(store, wanted)

    async def _store_identity(self, store: Store, wanted: CopyIdentity) -> None:
        """Store a changed identity, and have it from then on. Call it within `_changing`."""

        def save(directory: StoreDirectory) -> None:
            save_copy_identity(directory, wanted)

        await store.change_directory(save)
        self._copy.identity = wanted

    @property
    def _reason(self) -> str:
        return f"this broker is a replica of {self.master or 'a master that is not known yet'}"

    def _header(self) -> ReplicaFollowHeader:
        config, store = self._config, self._store
        end = 0 if store is None else store.log_bounds[1]
        store_id = "" if store is None else store.store_id
        address = self.addresses[INTERNAL_LISTENER]
        member = self._copy.identity
        return ReplicaFollowHeader(config.name, config.cluster, store_id, member.member, address, end, member.confirmed, VERSION)

    # ----------------------------------------------------------------------------------------------------------- for others

    def status(self) -> ReplicaStatus:
        """Return the status for tools, and for a master that starts."""
        config, store, following, member = self._config, self._store, self._following, self._copy.identity
        start_state = self._state
        term = 0 if start_state is None else start_state.coordination.state.term
        end = 0 if store is None else store.log_bounds[1]
        known = {} if start_state is None else {each: at for each, at in start_state.replicas.items() if each != member.member}
        return ReplicaStatus(
            config.name,
            config.cluster,
            "" if store is None else store.store_id,
            str(Role.REPLICA),
            member.member,
            term,
            end,
            0 if following is None else following.confirmed,
            0 if following is None else following.applied,
            may_have_forgotten=member.forgot and (following is None or not following.has_everything),
            complete=member.complete,
            following=following is not None and following.master is not None,
            master=self.master or "",
            trouble=self._trouble(),
            known=known,
            was=tuple(member.was),
            register=None if self._office is None else self._office.standing(),
            blank=self._copy.is_blank,
        )

    def _trouble(self) -> str:
        """Return why the copy is not whole, or can't follow; empty if it is and can."""
        if self._copy.identity.installing:
            return "it is being installed"
        if self._store is None and self._copy.damage is not None:
            return f"it is damaged, and is mended when its master answers: {self._copy.damage.what}"
        return "" if self._following is None else self._following.trouble

    def _not_whole(self) -> ServiceNotAvailableError:
        trouble = self._trouble()
        why = f" ({trouble})" if trouble else ""
        return ServiceNotAvailableError(f"this replica is not a whole copy now{why}: promote another one, or wait")

    def _told_status(self) -> ReplicaStatus:
        """Return the status for others. A master that goes on must not learn that this is a replica while it becomes a master."""
        if self._promoting:
            raise ServiceNotAvailableError(f"the replica at {self.addresses[INTERNAL_LISTENER]} is being promoted: ask again")
        return self.status()

    def _tables(self) -> tuple[Store, BrokerState] | None:
        return None if self._store is None or self._state is None else (self._store, self._state)

    def unready_reasons(self) -> tuple[str, ...]:
        """Return why the replica is not a whole copy now."""
        status = self.status()
        if status.trouble:
            return (status.trouble,)
        if status.following:
            return ()
        return (f"it does not follow its master {status.master}" if status.master else "it does not know its master yet",)

    async def _promote(self, force: bool) -> None:
        """Make this store one of a master, durably. Raises ServiceNotAvailableError if that would lose something, unless `force`."""
        store, state = self._store, self._state
        if store is None or state is None:
            raise self._not_whole()
        if self.standing is not None:
            if not force:
                raise ServiceNotAvailableError("the copies of this broker elect their master: use `lockstep ha failover`")
            self.standing.stand_now(unclean=True)
            return
        self._promoting = True
        try:
            await check_promotion(self._host, self.status(), self.addresses[INTERNAL_LISTENER], self._is_in_set, self._peers, force=force)
            mine = self.addresses[INTERNAL_LISTENER]  # also that of the member that this store was before it began anew
            member = self._copy.identity.member
            known = {each: address for each, address in state.replicas.items() if each != member and address != mine}
            before = await self._become_master(store, CopyIdentity("", Role.MASTER, known=known, instead_of=self.master or ""))
        except BaseException:  # re-raised
            self._promoting = self._is_promoted()
            raise
        log.warning("replica.promoted", was_replica_of=self.master, log_end=store.log_bounds[1], complete=before.complete, force=force)
        self._on_promoted(None)

    def _is_in_set(self) -> bool:
        told = None if self._following is None else self._following.in_set
        return self._copy.identity.in_set if told is None else told

    async def _promote_to(self, tenure: Tenure) -> bool:
        """Make this store one of the elected master, durably. Return whether it is."""
        try:
            if (store := self._store) is None:
                return False
            await self._become_master(store, CopyIdentity("", Role.MASTER, tenure.others, tenure.known, registered=True))
        except ServiceNotAvailableError:
            return False
        self._on_promoted(tenure)
        return True

    async def _become_master(self, store: Store, wanted: CopyIdentity) -> CopyIdentity:
        """Store `wanted` with the id of this copy. Return what it was. Raises ServiceNotAvailableError if it is no whole copy by now."""
        async with self._changing:
            before = self._copy.identity
            if self._store is not store or before.role is Role.MASTER:
                raise self._not_whole()
            elected = wanted.registered
            promoted = replace(wanted, member=before.member, address=before.address, promoted=not elected)
            promoted = replace(promoted, complete=before.complete and not elected)
            boot_id, following = self._host.boot_id(), self._following
            heard_ms = None if following is None else following.clock.ahead_ms
            promoted = with_clock(promoted, boot_id, clock_ahead_ms(before, boot_id) if heard_ms is None else heard_ms)

            def promote(directory: StoreDirectory) -> None:
                if not before.complete and not elected:
                    directory.mark_restored()
                save_copy_identity(directory, promoted)

            await store.change_directory(promote)
            self._copy.identity = promoted
        return before

    async def stop(self) -> None:
        """Stop following, and leave the store as a killed process does."""
        await self.server.close("the replica is shutting down")
        await self._dispatcher.close()
        await self._tasks.cancel_all()


async def scrub(store: Store, following: Following, replaced: AbstractSet[int]) -> None:
    """Compare what is applied with itself and with the consume queues, a minute after the start, and hourly.

    Raises RottenLogError for damage of the log, but not for `replaced`: what the master has there is damaged as well.
    """
    rest_s = SCRUB_FIRST_MS / 1000
    while not following.stopping.is_set():
        await is_set_within(following.stopping, rest_s)
        await store.scrubber.run(following.stopping)
        if found := store.scrubber.found.keys() - replaced:
            reason = store.scrubber.found[min(found)].reason
            raise RottenLogError(f"the log is damaged at {len(found)} places, first at {min(found)}: {reason}", found)
        rest_s = SCRUB_REST_MS / 1000
