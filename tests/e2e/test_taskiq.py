"""lockstep.taskiq with real worker processes of Taskiq and a real broker."""

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lockstep.client import LocalProtocolError, MessageIllegalError
from lockstep.operations.admin_client import AdminClient
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.headers.send import SendMessageHeader
from lockstep.protocol.messages.compression import SYS_ZLIB
from lockstep.runtime.host import Host
from support.cluster import QUICK, Cluster
from support.processes import completed

pytest.importorskip("taskiq")

from taskiq.exceptions import SendTaskError

from lockstep.taskiq import LockstepBroker
from support import taskiq_shop as shop

pytestmark = pytest.mark.e2e


class Workers:
    """Worker processes, and the file in which their tasks write."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.file = cluster.folder / "tasks"
        self.running: dict[str, asyncio.subprocess.Process] = {}

    def lines(self) -> list[tuple[str, str]]:
        """Return (process, text) of each line."""
        text = self.file.read_text() if self.file.exists() else ""
        return [(process, said) for process, _, said in (line.partition(" ") for line in text.splitlines())]

    def count(self, text: str) -> int:
        return sum(line.startswith(text) for _, line in self.lines())

    async def start(self, name: str, timeout_ms: int = 900_000) -> None:
        """Start a worker with one process, and wait until it has joined the group."""
        known = self.count("started")
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "TASKS_FILE": str(self.file),
            "TASKS_NAMESERVER": self.cluster.nameservers,
            "TASKS_TIMEOUT_MS": str(timeout_ms),
        }
        command = [sys.executable, "-m", "taskiq", "worker", "support.taskiq_shop:broker", "--workers", "1", "--max-async-tasks", "10"]
        with (self.cluster.folder / f"{name}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=log, stderr=log, start_new_session=True)
        self.running[name] = process
        await self.cluster.until(f"{name} has started", lambda: self.count("started") > known)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to the worker and its process."""
        os.killpg(self.running[name].pid, number)

    async def stop(self, name: str) -> None:
        self.running[name].send_signal(signal.SIGTERM)
        await self.running.pop(name).wait()

    async def kill(self, name: str) -> None:
        self.signal(name, signal.SIGKILL)
        await self.running.pop(name).wait()


@pytest.fixture
async def workers(cluster: Cluster) -> AsyncIterator[Workers]:
    await cluster.servers(*QUICK, queues=2, brokers=["broker-a"])
    await cluster.command("topic", "create", "tasks", "--queues", "2")
    made = Workers(cluster)
    yield made
    for name in list(made.running):
        await made.kill(name)


@asynccontextmanager
async def client(workers: Workers) -> AsyncIterator[LockstepBroker]:
    """Yield the broker in the process that sends tasks."""
    broker = LockstepBroker("tasks", "workers", workers.cluster.nameservers)
    broker.local_task_registry = shop.broker.local_task_registry
    for task in broker.local_task_registry.values():
        task.broker = broker
    await broker.startup()
    yield broker
    await broker.shutdown()


async def test_tasks_run_once_in_one_worker_and_are_shared_by_two(workers: Workers) -> None:
    """A queue that moves to another worker may have some tasks run twice, as in any concurrent group."""
    await workers.start("worker-1")
    async with client(workers):
        for number in range(40):
            await shop.mail.kicker().with_labels(sharding_key=str(number % 4)).kiq(f"order-{number}")
        await shop.fail.kiq("order-x")
        await workers.cluster.until("all ran", lambda: workers.count("mailed") == 40 and workers.count("fails") == 1)
        await workers.cluster.until_lag(0, "workers")
        assert {text for _, text in workers.lines() if text.startswith("mailed")} == {f"mailed order-{number}" for number in range(40)}
        assert workers.count("fails") == 1, "a task that raises is acknowledged"
        await workers.start("worker-2")
        number = 40
        while len({process for process, text in workers.lines() if text.startswith("mailed")}) == 1:
            await shop.mail.kiq(f"order-{number}")
            number += 1
    for name in ("worker-1", "worker-2"):
        await workers.stop(name)


