"""lockstep topic create | list | show; the other subcommands are in modules topic_*.py of their own."""

from dataclasses import asdict
from typing import Annotated

import typer

from lockstep.cli.commands.topic_alter import alter_command
from lockstep.cli.commands.topic_delete import delete_command
from lockstep.cli.commands.topic_forget_deleted import forget_deleted_command
from lockstep.cli.options import JsonOption, NameserverOption, TopicArgument, run
from lockstep.cli.render import print_json, print_line, print_table
from lockstep.cli.reporter import admin_client
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.operations.admin_client import gather_results
from lockstep.operations.changes.topic_change import create_topic, describe_queues
from lockstep.operations.errors import raise_if_incomplete
from lockstep.operations.watch.topic_query import read_topic, topic_json
from lockstep.protocol.layouts import QUEUES_PER_BROKER_MAX

app = typer.Typer(no_args_is_help=True, help="Create, list, show, alter and delete topics.")

app.command("alter")(alter_command)
app.command("delete")(delete_command)
app.command("forget-deleted")(forget_deleted_command)

QUEUES_DEFAULT = 4
"""RocketMQ: a producer's defaultTopicQueueNums."""


@app.command("create")
def create_command(
    topic: TopicArgument,
    queues: Annotated[
        int, typer.Option("--queues", "-q", min=1, max=QUEUES_PER_BROKER_MAX, help="Number of queues on EACH broker.")
    ] = QUEUES_DEFAULT,
    broker: Annotated[
        list[str] | None, typer.Option("--broker", help="Create queues on this broker only; may be repeated. By default on all brokers.")
    ] = None,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Create a topic. An existing topic is not changed (exit 1 if its queues differ)."""
    run(_create(topic, queues, tuple(broker or ()), nameserver, as_json))


@app.command("list")
def list_command(nameserver: NameserverOption = DEFAULT_NAMESERVER, as_json: JsonOption = False) -> None:
    """List all topics except internal ones, including the groups' %RETRY%GROUP (messages to retry) and %DLQ%GROUP (dead letters)."""
    run(_list(nameserver, as_json))


@app.command("show")
def show_command(topic: TopicArgument, nameserver: NameserverOption = DEFAULT_NAMESERVER, as_json: JsonOption = False) -> None:
    """Show a topic's layout, and the first and the next offset of each queue."""
    run(_show(topic, nameserver, as_json))


async def _create(topic: str, queues: int, brokers: tuple[str, ...], nameserver: str, as_json: bool) -> None:
    layout, is_new = await create_topic(admin_client(nameserver), topic, queues, brokers)
    if as_json:
        print_json({"topic": topic, "created": is_new, "entries": [asdict(entry) for entry in layout.entries]})
    else:
        print_line(f"topic {topic} {'created' if is_new else 'exists already'}: {describe_queues(layout.entries)}")


async def _list(nameserver: str, as_json: bool) -> None:
    admin = admin_client(nameserver)
    topics = await admin.topics()
    async with admin.keep_connections():
        routes = await gather_results({topic: admin.route(topic) for topic in topics})
    layouts = {topic: routes.values[topic].layout for topic in topics if topic in routes.values}
    brokers = {topic: list(layout.brokers) for topic, layout in layouts.items()}
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
    report = await read_topic(admin_client(nameserver), topic)
    layout = report.layout
    if as_json:
        print_json(topic_json(topic, report))
    else:
        counts = f"{len(layout.write_queues)} queues to write, {len(layout.read_queues)} to read"
        print_line(f"topic {topic}: {counts}, layout version {layout.version.counter}")
        columns = [">number", "broker", ">queue", ">first offset", ">next offset", "registered"]
        print_table(columns, [tuple(line.values()) for line in report.lines()])
    raise_if_incomplete(report.failed)
