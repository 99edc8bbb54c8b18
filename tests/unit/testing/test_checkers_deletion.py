"""A topic that is deleted and created again: messages that may be missing, messages that must be missing, and the other laws."""

from support.histories import ADMIN, C2, HELD, HistoryBuilder, assert_faults
from sweep.checkers import calls, log, ownership, progress
from sweep.checkers.facts import Deletions
from sweep.events.sends import LayoutSent


def deleted(builder: HistoryBuilder, t: float, counter: int = 2, topic: str = "orders") -> HistoryBuilder:
    return builder.add(LayoutSent, t, ADMIN, topic=topic, counter=counter, deleted=True)


SENT = HistoryBuilder().sent(1, b"m0", 0, layout=(1, 7))
"""m0 is routed by layout 1."""
RECREATED = deleted(SENT, 2).sent(3, b"m1", 1, layout=(3, 7))
"""Layout 2 deletes the topic, layout 3 creates it again and routes m1."""


def test_old_message_in_a_recreated_topic_is_a_violation() -> None:
    """It may be missing if the counter of the deletion is higher than that of its layout, and must be if the topic has a later message."""
    assert_faults(log.check, {
        "a newer layout": (deleted(SENT.read(9), 2), ""), "the same layout": (deleted(SENT.read(9), 2, 1), "R1"),
        "another topic": (deleted(SENT.read(9), 2, 2, "other"), "R1"), "the new topic's is there": (RECREATED.read(9, b"m1", first=1), ""),
        "the new topic's is missing": (RECREATED.read(9, first=1), "R1"), "both": (RECREATED.read(9, b"m0", b"m1"), "O8"),
        "the deletion may not have come true": (deleted(SENT, 2).read(9, b"m0"), ""),
    })  # fmt: skip


def test_progress_may_restart_with_a_recreated_topic_under_a_new_generation() -> None:
    def moved(generation: int) -> HistoryBuilder:
        return HELD.committed(2, 1, 5).granted(3, 2, C2, offset=0, generation=generation)

    assert_faults(progress.check, {
        "deleted": (deleted(moved(2), 2.5), ""), "not deleted": (moved(2), "O6"), "the same generation": (deleted(moved(1), 2.5), "O1"),
    })  # fmt: skip


def test_owner_of_a_deleted_topics_queue_may_still_run_a_call() -> None:
    """C1's call runs since 1.1 and its deadline is not over when C2 gets the queue of the new topic."""
    builder = HELD.call(1.1, 3, 1, 0).granted(2, 2, C2).call(2.1, 2.2, 2, 1, where=C2)
    assert (builder.broken(calls.check), builder.broken(ownership.check)) == (["O3"], ["R3"])
    builder = deleted(builder, 1.5)
    assert (builder.broken(calls.check), builder.broken(ownership.check)) == ([], [])


def test_broker_may_learn_of_a_deletion_up_to_a_minute_late() -> None:
    deletions = Deletions(deleted(HistoryBuilder(), 3).history())
    spans = {(1, 2): False, (1, 3): True, (63, 70): True, (63.1, 70): False}
    assert {span: deletions.within("orders", *span) for span in spans} == spans
    assert not any(deletions.within("other", *span) for span in spans)
