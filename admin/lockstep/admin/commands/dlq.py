"""lockstep dlq ls | show | replay: messages that a group has given up."""

from collections.abc import Mapping
from itertools import chain
from typing import Annotated, Any

import typer

from lockstep.admin.client import AdminClient, Answers, gather, incomplete
from lockstep.admin.commands.message import message_json
from lockstep.admin.dead_letters import DeadLetter, DeadLetterQueue, letters, morgues
from lockstep.admin.group_query import read_group
from lockstep.admin.group_report import GroupReport
from lockstep.admin.options import CommandError, JsonOption, NameserverOption, run
from lockstep.admin.render import body_text, print_json, print_table, say, stamp
from lockstep.admin.replay import Replay, ReplayResult, words
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.client.producer.producer import Producer
from lockstep.protocol.errors import ConfigError, TopicNotExistError
from lockstep.protocol.names import DLQ_PREFIX, check_group, retry_topic
from lockstep.runtime.host import Host

app = typer.Typer(no_args_is_help=True, help="Dead letters: messages that a group has given up.")

PRODUCER_GROUP = "LOCKSTEP_CLI"
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
    """Hand dead letters out again; they stay in the dead-letter topic. A concurrent group tries each once more.

    Exit 1 where some could not be handed out: the others were, and those wait for the next replay."""
    run(_replay(group, to, rate, everything, dry_run, nameserver, as_json))


async def _groups(nameserver: str, as_json: bool) -> None:
    admin = AdminClient(Host.current(), nameserver)
    rows = []
    failed: dict[str, str] = {}
    for topic in [topic for topic in await admin.topics() if topic.startswith(DLQ_PREFIX)]:
        answers = await morgues(admin, topic.removeprefix(DLQ_PREFIX))
        found = list(chain.from_iterable(answers.given.values()))
        stored = sum(morgue.held.max_offset - morgue.held.min_offset for morgue in found)
        rows.append((topic.removeprefix(DLQ_PREFIX), stored, sum(morgue.waiting for morgue in found)))
        failed |= answers.failed
    if as_json:
        lines = [{"group": group, "stored": stored, "not_replayed": waiting} for group, stored, waiting in rows]
        print_json({"groups": lines, "failed": failed})
    else:
        print_table(["group", ">dead letters", ">not replayed"], rows, empty="no group has dead letters")
    _raise_incomplete(failed)


async def _found(admin: AdminClient, group: str) -> Answers[list[DeadLetterQueue]]:
    check_group(group)
    try:
        return await morgues(admin, group)
    except TopicNotExistError:
        raise CommandError(f"group {group} has no dead letters; `lockstep dlq ls` names the groups that have some") from None


async def _ls(group: str, limit: int, nameserver: str, as_json: bool) -> None:
    admin = AdminClient(Host.current(), nameserver)
    answers = await _found(admin, group)
    read = await gather({broker: _newest(admin, group, found, limit) for broker, found in answers.given.items()})
    newest, failed = list(chain.from_iterable(read.given.values())), {**answers.failed, **read.failed}
    stored = sum(morgue.held.max_offset - morgue.held.min_offset for broker in read.given for morgue in answers.given[broker])
    if as_json:
        shown = [{**_json(letter), "replayed": replayed} for letter, replayed in newest]
        print_json({"group": group, "stored": stored, "dead_letters": shown, "failed": failed})
    else:
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
            for letter, replayed in newest
        ]
        print_table(["id", "given up at", "topic", ">attempts", "replayed", "reason", "body"], rows, empty="no dead letters")
        if stored > len(newest):
            say(f"the newest {len(newest)} of {stored}, at most {limit} of each broker: --limit N shows more")
    _raise_incomplete(failed)


async def _newest(admin: AdminClient, group: str, found: list[DeadLetterQueue], limit: int) -> list[tuple[DeadLetter, bool]]:
    """Of one broker, the oldest first; whether each was replayed."""
    newest: list[tuple[DeadLetter, bool]] = []
    for morgue in found:
        first = max(morgue.held.min_offset, morgue.held.max_offset - limit)
        newest += [(letter, letter.message.queue_offset < morgue.next) async for letter in letters(admin, morgue, group, first)]
    return newest


