"""Broadcasting: a member has every queue, locks none and keeps its progress in a file. RocketMQ: RebalancePushImpl, LocalFileOffsetStore.

What a broker session is for a clustering queue, a LocalSession is here: it grants from the file, and commits go to the file. Workers, pull
loops and listeners notice no difference. The file is written at most once a second, at the end, and at once for a runner that waits
(`commit="each"`). Where a queue begins, or begins anew, is in the file before its first message is handled: a crash skips nothing.
"""

import asyncio
from collections.abc import Callable
from typing import ClassVar, TypeVar

from lockstep.client.broker_link import BrokerLink
from lockstep.client.consumer.config import ConsumerConfig
from lockstep.client.consumer.interfaces import QueueHandler
from lockstep.client.consumer.local_offsets import LocalOffsets, Place
from lockstep.client.consumer.offset_file import OffsetFile
from lockstep.client.consumer.ownership import Event, QueueOwnership, Sent, State
from lockstep.client.consumer.shared_ownership import SharedOwnership
from lockstep.client.instance import Instance
from lockstep.protocol.bodies import LockAnswer, StartPoint, Verdict
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import BrokerError, ConfigError, RemoteProtocolError, TransportError
from lockstep.protocol.fields import from_plain
from lockstep.protocol.headers.offsets import OffsetReply, QueueHeader, SearchOffsetHeader
from lockstep.protocol.queue import MessageQueue
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.log import get_logger

log = get_logger("client.consumer")

T = TypeVar("T")

WRITE_MS = 1_000
"""Between two writes of the file that nobody waits for: what a crash repeats at most. RocketMQ: 5 s."""
AGAIN_MS = 1_000
"""A start that a broker could not tell is asked for again after this."""


class LocalOwnership(SharedOwnership):
    """A queue that is held as long as it is wanted: nobody else can have it."""

    __slots__ = ()

    @property
    def asks(self) -> bool:
        return False

    def let_go(self) -> None:
        """RELEASING → GONE: its offset is in the book."""
        self._on(Event.SENT)
        self._on(Event.ANSWERED)

    def pull_fence(self, epoch: int) -> tuple[int | None, int | None]:
        return None, None

    def kept(self, epoch: int, offset: int, attempts: int) -> None:
        """The file has it. What was so under an earlier grant says nothing of this one, which may have begun before it."""
        if epoch == self.epoch:
            self._settled = max(self._settled, (offset, attempts))


class Always:
    """Life that need not be proven: no broker gives a broadcasting member's queue to another."""

    deadline_ms: ClassVar[int] = 1 << 62


