"""If a producer exceeds the capacity of its brokers, a send that can't get a response in time fails as not stored. Every other send is
acknowledged."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable

import pytest

from lockstep.client import Outcome, Producer
from lockstep.client.errors import SendError
from lockstep.client.producer.config import ProducerConfig
from lockstep.testing.simulation.loop import SimLoop
from support.effort import usually
from support.fake_broker import FakeBroker, Sent, Step, fake_cluster
from support.producing import message, producing

pytestmark = pytest.mark.simulated

SECONDS = 6
"""Twice the time that a send may take, so that sends also fail while new ones arrive."""
TICK_MS = 10
STORED_MIN = 1_000
"""With 50 messages in flight and 200 ms for each response, some 1,250 are stored in the time of the test."""


def store_and_respond_after(delays_ms: Callable[[int], int]) -> Step:
    """Store a frame when it arrives and respond later."""
    number = 0

    def step(broker: FakeBroker, seen: Sent) -> None:
        nonlocal number
        number += 1
        asyncio.get_running_loop().call_later(delays_ms(number) / 1_000, broker.take, seen)

    return step


async def flood(producer: Producer, per_second: int, keys: int) -> tuple[Counter[str], list[bytes]]:
    """Send at this rate. Return the number of sends per outcome and the bodies of the acknowledged ones."""
    ends: Counter[str] = Counter()
    acknowledged: list[bytes] = []

    async def one(number: int) -> None:
        sent = message(str(number), sharding_key=str(number % keys) if keys else None)
        try:
            await producer.send(sent)
        except SendError as error:
            ends[error.outcome.value] += 1
        else:
            ends["stored"] += 1
            acknowledged.append(sent.body)

    sending: list[asyncio.Future[None]] = []
    for tick in range(SECONDS * 1_000 // TICK_MS):
        begin, end = (per_second * TICK_MS * at // 1_000 for at in (tick, tick + 1))
        sending += [asyncio.ensure_future(one(number)) for number in range(begin, end)]
        await asyncio.sleep(TICK_MS / 1_000)
    await asyncio.gather(*sending)
    return ends, acknowledged


LATENCIES: dict[str, Callable[[int], int]] = {
    "always 200 ms": lambda number: 200,
    "20 to 300 ms": lambda number: 20 + 40 * (number * 5 % 8),
    "20 ms, each twentieth 500 ms": lambda number: 500 if number % 20 == 7 else 20,
}


USUAL = {(0, "always 200 ms", 1), (50, "always 200 ms", 2), (0, "20 to 300 ms", 2), (50, "20 to 300 ms", 1)}
USUAL |= {(0, "20 ms, each twentieth 500 ms", 1), (50, "20 ms, each twentieth 500 ms", 2)}
"""Every two values of different columns occur together in one of these. The slow run takes all cases."""


@pytest.mark.parametrize(("keys", "latency", "brokers"), usually(USUAL, itertools.product([0, 50], LATENCIES, [1, 2])))
async def test_sends_above_a_brokers_capacity_never_end_unknown_and_are_stored_at_most_once(keys: int, latency: str, brokers: int) -> None:
    config = ProducerConfig(in_flight_count_max=50, send_timeout_ms=3_000, keyed_send_timeout_ms=3_000)
    names = ["a", "b"][:brokers]
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    loop.network.late_chance = 0.0  # a lost segment comes up to 3.2 s late
    async with fake_cluster(*names, topics={"t": 4}) as cluster, producing(cluster, config) as producer:
        await asyncio.gather(*[producer.send(message("first")) for _ in range(8)])
        for broker in cluster.brokers.values():
            broker.otherwise = store_and_respond_after(LATENCIES[latency])
        ends, acknowledged = await flood(producer, 1_000, keys)
        assert ends.keys() == {"stored", Outcome.NOT_STORED.value}, ends
        stored = Counter(body for broker in cluster.brokers.values() for body in broker.stored if body != b"first")
        assert max(stored.values()) == 1
        assert stored.keys() == set(acknowledged)
        assert producer.possible_duplicates == 0
        assert producer.in_flight_count == 0
        assert ends["stored"] >= STORED_MIN, "the broker is kept busy: sends that will fail take no places from others"
