"""docs/testing.md: write its files, run its commands, and compare the results with the page."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.testing import FAULTS, Chaos, OrderChecker, TestCluster
from lockstep.testing.plugin import FIXTURES
from support.page_commands import blocks
from support.processes import clean_environment

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "testing.md").read_text()


def pytest_in(folder: Path, command: str) -> str:
    """Return the output of the page's command."""
    words = command.removeprefix("$ pytest ").split()
    run = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--color=no", *words]
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    return subprocess.run(run, cwd=folder, env=clean_environment(), capture_output=True, text=True, timeout=300, check=False).stdout


@pytest.mark.slow
def test_examples_of_the_testing_page_behave_as_described(tmp_path: Path) -> None:
    ends: list[str] = []
    reported = ""
    for block in blocks(PAGE):
        if block.language == "python":
            names = re.findall(r"[Aa]s `(\w+\.py)`", block.before)
            assert names, block.text
            (tmp_path / names[-1]).write_text(block.text)
        elif block.language == "console":
            reported = pytest_in(tmp_path, block.text.strip())
            ends.append(reported.splitlines()[-1])
        else:
            check_report(block.text, reported)
    assert len(ends) == 7
    assert ends[0].startswith("1 passed")
    assert ends[1].startswith("1 passed")
    assert re.match(r"[1-9]\d* failed", ends[2]), "chaos finds the memory"
    assert ends[3].startswith("10 passed"), "the repaired handler passes the same seeds"
    assert ends[4].startswith("2 passed")
    assert all(end.startswith("1 passed") for end in ends[5:])


def check_report(shown: str, reported: str) -> None:
    """Check that pytest printed these lines, with any numbers, and that the assertion on the customers' totals failed."""
    for line in shown.splitlines():
        shape = re.sub(r"\d+", r"\\d+", re.escape(line.strip()))
        assert re.search(shape, reported), line
    assert "AssertionError" in reported
    assert "OrderViolationError" not in reported


@pytest.mark.parametrize("kind", [TestCluster, OrderChecker])
def test_tables_of_the_testing_page_list_the_public_api(kind: type) -> None:
    [table] = re.findall(rf"^\| `{kind.__name__}.*?(?=\n\n)", PAGE, re.MULTILINE | re.DOTALL)
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    named = {name for cell in cells for name in re.findall(r"`(\w+)[`(]", cell)}
    public = {name for name in vars(kind) if not name.startswith("_")} | {"happenings"}
    assert named <= public
    reported_elsewhere = {"brokers", "nameservers", "workers", "seed", "real", "flush", "clock", "running", "failure", "set_noise"}
    reported_elsewhere |= {"began", "ended", "handled_count", "repeat_count", "happenings"}
    assert public - named <= reported_elsewhere


def test_testing_page_lists_fixtures_options_and_defaults() -> None:
    for name in (*FIXTURES, "--lockstep-seeds", "--lockstep-seed", "--lockstep-real"):
        assert f"`{name}" in PAGE or f"pytest {name}" in PAGE
    defaults = {name: each.default for name, each in inspect.signature(Chaos).parameters.items() if name != "cluster"}
    assert "lockstep_chaos(" + ", ".join(f"{name}={default!r}" for name, default in defaults.items()) + ")" in PAGE
    assert set(FAULTS) >= set(re.findall(r'faults=\["(\w+)", "(\w+)"\]', PAGE)[0])
