"""Timers at the broker: each is delivered once, when it is due and not before, whatever clocks, disk and process do."""

import asyncio
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lockstep.broker.delivery.home_delivery import ATTEMPTS_MAX, RETRY_MS
from lockstep.broker.store import ReadResult, StoreCorruptError
from lockstep.broker.store.log.waiting_records import Room
from lockstep.broker.tables.timer_table import SPLIT_COUNT
from lockstep.protocol.messages.properties import decode_properties
from lockstep.protocol.messages.record import RecordView, encode_record, pack_host, split_records
from lockstep.protocol.messages.rooms import home_properties
from lockstep.protocol.names import TIMER_TOPIC
from lockstep.protocol.tags import tags_code
from lockstep.runtime.steady_clock import TRUST_MS
from support.effort import examples, seeds
from support.store_kit import BORN_HOST, LOG, STARTED_MS, SYNC, confirmed
from support.timer_machine import DAY_MS, ReadGate, TimerMachine, delay, until

HOUR_MS = 3_600_000
KINDS = ["delay", "time of day"]


def timer(machine: TimerMachine, kind: str, ms: int) -> bytes:
    """Return the property of a timer of this kind that is due in so many ms if no clock is set."""
    return delay(ms) if kind == "delay" else until(machine.clock.now_ms + ms)


async def put_many(machine: TimerMachine, count: int, ms: int = 5_000) -> list[bytes]:
    """Send timers that are due at the same time, and wait until they are on the disk. Return their bodies."""
    bodies = [b"%d" % number for number in range(count)]
    for at in range(0, count, 500):
        await machine.send(*((body, delay(ms)) for body in bodies[at : at + 500]))
    await machine.store.sync()
    return bodies


# ------------------------------------------------------------------------------------------------------------------------ when


@pytest.mark.parametrize("restarts", ["", "log", "snapshot"])
@pytest.mark.parametrize("kind", KINDS)
async def test_timer_is_delivered_once_at_the_ms_at_which_it_is_due(kind: str, restarts: str) -> None:
    machine = await TimerMachine().start()
    await machine.put(b"x", timer(machine, kind, 100_000))
    if restarts:
        await machine.restart(snapshot=restarts == "snapshot")
    await machine.pass_ms(99_999)
    assert await machine.arrived() == []
    await machine.pass_ms(1)
    assert await machine.arrived() == [b"x"]
    if restarts:
        await machine.restart(snapshot=restarts == "snapshot")
    await machine.pass_ms(60_000)
    assert await machine.arrived() == [b"x"]
    assert len(machine.state.timers) == 0
    await machine.stop()


async def test_time_of_day_in_the_past_is_delivered_at_once() -> None:
    machine = await TimerMachine().start()
    await machine.put(b"x", until(1))
    await machine.look()
    assert await machine.arrived() == [b"x"]
    await machine.stop()


async def test_timer_that_was_due_while_the_broker_was_down_is_delivered_by_its_start() -> None:
    machine = await TimerMachine().start()
    for kind in KINDS:
        await machine.put(kind.encode(), timer(machine, kind, 60_000))
    await machine.kill()
    machine.clock.now_ms += DAY_MS
    await machine.start()
    await machine.look()
    assert sorted(await machine.arrived()) == [b"delay", b"time of day"]
    await machine.stop()


async def test_timer_is_not_late_because_its_record_was_not_on_the_disk_yet_when_it_was_due() -> None:
    """With a synchronous flush a record can't be read before that."""
    machine = await TimerMachine(flush=SYNC).start()
    machine.host.threads.held = asyncio.Event()  # type: ignore[attr-defined]
    sending = asyncio.ensure_future(machine.put(b"x", delay(1)))
    await machine.turns_until(lambda: len(machine.state.timers) == 1)
    machine.clock.now_ms += 1
    await machine.rest()
    machine.host.threads.held.set()  # type: ignore[attr-defined]
    await sending
    await machine.look()
    assert await machine.arrived() == [b"x"]
    await machine.stop()


async def test_timer_that_comes_while_the_disk_is_awaited_is_not_missed() -> None:
    machine = await TimerMachine().start()
    await machine.put(b"first", delay(1_000))
    gate = ReadGate(machine.store)
    machine.clock.now_ms += 1_000
    machine.timers.on_arrival()
    await gate.reached.wait()
    await machine.put(b"second", until(1))
    gate.go.set()
    await machine.look()
    assert sorted(await machine.arrived()) == [b"first", b"second"]
    await machine.stop()


