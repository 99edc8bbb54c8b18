"""Holds of a topic's writes have a lease and an owner."""

import pytest

from lockstep.broker.tables.write_holds import HOLDS_MAX, LEASE_MS_MAX, WriteHolds
from lockstep.protocol.errors import NoPermissionError


def test_hold_lasts_for_its_lease_and_is_renewed() -> None:
    holds = WriteHolds()
    assert holds.hold("orders", "one", 1_000, 0) is True
    assert holds.hold("orders", "one", 1_000, 900) is False
    assert holds.holds("orders", 1_899)
    assert holds.in_force("orders", "one", 1_899)
    assert not holds.in_force("orders", "other", 1_899)
    assert not holds.in_force("orders", "one", 1_900)
    assert not holds.holds("orders", 1_900)
    assert not holds.holds("bills", 0)
    assert holds.hold("orders", "one", 1_000, 2_000) is True, "it has lapsed, so writes may have been stored"


def test_lease_has_a_limit() -> None:
    holds = WriteHolds()
    holds.hold("orders", "one", 10 * LEASE_MS_MAX, 0)
    assert holds.in_force("orders", "one", LEASE_MS_MAX - 1)
    assert not holds.in_force("orders", "one", LEASE_MS_MAX)


def test_topic_has_one_hold_until_it_is_released_or_its_lease_is_over() -> None:
    holds = WriteHolds()
    holds.hold("orders", "one", 1_000, 0)
    with pytest.raises(NoPermissionError, match="are being moved by another command; try again in 600 ms"):
        holds.hold("orders", "two", 1_000, 400)
    holds.release("orders", "two")
    assert holds.in_force("orders", "one", 400)
    holds.release("orders", "one")
    holds.release("orders", "one")
    assert holds.hold("orders", "two", 1_000, 400) is True
    assert holds.hold("orders", "one", 1_000, 1_400) is True


def test_number_of_holds_has_a_limit_in_which_those_that_are_over_do_not_count() -> None:
    holds = WriteHolds()
    for number in range(HOLDS_MAX):
        holds.hold(f"t{number}", "one", 1_000, 0)
    with pytest.raises(NoPermissionError, match=f"the queues of {HOLDS_MAX} topics are being moved"):
        holds.hold("more", "one", 1_000, 999)
    assert holds.hold("more", "one", 1_000, 1_000) is True
    assert not holds.holds("t0", 1_000)
