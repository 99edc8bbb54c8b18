"""What pages show of many queues, and of those of a group once for each look at it, however many pages show it. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from lockstep.operations.groups.group_report import GroupReport, QueueLine
from lockstep.operations.pictures.heat import heat_picture, highest
from lockstep.operations.watch.group_look import GroupLook

HEAT_MIN = 16
"""Fewer queues have no picture of all of them."""
HIGHEST_SHOWN = 10
SORTED_MIN = 100
"""More queues, which are several pages of a table, are sorted by lag."""


@dataclass(frozen=True, slots=True)
class GroupQueues:
    """The queues of a group."""

    lines: Sequence[QueueLine]
    """As the table shows them."""
    held: Mapping[str, int]
    """Client id → the queues that it holds. A client without any has 0."""
    failing: Sequence[QueueLine]
    heat: Markup
    highest: Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class ShownGroup:
    """A look at a group, and its queues."""

    look: GroupLook
    queues: GroupQueues


def shown_group(group: str, look: GroupLook) -> ShownGroup:
    """Return what pages show of a look at a group."""
    return ShownGroup(look, group_queues(group, look.report))


def group_queues(group: str, report: GroupReport | None) -> GroupQueues:
    """Return the queues of a report on a group, none without a report."""
    lines = () if report is None else report.queues
    several = len({line.topic for line in lines}) > 1
    return GroupQueues(
        lines=sorted(lines, key=lambda line: -(line.lag or 0)) if len(lines) > SORTED_MIN else lines,
        held=Counter(line.owner for line in lines if line.owner is not None),
        failing=[line for line in lines if line.failing_ms is not None],
        heat=heat([(line.broker, line.lag if line.reached else None) for line in lines], f"{group}: messages behind, of each queue"),
        highest=highest([(_name(line, several), line.lag) for line in lines if line.lag], HIGHEST_SHOWN),
    )


def heat(figures: Iterable[tuple[str, int | None]], title: str) -> Markup:
    """Return the picture of all queues by broker, nothing for a few."""
    blocks: dict[str, list[int | None]] = {}
    for broker, figure in figures:
        blocks.setdefault(broker, []).append(figure)
    return Markup(heat_picture(blocks, title)) if sum(map(len, blocks.values())) >= HEAT_MIN else Markup()


def lags(topic: str, report: GroupReport | None) -> dict[tuple[str, int], int | None]:
    """Return (broker, queue id) → lag of a group in a topic, as far as it is known."""
    return {} if report is None else {(line.broker, line.queue_id): line.lag for line in report.queues if line.topic == topic}


def _name(line: QueueLine, with_topic: bool) -> str:
    return str(line.queue) if with_topic else f"{line.broker}:{line.queue_id}"
