"""lockstep message show: one stored message by its offsetMsgId, and what each group has made of it."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from lockstep.admin.client import AdminClient, gather
from lockstep.admin.options import CommandError, JsonOption, NameserverOption, run
from lockstep.admin.render import body_text, print_json, print_table, stamp
from lockstep.admin.tracking import MEANINGS, Track, tracks
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.protocol.bodies import BrokerAddress
from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError
from lockstep.protocol.ids import is_derived_store_host, parse_offset_message_id
from lockstep.protocol.message import MessageExt, decode_messages
from lockstep.runtime.host import Host
from lockstep.runtime.safe_text import printable

app = typer.Typer(no_args_is_help=True, help="Single messages.")

PORT_MAX = 65_535


@app.callback()
def _group() -> None:
    """Single messages."""


@app.command("show")
def show_command(
    message_id: Annotated[str, typer.Argument(metavar="MSGID", help="The offset message id (32 hex digits), as `send` prints it.")],
    broker: Annotated[str | None, typer.Option("--broker", help="Ask only this broker.")] = None,
    track: Annotated[bool, typer.Option("--track", help="Say what each group of its topic has made of it.")] = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """One stored message. The address inside the id is compared, never dialled: it is often one that cannot be reached from here, or
    stands for a broker's store. Every broker is asked for the record at the id's place in its log; a record knows its own id.

    --track compares positions, as RocketMQ does: CONSUMED (the group's progress is behind it), CONSUMED_BUT_FILTERED (so it is, and what
    the group subscribes to now lacks the message's tag), NOT_CONSUME_YET, NOT_ONLINE (no member is connected), PULL (the group pulls),
    CONSUME_BROADCASTING (each member has progress of its own), UNKNOWN (the broker could not be asked). None proves that a listener ran.
    """
    run(_show(message_id, broker, nameserver, as_json, with_tracks=track))


async def _show(message_id: str, broker: str | None, nameserver: str, as_json: bool, *, with_tracks: bool) -> None:
    host, offset = parse_id(message_id)
    admin = AdminClient(Host.current(), nameserver)
    asked = candidates(await admin.brokers(), broker)
    message, found_at = await _find(admin, asked, message_id.upper(), host, offset)
    found = await tracks(admin, found_at, message) if with_tracks else []
    if as_json:
        print_json(message_json(message) | ({"track": [_track_json(each) for each in found]} if with_tracks else {}))
        return
    for name, value in message_json(message).items():
        shown = body_text(message) if name == "body" else printable(_flat(value))
        print(f"{name:18} {shown}")
    if with_tracks:
        print()
        rows = [(each.group, each.type.value, each.committed_offset, each.why or MEANINGS[each.type]) for each in found]
        print_table(
            ["group", "track", ">committed", "meaning"], rows, empty=f"no group subscribes to {message.stored_topic} or has read it"
        )


def _track_json(track: Track) -> dict[str, Any]:
    meaning = track.why or MEANINGS[track.type]
    return {"group": track.group, "track": track.type.value, "committed_offset": track.committed_offset, "meaning": meaning}


def parse_id(message_id: str) -> tuple[str, int]:
    """(store host, log offset); LocalProtocolError for an id that can't be an offset message id."""
    host, offset = parse_offset_message_id(message_id)
    if int(host.rpartition(":")[2]) > PORT_MAX or offset < 0:
        raise LocalProtocolError(
            f"{message_id} is a producer's message id, and says nothing about where the message is: "
            "use the offset message id (`lockstep send` and `lockstep tail --json` print both)"
        )
    return host, offset


def candidates(brokers: Sequence[BrokerAddress], name: str | None) -> list[BrokerAddress]:
    """Whom to ask: the named broker, else all."""
    if name is not None:
        named = [broker for broker in brokers if broker.name == name]
        if not named:
            known = ", ".join(broker.name for broker in brokers) or "none"
            raise CommandError(f"no broker {name!r}; known: {known}")
        return named
    if not brokers:
        raise CommandError("no broker has registered")
    return list(brokers)


async def _find(
    admin: AdminClient, asked: Sequence[BrokerAddress], message_id: str, host: str, offset: int
) -> tuple[MessageExt, BrokerAddress]:
    """The one message with this id. CommandError where there is none, and where records of two brokers have it."""
    answers = await gather({broker.name: admin.view(broker, offset) for broker in asked})
    said, found = dict(answers.failed), list[tuple[MessageExt, BrokerAddress]]()
    for broker in asked:
        if broker.name in said:
            continue
        try:
            message = next(iter(decode_messages(answers.given[broker.name], broker.name)), None)
        except RemoteProtocolError as error:
            said[broker.name] = str(error)
            continue
        if message is not None and message.offset_message_id == message_id:
            found.append((message, broker))
        else:
            said[broker.name] = "another message is there" if message is None else f"message {message.offset_message_id} is there"
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(broker.name for _, broker in found)
        raise CommandError(f"{len(found)} messages have the id {message_id}, at the brokers {names}: name one of them by --broker")
    whose = f"the store that {host} stands for" if is_derived_store_host(host) else f"the broker at {host}"
    why = "; ".join(f"{broker.name}: {said[broker.name]}" for broker in asked)
    raise CommandError(f"message {message_id}, stored by {whose} at log offset {offset}, was not found ({why})")


def message_json(message: MessageExt) -> dict[str, Any]:
    """A message as the commands print it.

    A body that is not UTF-8 has null as `body` and its bytes as `bodyHex`; of one that can't be decompressed these are the stored bytes,
    and `bodyError` says why.
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
        "born_at": stamp(message.born_ms),
        "stored_at": stamp(message.stored_ms),
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
