"""Changes of groups: their offsets, their settings, and their parked keys."""

from collections import Counter
from shlex import join

from lockstep.dashboard.changes.change import Change, Field, Plan, Table, Values, chosen, command, option, optional, required
from lockstep.operations.admin_client import AdminClient, broker_reasons
from lockstep.operations.changes.group_forget import carry_out as carry_out_forget
from lockstep.operations.changes.group_forget import plan_forget
from lockstep.operations.changes.group_reset import carry_out as carry_out_reset
from lockstep.operations.changes.group_reset import check_parked, plan_reset
from lockstep.operations.changes.group_settings import describe_settings, plan_settings
from lockstep.operations.changes.reset_plan import Move, totals
from lockstep.operations.errors import OperationError
from lockstep.operations.groups.group_query import read_group
from lockstep.operations.groups.parked import ParkedKeys, change_parked, forgotten_text, list_parked, replay_waits_for
from lockstep.operations.targets import parse_queue, parse_target
from lockstep.operations.text import format_time
from lockstep.protocol.bodies import ParkAction, ParkControlBody, ParkState, SubscriptionPolicy
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.names import check_group, check_topic, dlq_topic

GROUP = Field("group", "Group")
TOPIC = Field("topic", "Topic", hint="only this one; empty for all")
KEY = Field("key", "Sharding key", hint="only this one; empty for all")
YES_NO = ("no", "yes")
UNDO_MAX = 50
"""Lines that undo a reset."""


async def _plan_reset(admin: AdminClient, values: Values) -> Plan:
    group, to = required(values, "group"), required(values, "to")
    check_group(group)
    topic, queue = optional(values, "topic"), optional(values, "queue")
    drop_parked = chosen(values, "drop_parked", YES_NO) == "yes"
    target = parse_target(to, admin.host.clock.wall_ms())
    if target.kind == "time":
        to = format_time(target.value)
    async with admin.keep_connections():
        moves = await plan_reset(admin, group, topic, set() if queue is None else {parse_queue(queue)}, target)
        waiting = await check_parked(admin, group, topic, moves, drop_parked=drop_parked)
    parked = sum(move.parked for move in moves)
    again, skipped = totals(moves)
    effect = [f"Group {group} consumes {again:,} messages again and skips {skipped:,}, as things are now."]
    effect.append("Running members are fenced, and continue from there without a restart.")
    if parked:
        effect.append(f"{forgotten_text(parked, waiting)}.")

    async def carry_out() -> tuple[str, ...]:
        await carry_out_reset(admin, group, moves, drop_parked=drop_parked)
        undo = [each for each in moves if each.before is not None and each.before != each.after]
        lines = [f"Group {group} continues from the new offsets in {len(moves)} queues.{' To undo it:' if undo else ''}"]
        lines += [_undo(group, each) for each in undo[:UNDO_MAX]]
        return (*lines, *([f"… and {len(undo) - UNDO_MAX} more queues."] if len(undo) > UNDO_MAX else []))

    options = (*option("--to", to), *option("--topic", topic), *option("--queue", queue), *(["--drop-parked"] if drop_parked else []))
    rows = [(m.queue.topic, m.queue.broker_name, m.queue.queue_id, m.before, m.after, m.end, m.change) for m in moves]
    table = Table(("topic", "broker", ">queue", ">old offset", ">new offset", ">end offset", ">change"), rows)
    # Progress and the ends of queues move while the plan is read: what was agreed to is where the group goes, and in which queues.
    fixed = target.kind in ("offset", "time")
    agreed = tuple((str(move.queue), move.after if fixed else None, move.parked) for move in moves)
    return Plan(tuple(effect), command(("group", "reset-offset"), (group,), options), carry_out, agreed, table, {"to": to})


def _undo(group: str, move: Move) -> str:
    """Return the command that undoes the reset of one queue."""
    queue = f"{move.queue.broker_name}:{move.queue.queue_id}"
    options = (*option("--topic", move.queue.topic), *option("--queue", queue), *option("--to", str(move.before)))
    return join(("lockstep", *command(("group", "reset-offset"), (group,), options)))


async def _plan_forget(admin: AdminClient, values: Values) -> Plan:
    group, topic = required(values, "group"), required(values, "topic")
    async with admin.keep_connections():
        lines = await plan_forget(admin, group, topic)
    effect = (
        f"The progress of group {group} in {topic} ends, in {len(lines)} queues: it does not lag there any more.",
        "If it comes back to the topic, it begins by its start policy. This can't be undone: note the offsets.",
    )

    async def carry_out() -> tuple[str, ...]:
        await carry_out_forget(admin, group, topic, lines)
        return (f"The progress of group {group} in {topic} has ended.",)

    rows = [(line.topic, line.broker, line.queue_id, line.committed_offset, line.max_offset) for line in lines]
    table = Table(("topic", "broker", ">queue", ">offset", ">end offset"), rows)
    agreed = tuple((str(line.queue), line.committed_offset) for line in lines)
    return Plan(effect, command(("group", "forget"), (group,), option("--topic", topic)), carry_out, agreed, table)


