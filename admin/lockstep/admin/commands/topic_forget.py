"""lockstep topic forget-deleted."""

from typing import Annotated

import typer

from lockstep.admin.client import AdminClient, gather
from lockstep.admin.options import CommandError, JsonOption, NameserverOption, run
from lockstep.admin.render import print_json, say
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.layouts import COUNTER_MAX
from lockstep.protocol.queue import BEGAN_FIRST_DELETIONS_MAX
from lockstep.runtime.host import Host

ROUNDS_MAX = 5
"""A registration on its way brings deletions back to a nameserver or a broker that has forgotten them: then all are asked again."""


def forget_deleted_command(
    every: Annotated[bool, typer.Option("--all", help="Also second deletions of a topic. See the docs first.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also while a broker that is known is not registered; with --all alone.")] = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Forget deleted topics at all nameservers and brokers, where too many are remembered. A broker that is away may bring them back."""
    run(_forget(every, force, nameserver, as_json))


async def _forget(every: bool, force: bool, nameserver: str, as_json: bool) -> None:
    if force and not every:
        raise ConfigError(
            "nothing was forgotten: --force is allowed with --all alone. A broker that is away may have created a topic again, and when it "
            "comes back the others drop the messages of the topic in force: read `Limits of topics` in docs/operations.md first"
        )
    counter_max = COUNTER_MAX if every else BEGAN_FIRST_DELETIONS_MAX
    admin = AdminClient(Host.current(), nameserver)
    addresses = {f"nameserver {address}": address for address in admin.nameservers}
    for address in admin.nameservers:
        for broker in await admin.brokers_at(address):
            if broker.registered:
                addresses[f"broker {broker.name}"] = broker.address
            elif not force:
                raise CommandError(
                    f"nothing was forgotten: broker {broker.name} is not registered at nameserver {address}, and would bring deleted "
                    "topics back. Start it; what --all --force risks instead is in docs/operations.md"
                )
    await _ask(admin, addresses, 0)
    forgotten = 0
    for _ in range(ROUNDS_MAX):
        answers = await _ask(admin, addresses, counter_max)
        count = max(forgotten_count for forgotten_count, _ in answers)
        forgotten = max(forgotten, count)
        if not count:
            break
    else:
        raise CommandError("deleted topics came back with a registration while they were forgotten: run it again")
    remembered = max(remembered for _, remembered in answers)
    if as_json:
        print_json({"forgotten": forgotten, "remembered": remembered})
    else:
        say(f"{forgotten} deleted topics are forgotten at {len(addresses)} servers, {remembered} are remembered")


async def _ask(admin: AdminClient, addresses: dict[str, str], counter_max: int) -> list[tuple[int, int]]:
    """(forgotten, remembered) of each. CommandError where one does not answer."""
    answers = await gather({name: admin.forget_deletions(address, counter_max) for name, address in addresses.items()})
    if answers.failed:
        missing = "; ".join(f"{name}: {why}" for name, why in answers.failed.items())
        raise CommandError(f"every nameserver and broker has to answer, or deleted topics come back: {missing}. Run it again then")
    return [(answer.forgotten, answer.remembered) for answer in answers.given.values()]
