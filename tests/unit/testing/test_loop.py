"""SimLoop: simulated processes, and the guarantees of asyncio within them."""

import asyncio
import signal
import threading
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

import pytest

from lockstep.runtime.host import Host
from lockstep.testing.simulation import Process, SimLoop


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


def start_process(loop: SimLoop, main: Any, name: str = "10.0.0.11") -> Process:
    return loop.start(loop.machine(name), main)


# ---------------------------------------------------------------------------------------------------------------- processes


def test_code_runs_as_the_process_that_started_it(sim: SimLoop) -> None:
    seen: dict[str, Process] = {}

    async def main() -> None:
        seen["main"] = sim.current
        sim.call_soon(lambda: seen.setdefault("soon", sim.current))
        sim.call_later(1, lambda: seen.setdefault("later", sim.current))
        await asyncio.create_task(inner(), context=Context())
        await asyncio.to_thread(lambda: seen.setdefault("thread", sim.current))
        await asyncio.sleep(2)

    async def inner() -> None:
        seen["task"] = sim.current

    process = start_process(sim, main)
    assert sim.current is sim.world
    sim.run_until(5)
    assert seen == dict.fromkeys(["main", "soon", "task", "thread", "later"], process)


def test_process_ends_with_its_main_and_cancels_its_tasks(sim: SimLoop) -> None:
    seen: list[str] = []

    async def other(name: str) -> None:
        try:
            await forever()
        finally:
            seen.append(name)

    async def main() -> int:
        rest = [asyncio.create_task(other(name)) for name in "abc"]
        await asyncio.sleep(1)
        return len(rest)

    process = start_process(sim, main)
    sim.run_until(0.5)
    assert process.alive
    sim.run_until(2)
    assert not process.alive
    assert process.ended == "exit"
    assert process.main.result() == 3
    assert seen == ["a", "b", "c"]
    assert process.machine.process is None


def test_sys_exit_ends_only_its_own_process(sim: SimLoop) -> None:
    async def main() -> None:
        raise SystemExit(3)

    process = start_process(sim, main)
    sim.run_until(1)
    assert process.ended == "exit"
    assert process.main.result() == 3


@pytest.mark.parametrize("power", [False, True])
def test_killed_process_runs_no_more_code_not_even_finally_blocks(sim: SimLoop, power: bool) -> None:
    seen: list[str] = []

    async def main() -> None:
        sim.call_later(2, seen.append, "timer")
        try:
            await asyncio.sleep(3)
        finally:
            seen.append("finally")

    process = start_process(sim, main)
    sim.run_until(1)
    sim.kill(process.machine, power=power)
    sim.run_until(10)
    assert (process.alive, process.ended, process.machine.up) == (False, "power" if power else "kill", not power)
    assert not seen


def test_runner_ends_without_waiting_for_the_machines() -> None:
    seen: list[SimLoop] = []

    async def stubborn() -> None:
        try:
            await forever()
        finally:
            await forever()

    async def body() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        seen.append(loop)
        start_process(loop, stubborn)
        loop.pause(start_process(loop, forever, "10.0.0.12").machine)
        await asyncio.sleep(1)

    with asyncio.Runner(loop_factory=lambda: SimLoop(3)) as runner:
        runner.run(body())
    assert seen[0].is_closed()
    assert seen[0].now < 2


def test_result_of_a_process_can_be_awaited_from_outside(sim: SimLoop) -> None:
    async def main() -> str:
        await asyncio.sleep(5)
        return "done"

    async def body() -> str:
        result: str = await start_process(sim, main).main
        return result

    assert sim.run_until_complete(body()) == "done"


def test_process_can_kill_its_own_machine(sim: SimLoop) -> None:
    seen: list[str] = []

    async def main() -> None:
        sim.call_soon(seen.append, "ready")
        sim.kill(sim.current.machine)
        seen.append("to the next await")
        await asyncio.sleep(0)
        seen.append("beyond")

    start_process(sim, main)
    sim.run_until(10)
    assert seen == ["to the next await"]


