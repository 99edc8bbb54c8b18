"""Many universes, one after the other, on several cores: scripts/sweep, or `python -m sweep` with tests/ on the path.

    --seeds 1-1000            these seeds, over all worlds
    --hours 8                 as many hours of this machine's time, from --first on
    --world power             one world only
    --seed 17 --world net -v  run one universe again, with every event and log line in order
    --seed 17 --world net --svg FILE
                              run it again, and draw who held which queue when, under which epoch
    --mutants                 every rule switched off, one after the other, and the seeds until a checker detects it
    --json FILE               the figures as JSON
Exit code 1: a violation, a mutant that is not detected, or a place that ≥ 1,000 seeds of all worlds never reached.
"""

import argparse
import json
import signal
import sys
from itertools import count
from multiprocessing import active_children
from pathlib import Path

from sweep.mutants import MUTANTS
from sweep.seeds import WORKERS, now_s, replay, run_mutants, run_sweep
from sweep.worlds import WORLDS


def _seeds(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/sweep", description="Simulated clusters under seeded faults, checked.")
    parser.add_argument("--seeds", type=_seeds, metavar="A-B", help="seeds to run, default 1-100")
    parser.add_argument("--hours", type=float, metavar="N", help="run the seeds that begin within N hours")
    parser.add_argument("--first", type=int, default=1, metavar="SEED", help="with --hours: the first seed")
    parser.add_argument("--world", choices=list(WORLDS), help="one world only; default: drawn for each seed")
    parser.add_argument("--seed", type=int, metavar="S", help="run one universe again")
    parser.add_argument("-v", "--verbose", action="store_true", help="with --seed: print every event and log line")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="with --seed: draw who held which queue when; one picture for each group")
    parser.add_argument("--storm", type=float, metavar="SECONDS", help="with --seed: the duration of the faults; default: drawn")
    parser.add_argument("--workers", type=int, default=WORKERS, metavar="N", help="processes, default 2")
    parser.add_argument(
        "--mutants", nargs="*", metavar="NAME", help="switch each rule off (or only these), and report whether it is detected"
    )
    parser.add_argument("--seeds-max", type=int, default=40, metavar="N", help="with --mutants: the limit of seeds for each, default 40")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    options = parser.parse_args(arguments)
    if options.svg is not None and options.seed is None:
        parser.error("--svg draws one universe: it requires --seed")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Return its exit code."""
    options = _arguments(arguments)

    def print_line(line: str) -> None:
        print(line, flush=True)

    if options.seed is not None:
        one = options.seed, options.world
        lawful = replay(*one, storm_s=options.storm, verbose=options.verbose, svg=options.svg, print_line=print_line)
        return 0 if lawful else 1
    if options.mutants is not None:
        return 1 if run_mutants(options.mutants or list(MUTANTS), options.seeds_max, workers=options.workers, print_line=print_line) else 0
    first, last = options.seeds or ((1, 100) if options.hours is None else (options.first, sys.maxsize))
    seeds = iter(range(first, last + 1)) if last < sys.maxsize else count(first)
    until = None if options.hours is None else now_s() + options.hours * 3600
    total = run_sweep(seeds, options.world, workers=options.workers, until=until, print_line=print_line)
    for line in total.lines():
        print_line(line)
    if options.json:
        Path(options.json).write_text(json.dumps(total.plain(), indent=1))  # world: the user's file
    return 1 if total.failed else 0


def _terminated(number: int, _: object) -> None:
    """End the workers on SIGTERM, which reaches this process only: they would wait for the next seed forever."""
    for worker in active_children():
        worker.kill()
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminated)
    sys.exit(main())
