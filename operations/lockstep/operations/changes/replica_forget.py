"""Let a master forget a replica that will not come back."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

from lockstep.operations.admin_client import AdminClient, by_name
from lockstep.operations.changes.operation import Argument, ChangeOutcome, Operation, Option, Plan
from lockstep.operations.errors import OperationError
from lockstep.protocol.bodies import BrokerAddress
from lockstep.runtime.configuration.config import did_you_mean

STEP_S = 0.2
TRIES = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaForget(Operation):
    """Let the master of a broker forget a replica that will not come back. Without --yes it only prints what it would do.

    The master lists it no more, and does not ask it when it starts. A replica that is connected is not forgotten: stop it first.
    """

    words = ("replica", "forget")
    path = "replica-forget"
    title = "Forget a replica"

    broker: Annotated[str, Argument(metavar="BROKER", help="The broker's name.", label="Broker")]
    member: Annotated[str, Argument(metavar="MEMBER", help="The replica: its `member` in `lockstep replica ls`.", label="Member")]
    yes: Annotated[bool, Option(flags=("--yes",), help="Do it.")] = False

    @classmethod
    def of_form(cls, **values: Any) -> "ReplicaForget":
        return cls(yes=True, **values)

    async def plan(self, admin: AdminClient) -> Plan:
        known = by_name(await admin.brokers())
        master = known.get(self.broker)
        if master is None:
            raise OperationError(f"no broker is named {self.broker[:80]!r}{did_you_mean(self.broker[:80], known)}")
        replicas = {each.member: each for each in (await admin.copy_status(master.address)).replicas}
        replica = replicas.get(self.member)
        if replica is None:
            listed = ", ".join(f"{member} ({each.address})" for member, each in replicas.items()) or "none"
            raise OperationError(f"broker {self.broker} knows no replica {self.member[:80]}; its replicas: {listed}")
        if replica.connected:
            raise OperationError(f"the replica {self.member} at {replica.address} is connected: stop it first, else it comes back at once")
        named = f"replica {self.member} at {replica.address}"
        effect = (
            f"The master of broker {self.broker} at {master.address} forgets the {named}: it lists it no more, and does not ask it when it "
            "starts. If it comes back, it is a replica as before."
        )

        async def carry_out() -> ChangeOutcome:
            if not self.yes:
                admin.reporter.note(effect)
                raise OperationError(f"nothing was changed: to do it, run `{self.command_line} --yes`")
            await self._forget(admin, master)
            found = {"broker": self.broker, "member": self.member, "address": replica.address, "forgotten": True}
            return ChangeOutcome([f"broker {self.broker} has forgotten the {named}"], found)

        return Plan([effect], carry_out, (self.broker, self.member))

    async def _forget(self, admin: AdminClient, master: BrokerAddress) -> None:
        """Return when the master does not list the replica. One that has just ended is still in the set, which it leaves first."""
        await admin.forget_replica(master, self.member)
        for _ in range(TRIES):
            if all(each.member != self.member for each in (await admin.copy_status(master.address)).replicas):
                return
            await asyncio.sleep(STEP_S)
        raise OperationError(
            f"broker {self.broker} still lists the replica {self.member}: see `lockstep replica ls --broker {self.broker}`"
        )
