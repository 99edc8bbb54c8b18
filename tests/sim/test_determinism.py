"""A seed determines a run completely, to the byte, in every interpreter."""

import os
import subprocess
import sys
from pathlib import Path

from support.effort import SLOW
from support.sim_run import SimRun

STORY = Path(__file__).resolve().parents[1] / "support" / "sim_run.py"


def start_run(seed: int, hash_seed: int) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen([sys.executable, str(STORY), str(seed)], env=environment, stdout=subprocess.PIPE, text=True)


def test_run_of_a_seed_is_equal_under_every_hash_seed() -> None:
    reported = [process.communicate()[0].strip() for process in [start_run(7, hash_seed) for hash_seed in ((0, 1, 2) if SLOW else (0, 1))]]
    assert len(reported[0]) == 32
    assert len(set(reported)) == 1, reported


def test_run_of_a_seed_is_repeatable_within_one_interpreter() -> None:
    first, again, other = SimRun(7), SimRun(7), SimRun(8)
    ballast = [object() for _ in range(100_003)]
    reported = first.run()
    assert reported == again.run()
    assert reported != other.run()
    del ballast
    assert first.handled == again.handled
    assert first.handled != other.handled
    assert len(first.sent) > 500
    assert {body for _, _, body in first.handled} >= {body for t, body in first.sent if 23 < t < 100}
    assert {name for _, name, _ in first.handled} == {"10.0.1.1", "10.0.1.2"}
