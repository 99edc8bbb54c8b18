"""What a master does when another copy is elected."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.broker.app import Broker
from lockstep.broker.tables.send_gate import SendGate
from lockstep.protocol.errors import ServiceNotAvailableError
from lockstep.testing.simulation import SimFiles
from support.store_kit import append, open_store


class Silent:
    """Copies that have nothing."""

    def stored(self) -> int:
        return 0

    synced = written = heard = stored


def test_hand_over_is_refused_where_no_sends_are_taken() -> None:
    """It would do nothing, and be answered as if it did."""
    broker: Any = Broker.__new__(Broker)
    broker._gate = SendGate("the broker is shutting down")
    with pytest.raises(ServiceNotAvailableError, match="the broker is shutting down: nothing was handed over"):
        broker._hand_over("m")


async def test_deposed_master_confirms_nothing_more() -> None:
    """Its set is gone when it ends, so that its own disk would be enough for whatever still waits."""
    store = await open_store(SimFiles())
    store.writer.copies = Silent()
    broker: Any = Broker.__new__(Broker)
    broker._changing, broker._gate, broker._store = asyncio.Lock(), SendGate(), store
    confirmed: list[int] = []

    async def stop() -> bool:
        store.writer.copies = None
        await asyncio.sleep(0.01)
        return False

    async def start_replica() -> None:
        assert broker._store is None

    broker._running, broker._start_replica = SimpleNamespace(stop=stop, cut_connections=lambda _: None), start_replica
    for number in range(2):
        append(store, b"unconfirmed")
        store.writer.when_confirmed(lambda: confirmed.append(1))
        if not number:
            store.writer.end_turn()
    await broker._step_down()
    assert confirmed == []
    assert store.bounds("orders", 0) == (0, 0)
