"""The tasks of tests/e2e/test_taskiq.py: each appends a line to the file $TASKS_FILE."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

from taskiq import Context, SmartRetryMiddleware, TaskiqDepends, TaskiqEvents, TaskiqState

from lockstep.taskiq import LockstepBroker

timeout_ms = int(os.environ.get("TASKS_TIMEOUT_MS", "900000"))
broker = LockstepBroker("tasks", "workers", os.environ.get("TASKS_NAMESERVER"), consume_timeout_ms=timeout_ms)
broker.add_middlewares(SmartRetryMiddleware(default_delay=1, use_jitter=True))
FILE = os.environ.get("TASKS_FILE", "")


def note(text: str) -> None:
    with open(FILE, "a") as file:
        file.write(f"{os.getpid()} {text}\n")


@broker.on_event(TaskiqEvents.WORKER_STARTUP)
async def started(state: TaskiqState) -> None:
    note("started")


@broker.task
async def mail(order: str, seconds: float = 0) -> None:
    note(f"begins {order}")
    await asyncio.sleep(seconds)
    note(f"mailed {order}")


@broker.task
async def fail(order: str) -> None:
    note(f"fails {order}")
    raise ValueError(order)


@broker.task(retry_on_error=True)
async def retried(order: str) -> None:
    note(f"tries {order}")
    if Path(FILE).read_text().count(f"tries {order}\n") < 3:  # noqa: ASYNC240
        raise ValueError(order)
    note(f"booked {order}")


@broker.task(retry_on_error=True, delay=41 * 86_400)
async def hopeless(order: str) -> None:
    """Its retries have a delay that is longer than brokers allow."""
    note(f"gives up {order}")
    raise ValueError(order)


@broker.task(ack_type="manual")
async def forget(order: str, context: Annotated[Context, TaskiqDepends()]) -> None:
    """Do not acknowledge the first delivery."""
    again = f"forgets {order}" in Path(FILE).read_text()  # noqa: ASYNC240
    note(f"{'done' if again else 'forgets'} {order}")
    if again:
        await context.ack()
