"""TestCluster as tests use it: programs, faults, time, and error reports."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from lockstep.client import ConfigError, ConsumeOrderlyStatus, Message, MessageQueue, Producer, PushConsumer, SendError, StateError
from lockstep.runtime.host import Host
from lockstep.testing import FAULTS, Chaos, NotReachedError, OrderChecker, TestClock, TestCluster, WorkerFailedError, simulate

Main = Callable[[], Coroutine[Any, Any, None]]


def consuming(cluster: TestCluster, done: list[bytes], *, seconds: float = 0) -> Main:
    """Return a program that consumes `orders` and takes `seconds` for each message."""

    async def main() -> None:
        consumer = PushConsumer("billing", nameserver=cluster.nameserver)
        consumer.subscribe("orders")

        @consumer.orderly
        async def listen(messages: Any, context: Any) -> ConsumeOrderlyStatus:
            await asyncio.sleep(seconds)
            done.extend(message.body for message in messages)
            return ConsumeOrderlyStatus.SUCCESS

        async with consumer:
            await consumer.wait_closed()

    return main


def waiting(records: list[str]) -> Main:
    """Return a program that counts seconds and records its regular end."""

    async def main() -> None:
        try:
            while True:
                await asyncio.sleep(1)
                records.append("tick")
        finally:
            records.append("end")

    return main


async def send(cluster: TestCluster, *bodies: bytes) -> None:
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        for body in bodies:
            await producer.send(Message("orders", body, sharding_key="a"))


# ------------------------------------------------------------------------------------------------------------------ programs


async def test_killed_program_stops_and_a_restarted_one_starts_again(lockstep_cluster: TestCluster) -> None:
    cluster, records = lockstep_cluster, list[str]()
    await cluster.start("worker", waiting(records))
    await cluster.advance(seconds=2.5)
    await cluster.kill("worker")
    assert cluster.state("worker") == "killed"
    await cluster.advance(minutes=1)
    assert records == ["tick", "tick"]
    await cluster.restart("worker")
    await cluster.advance(seconds=1.5)
    assert records == ["tick"] * 3


async def test_stop_ends_a_program_regularly(lockstep_cluster: TestCluster) -> None:
    cluster, records = lockstep_cluster, list[str]()
    await cluster.start("worker", waiting(records))
    await cluster.advance(seconds=1.5)
    await cluster.stop("worker")
    assert records == ["tick", "end"]
    assert cluster.state("worker") == "stopped"
    await cluster.restart("worker")
    await cluster.advance(seconds=0.5)
    await cluster.restart("worker")
    assert records == ["tick", "end", "end"], "a running one is stopped in order first"


async def test_paused_program_is_suspended_while_time_passes(lockstep_cluster: TestCluster) -> None:
    cluster, records = lockstep_cluster, list[str]()
    await cluster.start("worker", waiting(records))
    began = cluster.now
    await cluster.pause("worker", seconds=100)
    assert cluster.now == pytest.approx(began + 100)
    assert records == []
    await cluster.advance(seconds=1.5)
    assert records[0] == "tick"
    await cluster.pause("worker")
    assert cluster.state("worker") == "paused"
    with pytest.raises(StateError, match="worker is paused"):
        await cluster.stop("worker")


async def test_program_can_handle_sigterm(lockstep_cluster: TestCluster) -> None:
    cluster, records = lockstep_cluster, list[str]()

    async def main() -> None:
        reported = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(15, reported.set)
        await reported.wait()
        records.append("reported")

    await cluster.start("worker", main)
    await cluster.advance(seconds=1)
    await cluster.stop("worker")
    assert records == ["reported"]


async def test_each_program_is_a_process_on_its_own_machine(lockstep_cluster: TestCluster) -> None:
    cluster, seen = lockstep_cluster, dict[str, tuple[int, str]]()

    def main(name: str) -> Main:
        async def run() -> None:
            assert cluster.running() == name
            seen[name] = Host.current().pid, Host.current().boot_id()

        return run

    for name in ("one", "two"):
        await cluster.start(name, main(name))
    await cluster.advance(seconds=1)
    assert len(set(seen.values())) == len(seen) == 2
    assert cluster.running() == "test"


async def test_power_cut_reboots_the_machine_and_a_kill_does_not(lockstep_cluster: TestCluster) -> None:
    cluster, boots = lockstep_cluster, list[str]()

    async def main() -> None:
        boots.append(Host.current().boot_id())
        await asyncio.sleep(1000)

    await cluster.start("worker", main)
    for end in (cluster.kill, cluster.cut_power):
        await cluster.advance(seconds=1)
        await end("worker")
        await cluster.restart("worker")
    await cluster.advance(seconds=1)
    assert boots[0] == boots[1] != boots[2]


async def test_failed_program_fails_the_test_unless_its_failure_was_read() -> None:
    async def broken() -> None:
        raise ZeroDivisionError("in the program")

    async def ignored() -> None:
        async with TestCluster(brokers=1) as cluster:
            await cluster.start("worker", broken)
            await cluster.advance(seconds=1)
            assert cluster.state("worker") == "failed"
            assert isinstance(cluster.failure("worker"), ZeroDivisionError)

    async def looked_at() -> None:
        async with TestCluster(brokers=1) as cluster:
            await cluster.start("worker", broken)
            await cluster.advance(seconds=1)
            assert "ZeroDivisionError: in the program" in cluster.failures()[0]
            assert cluster.failures() == []

    async def failing_besides() -> None:
        async with TestCluster(brokers=1) as cluster:
            await cluster.start("worker", broken)
            await cluster.advance(seconds=1)
            raise KeyError("the test's own")

    with pytest.raises(WorkerFailedError, match="in the program"):
        run_simulation(ignored)
    run_simulation(looked_at)
    with pytest.raises(KeyError) as caught:
        run_simulation(failing_besides)
    assert "ZeroDivisionError" in caught.value.__notes__[0]


def run_simulation(main: Main, seed: int = 0) -> None:
    """Run `main` in a simulation although the test runs in a loop."""
    outside = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        simulate(main, seed=seed)
    finally:
        asyncio._set_running_loop(outside)


# -------------------------------------------------------------------------------------------------------------------- servers


async def test_acknowledged_messages_survive_a_broker_kill_and_a_power_cut_with_sync_flush() -> None:
    def main(flush: Any, how: str) -> Main:
        async def run() -> None:
            done: list[bytes] = []
            async with TestCluster(brokers=1, flush=flush) as cluster:
                await cluster.create_topic("orders")
                await send(cluster, b"1", b"2")
                await getattr(cluster, how)("broker-a")
                assert cluster.state("broker-a") == {"kill": "killed", "cut_power": "power cut"}[how]
                await cluster.restart("broker-a")
                await cluster.start("worker", consuming(cluster, done))
                await cluster.settled("billing")
            assert done == [b"1", b"2"]

        return run

    run_simulation(main("async", "kill"))
    run_simulation(main("sync", "cut_power"))


@pytest.mark.lockstep(brokers=3, nameservers=2)
async def test_cluster_has_the_requested_size_and_works_with_one_nameserver_left(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    assert cluster.brokers == ("broker-a", "broker-b", "broker-c")
    await cluster.kill(cluster.nameservers[0])
    await cluster.create_topic("orders", queues=2)
    await send(cluster, b"1")


async def test_network_can_be_partitioned_one_way_or_both_ways_and_healed(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic("orders", queues=1)
    await send(cluster, b"1")
    for one_way, (one, other) in ((False, ("test", "broker-a")), (True, ("test", "broker-a")), (True, ("broker-a", "test"))):
        cluster.partition(one, [other, "broker-b"] if one == "test" else other, one_way=one_way)
        if one != "test":
            cluster.partition("broker-b", "test", one_way=True)
        async with Producer("shop", nameserver=cluster.nameserver) as producer:
            with pytest.raises(SendError):
                await producer.send(Message("orders", b"cut", sharding_key="a"), timeout_ms=2_000)
            cluster.heal()
            await producer.send(Message("orders", b"healed", sharding_key="a"))


async def test_one_way_partition_does_not_block_the_other_direction(lockstep_cluster: TestCluster) -> None:
    cluster, done = lockstep_cluster, list[bytes]()
    await cluster.create_topic("orders", queues=1)
    await cluster.start("worker", consuming(cluster, done))
    for other_way, reported in (("test", "response"), (None, "request")):
        async with Producer("shop", nameserver=cluster.nameserver) as producer:
            for broker in cluster.brokers:
                await producer.send(Message("orders", b"before"), queue=MessageQueue("orders", broker, 0))
                cluster.partition(broker, "test", one_way=other_way is not None)
            with pytest.raises(SendError):
                await producer.send(Message("orders", reported.encode(), sharding_key="a"), timeout_ms=1_000)
            await cluster.advance(seconds=1)
            assert (reported.encode() in done) is (other_way is not None)
            cluster.heal()


async def test_network_without_faults_is_fast(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic("orders")
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        await producer.send(Message("orders", b"first", sharding_key="a"))
        for _ in range(2_000):
            began = cluster.now
            await producer.send(Message("orders", b"next", sharding_key="a"))
            assert cluster.now - began < 0.05


async def test_slow_link_and_reset_connections_only_delay_sends(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic("orders", queues=1)
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        await producer.send(Message("orders", b"1", sharding_key="a"))
        cluster.slow_link("test", seconds=2)
        began = cluster.now
        await producer.send(Message("orders", b"2", sharding_key="a"))
        assert cluster.now - began > 0.1
        cluster.heal()
        cluster.reset_connections("test")
        await producer.send(Message("orders", b"3", sharding_key="a"))


async def test_wall_clock_jump_does_not_change_the_clusters_time(lockstep_cluster: TestCluster) -> None:
    cluster, dates = lockstep_cluster, list[int]()

    async def main() -> None:
        dates.append(Host.current().clock.wall_ms())

    await cluster.start("worker", main)
    await cluster.advance(seconds=1)
    cluster.set_wall_clock("worker", ahead_seconds=3600)
    await cluster.restart("worker")
    await cluster.advance(seconds=1)
    assert 3_600_000 <= dates[1] - dates[0] <= 3_602_000
    assert cluster.now < 10


# ------------------------------------------------------------------------------------------------------------ time, waiting


async def test_advance_of_half_a_day_takes_no_real_time(lockstep_clock: TestClock) -> None:
    began = time.monotonic()
    rang: list[float] = []
    asyncio.get_running_loop().call_later(3600, lambda: rang.append(lockstep_clock.now))
    await lockstep_clock.advance(hours=12, minutes=1, seconds=1)
    assert lockstep_clock.now == 12 * 3600 + 61
    assert rang == [3600]
    assert time.monotonic() - began < 3600
    with pytest.raises(ValueError, match="time does not go back"):
        await lockstep_clock.advance(seconds=-1)


async def test_error_of_settled_reports_lag_and_owners(lockstep_cluster: TestCluster) -> None:
    cluster, done = lockstep_cluster, list[bytes]()
    await cluster.create_topic("orders", queues=1)
    with pytest.raises(NotReachedError, match="no broker knows the group"):
        await cluster.settled("billing", timeout=2)
    await cluster.start("worker-1", consuming(cluster, done, seconds=10))
    await send(cluster, b"1", b"2", b"3")
    with pytest.raises(NotReachedError) as caught:
        await cluster.settled("billing", timeout=15)
    text = str(caught.value)
    for part in ("group billing has not settled after 15 s: lag 2", "owner worker-1, 1 of 3 done", "worker-1 running", "start worker-1"):
        assert part in text, text
    assert 15 <= cluster.now < 20
    await cluster.settled("billing")
    assert done == [b"1", b"2", b"3"]
    report = await cluster.group_status("billing")
    assert report is not None
    assert report.lag == 0
    await cluster.kill("broker-b")
    with pytest.raises(NotReachedError, match="the broker does not respond"):
        await cluster.settled("billing", timeout=2)


async def test_until_waits_for_a_condition_and_its_error_names_it(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    end = cluster.now + 30
    await cluster.until(lambda: cluster.now > end)
    assert end <= cluster.now < end + 1
    with pytest.raises(NotReachedError, match="pigs fly is not true after 5 s"):
        await cluster.until(lambda: False, "pigs fly", timeout=5)


async def test_hanging_test_is_reported_with_its_location() -> None:
    async def main() -> None:
        async with TestCluster(brokers=1):
            await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match=r"the limit of 7200.0 s is reached[\s\S]*test_cluster.py"):
        run_simulation(main)


# ------------------------------------------------------------------------------------------------------------- begin, seeds


async def test_misuse_of_a_cluster_raises_with_the_requirement() -> None:
    with pytest.raises(StateError, match="lockstep_cluster"):
        await TestCluster().__aenter__()
    with pytest.raises(ConfigError, match="folder"):
        TestCluster(real=True)
    with pytest.raises(ConfigError, match="0 brokers"):
        TestCluster(brokers=0)
    with pytest.raises(StateError, match="not started"):
        await TestCluster().kill("broker-a")


async def test_unknown_and_duplicate_process_names_are_rejected(lockstep_cluster: TestCluster, tmp_path: Path) -> None:
    cluster = lockstep_cluster
    with pytest.raises(StateError, match="no 'worker' in the cluster: known are nameserver-1, broker-a, broker-b"):
        await cluster.kill("worker")
    with pytest.raises(StateError, match="'broker-a' is in use already"):
        await cluster.start("broker-a", waiting([]))
    with pytest.raises(StateError, match="real event loop"):
        await TestCluster(real=True, folder=tmp_path).__aenter__()


async def test_simulation_can_have_several_clusters_and_closing_one_ends_only_its_programs(lockstep_cluster: TestCluster) -> None:
    records: list[str] = []
    await lockstep_cluster.create_topic("orders")
    async with TestCluster(brokers=1) as other:
        assert other.nameserver != lockstep_cluster.nameserver
        await other.create_topic("orders")
        await send(other, b"there")
        await other.start("worker", waiting(records))
        await other.advance(seconds=1.5)
    await send(lockstep_cluster, b"here")
    await lockstep_cluster.advance(seconds=10)
    assert records == ["tick"]


def run_with_chaos(seed: int) -> tuple[list[str], list[bytes]]:
    """Return the faults of the chaos and the handled messages."""

    async def main() -> tuple[list[str], list[bytes]]:
        done: list[bytes] = []
        async with TestCluster() as cluster:
            await cluster.create_topic("orders")
            checker = OrderChecker(cluster)
            for number in (1, 2):
                await cluster.start(f"worker-{number}", consuming(cluster, done, seconds=0.01))
            async with (
                checker.producer(Producer("shop", nameserver=cluster.nameserver)) as producer,
                Chaos(cluster, every_seconds=1),
            ):
                for step in range(20):
                    await producer.send(Message("orders", b"%d" % step, sharding_key=f"{step % 3}"))
                    await asyncio.sleep(1)
            assert {cluster.state(name) for name in (*cluster.workers, *cluster.brokers, *cluster.nameservers)} == {"running"}
            await cluster.settled("billing")
            return [str(each) for each in cluster.happenings], done

    return simulate(main, seed=seed)


def test_chaos_depends_only_on_the_seed_and_undoes_its_faults_at_the_end() -> None:
    one, again, other = run_with_chaos(1), run_with_chaos(1), run_with_chaos(2)
    assert one == again
    assert one[0] != other[0]
    for happenings, done in (one, other):
        assert len(happenings) > 10
        assert set(done) == {b"%d" % step for step in range(20)}


async def test_chaos_can_have_its_own_seed(lockstep_cluster: TestCluster) -> None:
    runs = []
    for seed in (5, 5, 6):
        before = len(lockstep_cluster.happenings)
        async with Chaos(lockstep_cluster, seed=seed, faults=["kill_broker"]):
            await lockstep_cluster.advance(seconds=30)
        runs.append([each.text for each in lockstep_cluster.happenings[before:]])
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("fault", list(FAULTS))
async def test_each_chaos_fault_is_injected_and_undone(lockstep_cluster: TestCluster, fault: str) -> None:
    cluster = lockstep_cluster
    await cluster.start("worker", waiting([]))
    before = len(cluster.happenings)
    async with Chaos(cluster, every_seconds=0.5, faults=[fault]):
        await cluster.advance(seconds=10)
    texts = [each.text for each in cluster.happenings[before:]]
    word = {"pause_worker_long": "pause worker", "cut_power_of_broker": "cut the power of broker"}.get(fault, fault.replace("_", " "))
    assert any(text.startswith(word) for text in texts), texts
    assert {cluster.state(name) for name in (*cluster.workers, *cluster.brokers, *cluster.nameservers)} == {"running"}


async def test_chaos_rejects_unknown_faults_and_does_not_restart_processes_that_the_test_killed(lockstep_cluster: TestCluster) -> None:
    with pytest.raises(ConfigError, match="no fault 'earthquake': known are kill_worker"):
        Chaos(lockstep_cluster, faults=["earthquake"])
    with pytest.raises(ConfigError, match="every_seconds"):
        Chaos(lockstep_cluster, every_seconds=0)
    await lockstep_cluster.start("worker", waiting([]))
    await lockstep_cluster.kill("worker")
    async with Chaos(lockstep_cluster, every_seconds=0.5):
        await lockstep_cluster.advance(seconds=10)
    assert lockstep_cluster.state("worker") == "killed"
