"""The bytes of pending timers: counted from the room's entries, and limited."""

from random import Random

import pytest

from lockstep.broker.delivery import room_bytes
from lockstep.protocol.names import TIMER_TOPIC
from support.timer_machine import TimerMachine, delay

DAY_MS = 86_400_000


async def pending_bytes(machine: TimerMachine) -> int:
    """Return the bytes of the records of all pending timers, read one by one."""
    total = 0
    for part in machine.state.timers.below(1 << 40):
        for timer in part:
            entry = await machine.store.queue_entry(TIMER_TOPIC, 0, timer.offset)
            assert entry is not None
            total += entry[1]
    return total


@pytest.mark.parametrize("read_count", [1, 7, 4_096])
@pytest.mark.parametrize("seed", range(3))
async def test_measure_counts_what_is_pending(read_count: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among timers that were delivered and recalled, over restarts and carries."""
    monkeypatch.setattr(room_bytes, "READ_COUNT", read_count)
    random = Random(seed)
    machine = await TimerMachine(seed, queue_file_entries=16, retention_ms=3_600_000).start()
    handles = []
    for number in range(120):
        wait_ms = random.choice([500, 2_000, DAY_MS])
        handle = await machine.put(bytes(random.randrange(2_000)), delay(wait_ms))
        if wait_ms == DAY_MS:
            handles.append(handle)
        if number % 40 == 20:
            await machine.pass_ms(1_000)
        if number % 40 == 39:
            await machine.restart(snapshot=random.random() < 0.5)
            await machine.look()
    for handle in random.sample(handles, len(handles) // 3):
        await machine.recall(handle)
    await machine.bytes.measure()
    assert machine.bytes.bytes == await pending_bytes(machine) > 0
    await machine.stop()


async def test_bytes_that_are_admitted_count_at_once_and_those_that_have_ended_after_a_measure() -> None:
    machine = TimerMachine()
    machine.bytes_max = 5_000
    await machine.start()
    for _ in range(2):
        await machine.put(bytes(2_000), delay(1_000))
    words = r"pending timers take up to 0\.0 MiB of the log, and \d+ bytes more would be too many: at most 0\.0 MiB \(timer_mib_max\)"
    with pytest.raises(AssertionError, match=words):
        await machine.put(bytes(2_000), delay(1_000))
    await machine.pass_ms(1_000)
    assert len(await machine.arrived()) == 2
    with pytest.raises(AssertionError, match="timer_mib_max"):
        await machine.put(bytes(2_000), delay(1_000))
    await machine.bytes.measure()
    assert machine.bytes.bytes == 0
    await machine.put(bytes(2_000), delay(1_000))
    await machine.stop()


async def test_what_is_admitted_during_a_measure_is_not_forgotten() -> None:
    machine = await TimerMachine().start()
    await machine.put(bytes(1_000), delay(DAY_MS))
    read = machine.store.queue_entries

    async def late(*place: object) -> bytes:
        found = await read(*place)  # type: ignore[arg-type]
        machine.bytes.add(77)
        return found

    machine.store.queue_entries = late  # type: ignore[method-assign, assignment]
    await machine.bytes.measure()
    assert machine.bytes.bytes == await pending_bytes(machine) + 77
    await machine.stop()
