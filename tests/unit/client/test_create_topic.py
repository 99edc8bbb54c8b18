"""create_topic: brokers in name order, one layout, errors."""

import asyncio

import pytest

from lockstep.client import TopicNotExistError, TransportError
from lockstep.client.client import Client
from lockstep.client.topics import create_topic
from lockstep.protocol.errors import LocalProtocolError, RouteNotReadyError
from support.fake_broker import fake_cluster, make_layout
from support.instance_kit import instance_of

pytestmark = pytest.mark.simulated


async def test_concurrent_creation_of_a_topic_yields_one_layout() -> None:
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


async def test_topic_is_created_on_brokers_in_name_order_with_an_existing_layout() -> None:
    async with fake_cluster("b", "a") as cluster, instance_of(cluster) as instance:
        present = make_layout("t", "a", queues=9)
        cluster.brokers["a"].layouts["t"] = present
        assert await create_topic(instance, "t", 4) == present
        assert cluster.brokers["b"].layouts["t"] == present
        journal = cluster.brokers["a"].journal
        assert journal is not None
        assert [line for line in journal if "TOPIC" in line] == ["a UPDATE_AND_CREATE_TOPIC", "b UPDATE_AND_CREATE_TOPIC"]


async def test_create_topic_errors_state_the_reason() -> None:
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
