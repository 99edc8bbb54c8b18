"""The load generator: sends, repetitions, and errors."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import functions as F

from lockstep.spark import queue_count
from lockstep.spark.load import load_job
from lockstep.spark.load.load_rows import key_of, numbered, sent_columns, to_send
from support.spark_jobs import CLEAN, MANIFEST, load, verdict, verify
from support.spark_table import SparkCluster, Table


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        pytest.param(
            ["--keys", "50", "--skew", "0.9", "--size", "60-120", "--tags", "a,b", "--rate", "20000", "--fail-task", "1:500"], id="paced"
        ),
        pytest.param(["--order", "none"], id="without keys"),
    ],
)
def test_load_is_verified_clean_and_repeating_it_adds_no_row(
    table: Table, tmp_path: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["--rows", "3000", "--run-id", "0123456789abcdef", *more]
    assert load(table, tmp_path, *run) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["rows"] == 3_000
    assert (summary["repeatedFrames"] > 0) == ("--fail-task" in more)
    rows = table.read(columns="value,tags").collect()
    sizes, tags = {len(row.value) for row in rows}, {row.tags for row in rows}
    if "--tags" in more:
        assert (min(sizes), max(sizes), tags) == (60, 120, {"a", "b"})
    else:
        assert (sizes, tags) == ({100}, {None})
    assert load(table, tmp_path, *run) == 0, "the same run again"
    assert sum(table.cluster.ends(table.topic).values()) == 3_000
    assert verify(table, tmp_path) == 0
    found = verdict(tmp_path)
    assert {name: found[name] for name in CLEAN} == CLEAN
    assert (found["clean"], found["found"], found["missingOffsets"]) == (True, 3_000, 0)
    assert (found["latencyMs"]["dueToStored"] is not None) == ("--rate" in more)
    assert "<svg" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_timed_load_without_idempotence_repeats_rows_of_a_failed_task(table: Table, tmp_path: Path) -> None:
    table.topic += "-made"
    what = ["--queues", "2", "--duration", "0.5", "--rate", "2000", "--keys", "20", "--idempotence", "none", "--fail-task", "0:100"]
    assert load(table, tmp_path, *what) == 0
    assert queue_count(table.cluster.nameserver, table.topic) == 2, "it made the topic"
    repeated = sum(table.cluster.ends(table.topic).values()) - 1_000
    assert repeated >= 100
    assert verify(table, tmp_path) == 2
    found = verdict(tmp_path)
    assert {name: found[name] for name in CLEAN} == {**CLEAN, "repeated": repeated}
    assert verify(table, tmp_path, "--allow-duplicates", str(repeated)) == 0


def test_run_with_other_settings_in_the_same_folder_is_rejected(table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["--run-id", "0123456789abcdef", "--rows"]
    assert load(table, tmp_path, *run, "100") == 0
    assert load(table, tmp_path, *run, "200") == 3
    assert "with other settings: use another --out" in capsys.readouterr().err


@pytest.mark.slow
def test_paced_run_resumed_with_fewer_cores_sends_no_row_twice(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The identity of a frame includes its task, so the run keeps its initial number of tasks."""
    run = ["--run-id", "0123456789abcdef", "--rows", "2000", "--rate", "20000"]
    for cores, requested in ((4, ()), (2, ()), (2, ("--partitions", "4"))):
        monkeypatch.setattr(SparkContext, "defaultParallelism", cores)
        assert load(table, tmp_path, *run, *requested) == 0
        assert json.loads((tmp_path / "manifest.json").read_text())["tasks"] == 4
        assert sum(table.cluster.ends(table.topic).values()) == 2_000, f"{cores} cores"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--nameserver", "127.0.0.1:1"], "no nameserver can be reached"),
        (["--topic", "no-such-topic", "--no-create"], "lockstep topic create no-such-topic"),
        (["--size", "31"], "expected 32 (the head that verify_load reads) to"),
        (["--size", "100-50"], "--size 100-50"),
        (["--duration", "5"], "--duration requires --rate"),
        (["--run-id", "mine"], "expected 16 lower-case hex digits"),
        (["--keys", "200000", "--skew", "1"], "at most 100000"),
        (["--keys", "2147483648"], "--keys 2147483648: at most 2147483647"),
        (["--duration", "0", "--rate", "5"], "yields 0 rows"),
        (["--fail-task", "1"], "expected TASK:ROWS"),
        (["--out", "/proc/no-such-folder"], "/proc/no-such-folder"),
    ],
)
def test_invalid_load_is_reported_before_spark_starts(
    spark_cluster: SparkCluster, tmp_path: Path, more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--nameserver", spark_cluster.nameserver, "--topic", "load", "--out", str(tmp_path)]
    assert load_job.main([*given, *more]) == 3
    assert said in capsys.readouterr().err


def test_truncated_manifest_is_reported(spark_cluster: SparkCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "manifest.json").write_text('{"version": 1,')
    assert load_job.main(["--nameserver", spark_cluster.nameserver, "--topic", "load", "--out", str(tmp_path)]) == 3
    assert "is not JSON" in capsys.readouterr().err


def test_values_have_the_requested_size(spark: Any) -> None:
    for size in (100, 262_176, 300_000):
        manifest = replace(MANIFEST, keys=4, size=(size, size), order="none")
        ids = numbered(spark, manifest, 1).withColumn("started_us", F.lit(manifest.started_us))
        rows = to_send(ids, manifest).select(F.length("value").alias("bytes"), *sent_columns())
        assert {(row.bytes, row.crc_matches) for row in rows.collect()} == {(size, True)}


def test_key_names_are_distinct(spark: Any) -> None:
    names = spark.range(999_998, 1_000_003).select(key_of(F.col("id")).alias("key"))
    assert [row.key for row in names.collect()] == ["k999998", "k999999", "k1000000", "k1000001", "k1000002"]


@pytest.mark.parametrize("length", [100, 30, 15, 0])
def test_sent_columns_of_arbitrary_bytes_are_null(spark: Any, length: int) -> None:
    (row,) = spark.createDataFrame([(bytearray(b"\xff" * length),)], "value binary").select(*sent_columns()).collect()
    assert (row.seq, row.born_us, row.crc_matches) == (None, None, False)
