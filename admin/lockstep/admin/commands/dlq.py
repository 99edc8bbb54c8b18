"""lockstep dlq ls | show | replay: messages that a group has given up."""

import asyncio
from typing import Annotated, Any

import typer

from lockstep.admin.client import AdminClient
from lockstep.admin.commands.message import message_json
from lockstep.admin.dead_letters import DeadLetter, Morgue, letters, morgues, remember
from lockstep.admin.group_reading import read_group
from lockstep.admin.options import DEFAULT_NAMESERVER, CommandFailed, JsonOption, NameserverOption, run
from lockstep.admin.render import body_text, print_json, print_table, printable, stamp
from lockstep.client.producer.producer import Producer
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import TopicNotExist
from lockstep.protocol.headers.send import SendBackHeader
from lockstep.protocol.names import DLQ_PREFIX, check_group, retry_topic
from lockstep.runtime.host import Host

app = typer.Typer(no_args_is_help=True, help="Dead letters: messages that a group has given up.")

PRODUCER_GROUP = "LOCKSTEP_CLI"
RETRY_LEVEL = 1
"""One second: the shortest delay."""
ATTEMPTS_MAX = (1 << 31) - 1
REMEMBER_EVERY = 50
"""So many are replayed a second time, should the command be killed."""
GroupArgument = Annotated[str, typer.Argument(help="The group that gave the messages up.")]


