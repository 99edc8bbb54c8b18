"""The verifying pipeline over a topic: each fault is counted and determines the exit code."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from lockstep.spark import stage_progress
from lockstep.spark.load import verify_job
from lockstep.spark.load.load_rows import Manifest, numbered, to_send
from lockstep.spark.load.verifying import (
    Findings,
    violation,
)
from support.spark_jobs import CLEAN, MANIFEST, load, verdict, verify
from support.spark_table import Table


def test_invalid_manifest_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = MANIFEST
    text = json.dumps(manifest.plain())
    for given, said in (
        (None, "the load generator writes"),
        (b"{", "is not JSON"),
        (b"\xff\xfe{", "is not JSON"),
        (b"{}", "not a manifest"),
        (b'{"version": 9}', "version 9"),
        (text.replace('"rows": 10', '"rows": "10"').encode(), "Manifest.rows: expected int, got str '10'"),
        (text.replace('"a:0"', "0").encode(), "Manifest.queues"),
    ):
        path = tmp_path / "manifest.json"
        if given is not None:
            path.write_bytes(given)
        assert verify_job.main(["--manifest", str(path)]) == 3
        found = capsys.readouterr().err
        assert found.startswith("failed: ")
        assert said in found
        assert found.count("\n") == 1


def test_some_violations_of_each_kind_are_printed() -> None:
    kinds = ["gap"] * 9 + ["lost"] * 9 + ["corrupt"]
    listed = [violation(kind, str(number)) for number, kind in enumerate(kinds)]
    found = Findings({"found": 10, "missingOffsets": 9, **CLEAN, "lost": 9, "corrupt": 1}, {"dueToStored": None}, listed)
    manifest = MANIFEST
    verdict = verify_job.judged(found, manifest, verify_job.parser().parse_args(["--manifest", "m"]), 1.0)
    reported = verify_job.as_text(verdict, found, Path()).splitlines()
    assert [line for line in reported if line.startswith("  ")] == [f"  {kinds[n]}: {n}" for n in (*range(5), *range(9, 14), 18)]


def row_bytes(spark: Any, manifest: Manifest, row: int) -> bytes:
    """Return the message that the run sends for `row`."""
    rows = numbered(spark, manifest, 1).where(F.col("id") == row).withColumn("partition", F.lit(0))
    rows = rows.withColumn("started_us", F.lit(manifest.started_us))
    (found,) = to_send(rows, manifest).select("value").collect()
    return bytes(found.value)


@pytest.mark.slow
def test_faults_in_the_topic_determine_the_exit_code(table: Table, tmp_path: Path) -> None:
    """A row is repeated. Then 102 rows of 10 keys are expected: row 100 (key 0) has a flipped bit, row 101 (key 1) is missing."""
    assert load(table, tmp_path, "--rows", "100", "--keys", "10", "--size", "60") == 0
    path = tmp_path / "manifest.json"
    manifest = Manifest.parse(json.loads(path.read_text()))
    spark = table.spark
    table.cluster.send(table.topic, [row_bytes(spark, manifest, 7)], key="k000007")
    assert verify(table, tmp_path) == 2, "a repeat"
    assert (verdict(tmp_path)["repeated"], verdict(tmp_path)["clean"]) == (1, False)
    assert verify(table, tmp_path, "--landed", "--nameserver", "127.0.0.1:1", "--allow-duplicates", "1") == 0, "reads nothing"
    longer = replace(manifest, rows=102)
    path.write_text(json.dumps(longer.plain()))
    flipped = bytearray(row_bytes(spark, longer, 100))
    flipped[40] ^= 1
    table.cluster.send(table.topic, [bytes(flipped)], key="k000000")
    assert verify(table, tmp_path, "--allow-duplicates", "1") == 1
    found = verdict(tmp_path)
    assert {name: found[name] for name in CLEAN} == {**CLEAN, "lost": 1, "repeated": 1, "corrupt": 1}
    violations = {row.kind: row for row in spark.read.parquet(str(tmp_path / "violations")).collect()}
    ends = {queue.queue_id: end for queue, end in table.cluster.ends(table.topic).items()}
    assert violations["lost"].what == "key 1 seq 10"
    assert violations["repeated"].what.startswith("key 7 seq 0, first in queue ")
    assert violations["corrupt"].offset == ends[violations["corrupt"].queue] - 1
    short = spark.read.parquet(str(tmp_path / "per_key")).where("lost > 0 or repeated > 0").orderBy("key_number").collect()
    assert [(row.key_number, row.expected, row.lost, row.repeated) for row in short] == [(1, 11, 1, 0), (7, 10, 0, 1)]
    assert sum(row.rows for row in spark.read.parquet(str(tmp_path / "per_second")).collect()) == 101, "sound rows"


@pytest.mark.slow
def test_rows_missing_in_the_topic_are_counted_as_lost(table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The topic was deleted and recreated with fewer queues and higher offsets."""
    before = numbered(table.spark, replace(MANIFEST, rows=400, keys=40), 1)
    table.write(before.select(F.lit("x").alias("value"), (F.col("id") % 4).cast("int").alias("partition")))
    assert load(table, tmp_path, "--rows", "100", "--keys", "10") == 0
    command = [sys.executable, "-m", "lockstep.cli.main", "topic", "delete", table.topic]
    subprocess.run([*command, "--nameserver", table.cluster.nameserver], check=True, capture_output=True)
    table.cluster.create(table.topic, 3)
    assert verify(table, tmp_path) == 1, capsys.readouterr().err
    found = verdict(tmp_path)
    assert {name: found[name] for name in CLEAN} == {**CLEAN, "lost": 100}


