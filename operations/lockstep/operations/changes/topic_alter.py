"""Change the number of queues of a topic, or move them to another broker."""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Annotated

from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes.layouts.drain import close_queues, drop_queues, new_writer
from lockstep.operations.changes.layouts.layout_change import alter_layout, parse_queue_counts
from lockstep.operations.changes.layouts.layout_publish import publish_layout
from lockstep.operations.changes.layouts.queue_move import put_in_order
from lockstep.operations.changes.operation import Argument, ChangeOutcome, Operation, Option, Plan
from lockstep.operations.changes.topic_change import check_not_system_topic, describe_queues, registered_brokers
from lockstep.operations.errors import OperationError
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.topics.layouts import QUEUES_PER_BROKER_MAX
from lockstep.protocol.topics.queue import TopicLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAlter(Operation):
    """Change the number of queues of a topic, or move them to another broker.

    Later messages of a key may go to other queues. So that its order is kept, the brokers hold the writes to the topic until the ordered
    groups have consumed it, for 20 s at the longest; sends wait meanwhile. If the groups lag too much, or have parked keys in the topic,
    nothing is changed.
    """

    words = ("topic", "alter")
    path = "topic-alter"
    title = "Alter a topic"
    confirmed = "topic"

    topic: Annotated[str, Argument(help="The topic's name.", label="Topic")]
    queues: Annotated[
        int | None,
        Option(
            flags=("--queues", "-q"),
            help="Number of queues on EACH broker, to write and to read. 0, with --broker: none on that broker.",
            least=0,
            most=QUEUES_PER_BROKER_MAX,
            label="Queues on each broker",
            start="4",
        ),
    ] = None
    write_queues: Annotated[
        int | None,
        Option(flags=("--write-queues",), help="Number of queues to write to on each broker.", least=0, most=QUEUES_PER_BROKER_MAX),
    ] = None
    read_queues: Annotated[
        int | None,
        Option(flags=("--read-queues",), help="Number of queues to read from on each broker.", least=0, most=QUEUES_PER_BROKER_MAX),
    ] = None
    broker: Annotated[
        tuple[str, ...],
        Option(
            flags=("--broker",),
            help="Change only this broker; may be repeated. By default all brokers.",
            label="Broker",
            hint="only this one; empty for all",
        ),
    ] = ()
    move_to: Annotated[
        str | None,
        Option(
            flags=("--to",), help="Move the queues of --broker to this broker: as many are added there, and those are drained and removed."
        ),
    ] = None
    force: Annotated[
        bool,
        Option(
            flags=("--force",),
            help="Change it even if groups have not consumed the messages, or have parked keys: order per key ends, or messages are lost.",
        ),
    ] = False

    async def plan(self, admin: AdminClient) -> Plan:
        if self.move_to is not None:
            return await self._plan_move(admin, self.move_to)
        write_count, read_count = parse_queue_counts(self.queues, self.write_queues, self.read_queues)
        planned = await plan_alteration(admin, self.topic, write_count, read_count, self.broker)
        before, after = planned.before, planned.after

        async def carry_out() -> ChangeOutcome:
            held_ms = await planned.carry_out(admin, force=self.force)
            return ChangeOutcome(self._lines(planned, held_ms), self._json(planned, held_ms))

        effect = [
            f"Topic {self.topic} has {describe_queues(before.entries)} now, and then {describe_queues(after.entries)}: {planned.counts}."
        ]
        if planned.keys_move and self.force:
            effect.append("Later messages of a key may go to other queues, and are consumed before earlier ones: order per key ends.")
        elif planned.keys_move:
            effect.append(
                "Later messages of a key may go to other queues. Sends wait, for 20 s at the longest, until the ordered groups have "
                "consumed what is stored. If they lag too much, nothing is changed."
            )
        if len(after.read_queues) < len(before.read_queues) and not self.force:
            effect.append("Queues that are removed must have been consumed by every group. If they have not been, nothing is changed.")
        same = None if planned.changes else f"topic {self.topic} has that many queues already: {describe_queues(before.entries)}"
        return Plan(effect, carry_out, (before.version, after.entries), nothing=same)

    def _lines(self, planned: "Alteration", held_ms: int | None) -> list[str]:
        if not planned.changes:
            return [f"topic {self.topic} has that many queues already"]
        lines = [f"topic {self.topic}: {planned.counts}, layout version {planned.after.version.counter}"]
        if planned.keys_move and self.force:
            before = planned.before.version.counter
            lines.append(f"order per key ended with layout version {before}: later messages of a key may be in another queue")
        elif planned.keys_move:
            lines.append(f"order per key is kept: writes were held for {held_ms} ms, until the ordered groups had consumed the topic")
        return lines

    def _json(self, planned: "Alteration", held_ms: int | None) -> dict[str, object]:
        after = planned.after
        return {
            "topic": self.topic,
            "changed": planned.changes,
            "keys_move": planned.keys_move,
            "order_ended": planned.keys_move and self.force,
            "held_ms": held_ms,
            "version": {"counter": after.version.counter, "writer": after.version.writer},
            "entries": [asdict(entry) for entry in after.entries],
        }

    async def _plan_move(self, admin: AdminClient, target: str) -> Plan:
        check_not_system_topic(self.topic)
        others = (self.queues, self.write_queues, self.read_queues)
        if any(count is not None for count in others) or self.force or not self.broker or target in self.broker:
            raise ConfigError("--to NAME moves the queues of --broker OTHER, all of them and in order: use it with --broker alone")
        before = (await admin.route(self.topic)).layout
        await registered_brokers(admin, (*self.broker, target))

        async def carry_out() -> ChangeOutcome:
            for source in self.broker:
                await close_queues(admin, self.topic, source, target)
            for source in self.broker:
                await drop_queues(admin, [self.topic], source)
            return ChangeOutcome([], {"topic": self.topic, "moved_from": list(self.broker), "moved_to": target})

        effect = f"The queues of topic {self.topic} on {', '.join(self.broker)} move to {target}, in order."
        return Plan([effect], carry_out, (before.version,))


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
    """Return the effect on a topic of having so many queues on each broker, or on these brokers only.

    Raise TopicNotExistError, and OperationError for a topic of the brokers' own or a broker that is not known.
    """
    check_not_system_topic(topic)
    before = (await admin.route(topic)).layout
    known = {broker.name: broker.registered for broker in await admin.brokers()}
    if unknown := sorted(set(only) - set(known)):
        raise OperationError(f"no nameserver knows broker {unknown[0]}; the known brokers are {', '.join(known)}")
    brokers = set(only) or {name for name, registered in known.items() if registered} | {entry.broker_name for entry in before.entries}
    return Alteration(before, alter_layout(before, dict.fromkeys(brokers, (write_queues, read_queues)), writer=new_writer(admin)))
