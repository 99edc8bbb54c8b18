"""Take every queue off a broker: one that runs (drain), or one that is lost (remove)."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

from lockstep.operations.admin_client import AdminClient, by_name
from lockstep.operations.brokers.replica_query import read_copies
from lockstep.operations.brokers.replicas import of_broker
from lockstep.operations.changes.layouts.drain import (
    STEP_S,
    WaitReport,
    close_queues,
    counts_without,
    drop_queues,
    find_substitute,
    new_writer,
    registered_broker,
)
from lockstep.operations.changes.layouts.layout_change import alter_layout
from lockstep.operations.changes.layouts.layout_publish import publish_layout
from lockstep.operations.changes.layouts.queue_move import NotConsumedError, put_in_order
from lockstep.operations.changes.layouts.write_hold import NotHeldError
from lockstep.operations.changes.operation import Argument, ChangeOutcome, Operation, Option, Plan
from lockstep.operations.errors import OperationError
from lockstep.operations.text import format_time
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.names import DLQ_PREFIX, group_of_topic
from lockstep.protocol.topics.queue import TopicLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDrain(Operation):
    """Take every queue off a running broker, so that it can be stopped for good. Run it again if it was interrupted: it continues.

    Its queues are closed to writers, without breaking the order of a key (see `lockstep topic alter`); then, when every group has consumed
    them and no message waits there for its delay, they are removed. A topic that has queues on this broker alone gets as many on another.
    """

    words = ("broker", "drain")
    path = "broker-drain"

    name: Annotated[str, Argument(metavar="NAME", help="The broker's name.")]
    leave_waiting: Annotated[
        bool,
        Option(
            flags=("--leave-waiting",),
            help="If messages wait there for their delay, a retry or a transaction, end when the queues are closed to writers: keep the "
            "broker running until they are delivered, and run the command again.",
        ),
    ] = False

    async def plan(self, admin: AdminClient) -> Plan:
        await registered_broker(admin, self.name)
        topics = tuple(with_queues_on(self.name, await admin.layouts()))

        async def carry_out() -> ChangeOutcome:
            if not await drain(admin, self.name, leave_waiting=self.leave_waiting):
                waiting = await read_waiting(admin, self.name)
                lines = [
                    f"the queues of broker {self.name} are closed to writers, and it is not drained yet: {waiting.text}",
                    f"keep it running until they are delivered and consumed, and run `lockstep broker drain {self.name}` again",
                ]
                return ChangeOutcome(lines, {"broker": self.name, "drained": False, **waiting.as_json()})
            return ChangeOutcome(
                [f"broker {self.name} is drained: no topic has a queue there. Stop it"], {"broker": self.name, "drained": True}
            )

        effect = (
            f"The queues of {len(topics)} topics on broker {self.name} are closed to writers, in order, and removed when every group has "
            "consumed them."
        )
        return Plan([effect], carry_out, topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRemove(Operation):
    """Remove the queues of a broker that is lost for good. Without --force it only prints what would be lost.

    Messages that were stored there and not consumed are lost, with the progress of groups there. Keyed sends that wait for it go to other
    queues; the order of their keys begins again.
    """

    words = ("broker", "remove")
    path = "broker-remove"

    name: Annotated[str, Argument(metavar="NAME", help="The broker's name.")]
    force: Annotated[bool, Option(flags=("--force",), help="Remove its queues although their messages are lost.")] = False

    async def plan(self, admin: AdminClient) -> Plan:
        name = self.name
        broker = by_name(await admin.brokers()).get(name)
        if broker is not None and broker.registered:
            raise OperationError(f"broker {name} is registered: drain it instead (`lockstep broker drain {name}`), or stop it first")
        copies = [] if broker is None else of_broker(await read_copies(admin), name)
        running = [each.address for each in copies if each.status is not None]
        if running:
            raise OperationError(
                f"broker {name} is not lost: it, or another copy of its log, answers at {' and '.join(running)}. Wait until it serves (see "
                f"`lockstep replica ls --broker {name}`), or stop it first"
            )
        layouts = with_queues_on(name, await admin.layouts())
        lost = [_lost(topic, layout, name) for topic, layout in layouts.items()]

        async def carry_out() -> ChangeOutcome:
            if not layouts:
                return ChangeOutcome([f"{nothing}, and nameservers forget its address by themselves"], {"broker": name, "topics": []})
            for sentence in lost:
                admin.reporter.note(sentence)
            if not self.force:
                raise OperationError(f"nothing was changed: if broker {name} is lost for good, run `lockstep broker remove {name} --force`")
            failed: dict[str, str] = {}
            for topic in layouts:  # one after another: each may give a broker more queues, which the choice for the next one counts
                try:
                    await _remove_from(admin, topic, name)
                except (LockstepError, OSError) as error:
                    failed[topic] = str(error)
            line = f"broker {name} is removed from {len(layouts)} topics. If it comes back with its store, its messages stay unreadable"
            text = "; ".join(f"topic {topic}: {why}" for topic, why in failed.items())
            found = {"broker": name, "topics": [topic for topic in layouts if topic not in failed], "failed": failed}
            return ChangeOutcome([] if failed else [line], found, failed=text or None)

        nothing = f"no topic has a queue on broker {name}: there is nothing to remove"
        return Plan([f"{sentence}." for sentence in lost], carry_out, tuple(layouts), nothing=None if layouts else nothing)


async def drain(admin: AdminClient, name: str, *, leave_waiting: bool = False) -> bool:
    """Take every queue off the broker. With `leave_waiting`, close them, and return False if messages wait there.

    Raise OperationError if queues come back, or dead letters are left.
    """
    closed: set[str] = set()
    while used := await _used_topics(admin, name):
        for topic in used:
            if topic in closed and group_of_topic(topic) is None:
                raise OperationError(
                    f"topic {topic} has queues on {name} again: another command has added them since, such as a drain of the broker that "
                    "got them. Wait until it ends, and run this one again"
                )
            await close_queues(admin, topic, name)
        if leave_waiting and (await read_waiting(admin, name)).count:
            return False
        # The topics of retries come last: a message of another topic that fails is stored there.
        for group_topics in (False, True):
            await drop_queues(admin, [topic for topic in used if (group_of_topic(topic) is not None) is group_topics], name)
        closed.update(used)
    await _drop_empty_dead_letters(admin, name)
    left = with_queues_on(name, await admin.layouts())
    if left:
        groups = ", ".join(sorted(str(group_of_topic(topic)) for topic in left))
        raise OperationError(
            f"broker {name} has no queue to consume any more, but dead letters of the groups {groups}: replay them (`lockstep dlq replay "
            f"GROUP`), or give them up with `lockstep broker remove {name} --force` after it was stopped"
        )
    return True


@dataclass(frozen=True, slots=True)
class WaitingAtBroker:
    """The messages that wait at one broker for their delay, a retry or a transaction."""

    count: int
    last_due_ms: int | None
    """The time (ms since 1970) at which all that wait for a delay of any length or a time of day are due; None if none does."""

    @property
    def text(self) -> str:
        last = "" if self.last_due_ms is None else f", the last of those with a delay until {format_time(self.last_due_ms)}"
        return f"{self.count:,} messages wait there for their delay, a retry or a transaction{last}"

    def as_json(self) -> dict[str, Any]:
        return {"waiting": self.count, "last_due_at": None if self.last_due_ms is None else format_time(self.last_due_ms)}


async def read_waiting(admin: AdminClient, name: str) -> WaitingAtBroker:
    """Return what waits at the broker. Raise OperationError if it is not registered."""
    found = await admin.overview(await registered_broker(admin, name))
    last_ms = max((each.last_due_ms for each in found.delays if each.last_due_ms is not None), default=None)
    return WaitingAtBroker(found.status.delayed_messages, None if last_ms is None else admin.host.clock.wall_ms() + last_ms)


def _lost(topic: str, layout: TopicLayout, name: str) -> str:
    what = "dead letters" if topic.startswith(DLQ_PREFIX) else "messages waiting for a retry" if group_of_topic(topic) else "messages"
    return f"{topic}: {layout.read_count(name)} queues on {name}. Their {what} that were not consumed are lost"


async def _used_topics(admin: AdminClient, name: str) -> list[str]:
    """Return the topics with queues on the broker, except those of dead letters. If there is none, wait until no message is delayed there:
    it would open a queue again."""
    report = WaitReport(admin)
    while True:
        waiting = await read_waiting(admin, name)
        used = [topic for topic in with_queues_on(name, await admin.layouts()) if not topic.startswith(DLQ_PREFIX)]
        if used or not waiting.count:
            return used
        report.say(f"waiting until {name} has delivered them: {waiting.text}")
        await asyncio.sleep(STEP_S)


async def _drop_empty_dead_letters(admin: AdminClient, name: str) -> None:
    broker = by_name(await admin.brokers())[name]
    for topic, layout in with_queues_on(name, await admin.layouts()).items():
        held = await admin.offsets(broker, topic)
        if topic.startswith(DLQ_PREFIX) and all(each.min_offset == each.max_offset for each in held):
            counts = counts_without(layout, name, 0, await find_substitute(admin, layout, name))
            await publish_layout(admin, alter_layout(layout, counts, writer=new_writer(admin)))


async def _remove_from(admin: AdminClient, topic: str, name: str) -> None:
    layout = await admin.find_layout(topic)
    if layout is None or name not in layout.brokers:
        return
    target = await find_substitute(admin, layout, name)
    after = alter_layout(layout, counts_without(layout, name, 0, target), writer=new_writer(admin))
    try:
        await put_in_order(admin, layout, after, lost=(name,))
    except (NotConsumedError, NotHeldError) as error:
        admin.reporter.note(f"topic {topic}: order per key ends for the other brokers' queues too: {error}")
        await publish_layout(admin, after)


def with_queues_on(name: str, layouts: dict[str, TopicLayout]) -> dict[str, TopicLayout]:
    return {topic: layout for topic, layout in layouts.items() if name in layout.brokers}
