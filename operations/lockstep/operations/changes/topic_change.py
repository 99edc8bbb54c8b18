"""Create, alter and delete a topic: what would change, and the requests that change it."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes.drain import new_writer
from lockstep.operations.changes.layout_change import alter_layout
from lockstep.operations.changes.layout_publish import create_and_wait, publish_layout
from lockstep.operations.changes.queue_move import put_in_order
from lockstep.operations.errors import OperationError
from lockstep.protocol.errors import TopicNotExistError
from lockstep.protocol.names import DLQ_PREFIX, RETRY_PREFIX, check_topic, is_system_topic
from lockstep.protocol.queue import LayoutEntry, TopicLayout


def check_not_system_topic(topic: str) -> None:
    """Raise OperationError for a topic that brokers use internally, and the error of `check_topic` for an invalid name."""
    check_topic(topic)
    if is_system_topic(topic):
        raise OperationError(f"topic {topic} is used by the brokers internally: it can be neither altered nor deleted")


def describe_queues(entries: Iterable[LayoutEntry]) -> str:
    """Return the number of queues on each broker, as words."""
    return ", ".join(f"{entry.write_queue_count} queues on {entry.broker_name}" for entry in entries if not entry.is_marker)


async def find_layout(admin: AdminClient, topic: str) -> TopicLayout | None:
    """Return the topic's layout, None if there is no such topic."""
    try:
        return (await admin.route(topic)).layout
    except TopicNotExistError:
        return None


async def registered_brokers(admin: AdminClient, named: Iterable[str] = ()) -> list[str]:
    """Return the names of the registered brokers, sorted. Raise OperationError if one of those `named` is not registered."""
    registered = sorted(broker.name for broker in await admin.brokers() if broker.registered)
    for name in named:
        if name not in registered:
            raise OperationError(f"broker {name} is not registered; the registered ones are {', '.join(registered) or 'none'}")
    return registered


async def create_topic(admin: AdminClient, topic: str, queues: int, brokers: Collection[str] = ()) -> tuple[TopicLayout, bool]:
    """Create a topic with `queues` queues on each of these brokers, all if none is named. Return its layout, and whether it is new.

    Raise OperationError if it exists already with other queues.
    """
    check_topic(topic)
    before = await find_layout(admin, topic)
    if before is None:
        return await create_and_wait(";".join(admin.nameservers), topic, queues, brokers), True
    others = [name for name in before.brokers if (before.write_count(name), before.read_count(name)) != (queues, queues)]
    if others or (brokers and set(brokers) != set(before.brokers)):
        raise OperationError(
            f"nothing was changed: topic {topic} exists already with {describe_queues(before.entries)}; "
            f"run `lockstep topic alter {topic} --queues {queues}` to change it"
        )
    return before, False


@dataclass(frozen=True, slots=True)
class Alteration:
    """A planned change of a topic's queues."""

    before: TopicLayout
    after: TopicLayout

    @property
    def changes(self) -> bool:
        """Return whether anything would change."""
        return self.after is not self.before

    @property
    def keys_move(self) -> bool:
        """Return whether later messages of a key may be in another queue."""
        return self.after.write_queues != self.before.write_queues

    @property
    def counts(self) -> str:
        """Return the numbers of queues afterwards, as words."""
        return f"{len(self.after.write_queues)} queues to write, {len(self.after.read_queues)} to read"

    async def carry_out(self, admin: AdminClient, *, force: bool = False) -> int | None:
        """Put the new layout into force. Return for how long writes were held, in ms; None if they were not.

        With `force` no group is waited for: the order of keys ends. Raises what `put_in_order` and `publish_layout` raise.
        """
        if not self.changes:
            return None
        if force:
            await publish_layout(admin, self.after)
            return None
        return await put_in_order(admin, self.before, self.after)


async def plan_alteration(admin: AdminClient, topic: str, write_queues: int, read_queues: int, only: Collection[str] = ()) -> Alteration:
    """Return what it would mean for a topic to have so many queues on each broker, or on these brokers only.

    Raise TopicNotExistError, and OperationError for a topic of the brokers' own or a broker that is not known.
    """
    check_not_system_topic(topic)
    before = (await admin.route(topic)).layout
    known = {broker.name: broker.registered for broker in await admin.brokers()}
    if unknown := sorted(set(only) - set(known)):
        raise OperationError(f"no nameserver knows broker {unknown[0]}; the known brokers are {', '.join(known)}")
    brokers = set(only) or {name for name, registered in known.items() if registered} | {entry.broker_name for entry in before.entries}
    return Alteration(before, alter_layout(before, dict.fromkeys(brokers, (write_queues, read_queues)), writer=new_writer(admin)))


async def plan_deletion(admin: AdminClient, topic: str, *, force: bool = False) -> TopicLayout:
    """Return the layout of the topic that would be deleted.

    Raise OperationError if there is no such topic, if it is one of the brokers' own, or, without `force`, if it holds the only copy of a
    group's messages.
    """
    check_not_system_topic(topic)
    before = await find_layout(admin, topic)
    if before is None:
        raise OperationError(f"topic {topic} does not exist; run `lockstep topic list` to list the topics")
    for prefix, what in ((RETRY_PREFIX, "messages that wait for a retry"), (DLQ_PREFIX, "dead letters")):
        if topic.startswith(prefix) and not force:
            group = topic.removeprefix(prefix)
            raise OperationError(
                f"nothing was changed: topic {topic} holds the {what} of group {group}, which would be lost. Use --force to delete it"
            )
    return before


async def delete_topic(admin: AdminClient, before: TopicLayout) -> TopicLayout:
    """Delete the topic that had this layout. Return the layout that says so. Raises what `publish_layout` raises."""
    deletion = before.deletion
    await publish_layout(admin, deletion, owners=before.brokers)
    return deletion
