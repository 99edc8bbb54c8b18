"""What producers and consumers share: one session, routes, links, membership."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest

from lockstep.client import (
    ConfigError,
    Producer,
    PullConsumer,
    PushConsumer,
    StateError,
    SubscriptionConflictError,
    TopicNotExistError,
    TransportError,
)
from lockstep.client.broker_link import BrokerLink
from lockstep.client.client import Client
from lockstep.client.instance import ConsumerHooks, Instance
from lockstep.client.topics import create_topic
from lockstep.protocol.bodies import ConsumerGroup, FreeQueue, HeartbeatReply, QueueFreeBody, Subscription
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import ONEWAY_FLAG, Command
from lockstep.protocol.errors import (
    BrokerError,
    DuplicateClientIdError,
    LocalProtocolError,
    NoPermissionError,
    RouteNotReadyError,
    ServiceNotAvailableError,
)
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.clients import NotifyHeader
from lockstep.protocol.queue import TopicLayout
from support.fake_broker import ANY_GROUP, FakeCluster, fake_cluster, make_layout
from support.loops import LoopWatch, turns, until

pytestmark = pytest.mark.simulated


@dataclass
class Ears:
    """Records the events that an instance reports to a consumer."""

    heard: list[tuple[str, str]] = field(default_factory=list)
    views: list[HeartbeatReply] = field(default_factory=list)
    layouts: list[TopicLayout] = field(default_factory=list)
    freed: list[QueueFreeBody] = field(default_factory=list)
    refusals: list[BrokerError] = field(default_factory=list)

    def hooks(self) -> ConsumerHooks:
        return ConsumerHooks(
            on_up=lambda link, reply: self.heard.append(("up", link.name)),
            on_down=lambda link: self.heard.append(("down", link.name)),
            on_view=lambda link, reply: self.views.append(reply),
            on_notice=lambda link, notice: self.heard.append(("notice", f"{link.name} {notice.list_counter}")),
            on_queue_free=lambda link, free: self.freed.append(free),
            on_layout=self.layouts.append,
            on_refused=lambda link, error: self.refusals.append(error),
        )


def billing(group: str = "billing") -> ConsumerGroup:
    return ConsumerGroup(group, (Subscription("t"),), ordered=True)


@asynccontextmanager
async def instance_of(
    cluster: FakeCluster, *, client: Client | None = None, group: str | None = None, **options: int
) -> AsyncIterator[Instance]:
    instance = (client or Client(cluster.nameserver, **options)).instance(group)
    try:
        await instance.start()
        yield instance
    finally:
        await instance.close(group=group)


async def linked(instance: Instance, topic: str = "t") -> list[BrokerLink]:
    """The topic's links, all up."""
    assert await instance.watch.route(topic) is not None
    for link in instance.links():
        assert await link.settled()
    return instance.links()


# ---------------------------------------------------------------------------------------------------------------------- sharing


async def test_what_is_given_one_client_shares_an_instance_until_the_last_gives_it_back() -> None:
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


async def test_each_event_loop_has_an_instance_of_its_own() -> None:
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
def test_a_client_and_a_nameserver_are_not_both_given(kind: type[Producer] | type[PushConsumer] | type[PullConsumer]) -> None:
    with pytest.raises(ConfigError, match="give one of them"):
        kind("g", client=Client("127.0.0.1:1"), nameserver="127.0.0.1:1")
    with pytest.raises(ConfigError, match="HOST:PORT"):
        kind("g", nameserver="nowhere")


def test_the_settings_of_a_client_are_checked() -> None:
    with pytest.raises(ConfigError, match="heartbeat_interval_ms is 0: expected an integer of at least 1"):
        Client("127.0.0.1:1", heartbeat_interval_ms=0)
    with pytest.raises(TypeError, match="did you mean 'heartbeat_interval_ms'"):
        Client("127.0.0.1:1", heartbeat_interval=1)  # type: ignore[call-arg]


async def test_a_second_consumer_of_one_group_gets_an_instance_of_its_own() -> None:
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
async def test_the_client_id_is_address_process_and_random_bits() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, instance_of(cluster) as instance:
        address, _, rest = instance.client_id.partition("@")
        process, _, bits = rest.partition("#")
        assert address == "127.0.0.1"
        assert process.isdigit()
        assert len(bytes.fromhex(bits)) == 8
        assert len(bytes.fromhex(instance.session)) == 16


