"""A group of pull consumers: they poll or iterate, are slow, commit or not, seek, pause, close and return; with subscribe() or assign()."""

import asyncio
from contextlib import suppress
from dataclasses import replace

from lockstep.client import (
    ConsumerEvent,
    ConsumerState,
    DuplicateClientIdError,
    LockstepError,
    MessageExt,
    MessageQueue,
    PullConsumer,
    QueueAssigned,
    QueueGap,
    QueueRevoked,
    SqlExpression,
    StaleEpochError,
    StateError,
    SubscriptionConflictError,
    sql,
)
from lockstep.runtime.host import Host
from lockstep.testing.simulation import Process
from sweep.events import readers
from sweep.events.consumers import QueueGapSeen
from sweep.runner import Runner
from sweep.settings import READERS, TOPIC
from sweep.universe import Universe

POLLS_MS = (1, 50, 300, 1_500)
LIVES = (20, 100, 1_000, 1_000)
"""Turns after which a reader closes and is replaced."""
ITERATES_S = (0.05, 1.0, 5.0)
"""The limit of one turn of `async for`."""
ITERATED = (1, 10, 50)
"""The limit of its messages."""
SEEK_SHARE = 0.02
PAUSE_SHARE = 0.02
RESUME_SHARE = 0.1
COMMIT_SHARE = 0.4
"""The share of turns of a reader without auto-commit that end with commit(); with auto-commit a tenth of that."""
SEEKS = ("back", "back", "back", "begin", "time", "forward", "end")
LAST_TURN_S = 1.0
"""The time that the last turn of a reader may take before the reader is stopped in the middle of it."""


