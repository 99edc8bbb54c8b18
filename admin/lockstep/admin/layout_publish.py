"""Bring a topic's layout to the brokers, and wait until the nameserver has it."""

import asyncio
from collections.abc import Collection

from lockstep.admin.client import AdminClient
from lockstep.admin.options import CommandError, print_error
from lockstep.admin.write_hold import WriteHold
from lockstep.client.client import Client
from lockstep.client.topics import create_topic
from lockstep.protocol.errors import BrokerError, LockstepError, TopicNotExistError
from lockstep.protocol.queue import TopicLayout
from lockstep.runtime.host import Host

ROUTED_S = 5
ROUTED_STEP_S = 0.05


async def create_and_wait(nameserver: str, topic: str, queues: int, brokers: Collection[str] = ()) -> TopicLayout:
    """Create a topic with `queues` queues on each of these brokers (all if none is named), and wait until the nameserver has it."""
    instance = Client(nameserver).instance()
    try:
        await instance.start()
        layout = await create_topic(instance, topic, queues, brokers)
    finally:
        await instance.close()
    await wait_until_routed(AdminClient(Host.current(), nameserver), layout)
    return layout


async def publish_layout(admin: AdminClient, layout: TopicLayout, hold: WriteHold | None = None) -> None:
    """Propose the layout to every registered broker, by name, and wait until the nameserver has it; the others learn it from there.

    `hold`: a broker takes the layout only if it has held the writes to the topic all the time.

    A broker that rejects it or does not respond is reported on stderr. Raise CommandError if no broker accepts it, or if one has another
    layout of the same or a later version.
    """
    brokers = sorted((broker for broker in await admin.brokers() if broker.registered), key=lambda broker: broker.name)
    if not brokers:
        raise CommandError("no broker is registered at the nameserver: start one first")
    accepted = False
    for broker in brokers:
        try:
            in_force = await admin.put_layout(broker, layout, hold.id if hold is not None and hold.holds(broker.name) else None)
        except TopicNotExistError:
            print_error(f"broker {broker.name} has no topic {layout.topic}: it was deleted, or is not known to this broker yet")
            continue
        except BrokerError as error:
            print_error(
                f"broker {broker.name} rejected the change ({error}); if another broker accepts it, it learns it from the nameserver"
            )
            continue
        except (LockstepError, OSError) as error:
            print_error(f"broker {broker.name} did not respond; it learns the change when it registers: {error}")
            continue
        if in_force.version != layout.version:
            raise CommandError(
                f"topic {layout.topic} was changed by another client: see `lockstep topic show {layout.topic}`, then try again"
            )
        accepted = True
    if not accepted:
        raise CommandError(
            f"no broker accepted the change of topic {layout.topic}: see `lockstep topic show {layout.topic}`, then try again"
        )
    await wait_until_routed(admin, layout)


async def wait_until_routed(admin: AdminClient, layout: TopicLayout) -> None:
    """Wait until the nameserver has the layout, so that the next command finds it. Raise CommandError after 5 s."""
    try:
        async with asyncio.timeout(ROUTED_S):
            while True:
                if await _is_routed(admin, layout):
                    return
                await asyncio.sleep(ROUTED_STEP_S)
    except TimeoutError:
        raise CommandError(
            f"the brokers have the change of topic {layout.topic}, but the nameserver did not receive it within {ROUTED_S} s: check with "
            f"`lockstep topic show {layout.topic}`"
        ) from None


async def _is_routed(admin: AdminClient, layout: TopicLayout) -> bool:
    try:
        return (await admin.route(layout.topic)).layout.version >= layout.version
    except TopicNotExistError:
        return layout.deleted
