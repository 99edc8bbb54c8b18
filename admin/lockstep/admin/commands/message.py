"""lockstep message show; `message find` is in message_find.py."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from lockstep.admin.client import AdminClient, gather_results
from lockstep.admin.commands.message_find import find_command
from lockstep.admin.find import Criteria, Found, find_id
from lockstep.admin.message_text import message_json
from lockstep.admin.options import CommandError, JsonOption, NameserverOption, raise_if_incomplete, run
from lockstep.admin.render import body_text, print_json, print_table
from lockstep.admin.search_progress import SearchProgress
from lockstep.admin.tracking import MEANINGS, Track, tracks
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.protocol.bodies import BrokerAddress
from lockstep.protocol.errors import RemoteProtocolError
from lockstep.protocol.ids import is_derived_store_host, is_unique_key, parse_offset_message_id
from lockstep.protocol.message import MessageExt, decode_messages
from lockstep.runtime.host import Host
from lockstep.runtime.safe_text import printable

app = typer.Typer(no_args_is_help=True, help="Show single messages, and find them by key, id or time.")

PORT_MAX = 65_535
LOG_OFFSET_MAX = 1 << 48
"""A log offset above this (256 TiB) is no offset: the id is a producer's."""
OFFSET_ID_DIGITS = 32
FOUND_MAX = 100
"""Messages with one producer's id, the newest, of which the oldest is shown: a retry or a dead letter keeps the id."""


app.command("find")(find_command)