@app.command("ls")
def ls_command(
    group: Annotated[str | None, typer.Argument(help="A group: its dead letters. Without one: which groups have some.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="The newest so many at each broker.")] = 20,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Which groups have dead letters, and what one group's are."""
    run(_groups(nameserver, as_json) if group is None else _ls(group, limit, nameserver, as_json))


@app.command("show")
def show_command(
    group: GroupArgument,
    message_id: Annotated[str, typer.Argument(metavar="MSGID", help="The offset message id, as `dlq ls` prints it.")],
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """One dead letter: where it came from, how often and why it failed, what it says."""
    run(_show(group, message_id, nameserver, as_json))


@app.command("replay")
def replay_command(
    group: GroupArgument,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", help="retry: this group alone gets them again; topic: all groups of the topic they came from. Else by the group."
        ),
    ] = None,
    rate: Annotated[int, typer.Option("--rate", min=1, max=100_000, help="Messages a second.")] = 100,
    everything: Annotated[bool, typer.Option("--all", help="Also those that were replayed before.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say how many, and change nothing.")] = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Hand dead letters out again, each once; they stay in the dead-letter topic. A concurrent group tries each once more."""
    run(_replay(group, to, rate, everything, dry_run, nameserver, as_json))


async def _groups(nameserver: str, as_json: bool) -> None:
    admin = AdminClient(Host.current(), nameserver)
    rows = []
    for topic in [topic for topic in await admin.topics() if topic.startswith(DLQ_PREFIX)]:
        found = await morgues(admin, topic.removeprefix(DLQ_PREFIX))
        stored = sum(morgue.held.max_offset - morgue.held.min_offset for morgue in found)
        rows.append((topic.removeprefix(DLQ_PREFIX), stored, sum(morgue.waiting for morgue in found)))
    if as_json:
        print_json({"groups": [{"group": group, "stored": stored, "not_replayed": waiting} for group, stored, waiting in rows]})
    else:
        print_table(["group", ">dead letters", ">not replayed"], rows, empty="no group has dead letters")


async def _found(admin: AdminClient, group: str) -> list[Morgue]:
    check_group(group)
    try:
        return await morgues(admin, group)
    except TopicNotExist:
        raise CommandFailed(f"group {group} has no dead letters; `lockstep dlq ls` names the groups that have some") from None


async def _ls(group: str, limit: int, nameserver: str, as_json: bool) -> None:
    admin = AdminClient(Host.current(), nameserver)
    found = []
    for morgue in await _found(admin, group):
        first = max(morgue.held.min_offset, morgue.held.max_offset - limit)
        found += [(letter, letter.message.queue_offset < morgue.next) async for letter in letters(admin, morgue, group, first)]
    if as_json:
        print_json({"group": group, "dead_letters": [{**_json(letter), "replayed": replayed} for letter, replayed in found]})
        return
    rows = [
        (
            letter.message.offset_message_id,
            stamp(letter.message.stored_ms),
            letter.origin_topic,
            letter.message.reconsume_times,
            replayed,
            letter.reason,
            body_text(letter.message)[:60],
        )
        for letter, replayed in found
    ]
    print_table(["id", "given up at", "topic", ">attempts", "replayed", "reason", "body"], rows, empty="no dead letters")


def _json(letter: DeadLetter) -> dict[str, Any]:
    facts = {"origin_topic": letter.origin_topic, "origin_message_id": letter.origin_id, "reason": letter.reason}
    return {**facts, **message_json(letter.message)}


async def _show(group: str, message_id: str, nameserver: str, as_json: bool) -> None:
    admin = AdminClient(Host.current(), nameserver)
    for morgue in await _found(admin, group):
        async for letter in letters(admin, morgue, group, morgue.held.min_offset):
            if letter.message.offset_message_id == message_id.upper():
                if as_json:
                    print_json(_json(letter))
                else:
                    for name, value in _json(letter).items():
                        print(f"{name:18} {body_text(letter.message) if name == 'body' else printable(str(value))}")
                return
    raise CommandFailed(f"group {group} has no dead letter {message_id}; `lockstep dlq ls {group}` prints their ids")


async def _replay(group: str, to: str | None, rate: int, everything: bool, dry_run: bool, nameserver: str, as_json: bool) -> None:
    admin = AdminClient(Host.current(), nameserver)
    found = await _found(admin, group)
    way = await _way(admin, group, to)
    counts = {morgue: morgue.held.max_offset - morgue.held.min_offset if everything else morgue.waiting for morgue in found}
    if not dry_run:
        async with Producer(PRODUCER_GROUP, nameserver=nameserver) as producer:
            for morgue in found:
                await _hand_out(admin, producer, morgue, group, way, rate, everything=everything)
    count = sum(counts.values())
    target = retry_topic(group) if way == "retry" else "the topics that they came from"
    if as_json:
        print_json({"group": group, "done": not dry_run, "to": way, "count": count})
    else:
        print(f"{count} dead letters of {group} {'would go' if dry_run else 'went'} to {target}")


async def _way(admin: AdminClient, group: str, to: str | None) -> str:
    """Where the group's members look: a concurrent group reads its retry topic, an ordered one does not."""
    if to not in (None, "retry", "topic"):
        raise CommandFailed(f"--to {to}: expected retry or topic")
    report, _ = await read_group(admin, group)
    ordered = None if report is None else report.ordered
    if to == "retry" and ordered:
        raise CommandFailed(f"group {group} is ordered: its members read no retry topic; say --to topic")
    if to is None and ordered is None:
        raise CommandFailed(f"no member of {group} is there to tell whether it is ordered: say --to retry (concurrent) or --to topic")
    return to or ("topic" if ordered else "retry")


async def _hand_out(admin: AdminClient, producer: Producer, morgue: Morgue, group: str, way: str, rate: int, *, everything: bool) -> None:
    following = morgue.next
    try:
        async for letter in letters(admin, morgue, group, morgue.held.min_offset if everything else morgue.next):
            if way == "topic":
                await producer.send(letter.again(), sharding_key=letter.message.sharding_key)
            else:
                header = SendBackHeader(letter.physical_offset, group, RETRY_LEVEL, max_reconsume_times=ATTEMPTS_MAX)
                await admin.ask(letter.broker, RequestCode.CONSUMER_SEND_MSG_BACK, header)
            following = max(following, letter.message.queue_offset + 1)
            if following % REMEMBER_EVERY == 0:
                await remember(admin, morgue, group, following)
            await asyncio.sleep(1 / rate)
    finally:
        if following > morgue.next:
            await remember(admin, morgue, group, following)
