"""Changes of topics: create, alter, delete, and send a message."""

from itertools import chain

from lockstep.client.producer.routing import queue_of_key
from lockstep.dashboard.changes.change import Change, Field, Plan, Values, command, option, optional, required, whole_number
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes.sending import send_message
from lockstep.operations.changes.topic_change import (
    create_topic,
    delete_topic,
    describe_queues,
    find_layout,
    plan_alteration,
    plan_deletion,
    registered_brokers,
)
from lockstep.operations.errors import OperationError
from lockstep.operations.groups.parked import count_forgotten
from lockstep.operations.watch.topic_query import read_topic
from lockstep.protocol.layouts import QUEUES_PER_BROKER_MAX
from lockstep.protocol.message import Message
from lockstep.protocol.names import check_topic
from lockstep.protocol.properties import check_text

TOPIC = Field("topic", "Topic")
QUEUES = Field("queues", "Queues on each broker", "4")
SHOWN_MAX = 1_000
"""A longer body is not part of the command, which then reads it from its standard input."""
BROKER = Field("broker", "Broker", hint="only this one; empty for all")


async def _plan_creation(admin: AdminClient, values: Values) -> Plan:
    topic, queues = required(values, "topic"), whole_number(values, "queues", 1, QUEUES_PER_BROKER_MAX)
    check_topic(topic)
    broker = optional(values, "broker")
    only = () if broker is None else (broker,)
    registered = await registered_brokers(admin, only)
    if (before := await find_layout(admin, topic)) is not None:
        raise OperationError(f"topic {topic} exists already: {describe_queues(before.entries)}")
    where = only or tuple(registered)

    async def carry_out() -> tuple[str, ...]:
        layout, is_new = await create_topic(admin, topic, queues, only)
        return (f"Topic {topic} {'was created' if is_new else 'exists already'}: {describe_queues(layout.entries)}.",)

    effect = f"Topic {topic} is created, with {queues} queues on each of {', '.join(where)}."
    options = (*option("--queues", str(queues)), *option("--broker", broker))
    return Plan((effect,), command(("topic", "create"), (topic,), options), carry_out, where)


async def _plan_alteration(admin: AdminClient, values: Values) -> Plan:
    topic, queues = required(values, "topic"), whole_number(values, "queues", 0, QUEUES_PER_BROKER_MAX)
    broker = optional(values, "broker")
    planned = await plan_alteration(admin, topic, queues, queues, () if broker is None else (broker,))
    if not planned.changes:
        raise OperationError(f"topic {topic} has that many queues already: {describe_queues(planned.before.entries)}")

    async def carry_out() -> tuple[str, ...]:
        held_ms = await planned.carry_out(admin)
        done = f"Topic {topic} has {planned.counts}, layout version {planned.after.version.counter}."
        if held_ms is None:
            return (done,)
        return done, f"Writes were held for {held_ms} ms, until the ordered groups had consumed the topic: the order of each key is kept."

    effect = [
        f"Topic {topic} has {describe_queues(planned.before.entries)} now, and then {describe_queues(planned.after.entries)}: "
        f"{planned.counts}."
    ]
    if planned.keys_move:
        effect.append(
            "Later messages of a key may go to other queues. Sends wait, for 20 s at the longest, until the ordered groups have consumed "
            "what is stored. If they lag too much, nothing is changed."
        )
    if len(planned.after.read_queues) < len(planned.before.read_queues):
        effect.append("Queues that are removed must have been consumed by every group. If they have not been, nothing is changed.")
    options = (*option("--queues", str(queues)), *option("--broker", broker))
    agreed = (planned.before.version, planned.after.entries)
    return Plan(tuple(effect), command(("topic", "alter"), (topic,), options), carry_out, agreed)


async def _plan_deletion(admin: AdminClient, values: Values) -> Plan:
    topic = required(values, "topic")
    before = await plan_deletion(admin, topic)
    report = await read_topic(admin, topic)
    forgotten = await count_forgotten(admin, topic=topic)
    stored = sum(each.max_offset - each.min_offset for each in chain.from_iterable(report.offsets.values()))

    async def carry_out() -> tuple[str, ...]:
        await delete_topic(admin, before)
        return (f"Topic {topic} was deleted.",)

    held = f"its {len(before.read_queues)} queues, {stored:,} messages, and the progress of every group in them"
    effect = [f"Topic {topic} is deleted: {held}."]
    effect += [f"{name} does not say how many messages it has: {why}." for name, why in report.failed.items()]
    effect += [f"{sentence}." for sentence in forgotten.sentences]
    effect.append("Sends to it fail from then on. Nothing brings the messages back.")
    return Plan(tuple(effect), command(("topic", "delete"), (topic,)), carry_out, (before.version,))


async def _plan_sending(admin: AdminClient, values: Values) -> Plan:
    topic = required(values, "topic")
    keys = values["keys"].split()
    tag, sharding_key = optional(values, "tag"), values["sharding_key"] or None
    if sharding_key is not None:
        check_text("sharding_key", sharding_key)
    body = values["body"].encode()
    message = Message(topic, body, tags=tag, keys=keys, sharding_key=sharding_key, properties={"sent_by": "lockstep-dashboard"})
    layout = (await admin.route(topic)).layout
    if not layout.write_queues:
        raise OperationError(f"topic {topic} has no queue to write to")

    async def carry_out() -> tuple[str, ...]:
        result = await send_message(admin, message)
        ids = f"id {result.message_id}, offset id {result.offset_message_id or 'unknown'}"
        return (f"{result.status.name}: {result.queue}, offset {result.queue_offset}, {ids}.",)

    where = "any queue" if sharding_key is None else f"{queue_of_key(layout, sharding_key)}, the queue of its sharding key"
    effect = f"One message of {len(body):,} bytes is sent to {where}. Every group that consumes topic {topic} receives it."
    options = (*chain.from_iterable(option("--key", each) for each in keys), *option("--tag", tag), *option("--sharding-key", sharding_key))
    options += option("--property", "sent_by=lockstep-dashboard")
    shown = values["body"] if len(body) <= SHOWN_MAX and values["body"].isprintable() else "-"
    return Plan((effect,), command(("send",), (topic, shown), options), carry_out, (body,))


CHANGES = (
    Change("topic-create", "Create a topic", (TOPIC, QUEUES, BROKER), _plan_creation),
    Change("topic-alter", "Alter a topic", (TOPIC, QUEUES, BROKER), _plan_alteration, confirmed="topic"),
    Change("topic-delete", "Delete a topic", (TOPIC,), _plan_deletion, confirmed="topic"),
    Change(
        "send",
        "Send a message",
        (
            TOPIC,
            Field("sharding_key", "Sharding key", hint="its messages stay in order"),
            Field("tag", "Tag"),
            Field("keys", "Keys", hint="separated by spaces"),
            Field("body", "Body", lines=6),
        ),
        _plan_sending,
    ),
)
