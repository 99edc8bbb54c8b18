"""lockstep topic alter."""

from collections.abc import Collection
from dataclasses import asdict
from typing import Annotated

import typer

from lockstep.cli.options import JsonOption, NameserverOption, TopicArgument, run
from lockstep.cli.render import print_json, print_line
from lockstep.cli.reporter import admin_client
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.operations.changes.drain import close_queues, drop_queues
from lockstep.operations.changes.layout_change import parse_queue_counts
from lockstep.operations.changes.topic_change import check_not_system_topic, plan_alteration, registered_brokers
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.layouts import QUEUES_PER_BROKER_MAX


def alter_command(
    topic: TopicArgument,
    queues: Annotated[
        int | None,
        typer.Option(
            "--queues",
            "-q",
            min=0,
            max=QUEUES_PER_BROKER_MAX,
            help="Number of queues on EACH broker, to write and to read. 0, with --broker: none on that broker.",
        ),
    ] = None,
    write_queues: Annotated[
        int | None, typer.Option("--write-queues", min=0, max=QUEUES_PER_BROKER_MAX, help="Number of queues to write to on each broker.")
    ] = None,
    read_queues: Annotated[
        int | None, typer.Option("--read-queues", min=0, max=QUEUES_PER_BROKER_MAX, help="Number of queues to read from on each broker.")
    ] = None,
    broker: Annotated[
        list[str] | None, typer.Option("--broker", help="Change only this broker; may be repeated. By default all brokers.")
    ] = None,
    move_to: Annotated[
        str | None,
        typer.Option(
            "--to", help="Move the queues of --broker to this broker: as many are added there, and those are drained and removed."
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Change it even if groups have not consumed the messages, or have parked keys: order per key ends, or messages are lost.",
        ),
    ] = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Change the number of queues of a topic, or move them to another broker.

    Later messages of a key may go to other queues. So that its order is kept, the brokers hold the writes to the topic until the ordered
    groups have consumed it, for 20 s at the longest; sends wait meanwhile. If the groups lag too much, or have parked keys in the topic,
    nothing is changed.
    """
    if move_to is None:
        run(_alter(topic, (queues, write_queues, read_queues), tuple(broker or ()), force, nameserver, as_json))
    else:
        run(_move(topic, (queues, write_queues, read_queues), tuple(broker or ()), move_to, force, nameserver))


async def _move(topic: str, counts: tuple[int | None, ...], sources: tuple[str, ...], target: str, force: bool, nameserver: str) -> None:
    check_not_system_topic(topic)
    if any(count is not None for count in counts) or force or not sources or target in sources:
        raise ConfigError("--to NAME moves the queues of --broker OTHER, all of them and in order: use it with --broker alone")
    admin = admin_client(nameserver)
    layout = (await admin.route(topic)).layout
    await registered_brokers(admin, (*sources, target))
    for source in sources:
        await close_queues(admin, layout.topic, source, target)
    for source in sources:
        await drop_queues(admin, [layout.topic], source)


async def _alter(
    topic: str,
    counts: tuple[int | None, int | None, int | None],
    only: Collection[str],
    force: bool,
    nameserver: str,
    as_json: bool,
) -> None:
    write_count, read_count = parse_queue_counts(*counts)
    admin = admin_client(nameserver)
    planned = await plan_alteration(admin, topic, write_count, read_count, only)
    held_ms = await planned.carry_out(admin, force=force)
    after = planned.after
    if as_json:
        version = {"counter": after.version.counter, "writer": after.version.writer}
        entries = [asdict(entry) for entry in after.entries]
        order_ended = planned.keys_move and force
        print_json(
            {
                "topic": topic,
                "changed": planned.changes,
                "keys_move": planned.keys_move,
                "order_ended": order_ended,
                "held_ms": held_ms,
                "version": version,
                "entries": entries,
            }
        )
    elif not planned.changes:
        print_line(f"topic {topic} has that many queues already")
    else:
        print_line(f"topic {topic}: {planned.counts}, layout version {after.version.counter}")
        if planned.keys_move and force:
            before = planned.before.version.counter
            print_line(f"order per key ended with layout version {before}: later messages of a key may be in another queue")
        elif planned.keys_move:
            print_line(f"order per key is kept: writes were held for {held_ms} ms, until the ordered groups had consumed the topic")
