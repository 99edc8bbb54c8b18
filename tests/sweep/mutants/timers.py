"""Rules of messages that wait for any delay or until a time of day, and of recalls (docs/wire.md)."""

from collections.abc import Iterable, Sequence
from typing import Any

from lockstep.broker.delivery.room_carry import RoomCarry
from lockstep.broker.processors.rooms import recall
from lockstep.broker.processors.rooms.recall import RecallProcessor
from lockstep.broker.snapshot_rows import SnapshotRows
from lockstep.broker.state import BrokerState
from lockstep.broker.store import Store
from lockstep.broker.store.log import scan
from lockstep.broker.store.log.stored_record import CopyPlace, Ended
from lockstep.broker.tables.timer_table import RECALLED, TIMES_OF_DAY, TimerTable
from lockstep.client.producer.machines.encoder import TimerEncoder
from lockstep.client.producer.machines.pending import PendingSend
from lockstep.client.producer.shell import ProducerShell
from lockstep.protocol.delays import LEVELS_MS
from lockstep.protocol.messages.recall import RecallHandle
from lockstep.protocol.messages.rooms import ABSOLUTE, RoomProperties, read_timer
from lockstep.protocol.names import TIMER_TOPIC
from sweep.mutants.registry import Patches, mutant

WORLD = "timers"
TABLE = "tests/unit/broker/test_timer_table.py::"
LEVELS = "tests/unit/client/test_delayed_send.py::"


@mutant(WORLD)
def a_recall_is_in_memory(patch: Patches) -> None:
    """A recalled timer is recorded in the log before its recall is answered."""
    patch.set(TimerTable, "recall", lambda self, offset, code: self.apply((RECALLED, code, offset)))


@mutant(WORLD)
def recall_always_says_yes(patch: Patches) -> None:
    """A recall is answered as carried out only if its message still waited, or was recalled before."""
    carry_out = RecallProcessor._recall

    async def yes(self: RecallProcessor, offsets: Iterable[int], handle: RecallHandle) -> bool:
        await carry_out(self, offsets, handle)
        return True

    patch.set(RecallProcessor, "_recall", yes)


@mutant(WORLD)
def a_recall_compares_no_topic(patch: Patches) -> None:
    """A handle that names another topic than its message recalls nothing."""

    class AnyTopic(bytes):
        __hash__ = bytes.__hash__

        def __eq__(self, other: object) -> bool:
            return True

        def __ne__(self, other: object) -> bool:
            return False

    def read(properties: bytes) -> RoomProperties | None:
        found = read_timer(properties)
        return None if found is None else found._replace(topic=AnyTopic(found.topic))

    patch.set(recall, "read_timer", read)


@mutant(WORLD, aimed="tests/unit/broker/test_recall.py::test_recall_before_its_message_is_confirmed_is_refused_for_now")
def a_message_is_denied_before_it_is_confirmed(patch: Patches) -> None:
    """A recall that comes before its message is confirmed is refused for now: it does not say that there is no such message."""
    end_offset = Store.end_offset
    patch.set(Store, "end_offset", lambda self, topic, queue_id: 0 if topic == TIMER_TOPIC else end_offset(self, topic, queue_id))


@mutant(WORLD)
def the_wheel_ignores_a_step(patch: Patches) -> None:
    """When the clock of the store is set, the delays of earlier records are moved with it."""
    init = TimerTable.__init__
    patch.set(TimerTable, "__init__", lambda self, journal, shift: init(self, journal, lambda era: 0))


@mutant(WORLD)
def absolute_timers_move_with_a_step(patch: Patches) -> None:
    """A time of day is not moved when the clock of the store is set."""
    add = TimerTable.add
    patch.set(TimerTable, "add", lambda self, offset, code, era: add(self, offset, code & ~ABSOLUTE, era))


@mutant(WORLD)
def a_timer_is_due_by_one_clock(patch: Patches) -> None:
    """A time of day has come when the wall clock has reached it as well as the clock of the store."""
    until = TimerTable._until

    def by_one(self: TimerTable, era: int, now_ms: int, wall_ms: int) -> int:
        return now_ms if era == TIMES_OF_DAY else until(self, era, now_ms, wall_ms)

    patch.set(TimerTable, "_until", by_one)


@mutant(WORLD, aimed=f"{TABLE}test_timers_that_were_taken_are_pending_again_after_a_restart")
def a_deferred_timer_is_forgotten_at_a_start(patch: Patches) -> None:
    """A timer that is due and could not be delivered yet is pending, in a snapshot too."""
    snapshot = TimerTable.snapshot

    def others(self: TimerTable) -> SnapshotRows:
        taken, self._taken = self._taken, {}
        try:
            return snapshot(self)
        finally:
            self._taken = taken

    patch.set(TimerTable, "snapshot", others)


@mutant(WORLD)
def a_torn_timer_repeats(patch: Patches) -> None:
    """A start learns from the copies in the log which timers were delivered."""
    ended = BrokerState.ended

    def others(self: BrokerState, one: Ended, place: CopyPlace) -> None:
        if one.topic != TIMER_TOPIC:
            ended(self, one, place)

    patch.set(BrokerState, "ended", others)


@mutant(WORLD)
def a_seal_breaks_the_frame(patch: Patches) -> None:
    """The checksums that the broker writes into the records of a frame do not count in the CRC of its sender."""
    patch.set(scan, "ROOMS", frozenset[str]())


@mutant(WORLD)
def timers_are_not_in_the_snapshot(patch: Patches) -> None:
    """A snapshot has all pending timers: a start reads the log from there."""

    def nothing(self: BrokerState) -> dict[str, Any]:
        return {}

    patch.set(BrokerState, "_waiting", nothing)


@mutant("retention")
def timers_are_not_carried(patch: Patches) -> None:
    """Before a file of the log is removed, the timers that still wait in it are stored again."""

    async def at_once(self: RoomCarry[Any], position: int) -> int:
        return position

    patch.set(RoomCarry, "carry_before", at_once)


@mutant(WORLD, aimed=f"{LEVELS}test_table_of_the_broker_is_obeyed_and_a_level_above_it_is_its_last")
def every_broker_has_rocketmqs_levels(patch: Patches) -> None:
    """A delay level is the time that it has in the table of the broker that stores the message."""
    patch.set(ProducerShell, "_levels_ms", lambda self, broker_name: LEVELS_MS)


@mutant(WORLD, aimed=f"{LEVELS}test_delayed_send_that_moves_to_a_broker_with_another_table_keeps_its_time")
def a_moved_level_is_read_again(patch: Patches) -> None:
    """A message with a delay level that is sent to another broker waits for the same time."""
    encode = TimerEncoder._encode

    def again(self: TimerEncoder, sends: Sequence[PendingSend], *facts: Any) -> tuple[bytes, list[int]]:
        given = [pending.waits for pending in sends]
        encoded = encode(self, sends, *facts)
        for pending, timer in zip(sends, given, strict=True):
            pending.waits = timer
        return encoded

    patch.set(TimerEncoder, "_encode", again)
