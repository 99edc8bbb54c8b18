"""The report of a sweep: a Summary of each universe, added up, as text and as JSON."""

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

from sweep.events.consumers import CallBegan
from sweep.events.producers import SendAcked
from sweep.events.universe import Fault, ProcessEnded
from sweep.reach import COUNTED_SEEDS_MIN, count_places, unreached
from sweep.run import RunResult
from sweep.worlds import WORLDS

SHOWN_MAX = 5
"""The most violations of one seed that are printed."""


@dataclass(frozen=True, slots=True)
class Summary:
    """One universe in figures."""

    seed: int
    world: str
    simulated_s: float
    cpu_s: float
    violations: tuple[str, ...]
    faults: Counter[str]
    crashes: int
    reach: Counter[str]
    acked: int
    calls: int
    digest: str


def summary(result: RunResult, cpu_s: float) -> Summary:
    history = result.history
    ended = Counter(event.how for event in history.of(ProcessEnded))
    return Summary(
        result.setting.seed,
        result.setting.world,
        result.simulated_s,
        cpu_s,
        tuple(str(violation) for violation in result.violations),
        Counter(event.kind for event in history.of(Fault) if event.kind not in ("heal", "exited", "late")),
        ended["kill"] + ended["power"] + sum(event.kind == "exited" for event in history.of(Fault)),
        count_places(history, result.log),
        len(history.of(SendAcked)),
        len(history.of(CallBegan)),
        result.digest,
    )


def crashed(seed: int, world: str, error: str) -> Summary:
    """Return the summary of a universe in which the simulator itself failed."""
    return Summary(seed, world, 0.0, 0.0, (error,), Counter(), 0, Counter(), 0, 0, "")


@dataclass(slots=True)
class Total:
    """The figures of a sweep so far."""

    seeds: int = 0
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    crashes: int = 0
    acked: int = 0
    calls: int = 0
    worlds: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    reach: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[int, str, tuple[str, ...]]] = field(default_factory=list)
    """(seed, world, violations)."""

    def add(self, one: Summary) -> None:
        self.seeds += 1
        self.simulated_s += one.simulated_s
        self.cpu_s += one.cpu_s
        self.crashes += one.crashes
        self.acked += one.acked
        self.calls += one.calls
        self.worlds[one.world] += 1
        self.faults += one.faults
        self.reach += one.reach
        if one.violations:
            self.violations.append((one.seed, one.world, one.violations))

    @property
    def unreached(self) -> list[str]:
        """Return the rare places that were never reached; empty if there are too few seeds, or too few worlds, to decide."""
        return unreached(self.reach) if self.seeds >= COUNTED_SEEDS_MIN and self.worlds.keys() == WORLDS.keys() else []

    @property
    def failed(self) -> bool:
        return bool(self.violations or self.unreached)

    def plain(self) -> dict[str, Any]:
        figures = {one.name: getattr(self, one.name) for one in fields(self)}
        return {**figures, "unreached": self.unreached, "simulated_hours": round(self.simulated_s / 3600, 3)}

    def lines(self) -> list[str]:
        speed = self.simulated_s / self.cpu_s if self.cpu_s else 0.0
        lines = [
            f"seeds        {self.seeds} ({_counts(self.worlds)})",
            f"simulated    {self.simulated_s / 3600:.2f} h, {speed:.0f} s per CPU second",
            f"messages     {self.acked} acknowledged, {self.calls} listener calls",
            f"faults       {self.faults.total()}: {_counts(self.faults)}",
            f"crashes      {self.crashes}",
            "reached",
            *(f"  {count:>8}  {name}" for name, count in sorted(self.reach.items(), key=lambda row: -row[1])),
            *(f"  {0:>8}  {name}" for name in unreached(self.reach)),
            f"violations   {len(self.violations)} seeds",
        ]
        for seed, world, found in self.violations:
            lines += violation_lines(seed, world, found)
        if self.unreached:
            lines.append(f"FAILED: never reached in {self.seeds} seeds: {'; '.join(self.unreached)}")
        return lines


def violation_lines(seed: int, world: str, violations: tuple[str, ...]) -> list[str]:
    more = [f"    … and {len(violations) - SHOWN_MAX} more"] if len(violations) > SHOWN_MAX else []
    return [
        f"  seed {seed} in {world}; replay: scripts/sweep --world {world} --seed {seed} -v",
        f"    picture of who held the queues: scripts/sweep --world {world} --seed {seed} --svg seed-{seed}.svg",
        *(f"    {violation}" for violation in violations[:SHOWN_MAX]),
        *more,
    ]


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counter.most_common())
