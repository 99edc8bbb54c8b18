"""Remove what a topic holds before an offset or a time."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from lockstep.operations.admin_client import AdminClient, broker_reasons, gather_results
from lockstep.operations.changes.operation import Argument, ChangeOutcome, Operation, Option, Plan, Table
from lockstep.operations.changes.queue_targets import read_by_time, read_queues, read_ranges
from lockstep.operations.changes.reset_plan import plan_moves
from lockstep.operations.changes.topic_change import check_not_only_copy, check_not_system_topic
from lockstep.operations.errors import OperationError
from lockstep.operations.targets import Target, parse_queue, parse_target
from lockstep.operations.text import format_time
from lockstep.protocol.bodies import BrokerAddress, PurgeBody, PurgeReply, QueueOffset
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.topics.queue import MessageQueue

GROUPS_SHOWN = 8
"""The number of groups that a sentence names."""
REMAINS = "their bytes stay in the log files of the brokers until retention removes those files"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPurge(Operation):
    """Remove what is stored in a topic before an offset or a time. Refused while a group has not consumed it, unless --force.

    No read returns the messages any more, and nothing brings them back. Their bytes stay in the log files of the brokers until retention
    removes those files. The progress of a broadcasting group is in files of its members, so no broker knows what it has consumed.
    """

    words = ("topic", "purge")
    path = "topic-purge"
    title = "Purge a topic"
    confirmed = "topic"

    topic: Annotated[str, Argument(help="The topic's name.", label="Topic")]
    to: Annotated[
        str,
        Option(
            flags=("--to",),
            metavar="WHERE",
            help="The first message that remains: end (remove all), an offset, a time (ISO 8601; UTC if without a zone), a time of day "
            "(15:00, UTC), or a duration ago: 90s, 30m, 2h, 7d.",
            label="Remove before",
            hint="end (all), an offset, a time (2026-11-21T15:00:00Z), or a duration ago (90s, 30m, 2h, 7d)",
        ),
    ]
    queue: Annotated[
        tuple[str, ...],
        Option(
            flags=("--queue",),
            metavar="BROKER:NUMBER",
            help="Purge only this queue; may be repeated. By default all.",
            label="Queue",
            hint="only this one, as in broker-a:3; empty for all",
        ),
    ] = ()
    force: Annotated[
        bool,
        Option(
            flags=("--force",),
            help="Purge also what groups have not consumed, and a group's %RETRY% or %DLQ% topic. The groups continue after it, and "
            "report the gap.",
        ),
    ] = False

    async def plan(self, admin: AdminClient) -> Plan:
        check_not_system_topic(self.topic)
        target = parse_target(self.to, admin.host.clock.wall_ms())
        if target.kind == "beginning":
            raise ConfigError("--to beginning removes nothing: name the first message that remains by an offset or a time, or use end")
        if not self.force:
            check_not_only_copy(self.topic, "purge")
        async with admin.keep_connections():
            purge = await _plan_purge(admin, self.topic, {parse_queue(text) for text in self.queue}, target)
        if purge.groups and not self.force:
            raise OperationError(
                f"nothing was changed: not all of it was consumed by {purge.described_groups}. Let them consume it, end their progress in "
                f"the topic by `lockstep group forget`, or use --force"
            )

        async def carry_out() -> ChangeOutcome:
            async with admin.keep_connections():
                done = await purge.carry_out(admin, force=self.force)
            lines = [f"topic {self.topic}: {done.messages:,} messages removed in {len(done.removed)} queues; {REMAINS}"]
            if done.groups:
                lines.append(f"groups that continue after messages that they have not consumed: {done.described_groups}")
            return ChangeOutcome(lines, {**done.as_json(), "done": True}, table=done.table)

        # Messages arrive while the plan is read: what was agreed to is up to where is removed, in which queues, and who loses some of it.
        wanted = tuple((str(queue), offset if target.kind != "end" else None) for queue, offset in purge.wanted.items())
        return Plan(
            purge.effect,
            carry_out,
            (wanted, tuple(sorted(purge.groups))),
            purge.table,
            {"to": format_time(target.value)} if target.kind == "time" else None,
            nothing=None if purge.messages else f"topic {self.topic} has no messages before {self.to}",
            json={**purge.as_json(), "done": False},
        )


@dataclass(frozen=True, slots=True)
class _Purge:
    """A purge of one topic at all brokers concerned, planned or done."""

    topic: str
    brokers: Mapping[str, BrokerAddress]
    wanted: Mapping[MessageQueue, int]
    """Queue → the first offset that remains."""
    replies: Mapping[str, PurgeReply]
    """By broker."""

    @property
    def removed(self) -> list[tuple[MessageQueue, int, int]]:
        """Return (queue, old first offset, new one) of the queues that lose messages."""
        return [row for row in self._rows if row[1] < row[2]]

    @property
    def _rows(self) -> list[tuple[MessageQueue, int, int]]:
        return [
            (MessageQueue(self.topic, name, each.queue_id), each.before, each.after)
            for name, reply in self.replies.items()
            for each in reply.queues
        ]

    @property
    def messages(self) -> int:
        return sum(after - before for _, before, after in self._rows)

    @property
    def groups(self) -> dict[str, tuple[int, int]]:
        """Return group → (messages, parked keys) that it has not consumed. Of very many groups, each broker names the first ones."""
        messages, parked = Counter[str](), Counter[str]()
        for reply in self.replies.values():
            for each in reply.groups:
                messages[each.group] += each.messages
                parked[each.group] += each.parked
        return {group: (count, parked[group]) for group, count in sorted(messages.items(), key=lambda each: (-each[1], each[0]))}

    @property
    def described_groups(self) -> str:
        named = [
            f"{group} ({messages:,} messages" + (f", {parked} parked keys" if parked else "") + ")"
            for group, (messages, parked) in self.groups.items()
        ]
        more = max(len(named), max(reply.group_count for reply in self.replies.values())) - GROUPS_SHOWN
        return ", ".join(named[:GROUPS_SHOWN]) + (f" and {more} others" if more > 0 else "")

    @property
    def effect(self) -> list[str]:
        """Return what it does, as sentences."""
        found = [
            f"{self.messages:,} messages of topic {self.topic} are removed, as things are now. No read returns them any more, and nothing "
            "brings them back.",
            f"{REMAINS.capitalize()}.",
        ]
        if self.groups:
            found.append(f"Groups that have not consumed all of it continue after it, and report the gap: {self.described_groups}.")
        if any(parked for _, parked in self.groups.values()):
            found.append("Messages that wait for the replay of parked keys are removed too, and are not copied to the dead letters.")
        found.append("Messages that wait for a delay or a retry of this topic are elsewhere, and stay.")
        return found

    @property
    def table(self) -> Table:
        rows = [(queue.broker_name, queue.queue_id, before, after, after - before or None) for queue, before, after in self._rows]
        return Table(("broker", ">queue", ">old first offset", ">new first offset", ">messages removed"), rows)

    def as_json(self) -> dict[str, Any]:
        queues = [{"queue": str(queue), "before": before, "after": after} for queue, before, after in self._rows]
        groups = [{"group": group, "messages": messages, "parked": parked} for group, (messages, parked) in self.groups.items()]
        complete = all(reply.group_count == len(reply.groups) for reply in self.replies.values())
        return {"topic": self.topic, "queues": queues, "messages": self.messages, "groups": groups, "groups_complete": complete}

    def body(self, broker: str, *, force: bool = False, dry_run: bool = False) -> PurgeBody:
        own = tuple(QueueOffset(queue.queue_id, offset) for queue, offset in self.wanted.items() if queue.broker_name == broker)
        return PurgeBody(self.topic, own, force, dry_run)

    async def carry_out(self, admin: AdminClient, *, force: bool) -> "_Purge":
        """Purge broker by broker; each purges all its queues or none. Raise OperationError at the first that does not."""
        done: dict[str, PurgeReply] = {}
        for name in self.replies:
            results = await gather_results({name: admin.purge(self.brokers[name], self.body(name, force=force))})
            if results.failed:
                so_far = f"it was purged at {', '.join(done)} already" if done else "nothing was changed before"
                raise OperationError(f"broker {name} did not purge {self.topic}: {results.failed[name]}; {so_far}. Run the command again")
            done |= results.values
        return _Purge(self.topic, self.brokers, self.wanted, done)


async def _plan_purge(admin: AdminClient, topic: str, selected: Collection[tuple[str, int]], target: Target) -> _Purge:
    """Return what a purge would do. Raise OperationError if a broker concerned does not respond: then it is not made anywhere."""
    queues, brokers = await read_queues(admin, [topic], selected)
    names = list(dict.fromkeys(queue.broker_name for queue in queues))
    ranges = await read_ranges(admin, brokers, queues)
    moves = plan_moves(queues, (), ranges, target, await read_by_time(admin, brokers, queues, target))
    purge = _Purge(topic, brokers, {move.queue: move.after for move in moves}, {})
    results = await gather_results({name: admin.purge(brokers[name], purge.body(name, dry_run=True)) for name in names})
    if results.failed:
        raise OperationError(f"nothing was changed: {broker_reasons(results.failed)}. Run the command again")
    return _Purge(topic, brokers, purge.wanted, {name: results.values[name] for name in names})