async def test_delivery_reads_nothing_while_nothing_is_due() -> None:
    machine = await TimerMachine().start()
    await machine.put(b"x", delay(60_000))
    reads: list[int] = []
    read = machine.store.read_or_wait

    async def note(topic: str, queue_id: int, offset: int, *page: int) -> ReadResult:
        reads.append(offset)
        return await read(topic, queue_id, offset, *page)

    machine.store.read_or_wait = note  # type: ignore[method-assign, assignment]
    await machine.pass_ms(59_999)
    assert reads == []
    await machine.pass_ms(1)
    assert reads == [0]
    await machine.stop()


@settings(max_examples=examples(100).max_examples, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 3_000) | st.just(70_000), st.integers(0, 2_000)), max_size=20))
def test_each_timer_arrives_once_at_its_due_time(coming: list[tuple[str, int, int]]) -> None:
    async def main() -> None:
        machine = await TimerMachine().start()
        due: dict[bytes, int] = {}
        for number, (kind, ms, wait_ms) in enumerate(coming):
            await machine.put(b"%d" % number, timer(machine, kind, ms))
            due[b"%d" % number] = machine.clock.now_ms + ms
            await machine.pass_ms(wait_ms, step_ms=500)
            assert set(await machine.arrived()) == {body for body, at in due.items() if at <= machine.clock.now_ms}
        await machine.pass_ms(80_000, step_ms=80_000)
        assert sorted(await machine.arrived()) == sorted(due)
        await machine.stop()

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
async def test_more_timers_of_one_ms_than_are_split_at_once_arrive_in_that_ms(kind: str) -> None:
    machine = await TimerMachine(segment_bytes=16 << 20).start()
    bodies = [b"%d" % number for number in range(SPLIT_COUNT + 500)]
    due = timer(machine, kind, 40_000)
    for at in range(0, len(bodies), 500):
        await machine.send(*((body, due) for body in bodies[at : at + 500]))
    await machine.pass_ms(39_999, step_ms=39_999)
    assert await machine.arrived() == []
    await machine.pass_ms(1)
    assert sorted(await machine.arrived()) == sorted(bodies)
    await machine.stop()


# ---------------------------------------------------------------------------------------------------------------------- clocks


@pytest.mark.parametrize("ahead_ms", [HOUR_MS, -HOUR_MS])
async def test_wall_clock_that_jumps_and_returns_moves_no_timer(ahead_ms: int) -> None:
    machine = await TimerMachine().start()
    for kind in KINDS:
        await machine.put(kind.encode(), timer(machine, kind, 100_000))
    machine.clock.ahead_ms = ahead_ms
    await machine.pass_ms(50_000)
    await machine.put(b"sent meanwhile", delay(50_000))
    machine.clock.ahead_ms = 0
    await machine.pass_ms(49_999)
    assert await machine.arrived() == []
    await machine.pass_ms(1)
    assert sorted(await machine.arrived()) == [b"delay", b"sent meanwhile", b"time of day"]
    await machine.stop()


async def test_time_of_day_waits_for_a_wall_clock_that_is_behind_and_a_delay_does_not() -> None:
    machine = await TimerMachine().start()
    for kind in KINDS:
        await machine.put(kind.encode(), timer(machine, kind, 100_000))
    machine.clock.ahead_ms = -HOUR_MS
    await machine.pass_ms(100_000)
    assert await machine.arrived() == [b"delay"]
    await machine.pass_ms(100_000)
    assert await machine.arrived() == [b"delay"]
    machine.clock.ahead_ms = 0
    await machine.look()
    assert await machine.arrived() == [b"delay", b"time of day"]
    await machine.stop()


@pytest.mark.parametrize("restarts", ["", "log", "snapshot"])
@pytest.mark.parametrize("ahead_ms", [HOUR_MS, -HOUR_MS])
async def test_wall_clock_that_is_set_for_good_moves_the_times_of_day_and_no_delay(ahead_ms: int, restarts: str) -> None:
    machine = await TimerMachine().start()
    began_ms, wait_ms = machine.clock.now_ms, 2 * HOUR_MS
    for kind in KINDS:
        await machine.put(kind.encode(), timer(machine, kind, wait_ms))
    machine.clock.ahead_ms = ahead_ms
    await machine.pass_ms(TRUST_MS + 10_000)
    assert machine.store.now_ms() == machine.clock.wall_ms()
    await machine.put(b"later", delay(HOUR_MS))
    dues = {b"delay": wait_ms, b"time of day": wait_ms - ahead_ms, b"later": TRUST_MS + 10_000 + HOUR_MS}
    if restarts:
        await machine.restart(snapshot=restarts == "snapshot")
    for at_ms in sorted(dues.values()):
        await machine.pass_ms(began_ms + at_ms - machine.clock.now_ms - 1, step_ms=10_000)
        assert set(await machine.arrived()) == {body for body, due_ms in dues.items() if due_ms < at_ms}
        await machine.pass_ms(1)
        assert set(await machine.arrived()) == {body for body, due_ms in dues.items() if due_ms <= at_ms}
    await machine.stop()


