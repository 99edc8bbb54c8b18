"""Delete a topic."""

from dataclasses import dataclass
from itertools import chain
from typing import Annotated

from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes.layouts.layout_publish import publish_layout
from lockstep.operations.changes.operation import Argument, ChangeOutcome, Operation, Option, Plan
from lockstep.operations.changes.topic_change import check_not_only_copy, check_not_system_topic
from lockstep.operations.errors import OperationError
from lockstep.operations.groups.parked import count_forgotten
from lockstep.operations.messages.undelivered import count_undelivered
from lockstep.operations.watch.topic_query import read_topic
from lockstep.protocol.topics.queue import TopicLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDelete(Operation):
    """Delete a topic, its messages, and every group's progress and parked keys in it. Sends to it fail, and consumers drop its queues."""

    words = ("topic", "delete")
    path = "topic-delete"
    title = "Delete a topic"
    confirmed = "topic"

    topic: Annotated[str, Argument(help="The topic's name.", label="Topic")]
    force: Annotated[
        bool, Option(flags=("--force",), help="Delete even a group's %RETRY% or %DLQ% topic, which holds the only copy of its messages.")
    ] = False

    async def plan(self, admin: AdminClient) -> Plan:
        before = await plan_deletion(admin, self.topic, force=self.force)
        report = await read_topic(admin, self.topic)
        forgotten = await count_forgotten(admin, topic=self.topic)
        undelivered = await count_undelivered(admin, self.topic)
        stored = sum(each.max_offset - each.min_offset for each in chain.from_iterable(report.offsets.values()))

        async def carry_out() -> ChangeOutcome:
            deletion = await delete_topic(admin, before)
            held = f"its {len(before.read_queues)} queues, their messages, and the progress of every group in them"
            ended = forgotten.as_json() | undelivered.as_json()
            found = {"topic": self.topic, "deleted": True, "version": deletion.version.counter, **ended}
            return ChangeOutcome([*forgotten.sentences, *undelivered.sentences, f"topic {self.topic} is deleted: {held}"], found)

        held = f"its {len(before.read_queues)} queues, {stored:,} messages, and the progress of every group in them"
        effect = [f"Topic {self.topic} is deleted: {held}."]
        effect += [f"{name} does not say how many messages it has: {why}." for name, why in report.failed.items()]
        effect += [f"{sentence[0].upper()}{sentence[1:]}." for sentence in (*forgotten.sentences, *undelivered.sentences)]
        effect.append("Sends to it fail from then on. Nothing brings the messages back.")
        return Plan(effect, carry_out, (before.version,))


async def plan_deletion(admin: AdminClient, topic: str, *, force: bool = False) -> TopicLayout:
    """Return the layout of the topic that would be deleted.

    Raise OperationError if there is no such topic, if it is one of the brokers' own, or, without `force`, if it holds the only copy of a
    group's messages.
    """
    check_not_system_topic(topic)
    before = await admin.find_layout(topic)
    if before is None:
        raise OperationError(f"topic {topic} does not exist; run `lockstep topic list` to list the topics")
    if not force:
        check_not_only_copy(topic, "delete")
    return before


async def delete_topic(admin: AdminClient, before: TopicLayout) -> TopicLayout:
    """Delete the topic that had this layout. Return the layout that says so. Raises what `publish_layout` raises."""
    deletion = before.deletion
    await publish_layout(admin, deletion, owners=before.brokers)
    return deletion
