"""Without pyspark, everything that needs it reports that it is missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WITHOUT = "import sys; sys.modules['pyspark'] = None; sys.argv = sys.argv[1:]; "
TESTS = WITHOUT + "import pytest; sys.exit(pytest.main(sys.argv))"
SCRIPT = WITHOUT + "import runpy; runpy.run_path(sys.argv[0], run_name='__main__')"


def run(program: str, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", program, *arguments]
    inherited = {name: value for name, value in os.environ.items() if name != "LOCKSTEP_TEST_SPARK" and not name.startswith("PYTEST_")}
    roots = os.pathsep.join(str(path) for path in ROOT.iterdir() if (path / "lockstep").is_dir())
    given = {**inherited, "PYTHONPATH": roots, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT, env=given)


def test_spark_tests_are_skipped_with_the_reason() -> None:
    ended = run(TESTS, "tests/spark", "-q", "-p", "no:cacheprovider")
    modules = len(list((ROOT / "tests" / "spark").glob("test_*.py")))
    assert ended.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, ended.stdout
    assert f"{modules} skipped" in ended.stdout
    assert "Spark's tests can't run here: " in ended.stdout
    assert "install the extra [spark]" in ended.stdout


def test_required_spark_tests_fail() -> None:
    ended = run(TESTS, "tests/spark", "-q", "-p", "no:cacheprovider", LOCKSTEP_TEST_SPARK="1")
    assert ended.returncode == pytest.ExitCode.INTERRUPTED, ended.stdout
    assert "LOCKSTEP_TEST_SPARK=1, and Spark's tests can't run here" in ended.stdout


@pytest.mark.parametrize("script", ["load_generator.py", "verify_load.py"])
def test_script_without_spark_exits_with_the_reason(script: str) -> None:
    ended = run(SCRIPT, str(ROOT / "scripts" / script), "--help")
    assert ended.returncode == 3, "1 would say that rows are lost"
    assert ended.stderr.startswith("failed: ")
    assert "lacks lockstep-mq[spark]" in ended.stderr
    assert "Traceback" not in ended.stderr
