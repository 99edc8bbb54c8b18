"""A broker of a test and its replicas: members of the cluster, of which one is the master."""

import asyncio
from functools import partial

from lockstep.operations.admin_client import AdminClient, gather_results
from lockstep.operations.brokers.replicas import MASTER
from lockstep.operations.changes.replica_promote import ReplicaPromote
from lockstep.operations.errors import OperationError
from lockstep.protocol.errors import StateError
from lockstep.testing.stage import ServerMember, Stage, StageSettings


class BrokerCopies:
    """The machines with a copy of one broker's log. The first one has its name, and is its master until another takes its place."""

    def __init__(self, name: str, stage: Stage, nameserver: str, settings: StageSettings, replicas: int) -> None:
        self.name = name
        self.master = name
        """The member that is the master: without a register the others are started as its replicas. With one: when it was last asked."""
        self._elects = settings.ha is not None
        self.members: dict[str, ServerMember] = {}
        for member in (name, *(f"{name}-replica-{number}" for number in range(1, replicas + 1))):
            self.members[member] = stage.broker(member, name, nameserver, settings, partial(self._master_of, member))

    def _master_of(self, member: str) -> str | None:
        return None if self._elects or member == self.master else self.members[self.master].address

    @property
    def replicas(self) -> dict[str, ServerMember]:
        """Return the members that are no master now."""
        return {name: member for name, member in self.members.items() if name != self.master}

    async def start(self) -> None:
        """Start the master, then the replicas."""
        await self.members[self.master].start()
        await asyncio.gather(*(member.start() for member in self.replicas.values()))

    async def outside(self, admin: AdminClient) -> list[str]:
        """Return the replicas that run and are not in the set. Raises TransportError if the master does not respond."""
        await self.find_master(admin)
        standings = (await admin.copy_status(self.members[self.master].address)).replicas
        inside = {each.address for each in standings if each.in_set and each.connected}
        return [name for name, member in self.replicas.items() if member.state == "running" and member.address not in inside]

    async def find_master(self, admin: AdminClient) -> bool:
        """With a register: take note of the master of the highest term that responds. Return whether one does."""
        if not self._elects:
            return True
        running = {name: admin.copy_status(member.address) for name, member in self.members.items() if member.state == "running"}
        terms = {name: status.term for name, status in (await gather_results(running)).values.items() if status.role == MASTER}
        self.master = max(terms, key=lambda name: terms[name], default=self.master)
        return bool(terms)

    async def promote(self, admin: AdminClient) -> str:
        """Promote the replica with the most, and return its name when it serves.

        Raises:
            StateError: no replica runs, or the copies elect their master.
            LockstepError: the promotion is refused.
        """
        if self._elects:
            raise StateError(f"the copies of {self.name} elect their master by themselves: wait for it with elected({self.name!r})")
        running = {name: admin.copy_status(member.address) for name, member in self.replicas.items() if member.state == "running"}
        found = (await gather_results(running)).values
        if not found:
            states = ", ".join(f"{name} {member.state}" for name, member in self.replicas.items())
            raise StateError(f"no replica of {self.name} responds ({states or 'it has none: TestCluster(replicas=1)'})")
        best = max(found, key=lambda name: (not found[name].may_have_forgotten, found[name].term, found[name].end))
        outcome = await (await ReplicaPromote(address=self.members[best].address, yes=True).plan(admin)).carry_out()
        self.master = best
        if outcome.failed is not None:
            raise OperationError(outcome.failed)
        return best
