"""lockstep topic delete."""

from typing import Annotated

import typer

from lockstep.admin.client import AdminClient
from lockstep.admin.commands.topic_alter import check_not_system_topic
from lockstep.admin.layout_publish import publish_layout
from lockstep.admin.options import CommandError, JsonOption, NameserverOption, TopicArgument, run
from lockstep.admin.render import print_json, print_line
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.protocol.errors import TopicNotExistError
from lockstep.protocol.names import DLQ_PREFIX, RETRY_PREFIX
from lockstep.runtime.host import Host


def delete_command(
    topic: TopicArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Delete even a group's %RETRY% or %DLQ% topic, which holds the only copy of its messages.")
    ] = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Delete a topic, its messages and every group's progress in it. Sends to it fail, and consumers drop its queues."""
    run(_delete(topic, force, nameserver, as_json))


async def _delete(topic: str, force: bool, nameserver: str, as_json: bool) -> None:
    check_not_system_topic(topic)
    admin = AdminClient(Host.current(), nameserver)
    try:
        before = (await admin.route(topic)).layout
    except TopicNotExistError:
        raise CommandError(f"topic {topic} does not exist; run `lockstep topic list` to list the topics") from None
    if not force:
        _check_not_group_topic(topic)
    deletion = before.deletion
    await publish_layout(admin, deletion)
    if as_json:
        print_json({"topic": topic, "deleted": True, "version": deletion.version.counter})
    else:
        print_line(
            f"topic {topic} is deleted: its {len(before.read_queues)} queues, their messages, and the progress of every group in them"
        )


def _check_not_group_topic(topic: str) -> None:
    """Raise CommandError for a group's retry or dead-letter topic: it holds the only copy of its messages."""
    for prefix, what in ((RETRY_PREFIX, "messages that wait for a retry"), (DLQ_PREFIX, "dead letters")):
        if topic.startswith(prefix):
            group = topic.removeprefix(prefix)
            raise CommandError(
                f"nothing was changed: topic {topic} holds the {what} of group {group}, which would be lost. Use --force to delete it"
            )
