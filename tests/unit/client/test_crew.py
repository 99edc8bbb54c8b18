"""The tasks that call a listener: what arrives while the last of them ends is called too."""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from lockstep.client.consumer.calls.crew import Crew
from lockstep.client.consumer.calls.runner import Call
from lockstep.runtime.daemon import Tasks


@dataclass(eq=False)
class Runner:
    """One queue with `waiting` batches."""

    waiting: int = 0
    worker: Any = field(default_factory=lambda: SimpleNamespace(calls={}, ownership=SimpleNamespace(running=False)))
    grant: Any = field(default_factory=lambda: SimpleNamespace(pull_waits=False))

    def begin_call(self, now_ms: int) -> Call | None:
        if not self.waiting:
            return None
        self.waiting -= 1
        context: Any = object()
        runner: Any = self
        return Call(runner, [], context, now_ms)

    def succeeded(self, call: Call, result: object) -> bool:
        return True

    async def process(self, call: Call, result: object, error: BaseException | None) -> None:
        raise AssertionError(error)

    def last_call_ended(self) -> None:
        self.worker.ownership.running = False


async def test_batch_that_arrives_in_the_turn_in_which_the_last_task_ends_is_called() -> None:
    started: list[asyncio.Future[None]] = []

    async def listen(batch: object, context: object) -> None:
        started.append(asyncio.get_running_loop().create_future())
        await started[-1]

    host = SimpleNamespace(clock=SimpleNamespace(boot_ms=lambda: 0))
    ctx: Any = SimpleNamespace(host=host, config=SimpleNamespace(concurrency=1), runs=Tasks(), group="g")
    listener: Any = SimpleNamespace(listener=listen, in_loop=True, running={}, watch=None)
    crew: Crew[Call] = Crew(ctx, listener, ctx.config.concurrency)
    runner: Any = Runner()

    def arrive() -> None:
        runner.waiting += 1
        crew.schedule(runner)

    arrive()
    for _ in range(10):
        await asyncio.sleep(0)
    started[0].set_result(None)  # the task runs in the next turn, and in the same one
    asyncio.get_running_loop().call_soon(arrive)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(started) == 2
    started[1].set_result(None)
    for _ in range(10):
        await asyncio.sleep(0)
    assert (crew.tasks, runner.worker.ownership.running) == ({}, False)
