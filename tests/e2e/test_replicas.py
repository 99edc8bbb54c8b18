"""A broker with a replica, as real processes: masters are killed and replaced under load, and nothing acknowledged is lost or reordered."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from lockstep.client import (
    ConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    Message,
    MessageExt,
    OrderlyContext,
    Producer,
    PushConsumer,
)
from lockstep.operations.admin_client import AdminClient
from lockstep.protocol.bodies import ReplicaStanding, ReplicaStatus
from lockstep.protocol.codec.msgpack_body import decode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.responses import checked
from lockstep.runtime.connections.dial import connect
from lockstep.runtime.host import Host
from support.cluster import LOOK_S, QUICK, WAIT_S, Cluster, Report, now_us
from support.ports import free_ports

pytestmark = pytest.mark.e2e


@dataclass
class Pair:
    """Two places for copies of one broker's log, and the commands by which an operator changes them."""

    cluster: Cluster
    addresses: dict[str, str]
    options: tuple[str, ...] = QUICK

    def command(self, place: str, *more: str) -> list[str]:
        store = str(self.cluster.folder / f"store-{place}")
        address = self.addresses[place]
        given = ["--name", "broker-a", "--listen", address, "--store", store, "--nameserver", self.cluster.nameservers]
        return ["-m", "lockstep.broker", *given, *self.options, *more]

    async def start(self, place: str, *more: str) -> None:
        await self.cluster.start(place, self.command(place, *more), "broker.started")

    async def follow(self, place: str, master: str) -> None:
        """Start a copy that follows, and wait until it is in the set of its master."""
        await self.start(place, "--replica-of", self.addresses[master])
        async with asyncio.timeout(WAIT_S):
            while True:
                if any(each.in_set and each.connected for each in await self.replicas(master)):
                    break
                await asyncio.sleep(LOOK_S)

    async def replicas(self, place: str) -> tuple[ReplicaStanding, ...]:
        status = await self.status(place)
        return () if status is None else status.replicas

    async def ask(self, place: str, code: RequestCode, fields: dict[str, object] | None = None) -> Command:
        endpoint = await connect(Host.real(), self.addresses[place])
        try:
            return await endpoint.request(code, fields, timeout_ms=10_000)
        finally:
            endpoint.close("asked")

    async def status(self, place: str) -> ReplicaStatus | None:
        try:
            return decode_body(ReplicaStatus, checked(await self.ask(place, RequestCode.REPLICA_STATUS)).body)
        except LockstepError:
            return None

    async def promote(self, place: str, *, force: bool = False) -> str:
        """Promote, and wait until the copy answers as a master. Return the remark of a refusal."""
        answer = await self.ask(place, RequestCode.REPLICA_PROMOTE, {"force": force})
        if answer.code:
            return answer.remark or ""
        async with asyncio.timeout(WAIT_S):
            while True:
                if (status := await self.status(place)) is not None and status.role == "master":
                    return ""
                await asyncio.sleep(LOOK_S)


@pytest.fixture
async def pair(cluster: Cluster) -> Pair:
    """A nameserver and a pair."""
    await cluster.nameserver()
    return await start_pair(cluster)


async def start_pair(cluster: Cluster) -> Pair:
    """Start a master at `first` with a replica at `second` in its set, and create the topic `orders` with 4 queues."""
    first, second = free_ports(2)
    pair = Pair(cluster, {"first": f"127.0.0.1:{first}", "second": f"127.0.0.1:{second}"})
    await pair.start("first")
    await cluster.command("topic", "create", "orders", "--queues", "4")
    await pair.follow("second", "first")
    return pair


@pytest.mark.parametrize(
    ("order", "rounds"),
    [("queue", 2), ("sharding_key", 2), *(pytest.param(order, 25, marks=pytest.mark.slow) for order in ("queue", "sharding_key"))],
)
async def test_ordered_group_goes_on_in_order_over_killed_masters(
    pair: Pair, cluster: Cluster, report: Report, order: str, rounds: int
) -> None:
    for name in ("consumer-1", "consumer-2"):
        await cluster.consumer(name, "--order-by", order)
    await cluster.until_held(4, "consumer-1", "consumer-2")
    await cluster.producer("producer", "--keys", "40", "--pause-ms", "20")
    await cluster.until_handled(100)
    master, replica, seconds = "first", "second", []
    queues = {f"orders@broker-a:{number}" for number in range(4)}
    for _ in range(rounds):
        await cluster.kill(master)
        assert await pair.promote(replica) == ""
        promoted_us = now_us()
        waits = await cluster.until_accepted(queues, after_us=promoted_us)
        seconds.append(max(waits.values()))
        await pair.follow(master, replica)
        master, replica = replica, master
    await cluster.finish_producer()
    verdict = await cluster.prove("consumer-1", "consumer-2")
    slowest = f"the slowest queue's first accepted result {max(seconds):.2f} s after the promotion"
    report(f"{rounds} masters killed: {verdict.events} events, {verdict.repeats} repeated, {slowest}")


