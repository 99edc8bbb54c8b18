"""Clocks, random values and threads of a simulated machine."""

import asyncio
import io
import json
import time

import pytest

from lockstep.client.client import Client
from lockstep.client.instance import Instance
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import configure, get_logger
from lockstep.testing.simulation import SimLoop


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


def test_monotonic_clocks_equal_the_time_of_the_loop(sim: SimLoop) -> None:
    async def main() -> tuple[float, int, int, int]:
        await asyncio.sleep(1.5)
        clock = Host.current().clock
        return sim.time(), clock.monotonic_ms(), clock.boot_ms(), clock.monotonic_us()

    process = sim.start(sim.machine("10.0.0.11"), main)
    sim.run_until(2)
    at, monotonic_ms, boot_ms, us = process.main.result()
    assert monotonic_ms == boot_ms == int(at * 1000)
    assert us == int(at * 1_000_000)


def test_timer_set_by_the_clocks_milliseconds_is_never_early(sim: SimLoop) -> None:
    async def main() -> list[int]:
        clock, early = Host.current().clock, []
        for wait_ms in range(1, 400):
            due = clock.monotonic_ms() + wait_ms
            await asyncio.sleep(wait_ms / 1000)
            early.append(due - clock.monotonic_ms())
        return early

    machine = sim.machine("10.0.0.11")
    machine.rate = 0.97
    process = sim.start(machine, main)
    sim.run_until(1000)
    assert max(process.main.result()) <= 0


def test_wall_clock_jump_does_not_change_the_monotonic_clock(sim: SimLoop) -> None:
    machine = sim.machine("10.0.0.11")
    clock = sim.start(machine, forever).host.clock
    before = clock.wall_ms(), clock.monotonic_ms()
    machine.wall_offset_s -= 3600
    assert clock.wall_ms() == before[0] - 3_600_000
    assert clock.monotonic_ms() == before[1]


def test_simulated_wall_clock_differs_from_the_real_one(sim: SimLoop) -> None:
    assert abs(sim.world.host.clock.wall_ms() - time.time() * 1000) > 60_000


def test_random_values_depend_on_seed_machine_and_start() -> None:
    def tokens(seed: int) -> list[bytes]:
        loop = SimLoop(seed)
        names = ("10.0.0.11", "10.0.0.12", "10.0.0.11")
        found = [loop.start(loop.machine(name), forever).host.random.token(8) for name in names]
        loop.close()
        return found

    assert tokens(1) == tokens(1)
    assert len({*tokens(1), *tokens(2)}) == 6


def test_daemon_thread_runs_in_virtual_time_in_its_process(sim: SimLoop) -> None:
    async def main() -> None:
        response: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        Host.current().threads.start_daemon(lambda: sim.call_soon_threadsafe(response.set_result, sim.now) and None, "listener")
        assert sim.current.machine.listener_delay_s == (1, 2)
        assert 1 <= await response <= 2

    machine = sim.machine("10.0.0.11")
    machine.listener_delay_s = (1, 2)
    process = sim.start(machine, main)
    sim.run_until(5)
    assert process.main.result() is None


def test_job_of_a_killed_process_never_runs(sim: SimLoop) -> None:
    seen: list[str] = []

    async def main() -> None:
        Host.current().threads.start_daemon(lambda: seen.append("daemon"), "listener")
        await Host.current().threads.run(seen.append, "job")

    machine = sim.machine("10.0.0.11")
    machine.listener_delay_s = machine.thread_delay_s = (1, 2)
    sim.start(machine, main)
    sim.run_until(0.01)
    sim.kill(machine)
    sim.run_until(5)
    assert not seen


def test_effect_of_a_job_precedes_its_result(sim: SimLoop) -> None:
    effects: list[float] = []

    async def main() -> float:
        await Host.current().threads.run(lambda: effects.append(sim.now))
        return sim.now

    machine = sim.machine("10.0.0.11")
    machine.thread_delay_s = (1, 2)
    process = sim.start(machine, main)
    sim.run_until(5)
    assert 0 < effects[0] < process.main.result() == pytest.approx(1.5, abs=0.5)


def test_log_lines_have_the_wall_time_of_their_machine(sim: SimLoop, logging_as_it_was: None) -> None:
    stream = io.StringIO()
    configure("info", stream=stream)

    async def main() -> None:
        await asyncio.sleep(1.25)
        get_logger("test").info("something.happened")

    machine = sim.machine("10.0.0.11")
    machine.wall_offset_s = 3600
    sim.start(machine, main)
    sim.run_until(5)
    assert json.loads(stream.getvalue())["timestamp"] == "2026-01-01T01:00:01.250+00:00"


def test_each_process_has_its_own_host(sim: SimLoop) -> None:
    async def main() -> Instance:
        return Client("10.0.0.1:9876").instance()

    processes = [sim.start(sim.machine(f"10.0.1.{number}"), main) for number in (1, 2)]
    sim.run_until(1)
    first, second = (process.main.result() for process in processes)
    assert first is not second
    assert first.host is processes[0].host
    assert f"@{processes[0].number}#" in first.client_id
