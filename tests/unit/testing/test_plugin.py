"""The plugin in users' projects: each test runs its own pytest with only the project's configuration."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from lockstep.testing.plugin import _without_seed

USING = """
import asyncio
import pytest
import pytest_asyncio
from lockstep.client import Message, Producer
from lockstep.testing import NotReachedError, TestCluster, simulate
"""


def pytest_in(folder: Path, *arguments: str, ini: str = "", test: str = "", conftest: str = "") -> str:
    """Run pytest on one test file, one conftest.py and one pytest.ini; return its output."""
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n" + dedent(ini))
    (folder / "test_it.py").write_text(USING + dedent(test))
    (folder / "conftest.py").write_text(dedent(conftest))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "--color=no", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False).stdout


def outcomes(reported: str) -> list[str]:
    """ "PASSED test_it.py::test_x", … in order of names."""
    return sorted(line.split(" - ")[0] for line in reported.splitlines() if line.split(" ")[0] in ("PASSED", "FAILED", "ERROR"))


TESTS = """
    async def test_needs_no_mark(lockstep_cluster):
        assert lockstep_cluster.seed == 0

    @pytest.mark.asyncio
    async def test_takes_one(lockstep_clock):
        await lockstep_clock.advance(hours=3)
        assert lockstep_clock.now == 10800

    class TestInAClass:
        @pytest.mark.lockstep(brokers=1)
        @pytest.mark.parametrize("x", [1, 2])
        async def test_method(self, lockstep_cluster, x):
            assert lockstep_cluster.brokers == ("broker-a",)

    @pytest_asyncio.fixture
    async def producer(lockstep_cluster):
        await lockstep_cluster.create_topic("orders")
        async with Producer("shop", nameserver=lockstep_cluster.nameserver) as producer:
            yield producer

    async def test_own_fixture(producer):
        await producer.send(Message("orders", b"1"))

    def test_plain():
        async def main():
            async with TestCluster() as cluster:
                return cluster.seed
        assert simulate(main, seed=7) == 7

    @pytest.mark.asyncio
    @pytest.mark.parametrize("x", [1])
    async def test_not_ours(x):
        assert "Sim" not in type(asyncio.get_running_loop()).__name__
"""
PASSED = [
    "PASSED test_it.py::TestInAClass::test_method[1]",
    "PASSED test_it.py::TestInAClass::test_method[2]",
    "PASSED test_it.py::test_needs_no_mark",
    "PASSED test_it.py::test_not_ours[1]",
    "PASSED test_it.py::test_own_fixture",
    "PASSED test_it.py::test_plain",
    "PASSED test_it.py::test_takes_one",
]


@pytest.mark.parametrize(
    ("ini", "conftest"),
    [
        pytest.param("asyncio_mode = strict\n", "", id="strict"),
        pytest.param("asyncio_mode = auto\n", "", id="auto"),
        pytest.param(
            "asyncio_mode = auto\nasyncio_default_test_loop_scope = session\n",
            "",
            id="one loop for the session",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "asyncio_mode = strict\n",
            """
            import asyncio
            def pytest_asyncio_loop_factories(item):
                return {"theirs": asyncio.new_event_loop}
            """,
            id="a hook of their own",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_lockstep_tests_run_in_the_simulator_and_other_tests_unchanged(tmp_path: Path, ini: str, conftest: str) -> None:
    reported = pytest_in(tmp_path, ini=ini, test=TESTS, conftest=conftest)
    assert outcomes(reported) == PASSED, reported


SEEDED = """
    @pytest.mark.lockstep(seeds=2)
    async def test_marked(lockstep_cluster):
        assert lockstep_cluster.seed in range(2)

    @pytest.mark.parametrize("x", ["a", "b"])
    async def test_unlucky(lockstep_cluster, x):
        await lockstep_cluster.kill("broker-a")
        assert (lockstep_cluster.seed, x) != (5, "b")
