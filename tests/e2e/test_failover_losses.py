"""Registers that are down, wiped or set back, and copies that all lose their power: nobody rules wrongly, and all go on by rule."""

import asyncio
import os
import shutil
import signal

import pytest

from lockstep.broker.store.start.directory import StoreDirectory
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.headers.replication import ReplicaHandOverHeader
from lockstep.runtime.files import RealFiles
from support.cluster import LOOK_S, WAIT_S, Cluster, Report, now_us
from support.copies import Copies
from support.damage import Damage
from support.effort import SLOW, usually
from support.group_loads import Ordered, longest_wait
from support.native import native
from support.registers import RegisterServer

pytestmark = pytest.mark.e2e

both_registers = pytest.mark.parametrize("register_server", ["etcd", "witness"], indirect=True)
every_register = pytest.mark.parametrize(
    "register_server", usually(["etcd", "witness"], ["etcd", "etcd of three", "witness"]), indirect=True
)
"""Of three, two are down then: the third one answers, and can do nothing."""
DOWN_S = int(os.environ.get("LOCKSTEP_TEST_DOWN_S", "60" if SLOW else "5"))
"""How long a register is down."""
IDLE_S = 1
SYNCED_MIN = 1_000
SESSION_S = 30
"""Longer than a session of the usual settings lasts without a proof of life."""


async def begin(cluster: Cluster) -> Ordered:
    load = Ordered(cluster)
    await load.begin()
    await load.produce("--timeout-ms", str((120 + DOWN_S) * 1_000))
    return load


async def fail_over(copies: Copies, load: Ordered) -> None:
    """Kill the master, and wait until another one is at work."""
    master = await copies.until_in_sync()
    term = (await copies.statuses())[master].term
    await copies.cluster.kill(master)
    killed_us = now_us()
    await copies.until_elected(term)
    await load.went_on(killed_us)
    await copies.start(master)
    await copies.until_in_sync()


async def until_idle(copies: Copies, place: str) -> int:
    """Wait until a copy has confirmed all of its log, and nothing more is written. Return where that ends."""
    before = -1
    async with asyncio.timeout(WAIT_S):
        while (status := await copies.status(place)) is None or not before == status.confirmed == status.end:
            before = -1 if status is None else status.end
            await asyncio.sleep(IDLE_S)
    return status.confirmed


@every_register
async def test_all_goes_on_while_the_register_is_down(copies: Copies, cluster: Cluster, report: Report) -> None:
    load = await begin(cluster)
    master = await copies.until_in_sync()
    term = (await copies.statuses())[master].term
    copies.register.kill()
    begun_us = now_us()
    down_us = begun_us + DOWN_S * 1_000_000
    await cluster.until("sends go on", lambda: max(map(max, cluster.acknowledged_times().values())) > down_us, timeout_s=DOWN_S + WAIT_S)
    await load.went_on(now_us())
    waited_s = longest_wait(cluster, begun_us)[1]
    await copies.register.start()
    assert (await copies.statuses())[await copies.until_in_sync()].term == term
    await fail_over(copies, load)
    assert cluster.reported_events("producer", "send.failed") == []
    report(f"{DOWN_S} s without the register: at most {waited_s:.2f} s without an acknowledged send; {await load.end()}")


@both_registers
async def test_master_writes_the_entry_of_a_wiped_register_anew_and_can_be_replaced_then(
    copies: Copies, cluster: Cluster, report: Report
) -> None:
    load = await begin(cluster)
    master = await copies.until_in_sync()
    before = await copies.entry()
    copies.register.kill()
    shutil.rmtree(copies.register.directory)
    await copies.register.start()
    await cluster.until_heard(master, "register.set_back")
    assert await copies.entry() is None
    await load.went_on(now_us())
    done = await cluster.command("ha", "failover", "broker-a", "--to", copies.addresses[master], "--unclean", "--yes")
    assert "is the master of broker broker-a" in done
    after = await copies.entry()
    assert before is not None
    assert after is not None
    assert (after.term, after.master, after.in_sync, after.replicas) == (before.term, before.master, before.in_sync, before.replicas)
    await fail_over(copies, load)
    report(await load.end())


@both_registers
async def test_master_goes_on_with_a_register_that_was_set_back_and_writes_its_entry_anew(
    copies: Copies, cluster: Cluster, report: Report
) -> None:
    load = await begin(cluster)
    await copies.until_in_sync()
    older = cluster.folder / "older"
    copies.register.kill()
    shutil.copytree(copies.register.directory, older)
    await copies.register.start()
    await fail_over(copies, load)
    copies.register.kill()
    shutil.rmtree(copies.register.directory)
    shutil.copytree(older, copies.register.directory)
    await copies.register.start()
    master = await copies.master()
    await cluster.until_heard(master, "register.set_back")
    await load.went_on(now_us())
    entry = await copies.entry()
    term = (await copies.statuses())[master].term
    assert entry is not None
    assert entry.term < term, "nobody has been elected from it"
    await cluster.command("ha", "failover", "broker-a", "--to", copies.addresses[master], "--unclean", "--yes")
    await fail_over(copies, load)
    report(await load.end())


