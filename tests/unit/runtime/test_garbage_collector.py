"""The threshold of the garbage collector in our own processes."""

import gc
from collections.abc import Iterator

import pytest

from lockstep.runtime.garbage_collector import YOUNG_OBJECTS_MAX, collect_less_often


@pytest.fixture(autouse=True)
def _keep_threshold() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((700, 10, 10), (YOUNG_OBJECTS_MAX, 10, 10)),
        ((2_000, 10, 0), (YOUNG_OBJECTS_MAX, 10, 0)),
        ((YOUNG_OBJECTS_MAX + 1, 5, 5), (YOUNG_OBJECTS_MAX + 1, 5, 5)),
        ((0, 10, 10), (0, 10, 10)),
    ],
    ids=["3.11", "3.13", "a higher threshold is kept", "a disabled collector stays disabled"],
)
def test_only_a_lower_threshold_is_raised(before: tuple[int, int, int], after: tuple[int, int, int]) -> None:
    gc.set_threshold(*before)
    collect_less_often()
    assert gc.get_threshold() == after
