"""The same seed of the sweep yields the same run, to the byte, regardless of string hashes. The usual run has test_determinism for that."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys
from sweep.seeds import run_one
outcome = run_one(5, sys.argv[1], trace=True, storm_s=6.0)
print(outcome.digest, len(outcome.history), outcome.steps)
"""


@pytest.mark.slow
@pytest.mark.parametrize("world", ["swarm", "dual", "concurrent", "broadcast"])
def test_run_does_not_depend_on_the_hash_seed(world: str) -> None:
    universes = []
    for hash_seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        run = subprocess.run([sys.executable, "-c", SCRIPT, world], env=environment, check=True, capture_output=True, text=True)
        universes.append(run.stdout.splitlines())
    assert len(universes[0]) == 1
    assert universes[0] == universes[1]
