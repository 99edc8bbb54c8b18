"""Syncs the log: in the background every interval, or at once, one fdatasync for all waiters. RocketMQ: GroupCommitService."""

import asyncio
from collections.abc import Callable

from lockstep.broker.store.config import StoreConfig
from lockstep.broker.store.errors import StoreDiskError
from lockstep.broker.store.health.path_watch import CHECK_MS
from lockstep.broker.store.log.commit_log import CommitLog, SyncPlan
from lockstep.broker.store.start.directory import StoreDirectory
from lockstep.protocol.errors import StateError
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.descriptors import SHORTAGE
from lockstep.runtime.host import Host
from lockstep.runtime.waiting import is_set_within

SLOT_INTERVAL_MS = 1_000
"""How late the recorded synced length may be, in ms."""


class Flusher:
    """Runs one sync at a time, in a worker thread. A failed one is final: it is marked, reported and never repeated."""

    def __init__(
        self,
        config: StoreConfig,
        host: Host,
        log: CommitLog,
        directory: StoreDirectory,
        *,
        on_synced: Callable[[int], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self._config = config
        self._host = host
        self._log = log
        self._directory = directory
        self._on_synced = on_synced
        self._on_failed = on_failed
        self._wake = asyncio.Event()
        self._urgent = asyncio.Event()
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._slot_ms = host.clock.monotonic_ms()
        self._failed: BaseException | None = None
        self._stopping = False
        self._abandoned = False
        self._record = False
        """Whether the next sync has to record the synced length."""
        self._ended = asyncio.Event()
        self._ended.set()

    def note_written(self, now: bool) -> None:
        """Note that something was written. `now`: a caller waits for the sync."""
        self._wake.set()
        if now or self._log.written - self._log.synced >= self._config.flush_bytes:
            self._urgent.set()

    async def sync(self, *, record: bool = False) -> None:
        """Wait until everything written is on the disk, and with `record` the synced length too. Raise StoreDiskError if that failed."""
        position = self._log.written
        if self._failed is not None:
            raise StoreDiskError(f"the log could not be synced: {self._failed}") from self._failed
        if self._stopping:
            raise StateError("the store is closed")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((position, done))
        self._record = self._record or record
        self.note_written(now=True)
        await done

    def start(self, tasks: Tasks) -> None:
        """Sync until `stop` or `abandon`."""
        self._ended.clear()
        tasks.spawn(self._run(), "store.flush")

    async def _run(self) -> None:
        try:
            # Bytes written while a sync runs are covered by another one, also when closing.
            while not self._stopping or self._wake.is_set():
                await self._due()
                if self._abandoned:
                    break
                if self._wake.is_set():
                    self._wake.clear()
                    self._urgent.clear()
                    await self._sync_once(save=self._stopping or self._record or self._slot_due() <= 0)
                    continue
                await self._host.threads.run(self._directory.presence.check)
                if self._directory.slot_position < self._log.synced and self._slot_due() <= 0:
                    await self._host.threads.run(self._directory.save_synced, self._log.synced)
                    self._slot_ms = self._host.clock.monotonic_ms()
        except (OSError, StoreDiskError) as error:
            self._fail(error)
        finally:
            self._stopping = True
            self._release(StateError("the store is closed"))
            self._ended.set()

    async def stop(self) -> None:
        """Run a last sync, record the synced length with it, and stop. Raise StoreDiskError if that failed."""
        self._stopping = True
        self._wake.set()
        self._urgent.set()
        await self._ended.wait()
        if self._failed is not None:
            raise StoreDiskError(f"the log could not be synced: {self._failed}") from self._failed

    def abandon(self) -> None:
        """Begin no further sync."""
        self._stopping = self._abandoned = True
        self._wake.set()
        self._urgent.set()

    async def wait_ended(self) -> None:
        """Wait until no sync runs."""
        await self._ended.wait()

    async def _due(self) -> None:
        """Wait until a sync is due, the recorded synced length is too old, or the watched files have to be checked."""
        behind = self._directory.slot_position < self._log.synced
        rest_ms = min(CHECK_MS, max(0, self._slot_due())) if behind else CHECK_MS
        if await is_set_within(self._wake, rest_ms / 1000):
            await is_set_within(self._urgent, self._config.flush_interval_ms / 1000)

    def _slot_due(self) -> int:
        return self._slot_ms + SLOT_INTERVAL_MS - self._host.clock.monotonic_ms()

    async def _sync_once(self, *, save: bool) -> None:
        plan = self._log.sync_plan()
        self._record = False
        await self._host.threads.run(self._sync_files, plan, save)
        if save:
            self._slot_ms = self._host.clock.monotonic_ms()
        self._log.sync_done(plan)
        self._on_synced(plan.position)
        ready = [done for position, done in self._waiters if position <= plan.position]
        self._waiters = [waiter for waiter in self._waiters if waiter[0] > plan.position]
        for done in ready:
            if not done.done():
                done.set_result(None)

    def _sync_files(self, plan: SyncPlan, save: bool) -> None:
        """Sync, in a worker thread."""
        try:
            plan.run()
            # A sync of files that were removed also succeeds, and confirms nothing.
            self._directory.presence.check()
            if save and plan.position > self._directory.slot_position:
                self._directory.save_synced(plan.position)
        except OSError as error:
            self._directory.presence.check()
            if error.errno in SHORTAGE:
                raise  # no page was lost, and the mark needs a descriptor too
            self._directory.mark_sync_failed(True)
            raise

    def _fail(self, error: BaseException) -> None:
        self._failed = error
        self._release(StoreDiskError(f"the log could not be synced: {error}"))
        self._on_failed(error)

    def _release(self, error: BaseException) -> None:
        """Fail all waiters of a sync that will not come."""
        for _, done in self._waiters:
            if not done.done():
                done.set_exception(error)
        self._waiters = []
