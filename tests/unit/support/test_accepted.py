"""The checker of accepted commits finds the violations that it checks for."""

from support.accepted import Accepted, accepted_twice, parse_accepted


def accepted_range(consumer: str, epoch: int, first: int, end: int, queue: str = "t@a:0") -> Accepted:
    return Accepted(consumer, queue, epoch, first, end, at_us=7)


def test_adjacent_ranges_are_accepted() -> None:
    assert accepted_twice([accepted_range("a", 1, 0, 5), accepted_range("b", 2, 5, 9), accepted_range("a", 1, 0, 9, queue="t@a:1")]) == []


def test_offset_accepted_twice_is_a_fault() -> None:
    (fault,) = accepted_twice([accepted_range("b", 2, 4, 9), accepted_range("a", 1, 0, 5)])
    assert "offset 4 was accepted from a (epoch 1) and b (epoch 2)" in fault


def test_later_offset_under_a_lower_epoch_is_a_fault() -> None:
    (fault,) = accepted_twice([accepted_range("a", 2, 0, 5), accepted_range("b", 1, 5, 9)])
    assert "under epoch 1" in fault


def test_line_round_trips() -> None:
    epoch = (1 << 62) + 1
    assert parse_accepted(accepted_range("a", epoch, 0, 5).line()) == accepted_range("a", epoch, 0, 5)
