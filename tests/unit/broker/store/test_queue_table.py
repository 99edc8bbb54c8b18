"""When consume-queue entries are written: one turn of the loop never writes those of thousands of queues."""

import asyncio
from random import Random

import pytest

from lockstep.broker.store import Store
from lockstep.broker.store.queues.consume_queue import FLUSH_ENTRY_COUNT
from lockstep.broker.store.queues.queue_table import FLUSH_QUEUES_PER_SLICE, FLUSH_QUEUES_PER_TURN
from lockstep.testing.simulation.disk import SimFiles
from support.store_kit import abandon, all_bodies, append, confirmed, open_store

QUEUES = 5 * FLUSH_QUEUES_PER_TURN


class Writes:
    """Counts the consume-queue files written since the last `take`."""

    def __init__(self, files: SimFiles) -> None:
        self.count = 0
        self._tick = files.tick
        files.tick = self._count  # type: ignore[method-assign]

    def _count(self, operation: str, path: str, process: int) -> None:
        self.count += operation == "write" and "/consumequeue/" in path
        self._tick(operation, path, process)

    def take(self) -> int:
        count, self.count = self.count, 0
        return count


def waiting_entries(store: Store) -> int:
    return sum(queue.next - queue.flushed for queue in store._queues)


async def test_waiting_entries_are_written_some_queues_per_turn_oldest_first() -> None:
    files = SimFiles()
    store = await open_store(files, segment_bytes=1 << 20, queue_tail_bytes=20 * QUEUES)
    writes = Writes(files)
    for queue_id in range(QUEUES):
        append(store, b"a", queue_id=queue_id)
    await confirmed(store)
    assert writes.take() == 0, "as many as may wait"
    for queue_id in range(3 * FLUSH_QUEUES_PER_TURN):
        append(store, b"b", queue_id=queue_id)
    await confirmed(store)
    assert writes.take() == FLUSH_QUEUES_PER_TURN
    assert [queue.flushed for queue in store._queues] == [2] * FLUSH_QUEUES_PER_TURN + [0] * (QUEUES - FLUSH_QUEUES_PER_TURN)
    append(store, b"c", queue_id=QUEUES - 1)
    await confirmed(store)
    assert writes.take() == FLUSH_QUEUES_PER_TURN // 2 + 1, "until no more than may wait are left"
    assert store._queues._waiting == waiting_entries(store) <= QUEUES
    await store.close()


async def test_snapshot_writes_some_queues_per_turn() -> None:
    files = SimFiles()
    store = await open_store(files, segment_bytes=1 << 20)
    writes, most = Writes(files), 0
    for queue_id in range(QUEUES):
        append(store, b"a", queue_id=queue_id)
    await confirmed(store)
    snapshot = asyncio.ensure_future(store.write_snapshot([]))
    while not snapshot.done():
        most = max(most, writes.take())
        await asyncio.sleep(0)
    assert most == FLUSH_QUEUES_PER_SLICE
    assert waiting_entries(store) == store._queues._waiting == 0
    abandon(store)
    await asyncio.sleep(0)
    files.crash(power=True)
    store = await open_store(files)
    assert [await all_bodies(store, queue_id=queue_id) for queue_id in range(QUEUES)] == [[b"a"]] * QUEUES
    await store.close()


async def test_queue_with_many_entries_is_written_alone() -> None:
    files = SimFiles()
    store = await open_store(files, segment_bytes=1 << 20, queue_file_entries=300_000)
    writes = Writes(files)
    append(store, b"a", queue_id=1)
    for number in range(FLUSH_ENTRY_COUNT):
        assert writes.take() == 0, number
        append(store, b"b")
        store.writer.end_turn()
    assert writes.take() == 1
    assert waiting_entries(store) == store._queues._waiting == 1
    await store.close()


@pytest.mark.parametrize("seed", range(5))
async def test_waiting_entry_counter_equals_the_number_of_waiting_entries(seed: int) -> None:
    random = Random(seed)
    store = await open_store(SimFiles(seed), segment_bytes=1 << 16, queue_tail_bytes=20 * 10)
    for _ in range(200):
        match random.randrange(6):
            case 0:
                await confirmed(store)
            case 1 if random.random() < 0.3:
                store.drop_topic(random.choice(("orders", "bills")))
            case 2 if random.random() < 0.3:
                await store.write_snapshot([])
            case _:
                topic = random.choice(("orders", "bills"))
                append(store, *[b"x"] * random.randint(1, 3), topic=topic, queue_id=random.randrange(20))
        assert store._queues._waiting == waiting_entries(store)
        assert set(store._queues._dirty) == {queue for queue in store._queues if queue.flushed < queue.next}
    await store.close()
