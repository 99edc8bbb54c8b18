"""Random faults: consumers and brokers are killed, paused, stopped and started, a nameserver loses its state. Then the faults stop."""

import asyncio
import random
import signal

import pytest

from support.cluster import QUICK, Cluster, Report, now_us

pytestmark = pytest.mark.e2e

QUEUES = 12
CONSUMERS_MAX = 5
BROKERS = ("broker-a", "broker-b")


@pytest.mark.parametrize(
    ("seed", "seconds"),
    [
        pytest.param(1, 12, id="short"),
        *(pytest.param(seed, 60, id=f"seed {seed}", marks=pytest.mark.slow) for seed in range(2, 5)),
    ],
)
async def test_order_holds_under_random_faults_and_every_queue_continues_afterwards(
    cluster: Cluster, report: Report, seed: int, seconds: float
) -> None:
    await cluster.servers(*QUICK, queues=QUEUES // 2)
    nemesis = Nemesis(cluster, random.Random(seed))
    for _ in range(3):
        await nemesis.join()
    await cluster.producer("producer", "--keys", "60", "--pause-ms", "30")
    end_us = now_us() + int(seconds * 1e6)
    while now_us() < end_us:
        await nemesis.strike()
    nemesis.calm()
    calm_us = now_us()
    waits = await cluster.until_accepted(
        {f"orders@{broker}:{number}" for broker in BROKERS for number in range(QUEUES // 2)}, after_us=calm_us
    )
    await cluster.finish_producer()
    assert cluster.reported_events("producer", "send.failed") == []
    verdict = await cluster.prove(*nemesis.alive)
    again = f"all queues went on {max(waits.values()):.2f} s after calm"
    report(f"{nemesis.strikes} faults, {verdict.events} events, {verdict.repeats} repeated, {again}")


class Nemesis:
    """Causes faults at random; its sleeps are part of the faults, and the test waits for nothing in them."""

    def __init__(self, cluster: Cluster, choose: random.Random) -> None:
        self.cluster = cluster
        self.choose = choose
        self.alive: dict[str, bool] = {}
        """Whether each consumer is paused."""
        self.joined = 0
        self.strikes = 0

    async def strike(self) -> None:
        await asyncio.sleep(self.choose.uniform(0.1, 1.0))
        self.strikes += 1
        await self.choose.choice(
            [self.join, self.leave, self.kill, self.pause_or_resume, self.kill_broker, self.pause_broker, self.forget]
        )()

    def calm(self) -> None:
        self.cluster.signal(signal.SIGCONT, *self.alive)

    async def join(self) -> None:
        if len(self.alive) < CONSUMERS_MAX:
            self.joined += 1
            name = f"consumer-{self.joined}"
            await self.cluster.consumer(name, *self.choose.choice([(), ("--commit", "each"), ("--batch", "5"), ("--plain",)]))
            self.alive[name] = False

    async def leave(self) -> None:
        running = [name for name, paused in self.alive.items() if not paused]
        if len(running) > 1:
            name = self.choose.choice(running)
            del self.alive[name]
            await self.cluster.stop(name)

    async def kill(self) -> None:
        if len(self.alive) > 1:
            name = self.choose.choice(list(self.alive))
            del self.alive[name]
            await self.cluster.kill(name)

    async def pause_or_resume(self) -> None:
        name = self.choose.choice(list(self.alive))
        self.cluster.signal(signal.SIGCONT if self.alive[name] else signal.SIGSTOP, name)
        self.alive[name] = not self.alive[name]

    async def kill_broker(self) -> None:
        names = self.choose.choice([BROKERS[:1], BROKERS[1:], BROKERS])
        await self.cluster.kill(*names)
        await asyncio.sleep(self.choose.choice([0, 0.5, 2]))
        await self.cluster.restart(*names)

    async def pause_broker(self) -> None:
        name = self.choose.choice(BROKERS)
        self.cluster.signal(signal.SIGSTOP, name)
        await asyncio.sleep(self.choose.choice([0.1, 0.7, 1.5, 3]))
        self.cluster.signal(signal.SIGCONT, name)

    async def forget(self) -> None:
        await self.cluster.kill("nameserver")
        await asyncio.sleep(self.choose.choice([0, 1]))
        await self.cluster.restart("nameserver")
