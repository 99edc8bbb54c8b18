"""Queues are moved while transactions of the topic are open: keys stay in order, and what nobody decides is named."""

import asyncio
from contextlib import suppress

import pytest

from lockstep.cli.reporter import StderrReporter
from lockstep.client import Message, TransactionProducer, TransactionStatus
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes.layouts import queue_move
from lockstep.operations.changes.layouts.drain import close_queues
from lockstep.operations.changes.layouts.layout_change import alter_layout
from lockstep.operations.changes.layouts.queue_move import NotConsumedError, put_in_order
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support.queue_moves import layout_of, ordered_worker

TOPIC, GROUP = "orders", "billing"
one_broker = pytest.mark.lockstep(brokers=1)


@pytest.fixture
async def admin(lockstep_cluster: TestCluster) -> AdminClient:
    await lockstep_cluster.create_topic(TOPIC, queues=1)
    return AdminClient(Host.current(), lockstep_cluster.nameserver, reporter=StderrReporter())


def producer(cluster: TestCluster, group: str = "shop", status: TransactionStatus = TransactionStatus.UNKNOWN) -> TransactionProducer:
    found = TransactionProducer(group, nameserver=cluster.nameserver)
    found.check(lambda transaction_id, message: status)
    return found


async def move(admin: AdminClient, queues: int = 3) -> int | None:
    """Give broker-a so many queues. Return for how long writes were held, in ms."""
    before = await layout_of(admin, TOPIC)
    return await put_in_order(admin, before, alter_layout(before, {"broker-a": (queues, queues)}, writer=7))


@one_broker
async def test_open_transaction_is_waited_for_before_writes_are_held(lockstep_cluster: TestCluster, admin: AdminClient) -> None:
    bodies: list[bytes] = []
    await lockstep_cluster.start("worker", ordered_worker(lockstep_cluster, GROUP, TOPIC, bodies))
    async with producer(lockstep_cluster) as shop:
        async with shop.transaction() as tx:
            await tx.send(Message(TOPIC, b"1", sharding_key="k"))
            moving = asyncio.create_task(move(admin))
            await asyncio.sleep(3)
            assert not moving.done()
            await shop.send(Message(TOPIC, b"0", sharding_key="k"), timeout_ms=1_000)
        held_ms = await moving
        assert held_ms is not None
        assert held_ms < 2_000
        await shop.send(Message(TOPIC, b"2", sharding_key="k"))
    await lockstep_cluster.settled(GROUP)
    assert bodies == [b"0", b"1", b"2"]


@one_broker
async def test_transaction_that_began_meanwhile_is_committed_during_the_hold(
    lockstep_cluster: TestCluster, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the old queue, and consumed before the new layout is in force."""
    bodies: list[bytes] = []
    await lockstep_cluster.start("worker", ordered_worker(lockstep_cluster, GROUP, TOPIC, bodies))
    async with producer(lockstep_cluster) as shop:
        async with shop.transaction() as tx:
            await tx.send(Message(TOPIC, b"1", sharding_key="k"))

            async def begun_later(*_: object) -> None:
                pass

            monkeypatch.setattr(queue_move, "_wait_for_decisions", begun_later)
            moving = asyncio.create_task(move(admin))
            await asyncio.sleep(3)
            later = asyncio.create_task(shop.send(Message(TOPIC, b"2", sharding_key="k")))
            await asyncio.sleep(1)
            assert not later.done(), "the writes are held"
        assert await moving is not None
        await later
    await lockstep_cluster.settled(GROUP)
    assert bodies == [b"1", b"2"]


@one_broker
@pytest.mark.parametrize("before_hold", [True, False])
async def test_change_is_refused_with_words_while_a_transaction_stays_open(
    lockstep_cluster: TestCluster, admin: AdminClient, monkeypatch: pytest.MonkeyPatch, before_hold: bool
) -> None:
    if not before_hold:

        async def none(*_: object) -> None:
            pass

        monkeypatch.setattr(queue_move, "_wait_for_decisions", none)
    before = await layout_of(admin, TOPIC)
    async with producer(lockstep_cluster) as shop:
        async with shop.transaction() as tx:
            await tx.send(Message(TOPIC, b"1", sharding_key="k"))
            words = (
                r"nothing was changed: 1 messages of orders wait for the decision of their transactions \(producer groups shop\), and "
                r"messages of a key would be consumed out of order\. .*lockstep tx ls orders.* or use --force"
            )
            with pytest.raises(NotConsumedError, match=words):
                await move(admin)
        assert await layout_of(admin, TOPIC) == before
        assert await move(admin) is not None


@one_broker
async def test_transaction_that_is_too_old_refuses_a_change_at_once(lockstep_cluster: TestCluster, admin: AdminClient) -> None:
    async with producer(lockstep_cluster) as shop:
        with suppress(RuntimeError):
            async with shop.transaction() as tx:
                await tx.send(Message(TOPIC, b"1", sharding_key="k"))
                raise RuntimeError
        await lockstep_cluster.advance(days=1.1)
        begun_ms = admin.host.clock.monotonic_ms()
        with pytest.raises(NotConsumedError, match="1 messages of orders wait"):
            await move(admin)
        assert admin.host.clock.monotonic_ms() - begun_ms < queue_move.DECIDED_MS


@pytest.mark.lockstep(brokers=2)
async def test_drain_waits_for_a_long_transaction(
    lockstep_cluster: TestCluster, admin: AdminClient, capsys: pytest.CaptureFixture[str]
) -> None:
    async with producer(lockstep_cluster) as shop:
        async with shop.transaction() as tx:
            for key in map(str, range(8)):
                await tx.send(Message(TOPIC, b"m", sharding_key=key))
            closing = asyncio.create_task(close_queues(admin, TOPIC, "broker-a"))
            await asyncio.sleep(2 * queue_move.DECIDED_MS / 1000)
            assert not closing.done()
            assert "wait for the decision of their transactions" in capsys.readouterr().err
        await closing
    assert (await layout_of(admin, TOPIC)).write_count("broker-a") == 0
