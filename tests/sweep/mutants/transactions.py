"""Rules of transactions: half messages, how they end, and the questions about them."""

from typing import Any

from lockstep.broker.classic.connections import ClassicConnection
from lockstep.broker.delivery.home_delivery import HomeDelivery
from lockstep.broker.processors.rooms.check_back import CheckBack
from lockstep.broker.processors.sent_frames import SentFrames
from lockstep.broker.snapshot_rows import SnapshotRows
from lockstep.broker.state import BrokerState
from lockstep.broker.store.log.stored_record import CopyPlace, Ended
from lockstep.broker.tables.transaction_table import HalfOutcome, OpenHalf, TransactionTable
from lockstep.broker.tables.write_holds import WriteHolds
from lockstep.client.producer.sends import Sends
from lockstep.client.producer.transactions import Transaction, TransactionProducer, TransactionStatus
from lockstep.operations.changes.layouts import queue_move
from lockstep.protocol.names import HALF_TOPIC
from sweep.mutants.registry import Patches, mutant

WORLD = "transactions"
TESTS = "tests/unit/client/test_transactions.py::"
MOVES = "tests/unit/operations/changes/test_moves_and_transactions.py::"
HALVES = "tests/unit/broker/test_half_messages.py::"


@mutant(WORLD)
def a_commit_leaves_the_half_message_open(patch: Patches) -> None:
    """A half message whose copy is stored is not open any more: whoever asks again gets the first answer."""

    def commit(self: TransactionTable, offset: int, code: int, outcome: HalfOutcome) -> None:
        pass

    patch.set(TransactionTable, "commit", commit)


@mutant(WORLD)
def a_torn_commit_repeats(patch: Patches) -> None:
    """A start learns from the copies in the log which half messages were committed."""
    ended = BrokerState.ended

    def others(self: BrokerState, one: Ended, place: CopyPlace) -> None:
        if one.topic != HALF_TOPIC:
            ended(self, one, place)

    patch.set(BrokerState, "ended", others)


@mutant(WORLD)
def halves_are_forgotten_at_a_start(patch: Patches) -> None:
    """A snapshot has the open half messages, which may be in a part of the log that a start does not read."""
    patch.set(TransactionTable, "snapshot", lambda self: SnapshotRows(0, lambda: ()))


@mutant(WORLD)
def halves_are_not_durable(patch: Patches) -> None:
    """A half message is on disk before its sender goes on: its local transaction may be committed then."""
    pending_send: Any = Sends.pending_send

    def pending(self: Sends, *facts: Any) -> Any:
        *others, _ = facts
        return pending_send(self, *others, None)

    patch.set(Sends, "pending_send", pending)


@mutant(WORLD)
def an_exception_rolls_back(patch: Patches) -> None:
    """An exception in a block says nothing of the local transaction, which may have been committed."""
    leave = Transaction.__aexit__

    async def at_once(self: Transaction, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and self.status is None:
            await self._end(TransactionStatus.ROLLBACK)
        await leave(self, kind, error, trace)

    patch.set(Transaction, "__aexit__", at_once)


@mutant(WORLD)
def nobody_asks_again(patch: Patches) -> None:
    """A broker asks how a transaction has ended until it knows."""

    async def look(self: CheckBack, offset: int, asked: dict[int, int]) -> None:
        pass

    patch.set(CheckBack, "_look", look)


@mutant(WORLD, aimed=f"{TESTS}test_messages_of_a_block_are_delivered_in_order_when_it_has_ended")
def an_open_block_is_checked(patch: Patches) -> None:
    """A producer does not ask the database about a block that still runs."""

    def begun(self: TransactionProducer, block: Transaction) -> None:
        pass

    patch.set(TransactionProducer, "_begun", begun)


@mutant(WORLD, aimed=f"{TESTS}test_another_producer_of_the_group_is_asked_when_the_sender_is_gone")
def the_check_asks_nobody_else(patch: Patches) -> None:
    """When the sender of a half message is gone for good, another producer of its group is asked."""

    def only_sender(self: ClassicConnection, group: str, topic: str) -> bool:
        return False

    patch.set(ClassicConnection, "may_be_asked", only_sender)


@mutant(WORLD)
def a_rollback_is_not_final(patch: Patches) -> None:
    """A half message that was rolled back is not open any more."""

    def roll_back(self: TransactionTable, half: OpenHalf, now_ms: int) -> None:
        self._remember(half.offset, HalfOutcome(now_ms, -1, -1))

    patch.set(TransactionTable, "roll_back", roll_back)


@mutant(WORLD, aimed=f"{MOVES}test_open_transaction_is_waited_for_before_writes_are_held")
def half_messages_do_not_hold_a_layout(patch: Patches) -> None:
    """No layout that moves keys comes into force while a transaction of the topic is open."""

    async def none(*_: Any) -> dict[Any, Any]:
        return {}

    patch.set(queue_move, "_undecided", none)


@mutant(WORLD, aimed=f"{HALVES}test_held_writes_hold_new_half_messages_and_no_decision")
def a_hold_stops_decisions(patch: Patches) -> None:
    """While writes are held, transactions are decided: the move of the queues waits for that."""
    destination = HomeDelivery._destination
    patch.set(HomeDelivery, "_destination", lambda self, *home, held_too=False: destination(self, *home))


@mutant(WORLD, aimed=f"{HALVES}test_held_writes_hold_new_half_messages_and_no_decision")
def a_hold_lets_half_messages_in(patch: Patches) -> None:
    """While writes are held, no half message of the topic is stored."""
    append = SentFrames.append_waiting

    def unheld(self: SentFrames, *given: Any, **more: Any) -> Any:
        holds, self._holds = self._holds, WriteHolds()
        try:
            return append(self, *given, **more)
        finally:
            self._holds = holds

    patch.set(SentFrames, "append_waiting", unheld)
