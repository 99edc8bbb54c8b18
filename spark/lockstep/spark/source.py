"""The data source `lockstep`, which makes readers and writers for Spark. Runs in planner processes, which have no SparkSession."""

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from lockstep.protocol.errors import ConfigError
from lockstep.spark.options import SinkOptions, SourceOptions


class LockstepDataSource(DataSource):
    """`format("lockstep")`, for read, write, readStream and writeStream."""

    @classmethod
    def name(cls) -> str:
        return "lockstep"

    def schema(self) -> str:
        return SourceOptions.parse(self.options).ddl

    def reader(self, schema: StructType) -> Any:
        from lockstep.spark.reader import LockstepPushdownReader, LockstepReader

        options = self._source(schema)
        return LockstepPushdownReader(options) if options.pushdown else LockstepReader(options)

    def streamReader(self, schema: StructType) -> Any:
        from lockstep.spark.stream_reader import LockstepStreamReader

        return LockstepStreamReader(self._source(schema))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        from lockstep.spark.writer import LockstepWriter

        return LockstepWriter(SinkOptions.parse(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        from lockstep.spark.writer import LockstepStreamWriter

        return LockstepStreamWriter(SinkOptions.parse(self.options), schema, overwrite)

    def _source(self, schema: StructType) -> SourceOptions:
        options = SourceOptions.parse(self.options)
        if tuple(schema.fieldNames()) != options.all_columns:
            raise ConfigError(
                f"the schema of a read can't be changed ({', '.join(options.all_columns)}): omit schema(), and select columns with the "
                'option "columns"'
            )
        return options


def register(spark: SparkSession) -> None:
    """Register `format("lockstep")` in this session. Only needed if the package was passed by --py-files."""
    spark.dataSource.register(LockstepDataSource)
