"""Transactions: messages that are delivered together, or not at all, as a local transaction ends. RocketMQ: TransactionMQProducer.

    half messages ─▶ the local transaction ─▶ COMMIT or ROLLBACK ─▶ the messages are delivered, or dropped
                                                  │ not said
                                                  └─▶ the broker asks `check`, until it knows

Messages of several brokers are committed one after another: all or none in the end, not at once.
"""

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import Enum
from typing import TypeAlias, TypeVar

from lockstep.client.broker_link import BrokerLink
from lockstep.client.errors import Outcome, QueueUnavailableError
from lockstep.client.producer.hooks import Sending, send_watched
from lockstep.client.producer.machines.routing import Selector
from lockstep.client.producer.producer import Producer
from lockstep.client.producer.result import FrameResult, SendResult, SendStatus
from lockstep.protocol.bodies.transactions import HALVES_MAX, CommittedPlace, EndTransactionBody, EndTransactionReply, HalfMessage
from lockstep.protocol.codec.msgpack_body import decode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import BrokerError, LockstepError, StateError, TransportError, without_frames
from lockstep.protocol.headers.transactions import COMMIT, ROLLBACK, UNKNOWN, CheckTransactionHeader, EndTransactionHeader
from lockstep.protocol.messages.message import Message, MessageExt
from lockstep.protocol.object_text import text_of
from lockstep.protocol.responses import checked
from lockstep.protocol.topics.queue import MessageQueue
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger

log = get_logger("lockstep.client.producer")

TRANSACTION_ID_BYTES = 16
END_TIMEOUT_MS = 10_000
"""How long the end of a block tries to say how it has ended."""
TRY_MS = 3_000
AGAIN_MS = 100
CHECK_TIMEOUT_S = 10
"""How long `check` may take. After that the broker asks again later."""
CHECKS_MAX = 1_000
"""Calls of `check` that may run at a time. Of more, the broker asks again later."""


