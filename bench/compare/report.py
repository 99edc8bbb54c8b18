"""Medians, ratios, the table, the JSON. Pure, except that `write_between_markers` writes a file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from compare.plan import ROWS, Row
from lockstep.protocol.errors import ConfigError

BEGIN, END = "<!-- compare: begin -->", "<!-- compare: end -->"
LOCKSTEP = "lockstep"


@dataclass(frozen=True, slots=True)
class Cell:
    """The figures of one system for one row and size, over all rounds: rates in messages/s, latencies and CPU times in µs."""

    middle: float
    low: float
    high: float
    client_cpu_us: float
    server_cpu_us: float
    p99_us: float | None
    """The median of the rounds' 99th percentiles; None for a rate."""


@dataclass(frozen=True, slots=True)
class Results:
    """All measurements of a run, by what they measure."""

    systems: tuple[str, ...]
    label: Mapping[str, str]
    sizes: tuple[int, ...]
    rows: tuple[Row, ...]
    language: Mapping[str, str]
    """What each client library is mainly written in."""
    cells: Mapping[tuple[str, int, str], Cell]
    """By name of the row, size and system."""

    def best_peer(self, row: Row, size: int, *languages: str) -> str | None:
        """Return the client other than lockstep's that is best in this row, of those in these languages."""
        written = [name for name in self.systems if name != LOCKSTEP and self.language[name] in languages]
        peers = [name for name in written if (row.name, size, name) in self.cells]
        return max(peers, key=lambda name: goodness(row, self.cells[row.name, size, name])) if peers else None

    def ratio(self, row: Row, size: int, system: str) -> float | None:
        """Return how many times as good lockstep is as the system: above 1 it has the higher rate, or the lower latency."""
        own, other = self.cells.get((row.name, size, LOCKSTEP)), self.cells.get((row.name, size, system))
        return None if own is None or other is None else goodness(row, own) / goodness(row, other)


def goodness(row: Row, cell: Cell) -> float:
    """Return a number that is higher when the figure is better."""
    return cell.middle if row.kind == "rate" else 1 / cell.middle


def results_of(found: Mapping[str, Any]) -> Results:
    """Return the measurements of a run by row, size and system."""
    systems = tuple(found["systems"])
    groups: dict[tuple[str, int, str], list[Mapping[str, Any]]] = {}
    for each in found["measurements"]:
        groups.setdefault((each["work"], each["body_bytes"], each["system"]), []).append(each)
    sizes = tuple(sorted({each["body_bytes"] for each in found["measurements"]}))
    cells = {}
    for row in ROWS:
        for system in systems:
            work = row.name if system == LOCKSTEP else row.peers
            work = found["same"].get(system, {}).get(work, work)
            for size in sizes:
                if group := groups.get((work, size, system)):
                    cells[row.name, size, system] = cell_of(row, group)
    # A row that only the others have belongs to a work that was not chosen, unless lockstep was not measured at all.
    deciding = (LOCKSTEP,) if LOCKSTEP in systems else systems
    rows = tuple(row for row in ROWS if any((row.name, size, name) in cells for size in sizes for name in deciding))
    return Results(systems, found["systems"], sizes, rows, found["language"], cells)


def cell_of(row: Row, group: Sequence[Mapping[str, Any]]) -> Cell:
    """Return the median and the extremes of some measurements of the same thing."""
    latency = row.kind == "latency"
    values = [each["p50_us"] if latency else each["messages"] / each["elapsed_us"] * 1_000_000 for each in group]
    return Cell(
        middle=median(values),
        low=min(values),
        high=max(values),
        client_cpu_us=median(each["client_cpu_us"] / each["messages"] for each in group),
        server_cpu_us=median(each["server_cpu_us"] / each["messages"] for each in group),
        p99_us=median(each["p99_us"] for each in group) if latency else None,
    )


# ---------------------------------------------------------------------------------------------------------------------- text


def brief(figure: Mapping[str, Any]) -> str:
    """Return a figure in a few words, for the progress."""
    if figure.get("p50_us") is not None:
        return f"p50 {figure['p50_us']:,.0f} µs, p99 {figure['p99_us']:,.0f} µs"
    per_message = (figure["client_cpu_us"] / figure["messages"], figure["server_cpu_us"] / figure["messages"])
    rate = figure["messages"] / figure["elapsed_us"] * 1_000_000
    return f"{rate:,.0f}/s in {figure['elapsed_us'] / 1_000_000:.1f} s, {per_message[0]:.1f} + {per_message[1]:.1f} µs of CPU"


