"""The nameserver as a process."""

import json
import signal
import socket

import pytest

from support.processes import clean_environment, program, run_program

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("forked_programs")]

NAMESERVER = "lockstep.nameserver"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_process_logs_its_bound_address_and_a_signal_ends_it_with_0(number: signal.Signals) -> None:
    with program(NAMESERVER, "--listen", "127.0.0.1:0", event="nameserver.started") as running:
        host, _, port = running.started["address"].rpartition(":")
        socket.create_connection((host, int(port)), timeout=5).close()
        assert running.started["listeners"] == {"internal": running.started["address"]}
        assert running.stop(number) == 0


def test_taken_port_prints_one_line_and_exits_with_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = run_program(NAMESERVER, "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert "can't listen on 127.0.0.1:" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--listen", "0.0.0.0:0"), ("--insecure", "`lockstep security init DIRECTORY`", "`lockstep user add NAME --security FILE`")),
        (("--listen", "nowhere"), ("nowhere", "HOST:PORT")),
        (("--listen", "a=127.0.0.1:0", "--listen", "a=127.0.0.1:0"), ("twice",)),
    ],
)
def test_invalid_settings_print_one_line_and_exit_with_2(arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    ended = run_program(NAMESERVER, *arguments)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    for word in words:
        assert word in ended.stderr


def test_public_address_is_allowed_with_insecure() -> None:
    with program(NAMESERVER, "--listen", "0.0.0.0:0", "--insecure", event="settings.insecure") as running:
        assert (running.started["level"], running.started["insecure"]) == ("warning", True)
        assert "need not require TLS or logins" in running.started["means"]
        assert running.process.stdout is not None
        assert json.loads(next(running.process.stdout))["event"] == "nameserver.started"
        assert running.stop() == 0


def test_environment_sets_options_that_are_not_given() -> None:
    environment = clean_environment(LOCKSTEP_LISTEN="one=127.0.0.1:0,two=127.0.0.1:0")
    with program(NAMESERVER, event="nameserver.started", environment=environment) as running:
        assert list(running.started["listeners"]) == ["one", "two"]
        assert running.started["address"] == running.started["listeners"]["one"]
