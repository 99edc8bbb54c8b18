"""Before retention removes a file of the log, the timers that wait in it are stored again: none is lost, early or delivered twice."""

import asyncio
from typing import Any

import pytest

from lockstep.broker.delivery import room_carry
from lockstep.broker.delivery.home_delivery import RETRY_MS
from lockstep.broker.store import ReadResult
from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.messages.properties import SENT_PROPERTIES_BYTES_MAX, decode_properties
from lockstep.protocol.messages.recall import RecallHandle
from lockstep.protocol.messages.record import pack_host
from lockstep.protocol.names import TIMER_TOPIC
from lockstep.runtime.steady_clock import TRUST_MS
from support.effort import seeds
from support.store_kit import STARTED_MS, append, confirmed
from support.timer_machine import ReadGate, TimerMachine, delay, until

HOUR_MS = 3_600_000
RETENTION_MS = 60_000
AGE_MS = 100_000
SEGMENT_BYTES = 32 << 10
KINDS = ["delay", "time of day"]


def timer(kind: str, ms: int) -> bytes:
    """Return the property of a timer of this kind that is due so many ms after the first start."""
    return delay(ms) if kind == "delay" else until(STARTED_MS + ms)


def small(seed: int = 0, **settings: Any) -> TimerMachine:
    """Return a machine whose log has small files, which are kept for a minute."""
    return TimerMachine(seed, **{"segment_bytes": SEGMENT_BYTES, "retention_ms": RETENTION_MS, "tail_bytes": 8 << 10, **settings})


async def grow_old(machine: TimerMachine) -> int:
    """Let all that the log has be old, and remove it. Return how many bytes were removed."""
    before, _ = machine.store.log_bounds
    await machine.fill(2)
    await machine.pass_ms(AGE_MS, step_ms=10_000)
    await machine.fill(1)
    await machine.remove_old()
    return machine.store.log_bounds[0] - before


async def move_to(machine: TimerMachine, ms: int) -> None:
    """Let the boot clock show this time since the first start."""
    await machine.pass_ms(STARTED_MS + ms - machine.clock.now_ms, step_ms=10_000)


# ---------------------------------------------------------------------------------------------------------------------- on time


@pytest.mark.parametrize("restarts", ["", "log", "snapshot"])
async def test_timers_are_carried_over_several_rounds_and_delivered_once_at_their_time(restarts: str) -> None:
    machine = await small().start()
    for kind in KINDS:
        await machine.put(kind.encode(), timer(kind, HOUR_MS))
        await machine.put(kind.encode() + b" later", timer(kind, HOUR_MS + 1))
    for number in range(4):
        assert await grow_old(machine) > 0
        assert machine.store.bounds(TIMER_TOPIC, 0) == (4 * number + 4, 4 * number + 8)
        assert len(machine.state.timers) == 4
        if restarts:
            await machine.restart(snapshot=restarts == "snapshot")
    await move_to(machine, HOUR_MS - 1)
    assert await machine.arrived() == []
    await machine.pass_ms(1)
    assert sorted(await machine.arrived()) == [b"delay", b"time of day"]
    await machine.pass_ms(1)
    expected = [b"delay", b"delay later", b"time of day", b"time of day later"]
    assert sorted(await machine.arrived()) == expected
    if restarts:
        await machine.restart(snapshot=restarts == "snapshot")
    await machine.pass_ms(10_000)
    assert sorted(await machine.arrived()) == expected
    assert len(machine.state.timers) == 0
    await machine.stop()


@pytest.mark.parametrize("restarts", ["", "log", "snapshot"])
@pytest.mark.parametrize("ahead_ms", [HOUR_MS, -HOUR_MS])
async def test_clock_that_is_set_between_two_rounds_moves_the_times_of_day_and_no_delay(ahead_ms: int, restarts: str) -> None:
    machine = await small().start()
    for kind in KINDS:
        await machine.put(kind.encode(), timer(kind, 2 * HOUR_MS))
    assert await grow_old(machine) > 0
    machine.clock.ahead_ms = ahead_ms
    await machine.pass_ms(TRUST_MS + 10_000)
    assert machine.store.now_ms() == machine.clock.wall_ms()
    for _ in range(2):
        if restarts:
            await machine.restart(snapshot=restarts == "snapshot")
        assert await grow_old(machine) > 0
    assert len(machine.state.timers) == 2
    for body, at_ms in sorted([(b"delay", 2 * HOUR_MS), (b"time of day", 2 * HOUR_MS - ahead_ms)], key=lambda each: each[1]):
        await move_to(machine, at_ms - 1)
        assert body not in await machine.arrived()
        await machine.pass_ms(1)
        assert body in await machine.arrived()
    assert sorted(await machine.arrived()) == [b"delay", b"time of day"]
    await machine.stop()


