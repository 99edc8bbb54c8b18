"""Delays are counted from the time at which a message was stored, by the boot clock, regardless of wall-clock changes."""

import asyncio

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lockstep.broker.store.log import clock_steps
from lockstep.runtime.steady_clock import STEP_MS, TRUST_MS
from support.delay_machine import LEVELS, Machine

HOUR_MS = 3_600_000


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("restarts", [False, True])
async def test_permanent_forward_jump_of_the_wall_clock_makes_no_delay_early(restarts: bool, snapshot: bool) -> None:
    """A delay of an hour, requested in the five minutes before the jump was trusted, ended at its due time."""
    machine = Machine()
    await machine.start()
    await machine.put(4, b"before the jump")
    await machine.pass_ms(10_000)
    machine.clock.ahead_ms = HOUR_MS
    await machine.pass_ms(10_000)
    await machine.put(4, b"before it is followed")
    assert await machine.pass_ms(TRUST_MS + 10_000) == 0
    assert machine.store.now_ms() == machine.clock.wall_ms()
    await machine.put(4, b"behind it")
    if snapshot:
        await machine.store.write_snapshot([])
    if restarts:
        await machine.restart()
    passed_ms = 30_000 + TRUST_MS
    assert await machine.pass_ms(HOUR_MS - passed_ms - 1, step_ms=10_000) == 0
    await machine.pass_ms(1)
    assert await machine.arrived() == [b"before the jump"]
    assert await machine.pass_ms(19_999, step_ms=10_000) == 1
    await machine.pass_ms(1)
    assert await machine.arrived() == [b"before the jump", b"before it is followed"]
    assert await machine.pass_ms(TRUST_MS + 10_000 - 1, step_ms=10_000) == 2
    assert await machine.pass_ms(1) == 3
    await machine.store.close()


@pytest.mark.parametrize("snapshot", [False, True])
async def test_restart_in_the_same_boot_makes_no_delay_early_for_any_wall_clock(snapshot: bool) -> None:
    """If its wall clock were trusted, a message delayed by an hour would be delivered at once."""
    machine = Machine()
    await machine.start()
    await machine.put(4)
    if snapshot:
        await machine.store.write_snapshot([])
    await machine.pass_ms(60_000)
    machine.clock.ahead_ms = HOUR_MS
    await machine.restart()
    assert await machine.pass_ms(TRUST_MS + 60_000) == 0
    assert await machine.pass_ms(HOUR_MS - TRUST_MS - 120_000 - 1, step_ms=10_000) == 0
    assert await machine.pass_ms(1) == 1
    await machine.store.close()


@pytest.mark.parametrize("ahead_ms", [6_000, -6_000, 1_900, -1_900])
async def test_small_jump_before_a_restart_in_the_same_boot_does_not_shift_delays(ahead_ms: int) -> None:
    """The jump may be as small as a possible drift of the boot clock."""
    machine = Machine()
    await machine.start()
    await machine.pass_ms(100_000, step_ms=10_000)
    await machine.put(3)
    machine.clock.ahead_ms = ahead_ms
    await machine.restart()
    assert machine.store.now_ms() == machine.clock.now_ms
    assert await machine.pass_ms(59_999) == 0
    assert await machine.pass_ms(1) == 1
    await machine.pass_ms(TRUST_MS + 2_000, step_ms=1_000)
    assert machine.store.now_ms() == machine.clock.wall_ms()
    await machine.store.close()


async def test_wall_clock_set_back_long_after_the_last_reading_makes_no_delay_late() -> None:
    """If a twentieth of the time since the reading counted as drift of the boot clock, it would be followed without a step."""
    machine = Machine()
    await machine.start()
    await machine.put(4)
    await machine.pass_ms(3_000_000, step_ms=10_000)
    machine.clock.ahead_ms -= 140_000
    await machine.restart()
    assert await machine.pass_ms(600_000 - 1, step_ms=10_000) == 0
    assert await machine.pass_ms(1) == 1
    await machine.store.close()


@pytest.mark.parametrize("jump_ms", [1_900, -1_900])
async def test_many_small_wall_clock_steps_do_not_shift_delays(jump_ms: int) -> None:
    """A time server may set the clock by less than two seconds at a time."""
    machine = Machine()
    await machine.start()
    await machine.put(3)
    for _ in range(30):
        await machine.pass_ms(1_000)
        machine.clock.ahead_ms += jump_ms
    assert await machine.pass_ms(29_999, step_ms=997) == 0
    assert await machine.pass_ms(1) == 1
    await machine.store.close()


async def test_small_steps_back_and_forth_make_no_delay_early() -> None:
    """If neither the jumps back nor the return counted as steps, 60 s would become 41 s."""
    machine = Machine()
    await machine.start()
    for _ in range(10):
        machine.clock.ahead_ms -= 1_900
        await machine.pass_ms(5_000)
    await machine.put(3)
    for _ in range(10):
        machine.clock.ahead_ms += 1_900
        await machine.pass_ms(1_000)
    assert await machine.pass_ms(49_999, step_ms=997) == 0
    assert await machine.pass_ms(1) == 1
    await machine.store.close()


async def test_step_back_shorter_than_the_check_interval_makes_no_delay_late() -> None:
    """The time had advanced nonetheless, so pending messages were not checked again."""
    machine = Machine()
    await machine.start()
    await machine.put(3)
    for _ in range(20):
        await machine.pass_ms(1_000)
        machine.clock.ahead_ms -= 900
    assert await machine.pass_ms(40_000) == 1
    await machine.store.close()


