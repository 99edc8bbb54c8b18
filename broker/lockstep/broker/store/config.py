"""What a store may be told."""

from dataclasses import dataclass
from enum import Enum

from lockstep.protocol.errors import ConfigError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


class FlushMode(Enum):
    """When an answer counts as confirmed."""

    ASYNC = "async"
    """Once the write returned: a killed process loses nothing, a power cut the last flush interval."""
    SYNC = "sync"
    """Once a shared fdatasync covered it."""


OPEN_FILES_MAX = 256
"""Consume-queue files that a broker holds open at once, where the limit of file descriptors is not low."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose store it is. Another cluster or name on the same directory is refused."""

    cluster: str
    broker_name: str


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Limits and times of one store; the defaults are Apache's where Apache has the setting."""

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
    """A whole record: body of 4 MiB, names and properties beside it."""
    state_bytes_max: int | None = None
    """The longest body of a state record; the changes of a turn that need more are split. None: what fits a file of the log."""
    tail_bytes: int = 8 * MIB
    """Recent log bytes kept in memory for readers that keep up."""
    queue_tail_bytes: int = 4 * MIB
    """Recent consume-queue entries kept in memory, all queues together (20 bytes each)."""
    open_file_count_max: int = OPEN_FILES_MAX
    """Consume-queue files held open at once."""
    snapshot_bytes: int = 64 * MIB
    """Log written since the last snapshot that makes the next one due."""
    snapshot_interval_ms: int = 60_000
    """Time after which a snapshot is due if anything changed."""
    retention_ms: int = 72 * 3600 * 1000
    """Age of the record that follows it beyond which a whole segment goes (RocketMQ: fileReservedTime)."""
    disk_used_percent_max: int = 80
    """Use of the file system above which the oldest segments go whatever their age; 100 turns it off."""
    log_bytes_max: int | None = None
    """Log kept at most, in whole segments; None leaves it to the disk."""
    disk_reserve_bytes: int | None = None
    """Free space below which sends are refused; None is min(256 MiB, 5 % of the file system)."""
    cut_corrupt: bool = False
    """Corruption below the synced length cuts the log there instead of stopping the start. Acknowledged messages are lost."""
    verify_reads: bool = True
    """Check magic, place and body CRC of what is read back from files before it is served."""
    scrub_bytes_per_s: int = 0
    """How much of the log the background scrub reads in a second; 0 turns it off."""
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
