"""Lanes: each moment of a queue is held by a member, held by nobody, or unknown."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.operations.groups.group_history import PlacedEvent
from lockstep.operations.groups.group_report import QueueLine
from lockstep.operations.groups.ownership import Span, group_lanes, lanes, most_moved
from lockstep.protocol.bodies import GroupEvent, GroupEventKind

K = GroupEventKind
QUEUE = ("orders", "broker-a", 0)
UNTIL = 100


def event(
    number: int, at_ms: int, kind: GroupEventKind, client_id: str, since_ms: int | None = None, why: str | None = None
) -> PlacedEvent:
    queue = (None, None) if kind in (K.JOINED, K.LEFT, K.DISCONNECTED, K.RECONNECTED) else ("orders", 0)
    return PlacedEvent(
        "broker-a", GroupEvent(number, at_ms, kind, "g", client_id, why, *queue, None if queue[0] is None else number, since_ms)
    )


def drawn(*events: PlacedEvent, owner: str | None = "?", unknown: tuple[tuple[int, int], ...] = ()) -> list[tuple[object, ...]]:
    """Return (from, until, who) of each span of the queue's lane: "-" is nobody, "?" unknown. `owner` "?" is not known."""
    owners = {} if owner == "?" else {QUEUE: owner}
    (lane,) = lanes(events, (0, UNTIL), queues=[QUEUE], unknown={"broker-a": unknown}, owners=owners)
    return [(span.from_ms, span.until_ms, (span.client_id or "-") if span.known else "?") for span in lane.spans]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], [(0, 100, "?")]),
        ([event(1, 10, K.GRANTED, "a")], [(0, 10, "?"), (10, 100, "a")]),
        ([event(1, 10, K.GRANTED, "a", 4)], [(0, 4, "?"), (4, 10, "-"), (10, 100, "a")]),
        ([event(1, 10, K.GRANTED, "a", -5)], [(0, 10, "-"), (10, 100, "a")]),
        ([event(1, 10, K.FREED, "a", 10)], [(0, 10, "a"), (10, 100, "-")]),
        ([event(1, 10, K.LOST, "a", 7)], [(0, 10, "a"), (10, 100, "-")]),
        ([event(1, 10, K.ENDED, "a", 10), event(2, 12, K.GRANTED, "b", 10)], [(0, 10, "a"), (10, 12, "-"), (12, 100, "b")]),
        ([event(1, 10, K.FREED, "a", 10), event(2, 10, K.GRANTED, "b", 10)], [(0, 10, "a"), (10, 100, "b")]),
        ([event(1, 10, K.SUPERSEDED, "a")], [(0, 10, "a"), (10, 100, "a")]),
        ([event(1, 10, K.FREED, "a"), event(2, 20, K.RENEWED, "a", 10)], [(0, 10, "a"), (10, 20, "-"), (20, 100, "a")]),
        ([event(1, 10, K.GRANTED, "java"), event(2, 30, K.GRANTED, "b")], [(0, 10, "?"), (10, 30, "java"), (30, 100, "b")]),
        ([event(1, 10, K.JOINED, "a"), event(2, 400, K.GRANTED, "a")], [(0, 100, "?")]),
    ],
)
def test_events_of_a_queue_become_its_spans(events: list[PlacedEvent], expected: list[tuple[object, ...]]) -> None:
    assert drawn(*events) == expected


def test_owner_that_is_known_now_has_held_a_queue_without_events_all_the_time() -> None:
    assert drawn(owner="a") == [(0, 100, "a")]
    assert drawn(owner=None) == [(0, 100, "-")]
    assert drawn(event(1, 10, K.FREED, "b"), owner="a") == [(0, 10, "b"), (10, 100, "-")]


def test_what_a_broker_does_not_tell_is_unknown_and_not_the_same_as_before() -> None:
    granted = event(1, 10, K.GRANTED, "a")
    assert drawn(granted, unknown=((30, 50),)) == [(0, 10, "?"), (10, 30, "a"), (30, 50, "?"), (50, 100, "?")]
    assert drawn(granted, unknown=((30, 50),), owner="a") == [(0, 10, "?"), (10, 30, "a"), (30, 50, "?"), (50, 100, "a")]
    assert drawn(granted, unknown=((30, 500),), owner="a") == [(0, 10, "?"), (10, 30, "a"), (30, 100, "?")]
    assert drawn(granted, unknown=((-9, 5), (20, 100))) == [(0, 5, "?"), (5, 10, "?"), (10, 20, "a"), (20, 100, "?")]
    assert drawn(granted, event(2, 40, K.LOST, "a", 40), unknown=((30, 35), (33, 38))) == [
        *((0, 10, "?"), (10, 30, "a"), (30, 38, "?")),
        *((38, 40, "a"), (40, 100, "-")),
    ]


