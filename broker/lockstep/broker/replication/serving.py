"""The master's side: answers its replicas, and tells the writer of the log what they have.

A fetch is held until the log has bytes behind its position, but no longer than a beat. What a turn of the loop has written leaves in the
same turn, to every replica whose fetch is held. A broker without replicas does nothing of this.

A master that was suspended may have been replaced meanwhile: its replica asked it in vain before it was promoted. So it confirms nothing
without a member of its set before it has asked its replicas, as a start does.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

from lockstep.broker.replication.copy_identity import CopyIdentity, Role, new_member, save_copy_identity, with_set, without
from lockstep.broker.replication.log_parting import Parting, PartingAction, Term, parting
from lockstep.broker.replication.replica_set import BEAT_MS, LOST_MS, Replica, ReplicaSet
from lockstep.broker.state import BrokerState
from lockstep.broker.store import Store
from lockstep.protocol.bodies import LogTerms, ReplicaStanding
from lockstep.protocol.crc import crc32
from lockstep.protocol.errors import LocalProtocolError, MessageIllegalError, ServiceNotAvailableError
from lockstep.protocol.headers.replication import (
    ReplicaAckHeader,
    ReplicaFetchHeader,
    ReplicaFetchReply,
    ReplicaFollowHeader,
    ReplicaFollowReply,
)
from lockstep.protocol.names import REPLICAS_MAX
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited
from lockstep.runtime.requests.request import NO_RESPONSE, HandlerResult, Request, RunInLane
from lockstep.runtime.timer import Timer

log = get_logger("broker")

REPLICA_LANE = "replicas"
"""The lane of reads for replicas that are behind."""
FETCH_BYTES_MAX = 1 << 20
"""The most that one response carries."""
TICK_MS = 50
LATE_MS = 100
SUSPENDED_MS = 1_000
"""A pause of this process in which a replica can have been promoted: that takes longer, for the master has ASK_MS to answer."""


StoreMembers = Callable[[dict[str, str]], Awaitable[None]]
"""Stores a set without the master: member id → address."""


class _Session:
    """A replica on its connection."""

    __slots__ = ("endpoint", "frame", "held", "held_ms", "member", "number", "position", "told")

    def __init__(self, endpoint: Endpoint, member: str, position: int) -> None:
        self.endpoint = endpoint
        self.member = member
        self.held: Request | None = None
        """The fetch that waits for bytes."""
        self.held_ms = 0
        self.number = 0
        """Of the last response."""
        self.frame = 0
        """The last frame when that was made."""
        self.position = position
        """From which on it still copies."""
        self.told = (False, False)
        """What the last response has said: whether the log is complete, and whether the replica is in the set."""


class ReplicaServer:
    """Serves the replicas of a broker. The writer's `Copies`, from the first replica on."""

    def __init__(
        self,
        host: Host,
        tasks: Tasks,
        store: Store,
        state: BrokerState,
        address: Callable[[], str],
        copy_identity: CopyIdentity | None,
        ask: Callable[[], Awaitable[None]] | None,
        instead_of: str = "",
        store_members: StoreMembers | None = None,
        lost: str = "",
    ) -> None:
        """`address` returns where others reach this broker. `copy_identity`: that of the store; None if it was never copied.

        `ask` returns when every member of the set has said that it is still one, and raises RoleError if a replica was promoted; None if
        a register says who the master is. `instead_of`: the other copy that the settings of this master name. `store_members` stores the
        set instead of `lockstep/replica`, durably. `lost`: the member of the set that nobody waits for, unless it is connected at once.
        """
        self._host = host
        self._tasks = tasks
        self._store = store
        self._state = state
        self._address = address
        self._instead_of = instead_of
        self._ask = ask
        self._seen_ms = host.clock.boot_ms()
        """When something happened here last: at most TICK_MS ago, unless this process was suspended."""
        self._certain = asyncio.Event()
        """Set unless the process was suspended and the replicas have not answered since."""
        self._certain.set()
        self._saving = asyncio.Lock()
        self._forgotten: set[str] = set()
        """Replicas that an operator has let go in this life, and that have not followed since."""
        self._sessions: dict[int, _Session] = {}
        """By the number of the connection."""
        self._loop = asyncio.get_running_loop()
        self._timer = Timer(self._loop, self._tick, LATE_MS)
        self.on_recorded: Callable[[], None] = lambda: None
        """Called when `other_addresses` may have changed."""
        self.on_forgotten: Callable[[], None] = lambda: None
        """Called when a replica that is not in the set is known no more."""
        self.catch_up_bytes_s = 0
        """Bytes a second that are read for each replica that is behind; 0 does not limit it."""
        self._frame = 0
        """Number of the last frame: of what left in one turn of the loop to every replica."""
        self._store_members = store_members or self._save_members
        self._is_complete, self._successor = False, ""
        """Whether nothing is appended any more, and the only member that is told so; empty if all are."""
        self._term_begin = 0
        self._assumed_loss = self._has_lost = False
        self.copy_identity = copy_identity
        self.replicas = ReplicaSet({} if copy_identity is None else copy_identity.members, host.clock.boot_ms())
        for each, at in ({} if copy_identity is None else copy_identity.known).items():
            self.replicas.replicas.setdefault(each, Replica(each, at, heard_ms=host.clock.boot_ms()))
        if lost in self.replicas.replicas:
            self.replicas.replicas[lost].heard_ms -= LOST_MS

    def began(self, begin: int, *, assumed_loss: bool, has_lost: bool) -> None:
        """Take note of the start's term: where the log ended before, and whether a loss was assumed.

        `has_lost`: it has passed over damage, or cut it off. Queues have offsets then that no record of the log has.
        """
        self._term_begin, self._assumed_loss, self._has_lost = begin, assumed_loss, has_lost
        if self.copy_identity is not None:
            self._begin_counting()

    def _begin_counting(self) -> None:
        self._state.record_term(self._term_begin, assumed_loss=self._assumed_loss)
        self._store.writer.copies = self
        self._store.pin_log(self._pinned)
        self._record_replicas()
        self._seen_ms = self._host.clock.boot_ms()
        self._tick()

    def _pinned(self) -> int:
        return min((session.position for session in self._sessions.values()), default=sys.maxsize)

    @property
    def is_complete_copy(self) -> bool:
        """Return whether this copy was promoted because its master had stopped in order, and no nameserver has accepted it since."""
        return self.copy_identity is not None and self.copy_identity.complete

    @property
    def is_promoted(self) -> bool:
        """Return whether this is the first start of a copy that was promoted."""
        return self.copy_identity is not None and self.copy_identity.promoted

    async def accepted(self) -> None:
        """Take note that a nameserver has accepted this start, or that there is none to do so."""
        if self.copy_identity is not None and (self.copy_identity.complete or self.copy_identity.promoted):
            await self._save(lambda identity: replace(identity, complete=False, promoted=False))

    def stop(self) -> None:
        """Count nobody any more. Nothing is confirmed to clients afterwards: their connections are closed."""
        self._timer.cancel()
        self._store.writer.copies = None
        self._store.writer.copies_advanced()  # a snapshot may wait for them, and the end of the broker for that

    # ---------------------------------------------------------------------------------------------------------------- Copies

    def stored(self) -> int | None:
        return self.replicas.stored()

    def synced(self) -> int | None:
        return self.replicas.synced()

    def written(self) -> int:
        self._frame += 1
        for session in self._sessions.values():
            if session.held is not None:
                self._answer(session)
        return self._frame

    def heard(self) -> int | None:
        return self.replicas.heard() if self._store.writer.proves_office else None

    # -------------------------------------------------------------------------------------------------------------- requests

    async def follow(self, request: Request) -> HandlerResult:
        """Tell a replica where its log parts from this one. Raises MessageIllegalError for one of another broker."""
        header: ReplicaFollowHeader = request.header
        terms: LogTerms = request.body
        if header.store_id and header.store_id != self._store.store_id:
            raise MessageIllegalError(
                f"the replica's log is that of store {header.store_id[:8]}, this is store {self._store.store_id[:8]}: give the replica an "
                "empty directory, or another master"
            )
        if self.copy_identity is None:
            new = CopyIdentity(new_member(self._host.random), Role.MASTER, instead_of=self._instead_of)
            await self._save(lambda identity: identity or new)
        if self._store.writer.copies is None:
            self._begin_counting()
        assert self.copy_identity is not None
        start, _ = self._store.log_bounds
        theirs = tuple(Term(term.term, term.begin, term.assumed_loss, term.writer) for term in terms.terms)
        found = parting(theirs, header.end, header.confirmed, self._state.terms, start, self._store.written)
        if found.action is PartingAction.REFUSE:
            raise MessageIllegalError(
                f"the replica's log was confirmed up to {header.confirmed} and parts from this one at {found.keep}: nothing is cut. One of "
                "the two has lost what it had: compare them by `lockstep replica ls`, and promote the one with more"
            )
        own = self._state.coordination.state.term
        if self._has_lost and all(term.number != own for term in theirs):
            # What is lost is in lockstep/damage and the snapshots, which only an installation copies.
            found = Parting(PartingAction.INSTALL)
        keep = start if found.action is PartingAction.INSTALL else found.keep
        self._connect(request.endpoint, header, keep)
        return request.reply(ReplicaFollowReply(found.action, keep, own, self._store.store_id, self.copy_identity.member))

    def _connect(self, endpoint: Endpoint, header: ReplicaFollowHeader, position: int) -> None:
        now_ms = self._host.clock.boot_ms()
        known = self.replicas.replicas
        # A replica that has drawn another id is at the place of the one that it was.
        former = {member for member, each in known.items() if each.address == header.address and member != header.member}
        for number, session in list(self._sessions.items()):
            if session.member in {header.member, *former} and number != endpoint.id:
                # It has connected again, or this is an earlier attempt of its that arrives late: then it connects at once.
                del self._sessions[number]
                session.endpoint.abort("the replica has connected again")
        if endpoint.id not in self._sessions:
            endpoint.on_close.append(self._closed)
        self._sessions[endpoint.id] = _Session(endpoint, header.member, position)
        self._forgotten.discard(header.member)
        self._forgotten |= {member for member in former if self.replicas.forget(member, now_ms)}
        self.replicas.connected(header.member, header.address, now_ms)
        self._record_replicas()
        log_limited(log, "info", "replica.connected", replica=header.address, member=header.member, peer=endpoint.peer, end=header.end)

    def _closed(self, endpoint: Endpoint, reason: str) -> None:
        session = self._sessions.pop(endpoint.id, None)
        if session is not None:
            self.replicas.disconnected(session.member, self._host.clock.boot_ms())
            log_limited(log, "warning", "replica.disconnected", member=session.member, peer=endpoint.peer, reason=reason)
            self._changed()

    def fetch(self, request: Request) -> HandlerResult:
        """Answer bytes of the log, or hold the request."""
        session, header = self._session(request.endpoint), request.header
        assert isinstance(header, ReplicaFetchHeader)
        if header.waits:
            self._progress(session, header, header.trouble or "")
        session.held, session.held_ms, session.position = request, self._host.clock.boot_ms(), header.position
        has_news = session.told != self._news(session) or (self._store.writer.proves_office and self._frame > session.frame)
        if self._store.written > header.position or not header.waits or has_news:
            return self._bytes_for(session)
        return NO_RESPONSE

    def ack(self, request: Request) -> HandlerResult:
        """Take note of what a replica has stored."""
        header: ReplicaAckHeader = request.header
        self._progress(self._session(request.endpoint), header)
        return NO_RESPONSE

    def check_replica(self, endpoint: Endpoint) -> None:
        """Raise MessageIllegalError unless a replica follows on the connection."""
        self._session(endpoint)

    def _session(self, endpoint: Endpoint) -> _Session:
        session = self._sessions.get(endpoint.id)
        if session is None:
            raise MessageIllegalError("no replica follows on this connection: send REPLICA_FOLLOW first")
        return session

    def _progress(self, session: _Session, header: ReplicaFetchHeader | ReplicaAckHeader, trouble: str = "") -> None:
        now_ms = self._host.clock.boot_ms()
        frame = session.frame if header.heard == session.number else 0
        last_frame = self._frame if self._store.writer.proves_office else 0
        has = header.stored, header.synced, header.applied
        self.replicas.progress(session.member, *has, self._store.written, now_ms, trouble, frame, last_frame)
        self._changed()

    def _answer(self, session: _Session) -> None:
        """Answer a held fetch."""
        request = session.held
        assert request is not None
        try:
            result = self._bytes_for(session)
            if isinstance(result, RunInLane):
                self._tasks.spawn(self._answer_late(request, result), "broker.replica")
            else:
                request.respond(result)  # type: ignore[arg-type]
        except Exception as error:
            request.fail(error)

    async def _answer_late(self, request: Request, result: RunInLane) -> None:
        try:
            request.respond(await result.work())  # type: ignore[arg-type]
        except Exception as error:
            request.fail(error)

    def _bytes_for(self, session: _Session) -> HandlerResult:
        """Return the response to a held fetch, which is held no longer; from memory at once, else in the lane."""
        request, session.held = session.held, None
        assert request is not None
        session.number += 1
        session.told = self._news(session)
        session.frame = self._frame
        header: ReplicaFetchHeader = request.header
        data = self._store.recent_log(header.position, min(header.max_bytes, FETCH_BYTES_MAX))
        if data is None:
            return RunInLane(REPLICA_LANE, partial(self._read, request, session, session.number))
        return self._reply(request, session, session.number, data)

    def _news(self, session: _Session) -> tuple[bool, bool]:
        ends = self._is_complete and self._successor in ("", session.member)
        return ends, session.member in self.replicas.members

    async def _read(self, request: Request, session: _Session, number: int) -> HandlerResult:
        header: ReplicaFetchHeader = request.header
        data = await self._store.read_log(header.position, min(header.max_bytes, FETCH_BYTES_MAX))
        if self.catch_up_bytes_s:
            await asyncio.sleep(len(data) / self.catch_up_bytes_s)
        return self._reply(request, session, number, data)

    def _reply(self, request: Request, session: _Session, number: int, data: bytes) -> HandlerResult:
        store, term = self._store, self._state.coordination.state.term
        ends = store.writer.confirmed, store.log_bounds[0], store.written
        reply = ReplicaFetchReply(number, term, crc32(data), *ends, store.now_ms(), *session.told)
        return request.reply(reply, data)

    # --------------------------------------------------------------------------------------------------------------- the set

    def _set_timer(self) -> None:
        self._timer.set(self._loop.time() + TICK_MS / 1000)

    def _tick(self) -> None:
        try:
            now_ms = self._host.clock.boot_ms()
            self.replicas.tick(now_ms)
            for session in list(self._sessions.values()):
                if session.held is not None and now_ms - session.held_ms >= BEAT_MS:
                    self._answer(session)
            self._changed()
        finally:
            self._set_timer()

    @property
    def is_in_doubt(self) -> bool:
        """Return whether the broker was suspended and does not know yet whether a replica was promoted meanwhile."""
        return not self._certain.is_set()

    def _look_at_clock(self) -> None:
        now_ms = self._host.clock.boot_ms()
        paused_ms, self._seen_ms = now_ms - self._seen_ms, now_ms
        if self._ask is not None and paused_ms >= SUSPENDED_MS and self._certain.is_set():
            self._certain.clear()
            log_limited(log, "warning", "broker.was_suspended", paused_ms=paused_ms, then="its replicas are asked whether one was promoted")
            self._tasks.spawn(self._become_certain(self._ask), "broker.asks_replicas")

    async def _become_certain(self, ask: Callable[[], Awaitable[None]]) -> None:
        await ask()
        self._certain.set()

    async def _wait_certain(self) -> None:
        self._look_at_clock()
        await self._certain.wait()

    def _changed(self) -> None:
        """Confirm what all have by now, and store the set if it has changed."""
        self._look_at_clock()
        self._store.writer.copies_advanced()
        if (members := self.replicas.begin_storing()) is not None:
            self._tasks.spawn(self._store_set(members), "broker.replica_set")

    async def _store_set(self, members: dict[str, str]) -> None:
        assert self.copy_identity is not None
        before = self.copy_identity.members
        await self._wait_certain()
        await self._store_members(members)
        async with self._saving:  # not while a file is written from the identity of before
            self.copy_identity = without(with_set(self.copy_identity, members), self._forgotten)
        await self._wait_certain()
        self.replicas.set_stored()
        for session in list(self._sessions.values()):
            if session.held is not None and session.told != self._news(session):
                self._answer(session)  # it knows at once whether it may be promoted
        for member in members.keys() - before.keys():
            log_limited(log, "info", "replica.joined", member=member, replica=members[member], members=len(members))
        for member in before.keys() - members.keys():
            reason = self.replicas.replicas[member].left_because
            log_limited(log, "error", "replica.left", member=member, replica=before[member], members=len(members), reason=reason)
            if member in self._forgotten:
                self.replicas.forget(member, self._host.clock.boot_ms())  # it was waited for until now
        self._record_replicas()
        self._changed()

    async def _save_members(self, members: dict[str, str]) -> None:
        await self._save(lambda identity: without(with_set(identity, members), self._forgotten))

    async def _save(self, change: Callable[[Any], CopyIdentity]) -> None:
        """Store what `change` returns for the present identity, durably."""
        async with self._saving:
            identity = change(self.copy_identity)
            await self._store.change_directory(lambda directory: save_copy_identity(directory, identity))
            self.copy_identity = identity

    def _record_replicas(self) -> None:
        """Let each copy know where the others are: whoever is promoted asks them."""
        assert self.copy_identity is not None
        known = {each: address for each, address in self.copy_identity.known.items() if each not in self._forgotten}
        known |= {replica.member: replica.address for replica in self.replicas.replicas.values()}
        if self._state.record_replicas({**known, self.copy_identity.member: self._address()}):
            self.on_recorded()

    def other_addresses(self) -> tuple[str, ...]:
        """Return where the other copies of the log are, as far as it is recorded; at most as many as nameservers take."""
        return tuple(sorted(set(self._state.replicas.values()) - {self._address()})[:REPLICAS_MAX])

    async def forget(self, member: str) -> bool:
        """Let a replica go that will not come back. Return whether it was known. Raises MessageIllegalError for one that follows now."""
        if any(session.member == member for session in self._sessions.values()):
            raise MessageIllegalError(f"replica {member} follows now: stop it first")
        known = self.replicas.forget(member, self._host.clock.boot_ms())
        if self.copy_identity is None or not (known or member in self.copy_identity.known):
            return False
        self._forgotten.add(member)
        self._changed()
        await self._save(lambda identity: without(identity, self._forgotten))
        self._record_replicas()
        if member not in self.replicas.replicas:
            self.on_forgotten()
        return True

    def standings(self) -> tuple[ReplicaStanding, ...]:
        """Return the replicas, for tools."""
        now_ms = self._host.clock.boot_ms()
        return tuple(
            ReplicaStanding(
                replica.member,
                replica.address,
                replica.member in self.replicas.members,
                replica.connected,
                replica.log.has,
                replica.applied,
                max(0, now_ms - replica.heard_ms),
                replica.trouble,
            )
            for replica in self.replicas.replicas.values()
        )

    def unheard_ms(self) -> int:
        """Return for how long the counted replica that was heard longest ago has not been heard. 0 if none is counted."""
        now_ms = self._host.clock.boot_ms()
        return max((now_ms - replica.heard_ms for replica in self.replicas.counted), default=0)

    def known(self) -> dict[str, str]:
        """Return member id → address of all replicas that this master knows, without those that are forgotten as soon as they leave."""
        return {replica.member: replica.address for replica in self.replicas.replicas.values() if replica.member not in self._forgotten}

    def members(self) -> dict[str, str]:
        """Return member id → address of the stored set, without this master."""
        return {member: self.replicas.replicas[member].address for member in self.replicas.members}

    def check_successor(self, member: str) -> None:
        """Raise LocalProtocolError or ServiceNotAvailableError unless this master can hand over to the member; empty for any of the set."""
        if not self._store.writer.proves_office:
            raise LocalProtocolError("this broker has no register: stop it, and promote a replica by `lockstep replica promote`")
        connected = {session.member for session in self._sessions.values()} & self.replicas.members
        if not connected or (member and member not in connected):
            raise ServiceNotAvailableError(
                f"{f'replica {member}' if member else 'each replica'} is out of the set, or not connected: nothing was changed. "
                "`lockstep ha show` says why"
            )

    async def complete(self, successor: str = "") -> None:
        """Wait until every member of the set has all of the log, and tell them that it ends here. Members that are lost leave meanwhile.

        Nothing may be appended afterwards. A member that learns it can be promoted without an assumed loss. `successor`: only this one is
        told.
        """
        if self._store.writer.copies is None:
            return
        await self._store.writer.wait_confirmed()
        self._is_complete, self._successor = True, successor
        for session in list(self._sessions.values()):
            if session.held is not None:
                self._answer(session)
        # The request of one that has none here is on its way.
        for _ in range(LOST_MS // TICK_MS):
            if all(session.told == self._news(session) for session in self._sessions.values()):
                return
            await asyncio.sleep(TICK_MS / 1000)
