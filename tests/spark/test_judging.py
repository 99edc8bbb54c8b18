"""The verifying pipeline counts each kind of fault in landed rows exactly.

Its fixture is the load, and the verification of one, that the usual run tries with Spark.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import functions as F

from lockstep.spark.load.load_rows import Manifest
from lockstep.spark.load.verifying import (
    Judgement,
    by_key,
    expectation,
    gaps,
    histogram,
    judge,
    of_run,
    per_second,
    quantiles,
)
from support.spark_jobs import CLEAN, load, verify
from support.spark_table import SparkCluster, Table


@pytest.fixture(scope="module")
def landed(spark: Any, spark_cluster: SparkCluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Manifest]:
    """Return the landed rows of a complete run of 2,000 rows and 40 keys, and its manifest."""
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


@pytest.mark.slow
def test_key_without_any_row_is_lost_completely(landed: tuple[Any, Manifest]) -> None:
    findings = judged(landed, lambda rows: rows.where("key_number != 39"))
    assert counts(findings) == {"lost": 50}
    assert [one["what"] for one in findings.violations] == ["key 39 seq 0 to 49"]


@pytest.mark.slow
def test_repeated_rows_are_counted_and_not_out_of_order(landed: tuple[Any, Manifest]) -> None:
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
    assert findings.violations[0]["what"] == "key 3 seq 10 after seq 11"


@pytest.mark.slow
def test_row_in_another_queue_is_misplaced(landed: tuple[Any, Manifest]) -> None:
    moved = F.when(is_(3, 10), F.pmod(F.col("queue") + 1, F.lit(4))).otherwise(F.col("queue")).cast("int")
    assert counts(judged(landed, lambda rows: rows.withColumn("queue", moved))) == {"misplaced": 1}
    other = F.when(is_(3, 10), F.lit("k000004")).otherwise(F.col("key"))
    assert counts(judged(landed, lambda rows: rows.withColumn("key", other))) == {"misplaced": 1}


@pytest.mark.slow
def test_corrupt_rows_are_not_also_counted_as_lost(landed: tuple[Any, Manifest]) -> None:
    findings = judged(landed, lambda rows: rows.withColumn("crc_matches", F.col("crc_matches") & ~is_(3, 10, 11)))
    assert counts(findings) == {"corrupt": 2}


@pytest.mark.slow
@pytest.mark.parametrize("seq", [None, 1 << 40])
def test_corrupt_row_with_an_unsent_value_is_corrupt_and_its_original_is_lost(landed: tuple[Any, Manifest], seq: int | None) -> None:
    said = F.when(is_(3, 10), F.lit(seq)).otherwise(F.col("seq")).cast("bigint")
    changed = {"crc_matches": F.col("crc_matches") & ~is_(3, 10), "seq": said}
    assert counts(judged(landed, lambda rows: rows.withColumns(changed))) == {"lost": 1, "corrupt": 1}


@pytest.mark.slow
def test_foreign_rows_and_unexpected_rows_are_counted_separately(landed: tuple[Any, Manifest]) -> None:
    foreign = lambda rows: rows.where(is_(3, 10)).withColumn("run_id", F.lit("ffffffffffffffff"))  # noqa: E731
    assert counts(judged(landed, lambda rows: rows.unionByName(foreign(rows)))) == {"foreign": 1}
    beyond = lambda rows: rows.where(is_(3, 49)).withColumns({"seq": F.lit(50).cast("bigint"), "offset": F.col("offset") + 100_000})  # noqa: E731
    assert counts(judged(landed, lambda rows: rows.unionByName(beyond(rows)))) == {"unexpected": 1}


def test_latency_statistics_are_exact(spark: Any) -> None:
    """There are 100 rows, 1 to 100 ms late. The last one is stored two seconds after the others."""
    stored = (5_000_000 + F.when(F.col("id") == 100, 2_000_000).otherwise(0)).alias("stored_us")
    rows = spark.range(1, 101, 1, 1).select(stored, (F.col("id") * 1.0).alias("late"))
    assert quantiles(rows, F.col("late")) == {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 100.0, "max": 100.0}
    assert quantiles(rows.where("late > 100"), F.col("late")) is None
    seconds = [tuple(row) for row in per_second(rows, F.col("late")).orderBy("second").collect()]
    assert seconds == [(0, 99, 50.0, 99.0, 99.0), (2, 1, 100.0, 100.0, 100.0)]
    bins = [(round(ms, 1), count) for ms, count in histogram(rows, F.col("late"))]
    assert bins == [(1.0, 1), (3.2, 2), (5.6, 2), (10.0, 5), (17.8, 7), (31.6, 14), (56.2, 25), (100.0, 44)]


def test_offsets_without_a_row_are_reported_as_gaps(landed: tuple[Any, Manifest]) -> None:
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
    findings.add_gaps(gaps(spark, rows.where(~holes), manifest, read), manifest)
    assert counts(findings) == {"lost": 4}
    assert findings.counts["missingOffsets"] == 4
    assert [(one["queue"], one["offset"], one["what"]) for one in findings.violations if one["kind"] == "gap"] == [
        (1, first, f"queue broker-a:1 has no messages at offsets {first} to {last}") for first, last in ((0, 0), (5, 6), (9, 9))
    ]
    assert [one["kind"] for one in findings.violations[:4]] == ["gap", "gap", "gap", "lost"], "why rows are lost comes first"


def test_queue_without_any_row_is_a_gap(landed: tuple[Any, Manifest]) -> None:
    """A queue that ends at the run's start offset or below it is not a gap."""
    rows, manifest = landed
    manifest = replace(manifest, start_offsets={manifest.topic: dict.fromkeys(manifest.queues, 100)})
    ends = {manifest.topic: dict(zip(manifest.queues, (150, 100, 7, 103), strict=True))}
    behind = rows.where("queue = 3").limit(3).withColumn("offset", F.col("offset") * 0 + 100).distinct()
    found = gaps(rows.sparkSession, behind.where("offset >= 100"), manifest, ends)
    assert found == [(0, 100, 149)]


def test_simultaneous_faults_are_counted_separately(landed: tuple[Any, Manifest]) -> None:
    def faulty(rows: Any) -> Any:
        again = rows.where(is_(9, 1, 2, 3, 4, 5)).withColumn("offset", F.col("offset") + 100_000)
        return rows.where(~is_(7, 20, 21, 22)).unionByName(again).withColumn("crc_matches", F.col("crc_matches") & ~is_(1, 1))

    assert counts(judged(landed, faulty)) == {"lost": 3, "repeated": 5, "corrupt": 1}


@pytest.mark.slow
def test_expected_rows_are_taken_from_the_manifest(landed: tuple[Any, Manifest]) -> None:
    rows, manifest = landed
    findings = judged((rows, replace(manifest, rows=2_100)), lambda rows: rows)
    assert counts(findings) == {"lost": 100}
