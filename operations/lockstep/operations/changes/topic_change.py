"""What changes of topics share."""

from collections.abc import Iterable

from lockstep.operations.admin_client import AdminClient
from lockstep.operations.errors import OperationError
from lockstep.protocol.names import DLQ_PREFIX, RETRY_PREFIX, check_topic, is_system_topic
from lockstep.protocol.topics.queue import LayoutEntry


def check_not_system_topic(topic: str) -> None:
    """Raise OperationError for a topic that brokers use internally, and the error of `check_topic` for an invalid name."""
    check_topic(topic)
    if is_system_topic(topic):
        raise OperationError(f"topic {topic} is used by the brokers internally: it can be neither altered nor deleted nor purged")


def check_not_only_copy(topic: str, verb: str) -> None:
    """Raise OperationError if the topic holds the only copy of a group's messages."""
    for prefix, what in ((RETRY_PREFIX, "messages that wait for a retry"), (DLQ_PREFIX, "dead letters")):
        if topic.startswith(prefix):
            group = topic.removeprefix(prefix)
            raise OperationError(
                f"nothing was changed: topic {topic} holds the {what} of group {group}, which would be lost. Use --force to {verb} it"
            )


def describe_queues(entries: Iterable[LayoutEntry]) -> str:
    """Return the number of queues on each broker, as words."""
    return ", ".join(f"{entry.write_queue_count} queues on {entry.broker_name}" for entry in entries if not entry.is_marker)


async def registered_brokers(admin: AdminClient, named: Iterable[str] = ()) -> list[str]:
    """Return the names of the registered brokers, sorted. Raise OperationError if one of those `named` is not registered."""
    registered = sorted(broker.name for broker in await admin.brokers() if broker.registered)
    for name in named:
        if name not in registered:
            raise OperationError(f"broker {name} is not registered; the registered ones are {', '.join(registered) or 'none'}")
    return registered