async def test_task_of_a_killed_worker_runs_again(workers: Workers) -> None:
    await workers.start("worker-1")
    async with client(workers):
        await shop.mail.kiq("order-1", 3600)
        await workers.cluster.until("it has begun", lambda: workers.count("begins order-1") == 1)
        await workers.kill("worker-1")
        await workers.start("worker-2")
        await workers.cluster.until("it has begun again", lambda: workers.count("begins order-1") == 2)


async def test_task_that_is_not_acknowledged_in_time_is_delivered_again(workers: Workers) -> None:
    await workers.start("worker-1", timeout_ms=500)
    async with client(workers):
        await shop.forget.kiq("order-1")  # type: ignore[call-overload]
        await workers.cluster.until("its second delivery", lambda: workers.count("done order-1") == 1)
        await workers.cluster.until_lag(0, "workers")
    assert workers.count("forgets order-1") == 1


async def test_stopped_worker_gives_back_what_it_has_not_run(workers: Workers) -> None:
    """Of 30 long tasks it runs 10, and has fetched the others; none of those that it has run comes again."""
    await workers.start("worker-1")
    async with client(workers):
        for number in range(30):
            await shop.mail.kiq(f"order-{number}", 2)
        await workers.cluster.until("ten run", lambda: workers.count("begins") == 10)
        await workers.stop("worker-1")
        done = workers.count("mailed")
        assert done == 10
        await workers.start("worker-2")
        await workers.cluster.until("all ran", lambda: workers.count("mailed") == 30)
        await workers.cluster.until_lag(0, "workers")
    assert set(Counter(text for _, text in workers.lines() if text.startswith("mailed")).values()) == {1}


async def test_body_that_can_not_be_decompressed_fails_its_delivery_and_not_the_worker(workers: Workers) -> None:
    await workers.start("worker-1")
    admin = AdminClient(Host.current(), workers.cluster.nameservers)
    (broker,) = await admin.brokers()
    header = SendMessageHeader("anybody", "tasks", 0, sys_flag=SYS_ZLIB, properties="")
    await admin.request(broker, RequestCode.SEND_MESSAGE, header, b"no zlib stream")
    async with client(workers):
        await workers.cluster.until(
            "it has failed", lambda: "is not a zlib stream" in (workers.cluster.folder / "worker-1.log").read_text()
        )
        await shop.mail.kiq("order-1")
        await workers.cluster.until("the next one ran", lambda: workers.count("mailed order-1") == 1)
    await workers.stop("worker-1")


async def test_task_that_raises_is_retried_by_the_middleware_until_it_succeeds(workers: Workers) -> None:
    """Its delay is a second and a random part of one."""
    await workers.start("worker-1")
    async with client(workers):
        await shop.retried.kiq("order-1")
        await workers.cluster.until("it has succeeded", lambda: workers.count("booked order-1") == 1)
        await workers.cluster.until_lag(0, "workers")
    assert workers.count("tries order-1") == 3
    await workers.stop("worker-1")


async def test_task_whose_retry_can_not_be_sent_runs_again_and_the_reason_is_logged(workers: Workers) -> None:
    await workers.start("worker-1")
    async with client(workers):
        await shop.hopeless.kiq("order-1")
        await workers.cluster.until("it runs again", lambda: workers.count("gives up order-1") == 2)
    log = (workers.cluster.folder / "worker-1.log").read_text()
    assert "at most 40 (timer_days_max)" in log
    assert "call.failed" in log
    await workers.kill("worker-1")


async def test_label_delay_delays_and_a_wrong_one_is_refused(workers: Workers) -> None:
    await workers.start("worker-1")
    async with client(workers):
        await shop.mail.kicker().with_labels(delay=1).kiq("later")
        await workers.cluster.until("it ran", lambda: workers.count("mailed later") == 1)
        for wrong, error in (("soon", LocalProtocolError), (41 * 86_400, MessageIllegalError)):
            with pytest.raises(SendTaskError) as raised:
                await shop.mail.kicker().with_labels(delay=wrong).kiq("never")
            assert isinstance(raised.value.__cause__, error)
    assert not workers.count("begins never")


async def test_worker_without_a_nameserver_ends_with_the_reason(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TASKS_NAMESERVER": "127.0.0.1:1"}
    code = "import asyncio; from support.taskiq_shop import broker; asyncio.run(broker.startup())"
    ended, _, printed = await completed(sys.executable, "-c", code, environment=environment)
    assert ended == 1
    assert "TransportError" in printed
