"""Both machines of a pair lose power, and its copies are started as masters or replicas in all orders, with and without nameservers."""

import asyncio
import signal
import time
from random import Random

import pytest

from lockstep.broker.groups.coordination import next_term
from lockstep.client import ConsumeFromWhere, Message, MessageQueue, Producer, PullConsumer
from support.cluster import QUICK, Cluster, Report
from support.copies_of_logs import until_equal
from support.damage import Damage
from support.effort import seeds
from support.ports import free_ports
from support.replica_pair import ReplicaPair, started_pair

pytestmark = pytest.mark.e2e


def lose_power(pair: ReplicaPair, place: str, keep: int) -> None:
    """Do to the files of a killed process what a power cut of its machine may do: nothing of the log is left from `keep` on."""
    Damage(pair.store(place)).zero(keep)
    boot = pair.store(place) / "lockstep" / "boot"
    boot.write_text(f"another-boot {boot.read_text().split()[1]}")


@pytest.mark.parametrize("seed", seeds(1, 10))
async def test_power_cut_at_both_copies_under_sync_flush_loses_nothing(cluster: Cluster, report: Report, seed: int) -> None:
    """What is above the end of either log was never acknowledged. Below, everything was synced before."""
    random, pair = Random(seed), await started_pair(cluster, *QUICK, "--flush", "sync")
    for name in ("consumer-1", "consumer-2"):
        await cluster.consumer(name)
    await cluster.producer("producer", "--keys", "40", "--pause-ms", "5", "--again")
    await cluster.until_handled(200)
    for _ in range(2):
        await cluster.until_handled_more(random.randrange(1, 200))
        master, replica = pair.master, pair.replica
        await cluster.kill(*random.choice([(master, replica), (replica, master)]))
        end = min(log_end(pair, master), log_end(pair, replica))
        for place in (master, replica):
            lose_power(pair, place, random.randint(end, max(end, log_end(pair, place))))
        if promoted := random.random() < 0.5:
            await pair.copy(replica)
            assert await pair.promote(replica) == "", "a replica with --flush sync has what it has acknowledged"
            pair.master, pair.replica = replica, master
            await pair.copy(master)
        else:
            await asyncio.gather(pair.start(master), pair.copy(replica))
        await until_equal(pair, pair.replica, pair.master)
        (recovered,) = cluster.reported_events(pair.master, "log.recovered")
        assert recovered["assumed_loss"] is promoted
    await cluster.finish_producer()
    verdict = await cluster.prove("consumer-1", "consumer-2")
    report(f"power cut twice at both copies (sync flush, seed {seed}): {verdict.events} events")


def log_end(pair: ReplicaPair, place: str, limit: int = 1 << 62) -> int:
    """Return where the records of a stopped store end that are whole below `limit`."""
    files, end = Damage(pair.store(place)), 0
    while (size := int.from_bytes(files.read(end, 4), "big")) and end + size <= limit:
        end += size
    return end


async def send(producer: Producer, first: int, end: int) -> None:
    for number in range(first, end):
        await producer.send(Message("orders", b"%d" % number), queue=MessageQueue("orders", "broker-a", 0))


async def sent(cluster: Cluster, first: int, end: int) -> None:
    async with Producer("shop", nameserver=cluster.nameservers) as producer:
        await send(producer, first, end)


async def stored(cluster: Cluster, last: int) -> list[int]:
    """Return the messages of the queue, when the last of them is `last`."""
    found: list[int] = []
    consumer = PullConsumer("audit", nameserver=cluster.nameservers, consume_from_where=ConsumeFromWhere.FIRST_OFFSET).subscribe("orders")
    async with consumer:
        while not found or found[-1] != last:
            found += [int(message.body) for message in await consumer.poll()]
    return found


