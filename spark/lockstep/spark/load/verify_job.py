"""Check a topic for the rows of a load generator's run: lost, repeated, out of order, misplaced and corrupt rows, and their latency.

The expected rows are derived from the manifest alone, never from offsets: a broker that lost its tail would lose both.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lockstep.protocol.topics.queue import MessageQueue
from lockstep.runtime.connections.cluster_address import ClusterAddress
from lockstep.runtime.host import Host
from lockstep.spark.cluster import Cluster, run_once
from lockstep.spark.job import NAMESERVER, Parser, print_status, run, session
from lockstep.spark.load.load_job import CONF, TIMEOUT_MS, read_manifest, whole
from lockstep.spark.load.load_rows import Manifest, sent_columns
from lockstep.spark.load.verifying import LANDED, Findings, find
from lockstep.spark.offsets import Plain, from_plain, to_plain
from lockstep.spark.report import page
from lockstep.spark.stage_progress import StageProgress

COLUMNS = "key,value,partition,offset,timestamp"
EXIT_BROKEN, EXIT_REPEATED = 1, 2
BATCH_ROWS = 2_000_000
"""Rows that are read between two lines of progress."""
PROGRESS_S = 1
VIOLATIONS_PRINTED = 5
"""Maximum number of printed violations of each kind."""


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Run the check. Return 0 if the run is clean, 1 if rows are lost, out of order, misplaced, unexpected or corrupt, 2 if there are more
    repeats than --allow-duplicates, 3 if the job could not run."""
    options = parser().parse_args(argv)
    return run(lambda: verify(options, spark))


def verify(options: argparse.Namespace, given: SparkSession | None) -> int:
    host = Host.real()
    clock = host.clock
    begun_ms = clock.monotonic_ms()
    manifest = read_manifest(Path(options.manifest))
    folder = Path(options.out or Path(options.manifest).parent)
    folder.mkdir(parents=True, exist_ok=True)
    what = f"{manifest.rows:,} rows of {manifest.keys:,} keys are expected in topic {manifest.topic}"
    print_status(f"run {manifest.run_id}: {what}. Starting Spark, about 10 s")
    spark = given or session("lockstep verify", options.master, {**CONF, "spark.sql.shuffle.partitions": "4"})
    progress = StageProgress(spark, host)
    if options.progress or (options.progress is None and not options.json):
        progress.start()
    try:
        ends = folder / "landing-ends.json"
        if not options.landed:
            landed = land(spark, manifest, options.nameserver, folder / "landing", progress)
            ends.write_text(json.dumps(landed))  # world: the driver's disk
        progress.phase = "comparing the rows with the manifest"
        landing = spark.read.schema(LANDED).parquet(str(folder / "landing"))
        findings = find(spark, landing, manifest, json.loads(ends.read_text()), folder)  # world: the driver's disk
    finally:
        progress.stop()
        if given is None:
            spark.stop()
    verdict = judged(findings, manifest, options, (clock.monotonic_ms() - begun_ms) / 1_000)
    (folder / "verdict.json").write_text(json.dumps(verdict, indent=2) + "\n")  # world: the driver's disk
    (folder / "report.html").write_text(page(verdict, findings))  # world: the driver's disk
    print(json.dumps(verdict) if options.json else as_text(verdict, findings, folder), flush=True)
    return int(verdict["exitCode"])


