"""Retries and delays of Taskiq's tasks: its receiver and its middlewares, against a complete cluster under a virtual clock."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("taskiq")

from taskiq import AsyncBroker, BrokerMessage, ScheduleSource, SimpleRetryMiddleware, SmartRetryMiddleware
from taskiq.abc.middleware import TaskiqMiddleware
from taskiq.acks import AcknowledgeType
from taskiq.exceptions import SendTaskError
from taskiq.message import TaskiqMessage
from taskiq.receiver import Receiver

from lockstep.client import LocalProtocolError, MessageIllegalError
from lockstep.taskiq import LockstepBroker
from lockstep.testing import TestCluster, simulate

TOO_LONG_S = 41 * 86_400
"""A longer delay than brokers allow."""
FIRST_RUN_S = 1
"""A message without a delay is received within this time, in seconds."""


class Shop:
    """A worker, and the seconds at which its tasks ran."""

    def __init__(self, cluster: TestCluster, broker: LockstepBroker) -> None:
        self.cluster = cluster
        self.broker = broker
        self.begun = 0.0
        self.ran: list[float] = []

    def task(self, fails: int = 0, **labels: Any) -> Any:
        """Return a task that raises in its first `fails` runs."""

        async def work(order: str) -> None:
            self.ran.append(asyncio.get_running_loop().time() - self.begun)
            if len(self.ran) <= fails:
                raise ValueError(order)

        return self.broker.register_task(work, "shop:work", **labels)

    @property
    def waits(self) -> list[int]:
        """Return the seconds, rounded down, before the first run, and then before each other one."""
        return [int(later - earlier) for earlier, later in zip([0.0, *self.ran], self.ran, strict=False)]

    @asynccontextmanager
    async def worker(self, **how: Any) -> AsyncIterator[None]:
        """Run tasks as a worker process does."""
        finish = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            receiver = Receiver(self.broker, max_async_tasks=10, run_startup=False, **how)
            listening = tasks.create_task(receiver.listen(finish))
            await self.cluster.advance(seconds=2)
            self.begun = asyncio.get_running_loop().time()
            yield
            finish.set()
            await listening


@asynccontextmanager
async def shop(*middlewares: TaskiqMiddleware, **settings: Any) -> AsyncIterator[Shop]:
    async with TestCluster() as cluster:
        await cluster.create_topic("tasks", queues=1)
        broker = LockstepBroker("tasks", "workers", cluster.nameserver, **settings)
        broker.add_middlewares(*middlewares)
        await broker.startup()
        try:
            yield Shop(cluster, broker)
        finally:
            await broker.shutdown()


def smart(**settings: Any) -> SmartRetryMiddleware:
    return SmartRetryMiddleware(default_retry_count=4, **settings)


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith(event)]


def test_retry_with_jitter_waits_for_its_own_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taskiq adds its jitter to the delay that the task already has, so it grows with each retry."""
    jitter = iter([0.5, 0.25, 0.125])
    monkeypatch.setattr("taskiq.middlewares.smart_retry_middleware.random.random", lambda: next(jitter))

    async def main() -> None:
        async with shop(smart(default_delay=3, use_jitter=True)) as it, it.worker():
            await it.task(fails=3, retry_on_error=True).kiq("1")
            await it.cluster.advance(seconds=60)
            first, *retries = it.waits
            assert (first, len(retries)) == (0, 3)
            assert set(retries) <= {3, 4}, "and up to a second more"

    simulate(main)


@pytest.mark.parametrize("label", [2, 5, "5", 7.25, 0.5])
def test_delay_that_a_retried_task_declares_is_that_of_its_retries(label: float | str) -> None:
    async def main() -> None:
        async with shop(smart()) as it, it.worker():
            await it.task(fails=2, retry_on_error=True, delay=label).kiq("1")
            await it.cluster.advance(seconds=60)
            assert it.waits == [0, *[int(float(label))] * 2]

    simulate(main)


