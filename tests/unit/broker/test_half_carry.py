"""Half messages that retention has stored again: they are asked about and ended by any offset at which they were, once."""

import asyncio
from typing import Any

import pytest

from lockstep.broker.tables.check_schedule import PAUSE_MS_MAX
from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.headers.transactions import COMMIT, ROLLBACK
from lockstep.protocol.messages.record import RecordView
from lockstep.protocol.messages.rooms import read_half
from lockstep.protocol.names import HALF_TOPIC
from lockstep.runtime.steady_clock import TRUST_MS
from support.check_bench import SENDER, Bench
from support.store_kit import STARTED_MS
from support.timer_machine import ReadGate, TimerMachine

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


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("first", ["decision", "carry", "carry before the read"])
async def test_decision_that_meets_the_carry_of_its_message_counts_once(outcome: int, first: str) -> None:
    """Each of them has read the record, or is about to read it where it is no more, when the other one ends."""
    machine = await small().start()
    half, other = await machine.half(b"m"), await machine.half(b"other")
    await grow_old(machine)
    gate = ReadGate(machine.store, room=HALF_TOPIC, before=first == "carry before the read")
    begun = asyncio.ensure_future(machine.remove_old() if first == "decision" else machine.end(outcome, half))
    await gate.reached.wait()
    place = (2, 0) if outcome == COMMIT else (-1, -1)
    if first == "decision":
        assert await machine.end(outcome, half) == (OK, [place])
    else:
        await machine.remove_old()
        assert machine.store.bounds(HALF_TOPIC, 0) == (2, 4)
    gate.go.set()
    ended = await begun
    if first != "decision":
        assert ended == (OK, [place])
    assert machine.store.end_offset(HALF_TOPIC, 0) == (3 if first == "decision" else 4)
    for restarts in ("", "log", "snapshot"):
        await again(machine, restarts)
        assert await machine.arrived() == ([b"m"] if outcome == COMMIT else [])
        assert [each.offset for each in machine.state.transactions.from_offset(0, 9)] == [machine.store.end_offset(HALF_TOPIC, 0) - 1]
    assert (await machine.end(COMMIT, other))[0] == OK
    await machine.stop()


@pytest.mark.parametrize("restarts", RESTARTS)
async def test_carried_message_has_its_sender_and_is_committed_as_it_was_sent(restarts: str) -> None:
    machine = await small().start()
    half = await machine.half(b"m", client_id=SENDER)
    for _ in range(2):
        await carry(machine)
        await again(machine, restarts)
    assert len(machine.state.transactions.outcomes()) == 0, "what is stored again has not ended"
    (present,) = machine.state.transactions.from_offset(0, 9)
    result = await machine.store.read_or_wait(HALF_TOPIC, 0, present.offset, 1, 1)
    found = read_half(RecordView(b"".join(result.parts)).properties)
    assert found is not None
    assert (found.topic, found.queue_id, found.group, found.client_id.decode(), found.first) == (b"orders", 2, b"shop", SENDER, half.offset)
    assert await machine.end(COMMIT, half, group="other") == (ResponseCode.TRANSACTION_STATE_GROUP_WRONG, [])
    assert await machine.end(COMMIT, half) == (OK, [(2, 0)])
    (copy,) = await machine.records()
    assert copy.properties == f"__LS_FROM\x01h{present.code}:{present.offset}\x02UNIQ_KEY\x01{half.message_id}".encode()
    assert present.sent_ms == STARTED_MS, "its age counts from its send"
    await machine.stop()


@pytest.mark.parametrize("restarts", RESTARTS)
@pytest.mark.parametrize("ahead_ms", [3_600_000, -3_600_000])
async def test_age_of_a_message_is_that_of_the_boot_clock_whatever_is_set_and_carried(ahead_ms: int, restarts: str) -> None:
    """It decides when its sender is asked first, and until when."""
    machine = await small().start()
    half, began_ms = await machine.half(b"m"), machine.clock.now_ms
    for number in range(4):
        if number in (1, 2):
            machine.clock.ahead_ms += ahead_ms
            await machine.pass_ms(TRUST_MS + 10_000, step_ms=10_000)
            assert machine.store.now_ms() == machine.clock.wall_ms()
        await carry(machine)
        await again(machine, restarts)
        found = machine.state.transactions.find(half.offset)
        assert found is not None
        assert found.offset == number + 1
        assert machine.store.now_ms() - machine.state.transactions.present_ms(found) == machine.clock.now_ms - began_ms
    await machine.stop()


async def test_carry_of_half_messages_uses_the_reserve_and_keeps_the_file_of_one_that_does_not_fit() -> None:
    machine = await small(disk_reserve_bytes=400_000).start()
    half = await machine.half(b"m")
    await machine.fill(3)
    await machine.pass_ms(AGE_MS, step_ms=10_000)
    capacity = machine.files.capacity_bytes
    machine.files.capacity_bytes = machine.files.used_bytes() + 150_000
    machine.store.disk_status()
    await machine.remove_old()
    assert machine.store.log_bounds[0] == 0
    assert "1 messages that wait can't be stored again" in machine.half_carry.refusal
    machine.files.capacity_bytes = machine.files.used_bytes() + 300_000
    machine.store.disk_status()
    await machine.remove_old()
    assert machine.store.log_bounds[0] > 0
    assert machine.store.end_offset(HALF_TOPIC, 0) == 2
    machine.files.capacity_bytes = capacity
    machine.store.disk_status()
    assert await machine.end(COMMIT, half) == (OK, [(2, 0)])
    await machine.stop()


async def test_carried_half_messages_are_on_the_disk_before_their_old_file_is_removed() -> None:
    machine = await small().start()
    halves = [await machine.half(b"m%d" % number) for number in range(3)]
    await carry(machine)
    await machine.lose_power()
    await machine.start()
    assert len(machine.state.transactions) == 3
    assert await machine.end(COMMIT, *halves) == (OK, [(2, 0), (2, 1), (2, 2)])
    await machine.stop()


@pytest.mark.parametrize("restarts", RESTARTS)
async def test_outcome_of_a_carried_message_is_found_by_its_first_offset_after_more_rounds(restarts: str) -> None:
    """As long as its record is there. Later it is not known any more, and not committed again."""
    machine = await small().start()
    half, other = await machine.half(b"m"), await machine.half(b"other")
    await carry(machine)
    assert await machine.end(COMMIT, half) == (OK, [(2, 0)])
    await again(machine, restarts)
    assert await machine.end(COMMIT, half) == (OK, [(2, 0)])
    assert await machine.end(ROLLBACK, half) == (ResponseCode.TRANSACTION_SHOULD_COMMIT, [])
    await carry(machine)
    await again(machine, restarts)
    assert await machine.end(COMMIT, half) == (ResponseCode.QUERY_NOT_FOUND, [])
    assert machine.store.end_offset("orders", 2) == 1
    assert await machine.end(COMMIT, other) == (OK, [(2, 1)])
    await machine.stop()
