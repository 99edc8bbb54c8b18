"""Load generator: send rows of a known form to a topic with Spark, at a given rate or as fast as possible."""

import argparse
import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lockstep.protocol.errors import ConfigError, LockstepError, TopicNotExistError
from lockstep.protocol.frame import BODY_BYTES_MAX
from lockstep.protocol.messages.message import check_tag
from lockstep.protocol.names import check_topic
from lockstep.protocol.topics.queue import TopicLayout
from lockstep.runtime.connections.cluster_address import ClusterAddress
from lockstep.runtime.host import Host
from lockstep.runtime.loop_thread import LoopThread
from lockstep.spark.cluster import Cluster, run_once
from lockstep.spark.job import NAMESERVER, Parser, print_status, run, session
from lockstep.spark.key_shares import KeyShares
from lockstep.spark.load.load_progress import LoadProgress
from lockstep.spark.load.load_rows import HEAD_BYTES, Manifest, key_of, numbered, to_send
from lockstep.spark.offsets import Plain, to_plain
from lockstep.spark.options import SinkOptions
from lockstep.spark.placement import keyed
from lockstep.spark.start_line import COLUMN, StartLine, start_column

TIMEOUT_MS = 10_000
LEAD_US = 1_000_000
"""Time from the moment at which all tasks of a paced run wait for its start to the first row: the sink's worker starts in it (0.4 s)."""
KEYS_MAX = (1 << 31) - 1
CONF = {
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.host": "127.0.0.1",
}


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Run the load generator, in `spark` or in a new session. Return 0 if everything is stored, 3 after an error, which is printed."""
    options = parser().parse_args(argv)
    return run(lambda: load(options, spark))


def load(options: argparse.Namespace, given: SparkSession | None) -> int:
    host = Host.real()
    begun_us = host.clock.monotonic_us()
    rows = check(options)
    nameserver = ClusterAddress.parse(options.nameserver)
    layout, offsets = run_once(nameserver, TIMEOUT_MS, lambda cluster: prepare(cluster, options))
    run_id = options.run_id or host.random.token(8).hex()
    folder = Path(options.out or f"runs/{run_id}")
    manifest = Manifest(
        run_id=run_id,
        topic=options.topic,
        queues=tuple(f"{queue.broker_name}:{queue.queue_id}" for queue in layout.write_queues),
        start_offsets=offsets,
        rows=rows,
        keys=options.keys,
        skew=options.skew,
        seed=options.seed,
        size=options.size,
        rate=options.rate,
        order=options.order,
        tags=options.tags,
        started_us=0,
        partitions=min(options.partitions or len(layout.write_queues), len(layout.write_queues)),
        idempotence=options.idempotence,
    )
    SinkOptions.parse(sink_options(manifest, options, ""))
    earlier = resumed(folder, manifest)
    folder.mkdir(parents=True, exist_ok=True)
    print_status(f"run {run_id}: {rows:,} rows to topic {options.topic}, {len(layout.write_queues)} queues. Starting Spark, about 10 s")
    spark = given or session("lockstep load", options.master, CONF)
    try:
        return send(spark, earlier or manifest, options, folder, begun_us, host, again=earlier is not None)
    finally:
        if given is None:
            spark.stop()


def check(options: argparse.Namespace) -> int:
    """Check the options, and return the number of rows. Raise ConfigError for invalid or contradictory options."""
    check_topic(options.topic)
    for tag in options.tags:
        check_tag(tag)
    low, high = options.size
    if not HEAD_BYTES <= low <= high <= BODY_BYTES_MAX:
        raise ConfigError(f"--size {low}-{high}: expected {HEAD_BYTES} (the head that verify_load reads) to {BODY_BYTES_MAX} bytes")
    if options.keys > KEYS_MAX:
        raise ConfigError(f"--keys {options.keys}: at most {KEYS_MAX} are allowed, because a row has 4 bytes for the number of its key")
    KeyShares(options.keys, options.skew)
    if options.run_id is not None and not re.fullmatch("[0-9a-f]{16}", options.run_id):
        raise ConfigError(f"--run-id {options.run_id}: expected 16 lower-case hex digits")
    if options.duration is None:
        return int(options.rows if options.rows is not None else 1_000_000)
    if not options.rate or options.rows is not None:
        raise ConfigError("--duration requires --rate and excludes --rows: the number of rows is duration times rate")
    rows = int(options.duration * options.rate)
    if not rows:
        raise ConfigError(f"--duration {options.duration:g} at --rate {options.rate} yields 0 rows: use a longer duration")
    return rows


async def prepare(cluster: Cluster, options: argparse.Namespace) -> tuple[TopicLayout, Plain]:
    """Return the topic's layout and next offsets. Create a missing topic unless --no-create is set."""
    try:
        layout = await cluster.layout(options.topic)
    except TopicNotExistError:
        if options.no_create:
            raise TopicNotExistError(
                f"topic {options.topic} does not exist: create it with `lockstep topic create {options.topic}`, or omit --no-create"
            ) from None
        layout = await cluster.create(options.topic, options.queues)
    bounds = await cluster.bounds([layout])
    return layout, to_plain({queue: high for queue, (_, high) in bounds.items()})


