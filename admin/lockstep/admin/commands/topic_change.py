"""lockstep topic alter | delete."""

import asyncio
from collections.abc import Collection
from dataclasses import asdict
from typing import Annotated

import typer

from lockstep.admin.client import AdminClient, absent, by_name, gather
from lockstep.admin.group_query import read_groups
from lockstep.admin.layout_change import altered, counts
from lockstep.admin.options import CommandError, JsonOption, NameserverOption, complain, run
from lockstep.admin.render import print_json, say
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.protocol.errors import BrokerError, LockstepError, TopicNotExistError
from lockstep.protocol.names import DLQ_PREFIX, RETRY_PREFIX, check_topic, is_system_topic
from lockstep.protocol.queue import TopicLayout
from lockstep.runtime.host import Host

QUEUES_MAX = 4_096
ROUTED_S = 5
ROUTED_STEP_S = 0.05


def alter_command(
    topic: Annotated[str, typer.Argument(help="The topic's name.")],
    queues: Annotated[int | None, typer.Option("--queues", "-q", min=1, max=QUEUES_MAX, help="Queues on EACH broker.")] = None,
    write_queues: Annotated[int | None, typer.Option("--write-queues", min=1, max=QUEUES_MAX, help="Of them, those to write to.")] = None,
    read_queues: Annotated[int | None, typer.Option("--read-queues", min=1, max=QUEUES_MAX, help="Of them, those to read from.")] = None,
    broker: Annotated[list[str] | None, typer.Option("--broker", help="Only on this broker; may be repeated. Else on all.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Also while groups have not read what the old layout holds.")] = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Change how many queues a topic has. Where the queues to write to change, order per key ends: keys go to other queues from then on."""
    run(_alter(topic, (queues, write_queues, read_queues), tuple(broker or ()), force, nameserver, as_json))


def delete_command(
    topic: Annotated[str, typer.Argument(help="The topic's name.")],
    force: Annotated[bool, typer.Option("--force", help="Also what a group is to be given again, or has given up.")] = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Delete a topic, its messages and every group's progress in it. Producers are told, consumers drop its queues."""
    run(_delete(topic, force, nameserver, as_json))


async def _alter(
    topic: str,
    wanted: tuple[int | None, int | None, int | None],
    only: Collection[str],
    force: bool,
    nameserver: str,
    as_json: bool,
) -> None:
    _check(topic)
    write_count, read_count = counts(*wanted)
    admin = AdminClient(Host.current(), nameserver)
    before = (await admin.route(topic)).layout
    known = {broker.name: broker.registered for broker in await admin.brokers()}
    if strangers := sorted(set(only) - set(known)):
        raise CommandError(f"no nameserver knows broker {strangers[0]}: known are {', '.join(known)}")
    named = set(only) or {name for name, registered in known.items() if registered} | {entry.broker_name for entry in before.entries}
    after = altered(before, named, write_count=write_count, read_count=read_count, writer=_writer(admin))
    keys_move = after.write_queues != before.write_queues
    if after is not before:
        if not force:
            await _refuse_while_behind(admin, before, after)
        await put_everywhere(admin, after)
    if as_json:
        version = {"counter": after.version.counter, "writer": after.version.writer}
        entries = [asdict(entry) for entry in after.entries]
        print_json({"topic": topic, "changed": after is not before, "keys_move": keys_move, "version": version, "entries": entries})
    elif after is before:
        say(f"topic {topic} has that many queues already")
    else:
        say(f"topic {topic}: {len(after.write_queues)} queues to write, {len(after.read_queues)} to read, layout {after.version.counter}")
        if keys_move:
            say(f"order per key ended with layout {before.version.counter}: later messages of a key may be in another queue")


async def _refuse_while_behind(admin: AdminClient, before: TopicLayout, after: TopicLayout) -> None:
    """Groups that are behind: ordered ones would mix old and new of a key, and from queues that go away nobody can read.

    What a broker with queues of the topic does not tell may be anything, also of a group that only it knows.
    """
    ordered_only = set(before.read_queues) <= set(after.read_queues)
    if ordered_only and before.write_queues == after.write_queues:
        return
    brokers = by_name(await admin.brokers())
    holders = dict.fromkeys(queue.broker_name for queue in before.read_queues)
    answers = await gather({name: admin.group_status(broker, None) for name, broker in brokers.items()})
    silent = {**answers.failed, **absent(list(holders), brokers)}
    behind = []
    groups = sorted({group for answer in answers.given.values() for group in answer.groups})
    for group, (made, told) in (await read_groups(admin, groups)).items():
        silent |= told.failed
        if made is None or (ordered_only and made.ordered is False):
            continue
        if made.broadcasting and any(line.topic == before.topic for line in made.queues):
            behind.append(f"{group}, which is broadcasting, by nobody knows how much")
        lag = sum(line.lag or 0 for line in made.queues if line.topic == before.topic)
        if lag:
            behind.append(f"{group} by {lag}")
    why = "messages of a key would be handled out of order" if ordered_only else "what is in the queues that go away could not be read"
    if behind:
        raise CommandError(f"nothing was changed: groups are behind in {before.topic} ({', '.join(behind)}), {why}. Wait, or say --force")
    if unknown := [f"broker {name}: {silent[name]}" for name in holders if name in silent]:
        raise CommandError(
            f"nothing was changed: how far groups are in {before.topic} is not known ({'; '.join(unknown)}), and where one is behind, "
            f"{why}. Start the broker again, or say --force"
        )


async def _delete(topic: str, force: bool, nameserver: str, as_json: bool) -> None:
    _check(topic)
    admin = AdminClient(Host.current(), nameserver)
    before = (await admin.route(topic)).layout
    if not force:
        _refuse_of_a_group(topic)
    gone = before.deletion
    await put_everywhere(admin, gone)
    if as_json:
        print_json({"topic": topic, "deleted": True, "version": gone.version.counter})
    else:
        say(f"topic {topic} is deleted: its {len(before.read_queues)} queues, their messages, and the progress of every group in them")


def _refuse_of_a_group(topic: str) -> None:
    """What lies in a group's own topics nobody else has."""
    for prefix, what in ((RETRY_PREFIX, "has failed and waits to be given again"), (DLQ_PREFIX, "has given up")):
        if topic.startswith(prefix):
            group = topic.removeprefix(prefix)
            where = f"topic {topic} is where what group {group} {what} lies"
            raise CommandError(f"nothing was changed: {where}, and that would be lost. Say --force to delete it all the same")


def _check(topic: str) -> None:
    check_topic(topic)
    if is_system_topic(topic):
        raise CommandError(f"topic {topic} is the broker's own: it is neither altered nor deleted")


def _writer(admin: AdminClient) -> int:
    return int.from_bytes(admin.host.random.token(4), "big")


async def put_everywhere(admin: AdminClient, layout: TopicLayout) -> None:
    """Every registered broker in the order of names, then until the nameserver tells it, from which the others learn it too."""
    brokers = sorted((broker for broker in await admin.brokers() if broker.registered), key=lambda broker: broker.name)
    if not brokers:
        raise CommandError("no broker is registered at the nameserver: start one first")
    told = False
    for broker in brokers:
        try:
            there = await admin.put_layout(broker, layout)
        except TopicNotExistError:
            complain(f"broker {broker.name} has no topic {layout.topic}: somebody else has deleted it, or it had not heard of it yet")
            continue
        except BrokerError as error:
            complain(f"broker {broker.name} refused ({error}) and learns it from the nameserver if another broker took it")
            continue
        except (LockstepError, OSError) as error:
            complain(f"broker {broker.name} did not answer and learns it when it registers: {error}")
            continue
        if there.version != layout.version:
            raise CommandError(
                f"somebody else has changed {layout.topic} meanwhile: look at `lockstep topic show {layout.topic}`, then try again"
            )
        told = True
    if not told:
        raise CommandError(
            f"no broker took the change of topic {layout.topic}: look at `lockstep topic show {layout.topic}`, then try again"
        )
    await routed(admin, layout)


async def routed(admin: AdminClient, layout: TopicLayout) -> None:
    """Wait until the nameserver knows the layout, so that whoever comes next finds it; brokers tell it at once."""
    try:
        async with asyncio.timeout(ROUTED_S):
            while True:
                if await _tells(admin, layout):
                    return
                await asyncio.sleep(ROUTED_STEP_S)
    except TimeoutError:
        what = f"topic {layout.topic} is as wanted at the brokers"
        raise CommandError(f"{what}, but none of them has told the nameserver within {ROUTED_S} s") from None


async def _tells(admin: AdminClient, layout: TopicLayout) -> bool:
    try:
        return (await admin.route(layout.topic)).layout.version >= layout.version
    except TopicNotExistError:
        return layout.deleted
