"""lockstep message show; `message find` is in message_find.py."""

from collections.abc import Mapping
from typing import Annotated

import typer

from lockstep.cli.commands.message_find import find_command
from lockstep.cli.options import DEFAULT_CLUSTER, JsonOption, NameserverOption, run
from lockstep.cli.render import print_json, print_line, print_table
from lockstep.cli.reporter import admin_client
from lockstep.operations.messages.message_query import brokers_to_search, find_by_id, place_of, was_recalled
from lockstep.operations.messages.message_text import message_json, next_steps
from lockstep.operations.messages.message_track import track_json, track_text
from lockstep.operations.messages.tracking import tracks
from lockstep.operations.messages.waiting import home_queue
from lockstep.operations.text import body_text
from lockstep.runtime.connections.cluster_address import ClusterAddress
from lockstep.runtime.logs.safe_text import printable

RECALLED = "it was recalled while it waited for its delay: it will not be delivered"

app = typer.Typer(no_args_is_help=True, help="Show single messages, and find them by key, id or time.")


app.command("find")(find_command)


@app.command("show")
def show_command(
    message_id: Annotated[
        str,
        typer.Argument(metavar="MSGID", help="The offset message id (32 hex digits), as `send` prints it, or the producer's id."),
    ],
    broker: Annotated[str | None, typer.Option("--broker", help="Search only this broker. By default all brokers.")] = None,
    track: Annotated[bool, typer.Option("--track", help="Show also what became of it in each group of its topic.")] = False,
    nameserver: NameserverOption = DEFAULT_CLUSTER,
    as_json: JsonOption = False,
) -> None:
    """Show one stored message.

    It takes the offset message id, which contains the position of the message, or the id that the producer gave it, for which the logs
    are searched as by `lockstep message find --id`: of several messages with this id the oldest is shown. Of a message that waits for its
    delay or its next retry, due_at is the time, and queue_id and queue_offset are its place in a delay queue.

    Every broker is searched at the log position that the id contains. The address inside the id is never dialled: it often can't be
    reached from here, or identifies a broker's store.

    --track compares positions, as RocketMQ does: CONSUMED (the group's progress is past the message), CONSUMED_BUT_FILTERED (so it is, and
    the group's current subscription, by tags or SQL92, does not match it), NOT_CONSUME_YET, NOT_ONLINE (no member is connected, and the
    group has no progress there), PULL (the group pulls), CONSUME_BROADCASTING (each member keeps its own progress), UNKNOWN (the broker
    could not be reached). None proves that a listener ran. Known for sure are PARKED (its key is parked), DELAYED (it waits for its delay),
    UNDECIDED (it waits for the end of its transaction), RECALLED (it was recalled while it waited), RETRYING and DEAD_LETTERED (a copy
    waits for the next call, or is in the group's dead-letter topic). That no member is connected is printed beside the rest.
    """
    run(_show(message_id, broker, nameserver, as_json, with_tracks=track))


async def _show(message_id: str, broker: str | None, nameserver: ClusterAddress, as_json: bool, *, with_tracks: bool) -> None:
    place_of(message_id)  # raises for text that is no id, before anything is asked
    admin = admin_client(nameserver)
    searched = brokers_to_search(await admin.brokers(), broker)
    message, owner = await find_by_id(admin, searched, message_id)
    recalled = await was_recalled(admin, owner, message)
    group_tracks = await tracks(admin, owner, message) if with_tracks else []
    now_ms = admin.host.clock.wall_ms()
    if as_json:
        tracked = {"track": [track_json(each, now_ms) for each in group_tracks]} if with_tracks else {}
        print_json({**message_json(message), "recalled": recalled, **tracked})
        return
    for name, value in message_json(message).items():
        shown = body_text(message) if name == "body" else printable(_flat(value))
        print(f"{name:18} {shown}")
    if recalled:
        print_line(RECALLED)
    for line in next_steps([message]):
        print_line(line)
    if with_tracks:
        print()
        rows = [(each.group, each.type.value, each.committed_offset, track_text(each, now_ms)) for each in group_tracks]
        print_table(
            ["group", "track", ">committed", "meaning"], rows, empty=f"no group subscribes to {home_queue(message).topic} or has read it"
        )


def _flat(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={item}" for name, item in value.items()) or "-"
    if isinstance(value, list):
        return " ".join(str(item) for item in value) or "-"
    return "-" if value is None else str(value)
