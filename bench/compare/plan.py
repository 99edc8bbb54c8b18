"""What is measured, and in which order. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lockstep.protocol.errors import ConfigError

Kind = Literal["rate", "latency"]
ROUNDS = 5
SIZES = (100, 1024)
BYTES_MIN = 20
"""A body begins with a timestamp of 20 digits."""
BASE_BYTES = 100
LARGE_BODY_FACTOR = 0.6
"""Bodies of more than BASE_BYTES are sent in smaller numbers: each takes longer."""
COUNT_MIN = 100


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: a work of lockstep, and the work of the other systems that it is compared with."""

    name: str
    title: str
    kind: Kind
    peers: str
    """The work of the other systems; the name of the row unless lockstep has several ways to do the same."""


ROWS = (
    Row("one", "one awaited send at a time", "latency", "one"),
    Row("tasks", "2,000 tasks, each awaits one send at a time", "rate", "tasks"),
    Row("tasks_keyed", "the same with 1,000 sharding keys", "rate", "tasks"),
    Row("pipeline", "single sends, the fastest way without awaiting each", "rate", "pipeline"),
    Row("batch", "explicit batches of 1,000, four in flight", "rate", "batch"),
    Row("consume_batch_ordered", "consume in batches: lockstep's ordered listener", "rate", "consume_batch"),
    Row("consume_batch_concurrent", "consume in batches: lockstep's concurrent listener", "rate", "consume_batch"),
    Row("consume_batch_poll", "consume in batches: lockstep's `PullConsumer.poll`", "rate", "consume_batch"),
    Row("consume_one_concurrent", "consume one by one: lockstep's concurrent listener", "rate", "consume_one"),
    Row("consume_one_iterate", "consume one by one: lockstep's `async for`", "rate", "consume_one"),
    Row("ordered_one", "consume in order, one message per call of the listener", "rate", "ordered_one"),
    Row("e2e", "end to end at 1,000 messages/s", "latency", "e2e"),
)
ROW_OF: Mapping[str, Row] = {row.name: row for row in ROWS}


@dataclass(frozen=True, slots=True)
class Subject:
    """What the plan knows of a system."""

    name: str
    counts: Mapping[str, int]
    """Messages of one measurement by work, for bodies of BASE_BYTES. A work that is not in it is not measured."""
    same: Mapping[str, str]
    """Works that this system does in the same way as another one, and that other one: measured once."""
    is_lockstep: bool

    def measured_as(self, row: Row) -> str | None:
        """Return the name of this system's measurement for the row; None if it has no such work."""
        work = row.name if self.is_lockstep else row.peers
        work = self.same.get(work, work)
        return work if work in self.counts else None


@dataclass(frozen=True, slots=True)
class Measurement:
    """One work of one system, in one round."""

    round: int
    system: str
    work: str
    body_bytes: int
    count: int


def count_of(subject: Subject, work: str, body_bytes: int, scale: float) -> int:
    """Return how many messages a measurement takes."""
    factor = LARGE_BODY_FACTOR if body_bytes > BASE_BYTES and work not in ("one", "e2e") else 1.0
    return max(COUNT_MIN, round(subject.counts[work] * factor * scale))


def measurements(
    subjects: Sequence[Subject], rows: Sequence[Row], sizes: Sequence[int], rounds: int, scale: float
) -> Iterator[Measurement]:
    """Yield all measurements: for each round, row and size one system after the other, and each time another one comes first."""
    turn = 0
    for number in range(1, rounds + 1):
        done: set[tuple[str, str, int]] = set()
        for row in rows:
            for body_bytes in sizes:
                for subject in rotated(subjects, turn):
                    work = subject.measured_as(row)
                    if work is not None and (subject.name, work, body_bytes) not in done:
                        done.add((subject.name, work, body_bytes))
                        yield Measurement(number, subject.name, work, body_bytes, count_of(subject, work, body_bytes, scale))
                turn += 1


def rotated(subjects: Sequence[Subject], turn: int) -> list[Subject]:
    """Return the subjects beginning with the one whose turn it is."""
    first = turn % len(subjects) if subjects else 0
    return [*subjects[first:], *subjects[:first]]


def check_sizes(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes without repetitions. Raise ConfigError if a body is too small for its timestamp."""
    for size in sizes:
        if size < BYTES_MIN:
            raise ConfigError(f"--sizes {size}: a body contains a timestamp, so it must have at least {BYTES_MIN} bytes")
    return tuple(dict.fromkeys(sizes))


def chosen(option: str, given: str | None, known: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a comma-separated option in the order of `known`, or all of them. Raise ConfigError for an unknown name."""
    if given is None:
        return tuple(known)
    names = [name.strip() for name in given.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise ConfigError(f"{option} {name}: unknown; the names are {', '.join(known)}")
    if not names:
        raise ConfigError(f"{option} is empty: name at least one of {', '.join(known)}")
    return tuple(name for name in known if name in names)