STEPS = st.one_of(
    st.tuples(st.just("pass"), st.sampled_from([1_000, 30_000, TRUST_MS + 2_000])),
    st.tuples(st.just("jump"), st.sampled_from([-30 * HOUR_MS, -HOUR_MS, HOUR_MS, 30 * HOUR_MS]) | st.integers(-2_500, 2_500)),
    st.tuples(st.just("delay"), st.sampled_from([1, 1_000, 60_000, 65_536, HOUR_MS])),
    st.tuples(st.just("time of day"), st.sampled_from([-1_000, 1_000, 60_000, HOUR_MS, 30 * HOUR_MS])),
    st.tuples(st.just("snapshot"), st.just(0)),
    st.tuples(st.just("restart"), st.sampled_from([0, 5_000, HOUR_MS])),
)


@settings(max_examples=examples(160).max_examples, deadline=None)
@given(st.lists(STEPS, max_size=12))
@example([("delay", HOUR_MS), ("jump", HOUR_MS), ("pass", TRUST_MS + 2_000)])
@example([("time of day", HOUR_MS), ("jump", HOUR_MS), ("pass", TRUST_MS + 2_000), ("jump", -30 * HOUR_MS), ("restart", 0)])
@example([("jump", -1_900), ("pass", 1_000), ("delay", 60_000), ("jump", 1_900)])
@example(
    [("delay", HOUR_MS), ("jump", -HOUR_MS), ("pass", TRUST_MS + 2_000), ("snapshot", 0), ("jump", HOUR_MS), ("pass", TRUST_MS + 2_000)]
)
def test_every_timer_is_on_time_within_one_boot(steps: list[tuple[str, int]]) -> None:
    """A delay by the boot clock; a time of day when the wall clock and the clock of the store have reached it, and its store time."""

    async def main() -> None:
        machine = await TimerMachine().start()
        clock = machine.clock
        delays: dict[bytes, int] = {}
        times: dict[bytes, int] = {}
        expected: set[bytes] = set()

        async def check() -> None:
            await machine.look()
            expected.update(body for body, at in delays.items() if at <= clock.now_ms)
            expected.update(body for body, at in times.items() if at <= min(clock.wall_ms(), machine.store.now_ms()))
            assert sorted(await machine.arrived()) == sorted(expected)

        async def move_to(now_ms: int) -> None:
            while clock.now_ms < now_ms:
                clock.now_ms = min(now_ms, clock.now_ms + 10_000)
                await check()

        for number, (what, value) in enumerate(steps):
            body = b"%d" % number
            if what == "pass":
                await move_to(clock.now_ms + value)
            elif what == "jump":
                clock.ahead_ms += value
            elif what == "delay":
                delays[body] = clock.now_ms + value
                await machine.put(body, delay(value))
            elif what == "time of day":
                times[body] = clock.wall_ms() + value
                await machine.put(body, until(clock.wall_ms() + value))
            elif what == "snapshot":
                await machine.snapshot()
            else:
                await machine.kill()
                clock.now_ms += value
                await machine.start()
            await check()
        for at in sorted(delays.values()):
            await move_to(at - 1)
            await move_to(at)
        clock.now_ms += 1_000 * HOUR_MS
        for _ in range(TRUST_MS // 10_000 + 2):
            await move_to(clock.now_ms + 10_000)
        assert sorted(expected) == sorted(delays | times)
        await machine.stop()

    asyncio.run(main())


async def test_delay_goes_on_over_a_boot_of_the_machine() -> None:
    machine = await TimerMachine().start()
    await machine.put(b"x", delay(HOUR_MS))
    await machine.store.sync()
    await machine.kill(power=True)
    machine.clock.now_ms += HOUR_MS // 2
    await machine.start()
    await machine.pass_ms(HOUR_MS // 2 - 1, step_ms=10_000)
    assert await machine.arrived() == []
    await machine.pass_ms(1)
    assert await machine.arrived() == [b"x"]
    await machine.stop()


@pytest.mark.parametrize("slow_ms", [120_000, 50 * 365 * DAY_MS])
@pytest.mark.parametrize("kind", KINDS)
async def test_no_timer_is_early_after_a_boot_with_a_slow_clock_that_is_set(kind: str, slow_ms: int) -> None:
    """A delay counts the time until the clock is right as if the machine had been off for none: it is late by no more than that."""
    machine = await TimerMachine().start()
    await machine.put(b"x", timer(machine, kind, HOUR_MS))
    due_ms = machine.clock.now_ms + HOUR_MS
    await machine.store.sync()
    await machine.kill(power=True)
    machine.clock.now_ms += 60_000
    machine.clock.ahead_ms = -slow_ms
    await machine.start()
    await machine.pass_ms(20_000)
    machine.clock.ahead_ms = 0
    await machine.pass_ms(TRUST_MS + 2_000)
    assert machine.store.now_ms() == machine.clock.wall_ms()
    await machine.pass_ms(due_ms - 1 - machine.clock.now_ms, step_ms=10_000)
    assert await machine.arrived() == []
    await machine.pass_ms(60_001)
    assert await machine.arrived() == [b"x"]
    await machine.stop()


SLOW_STEPS = st.one_of(
    st.tuples(st.just("pass"), st.sampled_from([1_000, 60_000, TRUST_MS + 2_000]), st.just(0)),
    st.tuples(st.sampled_from(KINDS), st.sampled_from([1_000, 60_000, HOUR_MS]), st.just(0)),
    st.tuples(st.just("snapshot"), st.just(0), st.just(0)),
    st.tuples(st.just("restart"), st.just(0), st.just(0)),
    st.tuples(st.just("boot"), st.sampled_from([0, 60_000, HOUR_MS]), st.sampled_from([0, 1_900, 30_000, HOUR_MS, 3 * HOUR_MS])),
    st.tuples(st.just("set right"), st.just(0), st.just(0)),
)


@settings(max_examples=examples(160).max_examples, deadline=None)
@given(st.lists(SLOW_STEPS, max_size=12))
@example([("delay", HOUR_MS, 0), ("boot", 0, HOUR_MS), ("pass", 60_000, 0), ("set right", 0, 0), ("pass", TRUST_MS + 2_000, 0)])
def test_no_timer_is_early_or_lost_over_boots_of_a_machine_whose_clock_is_sometimes_slow(steps: list[tuple[str, int, int]]) -> None:
    """Timers are sent while the clock of the store is right. Each is late by at most what the clock was set back since."""

    async def main() -> None:
        machine = await TimerMachine().start()
        clock = machine.clock
        due: dict[bytes, int] = {}

        async def check() -> None:
            await machine.look()
            found = await machine.arrived()
            assert len(set(found)) == len(found)
            assert [body for body in found if due[body] > clock.now_ms] == []

        async def move_by(ms: int) -> None:
            end_ms = clock.now_ms + ms
            while clock.now_ms < end_ms:
                clock.now_ms = min(end_ms, clock.now_ms + 10_000)
                await check()

        for number, (what, value, slow_ms) in enumerate(steps):
            body = b"%d" % number
            if what == "pass":
                await move_by(value)
            elif what in KINDS and machine.store.now_ms() == clock.now_ms:
                due[body] = clock.now_ms + value
                await machine.put(body, timer(machine, what, value))
            elif what == "snapshot":
                await machine.snapshot()
            elif what == "restart":
                await machine.restart()
            elif what == "boot":
                await machine.store.sync()
                await machine.kill(power=True)
                clock.now_ms += value
                clock.ahead_ms = -slow_ms
                await machine.start()
            elif what == "set right":
                clock.ahead_ms = 0
            await check()
        clock.ahead_ms = 0
        await move_by(TRUST_MS + 20_000)
        clock.now_ms += 100 * HOUR_MS
        await check()
        assert sorted(await machine.arrived()) == sorted(due)
        await machine.stop()

    asyncio.run(main())


# ------------------------------------------------------------------------------------------------------------------------ copy


@pytest.mark.parametrize("number", [0, 1], ids=["first of its frame", "second of its frame"])
@pytest.mark.parametrize("kind", KINDS)
async def test_copy_has_all_that_was_sent_and_names_only_where_it_waited(kind: str, number: int) -> None:
    machine = await TimerMachine().start()
    sent = b"TAGS\x01paid\x02KEYS\x01k1 k2\x02__SHARDINGKEY\x01customer 7\x02colour\x01r\xc3\xb6t"
    fields: dict[str, Any] = {"flag": 7, "sys_flag": 0x301, "born_ms": 1_234_567}
    messages = [(b"%d" % each, timer(machine, kind, 1_000 + each)) for each in range(2)]
    await machine.send(*messages, properties=sent, peer="10.9.8.7:4321", **fields)
    await machine.pass_ms(2_000)
    copy = (await machine.records())[number]
    stored = await machine.stored_timer(number)
    names = [pair.partition(b"\x01")[0].decode() for pair in copy.properties.split(b"\x02")]
    assert names == ["__LS_FROM", "UNIQ_KEY", "TAGS", "KEYS", "__SHARDINGKEY", "colour"]
    assert copy.properties.endswith(b"\x02UNIQ_KEY\x01ID00000%d\x02" % number + sent)
    code = (STARTED_MS + 1_000 + number) << 2 | (kind != "delay")
    assert decode_properties(copy.properties)["__LS_FROM"] == f"t{code}:{number}"
    assert (copy.topic, copy.queue_id, copy.queue_offset, copy.body) == (b"orders", 2, number, b"%d" % number)
    assert (copy.flag, copy.sys_flag, copy.born_ms, copy.born_host) == (7, 0x301, 1_234_567, pack_host("10.9.8.7:4321"))
    assert (copy.reconsume_times, stored.store_ms, copy.store_ms) == (0, STARTED_MS, STARTED_MS + 1_000 * (number + 1))
    entry = await machine.store.queue_entry("orders", 2, number)
    assert entry is not None
    assert entry[2] == tags_code("paid")
    await machine.stop()


async def test_copy_of_a_message_without_properties_names_only_where_it_waited() -> None:
    machine = await TimerMachine().start()
    await machine.send((b"x", delay(1_000)), (b"y", delay(1_000)), named=False)
    await machine.pass_ms(1_000)
    due = (STARTED_MS + 1_000) << 2
    assert [record.properties for record in await machine.records()] == [b"__LS_FROM\x01t%d:%d" % (due, at) for at in (0, 1)]
    await machine.stop()


async def test_timers_of_several_homes_and_senders_that_are_due_at_once_go_to_each() -> None:
    machine = await TimerMachine().start()
    places = [("orders", 0), ("orders", 3), ("bills", 0)]
    for number in range(12):
        topic, queue_id = places[number % 3]
        sender = number % 2
        how = {"producer": f"{sender}" * 32, "peer": f"10.0.0.{sender}:1000"}
        await machine.put(b"%d" % number, delay(1_000), topic=topic, queue_id=queue_id, **how)
    await machine.pass_ms(1_000)
    for at, (topic, queue_id) in enumerate(places):
        records = await machine.records(topic, queue_id)
        assert {(record.body, record.born_host) for record in records} == {
            (b"%d" % number, pack_host(f"10.0.0.{number % 2}:1000")) for number in range(at, 12, 3)
        }
        assert len(records) == 4
    await machine.stop()


async def test_timers_that_do_not_fit_one_file_of_the_log_together_are_delivered() -> None:
    machine = await TimerMachine(segment_bytes=32 << 10).start()
    bodies = [b"%d" % number * 3_000 for number in range(16)]
    for body in bodies:
        await machine.put(body[:3_000], delay(5_000))
    await machine.pass_ms(5_000)
    assert sorted(await machine.arrived()) == sorted(body[:3_000] for body in bodies)
    await machine.stop()


# --------------------------------------------------------------------------------------------------------------- put aside, ended


@pytest.mark.parametrize("restarts", ["", "log", "snapshot"])
async def test_timers_wait_while_the_writes_of_their_topic_are_held_and_others_do_not(restarts: str) -> None:
    machine = await TimerMachine().start()
    bodies = await put_many(machine, 40, 2_000)
    for number in range(40):
        await machine.put(b"bill %d" % number, delay(2_000 + number), topic="bills", queue_id=0)
    machine.holds.hold("orders", "h", 60_000, machine.clock.boot_ms())
    await machine.pass_ms(2_000, step_ms=2_000)
    for number in range(40):
        assert len(await machine.arrived("bills", 0)) == number + 1
        await machine.pass_ms(1)
    await machine.pass_ms(3_000)
    assert (await machine.arrived(), machine.timers.deferred_counts) == ([], {"orders": 40})
    assert machine.timers.undelivered() == {"orders": 40}
    if restarts:
        await machine.restart(snapshot=restarts == "snapshot")
        await machine.look()
        assert await machine.arrived() == []
    machine.holds.release("orders", "h")
    await machine.pass_ms(RETRY_MS)
    assert sorted(await machine.arrived()) == sorted(bodies)
    assert machine.timers.deferred_counts == {}
    assert len(await machine.arrived("bills", 0)) == 40
    await machine.stop()


async def put_retry(machine: TimerMachine, body: bytes) -> None:
    """Store a timer for a topic of a group that does not exist yet."""
    home = home_properties("%RETRY%g", 0, 0)
    record = encode_record(TIMER_TOPIC.encode(), 0, body, home + delay(1_000), born_ms=1)
    machine.store.append_frame(TIMER_TOPIC, 0, record, 1, born_host=BORN_HOST, room=Room(home, DAY_MS))
    await confirmed(machine.store)


@pytest.mark.parametrize("restarts", [False, True])
async def test_timer_waits_while_the_cluster_has_too_many_topics_for_its_own_and_others_do_not(
    restarts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = await TimerMachine().start()
    await put_retry(machine, b"retry")
    await machine.put(b"order", delay(1_001))
    with monkeypatch.context() as patch:
        patch.setattr("lockstep.broker.tables.topic_table.NAMES_MAX", 2)
        await machine.pass_ms(1_000)
        await machine.pass_ms(1)
        assert await machine.arrived() == [b"order"]
        await machine.pass_ms(2_000)
        assert machine.state.topics.find_layout("%RETRY%g") is None
        if restarts:
            await machine.restart()
            await machine.look()
    await machine.pass_ms(RETRY_MS)
    assert await machine.arrived("%RETRY%g", 0) == [b"retry"]
    await machine.stop()


async def test_timer_waits_while_the_disk_is_full() -> None:
    machine = await TimerMachine(disk_reserve_bytes=100_000).start()
    bodies = await put_many(machine, 20)
    machine.files.capacity_bytes = machine.files.used_bytes() + 90_000
    machine.store.disk_status()
    await machine.pass_ms(8_000)
    assert await machine.arrived() == []
    machine.files.capacity_bytes += 100_000
    await machine.pass_ms(RETRY_MS)
    assert sorted(await machine.arrived()) == sorted(bodies)
    await machine.stop()


@pytest.mark.parametrize("created_again", [False, True])
@pytest.mark.parametrize("put_aside", [False, True], ids=["before it is due", "while it is put aside"])
async def test_deleted_topic_gets_no_timer_and_none_of_them_is_left(created_again: bool, put_aside: bool) -> None:
    machine = await TimerMachine().start()
    await put_many(machine, 20, 2_000)
    await machine.put(b"other", delay(2_000), topic="bills", queue_id=0)
    if put_aside:
        machine.holds.hold("orders", "h", 60_000, machine.clock.boot_ms())
        await machine.pass_ms(2_000)
        machine.holds.release("orders", "h")
    machine.create_topic("orders", 2, queues=0)
    if created_again:
        machine.create_topic("orders", 3)
        await machine.put(b"new", delay(3_000))
    await machine.pass_ms(6_000)
    for _ in range(2):
        assert await machine.arrived() == ([b"new"] if created_again else [])
        assert await machine.arrived("bills", 0) == [b"other"]
        assert (len(machine.state.timers), machine.timers.deferred_counts) == (0, {})
        await machine.restart()
        assert len(machine.state.timers) == 0
        await machine.pass_ms(2_000)
    assert machine.store.damage.lost() == []
    await machine.stop()


async def test_altered_topic_gets_its_timers_in_a_queue_that_it_has() -> None:
    machine = await TimerMachine().start()
    await machine.put(b"x", delay(1_000), queue_id=3)
    machine.state.topics.alter_own("orders", 2, 2)
    await machine.pass_ms(1_000)
    assert await machine.arrived(queue_id=1) == [b"x"]
    await machine.stop()


async def test_message_waits_until_it_is_delivered_recalled_or_its_topic_is_deleted() -> None:
    machine = await TimerMachine().start()
    handles = [await machine.put(b"%d" % number, delay(1_000 * (number + 1))) for number in range(3)]
    records = [bytes(b"".join((await machine.store.read_or_wait(TIMER_TOPIC, 0, at, 1, 1)).parts)) for at in range(3)]

    def waiting() -> list[bool]:
        return [machine.timers.waits(record) for record in records]

    assert waiting() == [True, True, True]
    await machine.pass_ms(1_000)
    assert waiting() == [False, True, True]
    await machine.recall(handles[1])
    assert waiting() == [False, False, True]
    machine.create_topic("orders", 2, queues=0)
    assert waiting() == [False, False, False]
    await machine.stop()


# ---------------------------------------------------------------------------------------------------------------- reads that fail


class BadOffsets:
    """Records of the room that can't be read: a read of any of them fails, also together with others."""

    def __init__(self, machine: TimerMachine, *offsets: int, error: Exception) -> None:
        self.offsets = set(offsets)
        self._read, self._error = machine.store.read_or_wait, error
        machine.store.read_or_wait = self  # type: ignore[method-assign]

    async def __call__(self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int) -> ReadResult:
        if topic == TIMER_TOPIC and self.offsets.intersection(range(offset, offset + max_count)):
            raise self._error
        return await self._read(topic, queue_id, offset, max_count, max_bytes)


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), StoreCorruptError("log position 0")])
async def test_timer_that_cannot_be_read_is_tried_again_and_others_are_not_late(error: Exception) -> None:
    machine = await TimerMachine().start()
    bodies = await put_many(machine, 20)
    bad = BadOffsets(machine, 7, error=error)
    await machine.pass_ms(5_000)
    assert sorted(await machine.arrived()) == sorted(bodies[:7] + bodies[8:])
    await machine.pass_ms(3 * RETRY_MS)
    assert len(await machine.arrived()) == 19
    bad.offsets.clear()
    await machine.pass_ms(RETRY_MS)
    assert sorted(await machine.arrived()) == sorted(bodies)
    assert machine.store.damage.lost() == []
    await machine.stop()


