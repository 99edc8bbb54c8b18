"""Masters under a register are killed and stopped under load: another copy is elected, and nothing acknowledged is lost."""

import asyncio
import os
from collections import Counter
from collections.abc import Callable

import pytest

from support.cluster import Cluster, Report, now_us
from support.copies import Copies
from support.effort import SLOW, usually
from support.group_loads import LOADS, MEMBERS, ByKey, Ordered, Parked, longest_wait, quantiles
from support.registers import RegisterServer

pytestmark = pytest.mark.e2e

KILLS = int(os.environ.get("LOCKSTEP_TEST_KILLS", "25"))
"""How many masters the slow run kills."""


@pytest.mark.parametrize(("kind", "rounds"), usually([(kind, 2) for kind in LOADS], [(kind, n) for kind in LOADS for n in (2, KILLS)]))
async def test_nothing_acknowledged_is_lost_over_killed_masters(
    copies: Copies, cluster: Cluster, report: Report, kind: str, rounds: int
) -> None:
    load = LOADS[kind](cluster)
    await load.begin()
    await load.produce()
    seconds: list[float] = []
    epochs = await cluster.epochs("billing") if kind != "concurrent" else {}
    for _ in range(rounds):
        master = await copies.until_in_sync()
        await cluster.kill(master)
        killed_us = now_us()
        await load.went_on(killed_us)
        seconds.append(longest_wait(cluster, killed_us)[0])
        await copies.start(master)
    if epochs:
        assert await cluster.epochs("billing") == epochs, "a failover without a loss ends no grant"
    report(f"{rounds} masters killed: {await load.end()}; sends acknowledged again after the kill: {quantiles(seconds)}")


async def test_stopped_master_hands_over_and_nothing_is_repeated(copies: Copies, cluster: Cluster, report: Report) -> None:
    """A rolling restart of both copies, twice: no send fails, and no listener call is cancelled."""
    load = Ordered(cluster)
    await load.begin()
    await load.produce()
    epochs, seconds = await cluster.epochs(), list[float]()
    for _ in range(2):
        for place in copies.addresses:
            await copies.until_in_sync()
            stopped_us = now_us()
            await cluster.stop(place)
            await load.went_on(stopped_us)
            seconds.append(longest_wait(cluster, stopped_us)[0])
            await copies.start(place)
    await copies.until_in_sync()
    assert await cluster.epochs() == epochs
    assert cluster.reported_events("producer", "send.failed") == []
    cancelled = [each for name in MEMBERS for each in cluster.reported_events(name, "listener.cancelled")]
    report(
        f"4 copies stopped: {await load.end()}, {len(cancelled)} calls cancelled; longest time without an acknowledged send ended "
        f"{quantiles(seconds)} after SIGTERM"
    )


async def test_times_from_the_end_of_a_master_to_the_next_acknowledged_send(copies: Copies, cluster: Cluster, report: Report) -> None:
    await cluster.producer("producer", "--keys", "4", "--pause-ms", "20", "--timeout-ms", "120000")
    await cluster.until("some sends", lambda: len(cluster.acks()) > 100)
    for how, end in (("kill -9", cluster.kill), ("SIGTERM", cluster.stop)):
        seconds: list[float] = []
        for _ in range(KILLS if SLOW else 3):
            master = await copies.until_in_sync()
            ended_us, count = now_us(), len(cluster.acks())
            await end(master)
            await cluster.until("sends go on", lambda count=count: len(cluster.acks()) > count + 100)  # type: ignore[misc]
            seconds.append(longest_wait(cluster, ended_us)[0])
            await copies.start(master)
        load = " ".join(f"{each:.1f}" for each in os.getloadavg())
        report(f"{len(seconds)} x {how} → next acknowledged send, load {load}: {quantiles(seconds)}")
    await cluster.finish_producer()


async def test_third_copy_goes_on_when_the_master_and_its_successor_are_killed(
    register_server: RegisterServer, cluster: Cluster, report: Report
) -> None:
    """The successor is killed as soon as it is elected: often before the set without the first master is stored, or its port is open."""
    copies = await Copies.start_all(cluster, register_server, 3)
    load = Ordered(cluster)
    await load.begin()
    await load.produce()
    epochs, seconds = await cluster.epochs(), list[float]()
    for _ in range(KILLS if SLOW else 2):
        master = await copies.until_in_sync()
        term = (await copies.statuses())[master].term
        await cluster.kill(master)
        killed_us = now_us()
        successor = await copies.until_named(after_term=term)
        await cluster.kill(successor)
        await load.went_on(now_us())
        seconds.append(longest_wait(cluster, killed_us)[0])
        await copies.start(master)
        await copies.start(successor)
    await copies.until_in_sync()
    assert await cluster.epochs() == epochs
    report(f"{len(seconds)} x two masters killed: {await load.end()}; sends acknowledged again after the first kill: {quantiles(seconds)}")


