"""lockstep why: situations that only faults produce, or a moment between two others."""

import asyncio
from collections.abc import Sequence

import pytest

from lockstep.client import MessageExt, OrderlyContext
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes.topic_alter import plan_alteration
from lockstep.operations.explain.why import Cause, Explanation, QueueState
from lockstep.protocol.bodies import ConsumerGroup, HeartbeatBody, LockBatchBody, QueueRef, Subscription
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.runtime.connections.dial import connect
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support.why_kit import GROUP, TOPIC, Member, cause, explanations, hang, send

one_broker = pytest.mark.lockstep(brokers=1)
PATIENT = {"drain_timeout_ms": 600_000}


async def holding(cluster: TestCluster, member: Member, *, queues: int = 1) -> Member:
    """Return a member that holds all queues, and has a message of each key."""
    await cluster.create_topic(TOPIC, queues=queues)
    await cluster.start("a", member.run)
    await cluster.settled(GROUP)
    await send(cluster, 40, keys=20)
    await cluster.advance(seconds=1)
    return member


def client_id(member: Member) -> str:
    found = member.started.health().client_id
    assert found is not None
    return found


def causes(found: Sequence[Explanation]) -> list[Cause]:
    return [each.because for each in found if each.because is not None]


async def test_member_that_one_broker_has_lost_is_missing_there(lockstep_cluster: TestCluster) -> None:
    member = await holding(lockstep_cluster, Member(lockstep_cluster))
    lockstep_cluster.partition("a", "broker-b")
    await lockstep_cluster.advance(seconds=40)
    await send(lockstep_cluster, 40, keys=20)
    await lockstep_cluster.advance(seconds=2)
    found = {each.broker: each for each in await explanations(lockstep_cluster)}
    because, also = found["broker-b"].because, found["broker-a"].also
    assert because is not None
    assert because.name == "member_missing"
    assert because.text == f"{client_id(member)} is connected to other brokers, but not to broker broker-b"
    assert found["broker-a"].state is QueueState.IDLE
    assert also == (because,), "it is told of the other queues too"


async def test_broker_that_has_never_had_a_member_is_named(lockstep_cluster: TestCluster) -> None:
    """It does not know the group, so that its queues are not even listed."""
    await lockstep_cluster.create_topic(TOPIC, queues=1)
    member = Member(lockstep_cluster)
    await lockstep_cluster.start("a", member.run)
    lockstep_cluster.partition("a", "broker-b")
    await lockstep_cluster.advance(seconds=40)
    (found,) = await explanations(lockstep_cluster)
    assert found.broker == "broker-a"
    assert [each.text for each in found.also] == [f"{client_id(member)} is connected to other brokers, but not to broker broker-b"]


@one_broker
async def test_owner_that_has_left_finishes_its_call(lockstep_cluster: TestCluster) -> None:
    """The member that is to hold the queue is asked. The pull that is held at the end is not its own."""
    member = await holding(lockstep_cluster, Member(lockstep_cluster, hang))
    owner = client_id(member)
    await lockstep_cluster.start("b", Member(lockstep_cluster).run)
    await lockstep_cluster.advance(seconds=1)
    stopping = asyncio.create_task(lockstep_cluster.stop("a"))
    await lockstep_cluster.advance(seconds=1)
    because = await cause(lockstep_cluster)
    await stopping
    assert because.name == "owner_left"
    assert because.text == f"its owner {owner} has left the group, and finishes a running call before it releases the queue"