def markdown(found: Mapping[str, Any]) -> str:
    """Return the tables of a run."""
    results = results_of(found)
    what = "messages/s, or p50 / p99 in µs; median (lowest–highest)"
    rates = [f"**Bodies of {size:,} bytes**: {what}\n\n{main_table(results, size)}" for size in results.sizes]
    what = "µs of the client + µs of the server"
    cpu = [f"**CPU time per message, bodies of {size:,} bytes**: {what}\n\n{cpu_table(results, size)}" for size in results.sizes]
    parts = [machine(found), *rates, *cpu]
    parts.append(f"**The systems**\n\n{system_table(found)}")
    if found["failures"]:
        failed = sorted({f"{found['systems'][each['system']]} {each['work']} ({each['body_bytes']} bytes)" for each in found["failures"]})
        parts.append(f"Failed in at least one round: {', '.join(failed)}.")
    return "\n\n".join(parts)


def machine(found: Mapping[str, Any]) -> str:
    return (
        f"{found['cpu']}, {found['cores']} cores, {found['memory_gib']} GiB, Linux {found['kernel']}, Python {found['python']}, "
        f"commit {found['commit']}; rounds: {found['rounds']}, messages × {found['scale']:g}."
    )


def main_table(results: Results, size: int) -> str:
    """Return the table of rates and latencies, with lockstep's ratio to each."""
    others = [name for name in results.systems if name != LOCKSTEP]
    lines = []
    for row in results.rows:
        cells = [row.title, shown(results.cells.get((row.name, size, LOCKSTEP))), best(results, row, size)]
        for name in others:
            ratio = results.ratio(row, size, name)
            cells.append(shown(results.cells.get((row.name, size, name))) + ("" if ratio is None else f"<br>×{ratio:.2f}"))
        lines.append(cells)
    return table(["work", LOCKSTEP, "lockstep : best other in Python", *(results.label[name] for name in others)], lines)


def best(results: Results, row: Row, size: int) -> str:
    """Return the ratio to the best client in Python, and to the library in C that is used from Python if that is better."""
    python, with_c = results.best_peer(row, size, "Python"), results.best_peer(row, size, "Python", "C")
    ratios = [(peer, results.ratio(row, size, peer)) for peer in dict.fromkeys([python, with_c]) if peer is not None]
    return "<br>".join(f"**×{ratio:.2f}** ({results.label[peer]})" for peer, ratio in ratios if ratio is not None) or "–"


def shown(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    if cell.p99_us is not None:
        return f"{cell.middle:,.0f} / {cell.p99_us:,.0f}<br>({cell.low:,.0f}–{cell.high:,.0f})"
    return f"{thousands(cell.middle)}<br>({thousands(cell.low)}–{thousands(cell.high)})"


def thousands(rate: float) -> str:
    """Return a rate with three digits."""
    return f"{rate / 1000:,.0f} k" if rate >= 100_000 else f"{rate / 1000:,.1f} k" if rate >= 10_000 else f"{rate:,.0f}"


def cpu_table(results: Results, size: int) -> str:
    lines = [[row.title, *(cpu_of(results.cells.get((row.name, size, name))) for name in results.systems)] for row in results.rows]
    return table(["work", *(results.label[name] for name in results.systems)], lines)


def cpu_of(cell: Cell | None) -> str:
    return "–" if cell is None else f"{number(cell.client_cpu_us)} + {number(cell.server_cpu_us)}"


def number(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def system_table(found: Mapping[str, Any]) -> str:
    """Return versions, durability, memory and idle CPU of each system."""
    lines = []
    for name, label in found["systems"].items():
        idle = f"{found['idle_cpu'][name] * 100:.0f} %"
        lines.append([label, found["versions"][name], found["durability"][name], *memory_of(found["memory"][name]), idle])
    heads = ["system", "versions", "what a confirmation means", "memory at start, MiB", "after the run, MiB (of it anonymous)"]
    return table([*heads, "CPU while idle, of one core"], lines)


def memory_of(memory: Mapping[str, Mapping[str, int]]) -> tuple[str, str]:
    start, end = memory["start"], memory["end"]
    return f"{start['resident'] >> 20:,}", f"{end['resident'] >> 20:,} ({end['anonymous'] >> 20:,})"


def table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def to_json(found: Mapping[str, Any]) -> str:
    """Return a run as JSON, with one measurement on each line."""
    parts = []
    for key, value in found.items():
        if isinstance(value, list) and value:
            text = "[\n  " + ",\n  ".join(json.dumps(each, ensure_ascii=False) for each in value) + "\n ]"
        else:
            text = json.dumps(value, ensure_ascii=False)
        parts.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def between_markers(text: str, generated: str) -> str | None:
    """Return the text with what is between its markers replaced; None if it does not have both."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{BEGIN}\n{generated}\n{END}{after}" if begin and end else None


def check_markers(path: Path) -> None:
    """Raise ConfigError unless the file has both markers."""
    if not path.is_file() or between_markers(path.read_text(), "") is None:
        raise ConfigError(f"--markdown {path}: expected a file with the lines {BEGIN} and {END}, between which the table is written")


def write_between_markers(path: Path, generated: str) -> None:
    """Replace what is between the markers of a file."""
    check_markers(path)
    path.write_text(between_markers(path.read_text(), generated) or "")
