"""Parked keys in a universe: which keys fail when, and the operator who replays and drops them."""

import asyncio
from functools import lru_cache
from random import Random

from lockstep.operations.admin_client import AdminClient
from lockstep.protocol.bodies import BrokerAddress, ParkAction, ParkControlBody, ParkedKey, ParkState
from lockstep.protocol.errors import LockstepError
from lockstep.runtime.host import Host
from sweep.settings import GROUP, Setting
from sweep.universe import Main, Universe

OPERATOR = "10.0.3.4"
"""The address of the operator's machine."""
LOOK_S = 1.0
"""How often the operator looks in the calm whether keys are left."""


def key_fails(setting: Setting, key: str | None, t: float) -> bool:
    """Return whether each call of a message with this key fails at that time."""
    if not setting.failing_keys or key is None:
        return False
    return any(begin <= t < end for begin, end in _failing_times(setting.seed, key, setting.failing_keys, setting.storm_s))


@lru_cache(maxsize=10_000)
def _failing_times(seed: int, key: str, share: float, storm_s: float) -> tuple[tuple[float, float], ...]:
    random = Random(f"{seed}/{key}/fails")
    if random.random() >= share:
        return ()
    begin = random.uniform(0, storm_s)
    end = begin + random.choice([1, 5, 20])
    again = end + random.choice([0.5, 3, 10])
    times = (begin, end), (again, again + random.choice([0.5, 5]))
    return times if random.random() < 0.4 else times[:1]


def operator_main(universe: Universe) -> Main:
    """List the parked keys of a broker at random times in the storm; replay or drop one of them, or all."""

    async def main(stop: asyncio.Event) -> int:
        setting, random = universe.setting, Random(f"{universe.setting.seed}/operator")
        admin = AdminClient(Host.current(), universe.cluster)
        while not stop.is_set() and not universe.calm:
            await asyncio.sleep(random.expovariate(1 / setting.control_every_s))
            try:
                broker = random.choice(await _brokers(admin))
                rows = (await admin.control_parked(broker, ParkControlBody(ParkAction.LIST, GROUP))).keys
                roll = random.random()
                if not rows or roll < 0.1:
                    continue
                action = ParkAction.DROP if random.random() < setting.drop_share else ParkAction.REPLAY
                key = None if roll < 0.4 else random.choice(rows).key
                await admin.control_parked(broker, ParkControlBody(action, GROUP, None, key))
                universe.record_reached(f"operator: {action.value}", f"{broker.name} {key}")
            except (LockstepError, IndexError) as error:
                universe.record_reached("operator failed", f"{error!r:.120}")
        return 0

    return main


def bring_back_main(universe: Universe) -> Main:
    """Replay or drop every parked key, until none is left at any broker."""

    async def main(stop: asyncio.Event) -> int:
        random = Random(f"{universe.setting.seed}/bring back")
        admin = AdminClient(Host.current(), universe.cluster)
        left = True
        while left:
            try:
                left = False
                for broker in await _brokers(admin):
                    rows = (await admin.control_parked(broker, ParkControlBody(ParkAction.LIST, GROUP))).keys
                    await _bring_back(admin, broker, rows, random, universe.setting.drop_share)
                    left = left or bool(rows)
            except LockstepError:
                left = True
            if left:
                await asyncio.sleep(LOOK_S)
        return 0

    return main


async def _bring_back(admin: AdminClient, broker: BrokerAddress, rows: tuple[ParkedKey, ...], random: Random, drop_share: float) -> None:
    for key in dict.fromkeys(row.key for row in rows if row.state is ParkState.PARKED):
        action = ParkAction.DROP if random.random() < drop_share else ParkAction.REPLAY
        await admin.control_parked(broker, ParkControlBody(action, GROUP, None, key))


async def _brokers(admin: AdminClient) -> list[BrokerAddress]:
    return sorted((broker for broker in await admin.brokers() if broker.registered), key=lambda broker: broker.name)
