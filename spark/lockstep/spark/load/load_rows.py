"""The format of the rows that the load generator sends and the verifying pipeline reads.

    0   8   run id
    8   4   key's number
    12  8   seq: 0, 1, 2 … within the key
    20  8   born: when the row was due, µs since 1970
    28  4   CRC-32 of everything else
    32      incompressible filler

Integers are big-endian. Everything follows from the row's number and the manifest, so a repeated task sends the same bytes.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lockstep.protocol.errors import ConfigError, RemoteProtocolError
from lockstep.protocol.fields import camel, from_plain
from lockstep.spark.key_shares import KeyShares
from lockstep.spark.offsets import Plain
from lockstep.spark.start_line import COLUMN

HEAD_BYTES = 32
FILLER_BYTES = 256 * 1024
"""Size of the filler from which each value takes a slice; it is larger if the values are so large that all slices would be equal."""
VERSION = 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """Defines the rows of a run. It is written before the first row; `verify_load` derives the expected rows from it alone."""

    run_id: str
    """16 hex digits."""
    topic: str
    queues: tuple[str, ...]
    """In layout order, as "broker:id": queue number → queue."""
    start_offsets: Plain
    """The next offset of each queue when the run began."""
    rows: int
    keys: int
    skew: float
    seed: int
    size: tuple[int, int]
    """Smallest and largest size of a value in bytes."""
    rate: int
    """Rows per second; 0 means as fast as possible."""
    order: str
    """`key`: rows are placed by key and sorted. `none`: rows have no keys."""
    tags: tuple[str, ...]
    started_us: int
    """When row 0 was due, in µs since 1970; row i is due i/rate seconds later. 0 until the tasks of a paced run run."""
    partitions: int
    idempotence: str
    tasks: int = 0
    """The number of tasks that send the run since its first start: frames are identified by their task. 0 if it has not started."""
    version: int = VERSION

    @property
    def shares(self) -> KeyShares:
        return KeyShares(self.keys, self.skew, self.seed)

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def parse(cls, plain: Any) -> "Manifest":
        """Parse a manifest. Raise ConfigError if this version can't read it."""
        try:
            if plain["version"] != VERSION:
                raise ConfigError(f"the manifest has version {plain['version']}, and this program reads version {VERSION}")
            return from_plain(cls, {camel(name): plain[name] for name in cls.__dataclass_fields__})
        except (KeyError, TypeError) as error:
            raise ConfigError(f"not a manifest of the load generator: {error!r}") from None
        except RemoteProtocolError as error:
            raise ConfigError(f"not a manifest of the load generator: {error}") from None


def numbered(spark: SparkSession, manifest: Manifest, slices: int) -> DataFrame:
    """Return the columns id, key_number and seq of every row."""
    ids = spark.range(0, manifest.rows, 1, slices)
    shares = manifest.shares
    if not shares.skew:
        return ids.select(
            "id", (F.col("id") % shares.keys).cast("int").alias("key_number"), F.floor(F.col("id") / shares.keys).alias("seq")
        )
    table = pa.table(
        {
            "position": range(shares.length),
            "key_number": pa.array([key for key, _ in shares.positions], pa.int32()),
            "rank": [rank for _, rank in shares.positions],
            "weight": [shares.weights[key] for key, _ in shares.positions],
        }
    )
    cycle = F.broadcast(spark.createDataFrame(table))
    joined = ids.withColumn("position", F.col("id") % shares.length).join(cycle, "position")
    return joined.select("id", "key_number", (F.floor(F.col("id") / shares.length) * F.col("weight") + F.col("rank")).alias("seq"))


def key_of(number: Column) -> Column:
    """Return the sharding key of a key number, with at least six digits."""
    digits = number.cast("string")
    return F.concat(F.lit("k"), F.lpad(digits, F.greatest(F.length(digits), F.lit(6)), F.lit("0")))


def to_send(rows: DataFrame, manifest: Manifest) -> DataFrame:
    """Return the rows, which have the column `started_us`, with the columns of the sink."""
    born = F.col(COLUMN)
    if manifest.rate:
        born = born + F.floor(F.col("id") * 1_000_000 / manifest.rate)
    head = F.concat(
        F.unhex(F.lit(manifest.run_id)), _number(F.col("key_number"), 4), _number(F.col("seq"), 8), _number(F.col("born_us"), 8)
    )
    low, high = manifest.size[0] - HEAD_BYTES, manifest.size[1] - HEAD_BYTES
    length = F.lit(low) if low == high else (F.lit(low) + F.pmod(F.xxhash64("id", F.lit(manifest.seed)), F.lit(high - low + 1))).cast("int")
    whole = filler(manifest.seed, max(FILLER_BYTES, 2 * high))
    place = (F.pmod(F.xxhash64(F.col("id"), F.lit(manifest.seed), F.lit("place")), F.lit(len(whole) - high)) + 1).cast("int")
    filled = F.substring(F.lit(whole), place, length) if high else F.lit(b"")
    columns = [
        F.concat("head", _number(F.crc32(F.concat("head", "filler")), 4), "filler").alias("value"),
        F.timestamp_micros("born_us").alias("bornTimestamp"),
    ]
    if manifest.order == "key":
        columns += [key_of(F.col("key_number")).alias("key"), F.col("partition")]
    if manifest.tags:
        tags = F.array(*(F.lit(tag) for tag in manifest.tags))
        columns.append(F.element_at(tags, (F.pmod(F.col("id"), F.lit(len(manifest.tags))) + 1).cast("int")).alias("tags"))
    return rows.withColumn("born_us", born.cast("bigint")).withColumns({"head": head, "filler": filled}).select(columns)


def filler(seed: int, size: int) -> bytes:
    """Return `size` incompressible bytes, the same for the same seed."""
    return hashlib.shake_128(f"lockstep load {seed}".encode()).digest(size)


def _number(column: Column, width: int) -> Column:
    return F.unhex(F.lpad(F.hex(column.cast("bigint")), 2 * width, "0"))


def sent_columns() -> Sequence[Column]:
    """Return the columns run_id, key_number, seq, born_us and crc_matches, parsed from `value`.

    A number is null if the value is too short for it, or if no run sends it (2⁶³ and above).
    """

    def number(at: int, width: int) -> Column:
        read = F.conv(F.hex(F.substring("value", at + 1, width)), 16, 10).try_cast("bigint")
        return F.when(F.length("value") >= at + width, read)

    rest = F.concat(F.substring("value", 1, 28), F.substring("value", HEAD_BYTES + 1, 1 << 30))
    return [
        F.lower(F.hex(F.substring("value", 1, 8))).alias("run_id"),
        number(8, 4).alias("key_number"),
        number(12, 8).alias("seq"),
        number(20, 8).alias("born_us"),
        F.coalesce(number(28, 4) == F.crc32(rest), F.lit(False)).alias("crc_matches"),
    ]
