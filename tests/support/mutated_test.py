"""`LOCKSTEP_MUTANT=name python -m support.mutated_test TEST` runs one test with that mutant applied; without the variable, with none."""

import sys

import pytest

from support.mutated import PROFILE

IMPORTED = ("sweep.mutants", "lockstep.testing.plugin", "hypothesis", "opentelemetry.sdk.trace", "pytest_asyncio.plugin", "xdist.plugin")
"""What a fork server imports for it: some four seconds of processor time, while the usual test of a mutant takes 0.2 s."""
OPTIONS = ["-p", "support.mutated", f"--hypothesis-profile={PROFILE}", "-q", "-x", "--tb=no", "-p", "no:cacheprovider"]
# Modules that are imported already cannot have their assertions rewritten.
PLAIN = "--assert=plain"


if __name__ == "__main__":
    sys.exit(pytest.main([*OPTIONS, PLAIN, *sys.argv[1:]]))
