"""Apache Spark integration: topics as batch and streaming sources and sinks. See docs/spark.md.

from lockstep.spark import keyed, register

register(spark)
spark.read.format("lockstep").option("nameserver", "127.0.0.1:9876").option("subscribe", "orders").load()
"""

from importlib import import_module
from typing import TYPE_CHECKING

from lockstep.runtime.extras import with_advice

if TYPE_CHECKING:
    from lockstep.spark.placement import keyed, queue_count
    from lockstep.spark.source import LockstepDataSource, register

_MODULE_OF = {"LockstepDataSource": "source", "keyed": "placement", "queue_count": "placement", "register": "source"}

__all__ = ["LockstepDataSource", "keyed", "queue_count", "register"]


def __getattr__(name: str) -> object:
    """Import a public name on first use: Spark's workers import this package for its pure modules only."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    except ModuleNotFoundError as error:
        raise with_advice(error) from None
