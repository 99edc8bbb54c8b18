"""The pull consumer: the user polls it for messages. RocketMQ: DefaultLitePullConsumer.

    subscribe   a member of a concurrent group: queues are shared among the members, and come and go with them
    assign      queues are chosen by the user: no strategy assigns them, and every member of the group must choose its own

Progress is stored for the group, at the brokers, under its generation: after a reset, a commit of earlier messages is refused, and polling
continues at the new offset.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from lockstep.client.client import ConnectionArguments
from lockstep.client.consumer.base_consumer import BaseConsumer
from lockstep.client.consumer.calls.call_loop import SLICE_MS
from lockstep.client.consumer.calls.grant import Grant
from lockstep.client.consumer.calls.poll_model import PollModel, PollRunner
from lockstep.client.consumer.calls.queue_worker import QueueWorker
from lockstep.client.consumer.config import PullConsumerConfig
from lockstep.client.consumer.context import ConsumerContext
from lockstep.client.consumer.grants.ownership import GrantPolicy
from lockstep.client.consumer.health import ConsumerState
from lockstep.client.consumer.joining import find_topics
from lockstep.client.consumer.subscription import Expression, subscription_of, tag_filter_of
from lockstep.client.instance import Instance
from lockstep.client.settings import takes_arguments_of
from lockstep.protocol.bodies import ConsumerGroup, ConsumeType, QueueOffset, ResetBody, TopicOffsets
from lockstep.protocol.codec.msgpack_body import decode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import BrokerError, LocalProtocolError, StaleEpochError, StateError, TopicNotExistError, TransportError
from lockstep.protocol.fields import from_plain
from lockstep.protocol.headers.offsets import OffsetReply, SearchOffsetHeader, TopicHeader
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.names import how_to_create
from lockstep.protocol.tags import MATCH_ALL, TagFilter
from lockstep.protocol.topics.allocate import MANUAL, strategy_spec
from lockstep.protocol.topics.queue import MessageQueue
from lockstep.runtime.event_loop import running_loop
from lockstep.runtime.logs.log import get_logger

log = get_logger("client.consumer")

COMMIT_WAIT_MS = 30_000
"""How long commit() waits for the brokers' responses."""


@dataclass(frozen=True, kw_only=True)
class PullConsumerArguments(PullConsumerConfig, ConnectionArguments):
    """The arguments of PullConsumer."""


