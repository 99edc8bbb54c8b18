from hypothesis import given
from hypothesis import strategies as st

from lockstep.broker.groups.tables.progress_table import FailingBatch, Progress, ProgressTable
from lockstep.broker.journal import Journal

KEY = ("g", "t", 0)


def table_at(offset: int, attempts: int = 0, gap: tuple[int, int] | None = None) -> ProgressTable:
    table = ProgressTable(Journal())
    table.set_progress(KEY, Progress(1, offset, attempts, gap))
    return table


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3))))
def test_offset_and_attempts_together_never_fall_within_a_generation(commits: list[tuple[int, int]]) -> None:
    table = table_at(5)
    seen = [(5, 0)]
    for offset, attempts in commits:
        table.record_commit(KEY, offset, attempts, 0)
        progress = table.get(KEY)
        assert progress is not None
        seen.append((progress.offset, progress.attempts))
    assert seen == sorted(seen)
    assert seen[-1] == max([(5, 0), *commits])


@given(st.sets(st.integers(0, 12)), st.integers(0, 12))
def test_missing_count_is_exact_or_too_high_never_too_low(ids: set[int], id_count: int) -> None:
    table = ProgressTable(Journal())
    for queue_id in sorted(ids, key=lambda each: each * 7 % 13):
        table.set_progress(("g", "t", queue_id), Progress(1, 0))
    missing = len(set(range(id_count)) - ids)
    found = table.missing_count("g", "t", id_count)
    assert missing <= found <= id_count
    if max(ids, default=-1) < id_count:
        assert found == missing
    assert table.missing_count("g", "u", id_count) == id_count


def test_first_offsets_are_kept_by_snapshots_and_dropped_with_the_topic() -> None:
    table = ProgressTable(Journal())
    table.record_reopened("t", [(0, 7), (1, 8)])
    table.record_reopened("t", [(1, 9)])
    restored = ProgressTable(Journal())
    plain = table.snapshot()
    restored.restore({name: list(rows) for name, rows in plain.items()})
    assert restored.first_offsets() == [("t", 0, 7), ("t", 1, 9)]
    assert (restored.first_offset("t", 1), restored.first_offset("t", 2), restored.first_offset("u", 0)) == (9, 0, 0)
    restored.drop_topic("t")
    assert restored.first_offsets() == []


def test_group_that_begins_at_the_first_message_is_kept_by_snapshots_and_dropped_with_the_topic_or_the_group() -> None:
    table = ProgressTable(Journal())
    for group in ("g", "h"):
        table.record_start(group, "t", since=3, generation=0, offsets=())
    assert (len(table), table.progress_in_topic("g", "t"), table.missing_count("g", "t", 4)) == (0, [], 4)
    restored = ProgressTable(Journal())
    restored.restore({name: list(rows) for name, rows in table.snapshot().items()})
    assert (restored.since("g", "t"), restored.topics_of_group("g"), restored.groups_in_topic("t")) == (3, ["t"], ["g", "h"])
    restored.drop_group("g")
    assert (restored.since("g", "t"), restored.groups_in_topic("t")) == (None, ["h"])
    restored.drop_topic("t")
    assert (restored.since("h", "t"), restored.groups()) == (None, [])


def test_commit_without_a_change_is_not_journaled_but_its_time_is_updated() -> None:
    journal = Journal()
    table = ProgressTable(journal)
    table.set_progress(KEY, Progress(1, 5, 2))
    journal.encode(1 << 20)
    table.record_commit(KEY, 5, 2, 70)
    table.record_commit(KEY, 4, 9, 80)
    assert len(journal) == 0
    assert table.committed_ms(KEY) == 80


def test_gap_remains_until_a_commit_passes_its_end() -> None:
    table = table_at(30, gap=(5, 30))
    seen = []
    for offset, attempts in [(30, 1), (31, 0)]:
        table.record_commit(KEY, offset, attempts, 0)
        progress = table.get(KEY)
        assert progress is not None
        seen.append(progress.gap)
    assert seen == [(5, 30), None]


def test_start_is_one_change_for_all_queues() -> None:
    journal = Journal()
    table = ProgressTable(journal)
    table.record_start("g", "t", since=4, generation=9, offsets=[(0, 10), (1, 20)])
    assert len(journal) == 1
    assert table.since("g", "t") == 4
    assert [table.get(("g", "t", queue)) for queue in (0, 1, 2)] == [Progress(9, 10), Progress(9, 20), None]
    assert table.since("g", "u") is None


def test_renew_raises_every_generation_which_classic_clients_have_to_be_told_and_keeps_the_rest() -> None:
    table = table_at(30, 2, gap=(5, 30))
    table.renew_generations(8)
    assert table.get(KEY) == Progress(8, 30, 2, (5, 30), unannounced=True)


def test_dropped_topic_removes_progress_and_start_of_every_group() -> None:
    table = table_at(5)
    table.record_start("h", "t", since=1, generation=2, offsets=[(0, 0)])
    table.record_start("h", "u", since=1, generation=2, offsets=[(0, 0)])
    table.record_commit(KEY, 6, 0, 50)
    table.drop_topic("t")
    assert table.groups() == ["h"]
    assert (table.since("h", "t"), table.since("h", "u"), table.committed_ms(KEY)) == (None, 1, None)


def test_snapshot_restores_all_durable_progress() -> None:
    table = table_at(30, 2, gap=(5, 30))
    table.record_start("h", "u", since=3, generation=2, offsets=[(1, 7)])
    again = ProgressTable(Journal())
    again.restore(table.snapshot())
    assert list(again) == sorted(table)
    assert again.since("h", "u") == 3
    assert again.snapshot() == table.snapshot()


def test_failing_batch_is_known_from_its_first_failure_until_its_offset_is_passed() -> None:
    table = ProgressTable(Journal())
    table.set_progress(KEY, Progress(1, 5))
    table.record_commit(KEY, 5, 0, 100)
    assert table.failing(KEY) is None
    table.record_commit(KEY, 5, 1, 200, "ValueError: no")
    table.record_commit(KEY, 5, 2, 300, "KeyError: 'x'")
    table.record_commit(KEY, 5, 2, 400)
    assert table.failing(KEY) == FailingBatch(5, 200, "KeyError: 'x'")
    table.record_commit(KEY, 4, 9, 500, "of an older call that came late")
    assert table.failing(KEY) == FailingBatch(5, 200, "KeyError: 'x'")
    table.record_commit(KEY, 6, 0, 600)
    assert table.failing(KEY) is None
    table.record_commit(KEY, 6, 1, 700)
    assert table.failing(KEY) == FailingBatch(6, 700, None)
    table.set_progress(KEY, Progress(2, 0))
    assert table.failing(KEY) is None, "a reset"
