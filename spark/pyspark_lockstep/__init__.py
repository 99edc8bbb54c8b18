"""Found by Spark, which looks for modules named pyspark_* and takes their DefaultSource: `format("lockstep")` works without `register`."""

from lockstep.spark.source import LockstepDataSource as DefaultSource

__all__ = ["DefaultSource"]