async def _plan_settings(admin: AdminClient, values: Values) -> Plan:
    group = required(values, "group")
    policy = values["subscription_policy"]
    consume = values["consume"]
    if not policy and not consume:
        raise ConfigError("nothing to change: choose a subscription policy, or whether the group may consume")
    planned = await plan_settings(
        admin,
        group,
        policy=SubscriptionPolicy(chosen(values, "subscription_policy", POLICIES)) if policy else None,
        consume=chosen(values, "consume", YES_NO) == "yes" if consume else None,
        contract_version=None,
        new=False,
    )

    async def carry_out() -> tuple[str, ...]:
        results = await planned.carry_out(admin)
        if results.failed:
            raise OperationError(
                f"some brokers don't have the change: {broker_reasons(results.failed)}. Change it again when they are back"
            )
        return (f"Group {group}: {describe_settings(planned.after)}, at {', '.join(sorted(results.values))}.",)

    before = "was never configured" if planned.before is None else f"has {describe_settings(planned.before)}"
    effect = f"Group {group} {before}, and then {describe_settings(planned.after)}. The change applies to running members too."
    options = option("--subscription-policy", policy or None)
    options += (f"--{'' if consume == 'yes' else 'no-'}consume",) if consume else ()
    return Plan((effect,), command(("group", "update"), (group,), options), carry_out, (planned.before,))


async def _plan_park(admin: AdminClient, values: Values, action: ParkAction) -> Plan:
    group = required(values, "group")
    check_group(group)
    topic, key = optional(values, "topic"), values["key"] or None
    if topic is not None:
        check_topic(topic)
    body = ParkControlBody(action, group, topic, key)
    async with admin.keep_connections():
        listed = await list_parked(admin, group, topic, key)
        report, _ = await read_group(admin, group)
    if listed.failed:
        raise OperationError(f"nothing was changed: some brokers did not say what is parked: {broker_reasons(listed.failed)}")
    if not listed.keys:
        raise OperationError(f"no such key of group {group} is parked" if key is not None else f"no keys of group {group} are parked")
    queues = Counter(each.queue for each in listed.keys)
    count = f"{len(listed.keys)}{' or more' if listed.cut else ''} keys"
    if action is ParkAction.REPLAY:
        effect = [f"{count} of group {group} are consumed again, from the message that failed, in order."]
        effect.append("A key that fails again is parked again.")
        effect += [f"It waits: {each}." for each in replay_waits_for(report, queues)]
    else:
        effect = [f"The waiting messages of {count} of group {group} are given up: they are copied to {dlq_topic(group)}."]

    async def carry_out() -> tuple[str, ...]:
        async with admin.keep_connections():
            changed = await change_parked(admin, listed, body)
        if changed.failed:
            raise OperationError(f"some keys of group {group} may not be changed: {broker_reasons(changed.failed)}")
        return (_said(action, group, changed),)

    options = option("--to", None if action is ParkAction.REPLAY else "dlq") + option("--topic", topic)
    options += ("--all",) if key is None else ()
    line = command(("park", action.value), (group,) if key is None else (group, key), options)
    rows = [(queue.topic, queue.broker_name, queue.queue_id, number) for queue, number in queues.items()]
    agreed = tuple((each.place, each.row.state is ParkState.DROPPING) for each in listed.keys)
    return Plan(tuple(effect), line, carry_out, agreed, Table(("topic", "broker", ">queue", ">keys"), rows))


def _said(action: ParkAction, group: str, changed: ParkedKeys) -> str:
    count = f"{len(changed.keys)}{' or more' if changed.cut else ''} keys of group {group}"
    if action is ParkAction.REPLAY:
        return f"{count} are to be consumed again: the owners of their queues do it."
    return f"{count} are being dropped: their messages go to {dlq_topic(group)}."


POLICIES = tuple(each.value for each in SubscriptionPolicy)
CHANGES = (
    Change(
        "group-reset",
        "Reset the offsets of a group",
        (
            GROUP,
            Field("to", "To", hint="beginning, end, an offset, a time (2026-11-21T15:00:00Z), or a duration ago (90s, 30m, 2h, 7d)"),
            TOPIC,
            Field("queue", "Queue", hint="only this one, as in broker-a:3; empty for all"),
            Field("drop_parked", "Forget parked keys", "no", choices=YES_NO),
        ),
        _plan_reset,
        confirmed="group",
    ),
    Change(
        "group-forget",
        "End the progress of a group in a topic",
        (GROUP, Field("topic", "Topic", hint="which its members do not consume any more")),
        _plan_forget,
        confirmed="group",
    ),
    Change(
        "group-settings",
        "Change the settings of a group",
        (
            GROUP,
            Field("consume", "May consume", hint="empty: as it is", choices=("", *YES_NO)),
            Field("subscription_policy", "Subscription policy", hint="empty: as it is", choices=("", *POLICIES)),
        ),
        _plan_settings,
        confirmed="group",
    ),
    Change(
        "park-replay",
        "Replay parked keys",
        (GROUP, KEY, TOPIC),
        lambda admin, values: _plan_park(admin, values, ParkAction.REPLAY),
        confirmed="group",
    ),
    Change(
        "park-drop",
        "Drop parked keys",
        (GROUP, KEY, TOPIC),
        lambda admin, values: _plan_park(admin, values, ParkAction.DROP),
        confirmed="group",
    ),
)