async def test_concurrent_group_gets_every_acknowledged_message_over_killed_masters(pair: Pair, cluster: Cluster) -> None:
    consumer = PushConsumer("mailing", nameserver=cluster.nameservers)
    consumer.subscribe("orders", "*")
    done: Counter[str] = Counter()

    @consumer.concurrently
    async def handle(messages: Sequence[MessageExt], _context: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        done.update(message.body.decode() for message in messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    acknowledged: list[str] = []
    async with Producer("test", nameserver=cluster.nameservers, send_timeout_ms=30_000) as producer, consumer:
        for master, replica in (("first", "second"), ("second", "first")):
            sending = asyncio.ensure_future(_send(producer, acknowledged, len(acknowledged)))
            await cluster.until("some are handled", lambda: len(done) > 50)
            await cluster.kill(master)
            assert await pair.promote(replica) == ""
            await sending
            await pair.follow(master, replica)
        await cluster.until("all are handled", lambda: set(done) >= set(acknowledged))


async def _send(producer: Producer, acknowledged: list[str], first: int) -> None:
    for number in range(first, first + 500):
        await producer.send(Message("orders", b"%d" % number))
        acknowledged.append(str(number))


async def test_clients_find_the_new_master_when_no_nameserver_tells_them(cluster: Cluster, report: Report) -> None:
    known = await cluster.nameserver()
    await cluster.nameserver("nameserver-of-others")  # a new master serves when one has accepted it
    pair = await start_pair(cluster)
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
        assert await pair.promote("second") == ""
        promoted_us = now_us()
        await producer.send(Message("orders", b"1", sharding_key="k"))
        sent_us = now_us()
        await cluster.until("it is handled", lambda: done[-1:] == ["1"])
        assert list(dict.fromkeys(done)) == ["0", "1"], "in order; what was handled and not committed is handled again"
    waits = f"a send {(sent_us - promoted_us) / 1e6:.2f} s, its handling {(now_us() - promoted_us) / 1e6:.2f} s"
    report(f"after a promotion that no nameserver tells of: {waits}")


async def test_promotion_is_refused_while_the_master_answers_and_the_old_one_starts_as_a_replica_only(pair: Pair, cluster: Cluster) -> None:
    assert "answers: stop it first" in await pair.promote("second")
    assert "answers: stop it first" in await pair.promote("second", force=True)
    await cluster.kill("first")
    assert await pair.promote("second") == ""
    old = await cluster.start("first", pair.command("first"))
    assert await old.wait() == 4
    assert f"was promoted at {pair.addresses['second']}" in cluster.output_tails()
    alone = await cluster.start("first", pair.command("first", "--alone"))
    assert await alone.wait() == 4, "the nameserver knows of the later start"
    await pair.follow("first", "second")


async def test_master_waits_for_a_member_of_its_set_and_starts_alone_if_it_is_told_to(pair: Pair, cluster: Cluster) -> None:
    await cluster.kill("first", "second")
    waiting = await cluster.start("first", pair.command("first"), "broker.waits_for_replicas")
    await pair.start("second", "--replica-of", pair.addresses["first"])
    await waiting.wait_for_event("broker.started")
    await cluster.kill("first", "second")
    await pair.start("first", "--alone")
    sent = await cluster.command("send", "orders", "hello")
    assert "SEND_OK" in sent


async def test_messages_of_a_master_that_stopped_in_order_are_promoted_without_an_assumed_loss(pair: Pair, cluster: Cluster) -> None:
    await cluster.command("send", "orders", "hello")
    await cluster.stop("first")
    status = await pair.status("second")
    assert status is not None
    assert status.complete
    assert await pair.promote("second") == ""
    assert not (Path(cluster.folder) / "store-second" / "lockstep" / "restored").exists()
    recovered = [event for event in cluster.processes["second"].events if event["event"] == "log.recovered"]
    assert [event["assumed_loss"] for event in recovered] == [False]