def _raise_incomplete(failed: Mapping[str, str]) -> None:
    complaint = incomplete(failed)
    if complaint is not None:
        raise CommandError(complaint)


def _json(letter: DeadLetter) -> dict[str, Any]:
    facts = {"origin_topic": letter.origin_topic, "origin_message_id": letter.origin_id, "reason": letter.reason}
    return {**facts, **message_json(letter.message)}


async def _show(group: str, message_id: str, nameserver: str, as_json: bool) -> None:
    admin = AdminClient(Host.current(), nameserver)
    answers = await _found(admin, group)
    read = await gather({broker: _one(admin, group, found, message_id.upper()) for broker, found in answers.given.items()})
    letter = next((letter for letter in read.given.values() if letter is not None), None)
    if letter is None:
        unknown = incomplete({**answers.failed, **read.failed})
        raise CommandError(
            f"group {group} has no dead letter {message_id}{' at the brokers that answer' if unknown else ''}; "
            f"{unknown or f'`lockstep dlq ls {group}` prints their ids'}"
        )
    if as_json:
        print_json(_json(letter))
    else:
        for name, value in _json(letter).items():
            say(f"{name:18} {body_text(letter.message) if name == 'body' else value}")


async def _one(admin: AdminClient, group: str, found: list[DeadLetterQueue], offset_message_id: str) -> DeadLetter | None:
    for morgue in found:
        async for letter in letters(admin, morgue, group, morgue.held.min_offset):
            if letter.message.offset_message_id == offset_message_id:
                return letter
    return None


async def _replay(group: str, to: str | None, rate: int, everything: bool, dry_run: bool, nameserver: str, as_json: bool) -> None:
    admin = AdminClient(Host.current(), nameserver)
    answers = await _found(admin, group)
    found = list(chain.from_iterable(answers.given.values()))
    way = await _way(admin, group, to)
    if dry_run:
        outcome = ReplayResult(sum(morgue.held.max_offset - morgue.held.min_offset if everything else morgue.waiting for morgue in found))
    else:
        # A topic that is gone was deleted: it is not made again by the way.
        async with Producer(PRODUCER_GROUP, nameserver=nameserver, auto_create_topics=False) as producer:
            outcome = await Replay(admin, producer, group, way, rate, everything=everything).run(found)
    failed = {**answers.failed, **outcome.failed}
    target = retry_topic(group) if way == "retry" else "the topics that they came from"
    if as_json:
        left = [{"offset_message_id": each.id, "origin_topic": each.topic, "why": each.why} for each in outcome.left]
        print_json({"group": group, "done": not dry_run, "to": way, "count": outcome.sent, "left": left, "failed": failed})
    else:
        say(f"{outcome.sent} dead letters of {group} {'would go' if dry_run else 'went'} to {target}")
    troubles = [outcome.overtaken] if outcome.overtaken else []
    if outcome.left:
        troubles.append(f"{len(outcome.left)} dead letters of {group} remain, and wait for the next replay: {words(outcome.left)}")
    if failed:
        asked = "; ".join(f"broker {name}: {why}" for name, why in failed.items())
        troubles.append(f"not every broker could be asked ({asked}): run it again when they are back")
    if troubles:
        raise CommandError(". ".join(troubles))


async def _way(admin: AdminClient, group: str, to: str | None) -> str:
    """Where the group's members look: a concurrent group reads its retry topic, an ordered one does not."""
    if to not in (None, "retry", "topic"):
        raise ConfigError(f"--to {to}: expected retry or topic")
    report, _ = await read_group(admin, group)
    ordered = None if report is None else report.ordered
    if to == "retry" and ordered:
        raise CommandError(f"group {group} is ordered: its members read no retry topic; say --to topic")
    if to == "retry" and ordered is None and report is not None and _was_ordered(report):
        raise CommandError(
            f"group {group} has no member now, and was ordered when it had: its members would read no retry topic. Say --to topic; if the "
            "group is to be concurrent from now on, start a member first"
        )
    if to is None and ordered is None:
        raise CommandError(f"no member of {group} is there to tell whether it is ordered: say --to retry (concurrent) or --to topic")
    return to or ("topic" if ordered else "retry")


def _was_ordered(report: GroupReport) -> bool:
    """Its queues were locked, which those of a concurrent group are not."""
    return any(line.epoch not in (None, "0") for line in report.queues)