def test_owner_says_nothing_of_a_time_whose_events_are_not_known() -> None:
    """It was reported at 60: the events up to 50, or those since 70, do not tell when it became the owner."""
    for unknown, expected in (
        ((90, 100), [(0, 90, "a"), (90, 100, "?")]),
        ((50, 100), [(0, 50, "?"), (50, 100, "?")]),
        ((50, 70), [(0, 50, "?"), (50, 70, "?"), (70, 100, "?")]),
    ):
        (lane,) = lanes([], (0, UNTIL), queues=[QUEUE], unknown={"broker-a": [unknown]}, owners={QUEUE: "a"}, owners_ms=60)
        assert [(span.from_ms, span.until_ms, span.client_id or "?") for span in lane.spans] == expected
    line = QueueLine(*QUEUE, True, "a", *[None] * 9)
    for read, owner in (({"broker-a"}, "a"), ({"broker-b"}, None)):
        (lane,) = group_lanes([line], [], (0, UNTIL), {}, reported_ms=60, read_since=read)
        assert [(span.client_id, span.known) for span in lane.spans] == [(owner, owner is not None)], "its events are older than the report"


def spans(*events: PlacedEvent, owner: str | None = None) -> tuple[Span, ...]:
    (lane,) = lanes(events, (0, UNTIL), owners={} if owner is None else {QUEUE: owner}, queues=[QUEUE])
    return lane.spans


def test_silent_owner_is_told_from_one_at_work() -> None:
    granted, cut = event(1, 10, K.GRANTED, "a"), event(2, 20, K.DISCONNECTED, "a", 18)
    other = event(3, 21, K.DISCONNECTED, "b", 5)
    assert [span.alive_until_ms for span in spans(granted, cut, other)] == [None, 18]
    assert [span.alive_until_ms for span in spans(granted, cut, other, event(4, 25, K.RECONNECTED, "a"))] == [None, None]
    lost = spans(granted, event(4, 40, K.LOST, "a", 18, "its connection was lost"))
    assert [(span.alive_until_ms, span.ended) for span in lost] == [(None, None), (18, "its connection was lost"), (None, None)]
    assert [(span.alive_until_ms, span.known) for span in spans(cut, owner="a")] == [(18, True)]


def test_most_moved_queues_are_those_with_the_most_grants_in_the_period() -> None:
    def granted(queue_id: int, at_ms: int, broker: str = "a") -> PlacedEvent:
        return PlacedEvent(broker, GroupEvent(1, at_ms, K.GRANTED, "g", "m", None, "t", queue_id, 1))

    lines = [QueueLine("t", "a", number, True, "m", *[None] * 9) for number in range(5)]
    joined = PlacedEvent("a", GroupEvent(1, 5, K.JOINED, "g", "m"))
    placed = [granted(3, 1), granted(3, 2), joined, granted(2, 3), granted(0, -1), granted(1, 200), granted(4, 3, "b"), granted(9, 3)]
    shown, theirs = most_moved(lines, placed, (0, UNTIL), 2)
    assert [line.queue_id for line in shown] == [2, 3]
    assert theirs == [granted(3, 1), granted(3, 2), joined, granted(2, 3)]
    assert [line.queue_id for line in most_moved(lines, placed, (0, UNTIL), 3)[0]] == [0, 2, 3]  # equals in their order
    assert most_moved(lines, [], (0, UNTIL), 9) == (lines, [])


def test_queues_have_lanes_of_their_own_sorted_by_topic_broker_and_number() -> None:
    placed = [PlacedEvent(broker, GroupEvent(1, 5, K.GRANTED, "g", "a", None, topic, 3, 1)) for broker in ("b", "a") for topic in "zy"]
    found = lanes(placed, (0, 9), queues=[("x", "a", 1)])
    assert [(lane.topic, lane.broker, lane.queue_id) for lane in found] == [
        *(("x", "a", 1), ("y", "a", 3)),
        *(("y", "b", 3), ("z", "a", 3), ("z", "b", 3)),
    ]


EVENTS = st.lists(
    st.tuples(st.integers(-20, 130), st.sampled_from(list(K)), st.sampled_from("abc"), st.none() | st.integers(-30, 130)), max_size=25
)
PERIODS = st.lists(st.tuples(st.integers(-20, 130), st.integers(0, 60)), max_size=3)


@given(drawn_events=EVENTS, unknown=PERIODS, owner=st.sampled_from(["a", None, "?"]), in_order=st.booleans())
def test_spans_cover_the_period_and_never_overlap(
    drawn_events: list[tuple[int, GroupEventKind, str, int | None]],
    unknown: list[tuple[int, int]],
    owner: str | None,
    in_order: bool,
) -> None:
    """Whatever is lost, and however clocks are set."""
    if in_order:
        drawn_events.sort(key=lambda each: each[0])
    events = [event(number, *each) for number, each in enumerate(drawn_events, 1)]
    periods = tuple(sorted((first, first + length) for first, length in unknown))
    found = drawn(*events, owner=owner, unknown=periods)
    assert found[0][0] == 0
    assert found[-1][1] == UNTIL
    assert all(before[1] == after[0] for before, after in pairwise(found))
    assert all(span[0] <= span[1] for span in found)  # type: ignore[operator]
    for at_ms in range(UNTIL):
        if any(first <= at_ms < last for first, last in periods):
            (here,) = [who for first, last, who in found if first <= at_ms < last]  # type: ignore[operator]
            assert here == "?"
