"""SIGINT ends a command, regardless of the state in which it was started and of the call in which it waits."""

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import pytest

from lockstep.cli.interrupt import CommandInterruptedError, run_interruptible
from support.processes import clean_environment

HEAD = """
import asyncio, os, signal, sys, time
import typer
from lockstep.cli import options

def run(*work, **how):
    try:
        options.run(*work, **how)
    except typer.Exit as ended:
        sys.exit(ended.exit_code)

async def rest():
    print("ready", flush=True)
    await asyncio.sleep(3600)

async def stubborn():
    while True:
        try:
            await rest()
        except asyncio.CancelledError:
            print("cancelled", flush=True)

async def writes():
    print("ready", flush=True)
    print("x" * (1 << 24), flush=True)

async def looks_up():
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 3600)
    await rest()

async def busy():
    print("ready", flush=True)
    while True:
        pass
"""


@contextmanager
def command(work: str, *, ignored: bool = False) -> Iterator["subprocess.Popen[str]"]:
    """Start a process that runs `work`; with `ignored` it starts with SIGINT ignored, as in the background of a shell script."""
    code = f"{HEAD}\n{work}"
    start = ["/bin/sh", "-c", "trap '' INT; exec \"$@\"", "sh"] if ignored else []
    process = subprocess.Popen(
        [*start, sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment()
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def until_it_hangs(process: "subprocess.Popen[str]", work: str) -> None:
    """Wait until the process has started; one that writes has filled the pipe."""
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    full = fcntl.fcntl(process.stdout, fcntl.F_GETPIPE_SZ)
    while work == "writes" and unread_bytes(process.stdout) < full:
        os.sched_yield()


def unread_bytes(pipe: IO[str]) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


@pytest.mark.parametrize("ignored", [False, True])
def test_sigint_ends_a_command_with_its_code_even_if_ignored_at_first(ignored: bool) -> None:
    with command("run(rest())", ignored=ignored) as process:
        until_it_hangs(process, "rest")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize("work", ["writes", "looks_up", "stubborn", "busy"])
def test_time_limit_ends_a_command_that_hangs_after_a_signal(work: str) -> None:
    """It may hang in a write to a pipe without a reader, a thread that does not return, work that can't be cancelled or never awaits."""
    with command(f"run({work}(), interrupted=7, end_s=0.2)") as process:
        until_it_hangs(process, work)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 7


@pytest.mark.parametrize("work", ["writes", "looks_up", "stubborn", "busy"])
def test_second_signal_ends_a_command_at_once(work: str) -> None:
    with command(f"run({work}(), interrupted=7)") as process:
        until_it_hangs(process, work)
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)  # long enough for the first one to be handled: two at once would be one
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 7


def test_previous_handler_is_restored() -> None:
    before = signal.getsignal(signal.SIGINT)

    async def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(3_600)

    with pytest.raises(CommandInterruptedError):
        run_interruptible(interrupted(), exit_code=1)
    assert signal.getsignal(signal.SIGINT) is before
    run_interruptible(asyncio.sleep(0), exit_code=1, end_s=3_600)


def test_cancellation_without_a_signal_stays_a_cancellation() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_interruptible(cancelled(), exit_code=1)


def test_run_interruptible_in_another_thread_is_an_ordinary_run() -> None:
    ran: list[int] = []

    async def work() -> None:
        ran.append(1)

    thread = threading.Thread(target=lambda: run_interruptible(work(), exit_code=1))
    thread.start()
    thread.join()
    assert ran == [1]
