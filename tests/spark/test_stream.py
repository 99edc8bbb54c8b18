"""Streams: from a topic, to a topic, and across restarts."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from lockstep.protocol.errors import ConfigError
from lockstep.spark import keyed
from lockstep.spark.job import describe_spark_error
from lockstep.spark.offsets import QUERY, group_in, to_plain, with_group
from lockstep.spark.options import SourceOptions
from lockstep.spark.reading import DataLostError
from lockstep.spark.stream_reader import LockstepStreamReader
from support.spark_table import Table


def run(table: Table, folder: Path, **options: str) -> Any:
    """Run an AvailableNow query into parquet, continuing at the checkpoint. Return it."""
    query = (
        table.stream(columns="value,partition,offset", **options)
        .writeStream.format("parquet")
        .option("path", str(folder / "rows"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def landed(table: Table, folder: Path) -> list[int]:
    rows = table.spark.read.schema("value binary").parquet(str(folder / "rows")).collect()
    return sorted(int(row.value) for row in rows)


def batches(query: Any) -> list[int]:
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def test_stream_reads_every_row_once_across_restarts(table: Table, tmp_path: Path) -> None:
    table.fill(0, 100)
    run(table, tmp_path, startingOffsets="earliest")
    assert landed(table, tmp_path) == list(range(100))
    run(table, tmp_path, startingOffsets="earliest")
    table.fill(100, 50)
    run(table, tmp_path, startingOffsets="earliest")
    assert landed(table, tmp_path) == list(range(150))


@pytest.mark.slow
def test_latest_refers_to_the_first_start_of_a_query(table: Table, tmp_path: Path) -> None:
    table.fill(0, 20)
    run(table, tmp_path)
    table.fill(20, 37)
    run(table, tmp_path)
    assert landed(table, tmp_path) == list(range(20, 57))


@pytest.mark.slow
@pytest.mark.parametrize(("starting", "first"), [("earliest", 0), ("latest", 20)])
def test_restart_after_an_unfinished_first_batch_reads_every_row(table: Table, tmp_path: Path, starting: str, first: int) -> None:
    table.fill(0, 20)
    run(table, tmp_path, startingOffsets=starting)
    kill_in_batch_0(tmp_path)
    table.fill(20, 40)
    run(table, tmp_path, startingOffsets=starting)
    assert landed(table, tmp_path) == list(range(first, 60))
    table.fill(60, 5)
    run(table, tmp_path, startingOffsets=starting)
    assert landed(table, tmp_path) == list(range(first, 65))


def kill_in_batch_0(folder: Path) -> None:
    """Restore the state after a driver's death between the plan of batch 0 and its end: only the plan exists."""
    plans = folder / "checkpoint" / "offsets"
    assert (plans / "0").exists()
    for later in [path for path in plans.iterdir() if path.name not in ("0", ".0.crc")]:
        later.unlink()
    shutil.rmtree(folder / "checkpoint" / "commits")
    shutil.rmtree(folder / "rows", ignore_errors=True)


@pytest.mark.slow
def test_max_offsets_per_trigger_limits_batches_exactly(table: Table, tmp_path: Path) -> None:
    table.fill(0, 400)
    assert batches(run(table, tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="100")) == [100] * 4