class LocalProgress:
    """The book of one consumer and its file. `open`, `run` as a task, `close`."""

    def __init__(self, instance: Instance, config: ConsumerConfig, group: str) -> None:
        self._instance = instance
        self._config = config
        self._threads = instance.host.threads
        self._clock = instance.host.clock
        self._file = OffsetFile(instance.host, config.offset_dir, group, config.instance_name)
        self._book = LocalOffsets(group)
        self._grants = 0
        self._written = 0
        """How many changes the file has."""
        self._changes = 0
        self._starts: dict[MessageQueue, int] = {}
        """Queue → the change that said where it begins, or begins anew."""
        self._urgent = False
        self._wake = asyncio.Event()
        self._done = asyncio.Condition()
        self._failing = False
        self._jobs = Tasks()
        self._job: asyncio.Task[object] | None = None
        self.tasks = Tasks()
        self.parties: dict[QueueOwnership, QueueHandler] = {}

    async def open(self) -> None:
        """ConfigError where the file can't be this consumer's, see OffsetFile.open."""
        found = await self._to_its_end(self._file.open)
        if not isinstance(found, LocalOffsets):
            raise found
        self._book = found

    async def close(self) -> None:
        """The last write, then another consumer may have the file."""
        await self.tasks.cancel_all()
        if self._job is not None:
            await asyncio.wait([self._job])  # whose waiter was cancelled: two writes at once would spoil the file
        if self._changes > self._written:
            await self._write()
        self._file.release()

    def next_epoch(self) -> int:
        """Rises with each grant of this member, through its restarts."""
        self._grants += 1
        return self._book.starts << 32 | self._grants

    def note(self, own: QueueOwnership, *, urgent: bool = False) -> None:
        """The queue's progress, for the next write."""
        changed = own.holds and self._set(own.queue, Place(own.offset, own.attempts))
        self._urgent = self._urgent or urgent
        if changed or urgent:
            self._wake.set()

    def _set(self, queue: MessageQueue, place: Place) -> bool:
        changed = self._book.set(queue, place)
        self._changes += changed
        return changed

    def begin_anew(self, own: QueueOwnership, offset: int) -> None:
        """Whatever was consumed of the queue, it goes on there."""
        self._begin_at(own.queue, Place(offset, 0))

    def _begin_at(self, queue: MessageQueue, place: Place) -> None:
        self._set(queue, place)
        self._starts[queue] = self._changes

    def now_ms(self) -> int:
        return self._clock.boot_ms()

    # ---------------------------------------------------------------------------------------------------------------- start

    async def start_of(self, queue: MessageQueue, link: BrokerLink) -> Place:
        """Where this member goes on in the queue; for a new one, what the start policy says. A begin, also a new one, is in the file then.

        TransportError, BrokerError, RemoteProtocolError where the broker can't be asked.
        """
        place = self._book.place(queue)
        if place is None:
            place = await self._new(queue, link)
            self._begin_at(queue, place)
        mine = self._starts.get(queue, 0)
        if mine > self._written:
            self._urgent = True
            self._wake.set()
            async with self._done:
                await self._done.wait_for(lambda: self._written >= mine)
        return place

    async def _new(self, queue: MessageQueue, link: BrokerLink) -> Place:
        layout = self._instance.routes.layout(queue.topic)
        if layout is None or queue not in layout.number_of:
            raise TransportError(f"{queue} is in no layout any more")
        since = self._book.since(queue.topic, layout.version.counter)
        return Place(0 if layout.added_in(queue) > since else await self._by_policy(queue, link), 0)

    async def _by_policy(self, queue: MessageQueue, link: BrokerLink) -> int:
        where, at_ms = self._config.consume_from_where, self._config.consume_timestamp_ms
        if where is StartPoint.TIMESTAMP and at_ms is not None:
            answer = await link.call(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetHeader(queue.topic, queue.queue_id, at_ms))
        else:
            code = RequestCode.GET_MAX_OFFSET if where is StartPoint.LAST_OFFSET else RequestCode.GET_MIN_OFFSET
            answer = await link.call(code, QueueHeader(queue.topic, queue.queue_id))
        offset = from_plain(OffsetReply, answer.fields).offset
        if offset < 0:
            raise RemoteProtocolError(f"{link.name} does not have {queue} yet")
        return offset

    # ---------------------------------------------------------------------------------------------------------------- write

    async def run(self) -> None:
        """Until cancelled: the file follows the book."""
        last_ms = self._clock.boot_ms() - WRITE_MS
        while True:
            await self._wake.wait()
            self._wake.clear()
            while (wait_ms := self._wait_ms(last_ms)) > 0:
                try:
                    async with asyncio.timeout(wait_ms / 1000):
                        await self._wake.wait()
                    self._wake.clear()
                except TimeoutError:
                    pass
            last_ms = self._clock.boot_ms()
            await self._write()

    def _wait_ms(self, last_ms: int) -> int:
        return 0 if self._urgent and not self._failing else last_ms + WRITE_MS - self._clock.boot_ms()

    async def _write(self) -> None:
        self._urgent = False
        count = self._changes
        told = [(own, own.epoch, own.offset, own.attempts) for own in self.parties if own.holds]
        error = await self._to_its_end(self._file.write, self._book.encode())
        if error is not None:
            self._urgent = True
            self._wake.set()
            if not self._failing:
                self._failing = True
                log.error("offsets.unwritable", path=self._file.path, error=str(error), effect="a crash would repeat more; tried again")
            return
        if self._failing:
            self._failing = False
            log.info("offsets.writable_again", path=self._file.path)
        async with self._done:
            self._written = count
            self._done.notify_all()
        for own, epoch, offset, attempts in told:
            party = self.parties.get(own)
            if party is not None and isinstance(own, LocalOwnership):
                own.kept(epoch, offset, attempts)
                party.answered()

    async def _to_its_end(self, call: Callable[..., T], *arguments: object) -> T | OSError | ConfigError:
        """In a thread, to its end whoever waits for it; what it returns or raises."""
        self._job = job = self._jobs.spawn(self._run(call, *arguments), "offsets file")
        await asyncio.wait([job])
        return job.result()  # type: ignore[no-any-return]

    async def _run(self, call: Callable[..., T], *arguments: object) -> T | OSError | ConfigError:
        try:
            return await self._threads.run(call, *arguments)
        except (OSError, ConfigError) as error:
            return error


