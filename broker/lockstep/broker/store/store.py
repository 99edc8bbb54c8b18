"""The store of one broker: one log of all queues' records and of the broker's state, with consume queues built from it.

RocketMQ: DefaultMessageStore, CommitLog, ConsumeQueue.
"""

from collections.abc import Callable
from typing import Any

from lockstep.broker.store.config import Identity, StoreConfig
from lockstep.broker.store.results import Appended, DiskStatus, ReadResult, Recovery, Replay
from lockstep.runtime.host import Host


class Store:
    """See the module."""

    store_id: str
    previous_boot_id: str | None
    stopped_clean: bool
    store_host: bytes
    before_write: Callable[[], None] | None
    on_arrival: Callable[[str, int], None] | None
    on_fatal: Callable[[BaseException], None] | None

    @classmethod
    async def open(cls, config: StoreConfig, host: Host, identity: Identity) -> "Store":
        raise NotImplementedError

    async def recover(self, replay: Replay) -> Recovery:
        raise NotImplementedError

    def append_frame(self, topic: str, queue_id: int, frame: bytes | bytearray, count: int, *, born_host: bytes) -> Appended:
        raise NotImplementedError

    def append_state(self, body: bytes) -> None:
        raise NotImplementedError

    def dirty(self) -> None:
        raise NotImplementedError

    def when_confirmed(self, callback: Callable[[], None]) -> None:
        raise NotImplementedError

    async def sync(self) -> None:
        raise NotImplementedError

    async def mark_boot(self, boot_id: str) -> None:
        raise NotImplementedError

    def snapshot_due(self, now_ms: int) -> bool:
        raise NotImplementedError

    async def write_snapshot(self, plain: Any) -> None:
        raise NotImplementedError

    def read(
        self, topic: str, queue_id: int, offset: int, *, max_count: int, max_bytes: int, tag_hashes: frozenset[int] | None = None
    ) -> ReadResult | None:
        raise NotImplementedError

    async def read_cold(
        self, topic: str, queue_id: int, offset: int, *, max_count: int, max_bytes: int, tag_hashes: frozenset[int] | None = None
    ) -> ReadResult:
        raise NotImplementedError

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        raise NotImplementedError

    def end_offset(self, topic: str, queue_id: int) -> int:
        raise NotImplementedError

    def young_queue(self, topic: str, queue_id: int) -> bool:
        raise NotImplementedError

    async def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        raise NotImplementedError

    async def record_at(self, physical_offset: int) -> bytes | None:
        raise NotImplementedError

    async def retention(self, now_ms: int) -> list[tuple[str, int, int]]:
        raise NotImplementedError

    def disk_status(self) -> DiskStatus:
        raise NotImplementedError

    def drop_topic(self, topic: str) -> None:
        raise NotImplementedError

    async def close(self, clean: bool = True) -> None:
        raise NotImplementedError
