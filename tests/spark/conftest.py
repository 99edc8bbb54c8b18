"""One Spark session and one cluster of real processes per test process (each worker of xdist has its own), and one topic per test.

Without pyspark or Java a module is skipped before it is imported, with the reason; with LOCKSTEP_TEST_SPARK=1, as in CI, that fails.
"""

import os
import sys
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest

from lockstep.protocol.errors import LockstepError
from support.spark_table import SparkCluster, Table

REQUIRED = os.environ.get("LOCKSTEP_TEST_SPARK") == "1"


@cache
def missing() -> str | None:
    """Return why these tests can't run here, or None."""
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401

        from lockstep.spark.job import check_java
    except ImportError as error:
        return f"{error}: install the extra [spark]"
    try:
        check_java()
    except LockstepError as error:
        return str(error)
    return None


class SkippedModule(pytest.Module):
    """Replaces a test module, which is then not imported."""

    def collect(self) -> NoReturn:
        why = f"Spark's tests can't run here: {missing()}"
        if REQUIRED:
            raise self.CollectError(f"LOCKSTEP_TEST_SPARK=1, and {why}")
        pytest.skip(why, allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return None if missing() is None else SkippedModule.from_parent(parent, path=module_path)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run these tests first. The first worker of xdist then runs all of them, so there is one session of Spark."""
    here = f"{Path(__file__).parent}{os.sep}"
    own = [item for item in items if str(item.path).startswith(here)]
    for item in own:
        item.add_marker(pytest.mark.spark)
    first = set(own)
    items[:] = own + [item for item in items if item not in first]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    tests, path = Path(__file__).resolve().parents[1], os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([*(one for one in sys.path if one), str(tests), path])
    from lockstep.spark.job import session

    java = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={folder}"
    manager = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    conf = {
        "spark.driver.extraJavaOptions": java,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(folder),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.pyspark.validateSchema": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.checkpointFileManagerClass": manager,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.log.level": "OFF",
    }
    # Plain local[2] would not retry tasks.
    made = session("lockstep tests", "local[2,3]", conf)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    made = SparkCluster(tmp_path_factory.mktemp("cluster"))
    yield made
    made.end()


@pytest.fixture
def table(spark: Any, spark_cluster: SparkCluster, request: pytest.FixtureRequest) -> Table:
    """Return a new topic with 4 queues."""
    number = zlib.crc32(request.node.nodeid.encode())
    return Table(spark, spark_cluster, f"t-{number:08x}-{request.node.originalname}"[:120], 4)
