"""Rules of brokers and nameservers about layouts and registrations."""

from typing import Any

from lockstep.broker.tables.topic_table import TopicTable
from lockstep.testing.sweep.mutants.registry import Patches, mutant

CONVERGENCE = "tests/unit/broker/test_layout_convergence.py::"


@mutant("first")
def the_losers_queues_are_left_out(patch: Patches) -> None:
    """A broker whose queues the winning layout lacks appends those in which messages lie."""
    patch.set(TopicTable, "_lost", lambda self, here, layout: 0)


@mutant("first", aimed=CONVERGENCE + "test_a_deletion_wins_against_every_layout_that_was_made_without_it")
def a_later_change_undoes_a_deletion(patch: Patches) -> None:
    """A layout that was made without knowledge of a deletion is deleted too."""
    take = TopicTable._take

    def forgets(self: TopicTable, layout: Any) -> bool:
        known = self.layouts.get(layout.topic)
        if known is not None and known.deleted and not layout.deleted and self.layouts.wants(layout):
            self._put(layout)
            self._changed(layout.topic)
            return True
        return take(self, layout)

    patch.set(TopicTable, "_take", forgets)


@mutant("first", aimed=CONVERGENCE + "test_queues_that_an_operator_took_away_are_not_appended")
def removed_queues_come_back(patch: Patches) -> None:
    """Queues that an operator took away stay away, also while messages lie in them."""

    def lost(self: TopicTable, here: Any, layout: Any) -> int:
        name = self._broker_name
        first, end = layout.id_count(name), here.id_count(name)
        return max((queue_id + 1 for queue_id in self._stored(layout.topic) if first <= queue_id < end), default=0)

    patch.set(TopicTable, "_lost", lost)