@pytest.mark.slow
def test_progress_names_what_is_done_and_the_rows_that_are_read(
    table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_job, "BATCH_ROWS", 50)
    monkeypatch.setattr(verify_job, "PROGRESS_S", 0.2)
    monkeypatch.setattr(stage_progress, "PRINT_EVERY_S", 0.02)
    assert load(table, tmp_path, "--rows", "200", "--keys", "10") == 0
    capsys.readouterr()
    assert verify(table, tmp_path, "--progress") == 0
    printed = capsys.readouterr().err
    assert re.search(r"^  reading the topic: [1-9]\d* of 200 rows", printed, re.MULTILINE), printed
    assert re.search(r"^  comparing the rows with the manifest(, \d+ of \d+ tasks)?$", printed, re.MULTILINE), printed


@pytest.mark.slow
def test_run_repeated_after_a_lost_store_is_read_from_the_first_offset(table: Table, tmp_path: Path) -> None:
    """The manifest is from the first start, and the queues now end below its offsets."""
    assert load(table, tmp_path, "--rows", "100", "--keys", "10") == 0
    path = tmp_path / "manifest.json"
    manifest = Manifest.parse(json.loads(path.read_text()))
    above = {table.topic: {name: offset + 1_000 for name, offset in manifest.start_offsets[table.topic].items()}}
    path.write_text(json.dumps(replace(manifest, start_offsets=above).plain()))
    assert verify(table, tmp_path) == 0
    found = verdict(tmp_path)
    assert {name: found[name] for name in CLEAN} == CLEAN
    assert found["missingOffsets"] == 0


@pytest.mark.slow
def test_queue_whose_messages_were_all_removed_is_reported_with_its_offsets(table: Table, tmp_path: Path) -> None:
    """This is the state after retention: the queue has offsets but no messages."""
    assert load(table, tmp_path, "--rows", "100", "--keys", "10") == 0
    assert verify(table, tmp_path) == 0
    landing = tmp_path / "landing"
    kept = table.spark.read.parquet(str(landing)).where("queue != 2").persist()
    gone = 100 - kept.count()
    assert gone > 0
    other = tmp_path / "kept"
    kept.write.parquet(str(other / "landing"))
    (other / "landing-ends.json").write_text((tmp_path / "landing-ends.json").read_text())
    assert verify(table, tmp_path, "--landed", "--out", str(other)) == 1
    found = verdict(other)
    assert (found["lost"], found["missingOffsets"]) == (gone, gone)
    (gap,) = table.spark.read.parquet(str(other / "violations")).where("kind = 'gap'").collect()
    assert gap.what == f"queue broker-a:2 has no messages at offsets 0 to {gone - 1}"


def test_exit_code_depends_on_the_kind_of_fault() -> None:
    options = verify_job.parser().parse_args(["--manifest", "m"])
    manifest = MANIFEST

    def code(allowed: int = 0, **wrong: int) -> int:
        options.allow_duplicates = allowed
        findings = Findings({"found": 10, **CLEAN, **wrong}, {}, [])
        return int(verify_job.judged(findings, manifest, options, 1.0)["exitCode"])

    assert code() == 0
    assert code(foreign=3) == 0
    assert code(repeated=3) == 2
    assert code(allowed=3, repeated=3) == 0
    assert [code(allowed=9, **{name: 1}) for name in ("lost", "outOfOrder", "misplaced", "unexpected", "corrupt")] == [1] * 5
    assert code(lost=1, repeated=1) == 1