@one_broker
async def test_member_that_was_killed_before_it_took_the_queue_that_it_is_given(lockstep_cluster: TestCluster) -> None:
    go = asyncio.Event()

    async def until_told(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        await go.wait()

    await holding(lockstep_cluster, Member(lockstep_cluster, until_told, PATIENT), queues=2)
    other = Member(lockstep_cluster, settings=PATIENT)
    await lockstep_cluster.start("b", other.run)
    await lockstep_cluster.advance(seconds=2)
    await lockstep_cluster.kill("b")
    go.set()
    (because,) = causes(await explanations(lockstep_cluster))
    assert because.name == "listed_in_grace"
    assert f"assigns it to {client_id(other)}, which has lost its connection and may reconnect within" in because.text


@one_broker
async def test_member_that_does_not_know_the_new_layout(lockstep_cluster: TestCluster) -> None:
    member = await holding(lockstep_cluster, Member(lockstep_cluster))
    lockstep_cluster.partition("a", lockstep_cluster.nameservers)
    admin = AdminClient(Host.current(), lockstep_cluster.nameserver)
    await (await plan_alteration(admin, TOPIC, 2, 2)).carry_out(admin, force=True)
    await send(lockstep_cluster, 40, keys=20)
    await lockstep_cluster.advance(seconds=3)
    found = next(each for each in await explanations(lockstep_cluster) if each.queue_id == 1)
    assert found.because is not None
    assert found.because.name == "not_wanted"
    assert "has not requested the queue: its member list or layout differs from the broker's" in found.because.text
    assert found.because.text.startswith(client_id(member))
    assert " has no offset yet: " in found.summary


@one_broker
async def test_consumer_that_waits_for_a_call_of_an_earlier_one_of_its_process(lockstep_cluster: TestCluster) -> None:
    end = asyncio.Event()

    async def stubborn(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                continue

    earlier = Member(lockstep_cluster, stubborn, {"stop_timeout_ms": 500, "drain_timeout_ms": 500})
    later = Member(lockstep_cluster)

    async def both() -> None:
        running = asyncio.create_task(earlier.run())
        await asyncio.sleep(5)
        running.cancel()
        await asyncio.wait([running])
        await later.run()

    await lockstep_cluster.create_topic(TOPIC, queues=1)
    await lockstep_cluster.start("a", both)
    await send(lockstep_cluster, 10)
    await lockstep_cluster.until(lambda: later.consumer is not None, "the later consumer")
    await lockstep_cluster.advance(seconds=10)
    because = await cause(lockstep_cluster)
    assert because.name == "not_acquired"
    assert because.text == f"the member list assigns it to {client_id(later)}, where its state is: wanted"
    end.set()
    await lockstep_cluster.advance(seconds=2)


@one_broker
async def test_owner_without_a_session_is_one_of_rocketmqs_clients(lockstep_cluster: TestCluster) -> None:
    async def classic() -> None:
        (broker,) = await AdminClient(Host.current(), lockstep_cluster.nameserver).brokers()
        endpoint = await connect(Host.current(), broker.address, handler=lambda command, _: None)
        group = ConsumerGroup(GROUP, (Subscription(TOPIC),), ordered=True)
        beat, lock = HeartbeatBody("java@1", (group,)), LockBatchBody("java@1", GROUP, (QueueRef(TOPIC, broker.name, 0),))
        try:
            for code, body in ((RequestCode.HEART_BEAT, encode_body(beat)), (RequestCode.LOCK_BATCH_MQ, encode_body(lock))):
                response = await endpoint.request(code, None, body, timeout_ms=5_000)
                assert response.code == ResponseCode.SUCCESS
            await asyncio.Event().wait()
        finally:
            endpoint.abort("done")
            await endpoint.wait_closed()

    await lockstep_cluster.create_topic(TOPIC, queues=1)
    await lockstep_cluster.start("a", classic)
    await send(lockstep_cluster, 10)
    await lockstep_cluster.advance(seconds=2)
    because = await cause(lockstep_cluster)
    assert because.name == "classic_owner"
    assert because.text.startswith("it is held by java@1, a client of RocketMQ, whose lease ends in ")


@one_broker
async def test_member_whose_proofs_of_life_come_too_late(lockstep_cluster: TestCluster) -> None:
    """Between two proofs their time runs out, and no call starts then."""
    await holding(lockstep_cluster, Member(lockstep_cluster, hang))
    lockstep_cluster.slow_link("a", "broker-a", seconds=1.45)
    await lockstep_cluster.advance(seconds=5)
    told: set[str] = set()
    for _ in range(10):
        (found,) = await explanations(lockstep_cluster)
        told |= {each.name for each in found.also}
        await lockstep_cluster.advance(seconds=0.1)  # the next question comes at another moment between two proofs
    assert "not_proven" in told


@one_broker
async def test_queues_that_are_granted_again_and_again(lockstep_cluster: TestCluster) -> None:
    """Here because of a second member; once more, they have settled."""
    await holding(lockstep_cluster, Member(lockstep_cluster), queues=16)
    await lockstep_cluster.start("b", Member(lockstep_cluster).run)
    (text,) = {each.text for found in await explanations(lockstep_cluster) for each in found.also if each.name == "not_settled"}
    assert text.startswith("broker broker-a has granted queues of the group 8 times in 1.0 s: ")
    assert not [each for found in await explanations(lockstep_cluster) for each in found.also]


@one_broker
async def test_full_disk_explains_why_nothing_arrives(lockstep_cluster: TestCluster) -> None:
    await holding(lockstep_cluster, Member(lockstep_cluster))
    machine = lockstep_cluster._simulated("full disk").loop.machine(lockstep_cluster._address("broker-a"))
    machine.disk.capacity_bytes = machine.disk.used_bytes() + 1
    await lockstep_cluster.advance(seconds=12)
    (found,) = await explanations(lockstep_cluster)
    assert found.state is QueueState.IDLE
    (also,) = found.also
    assert (also.name, also.step) == ("sends_refused", "run `lockstep doctor`")
    assert also.text.startswith("nothing new arrives: broker-a refuses sends: the disk has 1 bytes free")