async def test_vanished_replica_cancels_no_listener_call(copies: Copies, cluster: Cluster, report: Report) -> None:
    load = Ordered(cluster, "queue", "--work-ms", "50")
    await load.begin()
    await load.produce("--keys", "16")
    master = await copies.until_in_sync()
    (replica,) = copies.addresses.keys() - {master}
    killed_us = now_us()
    await cluster.kill(replica)
    await copies.until_in_sync(1)
    left_s = (now_us() - killed_us) / 1e6
    await load.went_on(now_us())
    for event in ("listener.cancelled", "consumer.QueueRevoked"):
        assert [each for name in MEMBERS for each in cluster.reported_events(name, event, after_us=killed_us)] == []
    waited_s = longest_wait(cluster, killed_us)[1]
    report(f"the replica left the set after {left_s:.2f} s, no send was acknowledged for {waited_s:.2f} s; {await load.end()}")


ROUNDS = 50 if SLOW else 5
PHASE_S = 0.3
"""Masters are killed in different parts of a command: at its start, and up to four times as late."""


COMMANDS: dict[str, tuple[Callable[[Cluster], Ordered], Callable[[int], tuple[str, ...]]]] = {
    "topic alter": (ByKey, lambda number: ("topic", "alter", "orders", "--queues", str(4 + (number + 1) % 2))),
    "broker drain": (ByKey, lambda number: ("broker", "drain", ("broker-a", "broker-b")[number % 2])),
    "park replay": (Parked, lambda number: ("park", "replay", "billing", "--all")),
}
"""Command → (load, the command of a round)."""


@pytest.mark.parametrize("name", COMMANDS)
async def test_command_during_failovers_keeps_the_order_or_ends_with_its_error_and_can_be_repeated(
    copies: Copies, cluster: Cluster, report: Report, name: str
) -> None:
    """The elected broker is beside a plain one, which gets queues: it is drained, and gets them back while it is killed."""
    await cluster.broker("broker-b")
    make, command = COMMANDS[name]
    load = make(cluster)
    await load.begin()
    await load.produce()
    errors: list[str] = []
    master = await copies.until_in_sync()
    for number in range(ROUNDS):
        running = asyncio.ensure_future(cluster.started_command(*command(number)))
        await asyncio.sleep(PHASE_S * (number % 5))
        killed_us = now_us()
        await cluster.kill(master)
        code, _, said = await running
        await copies.start(master)
        master = await copies.until_in_sync()
        if code:
            errors.append(said.splitlines()[-1])
            assert (code, errors[-1][:10]) == (1, "lockstep: "), said
            await cluster.command(*command(number))
        load.queues = await cluster.queues()
        await Ordered.went_on(load, killed_us)
    report(f"{ROUNDS} masters killed, {ROUNDS - len(errors)} x `{name}` done at once; {await load.end()}; errors: {Counter(errors)}")


async def test_static_pair_becomes_one_with_a_register(register_server: RegisterServer, cluster: Cluster, report: Report) -> None:
    copies = await Copies.begun(cluster, register_server)
    first, second = copies.addresses
    await copies.start(first, "--alone")
    await cluster.command("topic", "create", "orders", "--queues", "4")
    await copies.start(second, "--replica-of", copies.addresses[first])
    await copies.until_in_sync()
    load = Ordered(cluster)
    await load.begin()
    await load.produce()
    epochs = await cluster.epochs()
    await cluster.kill(first)
    await copies.start(first)
    await copies.until_in_sync()
    entry = await copies.entry()
    assert entry is not None
    assert not entry.assumed_loss
    assert set(entry.replicas.values()) == set(copies.addresses.values())
    assert len(entry.in_sync) == 2
    await cluster.kill(second)
    await copies.start(second)
    await copies.until_in_sync()
    killed_us = now_us()
    await cluster.kill(first)
    await load.went_on(killed_us)
    assert await copies.master() == second
    assert await cluster.epochs() == epochs
    report(await load.end())