async def test_message_that_was_carried_twice_arrives_as_it_was_sent() -> None:
    machine = await small().start()
    sent = b"TAGS\x01paid\x02KEYS\x01k1 k2\x02__SHARDINGKEY\x01customer 7"
    fields = {"flag": 7, "sys_flag": 0x301, "born_ms": 1_234_567}
    await machine.put(b"body", delay(HOUR_MS), properties=sent, peer="10.9.8.7:4321", **fields)
    await machine.put(b"bare", delay(HOUR_MS), named=False)
    for _ in range(2):
        assert await grow_old(machine) > 0
    for at, names in ((4, ["UNIQ_KEY", "TAGS", "KEYS", "__SHARDINGKEY"]), (5, [])):
        carried = decode_properties((await machine.stored_timer(at)).properties)
        assert list(carried) == ["__LS_FROM", "REAL_TOPIC", "REAL_QID", "__LS_LAYOUT", "__LS_DUE", "__LS_FIRST", *names]
        assert (carried["__LS_DUE"], carried["__LS_FIRST"]) == (str((STARTED_MS + HOUR_MS) << 2), str(at - 4))
    await move_to(machine, HOUR_MS)
    copy, bare = sorted(await machine.records(), key=lambda record: record.body, reverse=True)
    assert (copy.body, bare.body) == (b"body", b"bare")
    code = (STARTED_MS + HOUR_MS) << 2
    assert copy.properties == b"__LS_FROM\x01t%d:4\x02UNIQ_KEY\x01ID000000\x02" % code + sent
    assert bare.properties == b"__LS_FROM\x01t%d:5" % code
    assert (copy.flag, copy.sys_flag, copy.born_ms, copy.born_host) == (7, 0x301, 1_234_567, pack_host("10.9.8.7:4321"))
    await machine.stop()


async def test_largest_message_is_carried_and_delivered() -> None:
    machine = await small(segment_bytes=1 << 20).start()
    properties = b"big\x01" + b"p" * (SENT_PROPERTIES_BYTES_MAX - 10)
    body = b"b" * (machine.store.sent_record_bytes_max - SENT_PROPERTIES_BYTES_MAX - 500)
    await machine.put(body, delay(HOUR_MS), properties=properties)
    for _ in range(2):
        assert await grow_old(machine) > 0
    await move_to(machine, HOUR_MS)
    (copy,) = await machine.records()
    assert copy.body == body
    assert copy.properties.endswith(properties)
    await machine.stop()


@pytest.mark.parametrize("count", [1, 60])
async def test_timers_of_many_turns_are_all_carried(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room_carry, "TURN_BYTES", 5_000)
    machine = await small().start()
    bodies = [b"%d" % number for number in range(count)]
    for body in bodies:
        await machine.put(body, delay(HOUR_MS), properties=b"pad\x01" + b"p" * 800)
    assert await grow_old(machine) > 0
    await move_to(machine, HOUR_MS)
    assert sorted(await machine.arrived()) == sorted(bodies)
    await machine.stop()


async def test_only_timers_of_the_files_that_go_are_carried() -> None:
    machine = await small().start()
    await machine.put(b"old", delay(HOUR_MS))
    await machine.fill(2)
    await machine.pass_ms(AGE_MS, step_ms=10_000)
    await machine.put(b"young", delay(HOUR_MS))
    await machine.fill(1)
    await machine.remove_old()
    assert machine.store.log_bounds[0] > 0
    assert machine.store.end_offset(TIMER_TOPIC, 0) == 3
    assert decode_properties((await machine.stored_timer(2)).properties)["__LS_FIRST"] == "0"
    await machine.stop()


# ----------------------------------------------------------------------------------------------------------------- files are kept


