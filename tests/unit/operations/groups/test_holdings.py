"""How many queues each member held: from the owners of now back through the events, and never over a gap."""

import re
from collections import Counter
from xml.etree.ElementTree import fromstring as parse

from hypothesis import given
from hypothesis import strategies as st

from lockstep.operations.groups.group_history import PlacedEvent
from lockstep.operations.groups.group_report import QueueLine
from lockstep.operations.groups.holdings import Holdings, holdings
from lockstep.operations.groups.ownership import lanes
from lockstep.operations.pictures.held import held_picture
from lockstep.protocol.bodies import GroupEvent, GroupEventKind

K = GroupEventKind
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>\u202e"


def event(number: int, at_ms: int, kind: GroupEventKind, client_id: str, queue_id: int = 0) -> PlacedEvent:
    return PlacedEvent("a", GroupEvent(number, at_ms, kind, "g", client_id, None, "t", queue_id, number))


def line(queue_id: int, owner: str | None, *, reached: bool = True) -> QueueLine:
    return QueueLine("t", "a", queue_id, reached, owner, None, None, None, None, None, None, None, None)


def test_counts_follow_grants_and_ends() -> None:
    lines = [line(0, "m"), line(1, "m"), line(2, None), line(3, None, reached=False)]
    events = [event(1, 15, K.FREED, "n"), event(2, 25, K.GRANTED, "m"), event(3, 28, K.SUPERSEDED, "m", 1), event(4, 35, K.LOST, "n", 2)]
    found = holdings(lines, events, (0, 40), {"a": []}, 4)
    assert (list(found.counts), found.queue_count) == ([{"m": 1, "n": 2}, {"m": 1, "n": 1}, {"m": 2, "n": 1}, {"m": 2}], 3)


def test_nothing_is_known_up_to_the_end_of_a_gap() -> None:
    events = [event(1, 5, K.FREED, "n"), event(2, 25, K.GRANTED, "m")]
    found = holdings([line(0, "m")], events, (0, 40), {"a": [(0, 10)], "b": [(12, 18)]}, 4)
    assert list(found.counts) == [None, {}, {"m": 1}, {"m": 1}]
    assert list(holdings([line(0, "m")], events, (0, 40), {"a": [(0, 90)]}, 2).counts) == [None, None]


def test_events_prevail_over_an_older_report() -> None:
    assert list(holdings([line(0, "n")], [event(1, 5, K.FREED, "n"), event(2, 15, K.GRANTED, "m")], (0, 20), {}, 2).counts) == [
        {},
        {"m": 1},
    ]


MOVES = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 3), st.sampled_from("mno")), max_size=20)


@given(moves=MOVES)
def test_counts_are_those_of_the_lanes(moves: list[tuple[int, int, str]]) -> None:
    """Queues that are freed and granted again, in the order of time."""
    owners: dict[int, str | None] = dict.fromkeys(range(4), "m")
    events: list[PlacedEvent] = []
    for at_ms, queue_id, client_id in sorted(moves):
        before = owners[queue_id]
        if before is not None:
            events.append(event(2 * len(events), at_ms, K.FREED, before, queue_id))
            owners[queue_id] = None
        if client_id != before:
            events.append(event(2 * len(events), at_ms, K.GRANTED, client_id, queue_id))
            owners[queue_id] = client_id
    lines = [line(queue_id, owner) for queue_id, owner in owners.items()]
    queues = {("t", "a", each.queue_id): each.owner for each in lines}
    drawn = lanes(events, (0, 100), queues=queues, owners=queues)
    found = holdings(lines, events, (0, 100), {}, 10)
    for index, counts in enumerate(found.counts):
        at_ms = (index + 1) * 10
        held = Counter(span.client_id for lane in drawn for span in lane.spans if span.from_ms <= at_ms < max(span.until_ms, 1))
        if at_ms < 100:
            assert counts == {client_id: number for client_id, number in held.items() if client_id is not None}


def test_picture_has_an_area_for_eight_members_and_one_for_all_others() -> None:
    counts = [{f"m{number}": number + 1 for number in range(12)}, None, {HOSTILE: 90}]
    root = parse(held_picture(HOSTILE, Holdings(counts, 100), ["m3", "m4"], (0, 90_000)))
    areas = [(path.get("class"), path[0].text) for path in root.iter(f"{SVG}path")]
    assert areas[:2] == [("c0", "m3"), ("c1", "m4")]
    assert [kind for kind, _ in areas] == ["c0", "c1", "c3", "c4", "c5", "c6", "c7", "others", "free", "c2", "free"]
    assert ("c2", "<script>\\u202e") in areas
    said = [each.text for each in root.iter(f"{SVG}text")]
    assert {"<script>\\u202e: 90 now", "m3: 0 now", "5 more members: 0 now", "nobody: 10 now"} <= {*said}
    times = {each.text: each.get("data-ms") for each in root.iter(f"{SVG}text") if each.get("data-ms")}
    assert times == {"UTC": "0"} | {f"00:0{ms // 60_000}:{ms // 1_000 % 60:02}": str(ms) for ms in range(0, 90_001, 15_000)}
    (unknown,) = [each for each in root.iter(f"{SVG}rect") if each.get("class") == "unknown"]
    assert unknown.get("x") == "442"
    for path in root.iter(f"{SVG}path"):
        numbers = [float(each) for each in re.findall(r"[\d.]+", path.get("d", ""))]
        assert all(0 <= each <= 960 for each in numbers)
