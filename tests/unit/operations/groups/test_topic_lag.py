"""What groups have not consumed of a topic's queues, also in queues of which the brokers know nothing for them."""

import pytest

from lockstep.client import Message, MessageQueue, Producer
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes.layouts.layout_change import alter_layout
from lockstep.operations.changes.layouts.layout_publish import create_and_wait
from lockstep.operations.changes.layouts.queue_move import NotConsumedError, put_in_order
from lockstep.operations.changes.layouts.write_hold import WriteHold
from lockstep.operations.groups.topic_lag import read_lag
from lockstep.protocol.bodies import BrokerAddress, OffsetRange
from lockstep.protocol.names import retry_topic
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support.queue_moves import consuming, layout_of, ordered_worker

TOPIC = "orders"


async def lag_after_queues_were_added(cluster: TestCluster, broker: str, count: int) -> dict[str, int]:
    """Stop a group, give a broker queues of the topic, send 5 messages to the last of them, and return the lag."""
    admin = AdminClient(Host.current(), cluster.nameserver)
    await create_and_wait(cluster.nameserver, TOPIC, 1, ["broker-a"])
    await cluster.start("worker", ordered_worker(cluster, "billing", TOPIC, []))
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        await producer.send(Message(TOPIC, b"consumed"))
        await cluster.settled("billing")
        await cluster.stop("worker")
        before = await layout_of(admin, TOPIC)
        await put_in_order(admin, before, alter_layout(before, {broker: (count, count)}, writer=7))
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        for number in range(5):
            await producer.send(Message(TOPIC, b"%d" % number), queue=MessageQueue(TOPIC, broker, count - 1))
    lag = await read_lag(admin, (), (await layout_of(admin, TOPIC)).read_queues)
    assert not lag.unknown
    return dict(lag.lags)


async def test_stopped_group_lags_in_queues_that_another_broker_got_meanwhile(lockstep_cluster: TestCluster) -> None:
    assert await lag_after_queues_were_added(lockstep_cluster, "broker-b", 1) == {"billing": 5}


async def test_stopped_group_lags_in_queues_that_its_broker_got_meanwhile(lockstep_cluster: TestCluster) -> None:
    assert await lag_after_queues_were_added(lockstep_cluster, "broker-a", 2) == {"billing": 5}


async def test_messages_that_retention_removed_are_no_lag(lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await lag_after_queues_were_added(lockstep_cluster, "broker-b", 1)
    admin = AdminClient(Host.current(), lockstep_cluster.nameserver)

    async def offsets(broker: BrokerAddress, topic: str) -> tuple[OffsetRange, ...]:
        return (OffsetRange(0, 3 if broker.name == "broker-b" else 1, 5 if broker.name == "broker-b" else 1),)

    monkeypatch.setattr(admin, "offsets", offsets)
    assert (await read_lag(admin, (), (await layout_of(admin, TOPIC)).read_queues)).lags == {"billing": 2}


async def test_group_lags_in_its_retries_before_it_has_progress_there(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    admin = AdminClient(Host.current(), cluster.nameserver)
    await create_and_wait(cluster.nameserver, TOPIC, 1, ["broker-a"])
    await create_and_wait(cluster.nameserver, retry_topic("billing"), 1, ["broker-a"])
    await cluster.start("worker", ordered_worker(cluster, "billing", TOPIC, []))
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        await producer.send(Message(TOPIC, b"consumed"))
        await producer.send(Message(retry_topic("billing"), b"failed"))
        await cluster.settled("billing")
        retries = (await layout_of(admin, retry_topic("billing"))).read_queues
        assert (await read_lag(admin, (), retries)).lags == {"billing": 1}


async def left_topic(cluster: TestCluster) -> AdminClient:
    """Let an ordered group leave the topic by a rolling update, with 5 messages unconsumed. Its other topic is at broker-b alone."""
    admin = AdminClient(Host.current(), cluster.nameserver)
    await create_and_wait(cluster.nameserver, TOPIC, 1, ["broker-a"])
    await create_and_wait(cluster.nameserver, "bills", 1, ["broker-b"])
    await cluster.start("old", consuming(cluster, "billing", 0, TOPIC, "bills"))
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        await producer.send(Message(TOPIC, b"consumed", sharding_key="k"))
        await cluster.settled("billing")
        await cluster.start("new", consuming(cluster, "billing", 1, "bills"))
        await cluster.stop("old")
        for number in range(5):
            await producer.send(Message(TOPIC, b"%d" % number, sharding_key="k"))
    return admin


async def test_topic_that_the_group_has_left_changes_without_it(lockstep_cluster: TestCluster) -> None:
    """broker-a, which has its queues, has no member of the group: that it runs, and what it consumes, only broker-b knows."""
    admin = await left_topic(lockstep_cluster)
    before = await layout_of(admin, TOPIC)
    assert not (await read_lag(admin, before.read_queues, before.read_queues)).lags
    after = alter_layout(before, {"broker-a": (3, 3)}, writer=7)
    assert await put_in_order(admin, before, after) is not None
    assert (await layout_of(admin, TOPIC)).write_queues == after.write_queues


async def test_writes_are_not_held_for_a_group_that_can_not_catch_up(
    lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await lag_after_queues_were_added(lockstep_cluster, "broker-b", 1) == {"billing": 5}
    admin = AdminClient(Host.current(), lockstep_cluster.nameserver)
    monkeypatch.setattr(WriteHold, "__aenter__", lambda self: pytest.fail("the writes are held"))
    before = await layout_of(admin, TOPIC)
    with pytest.raises(NotConsumedError) as refused:
        await put_in_order(admin, before, alter_layout(before, {"broker-a": (3, 3)}, writer=7))
    assert "lag of billing: 5, and it has no member" in str(refused.value)
    assert "`lockstep group forget billing --topic orders` ends the progress of a group that will not come back" in str(refused.value)
