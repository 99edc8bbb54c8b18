"""Groups and a producer that go on while masters are replaced, and what is checked of them at the end."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from lockstep.cli.demo.proof import HandledEvent, SentSteps
from lockstep.protocol.order import skips
from support.accepted import accepted_twice
from support.cluster import Cluster

BROKER = "broker-a"
QUEUES = 4
QUEUE_NAMES = {f"orders@{BROKER}:{number}" for number in range(QUEUES)}
MEMBERS = ("consumer-1", "consumer-2")
PARKED = 7


class Ordered:
    """An ordered group: each queue, or key, goes on in order."""

    producing: tuple[str, ...] = ()

    def __init__(self, cluster: Cluster, order: str = "queue", *options: str) -> None:
        self.cluster = cluster
        self.options: tuple[str, ...] = ("--order-by", order, *options)
        self.queues = QUEUE_NAMES
        """The queues of the topic."""

    async def begin(self) -> None:
        for name in MEMBERS:
            await self.cluster.consumer(name, *self.options)
        await self.cluster.until_held(QUEUES, *MEMBERS)

    async def produce(self, *more: str) -> None:
        """Start the producer, and wait until the group is at work."""
        await self.cluster.producer("producer", "--keys", "40", "--pause-ms", "20", "--timeout-ms", "120000", *self.producing, *more)
        await self.cluster.until_handled(100)

    async def went_on(self, after_us: int) -> None:
        """Wait until sends to each queue are acknowledged, and each queue is worked on."""
        await self.until_sent(after_us)
        await self.cluster.until_accepted(self.queues, after_us=after_us)

    async def until_sent(self, after_us: int) -> None:
        def sent() -> set[str]:
            return {queue for queue, times in self.cluster.acknowledged_times().items() if times[-1] > after_us}

        await self.cluster.until("sends to each queue are acknowledged", lambda: sent() >= self.queues)

    async def prove(self) -> int:
        """Check what was handled. Return how many events were handled again."""
        return (await self.cluster.prove(*MEMBERS)).repeats

    async def end(self) -> str:
        """Stop the producer, and check that nothing is lost, and nothing stored twice that was not counted. Return what was seen."""
        finished = await self.cluster.finish_producer()
        repeats, events = await self.prove(), self.cluster.handled_events()
        twice, counted = stored_twice(events), finished["possible_duplicates"]
        assert twice <= counted
        return f"{len(events)} events, 0 lost, {repeats} handled again, {twice} stored twice of {counted} counted"


class ByKey(Ordered):
    """The same where a key may move to another queue, or is handled by itself."""

    async def prove(self) -> int:
        await self.cluster.until_done()
        await self.cluster.stop(*MEMBERS)
        events = self.cluster.handled_events()
        assert out_of_order(events, self.cluster.reported) == []
        assert accepted_twice(self.cluster.accepted()) == []
        return len(events) - len({(each.order, each.step) for each in events})


class Parked(ByKey):
    """A key is parked meanwhile. Its messages wait, and are handled in order when it is replayed at the end."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, "sharding_key")
        self.broken = cluster.folder / "broken"
        parking = ("--give-up-after", "2", "--on-exhausted", "park", "--backoff-ms", "10")
        self.options += (*parking, "--broken", str(self.broken), "--broken-orders", str(PARKED))
        self.waiting = 0

    async def begin(self) -> None:
        self.broken.touch()
        await super().begin()

    async def parked(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(await self.cluster.command("park", "ls", "billing", "--json"))["keys"]
        return found

    async def until_parked(self, *keys: int) -> None:
        while sorted(int(row["key"]) for row in await self.parked()) != list(keys):
            pass

    async def went_on(self, after_us: int) -> None:
        await super().went_on(after_us)
        (row,) = await self.parked()
        assert (row["key"], row["state"], row["attempts"], row["error"]) == (str(PARKED), "parked", 2, "RuntimeError: broken")
        assert row["waiting"] > self.waiting or not row["waiting_complete"], "more of its messages wait, and only 10,000 are counted"
        self.waiting = row["waiting"]

    async def prove(self) -> int:
        assert all(each.order != PARKED for each in self.cluster.handled_events())
        self.broken.unlink()
        await self.cluster.command("park", "replay", "billing", "--all")
        await self.until_parked()
        return await super().prove()


class Concurrent(Ordered):
    """A concurrent group, and sends without keys, which may be stored twice where they are counted."""

    producing = ("--unkeyed", "--again")

    async def begin(self) -> None:
        for name in MEMBERS:
            options = ("--file", str(self.cluster.folder / f"{name}.handled"), "--name", name)
            command = ["-m", "support.worker_concurrent", "--nameserver", self.cluster.nameservers, *options]
            await self.cluster.start(name, command, "worker.ready")

    async def went_on(self, after_us: int) -> None:
        await self.until_sent(after_us)

        def queues() -> set[str]:
            return {each.queue for each in self.cluster.handled_events() if each.begun_us > after_us}

        await self.cluster.until("each queue is handled", lambda: queues() == self.queues)

    async def prove(self) -> int:
        await self.cluster.until_done()
        await self.cluster.stop(*MEMBERS)
        events = self.cluster.handled_events()
        return len(events) - len({(each.queue, each.offset) for each in events})


LOADS: dict[str, Callable[[Cluster], Ordered]] = {
    "queue": Ordered,
    "sharding_key": lambda cluster: Ordered(cluster, "sharding_key"),
    "parked": Parked,
    "concurrent": Concurrent,
}


def out_of_order(events: Iterable[HandledEvent], sent: dict[int, SentSteps]) -> list[str]:
    """Return what is wrong with keys that are handled by themselves: of each, no step may be left out, and no acknowledged one missing."""
    of_key: dict[int, list[HandledEvent]] = defaultdict(list)
    for each in sorted(events, key=lambda each: each.begun_us):
        of_key[each.order].append(each)
    found = [f"{key}: {skip}" for key, work in of_key.items() for skip in skips(work, lambda each: each.step, first=0)]
    missing = [key for key, reported in sent.items() if len({each.step for each in of_key[key]}) < reported.acknowledged]
    return found + [f"{key}: not all of its acknowledged events were handled" for key in missing]


def stored_twice(events: Iterable[HandledEvent]) -> int:
    """Return how many events are at more places of the log than one, each as often as it is too much."""
    places = {(each.order, each.step, each.queue, each.offset) for each in events}
    return len(places) - len({place[:2] for place in places})


def longest_wait(cluster: Cluster, begin_us: int) -> tuple[float, float]:
    """Return the longest time since then in which no send was acknowledged: (when it ended, its length), in s."""
    times = sorted(at for of_queue in cluster.acknowledged_times().values() for at in of_queue if at > begin_us)
    gaps = [(after - before, after - begin_us) for before, after in zip([begin_us, *times], times, strict=False)]
    length, end = max(gaps, default=(0, 0))
    return end / 1e6, length / 1e6


def quantiles(seconds: Iterable[float]) -> str:
    rising = sorted(seconds)
    return f"p50 {rising[len(rising) // 2]:.2f} s, p99 {rising[len(rising) * 99 // 100]:.2f} s, at most {rising[-1]:.2f} s"
