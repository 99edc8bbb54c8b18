"""Pictures are well-formed whatever the names, show what happened, and say it in words."""

import re
from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path
from xml.etree.ElementTree import Element
from xml.etree.ElementTree import fromstring as parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.admin.group_history import PlacedEvent
from lockstep.admin.ownership import Lane, Span
from lockstep.admin.pictures.heat import COLUMNS, heat_picture
from lockstep.admin.pictures.owners import LABEL, RIGHT, WIDTH, member_letters, owners_picture
from lockstep.admin.pictures.svg import clock_time, time_marks
from lockstep.protocol.bodies import GroupEvent, GroupEventKind
from lockstep.testing import simulate

DOCS = Path(__file__).resolve().parents[3] / "docs/pictures"
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>alert(1)</script>]]>&amp;\"'\u202e\x00\ud800\n"


def titles(root: Element) -> list[str]:
    return [each.text or "" for each in root.iter(f"{SVG}title")]


def picture(*lanes: Lane, events: tuple[PlacedEvent, ...] = (), group: str = "g", style: str | None = None) -> Element:
    return parse(owners_picture(group, lanes, events, (0, 1_000), "1 queue moved", style=style))


@pytest.mark.parametrize("style", [None, "a > b {}"])
def test_hostile_names_stay_text(style: str | None) -> None:
    spans = (Span(0, 400, HOSTILE, 7, 200, HOSTILE), Span(400, 1_000))
    event = PlacedEvent(HOSTILE, GroupEvent(1, 5, GroupEventKind.JOINED, "g", HOSTILE))
    root = picture(Lane(HOSTILE, HOSTILE, 0, spans), events=(event,), group=HOSTILE, style=style)
    assert not list(root.iter(f"{SVG}script"))
    said = "\n".join(root.itertext())
    assert "<script>alert(1)</script>]]>&amp;\"'\\u202e\\x00\\ud800\\n" in said
    assert said.isprintable() or set(re.sub(r"[^\x00-\x1f]", "", said)) == {"\n"}


def test_bars_say_whose_they_are_how_long_the_owner_was_silent_and_why_they_ended() -> None:
    root = picture(
        Lane("t", "b", 3, (Span(0, 100, known=False), Span(100, 600, "c1", 42, 300, "lost"), Span(600, 900), Span(900, 1_000, "c2")))
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
    root = picture(Lane("t", "b", 0, (Span(0, 500, "a"), Span(500, 699), Span(699, 1_000, "b"))))
    assert [each.get("class") for each in root.iter(f"{SVG}line")].count("line") == 1
    assert "gap" not in {each.get("class") for each in root.iter(f"{SVG}rect")}


def test_members_that_come_and_go_are_marked_once_and_labels_do_not_overlap() -> None:
    events = [
        PlacedEvent(broker, GroupEvent(number, at_ms, GroupEventKind.JOINED, "g", f"c{number}"))
        for number, at_ms in enumerate(range(0, 1_000, 20))
        for broker in ("broker-a", "broker-b")
    ]
    root = picture(Lane("t", "b", 0, (Span(0, 1_000, "c1"),)), events=tuple(events))
    marks = [each for each in root.iter(f"{SVG}line") if each.get("class") == "mark"]
    assert len(marks) == 50
    labels: dict[str, list[float]] = {}
    for each in root.iter(f"{SVG}text"):
        if (each.text or "").endswith("joined"):
            labels.setdefault(each.get("y", ""), []).append(float(each.get("x", "")))
    assert len(labels) == 2
    assert all(second - first > 40 for row in labels.values() for first, second in pairwise(row))


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
    root = picture(Lane(topic, "b", 0, tuple(spans)), group=group)
    assert root.get("role") == "img"
    for each in root.iter(f"{SVG}rect"):
        x, width = float(each.get("x", 0)), float(each.get("width", 0))
        assert width > 0
        assert x >= 4
        assert x + width <= WIDTH - RIGHT + 1


def test_letters_go_on_after_z() -> None:
    lane = Lane("t", "b", 0, tuple(Span(number, number + 1, f"m{number:02}") for number in range(60)))
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
    texts = [each for each in picture(Lane("t", "b", 0, (Span(0, 1_000, "c1"),))).iter(f"{SVG}text") if each.get("data-ms")]
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
        said = titles(parse(path.read_text("utf-8")))
        bars = [each for each in said if "epoch" in each]
        assert sum(bool(re.fullmatch(r"orders@broker-[ab]:[0-3]", each)) for each in said) == 8
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
