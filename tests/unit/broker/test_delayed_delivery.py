"""Delayed messages at the broker: which are due, their entries, refusals and missing target topics."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.broker.delivery.delayed_delivery import DelayedDelivery
from lockstep.broker.delivery.group_topics import GroupTopics
from lockstep.broker.delivery.home_delivery import RETRY_MS, HomeDelivery
from lockstep.broker.delivery.message_copy import MessageCopy, failed_copy
from lockstep.broker.journal import Journal, decode_changes
from lockstep.broker.store import ReadResult, ReadStatus, StoreCorruptError
from lockstep.broker.tables.delay_table import DelayTable
from lockstep.broker.tables.topic_table import TopicTable
from lockstep.protocol.delays import DELAY_MS_MAX, LEVELS_MS, delay_queue_id, parse_levels, queue_delay_ms
from lockstep.protocol.errors import LocalProtocolError, ServiceNotAvailableError
from lockstep.protocol.messages.record import HOSTS, OFFSETS, RecordView, encode_record, split_records
from lockstep.protocol.names import SCHEDULE_TOPIC
from lockstep.protocol.topics.layouts import LayoutTable
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from lockstep.runtime.steady_clock import TRUST_MS
from support.broker_fakes import FakeHost, FakeStore
from support.delay_machine import Machine
from support.store_kit import ASYNC, LOG, NEVER, SimFiles, confirmed, host_of, open_store

LEVELS = (100, 1_000, 60_000)
FIRST = delay_queue_id(LEVELS[0])


class StampingStore(FakeStore):
    """Stamp each record as the store does."""

    def __init__(self, host: FakeHost) -> None:
        super().__init__()
        self.host = host

    def now_ms(self) -> int:
        return self.host.clock.now_ms

    def append_frame(self, topic: str, queue_id: int, frame: bytes | bytearray, count: int, **how: Any) -> Any:
        if self.refuse is not None:
            raise self.refuse
        data = bytearray(frame)
        OFFSETS.pack_into(data, 20, len(self.queues.get((topic, queue_id), [])), self.end)
        HOSTS.pack_into(data, 48, how["born_host"], self.host.clock.now_ms, self.store_host)
        return self.append(topic, queue_id, [bytes(data)], how["born_host"])


class DeliveryBench:
    def __init__(self) -> None:
        self.host = FakeHost()
        self.store = StampingStore(self.host)
        self.journal = Journal()
        self.table = DelayTable(self.journal)
        self.topics = TopicTable(LayoutTable(), Journal(), "broker-a")
        self.topics.create(TopicLayout("orders", LayoutVersion(1, 7), (LayoutEntry("broker-a", 4, 4, 1),)))
        self.held: set[str] = set()
        self.delays = self.service()

    def service(self, levels_ms: tuple[int, ...] = LEVELS) -> DelayedDelivery:
        """Create the service as a start does, with that start's table."""
        self.levels_ms = levels_ms
        topics = GroupTopics(self.topics, is_held=self.held.__contains__)
        store = cast(Any, self.store)
        return DelayedDelivery(store, self.table, topics, HomeDelivery(store, topics), levels_ms)

    def put(self, body: bytes, level: int, topic: str = "orders", queue_id: int = 2) -> None:
        record = encode_record(topic.encode(), queue_id, body, b"TAGS\x01paid", born_ms=1)
        self.delays.append(MessageCopy.of(RecordView(record)), level)
        self.delays.on_arrival(delay_queue_id(self.levels_ms[min(level, len(self.levels_ms)) - 1]))

    async def look(self) -> None:
        """Run the service once."""
        for queue_id in [queue_id for queue_id, due_ms in self.delays._due_ms.items() if due_ms <= self.host.clock.now_ms]:
            await self.delays._deliver(queue_id)

    async def pass_ms(self, ms: int) -> None:
        self.host.clock.now_ms += ms
        await self.look()

    def arrived(self, topic: str = "orders", queue_id: int = 2) -> list[bytes]:
        return [RecordView(record).body for record, _ in self.store.queues.get((topic, queue_id), [])]


async def test_message_is_due_exactly_at_its_store_time_plus_its_delay() -> None:
    desk = DeliveryBench()
    desk.put(b"x", 2)
    await desk.look()
    await desk.pass_ms(999)
    assert desk.arrived() == []
    await desk.pass_ms(1)
    assert desk.arrived() == [b"x"]
    await desk.pass_ms(10_000)
    assert desk.arrived() == [b"x"], "once"


