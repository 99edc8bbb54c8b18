"""lockstep topic forget-deleted."""

from typing import Annotated

import typer

from lockstep.cli.options import JsonOption, NameserverOption, run
from lockstep.cli.render import print_json, print_line
from lockstep.cli.reporter import admin_client
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.operations.admin_client import AdminClient, gather_results
from lockstep.operations.errors import OperationError
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.layouts import COUNTER_MAX
from lockstep.protocol.queue import BEGAN_FIRST_DELETIONS_MAX

ROUNDS_MAX = 5
"""A registration in flight brings deletions back to a nameserver or broker that has forgotten them; then all are requested again."""


def forget_deleted_command(
    every: Annotated[bool, typer.Option("--all", help="Forget also repeated deletions of a topic. Read the documentation first.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Forget even while a known broker is not registered. Requires --all.")] = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Make all nameservers and brokers forget deleted topics, if too many are remembered.

    A broker that is down at that time may bring deleted topics back."""
    run(_forget(every, force, nameserver, as_json))


async def _forget(every: bool, force: bool, nameserver: str, as_json: bool) -> None:
    if force and not every:
        raise ConfigError(
            "nothing was forgotten: --force requires --all. A broker that is down may have created a topic again, and when it comes back "
            "the others drop the messages of the present topic: read `Limits of topics` in docs/operations.md first"
        )
    counter_max = COUNTER_MAX if every else BEGAN_FIRST_DELETIONS_MAX
    admin = admin_client(nameserver)
    addresses = {f"nameserver {address}": address for address in admin.nameservers}
    for address in admin.nameservers:
        for broker in await admin.brokers_at(address):
            if broker.registered:
                addresses[f"broker {broker.name}"] = broker.address
            elif not force:
                raise OperationError(
                    f"nothing was forgotten: broker {broker.name} is not registered at nameserver {address}, and would bring deleted "
                    "topics back. Start it first (or see docs/operations.md for the risks of --all --force)"
                )
    await _forget_at(admin, addresses, 0)
    forgotten = 0
    for _ in range(ROUNDS_MAX):
        counts = await _forget_at(admin, addresses, counter_max)
        count = max(forgotten_count for forgotten_count, _ in counts)
        forgotten = max(forgotten, count)
        if not count:
            break
    else:
        raise OperationError("a registration brought deleted topics back: run the command again")
    remembered = max(remembered for _, remembered in counts)
    if as_json:
        print_json({"forgotten": forgotten, "remembered": remembered})
    else:
        print_line(f"{forgotten} deleted topics were forgotten at {len(addresses)} servers, {remembered} are still remembered")


async def _forget_at(admin: AdminClient, addresses: dict[str, str], counter_max: int) -> list[tuple[int, int]]:
    """Return (forgotten, remembered) of each server. Raise OperationError if one does not respond."""
    results = await gather_results({name: admin.forget_deletions(address, counter_max) for name, address in addresses.items()})
    if results.failed:
        missing = "; ".join(f"{name}: {why}" for name, why in results.failed.items())
        raise OperationError(
            f"some servers did not respond, and they would bring deleted topics back: {missing}. Run the command again when all respond"
        )
    return [(reply.forgotten, reply.remembered) for reply in results.values.values()]
