"""Host: clocks, random values, threads and the boot id."""

import asyncio
import os
import queue
import re
import threading
import time
from pathlib import Path

import pytest

from lockstep.runtime.clock import Clock
from lockstep.runtime.host import THREADS_MAX, Host, PoolThreads, SystemRandom, read_boot_id, running_host


def test_monotonic_and_boot_time_never_decrease_and_have_consistent_units() -> None:
    clock = Clock()
    readings = [(clock.monotonic_ms(), clock.boot_ms(), clock.monotonic_us()) for _ in range(1000)]
    assert readings == sorted(readings)
    low, us, high = clock.monotonic_ms(), clock.monotonic_us(), clock.monotonic_ms()
    assert low <= us // 1000 <= high
    assert clock.boot_ms() >= clock.monotonic_ms() - 1, "boot time counts suspension on top"


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this system has no clock that counts suspension")
def test_boot_time_is_read_from_the_clock_that_counts_suspension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "clock_gettime_ns", lambda clock: 7_000_000 if clock == time.CLOCK_BOOTTIME else 0)
    assert Clock().boot_ms() == 7


def test_wall_time_counts_from_1970() -> None:
    assert Clock().wall_ms() > 1_700_000_000_000


def test_random_values_stay_in_their_bounds() -> None:
    random = SystemRandom()
    assert len(random.token(16)) == 16
    assert random.token(16) != random.token(16)
    assert all(0.5 <= random.uniform(0.5, 1.0) <= 1.0 for _ in range(200))
    assert {random.below(3) for _ in range(200)} == {0, 1, 2}


async def test_function_runs_in_a_pool_thread_and_its_error_is_raised() -> None:
    threads = PoolThreads()
    try:
        assert await threads.run(lambda a, b: (threading.current_thread() is threading.main_thread(), a + b), 1, 2) == (False, 3)
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: 1 // 0)
    finally:
        threads.close()
        threads.close()


async def test_thread_pool_size_is_limited() -> None:
    threads = PoolThreads()
    running, most, gate = 0, 0, threading.Event()
    lock = threading.Lock()

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == THREADS_MAX:
                gate.set()
        gate.wait(10)
        with lock:
            running -= 1

    try:
        await asyncio.gather(*(threads.run(work) for _ in range(3 * THREADS_MAX)))
        assert most == THREADS_MAX
    finally:
        threads.close()


def test_daemon_thread_runs_outside_the_pool() -> None:
    seen = threading.Event()
    PoolThreads().start_daemon(seen.set, "beside")
    assert seen.wait(10)


def test_boot_id_is_the_kernels_and_constant() -> None:
    boot_id = Host.real().boot_id
    assert boot_id() == boot_id()
    assert re.fullmatch(r"[0-9a-f-]{36}", boot_id())


def test_missing_boot_id_is_replaced_by_a_new_one_at_every_start(tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    assert read_boot_id(missing) != read_boot_id(missing)


def test_daemon_thread_is_reused_only_when_idle() -> None:
    threads = PoolThreads()
    seen: queue.SimpleQueue[int] = queue.SimpleQueue()
    hold = threading.Event()
    threads.start_daemon(lambda: (seen.put(threading.get_ident()), hold.wait())[0], "busy")
    busy = seen.get(timeout=10)
    used = []
    for _ in range(20):
        threads.start_daemon(lambda: seen.put(threading.get_ident()), "short")
        used.append(seen.get(timeout=10))
    hold.set()
    assert busy not in used
    assert len(set(used)) < len(used)


def test_current_host_is_that_of_the_running_loop_if_it_has_one() -> None:
    brought = Host.real()

    class Loop(asyncio.SelectorEventLoop):
        lockstep_host = brought

    async def current() -> Host:
        return Host.current()

    with asyncio.Runner(loop_factory=Loop) as runner:
        assert runner.run(current()) is brought
    with asyncio.Runner() as runner:
        assert isinstance(runner.run(current()).random, SystemRandom)
    assert Host.current().pid == os.getpid()
    assert running_host() is None
