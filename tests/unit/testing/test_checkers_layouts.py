"""T1 and T2: an acknowledged message is in a queue of the layout in force."""

from support.histories import ADMIN, HistoryBuilder, assert_faults
from sweep.checkers.layouts import check
from sweep.events.producers import FirstSendAcked
from sweep.events.sends import LayoutSent
from sweep.events.universe import LayoutInForce, LayoutsRead
from sweep.history import QueueKey

BROKER = "broker-a"


def acked(*counts: tuple[str, int]) -> HistoryBuilder:
    """A message of the topic new is acknowledged, whose layout has these queues."""
    builder = HistoryBuilder().add(FirstSendAcked, 2, ADMIN, queue=QueueKey("", BROKER, "new", 0), body=b"m")
    return builder.add(LayoutInForce, 9, ADMIN, topic="new", counts=counts).add(LayoutsRead, 9, ADMIN)


def test_acknowledged_message_outside_the_layouts_queues_is_a_violation() -> None:
    sent = HistoryBuilder().sent(1, b"m0", 0)
    elsewhere = sent.add(LayoutInForce, 9, ADMIN, topic="orders", counts=(("elsewhere", 4),)).add(LayoutsRead, 9, ADMIN)
    deleted = acked(("broker-b", 1)).add(LayoutSent, 5, ADMIN, broker=BROKER, topic="new", counter=2, deleted=True)
    assert_faults(check, {
        "inside": (acked((BROKER, 1)), ""), "another broker": (acked(("broker-b", 1)), "T1"),
        "fewer queues": (acked((BROKER, 0), ("broker-b", 4)), "T1"), "a producer's": (elsewhere, "T1"),
        "no layout": (sent.add(LayoutsRead, 9, ADMIN), "T1"), "layouts not read": (sent, ""), "deleted": (deleted, ""),
    })  # fmt: skip


def test_more_topics_than_allowed_are_a_violation_except_retry_and_dlq_topics() -> None:
    def topics(*names: str) -> HistoryBuilder:
        builder = HistoryBuilder().add(LayoutsRead, 9, ADMIN, topics_max=2)
        for name in names:
            builder = builder.add(LayoutInForce, 8, ADMIN, topic=name, counts=((BROKER, 1),))
        return builder

    assert_faults(check, {
        "two": (topics("a", "b"), ""), "three": (topics("a", "b", "c"), "T2"),
        "two with theirs": (topics("a", "%RETRY%g", "%DLQ%g", "b"), ""),
    })  # fmt: skip
