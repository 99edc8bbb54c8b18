"""Preserve order from Spark to the queue: put the rows of one queue in one task, sorted, as the SDK's keyed send would place them."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lockstep.protocol.errors import LocalProtocolError
from lockstep.runtime.connections.cluster_address import ClusterAddress
from lockstep.spark.cluster import Cluster, run_once
from lockstep.spark.frames import PLACED_OVER

TIMEOUT_MS = 10_000


def keyed(df: DataFrame, queues: int, key: "str | Column", order: "str | Column", *, tasks: int | None = None) -> DataFrame:
    """Return `df` with the column `partition` = crc32(key) mod `queues`, one queue per task, sorted by `order` and then by key.

    The rows of a key are then stored in one queue in that order, and a repeated task sends the same rows in the same order, as idempotent
    sends require. A write to a topic that has another number of queues by then is refused.

    Args:
        df: The rows to write.
        queues: The number of the topic's writable queues (`queue_count`).
        key: The column of the sharding key.
        order: The column to sort by; its values must be unique within a key.
        tasks: The number of tasks, at most `queues`, if a task is to write several queues. None for one task per queue.

    Raises:
        LocalProtocolError: `queues` or `tasks` is out of range.
    """
    if queues < 1 or not 1 <= (tasks or 1) <= queues:
        raise LocalProtocolError(f"{queues} queues in {tasks or queues} tasks: expected 1 or more queues, and at most one task per queue")
    column = F.col(key) if isinstance(key, str) else key
    number = F.pmod(F.crc32(column.cast("binary")), F.lit(queues)).cast("int")
    placed = df.withColumn("partition", number).withMetadata("partition", {PLACED_OVER: queues})
    return placed.repartitionById(tasks or queues, "partition").sortWithinPartitions(order, column)


def queue_count(nameserver: str, topic: str) -> int:
    """Return the number of writable queues of the topic. Raise TopicNotExistError or TransportError."""

    async def count(cluster: Cluster) -> int:
        return len((await cluster.layout(topic)).write_queues)

    return run_once(ClusterAddress.parse(nameserver), TIMEOUT_MS, count)
