"""Replicas and masters that are suspended, cut off, slow, copied, or lose power: nothing acknowledged is lost, and all go on by rule."""

import asyncio
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from lockstep.broker.store.start.directory import StoreDirectory
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import LockstepError
from lockstep.runtime.files import RealFiles
from support.cluster import LOOK_S, WAIT_S, Cluster, Report, now_us
from support.effort import SLOW, usually
from support.group_loads import QUEUE_NAMES, QUEUES
from support.links import Direction, Link, link_to
from support.native import native
from support.replica_pair import ReplicaPair, started_pair

pytestmark = pytest.mark.e2e

MEMBERS = ("consumer-1", "consumer-2")
TROUBLE_S = 60 if SLOW else 5
"""How long a replica is in trouble."""


@pytest.fixture
async def pair(cluster: Cluster) -> ReplicaPair:
    return await started_pair(cluster)


async def begin_load(cluster: Cluster) -> None:
    for name in MEMBERS:
        await cluster.consumer(name)
    await cluster.until_held(QUEUES, *MEMBERS)
    await cluster.producer("producer", "--keys", "40", "--pause-ms", "20", "--timeout-ms", "120000")
    await cluster.until_handled(100)


async def end_load(cluster: Cluster) -> str:
    """Check that nothing is lost, and that the order was kept. Return what was seen."""
    finished = await cluster.finish_producer()
    verdict = await cluster.prove(*MEMBERS)
    assert finished["possible_duplicates"] == 0
    return f"{verdict.events} events, 0 lost, {verdict.repeats} handled again"


def longest_wait(cluster: Cluster, begin_us: int) -> float:
    """Return the longest time (s) since then in which no send was acknowledged."""
    times = sorted(at for of_queue in cluster.acknowledged_times().values() for at in of_queue if at > begin_us)
    return max(after - before for before, after in zip([begin_us, *times], times, strict=False)) / 1e6


@dataclass(frozen=True)
class Trouble:
    """What keeps a replica from following."""

    begin: Callable[[Cluster, Link], object]
    end: Callable[[Cluster, Link], object]
    leaves: bool = True
    """Whether the replica leaves the set."""


LOST_BYTES_MAX = 64 << 20
"""More than a test can have written since the last sync."""


def set_delay(link: Link, delay_s: float) -> None:
    link.delay_s = delay_s


TROUBLES = {
    "suspended": Trouble(
        lambda cluster, _: cluster.signal(signal.SIGSTOP, "second"), lambda cluster, _: cluster.signal(signal.SIGCONT, "second")
    ),
    "sends nothing": Trouble(lambda _, link: link.cut(Direction.THERE), lambda _, link: link.mend()),
    "gets nothing": Trouble(lambda _, link: link.cut(Direction.BACK), lambda _, link: link.mend()),
    "slow": Trouble(lambda _, link: set_delay(link, 0.1), lambda _, link: set_delay(link, 0), leaves=False),
}


@pytest.mark.parametrize("trouble", usually(["suspended", "slow"], TROUBLES))
async def test_master_goes_on_beside_a_replica_in_trouble_which_can_be_promoted_when_it_is_back(
    pair: ReplicaPair, cluster: Cluster, report: Report, trouble: str
) -> None:
    of = TROUBLES[trouble]
    await cluster.kill("second")
    async with link_to(pair.addresses["first"]) as link:
        await pair.follow(link.address)
        await begin_load(cluster)
        begun_us = now_us()
        of.begin(cluster, link)
        if of.leaves:
            await pair.until_in_set(0)
        left_s = (now_us() - begun_us) / 1e6
        until_us = begun_us + TROUBLE_S * 1_000_000
        await cluster.until("sends go on", lambda: max(map(max, cluster.acknowledged_times().values())) > until_us)
        waited_s, ended_us = longest_wait(cluster, begun_us), now_us()
        of.end(cluster, link)
        await pair.until_in_set()
        joined_s = (now_us() - ended_us) / 1e6
        await cluster.until_handled_more(100)
        await pair.kill_master()
        promotion = await pair.promote_replica()
        await cluster.until_accepted(QUEUE_NAMES, after_us=promotion.done_us)
        seen = await end_load(cluster)
    left = f"left the set after {left_s:.2f} s, " if of.leaves else ""
    report(f"{TROUBLE_S} s: {left}no send was acknowledged for {waited_s:.2f} s, in the set again after {joined_s:.2f} s; {seen}")


async def test_replica_that_was_not_in_the_set_is_promoted_by_force_only(pair: ReplicaPair, cluster: Cluster) -> None:
    """It leaves the set because it is suspended, and follows again: for some seconds it is kept out, and may lack what is acknowledged."""
    cluster.signal(signal.SIGSTOP, "second")
    await pair.until_in_set(0)
    await cluster.command("send", "orders", "hello")
    cluster.signal(signal.SIGCONT, "second")
    async with asyncio.timeout(WAIT_S):
        while [each.stored for each in await pair.replicas() if not each.in_set] != [await pair.end("first")]:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
    await cluster.kill("first")
    assert "was not in the set of its master" in await pair.promote("second")
    assert await pair.promote("second", force=True) == ""


