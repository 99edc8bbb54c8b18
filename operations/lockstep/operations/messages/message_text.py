"""Stored messages as the commands print them: as JSON, or on one line."""

import shlex
from collections.abc import Iterable
from typing import Any

from lockstep.operations.messages.waiting import home_topic, waiting_of
from lockstep.operations.text import body_text, format_time
from lockstep.protocol.errors import RemoteProtocolError
from lockstep.protocol.messages.message import MessageExt
from lockstep.runtime.logs.safe_text import printable


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
    return {**message_facts(message), **body}


def message_facts(message: MessageExt) -> dict[str, Any]:
    """Return a message as `message_json` does, without its body.

    `due_at` is None for a message that does not wait for a time. Of one that waits, `queue_id` and `queue_offset` are its place in a delay
    queue or a waiting room. `undecided_transaction` is the transaction for whose end it waits.
    """
    waiting = waiting_of(message)
    return {
        "topic": home_topic(message),
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
        "due_at": None if waiting is None or waiting.due_ms is None else format_time(waiting.due_ms),
        "undecided_transaction": None if waiting is None else waiting.transaction_id or None,
        "reconsume_times": message.reconsume_times,
        "properties": message.properties,
    }


def next_steps(messages: Iterable[MessageExt]) -> list[str]:
    """Return in sentences what to do about those that wait for the end of their transactions, one for each transaction."""
    waits = (waiting_of(each) for each in messages)
    names = dict.fromkeys(each.transaction_id for each in waits if each is not None and each.transaction_id)
    return [
        f"transaction {name} is not decided: `lockstep tx show {shlex.quote(name)}` says who is asked, and how to decide" for name in names
    ]


def message_line(message: MessageExt) -> str:
    """Return a message on one line: when and where it is stored, its tag and keys, when it is due if it waits, its body."""
    facts = [format_time(message.stored_ms), f"{message.broker_name}:{message.queue_id}", str(message.queue_offset)]
    facts += [f"tag={message.tags}"] if message.tags else []
    facts += [f"key={key}" for key in message.keys]
    facts += [f"sharding-key={message.sharding_key}"] if message.sharding_key else []
    waiting = waiting_of(message)
    if waiting is not None:
        due_ms = waiting.due_ms
        facts.append(f"due={format_time(due_ms)}" if due_ms is not None else f"undecided-transaction={waiting.transaction_id}")
    return f"{printable(' '.join(facts))}  {body_text(message)}"
