"""SIGINT ends a command, whatever state it was started in and whatever it waits for."""

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

from lockstep.admin.interrupt import CommandInterruptedError, run_interruptible
from support.processes import clean_environment

HEAD = """
import asyncio, os, signal, sys, time
import typer
from lockstep.admin import options

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
    """A process that runs `work`; `ignored`: it begins with SIGINT ignored, as a shell script's background."""
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
    """It has begun; what writes has filled the pipe."""
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    full = fcntl.fcntl(process.stdout, fcntl.F_GETPIPE_SZ)
    while work == "writes" and unread_bytes(process.stdout) < full:
        os.sched_yield()


def unread_bytes(pipe: IO[str]) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


@pytest.mark.parametrize("ignored", [False, True])
def test_a_command_ends_with_its_code_also_where_sigint_was_ignored_at_first(ignored: bool) -> None:
    with command("run(rest())", ignored=ignored) as process:
        until_it_hangs(process, "rest")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize("work", ["writes", "looks_up", "stubborn", "busy"])
def test_with_a_limit_it_ends_whatever_it_hangs_in(work: str) -> None:
    """A write to a pipe without a reader, a thread that does not return, work that can't be cancelled or never waits."""
    with command(f"run({work}(), interrupted=7, end_s=0.2)") as process:
        until_it_hangs(process, work)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 7


@pytest.mark.parametrize("work", ["writes", "looks_up", "stubborn", "busy"])
def test_a_second_signal_ends_it_at_once(work: str) -> None:
    with command(f"run({work}(), interrupted=7)") as process:
        until_it_hangs(process, work)
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)  # long enough for the first one to be taken: two at once would be one
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 7


def test_the_handler_of_before_is_there_again_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)

    async def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(3_600)

    with pytest.raises(CommandInterruptedError):
        run_interruptible(interrupted(), exit_code=1)
    assert signal.getsignal(signal.SIGINT) is before
    run_interruptible(asyncio.sleep(0), exit_code=1, end_s=3_600)


def test_a_cancellation_that_is_none_of_a_signal_stays_one() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_interruptible(cancelled(), exit_code=1)


def test_in_another_thread_it_is_an_ordinary_run() -> None:
    ran: list[int] = []

    async def work() -> None:
        ran.append(1)

    thread = threading.Thread(target=lambda: run_interruptible(work(), exit_code=1))
    thread.start()
    thread.join()
    assert ran == [1]
