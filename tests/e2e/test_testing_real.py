"""TestCluster with real processes: the same test as in the simulator, and its errors for unsupported faults."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from lockstep.client import ConsumeOrderlyStatus, Message, Producer, PushConsumer
from lockstep.testing import Chaos, OnlySimulatedError, OrderChecker, TestCluster, WorkerFailedError
from support.page_commands import blocks
from support.processes import clean_environment

pytestmark = pytest.mark.e2e

Main = Callable[[], Coroutine[Any, Any, None]]


def consuming(cluster: TestCluster, checker: OrderChecker) -> Main:
    async def main() -> None:
        consumer = PushConsumer("billing", nameserver=cluster.nameserver)
        consumer.subscribe("orders")

        @consumer.orderly
        @checker.watch
        async def listen(messages: Any, context: Any) -> ConsumeOrderlyStatus:
            return ConsumeOrderlyStatus.SUCCESS

        async with consumer:
            await consumer.wait_closed()

    return main


def real(folder: Path) -> TestCluster:
    return TestCluster(real=True, folder=folder, disconnect_grace_ms=1_000, session_timeout_ms=2_000)


async def test_order_holds_while_programs_and_servers_are_killed_paused_and_stopped(tmp_path: Path) -> None:
    async with real(tmp_path) as cluster:
        checker = OrderChecker(cluster)
        await cluster.create_topic("orders")
        for name in ("worker-1", "worker-2"):
            await cluster.start(name, consuming(cluster, checker))
        async with checker.producer(Producer("shop", nameserver=cluster.nameserver)) as producer:
            for step in range(50):
                if step == 10:
                    await cluster.kill("worker-1")
                if step == 20:
                    await cluster.kill("broker-a")
                    await cluster.restart("broker-a")
                if step == 30:
                    await cluster.pause("worker-2", seconds=0.5)
                    await cluster.restart("worker-1")
                if step == 40:
                    await cluster.pause("broker-b", seconds=0.5)
                await producer.send(Message("orders", b"%d" % step, sharding_key=f"{step % 5}"))
        await cluster.settled("billing")
        checker.verify()
        await cluster.stop("worker-1")
        assert [cluster.state(name) for name in cluster.workers] == ["stopped", "running"]


async def test_chaos_has_no_faults_after_its_end(tmp_path: Path) -> None:
    async with real(tmp_path) as cluster:
        await cluster.create_topic("orders")
        checker = OrderChecker(cluster)
        await cluster.start("worker-1", consuming(cluster, checker))
        async with (
            checker.producer(Producer("shop", nameserver=cluster.nameserver)) as producer,
            Chaos(cluster, seed=1, every_seconds=0.3, faults=["kill_worker", "pause_worker", "kill_broker"]),
        ):
            for step in range(30):
                await producer.send(Message("orders", b"%d" % step, sharding_key="a"))
                await asyncio.sleep(0.05)
        await cluster.settled("billing")
        checker.verify()
        assert {cluster.state(name) for name in (*cluster.brokers, *cluster.workers)} == {"running"}


@pytest.mark.parametrize("ha", [False, True], ids=["promoted", "elected"])
async def test_lost_broker_is_replaced_by_its_replica_and_returns_as_one(tmp_path: Path, ha: bool) -> None:
    async with TestCluster(real=True, folder=tmp_path, brokers=1, replicas=1, ha=ha, disconnect_grace_ms=1_000) as cluster:
        checker = OrderChecker(cluster)
        await cluster.create_topic("orders", queues=1)
        await cluster.start("worker", consuming(cluster, checker))
        async with checker.producer(Producer("shop", nameserver=cluster.nameserver)) as producer:
            for step in range(20):
                if step == 10:
                    await cluster.lose("broker-a")
                    assert not (tmp_path / "broker-a").exists()
                    taken = cluster.elected("broker-a") if ha else cluster.promote("broker-a")
                    assert await taken == "broker-a-replica-1"
                await producer.send(Message("orders", b"%d" % step, sharding_key="a"))
            await cluster.restart("broker-a")
            await cluster.replicated("broker-a")
            await cluster.restart("broker-a-replica-1")  # the master remains one, or hands over
            await producer.send(Message("orders", b"20", sharding_key="a"))
        await cluster.settled("billing")
        checker.verify()


async def test_killed_program_runs_no_finally_and_its_connections_close(tmp_path: Path) -> None:
    async with real(tmp_path) as cluster:
        await cluster.create_topic("orders")
        records: list[str] = []
        consume = consuming(cluster, OrderChecker(cluster))

        async def main() -> None:
            try:
                records.append("begin")
                await consume()
            finally:
                records.append("end")

        await cluster.start("worker", main)
        await cluster.settled("billing")
        await cluster.pause("worker")
        await cluster.kill("worker")
        async with asyncio.timeout(30):
            while (report := await cluster.group_status("billing")) is not None and report.members:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert records == ["begin"]
        await cluster.restart("worker")
        await cluster.settled("billing")
        await cluster.stop("worker")
        assert records == ["begin", "begin", "end"]


async def test_simulator_only_functions_raise_an_error(tmp_path: Path) -> None:
    async with real(tmp_path) as cluster:
        with pytest.raises(OnlySimulatedError, match="advance by 1800 s"):
            await cluster.advance(minutes=30)
        with pytest.raises(OnlySimulatedError, match=r"partition\(\) needs the simulator"):
            cluster.partition("broker-a", "broker-b")
        calls: list[Callable[[], object]] = [
            lambda: cluster.heal(),
            lambda: cluster.slow_link("broker-a", seconds=1),
            lambda: cluster.reset_connections("broker-a"),
        ]
        for call in calls:
            with pytest.raises(OnlySimulatedError):
                call()
        with pytest.raises(OnlySimulatedError):
            await cluster.cut_power("broker-a")
        with pytest.raises(OnlySimulatedError):
            cluster.set_wall_clock("broker-a", ahead_seconds=1)
        assert cluster.seed is None


async def test_failing_program_or_broker_fails_the_test(tmp_path: Path) -> None:
    async def broken() -> None:
        raise ZeroDivisionError("in the program")

    async def run() -> None:
        async with real(tmp_path) as cluster:
            await cluster.start("worker", broken)
            await cluster.until(lambda: cluster.state("worker") == "failed")
            os.kill(cluster._servers()["broker-a"]._process.pid, 9)  # type: ignore[attr-defined]  # without its knowledge
            await cluster.until(lambda: cluster.state("broker-a") == "failed")

    with pytest.raises(WorkerFailedError) as caught:
        await run()
    assert "in the program" in str(caught.value)
    assert "broker-a ended with exit code -9" in str(caught.value)


PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"
FLAG = "--lockstep-real"
OURS = """
async def test_cut(lockstep_cluster):
    lockstep_cluster.partition("broker-a")
    await lockstep_cluster.advance(minutes=30)

