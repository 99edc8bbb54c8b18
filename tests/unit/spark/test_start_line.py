"""The tasks of a paced load begin their schedule together, when all of them run."""

from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("pyspark")

from lockstep.protocol.errors import TransportError
from lockstep.runtime.loop_thread import LoopThread
from lockstep.spark import start_line
from lockstep.spark.start_line import StartLine, started


def test_every_task_gets_the_start_that_is_fixed_when_the_last_one_has_come() -> None:
    begun: list[int] = []

    def begin() -> int:
        begun.append(1)
        return 1_700_000_000_000_000

    line = StartLine("127.0.0.1", 3, begin)
    thread = LoopThread("start", line.serve)
    thread.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            first = [pool.submit(started, line.address, task) for task in (0, 1)]
            again = pool.submit(started.__wrapped__, line.address, 1)
            while len(line._tasks) < 2:
                assert not any(each.done() for each in (*first, again))
            assert begun == [], "a task that comes twice counts once"
            last = pool.submit(started, line.address, 2)
            assert {each.result(30) for each in (*first, again, last)} == {1_700_000_000_000_000}
            assert pool.submit(started, line.address, 7).result(30) == 1_700_000_000_000_000, "a repeated task"
        assert begun == [1]
    finally:
        thread.close()


def test_load_begins_without_tasks_that_never_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_line, "WAIT_S", 0.01)
    line = StartLine("127.0.0.1", 2, lambda: 5)
    thread = LoopThread("start", line.serve)
    thread.start()
    try:
        assert started(line.address, 0) == 5
    finally:
        thread.close()


def test_driver_that_is_gone_is_named() -> None:
    with pytest.raises(TransportError, match=r"127\.0\.0\.1:1 can't be reached.*spark\.driver\.host"):
        started(("127.0.0.1", 1), 0)
