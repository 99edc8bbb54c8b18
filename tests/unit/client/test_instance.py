"""The instance that producers and consumers share: session, routes, links, membership."""

import asyncio
from functools import partial

import pytest

from lockstep.client import ConfigError, Producer, PullConsumer, PushConsumer, StateError, TransportError
from lockstep.client.broker_link import BrokerLink
from lockstep.client.client import Client
from lockstep.client.instance import Instance
from lockstep.protocol.bodies import FreeQueue, QueueFreeBody
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import ONEWAY_FLAG, Command
from lockstep.protocol.errors import RouteNotReadyError
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.clients import NotifyHeader
from lockstep.runtime.host import Host
from support.fake_broker import fake_cluster, make_layout
from support.instance_kit import HookRecorder, billing, instance_of, linked, registered
from support.loops import until

pytestmark = pytest.mark.simulated


async def test_users_of_one_client_share_an_instance_until_the_last_closes_it() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster:
        client = Client(cluster.nameserver)
        async with instance_of(cluster, client=client) as first:
            async with instance_of(cluster, client=client) as second:
                assert first is second
            assert not first.closing
            async with instance_of(cluster, client=client, group="billing") as third:
                assert third is first
            async with instance_of(cluster) as other:
                assert other is not first, "a client of its own"
        assert first.closing
        with pytest.raises(StateError):
            await first.start()
        async with instance_of(cluster, client=client) as later:
            assert later is not first
            assert later.session != first.session


async def test_each_event_loop_has_its_own_instance() -> None:
    client = Client("127.0.0.1:1")
    mine = client.instance()

    async def another() -> Instance:
        return client.instance()

    theirs = await asyncio.to_thread(lambda: asyncio.run(another()))
    assert theirs is not mine
    assert client.instance() is mine
    for _ in range(2):
        await mine.close()


@pytest.mark.parametrize("kind", [Producer, PushConsumer, PullConsumer])
def test_client_is_mutually_exclusive_with_nameserver_and_host(kind: type[Producer] | type[PushConsumer] | type[PullConsumer]) -> None:
    with pytest.raises(ConfigError, match="give one of them"):
        kind("g", client=Client("127.0.0.1:1"), nameserver="127.0.0.1:1")
    with pytest.raises(ConfigError, match="HOST:PORT"):
        kind("g", nameserver="nowhere")
    with pytest.raises(ConfigError, match="nameserver is of type int: expected a str, a list of str, a tuple of str, a ClusterAddress or"):
        kind("g", nameserver=5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="nameserver is of type list: expected a str, a list of str, a tuple of str, a ClusterAddress or"):
        kind("g", nameserver=[1])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match=r"client=.* and host=.*: give one of them"):
        kind("g", client=Client("127.0.0.1:1"), host=Host.real())


def test_client_settings_are_validated() -> None:
    with pytest.raises(ConfigError, match="heartbeat_interval_ms is 0: expected an integer of at least 1"):
        Client("127.0.0.1:1", heartbeat_interval_ms=0)
    with pytest.raises(TypeError, match="did you mean 'heartbeat_interval_ms'"):
        Client("127.0.0.1:1", heartbeat_interval=1)  # type: ignore[call-arg]


async def test_second_consumer_of_a_group_gets_its_own_instance() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster:
        share = partial(instance_of, cluster, client=Client(cluster.nameserver))
        async with share(group="billing") as first:
            async with share(group="billing") as second, share(group="audit") as third:
                assert second is not first
                assert second.client_id != first.client_id
                assert third is first
            async with share(group="billing") as again:
                assert again is not first


@pytest.mark.real_network
async def test_client_id_contains_address_process_id_and_random_bits() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, instance_of(cluster) as instance:
        address, _, rest = instance.client_id.partition("@")
        process, _, bits = rest.partition("#")
        assert address == "127.0.0.1"
        assert process.isdigit()
        assert len(bytes.fromhex(bits)) == 8
        assert len(bytes.fromhex(instance.session)) == 16


async def test_client_skips_nameservers_that_are_unreachable_or_know_no_broker() -> None:
    async with fake_cluster("a", topics={"t": 1}) as good, fake_cluster("a") as empty:
        empty.ready = False
        for addresses in (
            [empty.nameserver, good.nameserver],
            ["127.0.0.1:1", good.nameserver],
            ["127.0.0.1:1", empty.nameserver, good.nameserver],
        ):
            instance = Client(addresses).instance()
            await instance.start()
            assert await instance.watch.route("t") == good.layouts["t"]
            requested = empty.requested
            await instance.watch.route("t", refresh=True)
            assert empty.requested == requested, "the one that responded is kept"
            await instance.close()


async def test_cached_routes_remain_usable_while_no_nameserver_responds() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, instance_of(cluster) as instance:
        layout = await instance.watch.route("t")
        await cluster.stop()
        assert await instance.watch.route("t", refresh=True) == layout
        with pytest.raises(TransportError):
            await instance.watch.route("unheard")


async def test_nameserver_without_brokers_raises_route_not_ready() -> None:
    async with fake_cluster("a") as cluster, instance_of(cluster) as instance:
        cluster.ready = False
        with pytest.raises(RouteNotReadyError, match="knows no broker yet"):
            await instance.watch.route("t")


