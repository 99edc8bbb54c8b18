"""T1 and T2: an acknowledged message is in a queue of the layout in force."""

import pytest

from support.stories import Story
from sweep.checkers import layouts
from sweep.events import FirstSendAcked, LayoutInForce, LayoutSent, LayoutsRead
from sweep.history import QueueKey

ADMIN = ("A", 31)
BROKER = "broker-a"


def story(*counts: tuple[str, int]) -> Story:
    first = Story().add(FirstSendAcked, 2, ADMIN, queue=QueueKey("", BROKER, "new", 0), body=b"m")
    return first.add(LayoutInForce, 9, ADMIN, topic="new", counts=counts).add(LayoutsRead, 9, ADMIN)


@pytest.mark.parametrize(("counts", "laws"), [(((BROKER, 1),), []), ((("broker-b", 1),), ["T1"]), (((BROKER, 0), ("broker-b", 4)), ["T1"])])
def test_an_acknowledged_message_is_in_a_queue_of_the_layout(counts: tuple[tuple[str, int], ...], laws: list[str]) -> None:
    assert story(*counts).broken(layouts.check) == laws


def test_a_message_of_a_topic_that_is_in_no_layout_at_all_is_lost_to_every_client() -> None:
    sent = Story().sent(1, b"m0", 0)
    assert sent.broken(layouts.check) == [], "the layouts were not read"
    assert sent.add(LayoutsRead, 9, ADMIN).broken(layouts.check) == ["T1"]


@pytest.mark.parametrize(("topics", "laws"), [(("a", "b"), []), (("a", "%RETRY%g", "%DLQ%g", "b"), []), (("a", "b", "c"), ["T2"])])
def test_there_are_no_more_topics_than_allowed_but_for_those_of_groups(topics: tuple[str, ...], laws: list[str]) -> None:
    story = Story()
    for topic in topics:
        story.add(LayoutInForce, 9, ADMIN, topic=topic, counts=((BROKER, 1),))
    assert story.add(LayoutsRead, 9, ADMIN, topics_max=2).broken(layouts.check) == laws


def test_a_deleted_topic_takes_its_messages_with_it() -> None:
    deleted = story(("broker-b", 1)).add(LayoutSent, 5, ADMIN, broker=BROKER, topic="new", counter=2, deleted=True)
    assert deleted.broken(layouts.check) == []


def test_a_producers_message_counts_too() -> None:
    sent = Story().sent(1, b"m0", 0).add(LayoutInForce, 9, ADMIN, topic="orders", counts=(("elsewhere", 4),)).add(LayoutsRead, 9, ADMIN)
    assert sent.broken(layouts.check) == ["T1"]
