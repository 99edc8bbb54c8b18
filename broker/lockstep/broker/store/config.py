"""The settings of a store."""

from dataclasses import dataclass
from enum import Enum

from lockstep.protocol.errors import ConfigError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


class FlushMode(Enum):
    """When the response to a write is confirmed."""

    ASYNC = "async"
    """When the write has returned: a killed process loses nothing, a power cut loses the last flush interval."""
    SYNC = "sync"
    """When a shared fdatasync has covered it."""


OPEN_FILES_MAX = 256
"""Consume-queue files that a broker keeps open at once, if the limit of file descriptors is not low."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The cluster and broker that own the store. Others are refused on the same directory."""

    cluster: str
    broker_name: str


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Limits and times of one store. The defaults are Apache's if Apache has the setting."""

    path: str
    flush: FlushMode = FlushMode.ASYNC
    flush_interval_ms: int = 500
    """ASYNC: how long written bytes may stay unsynced (RocketMQ: flushIntervalCommitLog)."""
    flush_bytes: int = 64 * MIB
    """ASYNC: unsynced bytes that start a sync before the interval is over."""
    segment_bytes: int = GIB
    """Apparent length of a log file of a new store (RocketMQ: mappedFileSizeCommitLog). An existing store keeps its own."""
    queue_file_entries: int = 300_000
    """Entries of a consume-queue file of a new store: 6,000,000 bytes (RocketMQ: mappedFileSizeConsumeQueue)."""
    record_bytes_max: int = 4 * MIB + 64 * KIB
    """Size of a whole record: a body of 4 MiB, plus names and properties."""
    state_bytes_max: int | None = None
    """The longest body of a state record. The changes of a turn are split if they need more. None for the length that fits a log file."""
    tail_bytes: int = 6 * MIB
    """Recent log bytes kept in memory, for readers that keep up; at least half of it."""
    queue_tail_bytes: int = 2 * MIB
    """Recent consume-queue entries kept in memory for all queues together, 20 bytes each."""
    open_file_count_max: int = OPEN_FILES_MAX
    """Consume-queue files kept open at once."""
    snapshot_bytes: int = 64 * MIB
    """Bytes of log written since the last snapshot after which the next one is due."""
    snapshot_interval_ms: int = 60_000
    """Time after which a snapshot is due if anything changed."""
    retention_ms: int = 72 * 3600 * 1000
    """A segment is removed when the record that follows it is older than this (RocketMQ: fileReservedTime)."""
    disk_used_percent_max: int = 80
    """Use of the file system above which the oldest segments are removed whatever their age. 100 disables this."""
    log_bytes_max: int | None = None
    """Largest length of the log, in whole segments. None if only the disk limits it."""
    disk_reserve_bytes: int | None = None
    """Free space below which sends are refused. None for min(256 MiB, 5 % of the file system)."""
    cut_corrupt: bool = False
    """Corruption below the synced length cuts the log there instead of stopping the start. Acknowledged messages are lost."""
    verify_reads: bool = True
    """Check magic, position and body CRC of records that are read from files, before they are served."""
    scrub_bytes_per_s: int = 0
    """Bytes of the log that the background scrub reads per second. 0 disables it."""
    store_host: bytes = bytes(8)
    """IPv4 address and port written into records until `Store.store_host` is set: 4 bytes and int32."""

    def __post_init__(self) -> None:
        if len(self.store_host) != 8:
            raise ConfigError(f"store_host has {len(self.store_host)} bytes, expected 4 of the address and 4 of the port")
        if self.segment_bytes < 4 * KIB:
            raise ConfigError(f"segment_bytes is {self.segment_bytes}, expected at least 4096")
        if self.queue_file_entries < 1:
            raise ConfigError(f"queue_file_entries is {self.queue_file_entries}, expected at least 1")
        if self.flush_interval_ms < 1:
            raise ConfigError(f"flush_interval_ms is {self.flush_interval_ms}, expected at least 1")
        if not 1 <= self.disk_used_percent_max <= 100:
            raise ConfigError(f"disk_used_percent_max is {self.disk_used_percent_max}, expected 1 to 100")