class LocalSession:
    """A worker's session where there is nothing to ask a broker for but messages; one for each queue."""

    def __init__(self, link: BrokerLink, progress: LocalProgress) -> None:
        self.link = link
        self.proof = Always()
        self.awaited = False
        self._progress = progress
        self._party: QueueHandler | None = None
        self._loop = asyncio.get_running_loop()

    def add(self, party: QueueHandler) -> None:
        self._party = self._progress.parties[party.own] = party

    def remove(self, party: QueueHandler) -> None:
        self._progress.parties.pop(party.own, None)
        self._party = None

    def trigger(self) -> None:
        """The queue is wanted and not held, or is held no more."""
        party = self._party
        if party is not None and party.own.may_lock and not party.own.in_lock:
            party.own.in_lock = True
            self._progress.tasks.spawn(self._begin(party), f"{party.own.group} {party.own.queue} start")

    async def _begin(self, party: QueueHandler) -> None:
        own = party.own
        place: Place | None = None
        while own.wanted and place is None:
            try:
                place = await self._progress.start_of(own.queue, self.link)
            except (TransportError, BrokerError, RemoteProtocolError) as error:
                log.info("start.unknown", queue=str(own.queue), error=str(error), again_ms=AGAIN_MS)
                await asyncio.sleep(AGAIN_MS / 1000)
        if place is None:
            own.in_lock = False
            party.answered()
            return
        key = (own.group, own.queue.topic, own.queue.queue_id)
        epoch = self._progress.next_epoch()
        answer = LockAnswer(*key, Verdict.OK, epoch=epoch, offset=place.offset, attempts=place.attempts)
        granted = own.lock_answered(Sent(own, None, None, 0), answer)
        if granted is Event.GRANTED and own.state is State.HELD:
            party.granted(answer)
        elif granted is Event.GRANTED:
            self.changed(own, urgent=True)
        party.answered()

    def changed(self, own: QueueOwnership, *, urgent: bool = False) -> None:
        """Progress, or a state to act on."""
        self._progress.note(own, urgent=urgent and own.state is State.HELD)
        if own.state is State.RELEASING:
            self._loop.call_soon(self._let_go, own)
        elif own.state is State.DRAINING and own.drain_at_ms is not None:
            now_ms = self._progress.now_ms()
            self._loop.call_later(max(own.drain_at_ms - now_ms, 0) / 1000, self._limit, own, own.changed)
            if own.cancel_at_ms is not None:
                self._loop.call_later(max(own.cancel_at_ms - now_ms, 0) / 1000, self._cancel, own, own.changed)

    def _let_go(self, own: QueueOwnership) -> None:
        party = self._party
        if party is not None and own.state is State.RELEASING and isinstance(own, LocalOwnership):
            own.let_go()
            party.lost(fenced=False)
            self.trigger()

    def _limit(self, own: QueueOwnership, changed: int) -> None:
        """The drain limit has passed; what is still running counts no more."""
        party = self._party
        if party is not None and own.changed == changed and own.tick(self._progress.now_ms()):
            party.given_up()
            self._let_go(own)

    def _cancel(self, own: QueueOwnership, changed: int) -> None:
        if self._party is not None and own.changed == changed:
            self._party.cancel_soon()

    def went_back(self, party: QueueHandler, first: int, end: int) -> None:
        """The queue ends before this member's offset: its broker lost messages, and others have their offsets now. All come again."""
        own = party.own
        log.error("queue.went_back", queue=str(own.queue), offset=own.offset, end=end, goes_on_at=first)
        if own.stale(own.epoch):
            self._progress.begin_anew(own, first)
            party.lost(fenced=True)
            self.trigger()
