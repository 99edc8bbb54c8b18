"""END_TRANSACTION: commits and rolls back half messages. RocketMQ: EndTransactionProcessor.

The copy in the message's own topic, which names the half message, is the commit: it is in the log or not, so that no message is committed
twice or in part. A decision that is repeated gets its first answer, and the opposite one is refused.
"""

from collections.abc import Callable, Sequence

from lockstep.broker.delivery.home_delivery import HomeDelivery
from lockstep.broker.delivery.room_copies import by_home
from lockstep.broker.processors.rooms.recall import is_named
from lockstep.broker.processors.rooms.room_records import RoomRecords
from lockstep.broker.store import Store
from lockstep.broker.tables.transaction_table import HalfOutcome, OpenHalf, TransactionTable
from lockstep.protocol.bodies import CommittedPlace, EndTransactionBody, EndTransactionReply, HalfMessage
from lockstep.protocol.bodies.transactions import HALVES_MAX
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import (
    MessageIllegalError,
    QueryNotFoundError,
    TransactionCommittedError,
    TransactionGroupError,
    TransactionRolledBackError,
)
from lockstep.protocol.headers.transactions import COMMIT, ROLLBACK, UNKNOWN, EndTransactionHeader
from lockstep.protocol.messages.record import RecordView
from lockstep.protocol.messages.rooms import RoomProperties, read_half
from lockstep.protocol.names import HALF_TOPIC
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import PUB, inside
from lockstep.runtime.requests.request import AuditedChange, HandlerResult, PendingResponse, Request, RetryLaterError, Until

TRANSACTION_LANE = "transactions"
"""The lane of requests that end transactions. They may read the disk."""
HELD_RETRY_MS = 100
NEEDS = (inside("Pub the topic of each half message"),)


