"""The in-flight limit: first come, first served; nothing leaks when a waiter goes."""

import asyncio

import pytest

from lockstep.client.producer.gate import Gate
from support.loops import turns


async def enter(gate: Gate, name: str, order: list[str], size: int = 1) -> None:
    await gate.enter(1, size, name)
    order.append(name)


async def test_the_gate_shuts_at_its_count_or_its_bytes_and_opens_below() -> None:
    gate = Gate(2, 100)
    gate.add(1, 10)
    assert not gate.shut
    gate.add(1, 10)
    assert gate.shut
    gate.release(1, 10)
    assert not gate.shut
    gate.add(1, 90)
    assert gate.shut
    gate.release(1, 90)
    gate.release(1, 10)
    assert (gate.count, gate.byte_count, gate.shut) == (0, 0, False)


async def test_waiters_enter_in_the_order_in_which_they_came() -> None:
    gate = Gate(1, 100)
    gate.add(1, 1)
    order: list[str] = []
    async with asyncio.TaskGroup() as group:
        for name in ("a", "b", "c"):
            group.create_task(enter(gate, name, order))
        await turns(2)
        assert order == []
        for left in (["a"], ["a", "b"], ["a", "b", "c"]):
            gate.release(1, 1)
            assert gate.shut, "one who comes now stands behind the one that was let in"
            await turns(2)
            assert order == left
    gate.release(1, 1)
    assert (gate.count, gate.shut) == (0, False)


async def test_a_cancelled_waiter_gives_its_place_to_the_next() -> None:
    gate = Gate(1, 100)
    gate.add(1, 1)
    order: list[str] = []
    async with asyncio.TaskGroup() as group:
        first = group.create_task(enter(gate, "a", order))
        group.create_task(enter(gate, "b", order))
        await turns(2)
        gate.release(1, 1)
        first.cancel()
        await turns(4)
        assert order == ["b"]
    gate.release(1, 1)
    assert (gate.count, gate.byte_count, gate.shut) == (0, 0, False)


async def test_waiters_behind_a_failed_key_are_refused_and_the_others_stay() -> None:
    gate = Gate(1, 100)
    gate.add(1, 1)
    order: list[str] = []
    refused = asyncio.ensure_future(enter(gate, "bad", order))
    staying = asyncio.ensure_future(enter(gate, "good", order))
    await turns(2)
    gate.refuse(lambda tag: ValueError("behind") if tag == "bad" else None)
    with pytest.raises(ValueError, match="behind"):
        await refused
    gate.release(1, 1)
    await staying
    assert order == ["good"]
    assert gate.count == 1


async def test_idle_waits_for_what_is_in_flight() -> None:
    gate = Gate(4, 100)
    await gate.idle()
    gate.add(2, 2)
    waiting = asyncio.ensure_future(gate.idle())
    gate.release(1, 1)
    await turns(2)
    assert not waiting.done()
    gate.release(1, 1)
    await waiting
