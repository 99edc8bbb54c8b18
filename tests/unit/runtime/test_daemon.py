"""Tasks have an owner; a service in a process ends in order and logs the reason."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable

import pytest

from lockstep.protocol.errors import ConfigError, StoreError
from lockstep.runtime.config import Settings
from lockstep.runtime.daemon import Daemon, Tasks, describe, exit_code_of
from lockstep.runtime.server_main import run_program
from support.loops import turns


class DiskFailedError(StoreError):
    exit_code = 3


class Scripted:
    """A service that records its calls and runs its hooks."""

    def __init__(self) -> None:
        self.on_fatal: Callable[[BaseException], None] | None = None
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
    """Runs the service and sends it the signals once it has started, a few turns apart. The exit code."""
    serving = asyncio.get_running_loop().create_task(Daemon("prog", stop_ms=stop_ms).serve(service))
    for number in numbers:
        await service.started.wait()
        await turns(10)
        os.kill(os.getpid(), number)
        await turns(10)
    return await serving


@pytest.mark.both_loops
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_in_order_and_exits_zero(number: signal.Signals) -> None:
    service = Scripted()
    assert await run(service, number) == 0
    assert service.events == ["start", "started", "stop", "stopped"]


@pytest.mark.both_loops
async def test_a_signal_during_the_start_cancels_it_and_still_stops_in_order() -> None:
    service = Scripted()
    service.hang_in_start = True
    assert await run(service, signal.SIGTERM) == 0
    assert service.events == ["start", "start cancelled", "stop", "stopped"]


async def test_what_keeps_it_from_starting_is_one_line_and_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse() -> None:
        raise DiskFailedError("write to /store/x failed: no space left on device")

    service = Scripted()
    service.in_start = refuse
    assert await run(service) == 3
    assert service.events == ["start", "stop", "stopped"]
    assert capsys.readouterr().err == "prog: write to /store/x failed: no space left on device\n"


@pytest.mark.parametrize(("out", "err", "told"), [(True, True, 0), (True, False, 1), (False, True, 1), (False, False, 1)])
async def test_on_a_terminal_that_shows_both_it_is_told_by_the_line_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, out: bool, err: bool, told: int
) -> None:
    def refuse() -> None:
        raise ConfigError("no")

    monkeypatch.setattr(sys.stdout, "isatty", lambda: out)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: err)
    service = Scripted()
    service.in_start = refuse
    await run(service)
    assert capsys.readouterr().err == "prog: no\n"
    assert caplog.text.count("daemon.failed") == told


async def test_what_makes_going_on_impossible_stops_in_order_with_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
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


async def test_an_error_of_another_kind_exits_one_and_is_named_by_type(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise KeyError("topic")

    service = Scripted()
    service.in_start = fail
    assert await run(service) == 1
    assert capsys.readouterr().err == "prog: KeyError: 'topic'\n"


async def test_a_stop_that_takes_too_long_is_abandoned() -> None:
    service = Scripted()
    service.hang_in_stop = True
    assert await run(service, signal.SIGTERM, stop_ms=20) == 1
    assert service.events[-1] == "stop cancelled"


async def test_a_second_signal_abandons_the_stop() -> None:
    service = Scripted()
    service.hang_in_stop = True
    assert await run(service, signal.SIGTERM, signal.SIGINT) == 1
    assert service.events[-1] == "stop cancelled"


async def test_a_stop_that_fails_is_logged_and_exits_one(caplog: pytest.LogCaptureFixture) -> None:
    service = Scripted()
    service.stop_error = DiskFailedError("close failed")
    assert await run(service, signal.SIGTERM) == 1
    assert any(record.message.startswith("stop.failed error=close failed") for record in caplog.records)


async def test_signals_have_their_old_meaning_again_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    await run(Scripted(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


async def test_an_unhandled_loop_error_is_logged_and_does_not_stop_the_process(caplog: pytest.LogCaptureFixture) -> None:
    service = Scripted()
    loop = asyncio.get_running_loop()
    service.in_start = lambda: loop.call_soon(lambda: 1 / 0) and None
    assert await run(service, signal.SIGTERM) == 0
    assert any(record.message.startswith("loop.failed") and "ZeroDivisionError" in record.message for record in caplog.records)


def test_a_daemon_runs_a_loop_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Quick:
        on_fatal: Callable[[BaseException], None] | None = None
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


def test_an_error_carries_its_exit_code() -> None:
    assert exit_code_of(DiskFailedError("x")) == 3
    assert exit_code_of(ValueError("x")) == 1
    assert describe(DiskFailedError("what happened")) == "what happened"
    assert describe(DiskFailedError()) == "DiskFailedError: "


class Config(Settings):
    name: str = "x"


def test_a_program_with_a_setting_that_can_not_be_is_one_line_and_exit_two(capsys: pytest.CaptureFixture[str]) -> None:
    def never(config: Config) -> Scripted:
        raise AssertionError("made although the settings are refused")

    assert run_program("prog", Config, never, ["--nmae", "x"]) == 2
    assert capsys.readouterr().err == "prog: unknown argument '--nmae'; did you mean '--name'?\n"


@pytest.mark.usefixtures("logging_as_it_was")
def test_a_service_that_can_not_be_made_is_one_line_and_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(config: Config) -> Scripted:
        raise DiskFailedError(f"no store for {config.name}")

    assert run_program("prog", Config, refuse, ["--name", "y"]) == 3
    assert capsys.readouterr().err == "prog: no store for y\n"


# ------------------------------------------------------------------------------------------------------------------- tasks


async def forever() -> None:
    await asyncio.Event().wait()


async def fail(error: Exception) -> None:
    raise error


async def test_the_first_failure_is_reported_and_every_one_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    told: list[BaseException] = []
    tasks = Tasks(told.append)
    first, second = ValueError("first"), ValueError("second")
    tasks.spawn(fail(first), "one")
    tasks.spawn(fail(second), "two")
    await turns(5)
    assert told == [first]
    assert tasks.failure is first
    assert [record.message.split()[1] for record in caplog.records if record.message.startswith("task.failed")] == ["task=one", "task=two"]
    assert len(tasks) == 0


async def test_cancelling_goes_from_the_latest_to_the_first_and_waits_for_each() -> None:
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


async def test_a_cancelled_task_is_no_failure() -> None:
    told: list[BaseException] = []
    tasks = Tasks(told.append)
    tasks.spawn(forever(), "x")
    await tasks.cancel_all()
    assert told == []


async def test_a_task_that_ignores_its_cancellation_once_is_waited_for() -> None:
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


async def test_a_task_may_cancel_the_others_of_its_owner() -> None:
    tasks = Tasks()
    other = tasks.spawn(forever(), "other")
    closer = tasks.spawn(tasks.cancel_all(), "closer")
    await closer
    assert other.cancelled()


async def test_what_a_task_spawns_while_it_is_cancelled_is_cancelled_too() -> None:
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
