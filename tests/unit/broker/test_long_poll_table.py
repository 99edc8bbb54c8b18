"""LongPollTable: a held pull ends once, by the first of arrival, deadline, stale epoch and closed connection."""

from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from lockstep.broker.tables.long_poll_table import HeldPull, LongPollTable

T = TypeVar("T")


def pull(
    item: str = "p", *, connection: int = 1, group: str = "g", queue: int = 0, topic: str = "t", deadline_ms: int = 1_000
) -> HeldPull[str]:
    return HeldPull(item, connection, group, topic, queue, deadline_ms)


def names(pulls: list[HeldPull[str]]) -> list[str]:
    return [one.item for one in pulls]


def arrived(table: LongPollTable[T], topic: str, queue_id: int) -> list[HeldPull[T]]:
    table.mark_woken(topic, queue_id)
    return table.take_woken(1_000)


def test_arrival_wakes_all_pulls_of_its_queue_in_order_and_no_others() -> None:
    table = LongPollTable[str]()
    for item, topic, queue in [("a", "t", 0), ("b", "t", 1), ("c", "t", 0), ("d", "u", 0)]:
        assert table.hold(pull(item, topic=topic, queue=queue))
    assert names(arrived(table, "t", 0)) == ["a", "c"]
    assert arrived(table, "t", 0) == []
    assert len(table) == 2


def test_pull_is_held_until_exactly_its_deadline() -> None:
    table = LongPollTable[str]()
    table.hold(pull("a", deadline_ms=1_000))
    assert table.take_expired(999, 1_000) == []
    assert table.next_deadline_ms() == 1_000
    assert names(table.take_expired(1_000, 1_000)) == ["a"]
    assert table.take_expired(1_001, 1_000) == []
    assert table.next_deadline_ms() is None


def test_expired_pulls_are_returned_in_order_of_deadline() -> None:
    table = LongPollTable[str]()
    for item, deadline_ms in [("late", 30), ("early", 10), ("middle", 20)]:
        table.hold(pull(item, deadline_ms=deadline_ms))
    assert names(table.take_expired(25, 1_000)) == ["early", "middle"]


def test_woken_pull_has_no_deadline() -> None:
    table = LongPollTable[str]()
    table.hold(pull("a", deadline_ms=10))
    table.hold(pull("b", deadline_ms=20, queue=1))
    arrived(table, "t", 0)
    assert table.next_deadline_ms() == 20
    assert names(table.take_expired(100, 1_000)) == ["b"]


def test_pull_held_again_keeps_its_deadline_and_ends_once() -> None:
    table = LongPollTable[str]()
    waiting = pull("a", deadline_ms=10)
    table.hold(waiting)
    for _ in range(3):
        (again,) = arrived(table, "t", 0)
        table.hold(again)
    assert names(table.take_expired(10, 1_000)) == ["a"]
    assert table.take_expired(10, 1_000) == []


def test_only_pulls_of_the_group_with_the_new_epoch_are_taken_as_stale() -> None:
    table = LongPollTable[str]()
    table.hold(pull("a", group="g"))
    table.hold(pull("b", group="h"))
    table.hold(pull("c", group="g", queue=1))
    assert names(table.take_group("g", "t", 0)) == ["a"]
    assert len(table) == 2


def test_closed_connection_removes_its_pulls() -> None:
    table = LongPollTable[str]()
    table.hold(pull("a", connection=1))
    table.hold(pull("b", connection=2))
    table.hold(pull("c", connection=1, queue=3))
    assert names(table.take_connection(1)) == ["a", "c"]
    assert table.take_connection(1) == []
    assert names(table.take_all()) == ["b"]


def test_deleted_topic_wakes_all_its_pulls() -> None:
    table = LongPollTable[str]()
    table.hold(pull("a", queue=0))
    table.hold(pull("b", queue=1))
    table.hold(pull("c", topic="u"))
    assert [table.mark_topic_woken(topic) for topic in ("t", "v")] == [True, False]
    assert names(table.take_woken(9)) == ["a", "b"]
    assert names(list(table)) == ["c"]


def test_held_pulls_per_connection_are_limited() -> None:
    table = LongPollTable[str](held_per_connection_max=2)
    assert table.hold(pull("a"))
    assert table.hold(pull("b"))
    assert not table.hold(pull("c"))
    assert table.hold(pull("d", connection=2))
    table.take_connection(1)
    assert table.hold(pull("c"))


def test_repeated_waking_does_not_grow_the_table() -> None:
    table = LongPollTable[str]()
    for deadline_ms in range(10_000):
        table.hold(pull(deadline_ms=deadline_ms))
        arrived(table, "t", 0)
    assert len(table._due) < 200