def resumed(folder: Path, manifest: Manifest) -> Manifest | None:
    """Return the manifest of an earlier start of the same run, if any. Raise ConfigError if its settings differ."""
    path = folder / "manifest.json"
    if not path.exists():
        return None
    earlier = read_manifest(path)
    if replace(manifest, started_us=earlier.started_us, start_offsets=earlier.start_offsets, tasks=earlier.tasks) != earlier:
        raise ConfigError(f"{path} belongs to run {earlier.run_id} with other settings: use another --out, or the same settings")
    return earlier


def read_manifest(path: Path) -> Manifest:
    try:
        return Manifest.parse(json.loads(path.read_text()))  # world: the driver's disk
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; the load generator writes runs/RUN_ID/manifest.json") from None
    except ValueError as error:  # of UTF-8 too
        raise ConfigError(f"{path} is not JSON: {error}") from None


def send(
    spark: SparkSession, manifest: Manifest, options: argparse.Namespace, folder: Path, begun_us: int, host: Host, *, again: bool
) -> int:
    clock = host.clock
    if not options.no_warmup:
        # The first Python task of a session takes seconds, most of them for imports.
        slots = spark.sparkContext.defaultParallelism
        spark.sparkContext.range(slots, numSlices=slots).foreach(warm_up)
    if not again:
        manifest = replace(manifest, tasks=task_count(spark, manifest))
    placed = place(spark, manifest)
    start: LoopThread[StartLine] | None = None
    if manifest.rate and not manifest.started_us:
        write_manifest(manifest, folder)
        start, placed = paced(spark, placed, manifest, folder, host)
    else:
        if not again:
            manifest = replace(manifest, started_us=clock.wall_ms() * 1_000)
            write_manifest(manifest, folder)
        placed = placed.withColumn(COLUMN, F.lit(manifest.started_us))
    report = (folder / "write.json").resolve()
    sending_us = clock.monotonic_us()
    progress = LoadProgress(options.nameserver, manifest, host)
    if options.progress or (options.progress is None and not options.json):
        progress.start()
    writer = to_send(placed, manifest).write.format("lockstep").mode("append")
    for name, value in sink_options(manifest, options, str(report)).items():
        writer = writer.option(name, value)
    try:
        writer.save()
    finally:
        progress.stop()
        if start is not None:
            start.close()
    ended_us = clock.monotonic_us()
    written = json.loads(report.read_text())  # world: the driver's disk
    summary = summed_up(manifest, written, (sending_us - begun_us) / 1e6, (ended_us - sending_us) / 1e6, folder)
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")  # world: the driver's disk
    print(json.dumps(summary) if options.json else as_text(summary), flush=True)
    if written["rows"] != manifest.rows:
        raise LockstepError(f"{written['rows']:,} of {manifest.rows:,} rows were acknowledged")
    return 0


def write_manifest(manifest: Manifest, folder: Path) -> None:
    (folder / "manifest.json").write_text(json.dumps(manifest.plain(), indent=2) + "\n")  # world: the driver's disk


def paced(spark: SparkSession, rows: DataFrame, manifest: Manifest, folder: Path, host: Host) -> "tuple[LoopThread[StartLine], DataFrame]":
    """Return the rows with the start of their schedule, which is fixed when all tasks run, and what lets it begin."""

    def begin() -> int:
        started_us = host.clock.wall_ms() * 1_000 + LEAD_US
        write_manifest(replace(manifest, started_us=started_us), folder)
        return started_us

    driver = spark.sparkContext.getConf().get("spark.driver.host", "127.0.0.1")
    line = StartLine(driver, manifest.tasks, begin)
    thread = LoopThread("start of the load", line.serve)
    thread.start()
    return thread, rows.withColumn(COLUMN, start_column(line.address))


def warm_up(_: int) -> None:
    """Import the modules of the sink's tasks in a worker."""
    import lockstep.spark.writer  # noqa: F401


def task_count(spark: SparkSession, manifest: Manifest) -> int:
    """Return the number of tasks of a new run. Those of a paced run must all run at once."""
    return min(manifest.partitions, spark.sparkContext.defaultParallelism) if manifest.rate else manifest.partitions


def place(spark: SparkSession, manifest: Manifest) -> DataFrame:
    """Return the rows, partitioned by the tasks that send them. A paced run is shuffled here, before its schedule begins."""
    rows = numbered(spark, manifest, manifest.tasks)
    if manifest.order == "none":
        return rows
    placed = keyed(rows, len(manifest.queues), key_of(F.col("key_number")), "id", tasks=manifest.tasks)
    if manifest.rate:
        placed = placed.persist()
        placed.count()
    return placed


