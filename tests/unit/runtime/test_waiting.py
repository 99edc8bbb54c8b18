"""Waits that end after a time, and one that no cancellation ends."""

import asyncio

import pytest

from lockstep.runtime.waiting import is_set_within, to_its_end


async def test_event_is_waited_for_no_longer_than_said() -> None:
    event = asyncio.Event()
    assert not await is_set_within(event, 0.001)
    asyncio.get_running_loop().call_soon(event.set)
    assert await is_set_within(event, None)


async def test_caller_that_is_cancelled_waits_for_the_end_and_is_cancelled_then() -> None:
    """What the task uses may be closed afterwards."""
    gate, ended = asyncio.Event(), list[str]()

    async def work() -> None:
        await gate.wait()
        ended.append("work")

    async def caller() -> None:
        try:
            await to_its_end(asyncio.ensure_future(work()))
        finally:
            ended.append("caller")

    task = asyncio.ensure_future(caller())
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.wait([task], timeout=0.001)
    assert (ended, task.done()) == ([], False)
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["work", "caller"]


async def test_result_and_error_of_the_task_are_the_callers() -> None:
    async def ends(error: Exception | None) -> int:
        if error is not None:
            raise error
        return 7

    assert await to_its_end(asyncio.ensure_future(ends(None))) == 7
    with pytest.raises(ValueError, match="no"):
        await to_its_end(asyncio.ensure_future(ends(ValueError("no"))))