# ----------------------------------------------------------------------------------------------------------- nameservers, routes


async def test_a_nameserver_that_is_gone_or_knows_no_broker_is_left_for_the_next() -> None:
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
            asked = empty.asked
            await instance.watch.route("t", refresh=True)
            assert empty.asked == asked, "the one that answered is kept"
            await instance.close()


async def test_existing_routes_remain_while_no_nameserver_answers() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, instance_of(cluster) as instance:
        layout = await instance.watch.route("t")
        await cluster.stop()
        assert await instance.watch.route("t", refresh=True) == layout
        with pytest.raises(TransportError):
            await instance.watch.route("unheard")


async def test_a_nameserver_without_any_broker_says_so() -> None:
    async with fake_cluster("a") as cluster, instance_of(cluster) as instance:
        cluster.ready = False
        with pytest.raises(RouteNotReadyError, match="knows no broker yet"):
            await instance.watch.route("t")


async def test_a_topic_that_is_not_there_is_none() -> None:
    async with fake_cluster("a") as cluster, instance_of(cluster) as instance:
        assert await instance.watch.route("t") is None


async def test_a_refused_connection_asks_for_the_route_again_and_the_new_address_is_dialled() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, instance_of(cluster) as instance:
        (link,) = await linked(instance)
        broker = cluster.brokers["a"]
        await broker.stop()
        await until(lambda: not link.up)
        broker.term += 1
        await broker.start()
        await until(lambda: link.up)
        assert link.connection == 2
        assert link.view is not None
        assert link.view.term == 2


async def test_a_higher_layout_is_reported_to_consumers_and_its_brokers_are_linked() -> None:
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster:
        cluster.put(make_layout("t", "a"))
        async with instance_of(cluster, route_refresh_spacing_ms=1) as instance:
            ears = Ears()
            instance.register_consumer("billing", billing, ears.hooks())
            await linked(instance)
            assert [link.name for link in instance.links()] == ["a"]
            layout = cluster.put(make_layout("t", "a", "b", counter=2))
            instance.watch.refresh_soon()
            await until(lambda: ears.layouts[-1:] == [layout])
            await until(lambda: ("up", "b") in ears.heard)
            assert [link.name for link in instance.links()] == ["a", "b"]


async def test_a_broker_whose_address_no_nameserver_knows_yet_is_asked_for_until_it_is_known() -> None:
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster:
        late = cluster.brokers.pop("b")
        async with instance_of(cluster, route_refresh_spacing_ms=1) as instance:
            await linked(instance)
            assert [link.name for link in instance.links()] == ["a"]
            asked = cluster.asked
            await until(lambda: cluster.asked > asked + 3)
            cluster.brokers["b"] = late
            await until(lambda: [link.name for link in instance.links() if link.up] == ["a", "b"])


# ------------------------------------------------------------------------------------------------------------------------- links


async def test_a_link_is_up_after_the_answered_heartbeat_and_each_connect_has_a_higher_number() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, instance_of(cluster) as instance:
        ears = Ears()
        instance.register_consumer("billing", billing, ears.hooks())
        (link,) = await linked(instance)
        link.reconnect("test")
        assert not link.up
        with pytest.raises(TransportError, match="broker a is not connected"):
            link.request(RequestCode.SYNC)
        await until(lambda: link.up)
        broker = cluster.brokers["a"]
        assert [(body.connection, body.session) for body in broker.heartbeats] == [(1, instance.session), (2, instance.session)]
        assert ears.heard == [("up", "a"), ("down", "a"), ("up", "a")]


async def test_a_broker_of_another_name_at_the_address_is_not_taken_for_the_one_sought() -> None:
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


async def test_notices_and_free_queues_reach_the_consumer_of_their_group_only() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, instance_of(cluster) as instance:
        ears, others = Ears(), Ears()
        instance.register_consumer("billing", billing, ears.hooks())
        instance.register_consumer("audit", lambda: billing("audit"), others.hooks())
        await linked(instance)
        (endpoint,) = cluster.brokers["a"].endpoints
        free = (FreeQueue("audit", "t", 0), FreeQueue("billing", "t", 1), FreeQueue("nobody", "t", 2), FreeQueue("billing", "t", 3))
        endpoint.oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, to_plain(NotifyHeader("billing", 1, 9)))
        endpoint.oneway(RequestCode.QUEUE_FREE, None, encode_body(QueueFreeBody(free)))
        await until(lambda: bool(others.freed))
        assert ("notice", "a 9") in ears.heard
        assert ("notice", "a 9") not in others.heard
        assert ears.freed == [QueueFreeBody((free[1], free[3]))]
        assert others.freed == [QueueFreeBody((free[0],))]