def sink_options(manifest: Manifest, options: argparse.Namespace, report: str) -> dict[str, str]:
    given = {"nameserver": options.nameserver, "topic": manifest.topic, "reportFile": report, "idempotence": manifest.idempotence}
    if manifest.idempotence == "sequence":
        given["producerId"] = manifest.run_id * 2
    if manifest.rate:
        given["notBefore"] = "true"
    if options.fail_task:
        given["failTask"] = options.fail_task
    return given


def summed_up(manifest: Manifest, written: dict[str, Any], startup_s: float, sending_s: float, folder: Path) -> dict[str, Any]:
    return {
        "runId": manifest.run_id,
        "topic": manifest.topic,
        "rows": written["rows"],
        "recordBytes": written["bytes"],
        "startupSeconds": round(startup_s, 2),
        "sendingSeconds": round(sending_s, 2),
        "rowsPerSecond": round(written["rows"] / sending_s),
        "megabytesPerSecond": round(written["bytes"] / sending_s / 1e6, 1),
        "frames": written["frames"],
        "repeatedFrames": written["repeatedFrames"],
        "ackMs": written["ackMs"],
        "nextOffsets": written["nextOffsets"],
        "manifest": str(folder / "manifest.json"),
    }


def as_text(summary: dict[str, Any]) -> str:
    ack = summary["ackMs"]
    return "\n".join(
        (
            f"{summary['rows']:,} rows stored in {summary['sendingSeconds']} s: {summary['rowsPerSecond']:,}/s, "
            f"{summary['megabytesPerSecond']} MB/s of records; {summary['startupSeconds']} s before that",
            f"{summary['frames']:,} frames, acknowledged in p50 {ack['p50']} ms, p99 {ack['p99']} ms, max {ack['max']} ms; "
            f"{summary['repeatedFrames']} were stored already",
            f"verify: spark-submit scripts/verify_load.py --manifest {summary['manifest']}",
        )
    )


def size(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r}: expected BYTES or FROM-TO, such as 100 or 100-1024")
    return int(found[1]), int(found[2] or found[1])


def comma_list(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


def whole(low: int) -> Any:
    def parse(text: str) -> int:
        if not text.replace("_", "").isdigit() or int(text) < low:
            raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of {low} or more")
        return int(text)

    return parse


def number(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of 0 or more")
    return value


def parser() -> argparse.ArgumentParser:
    made = Parser(prog="load_generator.py", description=__doc__)
    add = made.add_argument
    add(
        "--nameserver",
        default=NAMESERVER,
        help="nameservers as HOST:PORT, separated by ; (default: LOCKSTEP_NAMESERVER, else 127.0.0.1:9876)",
    )
    add("--topic", default="load", help="topic to send to (default load)")
    add("--queues", type=whole(1), default=4, help="number of queues on each broker if the topic is created (default 4)")
    add("--no-create", action="store_true", help="fail if the topic does not exist")
    add("--rows", type=whole(1), help="number of rows (default 1,000,000)")
    add("--duration", type=number, help="duration in seconds; requires --rate and replaces --rows")
    add("--keys", type=whole(1), default=10_000, help="number of sharding keys (default 10,000)")
    add("--skew", type=number, default=0.0, help="0: all keys are equally frequent (default); above 0: key k has a share of about 1/k^SKEW")
    add("--size", type=size, default=(100, 100), help="size of a value in bytes: 100, or a range such as 100-1024 (default 100)")
    add("--rate", type=whole(0), default=0, help="rows per second over the whole job; 0: as fast as possible (default)")
    add("--tags", type=comma_list, default=(), help="comma-separated tags, assigned to the rows in turn (default: no tags)")
    add(
        "--order",
        choices=("key", "none"),
        default="key",
        help="key: preserve the order per key from Spark to the queue (default); none: no keys and no shuffle",
    )
    add("--run-id", help="16 hex digits; repeating a run with the same id and --out sends nothing twice (default: random)")
    add("--seed", type=whole(0), default=1, help="seed of sizes, fillers and skewed keys (default 1)")
    add("--master", help="Spark master (default: the one of spark-submit)")
    add("--partitions", type=whole(1), help="number of tasks (default and maximum: one per queue)")
    add(
        "--idempotence",
        choices=("sequence", "none"),
        default="sequence",
        help="sequence: store repeated frames once (default); none: store rows at least once",
    )
    add("--fail-task", metavar="P:N", help="let task P fail once after N acknowledged rows; requires a master that retries: local[2,4]")
    add("--no-warmup", action="store_true", help="do not start the Python workers before the first row")
    add("--progress", action=argparse.BooleanOptionalAction, help="print one line per second (default: unless --json is set)")
    add("--json", action="store_true", help="print the summary as JSON, as the last line on stdout")
    add("--out", help="directory for manifest.json, write.json and summary.json (default runs/RUN_ID)")
    return made