async def test_file_of_a_timer_that_cannot_be_carried_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    """The disk has less than half of its reserve."""
    machine = await small(disk_reserve_bytes=400_000).start()
    for kind in KINDS:
        await machine.put(kind.encode(), timer(kind, HOUR_MS))
    await machine.fill(3)
    await machine.pass_ms(AGE_MS, step_ms=10_000)
    machine.files.capacity_bytes = machine.files.used_bytes() + 150_000
    machine.store.disk_status()
    for _ in range(2):
        await machine.remove_old()
        assert machine.store.log_bounds[0] == 0
        assert machine.store.end_offset(TIMER_TOPIC, 0) == 2
        assert "2 messages that wait can't be stored again" in machine.carry.refusal
    assert any("waiting.not_carried" in record.getMessage() for record in caplog.records)
    machine.files.capacity_bytes += 200_000
    await machine.pass_ms(1_000)
    await machine.remove_old()
    assert machine.store.log_bounds[0] > 0
    assert machine.carry.refusal == ""
    machine.files.capacity_bytes += 400_000
    await move_to(machine, HOUR_MS)
    assert sorted(await machine.arrived()) == sorted(kind.encode() for kind in KINDS)
    await machine.stop()


async def test_timers_are_carried_into_the_reserve_of_the_disk() -> None:
    """Where sends are refused: the files that go have more room than the timers in them need."""
    machine = await small(disk_reserve_bytes=400_000).start()
    await machine.put(b"x", delay(HOUR_MS))
    await machine.fill(3)
    await machine.pass_ms(AGE_MS, step_ms=10_000)
    machine.files.capacity_bytes = machine.files.used_bytes() + 300_000
    machine.store.disk_status()
    await machine.remove_old()
    assert machine.store.disk_status().refusal is not None
    assert machine.store.log_bounds[0] > 0
    assert machine.store.end_offset(TIMER_TOPIC, 0) == 2
    await machine.stop()


async def test_files_before_a_timer_that_cannot_be_read_go_and_its_own_is_kept_until_it_can() -> None:
    machine = await small().start()
    await machine.put(b"first", delay(HOUR_MS))
    await machine.fill(2)
    await machine.put(b"second", delay(HOUR_MS))
    (position, _, _) = await machine.store.queue_entry(TIMER_TOPIC, 0, 1) or (0, 0, 0)
    await machine.fill(2)
    await machine.pass_ms(AGE_MS, step_ms=10_000)
    await machine.fill(1)
    read = machine.store.read_or_wait

    async def failing(topic: str, queue_id: int, offset: int, *page: int) -> ReadResult:
        if topic == TIMER_TOPIC and offset == 1:
            raise OSError(5, "Input/output error")
        return await read(topic, queue_id, offset, *page)

    machine.store.read_or_wait = failing  # type: ignore[method-assign, assignment]
    for _ in range(2):
        await machine.remove_old()
        assert machine.store.log_bounds[0] == position // SEGMENT_BYTES * SEGMENT_BYTES > 0
        assert "Input/output error" in machine.carry.refusal
    machine.store.read_or_wait = read  # type: ignore[method-assign]
    await machine.remove_old()
    assert machine.store.log_bounds[0] > position
    await move_to(machine, HOUR_MS)
    assert sorted(await machine.arrived()) == [b"first", b"second"]
    await machine.stop()


async def test_carried_timers_are_on_the_disk_before_their_old_file_is_removed() -> None:
    """Else a power cut right after that would lose what was acknowledged, also with an asynchronous flush."""
    machine = await small().start()
    for kind in KINDS:
        await machine.put(kind.encode(), timer(kind, HOUR_MS))
    await machine.store.sync()
    assert await grow_old(machine) > 0
    await machine.lose_power()
    await machine.start()
    await move_to(machine, HOUR_MS)
    assert sorted(await machine.arrived()) == sorted(kind.encode() for kind in KINDS)
    assert machine.store.damage.lost() == []
    await machine.stop()


async def test_delivered_copies_are_on_the_disk_before_the_file_of_their_timers_is_removed() -> None:
    machine = await small().start()
    await machine.put(b"x", delay(AGE_MS + 1_000))
    await machine.fill(2)
    await machine.pass_ms(AGE_MS, step_ms=10_000)
    await machine.fill(1)
    await machine.two_snapshots()
    await machine.pass_ms(1_000)
    assert await machine.arrived() == [b"x"]
    await machine.store.retention(machine.store.safe_now_ms(), machine.carry.carry_before)
    assert machine.store.log_bounds[0] > 0
    await machine.lose_power()
    await machine.start()
    await machine.look()
    assert await machine.arrived() == [b"x"]
    await machine.stop()


# ------------------------------------------------------------------------------------------------------- what happens meanwhile


