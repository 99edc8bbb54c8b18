"""REPLICA_*: requests of replicas to their master, and of tools to both (broker/replication)."""

import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

from lockstep.broker.replication.serving import FETCH_BYTES_MAX, REPLICA_LANE, ReplicaServer
from lockstep.broker.state import BrokerState
from lockstep.broker.store import Store
from lockstep.protocol.bodies import LogTerms, ReplicaStatus
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import LocalProtocolError, NoPermissionError
from lockstep.protocol.headers.replication import (
    ReplicaAckHeader,
    ReplicaFetchHeader,
    ReplicaFileHeader,
    ReplicaFileReply,
    ReplicaFollowHeader,
    ReplicaForgetHeader,
    ReplicaHandOverHeader,
    ReplicaPromoteHeader,
    ReplicaStatusHeader,
)
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import GET, UPDATE, inside, on_cluster
from lockstep.runtime.requests.request import HandlerResult, PendingResponse, Request

OF_BROKERS = "user whose `brokers` name the broker"
FILE_NAMES = re.compile(r"identity|proof|damage|snapshot(-\d{20})?")


class StatusOfCopyProcessor:
    """Handles REPLICA_STATUS, at a master and at a replica."""

    def __init__(
        self, status: Callable[[], ReplicaStatus], broker_name: str, tables: Callable[[], tuple[Store, BrokerState] | None]
    ) -> None:
        """`tables` returns what is counted, None while there is nothing."""
        self._status = status
        self._broker_name = broker_name
        self._tables = tables

    @handles(RequestCode.REPLICA_STATUS, ReplicaStatusHeader, needs=[inside(f"Get cluster, or {OF_BROKERS}")], at_once=True)
    def status(self, request: Request) -> HandlerResult:
        if not request.user.may_be_broker(self._broker_name):
            on_cluster(GET).check(request)
        header: ReplicaStatusHeader = request.header
        status, tables = self._status(), self._tables()
        if header.counts and tables is not None:
            store, state = tables
            consumed: Counter[str] = Counter()
            for (group, _, _), progress in state.coordination.state.progress:
                consumed[group] += progress.offset
            status = replace(status, messages=store.message_count, consumed=dict(consumed))
        return request.reply(body=status)


class ReplicaServerProcessor:
    """Handles the requests to a master."""

    def __init__(
        self,
        server: ReplicaServer,
        store: Store,
        broker_name: str,
        cluster: str,
        hand_over: Callable[[str], None],
        restore: Callable[[], Awaitable[None]],
    ) -> None:
        """`hand_over` begins to hand over to a member of the set, `restore` writes the entry of a register anew."""
        self._hand_over = hand_over
        self._restore = restore
        self._server = server
        self._store = store
        self._broker_name = broker_name
        self._cluster = cluster

    @handles(RequestCode.REPLICA_FOLLOW, ReplicaFollowHeader, LogTerms, needs=[inside(OF_BROKERS)], lane=REPLICA_LANE, at_once=True)
    async def follow(self, request: Request) -> HandlerResult:
        header: ReplicaFollowHeader = request.header
        self._check_user(request)
        if (header.broker_name, header.cluster) != (self._broker_name, self._cluster):
            raise NoPermissionError(
                f"this is broker {self._broker_name} of cluster {self._cluster}, the replica is one of {header.broker_name} of "
                f"{header.cluster}: start the replica under this name, or name another master"
            )
        return await self._server.follow(request)

    def _check_user(self, request: Request) -> None:
        if not request.user.may_be_broker(self._broker_name):
            raise request.user.refusal(f"copy the log of broker {self._broker_name}: its `brokers` do not name it")

    @handles(RequestCode.REPLICA_FETCH, ReplicaFetchHeader, needs=[inside(OF_BROKERS)], at_once=True)
    def fetch(self, request: Request) -> HandlerResult:
        self._check_user(request)
        return self._server.fetch(request)

    @handles(RequestCode.REPLICA_ACK, ReplicaAckHeader, needs=[inside(OF_BROKERS)], at_once=True)
    def ack(self, request: Request) -> HandlerResult:
        self._check_user(request)
        return self._server.ack(request)

    @handles(RequestCode.REPLICA_FILE, ReplicaFileHeader, needs=[inside(OF_BROKERS)], lane=REPLICA_LANE, at_once=True)
    async def file(self, request: Request) -> HandlerResult:
        header: ReplicaFileHeader = request.header
        self._check_user(request)
        self._server.check_replica(request.endpoint)
        if not FILE_NAMES.fullmatch(header.name) or header.offset < 0:
            raise LocalProtocolError(f"file {header.name!r} from {header.offset}: expected identity, proof, damage or snapshot, from 0 on")
        name, size, data = await self._store.read_file(header.name, header.offset, min(header.max_bytes, FETCH_BYTES_MAX))
        return request.reply(ReplicaFileReply(name, size), data)

    @handles(RequestCode.REPLICA_HAND_OVER, ReplicaHandOverHeader, needs=[on_cluster(UPDATE)], lane=REPLICA_LANE, at_once=True)
    async def hand_over(self, request: Request) -> HandlerResult:
        header: ReplicaHandOverHeader = request.header
        self._server.check_successor(header.member)
        self._hand_over(header.member)
        return request.reply()

    @handles(RequestCode.REPLICA_PROMOTE, ReplicaPromoteHeader, needs=[on_cluster(UPDATE)], lane=REPLICA_LANE, at_once=True)
    async def restore(self, request: Request) -> HandlerResult:
        await self._restore()
        return request.reply()

    @handles(RequestCode.REPLICA_FORGET, ReplicaForgetHeader, needs=[on_cluster(UPDATE)], lane=REPLICA_LANE)
    async def forget(self, request: Request) -> HandlerResult:
        header: ReplicaForgetHeader = request.header
        if not await self._server.forget(header.member):
            raise LocalProtocolError(f"broker {self._broker_name} knows no replica {header.member}: `lockstep replica ls` lists them")
        return PendingResponse(request.reply())


class ReplicaProcessor:
    """Handles the requests to a replica."""

    def __init__(self, promote: Callable[[bool], Awaitable[None]]) -> None:
        self._promote = promote

    @handles(RequestCode.REPLICA_PROMOTE, ReplicaPromoteHeader, needs=[on_cluster(UPDATE)], lane=REPLICA_LANE, at_once=True)
    async def promote(self, request: Request) -> HandlerResult:
        header: ReplicaPromoteHeader = request.header
        await self._promote(header.force)
        return request.reply()
