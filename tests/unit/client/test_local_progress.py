"""Progress of a broadcasting member is written to its file in time, with one write at a time."""

import asyncio
import errno
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.client.consumer.config import ConsumerConfig
from lockstep.client.consumer.grants.broadcast import WRITE_MS, LocalProgress
from lockstep.client.consumer.grants.local_offsets import LocalOffsets
from lockstep.client.consumer.grants.ownership import GrantPolicy, QueueOwnership
from lockstep.protocol.bodies import LockResult, LockVerdict
from lockstep.protocol.topics.queue import MessageQueue
from lockstep.runtime.host import Host
from lockstep.testing.simulation.disk import Fault, SimFiles

pytestmark = pytest.mark.simulated

QUEUE = MessageQueue("orders", "a", 0)
PATH = "/offsets/prices/default/offsets.json"


class SlowThreads:
    """Threads in which each job takes 50 ms, even if its caller was cancelled."""

    def __init__(self) -> None:
        self.running = 0
        self.most = 0
        self.writes = 0

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.running += 1
        self.writes += function.__name__ == "write"
        self.most = max(self.most, self.running)

        def work() -> None:
            self.running -= 1
            try:
                result, error = function(*arguments), None
            except OSError as failed:
                result, error = None, failed
            if not done.cancelled():
                done.set_exception(error) if error else done.set_result(result)

        asyncio.get_running_loop().call_later(0.05, work)
        return await done


class ProgressUnderTest:
    def __init__(self) -> None:
        here = Host.current()
        self.files, self.threads = SimFiles("x"), SlowThreads()
        host = Host(here.clock, here.random, self.files, self.threads, here.boot_id)  # type: ignore[arg-type]
        instance: Any = SimpleNamespace(host=host, routes=None)
        self.progress = LocalProgress(instance, ConsumerConfig(offset_dir="/offsets"), "prices")
        self.own = QueueOwnership("prices", QUEUE, GrantPolicy.LOCAL)

    async def __aenter__(self) -> "ProgressUnderTest":
        await self.progress.open()
        self.progress._offsets.since("orders", 1)
        self.own.want()
        self.own.handle_lock_response(self.own.grant_requested(), LockResult("prices", "orders", 0, LockVerdict.OK, epoch=1))
        self.task = asyncio.ensure_future(self.progress.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])
        await self.progress.close()

    def done(self, offset: int, *, urgent: bool = False) -> None:
        self.own.progressed(1, offset)
        self.progress.record_progress(self.own, urgent=urgent)

    def stored(self) -> int | None:
        file = self.files.open(PATH)
        place = LocalOffsets.decode(file.pread(file.size(), 0), "prices").place(QUEUE)
        return None if place is None else place.offset


async def test_offset_file_is_written_within_a_second_and_not_once_per_message() -> None:
    async with ProgressUnderTest() as bench:
        for offset in range(1, 301):
            bench.done(offset)
            await asyncio.sleep(0.01)
        await asyncio.sleep(WRITE_MS / 1000 + 0.2)
        assert bench.stored() == 300
        assert bench.threads.writes <= 5
        await asyncio.sleep(10)
        assert bench.threads.writes <= 5, "nothing new, nothing written"


async def test_urgent_progress_is_written_immediately() -> None:
    async with ProgressUnderTest() as bench:
        bench.done(1)
        await asyncio.sleep(0.2)
        for offset in (2, 3):
            bench.done(offset, urgent=True)
            await asyncio.sleep(0.1)
            assert bench.stored() == offset


@pytest.mark.parametrize("at_s", [0.0, 0.01, 0.04, 0.06])
async def test_final_write_waits_for_the_previous_one_and_contains_all_progress(at_s: float) -> None:
    bench = ProgressUnderTest()
    async with bench:
        bench.done(1, urgent=True)
        await asyncio.sleep(at_s)
        bench.done(2)
    assert bench.threads.most == 1, "two at once would spoil the file"
    assert bench.threads.running == 0, "and the lock is given back behind the last one"
    assert bench.stored() == 2


async def test_full_disk_is_logged_once_and_writes_are_retried(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with ProgressUnderTest() as bench:
        bench.files.faults.append(Fault("write", error=errno.ENOSPC, count=5))
        for offset in range(1, 500):
            bench.done(offset, urgent=True)
            await asyncio.sleep(0.02)
        await asyncio.sleep(2)
        assert bench.stored() == 499
    reported = [record.message for record in caplog.records if "offsets." in record.message]
    assert len([line for line in reported if "offsets.unwritable" in line]) == 1
    assert len([line for line in reported if "offsets.writable_again" in line]) == 1


@pytest.mark.parametrize("at_s", [0.0, 0.01, 0.06])
async def test_cancelled_open_releases_the_file_lock(at_s: float) -> None:
    bench = ProgressUnderTest()
    opening = asyncio.ensure_future(bench.progress.open())
    await asyncio.sleep(at_s)
    opening.cancel()
    await asyncio.wait([opening])
    await bench.progress.close()
    assert bench.threads.running == 0
    assert not bench.files.locked, "another start may have it"


async def test_write_for_an_earlier_grant_does_not_confirm_progress_of_the_current_one() -> None:
    async with ProgressUnderTest() as bench:
        bench.progress.workers[bench.own] = SimpleNamespace(wake_waiters=lambda: None)  # type: ignore[assignment]
        bench.done(90, urgent=True)
        await asyncio.sleep(0.01)
        bench.own.stale(1)
        bench.own.handle_lock_response(bench.own.grant_requested(), LockResult("prices", "orders", 0, LockVerdict.OK, epoch=2, offset=10))
        await asyncio.sleep(0.1)
        assert bench.own.committed_offset == 10
        bench.own.progressed(2, 11)
        bench.progress.record_progress(bench.own, urgent=True)
        await asyncio.sleep(0.2)
        assert bench.own.committed_offset == bench.stored() == 11
