"""Where a call of a listener is: its frames, the innermost last, without lockstep's own and without values."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

from lockstep.client.consumer.stacks import FRAMES_MAX, stack_of_task, stack_of_thread

HERE = "client/test_stacks.py:"


def names(stack: tuple[str, ...]) -> list[str]:
    return [place.partition(" in ")[2].rpartition(".")[2] for place in stack if place.startswith(HERE)]


async def waits(secret: str, ended: asyncio.Event) -> None:
    await ended.wait()


async def caller(secret: str, ended: asyncio.Event) -> None:
    await waits(secret + "more", ended)


async def test_task_is_shown_down_to_what_it_awaits() -> None:
    ended = asyncio.Event()
    task = asyncio.create_task(caller("password", ended))
    await asyncio.sleep(0)
    stack = stack_of_task(task)
    assert names(stack) == ["caller", "waits"]
    assert stack[-1].startswith("asyncio/locks.py:")
    assert "password" not in "".join(stack)
    ended.set()
    await task
    assert stack_of_task(task) == ()


async def test_asynchronous_generator_is_part_of_the_stack() -> None:
    ended = asyncio.Event()

    async def numbers() -> AsyncIterator[int]:
        await waits("x", ended)
        yield 1

    async def reads() -> None:
        async for _ in numbers():
            pass

    task = asyncio.create_task(reads())
    await asyncio.sleep(0)
    assert names(stack_of_task(task))[0] == "reads"
    ended.set()
    await task


async def test_long_stack_keeps_its_first_frame_and_the_innermost() -> None:
    ended = asyncio.Event()

    async def deep(left: int) -> None:
        if left:
            await deep(left - 1)
        else:
            await waits("x", ended)

    async def outermost() -> None:
        await deep(100)

    task = asyncio.create_task(outermost())
    await asyncio.sleep(0)
    stack = stack_of_task(task)
    assert len(stack) == FRAMES_MAX
    assert stack[0].endswith(".outermost")
    assert names(stack)[-1] == "waits"
    ended.set()
    await task


def test_thread_is_shown_from_the_first_frame_of_the_application() -> None:
    at, go_on = threading.Event(), threading.Event()
    ident: list[int] = []

    def inner() -> None:
        ident.append(threading.get_ident())
        at.set()
        go_on.wait()

    def listener() -> None:
        inner()

    thread = threading.Thread(target=listener)
    thread.start()
    at.wait()
    stack = stack_of_thread(ident[0])
    assert names(stack) == ["listener", "inner"]
    assert stack[-1].startswith("python3") or "threading.py" in stack[-1]
    go_on.set()
    thread.join()
    assert stack_of_thread(ident[0]) == ()


def test_generator_based_coroutine_is_walked() -> None:
    import types

    @types.coroutine
    def old() -> Iterator[None]:
        yield

    async def new() -> None:
        await old()

    loop = asyncio.new_event_loop()
    try:
        task = loop.create_task(new())
        loop.call_soon(loop.stop)
        loop.run_forever()
        assert names(stack_of_task(task)) == ["new", "old"]
        loop.run_until_complete(task)
    finally:
        loop.close()