class TransactionStatus(Enum):
    """How a transaction has ended. RocketMQ: LocalTransactionState."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    UNKNOWN = "UNKNOWN"
    """It still runs, or nobody knows: the broker asks again later."""


_CODES = {TransactionStatus.COMMIT: COMMIT, TransactionStatus.ROLLBACK: ROLLBACK, TransactionStatus.UNKNOWN: UNKNOWN}
Answer: TypeAlias = "TransactionStatus | bool"
"""What `check` returns; True is COMMIT, False is ROLLBACK."""
Check: TypeAlias = Callable[[str, MessageExt], "Answer | Awaitable[Answer]"]
C = TypeVar("C", bound=Check)


class Transaction:
    """A block whose messages are delivered when it has ended: `async with producer.transaction() as tx: await tx.send(…)`.

    - The end of the block commits. `await tx.rollback()` drops the messages.
    - An exception in the block says nothing about the local transaction, which may have been committed: the broker asks `check`.
    - While the block runs, the answer to the broker's question is "not known yet".

    Attributes:
        id: 32 hex digits, by which `check` is asked. Store it in the local transaction (`lockstep.client.marks`).
        status: How it has ended; None before that, UNKNOWN if no broker has confirmed it.
        results: After a commit, where each message is, in the order of the sends; the offset is −1 if no broker has said it.
    """

    def __init__(self, producer: "TransactionProducer", transaction_id: str) -> None:
        self.id = transaction_id
        self.status: TransactionStatus | None = None
        self.results: Sequence[SendResult] = ()
        self._producer = producer
        self._halves: dict[int, SendResult] = {}
        """By the number of the send."""
        self._count = self._sending = 0
        self._entered = False
        self._process = os.getpid()

    def __repr__(self) -> str:
        return f"<Transaction {self.id} {'open' if self.status is None else self.status.value}>"

    async def __aenter__(self) -> "Transaction":
        if self._entered:
            raise StateError(f"transaction {self.id} was entered before: each block has its own, from producer.transaction()")
        self._entered = True
        self._producer._begun(self)
        return self

    async def send(
        self,
        message: Message,
        *,
        selector: Selector | None = None,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Store one message as a half message: it is on disk, and visible to nobody before the commit.

        Args:
            message: The message.
            selector, queue, timeout_ms: As in Producer.send.

        Returns:
            SendResult: The queue to which the message goes, and its id. The offset is −1 before the commit: see `results`.

        Raises:
            SendTimeoutError, QueueUnavailableError, TooManySendsError, TopicNotExistError, BrokerError: As in Producer.send.
            LocalProtocolError: As in Producer.send; or the message has too many properties.
            StateError: The block has not begun, or has ended.
        """
        self.check_open()
        self._sending += 1
        number, self._count = self._count, self._count + 1
        try:
            result = await self._producer._send_half(message, self.id, selector, queue, timeout_ms)
        finally:
            self._sending -= 1
        if self.status is not None:
            raise StateError(f"transaction {self.id} has ended while a message was sent: await each send in its block")
        self._halves[number] = result
        return result

    async def rollback(self) -> None:
        """End the block's transaction: its messages will never be delivered.

        Raises:
            StateError: The block has not begun, or has ended.
            TransactionCommittedError: An operator has committed a message meanwhile.
        """
        self.check_open()
        await self._end(TransactionStatus.ROLLBACK)

    def check_open(self) -> None:
        """Raise StateError unless messages can be sent: the block has begun, in this process, and has not ended."""
        if os.getpid() != self._process:
            raise StateError(f"transaction {self.id} was begun in another process, before a fork: a block runs in one process")
        if not self._entered or self.status is not None:
            raise StateError(f"transaction {self.id} {'has ended' if self._entered else 'has not begun: use `async with`'}")

    async def _end(self, status: TransactionStatus) -> None:
        self.status = TransactionStatus.UNKNOWN
        halves = self._in_order()
        places = await self._producer._end(self.id, halves, status)
        if None not in places:
            self.status = status
        if status is TransactionStatus.COMMIT:
            self.results = [_committed(half, place) for half, place in zip(halves, places, strict=True)]

    def _in_order(self) -> list[SendResult]:
        return [self._halves[number] for number in sorted(self._halves)]

    async def __aexit__(self, kind: object, error: BaseException | None, _: object) -> None:
        try:
            if self.status is not None:
                return
            if error is None and not self._sending:
                await self._end(TransactionStatus.COMMIT)
                return
            self.status = TransactionStatus.UNKNOWN
            self._producer._left(self._in_order())
            if error is None:
                raise StateError(f"transaction {self.id}: {self._sending} sends have not ended: await each in its block")
        finally:
            self._producer._ended_block(self)


