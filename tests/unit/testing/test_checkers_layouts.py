"""T1 and T2: an acknowledged message is in a queue of the layout in force."""

import pytest

from support.histories import HistoryBuilder
from sweep.checkers import layouts
from sweep.events.producers import FirstSendAcked
from sweep.events.sends import LayoutSent
from sweep.events.universe import LayoutInForce, LayoutsRead
from sweep.history import QueueKey

ADMIN = ("A", 31)
BROKER = "broker-a"


def builder(*counts: tuple[str, int]) -> HistoryBuilder:
    first = HistoryBuilder().add(FirstSendAcked, 2, ADMIN, queue=QueueKey("", BROKER, "new", 0), body=b"m")
    return first.add(LayoutInForce, 9, ADMIN, topic="new", counts=counts).add(LayoutsRead, 9, ADMIN)


@pytest.mark.parametrize(("counts", "laws"), [(((BROKER, 1),), []), ((("broker-b", 1),), ["T1"]), (((BROKER, 0), ("broker-b", 4)), ["T1"])])
def test_acknowledged_message_outside_the_layouts_queues_is_a_violation(counts: tuple[tuple[str, int], ...], laws: list[str]) -> None:
    assert builder(*counts).broken(layouts.check) == laws


def test_message_of_a_topic_without_a_layout_is_a_violation() -> None:
    sent = HistoryBuilder().sent(1, b"m0", 0)
    assert sent.broken(layouts.check) == [], "the layouts were not read"
    assert sent.add(LayoutsRead, 9, ADMIN).broken(layouts.check) == ["T1"]


@pytest.mark.parametrize(("topics", "laws"), [(("a", "b"), []), (("a", "%RETRY%g", "%DLQ%g", "b"), []), (("a", "b", "c"), ["T2"])])
def test_more_topics_than_allowed_are_a_violation_except_retry_and_dlq_topics(topics: tuple[str, ...], laws: list[str]) -> None:
    builder = HistoryBuilder()
    for topic in topics:
        builder.add(LayoutInForce, 9, ADMIN, topic=topic, counts=((BROKER, 1),))
    assert builder.add(LayoutsRead, 9, ADMIN, topics_max=2).broken(layouts.check) == laws


def test_messages_of_a_deleted_topic_are_not_checked() -> None:
    deleted = builder(("broker-b", 1)).add(LayoutSent, 5, ADMIN, broker=BROKER, topic="new", counter=2, deleted=True)
    assert deleted.broken(layouts.check) == []


def test_layout_check_includes_messages_of_producers() -> None:
    sent = (
        HistoryBuilder()
        .sent(1, b"m0", 0)
        .add(LayoutInForce, 9, ADMIN, topic="orders", counts=(("elsewhere", 4),))
        .add(LayoutsRead, 9, ADMIN)
    )
    assert sent.broken(layouts.check) == ["T1"]