@pytest.mark.parametrize("seed", seeds(1, 10))
async def test_power_cut_at_both_copies_under_async_flush_is_said_to_lose_something_and_keeps_the_order(
    cluster: Cluster, report: Report, seed: int
) -> None:
    random, pair = Random(seed), await started_pair(cluster)
    await sent(cluster, 0, 100)
    await cluster.kill("first", "second")
    ends = {}
    for place in ("first", "second"):
        keep = random.randint(Damage(pair.store(place)).synced, log_end(pair, place))
        ends[place] = log_end(pair, place, keep)
        lose_power(pair, place, keep)
    await pair.copy("second")
    if ends["second"] > ends["first"]:
        refused = await cluster.start("first", pair.command("first"))
        assert await refused.wait() == 4
        assert f"has more (its log ends at {ends['second']}, this one at {ends['first']}" in cluster.output_tails()
        assert "may have lost messages that it had acknowledged" in await pair.promote("second")
        assert await pair.promote("second", force=True) == ""
        pair.master, pair.replica = "second", "first"
        await pair.copy("first")
    else:
        await pair.start("first")
    await until_equal(pair, pair.replica, pair.master)
    (recovered,) = cluster.reported_events(pair.master, "log.recovered")
    assert recovered["assumed_loss"]
    await sent(cluster, 1000, 1010)
    found = await stored(cluster, 1009)
    left = len(found) - 10
    assert found == [*range(left), *range(1000, 1010)]
    report(f"power cut at both copies (async flush, seed {seed}): {left} of 100 messages are left")


async def test_roles_change_with_settings_that_stay_the_same(cluster: Cluster) -> None:
    """A → B → A, without a nameserver. From the second change on, each copy names the other as its master, whichever rules."""
    pair = ReplicaPair(cluster, {place: f"127.0.0.1:{port}" for place, port in zip(("first", "second"), free_ports(2), strict=True)})
    await pair.start("first")
    await pair.follow()
    for _ in range(3):
        await cluster.kill(pair.master)
        await pair.promote_replica()
        assert not (pair.store(pair.master) / "lockstep" / "restored").exists()
        assert {each.address for each in await pair.replicas()} == {pair.addresses[pair.replica]}, "it does not miss itself"
        old = await cluster.start(pair.replica, pair.command(pair.replica))
        assert await old.wait() == 4
        assert f"was promoted at {pair.addresses[pair.master]}" in cluster.output_tails()
        await pair.copy(pair.replica)
        await until_equal(pair, pair.replica, pair.master)
        settings = {place: ("--replica-of", pair.addresses[other]) for place, other in (("first", "second"), ("second", "first"))}
        await cluster.kill("first", "second")
        await asyncio.gather(*(pair.start(place, *settings[place]) for place in ("first", "second")))
        await until_equal(pair, pair.replica, pair.master)
        assert [event["assumed_loss"] for event in cluster.reported_events(pair.master, "log.recovered")] == [False]


async def test_copy_that_is_started_alone_loses_what_only_the_other_one_has(cluster: Cluster) -> None:
    """Two masters that never knew of each other, without a nameserver that would refuse one: the one with the later term rules."""
    pair = await started_pair(cluster)
    await sent(cluster, 0, 10)
    await cluster.kill("first")
    await pair.promote_replica()
    await sent(cluster, 10, 20)
    ruled = await pair.status("second")
    assert ruled is not None
    await cluster.kill("second", "nameserver")
    await cluster.until("a later second of the clocks", lambda: next_term(0, time.time_ns() // 1_000_000) > ruled.term)
    alone = [option for option in pair.command("first") if option not in ("--nameserver", cluster.nameservers)]
    waiting = await cluster.start("first", alone, "broker.waits_for_replicas")
    waiting.signal(signal.SIGKILL)
    await waiting.wait()
    await cluster.start("first", [*alone, "--alone"], "broker.started")
    await pair.start("second", "--replica-of", pair.addresses["first"])  # as before its promotion: a later master answers there
    pair.master, pair.replica = "first", "second"
    await until_equal(pair, "second", "first")
