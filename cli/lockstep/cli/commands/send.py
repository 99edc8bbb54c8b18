"""lockstep send."""

import os
import sys
from typing import Annotated

import typer

from lockstep.cli.options import JsonOption, NameserverOption, TopicArgument, run
from lockstep.cli.render import print_json, print_line
from lockstep.cli.reporter import admin_client
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.operations.changes.sending import send_message
from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.message import Message
from lockstep.protocol.properties import check_text


def send_command(
    topic: TopicArgument,
    body: Annotated[str, typer.Argument(help="The message body as text, or - to read its bytes from stdin.")],
    key: Annotated[list[str] | None, typer.Option("--key", "-k", help="A key of the message; may be repeated.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", "-t", help="The message's tag, by which subscriptions filter.")] = None,
    sharding_key: Annotated[
        str | None, typer.Option("--sharding-key", "-s", help="Messages of one sharding key go to one queue, in order.")
    ] = None,
    prop: Annotated[
        list[str] | None, typer.Option("--property", "-p", metavar="NAME=VALUE", help="A user property; may be repeated.")
    ] = None,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Send one message, and print its queue, its offset and its ids."""
    data = sys.stdin.buffer.read() if body == "-" else os.fsencode(body)
    run(_send(topic, data, key or [], tag, sharding_key, prop or [], nameserver, as_json))


async def _send(
    topic: str, body: bytes, keys: list[str], tag: str | None, sharding_key: str | None, props: list[str], nameserver: str, as_json: bool
) -> None:
    if sharding_key is not None:
        check_text("--sharding-key", sharding_key)
    message = Message(topic, body, tags=tag, keys=keys, properties=dict(map(_property, props)), sharding_key=sharding_key)
    result = await send_message(admin_client(nameserver), message)
    if as_json:
        print_json(
            {
                "status": result.status.name,
                "message_id": result.message_id,
                "offset_message_id": result.offset_message_id,
                "topic": topic,
                "broker": result.queue.broker_name,
                "queue_id": result.queue.queue_id,
                "queue_offset": result.queue_offset,
            }
        )
    else:
        ids = f"id {result.message_id}, offset id {result.offset_message_id or 'unknown'}"
        print_line(f"{result.status.name} {result.queue} offset {result.queue_offset}, {ids}")


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise LocalProtocolError(f"--property {text!r}: expected NAME=VALUE")
    return name, value
