"""Pictures are well-formed whatever the names, show what happened, and say it in words."""

import re
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element
from xml.etree.ElementTree import fromstring as parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.operations.groups.group_history import PlacedEvent
from lockstep.operations.groups.group_report import QueueLine
from lockstep.operations.groups.ownership import OwnershipLane, Span
from lockstep.operations.groups.presence import MemberLane
from lockstep.operations.pictures.condensed import Moves, condensed
from lockstep.operations.pictures.heat import COLUMNS, heat_picture, highest
from lockstep.operations.pictures.marks import marks
from lockstep.operations.pictures.owners import LABEL, RIGHT, STATE, WIDTH, member_letters, members_picture, owners_picture
from lockstep.operations.pictures.series import series_picture
from lockstep.operations.pictures.svg import clock_time, time_marks
from lockstep.protocol.bodies import GroupEvent, GroupEventKind
from lockstep.testing import simulate

DOCS = Path(__file__).resolve().parents[4] / "docs/pictures"
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>alert(1)</script>]]>&amp;\"'\u202e\x00\ud800\n"


def titles(root: Element) -> list[str]:
    return [each.text or "" for each in root.iter(f"{SVG}title")]


def picture(
    *lanes: OwnershipLane,
    events: tuple[PlacedEvent, ...] = (),
    group: str = "g",
    lines: tuple[QueueLine, ...] = (),
    starts: dict[str, list[int]] | None = None,
    style: str | None = None,
) -> Element:
    return parse(owners_picture(group, lanes, events, (0, 1_000), "1 queue moved", lines=lines, starts=starts, style=style))


def said(root: Element) -> list[str]:
    return [each.text or "" for each in root.iter(f"{SVG}text")]


def with_class(root: Element, name: str) -> list[Element]:
    return [each for each in root.iter() if each.get("class") == name]


def member_event(number: int, at_ms: int, kind: GroupEventKind, client_id: str, broker: str = "b") -> PlacedEvent:
    return PlacedEvent(broker, GroupEvent(number, at_ms, kind, "g", client_id))


def reset(at_ms: int, queue_id: int, broker: str = "b") -> PlacedEvent:
    return PlacedEvent(broker, GroupEvent(1, at_ms, GroupEventKind.SUPERSEDED, "g", "c1", "a reset", "t", queue_id, 9))


@pytest.mark.parametrize("style", [None, "a > b {}"])
def test_hostile_names_stay_text(style: str | None) -> None:
    spans = (Span(0, 400, HOSTILE, 7, 200, HOSTILE), Span(400, 1_000))
    event = PlacedEvent(HOSTILE, GroupEvent(1, 5, GroupEventKind.JOINED, "g", HOSTILE))
    root = picture(OwnershipLane(HOSTILE, HOSTILE, 0, spans), events=(event,), group=HOSTILE, style=style)
    assert not list(root.iter(f"{SVG}script"))
    words = "\n".join(root.itertext())
    assert "<script>alert(1)</script>]]>&amp;\"'\\u202e\\x00\\ud800\\n" in words
    assert words.isprintable() or set(re.sub(r"[^\x00-\x1f]", "", words)) == {"\n"}


def test_bars_say_whose_they_are_how_long_the_owner_was_silent_and_why_they_ended() -> None:
    root = picture(
        OwnershipLane(
            "t", "b", 3, (Span(0, 100, known=False), Span(100, 600, "c1", 42, 300, "lost"), Span(600, 900), Span(900, 1_000, "c2"))
        )
    )
    assert titles(root)[1:] == [
        "t@b:3",
        "t@b:3: not known",
        "t@b:3: c1, 1970-01-01T00:00:00.100Z to 1970-01-01T00:00:00.600Z, (500 ms), epoch 42, last heard 300 ms before, ended: lost",
        "t@b:3: nobody held it for 300 ms",
        "t@b:3: c2, 1970-01-01T00:00:00.900Z to 1970-01-01T00:00:01.000Z, (100 ms)",
    ]
    classes = [each.get("class") for each in root.iter(f"{SVG}rect")]
    assert classes == ["unknown", "c0", "c0 grace", "gap", "c1", "c0", "c1"]
    assert root.find(f"{SVG}desc") is not None


