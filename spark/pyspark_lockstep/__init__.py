"""Makes `format("lockstep")` work without `register`: Spark imports modules named pyspark_* and registers their DefaultSource."""

from lockstep.spark.source import LockstepDataSource as DefaultSource

__all__ = ["DefaultSource"]
