"""The nameserver as its peers use it: frames over loopback sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lockstep.nameserver.app import Nameserver
from lockstep.nameserver.config import NameserverConfig
from lockstep.nameserver.route_table import CHALLENGE_MS
from lockstep.nameserver.topic_quota import SILENCE_MS
from lockstep.protocol.bodies import ClusterInfo, DataVersion, RegisterBody, RegisterReply, TopicList, TopicRoute
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.offsets import TopicHeader
from lockstep.protocol.headers.routes import RegisterBrokerHeader, UnregisterBrokerHeader
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from lockstep.runtime.clock import Clock
from lockstep.runtime.connections.dial import call, connect
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.host import Host
from support.clocks import SetClock
from support.processes import LIMIT_S
from support.until import until

STORE, PROOF = "5" * 32, "6" * 32
HOST = Host.real()
ORDERS = TopicLayout("orders", LayoutVersion(1, 7), (LayoutEntry("broker-a", 4, 4, 1),))


@asynccontextmanager
async def nameserver(*listen: str, clock: Clock | None = None) -> AsyncIterator[Nameserver]:
    host = Host.real() if clock is None else Host(clock, HOST.random, HOST.files, HOST.threads, HOST.boot_id)
    served = Nameserver(NameserverConfig(listen=listen or ("127.0.0.1:0",)), host)
    await served.start()
    try:
        yield served
    finally:
        await served.stop()


async def send_request(address: str, code: RequestCode, header: object | None = None) -> Command:
    return await call(HOST, address, code, None if header is None else to_plain(header), timeout_ms=5_000)


async def register(
    endpoint: Endpoint,
    name: str = "broker-a",
    *,
    store: str = STORE,
    term: int = 1,
    layouts: tuple[TopicLayout, ...] = (ORDERS,),
    broker_id: int = 0,
    cluster: str = "DefaultCluster",
    listeners: dict[str, str] | None = None,
    proof: str = PROOF,
    replicas: tuple[str, ...] | None = None,
    office: bool | None = None,
) -> Command:
    listeners = {"internal": f"{name}:10911", "external": "localhost:20911"} | (listeners or {})
    header = RegisterBrokerHeader(name, cluster, listeners["internal"], store, term, proof, term - 1, broker_id, office)
    body = encode_body(RegisterBody(listeners, layouts, DataVersion(0, 0), replicas=replicas))
    return await endpoint.request(RequestCode.REGISTER_BROKER, to_plain(header), body, timeout_ms=5_000)


def respond(command: Command, endpoint: Endpoint) -> None:
    """Handle requests at a broker's end of the connection: respond to each one."""
    if not command.is_oneway:
        endpoint.send(command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))


async def route(address: str, topic: str = "orders") -> TopicRoute:
    return decode_body(TopicRoute, (await send_request(address, RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicHeader(topic))).body)


async def test_native_requests_before_the_first_registration_are_not_ready() -> None:
    async with nameserver() as served:
        for code, header in (
            (RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicHeader("orders")),
            (RequestCode.GET_BROKER_CLUSTER_INFO, None),
            (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None),
        ):
            assert (await send_request(served.address, code, header)).code == ResponseCode.ROUTE_NOT_READY