async def test_message_waits_until_it_is_delivered_or_its_topic_is_deleted() -> None:
    desk = DeliveryBench()
    desk.put(b"x", 1)
    desk.put(b"y", 2)
    (first,), (second,) = (
        [bytes(record) for record, _ in desk.store.queues[SCHEDULE_TOPIC, delay_queue_id(LEVELS[number])]] for number in (0, 1)
    )
    assert [desk.delays.waits(first), desk.delays.waits(second)] == [True, True]
    await desk.pass_ms(100)
    assert [desk.delays.waits(first), desk.delays.waits(second)] == [False, True]
    desk.topics.create(TopicLayout("orders", LayoutVersion(3, 7), (LayoutEntry("broker-a", 4, 4, 3),)))  # it was deleted between
    assert not desk.delays.waits(second)


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), StoreCorruptError("log position 0")])
@pytest.mark.parametrize("cold", [False, True])
async def test_unreadable_delay_queue_is_retried_and_other_delays_continue(error: Exception, cold: bool) -> None:
    """Otherwise the broker would exit with code 1."""
    desk = DeliveryBench()
    desk.put(b"x", 2)
    desk.put(b"y", 1)
    desk.store.cold, desk.store.unreadable = cold, {(SCHEDULE_TOPIC, delay_queue_id(LEVELS[1])): error}
    await desk.pass_ms(1_000)
    assert desk.arrived() == [b"y"]
    await desk.pass_ms(RETRY_MS)
    assert desk.arrived() == [b"y"]
    desk.store.unreadable = {}
    await desk.pass_ms(RETRY_MS)
    assert desk.arrived() == [b"y", b"x"]


async def test_messages_before_an_unreadable_one_are_delivered_and_it_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = DeliveryBench()
    for body in (b"0", b"1", b"2"):
        desk.put(body, 1)
    desk.store.rotten[SCHEDULE_TOPIC, FIRST] = 2
    await desk.pass_ms(100)
    for _ in range(4):
        await desk.pass_ms(RETRY_MS)
    assert desk.arrived() == [b"0", b"1"]
    assert [record.getMessage().count("delay.unreadable") for record in caplog.records if "delay." in record.getMessage()] == [1]


async def test_level_above_the_last_one_is_the_last_one() -> None:
    desk = DeliveryBench()
    desk.put(b"x", 99)
    await desk.pass_ms(59_999)
    assert desk.arrived() == []
    await desk.pass_ms(1)
    assert desk.arrived() == [b"x"]


async def test_wall_clock_set_back_makes_no_delay_early() -> None:
    desk = DeliveryBench()
    desk.put(b"x", 2)
    await desk.pass_ms(-5_000)
    await desk.pass_ms(5_999)
    assert desk.arrived() == []
    await desk.pass_ms(1)
    assert desk.arrived() == [b"x"]


async def test_progress_is_written_with_the_deliveries_and_a_restart_continues_after_it() -> None:
    desk = DeliveryBench()
    for number in range(3):
        desk.put(b"%d" % number, 1)
    await desk.pass_ms(100)
    (body,) = desk.journal.encode(1 << 20)
    table = DelayTable(Journal())
    for change in decode_changes(body):
        table.apply(change)
    assert table.next_offset(FIRST) == 3
    desk.table = DelayTable(Journal())
    desk.table.restore(table.snapshot())
    desk.delays = desk.service()
    desk.put(b"3", 1)
    await desk.pass_ms(100)
    assert desk.arrived() == [b"0", b"1", b"2", b"3"]


def layout(counter: int, *entries: tuple[int, int]) -> TopicLayout:
    """Return a layout with these entries: (queues, counter)."""
    return TopicLayout("orders", LayoutVersion(counter, 7), tuple(LayoutEntry("broker-a", count, count, began) for count, began in entries))


@pytest.mark.parametrize("copy", [False, True])
async def test_recreated_topic_gets_no_delayed_message_of_its_predecessor(copy: bool) -> None:
    desk = DeliveryBench()
    if copy:
        record = RecordView(encode_record(b"orders", 2, b"old", b"", born_ms=1))
        desk.delays.append(failed_copy(record, "%RETRY%g", 0), 1)
        desk.delays.on_arrival(FIRST)
    else:
        desk.put(b"old", 1)
    desk.topics.create(layout(2))
    desk.topics.create(layout(3, (4, 3)))
    desk.put(b"new", 1)
    await desk.pass_ms(100)
    assert (desk.arrived(), desk.arrived("%RETRY%g", 0)) == ([b"new"], [])


