"""The comparison measures every system in turn, and each time another one first."""

from collections import Counter

import pytest

from compare.plan import COUNT_MIN, ROW_OF, ROWS, Subject, check_sizes, chosen, count_of, measurements
from lockstep.protocol.errors import ConfigError

OWN = Subject("lockstep", {"one": 1_000, "tasks": 2_000, "tasks_keyed": 2_000, "batch": 4_000}, {}, is_lockstep=True)
OTHER = Subject("other", {"one": 1_000, "tasks": 500, "pipeline": 3_000}, {"batch": "pipeline"}, is_lockstep=False)
THIRD = Subject("third", {"one": 1_000}, {}, is_lockstep=False)
SUBJECTS = [OWN, OTHER, THIRD]


def test_another_system_comes_first_each_time() -> None:
    plan = list(measurements(SUBJECTS, [ROW_OF["one"]], [100, 1024], 3, 1.0))
    firsts = [plan[index].system for index in range(0, len(plan), 3)]
    assert firsts == ["lockstep", "other", "third"] * 2
    assert [each.system for each in plan[3:6]] == ["other", "third", "lockstep"]


def test_every_system_is_measured_once_per_round_work_and_size() -> None:
    plan = list(measurements(SUBJECTS, ROWS, [100, 1024], 2, 1.0))
    counts = Counter((each.system, each.work, each.body_bytes) for each in plan)
    works = {("lockstep", work) for work in OWN.counts} | {("other", work) for work in OTHER.counts} | {("third", "one")}
    assert counts == {(system, work, size): 2 for system, work in works for size in (100, 1024)}
    assert [each.round for each in plan] == sorted(each.round for each in plan)


def test_work_that_is_done_like_another_one_is_measured_as_that_one() -> None:
    plan = list(measurements([OTHER], [ROW_OF["batch"]], [100], 1, 1.0))
    assert [each.work for each in plan] == ["pipeline"]
    assert THIRD.measured_as(ROW_OF["batch"]) is None


@pytest.mark.parametrize(
    ("row", "own", "other"),
    [("tasks_keyed", "tasks_keyed", "tasks"), ("one", "one", "one"), ("batch", "batch", "pipeline"), ("ordered_one", None, None)],
)
def test_variants_of_lockstep_are_compared_with_one_work_of_the_others(row: str, own: str | None, other: str | None) -> None:
    assert (OWN.measured_as(ROW_OF[row]), OTHER.measured_as(ROW_OF[row])) == (own, other)


@pytest.mark.parametrize(
    ("work", "body_bytes", "scale", "expected"),
    [
        ("tasks", 100, 1.0, 2_000),
        ("tasks", 101, 1.0, 1_200),
        ("one", 1024, 1.0, 1_000),
        ("tasks", 100, 0.5, 1_000),
        ("tasks", 100, 1e-6, COUNT_MIN),
    ],
)
def test_count_of_messages_follows_size_and_scale(work: str, body_bytes: int, scale: float, expected: int) -> None:
    assert count_of(OWN, work, body_bytes, scale) == expected


def test_chosen_names_keep_the_known_order_and_unknown_ones_are_named() -> None:
    assert chosen("--works", "b, a", ["a", "b", "c"]) == ("a", "b")
    assert chosen("--works", None, ["a", "b"]) == ("a", "b")
    with pytest.raises(ConfigError, match="--works d: unknown; the names are a, b"):
        chosen("--works", "a,d", ["a", "b"])
    with pytest.raises(ConfigError, match="--works is empty"):
        chosen("--works", ",", ["a", "b"])


def test_body_too_small_for_its_timestamp_is_rejected() -> None:
    assert check_sizes([20, 100, 20]) == (20, 100)
    with pytest.raises(ConfigError, match=r"--sizes 19: .* at least 20 bytes"):
        check_sizes([100, 19])
