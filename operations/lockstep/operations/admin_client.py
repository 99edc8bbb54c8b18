"""Requests of the commands to nameservers and brokers. RocketMQ: MQAdminExt.

Brokers are dialled at the address that the nameserver returns, with one connection per request: a command sends few requests and ends.
Within `keep_connections` each address has one connection for all requests.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from lockstep.client.cluster_client import ClusterClient
from lockstep.operations.progress import Reporter
from lockstep.protocol.bodies import (
    TAG,
    BrokerAddress,
    BrokerSettings,
    BrokerStatus,
    ChangeSettings,
    ClusterInfo,
    CreateTopicReply,
    EndTransactionBody,
    GroupEvent,
    GroupEvents,
    GroupSettings,
    GroupStatusReply,
    HalfMessage,
    HalfPage,
    OffsetRange,
    Overview,
    ParkControlBody,
    ParkControlReply,
    PurgeBody,
    PurgeReply,
    ReplicaStatus,
    ResetBody,
    ResetReply,
    RunningInfo,
    SettingChanges,
    TopicOffsets,
    TopicRoute,
    WaitingPage,
)
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import (
    LockstepError,
    RequestTimeoutError,
    RouteNotReadyError,
    TopicNotExistError,
    TransportError,
)
from lockstep.protocol.fields import from_plain
from lockstep.protocol.headers.admin import SettingsHeader
from lockstep.protocol.headers.clients import (
    DeleteGroupHeader,
    ForgetProgressHeader,
    ForgetProgressReply,
    GroupEventsHeader,
    GroupStatusHeader,
)
from lockstep.protocol.headers.offsets import (
    ListWaitingHeader,
    OffsetReply,
    QueryMessageHeader,
    QueryMessageReply,
    SearchOffsetHeader,
    TopicHeader,
    ViewMessageHeader,
)
from lockstep.protocol.headers.pull import SUBSCRIPTION, SUSPEND, PullHeader
from lockstep.protocol.headers.replication import ReplicaForgetHeader, ReplicaHandOverHeader, ReplicaPromoteHeader, ReplicaStatusHeader
from lockstep.protocol.headers.routes import (
    CreateTopicHeader,
    ForgetDeletionsHeader,
    ForgetDeletionsReply,
    HoldWritesHeader,
    HoldWritesReply,
)
from lockstep.protocol.headers.send import RecallMessageHeader
from lockstep.protocol.headers.tools import RunningInfoHeader
from lockstep.protocol.headers.transactions import EndTransactionHeader, ListHalvesHeader
from lockstep.protocol.names import READER_GROUP
from lockstep.protocol.responses import checked, pulled
from lockstep.protocol.topics.queue import TopicLayout
from lockstep.runtime.connections.cluster_address import ClusterAddress
from lockstep.runtime.host import Host
from lockstep.runtime.security.credentials import Credentials
from lockstep.runtime.security.tls import ClientTls

T = TypeVar("T")

PULL_BYTES_MAX = 256 * 1024
TIMEOUT_MS = 5_000
"""As RocketMQ's admin tools."""
PROMOTE_MS = 30_000
"""Before it becomes the master a replica asks the old one and the other replicas, up to 2 s each."""
PURGE_MS = 120_000
"""A purge moves each group that has not consumed what is removed, in turns between which the broker serves others."""
REDIAL_MS = 1_000
"""For how long an address that could not be dialled is not dialled again: requests that waited for the dial do not dial in turn."""


@dataclass(frozen=True, slots=True)
class BrokerResults(Generic[T]):
    """The results of the same request to several brokers, by broker name."""

    values: Mapping[str, T]
    failed: Mapping[str, str]
    """Broker → why its request failed."""

    def failure_summary(self) -> str | None:
        """Return one line that names the brokers that failed, or None if none did."""
        return failure_summary(self.failed)


