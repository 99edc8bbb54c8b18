"""Make a replica the master of its broker."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from lockstep.operations.admin_client import AdminClient, by_name
from lockstep.operations.brokers.replica_query import read_copies
from lockstep.operations.brokers.replicas import COLUMNS, MASTER, LogCopy, of_broker
from lockstep.operations.changes.operation import Argument, ChangeOutcome, Operation, Option, Plan, Table
from lockstep.operations.errors import OperationError
from lockstep.operations.text import format_bytes
from lockstep.protocol.bodies import ReplicaStatus
from lockstep.protocol.errors import BrokerError, LockstepError, TransportError
from lockstep.runtime.connections.address import parse_address

STEP_S = 0.2
WAIT_MS = 120_000
"""How long the command waits until the new master serves: it reads the end of its log first, and registers."""
SAY_MS = 5_000
GROUPS_NAMED_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPromote(Operation):
    """Make a replica the master of its broker. Without --yes it only prints what would happen, and what would be lost.

    Stop the old master for good first: the command refuses while it answers. Afterwards start it, if it comes back, as a replica of the
    new one (--replica-of).
    """

    words = ("replica", "promote")
    path = "replica-promote"
    title = "Promote a replica"
    confirmed = "address"

    address: Annotated[str, Argument(metavar="HOST:PORT", help="The replica's address, as in `lockstep replica ls`.", label="Address")]
    force: Annotated[
        bool,
        Option(flags=("--force",), help="Promote it although it may lack acknowledged messages, which are lost then."),
    ] = False
    yes: Annotated[bool, Option(flags=("--yes",), help="Do it.")] = False

    @classmethod
    def of_form(cls, **values: Any) -> "ReplicaPromote":
        return cls(yes=True, **values)

    async def plan(self, admin: AdminClient) -> Plan:
        parse_address(self.address)
        address = self.address.strip()
        status = await admin.copy_status(address)
        name = status.broker_name
        if status.role == MASTER:
            what = f"{address} is the master of broker {name} already, in term {status.term}"
            return Plan([f"{what}."], lambda: _already(what, status), nothing=what)
        found = of_broker(await read_copies(admin, addresses={address: name}), name)
        _check_no_master(found, status)
        others = [each for each in found if each.status is None or each.status.member != status.member]
        furthest = max((each for each in others if _has_more(each, status)), key=_end, default=None)
        counted = None if furthest is None else (await admin.copy_status(address, counts=True), await _counted(admin, furthest.address))
        effect = [
            f"The replica at {address} becomes the master of broker {name}. Its log ends at {status.end}, in term {status.term}.",
            *expected_loss(status, others, force=self.force),
            *([] if counted is None or counted[1] is None else lacking(counted[0], counted[1])),
        ]

        async def carry_out() -> ChangeOutcome:
            if not self.yes:
                for sentence in effect:
                    admin.reporter.note(sentence)
                raise OperationError(f"nothing was changed: to do it, run `{self.command_line} --yes`")
            await admin.promote_replica(address, force=self.force)
            return await _promoted(admin, address, status)

        return Plan(
            effect, carry_out, (status.member, status.complete, status.may_have_forgotten), Table(COLUMNS, [each.row for each in found])
        )


def _check_no_master(found: Sequence[LogCopy], status: ReplicaStatus) -> None:
    """Raise OperationError if a master of the replica's log answers. The replica itself may not reach it."""
    for each in found:
        other = each.status
        if other is not None and other.role == MASTER and other.store_id == status.store_id and other.term >= status.term:
            raise OperationError(
                f"nothing was changed: the master of broker {each.broker} at {each.address} answers. Stop it for good first: two masters "
                "of one log lose messages"
            )


def _has_more(copy: LogCopy, status: ReplicaStatus) -> bool:
    other = copy.status
    return other is not None and other.store_id == status.store_id and (other.term, other.end) > (status.term, status.end)


def _end(copy: LogCopy) -> int:
    return 0 if copy.status is None else copy.status.end


async def _counted(admin: AdminClient, address: str) -> ReplicaStatus | None:
    try:
        return await admin.copy_status(address, counts=True)
    except (LockstepError, OSError):
        return None