def test_short_gap_is_a_line() -> None:
    root = picture(OwnershipLane("t", "b", 0, (Span(0, 500, "a"), Span(500, 699), Span(699, 1_000, "b"))))
    assert [each.get("class") for each in root.iter(f"{SVG}line")].count("line") == 1
    assert "gap" not in {each.get("class") for each in root.iter(f"{SVG}rect")}


def test_members_that_come_and_go_are_marked_once_and_labels_do_not_overlap() -> None:
    events = [
        PlacedEvent(broker, GroupEvent(number, at_ms, GroupEventKind.JOINED, "g", f"c{number}"))
        for number, at_ms in enumerate(range(0, 1_000, 20))
        for broker in ("broker-a", "broker-b")
    ]
    root = picture(OwnershipLane("t", "b", 0, (Span(0, 1_000, "c1"),)), events=tuple(events))
    marks = [each for each in root.iter(f"{SVG}line") if each.get("class") == "mark"]
    assert len(marks) == 50
    labels: dict[str, list[float]] = {}
    for each in root.iter(f"{SVG}text"):
        if (each.text or "").endswith("joined"):
            labels.setdefault(each.get("y", ""), []).append(float(each.get("x", "")))
    assert len(labels) == 2
    assert all(second - first > 40 for row in labels.values() for first, second in pairwise(row))


def test_brokers_that_start_and_resets_are_marked() -> None:
    root = picture(
        OwnershipLane("t", "b", 0, (Span(0, 1_000, "c1"),)),
        events=(reset(400, 0), reset(401, 1), reset(401, 0, "b2")),
        starts={"broker-a": [200], "broker-with-a-name-that-is-too-long": [700], "early": [-5]},
    )
    marked = [each for each in titles(root) if " at " in each]
    assert marked == [
        "broker-a started at 1970-01-01T00:00:00.200Z",
        "reset of 3 queues at 1970-01-01T00:00:00.400Z",
        "broker-with-a-name-that-is-too-long started at 1970-01-01T00:00:00.700Z",
    ]
    assert {"broker-a started", "reset", "broker-with-a-name-that… started"} <= {*said(root)}


def test_resets_that_follow_each_other_at_a_distance_are_two() -> None:
    events = [reset(0, 0), reset(4_000, 1), reset(20_000, 0)]
    found = marks(events, {}, {}, (0, 60_000))
    assert [(each.at_ms, each.label, len(each.queues)) for each in found] == [(0, "reset", 2), (20_000, "reset", 1)]


def test_marks_in_the_same_place_are_one_line_that_names_a_few() -> None:
    events = tuple(member_event(number, 500, GroupEventKind.JOINED, f"c{number}") for number in range(5_000))
    root = picture(OwnershipLane("t", "b", 0, (Span(0, 1_000, "c1"),)), events=events)
    (mark,) = with_class(root, "mark")
    assert (mark[0].text or "").endswith("c2 joined at 1970-01-01T00:00:00.500Z, 4997 more")
    assert "? joined +4999" in said(root)
    few = picture(OwnershipLane("t", "b", 0, (Span(0, 1_000, "c1"),)), events=events[:2], starts={"broker-a": [500]})
    assert "? joined, A joined, broker-a started" in said(few)


def line(queue_id: int, **now: Any) -> QueueLine:
    return replace(QueueLine("t", "b", queue_id, True, "c1", None, None, None, None, None, None, None, None), **now)


