"""Batch writes and reads."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from lockstep.client.producer.machines.routing import queue_of_key
from lockstep.protocol.errors import TopicNotExistError
from lockstep.spark import keyed, queue_count
from lockstep.spark.job import describe_spark_error
from support.secure_servers import secure_servers
from support.spark_table import Table


def numbered(spark: Any, count: int, keys: int = 7, slices: int = 2) -> Any:
    """Return rows (id, key, value)."""
    ids = spark.range(0, count, 1, slices)
    return ids.select("id", F.concat(F.lit("k"), F.col("id") % keys).alias("key"), F.col("id").cast("string").alias("value"))


def test_rows_round_trip(table: Table) -> None:
    rows = [
        ("k", b"1", "paid", [("colour", b"red")]),
        (None, b"2", None, []),
        ("k\u00e9", b"3", None, [("a", b"b"), ("c", b"d")]),
    ]
    schema = "key string, value binary, tags string, headers array<struct<key:string,value:binary>>"
    table.write(table.spark.createDataFrame(rows, schema).repartition(5))  # some partitions are empty
    found = table.read(columns="key,value,tags", includeHeaders="true").collect()
    back = {
        (row.key and bytes(row.key).decode(), bytes(row.value), row.tags, tuple((h.key, bytes(h.value)) for h in row.headers))
        for row in found
    }
    assert back == {(key, value, tag, tuple(headers)) for key, value, tag, headers in rows}


def test_keyed_rows_are_ordered_in_the_queue_that_the_sdk_chooses(table: Table) -> None:
    df = numbered(table.spark, 600).repartition(3)  # shuffled
    table.write(keyed(df, 4, "key", "id").drop("id"))
    orders = defaultdict(list)
    for row in table.read().orderBy("partition", "offset").collect():
        key = bytes(row.key).decode()
        orders[key].append(int(row.value))
        assert table.layout.read_queues[row.partition] == queue_of_key(table.layout, key)
    assert {key: values == sorted(values) for key, values in orders.items()} == dict.fromkeys((f"k{n}" for n in range(7)), True)
    assert sum(map(len, orders.values())) == 600


@pytest.mark.slow
def test_keyed_rows_are_refused_if_the_topic_has_another_number_of_queues_by_then(table: Table) -> None:
    rows = numbered(table.spark, 60)
    placed = keyed(rows, 4, "key", "id").select("key", "value", "partition")
    table.cluster.alter(table.topic, 6)
    with pytest.raises(PySparkException) as failed:
        table.write(placed)
    assert "placed the rows over 4 queues" in describe_spark_error(failed.value)
    assert table.values() == []
    table.write(keyed(rows, queue_count(table.cluster.nameserver, table.topic), "key", "id").select("key", "value", "partition"))
    assert sorted(map(int, table.values())) == list(range(60))


def test_rows_with_equal_order_are_sorted_by_key(table: Table) -> None:
    rows = table.spark.range(0, 300, 1, 3).select((F.col("id") % 3).alias("version"), F.concat(F.lit("k"), F.col("id") % 50).alias("key"))
    for task in keyed(rows.distinct().repartition(5), 4, "key", "version").rdd.glom().collect():
        assert [(row.version, row.key) for row in task] == sorted({(row.version, row.key) for row in task})


def test_retried_task_stores_no_row_twice(table: Table, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    df = keyed(numbered(table.spark, 2_000, keys=50), 4, "key", "id", tasks=2).drop("id")
    table.write(df, failTask="1:500", frameRecords="10", reportFile=str(report))
    reported = json.loads(report.read_text())
    assert reported["rows"] == 2_000
    assert reported["repeatedFrames"] > 10
    assert sorted(map(int, table.values())) == list(range(2_000))


@pytest.mark.slow
def test_restarted_job_with_the_same_id_stores_no_row_twice(table: Table) -> None:
    for _ in range(2):
        table.write(numbered(table.spark, 300).drop("id"), producerId="ab" * 16, frameRecords="20")
    assert sorted(map(int, table.values())) == list(range(300))


@pytest.mark.slow
def test_restarted_job_with_fewer_rows_fails_with_the_next_step(table: Table) -> None:
    table.write(numbered(table.spark, 300).drop("id"), producerId="ab" * 16, frameRecords="20")
    with pytest.raises(PySparkException) as failed:
        table.write(numbered(table.spark, 300).where("id % 150 < 100").drop("id"), producerId="ab" * 16, frameRecords="20")
    said = describe_spark_error(failed.value)
    assert "it had fewer rows" in said
    assert "sort within partitions before the write" in said
    assert sorted(map(int, table.values())) == list(range(300))


@pytest.mark.slow
def test_retried_task_without_idempotence_repeats_rows(table: Table) -> None:
    table.write(numbered(table.spark, 400).drop("id"), failTask="0:100", frameRecords="10", idempotence="none")
    values = [int(value) for value in table.values()]
    assert set(values) == set(range(400))
    assert len(values) > 400


@pytest.mark.slow
def test_retried_task_with_other_rows_fails_the_job_with_the_next_step(table: Table) -> None:
    def turned_on_retry(numbers: Any) -> Any:
        context = TaskContext.get()
        assert context is not None
        rows = [(str(number),) for number in numbers]
        return iter(rows if context.attemptNumber() == 0 else rows[::-1])

    rdd = table.spark.sparkContext.range(0, 400, numSlices=2).mapPartitions(turned_on_retry)
    df = table.spark.createDataFrame(rdd, "value string")
    with pytest.raises(PySparkException) as failed:
        table.write(df, failTask="0:100", frameRecords="10")
    assert "sort within partitions before the write" in describe_spark_error(failed.value)


@pytest.mark.slow
def test_failed_job_reports_one_line_and_acknowledged_rows_remain(table: Table) -> None:
    df = numbered(table.spark, 100, slices=1).withColumn("value", F.when(F.col("id") < 90, F.col("value"))).drop("id", "key")
    with pytest.raises(PySparkException) as failed:
        table.write(df, frameRecords="10")
    assert describe_spark_error(failed.value).startswith("value is null in a row")
    assert len(table.values()) == 80, "but for the frame that was being filled"


@pytest.mark.slow
def test_column_can_select_the_topic(table: Table) -> None:
    other = Table(table.spark, table.cluster, f"{table.topic[:100]}-2", 2)
    df = table.spark.createDataFrame([(table.topic, "1"), (other.topic, "2"), (table.topic, "3")], "topic string, value string")
    df.write.format("lockstep").mode("append").option("nameserver", table.cluster.nameserver).save()
    assert (sorted(table.values()), other.values()) == ([b"1", b"3"], [b"2"])


def test_offsets_times_and_groups_select_the_range_of_a_read(table: Table) -> None:
    table.write(numbered(table.spark, 40, slices=1).drop("id", "key").withColumn("partition", F.lit(0)))
    table.write(numbered(table.spark, 5, slices=1).drop("id", "key").withColumn("partition", F.lit(1)))

    def offsets(**of: int) -> str:
        return json.dumps({table.topic: {f"broker-a:{name[1:]}": offset for name, offset in of.items()}})

    assert table.values(startingOffsets=offsets(q0=38, q1=-1)) == [b"38", b"39"]
    assert table.values(endingOffsets=offsets(q0=2, q1=0)) == [b"0", b"1"]
    assert table.values(startingOffsets=json.dumps({table.topic: {"0": 39, "1": -1}})) == [b"39"], "one broker holds the topic"
    stored = sorted(row.timestamp.timestamp() for row in table.read(columns="timestamp").collect())
    first = str(int(stored[0] * 1_000))
    assert len(table.values(startingTimestamp=first, startingOffsetsByTimestampStrategy="latest")) == 45
    assert table.values(endingTimestamp=first) == []
    with pytest.raises(PySparkException) as failed:
        table.values(startingTimestamp="99999999999999")
    assert "no message at or after" in describe_spark_error(failed.value)
    assert table.values(startingTimestamp="99999999999999", startingOffsetsByTimestampStrategy="latest") == []
    assert len(table.values(startingOffsets="group", group="nobody")) == 45
    for requested, there in (({"startingOffsets": offsets(q0=41)}, 5), ({"endingOffsets": offsets(q0=41)}, 45)):
        with pytest.raises(PySparkException) as failed:
            table.values(**requested)
        assert "ends at offset 40, before 41. To continue with the remaining messages, set failOnDataLoss=false" in describe_spark_error(
            failed.value
        )
        assert len(table.values(**requested, failOnDataLoss="false")) == there


@pytest.mark.slow
def test_options_determine_the_number_of_tasks(table: Table) -> None:
    table.write(numbered(table.spark, 400, keys=97).drop("id"))
    expected = sorted(table.values())
    for options, tasks in (({}, 4), ({"maxPartitions": "2"}, 2), ({"minPartitions": "9"}, 9)):
        df = table.read(**options)
        assert df.rdd.getNumPartitions() == tasks
        assert sorted(bytes(row.value) for row in df.collect()) == expected
    assert Table(table.spark, table.cluster, f"{table.topic[:100]}-3", 2).read().count() == 0


@pytest.mark.slow
def test_small_pulls_read_every_row(table: Table) -> None:
    table.write(numbered(table.spark, 200).drop("id"))
    assert sorted(map(int, table.values(fetchMaxMessages="7", fetchMaxBytes="600"))) == list(range(200))


def test_tags_are_filtered_by_the_broker(table: Table) -> None:
    df = numbered(table.spark, 40).withColumn("tags", F.when(F.col("id") % 4 == 0, "four").otherwise("no")).drop("id")
    table.write(df)
    assert sorted(map(int, table.values(subExpression="four || five"))) == list(range(0, 40, 4))


@pytest.mark.slow
def test_pushed_down_filters_return_the_same_rows(table: Table) -> None:
    table.write(keyed(numbered(table.spark, 400, keys=97), 4, "key", "id").drop("id"))
    for condition in (
        "partition = 2",
        "partition in (1, 3) and offset >= 20",
        "offset < 5",
        "timestamp > '2020-01-01'",
        "timestamp < '2020-01-01'",
    ):
        plain, pushed = (table.read(pushdown=pushdown).where(condition) for pushdown in ("false", "true"))
        assert sorted(pushed.collect()) == sorted(plain.collect()), condition
    assert table.read(pushdown="true").where("partition = 2").rdd.getNumPartitions() == 1


def test_queue_count_returns_the_number_of_queues(table: Table) -> None:
    assert queue_count(table.cluster.nameserver, table.topic) == 4
    with pytest.raises(TopicNotExistError, match="lockstep topic create no-such-topic"):
        queue_count(table.cluster.nameserver, "no-such-topic")


def test_user_schema_of_a_read_is_rejected(table: Table) -> None:
    read = table.spark.read.format("lockstep").options(nameserver=table.cluster.nameserver, subscribe=table.topic)
    with pytest.raises(PySparkException) as failed:
        read.schema("value string").load().count()
    assert "omit schema(), and select columns" in describe_spark_error(failed.value)


def test_sql_select_works_and_insert_is_rejected(table: Table) -> None:
    options = f"nameserver '{table.cluster.nameserver}'"
    table.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW sent USING lockstep OPTIONS ({options}, subscribe '{table.topic}')")
    table.cluster.send(table.topic, [b"1", b"2"], key="k")
    assert table.spark.sql("SELECT count(*), min(cast(value AS string)) FROM sent WHERE key = 'k'").collect()[0][:2] == (2, "1")
    with pytest.raises(PySparkException) as failed:
        table.spark.sql("INSERT INTO sent SELECT * FROM sent")
    assert 'no option "subscribe": it is for reads' in describe_spark_error(failed.value)
    assert len(table.values()) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"maxOffsetPerTrigger": "5"}, 'did you mean "maxOffsetsPerTrigger"?'),
        ({"subscribe": "no-such-topic"}, "lockstep topic create no-such-topic"),
        ({"nameserver": "127.0.0.1:1", "requestTimeoutMs": "500"}, "no nameserver can be reached"),
        ({"startingOffsets": "latest"}, "a batch read would be empty"),
        (
            {"lockstep.tls.ca": "/nowhere/ca.pem"},
            '"lockstep.tls.ca", or its parameter in "nameserver": /nowhere/ca.pem: no such file',
        ),
    ],
)
def test_error_for_an_invalid_read_states_the_reason(table: Table, options: dict[str, str], said: str) -> None:
    with pytest.raises(PySparkException) as failed:
        table.read(**options).count()
    assert said in describe_spark_error(failed.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"frameRecord": "5"}, 'did you mean "frameRecords"?'),
        ({"topic": "no-such-topic"}, "lockstep topic create no-such-topic"),
        ({"nameserver": "127.0.0.1:1"}, "no nameserver can be reached"),
        ({"notBefore": "true"}, "bornTimestamp"),
        (
            {"lockstep.tls.ca": "/nowhere/ca.pem"},
            '"lockstep.tls.ca", or its parameter in "nameserver": /nowhere/ca.pem: no such file',
        ),
    ],
)
def test_error_for_an_invalid_write_states_the_reason(table: Table, options: dict[str, str], said: str) -> None:
    df = numbered(table.spark, 3).drop("id")
    given = {"nameserver": table.cluster.nameserver, "topic": table.topic, **options}
    with pytest.raises(PySparkException) as failed:
        df.write.format("lockstep").mode("append").options(**given).save()
    assert said in describe_spark_error(failed.value)
    with pytest.raises(PySparkException, match="append"):
        table.writer(df).mode("overwrite").save()


@pytest.mark.slow
def test_rows_round_trip_by_tls(spark: Any, tmp_path: Path) -> None:
    with secure_servers(tmp_path) as nameserver:
        rows = spark.createDataFrame([(f"k{n}", str(n)) for n in range(40)], "key string, value string").repartition(4)
        rows.write.format("lockstep").option("nameserver", nameserver).option("topic", "orders").mode("append").save()
        stranger, _, ca = nameserver.partition("/?tls_ca=")
        for options in ({"nameserver": nameserver}, {"nameserver": stranger, "lockstep.tls.ca": ca}):
            read = spark.read.format("lockstep").options(**options, subscribe="orders").load()
            assert {bytes(row.value) for row in read.collect()} == {b"%d" % n for n in range(40)}
        with pytest.raises(Exception, match="requires TLS: connect with TLS"):
            spark.read.format("lockstep").option("nameserver", stranger).option("subscribe", "orders").load().collect()
