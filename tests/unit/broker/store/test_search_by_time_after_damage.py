"""A search by time in a queue that has lost messages skips none of those that are left."""

from itertools import combinations

import pytest

from lockstep.testing.simulation.disk import SimFiles
from support.store_kit import LOG, append, host_of, open_store, read_queue_as_consumer, recovered

COUNT = 8
LOST = [*combinations(range(COUNT), 1), *combinations(range(COUNT), 2), (0, 1, 2), (5, 6, 7), (2, 3, 4, 5), tuple(range(COUNT))]


@pytest.mark.parametrize("lost", LOST)
async def test_search_by_time_with_lost_messages_skips_no_remaining_message(lost: tuple[int, ...]) -> None:
    files = SimFiles()
    host = host_of(files)
    store = await open_store(files, host=host)
    stamps, positions = [], []
    for number in range(COUNT):
        append(store, b"%d" % number)
        stamps.append(host.clock.wall_ms())
        positions.append(store._state.last_record)
        host.clock.now_ms += 1_000  # type: ignore[attr-defined]
    append(store, b"end", queue_id=1)
    await store.close()
    for number in lost:
        files.flip(LOG, positions[number] + 88)
    store, _ = await recovered(files, host=host, cut_corrupt=True)
    reported = await read_queue_as_consumer(store)
    assert reported.lost == list(lost)
    assert await store.first_stored_ms("orders", 0) == next((stamps[offset] for offset in sorted(reported.found)), None)
    for asked_ms in range(stamps[0] - 500, stamps[-1] + 1_000, 500):
        found = await store.offset_by_time("orders", 0, asked_ms)
        left = sorted(reported.found)
        assert [offset for offset in left if stamps[offset] >= asked_ms] == [offset for offset in left if offset >= found]
    await store.close()
