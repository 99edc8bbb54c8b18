"""lockstep topic create | list | show; alter and delete are topic_change.py's, forget-deleted is topic_forget.py's."""

from dataclasses import asdict
from typing import Annotated

import typer

from lockstep.admin.client import AdminClient, absent, by_name, gather
from lockstep.admin.commands.topic_change import QUEUES_MAX, alter_command, delete_command, routed
from lockstep.admin.commands.topic_forget import forget_deleted_command
from lockstep.admin.options import CommandError, JsonOption, NameserverOption, run
from lockstep.admin.render import print_json, print_table, say
from lockstep.client.client import Client
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.client.topics import create_topic
from lockstep.protocol.errors import TopicNotExistError
from lockstep.protocol.names import check_topic
from lockstep.protocol.queue import LayoutEntry, TopicLayout
from lockstep.runtime.host import Host

app = typer.Typer(no_args_is_help=True, help="Topics and their queues.")

app.command("alter")(alter_command)
app.command("delete")(delete_command)
app.command("forget-deleted")(forget_deleted_command)

QUEUES_DEFAULT = 4
"""RocketMQ's defaultTopicQueueNums of a producer."""
TopicArgument = Annotated[str, typer.Argument(help="The topic's name.")]


@app.command("create")
def create_command(
    topic: TopicArgument,
    queues: Annotated[int, typer.Option("--queues", "-q", min=1, max=QUEUES_MAX, help="Queues on EACH broker.")] = QUEUES_DEFAULT,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Create a topic with N queues on each broker. A topic that exists is left as it is (exit 1 if its queues are others)."""
    run(_create(topic, queues, nameserver, as_json))


@app.command("list")
def list_command(nameserver: NameserverOption = DEFAULT_NAMESERVER, as_json: JsonOption = False) -> None:
    """Every topic but the brokers' own; those of groups too: %RETRY%GROUP (what it is given again), %DLQ%GROUP (what it has given up)."""
    run(_list(nameserver, as_json))


@app.command("show")
def show_command(topic: TopicArgument, nameserver: NameserverOption = DEFAULT_NAMESERVER, as_json: JsonOption = False) -> None:
    """The layout of a topic, and per queue the first and next offset."""
    run(_show(topic, nameserver, as_json))


async def _create(topic: str, queues: int, nameserver: str, as_json: bool) -> None:
    check_topic(topic)
    admin = AdminClient(Host.current(), nameserver)
    try:
        before: TopicLayout | None = (await admin.route(topic)).layout
    except TopicNotExistError:
        before = None
    layout = before or await create_and_wait(nameserver, topic, queues)
    others = [
        entry for entry in layout.entries if not entry.is_marker and (entry.write_queue_count, entry.read_queue_count) != (queues, queues)
    ]
    if before is not None and others:
        raise CommandError(f"topic {topic} exists with {_describe(layout.entries)}: it is left as it is")
    if as_json:
        print_json({"topic": topic, "created": before is None, "entries": [asdict(entry) for entry in layout.entries]})
    else:
        say(f"topic {topic} {'exists already' if before else 'created'}: {_describe(layout.entries)}")


async def create_and_wait(nameserver: str, topic: str, queues: int) -> TopicLayout:
    instance = Client(nameserver).instance()
    try:
        await instance.start()
        layout = await create_topic(instance, topic, queues)
    finally:
        await instance.close()
    await routed(AdminClient(Host.current(), nameserver), layout)
    return layout


def _describe(entries: tuple[LayoutEntry, ...]) -> str:
    return ", ".join(f"{entry.write_queue_count} queues on {entry.broker_name}" for entry in entries if not entry.is_marker)


async def _list(nameserver: str, as_json: bool) -> None:
    admin = AdminClient(Host.current(), nameserver)
    topics = await admin.topics()
    routes = await gather({topic: admin.route(topic) for topic in topics})
    layouts = {topic: routes.given[topic].layout for topic in topics if topic in routes.given}
    brokers = {topic: list(dict.fromkeys(entry.broker_name for entry in layout.entries)) for topic, layout in layouts.items()}
    if as_json:
        lines = [
            {"topic": topic, "queues": len(layout.write_queues), "brokers": brokers[topic], "version": layout.version.counter}
            for topic, layout in layouts.items()
        ]
        print_json({"topics": lines})
    else:
        rows = [(topic, len(layout.write_queues), ", ".join(brokers[topic]), layout.version.counter) for topic, layout in layouts.items()]
        print_table(["topic", ">queues", "brokers", ">version"], rows, empty="no topics")


async def _show(topic: str, nameserver: str, as_json: bool) -> None:
    admin = AdminClient(Host.current(), nameserver)
    route = await admin.route(topic)
    brokers = by_name(route.brokers)
    answers = await gather({name: admin.offsets(broker, topic) for name, broker in brokers.items()})
    layout = route.layout
    names = list(dict.fromkeys(entry.broker_name for entry in layout.entries))
    failed = {**answers.failed, **absent(names, brokers)}
    bounds = {(name, queue.queue_id): queue for name, queues in answers.given.items() for queue in queues}
    lines = []
    for number, queue in enumerate(layout.read_queues):
        at = bounds.get((queue.broker_name, queue.queue_id))
        lines.append(
            {
                "number": number,
                "broker": queue.broker_name,
                "queue_id": queue.queue_id,
                "min_offset": None if at is None else at.min_offset,
                "max_offset": None if at is None else at.max_offset,
                "registered": queue.broker_name in brokers and brokers[queue.broker_name].registered,
            }
        )
    if as_json:
        version = {"counter": layout.version.counter, "writer": layout.version.writer}
        print_json({"topic": topic, "version": version, "queues": lines, "failed": failed})
    else:
        counts = f"{len(layout.write_queues)} queues to write, {len(layout.read_queues)} to read"
        say(f"topic {topic}: {counts}, layout version {layout.version.counter}")
        columns = [">number", "broker", ">queue", ">first offset", ">next offset", "registered"]
        print_table(columns, [tuple(line.values()) for line in lines])
    if failed:
        raise CommandError("the answer is incomplete: " + "; ".join(f"broker {name}: {why}" for name, why in failed.items()))