@pytest.mark.parametrize(
    ("middleware", "labels", "waits"),
    [
        (lambda: smart(), {"delay": 5}, [5]),
        (lambda: smart(default_retry_label=True), {"delay": 5}, [0, 5]),
        (lambda: smart(default_retry_label=True), {"delay": 5, "retry_on_error": False}, [5]),
        (lambda: smart(), {"delay": 5, "retry_on_error": "true"}, [0, 5]),
        (lambda: smart(default_delay=0), {"retry_on_error": True}, [0, 0]),
        (lambda: SimpleRetryMiddleware(), {"delay": 5, "retry_on_error": True}, [0, 5]),
        (lambda: SimpleRetryMiddleware(), {"retry_on_error": True}, [0, 0]),
    ],
    ids=["no retry", "retry by default", "no retry by label", "retry by label", "no delay", "simple, delay", "simple"],
)
def test_declared_delay_delays_the_first_run_only_without_retries(
    middleware: Callable[[], TaskiqMiddleware], labels: dict[str, Any], waits: list[int]
) -> None:
    async def main() -> None:
        async with shop(middleware()) as it, it.worker():
            await it.task(fails=1, **labels).kiq("1")
            await it.cluster.advance(seconds=60)
            assert it.waits == waits

    simulate(main)


def test_delay_of_one_send_delays_its_first_run() -> None:
    """Taskiq keeps the label, so its retries have this delay too."""

    async def main() -> None:
        async with shop(smart(default_delay=1)) as it, it.worker():
            task = it.task(fails=1, retry_on_error=True)
            await task.kicker().with_labels(delay=10).kiq("1")
            await it.cluster.advance(seconds=60)
            assert it.waits == [10, 10]
            await task.kicker().with_labels(delay=None).kiq("2")
            await it.cluster.advance(seconds=FIRST_RUN_S)
            assert len(it.ran) == 3

    simulate(main)


class Source(ScheduleSource):
    """A schedule source that sends what is due."""

    def __init__(self) -> None:
        self.broker: AsyncBroker | None = None
        self.added: list[Any] = []

    async def get_schedules(self) -> list[Any]:
        return []

    async def add_schedule(self, schedule: Any) -> None:
        self.added.append(schedule)


def test_retry_that_a_schedule_source_has_delayed_is_not_delayed_again() -> None:
    source = Source()

    async def main() -> None:
        async with shop(smart(schedule_source=source)) as it, it.worker():
            task = it.task(fails=1, retry_on_error=True, delay=10)
            await task.kiq("1")
            await it.cluster.advance(seconds=FIRST_RUN_S)
            (due,) = source.added
            kicker = task.kicker().with_labels(**due.labels, schedule_id=due.schedule_id)
            await kicker.with_task_id(due.task_id).kiq(*due.args, **due.kwargs)
            await it.cluster.advance(seconds=FIRST_RUN_S)
            assert it.waits == [0, 1]

    simulate(main)


def test_retry_that_can_not_be_sent_is_logged_and_the_task_runs_again_soon(caplog: pytest.LogCaptureFixture) -> None:
    """The brokers allow 40 days. The place of the task is free, and the dead letter says why."""

    async def main() -> None:
        async with shop(smart(default_delay=TOO_LONG_S), concurrency=1, max_reconsume_times=2) as it, it.worker():
            await it.task(fails=9, retry_on_error=True).kiq("1")
            await it.cluster.advance(seconds=20)
            assert it.waits == [0, 1, 1]
            it.ran.clear()
            await it.task(retry_on_error=False).kiq("2")
            await it.cluster.advance(seconds=FIRST_RUN_S)
            assert len(it.ran) == 1

    simulate(main)
    assert lines(caplog, "call.failed")[0].startswith("call.failed listener=lockstep.taskiq.broker.LockstepBroker._take")
    (letter,) = lines(caplog, "message.dead_lettered")
    assert "SendTaskError" in letter
    logged = next(record for record in caplog.records if record.getMessage() == letter)
    assert logged.exc_info is not None
    error = logged.exc_info[1]
    assert isinstance(error, SendTaskError)
    assert isinstance(error.__cause__, MessageIllegalError)
    assert "waits for 41.00 days: at most 40 (timer_days_max)" in str(error.__cause__)


class Fails(TaskiqMiddleware):
    """A middleware that fails in one of its methods."""

    def __init__(self, step: str, error: BaseException) -> None:
        super().__init__()
        self._step = step
        self._error = error

    def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        if self._step == "pre_execute":
            raise self._error
        return message

    def post_execute(self, message: TaskiqMessage, result: Any) -> None:
        if self._step == "post_execute":
            raise self._error


