"""Delayed tasks that are taken back."""

import pytest

pytest.importorskip("taskiq")

from lockstep.client import LocalProtocolError
from lockstep.taskiq import broker as broker_module
from lockstep.testing import simulate
from unit.taskiq.test_retries import shop


def test_cancelled_task_never_runs_and_others_do() -> None:
    async def main() -> None:
        async with shop() as at, at.worker():
            task = at.task()
            cancelled, kept = [await task.kicker().with_labels(delay=5).kiq("a") for _ in range(2)]
            assert [await at.broker.cancel(cancelled.task_id) for _ in range(2)] == [True, True]
            await at.cluster.advance(seconds=20)
            assert at.waits == [5]
            assert not await at.broker.cancel(kept.task_id)

    simulate(main)


def test_task_without_a_delay_can_not_be_cancelled() -> None:
    async def main() -> None:
        async with shop() as at:
            sent = await at.task().kiq("a")
            assert at.broker.recall_handle(sent.task_id) is None
            with pytest.raises(LocalProtocolError, match=f"{sent.task_id} was not sent with a delay by this object: .*timer recall --key"):
                await at.broker.cancel(sent.task_id)

    simulate(main)


def test_handle_takes_back_a_task_in_another_process_and_only_the_last_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "HANDLES_MAX", 2)

    async def main() -> None:
        async with shop() as at, at.worker():
            task = at.task()
            sent = [await task.kicker().with_labels(delay=5).kiq("a") for _ in range(3)]
            handles = [at.broker.recall_handle(each.task_id) for each in sent]
            assert handles[0] is None
            assert handles[2] is not None
            await at.broker.producer.recall(handles[2])
            await at.cluster.advance(seconds=20)
            assert at.waits == [5, 0]

    simulate(main)