async def test_timer_that_can_be_read_again_does_not_wait_for_one_that_cannot() -> None:
    machine = await TimerMachine().start()
    bodies = await put_many(machine, 5)
    bad = BadOffsets(machine, *range(5), error=OSError(5, "Input/output error"))
    await machine.pass_ms(5_000)
    assert await machine.arrived() == []
    bad.offsets = {0, 2}
    await machine.pass_ms(5 * RETRY_MS)
    assert sorted(await machine.arrived()) == [bodies[1], bodies[3], bodies[4]]
    await machine.stop()


def missing(*_: object, **__: object) -> None:
    raise KeyError("missing")


async def run_with_an_error(machine: TimerMachine, place: str, number: int, patch: pytest.MonkeyPatch) -> None:
    """Let `place` raise an unexpected error for one timer, alone or with others."""
    deliver, read = machine.home.deliver_bound, machine.store.read_or_wait

    async def failing(topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int) -> ReadResult:
        result = await read(topic, queue_id, offset, max_count, max_bytes)
        if topic == TIMER_TOPIC and offset <= number < offset + result.count:
            if place == "read":
                raise KeyError("missing")
            data = bytearray(b"".join(result.parts))
            begin, _ = split_records(data)[number - offset]
            properties = RecordView(data, begin).properties
            at = data.index(properties, begin)
            data[at : at + 4] = b"FAKE"
            result.parts = [bytes(data)]
        return result

    if place == "home":
        patch.setattr(
            machine.home,
            "deliver_bound",
            lambda room, home, bound: missing() if any(each.offset == number for each in bound.waiting) else deliver(room, home, bound),
        )
    else:
        patch.setattr(machine.store, "read_or_wait", failing)


