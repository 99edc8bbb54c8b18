"""lockstep topic delete."""

from typing import Annotated

import typer

from lockstep.cli.options import JsonOption, NameserverOption, TopicArgument, run
from lockstep.cli.render import print_json, print_line
from lockstep.cli.reporter import admin_client
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.operations.changes.topic_change import delete_topic, plan_deletion
from lockstep.operations.groups.parked import count_forgotten


def delete_command(
    topic: TopicArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Delete even a group's %RETRY% or %DLQ% topic, which holds the only copy of its messages.")
    ] = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Delete a topic, its messages, and every group's progress and parked keys in it. Sends to it fail, and consumers drop its queues."""
    run(_delete(topic, force, nameserver, as_json))


async def _delete(topic: str, force: bool, nameserver: str, as_json: bool) -> None:
    admin = admin_client(nameserver)
    before = await plan_deletion(admin, topic, force=force)
    forgotten = await count_forgotten(admin, topic=topic)
    if not as_json:
        for sentence in forgotten.sentences:
            print_line(sentence)
    deletion = await delete_topic(admin, before)
    if as_json:
        print_json({"topic": topic, "deleted": True, "version": deletion.version.counter, **forgotten.as_json()})
    else:
        print_line(
            f"topic {topic} is deleted: its {len(before.read_queues)} queues, their messages, and the progress of every group in them"
        )
