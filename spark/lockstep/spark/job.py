"""Shared parts of the two jobs: the session, the check of Java, one-line errors."""

import argparse
import logging
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import NoReturn, TextIO

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lockstep.protocol.errors import ConfigError, LockstepError
from lockstep.spark.source import register

JAVA_MIN = 17
NAMESERVER = os.environ.get("LOCKSTEP_NAMESERVER", "127.0.0.1:9876")
"""The default of --nameserver."""
EXIT_FAILED = 3
"""The job could not run."""
JAVA_S = 60.0
"""Timeout of `java -version`."""


class Parser(argparse.ArgumentParser):
    """Exits with EXIT_FAILED for invalid options: argparse's exit code 2 means repeats in verify_load."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_FAILED, f"failed: {message}; run {self.prog} --help to list the options\n")


def print_status(line: str) -> None:
    """Print a line to stderr, even if its pipe is closed. spark-submit merges it into stdout; results come last there."""
    try:
        print(line, file=sys.stderr, flush=True)
    except BrokenPipeError:
        _discard(sys.stderr)


def _discard(stream: TextIO) -> None:
    """Redirect a stream with a closed pipe to /dev/null: else Python would fail to flush it at exit, and exit with 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # world: this process's own output


def check_java() -> None:
    """Raise ConfigError if Spark would not find a suitable Java."""
    home = os.environ.get("JAVA_HOME")
    command = os.path.join(home, "bin", "java") if home else "java"
    try:
        output = subprocess.run([command, "-version"], capture_output=True, text=True, check=False, timeout=JAVA_S).stderr
    except OSError:
        output = ""
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"Spark needs Java {JAVA_MIN} or newer, and {command} -version did not respond within {JAVA_S:g} s: set JAVA_HOME"
        ) from None
    found = re.search(r'version "(\d+)', output)
    if found is None or int(found[1]) < JAVA_MIN:
        if found is not None:
            actual = f"{command} is version {found[1]}"
        else:
            actual = f"{command} -version reported no version" if output else f"{command} was not found"
        raise ConfigError(f"Spark needs Java {JAVA_MIN} or newer, and {actual}: install a JDK (openjdk-17-jre-headless), or set JAVA_HOME")


def session(name: str, master: str | None, conf: Mapping[str, str]) -> SparkSession:
    """Return the job's session; workers run this interpreter. Options of spark-submit override `conf`, and `master` overrides those."""
    # Workers would start the python3 of the PATH, which may lack pyarrow and numpy.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(name)
    submitted = submitted_conf()
    for key, value in {"spark.ui.enabled": "false", "spark.log.level": "ERROR", **conf}.items():
        if key not in submitted:
            builder = builder.config(key, value)
    if master is not None:
        builder = builder.master(master)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def submitted_conf() -> dict[str, str]:
    """Return the options of spark-submit (--conf, defaults file), which are properties of its JVM; empty if this is not its process."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    # A SparkConf that is made before the connection to the JVM is empty.
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def run(job: Callable[[], int]) -> int:
    """Run a job and return its exit code. Print an error as one line, after a traceback if it is unexpected."""
    _silence_py4j()
    try:
        check_java()
        return job()
    except LockstepError as error:
        print_status(f"failed: {error}")
    except BrokenPipeError:
        _discard(sys.stdout)
        print_status("failed: stdout is a closed pipe; the files that the job has written are complete")
    except (Py4JError, ConnectionRefusedError, ConnectionResetError) as error:
        print_status(f"failed: {describe_jvm_error(error)}")
    except OSError as error:  # such as a folder without write permission
        print_status(f"failed: {error}")
    except PySparkException as error:
        print_status(f"failed: {describe_spark_error(error)}")
    except KeyboardInterrupt:
        print_status("interrupted")
        return 130
    except Exception as error:  # listener: Python's exit code, 1, would mean that rows are lost
        print_status(f"{traceback.format_exc()}failed: {type(error).__name__}: {error}")
    return EXIT_FAILED


def _silence_py4j() -> None:
    """Drop py4j's log records: it logs a traceback for each call to a lost JVM, some in the root logger. One line reports the loss."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_py4j)


def _is_not_py4j(record: logging.LogRecord) -> bool:
    return f"{os.sep}py4j{os.sep}" not in record.pathname


def describe_jvm_error(error: Exception) -> str:
    """Describe an error of Spark's JVM and the next step."""
    if isinstance(error, Py4JJavaError):
        try:
            text = str(error)  # calls the JVM
        except (Py4JError, OSError):
            text = ""
        found = _JAVA_EXCEPTION.findall(text)
        if found:
            return (
                f"{found[-1]}. This is an error of Spark itself: check that its disk (spark.local.dir, --out) and memory are not full, "
                "then run the job again"
            )
    return (
        f"Spark's JVM has ended or does not respond ({type(error).__name__}): the lines above may contain the reason. If it had too little "
        "memory, use `spark-submit --driver-memory 4g`; then run the job again"
    )


_LOCKSTEP_ERROR = re.compile(r"^lockstep\.[\w.]+: (.*)$", re.MULTILINE)
_PYTHON_ERROR = re.compile(r"^(\w+Error: .*)$", re.MULTILINE)
"""The last line of a worker's traceback. The first 600 characters of the text only show its beginning."""
_JAVA_EXCEPTION = re.compile(r"^(?:: |Caused by: )(.*)$", re.MULTILINE)
"""A Java exception and its causes; the last match is the root cause."""


def describe_spark_error(error: PySparkException) -> str:
    """Extract the error that a task or planner of lockstep raised from Spark's many lines."""
    text = str(error)
    found = _LOCKSTEP_ERROR.findall(text) or _PYTHON_ERROR.findall(text)
    return found[-1] if found else " ".join(text.split())[:600]
