"""The same seed yields the same run, to the byte, regardless of string hashes."""

import os
import subprocess
import sys

SCRIPT = """
from sweep.seeds import run_one
for world in ("swarm", "dual", "concurrent", "broadcast"):
    outcome = run_one(5, world, trace=True, storm_s=6.0)
    print(world, outcome.digest, len(outcome.history), outcome.steps)
"""


def test_run_does_not_depend_on_the_hash_seed() -> None:
    universes = []
    for hash_seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        run = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, check=True, capture_output=True, text=True)
        universes.append(run.stdout.splitlines())
    assert len(universes[0]) == 4
    assert universes[0] == universes[1]