class PullRunner(Runner[PullConsumer]):
    """The group's readers in one process."""

    def __init__(self, universe: Universe, process: Process, group: str, host: Host, stop: asyncio.Event, toggle: asyncio.Event) -> None:
        super().__init__(universe, process, group, host, stop, toggle)
        self._manner = self._seeded("manner")
        self._place = universe.consumers.index(process.machine.name)
        self._reader = 0
        self._auto = True
        self._each = False
        """It reads by `async for`."""
        self._over = False
        self._paused: dict[MessageQueue, None] = {}
        self._mine: tuple[MessageQueue, ...] = ()
        """With assign(): its last assignment, also that of the previous reader."""
        self._choose_s = 0.0
        """The time of its next choice of queues."""

    def _consumer(self) -> PullConsumer:
        setting, random, begin = self._universe.setting, self._random, self._universe.start_policies[READERS]
        self._reader, self._auto, self._over = self._universe.next_call(), random.random() < 0.5, False
        self._paused, self._choose_s = {}, 0.0
        self._each = self._manner.random() < setting.iterators_share
        consumer = PullConsumer(
            READERS,
            nameserver=self._universe.nameserver,
            host=self._host,
            **self._login(),
            consume_from_where=begin.where,
            consume_timestamp_ms=begin.timestamp_ms,
            allocate=setting.allocate,
            auto_commit=self._auto,
            poll_count=setting.poll_count,
            queue_count_max=random.choice([4, 50, 1_000]),
            stop_timeout_ms=setting.stop_ms,
        )
        if not setting.by_hand:
            consumer.subscribe(TOPIC, in_sql(setting.reader_expression) if setting.seed % 2 else setting.reader_expression)
        consumer.on_event(self._event)
        self._watch_unassigned(consumer, self._reader)
        return consumer

    def _watch_unassigned(self, consumer: PullConsumer, reader: int) -> None:
        """Record each queue that is unassigned from now on. A start of the consumer makes a new model."""
        reset = consumer._reset

        def reset_and_watch() -> None:
            reset()
            polls = consumer._polls
            forget = polls.unassigned

            def unassigned(queue: MessageQueue) -> None:
                universe = self._universe
                if queue in consumer.assignment():
                    universe.record_violation("seeks and pauses count while their queue is assigned", f"{self._process}: {queue}")
                universe.history.append(readers.ReaderQueueUnassigned(*universe.origin(self._process), reader, self._key(queue)))
                forget(queue)

            polls.unassigned = unassigned  # type: ignore[method-assign]

        consumer._reset = reset_and_watch  # type: ignore[method-assign]

    async def _start(self, consumer: PullConsumer) -> bool:
        universe, setting, begin = self._universe, self._universe.setting, self._universe.start_policies[READERS]
        started = readers.ReaderStarted(*universe.origin(), self._reader, READERS, TOPIC, setting.by_hand, self._auto)
        tags = "*" if setting.by_hand else setting.reader_expression
        universe.history.append(replace(started, expression=tags, each=self._each, where=begin.where.name, since_t=begin.t))
        try:
            if setting.by_hand and self._random.random() < 0.5:
                await consumer.assign(self._mine)
            await consumer.start()
        except LockstepError as error:
            universe.record_reached(f"reader's start refused: {type(error).__name__}")
            return False
        return True

    async def _consume(self, consumer: PullConsumer) -> None:
        universe = self._universe
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(self._read(consumer))
            stops = [group.create_task(self._stop.wait()), group.create_task(self._toggle.wait())]
            await asyncio.wait([reading, *stops], return_when=asyncio.FIRST_COMPLETED)
            for each in stops:
                each.cancel()
            self._over = self._random.random() < 0.5
            if self._over:
                await asyncio.wait([reading], timeout=LAST_TURN_S)
            await consumer.stop()
        if isinstance(consumer.failure, SubscriptionConflictError | DuplicateClientIdError):
            universe.consumer_died(consumer.failure)
        elif consumer.failure is not None:
            universe.record_violation("a consumer does not fail", f"{self._process}: {consumer.failure!r}")

    def _event(self, event: ConsumerEvent) -> None:
        universe = self._universe
        if universe.is_over:
            return
        place, queue = universe.origin(self._process), self._key(event.queue)
        if isinstance(event, QueueAssigned):
            universe.history.append(readers.ReaderQueueAssigned(*place, self._reader, queue, event.generation or 0, event.offset))
        elif isinstance(event, QueueRevoked):
            universe.history.append(readers.ReaderQueueRevoked(*place, self._reader, queue, event.generation or 0))
        elif isinstance(event, QueueGap):
            universe.history.append(QueueGapSeen(*place, queue, event.first, event.end))

    # --------------------------------------------------------------------------------------------------------------- turns

    async def _read(self, consumer: PullConsumer) -> None:
        left = self._random.choice(LIVES)
        while consumer.state is ConsumerState.RUNNING and not self._over and (left > 0 or self._universe.calm):
            left -= 1
            try:
                await self._choose(consumer)
                await self._pause_or_seek(consumer)
            except LockstepError as error:
                self._universe.record_reached(f"reader refused: {type(error).__name__}", str(error))
                await asyncio.sleep(0.05)
            try:
                if self._each:
                    await self._iterate(consumer)
                elif await self._poll(consumer):
                    await asyncio.sleep(self._takes_s())
            except LockstepError as error:
                expected = error is consumer.failure or (isinstance(error, StateError) and not self._each)
                if consumer.state is ConsumerState.RUNNING or not expected:
                    self._universe.record_violation(
                        "a poll raises only the error that has ended its consumer", f"{self._process}: {error!r}"
                    )
                return
            share = COMMIT_SHARE / 10 if self._auto else 1.0 if self._universe.calm else COMMIT_SHARE
            if consumer.state is ConsumerState.RUNNING and self._random.random() < share:
                await self._commit(consumer)

    def _takes_s(self) -> float:
        setting, random = self._universe.setting, self._random
        roll = 1.0 if self._universe.calm else random.random()
        if roll < setting.long_share:
            return random.uniform(3, 12)
        return random.uniform(0.3, 2) if roll < setting.long_share + setting.slow_share else random.uniform(0.001, 0.02)

    async def _poll(self, consumer: PullConsumer) -> bool:
        """Poll once. Return whether there were messages."""
        self._record_done()
        batch = await consumer.poll(self._random.choice(POLLS_MS))
        self._record_poll(consumer, batch)
        return bool(batch)

    async def _iterate(self, consumer: PullConsumer) -> None:
        """Iterate over some messages, or for some time. Only a stop of the consumer ends the loop itself."""
        universe, left = self._universe, self._manner.choice(ITERATED)
        self._record_done()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._manner.choice(ITERATES_S)):
                async for message in consumer:
                    self._record_poll(consumer, [message])
                    await asyncio.sleep(self._takes_s())
                    left -= 1
                    if not left or self._over:
                        return
                    self._record_done()
                if consumer.state is ConsumerState.RUNNING:
                    universe.record_violation("an `async for` continues until its consumer is stopped", f"{self._process}")
                universe.record_reached("async for ended by a stop")

    def _record_done(self) -> None:
        """Record that with auto-commit the messages before the next poll are done."""
        if self._auto:
            self._universe.history.append(readers.PolledMessagesDone(*self._universe.origin(), self._reader, "poll"))

    def _record_poll(self, consumer: PullConsumer, batch: list[MessageExt]) -> None:
        universe = self._universe
        if batch:
            queues = list(dict.fromkeys(MessageQueue(each.topic, each.broker_name, each.queue_id) for each in batch))
            if len(queues) > 1:
                universe.record_violation("a poll returns messages of one queue", f"{self._process}: {queues}")
            assigned = consumer.state is not ConsumerState.RUNNING or queues[0] in consumer.assignment()
            given = tuple((each.queue_offset, each.body) for each in batch)
            universe.history.append(readers.PollReturned(*universe.origin(), self._reader, self._key(queues[0]), given, assigned))

    async def _commit(self, consumer: PullConsumer) -> None:
        universe = self._universe
        universe.history.append(readers.PolledMessagesDone(*universe.origin(), self._reader, "commit"))
        try:
            await consumer.commit()
        except LockstepError as error:
            universe.history.append(
                readers.ReaderCommitFailed(*universe.origin(), self._reader, isinstance(error, StaleEpochError), str(error))
            )
        else:
            universe.history.append(readers.ReaderCommitted(*universe.origin(), self._reader))

    # ------------------------------------------------------------------------------------------------- queues, seeks, pauses

    async def _choose(self, consumer: PullConsumer) -> None:
        """With assign(): assign this process' share of the queues, sometimes without one of them for a while."""
        universe, random = self._universe, self._random
        if not universe.setting.by_hand or universe.loop.now < self._choose_s:
            return
        self._choose_s = universe.loop.now + random.uniform(2, 8)
        brokers, count = list(universe.brokers), len(universe.consumers)
        known = await consumer.queues(TOPIC)
        mine = tuple(queue for queue in known if (brokers.index(queue.broker_name) + queue.queue_id) % count == self._place)
        if not universe.calm and random.random() < 0.3:
            mine = mine[1:]
        self._mine = mine
        await consumer.assign(mine)

    def _forget(self, queues: list[MessageQueue]) -> None:
        """Record that queues are not paused any more."""
        for queue in queues:
            del self._paused[queue]
            self._universe.history.append(readers.ReaderQueueResumed(*self._universe.origin(), self._reader, self._key(queue)))

    async def _pause_or_seek(self, consumer: PullConsumer) -> None:
        universe, random = self._universe, self._random
        if universe.calm or random.random() < RESUME_SHARE:
            self._forget(list(self._paused))
            consumer.resume()
        queues = consumer.assignment()
        if universe.calm or not queues:
            return
        if random.random() < PAUSE_SHARE:
            queue = random.choice(queues)
            consumer.pause(queue)
            self._paused[queue] = None
            universe.history.append(readers.ReaderQueuePaused(*universe.origin(), self._reader, self._key(queue)))
        if random.random() < SEEK_SHARE:
            await self._seek(consumer, random.choice(queues))

    async def _seek(self, consumer: PullConsumer, queue: MessageQueue) -> None:
        random, at = self._random, consumer.position(queue) or 0
        how = random.choice(SEEKS)
        if how == "begin":
            await consumer.seek_to_begin(queue)
        elif how == "end":
            await consumer.seek_to_end(queue)
        elif how == "time":
            then_ms = self._host.clock.wall_ms() - random.randrange(20_000)
            await consumer.seek(queue, await consumer.offset_at(queue, then_ms))
        else:
            step = random.randint(1, 20)
            await consumer.seek(queue, max(0, at - step) if how == "back" else at + step)
        offset = consumer.position(queue)
        assert offset is not None
        self._universe.history.append(readers.SeekReturned(*self._universe.origin(), self._reader, self._key(queue), offset))


def in_sql(tags: str) -> SqlExpression | str:
    """Return the same subscription as a condition: every second universe filters by properties."""
    return tags if tags == "*" else sql(f"TAGS IN ({', '.join(repr(tag.strip()) for tag in tags.split('||'))})")
