"""Lanes of members: present at any broker is present, and what nobody tells is unknown."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.operations.groups.group_history import PlacedEvent
from lockstep.operations.groups.group_report import MemberLine
from lockstep.operations.groups.presence import MemberLane, member_lanes, summary
from lockstep.protocol.bodies import GroupEvent, GroupEventKind

K = GroupEventKind
JOINED, LEFT, CUT, BACK = K.JOINED, K.LEFT, K.DISCONNECTED, K.RECONNECTED
UNTIL = 100


def event(at_ms: int, kind: GroupEventKind, broker: str = "a", client_id: str = "m", since_ms: int | None = None) -> PlacedEvent:
    why = "it was lost" if kind is LEFT else None
    return PlacedEvent(broker, GroupEvent(at_ms + 1_000, at_ms, kind, "g", client_id, why, since_ms=since_ms))


def member(client_id: str = "m", *missing_at: str) -> MemberLine:
    return MemberLine(client_id, None, "", True, 0, (), {}, missing_at)


def lanes(*events: PlacedEvent, members: tuple[str, ...] = (), unknown: dict[str, list[tuple[int, int]]] | None = None) -> list[MemberLane]:
    return member_lanes(map(member, members), events, (0, UNTIL), unknown or {}, ("a", "b"), 9)[0]


def drawn(*events: PlacedEvent, now: bool = False, unknown: dict[str, list[tuple[int, int]]] | None = None) -> list[tuple[object, ...]]:
    """Return (from, until, what) of the spans of the only lane: "m", "-" is absent, "?" unknown, and a number is when it was last heard."""
    (lane,) = lanes(*events, members=("m",) if now else (), unknown=unknown or {"a": [], "b": []})
    words = [(span, (span.client_id or "-") if span.known else "?") for span in lane.spans]
    return [(span.from_ms, span.until_ms, word if span.alive_until_ms is None else span.alive_until_ms) for span, word in words]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([event(10, JOINED)], [(0, 10, "-"), (10, 100, "m")]),
        ([event(10, LEFT)], [(0, 10, "m"), (10, 100, "-")]),
        ([event(10, JOINED), event(12, JOINED, "b"), event(50, LEFT), event(53, LEFT, "b")], [(0, 10, "-"), (10, 53, "m"), (53, 100, "-")]),
        ([event(10, CUT), event(40, LEFT)], [(0, 40, 10), (40, 100, "-")]),
        ([event(20, CUT, since_ms=12), event(40, LEFT)], [(0, 40, 12), (40, 100, "-")]),
        ([event(10, JOINED), event(20, CUT, since_ms=2), event(40, LEFT)], [(0, 10, "-"), (10, 40, 10), (40, 100, "-")]),
        ([event(10, CUT), event(40, BACK)], [(0, 40, 10), (40, 100, "m")]),
        ([event(40, BACK)], [(0, 40, 0), (40, 100, "m")]),
        ([event(10, CUT)], [(0, 100, 10)]),
        ([event(10, CUT), event(20, BACK, "b"), event(30, CUT, "b")], [(0, 20, 10), (20, 100, 30)]),
        ([event(-20, JOINED), event(30, LEFT)], [(0, 30, "m"), (30, 100, "-")]),
        ([event(-20, JOINED), event(-10, CUT), event(30, LEFT)], [(0, 30, -10), (30, 100, "-")]),
        ([event(10, LEFT), event(200, JOINED)], [(0, 10, "m"), (10, 100, "-")]),
    ],
)
def test_events_of_a_member_become_its_spans(events: list[PlacedEvent], expected: list[tuple[object, ...]]) -> None:
    assert drawn(*events) == expected


def test_member_that_one_broker_has_lost_is_present_at_the_other() -> None:
    assert drawn(event(10, CUT), event(13, LEFT), event(20, JOINED), event(5, JOINED, "b")) == [(0, 100, "m")]
    assert drawn(event(10, CUT), now=True) == [(0, 100, "m")], "b has no event of it, and lists it now"


def test_member_that_is_listed_now_and_has_no_events_has_been_there_all_the_time() -> None:
    assert drawn(now=True) == [(0, 100, "m")]
    (lane,), _ = member_lanes([member("m", "a")], (), (0, UNTIL), {"a": []}, ("a",), 9)
    assert [span.known for span in lane.spans] == [False], "the only broker does not list it"


def test_member_that_may_be_newer_than_the_events_has_not_been_there_all_the_time() -> None:
    """The events of the broker that reported it could not be read since."""
    (lane,), _ = member_lanes([member()], (), (0, UNTIL), {"a": [], "b": []}, (), 9)
    assert [span.known for span in lane.spans] == [False]
    (lane,), _ = member_lanes([member()], [event(10, JOINED)], (0, UNTIL), {"a": [], "b": []}, (), 9)
    assert [(span.from_ms, span.client_id) for span in lane.spans] == [(0, None), (10, "m")]


def test_what_no_broker_tells_is_unknown() -> None:
    assert drawn(now=True, unknown={"a": [(0, 30)]}) == [(0, 30, "?"), (30, 100, "m")]
    assert drawn(now=True, unknown={"a": [(0, 30)], "b": [(60, 70)]}) == [(0, 30, "?"), (30, 100, "m")]
    assert drawn(now=True, unknown={"a": [(40, 100)]}) == [(0, 100, "?")]
    assert drawn(event(20, JOINED), unknown={"a": [(40, 60)]}) == [(0, 20, "-"), (20, 40, "m"), (40, 100, "?")]
    assert drawn(event(20, JOINED), event(70, JOINED), unknown={"a": [(40, 60)]}) == [
        *((0, 20, "-"), (20, 40, "m"), (40, 60, "?")),
        *((60, 70, "-"), (70, 100, "m")),
    ]


def test_lane_says_why_a_member_left_and_the_sentence_counts() -> None:
    found = lanes(event(10, JOINED), event(20, CUT), event(40, LEFT), event(50, LEFT, client_id="n"), event(60, JOINED, client_id="n"))
    assert [[span.ended for span in lane.spans] for lane in found] == [["it was lost", None, None], [None, "it was lost", None]]
    assert [lane.client_id for lane in found] == ["n", "m"], "n was there before"
    assert summary(found) == "2 members joined, 2 left, 1 of them after the connection was lost"
    assert summary(lanes(event(10, JOINED))) == "1 member joined, 0 left"
    assert summary(lanes(members=("m",))) == "no member joined or left"


def test_members_that_came_and_went_most_often_have_lanes() -> None:
    events = [event(at_ms, kind, client_id=f"m{at_ms % 5}") for at_ms in range(20) for kind in (JOINED, LEFT) if at_ms % 5 or at_ms < 5]
    found, more = member_lanes([member("quiet")], [*events, event(-5, LEFT, client_id="past")], (0, UNTIL), {"a": []}, ("a",), 4)
    assert ([lane.client_id for lane in found], more) == (["m1", "m2", "m3", "m4"], 2)


KINDS = st.sampled_from([JOINED, LEFT, CUT, BACK])
EVENTS = st.lists(
    st.tuples(st.integers(-20, 130), KINDS, st.sampled_from("ab"), st.just("m"), st.none() | st.integers(-30, 130)), max_size=20
)
PERIODS = st.lists(st.tuples(st.integers(-20, 130), st.integers(0, 60)), max_size=3)


@given(events=EVENTS, unknown=st.tuples(PERIODS, PERIODS), now=st.booleans())
def test_spans_cover_the_period_whatever_is_lost_and_however_clocks_are_set(
    events: list[tuple[int, GroupEventKind, str, str, int | None]], unknown: tuple[list[tuple[int, int]], list[tuple[int, int]]], now: bool
) -> None:
    periods = {broker: sorted((first, first + length) for first, length in each) for broker, each in zip("ab", unknown, strict=True)}
    for lane in lanes(*(event(*each) for each in events), members=("m",) if now else (), unknown=periods):
        assert lane.spans[0].from_ms == 0
        assert lane.spans[-1].until_ms == UNTIL
        assert all(before.until_ms == after.from_ms for before, after in pairwise(lane.spans))
        assert all(span.from_ms < span.until_ms for span in lane.spans)
        for span in lane.spans:
            assert span.alive_until_ms is None or (span.client_id == "m" and span.alive_until_ms <= span.until_ms)