@pytest.mark.parametrize("error", [ValueError("no"), TimeoutError("no time")], ids=["any", "timeout"])
@pytest.mark.parametrize("step", ["pre_execute", "post_execute"])
def test_task_whose_handling_fails_is_delivered_again(caplog: pytest.LogCaptureFixture, step: str, error: Exception) -> None:
    async def main() -> None:
        async with shop(Fails(step, error), concurrency=1, max_reconsume_times=1) as it, it.worker():
            await it.task().kiq("1")
            await it.cluster.advance(seconds=20)
            assert len(it.ran) == (2 if step == "post_execute" else 0)

    simulate(main)
    (letter,) = lines(caplog, "message.dead_lettered")
    assert "attempts=2" in letter
    assert type(error).__name__ in letter


def test_failure_after_the_acknowledgement_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with shop(Fails("post_execute", ValueError("no"))) as it, it.worker(ack_type=AcknowledgeType.WHEN_RECEIVED):
            task = await it.task().kiq("1")
            await it.cluster.advance(seconds=20)
            assert len(it.ran) == 1
            assert lines(caplog, "task.failed") == [f"task.failed task={task.task_id} error=ValueError: no"]

    simulate(main)


class FailsOnce(TaskiqMiddleware):
    """A middleware that fails after the second of all runs."""

    runs = 0

    def post_execute(self, message: TaskiqMessage, result: Any) -> None:
        self.runs += 1
        if self.runs == 2:
            raise ValueError("no")


def test_tasks_with_one_id_are_told_apart() -> None:
    """A retry has the id of its task, and may be here before that is acknowledged."""

    async def main() -> None:
        async with shop(FailsOnce()) as it, it.worker():
            orders: list[str] = []

            async def work(order: str) -> None:
                orders.append(order)
                await asyncio.sleep(0.1)

            task = it.broker.register_task(work, "shop:named")
            for order in ("1", "2", "3"):
                await task.kicker().with_task_id("same").kiq(order)
            await it.cluster.advance(seconds=20)
            assert sorted(orders[:3]) == ["1", "2", "3"]
            assert orders[3:] == [orders[1]]

    simulate(main)


@pytest.mark.parametrize(
    ("label", "delay_ms"),
    [
        ("1", 1_000),
        ("1.0", 1_000),
        ("0.001", 1),
        ("0.0001", 1),
        ("1.0000001", 1_000),
        ("1.007", 1_007),
        ("1.0071", 1_008),
        ("3456000", 3_456_000_000),
        ("1e9", 1_000_000_000_000),
        (1.5, 1_500),
        (3, 3_000),
        ("0", None),
        ("-3", None),
        ("None", None),
        (None, None),
    ],
)
def test_delay_of_a_task_is_its_label_in_whole_milliseconds_rounded_up(label: object, delay_ms: int | None) -> None:
    broker = LockstepBroker("tasks", "workers")
    delay = broker._delay_of(BrokerMessage(task_id="1", task_name="none", message=b"", labels={"delay": label}))
    assert delay == (None if delay_ms is None else timedelta(milliseconds=delay_ms))


@pytest.mark.parametrize("label", ["soon", "nan", "inf", "1e300", "True"])
def test_delay_that_is_no_number_is_refused(label: str) -> None:
    broker = LockstepBroker("tasks", "workers")
    with pytest.raises(LocalProtocolError, match=f"task none: label delay is '{label}', expected seconds"):
        broker._delay_of(BrokerMessage(task_id="1", task_name="none", message=b"", labels={"delay": label}))


def test_delay_that_the_brokers_do_not_allow_is_refused_with_their_limit() -> None:
    async def main() -> None:
        async with shop() as it:
            with pytest.raises(SendTaskError) as raised:
                await it.task(delay=TOO_LONG_S).kiq("1")
            assert isinstance(raised.value.__cause__, MessageIllegalError)
            assert "at most 40 (timer_days_max)" in str(raised.value.__cause__)

    simulate(main)


def test_shutdown_cancels_a_start_of_the_consumer() -> None:
    async def main() -> None:
        async with TestCluster() as cluster:
            broker = LockstepBroker("tasks", "workers", cluster.nameserver)
            await broker.startup()
            await cluster.pause("nameserver-1")
            tasks = broker.listen()
            first = asyncio.ensure_future(anext(tasks))
            await asyncio.sleep(0.1)
            assert broker.consumer.state.value == "starting"
            await broker.shutdown()
            assert broker.producer.health().state.value == "closed"
            with pytest.raises(asyncio.CancelledError):
                await first

    simulate(main)