async def test_altered_topic_gets_its_delayed_messages() -> None:
    desk = DeliveryBench()
    desk.put(b"x", 1)
    desk.topics.create(layout(2, (4, 1), (2, 2)))
    desk.topics.create(layout(3, (4, 1)))
    await desk.pass_ms(100)
    assert desk.arrived() == [b"x"]


async def test_delayed_message_of_a_broker_without_queues_moves_no_key() -> None:
    """It opens a queue to read alone: the queues to write to decide the queue of every key."""
    desk = DeliveryBench()
    desk.put(b"x", 1)
    gone = (LayoutEntry("broker-a", 0, 0, 1), LayoutEntry("broker-b", 4, 4, 1), LayoutEntry("broker-a", 0, 0, 2))
    before = TopicLayout("orders", LayoutVersion(2, 7), gone)
    desk.topics.create(before)
    await desk.pass_ms(100)
    assert desk.arrived(queue_id=0) == [b"x"]
    after = desk.topics.require_layout("orders")
    assert (after.write_queues, after.read_count("broker-a")) == (before.write_queues, 1)


async def test_delayed_message_waits_while_the_writes_to_its_topic_are_held() -> None:
    desk = DeliveryBench()
    desk.put(b"x", 1)
    desk.put(b"other", 1, topic="%RETRY%billing", queue_id=0)
    desk.held.add("orders")
    await desk.pass_ms(100)
    assert desk.arrived() == []
    desk.held.clear()
    await desk.pass_ms(RETRY_MS)
    assert desk.arrived() == [b"x"]
    assert desk.arrived("%RETRY%billing", 0) == [b"other"]


async def test_full_disk_stops_a_level_until_space_is_free_and_keeps_its_order() -> None:
    desk = DeliveryBench()
    desk.put(b"0", 1)
    desk.put(b"1", 1)
    desk.store.refuse = ServiceNotAvailableError("full")
    await desk.pass_ms(100)
    assert desk.table.next_offset(FIRST + 1) == 0
    desk.store.refuse = None
    await desk.pass_ms(RETRY_MS - 1)
    assert desk.arrived() == []
    await desk.pass_ms(1)
    assert desk.arrived() == [b"0", b"1"]


async def test_delayed_message_of_a_deleted_topic_is_dropped_and_others_continue() -> None:
    desk = DeliveryBench()
    desk.put(b"gone", 1, topic="doomed")
    desk.put(b"here", 1)
    await desk.pass_ms(100)
    assert desk.arrived() == [b"here"]


async def test_group_topic_is_created_for_a_delayed_message() -> None:
    desk = DeliveryBench()
    desk.put(b"x", 1, topic="%RETRY%billing", queue_id=0)
    await desk.pass_ms(100)
    assert desk.arrived("%RETRY%billing", 0) == [b"x"]
    layout = desk.topics.find_layout("%RETRY%billing")
    assert layout is not None
    assert layout.write_count("broker-a") == 1


async def test_arrival_during_a_cold_read_is_not_missed() -> None:
    desk = DeliveryBench()
    desk.put(b"0", 1)
    await desk.pass_ms(100)
    desk.store.cold = True
    original = desk.store.read_cold

    async def read_cold(*place: Any, **page: Any) -> Any:
        found = await original(*place, **page)
        if not desk.store.queues[SCHEDULE_TOPIC, FIRST][1:]:
            desk.put(b"1", 1)
        return found

    desk.store.read_cold = read_cold  # type: ignore[method-assign]
    await desk.look()
    await desk.pass_ms(100)
    await desk.look()
    assert desk.arrived() == [b"0", b"1"]


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2_000)), max_size=20))
def test_each_message_arrives_once_at_the_first_check_after_its_due_time(coming: list[tuple[int, int]]) -> None:
    async def main() -> None:
        desk = DeliveryBench()
        due: dict[bytes, int] = {}
        began = desk.host.clock.now_ms
        for number, (level, wait_ms) in enumerate(coming):
            desk.put(b"%d" % number, level)
            due[b"%d" % number] = desk.host.clock.now_ms + LEVELS[level - 1]
            await desk.pass_ms(wait_ms)
            await desk.look()
            assert set(desk.arrived()) == {body for body, at in due.items() if at <= desk.host.clock.now_ms}
        desk.host.clock.now_ms = began + 200_000
        await desk.look()
        assert sorted(desk.arrived()) == sorted(due)

    asyncio.run(main())


TABLES = st.lists(st.sampled_from([1, 100, 1_000, 5_000, 60_000]), min_size=1, max_size=4, unique=True).map(tuple)