def test_queues_that_fail_or_have_parked_keys_say_so_in_words_and_not_by_colour_alone() -> None:
    lanes = [OwnershipLane("t", "b", number, (Span(0, 1_000, "c1"),)) for number in range(4)]
    lines = (line(0, attempts=7, failing_ms=12_000), line(1, parked=1), line(2, parked=0), line(3, attempts=2, failing_ms=9, parked=3_000))
    root = picture(*lanes, lines=lines)
    states = [each for each in titles(root) if "fails" in each or "parked" in each]
    assert states == ["t@b:0: fails for 12.0 s, 7 attempts", "t@b:1: 1 parked key", "t@b:3: fails for 9 ms, 2 attempts, 3,000 parked keys"]
    assert [len(with_class(root, name)) for name in ("failing", "parked")] == [2, 2]
    assert [each for each in said(root) if each in ("fails 7×", "1", "fails 2×", "999+")] == ["fails 7×", "1", "fails 2×", "999+"]
    bars = with_class(root, "c0")
    for each in with_class(root, "failing"):  # at the end of the bar, under it
        assert float(each.get("x", 0)) + float(each.get("width", 0)) == WIDTH - STATE
    assert max(float(each.get("x", 0)) + float(each.get("width", 0)) for each in bars) == WIDTH - STATE
    assert not with_class(picture(*lanes, lines=(line(2, parked=0),)), "parked")


def test_members_from_the_ninth_on_share_a_colour_and_keep_their_letters() -> None:
    root = picture(OwnershipLane("t", "b", 0, tuple(Span(number * 100, number * 100 + 100, f"m{number}") for number in range(10))))
    bars = [each.get("class") for each in root.iter(f"{SVG}rect") if each.get("height") == "18"]
    assert bars == [*(f"c{number}" for number in range(8)), "others", "others"]
    assert [each.text for each in with_class(root, "letter")] == list("ABCDEFGHIJ")


def test_bar_has_the_process_id_of_its_owner_where_there_is_room() -> None:
    spans = (Span(0, 500, "10.0.0.1@4711#0011223344556677"), Span(500, 540, "10.0.0.1@4712#00"), Span(540, 1_000, "java@DEFAULT"))
    assert [each.text for each in with_class(picture(OwnershipLane("t", "b", 0, spans)), "letter")] == ["A 4711", "B", "C"]


def test_spans_too_short_to_be_seen_are_one_and_say_how_often_the_queue_moved() -> None:
    short = [Span(400 + number, 401 + number, None if number % 2 else f"m{number % 3}") for number in range(20)]
    root = picture(OwnershipLane("t", "b", 0, (Span(0, 400, "a"), *short, Span(420, 1_000, "b"))))
    (moved,) = with_class(root, "moved")
    assert titles(root)[2:] == [
        "t@b:0: a, 1970-01-01T00:00:00.000Z to 1970-01-01T00:00:00.400Z, (400 ms)",
        "t@b:0: moved 10 times, 1970-01-01T00:00:00.400Z to 1970-01-01T00:00:00.420Z, free for 10 ms in all",
        "t@b:0: b, 1970-01-01T00:00:00.420Z to 1970-01-01T00:00:01.000Z, (580 ms)",
    ]
    assert float(moved.get("width", 0)) == pytest.approx(20 / 1_000 * (WIDTH - LABEL - RIGHT), abs=0.1)


LENGTHS = st.lists(st.tuples(st.integers(0, 20), st.sampled_from(["a", "b", None, "?"])), max_size=30)


@given(drawn=LENGTHS, least_ms=st.integers(0, 15))
def test_condensed_spans_cover_the_same_time_and_hide_no_long_one(drawn: list[tuple[int, str | None]], least_ms: int) -> None:
    spans, at_ms = [], 0
    for length, who in drawn:
        spans.append(Span(at_ms, at_ms + length, None if who == "?" else who, known=who != "?"))
        at_ms += length
    found = list(condensed(spans, least_ms))
    assert [each.from_ms for each in found[1:]] == [each.until_ms for each in found[:-1]]
    assert (found[0].from_ms, found[-1].until_ms) == (0, at_ms) if spans else not found
    assert [each for each in spans if each.until_ms - each.from_ms >= least_ms] == [
        each for each in found if isinstance(each, Span) and each.until_ms - each.from_ms >= least_ms
    ]
    for each in found:
        if isinstance(each, Moves):
            inner = [span for span in spans if each.from_ms <= span.from_ms and span.until_ms <= each.until_ms]
            held = sum(span.client_id is not None for span in inner)
            assert each.count <= held
            assert each.count >= 2 or len(inner) > 3


