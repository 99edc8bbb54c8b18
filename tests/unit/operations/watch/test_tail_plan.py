"""What a live tail reads and passes over: no message twice, none of a queue out of order, and everything is accounted for."""

from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lockstep.operations.watch.tail_plan import QUEUES_MAX, SHOWN_MAX, Part, ReadBatch, TailPlan, merged, shares
from lockstep.protocol.bodies import OffsetRange
from lockstep.protocol.topics.queue import MessageQueue

QUEUES = [MessageQueue("orders", broker, number) for broker in ("a", "b") for number in range(3)]


@dataclass(frozen=True)
class Sent:
    queue: MessageQueue
    queue_offset: int
    stored_ms: int

    @property
    def matches(self) -> bool:
        return self.queue_offset % 3 != 1


class Cluster:
    """Queues that grow, lose their first messages, and are read in part."""

    def __init__(self) -> None:
        self.stored: dict[MessageQueue, list[Sent]] = {queue: [] for queue in QUEUES}
        self.first = dict.fromkeys(QUEUES, 0)

    def store(self, queue: MessageQueue, count: int, at_ms: int, step_ms: int) -> None:
        held = self.stored[queue]
        held += [Sent(queue, len(held) + number, at_ms + number * step_ms) for number in range(count)]

    def ranges(self, broker: str) -> dict[MessageQueue, OffsetRange]:
        return {
            queue: OffsetRange(queue.queue_id, self.first[queue], len(held))
            for queue, held in self.stored.items()
            if queue.broker_name == broker
        }

    def read(self, part: Part, missing: int) -> ReadBatch[Sent]:
        """Return all of a part but its last messages, and some that are not of it."""
        following = max(part.first, part.end - missing)
        return ReadBatch(part, following, [each for each in self.stored[part.queue] if each.matches])


clocks = st.tuples(st.integers(0, 100), st.integers(0, 50), st.integers(-1, 2))
"""How many are stored, from which time on, and in which steps: a clock may be set back."""
stores = st.tuples(st.just("store"), st.sampled_from(QUEUES), clocks)
removals = st.tuples(st.just("remove"), st.sampled_from(QUEUES), st.integers(0, 40))
rounds = st.tuples(st.just("round"), st.sets(st.sampled_from("ab")), st.lists(st.integers(-1, 5), min_size=6, max_size=6))


@given(st.lists(stores | removals | rounds, max_size=40), st.sampled_from([20, 256]))
def test_every_message_is_shown_once_in_order_or_is_accounted_for(steps: list[tuple[str, Any, Any]], count_max: int) -> None:
    cluster, plan = Cluster(), TailPlan[Sent](["a"])
    begun: dict[MessageQueue, int] = {}
    rows: list[tuple[int, Sent]] = []
    for kind, what, more in steps:
        if kind == "store":
            cluster.store(what, *more)
        elif kind == "remove":
            cluster.first[what] = min(cluster.first[what] + more, len(cluster.stored[what]))
        else:
            ranges = {}
            for broker in sorted(what):
                plan.look(broker, cluster.ranges(broker))
                ranges |= cluster.ranges(broker)
            for queue in ranges.keys() - begun.keys():
                begun[queue] = len(cluster.stored[queue]) if queue.broker_name == "a" else cluster.first[queue]
            parts = plan.parts(ranges, count_max)
            assert sum(part.end - part.first for part in parts) <= count_max
            assert all(part.end == len(cluster.stored[part.queue]) for part in parts), "the newest are read"
            batches = [cluster.read(part, n) for part, n in zip(parts, more, strict=False) if n >= 0]
            shown = plan.take(batches)
            assert len(shown) <= SHOWN_MAX
            for batch in batches:
                own = [each for _, each in shown if each.queue == batch.part.queue]
                read = [each for each in batch.matching if batch.part.first <= each.queue_offset < batch.following]
                assert own == read[len(read) - len(own) :], "the newest are shown"
            rows = merged(rows, shown, 10_000)
    for queue in QUEUES:
        offsets = [each.queue_offset for _, each in rows if each.queue == queue]
        assert offsets == sorted(set(offsets)), "none twice, and in order"
        assert all(offset >= begun[queue] for offset in offsets)
    assert all(each.matches for _, each in rows)
    assert plan.shown == len(rows)
    assert sum(plan.positions[queue] - first for queue, first in begun.items()) == plan.shown + plan.passed_over + plan.unmatched


@given(st.lists(st.integers(1, 10_000), max_size=60), st.integers(QUEUES_MAX, 256))
def test_what_is_read_is_divided_among_the_queues_that_have_most(counts: list[int], count_max: int) -> None:
    fresh = {MessageQueue("orders", "a", number): count for number, count in enumerate(counts)}
    found = shares(fresh, count_max)
    assert len(found) == min(len(counts), QUEUES_MAX)
    assert all(0 < count <= fresh[queue] for queue, count in found.items())
    assert sum(found.values()) == min(count_max, sum(sorted(counts)[-QUEUES_MAX:])), "nothing is left unread that could be read"
    fewest = min((count for queue, count in found.items() if count < fresh[queue]), default=0)
    assert all(count <= fewest + 1 or count < fresh[queue] for queue, count in found.items() if fewest)
    assert min((fresh[queue] for queue in found), default=0) >= max((fresh[queue] for queue in fresh.keys() - found.keys()), default=0)