@app.command("show")
def show_command(
    message_id: Annotated[
        str,
        typer.Argument(metavar="MSGID", help="The offset message id (32 hex digits), as `send` prints it, or the producer's id."),
    ],
    broker: Annotated[str | None, typer.Option("--broker", help="Search only this broker. By default all brokers.")] = None,
    track: Annotated[
        bool, typer.Option("--track", help="Show also, for each group of its topic, whether the group's progress is past it.")
    ] = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Show one stored message.

    It takes the offset message id, which contains the position of the message, or the id that the producer gave it, for which the logs
    are searched as by `lockstep message find --id`: of several messages with this id the oldest is shown.

    Every broker is searched at the log position that the id contains. The address inside the id is never dialled: it often can't be
    reached from here, or identifies a broker's store.

    --track compares positions, as RocketMQ does: CONSUMED (the group's progress is past the message), CONSUMED_BUT_FILTERED (so it is, and
    the group's current subscription does not match the tag), NOT_CONSUME_YET, NOT_ONLINE (no member is connected), PULL (the group pulls),
    CONSUME_BROADCASTING (each member keeps its own progress), UNKNOWN (the broker could not be reached). None proves that a listener ran.
    Known for sure are PARKED (its key is parked), RETRYING and DEAD_LETTERED (a copy is in the group's topic for that).
    """
    run(_show(message_id, broker, nameserver, as_json, with_tracks=track))


async def _show(message_id: str, broker: str | None, nameserver: str, as_json: bool, *, with_tracks: bool) -> None:
    place_of(message_id)  # raises for text that is no id, before anything is asked
    admin = AdminClient(Host.current(), nameserver)
    searched = brokers_to_search(await admin.brokers(), broker)
    message, owner = await find_by_id(admin, searched, message_id)
    group_tracks = await tracks(admin, owner, message) if with_tracks else []
    if as_json:
        print_json(message_json(message) | ({"track": [_track_json(each) for each in group_tracks]} if with_tracks else {}))
        return
    for name, value in message_json(message).items():
        shown = body_text(message) if name == "body" else printable(_flat(value))
        print(f"{name:18} {shown}")
    if with_tracks:
        print()
        rows = [(each.group, each.type.value, each.committed_offset, each.why or MEANINGS[each.type]) for each in group_tracks]
        print_table(
            ["group", "track", ">committed", "meaning"], rows, empty=f"no group subscribes to {message.stored_topic} or has read it"
        )


def _track_json(track: Track) -> dict[str, Any]:
    meaning = track.why or MEANINGS[track.type]
    return {"group": track.group, "track": track.type.value, "committed_offset": track.committed_offset, "meaning": meaning}


def place_of(message_id: str) -> tuple[str, int] | None:
    """Return (store host, log offset), or None for an id that a producer gave. Raise LocalProtocolError for text that is no message id."""
    if len(message_id) != OFFSET_ID_DIGITS and is_unique_key(message_id):
        return None
    host, offset = parse_offset_message_id(message_id)
    return (host, offset) if int(host.rpartition(":")[2]) <= PORT_MAX and 0 <= offset <= LOG_OFFSET_MAX else None


def brokers_to_search(brokers: Sequence[BrokerAddress], name: str | None) -> list[BrokerAddress]:
    """Return the broker `name`, or all if `name` is None. Raise CommandError if there is none."""
    if name is not None:
        named = [broker for broker in brokers if broker.name == name]
        if not named:
            known = ", ".join(broker.name for broker in brokers) or "none"
            raise CommandError(f"no broker is named {name!r}; the known brokers are {known}")
        return named
    if not brokers:
        raise CommandError("no broker has registered at the nameserver: start one first")
    return list(brokers)


async def find_by_id(admin: AdminClient, searched: Sequence[BrokerAddress], message_id: str) -> tuple[MessageExt, BrokerAddress]:
    """Return the message with this offset message id, or the first stored one with this producer's id, and its broker.

    Raise LocalProtocolError for text that is no message id, and CommandError if there is no such message, or several have the id.
    """
    place = place_of(message_id)
    if place is None:
        return await _find_by_producers_id(admin, searched, message_id)
    return await _find_by_offset_id(admin, searched, message_id.upper(), *place)


async def _find_by_producers_id(admin: AdminClient, searched: Sequence[BrokerAddress], message_id: str) -> tuple[MessageExt, BrokerAddress]:
    """Return the first stored message with this UNIQ_KEY and its broker. Raise CommandError if there is none."""
    found = Found(FOUND_MAX, SearchProgress(admin.host.clock))
    await find_id(admin, found, message_id, Criteria(), brokers=searched)
    found.progress.end_line()
    if not found.messages:
        raise_if_incomplete(found.failed)
        raise CommandError(
            f"no message has the id {message_id}, which a producer gave ({found.progress.describe()} were searched): retention has removed "
            "it, or it was not stored"
        )
    message = found.messages[-1]
    return message, next(broker for broker in searched if broker.name == message.broker_name)


async def _find_by_offset_id(
    admin: AdminClient, searched: Sequence[BrokerAddress], message_id: str, host: str, offset: int
) -> tuple[MessageExt, BrokerAddress]:
    """Return the message with this id and its broker. Raise CommandError if there is none, or if several brokers have one."""
    results = await gather_results({broker.name: admin.view(broker, offset) for broker in searched})
    reasons, found = dict(results.failed), list[tuple[MessageExt, BrokerAddress]]()
    for broker in searched:
        if broker.name in reasons:
            continue
        try:
            message = next(iter(decode_messages(results.values[broker.name], broker.name)), None)
        except RemoteProtocolError as error:
            reasons[broker.name] = str(error)
            continue
        if message is not None and message.offset_message_id == message_id:
            found.append((message, broker))
        else:
            reasons[broker.name] = "another message is there" if message is None else f"message {message.offset_message_id} is there"
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(broker.name for _, broker in found)
        raise CommandError(f"{len(found)} messages have the id {message_id}, at the brokers {names}: choose one with --broker")
    stored_by = f"the store with the id {host}" if is_derived_store_host(host) else f"the broker at {host}"
    why = "; ".join(f"{broker.name}: {reasons[broker.name]}" for broker in searched)
    raise CommandError(f"message {message_id}, stored by {stored_by} at log offset {offset}, was not found ({why})")


def _flat(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={item}" for name, item in value.items()) or "-"
    if isinstance(value, list):
        return " ".join(str(item) for item in value) or "-"
    return "-" if value is None else str(value)