@pytest.mark.parametrize("members", [3, 10_000])
def test_picture_of_many_moves_is_bounded(members: int) -> None:
    """64 lanes with 10,000 spans, of different lengths."""
    lanes, number = [], 0
    for queue_id in range(64):
        spans: list[Span] = []
        at_ms = 0
        while at_ms < 1_000 and len(spans) < 157:
            until_ms = 1_000 if len(spans) == 156 else min(at_ms + 2 + number % 9, 1_000)
            spans.append(Span(at_ms, until_ms, f"192.168.100.{number % members}@{number % members}#0123456789abcdef", number))
            at_ms, number = until_ms, number + 1
        lanes.append(OwnershipLane("orders", "broker-a", queue_id, tuple(spans)))
    assert number > 9_000
    text = owners_picture("g", lanes, [], (0, 1_000), "")
    assert len(text) < 500_000
    root = parse(text)
    assert len(with_class(root, "moved")) >= 64
    assert f"{members - 64:,} more members" in said(root) or members < 64


def test_member_lanes_show_who_was_there_and_absence_is_empty() -> None:
    lanes = [
        MemberLane("10.0.0.1@7#aa", (Span(0, 600, "10.0.0.1@7#aa", None, 300, "its connection was lost"), Span(600, 1_000))),
        MemberLane(HOSTILE, (Span(0, 100, known=False), Span(100, 1_000, HOSTILE))),
    ]
    root = parse(
        members_picture("g", lanes, [member_event(1, 600, GroupEventKind.LEFT, "10.0.0.1@7#aa")], (0, 1_000), "1 left", style=None)
    )
    assert titles(root)[0] == "Who was a member of group g"
    assert (
        "10.0.0.1@7#aa, 1970-01-01T00:00:00.000Z to 1970-01-01T00:00:00.600Z, (600 ms), last heard 300 ms before, "
        "ended: its connection was lost"
    ) in titles(root)
    assert [each.get("class") for each in root.iter(f"{SVG}rect")] == ["c0", "c0 grace", "unknown", "c1", "c0", "c1"]
    assert {"A left", "A 7", "A 10.0.0.1@7", "gone 300 ms"} <= {*said(root)}
    assert not with_class(root, "gap")


NAMES = st.text(max_size=130)
SPANS = st.lists(st.tuples(st.integers(0, 400), NAMES | st.none(), st.none() | st.integers(-50, 1_500), st.booleans()), max_size=6)


@given(group=NAMES, topic=NAMES, drawn=SPANS)
def test_every_picture_is_well_formed_and_stays_within_its_frame(
    group: str, topic: str, drawn: list[tuple[int, str | None, int | None, bool]]
) -> None:
    spans, at_ms = [], 0
    for length, client_id, alive_ms, known in drawn:
        spans.append(Span(at_ms, at_ms + length, client_id if known else None, None, alive_ms, None, known))
        at_ms += length
    root = picture(OwnershipLane(topic, "b", 0, tuple(spans)), group=group)
    assert root.get("role") == "img"
    for each in root.iter(f"{SVG}rect"):
        x, width = float(each.get("x", 0)), float(each.get("width", 0))
        assert width > 0
        assert x >= 4
        assert x + width <= WIDTH - RIGHT + 1


@given(st.lists(st.none() | st.integers(0, 1_000), max_size=30))
def test_course_has_a_gap_where_the_figure_is_not_known(values: list[int | None]) -> None:
    root = parse(series_picture(values, "lag"))
    drawn: list[list[float]] = []
    for each in root:
        if each.get("class") == "course":
            drawn.append([float(x) for x in re.findall(r"[ML](\S+) ", each.get("d", ""))])
        elif each.get("class") == "course-point":
            drawn.append([float(each.get("cx", ""))])
    runs = [[index for index, _ in run] for known, run in groupby(enumerate(values), lambda each: each[1] is not None) if known]
    step = 238 / (max(2, len(values)) - 1)
    first = max(2, len(values)) - len(values)
    assert drawn == [[pytest.approx((first + index) * step + 1, abs=0.1) for index in run] for run in runs]


def test_letters_go_on_after_z() -> None:
    lane = OwnershipLane("t", "b", 0, tuple(Span(number, number + 1, f"m{number:02}") for number in range(60)))
    letters = list(member_letters([lane]).values())
    assert (letters[0], letters[25], letters[26], letters[59]) == ("A", "Z", "A2", "H3")
    assert len(set(letters)) == 60


