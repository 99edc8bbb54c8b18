"""Runs universes by their seeds: one, many on several cores, with a rule switched off, or one again with all its events."""

import gc
import os
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path

from lockstep.runtime.clock import Clock
from lockstep.testing.simulation import SimulationStuckError
from sweep.faults import every_fault
from sweep.mutants import MUTANTS, switched_off
from sweep.owners import pictures
from sweep.report import Summary, Total, crashed, summary, violation_lines
from sweep.run import Run, RunResult
from sweep.worlds import draw, world_of

WORKERS = 2
CLOCK = Clock()
"""The clock of this machine, which limits and measures a sweep."""
PROGRESS_S = 10.0


def now_s() -> float:
    return CLOCK.monotonic_ms() / 1000


def _cpu_s() -> float:
    used = os.times()
    return used.user + used.system


def run_one(seed: int, world: str | None, *, debug_log: bool = False, trace: bool = False, storm_s: float | None = None) -> RunResult:
    """Run one universe. The garbage collector is disabled meanwhile, which saves a fifth of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return Run(draw(seed, world, every_fault(), storm_s=storm_s), debug_log=debug_log, trace=trace).run()
    finally:
        gc.collect()
        if collects:
            gc.enable()


def run_summary(seed: int, world: str | None, mutant: str | None = None) -> Summary:
    """Run one universe, in a worker process."""
    began = _cpu_s()
    with switched_off(mutant):
        result = run_one(seed, world)
    return summary(result, _cpu_s() - began)


def catch(name: str, seeds_max: int) -> tuple[str, Summary | None, int]:
    """Run seed after seed with that rule switched off until a law is violated. Return (name, that universe, seeds tried)."""
    worlds = MUTANTS[name].worlds
    for tried in range(1, seeds_max + 1):
        try:
            one = run_summary(tried, worlds[(tried - 1) % len(worlds)], name)
        except (AssertionError, SimulationStuckError) as error:
            return name, crashed(tried, worlds[(tried - 1) % len(worlds)], repr(error)), tried
        if one.violations:
            return name, one, tried
    return name, None, seeds_max


def run_mutants(names: list[str], seeds_max: int, *, workers: int, print_line: Callable[[str], None]) -> list[str]:
    """Print a line for each rule that was switched off. Return the names of those whose absence was not detected. Those with an aimed test
    are only listed: tests/sim/test_mutants.py runs them.
    """
    lived = []
    aimed, swarmed = ([name for name in names if bool(MUTANTS[name].aimed) is one] for one in (True, False))
    print_line(f"{'rule switched off':44} {'seeds':>5}  detected by")
    for name in aimed:
        print_line(f"{name:44} {'aimed':>5}  {MUTANTS[name].aimed}")
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for name, one, tried in pool.map(catch, swarmed, [seeds_max] * len(swarmed)):
            if one is None:
                lived.append(name)
                print_line(f"{name:44} {tried:>5}  NOT DETECTED ({', '.join(MUTANTS[name].worlds)}): {MUTANTS[name].rule}")
            else:
                print_line(f"{name:44} {tried:>5}  {one.world} {one.seed}: {one.violations[0][:150]}")
    print_line(f"{len(swarmed) - len(lived)} of {len(swarmed)} detected")
    if aimed:
        print_line(f"{len(aimed)} more are detected by a unit test: LOCKSTEP_TEST_SLOW=1 ./scripts/test tests/sim/test_mutants.py")
    return lived


def run_sweep(seeds: Iterator[int], world: str | None, *, workers: int, until: float | None, print_line: Callable[[str], None]) -> Total:
    """Run all seeds, or as many as begin before `until` (seconds of the monotonic clock). A universe that raises has violated a law."""
    total, printed_at = Total(), now_s()
    running: dict[Future[Summary], int] = {}
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        left = True
        while left or running:
            while left and len(running) < 2 * workers:
                seed = next(seeds, None) if until is None or now_s() < until else None
                if seed is None:
                    left = False
                else:
                    running[pool.submit(run_summary, seed, world)] = seed
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=running.__getitem__):
                seed, error = running.pop(future), future.exception()
                one = future.result() if error is None else crashed(seed, world or world_of(seed), repr(error))
                total.add(one)
                for line in violation_lines(one.seed, one.world, one.violations) if one.violations else []:
                    print_line(line)
            if now_s() - printed_at > PROGRESS_S:
                printed_at = now_s()
                print_line(f"… {total.seeds} seeds, {total.simulated_s / 3600:.2f} h simulated, {len(total.violations)} with violations")
    return total


def replay(
    seed: int,
    world: str | None,
    *,
    storm_s: float | None = None,
    verbose: bool,
    svg: Path | None = None,
    print_line: Callable[[str], None],
) -> bool:
    """Run one universe again; with `verbose` print all its events, with `svg` draw who held its queues. Return whether no law was violated.

    Raise OSError if a picture can't be written.
    """
    began = _cpu_s()
    result = run_one(seed, world, debug_log=verbose, trace=True, storm_s=storm_s)
    if verbose:
        print_line(f"seed {seed}, world {result.setting.world}: {result.setting.facts()}")
        for line in trace_lines(result):
            print_line(line)
    one = summary(result, _cpu_s() - began)
    total = Total()
    total.add(one)
    for line in total.lines():
        print_line(line)
    for line in [] if svg is None else draw_owners(result, svg):
        print_line(line)
    print_line(f"digest       {one.digest}")
    return not one.violations


def draw_owners(result: RunResult, path: Path) -> Iterator[str]:
    """Write the picture of each group, the first one to `path`, the others beside it. Return a line for each."""
    title = f"Seed {result.setting.seed} in {result.setting.world}"
    for number, (group, picture) in enumerate(pictures(result.history, result.violations, title)):
        own = path.with_stem(f"{path.stem}-{group}") if number else path
        own.write_text(picture, "utf-8")  # world: the user's file
        yield f"picture      {own}: who held the queues of {group}"


def trace_lines(result: RunResult) -> Iterator[str]:
    """Return every event and every log line, in order of time."""
    lines = [(event.t, 0, number, str(event)) for number, event in enumerate(result.history)]
    lines += [(line.t, 1, number, str(line)) for number, line in enumerate(result.log.lines)]
    lines += [(violation.t, 2, number, f"!!! {violation}") for number, violation in enumerate(result.violations)]
    return (text for *_, text in sorted(lines))
