"""Make another copy of a broker its master, under a register."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

from lockstep.operations.admin_client import AdminClient
from lockstep.operations.brokers.replica_query import read_copies
from lockstep.operations.brokers.replicas import COLUMNS, MASTER, LogCopy, of_broker
from lockstep.operations.changes.operation import Argument, ChangeOutcome, Operation, Option, Plan, Table
from lockstep.operations.changes.replica_promote import expected_loss
from lockstep.operations.errors import OperationError
from lockstep.protocol.errors import LockstepError
from lockstep.runtime.connections.address import parse_address

STEP_S = 0.1
WAIT_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HaFailover(Operation):
    """Hand a broker over to another copy of its log: nothing is lost or repeated. Without --yes it only prints what would happen.

    With --unclean the copy at --to becomes the master although the register does not know that it has everything: for a set whose machines
    will not come back, and for a register whose entry was lost.
    """

    words = ("ha", "failover")
    path = "ha-failover"
    title = "Hand over to another copy"
    confirmed = "broker"

    broker: Annotated[str, Argument(metavar="BROKER", help="The broker's name.", label="Broker")]
    to: Annotated[
        str | None, Option(flags=("--to",), metavar="HOST:PORT", help="The copy that is to be the master; by default any of the set.")
    ] = None
    unclean: Annotated[bool, Option(flags=("--unclean",), help="Also if it may lack acknowledged messages, which are lost then.")] = False
    yes: Annotated[bool, Option(flags=("--yes",), help="Do it.")] = False

    @classmethod
    def of_form(cls, **values: Any) -> "HaFailover":
        return cls(yes=True, **values)

    async def plan(self, admin: AdminClient) -> Plan:
        to = None if self.to is None else self.to.strip()
        if to is not None:
            parse_address(to)
        elif self.unclean:
            raise OperationError("--unclean needs --to HOST:PORT: it decides which copy's messages are kept")
        found = of_broker(await read_copies(admin, addresses={} if to is None else {to: self.broker}), self.broker)
        reached = [each for each in found if each.has_register]
        if not reached:
            raise OperationError(
                f"no copy of broker {self.broker} that has a register answers: name one by --to. Without a register, promote a replica "
                "by `lockstep replica promote`"
            )
        target = next((each for each in found if each.address == to), None)
        if to is not None and (target is None or target.status is None):
            raise OperationError(f"nothing was changed: {to} does not answer as a copy of broker {self.broker}")
        master = max((each for each in reached if each.role == MASTER), key=_term, default=None)
        effect = self._unclean_effect(target, master, found) if self.unclean else self._effect(target, master, found)
        rows = Table(COLUMNS, [each.row for each in found])

        async def carry_out() -> ChangeOutcome:
            if not self.yes:
                for sentence in effect:
                    admin.reporter.note(sentence)
                raise OperationError(f"nothing was changed: to do it, run `{self.command_line} --yes`")
            last_term = max(map(_term, reached))
            if self.unclean:
                assert target is not None
                await admin.promote_replica(target.address, force=True)
            else:
                assert master is not None
                await admin.hand_over(master.address, "" if target is None else target.member)
            return await self._elected(admin, [each.address for each in found], last_term)

        return Plan(effect, carry_out, (to, None if master is None else master.member), rows)

    def _effect(self, target: LogCopy | None, master: LogCopy | None, found: list[LogCopy]) -> list[str]:
        """Return the effect of a hand-over in sentences. Raise OperationError if it is not possible."""
        if master is None:
            raise OperationError(
                f"nothing was changed: no master of broker {self.broker} answers. A copy of its set is elected by itself; if none can be, "
                "name the one to go on with by --to and --unclean"
            )
        able = [each for each in found if each.in_set and each.connected]
        if target is not None and target.address == master.address:
            raise OperationError(f"{target.address} is the master of broker {self.broker} already")
        if not able or (target is not None and target not in able):
            who = "no replica" if target is None else f"the replica at {target.address}"
            be = "is" if target is None else "is not"
            raise OperationError(f"nothing was changed: {who} {be} in the set and connected (`lockstep ha show {self.broker}`)")
        to = f"the copy at {target.address}" if target is not None else "a copy of its set"
        return [
            f"The master at {master.address} stops taking sends, and hands over to {to} when that has everything: mostly within 0.3 s.",
            "Queues, epochs and progress of groups go on. The old master follows the new one.",
        ]

    def _unclean_effect(self, target: LogCopy | None, master: LogCopy | None, found: list[LogCopy]) -> list[str]:
        assert target is not None
        assert target.status is not None
        if master is not None and master.address != target.address:
            raise OperationError(
                f"nothing was changed: the master at {master.address} answers. Hand over without --unclean, or stop it first. If the "
                "register has lost its entry, name that master by --to"
            )
        if master is not None:
            register = target.status.register
            if register is not None and register.term >= target.status.term:
                raise OperationError(f"{target.address} is the master of broker {self.broker} already")
            return [f"The master at {target.address} writes its entry, which the register has lost, anew. Nothing is lost."]
        others = [each for each in found if each is not target]
        return [
            f"The copy at {target.address} becomes the master of broker {self.broker}, and the only one in its set.",
            *expected_loss(target.status, others, force=True),
        ]

    async def _elected(self, admin: AdminClient, addresses: list[str], last_term: int) -> ChangeOutcome:
        """Return when a copy serves as the master in a later term."""
        clock = admin.host.clock
        until_ms = clock.monotonic_ms() + WAIT_MS
        while clock.monotonic_ms() < until_ms:
            for address in addresses:
                try:
                    status = await admin.copy_status(address)
                except (LockstepError, OSError):
                    continue
                if status.role == MASTER and (status.term > last_term or (self.unclean and address == self.to)):
                    lines = [f"{address} is the master of broker {self.broker}, in term {status.term}"]
                    return ChangeOutcome(lines, {"broker": self.broker, "address": address, "term": status.term})
            await asyncio.sleep(STEP_S)
        failed = f"no copy of broker {self.broker} serves after {WAIT_MS // 1_000} s: see `lockstep ha show {self.broker}`, and their logs"
        return ChangeOutcome([], {"broker": self.broker, "address": None, "term": None}, failed=failed)


def _term(copy: LogCopy) -> int:
    return 0 if copy.status is None else copy.status.term
