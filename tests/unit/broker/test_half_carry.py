"""Half messages that retention has stored again: they are asked about and ended by any offset at which they were, once."""

from typing import Any

import pytest

from lockstep.broker.tables.check_schedule import PAUSE_MS_MAX
from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.headers.transactions import COMMIT
from lockstep.protocol.messages.record import RecordView
from support.check_bench import SENDER, Bench
from support.timer_machine import TimerMachine

OK = ResponseCode.SUCCESS
RESTARTS = ["", "log", "snapshot"]
RETENTION_MS = 60_000
AGE_MS = 100_000


def small(**settings: Any) -> TimerMachine:
    """Return a machine whose log has small files, which are kept for a minute."""
    return TimerMachine(**{"segment_bytes": 32 << 10, "retention_ms": RETENTION_MS, "tail_bytes": 8 << 10, **settings})


async def grow_old(machine: TimerMachine) -> None:
    """Let all that the log has be old."""
    await machine.fill(2)
    await machine.pass_ms(AGE_MS, step_ms=10_000)
    await machine.fill(1)


async def carry(machine: TimerMachine) -> None:
    """Remove all that the log has, so that what waits is stored again."""
    before, _ = machine.store.log_bounds
    await grow_old(machine)
    await machine.remove_old()
    assert machine.store.log_bounds[0] > before


async def again(machine: TimerMachine, restarts: str) -> None:
    if restarts:
        await machine.restart(snapshot=restarts == "snapshot")


@pytest.mark.parametrize("restarts", RESTARTS)
@pytest.mark.parametrize("rounds_before", [0, 1, 2])
async def test_carried_half_message_is_asked_about_by_its_first_offset_over_starts(rounds_before: int, restarts: str) -> None:
    machine = await small().start()
    bench = Bench(machine)
    sender = bench.connect(SENDER)
    halves = [await bench.half(b"m%d" % number) for number in range(2)]
    for _ in range(rounds_before):
        await carry(machine)
    await again(machine, restarts)
    bench.attach()
    await bench.checks.look()
    for _ in range(2):
        await carry(machine)
        sender.got.clear()
        await bench.after(PAUSE_MS_MAX)
        assert sender.offsets == [half.offset for half in halves]
        assert [RecordView(data).body for _, data in sender.got] == [b"m0", b"m1"]
    assert await machine.end(COMMIT, *halves) == (OK, [(2, 0), (2, 1)])
    sender.got.clear()
    await bench.after(PAUSE_MS_MAX)
    assert sender.got == []
    await machine.stop()