class AdminClient:
    """Sends admin requests. Every request raises TransportError, or the BrokerError of a response that reports an error.

    The constructor raises ConfigError for an invalid nameserver address, and if a file of TLS can't be used.
    """

    def __init__(
        self, host: Host, nameserver: str | ClusterAddress, *, timeout_ms: int = TIMEOUT_MS, reporter: Reporter | None = None
    ) -> None:
        """`reporter`: receives what operations report while they run."""
        self.host = host
        self.reporter = reporter or Reporter()
        self.address = ClusterAddress.parse(nameserver)
        self.nameservers = self.address.nameservers
        self._security = self.address.security()
        self._cluster = ClusterClient(host, self.nameservers, security=self._security, timeout_ms=timeout_ms)

    @asynccontextmanager
    async def keep_connections(self, *, redial: bool = False) -> AsyncIterator[None]:
        """Use one connection per address inside the block. It is dialled by the first request, and again after it was lost. The last of
        several blocks that run at the same time closes the connections.

        An address that can't be dialled is not tried again, or with `redial`, for a block that does not end, not for REDIAL_MS.
        """
        self._cluster.keep(REDIAL_MS if redial else None)
        try:
            yield
        finally:
            await self._cluster.close()

    @property
    def has_login(self) -> bool:
        """Return whether this client logs in."""
        return self._security.credentials is not None

    @property
    def tls(self) -> ClientTls | None:
        """Return how this client connects by TLS; None: connections are plain."""
        return self._security.tls

    def as_user(self, credentials: Credentials) -> "AdminClient":
        """Return a client of the same cluster that logs in with these credentials."""
        return AdminClient(self.host, replace(self.address, credentials=credentials))

    async def brokers(self) -> tuple[BrokerAddress, ...]:
        """Return every broker that the nameserver knows, sorted by name."""
        try:
            return await self._cluster.brokers()
        except RouteNotReadyError:
            return ()

    async def brokers_at(self, nameserver: str) -> tuple[BrokerAddress, ...]:
        """Return every broker that this one nameserver knows."""
        try:
            response = await self._cluster.ask_at(nameserver, RequestCode.GET_BROKER_CLUSTER_INFO)
        except RouteNotReadyError:
            return ()
        return decode_body(ClusterInfo, checked(response).body).brokers

    async def topics(self) -> tuple[str, ...]:
        """Return every topic of the cluster except deleted and system ones, sorted."""
        return await self._cluster.topics()

    async def route(self, topic: str) -> TopicRoute:
        """Return the topic's whole layout and its brokers' addresses. Raise TopicNotExistError."""
        return await self._cluster.route(topic)

    async def find_layout(self, topic: str) -> TopicLayout | None:
        """Return the topic's whole layout, or None if it does not exist."""
        try:
            return (await self.route(topic)).layout
        except TopicNotExistError:
            return None

    async def request(
        self, broker: BrokerAddress, code: RequestCode, header: object | None = None, body: bytes = b"", *, hold_ms: int = 0
    ) -> Command:
        """Send one request to one broker, at its last known address. `hold_ms`: how much longer than others it may take."""
        return checked(await self._cluster.request(broker.address, code, header, body, hold_ms=hold_ms))

    async def offsets(self, broker: BrokerAddress, topic: str) -> tuple[OffsetRange, ...]:
        """Return the first and the next offset of each of the topic's queues at one broker."""
        return decode_body(TopicOffsets, (await self.request(broker, RequestCode.TOPIC_OFFSETS, TopicHeader(topic))).body).queues

    async def group_status(self, broker: BrokerAddress, group: str | None, *, summaries: bool = False) -> GroupStatusReply:
        """Return the state of `group` at one broker, or of None the names of all groups, and their summaries if requested."""
        header = GroupStatusHeader(group, True if summaries else None)
        return decode_body(GroupStatusReply, (await self.request(broker, RequestCode.GROUP_STATUS, header)).body)

    async def offset_by_time(self, broker: BrokerAddress, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the offset of the first message that was stored at this time or later, or the queue's end if there is none."""
        response = await self.request(broker, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetHeader(topic, queue_id, timestamp_ms))
        return from_plain(OffsetReply, response.fields).offset

    async def pull(
        self,
        broker: BrokerAddress,
        topic: str,
        queue_id: int,
        offset: int,
        count: int,
        *,
        group: str = READER_GROUP,
        tags: str = "*",
        expression_type: str = TAG,
        key: str | None = None,
        hold_ms: int = 0,
    ) -> tuple[bytes, int]:
        """Return stored records of one queue from an offset on, and the next offset to pull. Commits nothing.

        `tags`: a tag expression; the broker compares hashes, so that other tags may pass. Or another one, of `expression_type`.
        `key`: return only records with this sharding key; with an empty text only what waits for the replay of `group`'s parked keys.
        `hold_ms`: how long the broker holds a pull that finds nothing.
        """
        header = PullHeader(
            group,
            topic,
            queue_id,
            offset,
            count,
            SUBSCRIPTION | SUSPEND if hold_ms else SUBSCRIPTION,
            suspend_timeout_millis=hold_ms,
            subscription=tags,
            expression_type=expression_type or TAG,
            max_msg_bytes=PULL_BYTES_MAX,
            key=key,
        )
        found = pulled(await self._cluster.request(broker.address, RequestCode.PULL_MESSAGE, header, hold_ms=hold_ms))
        return found.data, found.next_offset

    async def reset(self, broker: BrokerAddress, body: ResetBody) -> ResetReply:
        """Set a group's progress at one broker: in all the given queues, or in none."""
        return decode_body(ResetReply, (await self.request(broker, RequestCode.RESET_OFFSETS, body=encode_body(body))).body)

    async def purge(self, broker: BrokerAddress, body: PurgeBody) -> PurgeReply:
        """Purge a topic at one broker: all the given queues, or none. Return what was removed, or would be with `dry_run`."""
        response = await self.request(broker, RequestCode.PURGE_TOPIC, body=encode_body(body), hold_ms=PURGE_MS)
        return decode_body(PurgeReply, response.body)

    async def control_parked(self, broker: BrokerAddress, body: ParkControlBody) -> ParkControlReply:
        """List, replay or drop parked keys at one broker. Return the keys that were named, at most LISTED_MAX."""
        response = await self.request(broker, RequestCode.PARK_CONTROL, None, encode_body(body))
        return decode_body(ParkControlReply, response.body)

    async def configure(self, broker: BrokerAddress, settings: GroupSettings) -> GroupSettings:
        """Store a group's settings at one broker. Return the settings in force."""
        response = await self.request(broker, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_body(settings))
        return decode_body(GroupSettings, response.body)

    async def delete_group(self, broker: BrokerAddress, group: str) -> None:
        """Remove a group and its progress at one broker. Does nothing if the broker does not know the group."""
        await self.request(broker, RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroupHeader(group, clean_offset=True))

    async def forget_progress(self, broker: BrokerAddress, group: str, topic: str) -> int:
        """End a group's progress in one topic at one broker. Return the number of queues in which it had progress."""
        response = await self.request(broker, RequestCode.FORGET_PROGRESS, ForgetProgressHeader(group, topic))
        return from_plain(ForgetProgressReply, response.fields).queues

    async def running_info(self, broker: BrokerAddress, header: RunningInfoHeader) -> RunningInfo:
        """Return what a member reports of itself, whom its broker asks. Raise MemberTimeoutError if it does not respond within 3 s."""
        return decode_body(RunningInfo, (await self.request(broker, RequestCode.GET_CONSUMER_RUNNING_INFO, header)).body)

    async def broker_status(self, broker: BrokerAddress) -> BrokerStatus:
        """Return a broker's report about itself."""
        return decode_body(BrokerStatus, (await self.request(broker, RequestCode.GET_BROKER_RUNTIME_INFO)).body)

    async def copy_status(self, address: str, *, counts: bool = False) -> ReplicaStatus:
        """Return what the copy of a broker's log at an address, a master or a replica, reports of itself."""
        header = ReplicaStatusHeader(counts)
        return decode_body(ReplicaStatus, checked(await self._cluster.request(address, RequestCode.REPLICA_STATUS, header)).body)

    async def promote_replica(self, address: str, *, force: bool) -> None:
        """Make the replica at an address the master of its broker, which begins to start as such."""
        header = ReplicaPromoteHeader(force)
        checked(await self._cluster.request(address, RequestCode.REPLICA_PROMOTE, header, hold_ms=PROMOTE_MS))

    async def hand_over(self, address: str, member: str) -> None:
        """Make the master at an address hand over to a member of its set; empty for any."""
        header = ReplicaHandOverHeader(member)
        checked(await self._cluster.request(address, RequestCode.REPLICA_HAND_OVER, header))

    async def forget_replica(self, broker: BrokerAddress, member: str) -> None:
        """Make a master forget a replica."""
        await self.request(broker, RequestCode.REPLICA_FORGET, ReplicaForgetHeader(member))

    async def overview(self, broker: BrokerAddress) -> Overview:
        """Return the figures of a whole broker."""
        return decode_body(Overview, (await self.request(broker, RequestCode.OVERVIEW)).body)

    async def group_events(self, broker: BrokerAddress, group: str) -> GroupEvents:
        """Return all events of a group that a broker has kept."""
        events: list[GroupEvent] = []
        dropped: dict[str, int] = {}
        after, term = 0, None
        while True:
            reply = await self.group_events_after(broker, after, term, group)
            if reply.term != term:
                events, dropped = [], {}
            events += reply.events
            dropped |= reply.dropped
            after, term = reply.last, reply.term
            if not reply.events:
                return replace(reply, events=tuple(events), dropped=dropped)

    async def group_events_after(self, broker: BrokerAddress, after: int, term: int | None, group: str | None = None) -> GroupEvents:
        """Return the next events after the number `after` of that term; of all groups if `group` is None."""
        header = GroupEventsHeader(after, term, group)
        return decode_body(GroupEvents, (await self.request(broker, RequestCode.GROUP_EVENTS, header)).body)

    async def settings(self, broker: BrokerAddress, *, logins: bool = False) -> BrokerSettings:
        """Return all settings of a broker, and the last logins of users if requested."""
        return decode_body(BrokerSettings, (await self.request(broker, RequestCode.GET_BROKER_CONFIG, SettingsHeader(logins))).body)

    async def nameserver_settings(self, address: str, *, logins: bool = False) -> BrokerSettings:
        """Return all settings of one nameserver, and the last logins of users if requested."""
        response = await self._cluster.request(address, RequestCode.GET_NAMESRV_CONFIG, SettingsHeader(logins))
        return decode_body(BrokerSettings, checked(response).body)

    async def access(self) -> BrokerSettings:
        """Return the settings of a nameserver that responds, which say what the user of this client may see.

        Raise AuthenticationError if the login is refused, and NoPermissionError for a user who may not Get the cluster.
        """
        return decode_body(BrokerSettings, checked(await self._cluster.ask(RequestCode.GET_NAMESRV_CONFIG)).body)

    async def change_settings(self, broker: BrokerAddress, values: dict[str, str]) -> SettingChanges:
        """Change settings of one broker until it ends: all of them or none."""
        response = await self.request(broker, RequestCode.UPDATE_BROKER_CONFIG, body=encode_body(ChangeSettings(values)))
        return decode_body(SettingChanges, response.body)

    async def forget_deletions(self, address: str, counter_max: int) -> ForgetDeletionsReply:
        """Make a broker or a nameserver forget deleted topics; with `counter_max` 0 it only returns how many it remembers."""
        response = await self._cluster.request(address, RequestCode.FORGET_DELETIONS, ForgetDeletionsHeader(counter_max))
        return from_plain(ForgetDeletionsReply, checked(response).fields)

    async def put_layout(self, broker: BrokerAddress, layout: TopicLayout, hold_id: str | None = None) -> TopicLayout:
        """Propose a layout to one broker, with `hold_id` only while that hold is in force. Return the one in force there afterwards."""
        header = CreateTopicHeader(layout.topic, hold_id=hold_id)
        response = await self.request(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, header, encode_body(layout))
        return decode_body(CreateTopicReply, response.body).layout

    async def hold_writes(self, broker: BrokerAddress, topic: str, hold_id: str, lease_ms: int) -> bool:
        """Begin, renew or (with a lease of 0) end a hold of a topic's writes at one broker. Return whether it began now."""
        response = await self.request(broker, RequestCode.HOLD_WRITES, HoldWritesHeader(topic, hold_id, lease_ms))
        return from_plain(HoldWritesReply, response.fields).begun

    async def layouts(self) -> dict[str, TopicLayout]:
        """Return the layout of every topic, also those of groups (retry, dead letters). A topic that is deleted meanwhile is left out.

        Raise TransportError if the layout of any topic can't be read.
        """
        async with self.keep_connections():
            topics = await self.topics()
            found = await gather_results({topic: self.find_layout(topic) for topic in topics})
        if found.failed:
            topic, why = next(iter(found.failed.items()))
            raise TransportError(f"the layouts of {len(found.failed)} of {len(topics)} topics can't be read; that of {topic}: {why}")
        return {topic: layout for topic, layout in found.values.items() if layout is not None}

    async def query(self, broker: BrokerAddress, header: QueryMessageHeader) -> tuple[QueryMessageReply, bytes]:
        """Search a part of one broker's log. Return how far the search came, and the records that were found, the newest first."""
        response = await self.request(broker, RequestCode.QUERY_MESSAGE, header)
        return from_plain(QueryMessageReply, response.fields), bytes(response.body)

    async def list_waiting(self, broker: BrokerAddress, header: ListWaitingHeader) -> WaitingPage:
        """Return messages that wait at one broker for any delay or until a time of day, in the order in which they are due."""
        return decode_body(WaitingPage, (await self.request(broker, RequestCode.LIST_WAITING, header)).body)

    async def list_halves(self, broker: BrokerAddress, header: ListHalvesHeader) -> HalfPage:
        """Return half messages of one broker whose transactions are not decided, in the order in which they were sent."""
        return decode_body(HalfPage, (await self.request(broker, RequestCode.LIST_HALVES, header)).body)

    async def end_half(self, broker: BrokerAddress, header: EndTransactionHeader, half: HalfMessage) -> None:
        """Commit a half message or roll it back. Raise the errors of END_TRANSACTION."""
        await self.request(broker, RequestCode.END_TRANSACTION, header, encode_body(EndTransactionBody((half,))))

    async def recall(self, broker: BrokerAddress, topic: str, handle: str) -> None:
        """Take back a message that waits. Raise TooLateToRecallError if it does not, and QueryNotFoundError if there is no such message."""
        await self.request(broker, RequestCode.RECALL_MESSAGE, RecallMessageHeader(topic, handle))

    async def view(self, broker: BrokerAddress, physical_offset: int, *, recalled: bool = False) -> bytes:
        """Return the stored record at a position of one broker's log; with `recalled` only if its message was recalled."""
        header = ViewMessageHeader(physical_offset, recalled or None)
        return bytes((await self.request(broker, RequestCode.VIEW_MESSAGE_BY_ID, header)).body)


def failure_summary(failed: Mapping[str, str]) -> str | None:
    """Return one line that names the brokers that failed and why, or None if none did."""
    return f"the result is incomplete: {broker_reasons(failed)}" if failed else None


def broker_reasons(failed: Mapping[str, str]) -> str:
    return "; ".join(f"broker {name}: {why}" for name, why in failed.items())


async def gather_results(requests: Mapping[str, Awaitable[T]]) -> BrokerResults[T]:
    """Await requests to several brokers at once. A LockstepError or OSError of one is recorded in `failed`; any other is raised."""
    results = await asyncio.gather(*requests.values(), return_exceptions=True)
    values: dict[str, T] = {}
    failed: dict[str, str] = {}
    for name, result in zip(requests, results, strict=True):
        if isinstance(result, LockstepError | OSError):
            failed[name] = " ".join(str(result).split()) or type(result).__name__
        elif isinstance(result, BaseException):
            raise result
        else:
            values[name] = result
    return BrokerResults(values, failed)


async def within_patience(request: Awaitable[T], patience_s: float | None) -> T:
    """Return the response to a request. Raise RequestTimeoutError if it takes longer than `patience_s`."""
    try:
        async with asyncio.timeout(patience_s):
            return await request
    except RequestTimeoutError:
        raise
    except TimeoutError:
        raise RequestTimeoutError(f"it has not responded for {patience_s:g} s") from None


def by_name(brokers: Iterable[BrokerAddress]) -> dict[str, BrokerAddress]:
    return {broker.name: broker for broker in brokers}


def without_address(layout_brokers: Sequence[str], known: Mapping[str, BrokerAddress]) -> dict[str, str]:
    """Return the brokers of a layout that no nameserver knows, each with this reason."""
    return {name: "no address is known: it has not registered since the nameserver started" for name in layout_brokers if name not in known}
