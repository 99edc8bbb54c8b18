"""Broadcasting: a member has every queue, locks none and stores its progress in a file. RocketMQ: RebalancePushImpl, LocalFileOffsetStore.

A LocalSession replaces the broker session: it grants queues with the progress in the file, and commits go to the file. Workers, pull loops
and listeners are the same. The file is written at most once per second, at the end, and at once for a runner that waits (`commit="each"`).
The offset at which a queue begins, or begins again, is in the file before its first message is handled: a crash skips nothing.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import ClassVar, TypeVar

from lockstep.client.broker_link import BrokerLink
from lockstep.client.consumer.config import ConsumerConfig
from lockstep.client.consumer.grants.local_offsets import LocalOffsets, SavedProgress
from lockstep.client.consumer.grants.offset_file import OffsetFile
from lockstep.client.consumer.grants.ownership import OwnershipEvent, OwnershipState, QueueOwnership, SentItem
from lockstep.client.consumer.interfaces import ReportedQueueWorker
from lockstep.client.instance import Instance
from lockstep.protocol.bodies import ConsumeFromWhere, LockResult, LockVerdict
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import BrokerError, ConfigError, RemoteProtocolError, TransportError
from lockstep.protocol.fields import from_plain
from lockstep.protocol.headers.offsets import MinOffsetReply, OffsetReply, QueueHeader, SearchOffsetHeader
from lockstep.protocol.topics.queue import MessageQueue
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.waiting import is_set_within

log = get_logger("client.consumer")

T = TypeVar("T")

WRITE_MS = 1_000
"""Time between two writes of the file that no runner waits for: a crash repeats at most this much. RocketMQ: 5 s."""
AGAIN_MS = 1_000
"""Pause before a start offset that a broker could not return is requested again."""


class AlwaysAlive:
    """A proof of life that never lapses: no broker grants a broadcasting member's queue to another."""

    deadline_ms: ClassVar[int] = 1 << 62


