"""Make all nameservers and brokers forget deleted topics."""

from dataclasses import dataclass
from typing import Annotated

from lockstep.operations.admin_client import AdminClient, gather_results
from lockstep.operations.changes.operation import ChangeOutcome, Operation, Option, Plan
from lockstep.operations.errors import OperationError
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.topics.layouts import COUNTER_MAX
from lockstep.protocol.topics.queue import BEGAN_FIRST_DELETIONS_MAX

ROUNDS_MAX = 5
"""A registration in flight brings deletions back to a nameserver or broker that has forgotten them; then all are requested again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicForgetDeleted(Operation):
    """Make all nameservers and brokers forget deleted topics, if too many are remembered.

    A broker that is down at that time may bring deleted topics back.
    """

    words = ("topic", "forget-deleted")
    path = "topic-forget-deleted"

    every: Annotated[bool, Option(flags=("--all",), help="Forget also repeated deletions of a topic. Read the documentation first.")] = (
        False
    )
    force: Annotated[bool, Option(flags=("--force",), help="Forget even while a known broker is not registered. Requires --all.")] = False

    async def plan(self, admin: AdminClient) -> Plan:
        if self.force and not self.every:
            raise ConfigError(
                "nothing was forgotten: --force requires --all. A broker that is down may have created a topic again, and when it comes "
                "back the others drop the messages of the present topic: read `Limits of topics` in docs/operations.md first"
            )
        addresses = {f"nameserver {address}": address for address in admin.nameservers}
        for address in admin.nameservers:
            for broker in await admin.brokers_at(address):
                if broker.registered:
                    addresses[f"broker {broker.name}"] = broker.address
                elif not self.force:
                    raise OperationError(
                        f"nothing was forgotten: broker {broker.name} is not registered at nameserver {address}, and would bring deleted "
                        "topics back. Start it first (or see docs/operations.md for the risks of --all --force)"
                    )
        known = await _forget_at(admin, addresses, 0)

        async def carry_out() -> ChangeOutcome:
            forgotten, remembered = await _forget(admin, addresses, COUNTER_MAX if self.every else BEGAN_FIRST_DELETIONS_MAX)
            line = f"{forgotten} deleted topics were forgotten at {len(addresses)} servers, {remembered} are still remembered"
            return ChangeOutcome([line], {"forgotten": forgotten, "remembered": remembered})

        what = "deleted topics" if self.every else "deleted topics, except those that were deleted repeatedly,"
        most = max(remembered for _, remembered in known)
        return Plan([f"{len(addresses)} servers forget the {what} of {most} that they remember."], carry_out, tuple(addresses))


async def _forget(admin: AdminClient, addresses: dict[str, str], counter_max: int) -> tuple[int, int]:
    """Return the numbers of deleted topics that were forgotten, and that are still remembered. Raises OperationError."""
    forgotten = 0
    for _ in range(ROUNDS_MAX):
        counts = await _forget_at(admin, addresses, counter_max)
        count = max(forgotten_count for forgotten_count, _ in counts)
        forgotten = max(forgotten, count)
        if not count:
            return forgotten, max(remembered for _, remembered in counts)
    raise OperationError("a registration brought deleted topics back: run the command again")


async def _forget_at(admin: AdminClient, addresses: dict[str, str], counter_max: int) -> list[tuple[int, int]]:
    """Return (forgotten, remembered) of each server. Raise OperationError if one does not respond."""
    results = await gather_results({name: admin.forget_deletions(address, counter_max) for name, address in addresses.items()})
    if results.failed:
        missing = "; ".join(f"{name}: {why}" for name, why in results.failed.items())
        raise OperationError(
            f"some servers did not respond, and they would bring deleted topics back: {missing}. Run the command again when all respond"
        )
    return [(reply.forgotten, reply.remembered) for reply in results.values.values()]
