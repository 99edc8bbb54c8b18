"""What the two jobs have in common: a session, Java, errors in one line."""

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
"""Where a job looks when it is not told."""
EXIT_FAILED = 3
"""Could not run."""
JAVA_S = 60.0
"""Until `java -version` has answered."""


class Parser(argparse.ArgumentParser):
    """Flags that can't be read are one more reason why a job could not run: argparse's own exit code 2 is verify_load's for repeats."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_FAILED, f"failed: {message}: {self.prog} --help lists the flags\n")


def say(line: str) -> None:
    """To the terminal, beside the results on stdout. spark-submit puts both on stdout: results come last. Nobody need read it."""
    try:
        print(line, file=sys.stderr, flush=True)
    except BrokenPipeError:
        _forget(sys.stderr)


def _forget(stream: TextIO) -> None:
    """Nobody reads it: Python's end would try again to write what it holds, and exit with 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # world: this process's own output


def check_java() -> None:
    """ConfigError where Spark would find no Java that it runs on."""
    home = os.environ.get("JAVA_HOME")
    command = os.path.join(home, "bin", "java") if home else "java"
    try:
        told = subprocess.run([command, "-version"], capture_output=True, text=True, check=False, timeout=JAVA_S).stderr
    except OSError:
        told = ""
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"Spark needs Java {JAVA_MIN} or newer, and {command} -version does not answer within {JAVA_S:g} s: set JAVA_HOME"
        ) from None
    found = re.search(r'version "(\d+)', told)
    if found is None or int(found[1]) < JAVA_MIN:
        what = "there is none" if found is None else f"{command} is version {found[1]}"
        raise ConfigError(f"Spark needs Java {JAVA_MIN} or newer, and {what}: install a JDK (openjdk-17-jre-headless), or set JAVA_HOME")


def session(name: str, master: str | None, conf: Mapping[str, str]) -> SparkSession:
    """The job's session; workers run this interpreter. What spark-submit was told goes before `conf`, `master` before spark-submit."""
    # Workers would start the python3 of the PATH, which may lack pyarrow and numpy.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(name)
    told = submitted()
    for key, value in {"spark.ui.enabled": "false", "spark.log.level": "ERROR", **conf}.items():
        if key not in told:
            builder = builder.config(key, value)
    if master is not None:
        builder = builder.master(master)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def submitted() -> dict[str, str]:
    """What spark-submit was told by --conf or its defaults file: properties of the JVM that started this process. None where it did not."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    # A SparkConf that is made before the JVM is known is empty.
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def run(job: Callable[[], int]) -> int:
    """The job's exit code; what it could not do in one line, behind a traceback where nobody has foreseen it."""
    _silence_py4j()
    try:
        check_java()
        return job()
    except LockstepError as error:
        say(f"failed: {error}")
    except BrokenPipeError:
        _forget(sys.stdout)
        say("failed: nobody reads what is printed (a closed pipe); what the job has written into its files is there")
    except (Py4JError, ConnectionRefusedError, ConnectionResetError) as error:
        say(f"failed: {of_jvm(error)}")
    except OSError as error:  # a folder that can't be written to
        say(f"failed: {error}")
    except PySparkException as error:
        say(f"failed: {in_one_line(error)}")
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    except Exception as error:  # listener: Python's own exit code, 1, would say that rows are lost
        say(f"{traceback.format_exc()}failed: {type(error).__name__}: {error}")
    return EXIT_FAILED


def _silence_py4j() -> None:
    """A lost JVM is told in one line; py4j logs a traceback for each question that it does not answer, some of them at the root."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_not_py4js)


def _not_py4js(record: logging.LogRecord) -> bool:
    return f"{os.sep}py4j{os.sep}" not in record.pathname


def of_jvm(error: Exception) -> str:
    """What went wrong in Spark's JVM, and what to do."""
    if isinstance(error, Py4JJavaError):
        try:
            text = str(error)  # asks the JVM
        except (Py4JError, OSError):
            text = ""
        found = _JAVAS.findall(text)
        if found:
            return f"{found[-1]}. That is Spark's own: its disk (spark.local.dir, --out) or its memory may be full; then begin again"
    return (
        f"Spark's JVM ended, or answers no more ({type(error).__name__}): the lines above may say why; where it had too little memory "
        "give it more by `spark-submit --driver-memory 4g`; then begin again"
    )


_OURS = re.compile(r"^lockstep\.[\w.]+: (.*)$", re.MULTILINE)
_PYTHONS = re.compile(r"^(\w+Error: .*)$", re.MULTILINE)
"""The last line of a traceback of a worker: the first 600 characters are of its other end."""
_JAVAS = re.compile(r"^(?:: |Caused by: )(.*)$", re.MULTILINE)
"""An exception of Java and its causes, the last of them the first cause."""


def in_one_line(error: PySparkException) -> str:
    """What a task or planner of ours raised, out of Spark's many lines."""
    text = str(error)
    found = _OURS.findall(text) or _PYTHONS.findall(text)
    return found[-1] if found else " ".join(text.split())[:600]
