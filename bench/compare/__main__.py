"""The command: `./scripts/compare`."""

import argparse
import contextlib
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from compare import chart, report
from compare.children import ChildError, adopt_orphans, end_orphans
from compare.facts import facts
from compare.install import install
from compare.plan import ROUNDS, ROW_OF, ROWS, SIZES, Row, check_sizes, chosen, measurements
from compare.runner import Runner
from compare.systems.all import BY_NAME, SYSTEMS
from compare.systems.base import System
from lockstep.protocol.errors import ConfigError

SIGNALS = (signal.SIGINT, signal.SIGTERM)
IDLE_S = 3.0
START_QUIET_S = 20.0
"""A JVM compiles for a while after its first work."""


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    try:
        systems = {name: BY_NAME[name] for name in chosen("--systems", options.systems or ",".join(SYSTEMS), list(BY_NAME))}
        rows = [ROW_OF[name] for name in chosen("--works", options.works, list(ROW_OF))]
        sizes = check_sizes(options.sizes or SIZES)
        if options.markdown:
            report.check_markers(Path(options.markdown))
        if options.install:
            install(systems.values())
        return compare(systems, rows, sizes, options)
    except ConfigError as error:
        say(str(error))
        return 2
    except KeyboardInterrupt:
        say("interrupted: the servers are stopped, and nothing was written")
        return 130


def compare(systems: Mapping[str, System], rows: Sequence[Row], sizes: Sequence[int], options: argparse.Namespace) -> int:
    present = {name: system for name, system in systems.items() if is_present(system)}
    if not present:
        say("no system is left to measure")
        return 1
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-compare-", ignore_cleanup_errors=True) as folder,
        running(present, Path(folder)) as run,
    ):
        described = facts(list(run.systems.values()))
        results, failures, idle = measure(run, rows, sizes, options)
        if not results:
            say("nothing was measured")
            return 1
        memory = {
            name: {"start": asdict(run.servers[system.server.name].at_start), "end": asdict(run.servers[system.server.name].now)}
            for name, system in run.systems.items()
        }
        found: dict[str, Any] = {
            **described,
            "rounds": options.rounds,
            "scale": options.scale,
            "systems": {name: system.label for name, system in run.systems.items()},
            "same": {name: dict(system.same) for name, system in run.systems.items()},
            "language": {name: system.language for name, system in run.systems.items()},
            "idle_cpu": {name: idle[system.server.name] for name, system in run.systems.items()},
            "memory": memory,
            "measurements": results,
            "failures": failures,
        }
    write(found, options)
    return 1 if failures or len(run.systems) < len(present) else 0


def is_present(system: System) -> bool:
    """Return whether everything that the system needs is installed; if not, say what is missing."""
    for need in system.missing:
        say(f"{system.name} is skipped: there is no {need.what}; install it with: {need.command}")
    return not system.missing


@contextlib.contextmanager
def running(systems: Mapping[str, System], folder: Path) -> Iterator[Runner]:
    """Run the servers inside the block. A system whose server does not start is left out, with a message."""
    adopt_orphans()
    before = {number: signal.signal(number, interrupt) for number in SIGNALS}
    run = Runner(dict(systems), folder)
    started: dict[str, System] = {}
    try:
        for server in dict.fromkeys(system.server for system in systems.values()):
            users = {name: system for name, system in systems.items() if system.server is server}
            say(f"starting {server.name} …")
            try:
                run.start(server)
                started |= users
            except ChildError as error:
                say(f"{', '.join(users)} is skipped: {error}")
        run.systems = {name: system for name, system in systems.items() if name in started}
        yield run
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not leave processes behind
        run.end()
        end_orphans()
        for number, handler in before.items():
            signal.signal(number, handler)


def measure(
    run: Runner, rows: Sequence[Row], sizes: Sequence[int], options: argparse.Namespace
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, float]]:
    """Return all measurements, those that failed, and the part of a core that each server uses while it is idle."""
    results: list[dict[str, Any]] = []
    failures: list[dict[str, Any]] = []
    subjects = [system.subject for system in run.systems.values()]
    plan = list(measurements(subjects, rows, sizes, options.rounds, options.scale))
    broken: set[tuple[str, int]] = set()
    for system in run.systems.values():
        for size in sizes:
            works = {each.work for each in plan if each.system == system.name}
            say(f"filling a topic of {system.name} with bodies of {size} bytes …")
            try:
                run.fill(system, sorted(works), size, options.scale)
            except ChildError as error:
                say(f"{system.name} could not fill a topic: {error}")
                broken.add((system.name, size))
    run.wait_until_quiet(START_QUIET_S)
    idle = run.idle_cpu(IDLE_S)
    for number, each in enumerate(plan, 1):
        if (each.system, each.body_bytes) in broken and each.work not in ("one", "tasks", "pipeline", "batch", "e2e"):
            continue
        try:
            figure = run.run(each)
        except ChildError as error:
            say(f"round {each.round}: {each.system} {each.work}, {each.body_bytes} bytes failed: {error}")
            failures.append({**asdict(each), "error": str(error)})
            continue
        results.append({**asdict(each), **figure})
        say(f"{number}/{len(plan)}  round {each.round}  {each.work:24} {each.body_bytes:5} B  {each.system:10} {report.brief(figure)}")
    return results, failures, idle


def write(found: dict[str, Any], options: argparse.Namespace) -> None:
    """Write the files that were asked for, and print the table."""
    table = report.markdown(found)
    if options.json:
        Path(options.json).write_text(report.to_json(found))
    if options.svg:
        Path(options.svg).write_text(chart.svg(found))
    if options.markdown:
        report.write_between_markers(Path(options.markdown), table)
    print(table)


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="./scripts/compare", description="Measure the same work through lockstep and other systems.")
    options.add_argument("--install", action="store_true", help="first install what is missing of the systems, as far as that is possible")
    options.add_argument("--systems", metavar="A,B", help=f"measure only these of {', '.join(BY_NAME)} (default: all but the last)")
    options.add_argument("--works", metavar="A,B", help=f"measure only these of {', '.join(row.name for row in ROWS)}")
    options.add_argument("--sizes", type=numbers, metavar="A,B", help="sizes of message bodies in bytes (default: 100,1024)")
    options.add_argument("--rounds", type=positive, default=ROUNDS, help=f"how often everything is measured (default: {ROUNDS})")
    options.add_argument("--scale", type=factor, default=1.0, help="multiply the numbers of messages by this factor (default: 1)")
    options.add_argument("--json", metavar="FILE", help="write every measurement to this file")
    options.add_argument("--svg", metavar="FILE", help="write a picture to this file")
    options.add_argument("--markdown", metavar="FILE", help="write the table to this file, between its markers")
    return options


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part.strip()]


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def factor(text: str) -> float:
    number = float(text)
    if not 0 < number <= 1_000:
        raise ValueError
    return number


if __name__ == "__main__":
    sys.exit(main())
