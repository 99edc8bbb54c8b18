"""Count the violations of a landed run exactly, with Spark over parquet files and the manifest's expectation.

The first row of each (key, seq) in its queue counts; the others are repeats. A corrupt row with a readable key and seq is not also
counted as lost. A corrupt row with a key and seq that the run did not send counts only as corrupt; the row that was sent is lost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from lockstep.spark.load.load_rows import Manifest, key_of
from lockstep.spark.offsets import Plain

LANDED = """run_id string, key_number bigint, seq bigint, born_us bigint, crc_matches boolean, key string, queue int, offset bigint,
bytes int, stored_us bigint, read_us bigint"""
"""The schema of landed rows, which a landing without rows has no file to infer from."""
LISTED_MAX = 50
"""Maximum number of listed violations of each kind."""
GAPS_LISTED_MAX = 10
"""Maximum number of listed gaps, which come before the other violations."""
QUANTILES = (0.5, 0.9, 0.99, 0.999)


@dataclass(slots=True)
class Findings:
    """Counts, the first violations of each kind, and the data of the report's charts."""

    counts: dict[str, int]
    latency: dict[str, dict[str, float] | None]
    violations: list[dict[str, Any]]
    seconds: list[dict[str, Any]] = field(default_factory=list)
    """For each second of the run: second, rows, and p50, p99 and max of the ms from due to stored."""
    histogram: list[tuple[float, int]] = field(default_factory=list)
    """(upper bound of the ms from due to stored, rows)."""
    queues: list[tuple[str, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The counts of violations, and the first ones of each kind."""

    counts: dict[str, int]
    violations: list[dict[str, Any]]

    def add_gaps(self, gaps: Sequence[tuple[int, int, int]], manifest: Manifest) -> None:
        """Add offsets that could not be read. They are listed only if rows are lost, which they explain."""
        self.counts["missingOffsets"] = sum(last - first + 1 for _, first, last in gaps)
        if self.counts["lost"]:
            self.violations[:0] = [
                violation("gap", f"queue {manifest.queues[queue]} has no messages at offsets {first} to {last}", queue, first)
                for queue, first, last in gaps[:GAPS_LISTED_MAX]
            ]


def violation(kind: str, what: str, queue: int | None = None, offset: int | None = None) -> dict[str, Any]:
    return {"kind": kind, "what": what, "queue": queue, "offset": offset}


def judge(ours: DataFrame, foreign: int, per_key: DataFrame, manifest: Manifest) -> Judgement:
    """Count and list the violations. `ours`: the run's landed rows; `per_key`: the result of `by_key`."""
    sound = ours.where("crc_matches")
    totals = per_key.agg(*(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("found", "lost", "repeated", "unexpected"))).first()
    assert totals is not None
    disordered, misplaced = out_of_order(sound, manifest), in_wrong_queue(sound, manifest)
    counts = {
        **{name: int(totals[name]) for name in ("found", "lost", "repeated", "unexpected")},
        "outOfOrder": disordered.count(),
        "misplaced": misplaced.count(),
        "corrupt": ours.where(~F.col("crc_matches")).count(),
        "foreign": foreign,
    }
    counts["repeatedElsewhere"] = in_other_queues(ours, per_key) if counts["repeated"] else 0
    return Judgement(counts, listed(ours, per_key, disordered, misplaced, counts))


def of_run(landing: DataFrame, manifest: Manifest) -> tuple[DataFrame, int]:
    """Return the run's rows, and the number of rows of other runs."""
    foreign = landing.where(F.col("run_id").isNull() | (F.col("run_id") != manifest.run_id)).count()
    return landing.where(F.col("run_id") == manifest.run_id), foreign


def find(spark: SparkSession, landing: DataFrame, manifest: Manifest, ends: Plain, folder: Path) -> Findings:
    """Check and measure the run, and write per_key, per_second and violations to `folder`. `ends`: the queues' ends when landing."""
    own, foreign = of_run(landing, manifest)
    ours = own.persist()
    sound = ours.where("crc_matches")
    per_key = by_key(ours, expectation(spark, manifest)).persist()
    judgement = judge(ours, foreign, per_key, manifest)
    judgement.add_gaps(gaps(spark, landing, manifest, ends), manifest)
    per_key.write.mode("overwrite").parquet(str(folder / "per_key"))
    schema = "kind string, what string, queue int, offset bigint"
    rows = [tuple(one.values()) for one in judgement.violations]
    spark.createDataFrame(rows, schema).write.mode("overwrite").parquet(str(folder / "violations"))
    read_late = quantiles(sound, (F.col("read_us") - F.col("stored_us")) / 1_000)
    made = Findings(judgement.counts, {"dueToStored": None, "storedToRead": read_late}, judgement.violations)
    late = (F.col("stored_us") - F.col("born_us")) / 1_000
    per_second(sound, late).write.mode("overwrite").parquet(str(folder / "per_second"))
    made.seconds = [row.asDict() for row in spark.read.parquet(str(folder / "per_second")).orderBy("second").collect()]
    made.queues = queue_balance(sound, manifest)
    if manifest.rate:
        made.latency["dueToStored"] = quantiles(sound, late)
        made.histogram = histogram(sound, late)
    ours.unpersist()
    per_key.unpersist()
    return made


def expectation(spark: SparkSession, manifest: Manifest) -> DataFrame:
    """Return the columns key_number and expected."""
    shares = manifest.shares
    if not shares.skew:
        whole, rest = divmod(manifest.rows, manifest.keys)
        return spark.range(manifest.keys).select(
            F.col("id").alias("key_number"), (F.lit(whole) + F.when(F.col("id") < rest, 1).otherwise(0)).alias("expected")
        )
    return spark.createDataFrame(pa.table({"key_number": range(manifest.keys), "expected": shares.counts(manifest.rows)}))


def by_key(ours: DataFrame, expected: DataFrame) -> DataFrame:
    """Return key_number, expected, found, lost, repeated and unexpected. Intact rows beyond a key's expected seqs are unexpected."""
    known = ours.join(expected, "key_number", "left")
    within = F.coalesce(F.col("seq").between(0, F.col("expected") - 1), F.lit(False))
    counted = known.groupBy("key_number").agg(
        F.count("*").alias("found"),
        F.sum(within.cast("bigint")).alias("within"),
        F.sum((~within & F.col("crc_matches")).cast("bigint")).alias("unexpected"),
        F.countDistinct(F.when(within, F.col("seq"))).alias("distinct"),
    )
    every = expected.join(counted, "key_number", "full").fillna(0)
    return every.select(
        "key_number",
        "expected",
        "found",
        (F.col("expected") - F.col("distinct")).alias("lost"),
        (F.col("within") - F.col("distinct")).alias("repeated"),
        "unexpected",
    )


def in_other_queues(ours: DataFrame, per_key: DataFrame) -> int:
    """Return how many of the repeats are in another queue than the first. A repeated frame goes to the same queue."""
    known = ours.join(per_key.select("key_number", "expected"), "key_number").where(F.col("seq").between(0, F.col("expected") - 1))
    further = known.groupBy("key_number", "seq").agg((F.countDistinct("queue") - 1).alias("further"))
    total = further.agg(F.sum("further")).first()
    return int(total[0] or 0) if total is not None else 0


def gaps(spark: SparkSession, landing: DataFrame, manifest: Manifest, ends: Plain) -> list[tuple[int, int, int]]:
    """Return (queue, first, last) for offsets since the run began that were not read, although later ones of the queue were read, or
    although the queue ends after them and nothing was read from it.
    """
    begun, ended = manifest.start_offsets.get(manifest.topic, {}), ends.get(manifest.topic, {})
    starts = spark.createDataFrame(
        [(number, begun.get(name, 0) - 1) for number, name in enumerate(manifest.queues)], "queue int, before bigint"
    )
    since = landing.join(F.broadcast(starts), "queue").where("offset > before").select("queue", "offset", "before")
    read = since.groupBy("queue", "before").agg(F.count("*").alias("found"), F.max("offset").alias("last")).collect()
    silent = set(range(len(manifest.queues))) - {row.queue for row in read}
    whole = [(queue, begun.get(name, 0), ended.get(name, 0) - 1) for queue, name in enumerate(manifest.queues) if queue in silent]
    gone = [gap for gap in whole if gap[1] <= gap[2]]
    short = [row.queue for row in read if row.found < row.last - row.before]
    if not short:
        return gone
    edges = since.select("queue", "offset").unionByName(starts.select("queue", F.col("before").alias("offset")))
    following = F.lead("offset").over(Window.partitionBy("queue").orderBy("offset"))
    found = edges.where(F.col("queue").isin(short)).withColumn("next", following).where("next > offset + 1")
    return sorted([*gone, *((row.queue, row.offset + 1, row.next - 1) for row in found.collect())])


def out_of_order(sound: DataFrame, manifest: Manifest) -> DataFrame:
    """Return first occurrences that are stored after a higher seq of their key in the same queue."""
    firsts = sound.groupBy("key_number", "queue", "seq").agg(F.min("offset").alias("offset"))
    before = Window.partitionBy("key_number", "queue").orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    checked = firsts.withColumn("highest", F.max("seq").over(before)).where(F.col("seq") < F.col("highest"))
    return checked if manifest.order == "key" else checked.where(F.lit(False))


def in_wrong_queue(sound: DataFrame, manifest: Manifest) -> DataFrame:
    """Return rows in another queue than the SDK would choose for their key, or with another key."""
    if manifest.order != "key":
        return sound.where(F.lit(False))
    key = key_of(F.col("key_number"))
    number = F.pmod(F.crc32(key.cast("binary")), F.lit(len(manifest.queues)))
    return sound.where((F.col("queue") != number) | (F.col("key") != key) | F.col("key").isNull())


def listed(
    ours: DataFrame, per_key: DataFrame, disordered: DataFrame, misplaced: DataFrame, counts: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Return the first violations of each kind: kind, what, queue, offset."""
    found: list[dict[str, Any]] = []

    def add(kind: str, what: str, queue: int | None = None, offset: int | None = None) -> None:
        found.append(violation(kind, what, queue, offset))

    def first(rows: DataFrame, *order: str) -> list[Any]:
        return list(rows.orderBy(*order).limit(LISTED_MAX).collect())

    if counts["lost"]:
        for row in first(missing(ours, per_key), "key_number", "first"):
            add("lost", f"key {row.key_number} seq {row.first}" + (f" to {row.last}" if row.last > row.first else ""))
    if counts["repeated"] or counts["unexpected"]:
        places = F.sort_array(F.collect_list(F.struct("queue", "offset"))).alias("places")
        for row in first(ours.groupBy("key_number", "seq").agg(places).where(F.size("places") > 1), "key_number", "seq"):
            stored, *repeats = row.places
            at = ", ".join(f"queue {place.queue} offset {place.offset}" for place in repeats)
            what = f"key {row.key_number} seq {row.seq}, first in queue {stored.queue} offset {stored.offset}, again at {at}"
            add("repeated", what, *repeats[0])
        sound = ours.where("crc_matches")
        beyond = sound.join(per_key.select("key_number", "expected"), "key_number").where(~F.col("seq").between(0, F.col("expected") - 1))
        for row in first(beyond, "queue", "offset"):
            add("unexpected", f"key {row.key_number} seq {row.seq}, and the key has {row.expected}", row.queue, row.offset)
    if counts["outOfOrder"]:
        for row in first(disordered, "queue", "offset"):
            add("outOfOrder", f"key {row.key_number} seq {row.seq} after seq {row.highest}", row.queue, row.offset)
    if counts["misplaced"]:
        for row in first(misplaced, "queue", "offset"):
            add("misplaced", f"key {row.key_number} ({row.key}) seq {row.seq} in queue {row.queue}", row.queue, row.offset)
    if counts["corrupt"]:
        for row in first(ours.where(~F.col("crc_matches")), "queue", "offset"):
            add("corrupt", f"CRC mismatch; its fields contain key {row.key_number} seq {row.seq}", row.queue, row.offset)
    return found


def missing(ours: DataFrame, per_key: DataFrame) -> DataFrame:
    """Return key_number, first and last of ranges of missing seqs."""
    short = per_key.where("lost > 0").select("key_number", "expected")
    there = ours.join(short, "key_number").where(F.col("seq").between(0, F.col("expected") - 1)).select("key_number", "seq").distinct()
    edges = there.unionByName(short.select("key_number", F.lit(-1).cast("bigint").alias("seq"))).unionByName(
        short.select("key_number", F.col("expected").cast("bigint").alias("seq"))
    )
    following = F.lead("seq").over(Window.partitionBy("key_number").orderBy("seq"))
    gaps = edges.withColumn("next", following).where(F.col("next") > F.col("seq") + 1)
    return gaps.select("key_number", (F.col("seq") + 1).alias("first"), (F.col("next") - 1).alias("last"))


def quantiles(rows: DataFrame, ms: Column) -> dict[str, float] | None:
    found = rows.agg(F.percentile_approx(ms, list(QUANTILES), 10_000).alias("at"), F.max(ms).alias("max")).first()
    if found is None or found["at"] is None:
        return None
    named = {f"p{100 * quantile:g}": round(float(value), 1) for quantile, value in zip(QUANTILES, found["at"], strict=True)}
    return {**named, "max": round(float(found["max"]), 1)}


def per_second(sound: DataFrame, late: Column) -> DataFrame:
    begin = sound.agg(F.min("stored_us")).first()
    first = (begin[0] if begin is not None else None) or 0
    second = F.floor((F.col("stored_us") - F.lit(first)) / 1_000_000).alias("second")
    return sound.groupBy(second).agg(
        F.count("*").alias("rows"),
        F.percentile_approx(late, 0.5).alias("p50"),
        F.percentile_approx(late, 0.99).alias("p99"),
        F.max(late).alias("max"),
    )


def histogram(sound: DataFrame, late: Column) -> list[tuple[float, int]]:
    """Return four bins per factor of ten, from 0.1 ms. The last bin includes everything above it."""
    step = F.least(F.greatest(F.ceil(F.log10(F.greatest(late, F.lit(0.1))) * 4), F.lit(-4)), F.lit(24)).cast("int").alias("step")
    return [(10 ** (row.step / 4), row["count"]) for row in sound.groupBy(step).count().orderBy("step").collect()]


def queue_balance(sound: DataFrame, manifest: Manifest) -> list[tuple[str, int]]:
    counts = {row.queue: row["count"] for row in sound.groupBy("queue").count().collect()}
    return [(name, counts.get(number, 0)) for number, name in enumerate(manifest.queues)]
