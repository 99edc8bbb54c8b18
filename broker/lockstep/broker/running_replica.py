"""A broker that copies another one: the counterpart of running.py. It serves its status, and nothing else, until it is promoted.

    no store, or a half copy ─▶ install ─┐
    an unfinished cut ─────────▶ cut ────┼─▶ open, recover ─▶ follow ─▶ told to cut, or to begin anew: from the left again
                                         ┘

Each store that is opened is closed as a killed process leaves it: tables are never changed backwards.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from lockstep.broker.advertise import advertise
from lockstep.broker.config import BrokerConfig
from lockstep.broker.processors.replication import ReplicaProcessor, StatusOfCopyProcessor
from lockstep.broker.replication.asking import ask_status
from lockstep.broker.replication.copy_identity import CopyIdentity, Role, new_member, read_copy_identity, save_copy_identity
from lockstep.broker.replication.cutting import cut_log
from lockstep.broker.replication.following import Following
from lockstep.broker.replication.installing import Install, remove_store
from lockstep.broker.replication.log_parting import PartingAction
from lockstep.broker.replication.serving import REPLICA_LANE
from lockstep.broker.state import BrokerState
from lockstep.broker.store import FlushMode, Store
from lockstep.broker.store.start.directory import StoreDirectory, locked_directory
from lockstep.broker.store.start.snapshot import recorded_start
from lockstep.protocol.bodies import LogTerms, ReplicaStatus
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import LockstepError, NotLeaderError, ServiceNotAvailableError, without_frames
from lockstep.protocol.fields import from_plain, to_plain
from lockstep.protocol.headers.replication import ReplicaFollowHeader, ReplicaFollowReply
from lockstep.protocol.names import INTERNAL_LISTENER
from lockstep.protocol.responses import checked
from lockstep.runtime.connections.dial import connect
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

log = get_logger("broker")

INSTALL_PAUSE_S = 1
SAVE_S = 1
"""How late the recorded confirmed position may be."""
ANSWER_MS = 5_000


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
        on_promoted: Callable[[], None],
    ) -> None:
        """`on_promoted` is called when the store is one of a master: start it as such."""
        assert config.replica_of is not None
        self._config = config
        self._host = host
        self._tasks = tasks
        self._peers = security.peers
        self._master = config.replica_of
        self._on_promoted = on_promoted
        self._membership = CopyIdentity("", Role.REPLICA)
        self._store: Store | None = None
        self._state: BrokerState | None = None
        self._following: Following | None = None
        self._may_have_forgotten = False
        self.addresses: dict[str, str] = {}
        login = LoginProcessor(host, security, audit)
        processors = [StatusOfCopyProcessor(self.status, config.name), ReplicaProcessor(self._promote), login]
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
        with locked_directory(self._host.files, config.store_path()) as directory:
            self._membership = await self._host.threads.run(self._own_membership, directory)
            directory.unlock()
        await self.server.start()
        self._tasks.spawn(self._live(), "broker.replica")

    def _own_membership(self, directory: StoreDirectory) -> CopyIdentity:
        """Return what this store is, as a replica. A store that may lack what it acknowledged is another member from now on."""
        found = read_copy_identity(directory)
        boot_id, last_boot = self._host.boot_id(), directory.boot()
        crashed = last_boot is not None and last_boot[0] != boot_id and last_boot[1] != FlushMode.SYNC.value
        forgot = directory.is_restored or crashed
        self._may_have_forgotten = forgot
        if found is None or forgot or found.role is not Role.REPLICA:
            kept = found or self._membership
            member = new_member(self._host.random) if found is None or forgot else found.member
            found = CopyIdentity(member, Role.REPLICA, installing=kept.installing, cut_to=kept.cut_to)
            self._host.files.makedirs(directory.own)
            save_copy_identity(directory, found)
        directory.mark_boot(boot_id, self._flush)
        return found

    @property
    def _flush(self) -> str:
        return self._config.store_config().flush.value

    def _handle(self, command: Command, endpoint: Endpoint) -> None:
        self._dispatcher(command, endpoint)

    def _refuse(self, command: Command) -> Exception:
        return NotLeaderError(
            f"{self.addresses.get(INTERNAL_LISTENER)} is a replica of broker {self._config.name}; its master is {self._master}"
        )

    # ------------------------------------------------------------------------------------------------------------- following

    async def _live(self) -> None:
        while True:
            with locked_directory(self._host.files, self._config.store_path()) as directory:
                if self._membership.installing or directory.read(f"{directory.own}/identity") is None:
                    installed = await self._install(directory)
                    directory.unlock()
                    if not installed:
                        await asyncio.sleep(INSTALL_PAUSE_S)
                        continue
                elif self._membership.cut_to is not None:
                    await self._cut(directory, self._membership.cut_to)
                    directory.unlock()
                else:
                    directory.unlock()
            reply = await self._follow()
            with locked_directory(self._host.files, self._config.store_path()) as directory:
                if reply.action == PartingAction.TRUNCATE:
                    await self._cut(directory, reply.keep)
                else:
                    log_limited(
                        log,
                        "warning",
                        "replica.begins_anew",
                        master=self._master,
                        why="the master does not have the log that this one goes on from",
                    )
                    await remove_store(self._host, directory, self._membership)
                    self._membership = replace(self._membership, installing=True)
                directory.unlock()

    async def _cut(self, directory: StoreDirectory, position: int) -> None:
        files, config = self._host.files, self._config.store_config()
        self._membership = await self._host.threads.run(cut_log, files, directory, config, self._membership, position)

    async def _install(self, directory: StoreDirectory) -> bool:
        """Copy the master's store into an empty directory. Return whether it is whole; else it is tried again."""
        try:
            endpoint = await connect(self._host, self._master, security=self._peers)
            try:
                header = replace(self._header(), store_id="", end=0, confirmed=0)
                response = await endpoint.request(
                    RequestCode.REPLICA_FOLLOW, to_plain(header), encode_body(LogTerms(())), timeout_ms=ANSWER_MS
                )
                reply = from_plain(ReplicaFollowReply, checked(response).fields)
                await remove_store(self._host, directory, self._membership)
                self._membership = replace(self._membership, installing=True)
                store_config = self._config.store_config()
                await Install(self._host, directory, store_config, self._config.identity(), endpoint).run(self._membership, reply.keep)
                self._membership = replace(self._membership, installing=False)
            finally:
                endpoint.close("the replica is installed")
        except (LockstepError, TimeoutError) as error:
            log_limited(
                log, "warning", "replica.not_installed", master=self._master, error=str(without_frames(error)), then="it is tried again"
            )
            return False
        return True

    async def _follow(self) -> ReplicaFollowReply:
        """Open the store, and follow until it has to be changed. It is closed then."""
        config, host = self._config, self._host
        store_config = config.store_config()
        with locked_directory(host.files, store_config.path) as directory:

            def begins() -> int | None:
                return recorded_start(host.files, directory)

            survey = directory.survey(config.identity(), store_config, "", begins)
            store = Store.open_surveyed(store_config, host, directory, survey)
        self._store = store
        try:
            store.writer.on_fatal = self._tasks.fail
            self._state = state = BrokerState(config.coordination(), store, host.random, topics_max=config.topics_max)
            await store.recover(state)
            state.journal.refusal = "a replica changes nothing by itself"
            self._following = following = Following(host, store, state, store.follow(state, self._reason), self._header)
            work = Tasks(self._tasks.fail)
            try:
                work.spawn(following.keep_applying(), "replica.apply")
                work.spawn(self._keep_saved(following), "replica.save")
                return await following.run(self._master, self._peers)
            finally:
                await work.cancel_all()
        finally:
            self._store = self._following = None
            await store.close(clean=False)

    @property
    def _reason(self) -> str:
        return f"this broker is a replica of {self._master}"

    def _header(self) -> ReplicaFollowHeader:
        config, store = self._config, self._store
        end = 0 if store is None else store.log_bounds[1]
        store_id = "" if store is None else store.store_id
        address = self.addresses[INTERNAL_LISTENER]
        member = self._membership
        return ReplicaFollowHeader(config.name, config.cluster, store_id, member.member, address, end, member.confirmed, VERSION)

    async def _keep_saved(self, following: Following) -> None:
        """Record, once a second, up to where the log is known to be confirmed, and whether it is complete."""
        assert self._store is not None
        while True:
            await following.wait_noteworthy(SAVE_S)
            wanted = replace(
                self._membership, confirmed=max(self._membership.confirmed, following.confirmed), complete=following.is_complete
            )
            if wanted != self._membership:
                await self._store.change_directory(lambda directory, wanted=wanted: save_copy_identity(directory, wanted))  # type: ignore[misc]
                self._membership = wanted

    # ----------------------------------------------------------------------------------------------------------- for others

    def status(self) -> ReplicaStatus:
        """Return the status for tools, and for a master that starts."""
        config, store, following, member = self._config, self._store, self._following, self._membership
        start_state = self._state
        term = 0 if start_state is None else start_state.coordination.state.term
        end = 0 if store is None else store.log_bounds[1]
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
            may_have_forgotten=self._may_have_forgotten,
            complete=member.complete,
            following=following is not None and following.master is not None,
            master=self._master,
            trouble="it is being installed" if member.installing else "" if following is None else following.trouble,
        )

    def unready_reasons(self) -> tuple[str, ...]:
        """Return why the replica is not a whole copy now."""
        status = self.status()
        if status.trouble:
            return (status.trouble,)
        return () if status.following else (f"it does not follow its master {self._master}",)

    async def _promote(self, force: bool) -> None:
        """Make this store one of a master, durably. Raises ServiceNotAvailableError if that would lose something, unless `force`."""
        store, state, member = self._store, self._state, self._membership
        if store is None or state is None or member.installing:
            raise ServiceNotAvailableError("this replica is not a whole copy yet: promote another one, or wait")
        await self._check_promotion(state, force)
        known = {each: address for each, address in state.replicas.items() if each != member.member}
        promoted = CopyIdentity(member.member, Role.MASTER, known=known)

        def promote(directory: StoreDirectory) -> None:
            if not member.complete:
                directory.mark_restored()
            save_copy_identity(directory, promoted)

        await store.change_directory(promote)
        log.warning("replica.promoted", was_replica_of=self._master, log_end=store.log_bounds[1], complete=member.complete, force=force)
        self._on_promoted()

    async def _check_promotion(self, state: BrokerState, force: bool) -> None:
        status = self.status()
        mine = self.addresses[INTERNAL_LISTENER]
        master = await ask_status(self._host, self._master, self._peers)
        if master is not None and master.role == Role.MASTER and master.store_id == status.store_id and master.term >= status.term:
            raise ServiceNotAvailableError(f"the master at {self._master} answers: stop it first; two masters of one log lose messages")
        if status.complete or force:
            return
        if status.may_have_forgotten:
            raise ServiceNotAvailableError(
                "this replica may have lost messages that it had acknowledged (its machine crashed, or it was restored): promote another "
                "one, or lose them by --force"
            )
        for member, address in state.replicas.items():
            if member == self._membership.member or address in (mine, self._master):
                continue
            other = await ask_status(self._host, address, self._peers)
            if other is not None and other.store_id == status.store_id and (other.term, other.end) > (status.term, status.end):
                raise ServiceNotAvailableError(
                    f"the replica at {address} has more: its log ends at {other.end}, this one at {status.end}. Promote that one, or lose "
                    "the rest by --force"
                )

    async def stop(self) -> None:
        """Stop following, and leave the store as a killed process does."""
        await self.server.close("the replica is shutting down")
        await self._dispatcher.close()
        await self._tasks.cancel_all()
