"""Half messages on a disk that loses, harms or refuses writes: each is committed once or never, and one that is lost does not stay open."""

import asyncio
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.broker.store.log.append import ENTRY
from lockstep.broker.tables.check_schedule import PAUSE_MS_MAX
from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.headers.transactions import COMMIT, ROLLBACK
from lockstep.protocol.messages.record import split_records
from lockstep.protocol.names import HALF_TOPIC
from support.check_bench import CHECK_MS, SENDER, Bench
from support.effort import examples, seeds
from support.store_kit import LOG, SYNC, LoopThreads, append, confirmed
from support.timer_machine import TimerMachine

OK, NOT_FOUND, ROLLED_BACK = ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND, ResponseCode.TRANSACTION_SHOULD_ROLLBACK
TURNS = 50
"""Turns of the loop in which a response comes that waits for nothing."""
COMMIT_CASE = COMMIT, ROLLBACK, ResponseCode.TRANSACTION_SHOULD_COMMIT
ROLLBACK_CASE = ROLLBACK, COMMIT, ROLLED_BACK
"""A decision, the opposite one, and how that is refused."""


async def run_with_a_flipped_bit(flip: int, *, with_snapshot: bool) -> None:
    machine = await TimerMachine().start()
    bench = Bench(machine)
    sender = bench.connect(SENDER)
    before, harmed, behind = [await bench.half(body) for body in (b"before", b"harmed", b"behind")]
    if with_snapshot:
        await machine.snapshot()
    await machine.stop()
    log = machine.files.open(LOG).pread(1 << 20, 0)
    begin = log.rindex(b"\xda\xa3\x20\xa7", 0, log.index(b"harmed")) - 4
    size = int.from_bytes(log[begin : begin + 4], "big")
    machine.files.flip(LOG, begin + flip // 8 % size, flip % 8)
    machine.settings["cut_corrupt"] = True
    await machine.start()
    bench.attach()
    await bench.checks.look()
    for _ in range(3):
        await bench.after(PAUSE_MS_MAX)
        await machine.store._repairs.idle.wait()
    assert set(sender.offsets) == {before.offset, behind.offset}
    assert machine.store.damage.lost() == [(HALF_TOPIC, 0, 1, 2)]
    assert len(machine.state.transactions) == 2
    assert await machine.end(COMMIT, harmed) == (NOT_FOUND, [])
    assert await machine.end(COMMIT, before, behind) == (OK, [(2, 0), (2, 1)])
    assert (await machine.arrived(), len(machine.state.transactions)) == ([b"before", b"behind"], 0)
    await machine.restart()
    assert (await machine.arrived(), len(machine.state.transactions)) == ([b"before", b"behind"], 0)
    await machine.stop()


@examples(100)
@given(flip=st.integers(0, 8 * 400), with_snapshot=st.booleans())
def test_any_flipped_bit_of_a_half_message_is_found_and_the_others_are_asked_about(flip: int, with_snapshot: bool) -> None:
    asyncio.run(run_with_a_flipped_bit(flip, with_snapshot=with_snapshot))


async def test_message_whose_entry_is_compared_with_the_log_is_asked_about_a_second_later(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody was asked yet: a pause as after a question would let its sender wait for half a minute."""
    machine = await TimerMachine(queue_tail_bytes=ENTRY.size).start()
    bench = Bench(machine)
    sender = bench.connect(SENDER)
    halves = [await bench.half(b"m%d" % number) for number in range(3)]
    await machine.restart(snapshot=True)
    path = f"/store/consumequeue/{HALF_TOPIC}/0/{0:020d}"
    entry = machine.files.open(path).pread(ENTRY.size, halves[0].offset * ENTRY.size)
    machine.files.overwrite(path, halves[1].offset * ENTRY.size, entry)
    bench.attach()
    await bench.checks.look()
    await bench.after(CHECK_MS)
    assert halves[1].offset not in sender.offsets
    await machine.store._repairs.idle.wait()
    sender.got.clear()
    await bench.after(1_000)
    assert halves[1].offset in sender.offsets
    assert "transaction.unreadable" not in caplog.text
    assert machine.store.damage.lost() == []
    await machine.stop()


@pytest.mark.parametrize("kept", range(4))
async def test_write_of_which_the_disk_has_a_part_commits_no_message_twice(kept: int) -> None:
    """The disk has the first copies of a write, and the others are lost: the messages of those are open again."""
    machine = await TimerMachine().start()
    halves = await machine.halves(b"m0", b"m1", b"m2")
    begin = machine.store.log_bounds[1]
    assert (await machine.end(COMMIT, *halves))[0] == OK
    log = machine.files.open(LOG)
    ends = [0, *(end for _, end in split_records(log.pread(machine.store.log_bounds[1] - begin, begin)))]
    assert len(ends) == 1 + len(halves)
    await machine.kill()
    machine.files.overwrite(LOG, begin + ends[kept], bytes(1 << 12))
    await machine.start()
    assert len(machine.state.transactions) == len(halves) - kept
    assert await machine.end(COMMIT, *halves) == (OK, [(2, 0), (2, 1), (2, 2)])
    assert await machine.arrived() == [b"m0", b"m1", b"m2"]
    await machine.stop()


@pytest.mark.parametrize("cut", [1, 100, 300])
async def test_frame_of_half_messages_of_which_the_disk_has_a_part_is_not_there(cut: int) -> None:
    """All of its messages or none: a part would be a part of a transaction."""
    machine = await TimerMachine().start()
    first = await machine.half(b"first")
    begin = machine.store.log_bounds[1]
    await machine.halves(b"m0", b"m1", b"m2")
    end = machine.store.log_bounds[1]
    await machine.kill()
    machine.files.overwrite(LOG, end - cut, bytes(cut))
    assert end - cut > begin
    await machine.start()
    assert [half.offset for half in machine.state.transactions.from_offset(0, 9)] == [first.offset]
    assert machine.store.end_offset(HALF_TOPIC, 0) == 1
    await machine.stop()


async def end_and_kill(turns: int, *, commit: bool, power: bool, snapshot: bool, seed: int = 0) -> bool:
    """End five half messages, kill the process after so many turns of the loop, and end them again. Return whether the response had come.

    The records are not in memory, so that there are turns between the reads.
    """
    machine = TimerMachine(seed, tail_bytes=1 << 12)
    machine.files.cached_reads = False
    await machine.start()
    halves = [await machine.half(b"m%d" % number) for number in range(5)]
    for _ in range(12):
        append(machine.store, b"f" * 1_000, topic="filler")
    await confirmed(machine.store)
    outcome, opposite, refusal = COMMIT_CASE if commit else ROLLBACK_CASE
    ending = asyncio.ensure_future(machine.end(outcome, *halves))
    for _ in range(turns):
        await asyncio.sleep(0)
    has_ended = ending.done()
    if snapshot:
        await machine.snapshot()
    ending.cancel()
    await asyncio.gather(ending, return_exceptions=True)
    await machine.kill(power=power)
    await machine.start()
    expected = [b"m%d" % number for number in range(5)] if commit else []
    assert await machine.arrived() == expected[: len(await machine.arrived())]
    if has_ended and not power:
        assert (await machine.arrived(), len(machine.state.transactions)) == (expected, 0)
    assert (await machine.end(outcome, *halves))[0] == OK
    await machine.restart()
    assert await machine.end(opposite, halves[0]) == (refusal, [])
    assert (await machine.arrived(), len(machine.state.transactions)) == (expected, 0)
    await machine.stop()
    return has_ended


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("commit", [False, True], ids=["rollback", "commit"])
async def test_kill_at_any_turn_of_a_decision_repeats_no_message_and_loses_none(commit: bool, power: bool, snapshot: bool) -> None:
    turns = ended = 0
    while ended < 3:
        ended += await end_and_kill(turns, commit=commit, power=power, snapshot=snapshot)
        turns += 1
    assert turns > 8


@pytest.mark.parametrize("seed", seeds(2, 40))
async def test_power_cut_in_a_decision_repeats_no_message_and_loses_none(seed: int) -> None:
    for turns in range(3, 30, 6):
        await end_and_kill(turns, commit=True, power=True, snapshot=seed % 2 == 1, seed=seed)


@pytest.mark.parametrize(("outcome", "opposite", "refusal"), [COMMIT_CASE, ROLLBACK_CASE], ids=["commit", "rollback"])
async def test_no_answer_names_an_outcome_that_a_power_cut_can_change(outcome: int, opposite: int, refusal: int) -> None:
    """Neither the first one, nor that of a repeat, nor the refusal of the opposite decision."""
    machine = await TimerMachine(flush=SYNC).start()
    half = await machine.half(b"m")
    threads = cast(LoopThreads, machine.host.threads)
    threads.held = asyncio.Event()
    asked = [asyncio.ensure_future(machine.end(each, half)) for each in (outcome, outcome, opposite)]
    await machine.turns_until(lambda: machine.state.transactions.outcome(half.offset) is not None)
    for _ in range(TURNS):
        await asyncio.sleep(0)
    assert [each.done() for each in asked] == [False] * len(asked)
    threads.held.set()
    place = (2, 0) if outcome == COMMIT else (-1, -1)
    assert await asyncio.gather(*asked) == [(OK, [place]), (OK, [place]), (refusal, [])]
    await machine.lose_power()
    await machine.start()
    assert await machine.end(opposite, half) == (refusal, [])
    await machine.stop()


async def test_commit_waits_while_the_disk_is_full_and_nothing_is_lost() -> None:
    machine = await TimerMachine(disk_reserve_bytes=100_000).start()
    half, other = await machine.half(b"m"), await machine.half(b"other")
    capacity = machine.files.capacity_bytes
    machine.files.capacity_bytes = machine.files.used_bytes() + 90_000
    machine.store.disk_status()
    code, places = await machine.end(COMMIT, half)
    assert (code, places) == (ResponseCode.SYSTEM_BUSY, [])
    response, _ = await machine.send_halves(b"refused")
    assert response.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert await machine.end(ROLLBACK, other) == (OK, [(-1, -1)])
    assert (await machine.arrived(), len(machine.state.transactions)) == ([], 1)
    machine.files.capacity_bytes = capacity
    machine.store.disk_status()
    assert await machine.end(COMMIT, half) == (OK, [(2, 0)])
    assert await machine.end(COMMIT, other) == (ROLLED_BACK, [])
    await machine.restart()
    assert (await machine.arrived(), len(machine.state.transactions)) == ([b"m"], 0)
    await machine.stop()
