"""lockstep park replay | drop, and what all subcommands of park share."""

from collections import Counter
from enum import Enum
from shlex import quote
from typing import Annotated

import typer

from lockstep.cli.options import JsonOption, NameserverOption, run
from lockstep.cli.render import print_json, print_line, print_table
from lockstep.cli.reporter import admin_client
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.operations.admin_client import AdminClient, broker_reasons, failure_summary
from lockstep.operations.errors import OperationError
from lockstep.operations.groups.group_query import read_group, unknown_group
from lockstep.operations.groups.parked import ParkedKeys, change_parked, list_parked, replay_waits_for
from lockstep.protocol.bodies import ParkAction, ParkControlBody, ParkState
from lockstep.protocol.bodies.parks import KEY_BYTES_MAX
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.names import check_group, check_topic, dlq_topic

GroupArgument = Annotated[str, typer.Argument(help="The group that has parked the key.")]
KeyArgument = Annotated[str | None, typer.Argument(metavar="KEY", help="The sharding key, as `park ls` prints it.")]
AllOption = Annotated[bool, typer.Option("--all", help="All parked keys of the group instead of one.")]
TopicOption = Annotated[str | None, typer.Option("--topic", "-t", help="Only what is parked in this topic. By default in all topics.")]


class DropTarget(Enum):
    """Where the messages of a dropped key go."""

    DLQ = "dlq"
    """The group's dead-letter topic."""


def replay_command(
    group: GroupArgument,
    key: KeyArgument = None,
    every: AllOption = False,
    topic: TopicOption = None,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Let parked keys be consumed again, from the message that failed, in order. Remove the cause of the failure first.

    The member that owns the queue does it, now or when there is one. A key whose message fails again is parked again.
    """
    run(_change(ParkAction.REPLAY, group, key, every, topic, nameserver, as_json))


def drop_command(
    group: GroupArgument,
    to: Annotated[DropTarget, typer.Option("--to", help="Where the messages go: dlq, the group's dead-letter topic.")],
    key: KeyArgument = None,
    every: AllOption = False,
    topic: TopicOption = None,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Give up the waiting messages of parked keys: they are copied to the group's dead-letter topic. The group goes on with later ones."""
    run(_change(ParkAction.DROP, group, key, every, topic, nameserver, as_json))


def check_names(group: str | None, topic: str | None, key: str | None = None) -> None:
    """Raise LocalProtocolError or ConfigError for what can be no group, topic or parked key."""
    if group is not None:
        check_group(group)
    if topic is not None:
        check_topic(topic)
    if key is None:
        return
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"key {key[:40]!r} is not UTF-8: no such key can be parked") from None
    if not 0 < size <= KEY_BYTES_MAX:
        raise ConfigError(f"key {key[:40]!r} has {size} bytes: parked keys have 1 to {KEY_BYTES_MAX}")


async def check_group_known(admin: AdminClient, group: str | None, topic: str | None) -> None:
    """Raise OperationError if no broker knows the group, TopicNotExistError if there is no such topic."""
    if topic is not None:
        await admin.route(topic)
    if group is None:
        return
    report, statuses = await read_group(admin, group)
    if report is None:
        raise unknown_group(group, statuses.failed)


async def not_parked(admin: AdminClient, group: str, topic: str | None, key: str, incomplete: str | None) -> OperationError:
    """Return the error for a key that no broker has listed. Raises that of `check_group_known`."""
    if incomplete is None:
        await check_group_known(admin, group, topic)
    where = "" if topic is None else f" in {topic}"
    return OperationError(
        f"key {key!r} of group {group} is not parked{where}{' at the brokers that responded' if incomplete else ''}; "
        f"{incomplete or f'run `lockstep park ls {quote(group)}` to list the parked keys'}"
    )


async def _change(action: ParkAction, group: str, key: str | None, every: bool, topic: str | None, nameserver: str, as_json: bool) -> None:
    if every == (key is not None):
        raise ConfigError("name a KEY, or use --all for every parked key of the group")
    check_names(group, topic, key)
    admin = admin_client(nameserver)
    async with admin.keep_connections():
        listed = await list_parked(admin, group, topic, key)
        if not listed.keys and key is not None:
            raise await not_parked(admin, group, topic, key, failure_summary(listed.failed))
        if not listed.keys and not listed.failed:
            await check_group_known(admin, group, topic)
        changed = await change_parked(admin, listed, ParkControlBody(action, group, topic, key))
        report, _ = await read_group(admin, group)
    queues = [each.queue for each in changed.keys]
    waits_for = replay_waits_for(report, queues) if action is ParkAction.REPLAY and queues else []
    failed = {**listed.failed, **changed.failed}
    if as_json:
        _print_json(action, group, listed, changed, waits_for, failed)
    elif queues or not failed:
        _print(action, group, listed, changed, waits_for)
    if failed:
        again = f"lockstep park {action.value} {quote(group)} {'--all' if key is None else quote(key)}"
        again += ("" if action is ParkAction.REPLAY else " --to dlq") + ("" if topic is None else f" --topic {quote(topic)}")
        raise OperationError(
            f"some keys of group {group} may not be {_DONE[action]}: {broker_reasons(failed)}. When that is solved, run `{again}` again"
        )


_DONE = {ParkAction.REPLAY: "replayed", ParkAction.DROP: "dropped"}
_STATES = {ParkAction.REPLAY: ParkState.REPLAYING, ParkAction.DROP: ParkState.DROPPING}


def _print_json(
    action: ParkAction, group: str, listed: ParkedKeys, changed: ParkedKeys, waits_for: list[str], failed: dict[str, str]
) -> None:
    before = {each.place: each.row.state for each in listed.keys}
    keys = [
        {
            "key": each.row.key,
            "topic": each.row.topic,
            "broker": each.broker.name,
            "queue_id": each.row.queue_id,
            "state_before": before[each.place].value if each.place in before else None,
            "state": each.row.state.value,
        }
        for each in changed.keys
    ]
    print_json({"group": group, "action": action.value, "keys": keys, "cut": list(changed.cut), "waits_for": waits_for, "failed": failed})


def _print(action: ParkAction, group: str, listed: ParkedKeys, changed: ParkedKeys, waits_for: list[str]) -> None:
    if not listed.keys:
        print_line(f"no keys of group {group} are parked")
        return
    counts = Counter(each.queue for each in changed.keys)
    if counts:
        rows = [(queue.topic, f"{queue.broker_name}:{queue.queue_id}", count) for queue, count in counts.items()]
        print_table(["topic", "queue", ">keys"], rows)
    already = sum(each.row.state is _STATES[action] for each in listed.keys)
    count = f"{len(changed.keys)}{'+' if changed.cut else ''}"
    where = "the owners of their queues do it" if action is ParkAction.REPLAY else f"their messages go to {dlq_topic(group)}"
    print_line(
        f"group {group}: keys to {action.value}: {count}, being {_DONE[action]} already: {already}; {where}, and "
        f"`lockstep park ls {quote(group)}` shows what is left"
    )
    if left := _left_out(listed, changed):
        print_line(f"keys that are being dropped, and are not replayed: {left}")
    for what in waits_for:
        print_line(what)


def _left_out(listed: ParkedKeys, changed: ParkedKeys) -> int:
    """Return the number of keys that the brokers which have responded did not change: a key that is being dropped is not replayed."""
    named = {each.place for each in changed.keys}
    complete = {each.broker.name for each in listed.keys} - set(changed.failed) - set(changed.cut)
    return sum(each.broker.name in complete and each.place not in named for each in listed.keys)
