"""Let a master forget a replica that will not come back."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

from lockstep.operations.admin_client import AdminClient, by_name, gather_results
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
            await self._forget(admin, master, replica.address)
            found = {"broker": self.broker, "member": self.member, "address": replica.address, "forgotten": True}
            return ChangeOutcome([f"broker {self.broker} has forgotten the {named}"], found)

        return Plan([effect], carry_out, (self.broker, self.member))

    async def _forget(self, admin: AdminClient, master: BrokerAddress, address: str) -> None:
        """Return when nobody names the replica any more. One that has just ended is still in the set, which it leaves first."""
        await admin.forget_replica(master, self.member)
        for _ in range(TRIES):
            names_it = await self._who_names(admin, master, address)
            if names_it is None:
                return
            await asyncio.sleep(STEP_S)
        raise OperationError(
            f"{names_it} still names the replica {self.member} at {address}: see `lockstep replica ls --broker {self.broker}`"
        )

    async def _who_names(self, admin: AdminClient, master: BrokerAddress, address: str) -> str | None:
        """Return who sends others to the replica, None if nobody does. A nameserver or a copy that does not answer is passed over."""
        status = await admin.copy_status(master.address)
        if any(each.member == self.member for each in status.replicas):
            return f"the master of broker {self.broker}"
        if status.register is not None and self.member in status.register.replicas:
            return f"the register {status.register.address}"
        in_set = {each.address: admin.copy_status(each.address) for each in status.replicas if each.in_set and each.connected}
        for copy, answer in (await gather_results(in_set)).values.items():
            if self.member in answer.known:
                return f"the copy at {copy}"
        if all(each.address != address for each in status.replicas):
            asked = {nameserver: admin.brokers_at(nameserver) for nameserver in admin.nameservers}
            for nameserver, brokers in (await gather_results(asked)).values.items():
                if self.broker in (known := by_name(brokers)) and address in (known[self.broker].replicas or ()):
                    return f"nameserver {nameserver}"
        return None