def land(spark: SparkSession, manifest: Manifest, nameserver: str, folder: Path, progress: StageProgress) -> Plain:
    """Write the topic since the start of the run to parquet, without the filler. Return the end of each queue.

    If it runs again, only new rows are added; Spark's file sink writes each row once. Messages that no longer exist (retention, a topic
    that was created again, a lost store) are skipped: the comparison with the manifest reports them as lost. A queue that ends below its
    start offset is read from its first offset: its store was lost, and the run may have been repeated.
    """
    bounds = bounds_of(nameserver, manifest.topic)
    starts = from_plain(manifest.start_offsets, {})
    starts |= {queue: low for queue, (low, high) in bounds.items() if high < starts.get(queue, 0)}
    source = (
        spark.readStream.format("lockstep")
        .option("nameserver", nameserver)
        .option("subscribe", manifest.topic)
        .option("startingOffsets", json.dumps(to_plain(starts)))
        .option("columns", COLUMNS)
        .option("maxPartitions", str(spark.sparkContext.defaultParallelism))
        .option("commitOffsets", "false")
        .option("failOnDataLoss", "false")
        .option("maxOffsetsPerTrigger", str(BATCH_ROWS))
        .load()
    )
    landed = source.select(
        *sent_columns(),
        F.col("key").cast("string").alias("key"),
        F.col("partition").alias("queue"),
        "offset",
        F.length("value").alias("bytes"),
        F.unix_micros("timestamp").alias("stored_us"),
        F.unix_micros(F.current_timestamp()).alias("read_us"),
    )
    query = (
        landed.writeStream.format("parquet")
        .option("path", str(folder))
        .option("checkpointLocation", str(folder.parent / "landing-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    count = sum(max(0, high - starts.get(queue, low)) for queue, (low, high) in bounds.items())
    batches: dict[int, int] = {}
    progress.phase = f"reading the topic: 0 of {count:,} rows"
    while not query.awaitTermination(PROGRESS_S):
        if (last := query.lastProgress) is not None and last.batchId not in batches:
            batches[last.batchId] = last.numInputRows
            progress.phase = f"reading the topic: {sum(batches.values()):,} of {count:,} rows"
    return to_plain({queue: high for queue, (_, high) in bounds.items()})


def bounds_of(nameserver: str, topic: str) -> dict[MessageQueue, tuple[int, int]]:
    async def look(cluster: Cluster) -> dict[MessageQueue, tuple[int, int]]:
        return await cluster.bounds([await cluster.layout(topic)])

    return run_once(ClusterAddress.parse(nameserver), TIMEOUT_MS, look)


def judged(findings: Findings, manifest: Manifest, options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    counts = findings.counts
    broken = [name for name in ("lost", "outOfOrder", "misplaced", "unexpected", "corrupt") if counts[name]]
    repeated = counts["repeated"] > options.allow_duplicates
    return {
        "runId": manifest.run_id,
        "topic": manifest.topic,
        "clean": not broken and not repeated,
        "exitCode": EXIT_BROKEN if broken else EXIT_REPEATED if repeated else 0,
        "allowedDuplicates": options.allow_duplicates,
        "expected": manifest.rows,
        **counts,
        "latencyMs": findings.latency,
        "seconds": round(seconds, 1),
    }


def as_text(verdict: dict[str, Any], findings: Findings, folder: Path) -> str:
    faults = ", ".join(
        f"{verdict[name]:,} {label}"
        for name, label in (
            ("lost", "lost"),
            ("repeated", "repeated"),
            ("outOfOrder", "out of order"),
            ("misplaced", "in a queue that is not their key's"),
            ("unexpected", "that the run did not send"),
            ("corrupt", "corrupt"),
        )
    )
    lines = [f"{'CLEAN' if verdict['clean'] else 'NOT CLEAN'}: {verdict['expected']:,} rows expected, {verdict['found']:,} found: {faults}"]
    stored = verdict["latencyMs"]["dueToStored"]
    if stored is not None:
        lines.append(f"from due to stored: p50 {stored['p50']} ms, p99 {stored['p99']} ms, max {stored['max']} ms")
    if verdict["repeatedElsewhere"]:
        lines.append(
            f"{verdict['repeatedElsewhere']:,} of the repeats are in another queue than the first, which repeated frames do not cause"
        )
    if verdict["missingOffsets"]:
        lines.append(f"{verdict['missingOffsets']:,} offsets since the run began could not be read: retention, or a lost store")
    for kind in dict.fromkeys(violation["kind"] for violation in findings.violations):
        texts = [violation["what"] for violation in findings.violations if violation["kind"] == kind]
        lines += [f"  {kind}: {text}" for text in texts[:VIOLATIONS_PRINTED]]
    lines.append(f"{folder / 'verdict.json'}, {folder / 'report.html'}")
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    made = Parser(prog="verify_load.py", description=__doc__)
    add = made.add_argument
    add("--manifest", required=True, help="runs/RUN_ID/manifest.json, as the load generator wrote it")
    add(
        "--nameserver",
        default=NAMESERVER,
        help="nameservers as HOST:PORT, separated by ; (default: LOCKSTEP_NAMESERVER, else 127.0.0.1:9876)",
    )
    add("--out", help="directory of verdict.json, report.html and the parquet files (default: the manifest's)")
    add("--master", help="Spark master (default: the one of spark-submit)")
    add("--allow-duplicates", type=whole(0), default=0, help="accept up to N repeats, for idempotence=none (default 0)")
    add("--landed", action="store_true", help="check the parquet files of an earlier run of this command, and read nothing from the topic")
    add("--progress", action=argparse.BooleanOptionalAction, help="print what is done, every 2 s (default: unless --json is set)")
    add("--json", action="store_true", help="print the verdict as JSON, as the last line on stdout")
    return made
