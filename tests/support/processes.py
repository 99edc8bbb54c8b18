"""Programs as processes: ready once their started event is on stdout, stopped by a signal."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT_S = 180.0
"""The time limit of every wait. It only ends what would hang: beside other work a machine may take long. No test asserts a duration."""


@dataclass
class Program:
    process: "subprocess.Popen[str]"
    started: dict[str, Any]
    """The event that reported that it is ready."""

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send the signal. Return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(LIMIT_S)


def clean_environment(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")} | more


@contextmanager
def program(*arguments: str, event: str, environment: Mapping[str, str] | None = None, directory: Path | None = None) -> Iterator[Program]:
    """Run `python -m arguments…` and wait for `event` on its stdout. It is killed at the end if the test did not stop it."""
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(environment or clean_environment()),
        cwd=directory,
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            reported = json.loads(line)
            if reported["event"] == event:
                yield Program(process, reported)
                return
        raise AssertionError(f"{arguments} ended with {process.wait(LIMIT_S)} before {event}: {process.stderr.read()}")
    finally:
        process.kill()
        process.communicate()


async def completed(
    *command: str, environment: Mapping[str, str] | None = None, directory: Path | None = None, limit_s: float = LIMIT_S
) -> tuple[int | None, str, str]:
    """Run a command to its end without blocking the event loop. Return (exit code, standard output, standard error).

    The command is killed and reaped if the limit passes or the caller is cancelled.
    """
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*command, env=environment, cwd=directory, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(limit_s):
            out, error = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
            await child.communicate()
    return child.returncode, out.decode(errors="replace"), error.decode(errors="replace")


def run_program(
    *arguments: str, environment: Mapping[str, str] | None = None, limit_s: float = LIMIT_S
) -> "subprocess.CompletedProcess[str]":
    """Run `python -m arguments…` to its end."""
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        capture_output=True,
        text=True,
        timeout=limit_s,
        env=dict(environment or clean_environment()),
        check=False,
    )
