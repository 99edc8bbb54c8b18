"""The store of one broker: all queues' records and the broker's state in one log on disk, and the consume queues built from it.

Here: `Store`, which everything else uses, with its settings, results and errors. Its parts are in `log` (append, sync), `queues` (reads),
`start` (from files to state) and `health` (damage, disk, retention). Not here: what the state means (`broker/state.py`), who may read
(`broker/groups`), and directories to which RocketMQ's broker has written (`broker/rocketmq_store`).

Read `store.py` first, and docs/store.md for the files.
"""

from lockstep.broker.store.config import FlushMode, Identity, StoreConfig
from lockstep.broker.store.errors import IdentityError, StoreCorruptError, StoreDiskError, StoreInUseError
from lockstep.broker.store.results import Appended, DiskStatus, ReadResult, ReadStatus, Recovery
from lockstep.broker.store.start.replay import StateReplay
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
    "StateReplay",
    "Store",
    "StoreConfig",
    "StoreCorruptError",
    "StoreDiskError",
    "StoreInUseError",
]
