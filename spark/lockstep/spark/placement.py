"""Order from Spark to the queue: the rows of one queue in one task, sorted, as the SDK's keyed send would place them."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lockstep.client.config import nameserver_addresses
from lockstep.protocol.errors import LocalProtocolError
from lockstep.spark.cluster import Cluster, ask

TIMEOUT_MS = 10_000


def keyed(df: DataFrame, queues: int, key: "str | Column", order: "str | Column", *, tasks: int | None = None) -> DataFrame:
    """`df` with the column `partition` = crc32(key) mod `queues`, one queue a task, sorted by `order`, then by key.

    Rows of one key then stand in one queue in that order, and a repeated task sends the same rows in the same order again, which sends that
    are stored once need: so `order` must be unique within a key. `queues`: the topic's writable queues (`queue_count`). `tasks`: fewer
    tasks than queues, several queues in each.
    """
    if queues < 1 or not 1 <= (tasks or 1) <= queues:
        raise LocalProtocolError(f"{queues} queues in {tasks or queues} tasks: expected 1 or more queues, and at most one task for each")
    column = F.col(key) if isinstance(key, str) else key
    number = F.pmod(F.crc32(column.cast("binary")), F.lit(queues)).cast("int")
    return df.withColumn("partition", number).repartitionById(tasks or queues, "partition").sortWithinPartitions(order, column)


def queue_count(nameserver: str, topic: str) -> int:
    """How many writable queues the topic has now; TopicNotExistError, TransportError."""

    async def count(cluster: Cluster) -> int:
        return len((await cluster.layout(topic)).write_queues)

    return ask(nameserver_addresses(nameserver), TIMEOUT_MS, count)
