"""A consumer whose broker cuts connections, stalls, and moves queues: seeded faults in virtual time, then a period without faults.

Invariants throughout: no commit covers a message whose call has not ended with SUCCESS; a queue has one call at a time; the fence of a call
is a granted epoch and never decreases within a queue. At the end every message is committed.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from random import Random

import pytest

from lockstep.client import Backoff, OrderedRetry, OrderlyContext
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.messages.message import MessageExt
from support.consumers import G, S, consuming
from support.effort import seeds
from support.fake_broker import FakeBroker, FakeCluster, frozen_cluster
from support.frozen_loop import advance

pytestmark = pytest.mark.frozen_clock

QUEUES = 3


class CheckingListener:
    """A listener that checks the invariants of its own calls and records violations in `wrong`."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.done: dict[tuple[str, int], set[int]] = defaultdict(set)
        self.running: dict[tuple[str, int], int] = defaultdict(int)
        self.epochs: dict[tuple[str, int], int] = defaultdict(int)
        self.wrong: list[str] = []
        self.calm = False

    async def __call__(self, messages: Sequence[MessageExt], context: OrderlyContext) -> S:
        key = (context.queue.broker_name, context.queue.queue_id)
        if self.running[key]:
            self.wrong.append(f"two calls at once on {key}")
        if context.fence.epoch < self.epochs[key]:
            self.wrong.append(f"epoch fell on {key}")
        self.running[key] += 1
        self.epochs[key] = context.fence.epoch
        offsets = [message.queue_offset for message in messages]
        if offsets != list(range(offsets[0], offsets[0] + len(offsets))):
            self.wrong.append(f"holes in a batch of {key}: {offsets}")
        try:
            mood = 1.0 if self.calm else self.random.random()
            if mood < 0.3:
                await asyncio.sleep(self.random.choice([0.001, 0.05, 0.5, 4]))
            if mood < 0.05:
                raise RuntimeError("a listener fails at times")
            if mood < 0.1:
                return S.SUSPEND_CURRENT_QUEUE_A_MOMENT
            self.done[key].update(offsets)
            return S.SUCCESS
        finally:
            self.running[key] -= 1

    def watch(self, broker: FakeBroker) -> None:
        def committed(key: tuple[str, str, int], before: int, after: int) -> None:
            missing = set(range(before, after)) - self.done[broker.name, key[2]]
            if missing:
                self.wrong.append(f"{broker.name} {key}: committed {before} → {after} without {sorted(missing)}")

        broker.on_commit.append(committed)


def inject_fault(random: Random, broker: FakeBroker) -> None:
    key = (G, "orders", random.randrange(QUEUES))
    match random.randrange(9):
        case 0:
            broker.cut()
        case 1:
            broker.mute |= {random.choice([RequestCode.SYNC, RequestCode.LOCK_BATCH_MQ, RequestCode.PULL_MESSAGE, -RequestCode.SYNC])}
        case 2 if key in broker.locks:
            broker.steal(*key)
        case 3 if key in broker.locks and broker.locks[key].holder == "another":
            broker.free(*key, push=random.random() < 0.7)
        case 4 | 5:
            others = random.sample(["!first", "zz", "between"], random.randrange(3))
            broker.set_members(G, broker.me(), *others, notify=random.random() < 0.7)
        case 6:
            broker.process_kept_requests()
        case 7:
            broker.lists_only[G] = ["nobody-else"]
        case _:
            broker.lists_only.clear()


async def inject_faults_then_check(cluster: FakeCluster, witness: CheckingListener, random: Random) -> None:
    stored: dict[tuple[str, int], int] = defaultdict(int)
    for _ in range(60):
        broker = cluster.brokers[random.choice(["a", "b"])]
        if random.random() < 0.6:
            queue_id, count = random.randrange(QUEUES), random.randrange(1, 12)
            broker.store("orders", queue_id, [b"%d" % i for i in range(count)])
            stored[broker.name, queue_id] += count
        else:
            inject_fault(random, broker)
        await advance(random.choice([0.01, 0.03, 0.1, 0.3, 1]))
    for broker in cluster.brokers.values():
        broker.process_kept_requests()
        broker.lists_only.clear()
        for lock in broker.locks.values():
            lock.holder = None if lock.holder == "another" else lock.holder
        broker.set_members(G, broker.me())
    witness.calm = True
    await advance(45)
    assert not witness.wrong
    for (name, queue_id), count in stored.items():
        assert cluster[name].committed(G, "orders", queue_id) == count, (name, queue_id)


@pytest.mark.parametrize("seed", seeds(3, 8))
async def test_no_message_is_lost_or_skipped_and_calls_of_a_queue_never_overlap(seed: int) -> None:
    random = Random(seed)
    witness = CheckingListener(random)
    options = {"batch_count": random.choice([1, 3, 16]), "commit": random.choice(["interval", "each"]), "drain_timeout_ms": 2_000}
    retry = OrderedRetry(backoff=Backoff(10, 1.0))
    async with frozen_cluster("a", "b", topics={"orders": QUEUES}) as cluster:
        for broker in cluster.brokers.values():
            witness.watch(broker)
        async with consuming(cluster, witness, retry=retry, suspend_current_queue_time_ms=20, queue_count_max=20, **options):
            await inject_faults_then_check(cluster, witness, random)
    assert not witness.wrong
