"""lockstep topic list | show. The changes are declared in operations/changes."""

import typer

from lockstep.cli.change_command import add_changes
from lockstep.cli.options import DEFAULT_CLUSTER, JsonOption, NameserverOption, TopicArgument, run
from lockstep.cli.render import print_json, print_line, print_table
from lockstep.cli.reporter import admin_client
from lockstep.operations.admin_client import gather_results
from lockstep.operations.changes.topic_alter import TopicAlter
from lockstep.operations.changes.topic_create import TopicCreate
from lockstep.operations.changes.topic_delete import TopicDelete
from lockstep.operations.changes.topic_forget_deleted import TopicForgetDeleted
from lockstep.operations.changes.topic_purge import TopicPurge
from lockstep.operations.errors import raise_if_incomplete
from lockstep.operations.watch.topic_query import read_topic, topic_json
from lockstep.runtime.connections.cluster_address import ClusterAddress

app = typer.Typer(no_args_is_help=True, help="Create, list, show, alter, purge and delete topics.")

add_changes(app, (TopicCreate, TopicAlter, TopicPurge, TopicDelete, TopicForgetDeleted))


@app.command("list")
def list_command(nameserver: NameserverOption = DEFAULT_CLUSTER, as_json: JsonOption = False) -> None:
    """List all topics except internal ones, including the groups' %RETRY%GROUP (messages to retry) and %DLQ%GROUP (dead letters)."""
    run(_list(nameserver, as_json))


@app.command("show")
def show_command(topic: TopicArgument, nameserver: NameserverOption = DEFAULT_CLUSTER, as_json: JsonOption = False) -> None:
    """Show a topic's layout, and the first and the next offset of each queue."""
    run(_show(topic, nameserver, as_json))


async def _list(nameserver: ClusterAddress, as_json: bool) -> None:
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


async def _show(topic: str, nameserver: ClusterAddress, as_json: bool) -> None:
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