async def test_what_a_broker_may_not_ask_is_refused_and_garbage_ends_the_connection() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, instance_of(cluster) as instance:
        (link,) = await linked(instance)
        (endpoint,) = cluster.brokers["a"].endpoints
        answer = await endpoint.request(RequestCode.PULL_MESSAGE, timeout_ms=5_000)
        assert answer.code == 3
        endpoint.send(Command(RequestCode.QUEUE_FREE, 77, ONEWAY_FLAG, body=b"\xc1"))
        await until(lambda: link.connection == 2 and link.up)


async def test_a_connection_whose_empty_sync_stays_unanswered_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BrokerLink, "grace_ms", 20)
    async with (
        fake_cluster("a", topics={"t": 1}) as cluster,
        instance_of(cluster, keepalive_interval_ms=10) as instance,
    ):
        (link,) = await linked(instance)
        await until(lambda: "a SYNC" in (cluster.brokers["a"].journal or []))
        assert link.connection == 1
        cluster.brokers["a"].stop_reading()
        await until(lambda: link.connection >= 2 and link.up)


async def test_until_a_consumer_has_joined_the_instance_proves_life_itself() -> None:
    async with (
        fake_cluster("a", topics={"t": 1}) as cluster,
        instance_of(cluster, keepalive_interval_ms=10) as instance,
    ):
        instance.register_consumer("billing", billing, Ears().hooks())
        await linked(instance)
        journal = cluster.brokers["a"].journal
        assert journal is not None
        await until(lambda: "a SYNC" in journal)


# -------------------------------------------------------------------------------------------------------------------- membership


async def test_joining_asks_broker_after_broker_in_name_order_and_only_then_names_the_group_everywhere() -> None:
    async with fake_cluster("c", "a", "b", topics={"t": 1}) as cluster, instance_of(cluster) as instance:
        ears = Ears()
        instance.register_consumer("billing", billing, ears.hooks())
        await linked(instance)
        for broker in cluster.brokers.values():
            assert [body.consumers for body in broker.heartbeats] == [()]
        journal = cluster.brokers["a"].journal
        assert journal is not None
        journal.clear()
        await instance.join("billing")
        assert journal == ["a HEART_BEAT", "b HEART_BEAT", "c HEART_BEAT"]
        for broker in cluster.brokers.values():
            assert broker.heartbeats[-1].consumers == (billing(),)
        assert len(ears.views) == 3


async def test_a_broker_that_becomes_known_during_the_join_is_joined_too() -> None:
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster:
        late = cluster.brokers.pop("b")
        async with instance_of(cluster, route_refresh_spacing_ms=1) as instance:
            instance.register_consumer("billing", billing, Ears().hooks())
            (link,) = await linked(instance)
            beat = link.beat

            async def beat_late() -> HeartbeatReply:
                cluster.brokers["b"] = late
                await until(lambda: bool(late.heartbeats))
                return await beat()

            link.beat = beat_late  # type: ignore[method-assign]
            await instance.join("billing")
            assert [group.group for group in late.heartbeats[-1].consumers] == ["billing"]


async def test_a_broker_that_cannot_be_reached_is_waited_for_before_any_broker_is_joined() -> None:
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster, instance_of(cluster) as instance:
        instance.register_consumer("billing", billing, Ears().hooks())
        await linked(instance)
        _, second = instance.links()
        tried = asyncio.Event()
        second.settled = tried.wait  # type: ignore[method-assign]
        joining = asyncio.ensure_future(instance.join("billing"))
        await turns(10)
        assert not any(beat.consumers for beat in cluster.brokers["a"].heartbeats)
        tried.set()
        await joining
        assert all(broker.heartbeats[-1].consumers for broker in cluster.brokers.values())