@settings(max_examples=100)
@given(st.lists(st.tuples(TABLES, st.lists(st.tuples(st.integers(1, 5), st.integers(0, 2_000)), max_size=6)), min_size=1, max_size=5))
def test_changed_delay_table_keeps_the_due_time_of_each_stored_message(
    starts: list[tuple[tuple[int, ...], list[tuple[int, int]]]],
) -> None:
    """A message is not early because of a shorter delay, not late because of a longer one, and not lost if a start has a shorter table."""

    async def main() -> None:
        desk = DeliveryBench()
        due: dict[bytes, int] = {}
        for levels_ms, coming in starts:
            desk.delays = desk.service(levels_ms)
            for level, wait_ms in coming:
                body, delay_ms = b"%d" % len(due), levels_ms[min(level, len(levels_ms)) - 1]
                desk.put(body, level)
                due[body] = desk.host.clock.now_ms + delay_ms
                await desk.pass_ms(wait_ms)
                await desk.look()
                assert set(desk.arrived()) == {body for body, at in due.items() if at <= desk.host.clock.now_ms}
        await desk.pass_ms(60_000)
        await desk.look()
        assert sorted(desk.arrived()) == sorted(due)

    asyncio.run(main())


@given(st.integers(1, DELAY_MS_MAX))
def test_each_delay_has_one_permanent_queue_and_rocketmqs_levels_their_own(delay_ms: int) -> None:
    assert queue_delay_ms(delay_queue_id(delay_ms)) == delay_ms
    assert 0 <= delay_queue_id(delay_ms) < 1 << 31
    assert [delay_queue_id(ms) for ms in LEVELS_MS] == list(range(18))


def test_unknown_delay_queue_has_the_longest_delay() -> None:
    assert [queue_delay_ms(queue_id) for queue_id in (17, 18, 1_000)] == [7_200_000] * 3


def test_delay_without_a_queue_is_rejected_as_a_level() -> None:
    assert parse_levels("24d") == (24 * 86_400_000,)
    with pytest.raises(LocalProtocolError, match="delay level '25d': at most 24d"):
        parse_levels("1s 25d")


async def test_delay_entries_hold_the_due_time_also_after_a_rebuild() -> None:
    """RocketMQ reads the delivery time from the entry: a message with a 0 would be due at once."""
    files = SimFiles()
    store = await open_store(files, host=host_of(files), flush=ASYNC)
    record = encode_record(SCHEDULE_TOPIC.encode(), FIRST, b"x", b"TAGS\x01paid", born_ms=1)
    stored_ms = store.append_frame(SCHEDULE_TOPIC, FIRST, record, 1, born_host=bytes(8), trusted=True).store_timestamp
    await confirmed(store)

    def entry(of: Any) -> Any:
        return of._queues.get((SCHEDULE_TOPIC, FIRST)).memory_entry(0)

    first = entry(store)
    assert first[2] == stored_ms + LEVELS[0]
    await store.close(clean=False)
    again = await open_store(files, host=host_of(files), flush=ASYNC)
    assert entry(again) == first
    await again.close()


@asynccontextmanager
async def running(desk: DeliveryBench) -> AsyncIterator[None]:
    task = asyncio.ensure_future(desk.delays.run())
    try:
        yield
    finally:
        task.cancel()


async def test_idle_delivery_task_is_not_woken() -> None:
    desk = DeliveryBench()
    async with running(desk):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        reads: list[object] = []
        original = desk.store.read
        desk.store.read = lambda *place, **page: reads.append(place) or original(*place, **page)  # type: ignore[method-assign, func-returns-value]
        for _ in range(50):
            await asyncio.sleep(0)
        assert reads == []
        desk.put(b"x", 1)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(reads) == 1


async def test_delay_is_unaffected_by_a_wall_clock_an_hour_ahead_for_seconds() -> None:
    machine = Machine()
    await machine.start()
    await machine.put(3)
    machine.clock.ahead_ms = 3_600_000
    assert await machine.pass_ms(1_000) == 0, "nor does it make anything early"
    await machine.put(3)
    assert await machine.pass_ms(1_500) == 0
    machine.clock.ahead_ms = 0
    await machine.put(3)
    assert await machine.pass_ms(57_499) == 0
    assert await machine.pass_ms(1) == 1
    assert await machine.pass_ms(2_500) == 3
    await machine.store.close()


