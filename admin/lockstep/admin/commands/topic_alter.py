"""lockstep topic alter."""

from collections.abc import Collection
from dataclasses import asdict
from typing import Annotated

import typer

from lockstep.admin.client import AdminClient, broker_reasons, by_name, gather_results, without_address
from lockstep.admin.group_query import read_groups
from lockstep.admin.layout_change import alter_layout, parse_queue_counts
from lockstep.admin.layout_publish import publish_layout
from lockstep.admin.options import CommandError, JsonOption, NameserverOption, TopicArgument, run
from lockstep.admin.render import print_json, print_line
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.protocol.layouts import QUEUES_PER_BROKER_MAX
from lockstep.protocol.names import check_topic, is_system_topic
from lockstep.protocol.queue import TopicLayout
from lockstep.runtime.host import Host


def alter_command(
    topic: TopicArgument,
    queues: Annotated[
        int | None,
        typer.Option("--queues", "-q", min=1, max=QUEUES_PER_BROKER_MAX, help="Number of queues on EACH broker, to write and to read."),
    ] = None,
    write_queues: Annotated[
        int | None, typer.Option("--write-queues", min=1, max=QUEUES_PER_BROKER_MAX, help="Number of queues to write to on each broker.")
    ] = None,
    read_queues: Annotated[
        int | None, typer.Option("--read-queues", min=1, max=QUEUES_PER_BROKER_MAX, help="Number of queues to read from on each broker.")
    ] = None,
    broker: Annotated[
        list[str] | None, typer.Option("--broker", help="Change only this broker; may be repeated. By default all brokers.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Change it even if groups have not consumed the old layout's messages.")] = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Change the number of queues of a topic.

    If the queues to write to change, order per key ends: later messages of a key go to other queues."""
    run(_alter(topic, (queues, write_queues, read_queues), tuple(broker or ()), force, nameserver, as_json))


async def _alter(
    topic: str,
    counts: tuple[int | None, int | None, int | None],
    only: Collection[str],
    force: bool,
    nameserver: str,
    as_json: bool,
) -> None:
    check_not_system_topic(topic)
    write_count, read_count = parse_queue_counts(*counts)
    admin = AdminClient(Host.current(), nameserver)
    before = (await admin.route(topic)).layout
    known = {broker.name: broker.registered for broker in await admin.brokers()}
    if unknown := sorted(set(only) - set(known)):
        raise CommandError(f"no nameserver knows broker {unknown[0]}; the known brokers are {', '.join(known)}")
    brokers = set(only) or {name for name, registered in known.items() if registered} | {entry.broker_name for entry in before.entries}
    writer = int.from_bytes(admin.host.random.token(4), "big")
    after = alter_layout(before, brokers, write_count=write_count, read_count=read_count, writer=writer)
    keys_move = after.write_queues != before.write_queues
    if after is not before:
        if not force:
            await _check_groups_caught_up(admin, before, after)
        await publish_layout(admin, after)
    if as_json:
        version = {"counter": after.version.counter, "writer": after.version.writer}
        entries = [asdict(entry) for entry in after.entries]
        print_json({"topic": topic, "changed": after is not before, "keys_move": keys_move, "version": version, "entries": entries})
    elif after is before:
        print_line(f"topic {topic} has that many queues already")
    else:
        counts_text = f"{len(after.write_queues)} queues to write, {len(after.read_queues)} to read"
        print_line(f"topic {topic}: {counts_text}, layout version {after.version.counter}")
        if keys_move:
            print_line(f"order per key ended with layout version {before.version.counter}: later messages of a key may be in another queue")


async def _check_groups_caught_up(admin: AdminClient, before: TopicLayout, after: TopicLayout) -> None:
    """Raise CommandError if the change would break order or lose messages for a group that has not consumed everything.

    If only the writable queues change, that concerns ordered groups: they would mix old and new messages of a key. If queues are removed,
    it concerns every group. A broker with queues of the topic that does not respond may hold a backlog, even of a group that only it knows.
    """
    ordered_only = set(before.read_queues) <= set(after.read_queues)
    if ordered_only and before.write_queues == after.write_queues:
        return
    brokers = by_name(await admin.brokers())
    owners = dict.fromkeys(queue.broker_name for queue in before.read_queues)
    results = await gather_results({name: admin.group_status(broker, None) for name, broker in brokers.items()})
    unreached = {**results.failed, **without_address(list(owners), brokers)}
    lagging = []
    groups = sorted({group for status in results.values.values() for group in status.groups})
    for group, (report, statuses) in (await read_groups(admin, groups)).items():
        unreached |= statuses.failed
        if report is None or (ordered_only and report.ordered is False):
            continue
        if report.broadcasting and any(line.topic == before.topic for line in report.queues):
            lagging.append(f"{group}: unknown, because it is broadcasting")
        lag = sum(line.lag or 0 for line in report.queues if line.topic == before.topic)
        if lag:
            lagging.append(f"{group}: {lag}")
    why = "messages of a key would be consumed out of order" if ordered_only else "messages in the removed queues would be lost"
    if lagging:
        raise CommandError(
            f"nothing was changed: some groups have not consumed all of {before.topic} (lag of {', '.join(lagging)}), and {why}. "
            "Wait until they have, or use --force"
        )
    if unknown := {name: unreached[name] for name in owners if name in unreached}:
        raise CommandError(
            f"nothing was changed: the lag of groups in {before.topic} is unknown ({broker_reasons(unknown)}), and if a group lags, "
            f"{why}. Start the broker again, or use --force"
        )


def check_not_system_topic(topic: str) -> None:
    """Raise CommandError for a topic that brokers use internally, and the error of `check_topic` for an invalid name."""
    check_topic(topic)
    if is_system_topic(topic):
        raise CommandError(f"topic {topic} is used by the brokers internally: it can be neither altered nor deleted")
