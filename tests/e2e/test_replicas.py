"""A broker with a replica, as real processes: masters are killed and replaced under load, and nothing acknowledged is lost or reordered."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from lockstep.cli.demo.proof import HandledEvent, SentSteps
from lockstep.client import ConsumeOrderlyStatus, Message, MessageExt, OrderlyContext, Producer, PushConsumer
from lockstep.operations.admin_client import AdminClient
from lockstep.protocol.order import skips
from lockstep.runtime.host import Host
from support.cluster import LOOK_S, WAIT_S, Cluster, Report, now_us
from support.effort import usually
from support.replica_pair import QUEUE_NAMES, QUEUES, ReplicaPair, started_pair, stored_twice

pytestmark = pytest.mark.e2e

MEMBERS = ("consumer-1", "consumer-2")
PARKED = 7


@pytest.fixture
async def pair(cluster: Cluster) -> ReplicaPair:
    return await started_pair(cluster)


class Ordered:
    """An ordered group: each queue, or key, goes on in order at the grants that the new master gives."""

    producing: tuple[str, ...] = ()

    def __init__(self, cluster: Cluster, order: str) -> None:
        self.cluster = cluster
        self.options: tuple[str, ...] = ("--order-by", order)

    async def begin(self) -> None:
        for name in MEMBERS:
            await self.cluster.consumer(name, *self.options)
        await self.cluster.until_held(QUEUES, *MEMBERS)

    async def went_on(self, promoted_us: int) -> None:
        await self.cluster.until_accepted(QUEUE_NAMES, after_us=promoted_us)

    async def prove(self) -> int:
        """Check what was handled. Return how many events were handled again."""
        return (await self.cluster.prove(*MEMBERS)).repeats


class Parked(Ordered):
    """A key is parked over all promotions. Its messages wait, and are handled in order when it is replayed at the end."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, "sharding_key")
        self.broken = cluster.folder / "broken"
        parking = ("--give-up-after", "2", "--on-exhausted", "park", "--backoff-ms", "10")
        self.options += (*parking, "--broken", str(self.broken), "--broken-orders", str(PARKED))
        self.waiting = 0

    async def begin(self) -> None:
        self.broken.touch()
        await super().begin()

    async def parked(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(await self.cluster.command("park", "ls", "billing", "--json"))["keys"]
        return found

    async def until_parked(self, *keys: int) -> None:
        while sorted(int(row["key"]) for row in await self.parked()) != list(keys):
            pass

    async def went_on(self, promoted_us: int) -> None:
        await super().went_on(promoted_us)
        (row,) = await self.parked()
        assert (row["key"], row["state"], row["attempts"], row["error"]) == (str(PARKED), "parked", 2, "RuntimeError: broken")
        assert row["waiting"] > self.waiting, "more of its messages wait"
        self.waiting = row["waiting"]

    async def prove(self) -> int:
        assert all(each.order != PARKED for each in self.cluster.handled_events())
        self.broken.unlink()
        await self.cluster.command("park", "replay", "billing", "--all")
        await self.until_parked()
        await self.cluster.until_done()
        await self.cluster.stop(*MEMBERS)
        events = self.cluster.handled_events()
        assert out_of_order(events, self.cluster.reported) == []
        return len(events) - len({(each.order, each.step) for each in events})


class Concurrent:
    """A concurrent group, and sends without keys, which may be stored twice where they are counted."""

    producing: tuple[str, ...] = ("--unkeyed", "--again")

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def begin(self) -> None:
        for name in MEMBERS:
            options = ("--file", str(self.cluster.folder / f"{name}.handled"), "--name", name)
            command = ["-m", "support.worker_concurrent", "--nameserver", self.cluster.nameservers, *options]
            await self.cluster.start(name, command, "worker.ready")

    async def went_on(self, promoted_us: int) -> None:
        def queues() -> set[str]:
            return {each.queue for each in self.cluster.handled_events() if each.begun_us > promoted_us}

        await self.cluster.until("each queue is handled", lambda: queues() == QUEUE_NAMES)

    async def prove(self) -> int:
        await self.cluster.until_done()
        await self.cluster.stop(*MEMBERS)
        events = self.cluster.handled_events()
        return len(events) - len({(each.queue, each.offset) for each in events})


LOADS: dict[str, Callable[[Cluster], Ordered | Concurrent]] = {
    "queue": lambda cluster: Ordered(cluster, "queue"),
    "sharding_key": lambda cluster: Ordered(cluster, "sharding_key"),
    "parked": Parked,
    "concurrent": Concurrent,
}


@pytest.mark.parametrize(("kind", "rounds"), usually([(kind, 2) for kind in LOADS], [(kind, n) for kind in LOADS for n in (2, 25)]))
async def test_nothing_acknowledged_is_lost_over_killed_masters(
    pair: ReplicaPair, cluster: Cluster, report: Report, kind: str, rounds: int
) -> None:
    load = LOADS[kind](cluster)
    await load.begin()
    await cluster.producer("producer", "--keys", "40", "--pause-ms", "20", "--timeout-ms", "120000", *load.producing)
    await cluster.until_handled(100)
    await pair.replace_masters(rounds, load.went_on)
    finished = await cluster.finish_producer()
    repeats, events = await load.prove(), cluster.handled_events()
    twice = stored_twice(events)
    assert twice <= finished["possible_duplicates"]
    report(
        f"{rounds} masters killed: {len(events)} events, 0 lost, {repeats} handled again, {twice} stored twice of "
        f"{finished['possible_duplicates']} counted; {pair.promotion_times()}"
    )


def out_of_order(events: Iterable[HandledEvent], sent: dict[int, SentSteps]) -> list[str]:
    """Return what is wrong with keys that are handled by themselves: of each, no step may be left out, and no acknowledged one missing."""
    of_key: dict[int, list[HandledEvent]] = defaultdict(list)
    for each in sorted(events, key=lambda each: each.begun_us):
        of_key[each.order].append(each)
    found = [f"{key}: {skip}" for key, work in of_key.items() for skip in skips(work, lambda each: each.step, first=0)]
    missing = [key for key, reported in sent.items() if len({each.step for each in of_key[key]}) < reported.acknowledged]
    return found + [f"{key}: not all of its acknowledged events were handled" for key in missing]


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