class PullConsumer(BaseConsumer):
    """Returns messages on request: `await consumer.poll()`, or `async for message in consumer`. It serves one caller at a time.

    Args:
        group: The name of the consumer group.
        nameserver: "HOST:PORT", several separated by ";", a list of them, or "lockstep://HOST:PORT/?tls_ca=FILE". Default: 127.0.0.1:9876.
        tls: Connect by TLS: True, or Tls(ca=FILE), which says what the client trusts and shows. Default: plain connections.
        user: The user to log in as. Default: that of the URL, or LOCKSTEP_USER, or none.
        password: The password, the Path of a file that has it, or a function that returns it; the latter two are asked at each login.
            Default: the URL's password or password_file, LOCKSTEP_PASSWORD, or the file that LOCKSTEP_PASSWORD_FILE names.
        login_optional: Go on with servers that ask for no login.
        client: The connections to use, instead of `nameserver`. Default: the consumer has its own.
        host: The clock, randomness and files to use; for tests. Default: those of this machine.

    The other arguments are the settings of PullConsumerConfig.

    Raises:
        ConfigError: A setting has the wrong type or is out of range, an address is invalid, or both `client` and `nameserver` are given.
        LocalProtocolError: The group name is invalid.
    """

    @takes_arguments_of(PullConsumerArguments)
    def __init__(self, arguments: PullConsumerArguments) -> None:
        self.config: PullConsumerConfig = arguments
        super().__init__(arguments.group, arguments.open_client(), arguments.consumer())
        self._by_hand: dict[MessageQueue, None] = {}

    def _reset(self) -> None:
        super()._reset()
        self._polls = PollModel()
        self._polling = False
        self._slice_end_ms = 0
        """The boot time from which a poll returns to the loop before it returns messages."""

    # --------------------------------------------------------------------------------------------------------------- set-up

    def subscribe(self, topic: str, expression: Expression = "*") -> Self:
        """Share the topic's queues with the other members of the group. Call it before `start`; a second call for a topic replaces its
        expression.

        Args:
            topic: The name of the topic.
            expression: "*" for all messages, the tags of the messages to consume: "created || paid", or a condition on properties:
                `sql("amount > 100")`.

        Returns:
            The consumer.

        Raises:
            StateError: The consumer runs, or was assigned queues.
            LocalProtocolError: The topic name or the expression is invalid.
        """
        if self._by_hand:
            raise StateError(f"{self.group} was assigned queues by hand: a consumer subscribes or is assigned, not both; make another one")
        return super().subscribe(topic, expression)

    async def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Consume exactly these queues from now on. It can be called before `start` and while the consumer runs.

        Args:
            queues: The queues, which replace the present ones.

        Raises:
            StateError: The consumer subscribes to topics, or is starting or stopping.
            TopicNotExistError: A topic does not exist.
            LocalProtocolError: The topic does not have one of the queues.
        """
        if self._expressions:
            topics = ", ".join(self._expressions)
            raise StateError(f"{self.group} subscribes to {topics}: a consumer subscribes or is assigned, not both; make another one")
        wanted = dict.fromkeys(queues)
        if self._may_start:
            self._by_hand = wanted
            return
        instance = self._running()
        await _check_queues(instance, wanted)
        assert self._ctx is not None
        self._by_hand.clear()
        self._by_hand.update(wanted)
        self._ctx.filters = _all_of(self._by_hand)
        assert self._membership is not None
        self._membership.rebalance()
        # A broker that is connected only now may refuse the group: then the consumer ends, and so does this wait.
        await asyncio.wait([self._tasks.spawn(_wait_for_brokers(instance, wanted), f"{self.group} assign")])
        self._running()

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return every readable queue of the topic, as `assign` takes them.

        Raises:
            TopicNotExistError: The topic does not exist.
            TransportError: No nameserver responds.
            StateError: The consumer does not run.
        """
        layout = await self._running().watch.route(topic)
        if layout is None:
            raise TopicNotExistError(f"no topic {topic}: {how_to_create(topic)}")
        return layout.read_queues

    def assignment(self) -> tuple[MessageQueue, ...]:
        """Return the queues that this consumer has or is acquiring, sorted."""
        return () if self._membership is None else tuple(sorted(self._membership.wanted))

    # ------------------------------------------------------------------------------------------- for what members have alike

    def _check_start(self) -> None:
        """Allow a start without queues: `assign` may add some later."""

    async def _prepare(self, instance: Instance) -> None:
        await _check_queues(instance, self._by_hand)
        await find_topics(instance, self.group, self._expressions)

    def _make_context(self, instance: Instance) -> ConsumerContext:
        by_hand = not self._expressions
        subscribed = {topic: tag_filter_of(expression) for topic, expression in self._expressions.items()}
        return ConsumerContext(
            group=self.group,
            config=self._settings,
            policy=GrantPolicy.SHARED,
            listener_name="poll",
            filters=_all_of(self._by_hand) if by_hand else subscribed,
            host=instance.host,
            tasks=self._tasks,
            runs=self._runs,
            report=self._report,
            fail=self._fail,
            assigned=self._by_hand if by_hand else None,
            cluster=instance.cluster.nameservers,
        )

    def _make_model(self, ctx: ConsumerContext) -> PollModel:
        return self._polls

    def _contract(self) -> ConsumerGroup:
        return ConsumerGroup(
            self.group,
            tuple(subscription_of(topic, expression) for topic, expression in sorted(self._expressions.items())),
            consume_type=ConsumeType.CONSUME_ACTIVELY,
            consume_from_where=self.config.consume_from_where,
            consume_timestamp_ms=self.config.consume_timestamp_ms,
            allocate=strategy_spec(self._settings.allocate) if self._expressions else MANUAL,
            retry="none: the caller decides",
            contract_version=self.config.contract_version,
        )

    def _stop_soon(self) -> None:
        super()._stop_soon()
        self._polls.close()

    def _running(self) -> Instance:
        """Return the instance. Raise StateError unless the consumer runs, or the error for which it failed."""
        if self._loop is not running_loop():
            self._check_loop()
        if self.state is not ConsumerState.RUNNING or self._instance is None:
            if self.failure is not None:
                raise self.failure
            if self.state in (ConsumerState.NEW, ConsumerState.STARTING):
                first = self._awaited or "start it first (`async with consumer`, or await consumer.start())"
                raise StateError(f"{self.group} is {self.state.value}: {first}")
            raise StateError(f"{self.group} is {self.state.value}: start it again")
        return self._instance

    # ---------------------------------------------------------------------------------------------------------------- polls

    async def poll(self, timeout_ms: int | None = None) -> list[MessageExt]:
        """Return the next messages of one queue, in its order, at most `poll_count`.

        With `auto_commit` the messages that were returned before are done with this call; their commit is sent within 100 ms. While the
        consumer is started in the background, this waits for the start.

        Args:
            timeout_ms: How long to wait for a message, in milliseconds. Default: the setting `poll_timeout_ms`.

        Returns:
            The messages; an empty list if none came in time.

        Raises:
            StateError: The consumer does not run, or another poll waits.
            Exception: The error for which the consumer failed.
        """
        count, timeout_ms = self.config.poll_count, self.config.poll_timeout_ms if timeout_ms is None else timeout_ms
        if self.state is ConsumerState.STARTING:
            begun = asyncio.get_running_loop().time()
            if not await self._has_started(timeout_ms):
                return []
            timeout_ms -= min(timeout_ms, int((asyncio.get_running_loop().time() - begun) * 1000))
        return self._take(count) or await self._poll(count, timeout_ms)

    async def _has_started(self, timeout_ms: int | None) -> bool:
        """Wait for the end of a start in the background. Return False if it goes on after this time."""
        self._check_loop()
        if self._start_task is not None:
            await asyncio.wait([self._start_task], timeout=None if timeout_ms is None else timeout_ms / 1000)
        return self._start_task is None or self._start_task.done()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MessageExt:
        """Return one message after another until the consumer is stopped. With `auto_commit` a message is done when the next one is
        requested."""
        if self.state is ConsumerState.STARTING:
            await self._has_started(None)
        if self.state in (ConsumerState.NEW, ConsumerState.STARTING):
            self._running()
        while self.state is ConsumerState.RUNNING:
            batch = self._take(1) or await self._poll(1, None)
            if batch:
                return batch[0]
        if self.failure is not None:
            raise self.failure
        raise StopAsyncIteration

    def _take(self, count: int) -> list[MessageExt]:
        """Return the next messages, at most `count`, and with `auto_commit` count the ones before as done. Return an empty list if there
        are none, or if something has to be awaited first."""
        self._running()
        if self._polling:
            raise StateError(f"{self.group} is being polled already: it serves one caller at a time; use one consumer per caller")
        polls = self._polls
        if polls.taken_ms >= self._slice_end_ms:
            return []
        if self.config.auto_commit:
            if polls.mark_done():
                return []
            polls.revoked.clear()  # polling continues: the messages come again
        return polls.take(count)

    async def _poll(self, count: int, timeout_ms: int | None) -> list[MessageExt]:
        """Return the next messages as `_take` does, after whatever has to be awaited."""
        polls = self._polls
        self._polling = True
        try:
            if polls.taken_ms >= self._slice_end_ms:
                await asyncio.sleep(0)
                assert self._ctx is not None
                self._slice_end_ms = self._ctx.host.clock.boot_ms() + SLICE_MS
            if self.config.auto_commit:
                await self._reset_progress(polls.mark_done(), patient=True)
                polls.revoked.clear()
            batch = polls.take(count)
            if batch:
                return batch
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                while self.state is ConsumerState.RUNNING and not batch:
                    polls.changed.clear()
                    await polls.changed.wait()
                    batch = polls.take(count)
            if self.failure is not None and not batch:
                raise self.failure
            return batch
        except TimeoutError:
            return []
        finally:
            self._polling = False

    # -------------------------------------------------------------------------------------------------------------- commits

    async def commit(self) -> None:
        """Commit all returned messages, and wait until the brokers have stored the progress.

        Raises:
            StaleEpochError: The progress of a queue was reset, or the queue is another member's now. Polling continues from
                there.
            TransportError: A broker did not respond within 30 s. The commit is repeated automatically.
            BrokerError: A broker refused it, for example after a seek to messages that retention has removed.
            StateError: The consumer does not run.
        """
        self._running()
        assert self._membership is not None
        back = self._polls.mark_done()
        went = {runner.worker.queue for runner in back}
        # The present grants: one that ends while a reset is awaited has not committed.
        held = [(worker, worker.grant) for worker in self._membership.workers if worker.queue not in went]
        waiting = [(worker, grant, worker.ownership.offset) for worker, grant in held if grant is not None]
        await self._reset_progress(back)
        self._raise_stale()
        for worker, grant, offset in waiting:
            if grant.alive and worker.ownership.committed_offset < offset:
                worker.session.changed(worker.ownership, urgent=True)
        try:
            async with asyncio.timeout(COMMIT_WAIT_MS / 1000):
                await self._committed(waiting)
        except TimeoutError:
            left = [str(worker.queue) for worker, _, offset in waiting if worker.ownership.committed_offset < offset]
            raise TransportError(
                f"commit of {', '.join(left)}: no response within {COMMIT_WAIT_MS} ms; it is repeated automatically"
            ) from None

    async def _committed(self, waiting: Sequence[tuple[QueueWorker, Grant, int]]) -> None:
        left = waiting
        while left := [each for each in left if each[0].ownership.committed_offset < each[2]]:
            self._polls.revoked |= {worker.queue: offset for worker, grant, offset in left if not grant.alive}
            self._raise_stale()
            self._polls.changed.clear()
            await self._polls.changed.wait()

    def _raise_stale(self) -> None:
        void, self._polls.revoked = self._polls.revoked, {}
        if void:
            places = ", ".join(f"{queue} at {offset}" for queue, offset in void.items())
            raise StaleEpochError(
                f"commit of {places}: the progress was reset, or the queue is another member's now; poll continues from there"
            )

    async def _reset_progress(self, back: Sequence[PollRunner], *, patient: bool = False) -> None:
        """Reset the group's progress in queues that a seek moved back, to their present positions, under a new generation.

        If another reset came first, that one counts, and this one is void.
        """
        for runner in back:
            grant, queue = runner.grant, runner.worker.queue
            offset = grant.messages.commit_offset
            if not grant.alive:  # it ended while another queue was reset
                self._polls.revoked[queue] = offset
                continue
            body = ResetBody(self.group, queue.topic, (QueueOffset(queue.queue_id, offset, grant.token),))
            try:
                await runner.worker.session.link.call(RequestCode.RESET_OFFSETS, None, body)
            except StaleEpochError:
                self._polls.revoked[queue] = offset
                runner.worker.handle_stale(grant, by="RESET_OFFSETS")
                continue
            except (TransportError, BrokerError) as error:
                if not patient:
                    raise
                log.warning("commit.deferred", group=self.group, queue=str(queue), offset=offset, error=str(error))
                continue
            if grant.alive and runner.worker.ownership.stale(grant.token):
                runner.worker.grant_ended(fenced=True)
                runner.worker.session.trigger()

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the progress of the group in a queue of this consumer.

        Returns:
            The next offset to consume that the broker has confirmed last; None if it is not known yet.

        Raises:
            StateError: The queue is not assigned to this consumer.
        """
        worker = self._worker(queue)
        return None if worker is None or worker.grant is None else worker.ownership.committed_offset

    # ----------------------------------------------------------------------------------------------------------------- seek

    def position(self, queue: MessageQueue) -> int | None:
        """Return the position of this consumer in one of its queues.

        Returns:
            The offset of the next message that a poll of this queue returns; None if it is not known yet.

        Raises:
            StateError: The queue is not assigned to this consumer.
        """
        self._worker(queue)
        return self._polls.seeks.get(queue, self._polls.position(queue))

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue a queue at an offset; fetched messages of the queue are dropped. The next commit stores the position for the group.

        Args:
            queue: A queue that is assigned to this consumer.
            offset: The offset of the next message to return: from the first stored message to the end of the queue.

        Raises:
            StateError: The queue is not assigned to this consumer.
            LocalProtocolError: The queue does not have this offset.
            TransportError: Its broker is not connected, or did not respond in time.
        """
        first, end = await self._bounds(queue)
        if not first <= offset <= end:
            raise LocalProtocolError(f"seek of {queue} to {offset}: it holds {first} to {end}")
        self._polls.seek(queue, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Seek to the first stored message.

        Args:
            queue: A queue that is assigned to this consumer.

        Raises:
            StateError: The queue is not assigned to this consumer.
            TransportError: Its broker is not connected, or did not respond in time.
        """
        first, _ = await self._bounds(queue)
        self._polls.seek(queue, first)

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Seek to the end of the queue: only new messages follow.

        Args:
            queue: A queue that is assigned to this consumer.

        Raises:
            StateError: The queue is not assigned to this consumer.
            TransportError: Its broker is not connected, or did not respond in time.
        """
        _, end = await self._bounds(queue)
        self._polls.seek(queue, end)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Find the first message that was stored at a time or later.

        Args:
            queue: A queue that is assigned to this consumer.
            timestamp_ms: The store time in milliseconds since 1970.

        Returns:
            The offset of that message, or the end of the queue if there is none.

        Raises:
            StateError: The queue is not assigned to this consumer.
            TransportError: Its broker is not connected, or did not respond in time.
        """
        self._worker(queue)
        header = SearchOffsetHeader(queue.topic, queue.queue_id, timestamp_ms)
        link = self._running().link(queue.broker_name)
        if link is None:
            raise TransportError(f"broker {queue.broker_name} is not connected")
        return from_plain(OffsetReply, (await link.call(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)).fields).offset

    async def _bounds(self, queue: MessageQueue) -> tuple[int, int]:
        self._worker(queue)
        link = self._running().link(queue.broker_name)
        if link is None:
            raise TransportError(f"broker {queue.broker_name} is not connected")
        response = await link.call(RequestCode.TOPIC_OFFSETS, TopicHeader(queue.topic))
        for held in decode_body(TopicOffsets, response.body).queues:
            if held.queue_id == queue.queue_id:
                self._worker(queue)  # a rebalance may have happened during the call
                return held.min_offset, held.max_offset
        raise LocalProtocolError(f"{queue.broker_name} has no queue {queue.queue_id} of {queue.topic}")

    def _worker(self, queue: MessageQueue) -> QueueWorker | None:
        """Return the queue's worker. Raise StateError unless the queue is assigned."""
        self._running()
        assert self._membership is not None
        if queue not in self._membership.wanted:
            mine = ", ".join(map(str, self.assignment()[:8])) or "none"
            raise StateError(f"{queue} is not assigned to this consumer of {self.group}: its queues are {mine}")
        return self._membership.worker(queue)

    # ---------------------------------------------------------------------------------------------------------------- pause

    def pause(self, *queues: MessageQueue) -> None:
        """Exclude queues from polls until `resume`, or until another member has them.

        Args:
            *queues: Queues that are assigned to this consumer. Default: all of them.

        Raises:
            StateError: A queue is not assigned to this consumer.
        """
        for queue in queues or self.assignment():
            self._worker(queue)
            self._polls.pause(queue)

    def resume(self, *queues: MessageQueue) -> None:
        """Include queues in polls again.

        Args:
            *queues: Queues; one that is not paused has no effect. Default: all paused queues.

        Raises:
            StateError: The consumer runs on another event loop.
        """
        self._check_loop()
        for queue in queues or list(self._polls.paused):
            self._polls.resume(queue)


def _all_of(queues: Iterable[MessageQueue]) -> dict[str, TagFilter]:
    return {queue.topic: MATCH_ALL for queue in queues}


async def _wait_for_brokers(instance: Instance, queues: Iterable[MessageQueue]) -> None:
    """Wait until every broker of these queues is connected, or a connect has failed."""
    for name in dict.fromkeys(queue.broker_name for queue in queues):
        link = instance.link(name)
        if link is not None:
            await link.wait_first_attempt()


async def _check_queues(instance: Instance, queues: Iterable[MessageQueue]) -> None:
    for queue in queues:
        layout = instance.routes.layout(queue.topic) or await instance.watch.route(queue.topic)
        if layout is None or layout.deleted:
            raise TopicNotExistError(f"no topic {queue.topic}: {how_to_create(queue.topic)}")
        if queue not in layout.number_of:
            raise LocalProtocolError(f"{queue} is not a readable queue of {queue.topic}: `await consumer.queues(topic)` returns them")
