"""A topic that is deleted and created again: messages that may be missing, messages that must be missing, and the other laws."""

import pytest

from support.histories import C2, HistoryBuilder
from sweep.checkers import calls, log, ownership, progress
from sweep.checkers.facts import Deletions
from sweep.events.sends import LayoutSent

ADMIN = ("A", 31)


def deleted(builder: HistoryBuilder, t: float, counter: int = 2, topic: str = "orders") -> HistoryBuilder:
    return builder.add(LayoutSent, t, ADMIN, topic=topic, counter=counter, deleted=True)


@pytest.mark.parametrize(("counter", "topic", "laws"), [(2, "orders", []), (1, "orders", ["R1"]), (2, "other", ["R1"])])
def test_messages_stored_before_a_deletion_may_be_missing(counter: int, topic: str, laws: list[str]) -> None:
    """m0 was routed by layout 1. The counter of the deletion decides whether it replaces that layout."""
    builder = HistoryBuilder().sent(1, b"m0", 0, layout=(1, 7)).read(9, first=0)
    assert deleted(builder, 2, counter, topic).broken(log.check) == laws


def test_messages_stored_in_a_recreated_topic_must_remain() -> None:
    builder = deleted(HistoryBuilder().sent(1, b"m0", 0, layout=(1, 7)), 2).sent(3, b"m1", 1, layout=(3, 7))
    assert builder.read(9, b"m1", first=1).broken(log.check) == []
    lost = deleted(HistoryBuilder().sent(1, b"m0", 0, layout=(1, 7)), 2).sent(3, b"m1", 1, layout=(3, 7)).read(9, first=1)
    assert lost.broken(log.check) == ["R1"]


def test_old_message_in_a_recreated_topic_is_a_violation() -> None:
    builder = deleted(HistoryBuilder().sent(1, b"m0", 0, layout=(1, 7)), 2).sent(3, b"m1", 1, layout=(3, 7))
    assert builder.read(9, b"m0", b"m1").broken(log.check) == ["O8"]
    alone = deleted(HistoryBuilder().sent(1, b"m0", 0, layout=(1, 7)), 2)
    assert alone.read(9, b"m0").broken(log.check) == [], "the deletion may never have come true"


def moved(generation: int, *, delete_t: float | None) -> HistoryBuilder:
    builder = HistoryBuilder().granted(1, 1).committed(2, 1, 5).granted(3, 2, C2, offset=0, generation=generation)
    return builder if delete_t is None else deleted(builder, delete_t)


def test_progress_may_restart_with_a_recreated_topic_under_a_new_generation() -> None:
    assert moved(2, delete_t=2.5).broken(progress.check) == []
    assert moved(2, delete_t=None).broken(progress.check) == ["O6"]
    assert moved(1, delete_t=2.5).broken(progress.check) == ["O1"]


def test_owner_of_a_deleted_topics_queue_may_still_run_a_call() -> None:
    """C1's call runs since 1.1 and its deadline is not over when C2 gets the queue of the new topic."""
    builder = HistoryBuilder().granted(1, 1).call(1.1, 3, 1, 0).granted(2, 2, C2).call(2.1, 2.2, 2, 1, where=C2)
    assert builder.broken(calls.check) == ["O3"]
    assert builder.broken(ownership.check) == ["R3"]
    assert deleted(builder, 1.5).broken(calls.check) == []
    assert builder.broken(ownership.check) == []


@pytest.mark.parametrize(("since", "until", "within"), [(1, 2, False), (1, 3, True), (63, 70, True), (63.1, 70, False)])
def test_broker_may_learn_of_a_deletion_up_to_a_minute_late(since: float, until: float, within: bool) -> None:
    deletions = Deletions(deleted(HistoryBuilder(), 3).history())
    assert deletions.within("orders", since, until) is within
    assert not deletions.within("other", since, until)
