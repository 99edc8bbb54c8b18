"""Give a group the progress of another one."""

from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Annotated

from lockstep.operations.admin_client import AdminClient, broker_reasons
from lockstep.operations.changes.group_reset import count_forgotten_messages, plan_of_moves, read_lines
from lockstep.operations.changes.operation import Argument, Operation, Option, Plan
from lockstep.operations.changes.queue_targets import read_queues, read_ranges
from lockstep.operations.changes.reset_plan import Move, plan_offsets
from lockstep.operations.errors import OperationError
from lockstep.operations.groups.group_progress import GroupProgress, progress_of
from lockstep.operations.groups.group_query import read_group, unknown_group
from lockstep.operations.groups.parked import list_parked
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.names import check_group, check_topic

KEYS_SHOWN = 8
"""Parked keys that a warning names."""
QUEUES_SHOWN = 3
"""Clipped queues that a warning names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupClone(Operation):
    """Set the offsets of one group to those of another one, as `group reset-offset` sets them.

    The target begins at the committed offsets of the source. Messages above them that the source has finished already come again.
    Messages of its parked keys that wait below them do not come to the target.
    """

    words = ("group", "clone")
    path = "group-clone"

    source: Annotated[str, Argument(metavar="SOURCE", help="The group whose progress is copied.")]
    target: Annotated[str, Argument(metavar="TARGET", help="The group that gets it. It need not exist.")]
    topic: Annotated[
        str | None, Option(flags=("--topic", "-t"), help="Copy only the progress in this topic. By default in all but the retry topic.")
    ] = None
    drop_parked: Annotated[
        bool,
        Option(
            flags=("--drop-parked",),
            help="Forget the parked keys of the group that is changed. Without it the change is refused if it has some.",
        ),
    ] = False

    async def plan(self, admin: AdminClient) -> Plan:
        check_group(self.source)
        check_group(self.target)
        if self.source == self.target:
            raise ConfigError(f"group {self.source} can't be cloned to itself: name another target")
        if self.topic is not None:
            check_topic(self.topic)
        async with admin.keep_connections():
            progress = await read_progress(admin, self.source, self.topic)
            plan = await plan_progress(admin, self.target, progress, drop_parked=self.drop_parked)
            await note_left_out(admin, progress, self.topic)
        return plan


async def plan_progress(admin: AdminClient, group: str, progress: GroupProgress, *, drop_parked: bool) -> Plan:
    """Return the plan that sets the offsets of a group to those of `progress`. Raises OperationError."""
    lines = await read_lines(admin, group)
    topics = list(dict.fromkeys(queue.topic for queue in progress.offsets))
    queues, brokers = await read_queues(admin, topics)
    if missing := progress.offsets.keys() - set(queues):
        raise OperationError(
            f"nothing was changed: {len(missing)} of the {len(progress.offsets)} queues do not exist here ({min(map(str, missing))}). "
            "`lockstep topic show TOPIC` lists the queues; an offset counts in its own queue only, so leave these out"
        )
    ranges = await read_ranges(admin, brokers, list(progress.offsets))
    moves = plan_offsets(progress.offsets, lines, ranges)
    waiting = await count_forgotten_messages(admin, group, topics[0] if len(topics) == 1 else None, moves, drop_parked=drop_parked)
    _note_clipped(admin, [move for move in moves if move.asked is not None])
    return plan_of_moves(admin, group, moves, waiting, drop_parked=drop_parked)


async def read_progress(admin: AdminClient, group: str, topic: str | None) -> GroupProgress:
    """Return the progress of a group. Raise OperationError if any broker does not respond, or if there is none."""
    report, statuses = await read_group(admin, group)
    if statuses.failed:
        raise OperationError(f"the progress of group {group} is not known: {broker_reasons(statuses.failed)}. Try again later")
    if report is None:
        raise unknown_group(group, {})
    if report.broadcasting:
        raise OperationError(f"group {group} is broadcasting: each member keeps its progress in a file of its own, which no broker knows")
    progress = progress_of(group, report.queues, topic)
    if not progress.offsets:
        where = "" if topic is None else f" in {topic}"
        raise OperationError(f"group {group} has no progress{where}: it has committed nothing yet")
    return progress


def _note_clipped(admin: AdminClient, clipped: Sequence[Move]) -> None:
    if clipped:
        named = ", ".join(f"{move.queue}: {move.asked} became {move.after}" for move in clipped[:QUEUES_SHOWN])
        more = f" and {len(clipped) - QUEUES_SHOWN} more" if len(clipped) > QUEUES_SHOWN else ""
        admin.reporter.note(
            f"offsets that the queues do not hold became the nearest ones that they hold ({named}{more}): retention has removed the "
            "messages at lower offsets, and those below a higher offset are not stored here"
        )


async def note_left_out(admin: AdminClient, progress: GroupProgress, topic: str | None) -> None:
    """Report the progress of a group that committed offsets do not contain."""
    if progress.finished_above:
        admin.reporter.note(
            f"group {progress.group} has finished {progress.finished_above} messages above its committed offsets: a group that begins "
            "there gets them again"
        )
    if progress.parked:
        listed = await list_parked(admin, progress.group, topic)
        keys = [f"{each.row.key} ({each.row.topic} {each.broker.name}:{each.row.queue_id})" for each in listed.keys[:KEYS_SHOWN]]
        more = " …" if len(listed.keys) > KEYS_SHOWN or listed.cut else ""
        admin.reporter.note(
            f"keys of group {progress.group} are parked: {', '.join(keys)}{more}. Their messages below the committed offsets do not come "
            f"to a group that begins there; `lockstep park ls {quote(progress.group)}` counts them"
        )