def plan_at(end: int, broker: str = "a") -> tuple[TailPlan[Sent], MessageQueue]:
    plan, queue = TailPlan[Sent]([broker]), MessageQueue("orders", broker, 0)
    plan.look(broker, {queue: OffsetRange(0, 0, end)})
    return plan, queue


def test_queue_of_a_broker_that_answers_later_begins_at_its_end_and_a_new_queue_at_its_first_message() -> None:
    late, new = MessageQueue("orders", "b", 0), MessageQueue("orders", "a", 1)
    plan = TailPlan[Sent](["a", "b"])
    plan.look("a", {MessageQueue("orders", "a", 0): OffsetRange(0, 0, 7)})
    plan.look("b", {late: OffsetRange(0, 0, 9)})
    plan.look("a", {new: OffsetRange(1, 0, 3)})
    plan.look("c", {MessageQueue("orders", "c", 0): OffsetRange(0, 2, 3)})
    assert list(plan.positions.values()) == [7, 9, 0, 2]


def test_queue_that_lost_its_end_goes_on_from_there() -> None:
    plan, queue = plan_at(9)
    shorter = {queue: OffsetRange(0, 0, 4)}
    plan.look("a", shorter)
    assert plan.parts(shorter, 20) == []
    longer = {queue: OffsetRange(0, 0, 6)}
    plan.look("a", longer)
    assert plan.parts(longer, 20) == [Part(queue, 4, 6)]
    assert plan.passed_over == 0


def test_messages_that_retention_removed_before_they_were_read_are_passed_over() -> None:
    plan, queue = plan_at(0)
    held = {queue: OffsetRange(0, 30, 30)}
    plan.look("a", held)
    assert plan.parts(held, 20) == []
    assert (plan.passed_over, plan.positions[queue]) == (30, 30)


def test_queues_beyond_those_that_are_read_are_passed_over() -> None:
    queues = [MessageQueue("orders", "a", number) for number in range(QUEUES_MAX + 10)]
    plan = TailPlan[Sent](["a"])
    plan.look("a", {queue: OffsetRange(queue.queue_id, 0, 0) for queue in queues})
    held = {queue: OffsetRange(queue.queue_id, 0, 3 if queue.queue_id % 2 else 2) for queue in queues}
    plan.look("a", held)
    parts = plan.parts(held, 20)
    assert len(parts) == QUEUES_MAX
    assert {part.queue for part in parts} > {queue for queue in queues if queue.queue_id % 2}, "those that have most are read"
    assert plan.passed_over == 10 * 2
    plan.take([ReadBatch(part, part.end, [Sent(part.queue, part.first, 1)]) for part in parts])
    assert (plan.shown, plan.passed_over, plan.unmatched) == (20, 10 * 2 + 15 * 2 + 5, 0)
    assert plan.parts(held, 20) == []


def test_newest_of_what_was_read_is_shown_and_the_rest_is_passed_over() -> None:
    one, other = QUEUES[0], QUEUES[1]
    plan = TailPlan[Sent](["a"])
    plan.look("a", {queue: OffsetRange(queue.queue_id, 0, 0) for queue in (one, other)})
    held = {queue: OffsetRange(queue.queue_id, 0, 30) for queue in (one, other)}
    plan.look("a", held)
    batches = [
        ReadBatch(part, 30, [Sent(part.queue, number, number + (100 if part.queue == one else 0)) for number in range(30)])
        for part in plan.parts(held, 256)
    ]
    found = plan.take(batches)
    assert [(each.queue, each.queue_offset) for _, each in found] == [(one, number) for number in range(10, 30)]
    assert (plan.shown, plan.passed_over) == (20, 40)


def test_messages_of_a_queue_stay_in_order_when_its_brokers_clock_is_set_back() -> None:
    queue, plan = QUEUES[0], TailPlan[Sent](())
    rows: list[tuple[int, Sent]] = []
    for offset, stored_ms in enumerate((500, 100, 200, 600)):
        held = {queue: OffsetRange(queue.queue_id, 0, offset + 1)}
        plan.look("a", held)
        (part,) = plan.parts(held, 20)
        rows = merged(rows, plan.take([ReadBatch(part, part.end, [Sent(queue, offset, stored_ms)])]), 100)
    assert [(at_ms, each.queue_offset) for at_ms, each in rows] == [(500, 0), (500, 1), (500, 2), (600, 3)]


def test_rows_are_the_newest_of_all_queues() -> None:
    one, other = QUEUES[0], QUEUES[3]
    older = [(5, Sent(one, 0, 5)), (7, Sent(one, 1, 7))]
    found = merged(older, [(6, Sent(other, 0, 6)), (7, Sent(one, 2, 3))], 3)
    assert [(at_ms, each.queue, each.queue_offset) for at_ms, each in found] == [(6, other, 0), (7, one, 1), (7, one, 2)]
