"""The scheduler: virtual time, turns and their order."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.testing.simulation import SimLoop, SimulationStuckError, scheduler


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


def test_time_advances_to_the_next_timer(sim: SimLoop) -> None:
    async def main() -> list[float]:
        seen = [sim.now]
        await asyncio.sleep(3600)
        return [*seen, sim.now]

    assert sim.run_until_complete(main()) == [0.0, pytest.approx(3600, abs=1e-6)]


def test_callbacks_of_one_process_run_first_in_first_out(sim: SimLoop) -> None:
    seen: list[int] = []
    for number in range(10):
        sim.call_soon(seen.append, number)
    sim.run_until(0)
    assert seen == list(range(10))


def test_timers_due_at_the_same_time_run_in_the_order_of_creation(sim: SimLoop) -> None:
    seen: list[int] = []
    for number in range(10):
        sim.call_at(1.0, seen.append, number)
    sim.run_until(2)
    assert seen == list(range(10))


def process_order(seed: int) -> str:
    loop = SimLoop(seed)
    seen: list[str] = []

    def program(name: str) -> Callable[[], "asyncio.Future[None]"]:
        async def main() -> None:
            for _ in range(4):
                seen.append(name)
                await asyncio.sleep(0)

        return main  # type: ignore[return-value]

    for name in "abc":
        loop.start(loop.machine(name), program(name))  # type: ignore[arg-type]
    loop.run_until(1)
    loop.close()
    return "".join(seen)


def test_process_order_is_random_and_depends_only_on_the_seed() -> None:
    orders = [process_order(seed) for seed in range(20)]
    assert orders == [process_order(seed) for seed in range(20)]
    assert {order[0] for order in orders} == {"a", "b", "c"}
    assert len(set(orders)) > 10


@given(rate=st.floats(0.9, 1.1), delay=st.floats(0.0001, 5000), seed=st.integers(0, 50))
def test_timer_of_a_drifting_machine_fires_by_its_own_clock(rate: float, delay: float, seed: int) -> None:
    loop = SimLoop(seed)
    machine = loop.machine("10.0.0.11")
    machine.rate = rate
    seen: list[tuple[float, float]] = []

    async def main() -> None:
        due = loop.time() + delay
        await asyncio.sleep(delay)
        seen.append((due, loop.time()))

    loop.start(machine, main)
    loop.run_until(10_000)
    loop.close()
    [(due, fired)] = seen
    assert due <= fired <= due + 1e-6


@pytest.mark.parametrize(("rate", "woke"), [(2.0, 55.0), (0.5, 190.0)])
def test_change_of_a_clocks_rate_moves_its_pending_timers(sim: SimLoop, rate: float, woke: float) -> None:
    machine = sim.machine("10.0.0.11")
    seen: list[float] = []

    async def main() -> None:
        await asyncio.sleep(100)
        seen.append(sim.now)

    sim.start(machine, main)
    sim.run_until(10)
    machine.rate = rate
    sim.run_until(1000)
    assert seen == [pytest.approx(woke, abs=1e-6)]


@pytest.mark.parametrize(("at", "ran"), [(4.999, True), (5.0, True), (5.001, False)])
def test_run_until_runs_events_due_by_then_and_none_later(sim: SimLoop, at: float, ran: bool) -> None:
    seen: list[float] = []
    sim.at(at, seen.append, at)
    sim.run_until(5.0)
    assert (seen == [at]) is ran
    assert sim.now == 5.0


def test_run_until_a_past_time_raises(sim: SimLoop) -> None:
    sim.run_until(5)
    with pytest.raises(ValueError, match="in the past"):
        sim.run_until(4)


def test_paused_process_is_suspended_and_continues_on_resume(sim: SimLoop) -> None:
    machine = sim.machine("10.0.0.11")
    seen: list[float] = []

    async def main() -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            seen.append(round(sim.now, 3))

    sim.start(machine, main)
    sim.run_until(1.5)
    sim.pause(machine)
    sim.run_until(9)
    assert seen == [1.0]
    sim.resume(machine)
    sim.run_until(20)
    assert seen == [1.0, 9.0, 10.0]


def order_after_pause(seed: int) -> str:
    loop = SimLoop(seed)
    machine = loop.machine("10.0.0.11")
    seen: list[str] = []

    async def main() -> None:
        loop.call_later(1.0, seen.append, "timer")
        await forever()

    process = loop.start(machine, main)
    loop.run_until(0.5)
    loop.pause(machine)
    loop.at(0.9, seen.append, "arrival", process=process)
    loop.run_until(2)
    assert not seen
    loop.resume(machine)
    loop.run_until(3)
    loop.close()
    return " ".join(seen)


def test_timers_and_arrivals_after_a_pause_run_in_either_order() -> None:
    assert {order_after_pause(seed) for seed in range(20)} == {"timer arrival", "arrival timer"}


def test_deadlock_error_lists_the_waiting_tasks(sim: SimLoop) -> None:
    sim.start(sim.machine("10.0.0.11"), forever)

    async def body() -> None:
        await asyncio.sleep(5)
        await asyncio.Event().wait()

    with pytest.raises(SimulationStuckError, match="no event is left to happen") as caught:
        sim.run_until_complete(body())
    text = str(caught.value)
    assert "seed 1, 5.0" in text
    assert "10.0.0.11 main 1 at " in text
    assert "in forever" in text
    assert "in wait" in text


def test_wait_beyond_the_time_limit_raises(sim: SimLoop) -> None:
    async def ticking() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(1)

    sim.start(sim.machine("10.0.0.11"), ticking)
    sim.time_limit_s = 60
    with pytest.raises(SimulationStuckError, match="limit of 60 s"):
        sim.run_until_complete(forever())
    assert 59 <= sim.now <= 60


def test_loop_that_never_waits_raises(sim: SimLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "TURNS_MAX", 1000)

    async def spin() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with pytest.raises(SimulationStuckError, match="1000 turns at one time"):
        sim.run_until_complete(spin())


def test_cancelled_timers_do_not_accumulate(sim: SimLoop) -> None:
    for _ in range(5_000):
        sim.call_later(1000, print).cancel()
    assert len(sim._heap) < 1_000


def test_cancelled_timers_do_not_advance_time(sim: SimLoop) -> None:
    sim.call_later(1000, print).cancel()
    with pytest.raises(SimulationStuckError):
        sim.run_until_complete(forever())
    assert sim.now == 0
