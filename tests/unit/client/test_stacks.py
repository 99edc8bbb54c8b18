"""Where a call of a listener is: its frames, the innermost last, without lockstep's own and without values."""

import asyncio
import sysconfig
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from lockstep.client.consumer.stacks import FRAMES_MAX, FramePlace, Stack, innermost_own, stack_of_task, stack_of_thread

HERE = "client/test_stacks.py:"


def names(stack: Stack) -> list[str]:
    return [place.partition(" in ")[2].rpartition(".")[2] for place in stack.frames if place.startswith(HERE)]


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
    assert stack.frames[-1].startswith("asyncio/locks.py:")
    assert stack.own == stack.frames[-2]
    assert stack.own.startswith(HERE)
    assert stack.own.endswith(" in waits")
    assert "password" not in f"{stack}"
    ended.set()
    await task
    assert stack_of_task(task) == Stack()


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
    assert len(stack.frames) == FRAMES_MAX
    assert stack.frames[0].endswith(".outermost")
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
    assert "threading.py" in stack.frames[-1]
    assert stack.own is not None
    assert stack.own.startswith(HERE)
    assert stack.own.endswith(".inner")
    go_on.set()
    thread.join()
    assert stack_of_thread(ident[0]) == Stack()


STDLIB, INSTALLED, PROJECT = sysconfig.get_path("stdlib"), "/venv/lib/python3.12/site-packages", "/home/shop/src"


def place(folder: str, module: str) -> FramePlace:
    code = compile("", f"{folder}/{module.replace('.', '/')}.py", "exec")
    return code, 1, module


@pytest.mark.parametrize(
    ("places", "own"),
    [
        ([place(PROJECT, "app.bill"), place(PROJECT, "app.bank"), place(INSTALLED, "httpx.client"), place(STDLIB, "ssl")], 1),
        ([place(INSTALLED, "tenacity.retry"), place(PROJECT, "app.bill"), place(INSTALLED, "httpx.client")], 1),
        ([place(PROJECT, "app.bill"), place(f"{STDLIB}/site-packages", "httpx.client"), place("/usr/lib/python3/dist-packages", "h11")], 0),
        ([place(PROJECT, "app.bill"), place(PROJECT, "lockstep.client.producer")], 0),
        ([place(INSTALLED, "app.bill"), place(INSTALLED, "app.bank"), place(INSTALLED, "application.bank"), place(STDLIB, "ssl")], 1),
        ([place(STDLIB, "asyncio.tasks")], None),
        ([place(STDLIB, "functools"), place(INSTALLED, "httpx.client")], None),
        ([], None),
    ],
)
def test_own_frame_is_neither_of_the_standard_library_nor_of_an_installed_package(places: list[FramePlace], own: int | None) -> None:
    assert innermost_own(places) == own


async def test_stack_of_libraries_alone_has_no_own_frame() -> None:
    task = asyncio.create_task(asyncio.sleep(1_000))
    await asyncio.sleep(0)
    stack = stack_of_task(task)
    assert (len(stack.frames), stack.own) == (1, None)
    task.cancel()


LIBRARY = """
async def deep(left, ended):
    await (deep(left - 1, ended) if left else ended.wait())
"""


async def test_own_frame_above_many_of_a_library_is_kept() -> None:
    ended, library = asyncio.Event(), {"__name__": "library.deep"}
    exec(compile(LIBRARY, f"{INSTALLED}/library/deep.py", "exec"), library)

    async def bill() -> None:
        await library["deep"](30, ended)  # type: ignore[operator]

    async def listener() -> None:
        await bill()

    task = asyncio.create_task(listener())
    await asyncio.sleep(0)
    stack = stack_of_task(task)
    assert len(stack.frames) == FRAMES_MAX
    assert names(stack) == ["listener", "bill"]
    assert stack.own == stack.frames[1]
    assert stack.frames[-1].startswith("asyncio/locks.py:")
    ended.set()
    await task


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


class Proxy:
    """An awaitable of the user's that answers for each attribute, as a mock does, or fails."""

    def __init__(self, answer: object) -> None:
        self._answer = answer

    def __getattr__(self, name: str) -> object:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def __await__(self) -> "Proxy":
        return self

    def __iter__(self) -> "Proxy":
        return self

    def __next__(self) -> None:
        return None

    def throw(self, error: BaseException) -> None:
        raise error


@pytest.mark.parametrize("answer", [object(), RuntimeError("no attribute")], ids=["anything", "raises"])
async def test_stack_ends_at_an_awaitable_that_is_no_coroutine(answer: object) -> None:
    async def waits_for_it() -> None:
        await Proxy(answer)

    task = asyncio.create_task(waits_for_it())
    await asyncio.sleep(0)
    assert names(stack_of_task(task)) == ["waits_for_it"]
    task.cancel()


async def test_stack_can_be_sent_whatever_its_files_and_modules_are_called() -> None:
    """A file name that is not UTF-8 has half surrogate pairs."""
    source = "async def waits(ended):\n    await ended.wait()\n"
    space: dict[str, Any] = {"__name__": 5}
    exec(compile(source, "shop/b\udcff.py", "exec"), space)
    ended = asyncio.Event()
    task = asyncio.create_task(space["waits"](ended))
    await asyncio.sleep(0)
    assert stack_of_task(task).own == "shop/b\\udcff.py:2 in waits"
    ended.set()
    await task
