"""Move a group to other offsets."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Annotated

from lockstep.operations.admin_client import AdminClient, broker_reasons, by_name, gather_results
from lockstep.operations.changes.operation import Argument, ChangeOutcome, Operation, Option, Plan, Table
from lockstep.operations.changes.queue_targets import read_by_time, read_queues, read_ranges
from lockstep.operations.changes.reset_plan import Move, plan_moves, totals, undo_commands
from lockstep.operations.errors import OperationError
from lockstep.operations.groups.group_query import read_group, unknown_group
from lockstep.operations.groups.group_report import QueueLine
from lockstep.operations.groups.parked import WaitingCount, count_forgotten, forgotten_text
from lockstep.operations.targets import Target, parse_queue, parse_target
from lockstep.operations.text import format_time
from lockstep.protocol.bodies import QueueOffset, ResetBody
from lockstep.protocol.names import check_group, check_topic, group_of_topic

QUEUES_SHOWN = 8
"""The number of queues with parked keys that a refusal names."""
FIRST_RESET = (
    "use --topic TOPIC to set its offsets before its first start. If it is broadcasting, each member keeps its progress in a file of its "
    "own, which no broker can reset"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReset(Operation):
    """Set the offsets from which a group continues. Running members are fenced and continue from there without a restart."""

    words = ("group", "reset-offset")
    path = "group-reset"
    title = "Reset the offsets of a group"
    confirmed = "group"

    group: Annotated[str, Argument(help="The group's name.", label="Group")]
    to: Annotated[
        str,
        Option(
            flags=("--to",),
            metavar="WHERE",
            help="beginning, end, an offset, a time (ISO 8601; UTC if without a zone), a time of day (15:00, UTC), or a duration ago: 90s, "
            "30m, 2h, 7d.",
            label="To",
            hint="beginning, end, an offset, a time (2026-11-21T15:00:00Z), or a duration ago (90s, 30m, 2h, 7d)",
        ),
    ]
    topic: Annotated[
        str | None,
        Option(
            flags=("--topic", "-t"),
            help="Reset only this topic. By default all topics that the group subscribes to or has progress in, except its retry topic.",
            label="Topic",
            hint="only this one; empty for all",
        ),
    ] = None
    queue: Annotated[
        tuple[str, ...],
        Option(
            flags=("--queue",),
            metavar="BROKER:NUMBER",
            help="Reset only this queue; may be repeated. By default all.",
            label="Queue",
            hint="only this one, as in broker-a:3; empty for all",
        ),
    ] = ()
    drop_parked: Annotated[
        bool,
        Option(
            flags=("--drop-parked",),
            help="Forget the parked keys of the queues. Without it a reset is refused while there are some.",
            label="Forget parked keys",
        ),
    ] = False

    async def plan(self, admin: AdminClient) -> Plan:
        check_group(self.group)
        target = parse_target(self.to, admin.host.clock.wall_ms())
        selected = {parse_queue(text) for text in self.queue}
        async with admin.keep_connections():  # a target time asks for the offset of each queue
            moves = await planned_moves(admin, self.group, self.topic, selected, target)
            waiting = await count_forgotten_messages(admin, self.group, self.topic, moves, drop_parked=self.drop_parked)
        # Progress and the ends of queues move while the plan is read: what was agreed to is where the group goes, and in which queues.
        agreed = tuple((str(move.queue), move.after if target.kind in ("offset", "time") else None, move.parked) for move in moves)
        fixed = {"to": format_time(target.value)} if target.kind == "time" else None
        return plan_of_moves(admin, self.group, moves, waiting, drop_parked=self.drop_parked, agreed=agreed, fixed=fixed)


def plan_of_moves(
    admin: AdminClient,
    group: str,
    moves: Sequence[Move],
    waiting: WaitingCount,
    *,
    drop_parked: bool,
    agreed: tuple[object, ...] = (),
    fixed: Mapping[str, str] | None = None,
) -> Plan:
    """Return the plan that moves a group as `moves` say. `waiting`: the messages of parked keys that it forgets."""
    parked = sum(move.parked for move in moves)
    again, skipped = totals(moves)
    rows = [
        {"queue": str(move.queue), "before": move.before, "after": move.after, "change": move.change, "parked": move.parked}
        | ({} if move.asked is None else {"asked": move.asked})
        for move in moves
    ]
    found = {
        "group": group,
        "done": False,
        "queues": rows,
        "parked_keys": parked,
        "waiting": waiting.count,
        "waiting_complete": waiting.complete,
        "undo": [],
    }

    async def carry_out_moves() -> ChangeOutcome:
        async with admin.keep_connections():
            await carry_out(admin, group, moves, drop_parked=drop_parked)
        undo = undo_commands(group, moves)
        line = f"group {group}: messages to consume again: {again}, messages to skip: {skipped}"
        if drop_parked:
            line += f", parked keys to forget: {parked}, with {waiting} waiting messages"
        lines = [line]
        if begun := sum(move.before is None for move in moves):
            lines.append(f"queues in which the group had no progress: {begun}; only `lockstep group delete {quote(group)}` takes that back")
        return ChangeOutcome(lines, {**found, "done": True, "undo": undo}, undo, table)

    table = Table(("topic", "broker", ">queue", ">old offset", ">new offset", ">end offset", "messages"), [_row(move) for move in moves])
    effect = [f"Group {group} consumes {again:,} messages again and skips {skipped:,}, as things are now."]
    effect.append("Running members are fenced, and continue from there without a restart.")
    if parked:
        effect.append(f"{forgotten_text(parked, waiting)}.")
    return Plan(effect, carry_out_moves, agreed, table, fixed, json=found)


def _row(move: Move) -> tuple[object, ...]:
    change = f"{-move.change} again" if move.change < 0 else f"{move.change} skipped" if move.change else None
    return move.queue.topic, move.queue.broker_name, move.queue.queue_id, move.before, move.after, move.end, change


async def count_forgotten_messages(
    admin: AdminClient, group: str, topic: str | None, moves: Sequence[Move], *, drop_parked: bool
) -> WaitingCount:
    """Return how many messages of parked keys wait that the reset forgets.

    Raise OperationError if keys are parked and are not to be dropped, or if what waits can't be counted.
    """
    if not any(move.parked for move in moves):
        return WaitingCount(0, True)
    if not drop_parked:
        raise _parked_error(group, moves)
    return await _count_forgotten(admin, group, topic, moves)


def _parked_error(group: str, moves: Sequence[Move]) -> OperationError:
    """Return the error for a reset of queues with parked keys."""
    counts = [f"{move.parked} in {move.queue.topic} {move.queue.broker_name}:{move.queue.queue_id}" for move in moves if move.parked]
    listed = ", ".join(counts[:QUEUES_SHOWN]) + (" …" if len(counts) > QUEUES_SHOWN else "")
    return OperationError(
        f"nothing was changed: keys of group {group} are parked ({listed}), and a reset would deliver their messages again, or never. "
        f"Replay or drop them (`lockstep park ls {quote(group)}` lists them), or forget them with --drop-parked"
    )


async def _count_forgotten(admin: AdminClient, group: str, topic: str | None, moves: Sequence[Move]) -> WaitingCount:
    """Return how many messages of the parked keys wait that the reset forgets."""
    forgotten = await count_forgotten(admin, group, topic, {move.queue for move in moves})
    if forgotten.failed:
        raise OperationError(
            f"nothing was changed: the waiting messages of parked keys can't be counted: {broker_reasons(forgotten.failed)}"
        )
    return forgotten.waiting


async def planned_moves(
    admin: AdminClient, group: str, topic: str | None, selected: Collection[tuple[str, int]], target: Target
) -> tuple[Move, ...]:
    """Return what a reset to `target` would change: of the queues `selected`, all if that is empty.

    Raise OperationError if a broker concerned does not respond: a reset is complete or not made at all.
    """
    lines = await read_lines(admin, group)
    if topic is not None:
        check_topic(topic)
        topics = [topic]
    else:
        topics = sorted({line.topic for line in lines if group_of_topic(line.topic) is None})
    if not topics:
        raise unknown_group(group, {}, FIRST_RESET)
    queues, brokers = await read_queues(admin, topics, selected)
    ranges = await read_ranges(admin, brokers, queues)
    return plan_moves(queues, lines, ranges, target, await read_by_time(admin, brokers, queues, target))


async def read_lines(admin: AdminClient, group: str) -> Sequence[QueueLine]:
    """Return the group's progress and parked keys, nothing if no broker knows the group.

    Raise OperationError if a broker does not respond, and for a broadcasting group.
    """
    report, statuses = await read_group(admin, group)
    if statuses.failed:
        raise OperationError(f"nothing was changed: some brokers did not respond: {broker_reasons(statuses.failed)}. Try again later")
    if report is not None and report.broadcasting:
        raise OperationError(
            f"group {group} is broadcasting: each member keeps its progress in a file of its own, which no broker can reset"
        )
    return () if report is None else report.queues


async def carry_out(admin: AdminClient, group: str, moves: Sequence[Move], *, drop_parked: bool) -> None:
    """Reset broker by broker; each resets all its queues of a topic or none. Raise OperationError at the first that does not."""
    brokers = by_name(await admin.brokers())
    done: list[str] = []
    for topic, name in dict.fromkeys((move.queue.topic, move.queue.broker_name) for move in moves):
        own = [move for move in moves if (move.queue.topic, move.queue.broker_name) == (topic, name)]
        body = ResetBody(group, topic, tuple(QueueOffset(move.queue.queue_id, move.after) for move in own), drop_parked)
        results = await gather_results({name: admin.reset(brokers[name], body)})
        if results.failed:
            so_far = f"{topic} was reset at {', '.join(done)} already" if done else "nothing was changed before"
            raise OperationError(f"broker {name} did not reset {topic}: {results.failed[name]}; {so_far}. Run the command again")
        done.append(name)
