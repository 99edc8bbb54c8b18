"""examples/: each one runs against `lockstep up` and prints what its page promises."""

import os
import re
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

import pytest

from support.processes import clean_environment, program

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LIMIT_S = 120
TOLD = {
    "ledger.py": [r"\d+ payments booked, each once, every account in order: worker-1, worker-2"],
    "shop.py": [
        "10 orders shipped, each in order",
        "10 customers mailed, 30 steps audited",
    ],
    "dead_letters.py": [
        "nobody@nowhere fails, retry 0",
        "nobody@nowhere fails, retry 1",
        "given up after 2 attempts: the listener returned RECONSUME_LATER",
        "dead letter: nobody@nowhere from mails because the listener returned RECONSUME_LATER",
        "mailed to nobody@nowhere",
        "handed out again: 1",
    ],
}
ELSEWHERE = {"inconsistent_subscription.py", "test_shop.py"}
"""tests/e2e/test_contract.py runs the former, scripts/wheel the latter."""


@pytest.mark.parametrize("name", TOLD)
def test_example_prints_what_its_page_promises(name: str, tmp_path: Path) -> None:
    with program("lockstep.cli.main", "up", "--port", "0", "--store", str(tmp_path / "store"), event="up.started") as laptop:
        path = f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}"
        environment = clean_environment(LOCKSTEP_NAMESERVER=laptop.started["nameserver"], PATH=path, TMPDIR=str(tmp_path))
        command = [sys.executable, str(EXAMPLES / name)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    for line, pattern in zip_longest(done.stdout.splitlines(), TOLD[name], fillvalue=""):
        assert re.fullmatch(pattern, line)


def test_every_example_is_run_by_a_test() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == TOLD.keys() | ELSEWHERE