def test_oldest_pull_of_a_group_and_queue_is_evicted_above_the_limit() -> None:
    table = LongPollTable[str](held_per_group_max=2)
    outs = []
    for item, group, queue in [("other", "h", 0), ("a", "g", 0), ("b", "g", 0), ("elsewhere", "g", 1), ("c", "g", 0), ("d", "g", 0)]:
        held = pull(item, group=group, queue=queue)
        assert table.hold(held)
        outs.append(out.item if (out := table.take_excess(held)) is not None else None)
    assert outs == [None, None, None, None, "a", "b"]
    assert names(list(table)) == ["other", "elsewhere", "c", "d"]


def test_oldest_pull_of_all_is_evicted_above_the_total_limit() -> None:
    table = LongPollTable[str](held_max=2)
    outs = []
    for number, item in enumerate("abcd"):
        held = pull(item, connection=number, group=item, queue=number)
        assert table.hold(held)
        outs.append(out.item if (out := table.take_excess(held)) is not None else None)
    assert (outs, len(table)) == ([None, None, "a", "b"], 2)


def test_lowered_limit_of_a_group_takes_its_oldest_pulls_at_most_the_requested_count_at_a_time() -> None:
    table = LongPollTable[str]()
    for item, group, queue in [("a", "g", 0), ("b", "g", 0), ("other", "h", 0), ("c", "g", 0), ("d", "g", 0), ("e", "g", 1), ("f", "g", 1)]:
        table.hold(pull(item, group=group, queue=queue))
    table.held_per_group_max = 1
    assert [names(table.take_above_limits(3)) for _ in range(3)] == [["a", "b", "c"], ["e"], []]
    assert names(list(table)) == ["other", "d", "f"]


def test_lowered_total_limit_takes_the_oldest_pulls_of_all() -> None:
    table = LongPollTable[str]()
    for number, item in enumerate("abcd"):
        table.hold(pull(item, connection=number, group=item, queue=number))
    table.held_max = 1
    assert [names(table.take_above_limits(2)) for _ in range(3)] == [["a", "b"], ["c"], []]
    assert names(list(table)) == ["d"]


def test_take_woken_returns_at_most_the_requested_count_and_alternates_queues() -> None:
    table = LongPollTable[str]()
    for item in "abcde":
        table.hold(pull(item))
    table.hold(pull("z", queue=1))
    table.mark_woken("t", 0)
    table.mark_woken("t", 1)
    assert names(table.take_woken(2)) == ["a", "b"]
    table.hold(pull("later"))
    assert names(table.take_woken(2)) == ["z", "c"]
    assert table.has_woken
    assert names(table.take_woken(9)) == ["d", "e"], "one that came behind the arrival waits for the next one"
    assert not table.has_woken
    assert names(list(table)) == ["later"]


def test_queue_woken_in_every_turn_does_not_starve_another() -> None:
    """Its pulls skip the message because of their tags, and are held again in the same turn."""
    table = LongPollTable[str]()
    busy = [pull(f"busy-{number}") for number in range(6)]
    for each in busy:
        table.hold(each)
    table.hold(pull("z", queue=1))
    taken: list[str] = []
    table.mark_woken("t", 0)
    table.mark_woken("t", 1)
    for _ in range(2):
        found = table.take_woken(3)
        taken += names(found)
        for each in found:
            table.hold(pull(each.item, queue=each.queue_id))
        table.mark_woken("t", 0)
    assert "z" in taken


def test_take_expired_returns_at_most_the_requested_count() -> None:
    table = LongPollTable[str]()
    for number, item in enumerate("abc"):
        table.hold(pull(item, deadline_ms=number))
    assert names(table.take_expired(9, 2)) == ["a", "b"]
    assert table.next_deadline_ms() == 2


Step = tuple[str, int, int, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["hold", "arrive", "close", "group", "time"]), st.integers(0, 2), st.integers(0, 2), st.integers(0, 50)),
    max_size=60,
)


@given(STEPS)
def test_every_held_pull_is_returned_once_and_not_after_its_deadline(steps: list[Step]) -> None:
    table = LongPollTable[int]()
    held: dict[int, HeldPull[int]] = {}
    now = 0
    for number, (step, one, two, three) in enumerate(steps):
        out: list[HeldPull[int]] = []
        expected: set[int] = set()
        if step == "hold":
            held[number] = HeldPull(number, one, f"g{two}", "t", three % 3, now + 1 + three)
            table.hold(held[number])
        elif step == "arrive":
            expected = {n for n, p in held.items() if p.queue_id == one}
            out = arrived(table, "t", one)
        elif step == "close":
            expected = {n for n, p in held.items() if p.connection_id == one}
            out = table.take_connection(one)
        elif step == "group":
            expected = {n for n, p in held.items() if p.group == f"g{two}" and p.queue_id == one}
            out = table.take_group(f"g{two}", "t", one)
        else:
            now += three
            expected = {n for n, p in held.items() if p.deadline_ms <= now}
            out = table.take_expired(now, 1_000)
        assert sorted(p.item for p in out) == sorted(expected)
        for number_out in expected:
            del held[number_out]
        assert len(table) == len(held)
        assert table.next_deadline_ms() == min((p.deadline_ms for p in held.values()), default=None)
