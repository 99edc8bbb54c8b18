"""Store times: the stamp of the next record, and the meaning of older stamps after the clock was set.

Store times follow the boot clock, except for steps to the wall clock (runtime/steady_clock.py), when the clock is set forward or back. The
age of a record is counted by the boot clock, so each step is known:

- A *clock record* is written into the log at each start and at each step, before any record with a stamp of the new setting. It has the
  boot id, the boot clock, the time here, and by how much the clock was set.
- A record with a lower stamp than the one before it is also a step. This happens in logs of RocketMQ's broker, which have no clock
  records.

    clock record = body of a state record: msgpack ["clock", boot id, boot clock in ms, time here in ms, set by so many ms]
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgpack  # type: ignore[import-untyped]

from lockstep.broker.snapshot_rows import SnapshotRows
from lockstep.broker.store.log.clock_steps import ClockStep, ClockSteps, StampRange
from lockstep.protocol.errors import StoreError
from lockstep.runtime.clock import Clock
from lockstep.runtime.steady_clock import SteadyClock

KIND = "clock"
PREFIX = b"\x95\xa5clock"
"""The first bytes of a clock record's body."""


class ClockReading(NamedTuple):
    """The boot clock and the clock of stamps at one moment."""

    boot_id: str
    boot_ms: int
    now_ms: int
    since: int
    """Log position of the first clock record of this boot."""


class StoreClock:
    """The newest stamp and the steps of one log.

    Recovery calls `record_stamp` and `read_clock_record` for each record, then `start`. A running store calls `now_ms`, and `follow` every
    second.
    """

    def __init__(self, newest_ms: int = 0, steps: Iterable[ClockStep] = (), reading: ClockReading | None = None) -> None:
        self.newest_ms = newest_ms
        self.set_count = 0
        """Number of clock records, read or written here, by which the clock was set."""
        self._steps = ClockSteps(steps)
        self._reading = reading
        """The newest reading in the log or in the snapshot."""
        self._steady: SteadyClock | None = None

    # -- reading the log -------------------------------------------------------------------------

    def record_stamp(self, position: int, stamp_ms: int) -> None:
        """Note the stamp of the next record of the log."""
        if stamp_ms < self.newest_ms:
            self._steps.add_step(ClockStep(position, stamp_ms - self.newest_ms, stamp_ms, position))
        self.newest_ms = stamp_ms

    def read_clock_record(self, position: int, body: bytes) -> bool:
        """Read `body` if it is that of a clock record, and return whether it is. Raise StoreError if it can't be read."""
        if not body.startswith(PREFIX):
            return False
        try:
            _, boot_id, boot_ms, now_ms, by_ms = msgpack.unpackb(body)
            if not (isinstance(boot_id, str) and all(isinstance(value, int) for value in (boot_ms, now_ms, by_ms))):
                raise TypeError("a clock record is [text, text, number, number, number]")
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise StoreError(f"clock record of {len(body)} bytes at log position {position} can't be read: {error}") from error
        self.clock_record_written(position, boot_id, boot_ms, now_ms, by_ms)
        return True

    @property
    def era(self) -> int:
        """Return the log position since which one clock has stamped, in one boot and without a step: 0 if that is the whole log."""
        step = self._steps.kept[-1].position if self._steps.kept else 0
        return step if self._reading is None else max(step, self._reading.since)

    # -- running ---------------------------------------------------------------------------------

    def start(self, clock: Clock, boot_id: str, ahead_ms: int | None = None) -> int:
        """Continue from the newest reading of the log, by the boot clock. Return by how many ms the clock was set in addition.

        If that reading is not of this boot, continue the clock that is `ahead_ms` ahead of the boot clock, if one is given: that of a
        master on another machine. The result is 0, unless a record of the same clock has a later stamp than the clock now: stamps
        continue from that one.
        """
        reading, boot_ms = self._reading, clock.boot_ms()
        if reading is not None and (reading.boot_id != boot_id or reading.boot_ms > boot_ms):
            reading = self._reading = None
        if reading is not None:
            ahead_ms = reading.now_ms - reading.boot_ms
        self._steady = SteadyClock(clock, self.newest_ms, ahead_ms)
        return 0 if ahead_ms is None else max(0, self.newest_ms - (boot_ms + ahead_ms))

    def now_ms(self) -> int:
        """Return the stamp of a record that is written now. It never falls, except after `follow`."""
        assert self._steady is not None, "the store has recovered"
        return self._steady.now_ms()

    def follow(self) -> int:
        """Set the clock if the wall clock differs. Return by how many ms; if not 0, a clock record must be written."""
        assert self._steady is not None, "the store has recovered"
        return self._steady.follow()

    def make_clock_record(self, boot_id: str, by_ms: int) -> tuple[bytes, int, int]:
        """Return (body of a clock record, boot clock, time). Call `clock_record_written` with its position afterwards."""
        assert self._steady is not None, "the store has recovered"
        boot_ms, now_ms = self._steady.reading()
        return msgpack.packb([KIND, boot_id, boot_ms, now_ms, by_ms]), boot_ms, now_ms

    def clock_record_written(self, position: int, boot_id: str, boot_ms: int, now_ms: int, by_ms: int) -> None:
        """Note that a clock record is at `position` of the log."""
        known = self._reading
        since = known.since if known is not None and known.boot_id == boot_id else position
        if by_ms:
            self.set_count += 1
            self._steps.add_step(ClockStep(position, by_ms, now_ms, since))
            self.newest_ms = now_ms
        self.record_stamp(position, now_ms)
        self._reading = ClockReading(boot_id, boot_ms, now_ms, since)

    # -- ages ------------------------------------------------------------------------------------

    @property
    def steps(self) -> list[ClockStep]:
        """Return the steps in the order of the log. Do not change the list."""
        return self._steps.kept

    def true_ms(self, position: int, stamp_ms: int) -> int:
        """Return when the record at `position` was stored, by the current setting of the clock, or a later time if that is not known.

        Records of an earlier boot may have been stamped by a correct clock. They count as stored later if the clock has been set forward
        since. If it has been set back, only those with a later stamp than the clock then showed count as stored earlier.
        """
        return self._steps.true_ms(position, stamp_ms)

    def rising_ranges(self) -> list[StampRange]:
        """Return the ranges of the log in which stamps rise."""
        return self._steps.rising_ranges()

    def forget_before(self, start: int) -> None:
        """Remove the steps before `start`, where the log begins now: no record is left before them."""
        self._steps.forget_before(start)

    # -- the snapshot ----------------------------------------------------------------------------

    def plain(self) -> dict[str, object]:
        """Return the clock's state for a snapshot."""
        reading = self._reading
        if reading is not None and self._steady is not None:
            boot_ms, now_ms = self._steady.reading()
            reading = reading._replace(boot_ms=boot_ms, now_ms=now_ms)
        steps = list(self.steps)
        return {"steps": SnapshotRows(len(steps), lambda: map(list, steps)), "reading": None if reading is None else list(reading)}


def stamps_of(newest_ms: int, plain: object) -> StoreClock:
    """Return the clock that `plain` of a snapshot describes. Raise ValueError, KeyError or TypeError if it is not valid."""
    if not isinstance(plain, dict):
        raise TypeError("the clock of a snapshot is a map")
    steps, reading = [ClockStep(*map(int, row)) for row in plain["steps"]], plain["reading"]
    if reading is None:
        return StoreClock(newest_ms, steps)
    boot_id, *numbers = reading
    return StoreClock(newest_ms, steps, ClockReading(str(boot_id), *map(int, numbers)))
