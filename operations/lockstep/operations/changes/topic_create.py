"""Create a topic."""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Annotated

from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes.layouts.layout_publish import create_and_wait
from lockstep.operations.changes.operation import Argument, ChangeOutcome, Operation, Option, Plan
from lockstep.operations.changes.topic_change import describe_queues, registered_brokers
from lockstep.operations.errors import OperationError
from lockstep.protocol.names import check_topic
from lockstep.protocol.topics.layouts import QUEUES_PER_BROKER_MAX
from lockstep.protocol.topics.queue import TopicLayout

QUEUES_DEFAULT = 4
"""RocketMQ: a producer's defaultTopicQueueNums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCreate(Operation):
    """Create a topic. An existing topic is not changed (exit 1 if its queues differ)."""

    words = ("topic", "create")
    path = "topic-create"
    title = "Create a topic"

    topic: Annotated[str, Argument(help="The topic's name.", label="Topic")]
    queues: Annotated[
        int,
        Option(
            flags=("--queues", "-q"),
            help="Number of queues on EACH broker.",
            least=1,
            most=QUEUES_PER_BROKER_MAX,
            label="Queues on each broker",
        ),
    ] = QUEUES_DEFAULT
    broker: Annotated[
        tuple[str, ...],
        Option(
            flags=("--broker",),
            help="Create queues on this broker only; may be repeated. By default on all brokers.",
            label="Broker",
            hint="only this one; empty for all",
        ),
    ] = ()

    async def plan(self, admin: AdminClient) -> Plan:
        check_topic(self.topic)
        before = await admin.find_layout(self.topic)
        where = self.broker or tuple(await registered_brokers(admin))
        if before is None and self.broker:
            await registered_brokers(admin, self.broker)

        async def carry_out() -> ChangeOutcome:
            layout, is_new = await create_topic(admin, self.topic, self.queues, self.broker)
            line = f"topic {self.topic} {'created' if is_new else 'exists already'}: {describe_queues(layout.entries)}"
            return ChangeOutcome([line], {"topic": self.topic, "created": is_new, "entries": [asdict(entry) for entry in layout.entries]})

        effect = f"Topic {self.topic} is created, with {self.queues} queues on each of {', '.join(where)}."
        exists = None if before is None else f"topic {self.topic} exists already: {describe_queues(before.entries)}"
        return Plan([effect], carry_out, where, nothing=exists)


async def create_topic(admin: AdminClient, topic: str, queues: int, brokers: Collection[str] = ()) -> tuple[TopicLayout, bool]:
    """Create a topic with `queues` queues on each of these brokers, all if none is named. Return its layout, and whether it is new.

    Raise OperationError if it exists already with other queues.
    """
    check_topic(topic)
    before = await admin.find_layout(topic)
    if before is None:
        return await create_and_wait(admin.address, topic, queues, brokers), True
    others = [name for name in before.brokers if (before.write_count(name), before.read_count(name)) != (queues, queues)]
    if others or (brokers and set(brokers) != set(before.brokers)):
        raise OperationError(
            f"nothing was changed: topic {topic} exists already with {describe_queues(before.entries)}; "
            f"run `lockstep topic alter {topic} --queues {queues}` to change it"
        )
    return before, False