class EndTransactionProcessor:
    """Ends transactions."""

    def __init__(self, store: Store, table: TransactionTable, home: HomeDelivery, ask_soon: Callable[[int], None]) -> None:
        """`ask_soon`: has the sender of the half message at an offset asked, who does not know the outcome yet."""
        self._ask_soon = ask_soon
        self._store = store
        self._table = table
        self._home = home
        self._records = RoomRecords(store, HALF_TOPIC)
        self.committed_count = 0
        """Half messages that were committed since the start."""
        self.rolled_back_count = 0

    @handles(RequestCode.END_TRANSACTION, EndTransactionHeader, EndTransactionBody, needs=NEEDS, lane=TRANSACTION_LANE)
    async def end(self, request: Request) -> HandlerResult:
        """End the half messages of one transaction, in the order of the request."""
        body: EndTransactionBody = request.body
        if not 1 <= len(body.halves) <= HALVES_MAX:
            raise MessageIllegalError(f"{len(body.halves)} half messages: expected 1 to {HALVES_MAX} in a request")
        return await self._end(request, body.halves)

    @handles(RequestCode.END_TRANSACTION, EndTransactionHeader, needs=NEEDS, lane=TRANSACTION_LANE, native=False, classic=True)
    async def end_one(self, request: Request) -> HandlerResult:
        """End the half message of one of RocketMQ's clients."""
        header: EndTransactionHeader = request.header
        return await self._end(request, (HalfMessage(header.tran_state_table_offset, header.msg_id),))

    async def _end(self, request: Request, halves: Sequence[HalfMessage]) -> HandlerResult:
        header: EndTransactionHeader = request.header
        if header.commit_or_rollback not in (UNKNOWN, COMMIT, ROLLBACK):
            raise MessageIllegalError(f"outcome {header.commit_or_rollback}: expected {COMMIT}, {ROLLBACK} or {UNKNOWN} (not known yet)")
        found = [await self._read(request, half) for half in halves]
        if header.commit_or_rollback == UNKNOWN:
            if request.is_native and not header.from_transaction_check:  # an exception has ended a block
                for half in halves:
                    self._ask_soon(half.offset)
            return request.reply(body=EndTransactionReply(()) if request.is_native else None)
        # No await from here on.
        commit, by_hand = header.commit_or_rollback == COMMIT, header.reason is not None
        until: Until = "synced" if by_hand else "confirmed"
        try:
            outcomes = self._decide(halves, found, commit=commit)
        except (TransactionCommittedError, TransactionRolledBackError) as error:
            return PendingResponse(request.refusal(error), until)  # the outcome that it names may not be confirmed yet
        if by_hand:
            topics = {f"topic:{properties.topic.decode()}" for _, properties in found}
            after = f"{'commit' if commit else 'rollback'}: {header.reason}"
            request.change = AuditedChange(", ".join(sorted(topics)), after=after)
        reply = EndTransactionReply(tuple(CommittedPlace(each.queue_id, each.offset) for each in outcomes))
        response = request.reply(body=reply) if request.is_native else request.reply()
        return PendingResponse(response, until)

    async def _read(self, request: Request, half: HalfMessage) -> tuple[bytes, RoomProperties]:
        """Return the record of a half message, if it is the one that the request means and its user may send to its topic."""
        header: EndTransactionHeader = request.header
        data, tried = b"", -1
        while not data and tried != (offset := self._table.carried.find(half.offset)):  # it may be stored again while it is read
            data, tried = await self._records.read_for_change(offset), offset
        record = RecordView(data) if data else None
        found = None if record is None else read_half(record.properties)
        if record is None or found is None or (half.message_id and not is_named(record, half.message_id)):
            raise QueryNotFoundError(f"no half message {half.message_id} is at offset {half.offset}")
        request.user.check_topic(found.topic.decode(), PUB)
        if found.group != header.producer_group.encode():
            raise TransactionGroupError(
                f"message {half.message_id} is of producer group {found.group.decode()}, not {header.producer_group}"
            )
        return data, found

    def _decide(self, halves: Sequence[HalfMessage], found: Sequence[tuple[bytes, RoomProperties]], *, commit: bool) -> list[HalfOutcome]:
        """End those that are open. None is ended if one has ended the other way, or its outcome is not known any more."""
        for half, (_, properties) in zip(halves, found, strict=True):
            outcome = self._table.outcome(half.offset)
            if outcome is not None:
                _check_same(half, properties, outcome, commit=commit)
            elif self._table.find(half.offset) is None:
                raise QueryNotFoundError(f"how message {half.message_id} has ended is not known any more")
        outcomes = []
        for half, (data, properties) in zip(halves, found, strict=True):
            outcome = self._table.outcome(half.offset)
            if outcome is None:
                open_half = self._table.find(half.offset)
                assert open_half is not None
                outcome = self._commit(open_half, data) if commit else self._roll_back(open_half)
                _check_same(half, properties, outcome, commit=commit)
            outcomes.append(outcome)
        return outcomes

    def _commit(self, half: OpenHalf, data: bytes) -> HalfOutcome:
        """Store the copy of a half message in its own topic. It is rolled back if that was deleted."""
        ((home, bound),) = by_home(HALF_TOPIC, [(half, data)]).items()
        delivered = self._home.deliver_bound(HALF_TOPIC, home, bound)
        if delivered is False:
            raise RetryLaterError(f"topic {home.topic} takes no messages now", HELD_RETRY_MS)
        if delivered is None:
            return self._roll_back(half)
        outcome = HalfOutcome(self._store.now_ms(), *delivered)
        self._table.commit(half.offset, half.code, outcome)
        self.committed_count += 1
        return outcome

    def _roll_back(self, half: OpenHalf) -> HalfOutcome:
        self._table.roll_back(half, self._store.now_ms())
        self.rolled_back_count += 1
        outcome = self._table.outcome(half.offset)
        assert outcome is not None, "it was recorded"
        return outcome


def _check_same(half: HalfMessage, properties: RoomProperties, outcome: HalfOutcome, *, commit: bool) -> None:
    """Refuse a decision that is the opposite of what has happened."""
    message = f"message {half.message_id} of topic {properties.topic.decode()}"
    if outcome.committed and not commit:
        raise TransactionCommittedError(f"{message} was committed")
    if commit and not outcome.committed:
        raise TransactionRolledBackError(f"{message} was rolled back, or its topic was deleted")
