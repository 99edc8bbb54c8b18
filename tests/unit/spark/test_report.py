"""The report is a self-contained page for any findings."""

from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from lockstep.spark.report import nice, page, short, time_of, with_pauses

CLEAN = {
    "expected": 10,
    "found": 10,
    "lost": 0,
    "repeated": 0,
    "outOfOrder": 0,
    "misplaced": 0,
    "unexpected": 0,
    "corrupt": 0,
    "repeatedElsewhere": 0,
    "foreign": 0,
    "missingOffsets": 0,
}
LATE = {"p50": 1.0, "p90": 2.0, "p99": 3.0, "p99.9": 4.0, "max": 5.0}


def verdict(**more: Any) -> dict[str, Any]:
    given = {"runId": "0" * 16, "topic": "load", "clean": True, "latencyMs": {"dueToStored": LATE, "storedToRead": LATE}, **CLEAN}
    return {**given, **more}


def findings(seconds: int = 3, **more: Any) -> Any:
    rows = [{"second": second, "rows": 100 * second, "p50": 1, "p99": 2, "max": 3} for second in range(seconds)]
    return SimpleNamespace(
        **{"seconds": rows, "queues": [("a:0", 5), ("b:0", 0)], "histogram": [(0.1, 3), (1_000.0, 7)], "violations": [], **more}
    )


def test_seconds_without_rows_are_zero() -> None:
    assert with_pauses([(0, 9), (1, 8), (5, 7), (7, 6)]) == [(0, 9), (1, 8), (2, 0), (4, 0), (5, 7), (6, 0), (6, 0), (7, 6)]
    assert with_pauses([]) == []


def pictures(text: str) -> list[ElementTree.Element]:
    parts = text.split("<svg")[1:]
    return [ElementTree.fromstring("<svg" + part.partition("</svg>")[0] + "</svg>") for part in parts]


def test_charts_are_well_formed_and_within_their_frames() -> None:
    drawn = pictures(page(verdict(), findings()))
    assert len(drawn) == 4
    for picture in drawn:
        _, _, width, height = map(float, picture.attrib["viewBox"].split())
        for line in picture.iter("{http://www.w3.org/2000/svg}polyline"):
            for point in line.attrib["points"].split():
                x, y = map(float, point.split(","))
                assert 0 <= x <= width
                assert 0 <= y <= height


@pytest.mark.parametrize("given", [{"seconds": 0, "queues": [], "histogram": []}, {"seconds": 1}, {"seconds": 500}])
def test_charts_of_zero_one_and_many_seconds_are_drawn(given: dict[str, Any]) -> None:
    assert pictures(page(verdict(), findings(**given)))


def test_violations_are_first_escaped_and_limited() -> None:
    violations = [{"kind": "lost", "what": f"key <{number}>", "queue": None, "offset": None} for number in range(60)]
    text = page(verdict(clean=False, lost=60), findings(violations=violations))
    assert '<div class="verdict broken">60 lost</div>' in text
    assert "key &lt;49&gt;" in text
    assert "key &lt;50&gt;" not in text
    assert "and 10 more in violations/" in text


def test_repeats_in_another_queue_have_their_own_row() -> None:
    text = page(verdict(clean=False, repeated=5, repeatedElsewhere=2), findings())
    assert '<div class="verdict broken">5 repeated</div>' in text
    assert '<tr><td class="n">2</td><td>of the repeats in another queue than the first</td></tr>' in text


def test_each_violation_has_its_queue_and_offset() -> None:
    places = [(1, 7_000), (None, None), (5, 3)]
    violations = [{"kind": "corrupt", "what": "x", "queue": queue, "offset": offset} for queue, offset in places]
    text = page(verdict(clean=False, corrupt=3), findings(violations=violations))
    rows = text.partition("<h2>Violations</h2>")[2].partition("</table>")[0].split("<tr>")[2:]
    assert rows == [
        f"<td>corrupt</td><td>{queue}</td><td class=n>{offset}</td><td>x</td></tr>"
        for queue, offset in (("b:0", "7,000"), ("", ""), ("5", "3"))
    ]


def test_without_a_rate_there_is_no_latency_chart() -> None:
    text = page(verdict(latencyMs={"dueToStored": None, "storedToRead": None}), findings(histogram=[]))
    assert len(pictures(text)) == 2
    assert "from due to stored" not in text


def test_numbers_are_abbreviated_and_axes_rounded() -> None:
    assert [nice(value) for value in (0, 1, 3, 15, 41, 900, 8_001)] == [1, 1, 4, 20, 80, 1_000, 10_000]
    assert [short(value) for value in (0, 7.5, 1_000, 2_500_000)] == ["0", "7.5", "1k", "2.5M"]
    assert [time_of(ms) for ms in (0.1, 31.6228, 1_000, 5_623)] == ["0.1 ms", "31.6 ms", "1 s", "5.62 s"]
