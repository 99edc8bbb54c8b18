"""The figures of delay queues: how many messages wait, and when they are due, as a model has it that knows each message."""

from bisect import bisect_left
from collections import Counter
from typing import Any, cast

from hypothesis import example, given, settings
from hypothesis import strategies as st

from lockstep.broker.delivery.delayed_delivery import DelayedDelivery
from lockstep.broker.delivery.group_topics import GroupTopics
from lockstep.broker.delivery.message_copy import MessageCopy
from lockstep.broker.figures.delay_figures import LOOK_UP_MS, delay_figures
from lockstep.protocol.bodies import DelayFigures
from lockstep.protocol.delays import DUE_WITHIN_MS, delay_queue_id
from lockstep.protocol.messages.record import RecordView, encode_record
from lockstep.protocol.names import SCHEDULE_TOPIC
from lockstep.runtime.steady_clock import TRUST_MS
from support.delay_machine import Machine
from support.store_kit import confirmed

HOUR_MS = 3_600_000
DELAYS = (1_000, 60_000, 90_000, 300_000, 1_800_000, HOUR_MS, 3 * HOUR_MS)
Waiting = list[tuple[int, int]]
"""(When a message is due by the boot clock, its delay), in the order of their store times."""


class Bench(Machine):
    """A machine whose levels have DELAYS."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: Waiting = []

    async def start(self) -> None:
        await super().start()
        self.delays = DelayedDelivery(self.store, self.table, GroupTopics(self.topics), self.home, DELAYS)

    async def store_delayed(self, *delays_ms: int) -> None:
        record = encode_record(b"orders", 2, b"x", b"", born_ms=1)
        for delay_ms in delays_ms:
            self.delays.append(MessageCopy.of(RecordView(record)), DELAYS.index(delay_ms) + 1)
            self.waiting.append((self.clock.now_ms + delay_ms, delay_ms))
        await confirmed(self.store)
        for delay_ms in delays_ms:
            self.delays.on_arrival(delay_queue_id(delay_ms))

    async def deliver(self) -> None:
        """Deliver what is due."""
        await self.look()
        self.waiting = [each for each in self.waiting if each[0] > self.clock.now_ms]

    async def figures(self) -> list[DelayFigures]:
        return await delay_figures(self.store, self.table)


def expected(waiting: Waiting, now_ms: int) -> list[DelayFigures]:
    """Return what the figures are, counted message by message."""
    found = []
    for delay_ms in sorted({delay_ms for _, delay_ms in waiting}, key=delay_queue_id):
        dues = [due_ms - now_ms for due_ms, each in waiting if each == delay_ms]
        counts = Counter(bisect_left(DUE_WITHIN_MS, due_ms) for due_ms in dues)
        due = tuple(counts[number] for number in range(len(DUE_WITHIN_MS) + 1))
        found.append(DelayFigures(delay_ms, len(dues), dues[0], due))
    return found


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.lists(st.sampled_from(DELAYS), min_size=1, max_size=12)),
        st.tuples(st.just("pass"), st.sampled_from((1, 999, 1_000, 59_999, 60_000, 60_001, 240_000, 1_000_000, HOUR_MS))),
        st.tuples(st.sampled_from(("deliver", "restart", "jump forward", "jump back")), st.none()),
    ),
    max_size=14,
)


@settings(max_examples=60)
@given(steps=STEPS)
@example(steps=[("store", [60_000, 60_000, HOUR_MS]), ("pass", 60_000), ("store", [60_000])])
@example(steps=[("store", [3 * HOUR_MS]), ("pass", HOUR_MS), ("jump back", None), ("store", [3 * HOUR_MS]), ("restart", None)])
@example(steps=[("store", [HOUR_MS, 1_000]), ("jump forward", None), ("store", [HOUR_MS]), ("pass", 999), ("deliver", None)])
async def test_figures_are_those_of_a_model_that_knows_each_message(steps: list[tuple[str, object]]) -> None:
    """Time passes with and without deliveries, the broker is killed and started, and the wall clock is set and followed."""
    bench = Bench()
    await bench.start()
    for name, value in steps:
        if name == "store":
            assert isinstance(value, list)
            await bench.store_delayed(*value)
        elif name == "pass":
            assert isinstance(value, int)
            bench.clock.now_ms += value
        elif name == "deliver":
            await bench.deliver()
        elif name == "restart":
            await bench.restart()
        else:
            bench.clock.ahead_ms += HOUR_MS if name == "jump forward" else -HOUR_MS
            for _ in range(TRUST_MS // 1_000 + 2):
                bench.clock.now_ms += 1_000
                bench.store.follow_clock()
            await confirmed(bench.store)
        assert await bench.figures() == expected(bench.waiting, bench.clock.now_ms), name
    if bench.waiting:
        assert sum(each.waiting for each in await bench.figures()) == bench.delays.pending_count()
    await bench.store.close()


async def test_lost_messages_count_with_the_next_existing_one_and_a_queue_of_them_has_no_times() -> None:
    bench = Bench()
    await bench.start()
    await bench.store_delayed(HOUR_MS)
    bench.clock.now_ms += 1_000_000
    await bench.store_delayed(HOUR_MS, HOUR_MS)
    queue_id = delay_queue_id(HOUR_MS)
    bench.store.damage.add_lost(SCHEDULE_TOPIC, queue_id, 0, 1)
    (found,) = await bench.figures()
    assert found == DelayFigures(HOUR_MS, 3, HOUR_MS, (0, 0, 0, 0, 3, 0))
    bench.store.damage.add_lost(SCHEDULE_TOPIC, queue_id, 1, 3)
    assert await bench.figures() == [DelayFigures(HOUR_MS, 3, None, None)]
    await bench.store.close()


class SlowDisk:
    """A store whose reads of messages take `took_ms`, or fail in one of its delay queues."""

    def __init__(self, bench: Bench, *, took_ms: int = 0, failing: int | None = None) -> None:
        self._bench = bench
        self._took_ms = took_ms
        self._failing = failing

    async def stored_ms_from(self, topic: str, queue_id: int, offset: int, high: int) -> int | None:
        if queue_id == self._failing:
            raise OSError(5, "Input/output error")
        found = await self._bench.store.stored_ms_from(topic, queue_id, offset, high)
        self._bench.clock.now_ms += self._took_ms
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bench.store, name)


async def test_slow_disk_leaves_out_times_and_no_numbers() -> None:
    bench = Bench()
    await bench.start()
    await bench.store_delayed(*DELAYS)
    found = await delay_figures(cast(Any, SlowDisk(bench, took_ms=LOOK_UP_MS // 2)), bench.table)
    assert [(each.delay_ms, each.waiting) for each in found] == [(delay_ms, 1) for delay_ms in sorted(DELAYS, key=delay_queue_id)]
    assert [each.due is not None for each in found] == [True] * 3 + [False] * (len(DELAYS) - 3)
    assert [each.first_due_ms is not None for each in found] == [each.due is not None for each in found]
    await bench.store.close()


async def test_queue_that_cannot_be_read_has_its_number_and_no_times() -> None:
    bench = Bench()
    await bench.start()
    await bench.store_delayed(60_000, HOUR_MS)
    assert await delay_figures(cast(Any, SlowDisk(bench, failing=delay_queue_id(60_000))), bench.table) == [
        DelayFigures(60_000, 1, None, None),
        DelayFigures(HOUR_MS, 1, HOUR_MS, (0, 0, 0, 0, 1, 0)),
    ]
    await bench.store.close()