async def test_master_that_was_suspended_while_its_replica_was_promoted_acknowledges_nothing_and_ends(
    pair: ReplicaPair, cluster: Cluster, report: Report
) -> None:
    await begin_load(cluster)
    async with native(pair.addresses["first"]) as old:
        cluster.signal(signal.SIGSTOP, "first")
        sent: asyncio.Future[object] = asyncio.ensure_future(old.send("orders", b'{"order": 1000, "step": 0}'))
        asked_us = now_us()
        promoting = asyncio.ensure_future(pair.promote_replica())
        while not (answer := await pair.ask("second", RequestCode.REPLICA_STATUS)).code:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        assert "is being promoted" in (answer.remark or ""), "a master that goes on now must not take it for a replica"
        promotion = await promoting
        await cluster.until_accepted(QUEUE_NAMES, after_us=promotion.done_us)
        cluster.signal(signal.SIGCONT, "first")
        assert await cluster.processes["first"].wait() == 4
        with pytest.raises(LockstepError):
            await sent
    assert f"was promoted at {pair.addresses['second']}" in cluster.output_tails()
    await pair.follow()
    report(f"promoted after {(promotion.done_us - asked_us) / 1e6:.2f} s; {await end_load(cluster)}")


async def test_master_that_goes_on_before_its_replica_has_its_name_acknowledges_nothing_and_keeps_the_name(
    pair: ReplicaPair, cluster: Cluster
) -> None:
    await begin_load(cluster)
    cluster.signal(signal.SIGSTOP, "first")
    assert (await pair.ask("second", RequestCode.REPLICA_PROMOTE, {"force": False})).code == 0
    await cluster.until_heard("second", "store.restored")
    cluster.signal(signal.SIGCONT, "first")
    await cluster.until("the nameserver has refused it", lambda: cluster.processes["second"].exit_code == 4)
    await cluster.until_heard("first", "broker.waits_for_replicas")
    async with native(pair.addresses["first"]) as old:
        sent = asyncio.ensure_future(old.send("orders", b'{"order": 1000, "step": 0}'))
        await cluster.kill("first")
        with pytest.raises(LockstepError):
            await sent
    await pair.copy("second")
    await cluster.until_accepted(QUEUE_NAMES, after_us=now_us())
    await end_load(cluster)


def lose_power(pair: ReplicaPair, place: str) -> int:
    """Leave of the store of a killed broker what a machine that lost power has at least. Return the size of the rest."""
    files, lost = RealFiles(), 0
    directory = StoreDirectory(files, str(pair.store(place)))
    synced = directory.read_synced()[1]
    for path in sorted((pair.store(place) / "commitlog").iterdir()):
        start = int(path.name)
        with path.open("r+b") as file:
            size = path.stat().st_size
            kept = min(size, max(0, synced - start))
            file.seek(kept)
            lost += len(file.read(LOST_BYTES_MAX).rstrip(b"\0"))
            file.truncate(kept)
            file.truncate(size)
    flush = (pair.store(place) / "lockstep" / "boot").read_text().partition(" ")[2]
    directory.mark_boot("earlier", flush)
    return lost


async def test_master_that_lost_power_under_async_flush_does_not_start_and_its_replica_has_everything(
    pair: ReplicaPair, cluster: Cluster, report: Report
) -> None:
    await begin_load(cluster)
    directory = StoreDirectory(RealFiles(), str(pair.store("first")))
    await cluster.until("the synced length is recorded", lambda: directory.read_synced()[1] > 0)
    await pair.kill_master()
    lost = lose_power(pair, "first")
    old = await cluster.start("first", pair.command("first"))
    assert await old.wait() == 4
    tails = cluster.output_tails()
    assert "this store may have lost acknowledged messages with its machine" in tails
    assert f"promote it by `lockstep replica promote {pair.addresses['second']}`" in tails
    promotion = await pair.promote_replica()
    await cluster.until_accepted(QUEUE_NAMES, after_us=promotion.done_us)
    await pair.follow()
    report(f"{lost} bytes lost at the master; {await end_load(cluster)}")


async def test_replica_that_lost_power_under_async_flush_is_not_promoted_and_follows_as_another_member(
    pair: ReplicaPair, cluster: Cluster, report: Report
) -> None:
    await begin_load(cluster)
    (before,) = [each.member for each in await pair.replicas()]
    await cluster.kill("first", "second")
    lost = lose_power(pair, "second")
    await pair.copy("second")
    assert "may have lost messages that it had acknowledged" in await pair.promote("second")
    await pair.start("first")
    await pair.until_in_set()
    assert [each.member for each in await pair.replicas() if each.in_set] != [before]
    await cluster.until_accepted(QUEUE_NAMES, after_us=now_us())
    report(f"{lost} bytes lost at the replica; {await end_load(cluster)}")


async def test_copy_of_a_replicas_directory_is_a_replica_of_its_own(pair: ReplicaPair, cluster: Cluster) -> None:
    await begin_load(cluster)
    shutil.copytree(pair.store("second"), pair.store("third"))
    await pair.copy("third")
    await pair.until_in_set(2)
    followers = await pair.replicas()
    assert {each.address for each in followers} == {pair.addresses[place] for place in ("second", "third")}
    assert len({each.member for each in followers}) == 2
    await cluster.until_handled_more(100)
    await cluster.kill("third")
    await pair.kill_master()
    promotion = await pair.promote_replica()
    await cluster.until_accepted(QUEUE_NAMES, after_us=promotion.done_us)
    await end_load(cluster)
