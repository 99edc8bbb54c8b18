"""Runs one test with one mutant at a time, each in a fork of a process that has imported what the tests need.

The imports take some four seconds of processor time, and the usual test of a mutant takes 0.2 s. `python -m support.mutant_runner` reads
lines of `MUTANT TEST` (`- TEST` runs it without a mutant) and answers each with one line of JSON: pytest's exit code and what it printed.
"""

import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import IO, Self

import pytest

ROOT = Path(__file__).resolve().parents[2]
NO_MUTANT = "-"
OPTIONS = ["-p", "support.mutated", "--hypothesis-profile=mutated", "-q", "-x", "--tb=no", "-p", "no:cacheprovider", "--assert=plain"]
IMPORTED = ("sweep.mutants", "lockstep.testing.plugin", "hypothesis", "opentelemetry.sdk.trace", "pytest_asyncio.plugin", "xdist.plugin")


class MutantRunner:
    """The process. It lives as long as the `with` block."""

    def __enter__(self) -> Self:
        path = os.pathsep.join([str(ROOT / "tests"), *filter(None, sys.path)])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.mutant_runner"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.communicate()

    def run(self, test: str, mutant: str = NO_MUTANT) -> tuple[int, str]:
        """Return pytest's exit code and its output."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(mutant, test, file=self._process.stdin, flush=True)
        code, output = json.loads(self._process.stdout.readline())
        return code, output


def _run_in_a_fork(mutant: str, test: str, output: IO[str]) -> int:
    child = os.fork()
    if child == 0:
        code: int = pytest.ExitCode.INTERNAL_ERROR
        try:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            if mutant != NO_MUTANT:
                os.environ["LOCKSTEP_MUTANT"] = mutant
            # Modules that are imported already cannot have their assertions rewritten.
            code = pytest.main([*OPTIONS, test])
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        mutant, _, test = line.rstrip("\n").partition(" ")
        with tempfile.TemporaryFile("w+") as output:
            code = _run_in_a_fork(mutant, test, output)
            output.seek(0)
            print(json.dumps((code, output.read())), file=answers, flush=True)


if __name__ == "__main__":
    for module in IMPORTED:
        importlib.import_module(module)
    main()
