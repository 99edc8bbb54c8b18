"""The programs that users start: the demo, spark-submit, and a session without options."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.processes import clean_environment, run_program
from support.spark_table import SparkCluster, Table

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
FOUND = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print("rows:", spark.read.format("lockstep").options(nameserver="{nameserver}", subscribe="{topic}").load().count())
"""

SETTINGS = """
from lockstep.spark.job import session
spark = session("settings", None, {"spark.driver.host": "127.0.0.1", "spark.sql.shuffle.partitions": "4"})
print("settings:", *(spark.conf.get(f"spark.{name}") for name in ("log.level", "driver.host", "sql.shuffle.partitions", "ui.enabled")))
"""
KILLED = """
import os, signal, sys
from lockstep.spark.job import run, session

def job():
    spark = session("killed", "local[1]", {})
    os.kill(int(spark._jvm.java.lang.ProcessHandle.current().pid()), signal.SIGKILL)
    try:
        return spark.range(5).count()
    finally:
        spark.stop()

sys.exit(run(job))
"""


def submit(script: "str | Path", *options: str, conf: Sequence[str] = ()) -> "subprocess.CompletedProcess[str]":
    command = [str(Path(sys.executable).with_name("spark-submit")), *conf, str(SCRIPTS / script), *options]
    environment = clean_environment(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)


def test_load_by_spark_submit_is_verified_by_spark_submit(spark_cluster: SparkCluster, tmp_path: Path) -> None:
    where = ["--nameserver", spark_cluster.nameserver]
    loaded = submit("load_generator.py", *where, "--topic", "t-submitted", "--rows", "5000", "--out", str(tmp_path), "--progress")
    assert loaded.returncode == 0, loaded.stderr[-2_000:]
    assert "\n5,000 rows stored in " in loaded.stdout
    verified = submit("verify_load.py", *where, "--manifest", str(tmp_path / "manifest.json"), "--json")
    assert verified.returncode == 0, verified.stderr[-2_000:]
    assert json.loads(verified.stdout.splitlines()[-1])["clean"] is True


def test_spark_submit_without_a_nameserver_reports_one_line(tmp_path: Path) -> None:
    failed = submit("load_generator.py", "--nameserver", "127.0.0.1:1", "--out", str(tmp_path))
    assert failed.returncode == 3
    assert [line for line in failed.stdout.splitlines() if "no nameserver can be reached" in line and line.startswith("failed: ")]


def test_spark_submit_configuration_has_precedence_over_the_jobs(tmp_path: Path) -> None:
    (tmp_path / "settings.py").write_text(SETTINGS)
    conf = ["--conf", "spark.log.level=WARN", "-c", "spark.driver.host=localhost", "--conf=spark.sql.shuffle.partitions=7"]
    for given, found in ((conf, "WARN localhost 7 false"), ([], "ERROR 127.0.0.1 4 false")):
        done = submit(tmp_path / "settings.py", conf=given)
        assert f"settings: {found}\n" in done.stdout, done.stdout + done.stderr[-2_000:]


def test_killed_jvm_is_reported_in_one_line() -> None:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert done.returncode == 3
    assert [line for line in done.stderr.splitlines() if line.startswith("failed: Spark's JVM has ended or does not respond")]
    assert "Traceback" not in done.stderr


def test_spark_discovers_the_data_source(table: Table) -> None:
    table.cluster.send(table.topic, [b"1", b"2"])
    program = FOUND.format(nameserver=table.cluster.nameserver, topic=table.topic)
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert "rows: 2" in done.stdout, done.stderr[-2_000:]


def test_demo_verifies_its_result(tmp_path: Path) -> None:
    options = ["--scripts", str(SCRIPTS), "--rows", "4000", "--rate", "1000", "--folder", str(tmp_path)]
    demo = run_program("lockstep.cli.demo.load", *options, environment=clean_environment(COLUMNS="200"), limit_s=500)
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert re.search(r"[1-9][\d,]* frames of the failed task were sent again and stored once", demo.stdout)
    for reported in (
        "kill -9 broker-b",
        "4,000 of 4,000 rows are there: 0 lost, 0 repeated, 0 out of order",
    ):
        assert reported in demo.stdout
    assert "proved: 4,000 rows, every key's in order" in demo.stdout
