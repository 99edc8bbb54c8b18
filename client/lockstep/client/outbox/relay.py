"""Sends the messages of an outbox. Each is stored once, because its frame is in the database before it is sent (ADR 51).

    added --make--> framed: (number, queue, records) committed --send--> the broker has it --next--> deleted

A crash at any place leads to the same frame again: the same records, the producer id of the outbox, the frame's number as its epoch, and
sequences from 0. The broker compares it with the last frame of its scope (producer id, topic, queue), and answers a repeated one as stored.
The next frame of a queue is sent after the one before was deleted, so that its number in the broker never passes over a frame that is not
stored.

| the broker answers                               | so the frame           | and the relay                                            |
|--------------------------------------------------|------------------------|----------------------------------------------------------|
| stored, or stored before                         | is stored              | deletes it                                               |
| LAYOUT_STALE up to the deadline                  | is not stored          | frames the messages of the queue again                   |
| MESSAGE_ILLEGAL                                  | is not stored          | frames its messages alone; a single one is refused       |
| STALE_EPOCH, OUT_OF_SEQUENCE, NON_DETERMINISTIC… | was sent in another    | frames them again, and counts them: this database, or a  |
|                                                  | life of this database  | copy of it, has sent other frames with this producer id  |
| nothing in time, or anything else                | may be stored          | sends it again                                           |

One relay works at a time, by a lease in the database, which only saves work: two that send the same frame have it stored once. What changes
frames is done by the holder of the lease alone, in a transaction that checks that it still is.
"""

import asyncio
from datetime import timedelta

from lockstep.client.client import Client, ConnectionArguments
from lockstep.client.config import NameserverAddresses
from lockstep.client.errors import Outcome, QueueUnavailableError
from lockstep.client.outbox.table import Holder, Outbox, OutboxFrame, version_text
from lockstep.client.outbox.transactions import Connect, Transactions
from lockstep.client.producer.machines.sequencer import GivenId
from lockstep.client.producer.producer import Producer
from lockstep.protocol.errors import (
    ConfigError,
    LayoutStaleError,
    LockstepError,
    MessageIllegalError,
    NonDeterministicRetryError,
    OutOfSequenceError,
    StaleEpochError,
    StateError,
)
from lockstep.protocol.names import check_group
from lockstep.protocol.object_text import text_of
from lockstep.protocol.topics.queue import MessageQueue, TopicLayout
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited
from lockstep.runtime.security.credentials import PasswordSource
from lockstep.runtime.security.tls import Tls

log = get_logger("lockstep.client.outbox")

LEASE_MS = 15_000
"""A relay that has not worked for this long is replaced by another one."""
POLL_MAX = timedelta(seconds=5)
"""At each poll the lease is renewed if half of it has passed."""
SEND_TIMEOUT_MS = 10_000
"""How long a frame is tried in one call. It is tried again after that."""
OLD_MS = 6 * 24 * 3_600_000
"""A broker remembers the last frame of a given producer id for 7 days."""
PAUSE_MS, PAUSE_MS_MAX = 200, 10_000
"""The pause after an error. It doubles."""
SET_BACK = (StaleEpochError, OutOfSequenceError, NonDeterministicRetryError)


class Relay:
    """Sends what is in an outbox: `await relay.run()` in a task beside the application, or in a program of its own.

    Any number of relays may run for an outbox, in any processes: one of them works, and another takes over 15 s after it has died, or at
    once if it was cancelled.

    Args:
        outbox: The outbox.
        connect: Returns a context manager that gives a connection or session in a transaction, which it commits at its end, or rolls back
            after an error: `engine.begin`, `lambda: psycopg.connect(URL)`, `lambda: sqlite3.connect(FILE)`. It is called for each
            transaction. A library that blocks is used in a thread.
        group: The name of the producer group.
        nameserver, tls, user, password, client: The cluster, as for a Producer.
        poll_interval: How often the relay looks for new messages, at most 5 s. `wake` lets it look at once.

    Raises:
        ConfigError: `poll_interval` is out of range, an address is invalid, or both `client` and `nameserver` are given.
        LocalProtocolError: The group name is invalid.
    """

    def __init__(
        self,
        outbox: Outbox,
        connect: Connect,
        *,
        group: str = "outbox-relay",
        nameserver: NameserverAddresses | None = None,
        tls: Tls | bool | None = None,
        user: str | None = None,
        password: PasswordSource | None = None,
        client: Client | None = None,
        poll_interval: timedelta = timedelta(seconds=1),
    ) -> None:
        check_group(group)
        if not timedelta(milliseconds=1) <= poll_interval <= POLL_MAX:
            raise ConfigError(f"poll_interval is {poll_interval}: expected a millisecond to {POLL_MAX}")
        self.group = group
        self.stored_count = 0
        """The number of messages that this relay has had stored."""
        self.refused_count = 0
        """The number of messages that a broker will never store. They remain in the table, with the reason in the column `refused`."""
        self.possible_duplicates = 0
        """The number of messages that may be stored twice, because the database was set back, or copied, or away for a week."""
        self._outbox = outbox
        self._connect = connect
        login = ConnectionArguments(group, nameserver=nameserver, tls=tls, user=user, password=password, client=client)
        self._client = login.open_client()
        self._poll_s = poll_interval.total_seconds()
        self._run: _Run | None = None

    @property
    def works(self) -> bool:
        """Return whether this relay is the one that works, as far as it knows."""
        return self._run is not None and self._run.leading

    def wake(self) -> None:
        """Look for new messages now, if this relay works: after a commit, in any thread of this process."""
        if (run := self._run) is not None:
            run.loop.call_soon_threadsafe(run.woken.set)

    async def run(self) -> None:
        """Send messages until this call is cancelled. An error of the database or of a broker is logged, and its work is tried again.

        Raises:
            ConfigError: `connect` gives something else than a transaction of a library that is supported, or does not commit it.
            StateError: The relay runs already, or the connection commits each statement alone.
        """
        if self._run is not None:
            raise StateError(f"relay {self.group} runs already")
        self._run = _Run(self, self._outbox, self._connect, Host.current())
        try:
            given_id = GivenId(await self._run.identity())
            async with Producer(self.group, client=self._client, given_id=given_id, start_in_background=True) as producer:
                await self._run.work(producer, self._poll_s)
        finally:
            self._run = None