class TransactionProducer(Producer):
    """A producer of messages that are delivered together with a local transaction, or not at all.

        producer = TransactionProducer("order-service", nameserver="host:port")

        @producer.check
        async def check(transaction_id: str, message: MessageExt) -> bool:
            async with database.begin() as db:
                return await marks.decide(db, transaction_id)

        async with producer, producer.transaction() as tx:
            await tx.send(Message("orders", b"created"))
            async with database.begin() as db:
                await db.execute(insert_order)
                await marks.set(db, tx.id)

    It also sends as a Producer does, and takes its arguments.
    """

    _check: Check | None = None

    def check(self, function: C) -> C:
        """Have the function asked how a transaction has ended whose block is not known to have ended. Return it, so that this is a
        decorator.

        It is called with the transaction's id and one of its messages, once for each message, also for transactions of other processes of
        the group and of earlier starts: the answer has to come from the database. It returns a TransactionStatus, or True for a commit and
        False for a rollback. An answer is final. A function that raises, takes longer than 10 s or returns anything else is asked again
        later, as one that returns UNKNOWN. A plain function is called in a thread.
        """
        self._check = function
        return function

    def transaction(self) -> Transaction:
        """Return a new transaction, whose block begins with `async with`."""
        return Transaction(self, self._host.random.token(TRANSACTION_ID_BYTES).hex())

    async def start(self) -> None:
        """Connect to the cluster, as Producer.start does.

        Raises:
            StateError: As in Producer.start; or there is no `check`.
        """
        if self._check is None:
            raise StateError(
                f"producer {self.group} has no check: brokers ask it how transactions have ended; set one with @producer.check"
            )
        self._blocks: dict[str, Transaction] = {}
        self._checks_running = 0
        await super().start()
        if not self.config.start_in_background:
            await self._announce()

    async def _connect(self, limit_ms: int | None) -> None:
        await super()._connect(limit_ms)
        if self._sends is not None:
            await self._announce()

    async def _announce(self) -> None:
        """Connect to all brokers, and have each know that this producer is to be asked: half messages of the group may be anywhere."""
        assert self._instance is not None
        await self._instance.link_all()
        await self._instance.heartbeat_now()

    # -- of the blocks ---------------------------------------------------------------------------

    def _begun(self, block: Transaction) -> None:
        _ = self._started
        self._blocks[block.id] = block

    def _ended_block(self, block: Transaction) -> None:
        self._blocks.pop(block.id, None)

    async def _send_half(
        self, message: Message, transaction_id: str, selector: Selector | None, queue: MessageQueue | None, timeout_ms: int | None
    ) -> SendResult:
        async def send(given: Sequence[Message]) -> list[SendResult]:
            result = await self._started.send_half(given[0], transaction_id, selector, queue, timeout_ms)
            if result.room_offset < 0:
                raise QueueUnavailableError(result.queue, Outcome.UNKNOWN, "it is stored, but its broker does not know its place any more")
            return [result]

        if not self._hooks:
            return (await send((message,)))[0]
        return (await send_watched(self._hooks, Sending(self.group, (message,), "transaction"), send))[0]

    async def _end(self, transaction_id: str, halves: Sequence[SendResult], status: TransactionStatus) -> "list[CommittedPlace | None]":
        """Say how a transaction has ended, to one broker after another. Return the place of each message, None where no broker has answered
        in time."""
        places: list[CommittedPlace | None] = [None] * len(halves)
        end_ms = self._now_ms() + END_TIMEOUT_MS
        failure: BrokerError | None = None
        for broker, positions in _by_broker(halves).items():
            for at in range(0, len(positions), HALVES_MAX):
                part = positions[at : at + HALVES_MAX]
                body = EndTransactionBody(tuple(_half_message(halves[each]) for each in part))
                try:
                    found = await self._end_at(broker, self._header(transaction_id, status), body, end_ms)
                except BrokerError as error:
                    failure = failure or without_frames(error)
                    continue
                for position, place in zip(part, found, strict=False):
                    places[position] = place
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its traceback holds this frame
        return places

    def _now_ms(self) -> int:
        return self._host.clock.monotonic_ms()

    @property
    def _host(self) -> Host:
        _ = self._started
        assert self._instance is not None
        return self._instance.host

    def _header(self, transaction_id: str, status: TransactionStatus) -> EndTransactionHeader:
        return EndTransactionHeader(self.group, _CODES[status], transaction_id=transaction_id, from_transaction_check=False)

    async def _end_at(self, broker: str, header: EndTransactionHeader, body: EndTransactionBody, end_ms: int) -> Sequence[CommittedPlace]:
        """Say how half messages of one broker have ended. Return their places; none if it does not answer in time. Raises its refusal."""
        why = ""
        while (left_ms := end_ms - self._now_ms()) > 0:
            link = None if self._instance is None else self._instance.link(broker)
            try:
                if link is None:
                    raise TransportError(f"no address of broker {broker} is known")
                if not link.up:
                    await link.wait_up(min(left_ms, TRY_MS))
                response = await link.request(RequestCode.END_TRANSACTION, header, body, timeout_ms=min(left_ms, TRY_MS))
                return decode_body(EndTransactionReply, checked(response).body).places
            except BrokerError as error:
                if not error.retriable:
                    raise
                why = str(error)
            except TransportError as error:
                why = str(error)
            await asyncio.sleep(AGAIN_MS / 1000)
        then = "the broker asks `check` until it knows"
        log.warning("transaction.unanswered", transaction=header.transaction_id, broker=broker, error=why, then=then)
        return ()

    def _left(self, halves: Sequence[SendResult]) -> None:
        """Have brokers ask at once about the messages of a block that an exception has left."""
        instance = self._instance
        for broker, positions in _by_broker(halves).items():
            link = None if instance is None else instance.link(broker)
            body = EndTransactionBody(tuple(_half_message(halves[each]) for each in positions[:HALVES_MAX]))
            if link is not None and link.up:
                link.oneway(RequestCode.END_TRANSACTION, EndTransactionHeader(self.group, UNKNOWN, from_transaction_check=False), body)

    # -- of the brokers' questions ---------------------------------------------------------------

    def _runs_transaction(self, transaction_id: str) -> bool:
        return transaction_id in self._blocks

    def _on_check(self, link: BrokerLink, header: CheckTransactionHeader, message: MessageExt) -> None:
        """Answer a broker's question how the transaction of a half message has ended."""
        if self._checks_running >= CHECKS_MAX:
            return  # the broker asks again later
        self._checks_running += 1
        self._tasks.spawn(self._answer(link, header, message), f"producer {self.group} check")

    async def _answer(self, link: BrokerLink, header: CheckTransactionHeader, message: MessageExt) -> None:
        try:
            status = await self._ask(header.transaction_id, message)
            if status is TransactionStatus.UNKNOWN or header.transaction_id in self._blocks:
                return
            ended = EndTransactionHeader(self.group, _CODES[status], from_transaction_check=True, transaction_id=header.transaction_id)
            half = HalfMessage(header.tran_state_table_offset, header.msg_id)
            await link.call(RequestCode.END_TRANSACTION, ended, EndTransactionBody((half,)), timeout_ms=TRY_MS)
        except LockstepError as error:
            facts = {"transaction": header.transaction_id, "broker": link.name, "error": str(error)}
            log.warning("transaction.answer_failed", **facts, then="the broker asks again")
        finally:
            self._checks_running -= 1

    async def _ask(self, transaction_id: str, message: MessageExt) -> TransactionStatus:
        """Return what `check` says of a transaction; UNKNOWN if it can't."""
        check = self._check
        assert check is not None, "start checks it"
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                if inspect.iscoroutinefunction(check):
                    answer = await check(transaction_id, message)
                else:
                    answer = await self._host.threads.run(check, transaction_id, message)
                    if inspect.isawaitable(answer):
                        answer = await answer
        except Exception as error:  # listener: the user's function
            then = "the broker asks again later"
            log.warning("transaction.check_failed", transaction=transaction_id, error=text_of(error), then=then, exc_info=error)
            return TransactionStatus.UNKNOWN
        if isinstance(answer, TransactionStatus):
            return answer
        if isinstance(answer, bool):
            return TransactionStatus.COMMIT if answer else TransactionStatus.ROLLBACK
        expected = "a TransactionStatus, or True for a commit and False for a rollback"
        log.warning("transaction.bad_answer", transaction=transaction_id, returned=text_of(answer), expected=expected)
        return TransactionStatus.UNKNOWN


def _by_broker(halves: Iterable[SendResult]) -> dict[str, list[int]]:
    """Return the positions of half messages by broker."""
    found: dict[str, list[int]] = {}
    for position, half in enumerate(halves):
        found.setdefault(half.queue.broker_name, []).append(position)
    return found


def _half_message(half: SendResult) -> HalfMessage:
    return HalfMessage(half.room_offset, half.message_id)


def _committed(half: SendResult, place: CommittedPlace | None) -> SendResult:
    """Return the result of a committed message."""
    queue, offset = half.queue, -1
    if place is not None:
        queue, offset = MessageQueue(queue.topic, queue.broker_name, place.queue_id), place.offset
    return SendResult(FrameResult(SendStatus.SEND_OK, queue, offset, -1, "", (), (half.message_id,)), 0)
