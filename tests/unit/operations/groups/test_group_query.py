"""The cost of many groups: connections, requests, and the number of concurrent requests."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from lockstep.operations.admin_client import AdminClient
from lockstep.operations.brokers.doctor_query import examine
from lockstep.operations.groups.group_query import read_group, read_groups
from lockstep.protocol.bodies import (
    BrokerAddress,
    ClusterInfo,
    GroupStatus,
    GroupStatusReply,
    GroupSummary,
    ListVersion,
    QueueStatus,
    TopicRoute,
)
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import TransportError
from lockstep.protocol.fields import from_plain
from lockstep.protocol.headers.clients import GroupStatusHeader
from lockstep.protocol.headers.offsets import TopicHeader
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.connections.server import Server
from lockstep.runtime.host import Host
from support.fake_broker import LOOPBACK, make_layout

GROUPS = [f"g-{number:03}" for number in range(100)]
TOPICS = [f"t-{number:02}" for number in range(20)]


class Cluster:
    """A nameserver and two brokers in one server: 100 groups with progress in 20 topics. Counts the requests that it receives."""

    def __init__(self) -> None:
        self.requested: Counter[int] = Counter()
        self.endpoints: set[Endpoint] = set()
        self.unanswered = self.unanswered_max = 0
        self.address = ""
        self.lost_after: int | None = None
        """Close the connection instead of sending the n-th response."""

    def handle(self, command: Command, endpoint: Endpoint) -> None:
        self.requested[command.code] += 1
        self.endpoints.add(endpoint)
        self.unanswered += 1
        self.unanswered_max = max(self.unanswered_max, self.unanswered)
        if self.requested.total() == self.lost_after:
            endpoint.abort("as the test says")
        asyncio.get_running_loop().call_later(0.001, self._respond, command, endpoint)

    def _respond(self, command: Command, endpoint: Endpoint) -> None:
        self.unanswered -= 1
        if not endpoint.closed:
            endpoint.send(self._reply(command))

    def _reply(self, command: Command) -> Command:
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            brokers = tuple(BrokerAddress(name, "c", self.address, True, 1) for name in ("broker-a", "broker-b"))
            return command.reply(body=encode_body(ClusterInfo(brokers)))
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            topic = from_plain(TopicHeader, command.fields).topic
            if topic == TOPICS[7]:
                return command.reply(ResponseCode.TOPIC_NOT_EXIST, "deleted meanwhile")
            return command.reply(body=encode_body(TopicRoute(make_layout(topic, "broker-a"), ())))
        if command.code == RequestCode.GROUP_STATUS:
            group = from_plain(GroupStatusHeader, command.fields).consumer_group
            if group is None:
                summaries = tuple(GroupSummary(name, None, None, 1, 0, False) for name in GROUPS)
                return command.reply(body=encode_body(GroupStatusReply(tuple(GROUPS), summaries=summaries)))
            queues = tuple(QueueStatus(topic, 0, None, 1, 1, 3, 10, 0, None, None, parked=0, disk_pulls=0) for topic in TOPICS)
            return command.reply(body=encode_body(GroupStatusReply((), GroupStatus(group, ListVersion(1, 1), None, (), queues, grants=0))))
        return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not here")


@asynccontextmanager
async def cluster() -> AsyncIterator[tuple[Cluster, AdminClient]]:
    served = Cluster()
    server = Server(Host.real(), LOOPBACK, served.handle)
    await server.start()
    served.address = server.addresses["internal"]
    try:
        yield served, AdminClient(Host.real(), served.address)
    finally:
        await server.close("done")


async def test_reading_groups_takes_one_request_per_group_and_broker_and_one_per_topic() -> None:
    async with cluster() as (served, admin):
        found = await read_groups(admin, GROUPS)
        assert list(found) == GROUPS
        assert all(report is not None and report.lag == 2 * 20 * 7 and not responses.failed for report, responses in found.values())
        assert served.requested == {
            RequestCode.GET_BROKER_CLUSTER_INFO: 1,
            RequestCode.GROUP_STATUS: 2 * len(GROUPS),
            RequestCode.GET_ROUTEINFO_BY_TOPIC: len(TOPICS),
        }
        assert len(served.endpoints) == 1
        assert 16 <= served.unanswered_max <= 2 * 16


async def test_group_report_is_equal_alone_and_among_others() -> None:
    async with cluster() as (_, admin):
        found = await read_groups(admin, GROUPS[:3])
        for group in GROUPS[:3]:
            assert await read_group(admin, group) == found[group]


async def test_doctor_sends_no_more_requests_than_a_group_report() -> None:
    async with cluster() as (served, admin):
        await examine(admin)
        assert served.requested[RequestCode.GROUP_STATUS] == 2 * len(GROUPS) + 2
        assert served.requested[RequestCode.GET_ROUTEINFO_BY_TOPIC] == len(TOPICS)


async def test_first_error_of_the_nameserver_ends_the_reading() -> None:
    async with cluster() as (served, admin):
        served.lost_after = 1 + 2 * len(GROUPS) + 1
        with pytest.raises(TransportError, match="no nameserver responds"):
            await read_groups(admin, GROUPS)
        assert served.requested[RequestCode.GET_ROUTEINFO_BY_TOPIC] <= 16


async def test_unreachable_broker_is_dialled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    dialled: list[str] = []
    async with cluster() as (_, admin):

        async def refused(host: Host, address: str, **_: object) -> Endpoint:
            dialled.append(address)
            raise TransportError(f"{address}: refused")

        monkeypatch.setattr("lockstep.client.kept_connection.connect", refused)
        async with admin.keep_connections():
            found = await asyncio.gather(*(admin.brokers() for _ in range(9)), return_exceptions=True)
        assert {type(error) for error in found} == {TransportError}
        assert len(dialled) == 1
