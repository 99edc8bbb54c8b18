"""The log on disk: commit log, consume queues, snapshots, recovery, retention."""

from lockstep.broker.store.config import FlushMode, Identity, StoreConfig
from lockstep.broker.store.errors import IdentityError, StoreCorruptError, StoreDiskError, StoreInUseError
from lockstep.broker.store.results import Appended, DiskStatus, ReadResult, ReadStatus, Recovery
from lockstep.broker.store.start.replay import Replay
from lockstep.broker.store.store import Store

__all__ = [
    "Appended",
    "DiskStatus",
    "FlushMode",
    "Identity",
    "IdentityError",
    "ReadResult",
    "ReadStatus",
    "Recovery",
    "Replay",
    "Store",
    "StoreConfig",
    "StoreCorruptError",
    "StoreDiskError",
    "StoreInUseError",
]