async def test_a_join_that_is_refused_anywhere_leaves_those_it_joined_and_raises_the_refusal() -> None:
    async with fake_cluster("a", "b", "c", topics={"t": 1}) as cluster, instance_of(cluster) as instance:
        ears = Ears()
        instance.register_consumer("billing", billing, ears.hooks())
        await linked(instance)
        cluster.brokers["b"].refuse[ANY_GROUP] = SubscriptionConflictError("group billing has another contract at b: subscriptions")
        with pytest.raises(SubscriptionConflictError, match="billing"):
            await instance.join("billing")
        assert cluster.brokers["a"].left == ["billing"]
        assert all(body.consumers == () for body in cluster.brokers["c"].heartbeats)
        assert ears.refusals == [], "it is raised, not told"
        await instance.heartbeat_now()
        assert cluster.brokers["a"].heartbeats[-1].consumers == ()
        cluster.brokers["b"].refuse.clear()
        await instance.join("billing")


async def test_a_broker_that_is_away_hears_of_the_group_when_it_comes() -> None:
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster:
        await cluster.brokers["a"].stop()
        async with instance_of(cluster, route_refresh_spacing_ms=1) as instance:
            instance.register_consumer("billing", billing, Ears().hooks())
            await instance.watch.route("t")
            await instance.join("billing")
            assert cluster.brokers["b"].heartbeats[-1].consumers == (billing(),)
            cluster.brokers["a"].term += 1
            await cluster.brokers["a"].start()
            await until(lambda: bool(cluster.brokers["a"].heartbeats))
            assert cluster.brokers["a"].heartbeats[0].consumers == (billing(),)


@pytest.mark.parametrize(
    "error", [SubscriptionConflictError("group billing has another contract at a"), DuplicateClientIdError("a living session has it")]
)
async def test_a_running_member_that_is_refused_is_told_and_named_no_more(error: BrokerError) -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, instance_of(cluster) as instance:
        ears = Ears()
        instance.register_consumer("billing", billing, ears.hooks())
        (link,) = await linked(instance)
        await instance.join("billing")
        broker = cluster.brokers["a"]
        broker.refuse[ANY_GROUP] = error
        link.reconnect("test")
        await until(lambda: link.up)
        assert [type(refusal) for refusal in ears.refusals] == [type(error)]
        assert broker.heartbeats[-1].consumers == ()


@pytest.mark.parametrize("refusal", [NoPermissionError, ServiceNotAvailableError])
@pytest.mark.parametrize("remark", ["b knows 1 groups, 1 are allowed: group audit is refused", "the disk is nearly full"])
async def test_a_broker_without_room_for_a_group_is_linked_and_takes_the_group_when_it_has_room(
    refusal: type[BrokerError], remark: str
) -> None:
    """The broker was away when the group joined, so the refusal meets the handshake of its link."""
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster:
        broker = cluster.brokers["b"]
        await broker.stop()
        async with instance_of(cluster, route_refresh_spacing_ms=1) as instance:
            ears = Ears()
            for group in ("billing", "audit"):
                instance.register_consumer(group, partial(billing, group), ears.hooks())
            await instance.watch.route("t")
            await instance.join("billing")
            await instance.join("audit")
            broker.refuse["audit"] = refusal(remark)
            broker.term += 1
            await broker.start()
            await until(lambda: ("up", "b") in ears.heard)
            assert ears.refusals == []
            broker.refuse.clear()
            clock = instance.host.clock
            await until(lambda: all(each.is_named("b", clock.monotonic_ms()) for each in instance._consumers.values()))
            await instance.heartbeat_now()
            assert sorted(each.group for each in broker.heartbeats[-1].consumers) == ["audit", "billing"]


@pytest.mark.parametrize("temporary", ["", SubscriptionConflictError.TEMPORARY])
async def test_a_join_is_not_refused_for_another_group_of_the_same_client(temporary: str) -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, instance_of(cluster) as instance:
        ears, others = Ears(), Ears()
        instance.register_consumer("billing", billing, ears.hooks())
        instance.register_consumer("audit", lambda: billing("audit"), others.hooks())
        await linked(instance)
        await instance.join("audit")
        broker = cluster.brokers["a"]
        broker.refuse["audit"] = SubscriptionConflictError(f"group audit has another contract at a{temporary}")
        await instance.join("billing")
        assert [group.group for group in broker.heartbeats[-1].consumers] == ["billing"]
        assert ears.refusals == []
        assert len(others.refusals) == (0 if temporary else 1)


