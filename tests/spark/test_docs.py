"""The examples of docs/spark.md are run unchanged, with the test's cluster and topic."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from support.page_commands import blocks
from support.spark_table import Table

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "spark.md").read_text()
BATCH, STREAM = [block.text for block in blocks(PAGE) if block.language == "python"]
CHECKPOINT = "/var/lib/orders-by-customer"


def run(example: str, table: Table, **given: Any) -> dict[str, Any]:
    """Run the example. Return the names that it defines."""
    for word, here in (("127.0.0.1:9876", table.cluster.nameserver), ('"orders"', f'"{table.topic}"')):
        assert word in example
        example = example.replace(word, here)
    exec(example, given)
    return given


def changes(table: Table, first: int) -> Any:
    """Return 30 numbered changes of 5 keys in random order."""
    ids = table.spark.range(first, first + 30).repartition(3)
    return ids.select(
        F.concat(F.lit("k"), F.col("id") % 5).alias("key"), F.col("id").cast("string").alias("value"), F.col("id").alias("version")
    )


def stored(orders: Any) -> dict[str, list[int]]:
    """Return the values of each key in the order of its queue."""
    found = defaultdict(list)
    for row in orders.orderBy("partition", "offset").collect():
        found[bytes(row.key).decode()].append(int(row.value))
    return dict(found)


@pytest.mark.slow
def test_examples_of_the_spark_page_store_every_key_in_order(table: Table, tmp_path: Path) -> None:
    defined = run(BATCH, table, spark=table.spark, changes=changes(table, 0))
    assert stored(defined["orders"]) == {f"k{key}": list(range(key, 30, 5)) for key in range(5)}
    source = Table(table.spark, table.cluster, f"{table.topic[:100]}-in", 2)
    source.write(changes(table, 30).drop("version"))
    stream = source.stream(startingOffsets="earliest", columns="key,value").withColumn("version", F.col("value").cast("string").cast("int"))
    assert CHECKPOINT in STREAM
    query = run(STREAM.replace(CHECKPOINT, str(tmp_path)), table, **{name: defined[name] for name in ("keyed", "queues")}, stream=stream)[
        "query"
    ]
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert stored(table.read()) == {f"k{key}": list(range(key, 60, 5)) for key in range(5)}