async def test_registered_broker_and_its_topics_are_returned() -> None:
    async with nameserver() as served:
        broker = await connect(HOST, served.address)
        response = await register(broker)
        assert (response.code, decode_body(RegisterReply, response.body)) == (ResponseCode.SUCCESS, RegisterReply(()))
        reported = await route(served.address)
        assert reported.layout == ORDERS
        assert [(b.name, b.address, b.registered) for b in reported.brokers] == [("broker-a", "broker-a:10911", True)]
        topics = await send_request(served.address, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert decode_body(TopicList, topics.body) == TopicList(("orders",))
        unknown = await send_request(served.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicHeader("nothing"))
        assert unknown.code == ResponseCode.TOPIC_NOT_EXIST
        assert "lockstep topic create nothing" in str(unknown.remark)
        broker.close("done")


async def test_system_and_deleted_topics_are_not_listed() -> None:
    system = TopicLayout("TBW102", LayoutVersion(1, 1), ORDERS.entries)
    gone = TopicLayout("gone", LayoutVersion(2, 1), ())
    async with nameserver() as served:
        broker = await connect(HOST, served.address)
        await register(broker, layouts=(ORDERS, system, gone))
        topics = await send_request(served.address, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert decode_body(TopicList, topics.body) == TopicList(("orders",))
        broker.close("done")


async def test_layout_change_is_sent_to_all_brokers_except_its_sender() -> None:
    reported: list[tuple[str, Command]] = []
    async with nameserver() as served:
        one = await connect(HOST, served.address, handler=lambda command, _: reported.append(("one", command)))
        other = await connect(HOST, served.address, handler=lambda command, _: reported.append(("other", command)))
        await register(one)
        await register(other, "broker-b", store="6" * 32)
        assert reported == []
        changed = TopicLayout("orders", LayoutVersion(2, 7), ORDERS.entries)
        await register(other, "broker-b", store="6" * 32, layouts=(changed,))
        await until(lambda: reported)
        await register(one, layouts=(changed,))
        await register(other, "broker-b", store="6" * 32, layouts=(changed,))
        assert [(name, command.code, command.is_oneway, decode_body(RegisterReply, command.body)) for name, command in reported] == [
            ("one", RequestCode.LAYOUTS_CHANGED, True, RegisterReply((changed,)))
        ]
        one.close("done")
        other.close("done")


async def test_response_for_a_deleted_topic_has_its_layout() -> None:
    gone = TopicLayout("gone", LayoutVersion(2, 1), ())
    async with nameserver() as served:
        broker = await connect(HOST, served.address)
        await register(broker, layouts=(gone,))
        reported = await send_request(served.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicHeader("gone"))
        assert reported.code == ResponseCode.TOPIC_NOT_EXIST
        assert "lockstep topic create gone" in str(reported.remark)
        assert decode_body(TopicRoute, reported.body) == TopicRoute(gone, ())
        unknown = await send_request(served.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicHeader("unknown"))
        assert (unknown.code, unknown.body) == (ResponseCode.TOPIC_NOT_EXIST, b"")
        broker.close("done")


async def test_each_listener_returns_its_own_addresses() -> None:
    async with nameserver("internal=127.0.0.1:0", "external=127.0.0.1:0", "other=127.0.0.1:0") as served:
        broker = await connect(HOST, served.address)
        await register(broker)
        seen = {name: (await route(address)).brokers[0].address for name, address in served.addresses.items()}
        assert seen == {"internal": "broker-a:10911", "external": "localhost:20911", "other": "broker-a:10911"}
        assert served.address == served.addresses["internal"]
        broker.close("done")


async def test_closed_connection_unregisters_the_broker_and_keeps_its_address() -> None:
    async with nameserver() as served:
        broker = await connect(HOST, served.address)
        await register(broker)
        broker.abort("killed")
        await until(lambda: served.table.registered() == ())
        gone = (await route(served.address)).brokers[0]
        assert (gone.registered, gone.address) == (False, "broker-a:10911")


async def test_unregister_request_takes_effect_before_the_connection_closes() -> None:
    async with nameserver() as served:
        broker = await connect(HOST, served.address)
        await register(broker)
        goodbye = UnregisterBrokerHeader("broker-a", "DefaultCluster", "broker-a:10911", STORE, 1)
        assert (await broker.request(RequestCode.UNREGISTER_BROKER, to_plain(goodbye), timeout_ms=5_000)).code == ResponseCode.SUCCESS
        cluster = decode_body(ClusterInfo, (await send_request(served.address, RequestCode.GET_BROKER_CLUSTER_INFO)).body)
        assert [(b.name, b.registered) for b in cluster.brokers] == [("broker-a", False)]
        broker.close("done")


async def test_registered_name_is_rejected_and_the_connection_stays_open() -> None:
    async with nameserver() as served:
        first, second = await connect(HOST, served.address, handler=respond), await connect(HOST, served.address)
        await register(first)
        refused = await register(second, store="6" * 32)
        assert refused.code == ResponseCode.REGISTRATION_PENDING
        while refused.code == ResponseCode.REGISTRATION_PENDING:
            refused = await register(second, store="6" * 32)
        assert refused.code == ResponseCode.BROKER_NAME_TAKEN
        assert "another name" in str(refused.remark)
        assert (await register(second, "broker-b", store="6" * 32, layouts=(ORDERS,))).code == ResponseCode.SUCCESS
        first.close("done")
        second.close("done")


async def test_connection_with_an_unanswered_challenge_is_not_challenged_again() -> None:
    requested, clock = list[Command](), SetClock(0)
    async with nameserver(clock=clock) as served:
        incumbent = await connect(HOST, served.address, handler=lambda command, _: requested.append(command))
        other = await connect(HOST, served.address)
        await register(incumbent)
        before = len(served._tasks)
        for _ in range(20):
            clock.now_ms += CHALLENGE_MS
            served.table.count_down_challenges(CHALLENGE_MS)
            assert (await register(other, store="6" * 32)).code == ResponseCode.REGISTRATION_PENDING
            assert (await register(incumbent)).code == ResponseCode.SUCCESS
        assert len(served._tasks) == before + 2, "one awaits the response, one counts the time"
        await until(lambda: len(requested) > 0)
        assert len(requested) == 1
        for endpoint in (incumbent, other):
            endpoint.close("done")
        await until(lambda: len(served._tasks) == before)


async def test_master_in_office_replaces_the_deposed_one_and_the_refusal_of_that_names_the_term() -> None:
    async with nameserver() as served:
        deposed, master = await connect(HOST, served.address, handler=respond), await connect(HOST, served.address, handler=respond)
        assert (await register(deposed, office=True)).code == ResponseCode.SUCCESS
        listeners = {"internal": "broker-b:10911"}
        assert (await register(master, term=2, office=True, listeners=listeners, replicas=("broker-a:10911",))).code == ResponseCode.SUCCESS
        await deposed.wait_closed()
        (routed,) = (await route(served.address)).brokers
        assert (routed.address, routed.registered, routed.term, routed.replicas) == ("broker-b:10911", True, 2, ("broker-a:10911",))
        again = await connect(HOST, served.address)
        refused = await register(again, office=True)
        assert (refused.code, refused.fields) == (ResponseCode.BROKER_NAME_TAKEN, {"term": 2})
        assert (await register(again)).fields == {}
        for endpoint in (master, again):
            endpoint.close("done")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"name": "bad name"}, "broker name 'bad name'"),
        ({"broker_id": 1}, "'broker-a' registers with id 1"),
        ({"cluster": "a\x1b[2J"}, "cluster name 'a\\x1b[2J'"),
        ({"cluster": "c" * 128}, "cluster name max length 127"),
        ({"listeners": {"internal": "nowhere"}}, "'internal': 'nowhere' is not an address"),
        ({"listeners": {"external": "host:99999"}}, "'external': 'host:99999' is not an address"),
        ({"listeners": {"external": "host name:1"}}, "'host name:1' is not an address"),
        ({"listeners": {"external": "host:0"}}, "port 0 can't be connected to"),
        ({"listeners": {"external": "h" * 251 + ":1234"}}, "at most 255 characters each"),
        ({"listeners": {"e" * 256: "host:1"}}, "at most 255 characters each"),
        ({"listeners": {f"l{number}": "host:1" for number in range(15)}}, "17 listeners: at most 16"),
        ({"replicas": ("host:1", "host:0")}, "port 0 can't be connected to"),
        ({"replicas": ("host:1",) * 17}, "17 replicas: at most 16"),
        ({"store": "5" * 65}, "a store id of 65 characters: at most 64"),
        ({"proof": "5" * 65}, "a proof of 65 characters: at most 64"),
    ],
)
async def test_invalid_registration_is_rejected_with_the_reason(wrong: dict[str, Any], named: str) -> None:
    async with nameserver() as served:
        broker = await connect(HOST, served.address)
        response = await register(broker, **wrong)
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert named in str(response.remark)
        assert not served.table.ready
        broker.close("done")


async def test_silent_broker_is_unregistered_and_its_connection_closed() -> None:
    clock = SetClock(0)
    async with nameserver(clock=clock) as served:
        broker = await connect(HOST, served.address)
        await register(broker)
        clock.now_ms = SILENCE_MS - 1
        served.expire()
        assert served.table.registered() == ("broker-a",)
        clock.now_ms = SILENCE_MS
        served.expire()
        assert served.table.registered() == ()
        async with asyncio.timeout(LIMIT_S):
            await broker.wait_closed()


async def test_nameservers_share_no_state() -> None:
    async with nameserver() as one, nameserver() as other:
        broker = await connect(HOST, one.address)
        await register(broker)
        assert (await route(one.address)).layout == ORDERS
        assert (
            await send_request(other.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicHeader("orders"))
        ).code == ResponseCode.ROUTE_NOT_READY
        broker.close("done")
