"""Apache Spark integration: topics as batch and streaming sources and sinks. See docs/spark.md.

from lockstep.spark import keyed, register

register(spark)
spark.read.format("lockstep").option("nameserver", "127.0.0.1:9876").option("subscribe", "orders").load()
"""

from typing import TYPE_CHECKING

from lockstep.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from lockstep.spark.placement import keyed, queue_count
    from lockstep.spark.source import LockstepDataSource, register

_MODULES = {
    "LockstepDataSource": "lockstep.spark.source",
    "keyed": "lockstep.spark.placement",
    "queue_count": "lockstep.spark.placement",
    "register": "lockstep.spark.source",
}

__all__ = ["LockstepDataSource", "keyed", "queue_count", "register"]

# Spark's workers import this package for its pure modules only.
__getattr__ = lazy_names(__name__, _MODULES)
