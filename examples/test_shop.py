"""Tests of shop.py against a cluster in memory, by the pytest plugin that comes with lockstep: pytest examples/test_shop.py"""

# pyright: strict

import asyncio

import pytest

from lockstep.client import Client, Producer
from lockstep.testing import TestCluster
from shop import ORDERS, STEPS, TOPIC, Shop, audited, auditing, customers, mailing, shipping, take_order


async def test_every_order_is_shipped_in_order_mailed_and_audited_whatever_dies(lockstep_cluster: TestCluster) -> None:
    cluster, shop = lockstep_cluster, Shop()
    await cluster.create_topic(TOPIC, queues=4)
    client = Client(cluster.nameserver)
    audit = auditing(client)
    async with shipping(client, shop), mailing(client, shop), audit, audited(audit, shop):
        async with Producer("shop", client=client) as producer:
            for order in range(1001, 1001 + ORDERS):
                if order == 1005:
                    await cluster.kill("broker-a")
                    await cluster.restart("broker-a")
                assert await take_order(producer, str(order))
        await cluster.advance(seconds=30)
        await audit.stop()
    assert shop.complete.is_set()
    assert all(tuple(steps) == STEPS for steps in shop.shipped.values())


async def test_an_order_stops_where_it_can_not_be_stored(lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC)
    async with Producer("shop", nameserver=cluster.nameserver, keyed_send_timeout_ms=1_000) as producer:
        for broker in cluster.brokers:
            await cluster.kill(broker)
        assert not await take_order(producer, "1001")
    assert "order 1001 stopped at created" in capsys.readouterr().out


async def test_a_signal_ends_the_service_before_everything_is_done(lockstep_cluster: TestCluster) -> None:
    cluster, shop = lockstep_cluster, Shop()
    await cluster.create_topic(TOPIC)
    async with asyncio.timeout(60), Producer("shop", nameserver=cluster.nameserver) as producer, customers(producer, [], shop):
        assert await take_order(producer, "2001")
    assert not shop.complete.is_set()
