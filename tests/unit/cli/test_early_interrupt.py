"""SIGINT ends a command at any time after its first line, even if SIGINT was ignored when the command was started."""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from lockstep.cli import interrupt
from lockstep.cli.early_signal import EarlySignal
from lockstep.cli.interrupt import CommandInterruptedError, run_interruptible
from support.processes import clean_environment

HANDLED_SINCE = "lockstep.cli.servers"
"""The handler is set before the import that follows this one."""
MOMENTS = 8
ENDED = (0, 130, -signal.SIGINT)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """An address at which a command connects and receives no response."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def tail(address: str, *, ignored: bool) -> "subprocess.Popen[str]":
    """Start `lockstep tail`, which writes a line for each module that is imported and would wait for a response forever."""
    start = ["/bin/sh", "-c", "trap '' INT; exec \"$@\"", "sh"] if ignored else []
    command = [sys.executable, "-X", "importtime", "-m", "lockstep.cli.main", "tail", "t", "--nameserver", ";".join([address] * 20)]
    return subprocess.Popen([*start, *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=clean_environment())


@pytest.fixture(scope="module")
def imported(address: str) -> list[str]:
    """Return the modules in the order in which an uninterrupted command imports them."""
    process = tail(address, ignored=False)
    assert process.stderr is not None
    names = []
    for line in process.stderr:
        names.append(line.rpartition("|")[2].strip())
        if names[-1] == "lockstep.cli.app":
            break
    process.kill()
    process.communicate()
    return names


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("moment", range(MOMENTS))
def test_signal_during_the_imports_of_a_command_ends_it(address: str, imported: list[str], moment: int, ignored: bool) -> None:
    handled = imported.index(HANDLED_SINCE) + 2
    first = handled if ignored else 0
    at = first + (len(imported) - first) * moment // (MOMENTS - 1)
    process = tail(address, ignored=ignored)
    try:
        assert process.stderr is not None
        for _ in range(at):
            process.stderr.readline()
        process.send_signal(signal.SIGINT)
        lines = []
        if at < handled:
            # The interpreter may lose a signal before the first line of the command. Then the next one ends it.
            for line in process.stderr:
                lines.append(line)
                if len(lines) == handled - at:
                    process.send_signal(signal.SIGINT)
                    break
        _, rest = process.communicate(timeout=60)
        said = "".join(lines) + rest
        # While the interpreter starts, before the first line of the command, Python itself exits with a traceback.
        assert process.returncode in ENDED or (not ignored and "KeyboardInterrupt" in said), (process.returncode, said[-500:])
    finally:
        process.kill()
        process.communicate()


def test_signal_swallowed_by_an_import_ends_the_command_before_it_starts() -> None:
    early = EarlySignal()
    before = early.install()
    began = []

    async def work() -> None:
        began.append(1)

    try:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(CommandInterruptedError):
            run_interruptible(work(), exit_code=1)
    finally:
        early.restore(before)
    assert (began, signal.getsignal(signal.SIGINT)) == ([], before)


def test_signal_between_the_installation_of_two_handlers_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    set_handler: Callable[..., object] = signal.signal
    raised = []

    def set_late(number: int, handler: object) -> object:
        if not raised and getattr(handler, "__name__", "") == "_on_signal":
            raised.append(1)
            signal.raise_signal(number)
        return set_handler(number, handler)

    monkeypatch.setattr(interrupt.signal, "signal", set_late)
    with pytest.raises(CommandInterruptedError):
        run_interruptible(asyncio.sleep(0.1), exit_code=1)
    assert raised


def test_second_signal_while_a_command_is_loaded_ends_the_process() -> None:
    script = "import signal\nfrom lockstep.cli.early_signal import EarlySignal\nEarlySignal().install()\n"
    twice = "for _ in range(2):\n    try:\n        signal.raise_signal(signal.SIGINT)\n    except KeyboardInterrupt:\n        pass\n"
    ended = subprocess.run([sys.executable, "-c", script + twice], env=clean_environment(), timeout=60, check=False)
    assert ended.returncode == 130
