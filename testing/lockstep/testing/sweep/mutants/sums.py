"""Limits on what all connections together may hold, and on the work of one loop turn."""

from typing import Any

from lockstep.broker.tables.hold_table import HoldTable
from lockstep.testing.sweep.mutants.registry import Patches, mutant


@mutant("swarm", aimed="tests/unit/broker/test_pull.py::test_above_a_limit_the_oldest_held_pull_is_answered_as_at_its_deadline")
def any_number_of_pulls_is_held(patch: Patches) -> None:
    """A broker holds so many pulls, and so many of a group at a queue; above that the oldest is answered."""
    patch.set(HoldTable, "excess", lambda self, pull: None)


@mutant(
    "swarm",
    aimed="tests/unit/broker/test_pull.py::test_one_message_that_wakes_thousands_is_given_to_so_many_a_turn_in_the_order_in_which_they_came",
)
def whoever_was_woken_is_served_in_one_turn(patch: Patches) -> None:
    """One loop turn serves so many of the pulls that were woken; the others have the next turns."""
    woken: Any = HoldTable.woken
    patch.set(HoldTable, "woken", lambda self, count: woken(self, 1 << 30))
