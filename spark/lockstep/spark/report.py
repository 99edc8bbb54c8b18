"""Render the verdict as one HTML file with SVG charts and without scripts. Pure."""

from collections.abc import Sequence
from html import escape
from math import ceil, log10
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.spark.load.verifying import Findings

WIDTH, HEIGHT = 560, 220
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 14, 34
COLOURS = ("#2563eb", "#dc2626", "#7c3aed")
ROWS_MAX = 50

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:1180px;padding:0 1rem;color:#1f2937}
h1{font-size:1.35rem;margin:0 0 .2rem}h2{font-size:1rem;margin:0 0 .4rem}
.verdict{padding:.7rem 1rem;border-radius:6px;font-weight:600;margin:1rem 0}
.clean{background:#dcfce7;color:#14532d}.broken{background:#fee2e2;color:#7f1d1d}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(500px,1fr));gap:1.4rem;margin:1.4rem 0}
figure{margin:0}svg{width:100%;height:auto;background:#f9fafb;border-radius:6px}
svg text{font-size:11px;fill:#4b5563}
table{border-collapse:collapse}td,th{padding:.2rem .8rem .2rem 0;text-align:left;border-bottom:1px solid #e5e7eb;
font-weight:normal}
th{color:#6b7280}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.key{display:inline-block;width:10px;height:10px;margin:0 4px 0 12px}
"""
COUNTS = (
    ("expected", "rows expected, by the manifest"),
    ("found", "found"),
    ("lost", "lost"),
    ("repeated", "repeated"),
    ("outOfOrder", "out of order within their key"),
    ("misplaced", "in another queue than their key's"),
    ("unexpected", "that the run did not send"),
    ("corrupt", "corrupt"),
    ("repeatedElsewhere", "of the repeats in another queue than the first"),
    ("foreign", "of other runs (not checked)"),
    ("missingOffsets", "offsets since the run began that could not be read"),
)


def page(verdict: dict[str, Any], findings: "Findings") -> str:
    """Return the report."""
    clean = verdict["clean"]
    kinds = [f"{verdict[name]:,} {label}" for name, label in COUNTS[2:8] if verdict[name]]
    line = "Clean: nothing lost, repeated, out of order or corrupt." if clean and not kinds else ", ".join(kinds)
    stored = with_pauses([(row["second"], row["rows"]) for row in findings.seconds])
    charts = [
        chart("Stored, rows per second", lines([stored], "s since the first row", "")),
        chart("Rows in each queue", bars(findings.queues)),
    ]
    if findings.histogram:
        late = [[(row["second"], row[name]) for row in findings.seconds] for name in ("p50", "p99", "max")]
        charts += [
            chart("From due to stored, ms, by second", lines(late, "s since the first row", "ms"), legend=("p50", "p99", "max")),
            chart("From due to stored, how many took up to …", bars([(time_of(ms), count) for ms, count in findings.histogram])),
        ]
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f"<title>lockstep run {escape(verdict['runId'])}</title><style>{STYLE}</style></head><body>",
            f"<h1>Run {escape(verdict['runId'])}, topic {escape(verdict['topic'])}</h1>",
            f'<div class="verdict {"clean" if clean else "broken"}">{escape(line)}</div>',
            "<table>",
            *(f'<tr><td class="n">{verdict[name]:,}</td><td>{escape(label)}</td></tr>' for name, label in COUNTS),
            "</table>",
            latency_table(verdict["latencyMs"]),
            f'<div class="charts">{"".join(charts)}</div>',
            violations_table(findings.violations, [name for name, _ in findings.queues]),
            "</body></html>\n",
        )
    )


def latency_table(latency: dict[str, dict[str, float] | None]) -> str:
    named = [
        (label, latency.get(name))
        for name, label in (("dueToStored", "from due to stored, ms"), ("storedToRead", "from stored to landed, ms"))
    ]
    rows = [(label, figures) for label, figures in named if figures]
    if not rows:
        return ""
    head = "".join(f"<th class=n>{escape(name)}</th>" for name in rows[0][1])
    body = "".join(
        f"<tr><td>{label}</td>{''.join(f'<td class=n>{value:,}</td>' for value in figures.values())}</tr>" for label, figures in rows
    )
    return f"<p></p><table><tr><th></th>{head}</tr>{body}</table>"


def violations_table(violations: Sequence[dict[str, Any]], queues: Sequence[str]) -> str:
    """Return a table of the first violations with queue and offset, which lost rows don't have."""
    if not violations:
        return ""

    def place(one: dict[str, Any]) -> str:
        number, offset = one["queue"], one["offset"]
        name = "" if number is None else queues[number] if number < len(queues) else str(number)
        return f"<td>{escape(name)}</td><td class=n>{'' if offset is None else f'{offset:,}'}</td>"

    cells = (f"<td>{escape(one['kind'])}</td>{place(one)}<td>{escape(one['what'])}</td>" for one in violations[:ROWS_MAX])
    rows = "<tr><th></th><th>queue</th><th class=n>offset</th><th></th></tr>" + "".join(f"<tr>{cell}</tr>" for cell in cells)
    more = f"<p>and {len(violations) - ROWS_MAX} more in violations/</p>" if len(violations) > ROWS_MAX else ""
    return f"<h2>Violations</h2><table>{rows}</table>{more}"


def chart(title: str, svg: str, legend: Sequence[str] = ()) -> str:
    keys = "".join(f'<span class="key" style="background:{colour}"></span>{name}' for name, colour in zip(legend, COLOURS, strict=False))
    return f"<figure><h2>{escape(title)}{keys}</h2>{svg}</figure>"


def with_pauses(seconds: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Add zeros for the first and the last second of each pause: else a line would be drawn across it."""
    made: list[tuple[int, float]] = []
    for second, rows in seconds:
        if made and second > made[-1][0] + 1:
            made += [(made[-1][0] + 1, 0), (second - 1, 0)]
        made.append((second, rows))
    return made


def lines(series: Sequence[Sequence[tuple[float, float]]], below: str, unit: str) -> str:
    """Return one polyline per series over the same axes, which begin at 0."""
    points = [point for one in series for point in one]
    if not points:
        return empty()
    x_max, y_max = max(max(x for x, _ in points), 1), nice(max(y for _, y in points))

    def at(x: float, y: float) -> str:
        return f"{LEFT + (WIDTH - LEFT - RIGHT) * x / x_max:.1f},{_y(y, y_max):.1f}"

    drawn = []
    for one, colour in zip(series, COLOURS, strict=False):
        path = " ".join(at(x, max(y, 0)) for x, y in one)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        if len(one) <= 60:
            drawn += [f'<circle cx="{at(x, max(y, 0)).replace(",", chr(34) + " cy=" + chr(34))}" r="2" fill="{colour}"/>' for x, y in one]
    ticks = [
        f'<text x="{LEFT}" y="{HEIGHT - 18}">0</text>',
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 18}" text-anchor="end">{x_max:g}</text>',
    ]
    ticks.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 4}" text-anchor="middle">{escape(below)}</text>')
    return framed([*grid(y_max, unit), *drawn, *ticks])


def bars(values: Sequence[tuple[str, float]]) -> str:
    """Return a bar chart, with as many names below the bars as fit."""
    if not values:
        return empty()
    y_max = nice(max(value for _, value in values))
    step = (WIDTH - LEFT - RIGHT) / len(values)
    drawn = []
    every = max(1, ceil(len(values) * 62 / (WIDTH - LEFT - RIGHT)))
    for index, (name, value) in enumerate(values):
        x, y = LEFT + index * step, _y(value, y_max)
        drawn.append(
            f'<rect x="{x + step * 0.12:.1f}" y="{y:.1f}" width="{step * 0.76:.1f}" height="{HEIGHT - BOTTOM - y:.1f}" fill="{COLOURS[0]}">'
            f"<title>{escape(name)}: {value:,}</title></rect>"
        )
        if index % every == 0:
            drawn.append(f'<text x="{x + step / 2:.1f}" y="{HEIGHT - 18}" text-anchor="middle">{escape(name)}</text>')
    return framed([*grid(y_max, ""), *drawn])


def grid(y_max: float, unit: str) -> list[str]:
    parts = []
    for quarter in range(5):
        value = y_max * quarter / 4
        y = _y(value, y_max)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e5e7eb"/>')
        parts.append(
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{short(value)}{" " + unit if unit and quarter else ""}</text>'
        )
    return parts


def framed(parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" xmlns="http://www.w3.org/2000/svg" role="img">{"".join(parts)}</svg>'


def empty() -> str:
    return framed([f'<text x="{WIDTH / 2}" y="{HEIGHT / 2}" text-anchor="middle">no rows</text>'])


def nice(value: float) -> float:
    """Round up to 1, 2, 4 or 8 × 10ⁿ, so that quarters are round numbers."""
    if value <= 0:
        return 1
    scale: float = 10.0 ** int(log10(value) // 1)
    return next(step * scale for step in (1, 2, 4, 8, 10) if step * scale >= value)


def time_of(ms: float) -> str:
    return f"{ms / 1_000:.3g} s" if ms >= 1_000 else f"{ms:.3g} ms"


def short(value: float) -> str:
    for size, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{name}"
    return f"{value:g}"


def _y(value: float, y_max: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / y_max)
