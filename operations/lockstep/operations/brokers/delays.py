"""The messages that wait for their delay or for a retry, by delay and by the time at which they are due (OVERVIEW). Pure."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from lockstep.operations.brokers.rates import Looks
from lockstep.protocol.bodies import DelayFigures, Overview
from lockstep.protocol.delays import DUE_WITHIN_MS, format_delay

BUCKETS = len(DUE_WITHIN_MS) + 1
LATE_MS = 10_000
"""A broker whose first message is overdue by more than this can't deliver it. It retries every second."""


def due_name(bucket: int) -> str:
    """Return the words for the messages that are due within DUE_WITHIN_MS[bucket] and not earlier, or that are due later."""
    if bucket == 0:
        return "overdue"
    before = format_delay(DUE_WITHIN_MS[bucket - 1]) if bucket > 1 else None
    if bucket == BUCKETS - 1:
        return f"after {before}"
    within = format_delay(DUE_WITHIN_MS[bucket])
    return f"within {within}" if before is None else f"{before} to {within}"


@dataclass(frozen=True, slots=True)
class DelayLine:
    """The messages with one delay."""

    delay_ms: int
    brokers: tuple[str, ...]
    """Those where such messages wait."""
    waiting: int
    first_due_ms: int | None
    """Milliseconds until the first of them is due, negative if it is overdue; None if a broker has not looked it up."""

    @property
    def is_late(self) -> bool:
        return self.first_due_ms is not None and self.first_due_ms < -LATE_MS


@dataclass(frozen=True, slots=True)
class DelayReport:
    """The delayed messages of the brokers that report them."""

    lines: tuple[DelayLine, ...]
    """By delay, the shortest first."""
    waiting: int | None
    """None if no broker reports it."""
    due: tuple[int, ...]
    """The number in each bucket."""
    untimed: int
    """Messages in no bucket, because their broker has not looked up when they are due."""
    failed: Mapping[str, str]
    """Broker → why it is left out."""


def delay_report(looks: Looks) -> DelayReport:
    """Return the report. Times are those of each broker at its look."""
    rows: dict[int, list[tuple[str, DelayFigures]]] = {}
    failed: dict[str, str] = {}
    due = [0] * BUCKETS
    untimed = 0
    for broker, look in sorted(looks.items()):
        if not isinstance(look, Overview):
            failed[broker] = look
        else:
            for each in look.delays:
                rows.setdefault(each.delay_ms, []).append((broker, each))
                if each.due is not None and len(each.due) == BUCKETS:  # a later version may have other buckets
                    due = [before + more for before, more in zip(due, each.due, strict=True)]
                else:
                    untimed += each.waiting
    lines = tuple(_line(delay_ms, rows[delay_ms]) for delay_ms in sorted(rows))
    waiting = sum(line.waiting for line in lines) if len(failed) < len(looks) else None
    return DelayReport(lines, waiting, tuple(due), untimed, failed)


def _line(delay_ms: int, rows: list[tuple[str, DelayFigures]]) -> DelayLine:
    firsts = [each.first_due_ms for _, each in rows if each.first_due_ms is not None]
    return DelayLine(
        delay_ms=delay_ms,
        brokers=tuple(dict.fromkeys(broker for broker, _ in rows)),
        waiting=sum(each.waiting for _, each in rows),
        first_due_ms=min(firsts) if len(firsts) == len(rows) else None,
    )


def delays_json(report: DelayReport) -> dict[str, Any]:
    """Return what `lockstep delays --json` prints. The last bucket, of what is due later than all others, has no `within_ms`."""
    bounds: list[tuple[int | None, int | None]] = list(pairwise((None, *DUE_WITHIN_MS, None)))
    return {
        "waiting": report.waiting,
        "delays": [asdict(line) for line in report.lines],
        "due": [
            {"after_ms": after_ms, "within_ms": within_ms, "messages": count}
            for (after_ms, within_ms), count in zip(bounds, report.due, strict=True)
        ],
        "untimed": report.untimed,
        "failed": dict(report.failed),
    }