class LocalProgress:
    """The progress of one consumer and its file. Call `open`, `run` as a task, then `close`."""

    def __init__(self, instance: Instance, config: ConsumerConfig, group: str) -> None:
        self._instance = instance
        self._config = config
        self._threads = instance.host.threads
        self._clock = instance.host.clock
        self._file = OffsetFile(instance.host, config.offset_dir, group, config.instance_name)
        self._offsets = LocalOffsets(group)
        self._grants = 0
        self._written = 0
        """The number of the last change that is in the file."""
        self._changes = 0
        self._starts: dict[MessageQueue, int] = {}
        """By queue: the number of the change that set where it begins, or begins again."""
        self._urgent = False
        self._wake = asyncio.Event()
        self._done = asyncio.Condition()
        self._failing = False
        self._jobs = Tasks()
        self._job: asyncio.Task[object] | None = None
        self.tasks = Tasks()
        self.workers: dict[QueueOwnership, ReportedQueueWorker] = {}

    async def open(self) -> None:
        """Open and read the file. Raise ConfigError if this consumer can't use it (see OffsetFile.open)."""
        found = await self._to_its_end(self._file.open)
        if not isinstance(found, LocalOffsets):
            raise found
        self._offsets = found

    async def close(self) -> None:
        """Write the file a last time, and release it for another consumer."""
        await self.tasks.cancel_all()
        if self._job is not None:
            await asyncio.wait([self._job])  # its waiter was cancelled: two writes at once would damage the file
        if self._changes > self._written:
            await self._write()
        self.release()

    def release(self) -> None:
        """Release the file for another consumer."""
        self._file.release()

    def next_token(self) -> int:
        """Return a number that rises with each grant of this member, also across restarts."""
        self._grants += 1
        return self._offsets.starts << 32 | self._grants

    def record_progress(self, ownership: QueueOwnership, *, urgent: bool = False) -> None:
        """Record the queue's progress for the next write."""
        changed = ownership.holds and self._set(ownership.queue, SavedProgress(ownership.offset, ownership.attempts))
        self._urgent = self._urgent or urgent
        if changed or urgent:
            self._wake.set()

    def _set(self, queue: MessageQueue, place: SavedProgress) -> bool:
        changed = self._offsets.set(queue, place)
        self._changes += changed
        return changed

    def restart_at(self, ownership: QueueOwnership, offset: int) -> None:
        """Continue the queue at this offset, whatever was consumed of it."""
        self._begin_at(ownership.queue, SavedProgress(offset, 0))

    def _begin_at(self, queue: MessageQueue, place: SavedProgress) -> None:
        self._set(queue, place)
        self._starts[queue] = self._changes

    def now_ms(self) -> int:
        return self._clock.boot_ms()

    # ---------------------------------------------------------------------------------------------------------------- start

    async def start_of(self, queue: MessageQueue, link: BrokerLink, subscribed: int | None) -> SavedProgress:
        """Return where this member continues in the queue; a new member begins according to the start policy. On return the file has this
        position.

        `subscribed`: the topic's layout counter at which the member subscribed, 0 if the topic did not exist, None if that is not known.

        Raises:
            TransportError, BrokerError, RemoteProtocolError: The broker did not return the start offset.
        """
        place = self._offsets.place(queue)
        if place is None:
            place = SavedProgress(await self._new(queue, link, subscribed), 0)
            self._begin_at(queue, place)
        mine = self._starts.get(queue, 0)
        if mine > self._written:
            self._urgent = True
            self._wake.set()
            async with self._done:
                await self._done.wait_for(lambda: self._written >= mine)
        return place

    async def _new(self, queue: MessageQueue, link: BrokerLink, subscribed: int | None) -> int:
        layout = self._instance.routes.layout(queue.topic)
        if layout is None or queue not in layout.number_of:
            raise TransportError(f"{queue} is no longer in any layout")
        since = self._offsets.since(queue.topic, layout.version.counter if subscribed is None else subscribed)
        return await (self._added if layout.added_in(queue) > since else self._by_policy)(queue, link)

    async def _added(self, queue: MessageQueue, link: BrokerLink) -> int:
        """Return the offset of the first message after the queue was added to the topic (ordering.md 7.2)."""
        response = await link.call(RequestCode.GET_MIN_OFFSET, QueueHeader(queue.topic, queue.queue_id))
        found = from_plain(MinOffsetReply, response.fields)
        if found.offset < 0:
            raise RemoteProtocolError(f"{link.name} does not have {queue} yet")
        return found.added or 0

    async def _by_policy(self, queue: MessageQueue, link: BrokerLink) -> int:
        where, at_ms = self._config.consume_from_where, self._config.consume_timestamp_ms
        if where is ConsumeFromWhere.TIMESTAMP and at_ms is not None:
            response = await link.call(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetHeader(queue.topic, queue.queue_id, at_ms))
        else:
            code = RequestCode.GET_MAX_OFFSET if where is ConsumeFromWhere.LAST_OFFSET else RequestCode.GET_MIN_OFFSET
            response = await link.call(code, QueueHeader(queue.topic, queue.queue_id))
        offset = from_plain(OffsetReply, response.fields).offset
        if offset < 0:
            raise RemoteProtocolError(f"{link.name} does not have {queue} yet")
        return offset

    # ---------------------------------------------------------------------------------------------------------------- write

    async def run(self) -> None:
        """Write the file after changes, until cancelled."""
        last_ms = self._clock.boot_ms() - WRITE_MS
        while True:
            await self._wake.wait()
            self._wake.clear()
            while (wait_ms := self._wait_ms(last_ms)) > 0:
                await is_set_within(self._wake, wait_ms / 1000)
                self._wake.clear()
            last_ms = self._clock.boot_ms()
            await self._write()

    def _wait_ms(self, last_ms: int) -> int:
        return 0 if self._urgent and not self._failing else last_ms + WRITE_MS - self._clock.boot_ms()

    async def _write(self) -> None:
        self._urgent = False
        count = self._changes
        written = [(ownership, ownership.token, ownership.offset, ownership.attempts) for ownership in self.workers if ownership.holds]
        error = await self._to_its_end(self._file.write, self._offsets.encode())
        if error is not None:
            self._urgent = True
            self._wake.set()
            if not self._failing:
                self._failing = True
                log.error(
                    "offsets.unwritable", path=self._file.path, error=str(error), effect="a crash would repeat more; the write is retried"
                )
            return
        if self._failing:
            self._failing = False
            log.info("offsets.writable_again", path=self._file.path)
        async with self._done:
            self._written = count
            self._done.notify_all()
        for ownership, token, offset, attempts in written:
            worker = self.workers.get(ownership)
            if worker is not None:
                ownership.stored_locally(token, offset, attempts)
                worker.wake_waiters()

    async def _to_its_end(self, call: Callable[..., T], *arguments: object) -> T | OSError | ConfigError:
        """Run a call in a thread to its end, even if the caller is cancelled. Return its result or its error."""
        self._job = job = self._jobs.spawn(self._run(call, *arguments), "offsets file")
        await asyncio.wait([job])
        return job.result()  # type: ignore[no-any-return]

    async def _run(self, call: Callable[..., T], *arguments: object) -> T | OSError | ConfigError:
        try:
            return await self._threads.run(call, *arguments)
        except (OSError, ConfigError) as error:
            return error


