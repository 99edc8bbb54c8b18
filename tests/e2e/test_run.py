"""`lockstep.client.run`: consumers as a process that stops cleanly on a signal, and with the error that ended it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.processes import LIMIT_S, clean_environment, program, run_program

pytestmark = pytest.mark.e2e

CLI = "lockstep.cli.main"
TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture
def nameserver(tmp_path: Path) -> Iterator[str]:
    with program(CLI, "up", "--port", "0", "--store", str(tmp_path / "store"), event="up.started") as laptop:
        yield str(laptop.started["nameserver"])


def lockstep(nameserver: str, *arguments: str) -> str:
    done = run_program(CLI, *arguments, environment=clean_environment(LOCKSTEP_NAMESERVER=nameserver))
    assert done.returncode == 0, done
    return done.stdout


def group(nameserver: str, name: str) -> dict[str, Any]:
    shown = json.loads(lockstep(nameserver, "group", "show", name, "--json"))
    assert isinstance(shown, dict)
    return shown


@contextmanager
def service(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-m", "support.worker_service", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(PYTHONPATH=os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def events_until(process: "subprocess.Popen[str]", event: str, times: int = 1) -> list[dict[str, Any]]:
    """Return its events until this one has occurred `times` times."""
    lines: list[dict[str, Any]] = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(json.loads(line))
        times -= lines[-1]["event"] == event
        if not times:
            return lines
    raise AssertionError(f"it ended before {event}: {lines}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_lets_running_listeners_finish_and_leaves_the_groups(nameserver: str, number: signal.Signals) -> None:
    lockstep(nameserver, "send", "jobs", "wait")
    with service(nameserver, "first", "second") as process:
        begun = events_until(process, "begun", times=2)
        process.send_signal(number)
        rest = events_until(process, "returned")
        assert process.wait(LIMIT_S) == 0
    assert begun[0] == {"event": "database.opened", "loop": "uvloop"}
    assert [line["event"] for line in rest] == ["done", "done", "database.closed", "returned"], "the producer outlived both consumers"
    for name in ("first", "second"):
        shown = group(nameserver, name)
        assert (shown["members"], shown["lag"]) == ([], 0), "left, and what was done is committed"
        assert not any(queue["owner"] for queue in shown["queues"])


@pytest.mark.parametrize("other", [[], ["first"]], ids=["alone", "with a push consumer"])
def test_pull_consumer_runs_until_a_signal(nameserver: str, other: list[str]) -> None:
    lockstep(nameserver, "send", "jobs", "wait")
    with service(nameserver, "pull", *other) as process:
        begun = events_until(process, "polled")
        assert begun[-1]["body"] == "wait"
        process.send_signal(signal.SIGTERM)
        rest = events_until(process, "returned")
        assert process.wait(LIMIT_S) == 0
    assert [line for line in rest if line["event"] == "poll.ended"] == [{"event": "poll.ended", "error": "NoneType"}]
    shown = group(nameserver, "pull")
    assert (shown["members"], shown["lag"]) == ([], 0), "it left, and what it had polled before is committed"


def test_listener_that_exits_ends_the_process_with_its_code(nameserver: str) -> None:
    with service(nameserver, "leaver") as process:
        lockstep(nameserver, "send", "jobs", "exit")
        events_until(process, "database.closed")
        assert process.wait(LIMIT_S) == 3
    shown = group(nameserver, "leaver")
    assert (shown["members"], shown["lag"]) == ([], 1), "left, and the message is not handled"
    assert max(queue["attempts"] for queue in shown["queues"]) == 1


def test_second_signal_ends_a_blocked_loop_at_once(nameserver: str) -> None:
    with service(nameserver, "blocked") as process:
        lockstep(nameserver, "send", "jobs", "block")
        events_until(process, "begun")
        process.send_signal(signal.SIGTERM)
        events_until(process, "signalled")
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == -signal.SIGTERM


def test_error_during_the_start_of_a_service_is_raised(tmp_path: Path) -> None:
    with service("127.0.0.1:1", "nobody") as process:
        assert [line["event"] for line in events_until(process, "database.closed")] == ["database.opened", "database.closed"]
        assert process.wait(LIMIT_S) == 1