def test_machine_has_another_boot_id_and_clock_after_a_power_cut(sim: SimLoop) -> None:
    machine = sim.machine("10.0.0.11")
    sim.start(machine, forever)
    before = machine.boot_id()
    sim.kill(machine)
    sim.start(machine, forever)
    assert machine.boot_id() == before
    shown = machine.local_s()
    sim.kill(machine, power=True)
    sim.run_until(5)
    sim.start(machine, forever)
    assert machine.up
    assert machine.boot_id() != before
    assert abs(machine.local_s() - shown - 5) > 1


def test_two_processes_can_run_on_one_machine(sim: SimLoop) -> None:
    machine = sim.machine("10.0.0.11")
    first, second = sim.start(machine, forever), sim.start(machine, forever)
    assert list(machine.processes.values()) == [first, second]
    sim.kill(machine)
    assert not first.alive
    assert not second.alive


def test_signal_calls_its_handler_or_kills_a_process_without_one(sim: SimLoop) -> None:
    async def stops() -> str:
        wake = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, wake.set)
        await wake.wait()
        return "stopped"

    polite, rude = start_process(sim, stops), start_process(sim, forever, "10.0.0.12")
    sim.run_until(1)
    sim.signal(polite.machine)
    sim.signal(rude.machine)
    sim.run_until(2)
    assert polite.main.result() == "stopped"
    assert (polite.ended, rude.ended) == ("exit", "kill")


def test_killing_or_pausing_the_test_process_raises(sim: SimLoop) -> None:
    with pytest.raises(ValueError, match="never killed"):
        sim.kill(sim.world.machine)
    with pytest.raises(ValueError, match="never paused"):
        sim.pause(sim.world.machine)


# ------------------------------------------------------------------------------------------------------------------- errors


def test_exception_in_a_callback_is_recorded_with_its_process() -> None:
    sim = SimLoop(1)

    async def main() -> None:
        sim.call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    sim.set_exception_handler(lambda loop, context: None)
    process = start_process(sim, main)
    sim.run_until(5)
    [error] = sim.errors
    assert isinstance(error.error, ZeroDivisionError)
    assert (error.machine, error.process) == ("10.0.0.11", process.number)
    assert "ZeroDivisionError" in str(error)
    sim.close()


def test_exception_of_a_main_coroutine_is_recorded() -> None:
    sim = SimLoop(1)

    async def main() -> None:
        raise RuntimeError("no")

    process = start_process(sim, main)
    sim.run_until(5)
    assert process.ended == "failed"
    assert [repr(error.error) for error in sim.errors] == ["RuntimeError('no')"]
    sim.close()


