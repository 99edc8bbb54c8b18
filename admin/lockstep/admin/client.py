"""What the commands ask: nameservers first, then brokers by name. RocketMQ: MQAdminExt.

Brokers are dialled at the address that the nameserver answers, one connection for each question: a command asks little and ends. Where it
asks much, `keep_connections` has one for each address.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from lockstep.client.config import nameserver_addresses
from lockstep.client.nameservers import not_a_nameserver
from lockstep.protocol.bodies import (
    BrokerAddress,
    BrokerStatus,
    ClusterInfo,
    CreateTopicReply,
    GroupSettings,
    GroupStatusReply,
    OffsetRange,
    ResetBody,
    ResetReply,
    TopicList,
    TopicOffsets,
    TopicRoute,
)
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import LockstepError, RouteNotReadyError, TransportError, broker_error
from lockstep.protocol.fields import from_plain, to_plain
from lockstep.protocol.headers.clients import DeleteGroupHeader, GroupStatusHeader
from lockstep.protocol.headers.offsets import OffsetReply, SearchOffsetHeader, TopicHeader, ViewMessageHeader
from lockstep.protocol.headers.pull import SUBSCRIPTION, PullHeader, PullReply
from lockstep.protocol.headers.routes import CreateTopicHeader, ForgetDeletionsHeader, ForgetDeletionsReply
from lockstep.protocol.queue import TopicLayout
from lockstep.runtime.endpoint import Endpoint
from lockstep.runtime.host import Host
from lockstep.runtime.link import CONNECT_MS, call, connect

T = TypeVar("T")

READER = "LOCKSTEP_TAIL"
"""Named in pulls; it commits nothing, so that no progress of it exists."""
PULL_BYTES_MAX = 256 * 1024
PULLED = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
TIMEOUT_MS = 5_000
"""RocketMQ's admin tools wait as long."""


@dataclass(frozen=True, slots=True)
class Answers(Generic[T]):
    """What several brokers answered, by broker name; `failed` says why the others did not."""

    given: Mapping[str, T]
    failed: Mapping[str, str]

    def complaint(self) -> str | None:
        """One line naming who did not answer; None: all did."""
        return incomplete(self.failed)


class Kept:
    """One connection to one address, for several questions at the same time."""

    def __init__(self, host: Host, address: str) -> None:
        self._host = host
        self._address = address
        self._endpoint: Endpoint | None = None
        self._failed: TransportError | None = None
        """Why it can't be dialled: the other questions fail at once, instead of waiting for as long again."""
        self._dialling = asyncio.Lock()

    async def request(self, code: int, fields: dict[str, Any] | None, body: bytes, timeout_ms: int) -> Command:
        """The response, whatever its code. TransportError, RequestTimeoutError."""
        async with self._dialling:
            if self._failed is not None:
                raise self._failed
            if self._endpoint is None or self._endpoint.closed:
                try:
                    self._endpoint = await connect(self._host, self._address, timeout_ms=min(timeout_ms, CONNECT_MS))
                except TransportError as error:
                    self._failed = error
                    raise
        return await self._endpoint.request(code, fields, body, timeout_ms=timeout_ms)

    async def close(self) -> None:
        if self._endpoint is not None:
            self._endpoint.abort("done")
            await self._endpoint.wait_closed()


