"""A change of the queues comes into force at every broker that holds the writes, or the command says that it may not have."""

import pytest

from lockstep.client import Message, Producer
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes.layouts.layout_change import alter_layout
from lockstep.operations.changes.layouts.queue_move import put_in_order
from lockstep.operations.changes.layouts.write_hold import NotHeldError, WriteHold
from lockstep.operations.errors import OperationError
from lockstep.protocol.bodies import BrokerAddress
from lockstep.protocol.errors import TransportError
from lockstep.protocol.topics.queue import TopicLayout
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support.queue_moves import layout_of, until_unregistered

TOPIC = "orders"


class LossyAdmin(AdminClient):
    """An admin client whose next proposals of a layout to broker-b are lost."""

    lost = 0

    async def put_layout(self, broker: BrokerAddress, layout: TopicLayout, hold_id: str | None = None) -> TopicLayout:
        if broker.name == "broker-b" and self.lost:
            self.lost -= 1
            raise TransportError("no response within 5000 ms")
        return await super().put_layout(broker, layout, hold_id)


async def unregister_broker_b(cluster: TestCluster, admin: AdminClient) -> None:
    """Cut broker-b off from the nameserver alone: clients and commands still reach it."""
    cluster.partition("broker-b", "nameserver-1")
    await until_unregistered(admin, "broker-b")


async def more_on_broker_a(admin: AdminClient) -> None:
    before = await layout_of(admin, TOPIC)
    await put_in_order(admin, before, alter_layout(before, {"broker-a": (2, 2)}, writer=7))


async def test_broker_that_is_not_registered_holds_the_writes_and_gets_the_layout_too(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    admin = AdminClient(Host.current(), cluster.nameserver)
    await cluster.create_topic(TOPIC, queues=1)
    keys = [f"order-{number}" for number in range(8)]
    async with Producer("shop", nameserver=cluster.nameserver) as old, Producer("other", nameserver=cluster.nameserver) as new:
        for key in keys:
            await old.send(Message(TOPIC, b"0", sharding_key=key))
        await unregister_broker_b(cluster, admin)
        await more_on_broker_a(admin)
        for key in keys:
            first = await old.send(Message(TOPIC, b"1", sharding_key=key), timeout_ms=10_000)
            assert (await new.send(Message(TOPIC, b"2", sharding_key=key), timeout_ms=10_000)).queue == first.queue


async def test_writes_are_not_held_without_a_broker_that_has_queues(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    admin = AdminClient(Host.current(), cluster.nameserver)
    await cluster.create_topic(TOPIC, queues=1)
    await cluster.kill("broker-b")
    await until_unregistered(admin, "broker-b")
    with pytest.raises(NotHeldError, match="nothing was changed: the writes to orders are not held at broker broker-b"):
        await WriteHold(admin, TOPIC, ["broker-a", "broker-b"]).__aenter__()
    with pytest.raises(NotHeldError, match="not held at broker broker-z: no address is known"):
        await WriteHold(admin, TOPIC, ["broker-z"]).__aenter__()
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        await producer.send(Message(TOPIC, b"1"), timeout_ms=1_000)


async def test_proposal_that_was_lost_is_repeated_while_the_writes_are_held(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    admin = LossyAdmin(Host.current(), cluster.nameserver)
    await cluster.create_topic(TOPIC, queues=1)
    await unregister_broker_b(cluster, admin)
    admin.lost = 3
    await more_on_broker_a(admin)
    assert (admin.lost, (await layout_of(admin, TOPIC)).write_total) == (0, 3)


async def test_broker_that_does_not_take_the_layout_fails_the_change(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    admin = LossyAdmin(Host.current(), cluster.nameserver)
    await cluster.create_topic(TOPIC, queues=1)
    await unregister_broker_b(cluster, admin)
    admin.lost = 1_000_000
    with pytest.raises(
        OperationError, match=r"order per key may have ended: broker broker-b: did not respond.*`lockstep topic show orders`"
    ):
        await more_on_broker_a(admin)
    assert (await layout_of(admin, TOPIC)).write_total == 3, "the layout is in force at broker-a"


async def test_broker_that_restarts_before_it_has_the_layout_fails_the_change(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster

    class KillingAdmin(AdminClient):
        killed = False

        async def put_layout(self, broker: BrokerAddress, layout: TopicLayout, hold_id: str | None = None) -> TopicLayout:
            if broker.name == "broker-b" and not self.killed:
                self.killed = True
                await cluster.kill("broker-b")
                await cluster.restart("broker-b")
            return await super().put_layout(broker, layout, hold_id)

    admin = KillingAdmin(Host.current(), cluster.nameserver)
    await cluster.create_topic(TOPIC, queues=1)
    with pytest.raises(OperationError, match="order per key may have ended: broker broker-b: did not hold the writes all the time"):
        await more_on_broker_a(admin)