async def test_route_of_an_unknown_topic_is_none() -> None:
    async with fake_cluster("a") as cluster, instance_of(cluster) as instance:
        assert await instance.watch.route("t") is None


async def test_refused_connection_refreshes_the_route_and_connects_to_the_new_address() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, instance_of(cluster) as instance:
        (link,) = await linked(instance)
        broker = cluster.brokers["a"]
        await broker.stop()
        await until(lambda: not link.up)
        broker.term += 1
        await broker.start()
        await until(lambda: link.up)
        assert link.connection == 2
        assert link.last_reply is not None
        assert link.last_reply.term == 2


async def test_higher_layout_is_reported_to_consumers_and_its_brokers_are_connected() -> None:
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster:
        cluster.put(make_layout("t", "a"))
        async with instance_of(cluster, route_refresh_spacing_ms=1) as instance:
            recorder = HookRecorder()
            instance.register_consumer("billing", billing, recorder.hooks())
            await linked(instance)
            assert [link.name for link in instance.links()] == ["a"]
            layout = cluster.put(make_layout("t", "a", "b", counter=2))
            instance.watch.refresh_soon()
            await until(lambda: recorder.layouts[-1:] == [layout])
            await until(lambda: ("up", "b") in recorder.events)
            assert [link.name for link in instance.links()] == ["a", "b"]


async def test_client_polls_for_an_unknown_broker_address_until_it_is_known() -> None:
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster:
        late = cluster.brokers.pop("b")
        async with instance_of(cluster, route_refresh_spacing_ms=1) as instance:
            await linked(instance)
            assert [link.name for link in instance.links()] == ["a"]
            requested = cluster.requested
            await until(lambda: cluster.requested > requested + 3)
            cluster.brokers["b"] = late
            await until(lambda: [link.name for link in instance.links() if link.up] == ["a", "b"])


async def test_link_is_up_after_the_heartbeat_response_and_connection_numbers_increase() -> None:
    async with registered("a") as (cluster, instance, recorder):
        (link,) = instance.links()
        link.reconnect("test")
        assert not link.up
        with pytest.raises(TransportError, match="broker a is not connected"):
            link.request(RequestCode.SYNC)
        await until(lambda: link.up)
        broker = cluster.brokers["a"]
        assert [(body.connection, body.session) for body in broker.heartbeats] == [(1, instance.session), (2, instance.session)]
        assert recorder.events == [("up", "a"), ("down", "a"), ("up", "a")]


async def test_link_rejects_a_broker_with_another_name_at_its_address() -> None:
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster:
        cluster.put(make_layout("t", "a"))
        right = cluster.brokers["a"].address
        cluster.brokers["a"].address = cluster.brokers["b"].address
        async with instance_of(cluster, route_refresh_spacing_ms=1) as instance:
            await instance.watch.route("t")
            (link,) = instance.links()
            await until(lambda: bool(cluster.brokers["b"].heartbeats))
            assert not link.up
            cluster.brokers["a"].address = right
            await until(lambda: link.up)


async def test_notifications_are_delivered_only_to_the_consumer_of_their_group() -> None:
    async with registered("a") as (cluster, instance, recorder):
        others = HookRecorder()
        instance.register_consumer("audit", lambda: billing("audit"), others.hooks())
        (endpoint,) = cluster.brokers["a"].endpoints
        free = (FreeQueue("audit", "t", 0), FreeQueue("billing", "t", 1), FreeQueue("nobody", "t", 2), FreeQueue("billing", "t", 3))
        endpoint.oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, to_plain(NotifyHeader("billing", 1, 9)))
        endpoint.oneway(RequestCode.QUEUE_FREE, None, encode_body(QueueFreeBody(free)))
        await until(lambda: bool(others.freed))
        assert ("notice", "a 9") in recorder.events
        assert ("notice", "a 9") not in others.events
        assert recorder.freed == [QueueFreeBody((free[1], free[3]))]
        assert others.freed == [QueueFreeBody((free[0],))]


async def test_unsupported_broker_request_is_rejected_and_an_invalid_body_closes_the_connection() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, instance_of(cluster) as instance:
        (link,) = await linked(instance)
        (endpoint,) = cluster.brokers["a"].endpoints
        response = await endpoint.request(RequestCode.PULL_MESSAGE, timeout_ms=5_000)
        assert response.code == 3
        endpoint.send(Command(RequestCode.QUEUE_FREE, 77, ONEWAY_FLAG, body=b"\xc1"))
        await until(lambda: link.connection == 2 and link.up)


async def test_connection_without_an_empty_sync_response_is_reopened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BrokerLink, "grace_ms", 20)
    async with fake_cluster("a", topics={"t": 1}) as cluster, instance_of(cluster, keepalive_interval_ms=10) as instance:
        (link,) = await linked(instance)
        await until(lambda: "a SYNC" in (cluster.brokers["a"].journal or []))
        assert link.connection == 1
        cluster.brokers["a"].stop_reading()
        await until(lambda: link.connection >= 2 and link.up)


async def test_instance_sends_empty_syncs_until_a_consumer_has_joined() -> None:
    async with registered("a", keepalive_interval_ms=10) as (cluster, _, _):
        journal = cluster.brokers["a"].journal
        assert journal is not None
        await until(lambda: "a SYNC" in journal)