@pytest.mark.parametrize("restarts", [False, True])
async def test_message_stored_by_a_fast_clock_waits_no_longer_than_its_delay(restarts: bool) -> None:
    """The broker started while the clock was an hour ahead and trusted it, until the clock was correct for five minutes."""
    machine = Machine()
    machine.clock.ahead_ms = 3_600_000
    await machine.start()
    machine.clock.ahead_ms = 0
    await machine.pass_ms(TRUST_MS - 30_000)
    await machine.put(3)
    await machine.pass_ms(29_000)
    await machine.put(1)
    await machine.pass_ms(2_000)
    await machine.put(1)
    if restarts:
        await machine.restart()
    assert machine.store.now_ms() == machine.clock.now_ms
    assert await machine.pass_ms(28_000) == 2
    assert await machine.pass_ms(2_000) == 3
    await machine.store.close()


async def test_slow_clock_at_a_start_makes_no_delay_early_when_it_is_set() -> None:
    """A machine without a battery starts in 1970 and gets the time seconds later."""
    machine = Machine()
    await machine.start()
    await machine.put(3)
    machine.clock.ahead_ms = -50 * 365 * 86_400_000
    await machine.restart(boots=True)
    await machine.pass_ms(20_000)
    machine.clock.ahead_ms = 0
    assert await machine.pass_ms(39_000) == 0
    assert await machine.pass_ms(2_000) == 1
    await machine.store.close()


async def test_delayed_message_for_a_replaced_layout_gets_a_queue_of_this_broker() -> None:
    """Another broker created the topic at the same time and its layout won, because this broker's queues were empty."""
    desk = DeliveryBench()
    desk.put(b"x", 2)
    desk.topics.adopt([TopicLayout("orders", LayoutVersion(1, 8), (LayoutEntry("broker-b", 4, 4, 1),))])
    assert desk.topics.own_write_count(desk.topics.require_layout("orders")) == 0
    await desk.pass_ms(1_000)
    assert desk.arrived(queue_id=0) == [b"x"]
    assert desk.topics.require_layout("orders").entries[-1] == LayoutEntry("broker-a", 0, 1, 2)


async def test_delayed_retry_gets_its_topic_even_at_the_topic_limit() -> None:
    desk = DeliveryBench()
    desk.topics.topics_max = 1
    desk.put(b"x", 2, topic="%RETRY%g", queue_id=0)
    await desk.pass_ms(1_000)
    assert desk.arrived("%RETRY%g", 0) == [b"x"]


async def test_delayed_retry_waits_while_the_cluster_is_at_its_topic_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = DeliveryBench()
    desk.put(b"x", 2, topic="%RETRY%g", queue_id=0)
    monkeypatch.setattr("lockstep.broker.tables.topic_table.NAMES_MAX", 1)
    await desk.pass_ms(5_000)
    assert desk.arrived("%RETRY%g", 0) == []
    monkeypatch.setattr("lockstep.broker.tables.topic_table.NAMES_MAX", 2)
    await desk.pass_ms(RETRY_MS)
    assert desk.arrived("%RETRY%g", 0) == [b"x"]


async def test_empty_gap_is_retried_later_and_writes_no_progress() -> None:
    """It reads once, and not in a loop for 20 turns."""
    machine = Machine()
    await machine.start()
    await machine.put(1)
    machine.clock.now_ms += 1_000
    reads = 0

    async def gone(topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int) -> ReadResult:
        nonlocal reads
        reads += 1
        return ReadResult(ReadStatus.OFFSET_TOO_SMALL, offset, offset, offset + 1)

    machine.store.read_or_wait = gone  # type: ignore[method-assign]
    await machine.look()
    assert reads == 1
    assert machine.table.next_offset(FIRST) == 0
    await machine.store.close()


@pytest.mark.parametrize("kept", range(4))
async def test_write_of_which_the_disk_has_a_part_delivers_nothing_twice(kept: int) -> None:
    """The disk has the first copies of a write, and the record of the progress behind them is lost with the others."""
    machine = Machine()
    await machine.start(**NEVER)
    bodies = [b"first", b"second", b"third"]
    for body in bodies:
        await machine.put(1, body)
    begin = machine.store.log_bounds[1]
    await machine.pass_ms(1_000)
    assert await machine.arrived() == bodies
    log = machine.files.open(LOG)
    ends = [0, *(end for _, end in split_records(log.pread(machine.store.log_bounds[1] - begin, begin)))]
    assert len(ends) == 1 + len(bodies)
    await machine.store.close(clean=False)
    log.pwritev([bytes(1 << 12)], begin + ends[kept])
    machine.table = DelayTable(Journal())
    await machine.start(**NEVER)
    assert machine.table.next_offset(FIRST) == kept
    machine.delays.on_arrival(FIRST)
    await machine.pass_ms(1_000)
    assert await machine.arrived() == bodies
    await machine.store.close()
