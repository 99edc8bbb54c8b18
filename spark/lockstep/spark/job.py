"""What the two jobs have in common: a session, Java, errors in one line."""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import NoReturn

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lockstep.protocol.errors import ConfigError, LockstepError
from lockstep.spark.source import register

JAVA_MIN = 17
NAMESERVER = os.environ.get("LOCKSTEP_NAMESERVER", "127.0.0.1:9876")
"""Where a job looks when it is not told."""
EXIT_FAILED = 3
"""Could not run."""


class Parser(argparse.ArgumentParser):
    """Flags that can't be read are one more reason why a job could not run: argparse's own exit code 2 is verify_load's for repeats."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_FAILED, f"{self.prog}: error: {message}\n")


def say(line: str) -> None:
    """To the terminal, beside the results on stdout. spark-submit puts both on stdout: results come last."""
    print(line, file=sys.stderr, flush=True)


def check_java() -> None:
    """ConfigError where Spark would find no Java that it runs on."""
    home = os.environ.get("JAVA_HOME")
    command = os.path.join(home, "bin", "java") if home else "java"
    try:
        told = subprocess.run([command, "-version"], capture_output=True, text=True, check=False, timeout=60).stderr
    except OSError:
        told = ""
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
    for key, value in {"spark.ui.enabled": "false", "spark.log.level": "ERROR", **conf}.items():
        if f"--conf {key}=" not in os.environ.get("PYSPARK_SUBMIT_ARGS", ""):
            builder = builder.config(key, value)
    if master is not None:
        builder = builder.master(master)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def run(job: Callable[[], int]) -> int:
    """The job's exit code; what it could not do in one line."""
    try:
        check_java()
        return job()
    except LockstepError as error:
        say(f"failed: {error}")
    except OSError as error:  # a folder that can't be written to
        say(f"failed: {error}")
    except PySparkException as error:
        say(f"failed: {in_one_line(error)}")
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    return EXIT_FAILED


_OURS = re.compile(r"^lockstep\.[\w.]+: (.*)$", re.MULTILINE)
_PYTHONS = re.compile(r"^(\w+Error: .*)$", re.MULTILINE)
"""The last line of a traceback of a worker: the first 600 characters are of its other end."""


def in_one_line(error: PySparkException) -> str:
    """What a task or planner of ours raised, out of Spark's many lines."""
    text = str(error)
    found = _OURS.findall(text) or _PYTHONS.findall(text)
    return found[-1] if found else " ".join(text.split())[:600]