async def begin_to_carry(machine: TimerMachine) -> "tuple[ReadGate, asyncio.Task[None]]":
    """Return a round of retention that has read the first timer from the disk and not stored it again yet."""
    await machine.fill(2)
    await machine.pass_ms(AGE_MS, step_ms=10_000)
    await machine.fill(1)
    gate = ReadGate(machine.store)
    retention = asyncio.ensure_future(machine.remove_old())
    await gate.reached.wait()
    return gate, retention


async def test_timer_that_is_recalled_while_it_is_read_to_be_carried_is_not() -> None:
    machine = await small().start()
    handle = await machine.put(b"x", delay(HOUR_MS))
    await machine.put(b"y", delay(HOUR_MS))
    gate, retention = await begin_to_carry(machine)
    assert (await machine.recall(handle)).code == ResponseCode.SUCCESS
    gate.go.set()
    await retention
    assert machine.store.end_offset(TIMER_TOPIC, 0) == 3
    assert machine.store.log_bounds[0] > 0
    await machine.restart()
    await move_to(machine, HOUR_MS + 1_000)
    assert await machine.arrived() == [b"y"]
    await machine.stop()


async def test_timer_that_is_delivered_while_it_is_read_to_be_carried_is_not() -> None:
    machine = await small().start()
    await machine.put(b"x", delay(AGE_MS + 1_000))
    await machine.put(b"y", delay(HOUR_MS))
    gate, retention = await begin_to_carry(machine)
    await machine.pass_ms(1_000)
    assert await machine.arrived() == [b"x"]
    gate.go.set()
    await retention
    assert machine.store.end_offset(TIMER_TOPIC, 0) == 3
    await machine.restart()
    await move_to(machine, HOUR_MS + 1_000)
    assert await machine.arrived() == [b"x", b"y"]
    await machine.stop()


async def test_timer_whose_topic_is_held_is_carried_and_delivered_when_that_ends() -> None:
    machine = await small().start()
    bodies = [b"%d" % number for number in range(20)]
    for body in bodies:
        await machine.put(body, delay(5_000))
    machine.holds._holds["orders"] = "h", machine.clock.now_ms + HOUR_MS
    await machine.pass_ms(10_000)
    assert machine.timers.deferred_counts == {"orders": 20}
    for _ in range(2):
        assert await grow_old(machine) > 0
    assert await machine.arrived() == []
    machine.holds.release("orders", "h")
    await machine.pass_ms(2 * RETRY_MS)
    assert sorted(await machine.arrived()) == sorted(bodies)
    await machine.pass_ms(5_000)
    assert (len(machine.state.timers), len(await machine.arrived())) == (0, 20)
    assert (machine.timers.deferred_counts, machine.store.damage.lost()) == ({}, [])
    await machine.stop()


async def test_timer_of_a_topic_that_is_deleted_after_it_was_carried_is_not_delivered() -> None:
    machine = await small().start()
    await machine.put(b"x", delay(HOUR_MS))
    assert await grow_old(machine) > 0
    machine.create_topic("orders", 2, queues=0)
    machine.create_topic("orders", 3)
    assert await grow_old(machine) > 0
    await move_to(machine, HOUR_MS + 1_000)
    assert await machine.arrived() == []
    assert len(machine.state.timers) == 0
    await machine.stop()


# ---------------------------------------------------------------------------------------------------------------------- recalls


@pytest.mark.parametrize("restarts", ["", "log", "snapshot"])
@pytest.mark.parametrize(("rounds", "ahead_ms"), [(1, 0), (1, HOUR_MS), (1, -HOUR_MS), (2, 0), (2, HOUR_MS), (2, -HOUR_MS), (3, HOUR_MS)])
@pytest.mark.parametrize("kind", KINDS)
async def test_handle_from_before_the_carry_recalls(kind: str, rounds: int, ahead_ms: int, restarts: str) -> None:
    """The clock is set after the first round."""
    await recall_after_carries(kind, rounds, ahead_ms, restarts, with_offset=True)


@pytest.mark.parametrize("restarts", ["", "log", "snapshot"])
@pytest.mark.parametrize(("rounds", "ahead_ms"), [(1, 0), (1, HOUR_MS), (1, -HOUR_MS), (2, 0)])
@pytest.mark.parametrize("kind", KINDS)
async def test_rocketmqs_handle_from_before_the_carry_recalls(kind: str, rounds: int, ahead_ms: int, restarts: str) -> None:
    await recall_after_carries(kind, rounds, ahead_ms, restarts, with_offset=False)