"""


def test_seeds_come_from_the_marker_or_default_to_0(tmp_path: Path) -> None:
    reported = pytest_in(tmp_path, test=SEEDED)
    assert outcomes(reported) == [
        "PASSED test_it.py::test_marked[seed-0]",
        "PASSED test_it.py::test_marked[seed-1]",
        "PASSED test_it.py::test_unlucky[a]",
        "PASSED test_it.py::test_unlucky[b]",
    ], reported


def test_failure_report_has_seed_events_and_the_command_to_reproduce_it(tmp_path: Path) -> None:
    reported = pytest_in(tmp_path, "--lockstep-seeds", "3", "--lockstep-seed", "3", "-k", "unlucky", test=SEEDED)
    assert [line for line in outcomes(reported) if not line.startswith("PASSED")] == ["FAILED test_it.py::test_unlucky[seed-5-b]"], reported
    assert "5 passed" in reported
    assert "kill broker-a" in reported
    command = "pytest 'test_it.py::test_unlucky[b]' --lockstep-seed 5"
    assert f"seed 5, the same again: {command}" in reported
    again = pytest_in(tmp_path, "test_it.py::test_unlucky[b]", "--lockstep-seed", "5", test=SEEDED)
    assert outcomes(again) == ["FAILED test_it.py::test_unlucky[b]"], again


def test_universes_of_earlier_tests_are_freed(tmp_path: Path) -> None:
    """pytest keeps all tests until the end of the run. Some thousand universes of 10 MB would not fit into memory."""
    test = """
        import gc
        import weakref

        earlier = []

        @pytest.mark.parametrize("number", range(4))
        async def test_one(lockstep_cluster, number):
            gc.collect()
            assert sum(each() is not None for each in earlier) <= 1
            earlier.extend([weakref.ref(lockstep_cluster), weakref.ref(asyncio.get_running_loop())])
    """
    assert outcomes(pytest_in(tmp_path, test=test)) == [f"PASSED test_it.py::test_one[{number}]" for number in range(4)]


def test_misuse_of_the_plugin_is_reported(tmp_path: Path) -> None:
    test = """
        def test_synchronous(lockstep_clock):
            pass
    """
    assert "the test must be async" in pytest_in(tmp_path, test=test)
    without = pytest_in(tmp_path, "-p", "no:asyncio", "-W", "ignore", "-o", "filterwarnings=", test=test)
    assert "pip install 'lockstep-mq[testing]'" in without
    assert "0 seeds; at least 1" in pytest_in(tmp_path, "--lockstep-seeds", "0", test=SEEDED)


FAILING = """
    async def broken():
        raise ZeroDivisionError("in the program")

    async def test_unnoticed(lockstep_cluster):
        await lockstep_cluster.start("worker", broken)
        await lockstep_cluster.advance(seconds=1)

    async def test_beside_its_own(lockstep_cluster):
        await lockstep_cluster.start("worker", broken)
        await lockstep_cluster.advance(seconds=1)
        assert False, "its own"
"""


def test_failed_program_fails_its_test_and_is_reported_with_the_tests_own_error(tmp_path: Path) -> None:
    reported = pytest_in(tmp_path, test=FAILING)
    assert outcomes(reported) == ["FAILED test_it.py::test_beside_its_own", "FAILED test_it.py::test_unnoticed"], reported
    assert reported.count("ZeroDivisionError: in the program") >= 2
    assert "AssertionError: its own" in reported


async def test_chaos_fixture_accepts_the_arguments_of_chaos(lockstep_cluster, lockstep_chaos) -> None:  # type: ignore[no-untyped-def]
    async with lockstep_chaos(3, every_seconds=0.1, faults=["kill_broker"]):
        await asyncio.sleep(5)
    assert any(each.text.startswith("kill broker") for each in lockstep_cluster.happenings)


@pytest.mark.parametrize(
    ("nodeid", "left"),
    [
        ("a.py::test_x[seed-1]", "a.py::test_x"),
        ("a.py::test_x[seed-1-p]", "a.py::test_x[p]"),
        ("a.py::test_x[p-seed-1]", "a.py::test_x[p]"),
        ("a.py::test_x[p-seed-1-q]", "a.py::test_x[p-q]"),
        ("a.py::test_x[seed-11]", "a.py::test_x[seed-11]"),
        ("a.py::test_x", "a.py::test_x"),
    ],
)
def test_seed_is_removed_from_a_node_id(nodeid: str, left: str) -> None:
    assert _without_seed(nodeid, 1) == left


def test_unused_plugin_imports_only_light_modules() -> None:
    code = (
        "import sys, lockstep.testing.plugin, lockstep.testing.fixtures; print(sorted(n for n in sys.modules if n.startswith('lockstep')))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    light = ["fixtures", "marks", "plugin"]
    assert found.strip() == str(["lockstep", "lockstep.testing", *(f"lockstep.testing.{name}" for name in light)])
