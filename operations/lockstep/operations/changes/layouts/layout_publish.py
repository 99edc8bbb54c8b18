"""Bring a topic's layout to the brokers, and wait until the nameserver has it."""

import asyncio
from collections.abc import Collection, Mapping

from lockstep.client.client import Client
from lockstep.client.topics import create_topic
from lockstep.operations.admin_client import AdminClient, broker_reasons
from lockstep.operations.changes.layouts.write_hold import WriteHold
from lockstep.operations.errors import OperationError
from lockstep.protocol.bodies import BrokerAddress
from lockstep.protocol.errors import BrokerError, LockstepError, TopicNotExistError
from lockstep.protocol.topics.queue import TopicLayout
from lockstep.runtime.connections.cluster_address import ClusterAddress
from lockstep.runtime.host import Host

ROUTED_S = 5
TAKEN_S = 10
STEP_S = 0.05
OTHER = "has another layout"


async def create_and_wait(nameserver: str | ClusterAddress, topic: str, queues: int, brokers: Collection[str] = ()) -> TopicLayout:
    """Create a topic with `queues` queues on each of these brokers (all if none is named), and wait until the nameserver has it."""
    instance = Client(nameserver).instance()
    try:
        await instance.start()
        layout = await create_topic(instance, topic, queues, brokers)
    finally:
        await instance.close()
    await wait_until_routed(AdminClient(Host.current(), nameserver), layout)
    return layout


async def publish_layout(admin: AdminClient, layout: TopicLayout, hold: WriteHold | None = None, *, owners: Collection[str] = ()) -> None:
    """Propose the layout to every registered broker at once, and wait until the nameserver has it; the others learn it from there.

    `owners`: for a deletion, the brokers that have queues of the topic. Those that are registered are asked before the others, and one of
    them has to accept it: nameservers take a deletion from the others only if none of these is registered.

    `hold`: a broker takes the layout only if it has held the writes to the topic all the time. The hold is renewed until every broker that
    holds the writes has the layout.

    A broker that rejects it or does not respond is reported. Raise OperationError if no broker accepts it, if one has another
    layout of the same or a later version, or if one that holds the writes does not take it within 10 s.
    """
    brokers = {broker.name: broker for broker in await admin.brokers() if broker.registered} | ({} if hold is None else hold.brokers)
    if not brokers:
        raise OperationError("no broker is registered at the nameserver: start one first")
    held = {} if hold is None else dict.fromkeys(hold.brokers, hold.id)
    first = {name: broker for name, broker in brokers.items() if name in owners}
    refusals = await _propose_to_all(admin, first, layout, held)
    if not first or len(refusals) < len(first):
        others = {name: broker for name, broker in brokers.items() if name not in first}
        refusals |= await _propose_to_all(admin, others, layout, held)
    else:
        brokers = first
    for name in sorted(refusals):
        admin.reporter.note(f"broker {name} {refusals[name]}; if another broker accepts the change, it learns it from the nameserver")
    if len(refusals) == len(brokers):
        raise OperationError(
            f"no broker accepted the change of topic {layout.topic}: see `lockstep topic show {layout.topic}`, then try again"
        )
    if hold is not None:
        await _wait_until_taken(admin, layout, hold, {name: why for name, why in refusals.items() if name in hold.brokers})
    await wait_until_routed(admin, layout)


async def _wait_until_taken(admin: AdminClient, layout: TopicLayout, hold: WriteHold, missing: Mapping[str, str]) -> None:
    """Renew the hold until the brokers `missing` have the layout too: until then, sends with the layout before may be stored there.

    Raise OperationError after 10 s, or if one of them has not held the writes all the time.
    """
    lapsed: dict[str, str] = {}
    end_ms = admin.host.clock.monotonic_ms() + TAKEN_S * 1_000
    while missing and admin.host.clock.monotonic_ms() < end_ms:
        await asyncio.sleep(STEP_S)
        begun, _ = await hold.renew()
        lapsed |= {name: "did not hold the writes all the time" for name in begun if name in missing}
        brokers = {name: hold.brokers[name] for name in missing}
        missing = await _propose_to_all(admin, brokers, layout, {name: hold.id for name in missing if name not in lapsed})
    if missing or lapsed:
        raise OperationError(
            f"topic {layout.topic} has layout {layout.version.counter} at the other brokers, but order per key may have ended: "
            f"{broker_reasons({**lapsed, **missing})}. Messages that were sent there meanwhile may be consumed out of order or, in removed "
            "queues, not at all. Start the broker if it is down: it learns the layout from the nameserver, and "
            f"`lockstep topic show {layout.topic}` shows it"
        )


async def _propose_to_all(
    admin: AdminClient, brokers: Mapping[str, BrokerAddress], layout: TopicLayout, hold_ids: Mapping[str, str]
) -> dict[str, str]:
    """Propose the layout to these brokers at once. Return those that do not have it now, each with the reason.

    Raise OperationError if one of them has another layout of the same or a later version.
    """
    proposals = {name: _propose(admin, broker, layout, hold_ids.get(name)) for name, broker in brokers.items()}
    reasons = dict(zip(proposals, await asyncio.gather(*proposals.values()), strict=True))
    if OTHER in reasons.values():
        raise OperationError(
            f"topic {layout.topic} was changed by another client: see `lockstep topic show {layout.topic}`, then try again"
        )
    return {name: why for name, why in reasons.items() if why is not None}


async def _propose(admin: AdminClient, broker: BrokerAddress, layout: TopicLayout, hold_id: str | None) -> str | None:
    """Return None if the broker has the layout now, OTHER if it has another one, else why it has not taken it."""
    try:
        in_force = await admin.put_layout(broker, layout, hold_id)
    except TopicNotExistError:
        return f"has no topic {layout.topic}: it was deleted, or is not known to this broker yet"
    except BrokerError as error:
        return f"rejected the change ({error})"
    except (LockstepError, OSError) as error:
        return f"did not respond ({error})"
    return None if in_force.version == layout.version else OTHER


async def wait_until_routed(admin: AdminClient, layout: TopicLayout) -> None:
    """Wait until the nameserver has the layout, so that the next command finds it. Raise OperationError after 5 s."""
    try:
        async with asyncio.timeout(ROUTED_S):
            while True:
                if await _is_routed(admin, layout):
                    return
                await asyncio.sleep(STEP_S)
    except TimeoutError:
        raise OperationError(
            f"the brokers have the change of topic {layout.topic}, but the nameserver did not receive it within {ROUTED_S} s: check with "
            f"`lockstep topic show {layout.topic}`"
        ) from None


async def _is_routed(admin: AdminClient, layout: TopicLayout) -> bool:
    try:
        return (await admin.route(layout.topic)).layout.version >= layout.version
    except TopicNotExistError:
        return layout.deleted