def test_each_process_has_its_own_exception_handler() -> None:
    sim = SimLoop(1)
    seen: list[str] = []

    def program(name: str) -> Any:
        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: seen.append(name))
            await asyncio.sleep(1)
            sim.call_soon(lambda: 1 // 0)
            await asyncio.sleep(1)

        return main

    start_process(sim, program("a"))
    start_process(sim, program("b"), "10.0.0.12")
    sim.run_until(5)
    assert sorted(seen) == ["a", "b"]
    assert len(sim.errors) == 2
    sim.close()


# --------------------------------------------------------------------------------------------------------- what asyncio has


async def use_wait_for() -> object:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(forever(), 30)
    return asyncio.get_running_loop().time()


async def use_timeout() -> object:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(30):
            await forever()
    return asyncio.get_running_loop().time()


async def use_gather() -> object:
    async def one(delay: float) -> float:
        await asyncio.sleep(delay)
        return delay

    assert await asyncio.gather(one(30), one(10)) == [30, 10]
    return asyncio.get_running_loop().time()


async def use_queue() -> object:
    queue: asyncio.Queue[int] = asyncio.Queue(1)

    async def put() -> None:
        for number in range(3):
            await queue.put(number)
            await asyncio.sleep(10)

    task = asyncio.create_task(put())
    assert [await queue.get() for _ in range(3)] == [0, 1, 2]
    await task
    return asyncio.get_running_loop().time()


async def use_task_group() -> object:
    event = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(event.wait())
        await asyncio.sleep(30)
        event.set()
    return asyncio.get_running_loop().time()


async def use_thread() -> object:
    def work() -> str:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        return "done"

    assert await asyncio.to_thread(work) == "done"
    assert await asyncio.get_running_loop().run_in_executor(None, work) == "done"
    with pytest.raises(ZeroDivisionError):
        await asyncio.to_thread(lambda: 1 // 0)
    await asyncio.sleep(30)
    return asyncio.get_running_loop().time()


USES = [use_wait_for, use_timeout, use_gather, use_queue, use_task_group, use_thread]


@pytest.mark.parametrize("use", USES)
def test_asyncio_primitives_work_in_virtual_time(use: Any) -> None:
    with asyncio.Runner(loop_factory=lambda: SimLoop(3)) as runner:
        assert runner.run(use()) == pytest.approx(30, abs=0.1)


def test_host_names_resolve_to_machines(sim: SimLoop) -> None:
    async def main() -> list[str]:
        sim.machine("10.0.0.11")
        loop = asyncio.get_running_loop()
        found = [await loop.getaddrinfo(name, 80) for name in ("localhost", "10.0.0.11")]
        with pytest.raises(OSError, match=r"no machine 'example\.com'"):
            await loop.getaddrinfo("example.com", 80)
        with pytest.raises(OSError, match=r"no machine 10\.1\.1\.1"):
            await loop.getaddrinfo("10.1.1.1", 80)
        return [infos[0][4][0] for infos in found]

    assert sim.run_until_complete(main()) == ["127.0.0.1", "10.0.0.11"]


def test_task_group_cancels_tasks_in_a_deterministic_order() -> None:
    def run() -> list[int]:
        seen: list[int] = []
        ballast = [object() for _ in range(len(everything) * 37)]

        async def child(number: int) -> None:
            try:
                await forever()
            finally:
                seen.append(number)

        async def main() -> None:
            async with asyncio.TaskGroup() as group:
                for number in range(50):
                    group.create_task(child(number))
                await asyncio.sleep(1)
                raise RuntimeError("no")

        with asyncio.Runner(loop_factory=lambda: SimLoop(3)) as runner, pytest.raises(ExceptionGroup):
            runner.run(main())
        everything.append(ballast)
        return seen

    everything: list[object] = []
    assert run() == run() == run()


def test_call_from_a_real_thread_raises(sim: SimLoop) -> None:
    refused: list[BaseException] = []

    def call() -> None:
        try:
            sim.call_soon_threadsafe(print)
        except RuntimeError as error:
            refused.append(error)

    async def main() -> None:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    sim.run_until_complete(main())
    assert len(refused) == 1


def test_closing_the_loop_ends_every_coroutine(sim: SimLoop) -> None:
    """Closing runs the rest of each coroutine, in which awaiting is impossible. There is no warning and no error."""

    async def stubborn() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(1)

    def start() -> Coroutine[Any, Any, None]:
        return stubborn()

    start_process(sim, start)
    killed = start_process(sim, start, "10.0.0.12")
    sim.run_until(1)
    sim.kill(killed.machine)
    sim.close()
    sim.close()
    with pytest.raises(RuntimeError, match="closed"):
        sim.run_until(2)


def test_current_host_is_that_of_the_calling_process(sim: SimLoop) -> None:
    hosts: list[Host] = []

    async def main() -> None:
        hosts.append(Host.current())

    process = start_process(sim, main)
    sim.run_until(1)
    assert hosts == [process.host]
    assert process.host.pid == process.number

    async def body() -> Host:
        return Host.current()

    assert sim.run_until_complete(body()) is sim.world.host