def lacking(copy: ReplicaStatus, other: ReplicaStatus) -> list[str]:
    """Return in sentences which messages, and which progress of groups, a copy lacks that another one has."""
    if copy.messages is None or other.messages is None:
        return []
    behind = {group: offsets - (copy.consumed or {}).get(group, 0) for group, offsets in (other.consumed or {}).items()}
    back = sorted(((offsets, group) for group, offsets in behind.items() if offsets > 0), reverse=True)
    named = ", ".join(f"{group} by {offsets:,}" for offsets, group in back[:GROUPS_NAMED_MAX])
    more = f" and {len(back) - GROUPS_NAMED_MAX} more" if len(back) > GROUPS_NAMED_MAX else ""
    groups = f"The progress of {len(back)} groups goes back: {named}{more}." if back else "The progress of no group goes back."
    return [f"It lacks {max(0, other.messages - copy.messages):,} messages that the other copy has.", groups]


def expected_loss(status: ReplicaStatus, others: Sequence[LogCopy], *, force: bool) -> list[str]:
    """Return in sentences what a promotion would lose, and what groups notice. `others`: the other copies of its broker."""
    if status.complete:
        return [
            "Its master has stopped in order, and it has all of that log: nothing is lost. Queues, epochs and progress of groups go on."
        ]
    return [
        *([f"It can't follow now: {status.trouble}."] if status.trouble else []),
        _missing(status, others),
        *_refusals(status, others, force=force),
        "Acknowledged messages that it has not are lost: those that its master acknowledged while it was not in the set, if it was not.",
        "The generations of all groups rise: commits of their members that are ahead are refused, and messages may be delivered again. "
        "Ordered groups get their queues after the grace (3 s by default), those of RocketMQ's clients after 30 s.",
    ]


def _missing(status: ReplicaStatus, others: Sequence[LogCopy]) -> str:
    """Return up to where the log is known to go, by this replica and the others."""
    reached = [each for each in others if each.status is not None and each.status.store_id == status.store_id]
    lost = ", ".join(each.address for each in others if each.status is None)
    known = max((each.status.end for each in reached if each.status is not None), default=0)
    unknown = f" Where the logs of {lost} end is not known: they were not reached." if lost else ""
    if known > status.end:
        return f"Another copy has {format_bytes(known - status.end)} more: its log ends at {known}.{unknown}"
    if reached:
        return f"No other copy that answers has more.{unknown}"
    return f"No other copy answers.{unknown}"


def _refusals(status: ReplicaStatus, others: Sequence[LogCopy], *, force: bool) -> list[str]:
    """Return for what the replica will refuse without `force`."""
    found = []
    if status.may_have_forgotten:
        found.append("it may have lost messages that it had acknowledged (its machine crashed, or it was restored)")
    found += [f"the copy at {each.address} has more, which would be lost" for each in others if _has_more(each, status)]
    if force:
        return [f"With --force it is promoted although {each}." for each in found]
    return [f"It refuses without --force: {each}." for each in found]


async def _already(what: str, status: ReplicaStatus) -> ChangeOutcome:
    return ChangeOutcome([what], {"broker": status.broker_name, "term": status.term, "promoted": False})


async def _promoted(admin: AdminClient, address: str, before: ReplicaStatus) -> ChangeOutcome:
    """Return when the promoted replica serves as the master, and a nameserver routes it."""
    name, clock = before.broker_name, admin.host.clock
    began_ms = said_ms = clock.monotonic_ms()
    found: dict[str, Any] = {"broker": name, "address": address, "promoted": True, "complete": before.complete, "term": None}
    while (waiting_for := await _waits_for(admin, address, before, found)) is not None:
        now_ms = clock.monotonic_ms()
        if now_ms - began_ms > WAIT_MS:
            failed = f"{address} is promoted, but after {WAIT_MS // 1_000} s {waiting_for}: read its log, and see `lockstep replica ls`"
            return ChangeOutcome([], found, failed=failed)
        if now_ms - said_ms >= SAY_MS:
            said_ms = now_ms
            admin.reporter.note(f"{address} is promoted; {waiting_for}")
        await asyncio.sleep(STEP_S)
    lines = [
        f"{address} is the master of broker {name}, in term {found['term']}",
        f"start the old master as its replica: --replica-of {address}",
    ]
    return ChangeOutcome(lines, found)


async def _waits_for(admin: AdminClient, address: str, before: ReplicaStatus, found: dict[str, Any]) -> str | None:
    """Return what has to happen yet, None if nothing has. Note the new term in `found`."""
    try:
        status = await admin.copy_status(address)
    except BrokerError as error:
        return f"it refuses: {error}"
    except (LockstepError, OSError):
        return "it is starting"
    if status.role != MASTER or status.term <= before.term:
        return "it is starting"
    found["term"] = status.term
    try:
        routed = by_name(await admin.brokers()).get(before.broker_name)
    except TransportError:
        return None
    if routed is None or not routed.registered or routed.term != status.term:
        return "no nameserver has its new term yet"
    return None