class _Run:
    """One run of a relay."""

    producer: Producer

    def __init__(self, relay: Relay, outbox: Outbox, connect: Connect, host: Host) -> None:
        self.loop = asyncio.get_running_loop()
        self.woken = asyncio.Event()
        self.leading = False
        self._relay = relay
        self._table = outbox
        self._clock = host.clock
        self._owner = host.random.token(16).hex()
        self._transactions = Transactions(connect, host.threads)
        self._tasks = Tasks()
        self._busy: dict[MessageQueue, str] = {}
        """The queues that have frames, each with the layout from which it was picked. Exact while this relay leads."""
        self._term = 0
        """How often this relay has begun to lead. A task of an earlier time ends, and leaves `_busy` alone."""
        self._served: set[MessageQueue] = set()
        """Those that a task sends to."""
        self._opening: set[str] = set()
        """The topics whose routes are asked for. Their messages wait."""
        self._alone: set[int] = set()
        """Messages of frames that were refused: each is in the next one alone."""

    async def identity(self) -> str:
        """Return the producer id of the outbox, which the first relay gives it. Raise ConfigError if transactions are not committed."""
        pause_ms = PAUSE_MS
        while True:
            try:
                await self._transactions.run(self._table.enter(self._owner))
                producer_id = await self._transactions.run(self._table.identity())
            except (ConfigError, StateError):
                raise
            except Exception as error:  # listener: the user's database
                pause_ms = await self._pause(pause_ms, "database", error)
                continue
            if producer_id is None:
                raise ConfigError("a transaction was not committed at the end of the context manager that connect returned")
            return producer_id

    async def work(self, producer: Producer, poll_s: float) -> None:
        self.producer = producer
        pause_ms = PAUSE_MS
        try:
            while True:
                self.woken.clear()
                try:
                    more = await self._look()
                except (ConfigError, StateError):
                    raise
                except Exception as error:  # listener: the user's database
                    self.leading = False  # what was committed is not known: begin with what the table has
                    pause_ms = await self._pause(pause_ms, "database", error)
                    continue
                pause_ms = PAUSE_MS
                if not more:
                    try:
                        async with asyncio.timeout(poll_s):
                            await self.woken.wait()
                    except TimeoutError:
                        pass
        finally:
            self.leading = False
            await self._tasks.cancel_all()
            try:
                await self._transactions.run(self._table.leave(self._owner))
            except Exception as error:  # listener: the user's database
                log_limited(log, "warning", "outbox.failed", what="end", error=text_of(error))

    async def _look(self) -> bool:
        """Frame new messages, and let tasks send them. Return whether there are more."""
        if not self.leading:
            busy = await self._transactions.run(self._table.take(self._holder()))
            if busy is None:
                return False
            self._busy, self.leading = busy, True
            self._term += 1
            log.info("outbox.taken", table=self._table.table, queues=len(busy))
        layouts = self._layouts()
        others = self._opening | {
            queue.topic for queue, made in self._busy.items() if queue.topic in layouts and made != version_text(layouts[queue.topic])
        }
        more = False
        if await self._transactions.run(self._table.has_work(self._holder(), others)):
            made = await self._transactions.run(self._table.make(self._holder(), layouts, others, self._busy.keys(), self._alone))
            if made is None:
                self.leading = False
                log.warning("outbox.lost", table=self._table.table, why="another relay has taken it")
                return False
            self._busy |= made.queues
            for topic in sorted(made.missing):
                self._opening.add(topic)
                self._tasks.spawn(self._open(topic), f"outbox topic {topic}")
            more = made.full
        for queue in [queue for queue in self._busy if queue not in self._served]:
            self._served.add(queue)
            self._tasks.spawn(self._serve(queue), f"outbox {queue}")
        return more

    def _layouts(self) -> dict[str, TopicLayout]:
        """Return the present layouts of the topics that are open."""
        known = self.producer._started.known_layouts()
        return {topic: layout for topic, layout in known.items() if layout.write_total}

    async def _open(self, topic: str) -> None:
        """Ask for the layout of a topic until it is known."""
        pause_ms = PAUSE_MS
        while True:
            try:
                await self.producer.layout(topic)
                break
            except LockstepError as error:
                pause_ms = await self._pause(pause_ms, f"topic {topic}", error)
        self._opening.discard(topic)
        self.woken.set()

    # ----------------------------------------------------------------------------------------------------------------- queue

    async def _serve(self, queue: MessageQueue) -> None:
        """Send the frames of a queue, until there are no more."""
        pause_ms, stored, term = PAUSE_MS, None, self._term
        try:
            while self.leading and self._term == term:
                try:
                    frame = await self._transactions.run(self._table.next(queue, stored))
                    stored = None
                    if frame is None:
                        # No other transaction has run since that one: a frame that `make` adds now makes the queue busy again.
                        if self._term == term:
                            self._busy.pop(queue, None)
                        return
                    if await self._send(queue, frame):
                        stored = frame.number
                    pause_ms = PAUSE_MS
                except LockstepError as error:
                    pause_ms = await self._pause(pause_ms, str(queue), error)
                except Exception as error:  # listener: the user's database
                    pause_ms = await self._pause(pause_ms, "database", error)
        finally:
            self._served.discard(queue)

    async def _send(self, queue: MessageQueue, frame: OutboxFrame) -> bool:
        """Return whether the frame is stored. If it is certainly not, its messages are in no frame any more.

        Raise the error of a frame that is to be sent again.
        """
        old = self._clock.wall_ms() - frame.number > OLD_MS
        records, sizes = frame.encoded(queue)
        try:
            await self.producer.send_records(queue, records, sizes, timeout_ms=SEND_TIMEOUT_MS, epoch=frame.number)
        except MessageIllegalError as error:
            await self._refused(queue, frame, error)
            return False
        except SET_BACK as error:
            if await self._unframe(queue, frame):
                self._repeated(queue, frame, f"the database was set back or copied, or rows were changed: {error}")
            raise
        except QueueUnavailableError as error:
            if error.outcome is Outcome.NOT_STORED and isinstance(error.__cause__, LayoutStaleError):
                await self._unframe(queue, frame)
                log.warning("outbox.framed_again", queue=str(queue), why="the queue takes no messages any more")
                return False
            raise
        if old:
            self._repeated(queue, frame, "it was made more than 6 days ago, and a broker that had stored it may have forgotten that")
        self._relay.stored_count += len(frame.ids)
        self._alone.difference_update(frame.ids)
        return True

    def _repeated(self, queue: MessageQueue, frame: OutboxFrame, why: str) -> None:
        self._relay.possible_duplicates += len(frame.ids)
        log.error("outbox.repeated", queue=str(queue), count=len(frame.ids), effect="these messages may be stored twice", why=why)

    async def _refused(self, queue: MessageQueue, frame: OutboxFrame, error: MessageIllegalError) -> None:
        if len(frame.ids) > 1:
            self._alone.update(frame.ids)
            await self._unframe(queue, frame)
        elif await self._transactions.run(self._table.refuse(queue, frame.number, str(error))):
            self._alone.difference_update(frame.ids)
            self._relay.refused_count += 1
            log.error("outbox.refused", table=self._table.table, id=frame.ids[0], queue=str(queue), error=str(error))

    async def _unframe(self, queue: MessageQueue, frame: OutboxFrame) -> bool:
        """Return whether the messages of the queue are in no frames now."""
        unframed = await self._transactions.run(self._table.unframe(self._holder(), queue, frame.number))
        if unframed is None:
            self.leading = False
        self.woken.set()
        return bool(unframed)

    # ----------------------------------------------------------------------------------------------------------------- parts

    def _holder(self) -> Holder:
        return Holder(self._owner, self._clock.wall_ms(), LEASE_MS)

    async def _pause(self, pause_ms: int, what: str, error: Exception) -> int:
        """Log an error, wait, and return the next pause."""
        log_limited(log, "warning", "outbox.failed", what=what, error=text_of(error), retry_ms=pause_ms)
        await asyncio.sleep(pause_ms / 1_000)
        return min(2 * pause_ms, PAUSE_MS_MAX)
