"""lockstep group reset-offset: a group goes on somewhere else, running or not."""

from collections.abc import Sequence
from typing import Annotated

import typer

from lockstep.admin.client import AdminClient, by_name, gather
from lockstep.admin.group_query import read_group
from lockstep.admin.options import CommandError, JsonOption, NameserverOption, run
from lockstep.admin.render import print_json, print_table, say
from lockstep.admin.reset_plan import Move, Target, moves, parse_queue, parse_target
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.protocol.bodies import BrokerAddress, OffsetRange, QueueOffset, ResetBody
from lockstep.protocol.names import check_group, check_topic
from lockstep.protocol.queue import MessageQueue
from lockstep.runtime.host import Host


def reset_command(
    group: Annotated[str, typer.Argument(help="The group's name.")],
    to: Annotated[
        str, typer.Option("--to", metavar="WHERE", help="beginning, end, an offset, a time (ISO), or how long ago: 90s 30m 2h 7d.")
    ],
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic", "-t", help="Only this topic; without it, all that the group subscribes to or has progress in, but its own retries."
        ),
    ] = None,
    queue: Annotated[list[str] | None, typer.Option("--queue", metavar="BROKER:NUMBER", help="Only this queue; may be repeated.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Set where a group goes on. Running members are fenced and go on from there by themselves, stopped ones when they start."""
    run(_reset(group, to, topic, tuple(queue or ()), dry_run, nameserver, as_json))


async def _reset(group: str, to: str, topic: str | None, only: Sequence[str], dry_run: bool, nameserver: str, as_json: bool) -> None:
    check_group(group)
    host = Host.current()
    target = parse_target(to, host.clock.wall_ms())
    wanted = {parse_queue(text) for text in only}
    admin = AdminClient(host, nameserver)
    plan = await _plan(admin, group, topic, wanted, target)
    if not dry_run:
        await _carry_out(admin, group, plan)
    if as_json:
        rows = [{"queue": str(move.queue), "before": move.before, "after": move.after, "change": move.change} for move in plan]
        print_json({"group": group, "done": not dry_run, "queues": rows})
        return
    columns = ["topic", "broker", ">queue", ">was at", ">goes on at", ">queue ends at", "messages"]
    print_table(columns, [_row(move) for move in plan])
    again, skipped = -sum(min(0, move.change) for move in plan), sum(max(0, move.change) for move in plan)
    say(f"group {group}: {again} messages again, {skipped} skipped" + (": nothing was changed (--dry-run)" if dry_run else ""))


def _row(move: Move) -> tuple[object, ...]:
    change = f"{-move.change} again" if move.change < 0 else f"{move.change} skipped" if move.change else None
    return move.queue.topic, move.queue.broker_name, move.queue.queue_id, move.before, move.after, move.end, change


async def _plan(admin: AdminClient, group: str, topic: str | None, wanted: set[tuple[str, int]], target: Target) -> tuple[Move, ...]:
    """What would change. Fails where a broker that has a say does not answer: half a reset is none."""
    made, answers = await read_group(admin, group)
    if answers.complaint() is not None:
        raise CommandError(f"nothing was changed, {answers.complaint()}")
    if made is not None and made.broadcasting:
        raise CommandError(f"group {group} is broadcasting: each member keeps its progress in a file of its own, no broker can reset it")
    lines = () if made is None else made.queues
    if topic is not None:
        check_topic(topic)
        topics = [topic]
    else:
        topics = sorted({line.topic for line in lines if not line.topic.startswith("%")})
    if not topics:
        raise CommandError(
            f"no broker knows group {group}: name a --topic to place it there before its first start. If it is broadcasting, its progress "
            "is in a file of each member, which no broker can reset"
        )
    queues: list[MessageQueue] = []
    brokers: dict[str, BrokerAddress] = {}
    for name in topics:
        route = await admin.route(name)
        brokers |= by_name(route.brokers)
        queues += [each for each in route.layout.read_queues if not wanted or (each.broker_name, each.queue_id) in wanted]
    if missing := wanted - {(each.broker_name, each.queue_id) for each in queues}:
        raise CommandError(f"{', '.join(topics)} has no queue {':'.join(map(str, min(missing)))}; `lockstep topic show` names them")
    ranges = await _ranges(admin, brokers, queues)
    by_time = {}
    if target.word == "time":
        found = await gather(
            {str(each): admin.offset_by_time(brokers[each.broker_name], each.topic, each.queue_id, target.value) for each in queues}
        )
        if found.failed:
            raise CommandError(f"nothing was changed, {found.complaint()}")
        by_time = {each: found.given[str(each)] for each in queues}
    return moves(queues, lines, ranges, target, by_time)


async def _ranges(admin: AdminClient, brokers: dict[str, BrokerAddress], queues: Sequence[MessageQueue]) -> dict[MessageQueue, OffsetRange]:
    ranges = {}
    for topic, name in dict.fromkeys((queue.topic, queue.broker_name) for queue in queues):
        if name not in brokers:
            raise CommandError(f"nothing was changed: no address of broker {name} is known, and it has queues of {topic}")
        for held in await admin.offsets(brokers[name], topic):
            ranges[MessageQueue(topic, name, held.queue_id)] = held
    return ranges


async def _carry_out(admin: AdminClient, group: str, plan: Sequence[Move]) -> None:
    """Broker by broker; each takes all its queues of a topic or none."""
    brokers = by_name(await admin.brokers())
    done: list[str] = []
    for topic, name in dict.fromkeys((move.queue.topic, move.queue.broker_name) for move in plan):
        own = [move for move in plan if (move.queue.topic, move.queue.broker_name) == (topic, name)]
        body = ResetBody(group, topic, tuple(QueueOffset(move.queue.queue_id, move.after) for move in own))
        answers = await gather({name: admin.reset(brokers[name], body)})
        if answers.failed:
            so_far = f"{topic} was reset at {', '.join(done)} already" if done else "nothing was changed before"
            raise CommandError(f"broker {name} did not reset {topic}: {answers.failed[name]}; {so_far}: run it again")
        done.append(name)
