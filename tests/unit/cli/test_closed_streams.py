"""A command with closed standard streams does its work: no traceback, and its own exit code."""

import subprocess
import sys

import pytest

from support.processes import clean_environment

UNUSED = "127.0.0.1:1"
"""An address on which nothing listens."""


@pytest.mark.parametrize(
    ("arguments", "closed", "exit_code", "said"),
    [
        (["doctor", "--json", "-n", UNUSED], ">&-", 1, ""),
        (["doctor", "-n", UNUSED], ">&-", 1, ""),
        (["topic", "list", "-n", UNUSED], ">&- 2>&-", 1, ""),
        (["topic", "list", "-n", UNUSED], "2>&-", 1, ""),
        (["send", "orders", "-", "-n", UNUSED], "<&-", 2, "the message body length is zero"),
        (["nameserver", "--listen", "rubbish"], "<&- >&-", 2, "rubbish"),
    ],
)
def test_closed_standard_stream_does_not_change_the_exit_code(arguments: list[str], closed: str, exit_code: int, said: str) -> None:
    shell = ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "lockstep.cli.main", *arguments]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=60, env=clean_environment())
    assert (done.returncode, done.stdout) == (exit_code, ""), done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
