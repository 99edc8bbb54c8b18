"""A producer under random faults, cancellations and deadlines: each send ends once, in time, with the correct outcome."""

import asyncio
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field
from random import Random

import pytest

from lockstep.client import BatchSendError, Outcome, Producer, SendResult
from lockstep.client.errors import SendError
from lockstep.client.producer.config import ProducerConfig
from lockstep.protocol.errors import BrokerError, BrokerSystemError, MessageIllegalError, ServiceNotAvailableError
from lockstep.testing.simulation.loop import SimLoop
from support.effort import seeds
from support.fake_broker import (
    FakeBroker,
    FakeCluster,
    Sent,
    abort_connection,
    fake_cluster,
    ignore,
    refuse,
    store_and_disconnect,
    store_without_response,
    take,
)
from support.producing import message, producing

pytestmark = pytest.mark.simulated

LATE_S = 0.012
"""The tolerance: deadlines are checked every 10 ms."""


class Faults:
    """A step that decides about each frame when it arrives."""

    def __init__(self, random: Random, share: float) -> None:
        self._random = random
        self._share = share

    def __call__(self, broker: FakeBroker, seen: Sent) -> None:
        loop, random = asyncio.get_running_loop(), self._random
        if random.random() >= self._share:
            loop.call_later(random.choice([0, 1, 20, 100, 400]) / 1_000, self._take, broker, seen)
            return
        fault = random.choice(
            [ignore, store_without_response, abort_connection, store_and_disconnect, "busy", "busy late", "illegal", "bug"]
        )
        if not isinstance(fault, str):
            fault(broker, seen)
        elif fault == "busy late":
            loop.call_later(random.choice([40, 200, 800]) / 1_000, self._refuse, broker, seen, ServiceNotAvailableError("busy"))
        else:
            errors = {"busy": ServiceNotAvailableError("busy"), "illegal": MessageIllegalError("no"), "bug": BrokerSystemError("bug")}
            self._refuse(broker, seen, errors[fault])

    def _take(self, broker: FakeBroker, seen: Sent) -> None:
        if not seen.endpoint.closed:
            broker.take(seen)

    def _refuse(self, broker: FakeBroker, seen: Sent, error: BrokerError) -> None:
        """Refuse, unless the frame is stored: then respond as a broker does."""
        stored = broker.bodies.get((seen.header.topic, seen.header.queue_id), [])
        if seen.bodies[0] in stored:
            self._take(broker, seen)
        elif not seen.endpoint.closed:
            refuse(error)(broker, seen)


@dataclass
class Call:
    """One send or send_batch. In `keys`, None is an unkeyed message."""

    numbers: list[int]
    keys: list[str | None]
    called: float
    deadline: float
    ended: float = 0.0
    ends: list[object] = field(default_factory=list)
    """A SendResult, an error or "cancelled" for each message."""

    async def run(self, sending: Awaitable[object]) -> None:
        try:
            result = await sending
            self.ends = list(result) if isinstance(result, list) else [result]
        except asyncio.CancelledError:
            self.ends = ["cancelled"] * len(self.numbers)
            raise
        except BatchSendError as error:
            self.ends = list(error.results)
        except Exception as error:
            self.ends = [error] * len(self.numbers)
        finally:
            self.ended = asyncio.get_running_loop().time()


