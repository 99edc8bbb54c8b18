"""Exit codes of Spark's programs after errors that are not a verdict."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from lockstep.spark import job as jobs
from lockstep.spark.job import describe_spark_error, run
from lockstep.spark.load import load_job, verify_job


def failing(error: Exception) -> Callable[[], int]:
    def job() -> int:
        raise error

    return job


@pytest.mark.parametrize(
    ("main", "more"),
    [
        (load_job.main, ["--rows", "0"]),
        (load_job.main, ["--duration", "nan", "--rate", "5"]),
        (load_job.main, ["--skew", "inf"]),
        (verify_job.main, []),
        (verify_job.main, ["--manifest", "m", "--allow-duplicates", "-1"]),
    ],
)
def test_invalid_flag_is_reported_in_one_line_and_exits_3(
    main: Callable[[list[str]], int], more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(more)
    assert ended.value.code == 3, "2 would say that rows are repeated"
    said = capsys.readouterr().err
    assert said.startswith("failed: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("reported", "said"),
    [
        (None, "was not found: install a JDK"),
        ("echo 'openjdk version \"11.0.2\"' >&2", "is version 11: install a JDK"),
        ("echo '?' >&2", "reported no version"),
        ("exec sleep 600", "did not respond"),
    ],
)
def test_missing_or_old_java_is_reported_before_the_job_starts(
    reported: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if reported == "exec sleep 600":
        monkeypatch.setattr(jobs, "JAVA_S", 0.2)
    if reported is not None:
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        java.write_text(f"#!/bin/sh\n{reported}\n")
        java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert run(failing(AssertionError("the job began"))) == 3
    found = capsys.readouterr().err
    assert found.startswith("failed: Spark needs Java 17 or newer, and ")
    assert found.count("\n") == 1
    assert said in found


def test_jvm_exception_is_reported_in_one_line_and_exits_3(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Py4JJavaError) as failed:
        spark._jvm.java.io.File("/no-such-folder/file").createNewFile()
    assert run(failing(failed.value)) == 3
    said = capsys.readouterr().err
    assert said.startswith("failed: java.io.IOException: No such file or directory. This is an error of Spark itself")
    assert "then run the job again" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("error", [Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError(111, "Connection refused")])
def test_lost_jvm_is_reported_in_one_line_and_exits_3(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(failing(error)) == 3
    said = capsys.readouterr().err
    assert said.startswith("failed: Spark's JVM has ended or does not respond")
    assert "--driver-memory 4g" in said
    assert said.count("\n") == 1


def test_unexpected_error_is_reported_with_its_traceback_and_exits_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(failing(ZeroDivisionError("division by zero"))) == 3, "1 would say that rows are lost"
    said = capsys.readouterr().err
    assert said.startswith("Traceback")
    assert said.endswith("\nfailed: ZeroDivisionError: division by zero\n")


UNREAD = """
import sys
from lockstep.spark.job import print_status, run
def job():
    sys.stdin.read()  # until the pipe is closed
    if "{to}" == "stdout":
        print("result", flush=True)
    else:
        print_status("progress")
    return 0
sys.exit(run(job))
"""


@pytest.mark.parametrize(("to", "code"), [("stdout", 3), ("stderr", 0)])
def test_closed_stdout_pipe_exits_3_and_a_closed_stderr_pipe_is_ignored(to: str, code: int) -> None:
    """Results must be read, other output may be ignored."""
    program = [sys.executable, "-c", UNREAD.format(to=to)]
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}  # the default
    job = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=buffered)
    assert job.stdin is not None
    unread, read = (job.stdout, job.stderr) if to == "stdout" else (job.stderr, job.stdout)
    assert unread is not None
    assert read is not None
    with read:
        unread.close()
        job.stdin.close()
        said = read.read()
        assert job.wait(60) == code
    if to == "stdout":
        assert said.startswith("failed: stdout is a closed pipe")
        assert said.count("\n") == 1


def test_log_of_py4j_is_suppressed(caplog: pytest.LogCaptureFixture) -> None:
    def job() -> int:
        logging.getLogger("py4j.clientserver").error("of its own logger")
        logging.getLogger("lockstep.spark").error("ours")
        return 0

    assert run(job) == 0
    assert [record.getMessage() for record in caplog.records] == ["ours"]


def test_worker_exception_is_described_by_its_last_line() -> None:
    trace = (
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        + 900 * "."
        + "\nIndexError: 7\n\n\tat org.x"
    )
    assert describe_spark_error(PySparkException(trace)) == "IndexError: 7"
    ours = trace.replace("IndexError", "lockstep.protocol.errors.ConfigError")
    assert describe_spark_error(PySparkException(ours)) == "7"
