"""A port that one worker's test has chosen is not free to others, until that test ends."""

import os
import subprocess
import sys
from pathlib import Path

from support.ports import claims_of_a_test, free_ports

ASK = "import sys; from support.ports import is_free; print(is_free(int(sys.argv[1])))"
TESTS = Path(__file__).resolve().parents[2]


def free_to_another_process(port: int) -> bool:
    asked = subprocess.run(
        [sys.executable, "-c", ASK, str(port)], env={**os.environ, "PYTHONPATH": str(TESTS)}, capture_output=True, text=True, check=True
    )
    return asked.stdout.strip() == "True"


def test_port_is_claimed_until_the_end_of_the_test_that_chose_it() -> None:
    with claims_of_a_test():
        (port,) = free_ports(1)
        assert not free_to_another_process(port)
    assert free_to_another_process(port)


def test_claims_of_a_module_are_kept_at_the_end_of_a_test() -> None:
    (port,) = free_ports(1)
    with claims_of_a_test():
        pass
    assert not free_to_another_process(port)
