"""Each mutant, which switches off one rule, is detected. The usual run tries a few of them, LOCKSTEP_TEST_SLOW=1 all."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fork_server import ForkServer, forking
from support.mutated_test import IMPORTED
from sweep.mutants import MUTANTS, switched_off
from sweep.seeds import catch

FAST = ("repeats_are_stored", "sync_that_does_nothing")
SEEDS_MAX = 60
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", FAST)
def test_mutant_is_detected(name: str) -> None:
    _, found, tried = catch(name, 12)
    assert found is not None, f"{MUTANTS[name].rule} Its absence was not detected in {tried} universes"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MUTANTS if name not in FAST and not MUTANTS[name].aimed])
def test_every_mutant_is_detected(name: str) -> None:
    _, found, tried = catch(name, SEEDS_MAX)
    assert found is not None, f"{MUTANTS[name].rule} Its absence was not detected in {tried} universes"


@pytest.fixture(scope="module")
def _forking() -> Iterator[None]:
    """Fork each test from a process that has imported what it needs, except where the fork server does not run."""
    if sys.platform != "linux":
        yield
        return
    server = ForkServer(IMPORTED)
    with forking(server):
        yield
    server.close()


def run(test: str, mutant: str | None = None) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), *filter(None, sys.path)])}
    if mutant is not None:
        environment["LOCKSTEP_MUTANT"] = mutant
    command = [sys.executable, "-m", "support.mutated_test", test]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, mutant in MUTANTS.items() if mutant.aimed])
@pytest.mark.usefixtures("_forking")
def test_aimed_test_passes_and_detects_its_mutant(name: str) -> None:
    aimed = MUTANTS[name].aimed
    plain = run(aimed)
    assert plain.returncode == pytest.ExitCode.OK, plain.stdout + plain.stderr
    mutated = run(aimed, name)
    assert mutated.returncode != pytest.ExitCode.OK, f"{MUTANTS[name].rule} {mutated.stdout}"


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_can_be_applied(name: str) -> None:
    """A mutant patches attributes by name. One with an outdated name fails here, without a run."""
    with switched_off(name):
        pass


def test_every_aimed_test_exists() -> None:
    for mutant in MUTANTS.values():
        path, _, test = mutant.aimed.partition("::")
        assert not path or f"def {test}(" in (ROOT / path).read_text(), mutant.aimed


def test_simulation_page_names_every_mutant_once() -> None:
    page = (ROOT / "docs/simulation.md").read_text().partition("## Rules switched off")[2]
    table, _, aimed = page.partition(" rules are seldom detected by a universe")
    rows = [(int(count), re.findall(r"`(\w+)`", names)) for count, names in re.findall(r"^\| \d+ \| (\d+): (.+) \|$", table, re.MULTILINE)]
    assert [count for count, _ in rows] == [len(names) for _, names in rows]
    assert sorted(name for _, names in rows for name in names) == sorted(name for name, one in MUTANTS.items() if not one.aimed)
    assert sorted(re.findall(r"`(\w+)`", aimed)) == sorted(name for name, one in MUTANTS.items() if one.aimed)
    assert f"Each of {len(MUTANTS)} rules" in page
    assert f"the {len(MUTANTS)} rules" in (ROOT / "README.md").read_text()


def test_mutant_is_reverted_afterwards() -> None:
    from lockstep.broker.groups.tables.lock_table import Lock

    good = vars(Lock)["accepts_epoch"]
    with switched_off("epochs_are_not_checked"):
        assert vars(Lock)["accepts_epoch"] is not good
    assert vars(Lock)["accepts_epoch"] is good
