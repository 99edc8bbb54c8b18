"""The comparison reports medians, extremes and ratios, and draws every system."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from compare import chart
from compare.plan import ROW_OF
from compare.report import (
    BEGIN,
    END,
    LOCKSTEP,
    best,
    between_markers,
    check_markers,
    markdown,
    results_of,
    thousands,
    to_json,
    write_between_markers,
)
from lockstep.protocol.errors import ConfigError

LABELS = {"lockstep": "lockstep", "redis": "Redis Streams", "confluent": "Kafka, confluent", "rocketmq": "RocketMQ, Java"}


def measured(system: str, work: str, rate: int, *, p50: float | None = None, body_bytes: int = 100) -> dict[str, Any]:
    return {
        "round": 1,
        "system": system,
        "work": work,
        "body_bytes": body_bytes,
        "count": rate,
        "messages": rate,
        "elapsed_us": 1_000_000,
        "client_cpu_us": 2 * rate,
        "server_cpu_us": 3 * rate,
        "p50_us": p50,
        "p99_us": None if p50 is None else p50 * 3,
    }


def found(*measurements: dict[str, Any], failures: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    memory = {"start": {"resident": 10 << 20, "anonymous": 5 << 20}, "end": {"resident": 30 << 20, "anonymous": 20 << 20}}
    return {
        "cpu": "A processor <fast>",
        "cores": 2,
        "memory_gib": 4,
        "kernel": "6.1",
        "python": "3.12.1",
        "commit": "abc",
        "rounds": 3,
        "scale": 1.0,
        "systems": LABELS,
        "same": {"redis": {"batch": "pipeline"}, "confluent": {"batch": "pipeline"}},
        "language": {"lockstep": "Python", "redis": "Python", "confluent": "C", "rocketmq": "Java"},
        "versions": dict.fromkeys(LABELS, "1.2.3"),
        "durability": dict.fromkeys(LABELS, "cached"),
        "idle_cpu": dict.fromkeys(LABELS, 0.085),
        "memory": dict.fromkeys(LABELS, memory),
        "measurements": list(measurements),
        "failures": list(failures),
    }


RUN = found(
    *(measured("lockstep", "tasks", rate) for rate in (90_000, 120_000, 100_000)),
    *(measured("redis", "tasks", rate) for rate in (20_000, 25_000)),
    measured("rocketmq", "tasks", 200_000),
    measured("lockstep", "batch", 300_000),
    measured("redis", "pipeline", 100_000),
    measured("confluent", "pipeline", 600_000),
    measured("lockstep", "one", 4_000, p50=250.0),
    measured("redis", "one", 10_000, p50=100.0),
)


def test_cell_has_the_median_and_the_extremes_of_the_rounds() -> None:
    cell = results_of(RUN).cells["tasks", 100, LOCKSTEP]
    assert (cell.middle, cell.low, cell.high, cell.client_cpu_us, cell.server_cpu_us) == (100_000, 90_000, 120_000, 2, 3)


def test_ratio_above_one_means_the_higher_rate_or_the_lower_latency() -> None:
    results = results_of(RUN)
    assert results.ratio(ROW_OF["tasks"], 100, "redis") == pytest.approx(100_000 / 22_500)
    assert results.ratio(ROW_OF["one"], 100, "redis") == pytest.approx(100 / 250)
    assert results.ratio(ROW_OF["tasks"], 100, "confluent") is None


def test_best_other_in_python_is_named_and_a_better_one_in_c_as_well() -> None:
    results = results_of(RUN)
    assert best(results, ROW_OF["tasks"], 100) == "**×4.44** (Redis Streams)", "the client in Java does not count"
    assert best(results, ROW_OF["batch"], 100) == "**×3.00** (Redis Streams)<br>**×0.50** (Kafka, confluent)"
    assert best(results, ROW_OF["ordered_one"], 100) == "–"


def test_table_has_a_row_for_each_measured_work_and_a_column_for_each_system() -> None:
    table = markdown(RUN)
    heads = next(line for line in table.splitlines() if line.startswith("| work"))
    assert all(label in heads for label in LABELS.values())
    (row,) = [line for line in table.splitlines() if line.startswith(f"| {ROW_OF['tasks'].title} ") and "k<br>" in line]
    assert "| 100 k<br>(90.0 k–120 k) |" in row
    assert "×0.50" in row, "lockstep has half the rate of the client in Java"
    assert ROW_OF["e2e"].title not in table, "a work that was not measured has no row"
    assert "Failed" not in table


def test_failed_measurements_are_named() -> None:
    failure = {"round": 2, "system": "redis", "work": "one", "body_bytes": 100, "count": 10, "error": "gone"}
    assert "Failed in at least one round: Redis Streams one (100 bytes)." in markdown(
        found(measured("lockstep", "one", 1, p50=1.0), failures=(failure,))
    )


@pytest.mark.parametrize(
    ("rate", "text"), [(9_876.4, "9,876"), (10_000, "10.0 k"), (99_949, "99.9 k"), (123_456, "123 k"), (2_345_678, "2,346 k")]
)
def test_rates_have_three_digits(rate: float, text: str) -> None:
    assert thousands(rate) == text


def test_generated_text_replaces_what_is_between_the_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_between_markers(page, "new")
    assert page.read_text() == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    assert between_markers("no markers", "new") is None
    with pytest.raises(ConfigError, match="expected a file with the lines"):
        check_markers(tmp_path / "missing.md")


def test_json_has_the_whole_run_with_one_measurement_on_each_line() -> None:
    text = to_json(RUN)
    assert json.loads(text) == RUN
    assert len([line for line in text.splitlines() if '"elapsed_us"' in line]) == len(RUN["measurements"])


def test_picture_is_xml_that_names_each_system_and_has_a_bar_for_each_figure() -> None:
    root = ElementTree.fromstring(chart.svg(RUN))
    texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert set(LABELS.values()) <= set(texts)
    assert any("A processor <fast>" in text for text in texts)
    bars = [element for element in root.iter("{http://www.w3.org/2000/svg}rect") if element.get("height") == str(chart.BAR)]
    assert len(bars) == 4 + 8, "those of the legend, and the figures"


def test_bars_of_a_panel_are_as_long_as_their_figures() -> None:
    (panel,) = [panel for panel in chart.panels_of(results_of(RUN)) if panel.title == chart.TITLES["tasks"][0]]
    drawn = "".join(chart.draw(panel, 0, 0, 1_000))
    widths = [float(element.get("width") or 0) for element in ElementTree.fromstring(f"<g>{drawn}</g>").iter("rect")]
    assert [width / widths[0] for width in widths] == pytest.approx([1.0, 0.225, 2.0], abs=0.01), "lockstep, Redis, RocketMQ"
