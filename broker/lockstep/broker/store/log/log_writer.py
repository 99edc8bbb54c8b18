"""Writes the appends of each turn of the loop, and reports when they are confirmed.

the first append of a turn    `request_write` opens the turn
end of the turn               `before_write` adds the state journal; one write
confirmed                     at once, or after a sync that turns share, and when every copy of the log has it (`copies`): readers'
                              bounds move, `when_confirmed` calls back, `on_arrival` is called once for each queue
a failed write or sync        `on_fatal`; nothing is confirmed any more
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from lockstep.broker.store.config import FlushMode, StoreConfig
from lockstep.broker.store.errors import NoNextFileError, StoreDiskError
from lockstep.broker.store.health.disk import DiskWatch
from lockstep.broker.store.log.commit_log import CommitLog
from lockstep.broker.store.log.commit_waiters import CALLBACK_FAILED, CommitWaiters
from lockstep.broker.store.log.flusher import Flusher
from lockstep.broker.store.queues.consume_queue import ConsumeQueue
from lockstep.broker.store.queues.queue_table import QueueTable
from lockstep.broker.store.start.directory import StoreDirectory
from lockstep.protocol.errors import ServiceNotAvailableError
from lockstep.runtime.daemon import Tasks, call_isolated
from lockstep.runtime.descriptors import SHORTAGE
from lockstep.runtime.host import Host
from lockstep.runtime.metrics import DurationHistogram
from lockstep.runtime.turn import Turn


class Copies(Protocol):
    """Other copies of the log. They have to have its bytes before those are confirmed."""

    def stored(self) -> int | None:
        """Return up to which position every copy has the log, each by its own flush. None if there is none to wait for."""
        ...

    def synced(self) -> int | None:
        """The same for bytes that are on the disks of the copies."""
        ...

    def written(self) -> int:
        """Send the copies what was written, or nothing but a sign, and return the number of that frame.

        Called in each turn of the loop that wrote to the log, or that owes responses which need proof of office.
        """
        ...

    def heard(self) -> int | None:
        """Return up to which frame every copy has heard this master. None if there is none, or if no response needs proof of office."""
        ...


class LogWriter:
    """The only writer of the log and of the consume queues while the store serves. A write or sync that fails is final."""

    def __init__(
        self, config: StoreConfig, host: Host, directory: StoreDirectory, log: CommitLog, queues: QueueTable, disk: DiskWatch
    ) -> None:
        self._config = config
        self._clock = host.clock
        self._directory = directory
        self._log = log
        self._queues = queues
        self._disk = disk
        self.flusher = Flusher(config, host, log, directory, on_synced=self._synced, on_failed=self.fail)
        self._waiters = CommitWaiters()
        self._waiters.on_confirmed = self._time_turn
        self._sync_waiters: deque[tuple[int, Callable[[], None]]] = deque()
        """Log position and callback of those that wait until it is on the disk, in log order."""
        self._turn = Turn("store", self.end_turn, self.fail)
        self.turn_is_open = False
        self._turn_us = 0
        """When the open turn began."""
        self.append_latency = DurationHistogram()
        """From the first append of a turn until its responses were sent."""
        self.refusal: str | None = "the store has not recovered yet"
        """Why frames are refused now; None if they are not."""
        self.has_failed = False
        self._unconfirmed_end: int | None = None
        """Where recovery ended: until a sync covers it, nothing is confirmed."""
        self.before_write: Callable[[], None] | None = None
        """Called at the end of each loop turn that appended or requested a write, before the write: may append."""
        self.on_fatal: Callable[[BaseException], None] | None = None
        """Called once when a write or sync failed: the process has to end (exit 3) without another response."""
        self.copies: Copies | None = None
        """The copies that have to have what is confirmed. After they have advanced, call `copies_advanced`."""
        self._confirmations: set[asyncio.Future[None]] = set()
        self.proves_office = False
        """Whether another copy may become the master by itself: what waits here then also waits until a later frame is heard."""
        self._office_waiters: deque[tuple[int, Callable[[], None]]] = deque()
        """Number of the frame and callback of those that wait for proof of office only; frame 0 in the open turn."""
        self._unproven: list[Callable[[], None]] = []

    def start(self, end: int, tasks: Tasks) -> None:
        """Begin after recovery, which has read the log up to `end`. Nothing is confirmed before a sync covers that."""
        self._unconfirmed_end = end
        for queue in self._queues:
            if queue.visible < queue.next:
                self._waiters.touched[queue] = None
        self._waiters.close_turn(end)
        self.refusal = None
        self.flusher.start(tasks)

    @property
    def on_arrival(self) -> Callable[[str, int], None] | None:
        """Called with (topic, queue id) after messages became visible, once for each queue and turn."""
        return self._waiters.on_arrival

    @on_arrival.setter
    def on_arrival(self, callback: Callable[[str, int], None] | None) -> None:
        self._waiters.on_arrival = callback

    @property
    def after_arrivals(self) -> Callable[[], None] | None:
        """Called after `on_arrival` was called for all queues of a confirmation."""
        return self._waiters.after_arrivals

    @after_arrivals.setter
    def after_arrivals(self, callback: Callable[[], None] | None) -> None:
        self._waiters.after_arrivals = callback

    # -- the turn --------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise ServiceNotAvailableError while frames are refused: before recovery, while closing, and after a failure."""
        if self.refusal is not None:
            raise ServiceNotAvailableError(self.refusal)

    def check_healthy(self) -> None:
        """Raise StoreDiskError after a failure."""
        if self.has_failed:
            raise StoreDiskError("a write or sync of the log failed")

    def reserve(self, size: int, *, leave: int = 0) -> int:
        """Return the log position of the next record of `size` bytes. Raise NoNextFileError, or StoreDiskError, which is final."""
        try:
            return self._log.reserve(size, leave=leave)
        except NoNextFileError:
            raise
        except (OSError, StoreDiskError) as error:
            self.fail(error)
            raise StoreDiskError(f"the log can't be written: {error}") from error

    def appended(self, queue: ConsumeQueue) -> None:
        """Record that this loop turn has appended to the queue: its entries become visible when the turn is confirmed."""
        self._waiters.touched[queue] = None
        if not self.turn_is_open:
            self.request_write()

    def request_write(self) -> None:
        """Write at the end of this loop turn: something was appended, or will be by `before_write`."""
        if not self.turn_is_open:
            self.turn_is_open = True
            self._turn_us = self._clock.monotonic_us()
            self._turn.schedule()

    def end_turn(self) -> None:
        """Write the open turn, if there is one. Any error ends the process: it is not known then which requests were responded to."""
        if not self.turn_is_open or self.has_failed:
            return
        try:
            if self.before_write is not None:
                self.before_write()
            wrote = self._log.write()
            self._flush_queues()
            self.turn_is_open = False
            self._close_turn(wrote)
        except (OSError, StoreDiskError) as error:
            self.fail(error)
            return
        except BaseException as error:  # re-raised
            # No response may be sent that depends on a state change that can't be written.
            self.fail(error)
            raise

    def _close_turn(self, wrote: bool) -> None:
        log, copies = self._log, self.copies
        frame = 0 if copies is None or not (wrote or self.proves_office) else copies.written()
        self._office_waiters.extend((frame, callback) for callback in self._unproven)
        self._unproven.clear()
        self._waiters.close_turn(log.written, self._turn_us, frame if self.proves_office else 0)
        at_once = self._unconfirmed_end is None and self._config.flush is FlushMode.ASYNC
        if wrote:
            self.flusher.note_written(now=not at_once or bool(self._sync_waiters))
            self._disk.look_if_due(self._clock.monotonic_ms())
            log.trim()
        self._confirm(log.written if at_once else log.synced)
        self._call_in_office()

    def _confirm(self, position: int) -> None:
        """Confirm what this log has up to `position`, as far as every copy has it and has heard this master since."""
        heard = None if self.copies is None else self.copies.heard()
        self._waiters.confirm(self._everywhere(position), heard)

    def _call_in_office(self) -> None:
        heard, waiters = None if self.copies is None else self.copies.heard(), self._office_waiters
        while waiters and (heard is None or waiters[0][0] <= heard):
            call_isolated(CALLBACK_FAILED, waiters.popleft()[1])

    def _flush_queues(self) -> None:
        """Write the entries of queues that have many. Without a free descriptor they stay in memory for another turn."""
        try:
            for queue in self._waiters.touched:
                self._queues.flush_full(queue)
            self._queues.flush_some()
        except OSError as error:
            if error.errno not in SHORTAGE:
                raise

    def _time_turn(self, opened_us: int) -> None:
        self.append_latency.observe(self._clock.monotonic_us() - opened_us)

    # -- confirmation ----------------------------------------------------------------------------

    def when_written(self, callback: Callable[[], None]) -> None:
        """Call back when the operating system has every append so far: at the end of this loop turn, in either flush mode."""
        if self.has_failed:
            return
        if self.turn_is_open:
            self._waiters.call_when_written(callback)
        else:
            callback()

    def when_confirmed(self, callback: Callable[[], None]) -> None:
        """Call back when the log is confirmed up to its present end, this turn's journal included; at once if nothing is pending.

        Where responses need proof of office, a turn is opened: the copies have then heard this master after the call.
        """
        if not self.has_failed:
            if self.proves_office:
                self.request_write()
            self._waiters.call_when_confirmed(callback, self.turn_is_open)

    def when_in_office(self, callback: Callable[[], None]) -> None:
        """Call back when every copy has heard this master after the call. Waits for no disk. At once where no response needs that."""
        if not self.has_failed:
            if self.proves_office:
                self._unproven.append(callback)
                self.request_write()
            else:
                callback()

    async def wait_confirmed(self) -> None:
        """Return when the log is confirmed up to its present end. Raise StoreDiskError after a failure."""
        self.check_healthy()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._confirmations.add(done)
        self.when_confirmed(lambda: None if done.done() else done.set_result(None))
        self.end_turn()
        try:
            await done
        finally:
            self._confirmations.discard(done)

    def when_synced(self, callback: Callable[[], None]) -> None:
        """Call back when every append so far and this turn's journal are on the disk, in either flush mode, and on those of all copies.

        All callers share a sync.
        """
        if self.has_failed:
            return
        if self.turn_is_open:
            self._waiters.call_when_written(lambda: self._call_when_synced(callback))  # the journal is appended at the end of the turn
        else:
            self._call_when_synced(callback)

    def _call_when_synced(self, callback: Callable[[], None]) -> None:
        if self._synced_everywhere() >= self._log.end:
            callback()
            return
        self._sync_waiters.append((self._log.end, callback))
        self.flusher.note_written(now=True)

    @property
    def waiting_count(self) -> int:
        """Return the number of callbacks that wait for confirmation, a sync or proof of office."""
        return self._waiters.waiting_count + len(self._sync_waiters) + self.unproven_count

    @property
    def unproven_count(self) -> int:
        """Return the number of callbacks that wait for proof of office only."""
        return len(self._office_waiters) + len(self._unproven)

    @property
    def unsynced_bytes(self) -> int:
        """Return the number of bytes that were written and are not known to be on the disk."""
        return self._log.written - self._log.synced

    @property
    def confirmed(self) -> int:
        """Return the log position up to which records may be read by their position."""
        return self._everywhere(self._log.written if self._config.flush is FlushMode.ASYNC else self._log.synced)

    def _everywhere(self, position: int) -> int:
        """Return up to which position, at most `position`, every copy has the log."""
        stored = None if self.copies is None else self.copies.stored()
        return position if stored is None else min(position, stored)

    def _synced_everywhere(self) -> int:
        synced = None if self.copies is None else self.copies.synced()
        return self._log.synced if synced is None else min(self._log.synced, synced)

    def copies_advanced(self) -> None:
        """Confirm what all copies have by now."""
        if self.has_failed:
            return
        if self._unconfirmed_end is None:
            self._confirm(self._log.written if self._config.flush is FlushMode.ASYNC else self._log.synced)
        self._call_in_office()
        self._call_synced()

    async def sync(self) -> None:
        """Return when everything appended so far is on the disk. Raise StoreDiskError after a failure."""
        self.end_turn()
        self.check_healthy()
        await self.flusher.sync()

    def _synced(self, position: int) -> None:
        if self.has_failed:
            return
        if self._unconfirmed_end is not None and position >= self._unconfirmed_end:
            self._unconfirmed_end = None
        if self._unconfirmed_end is None:
            self._confirm(position)
        self._call_synced()

    def _call_synced(self) -> None:
        waiters, position = self._sync_waiters, self._synced_everywhere()
        while waiters and waiters[0][0] <= position:
            call_isolated(CALLBACK_FAILED, waiters.popleft()[1])

    # -- failure ---------------------------------------------------------------------------------

    def fail_inconsistent(self, error: BaseException) -> None:
        """End the process (exit 3): a change was carried out in part, so the tables disagree with the log. A start reads them from it."""
        self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Refuse and confirm nothing from here on, then report the failure: no response is sent in between."""
        if self.has_failed:
            return
        self.has_failed = True
        self.refusal = f"the log can't be written: {error}"
        self._waiters.drop_all()
        self._sync_waiters.clear()
        self._office_waiters.clear()
        self._unproven.clear()
        for done in self._confirmations:
            if not done.done():
                done.set_exception(StoreDiskError(self.refusal))
        self.flusher.abandon()
        if self.on_fatal is not None:
            self.on_fatal(self._fatal(error))

    def _fatal(self, error: BaseException) -> StoreDiskError:
        """Return the error that ends the process: the removal or replacement of the store's files if that is the cause, else `error`."""
        if isinstance(error, StoreDiskError):
            return error
        fatal = StoreDiskError(f"store {self._config.path} failed: {error}")
        try:
            self._directory.presence.check()
        except StoreDiskError as vanished:
            fatal = vanished
        except OSError:
            pass
        fatal.__cause__ = error
        return fatal
