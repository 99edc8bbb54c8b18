"""Random work with crashes at any operation and power cuts that keep any part of the unsynced data."""

import asyncio
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.broker.store import FlushMode
from lockstep.testing.simulation.disk import SimFiles
from support.store_kit import ASYNC, SYNC, abandon, all_bodies, append, confirmed, open_store
from support.store_world import universe


def shapes(random: Random) -> dict[str, Any]:
    return {
        "segment_bytes": random.choice((8192, 16384, 65536)),
        "tail_bytes": random.choice((512, 4096, 1 << 20)),
        "queue_tail_bytes": random.choice((200, 2000, 1 << 20)),
        "log_bytes_max": random.choice((None, 40_000)),
    }


@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 40), flush=st.sampled_from(FlushMode))
def test_confirmed_records_survive_crashes_and_no_others_appear(seed: int, flush: FlushMode) -> None:
    """A prefix of the log survives, with every confirmed record that had to; offsets are dense; opening again changes nothing."""
    asyncio.run(universe(seed, flush, settings=shapes))


def test_crash_runs_include_losses_and_segment_rolls() -> None:
    """Unconfirmed records do get lost in these runs, under both flush modes, so the test above can fail."""
    lost = {flush: sum(asyncio.run(universe(seed, flush, settings=shapes)).lost for seed in range(8)) for flush in FlushMode}
    assert min(lost.values()) > 0


@pytest.mark.parametrize("flush", [ASYNC, SYNC])
async def test_crash_at_every_single_operation_keeps_confirmed_records(flush: FlushMode) -> None:
    """One script is killed at its n-th change for every n, then the power is cut: everything confirmed under sync flush is stored."""
    for crash_after in range(60):
        files = SimFiles(seed=crash_after)
        acknowledged: list[bytes] = []
        store = await open_store(files, flush=flush)
        files.countdown = crash_after
        store.writer.on_fatal = lambda _: None
        bodies = [b"%d" % number + b"." * 700 for number in range(30)]
        try:
            for number, body in enumerate(bodies):
                append(store, body)
                store.writer.when_confirmed(partial(acknowledged.append, body))
                await asyncio.sleep(0)
                if number == 12:
                    await store.write_snapshot(["tables"])
        except Exception:
            assert files.dead
        for _ in range(5):
            await asyncio.sleep(0)
        abandon(store)
        await asyncio.sleep(0)
        files.crash(power=flush is SYNC)
        store = await open_store(files, flush=flush)
        found = await all_bodies(store)
        assert found == bodies[: len(found)]
        assert acknowledged == bodies[: len(acknowledged)]
        assert len(found) >= len(acknowledged)
        append(store, b"goes on")
        await confirmed(store)
        assert (await all_bodies(store))[-1] == b"goes on"
        await store.close()
