"""Calls that end, and responses that arrive, when their key, their replay or their grant is not what it was when they began."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from lockstep.client import MessageExt, OrderlyContext
from lockstep.client.consumer.calls.failed_calls import FailedCalls
from lockstep.client.consumer.calls.parking.park_request import ParkOutcome
from lockstep.testing import TestCluster
from support.park_kit import GROUP, TOPIC, Poison, Worker, both_orders, dead_letters, drop, poisoned, send

pytestmark = pytest.mark.lockstep(brokers=1)


@dataclass
class LosesAResponse(Worker):
    """A member, "a", that does not get the response to its first PARK."""

    lost: asyncio.Event = field(default_factory=asyncio.Event)

    async def listen(self, messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        if context.attempt == 2 and not self.lost.is_set():
            self.cluster.partition("broker-a", "a", one_way=True)
            self.lost.set()
        await super().listen(messages, context)


@both_orders
async def test_progress_passes_a_key_whose_replay_begins_before_the_response_to_its_park(
    lockstep_cluster: TestCluster, order_by: str
) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await send(cluster, 40, 4)
    poison = Poison({"k1"})
    worker = LosesAResponse(cluster, poison, order_by)
    await cluster.start("a", worker.run)
    await worker.lost.wait()
    await cluster.advance(seconds=0.1)
    assert [row.key for row in await cluster.replay(GROUP)] == ["k1"]
    cluster.reset_connections("a", "broker-a")
    cluster.heal()
    await cluster.until(lambda: len(worker.got) == 30, "every other key")
    await cluster.settled(GROUP)
    poison.keys.clear()
    await cluster.replay(GROUP)
    await cluster.until(lambda: len(worker.got) == 40, "the replay")
    assert worker.of_key("k1") == list(range(1, 40, 4))


@both_orders
async def test_park_whose_response_arrives_after_the_end_of_the_grant_changes_nothing(
    lockstep_cluster: TestCluster, order_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, park = lockstep_cluster, FailedCalls.park
    await cluster.create_topic(TOPIC, queues=1)
    parked = asyncio.Event()

    async def park_late(self: FailedCalls, *call: Any) -> ParkOutcome:
        outcome = await park(self, *call)
        if outcome is ParkOutcome.PARKED:
            parked.set()
            await cluster.until(lambda: not self._grant.alive, "the end of the grant")
        return outcome

    monkeypatch.setattr(FailedCalls, "park", park_late)
    poison, settings = Poison({"k0"}), {"drain_timeout_ms": 100, "queue_span_max": 4}
    first, other = (Worker(cluster, poison, order_by, settings=settings) for _ in range(2))
    await cluster.start("first", first.run)
    await cluster.stop("first")
    await cluster.start("other", other.run)
    await send(cluster, 40, 4)
    await parked.wait()
    await cluster.restart("first")
    await cluster.until(lambda: first.events, "the move of the queue")
    await cluster.settled(GROUP)
    poison.keys.clear()
    await cluster.replay(GROUP)
    await cluster.until(lambda: len(first.of_key("k0")) == 10, "the replay")
    assert first.of_key("k0") == list(range(0, 40, 4))
    assert not cluster.failures()


@both_orders
async def test_failed_call_of_a_key_that_is_dropped_meanwhile_is_not_repeated(
    lockstep_cluster: TestCluster, order_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, listen = lockstep_cluster, Worker.listen
    attempts: list[int] = []

    async def count(self: Worker, messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        attempts.append(context.attempt)
        await listen(self, messages, context)

    worker = await poisoned(cluster, order_by, poison=Poison({"k3"}), work_s=2.0)
    monkeypatch.setattr(Worker, "listen", count)
    await cluster.stop("a")
    await cluster.start("again", worker.run)
    await cluster.replay(GROUP)
    await cluster.until(lambda: attempts, "the first call")
    await drop(cluster)
    await cluster.until(lambda: worker.resumed, "the end of the drop")
    assert attempts == [0]
    assert await dead_letters(cluster, 10) == list(range(3, 100, 10))
