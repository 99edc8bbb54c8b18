"""The load generator and the verifying pipeline: a run that is whole is called clean, and each fault is counted exactly."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from lockstep.spark import job as jobs
from lockstep.spark import load_job, queue_count, verify_job
from lockstep.spark.job import in_one_line, run
from lockstep.spark.load_rows import Manifest, key_of, numbered, sent_columns, to_send
from lockstep.spark.verifying import (
    Findings,
    Judgement,
    by_key,
    expectation,
    gaps,
    histogram,
    judge,
    of_run,
    per_second,
    quantiles,
    violation,
)
from support.spark_table import SparkCluster, Table

CLEAN = {"repeatedElsewhere": 0, "lost": 0, "repeated": 0, "unexpected": 0, "outOfOrder": 0, "misplaced": 0, "corrupt": 0, "foreign": 0}


def load(table: Table, folder: Path, *more: str) -> int:
    given = [
        "--nameserver",
        table.cluster.nameserver,
        "--topic",
        table.topic,
        "--out",
        str(folder),
        "--no-warmup",
        "--no-progress",
        "--json",
    ]
    return load_job.main([*given, *more], table.spark)


def verify(table: Table, folder: Path, *more: str) -> int:
    given = ["--nameserver", table.cluster.nameserver, "--manifest", str(folder / "manifest.json"), "--json"]
    return verify_job.main([*given, *more], table.spark)


def verdict(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "verdict.json").read_text())
    return found


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(
            ["--keys", "50", "--skew", "0.9", "--size", "60-120", "--tags", "a,b", "--rate", "20000", "--fail-task", "1:500"], id="paced"
        ),
        pytest.param(["--order", "none"], id="without keys"),
    ],
)
def test_a_load_is_verified_clean_and_again_adds_nothing(
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


def test_a_run_of_some_seconds_without_idempotence_repeats_what_a_task_sent_before_it_failed(table: Table, tmp_path: Path) -> None:
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


def test_a_run_of_other_settings_does_not_go_on_in_the_same_folder(
    table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["--run-id", "0123456789abcdef", "--rows"]
    assert load(table, tmp_path, *run, "100") == 0
    assert load(table, tmp_path, *run, "200") == 3
    assert "with other settings: give another --out" in capsys.readouterr().err


def test_a_paced_run_that_goes_on_where_there_are_fewer_cores_sends_nothing_twice(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames are told apart by their task, too: the run keeps the number that it began with."""
    run = ["--run-id", "0123456789abcdef", "--rows", "2000", "--rate", "20000"]
    for cores, asked in ((4, ()), (2, ()), (2, ("--partitions", "4"))):
        monkeypatch.setattr(SparkContext, "defaultParallelism", cores)
        assert load(table, tmp_path, *run, *asked) == 0
        assert json.loads((tmp_path / "manifest.json").read_text())["tasks"] == 4
        assert sum(table.cluster.ends(table.topic).values()) == 2_000, f"{cores} cores"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--nameserver", "127.0.0.1:1"], "no nameserver can be reached"),
        (["--topic", "no-such-topic", "--no-create"], "lockstep topic create no-such-topic"),
        (["--size", "31"], "expected 32 (the head that verify_load reads) to"),
        (["--size", "100-50"], "--size 100-50"),
        (["--duration", "5"], "--duration goes with --rate"),
        (["--run-id", "mine"], "expected 16 lower-case hex digits"),
        (["--keys", "200000", "--skew", "1"], "at most 100000"),
        (["--keys", "2147483648"], "--keys 2147483648: at most 2147483647"),
        (["--duration", "0", "--rate", "5"], "is no row"),
        (["--fail-task", "1"], "expected TASK:ROWS"),
        (["--out", "/proc/no-such-folder"], "/proc/no-such-folder"),
    ],
)
def test_what_can_not_be_loaded_is_told_before_spark_starts(
    spark_cluster: SparkCluster, tmp_path: Path, more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--nameserver", spark_cluster.nameserver, "--topic", "load", "--out", str(tmp_path)]
    assert load_job.main([*given, *more]) == 3
    assert said in capsys.readouterr().err


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
def test_flags_that_can_not_be_read_are_told_in_one_line_and_are_no_verdict(
    main: Callable[[list[str]], int], more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(more)
    assert ended.value.code == 3, "2 would say that rows are repeated"
    said = capsys.readouterr().err
    assert said.startswith("failed: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (None, "and there is none: install a JDK"),
        ("echo 'openjdk version \"11.0.2\"' >&2", "is version 11: install a JDK"),
        ("echo '?' >&2", "none"),
        ("exec sleep 600", "does not answer"),
    ],
)
def test_without_a_java_that_spark_runs_on_nothing_begins(
    told: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if told == "exec sleep 600":
        monkeypatch.setattr(jobs, "JAVA_S", 0.2)
    if told is not None:
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        java.write_text(f"#!/bin/sh\n{told}\n")
        java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert run(failing(AssertionError("the job began"))) == 3
    found = capsys.readouterr().err
    assert found.startswith("failed: Spark needs Java 17 or newer, and ")
    assert found.count("\n") == 1
    assert said in found


def test_a_manifest_that_was_cut_is_told(spark_cluster: SparkCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "manifest.json").write_text('{"version": 1,')
    assert load_job.main(["--nameserver", spark_cluster.nameserver, "--topic", "load", "--out", str(tmp_path)]) == 3
    assert "is no JSON" in capsys.readouterr().err


def test_values_have_the_size_that_was_asked_for_however_large(spark: Any) -> None:
    for size in (100, 262_176, 300_000):
        manifest = Manifest("0" * 16, "t", ("a:0",), {}, 10, 4, 0.0, 1, (size, size), 0, "none", (), 0, 1, "sequence")
        rows = to_send(numbered(spark, manifest, 1), manifest).select(F.length("value").alias("bytes"), *sent_columns())
        assert {(row.bytes, row.crc_holds) for row in rows.collect()} == {(size, True)}


def test_no_two_keys_have_one_name(spark: Any) -> None:
    names = spark.range(999_998, 1_000_003).select(key_of(F.col("id")).alias("key"))
    assert [row.key for row in names.collect()] == ["k999998", "k999999", "k1000000", "k1000001", "k1000002"]


@pytest.mark.parametrize("length", [100, 30, 15, 0])
def test_of_any_bytes_it_is_told_what_they_say(spark: Any, length: int) -> None:
    (row,) = spark.createDataFrame([(bytearray(b"\xff" * length),)], "value binary").select(*sent_columns()).collect()
    assert (row.seq, row.born_us, row.crc_holds) == (None, None, False)


def test_a_manifest_that_is_none_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = Manifest("0" * 16, "t", ("a:0",), {}, 10, 1, 0.0, 1, (100, 100), 0, "key", (), 0, 1, "sequence")
    text = json.dumps(manifest.plain())
    for given, said in (
        (None, "the load generator writes"),
        (b"{", "is no JSON"),
        (b"\xff\xfe{", "is no JSON"),
        (b"{}", "no manifest"),
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


@pytest.fixture(scope="module")
def landed(spark: Any, spark_cluster: SparkCluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Manifest]:
    """A whole run of 2,000 rows and 40 keys, as landed."""
    folder = tmp_path_factory.mktemp("landed")
    table = Table(spark, spark_cluster, "t-landed", 4)
    assert load(table, folder, "--rows", "2000", "--keys", "40") == 0
    assert verify(table, folder) == 0
    manifest = Manifest.parse(json.loads((folder / "manifest.json").read_text()))
    return spark.read.parquet(str(folder / "landing")).persist(), manifest


def judged(landed: tuple[Any, Manifest], change: Callable[[Any], Any]) -> Judgement:
    rows, manifest = landed
    ours, foreign = of_run(change(rows), manifest)
    return judge(ours, foreign, by_key(ours, expectation(rows.sparkSession, manifest)).persist(), manifest)


def counts(findings: Judgement) -> dict[str, int]:
    return {name: findings.counts[name] for name in CLEAN if findings.counts[name]}


def is_(key: int, *seqs: int) -> Any:
    return (F.col("key_number") == key) & F.col("seq").isin(*seqs)


def test_lost_rows_are_counted_and_named(landed: tuple[Any, Manifest]) -> None:
    findings = judged(landed, lambda rows: rows.where(~(is_(3, 0, 10, 11, 12, 49) | is_(5, 7))))
    assert counts(findings) == {"lost": 6}
    assert [one["what"] for one in findings.violations] == ["key 3 seq 0", "key 3 seq 10 to 12", "key 3 seq 49", "key 5 seq 7"]


def test_a_key_of_which_nothing_came_is_lost_whole(landed: tuple[Any, Manifest]) -> None:
    findings = judged(landed, lambda rows: rows.where("key_number != 39"))
    assert counts(findings) == {"lost": 50}
    assert [one["what"] for one in findings.violations] == ["key 39 seq 0 to 49"]


def test_repeats_are_counted_and_are_not_out_of_order(landed: tuple[Any, Manifest]) -> None:
    again = lambda rows: rows.where(is_(3, 4, 5) | is_(8, 20)).withColumn("offset", F.col("offset") + 100_000)  # noqa: E731
    findings = judged(landed, lambda rows: rows.unionByName(again(rows)).unionByName(again(rows).where(is_(8, 20))))
    assert counts(findings) == {"repeated": 4}
    moved = lambda rows: again(rows).where(is_(3, 4)).withColumn("queue", (F.col("queue") + 1) % 4)  # noqa: E731
    assert counts(judged(landed, lambda rows: rows.unionByName(again(rows)).unionByName(moved(rows)))) == {
        "repeated": 4,
        "repeatedElsewhere": 1,
        "misplaced": 1,
    }
    assert [one["kind"] for one in findings.violations] == ["repeated"] * 3


def test_swapped_rows_are_out_of_order_once(landed: tuple[Any, Manifest]) -> None:
    def swapped(rows: Any) -> Any:
        places = {row.seq: row.offset for row in rows.where(is_(3, 10, 11)).collect()}
        other = F.when(is_(3, 10), places[11]).when(is_(3, 11), places[10]).otherwise(F.col("offset"))
        return rows.withColumn("offset", other.cast("bigint"))

    findings = judged(landed, swapped)
    assert counts(findings) == {"outOfOrder": 1}
    assert findings.violations[0]["what"] == "key 3 seq 10 behind seq 11"


def test_a_row_in_another_queue_is_misplaced(landed: tuple[Any, Manifest]) -> None:
    moved = F.when(is_(3, 10), F.pmod(F.col("queue") + 1, F.lit(4))).otherwise(F.col("queue")).cast("int")
    assert counts(judged(landed, lambda rows: rows.withColumn("queue", moved))) == {"misplaced": 1}
    other = F.when(is_(3, 10), F.lit("k000004")).otherwise(F.col("key"))
    assert counts(judged(landed, lambda rows: rows.withColumn("key", other))) == {"misplaced": 1}


def test_corrupt_rows_are_not_lost_besides(landed: tuple[Any, Manifest]) -> None:
    findings = judged(landed, lambda rows: rows.withColumn("crc_holds", F.col("crc_holds") & ~is_(3, 10, 11)))
    assert counts(findings) == {"corrupt": 2}


@pytest.mark.parametrize("seq", [None, 1 << 40])
def test_a_corrupt_row_that_says_what_nobody_sent_is_corrupt_and_its_own_is_lost(landed: tuple[Any, Manifest], seq: int | None) -> None:
    said = F.when(is_(3, 10), F.lit(seq)).otherwise(F.col("seq")).cast("bigint")
    changed = {"crc_holds": F.col("crc_holds") & ~is_(3, 10), "seq": said}
    assert counts(judged(landed, lambda rows: rows.withColumns(changed))) == {"lost": 1, "corrupt": 1}


def test_rows_of_others_are_counted_apart_and_rows_that_nobody_sent_are_told(landed: tuple[Any, Manifest]) -> None:
    foreign = lambda rows: rows.where(is_(3, 10)).withColumn("run_id", F.lit("ffffffffffffffff"))  # noqa: E731
    assert counts(judged(landed, lambda rows: rows.unionByName(foreign(rows)))) == {"foreign": 1}
    beyond = lambda rows: rows.where(is_(3, 49)).withColumns({"seq": F.lit(50).cast("bigint"), "offset": F.col("offset") + 100_000})  # noqa: E731
    assert counts(judged(landed, lambda rows: rows.unionByName(beyond(rows)))) == {"unexpected": 1}


def test_latencies_are_counted_where_they_are(spark: Any) -> None:
    """100 rows, 1 to 100 ms late; the last one is stored two seconds after the others."""
    stored = (5_000_000 + F.when(F.col("id") == 100, 2_000_000).otherwise(0)).alias("stored_us")
    rows = spark.range(1, 101, 1, 1).select(stored, (F.col("id") * 1.0).alias("late"))
    assert quantiles(rows, F.col("late")) == {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 100.0, "max": 100.0}
    assert quantiles(rows.where("late > 100"), F.col("late")) is None
    seconds = [tuple(row) for row in per_second(rows, F.col("late")).orderBy("second").collect()]
    assert seconds == [(0, 99, 50.0, 99.0, 99.0), (2, 1, 100.0, 100.0, 100.0)]
    bins = [(round(ms, 1), count) for ms, count in histogram(rows, F.col("late"))]
    assert bins == [(1.0, 1), (3.2, 2), (5.6, 2), (10.0, 5), (17.8, 7), (31.6, 14), (56.2, 25), (100.0, 44)]


def test_offsets_that_nothing_was_read_of_are_told_as_gaps(landed: tuple[Any, Manifest]) -> None:
    rows, manifest = landed
    spark = rows.sparkSession
    ends = {row.queue: row.end for row in rows.groupBy("queue").agg((F.max("offset") + 1).alias("end")).collect()}
    read = {manifest.topic: {name: ends[number] for number, name in enumerate(manifest.queues)}}
    assert gaps(spark, rows, manifest, read) == []
    holes = (F.col("queue") == 1) & F.col("offset").isin(0, 5, 6, 9)
    behind_the_start = replace(manifest, start_offsets={manifest.topic: {**manifest.start_offsets[manifest.topic], manifest.queues[2]: 3}})
    assert gaps(spark, rows.where(~holes), manifest, read) == [(1, 0, 0), (1, 5, 6), (1, 9, 9)]
    assert gaps(spark, rows.where("queue != 2 or offset >= 3"), behind_the_start, read) == []
    findings = judged(landed, lambda rows: rows.where(~holes))
    findings.add(gaps(spark, rows.where(~holes), manifest, read), manifest)
    assert counts(findings) == {"lost": 4}
    assert findings.counts["missingOffsets"] == 4
    assert [(one["queue"], one["offset"], one["what"]) for one in findings.violations if one["kind"] == "gap"] == [
        (1, first, f"queue broker-a:1 has nothing at offsets {first} to {last}") for first, last in ((0, 0), (5, 6), (9, 9))
    ]
    assert [one["kind"] for one in findings.violations[:4]] == ["gap", "gap", "gap", "lost"], "why rows are lost comes first"


def test_a_queue_of_which_nothing_was_read_is_a_gap(landed: tuple[Any, Manifest]) -> None:
    """But not one that ends where the run began, nor one that begins anew below that."""
    rows, manifest = landed
    manifest = replace(manifest, start_offsets={manifest.topic: dict.fromkeys(manifest.queues, 100)})
    ends = {manifest.topic: dict(zip(manifest.queues, (150, 100, 7, 103), strict=True))}
    behind = rows.where("queue = 3").limit(3).withColumn("offset", F.col("offset") * 0 + 100).distinct()
    found = gaps(rows.sparkSession, behind.where("offset >= 100"), manifest, ends)
    assert found == [(0, 100, 149)]


def test_of_each_kind_some_are_told() -> None:
    kinds = ["gap"] * 9 + ["lost"] * 9 + ["corrupt"]
    listed = [violation(kind, str(number)) for number, kind in enumerate(kinds)]
    found = Findings({"found": 10, "missingOffsets": 9, **CLEAN, "lost": 9, "corrupt": 1}, {"dueToStored": None}, listed)
    manifest = Manifest("0" * 16, "t", ("a:0",), {}, 10, 1, 0.0, 1, (100, 100), 0, "key", (), 0, 1, "sequence")
    verdict = verify_job.judged(found, manifest, verify_job.parser().parse_args(["--manifest", "m"]), 1.0)
    told = verify_job.as_text(verdict, found, Path()).splitlines()
    assert [line for line in told if line.startswith("  ")] == [f"  {kinds[n]}: {n}" for n in (*range(5), *range(9, 14), 18)]


def row_bytes(spark: Any, manifest: Manifest, row: int) -> bytes:
    """What the run sends as that row."""
    rows = numbered(spark, manifest, 1).where(F.col("id") == row).withColumn("partition", F.lit(0))
    (found,) = to_send(rows, manifest).select("value").collect()
    return bytes(found.value)


def test_faults_that_stand_in_the_topic_end_the_program_with_their_exit_codes(table: Table, tmp_path: Path) -> None:
    """102 rows of 10 keys are expected, and row 100 (key 0) comes with a flipped bit, row 101 (key 1) never; then a row twice."""
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


def test_what_is_gone_from_the_topic_is_counted_as_lost(table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The topic was made anew: it goes on with higher offsets, and has fewer queues."""
    before = numbered(table.spark, Manifest("0" * 16, table.topic, ("a:0",), {}, 400, 40, 0.0, 1, (60, 60), 0, "key", (), 0, 1, "none"), 1)
    table.write(before.select(F.lit("x").alias("value"), (F.col("id") % 4).cast("int").alias("partition")))
    assert load(table, tmp_path, "--rows", "100", "--keys", "10") == 0
    command = [sys.executable, "-m", "lockstep.admin.cli", "topic", "delete", table.topic]
    subprocess.run([*command, "--nameserver", table.cluster.nameserver], check=True, capture_output=True)
    table.cluster.create(table.topic, 3)
    assert verify(table, tmp_path) == 1, capsys.readouterr().err
    found = verdict(tmp_path)
    assert {name: found[name] for name in CLEAN} == {**CLEAN, "lost": 100}


def test_a_run_that_was_sent_again_behind_a_lost_store_is_found_from_the_first_offset_on(table: Table, tmp_path: Path) -> None:
    """The manifest is that of the first start, and the queues end below it now."""
    assert load(table, tmp_path, "--rows", "100", "--keys", "10") == 0
    path = tmp_path / "manifest.json"
    manifest = Manifest.parse(json.loads(path.read_text()))
    above = {table.topic: {name: offset + 1_000 for name, offset in manifest.start_offsets[table.topic].items()}}
    path.write_text(json.dumps(replace(manifest, start_offsets=above).plain()))
    assert verify(table, tmp_path) == 0
    found = verdict(tmp_path)
    assert {name: found[name] for name in CLEAN} == CLEAN
    assert found["missingOffsets"] == 0


def test_a_queue_whose_messages_are_all_gone_is_told_with_its_offsets(table: Table, tmp_path: Path) -> None:
    """As retention leaves it: there are offsets, and nothing behind them."""
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
    assert gap.what == f"queue broker-a:2 has nothing at offsets 0 to {gone - 1}"


def test_faults_together_are_counted_each_for_itself(landed: tuple[Any, Manifest]) -> None:
    def faulty(rows: Any) -> Any:
        again = rows.where(is_(9, 1, 2, 3, 4, 5)).withColumn("offset", F.col("offset") + 100_000)
        return rows.where(~is_(7, 20, 21, 22)).unionByName(again).withColumn("crc_holds", F.col("crc_holds") & ~is_(1, 1))

    assert counts(judged(landed, faulty)) == {"lost": 3, "repeated": 5, "corrupt": 1}


def test_the_manifest_is_what_is_expected_not_what_is_there(landed: tuple[Any, Manifest]) -> None:
    rows, manifest = landed
    findings = judged((rows, replace(manifest, rows=2_100)), lambda rows: rows)
    assert counts(findings) == {"lost": 100}


def failing(error: Exception) -> Callable[[], int]:
    def job() -> int:
        raise error

    return job


def test_what_the_jvm_raised_is_told_in_one_line_and_is_no_verdict(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Py4JJavaError) as failed:
        spark._jvm.java.io.File("/no-such-folder/file").createNewFile()
    assert run(failing(failed.value)) == 3
    said = capsys.readouterr().err
    assert said.startswith("failed: java.io.IOException: No such file or directory. That is Spark's own")
    assert "then begin again" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("error", [Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError(111, "Connection refused")])
def test_a_jvm_that_is_gone_is_told_in_one_line_and_is_no_verdict(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(failing(error)) == 3
    said = capsys.readouterr().err
    assert said.startswith("failed: Spark's JVM ended, or answers no more")
    assert "--driver-memory 4g" in said
    assert said.count("\n") == 1


def test_what_nobody_has_foreseen_is_no_verdict_and_is_told_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(failing(ZeroDivisionError("division by zero"))) == 3, "1 would say that rows are lost"
    said = capsys.readouterr().err
    assert said.startswith("Traceback")
    assert said.endswith("\nfailed: ZeroDivisionError: division by zero\n")


UNREAD = """
import sys
from lockstep.spark.job import run, say
def job():
    sys.stdin.read()  # until nobody reads
    if "{to}" == "stdout":
        print("result", flush=True)
    else:
        say("progress")
    return 0
sys.exit(run(job))
"""


@pytest.mark.parametrize(("to", "code"), [("stdout", 3), ("stderr", 0)])
def test_a_pipe_that_nobody_reads_is_no_lost_jvm_and_no_verdict(to: str, code: int) -> None:
    """Of results it fails the job; of what is said beside them nobody need read anything."""
    program = [sys.executable, "-c", UNREAD.format(to=to)]
    job = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
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
        assert said.startswith("failed: nobody reads")
        assert said.count("\n") == 1


def test_what_py4j_logs_of_a_lost_jvm_is_not_told_besides(caplog: pytest.LogCaptureFixture) -> None:
    def job() -> int:
        logging.getLogger("py4j.clientserver").error("of its own logger")
        logging.getLogger("lockstep.spark").error("ours")
        return 0

    assert run(job) == 0
    assert [record.getMessage() for record in caplog.records] == ["ours"]


def test_what_a_worker_raised_is_told_by_its_last_line() -> None:
    trace = (
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        + 900 * "."
        + "\nIndexError: 7\n\n\tat org.x"
    )
    assert in_one_line(PySparkException(trace)) == "IndexError: 7"
    ours = trace.replace("IndexError", "lockstep.protocol.errors.ConfigError")
    assert in_one_line(PySparkException(ours)) == "7"


def test_exit_codes_say_what_is_wrong() -> None:
    options = verify_job.parser().parse_args(["--manifest", "m"])
    manifest = Manifest("0" * 16, "t", ("a:0",), {}, 10, 1, 0.0, 1, (100, 100), 0, "key", (), 0, 1, "sequence")

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
