"""The replica's side: asks its master for the bytes behind the end of its log, for ever, and applies what is confirmed."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from lockstep.broker.replication.log_parting import PartingAction, Term
from lockstep.broker.replication.master_clock import MasterClock
from lockstep.broker.replication.replica_set import BEAT_MS
from lockstep.broker.replication.serving import FETCH_BYTES_MAX
from lockstep.broker.state import BrokerState
from lockstep.broker.store import Store
from lockstep.broker.store.errors import NoNextFileError
from lockstep.broker.store.replica_log import ReplicaLog
from lockstep.protocol.bodies import LogTerm, LogTerms
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.crc import crc32
from lockstep.protocol.errors import (
    AuthenticationError,
    LockstepError,
    MessageIllegalError,
    NoPermissionError,
    RemoteProtocolError,
    RequestTimeoutError,
    ServiceNotAvailableError,
    without_frames,
)
from lockstep.protocol.fields import from_plain, to_plain
from lockstep.protocol.headers.replication import (
    ReplicaAckHeader,
    ReplicaFetchHeader,
    ReplicaFetchReply,
    ReplicaFollowHeader,
    ReplicaFollowReply,
)
from lockstep.protocol.responses import checked
from lockstep.runtime.connections.dial import connect
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited
from lockstep.runtime.security.client_security import ClientSecurity
from lockstep.runtime.waiting import is_set_within

log = get_logger("broker")

DISK_ANSWER_MS = 30_000
"""The same for bytes that are read from a disk, at a limited rate."""
ANSWER_MS = 5_000
"""How long an answer may take: twenty beats."""
RETRY_FIRST_MS = 50
RETRY_MAX_MS = 1_000
TROUBLE_MS = 1_000
"""How often a replica with a full disk looks for room."""
UNAPPLIED_BYTES_MAX = 64 << 20
"""Received and not applied: above it nothing more is asked for, so that a promotion never reads more."""


def _nothing() -> None:
    """Do nothing."""


def shows_master(error: BaseException) -> bool | None:
    """Return whether an error shows that the master lives (True) or that it does not serve (False); None if no answer came.

    A master that refuses a copy, because of its login or its log, lives: that copy must not be elected in its place.
    """
    if isinstance(error, AuthenticationError | NoPermissionError | MessageIllegalError):
        return True
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, TimeoutError | RequestTimeoutError):
            return None
        cause = cause.__cause__
    return False


@dataclass(frozen=True, slots=True)
class Master:
    """What a replica is told about its master."""

    address: str
    member: str
    term: int


async def present(endpoint: Endpoint, header: ReplicaFollowHeader, terms: Sequence[Term]) -> ReplicaFollowReply:
    """Present a replica to its master. Return what it has to do. Raises BrokerError, TransportError."""
    body = encode_body(LogTerms(tuple(LogTerm(term.number, term.begin, term.assumed_loss, term.writer) for term in terms)))
    response = await endpoint.request(RequestCode.REPLICA_FOLLOW, to_plain(header), body, timeout_ms=ANSWER_MS)
    return from_plain(ReplicaFollowReply, checked(response).fields)


async def bytes_at(endpoint: Endpoint, position: int, bytes_max: int) -> tuple[ReplicaFetchReply, bytes]:
    """Return bytes of the master's log from `position` on, none at its end, on a connection on which the replica has presented itself.

    Raises RemoteProtocolError for a response that can't be right, or if the log begins after `position`; TransportError.
    """
    header = ReplicaFetchHeader(position, bytes_max, waits=False)
    response = checked(await endpoint.request(RequestCode.REPLICA_FETCH, to_plain(header), timeout_ms=DISK_ANSWER_MS))
    reply, data = from_plain(ReplicaFetchReply, response.fields), bytes(response.body)
    if crc32(data) != reply.crc or len(data) > bytes_max or reply.log_start > position:
        what = f"{len(data)} bytes for {position} (its log: {reply.log_start} to {reply.written})"
        raise RemoteProtocolError(f"the master's response has {what}, or their CRC is wrong")
    return reply, data


class Following:
    """Copies the log of one master into one store. `run` returns when the master says that the store has to be changed first."""

    def __init__(
        self,
        host: Host,
        store: Store,
        state: BrokerState,
        replica_log: ReplicaLog,
        header: Callable[[], ReplicaFollowHeader],
        begins: Callable[[], Awaitable[None]],
        master_address: Callable[[], str | None],
    ) -> None:
        """`header` returns the request by which the replica presents itself. `begins` is awaited before bytes of a master are asked for.
        `master_address` returns where the master is, None if that is not known."""
        self._host = host
        self._store = store
        self._state = state
        self._log = replica_log
        self.clock = MasterClock()
        self._header = header
        self._begins = begins
        self._master_address = master_address
        self._endpoint: Endpoint | None = None
        self._is_halted = False
        self._again = asyncio.Event()
        """Set when the next connection is not to wait."""
        self.on_heard: Callable[[], None] = _nothing
        """Called when the master has sent something."""
        self.on_refused: Callable[[], None] = _nothing
        """Called when the connection to the master has ended, or could not be made, other than by silence."""
        self.on_complete: Callable[[], None] = _nothing
        """Called when the master has stopped in order, and this log is whole."""
        self._can_apply = asyncio.Event()
        self._applied = asyncio.Event()
        self.confirmed = 0
        """Up to where the master has confirmed its log, as far as this replica knows."""
        self.master: Master | None = None
        """The master that is followed now."""
        self.trouble = ""
        """Why nothing can be copied now."""
        self.stopping = asyncio.Event()
        """Set by `stop`."""
        self.has_caught_up = False
        """Whether this log had all of the master's once."""
        self.log_start = 0
        """Where the master's log begins."""
        self.is_complete = False
        """Whether the master has stopped in order, and this log is whole and ends where that one does."""
        self.in_set: bool | None = None
        """Whether it is in the set of the master, as that has said last. None: no master has said anything yet."""
        self._noteworthy = asyncio.Event()
        self._heard = 0

    @property
    def applied(self) -> int:
        return self._log.applied

    @property
    def has_everything(self) -> bool:
        """Return whether this log has had all that its master had confirmed: all of the master's log once, or what its set has."""
        return self.has_caught_up or self.in_set is True

    def stop(self) -> None:
        """Let `keep_applying` end, and `wait_noteworthy` return."""
        self.stopping.set()
        self._can_apply.set()
        self._noteworthy.set()

    def drop_connection(self, reason: str) -> None:
        """End the connection: the next one is made at once, to where the master is by then."""
        self._again.set()
        if self._endpoint is not None:
            self._endpoint.abort(reason)

    def halt(self) -> None:
        """Copy nothing any more, and acknowledge nothing."""
        self._is_halted = True
        self.drop_connection("this copy is elected")

    async def wait_noteworthy(self, timeout_s: float) -> None:
        """Return after `timeout_s`, or as soon as the log is complete or the following stops."""
        await is_set_within(self._noteworthy, timeout_s)
        self._noteworthy.clear()

    # ------------------------------------------------------------------------------------------------------------- following

    async def run(self, security: ClientSecurity) -> ReplicaFollowReply:
        """Follow until the log has to be cut, or begun anew. Tries again after each error, for ever."""
        wait_ms = RETRY_FIRST_MS
        while True:
            if self._is_halted:
                await asyncio.get_running_loop().create_future()
            if (address := self._master_address()) is None:
                await is_set_within(self._again, RETRY_MAX_MS / 1000)
                self._again.clear()
                continue
            try:
                self._endpoint = endpoint = await connect(self._host, address, security=security)
                try:
                    if self._is_halted:
                        continue
                    reply = await present(endpoint, self._header(), self._state.terms)
                    self.on_heard()  # not before: the system accepts connections for a process that stands still
                    if reply.action != PartingAction.FOLLOW:
                        return reply
                    self.master = Master(address, reply.member, reply.term)
                    log_limited(log, "info", "replica.following", master=address, term=reply.term, position=self._log.end)
                    wait_ms = RETRY_FIRST_MS
                    self.is_complete = False
                    await self._begins()
                    await self._copy(endpoint, reply.term)
                finally:
                    endpoint.close("the replica follows no longer")
                    self.master = self._endpoint = None
            except (LockstepError, TimeoutError) as error:
                lives = shows_master(error)
                if lives is not None:
                    (self.on_heard if lives else self.on_refused)()
                log_limited(log, "warning", "replica.cut_off", master=address, error=str(without_frames(error)), then="it is tried again")
            if await is_set_within(self._again, self._host.random.uniform(wait_ms / 2, wait_ms) / 1000):
                wait_ms = RETRY_FIRST_MS
            self._again.clear()
            wait_ms = min(RETRY_MAX_MS, wait_ms * 2)

    async def _copy(self, endpoint: Endpoint, term: int) -> NoReturn:
        """Copy until the connection ends. Raises TransportError then, and RemoteProtocolError for a response that can't be right."""
        self._heard = 0
        while True:
            has_room = await self._has_room()
            header = self._fetch(FETCH_BYTES_MAX if has_room else 0)
            position = header.position
            asked = endpoint.request(RequestCode.REPLICA_FETCH, to_plain(header), timeout_ms=ANSWER_MS)
            if self.confirmed > self._log.applied:
                self._can_apply.set()  # the request, for which acknowledgements wait, leaves first
            response = checked(await asked)
            self.on_heard()
            reply = from_plain(ReplicaFetchReply, response.fields)
            data = response.body
            if reply.term != term or reply.number != self._heard + 1 or crc32(data) != reply.crc or len(data) > header.max_bytes:
                what = f"response {reply.number} of term {reply.term} with {len(data)} bytes"
                raise RemoteProtocolError(f"the master's {what} does not follow number {self._heard} of term {term}, or its CRC is wrong")
            if reply.log_start > position:
                raise RemoteProtocolError(f"the master's log begins at {reply.log_start}, this replica ends at {position}: it was too slow")
            self._heard, self.log_start = reply.number, reply.log_start
            self.clock.heard(reply.term, self._host.clock.boot_ms(), reply.time_ms)
            if data:
                self._receive(position, data, endpoint)
            if not self.has_caught_up and reply.written == self._log.end:
                self.has_caught_up = True
                self._noteworthy.set()
            self.is_complete = reply.complete and reply.written == self._log.end
            if self.is_complete:
                self._noteworthy.set()
                self.on_complete()
            self.confirmed = max(self.confirmed, reply.confirmed)
            if reply.in_set is not self.in_set:
                self.in_set = reply.in_set
                self._noteworthy.set()
            if not has_room:
                await asyncio.sleep(BEAT_MS / 1000)

    def _fetch(self, max_bytes: int) -> ReplicaFetchHeader:
        replica = self._log
        trouble = self.trouble or None
        return ReplicaFetchHeader(replica.end, max_bytes, replica.stored, replica.synced, replica.applied, self._heard, trouble=trouble)

    def _receive(self, position: int, data: bytes | bytearray | memoryview, endpoint: Endpoint) -> None:
        try:
            self._log.receive(position, data)
        except NoNextFileError as error:
            self._set_trouble(str(error))
            return
        if self._log.stored < self._log.end:
            self._log.when_stored(lambda: self._acknowledge(endpoint))

    def _acknowledge(self, endpoint: Endpoint) -> None:
        replica = self._log
        header = ReplicaAckHeader(replica.stored, replica.synced, replica.applied, self._heard)
        endpoint.oneway(RequestCode.REPLICA_ACK, to_plain(header))

    async def _has_room(self) -> bool:
        """Wait until not too much is unapplied. Return whether the disk has room for more."""
        while self._log.end - self._log.applied > UNAPPLIED_BYTES_MAX and self.confirmed > self._log.applied:
            self._applied.clear()
            await self._applied.wait()
        try:
            self._store.check_copy(FETCH_BYTES_MAX)
        except ServiceNotAvailableError as error:
            self._set_trouble(error.remark or str(error))
            return False
        self._set_trouble("")
        return True

    def _set_trouble(self, trouble: str) -> None:
        if trouble and not self.trouble:
            log_limited(log, "error", "replica.stopped", trouble=trouble, then="its master confirms without it until there is room")
        self.trouble = trouble

    # -------------------------------------------------------------------------------------------------------------- applying

    async def keep_applying(self) -> None:
        """Apply what is confirmed, and write snapshots of it, until `stop`. Raises StoreError: the copy is bad, or the disk failed."""
        while not self.stopping.is_set():
            await self._can_apply.wait()
            self._can_apply.clear()
            await self._log.apply(self.confirmed)
            self._applied.set()
            if self._store.snapshot_due(self._host.clock.monotonic_ms()):
                await self._store.write_snapshot(self._state.take_snapshot())
