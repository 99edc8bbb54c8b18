"""lockstep message show: one stored message by its offsetMsgId, and what each group has made of it."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from lockstep.admin.client import AdminClient
from lockstep.admin.options import DEFAULT_NAMESERVER, CommandFailed, JsonOption, NameserverOption, run
from lockstep.admin.render import body_text, print_json, print_table, stamp
from lockstep.admin.tracking import MEANINGS, Track, tracks
from lockstep.protocol.bodies import BrokerAddress
from lockstep.protocol.errors import BrokerError, LocalProtocolError, RemoteProtocolError, TransportError
from lockstep.protocol.ids import parse_offset_message_id
from lockstep.protocol.message import MessageExt, decode_messages
from lockstep.runtime.host import Host
from lockstep.runtime.text import printable

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
    """One stored message. The address inside the id is compared, never dialled: it is often one that cannot be reached from here.

    --track compares positions, as RocketMQ does: CONSUMED (the group's progress is behind it), CONSUMED_BUT_FILTERED (so it is, and what
    the group subscribes to now lacks the message's tag), NOT_CONSUME_YET, NOT_ONLINE (no member is connected), PULL (the group pulls),
    CONSUME_BROADCASTING (each member has progress of its own), UNKNOWN (the broker could not be asked). None proves that a listener ran.
    """
    run(_show(message_id, broker, nameserver, as_json, with_tracks=track))


async def _show(message_id: str, broker: str | None, nameserver: str, as_json: bool, *, with_tracks: bool) -> None:
    host, offset = parse_id(message_id)
    admin = AdminClient(Host.current(), nameserver)
    asked = candidates(await admin.brokers(), host, broker)
    message, found_at = await _find(admin, asked, message_id.upper(), offset)
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


def candidates(brokers: Sequence[BrokerAddress], host: str, name: str | None) -> list[BrokerAddress]:
    """Whom to ask, in order: the named broker; else those registered under the id's address, then the others.

    Asking a wrong one is harmless: a record carries its own id, which is compared.
    """
    if name is not None:
        named = [broker for broker in brokers if broker.name == name]
        if not named:
            known = ", ".join(broker.name for broker in brokers) or "none"
            raise CommandFailed(f"no broker {name!r}; known: {known}")
        return named
    if not brokers:
        raise CommandFailed("no broker has registered")
    return sorted(brokers, key=lambda broker: broker.address != host)


async def _find(admin: AdminClient, asked: Sequence[BrokerAddress], message_id: str, offset: int) -> tuple[MessageExt, BrokerAddress]:
    said = []
    for broker in asked:
        try:
            record = await admin.view(broker, offset)
            message = next(iter(decode_messages(record, broker.name)), None)
        except (BrokerError, TransportError, RemoteProtocolError) as error:
            said.append(f"{broker.name}: {error}")
            continue
        if message is not None and message.offset_message_id == message_id:
            return message, broker
        said.append(f"{broker.name}: another message is there")
    raise CommandFailed(f"message {message_id} was not found ({'; '.join(said)})")


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