@given(first=st.integers(0, 4_102_444_800_000), length=st.integers(0, 40 * 86_400_000), count_max=st.integers(1, 12))
def test_marks_of_an_axis_are_few_and_equally_far_apart(first: int, length: int, count_max: int) -> None:
    marks = list(time_marks(first, first + length, count_max))
    assert len(marks) <= count_max + 1
    assert len({after - before for before, after in pairwise(marks)}) <= 1
    assert all(first <= each <= first + length for each in marks)


def test_axis_says_that_it_is_in_utc_and_has_its_times_for_a_script() -> None:
    texts = [each for each in picture(OwnershipLane("t", "b", 0, (Span(0, 1_000, "c1"),))).iter(f"{SVG}text") if each.get("data-ms")]
    (zone,) = [each for each in texts if "zone" in (each.get("class") or "")]
    marks = [each for each in texts if each is not zone]
    assert (zone.text, len(marks)) == ("UTC", 6)
    assert all(each.text == clock_time(int(each.get("data-ms", "")), with_ms=True) for each in marks)


def test_clock_time_has_milliseconds_if_they_matter() -> None:
    assert (clock_time(3_723_004, with_ms=True), clock_time(3_723_004, with_ms=False)) == ("01:02:03.004", "01:02:03")
    assert LABEL < WIDTH


def test_picture_of_the_readme_is_made_by_its_program_and_shows_the_loss_of_a_member(tmp_path: Path) -> None:
    """What it shows is checked, not its bytes: any other order of random numbers would change them."""
    spec = spec_from_file_location("make_pictures", DOCS / "make_pictures.py")
    assert spec is not None
    assert spec.loader is not None
    program = module_from_spec(spec)
    spec.loader.exec_module(program)
    simulate(lambda: program.draw_owners(tmp_path / "owners.svg"))
    for path in (tmp_path / "owners.svg", DOCS / "owners.svg"):
        named = titles(parse(path.read_text("utf-8")))
        bars = [each for each in named if "epoch" in each]
        assert sum(bool(re.fullmatch(r"orders@broker-[ab]:[0-3]", each)) for each in named) == 8
        killed = [each for each in bars if "its connection was lost, and the grace is over" in each]
        paused = [each for each in bars if "nothing was heard for the session timeout" in each]
        assert len(killed) >= 2
        assert all("last heard 3." in each for each in killed)
        assert len(paused) >= 3
        assert all("last heard 20." in each for each in paused)


@given(st.dictionaries(st.sampled_from(["broker-a", "broker-b", HOSTILE]), st.lists(st.none() | st.integers(0, 1 << 63), max_size=250)))
def test_each_queue_has_one_cell_of_the_class_of_its_digits(blocks: dict[str, list[int | None]]) -> None:
    root = parse(heat_picture(blocks, HOSTILE))
    found: dict[str, list[str]] = {}
    for path in root.iter(f"{SVG}path"):
        found.setdefault(path.get("class", ""), []).extend(re.findall(r"M(\d+ \d+)h", path.get("d", "")))
    places = [place for each in found.values() for place in each]
    assert len(places) == len(set(places)) == sum(map(len, blocks.values()))
    values = [value for each in blocks.values() for value in each]
    positive = [len(str(value)) for value in values if value is not None and value > 0]
    assert len(found.get("unknown", ())) == values.count(None)
    for digits in range(1, 6):
        assert len(found.get(f"heat-{digits}", ())) == positive.count(digits)
    assert len(found.get("heat-0", ())) == values.count(0)
    assert int(root.get("width", "0")) == COLUMNS * 9


def test_highest_figures_have_names_and_what_is_0_or_unknown_is_none_of_them() -> None:
    figures = [("a:0", 5), ("a:1", None), ("a:2", 1_204), ("a:3", 0), ("b:0", 7), ("b:1", 7)]
    assert highest(figures, 3) == [("a:2", 1_204), ("b:0", 7), ("b:1", 7)]
    assert len(highest(figures, 10)) == 4