class RandomSends:
    """Random sends of one producer. `problems` checks their outcomes."""

    def __init__(self, random: Random, config: ProducerConfig) -> None:
        self.random = random
        self.config = config
        self.keys = [f"k{number}" for number in range(random.choice([1, 2, 5]))]
        self.calls: list[Call] = []
        self.count = 0

    def call(self, producer: Producer) -> "asyncio.Future[None]":
        random, now = self.random, asyncio.get_running_loop().time()
        timeout_ms = random.choice([None, None, 50, 150, 400, 1_500, 6_000])
        keyed, batch = random.random() < 0.7, random.random() < 0.2
        numbers = list(range(self.count, self.count + (random.choice([1, 2, 4, 7]) if batch else 1)))
        self.count += len(numbers)
        keys = [random.choice(self.keys) for _ in numbers] if keyed else None
        whole_ms = timeout_ms or (self.config.keyed_send_timeout_ms if keyed else self.config.send_timeout_ms)
        call = Call(numbers, [*keys] if keys else [None] * len(numbers), now, now + whole_ms / 1_000)
        self.calls.append(call)
        messages = [message(str(number), sharding_key=key) for number, key in zip(numbers, call.keys, strict=True)]
        if batch:
            return asyncio.ensure_future(call.run(producer.send_batch(messages, timeout_ms=timeout_ms)))
        return asyncio.ensure_future(call.run(producer.send(messages[0], timeout_ms=timeout_ms)))

    def problems(self, cluster: FakeCluster, possible_duplicates: int) -> list[str]:
        stored = Counter(int(body) for broker in cluster.brokers.values() for body in broker.stored if body.isdigit())
        found = []
        for call in self.calls:
            if not call.ended or len(call.ends) != len(call.numbers):
                found.append(f"{call} has not ended")
            if call.ended > call.deadline + LATE_S and "cancelled" not in call.ends:
                found.append(f"{call} ended late")
            for number, key, end in zip(call.numbers, call.keys, call.ends, strict=False):
                refused = isinstance(end, BrokerError) or (isinstance(end, SendError) and end.outcome is Outcome.NOT_STORED)
                if not isinstance(end, SendResult | SendError | BrokerError) and end != "cancelled":
                    found.append(f"{number} ended with {end!r}")
                if (isinstance(end, SendResult) and not stored[number]) or (refused and stored[number]):
                    found.append(f"{number} is stored {stored[number]} times and ended with {end!r}")
                if stored[number] > 1 and (key is not None or not possible_duplicates):
                    found.append(f"{number} of key {key} is stored {stored[number]} times")
        return found + self._disorder(cluster) + self._stored_behind_a_failure()

    def _disorder(self, cluster: FakeCluster) -> list[str]:
        """Return the violations of: single sends of one key are stored in the order of their calls."""
        keys = {str(call.numbers[0]).encode(): call.keys[0] for call in self.calls if len(call.numbers) == 1}
        found = []
        for broker in cluster.brokers.values():
            for queue in broker.bodies.values():
                for key in self.keys:
                    own = [int(body) for body in queue if keys.get(body) == key]
                    if own != sorted(own):
                        found.append(f"order of {key}: {own}")
        return found

    def _stored_behind_a_failure(self) -> list[str]:
        """O4: a send that was called before a single send of its key failed, and after that one was called, is not acknowledged."""
        found = []
        for at, failed in enumerate(self.calls):
            if len(failed.numbers) > 1 or failed.keys[0] is None or not isinstance(failed.ends[0], Exception):
                continue
            for call in self.calls[at + 1 :]:
                if call.called >= failed.ended - 0.0005:
                    break
                if len(call.numbers) <= self.config.batch_count_max:
                    for number, key, end in zip(call.numbers, call.keys, call.ends, strict=False):
                        if key == failed.keys[0] and isinstance(end, SendResult):
                            found.append(f"{failed.numbers[0]} of {key} failed with {failed.ends[0]!r}, and {number} behind it is stored")
        return found


@pytest.mark.parametrize("seed", seeds(12, 40))
async def test_every_send_ends_once_by_its_deadline_with_the_correct_outcome(seed: int) -> None:
    random, loop = Random(seed), asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    loop.network.late_chance = 0.0
    config = ProducerConfig(
        in_flight_count_max=random.choice([1, 3, 8, 30, 1_000]),
        attempt_timeout_ms=random.choice([60, 200, 1_000]),
        send_timeout_ms=random.choice([300, 1_000, 3_000]),
        keyed_send_timeout_ms=random.choice([500, 2_000, 8_000]),
        batch_count_max=random.choice([2, 5, 50]),
    )
    names = ["a", "b"][: random.choice([1, 2])]
    async with fake_cluster(*names, topics={"t": random.choice([1, 2])}) as cluster, producing(cluster, config) as producer:
        await asyncio.gather(*[producer.send(message("first")) for _ in range(8)])
        for broker in cluster.brokers.values():
            broker.otherwise = Faults(random, random.choice([0.0, 0.1, 0.4, 0.6]))
        random_sends = RandomSends(random, config)
        sending = []
        for _ in range(random.choice([40, 150, 400])):
            for _ in range(random.choice([1, 1, 1, 5, 20])):
                sending.append(random_sends.call(producer))
                if random.random() < 0.08:
                    loop.call_later(random.choice([0, 0.005, 0.05, 0.3]), sending[-1].cancel)
            await asyncio.sleep(random.choice([0, 0, 0.001, 0.01, 0.05, 0.2]))
        async with asyncio.timeout(20):
            await asyncio.wait(sending)
        for broker in cluster.brokers.values():
            broker.otherwise = take
        await asyncio.sleep(10)
        gate = producer._limit
        assert (gate.count, gate.byte_count, gate.must_wait, gate._by_place, gate._waking) == (0, 0, False, {}, 0)
        for key in random_sends.keys:
            assert await producer.send(message("last", sharding_key=key))
        async with asyncio.timeout(10):
            await producer.close()
        assert random_sends.problems(cluster, producer.possible_duplicates) == []