async def test_set_of_a_register_that_was_set_back_within_a_term_is_written_anew(copies: Copies, cluster: Cluster, report: Report) -> None:
    """Else a replica that has left the set could be elected, and what was confirmed without it would be lost."""
    load = await begin(cluster)
    master = await copies.until_in_sync()
    (replica,) = copies.addresses.keys() - {master}
    older = cluster.folder / "older"
    copies.register.kill()
    shutil.copytree(copies.register.directory, older)
    await copies.register.start()
    await cluster.kill(replica)
    await copies.until_in_sync(1)
    await load.went_on(now_us())
    copies.register.kill()
    shutil.rmtree(copies.register.directory)
    shutil.copytree(older, copies.register.directory)
    await copies.register.start()
    async with asyncio.timeout(WAIT_S):
        while (entry := await copies.entry()) is None or len(entry.in_sync) != 1:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
    await copies.start(replica)
    await copies.until_in_sync()
    await fail_over(copies, load)
    report(await load.end())


@every_register
async def test_nobody_is_elected_while_master_and_register_are_down(copies: Copies, cluster: Cluster, report: Report) -> None:
    load = await begin(cluster)
    master = await copies.until_in_sync()
    (replica,) = copies.addresses.keys() - {master}
    term = (await copies.statuses())[master].term
    copies.register.kill()
    await cluster.kill(master)
    await asyncio.sleep(DOWN_S)
    status = await copies.status(replica)
    assert status is not None
    assert (status.role, status.term) == ("replica", term)
    for command in (("doctor",), ("cluster",), ("top", "--once"), ("ha", "show", "broker-a"), ("why", "billing")):
        _, out, error = await cluster.started_command(*command)
        assert "nobody can be elected" in out + error, command
    back_us = now_us()
    await copies.register.start()
    assert await copies.until_elected(term) == replica
    await load.went_on(back_us)
    elected_s = longest_wait(cluster, back_us)[0]
    assert cluster.reported_events("producer", "send.failed") == []
    await copies.start(master)
    await copies.until_in_sync()
    report(f"sends acknowledged {elected_s:.2f} s after the register's start; {await load.end()}")


async def test_damaged_master_lets_another_copy_rule_and_is_mended_by_it(copies: Copies, cluster: Cluster, report: Report) -> None:
    """The register names it when it is back, and its start is its election: nobody else would ever be elected if it ended then."""
    load = await begin(cluster)
    directories = {place: StoreDirectory(RealFiles(), str(copies.store(place))) for place in copies.addresses}
    await cluster.until("synced positions are recorded", lambda: all(each.read_synced()[1] > SYNCED_MIN for each in directories.values()))
    master, before = await copies.kill_in_sync()
    (replica,) = copies.addresses.keys() - {master}
    Damage(copies.store(master)).flip_last_body(directories[master].read_synced()[1])
    await copies.start(master, *copies.role(master), "--cut-corrupt")
    await cluster.until_heard(master, "office.damaged")
    await copies.start(replica)
    assert await copies.until_elected(before.term + 1) == replica
    started_us = now_us()
    await load.went_on(started_us)
    await copies.until_in_sync()
    report(await load.end())


async def test_requests_are_refused_while_neither_register_nor_replica_answers_and_nobody_loses_a_queue(
    register_server: RegisterServer, cluster: Cluster, report: Report
) -> None:
    usual = ("--disconnect-grace-ms", "3000", "--session-timeout-ms", "20000")
    copies = await Copies.start_all(cluster, register_server, 2, *usual)
    load = await begin(cluster)
    master = await copies.until_in_sync()
    (replica,) = copies.addresses.keys() - {master}
    before = await cluster.epochs()
    copies.register.kill()
    cluster.signal(signal.SIGSTOP, replica)
    await cluster.until_heard(master, "office.suspended")
    async with native(copies.addresses[master]) as client:
        asked = [client.send("orders", b"refused"), client.pull("orders"), client.send_request(RequestCode.HEART_BEAT)]
        assert {answer.code for answer in await asyncio.gather(*asked)} == {ResponseCode.NOT_LEADER}
        code, remark = await client.refused(RequestCode.REPLICA_HAND_OVER, ReplicaHandOverHeader(""))
        assert (code, "nothing was handed over" in remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, True)
    await asyncio.sleep(SESSION_S if SLOW else 0)
    back_us = now_us()
    cluster.signal(signal.SIGCONT, replica)
    await copies.register.start()
    await load.went_on(back_us)
    assert await cluster.epochs() == before
    await copies.until_in_sync()
    sent_s = longest_wait(cluster, back_us)[0]
    report(f"sends acknowledged {sent_s:.2f} s after both were back; {await load.end()}")


@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_copies_that_all_lose_power_go_on_from_the_furthest(
    register_server: RegisterServer, cluster: Cluster, report: Report, flush: str
) -> None:
    copies = await Copies.start_all(cluster, register_server, 2, "--flush", flush)
    load = await begin(cluster)
    master = await copies.until_in_sync()
    cluster.signal(signal.SIGSTOP, "producer")  # what it has on its connection as acknowledged is confirmed then
    confirmed = await until_idle(copies, master)
    before = await copies.entry()
    assert before is not None
    await cluster.kill(*copies.addresses)
    lost = {place: copies.lose_power(place, confirmed if flush == "sync" else None) for place in copies.addresses}
    cluster.signal(signal.SIGCONT, "producer")
    started_us = now_us()
    for place in copies.addresses:
        await copies.start(place)
    await copies.until_elected(before.term)
    await load.went_on(started_us)
    await copies.until_in_sync()
    recovered = [each["assumed_loss"] for place in copies.addresses for each in cluster.reported_events(place, "log.recovered")]
    assert recovered == [flush == "async"]
    if flush == "sync":
        report(f"{sum(lost.values())} bytes lost: {await load.end()}")
    else:
        await fail_over(copies, load)
        report(f"{sum(lost.values())} bytes lost of all copies, some of them acknowledged; the group went on")
