"""Many universes, one after the other, on several cores: scripts/sweep, or `python -m sweep` with tests/ on the path.

    --seeds 1-1000            these seeds, over all worlds
    --hours 8                 so many hours of this machine's time, from --first on
    --world power             one world only
    --seed 17 --world net -v  one universe again, with its story: every event and log line in order
    --mutants                 every rule of ours switched off, one after the other: how many seeds until it is caught
    --json FILE               the figures as JSON
Exit code 1: a violation, a mutant that lives, or over ≥ 1,000 seeds of all worlds a place that was never reached.
"""

import argparse
import json
import signal
import sys
from itertools import count
from multiprocessing import active_children
from pathlib import Path

from sweep.mutants import MUTANTS
from sweep.seeds import WORKERS, mutants, now_s, replay, sweep
from sweep.worlds import WORLDS


def _seeds(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/sweep", description="Simulated clusters under seeded faults, checked.")
    parser.add_argument("--seeds", type=_seeds, metavar="A-B", help="seeds to run, default 1-100")
    parser.add_argument("--hours", type=float, metavar="N", help="run as many seeds as begin within N hours")
    parser.add_argument("--first", type=int, default=1, metavar="SEED", help="with --hours: where to begin")
    parser.add_argument("--world", choices=list(WORLDS), help="one world only; default: each seed has its own")
    parser.add_argument("--seed", type=int, metavar="S", help="one universe again")
    parser.add_argument("-v", "--verbose", action="store_true", help="with --seed: the whole story")
    parser.add_argument("--storm", type=float, metavar="SECONDS", help="with --seed: how long faults come, if not as drawn")
    parser.add_argument("--workers", type=int, default=WORKERS, metavar="N", help="processes, default 2")
    parser.add_argument("--mutants", nargs="*", metavar="NAME", help="switch each rule off (or these) and see that it is noticed")
    parser.add_argument("--seeds-max", type=int, default=40, metavar="N", help="with --mutants: seeds to try for each, default 40")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """The exit code."""
    asked = _arguments(arguments)

    def tell(line: str) -> None:
        print(line, flush=True)

    if asked.seed is not None:
        return 0 if replay(asked.seed, asked.world, storm_s=asked.storm, verbose=asked.verbose, tell=tell) else 1
    if asked.mutants is not None:
        return 1 if mutants(asked.mutants or list(MUTANTS), asked.seeds_max, workers=asked.workers, tell=tell) else 0
    first, last = asked.seeds or ((1, 100) if asked.hours is None else (asked.first, sys.maxsize))
    seeds = iter(range(first, last + 1)) if last < sys.maxsize else count(first)
    until = None if asked.hours is None else now_s() + asked.hours * 3600
    total = sweep(seeds, asked.world, workers=asked.workers, until=until, tell=tell)
    for line in total.lines():
        tell(line)
    if asked.json:
        Path(asked.json).write_text(json.dumps(total.plain(), indent=1))  # world: the user's file
    return 1 if total.failed else 0


def _terminated(number: int, _: object) -> None:
    """SIGTERM reaches this process only: its workers would wait for ever for the next seed."""
    for worker in active_children():
        worker.kill()
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminated)
    sys.exit(main())