async def test_is_real(lockstep_cluster, lockstep_clock):
    assert lockstep_cluster.real
    await lockstep_clock.advance(seconds=0.01)
    assert lockstep_cluster.seed is None
"""


def outcomes(folder: Path, *arguments: str) -> dict[str, str]:
    """Return test → "PASSED", "FAILED", "SKIPPED …"."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--color=no", "-v", "-rs", *arguments]
    reported = subprocess.run(command, cwd=folder, env=clean_environment(), capture_output=True, text=True, timeout=120, check=False).stdout
    found = {}
    for line in reported.splitlines():
        test, _, outcome = line.partition("::")[2].partition(" ")
        if outcome.startswith(("PASSED", "FAILED", "SKIPPED")):
            found[test] = outcome.partition("[")[0].strip()
    assert len(found) == 3, reported
    return found


def test_one_option_runs_the_same_tests_with_real_processes(tmp_path: Path) -> None:
    """The example of a cluster in docs/testing.md is unchanged, and some functions exist in only one of the two backends."""
    billing, test_billing = [block.text for block in blocks(PAGE.read_text()) if block.language == "python"][2:4]
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    (tmp_path / "billing.py").write_text(billing)
    (tmp_path / "test_billing.py").write_text(test_billing)
    (tmp_path / "test_ours.py").write_text(OURS)
    example = "test_bills_are_in_order_whatever_dies"
    assert outcomes(tmp_path) == {example: "PASSED", "test_cut": "PASSED", "test_is_real": "FAILED"}
    real = outcomes(tmp_path, FLAG)
    assert real.pop("test_cut").startswith("SKIPPED (partition() needs the simulator")
    assert real == {example: "PASSED", "test_is_real": "PASSED"}
