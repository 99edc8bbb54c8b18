"""The same seed is the same universe, to the byte, whatever the hashes of strings are."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
from sweep.seeds import run_one
outcome = run_one(5, "{world}", trace=True, storm_s=6.0)
print(outcome.digest, len(outcome.history), outcome.steps)
"""


@pytest.mark.parametrize("world", ["swarm", "dual", "concurrent", "broadcast"])
def test_a_universe_does_not_depend_on_hash_seeds(world: str) -> None:
    told = []
    for hash_seed in ("0", "1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", SCRIPT.format(world=world)]
        told.append(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
    assert told[0].split()[0] != "", told
    assert told == [told[0]] * 3
