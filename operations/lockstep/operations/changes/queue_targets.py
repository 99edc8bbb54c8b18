"""Read the queues that a change concerns, and the offsets at which it may aim. A change that can't know all of them is not begun."""

from collections.abc import Collection, Mapping, Sequence

from lockstep.operations.admin_client import AdminClient, by_name, gather_results
from lockstep.operations.errors import OperationError
from lockstep.operations.targets import Target
from lockstep.protocol.bodies import BrokerAddress, OffsetRange
from lockstep.protocol.topics.queue import MessageQueue


async def read_queues(
    admin: AdminClient, topics: Sequence[str], selected: Collection[tuple[str, int]] = ()
) -> tuple[list[MessageQueue], dict[str, BrokerAddress]]:
    """Return the readable queues of topics, those `selected` or all, and their brokers by name.

    Raise TopicNotExistError, and OperationError for a selected queue that no topic has.
    """
    queues: list[MessageQueue] = []
    brokers: dict[str, BrokerAddress] = {}
    for name in topics:
        route = await admin.route(name)
        brokers |= by_name(route.brokers)
        queues += route.layout.read_queues
    if selected:
        queues = [each for each in queues if (each.broker_name, each.queue_id) in selected]
    if missing := set(selected) - {(each.broker_name, each.queue_id) for each in queues}:
        raise OperationError(
            f"nothing was changed: {', '.join(topics)} has no queue {':'.join(map(str, min(missing)))}; "
            "run `lockstep topic show TOPIC` to list the queues"
        )
    return queues, brokers


async def read_by_time(
    admin: AdminClient, brokers: Mapping[str, BrokerAddress], queues: Sequence[MessageQueue], target: Target
) -> dict[MessageQueue, int]:
    """Return each queue's first message that was stored at the time of `target` or later; nothing if it is no time.

    Raise OperationError if a broker does not respond.
    """
    if target.kind != "time":
        return {}
    found = await gather_results(
        {str(each): admin.offset_by_time(brokers[each.broker_name], each.topic, each.queue_id, target.value) for each in queues}
    )
    if found.failed:
        raise OperationError(f"nothing was changed, {found.failure_summary()}. Run the command again")
    return {each: found.values[str(each)] for each in queues}


async def read_ranges(
    admin: AdminClient, brokers: Mapping[str, BrokerAddress], queues: Sequence[MessageQueue]
) -> dict[MessageQueue, OffsetRange]:
    """Return the offsets that each queue holds.

    Raise OperationError if the address of a broker is not known, or a broker does not respond.
    """
    asked = list(dict.fromkeys((queue.topic, queue.broker_name) for queue in queues))
    for topic, name in asked:
        if name not in brokers:
            raise OperationError(f"nothing was changed: no address of broker {name} is known, and it has queues of {topic}")
    found = await gather_results({f"{name} ({topic})": admin.offsets(brokers[name], topic) for topic, name in asked})
    if found.failed:
        raise OperationError(f"nothing was changed, {found.failure_summary()}. Run the command again")
    return {MessageQueue(topic, name, held.queue_id): held for topic, name in asked for held in found.values[f"{name} ({topic})"]}