@pytest.mark.parametrize("place", ["home", "properties", "read"])
async def test_timer_with_an_unexpected_error_is_lost_after_all_attempts_and_others_are_delivered(
    place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machine = await TimerMachine().start()
    bodies = await put_many(machine, 20)
    await run_with_an_error(machine, place, 7, monkeypatch)
    await machine.pass_ms(5_000, step_ms=5_000)
    assert sorted(await machine.arrived()) == sorted(bodies[:7] + bodies[8:])
    assert machine.store.damage.lost() == []
    await machine.pass_ms((ATTEMPTS_MAX - 1) * RETRY_MS)
    assert machine.store.damage.lost() == [(TIMER_TOPIC, 0, 7, 8)]
    assert len(machine.state.timers) == 0
    failed = [record for record in caplog.records if "timer.failed" in record.getMessage()]
    assert (len(failed), all(record.exc_info for record in failed)) == (ATTEMPTS_MAX, True)
    monkeypatch.undo()
    await machine.stop()
    await machine.start()
    assert len(machine.state.timers) == 0
    await machine.pass_ms(2_000)
    assert machine.store.damage.lost() == [(TIMER_TOPIC, 0, 7, 8)]
    assert sorted(await machine.arrived()) == sorted(bodies[:7] + bodies[8:])
    await machine.stop()


@pytest.mark.parametrize("place", ["home", "properties", "read"])
async def test_unexpected_error_that_disappears_loses_no_timer(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = await TimerMachine().start()
    bodies = await put_many(machine, 20)
    with monkeypatch.context() as patch:
        await run_with_an_error(machine, place, 7, patch)
        await machine.pass_ms(5_000, step_ms=5_000)
        await machine.pass_ms((ATTEMPTS_MAX - 2) * RETRY_MS)
    await machine.pass_ms(RETRY_MS)
    assert sorted(await machine.arrived()) == sorted(bodies)
    assert machine.store.damage.lost() == []
    await machine.stop()


async def run_with_a_flipped_bit(flip: int, *, with_snapshot: bool) -> None:
    machine = await TimerMachine().start()
    for body in (b"before", b"harmed", b"behind"):
        await machine.put(body, delay(5_000), properties=b"TAGS\x01paid\x02KEYS\x01order-7")
    if with_snapshot:
        await machine.snapshot()
    await machine.stop()
    log = machine.files.open(LOG).pread(1 << 20, 0)
    begin = log.rindex(b"\xda\xa3\x20\xa7", 0, log.index(b"harmed")) - 4
    size = int.from_bytes(log[begin : begin + 4], "big")
    machine.files.flip(LOG, begin + flip // 8 % size, flip % 8)
    machine.settings["cut_corrupt"] = True
    await machine.start()
    for _ in range(8):
        await machine.pass_ms(RETRY_MS)
        await machine.store._repairs.idle.wait()
    records = await machine.records()
    assert [record.body for record in records] == [b"before", b"behind"]
    assert [decode_properties(record.properties)["KEYS"] for record in records] == ["order-7"] * 2
    assert machine.store.damage.lost() == [(TIMER_TOPIC, 0, 1, 2)]
    assert len(machine.state.timers) == 0
    await machine.stop()


@settings(max_examples=examples(200).max_examples, deadline=None)
@given(flip=st.integers(0, 8 * 400), with_snapshot=st.booleans())
def test_any_flipped_bit_of_a_timer_is_found_and_the_others_are_delivered(flip: int, with_snapshot: bool) -> None:
    asyncio.run(run_with_a_flipped_bit(flip, with_snapshot=with_snapshot))


# --------------------------------------------------------------------------------------------------------------------- kills


@pytest.mark.parametrize("kept", range(4))
async def test_write_of_which_the_disk_has_a_part_delivers_no_timer_twice(kept: int) -> None:
    """The disk has the first copies of a write, and the others are lost."""
    machine = await TimerMachine().start()
    bodies = await put_many(machine, 3, 1_000)
    begin = machine.store.log_bounds[1]
    await machine.pass_ms(1_000)
    assert await machine.arrived() == bodies
    log = machine.files.open(LOG)
    ends = [0, *(end for _, end in split_records(log.pread(machine.store.log_bounds[1] - begin, begin)))]
    assert len(ends) == 1 + len(bodies)
    await machine.kill()
    machine.files.overwrite(LOG, begin + ends[kept], bytes(1 << 12))
    await machine.start()
    assert len(machine.state.timers) == len(bodies) - kept
    await machine.look()
    assert await machine.arrived() == bodies
    await machine.stop()


async def deliver_and_end(turns: int, *, power: bool, with_snapshot: bool, seed: int = 0) -> bool:
    """Deliver 50 timers, end the process after so many turns of the loop, and go on. Return whether the delivery had ended before.

    The records are not in memory, so that there are turns between a read and its deliveries.
    """
    machine = TimerMachine(seed, tail_bytes=1 << 12)
    machine.files.cached_reads = False
    await machine.start()
    bodies = await put_many(machine, 50)
    machine.clock.now_ms += 5_000
    machine.timers.on_arrival()
    for _ in range(turns):
        await asyncio.sleep(0)
    has_ended = machine.store.end_offset("orders", 2) == len(bodies)
    if with_snapshot:
        await machine.snapshot()
        await asyncio.sleep(0)
    await machine.kill(power=power)
    await machine.start()
    await machine.look()
    assert sorted(await machine.arrived()) == sorted(bodies)
    await machine.restart()
    await machine.pass_ms(2_000)
    assert sorted(await machine.arrived()) == sorted(bodies)
    assert len(machine.state.timers) == 0
    await machine.stop()
    return has_ended


@pytest.mark.parametrize("with_snapshot", [False, True])
@pytest.mark.parametrize("power", [False, True])
async def test_kill_at_any_turn_of_the_delivery_repeats_no_timer_and_loses_none(power: bool, with_snapshot: bool) -> None:
    turns = ended = 0
    while ended < 3:
        ended += await deliver_and_end(turns, power=power, with_snapshot=with_snapshot)
        turns += 1
    assert turns > 8


@pytest.mark.parametrize("seed", seeds(4, 40))
async def test_power_cut_in_the_delivery_repeats_no_timer_and_loses_none(seed: int) -> None:
    for turns in range(3, 15, 3):
        await deliver_and_end(turns, power=True, with_snapshot=seed % 2 == 1, seed=seed)


async def test_process_that_ends_at_any_write_of_the_delivery_repeats_no_timer_and_loses_none() -> None:
    for operations in range(1_000):
        machine = await TimerMachine().start()
        bodies = await put_many(machine, 50)
        machine.clock.now_ms += 5_000
        machine.files.countdown = operations
        machine.timers.on_arrival()
        is_whole = False
        while not (machine.fatal or is_whole):
            await asyncio.sleep(0)
            is_whole = machine.store.bounds("orders", 2)[1] == len(bodies)
        await machine.kill()
        await machine.start()
        await machine.look()
        assert sorted(await machine.arrived()) == sorted(bodies)
        await machine.stop()
        if is_whole:
            assert operations > 1
            return
    raise AssertionError("the delivery never ends")
