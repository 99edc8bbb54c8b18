"""A broker with a replica, as real processes: masters are killed and replaced under load, and nothing acknowledged is lost or reordered."""

import asyncio
from collections.abc import Sequence

import pytest

from lockstep.client import ConsumeOrderlyStatus, Message, MessageExt, OrderlyContext, Producer, PushConsumer
from lockstep.operations.admin_client import AdminClient
from lockstep.runtime.host import Host
from support.cluster import LOOK_S, WAIT_S, Cluster, Report, now_us
from support.effort import usually
from support.group_loads import LOADS
from support.replica_pair import ReplicaPair, started_pair

pytestmark = pytest.mark.e2e


@pytest.fixture
async def pair(cluster: Cluster) -> ReplicaPair:
    return await started_pair(cluster)


@pytest.mark.parametrize(("kind", "rounds"), usually([(kind, 2) for kind in LOADS], [(kind, n) for kind in LOADS for n in (2, 25)]))
async def test_nothing_acknowledged_is_lost_over_killed_masters(
    pair: ReplicaPair, cluster: Cluster, report: Report, kind: str, rounds: int
) -> None:
    load = LOADS[kind](cluster)
    await load.begin()
    await load.produce()
    await pair.replace_masters(rounds, load.went_on)
    report(f"{rounds} masters killed: {await load.end()}; {pair.promotion_times()}")


async def test_clients_find_the_new_master_when_no_nameserver_tells_them(cluster: Cluster, report: Report) -> None:
    known = await cluster.nameserver()
    await cluster.nameserver("nameserver-of-others")  # a new master serves when one has accepted it
    pair = await started_pair(cluster)
    admin = AdminClient(Host.real(), known)
    async with asyncio.timeout(WAIT_S):
        while True:
            if [each.replicas for each in await admin.brokers()] == [(pair.addresses["second"],)]:
                break
            await asyncio.sleep(LOOK_S)
    consumer = PushConsumer("billing", nameserver=known).subscribe("orders", "*")
    done: list[str] = []

    @consumer.orderly
    async def handle(messages: Sequence[MessageExt], _context: OrderlyContext) -> ConsumeOrderlyStatus:
        done.extend(message.body.decode() for message in messages)
        return ConsumeOrderlyStatus.SUCCESS

    async with Producer("test", nameserver=known, send_timeout_ms=30_000) as producer, consumer:
        await producer.send(Message("orders", b"0", sharding_key="k"))
        await cluster.until("it is handled", lambda: done == ["0"])
        await cluster.kill("nameserver", "first")
        await pair.promote_replica()
        promoted_us = now_us()
        await producer.send(Message("orders", b"1", sharding_key="k"))
        sent_us = now_us()
        await cluster.until("it is handled", lambda: done[-1:] == ["1"])
        assert list(dict.fromkeys(done)) == ["0", "1"], "in order; what was handled and not committed is handled again"
    waits = f"a send {(sent_us - promoted_us) / 1e6:.2f} s, its handling {(now_us() - promoted_us) / 1e6:.2f} s"
    report(f"after a promotion that no nameserver tells of: {waits}")


async def test_promotion_is_refused_while_the_master_answers_and_the_old_one_starts_as_a_replica_only(
    pair: ReplicaPair, cluster: Cluster
) -> None:
    assert "answers: stop it first" in await pair.promote("second")
    assert "answers: stop it first" in await pair.promote("second", force=True)
    await cluster.kill("first")
    await pair.promote_replica()
    old = await cluster.start("first", pair.command("first"))
    assert await old.wait() == 4
    assert f"was promoted at {pair.addresses['second']}" in cluster.output_tails()
    alone = await cluster.start("first", pair.command("first", "--alone"))
    assert await alone.wait() == 4, "the nameserver knows of the later start"
    await pair.follow()


async def test_master_waits_for_a_member_of_its_set_and_starts_alone_if_it_is_told_to(pair: ReplicaPair, cluster: Cluster) -> None:
    await cluster.kill("first", "second")
    waiting = await cluster.start("first", pair.command("first"), "broker.waits_for_replicas")
    await pair.copy("second")
    await waiting.wait_for_event("broker.started")
    await cluster.kill("first", "second")
    await pair.start("first", "--alone")
    sent = await cluster.command("send", "orders", "hello")
    assert "SEND_OK" in sent


async def test_messages_of_a_master_that_stopped_in_order_are_promoted_without_an_assumed_loss(pair: ReplicaPair, cluster: Cluster) -> None:
    await cluster.command("send", "orders", "hello")
    await cluster.stop("first")
    async with asyncio.timeout(WAIT_S):
        while (status := await pair.status("second")) is None or not status.complete:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
    await pair.promote_replica()
    assert not (pair.store("second") / "lockstep" / "restored").exists()
    recovered = [event for event in cluster.processes["second"].events if event["event"] == "log.recovered"]
    assert [event["assumed_loss"] for event in recovered] == [False]
