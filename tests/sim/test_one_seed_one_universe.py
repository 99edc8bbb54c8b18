"""The same seed is the same universe, to the byte, whatever the hashes of strings are."""

import os
import subprocess
import sys

SCRIPT = """
from sweep.seeds import run_one
for world in ("swarm", "dual", "concurrent", "broadcast"):
    outcome = run_one(5, world, trace=True, storm_s=6.0)
    print(world, outcome.digest, len(outcome.history), outcome.steps)
"""


def test_a_universe_does_not_depend_on_hash_seeds() -> None:
    universes = []
    for hash_seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        run = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, check=True, capture_output=True, text=True)
        universes.append(run.stdout.splitlines())
    assert len(universes[0]) == 4
    assert universes[0] == universes[1]