async def test_of_several_groups_the_one_that_the_refusal_names_is_refused() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, instance_of(cluster) as instance:
        ears, others = Ears(), Ears()
        instance.register_consumer("billing", billing, ears.hooks())
        instance.register_consumer("audit", lambda: billing("audit"), others.hooks())
        await linked(instance)
        await instance.join("billing")
        await instance.join("audit")
        cluster.brokers["a"].refuse[ANY_GROUP] = SubscriptionConflictError("group audit has another contract at a")
        await instance.heartbeat_now()
        assert (len(ears.refusals), len(others.refusals)) == (0, 1)
        cluster.brokers["a"].refuse.clear()
        await instance.heartbeat_now()
        assert cluster.brokers["a"].heartbeats[-1].consumers == (billing(),)


async def test_leaving_is_told_to_every_broker_and_hooks_go_on_until_unregistered() -> None:
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster, instance_of(cluster) as instance:
        ears = Ears()
        instance.register_consumer("billing", billing, ears.hooks())
        links = await linked(instance)
        await instance.join("billing")
        await instance.leave("billing")
        assert [broker.left for broker in cluster.brokers.values()] == [["billing"], ["billing"]]
        links[0].reconnect("test")
        await until(lambda: links[0].up)
        assert cluster.brokers["a"].heartbeats[-1].consumers == ()
        assert ears.heard[-1] == ("up", "a")
        instance.unregister_consumer("billing")
        heard = len(ears.heard)
        links[0].reconnect("test")
        await until(lambda: links[0].up)
        assert len(ears.heard) == heard


async def test_a_leave_that_is_cancelled_leaves_no_answer_that_nobody_looks_at(loop_watch: LoopWatch) -> None:
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster, instance_of(cluster) as instance:
        instance.register_consumer("billing", billing, Ears().hooks())
        links = await linked(instance)
        await instance.join("billing")
        for broker in cluster.brokers.values():
            broker.stop_reading()
        leaving = asyncio.ensure_future(instance.leave("billing"))
        await turns(2)
        leaving.cancel()
        await turns(2)
        for link in links:
            link.reconnect("test")
        await until(lambda: all(link.connection == 2 and link.up for link in links))
        gc.collect()
        assert loop_watch.errors == []


async def test_a_group_is_registered_once() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, instance_of(cluster) as instance:
        instance.register_consumer("billing", billing, Ears().hooks())
        with pytest.raises(StateError, match="billing"):
            instance.register_consumer("billing", billing, Ears().hooks())


# ------------------------------------------------------------------------------------------------------------------------ topics


async def test_two_who_create_one_topic_at_once_end_with_one_layout() -> None:
    async with fake_cluster("b", "a") as cluster:
        client = Client(cluster.nameserver)
        first, second = client.instance("g"), client.instance("g")
        await first.start()
        await second.start()
        layouts = await asyncio.gather(create_topic(first, "t", 4), create_topic(second, "t", 4))
        assert layouts[0] == layouts[1]
        assert [entry.broker_name for entry in layouts[0].entries] == ["a", "b"]
        assert {broker.layouts["t"] == layouts[0] for broker in cluster.brokers.values()} == {True}
        assert await first.watch.route("t") == layouts[0], "known without asking again"
        await first.close(group="g")
        await second.close(group="g")


async def test_creation_asks_in_name_order_and_goes_on_with_the_layout_that_is_there() -> None:
    async with fake_cluster("b", "a") as cluster, instance_of(cluster) as instance:
        present = make_layout("t", "a", queues=9)
        cluster.brokers["a"].layouts["t"] = present
        assert await create_topic(instance, "t", 4) == present
        assert cluster.brokers["b"].layouts["t"] == present
        journal = cluster.brokers["a"].journal
        assert journal is not None
        assert [line for line in journal if "TOPIC" in line] == ["a UPDATE_AND_CREATE_TOPIC", "b UPDATE_AND_CREATE_TOPIC"]


async def test_what_can_not_be_created_is_refused_by_name() -> None:
    async with fake_cluster("a") as cluster, instance_of(cluster) as instance:
        with pytest.raises(LocalProtocolError, match="is a system topic"):
            await create_topic(instance, "TBW102", 4)
        with pytest.raises(LocalProtocolError, match="at least 1"):
            await create_topic(instance, "t", 0)
        with pytest.raises(TopicNotExistError, match="create it"):
            await create_topic(instance, "t", 4, auto=True)
        cluster.brokers["a"].registered = False
        with pytest.raises(RouteNotReadyError, match="no broker is registered"):
            await create_topic(instance, "t", 4)
        cluster.brokers["a"].registered = True
        await cluster.brokers["a"].stop()
        with pytest.raises(TransportError, match="was not created"):
            await create_topic(instance, "t", 4)
