"""Tasks have an owner, and a daemon stops its service in order and logs the reason."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from lockstep.protocol.errors import ConfigError, StoreError
from lockstep.runtime.configuration.config import LoadedSettings, Settings
from lockstep.runtime.daemon import Daemon, Tasks, describe, exit_code_of
from lockstep.runtime.server_main import run_program
from support.loops import turns


class DiskFailedError(StoreError):
    exit_code = 3


class Scripted:
    """A service that records its calls and runs its hooks."""

    def __init__(self) -> None:
        self.on_fatal: Callable[[BaseException], None] | None = None
        self.on_hangup: Callable[[], None] | None = None
        self.events: list[str] = []
        self.started = asyncio.Event()
        self.in_start: Callable[[], None] = lambda: None
        self.hang_in_start = False
        self.hang_in_stop = False
        self.stop_error: Exception | None = None

    async def start(self) -> None:
        self.events.append("start")
        try:
            self.in_start()
            if self.hang_in_start:
                self.started.set()
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.events.append("start cancelled")
            raise
        self.events.append("started")
        self.started.set()

    async def stop(self) -> None:
        self.events.append("stop")
        if self.stop_error is not None:
            raise self.stop_error
        if self.hang_in_stop:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.events.append("stop cancelled")
                raise
        self.events.append("stopped")


async def run(service: Scripted, *numbers: signal.Signals, stop_ms: int = 10_000) -> int:
    """Run the service and send it the signals once it has started, a few turns apart. Return the exit code."""
    serving = asyncio.get_running_loop().create_task(Daemon("prog", stop_ms=stop_ms).serve(service))
    for number in numbers:
        await service.started.wait()
        await turns(10)
        os.kill(os.getpid(), number)
        await turns(10)
    return await serving


@pytest.mark.both_loops
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_stops_the_service_and_exits_0(number: signal.Signals) -> None:
    service = Scripted()
    assert await run(service, number) == 0
    assert service.events == ["start", "started", "stop", "stopped"]


@pytest.mark.both_loops
async def test_signal_during_start_cancels_it_and_stops_the_service() -> None:
    service = Scripted()
    service.hang_in_start = True
    assert await run(service, signal.SIGTERM) == 0
    assert service.events == ["start", "start cancelled", "stop", "stopped"]


async def test_start_error_is_printed_as_one_line_and_sets_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse() -> None:
        raise DiskFailedError("write to /store/x failed: no space left on device")

    service = Scripted()
    service.in_start = refuse
    assert await run(service) == 3
    assert service.events == ["start", "stop", "stopped"]
    assert capsys.readouterr().err == "prog: write to /store/x failed: no space left on device\n"


@pytest.mark.parametrize(("out", "err", "reported"), [(True, True, 0), (True, False, 1), (False, True, 1), (False, False, 1)])
async def test_start_error_is_not_logged_if_stdout_and_stderr_are_terminals(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    out: bool,
    err: bool,
    reported: int,
) -> None:
    def refuse() -> None:
        raise ConfigError("no")

    monkeypatch.setattr(sys.stdout, "isatty", lambda: out)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: err)
    service = Scripted()
    service.in_start = refuse
    await run(service)
    assert capsys.readouterr().err == "prog: no\n"
    assert caplog.text.count("daemon.failed") == reported


async def test_fatal_error_stops_the_service_with_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    service = Scripted()
    loop = asyncio.get_running_loop()

    def later() -> None:
        assert service.on_fatal is not None
        service.on_fatal(DiskFailedError("fsync failed"))
        service.on_fatal(ConfigError("a later one changes nothing"))

    service.in_start = lambda: loop.call_soon(later) and None
    assert await run(service) == 3
    assert service.events == ["start", "started", "stop", "stopped"]
    assert capsys.readouterr().err == "prog: fsync failed\n"


async def test_unexpected_error_exits_1_and_is_printed_with_its_type(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise KeyError("topic")

    service = Scripted()
    service.in_start = fail
    assert await run(service) == 1
    assert capsys.readouterr().err == "prog: KeyError: 'topic'\n"


async def test_stop_past_its_time_limit_is_abandoned() -> None:
    service = Scripted()
    service.hang_in_stop = True
    assert await run(service, signal.SIGTERM, stop_ms=20) == 1
    assert service.events[-1] == "stop cancelled"


async def test_second_signal_abandons_the_stop() -> None:
    service = Scripted()
    service.hang_in_stop = True
    assert await run(service, signal.SIGTERM, signal.SIGINT) == 1
    assert service.events[-1] == "stop cancelled"


async def test_failed_stop_is_logged_and_exits_1(caplog: pytest.LogCaptureFixture) -> None:
    service = Scripted()
    service.stop_error = DiskFailedError("close failed")
    assert await run(service, signal.SIGTERM) == 1
    assert any(record.message.startswith("stop.failed error=close failed") for record in caplog.records)


async def test_signal_handlers_are_restored_afterwards() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    service = Scripted()
    service.on_hangup = lambda: None
    await run(service, signal.SIGTERM)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before


@pytest.mark.both_loops
async def test_hangup_is_for_the_service_which_goes_on() -> None:
    service = Scripted()
    service.on_hangup = lambda: service.events.append("hangup")
    assert await run(service, signal.SIGHUP, signal.SIGHUP, signal.SIGTERM) == 0
    assert service.events == ["start", "started", "hangup", "hangup", "stop", "stopped"]


async def test_unhandled_loop_error_is_logged_and_does_not_stop_the_process(caplog: pytest.LogCaptureFixture) -> None:
    service = Scripted()
    loop = asyncio.get_running_loop()
    service.in_start = lambda: loop.call_soon(lambda: 1 / 0) and None
    assert await run(service, signal.SIGTERM) == 0
    assert any(record.message.startswith("loop.failed") and "ZeroDivisionError" in record.message for record in caplog.records)


def test_daemon_runs_its_own_loop_with_uvloop_if_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Quick:
        on_fatal: Callable[[BaseException], None] | None = None
        on_hangup: Callable[[], None] | None = None
        loop = ""

        async def start(self) -> None:
            self.loop = type(asyncio.get_running_loop()).__module__
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)

        async def stop(self) -> None: ...

    quick = Quick()
    assert Daemon("prog").run(quick) == 0
    assert quick.loop.startswith("uvloop")
    monkeypatch.setitem(__import__("sys").modules, "uvloop", None)
    assert Daemon("prog").run(quick) == 0
    assert quick.loop.startswith("asyncio"), "where uvloop is not installed"


def test_exit_code_and_text_are_taken_from_the_error() -> None:
    assert exit_code_of(DiskFailedError("x")) == 3
    assert exit_code_of(ValueError("x")) == 1
    assert describe(DiskFailedError("what happened")) == "what happened"
    assert describe(DiskFailedError()) == "DiskFailedError"
    assert describe(ValueError("x")) == "ValueError: x"


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    name: str = "x"


def test_invalid_setting_is_printed_as_one_line_and_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    def never(loaded: LoadedSettings[Config]) -> Scripted:
        raise AssertionError("made although the settings are refused")

    assert run_program("prog", Config, never, ["--nmae", "x"]) == 2
    assert capsys.readouterr().err == "prog: unknown argument '--nmae'; did you mean '--name'?\n"


@pytest.mark.usefixtures("logging_as_it_was")
def test_error_while_creating_the_service_is_printed_as_one_line_and_sets_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(loaded: LoadedSettings[Config]) -> Scripted:
        raise DiskFailedError(f"no store for {loaded.config.name}")

    assert run_program("prog", Config, refuse, ["--name", "y"]) == 3
    assert capsys.readouterr().err == "prog: no store for y\n"


# ------------------------------------------------------------------------------------------------------------------- tasks


async def forever() -> None:
    await asyncio.Event().wait()


async def fail(error: Exception) -> None:
    raise error


async def test_first_task_failure_is_reported_and_every_one_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    reported: list[BaseException] = []
    tasks = Tasks(reported.append)
    first, second = ValueError("first"), ValueError("second")
    tasks.spawn(fail(first), "one")
    tasks.spawn(fail(second), "two")
    await turns(5)
    assert reported == [first]
    assert tasks.failure is first
    assert [record.message.split()[1] for record in caplog.records if record.message.startswith("task.failed")] == ["task=one", "task=two"]
    assert len(tasks) == 0


async def test_cancel_all_cancels_in_reverse_order_and_waits_for_each_task() -> None:
    ended: list[str] = []

    async def work(name: str) -> None:
        try:
            await forever()
        finally:
            await turns(3)
            ended.append(name)

    tasks = Tasks()
    for name in "abc":
        tasks.spawn(work(name), name)
    await turns(2)
    await tasks.cancel_all()
    assert ended == ["c", "b", "a"]
    assert len(tasks) == 0


async def test_cancelled_task_is_not_a_failure() -> None:
    reported: list[BaseException] = []
    tasks = Tasks(reported.append)
    tasks.spawn(forever(), "x")
    await tasks.cancel_all()
    assert reported == []


async def test_cancel_all_waits_for_a_task_that_catches_its_cancellation() -> None:
    async def stubborn() -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            await turns(5)

    tasks = Tasks()
    task = tasks.spawn(stubborn(), "x")
    await turns(1)
    await tasks.cancel_all()
    assert task.done()


async def test_task_can_cancel_the_other_tasks_of_its_owner() -> None:
    tasks = Tasks()
    other = tasks.spawn(forever(), "other")
    closer = tasks.spawn(tasks.cancel_all(), "closer")
    await closer
    assert other.cancelled()


async def test_task_spawned_during_cancellation_is_cancelled_too() -> None:
    tasks = Tasks()

    async def parent() -> None:
        try:
            await forever()
        finally:
            tasks.spawn(forever(), "child")

    tasks.spawn(parent(), "parent")
    await turns(1)
    await tasks.cancel_all()
    assert len(tasks) == 0
