"""lockstep message show."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from lockstep.admin.client import AdminClient, gather_results
from lockstep.admin.options import CommandError, JsonOption, NameserverOption, run
from lockstep.admin.render import body_text, format_time, print_json, print_table
from lockstep.admin.tracking import MEANINGS, Track, tracks
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.protocol.bodies import BrokerAddress
from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError
from lockstep.protocol.ids import is_derived_store_host, parse_offset_message_id, unique_key_time
from lockstep.protocol.message import MessageExt, decode_messages
from lockstep.runtime.host import Host
from lockstep.runtime.safe_text import printable

app = typer.Typer(no_args_is_help=True, help="Show single messages.")

PORT_MAX = 65_535
LOG_OFFSET_MAX = 1 << 48
"""A log offset above this (256 TiB) is no offset: the id is a producer's."""
CLOCKS_APART_MS = 60_000
"""How far the clock of the broker may be behind that of the producer for a proposed search to find the message."""


@app.callback()
def _callback() -> None:
    """Show single messages."""


@app.command("show")
def show_command(
    message_id: Annotated[
        str, typer.Argument(metavar="MSGID", help="The offset message id (32 hex digits), as `send` and `tail --json` print it.")
    ],
    broker: Annotated[str | None, typer.Option("--broker", help="Search only this broker. By default all brokers.")] = None,
    track: Annotated[
        bool, typer.Option("--track", help="Show also, for each group of its topic, whether the group's progress is past it.")
    ] = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Show one stored message.

    It takes the offset message id, which contains the position of the message. A producer's own id and a key do not: find such a message
    with `lockstep tail TOPIC --since WHEN --no-follow --key KEY_OR_ID`.

    Every broker is searched at the log position that the id contains. The address inside the id is never dialled: it often can't be
    reached from here, or identifies a broker's store.

    --track compares positions, as RocketMQ does: CONSUMED (the group's progress is past the message), CONSUMED_BUT_FILTERED (so it is, and
    the group's current subscription does not match the tag), NOT_CONSUME_YET, NOT_ONLINE (no member is connected), PULL (the group pulls),
    CONSUME_BROADCASTING (each member keeps its own progress), UNKNOWN (the broker could not be reached). None proves that a listener ran.
    """
    run(_show(message_id, broker, nameserver, as_json, with_tracks=track))


async def _show(message_id: str, broker: str | None, nameserver: str, as_json: bool, *, with_tracks: bool) -> None:
    host, offset = parse_id(message_id, Host.current().clock.wall_ms())
    admin = AdminClient(Host.current(), nameserver)
    searched = brokers_to_search(await admin.brokers(), broker)
    message, owner = await find_by_offset_id(admin, searched, message_id.upper(), host, offset)
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


def parse_id(message_id: str, now_ms: int) -> tuple[str, int]:
    """Return (store host, log offset). Raise LocalProtocolError for text that isn't an offset message id."""
    host, offset = parse_offset_message_id(message_id)
    if int(host.rpartition(":")[2]) > PORT_MAX or not 0 <= offset <= LOG_OFFSET_MAX:
        sent_ms = unique_key_time(message_id, now_ms)
        when, start = ("", "--from-start") if sent_ms is None else _when(sent_ms)
        raise LocalProtocolError(
            f"{message_id} is a message id assigned by a producer{when}, which does not contain the message's position: use the offset "
            "message id, which `lockstep send`, `lockstep tail --json` and SendResult.offset_message_id show, or find the message with "
            f"`lockstep tail TOPIC {start} --no-follow --key {message_id}`"
        )
    return host, offset


def _when(sent_ms: int) -> tuple[str, str]:
    return f" at {format_time(sent_ms)} by its clock", f"--since {format_time(max(0, sent_ms - CLOCKS_APART_MS))}"


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


async def find_by_offset_id(
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


def message_json(message: MessageExt) -> dict[str, Any]:
    """Return a message as the commands print it in JSON.

    For a body that is not UTF-8, `body` is null and `bodyHex` holds its bytes. For a body that can't be decompressed, `bodyHex` holds the
    stored bytes and `bodyError` the reason.
    """
    try:
        body: dict[str, Any] = {"body": message.body.decode()}
    except UnicodeDecodeError:
        body = {"body": None, "bodyHex": message.body.hex()}
    except RemoteProtocolError as error:
        body = {"body": None, "bodyHex": message.stored_body.hex(), "bodyError": str(error)}
    return {
        "topic": message.topic,
        "broker": message.broker_name,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "tags": message.tags,
        "keys": list(message.keys),
        "sharding_key": message.sharding_key,
        "born_at": format_time(message.born_ms),
        "stored_at": format_time(message.stored_ms),
        "reconsume_times": message.reconsume_times,
        "properties": message.properties,
        **body,
    }


def _flat(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={item}" for name, item in value.items()) or "-"
    if isinstance(value, list):
        return " ".join(str(item) for item in value) or "-"
    return "-" if value is None else str(value)