class AdminClient:
    """Every question raises TransportError, or the BrokerError of an answer that refuses; ConfigError for addresses that are none."""

    def __init__(self, host: Host, nameserver: str, *, timeout_ms: int = TIMEOUT_MS) -> None:
        self.host = host
        self.timeout_ms = timeout_ms
        self.nameservers = nameserver_addresses(nameserver)
        self._kept: dict[str, Kept] | None = None

    @asynccontextmanager
    async def keep_connections(self) -> AsyncIterator[None]:
        """Within it each address has one connection, which is dialled with the first question, and again when it was lost.

        An address that can't be dialled is not tried again.
        """
        if self._kept is not None:
            yield
            return
        self._kept = {}
        try:
            yield
        finally:
            kept, self._kept = self._kept, None
            for each in kept.values():
                await each.close()

    async def _call(self, address: str, code: int, fields: dict[str, Any] | None = None, body: bytes = b"") -> Command:
        if self._kept is None:
            return await call(self.host, address, code, fields, body, timeout_ms=self.timeout_ms)
        if address not in self._kept:
            self._kept[address] = Kept(self.host, address)
        return await self._kept[address].request(code, fields, body, self.timeout_ms)

    async def brokers(self) -> tuple[BrokerAddress, ...]:
        """Every broker the nameserver has heard of, sorted by name; none where it has heard of none."""
        try:
            answer = await self._ask_nameserver(RequestCode.GET_BROKER_CLUSTER_INFO)
        except RouteNotReadyError:
            return ()
        return decode_body(ClusterInfo, answer.body).brokers

    async def brokers_at(self, nameserver: str) -> tuple[BrokerAddress, ...]:
        """What this one nameserver tells; none where it has heard of none."""
        answer = await self._call(nameserver, RequestCode.GET_BROKER_CLUSTER_INFO)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise not_a_nameserver(nameserver, RequestCode.GET_BROKER_CLUSTER_INFO)
        if answer.code == ResponseCode.ROUTE_NOT_READY:
            return ()
        if answer.code != ResponseCode.SUCCESS:
            raise broker_error(answer.code, answer.remark)
        return decode_body(ClusterInfo, answer.body).brokers

    async def topics(self) -> tuple[str, ...]:
        """Every topic of the cluster but deleted and system ones, sorted."""
        answer = await self._ask_nameserver(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return decode_body(TopicList, answer.body).topics

    async def route(self, topic: str) -> TopicRoute:
        """The topic's whole layout and its brokers' addresses; TopicNotExistError."""
        return decode_body(TopicRoute, (await self._ask_nameserver(RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicHeader(topic))).body)

    async def _ask_nameserver(self, code: RequestCode, header: object | None = None) -> Command:
        """The first nameserver's answer that is one: who can't be reached, or knows no broker yet, is left for the next."""
        fields = None if header is None else to_plain(header)
        failed: list[LockstepError] = []
        for address in self.nameservers:
            try:
                answer = await self._call(address, code, fields, b"")
            except TransportError as error:
                failed.append(error)
                continue
            if answer.code == ResponseCode.SUCCESS:
                return answer
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise not_a_nameserver(address, code)
            refusal = broker_error(answer.code, answer.remark)
            if not isinstance(refusal, RouteNotReadyError):
                raise refusal
            failed.append(RouteNotReadyError(f"nameserver {address} knows no broker: none has registered since it started"))
        if len(failed) == 1 and isinstance(failed[0], RouteNotReadyError):
            raise failed[0]
        if any(isinstance(error, RouteNotReadyError) for error in failed):
            raise RouteNotReadyError("; ".join(str(error) for error in failed))
        raise TransportError(f"no nameserver answers: {'; '.join(str(error) for error in failed)}. Is one running there?")

    async def ask(self, broker: BrokerAddress, code: RequestCode, header: object | None = None, body: bytes = b"") -> Command:
        """One question to one broker, at its last known address."""
        fields = None if header is None else to_plain(header)
        answer = await self._call(broker.address, code, fields, body)
        if answer.code != ResponseCode.SUCCESS:
            raise broker_error(answer.code, answer.remark)
        return answer

    async def offsets(self, broker: BrokerAddress, topic: str) -> tuple[OffsetRange, ...]:
        """First and next offset of each of the topic's queues at one broker."""
        return decode_body(TopicOffsets, (await self.ask(broker, RequestCode.TOPIC_OFFSETS, TopicHeader(topic))).body).queues

    async def group_status(self, broker: BrokerAddress, group: str | None) -> GroupStatusReply:
        """The names of all groups at one broker, and the whole state of one."""
        return decode_body(GroupStatusReply, (await self.ask(broker, RequestCode.GROUP_STATUS, GroupStatusHeader(group))).body)

    async def offset_by_time(self, broker: BrokerAddress, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The first message that was stored then or later; the queue's end where there is none."""
        answer = await self.ask(broker, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetHeader(topic, queue_id, timestamp_ms))
        return from_plain(OffsetReply, answer.fields).offset

    async def pull(self, broker: BrokerAddress, topic: str, queue_id: int, offset: int, count: int) -> tuple[bytes, int]:
        """Stored records of one queue from an offset on, and the offset to go on with. Commits nothing, waits for nothing."""
        header = PullHeader(
            READER, topic, queue_id, offset, count, SUBSCRIPTION, subscription="*", expression_type="TAG", max_msg_bytes=PULL_BYTES_MAX
        )
        answer = await self._call(broker.address, RequestCode.PULL_MESSAGE, to_plain(header))
        if answer.code not in PULLED:
            raise broker_error(answer.code, answer.remark)
        body = bytes(answer.body) if answer.code == ResponseCode.SUCCESS else b""
        return body, from_plain(PullReply, answer.fields).next_begin_offset

    async def reset(self, broker: BrokerAddress, body: ResetBody) -> ResetReply:
        """Sets a group's progress at one broker: all the queues that are named, or none."""
        return decode_body(ResetReply, (await self.ask(broker, RequestCode.RESET_OFFSETS, body=encode_body(body))).body)

    async def configure(self, broker: BrokerAddress, settings: GroupSettings) -> GroupSettings:
        """Sets a group up at one broker."""
        answer = await self.ask(broker, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_body(settings))
        return decode_body(GroupSettings, answer.body)

    async def delete_group(self, broker: BrokerAddress, group: str) -> None:
        """Removes a group with its progress at one broker; nothing happens where it is not known."""
        await self.ask(broker, RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroupHeader(group, clean_offset=True))

    async def broker_status(self, broker: BrokerAddress) -> BrokerStatus:
        """What one broker says of itself."""
        return decode_body(BrokerStatus, (await self.ask(broker, RequestCode.GET_BROKER_RUNTIME_INFO)).body)

    async def forget_deletions(self, address: str, counter_max: int) -> ForgetDeletionsReply:
        """Asks a broker or a nameserver to forget deleted topics; with 0 only how many it remembers."""
        fields = to_plain(ForgetDeletionsHeader(counter_max))
        answer = await self._call(address, RequestCode.FORGET_DELETIONS, fields)
        if answer.code != ResponseCode.SUCCESS:
            raise broker_error(answer.code, answer.remark)
        return from_plain(ForgetDeletionsReply, answer.fields)

    async def put_layout(self, broker: BrokerAddress, layout: TopicLayout) -> TopicLayout:
        """Asks one broker for a layout; the one in force there afterwards."""
        answer = await self.ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader(layout.topic), encode_body(layout))
        return decode_body(CreateTopicReply, answer.body).layout

    async def view(self, broker: BrokerAddress, physical_offset: int) -> bytes:
        """The stored record at a position of one broker's log."""
        return bytes((await self.ask(broker, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(physical_offset))).body)


def incomplete(failed: Mapping[str, str]) -> str | None:
    """One line naming the brokers that failed and why; None: none did."""
    if not failed:
        return None
    return "the answer is incomplete: " + "; ".join(f"broker {name}: {why}" for name, why in failed.items())


async def gather(questions: Mapping[str, Awaitable[T]]) -> Answers[T]:
    """Ask several brokers at once; who fails with one of our errors is named, not fatal."""
    results = await asyncio.gather(*questions.values(), return_exceptions=True)
    given: dict[str, T] = {}
    failed: dict[str, str] = {}
    for name, result in zip(questions, results, strict=True):
        if isinstance(result, LockstepError | OSError):
            failed[name] = " ".join(str(result).split()) or type(result).__name__
        elif isinstance(result, BaseException):
            raise result
        else:
            given[name] = result
    return Answers(given, failed)


def by_name(brokers: Iterable[BrokerAddress]) -> dict[str, BrokerAddress]:
    return {broker.name: broker for broker in brokers}


def absent(layout_brokers: Sequence[str], known: Mapping[str, BrokerAddress]) -> dict[str, str]:
    """Brokers that a layout names and no nameserver has seen, with what to say of them."""
    return {name: "no address is known: it has not registered since the nameserver started" for name in layout_brokers if name not in known}
