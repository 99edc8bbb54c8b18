import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.broker.groups.tables.lock_table import FencingCounter, Lock, LockTable
from lockstep.broker.journal import Journal

KEY = ("g", "t", 0)


def test_fencing_tokens_rise_within_a_term_and_over_terms() -> None:
    fence = FencingCounter()
    drawn = []
    for term in (1, 2, 9):
        fence.start_term(term)
        drawn += [fence.draw(), fence.draw()]
    assert drawn == [1 << 32 | 1, 1 << 32 | 2, 2 << 32 | 1, 2 << 32 | 2, 9 << 32 | 1, 9 << 32 | 2]


@pytest.mark.parametrize("term", [0, 4, 5])
def test_term_never_falls(term: int) -> None:
    fence = FencingCounter()
    fence.start_term(5)
    with pytest.raises(AssertionError):
        fence.start_term(term)


def test_draw_without_a_term_fails() -> None:
    with pytest.raises(AssertionError):
        FencingCounter().draw()


def test_epoch_is_accepted_only_if_it_is_the_recorded_one_of_its_session() -> None:
    table = LockTable(Journal())
    table.record_grant(KEY, 7, "s", "c")
    assert [table.accepts_epoch(KEY, *each) for each in [("s", 7), ("s", 6), ("s", 8), ("x", 7)]] == [True, False, False, False]
    table.record_free(KEY)
    assert table.accepts_epoch(KEY, "s", 7)
    assert table.holder(KEY) is None
    table.record_held_again(KEY)
    assert table.holder(KEY) == Lock(7, "s", "c", True)
    table.record_end(KEY, 8)
    assert not table.accepts_epoch(KEY, "s", 7)
    assert not table.accepts_epoch(KEY, "s", 8)
    assert not table.accepts_epoch(("g", "t", 1), "s", 7)


def test_held_queues_and_grants_are_counted_by_group() -> None:
    table = LockTable(Journal())
    table.record_grant(KEY, 1, "s", "c")
    table.record_grant(("g", "t", 1), 2, "s", "c")
    table.record_grant(KEY, 3, "x", "d")
    table.record_grant(("other", "t", 0), 4, "s", "c")
    table.record_free(("g", "t", 1))
    assert [table.held_count(group) for group in ("g", "other", "nobody")] == [1, 1, 0]
    assert table.grant_counts == {"g": 3, "other": 1}


def test_end_of_a_groups_grants_keeps_classic_locks_and_other_groups() -> None:
    table = LockTable(Journal())
    table.record_grant(KEY, 1, "s", "c")
    table.record_grant(("g", "t", 1), 2, None, "classic")
    table.record_grant(("other", "t", 0), 3, "s", "c")
    table.record_group_end("g", 9)
    assert [table.get(key) for key in (KEY, ("g", "t", 1), ("other", "t", 0))] == [
        Lock(9, None, None, False),
        Lock(2, None, "classic", True),
        Lock(3, "s", "c", True),
    ]
    assert table.keys_held_by("s") == [("other", "t", 0)]


def test_dropped_topic_removes_its_locks_of_every_group() -> None:
    table = LockTable(Journal())
    table.record_grant(KEY, 1, "s", "c")
    table.record_grant(("g", "u", 0), 2, "s", "c")
    table.record_grant(("h", "t", 0), 3, "s", "c")
    table.drop_topic("t")
    assert [key for key, _ in table] == [("g", "u", 0)]
    assert table.keys_held_by("s") == [("g", "u", 0)]
    assert table.keys_in_topic("t") == []


CHANGES = st.one_of(
    st.tuples(
        st.just("lock.granted"),
        st.sampled_from("gh"),
        st.sampled_from("tu"),
        st.integers(0, 1),
        st.integers(1, 9),
        st.sampled_from(["s", "r", None]),
        st.just("c"),
    ),
    st.tuples(st.sampled_from(["lock.freed", "lock.held"]), st.sampled_from("gh"), st.sampled_from("tu"), st.integers(0, 1)),
    st.tuples(st.just("lock.ended"), st.sampled_from("gh"), st.sampled_from("tu"), st.integers(0, 1), st.integers(1, 9)),
    st.tuples(st.just("lock.group_ended"), st.sampled_from("gh"), st.integers(1, 9)),
    st.tuples(st.just("lock.all_ended"), st.integers(1, 9)),
    st.tuples(st.just("lock.topic_dropped"), st.sampled_from("tu")),
)


@given(st.lists(CHANGES, max_size=30))
def test_session_index_equals_the_locks_and_is_restored_from_a_snapshot(changes: list[tuple[object, ...]]) -> None:
    table = LockTable(Journal())
    for change in changes:
        table.apply(change)
    again = LockTable(Journal())
    again.restore(table.snapshot())
    for each in (table, again):
        for session in ("s", "r"):
            assert sorted(each.keys_held_by(session)) == sorted(key for key, lock in each if lock.held and lock.session == session)
        assert each.snapshot() == table.snapshot()
    for group in ("g", "h"):
        assert sorted(table.sessions_holding(group)) == [s for s in ("r", "s") if any(key[0] == group for key in table.keys_held_by(s))]
        assert table.any_session_holds(group) == again.any_session_holds(group) == bool(table.sessions_holding(group))