@pytest.mark.parametrize("snapshot", [False, True])
async def test_wall_clock_lead_without_a_step_survives_a_restart(snapshot: bool) -> None:
    """If each start trusted the last 240 ms, twenty starts would make 60 s 55 s."""
    machine = Machine()
    await machine.start()
    await machine.put(3)
    for _ in range(20):
        await machine.pass_ms(1_000)
        machine.clock.ahead_ms += STEP_MS - 10
        if snapshot:
            await machine.store.write_snapshot([])
        await machine.restart()
    assert await machine.pass_ms(39_999, step_ms=997) == 0
    assert await machine.pass_ms(1) == 1
    await machine.store.close()


async def test_wall_clock_is_trusted_after_a_reboot() -> None:
    """The time for which the machine was off is unknown otherwise."""
    machine = Machine()
    await machine.start()
    await machine.put(4)
    machine.clock.ahead_ms = HOUR_MS
    await machine.restart(boots=True)
    await machine.look()
    assert await machine.arrived() == [b"x"]
    await machine.store.close()


async def test_slow_clock_after_a_reboot_delays_by_at_most_the_time_switched_off() -> None:
    machine = Machine()
    await machine.start()
    await machine.put(4)
    machine.clock.now_ms += 120_000
    machine.clock.ahead_ms = -60_000
    await machine.restart(boots=True)
    await machine.pass_ms(10_000)
    machine.clock.ahead_ms = 0
    await machine.pass_ms(TRUST_MS + 10_000)
    assert machine.store.now_ms() == machine.clock.wall_ms()
    assert await machine.pass_ms(HOUR_MS - 140_000 - TRUST_MS - 1, step_ms=10_000) == 0
    assert await machine.pass_ms(60_000 + 1) == 1
    await machine.store.close()


STEPS = st.one_of(
    st.tuples(st.just("pass"), st.sampled_from([1_000, 30_000, TRUST_MS + 2_000])),
    st.tuples(st.just("jump"), st.sampled_from([-30 * HOUR_MS, -HOUR_MS, HOUR_MS, 30 * HOUR_MS]) | st.integers(-2_500, 2_500)),
    st.tuples(st.just("put"), st.integers(1, 4)),
    st.tuples(st.just("snapshot"), st.just(0)),
    st.tuples(st.just("restart"), st.sampled_from([0, 5_000, HOUR_MS])),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=12))
@example([("put", 4), ("jump", HOUR_MS), ("pass", TRUST_MS + 2_000)])
@example([("jump", -1_900), ("pass", 1_000), ("put", 3), ("jump", 1_900)])
@example([("put", 4), ("jump", 240), ("pass", 1_000), ("snapshot", 0), ("restart", 0), ("jump", 240), ("restart", 0)])
@example([("put", 4), ("pass", TRUST_MS + 2_000), ("jump", -10_000), ("restart", 0)])
@example([("put", 4), ("jump", -HOUR_MS), ("pass", TRUST_MS + 2_000), ("jump", HOUR_MS), ("pass", TRUST_MS + 2_000)])
def test_every_message_is_on_time_within_one_boot(steps: list[tuple[str, int]]) -> None:
    """This holds for any number and duration of wall-clock changes, and for a kill at any time."""

    async def main() -> None:
        machine = Machine()
        await machine.start()
        due: dict[bytes, int] = {}

        async def check() -> None:
            await machine.look()
            found = await machine.arrived()
            assert sorted(found) == sorted(body for body, at in due.items() if at <= machine.clock.now_ms)

        for what, value in steps:
            if what == "pass":
                end = machine.clock.now_ms + value
                while machine.clock.now_ms < end:
                    machine.clock.now_ms = min(end, machine.clock.now_ms + 10_000)
                    await check()
            elif what == "jump":
                machine.clock.ahead_ms += value
            elif what == "put":
                body = b"%d" % len(due)
                due[body] = machine.clock.now_ms + LEVELS[value - 1]
                await machine.put(value, body)
            elif what == "snapshot":
                await machine.store.write_snapshot([])
            else:
                await machine.store.close(clean=False)
                machine.clock.now_ms += value
                await machine.start()
            await check()
        for at in sorted(due.values()):
            if at > machine.clock.now_ms:
                machine.clock.now_ms = at - 1
                await check()
                machine.clock.now_ms = at
            await check()
        await machine.store.close()

    asyncio.run(main())


SMALL = st.one_of(
    st.tuples(st.just("jump"), st.integers(-2_000, 2_000)),
    st.tuples(st.just("jump"), st.integers(-2_000, 2_000)),
    st.tuples(st.just("put"), st.just(0)),
    st.tuples(st.sampled_from(["snapshot", "restart"]), st.just(0)),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(SMALL, max_size=25))
def test_omitted_clock_steps_make_no_message_early_and_bound_the_lateness(
    found: list[tuple[str, int]],
) -> None:
    async def main() -> None:
        machine = Machine()
        await machine.start()
        due: dict[bytes, int] = {}
        late_ms = 0

        async def look() -> None:
            nonlocal late_ms
            await machine.pass_ms(1_000)
            late_ms = max([late_ms, *(step.late_ms for step in machine.store._state.stamps.steps)])
            arrived = dict.fromkeys(await machine.arrived())
            for body, at in due.items():
                assert (at <= machine.clock.now_ms) if body in arrived else (machine.clock.now_ms < at + 1_000 + late_ms)

        for what, value in found:
            if what == "jump":
                machine.clock.ahead_ms += value
            elif what == "put":
                body = b"%d" % len(due)
                due[body] = machine.clock.now_ms + LEVELS[2]
                await machine.put(3, body)
            elif what == "snapshot":
                await machine.store.write_snapshot([])
            else:
                await machine.restart()
            await look()
        for _ in range(62):
            await look()
        assert late_ms <= sum(abs(value) for what, value in found if what == "jump")
        await machine.store.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock_steps, "STEPS_MAX", 3)
        asyncio.run(main())