async def recall_after_carries(kind: str, rounds: int, ahead_ms: int, restarts: str, *, with_offset: bool) -> None:
    machine = await small().start()
    given = await machine.put(b"x", timer(kind, 3 * HOUR_MS))
    await machine.put(b"other", timer(kind, 3 * HOUR_MS))
    handle = given if with_offset else RecallHandle.decode(given)._replace(offset=None).encode()
    for number in range(rounds):
        assert await grow_old(machine) > 0
        if not number:
            machine.clock.ahead_ms = ahead_ms
            await machine.pass_ms(TRUST_MS + 10_000, step_ms=10_000)
        if restarts:
            await machine.restart(snapshot=restarts == "snapshot")
    for _ in range(2):
        response = await machine.recall(handle)
        assert response.code == ResponseCode.SUCCESS, response.remark
    assert len(machine.state.timers) == 1
    await machine.restart(snapshot=restarts == "snapshot")
    await move_to(machine, 5 * HOUR_MS)
    assert await machine.arrived() == [b"other"]
    await machine.stop()


async def test_recall_of_a_timer_that_is_carried_meanwhile_takes_it_back() -> None:
    machine = await small().start()
    handle = await machine.put(b"x", delay(HOUR_MS))
    await machine.fill(2)
    await machine.pass_ms(AGE_MS, step_ms=10_000)
    await machine.fill(1)
    gate = ReadGate(machine.store)
    recall = asyncio.ensure_future(machine.recall(handle))
    await gate.reached.wait()
    await machine.remove_old()
    assert machine.store.end_offset(TIMER_TOPIC, 0) == 2
    gate.go.set()
    response = await recall
    assert response.code == ResponseCode.SUCCESS, response.remark
    await move_to(machine, HOUR_MS + 1_000)
    assert await machine.arrived() == []
    await machine.stop()


@pytest.mark.parametrize("with_offset", [True, False], ids=["lockstep's handle", "RocketMQ's handle"])
async def test_recall_of_a_carried_timer_that_was_delivered_fails(with_offset: bool) -> None:
    machine = await small().start()
    given = await machine.put(b"x", delay(HOUR_MS))
    handle = given if with_offset else RecallHandle.decode(given)._replace(offset=None).encode()
    assert await grow_old(machine) > 0
    await move_to(machine, HOUR_MS)
    assert await machine.arrived() == [b"x"]
    response = await machine.recall(handle)
    assert response.code == (ResponseCode.ILLEGAL_OPERATION if with_offset else ResponseCode.QUERY_NOT_FOUND)
    await machine.stop()


# ------------------------------------------------------------------------------------------------------------------------ kills


async def carry_and_end(turns: int, *, power: bool, seed: int = 0) -> bool:
    """Carry 30 timers, end the process after so many turns of the loop, and go on. Return whether the round had ended before."""
    machine = await small(seed).start()
    bodies = [b"%d" % number for number in range(30)]
    for number, body in enumerate(bodies):
        await machine.put(body, timer(KINDS[number % 2], HOUR_MS), properties=b"pad\x01" + b"p" * 500)
    await machine.fill(2)
    await machine.pass_ms(AGE_MS, step_ms=10_000)
    append(machine.store, b"young", topic="filler")
    await confirmed(machine.store)
    await machine.store.sync()
    await machine.two_snapshots()
    retention = asyncio.ensure_future(machine.store.retention(machine.store.safe_now_ms(), machine.carry.carry_before))
    for _ in range(turns):
        await asyncio.sleep(0)
    has_ended = retention.done()
    if has_ended:
        assert machine.store.log_bounds[0] > 0
    retention.cancel()
    await machine.kill(power=power)
    await machine.start()
    assert len(machine.state.timers) == len(bodies)
    assert await grow_old(machine) > 0
    await machine.restart()
    await move_to(machine, HOUR_MS - 1)
    assert await machine.arrived() == []
    await machine.pass_ms(1)
    assert sorted(await machine.arrived()) == sorted(bodies)
    assert machine.store.damage.lost() == []
    await machine.stop()
    return has_ended


@pytest.mark.parametrize("power", [False, True])
async def test_kill_at_any_turn_of_a_carry_repeats_no_timer_and_loses_none(power: bool) -> None:
    turns = 0
    while not await carry_and_end(turns, power=power):
        turns += 1
    assert turns > 5


@pytest.mark.parametrize("seed", seeds(2, 30))
async def test_power_cut_in_a_carry_repeats_no_timer_and_loses_none(seed: int) -> None:
    for turns in (2, 5, 8, 11, 14):
        await carry_and_end(turns, power=True, seed=seed)