@pytest.mark.slow
def test_running_query_reads_added_queues(table: Table, tmp_path: Path) -> None:
    table.fill(0, 40)
    query = (
        table.stream(columns="value,partition", startingOffsets="earliest")
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "rows"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        assert landed(table, tmp_path) == list(range(40))
        table.cluster.alter(table.topic, 6)
        ids = table.spark.range(40, 100, 1, 1)
        table.write(ids.select(F.col("id").cast("string").alias("value"), (F.col("id") % 6).cast("int").alias("partition")))
        query.processAllAvailable()
    finally:
        query.stop()
    assert landed(table, tmp_path) == list(range(100))
    run(table, tmp_path, startingOffsets="earliest")
    assert landed(table, tmp_path) == list(range(100)), "nothing again after a restart"


@pytest.mark.slow
def test_offsets_are_committed_to_the_group_and_can_be_started_from(table: Table, tmp_path: Path) -> None:
    table.fill(0, 80)
    query = run(table, tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="40", group="spark-reader")
    committed = table.cluster.committed("spark-reader", table.topic)
    assert sum(offset or 0 for offset in committed.values()) == 80, "the last batch is published too"
    assert len(table.values(startingOffsets="group", group="spark-reader")) == 0
    shown = [json.loads(progress.json)["sources"][0]["latestOffset"] for progress in query.recentProgress if progress.numInputRows]
    behind = [(json.loads(each) if isinstance(each, str) else each)["@query"] for each in shown]
    assert behind == [
        {"offsetsBehindLatest": 40, "maxOffsetsBehindLatest": 10},
        {"offsetsBehindLatest": 0, "maxOffsetsBehindLatest": 0},
    ]


@pytest.mark.slow
def test_each_query_publishes_under_a_group_of_its_own_that_its_restart_keeps(table: Table, tmp_path: Path) -> None:
    def groups() -> dict[str, int]:
        """Return the committed offsets of the groups that queries made, summed up."""
        lines = table.cluster.run("group", "list", "--json")
        names = [each["group"] for each in json.loads(lines)["groups"] if each["group"].startswith("spark-")]
        return {name: sum(offset or 0 for offset in table.cluster.committed(name, table.topic).values()) for name in names}

    others = groups().keys()
    table.fill(0, 8)
    run(table, tmp_path / "one", startingOffsets="earliest")
    table.fill(8, 8)
    run(table, tmp_path / "two", startingOffsets="earliest")
    made = {name: offset for name, offset in groups().items() if name not in others}
    assert sorted(made.values()) == [8, 16]
    run(table, tmp_path / "one", startingOffsets="earliest")
    again = {name: offset for name, offset in groups().items() if name not in others}
    assert again.keys() == made.keys(), "the checkpoint has the name"
    assert sorted(again.values()) == [16, 16]


def copy(table: Table, target: Table, checkpoint: Path, **options: str) -> None:
    """Copy the new rows in batches of 30."""
    stream = table.stream(startingOffsets="earliest", maxOffsetsPerTrigger="30", columns="value").withColumn("key", F.col("value"))
    query = (
        stream.writeStream.format("lockstep")
        .options(nameserver=table.cluster.nameserver, topic=target.topic, **options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def kill_before_the_last_commit(checkpoint: Path) -> None:
    """Restore the state after a driver's death between the sink's commit and its own."""
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (checkpoint / "commits" / f".{last.name}.crc").unlink(missing_ok=True)


def test_repeated_batch_is_stored_once(table: Table, tmp_path: Path) -> None:
    target = Table(table.spark, table.cluster, f"{table.topic[:100]}-out", 2)
    table.fill(0, 90)
    copy(table, target, tmp_path)
    kill_before_the_last_commit(tmp_path)
    copy(table, target, tmp_path)
    table.fill(90, 10)
    copy(table, target, tmp_path)
    assert sorted(map(int, target.values())) == list(range(100))


@pytest.mark.slow
def test_repeated_batch_after_a_queue_change_fails_until_idempotence_is_none(table: Table, tmp_path: Path) -> None:
    target = Table(table.spark, table.cluster, f"{table.topic[:100]}-out", 2)
    table.fill(0, 20)
    copy(table, target, tmp_path)
    kill_before_the_last_commit(tmp_path)
    table.cluster.alter(target.topic, 5)
    for _ in range(2):
        with pytest.raises(PySparkException) as failed:
            copy(table, target, tmp_path)
        said = describe_spark_error(failed.value)
        assert "or the topic's queues have changed" in said
        assert "idempotence=none" in said
    copy(table, target, tmp_path, idempotence="none")
    table.fill(20, 10)
    copy(table, target, tmp_path)
    values = list(map(int, target.values()))
    assert set(values) == set(range(30))
    assert all(values.count(number) == 1 for number in range(20, 30)), "stored once from then on"


@pytest.mark.slow
def test_stream_is_ordered_by_foreach_batch(table: Table, tmp_path: Path) -> None:
    """Spark can't sort a stream, so `keyed` is used in foreachBatch. With one producer id per batch, a repeated batch adds no row."""
    target = Table(table.spark, table.cluster, f"{table.topic[:100]}-out", 2)
    table.fill(0, 90)
    stream = table.stream(startingOffsets="earliest", maxOffsetsPerTrigger="30", columns="value").withColumn(
        "key", F.concat(F.lit("k"), F.col("value").cast("string").cast("int") % 7)
    )
    with pytest.raises(PySparkException, match=r"(?i)sort"):
        keyed(stream, 2, "key", "value").writeStream.format("noop").option("checkpointLocation", str(tmp_path / "refused")).start()
    ids = []

    def write(batch: Any, number: int) -> None:
        ids.append(hashlib.md5(f"copy {number}".encode()).hexdigest())
        ordered = keyed(batch.withColumn("number", F.col("value").cast("string").cast("int")), 2, "key", "number").drop("number")
        target.write(ordered, producerId=ids[-1])
        target.write(ordered, producerId=ids[-1])

    query = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    query.start().awaitTermination()
    assert len(set(ids)) >= 3
    rows = target.read(columns="key,value,partition,offset").orderBy("partition", "offset").collect()
    assert sorted(int(row.value) for row in rows) == list(range(90))
    for number in range(7):
        values = [int(row.value) for row in rows if bytes(row.key) == b"k%d" % number]
        assert len(values) > 10
        assert values == sorted(values)


@pytest.mark.slow
def test_two_queries_read_the_same_topic(table: Table, tmp_path: Path) -> None:
    table.fill(0, 50)
    started = [
        table.stream(startingOffsets="earliest", columns="value")
        .writeStream.format("parquet")
        .option("path", str(tmp_path / name / "rows"))
        .option("checkpointLocation", str(tmp_path / name / "checkpoint"))
        .trigger(availableNow=True)
        .start()
        for name in ("one", "two")
    ]
    for query in started:
        query.awaitTermination()
    assert [landed(table, tmp_path / name) for name in ("one", "two")] == [list(range(50))] * 2


# --------------------------------------------------------------------------- the stream reader without Spark


@pytest.fixture
def reader(table: Table, request: pytest.FixtureRequest) -> Any:
    options = {"nameserver": table.cluster.nameserver, "subscribe": table.topic, "offsetPollMs": "0", **getattr(request, "param", {})}
    made = LockstepStreamReader(SourceOptions.parse(options))
    yield made
    made.stop()


def at(table: Table, *offsets: int) -> dict[str, dict[str, int]]:
    return to_plain(dict(zip(table.layout.read_queues, offsets, strict=True)))


def begin(table: Table, *offsets: int) -> dict[str, Any]:
    """Return the offsets as a checkpoint has them."""
    return with_group("spark-1", at(table, *offsets))


def without_group(plain: dict[str, Any]) -> dict[str, Any]:
    return {name: queues for name, queues in plain.items() if name != QUERY}


def test_start_offset_is_fixed_by_an_empty_first_batch(table: Table, reader: Any) -> None:
    table.fill(0, 4)
    start = reader.initialOffset()
    table.fill(4, 8)
    assert reader.latestOffset(start, ReadAllAvailable()) == start == reader.initialOffset()
    assert without_group(start) == at(table, 1, 1, 1, 1)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert without_group(end) == at(table, 3, 3, 3, 3)
    assert group_in(end) == group_in(start)


def test_offsets_contain_a_group_of_the_query_unless_one_is_named() -> None:
    plain = with_group("spark-1", {"t": {"a:0": 5}})
    assert (list(plain), group_in(plain)) == (["@query", "t"], "spark-1")


@pytest.mark.parametrize(
    "end", [{"endingOffsets": '{"t":{"a:0":5}}'}, {"endingTimestamp": "5"}, {"endingOffsetsByTimestamp": '{"t":{"a:0":5}}'}]
)
def test_ending_options_are_rejected_for_a_stream(end: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="are for batch reads"):
        LockstepStreamReader(SourceOptions.parse({"nameserver": "h:1", "subscribe": "t", **end}))


@pytest.mark.parametrize("reader", [{"startingOffsets": "{}"}], indirect=True)
def test_queue_missing_in_starting_offsets_starts_at_its_first_message(table: Table, reader: Any) -> None:
    table.fill(0, 4)
    assert without_group(reader.initialOffset()) == at(table, 0, 0, 0, 0)


def test_json_of_an_offset_lists_queues_in_order(table: Table, reader: Any) -> None:
    table.fill(0, 40)
    texts = {json.dumps(reader.latestOffset(begin(table, 1, 0, 0, 0), ReadAllAvailable())) for _ in range(3)}
    assert len(texts) == 1
    assert list(json.loads(texts.pop())[table.topic]) == [f"broker-a:{number}" for number in range(4)]


def test_latest_offset_without_new_messages_is_the_start(table: Table, reader: Any) -> None:
    table.fill(0, 4)
    start = begin(table, 1, 1, 1, 1)
    assert reader.latestOffset(start, ReadMaxRows(5)) == start


def test_available_now_ends_at_the_topics_end_at_its_start(table: Table, reader: Any) -> None:
    table.fill(0, 8)
    reader.prepareForTriggerAvailableNow()
    table.fill(8, 8)
    assert without_group(reader.latestOffset(begin(table, 0, 0, 0, 0), ReadAllAvailable())) == at(table, 2, 2, 2, 2)
    assert reader.latestOffset(begin(table, 2, 2, 2, 2), ReadAllAvailable()) == begin(table, 2, 2, 2, 2)


@pytest.mark.parametrize("reader", [{"minOffsetsPerTrigger": "5", "maxTriggerDelay": "1h"}], indirect=True)
def test_batch_waits_for_min_offsets_per_trigger(table: Table, reader: Any) -> None:
    table.fill(0, 4)
    start = begin(table, 0, 0, 0, 0)
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    table.fill(4, 4)
    assert without_group(reader.latestOffset(start, ReadAllAvailable())) == at(table, 2, 2, 2, 2)


@pytest.mark.parametrize("reader", [{"minOffsetsPerTrigger": "5", "maxTriggerDelay": "0"}], indirect=True)
def test_batch_waits_at_most_max_trigger_delay(table: Table, reader: Any) -> None:
    table.fill(0, 4)
    assert without_group(reader.latestOffset(begin(table, 0, 0, 0, 0), ReadAllAvailable())) == at(table, 1, 1, 1, 1)


def test_byte_limit_of_a_batch_is_approximate(table: Table, reader: Any) -> None:
    table.fill(0, 400)
    end = reader.latestOffset(begin(table, 0, 0, 0, 0), ReadMaxBytes(10_000))
    assert 40 <= sum(end[table.topic].values()) <= 100, "records of some 100 to 250 bytes"


@pytest.mark.parametrize("reader", [{"maxBytesPerTrigger": "10000"}, {"maxOffsetsPerTrigger": "5"}, {}], indirect=True)
def test_options_determine_the_default_read_limit(reader: Any, request: pytest.FixtureRequest) -> None:
    given = request.node.callspec.params["reader"]
    limits = {"maxBytesPerTrigger": ReadMaxBytes(10_000), "maxOffsetsPerTrigger": ReadMaxRows(5)}
    assert reader.getDefaultReadLimit() == next((limits[name] for name in given), ReadAllAvailable())


@pytest.mark.parametrize("reader", [{"group": "kept", "commitOffsets": "false"}, {"group": "kept"}], indirect=True)
def test_offsets_are_committed_to_the_group_unless_commit_offsets_is_false(
    table: Table, reader: Any, request: pytest.FixtureRequest
) -> None:
    table.fill(0, 8)
    reader.commit(begin(table, 1, 1, 1, 1))
    published = set(table.cluster.committed("kept", table.topic).values())
    if "commitOffsets" in request.node.callspec.params["reader"]:
        assert 1 not in published, "a group that is nowhere is reported at the first message"
    else:
        assert published == {1}


@pytest.mark.parametrize("reader", [{"offsetPollMs": "1000000"}], indirect=True)
def test_idle_query_sends_no_request_within_the_poll_interval(table: Table, reader: Any) -> None:
    before = reader.reportLatestOffset()
    table.fill(0, 8)
    assert reader.reportLatestOffset() == before
    assert without_group(before) == at(table, 0, 0, 0, 0)


def test_start_above_the_end_is_an_empty_range(table: Table, reader: Any) -> None:
    table.fill(0, 40)
    parts = reader.partitions(begin(table, 5, 5, 5, 5), begin(table, 3, 5, 6, 10))
    assert [(range_.queue.queue_id, range_.start, range_.end) for part in parts for range_, _ in part.reading.ranges] == [
        (2, 5, 6),
        (3, 5, 10),
    ]


def test_missing_queue_is_data_loss(table: Table, reader: Any) -> None:
    gone = with_group("spark-1", {table.topic: {"broker-z:0": 7, **at(table, 0, 0, 0, 0)[table.topic]}})
    with pytest.raises(DataLostError, match="is at offset 7, and the queue no longer exists"):
        reader.latestOffset(gone, ReadAllAvailable())


def test_recreated_topic_is_data_loss(table: Table, reader: Any) -> None:
    with pytest.raises(DataLostError, match=r"is at offset 9, and the queue ends at 0.*failOnDataLoss=false"):
        reader.latestOffset(begin(table, 9, 0, 0, 0), ReadAllAvailable())


@pytest.mark.parametrize("reader", [{"failOnDataLoss": "false"}], indirect=True)
def test_data_loss_does_not_fail_with_fail_on_data_loss_false(table: Table, reader: Any) -> None:
    table.fill(0, 8)
    gone = with_group("spark-1", {table.topic: {"broker-z:0": 7, **at(table, 9, 0, 0, 0)[table.topic]}})
    assert without_group(reader.latestOffset(gone, ReadAllAvailable())) == at(table, 2, 2, 2, 2)


def test_new_queue_starts_at_its_first_message(table: Table, reader: Any) -> None:
    table.fill(0, 8)
    before = with_group("spark-1", {table.topic: {"broker-a:0": 1, "broker-a:1": 1, "broker-a:2": 1}})
    end = reader.latestOffset(before, ReadAllAvailable())
    assert without_group(end) == at(table, 2, 2, 2, 2)
    parts = reader.partitions(before, end)
    assert [(range_.start, range_.end) for part in parts for range_, _ in part.reading.ranges] == [(1, 2), (1, 2), (1, 2), (0, 2)]