class LocalSession:
    """The session of a worker that needs a broker only for messages; one for each queue."""

    def __init__(self, link: BrokerLink, progress: LocalProgress, subscribed: Mapping[str, int]) -> None:
        """`subscribed`: topic → layout counter at which the member subscribed, as far as that is known."""
        self.link = link
        self.proof = AlwaysAlive()
        self.proof_awaited = False
        self._progress = progress
        self._subscribed = subscribed
        self._worker: ReportedQueueWorker | None = None
        self._loop = asyncio.get_running_loop()

    def add(self, worker: ReportedQueueWorker) -> None:
        self._worker = self._progress.workers[worker.ownership] = worker

    def remove(self, worker: ReportedQueueWorker) -> None:
        self._progress.workers.pop(worker.ownership, None)
        self._worker = None

    def trigger(self) -> None:
        """Handle that the queue is wanted and not held, or is no longer held."""
        worker = self._worker
        if worker is not None and worker.ownership.may_acquire and not worker.ownership.in_lock:
            sent = worker.ownership.grant_requested()
            self._progress.tasks.spawn(self._begin(worker, sent), f"{worker.ownership.group} {worker.ownership.queue} start")

    async def _begin(self, worker: ReportedQueueWorker, sent: SentItem) -> None:
        ownership = worker.ownership
        place: SavedProgress | None = None
        while ownership.wanted and place is None:
            try:
                place = await self._progress.start_of(ownership.queue, self.link, self._subscribed.get(ownership.queue.topic))
            except (TransportError, BrokerError, RemoteProtocolError) as error:
                log.info("start.unknown", queue=str(ownership.queue), error=str(error), again_ms=AGAIN_MS)
                await asyncio.sleep(AGAIN_MS / 1000)
        if place is None:
            ownership.in_lock = False
            worker.wake_waiters()
            return
        key = (ownership.group, ownership.queue.topic, ownership.queue.queue_id)
        token = self._progress.next_token()
        result = LockResult(*key, LockVerdict.OK, epoch=token, offset=place.offset, attempts=place.attempts)
        granted = ownership.handle_lock_response(sent, result)
        if granted is OwnershipEvent.GRANTED and ownership.state is OwnershipState.HELD:
            worker.granted(result)
        elif granted is OwnershipEvent.GRANTED:
            self.changed(ownership, urgent=True)
        worker.wake_waiters()

    def changed(self, ownership: QueueOwnership, *, urgent: bool = False) -> None:
        """Record progress, or handle a change of state."""
        self._progress.record_progress(ownership, urgent=urgent and ownership.state is OwnershipState.HELD)
        if ownership.state is OwnershipState.RELEASING:
            self._loop.call_soon(self._release, ownership)
        elif ownership.state is OwnershipState.DRAINING and ownership.drain_at_ms is not None:
            now_ms = self._progress.now_ms()
            self._loop.call_later(max(ownership.drain_at_ms - now_ms, 0) / 1000, self._limit, ownership, ownership.changed)
            if ownership.cancel_at_ms is not None:
                self._loop.call_later(max(ownership.cancel_at_ms - now_ms, 0) / 1000, self._cancel, ownership, ownership.changed)

    def _release(self, ownership: QueueOwnership) -> None:
        worker = self._worker
        if worker is not None and ownership.state is OwnershipState.RELEASING:
            ownership.released_locally()
            worker.grant_ended(fenced=False)
            self.trigger()

    def _limit(self, ownership: QueueOwnership, changed: int) -> None:
        """End a drain at its limit; the result of a call that still runs no longer counts."""
        worker = self._worker
        if worker is not None and ownership.changed == changed and ownership.tick(self._progress.now_ms()):
            worker.drain_limit_passed()
            self._release(ownership)

    def _cancel(self, ownership: QueueOwnership, changed: int) -> None:
        if self._worker is not None and ownership.changed == changed:
            self._worker.cancel_calls()

    def queue_truncated(self, worker: ReportedQueueWorker, first: int, end: int) -> None:
        """Begin again at `first` because the queue ends before this member's offset: its broker lost messages, and new messages have their
        offsets."""
        ownership = worker.ownership
        log.error("queue.truncated", queue=str(ownership.queue), offset=ownership.offset, end=end, continues_at=first)
        worker.report_gap(end, ownership.offset)
        if ownership.stale(ownership.token):
            self._progress.restart_at(ownership, first)
            worker.grant_ended(fenced=True)
            self.trigger()
