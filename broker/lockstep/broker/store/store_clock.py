"""Store times: the stamp of the next record, and what the stamps of older records mean after the clock was set.

Store times go on with the boot clock, but for steps to the wall clock (runtime/steady_clock.py): then the clock is set, forward or back.
How long ago a record was stored is counted by the boot clock, so that each step is known:

- A *clock record* is written into the log at each start and at each step, before any record that is stamped by the clock as it is then.
  It holds the boot id, the boot clock, the time here, and by how much the clock was set.
- A record with a lower stamp than the one before it is a step as well: in logs of older versions, which have no clock records.

    clock record = body of a state record: msgpack ["clock", boot id, boot clock in ms, time here in ms, set by so many ms]
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgpack  # type: ignore[import-untyped]

from lockstep.broker.snapshot_rows import SnapshotRows
from lockstep.broker.store.clock_steps import ClockStep, ClockSteps, StampRange
from lockstep.protocol.errors import StoreError
from lockstep.runtime.clock import Clock
from lockstep.runtime.steady_clock import SteadyClock

KIND = "clock"
PREFIX = b"\x95\xa5clock"
"""How the body of a clock record begins."""


class ClockReading(NamedTuple):
    """The boot clock and the clock of stamps at one moment."""

    boot_id: str
    boot_ms: int
    now_ms: int
    since: int
    """Log position of the first clock record of this boot."""


class StoreClock:
    """The newest stamp and the steps of one log.

    Recovery calls `seen` and `read` for each record, then `start`; a running store calls `now_ms`, and `follow` every second.
    """

    def __init__(self, newest_ms: int = 0, steps: Iterable[ClockStep] = (), reading: ClockReading | None = None) -> None:
        self.newest_ms = newest_ms
        self.set_count = 0
        """How many clock records say that the clock was set, of those that were read or written here."""
        self._steps = ClockSteps(steps)
        self._reading = reading
        """The newest one that is in the log or in the snapshot."""
        self._steady: SteadyClock | None = None

    # -- reading the log -------------------------------------------------------------------------

    def seen(self, position: int, stamp_ms: int) -> None:
        """The next record of the log has this stamp."""
        if stamp_ms < self.newest_ms:
            self._steps.add(ClockStep(position, stamp_ms - self.newest_ms, stamp_ms, position))
        self.newest_ms = stamp_ms

    def read(self, position: int, body: bytes) -> bool:
        """Whether `body` is that of a clock record, which is taken in then. StoreError when it can't be read."""
        if not body.startswith(PREFIX):
            return False
        try:
            _, boot_id, boot_ms, now_ms, by_ms = msgpack.unpackb(body)
            if not (isinstance(boot_id, str) and all(isinstance(value, int) for value in (boot_ms, now_ms, by_ms))):
                raise TypeError("a clock record is [text, text, number, number, number]")
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise StoreError(f"clock record of {len(body)} bytes at log position {position} can't be read: {error}") from error
        self.recorded(position, boot_id, boot_ms, now_ms, by_ms)
        return True

    # -- running ---------------------------------------------------------------------------------

    def start(self, clock: Clock, boot_id: str) -> int:
        """The log is read: stamps go on from its newest reading, by the boot clock. Returns by how many ms the clock was set beside that.

        That is not 0 only where a record of the same boot has a later stamp than the clock shows now: stamps go on from that one.
        """
        reading, boot_ms = self._reading, clock.boot_ms()
        if reading is not None and (reading.boot_id != boot_id or reading.boot_ms > boot_ms):
            reading = self._reading = None
        self._steady = SteadyClock(clock, self.newest_ms, None if reading is None else (reading.boot_ms, reading.now_ms))
        return 0 if reading is None else max(0, self.newest_ms - (reading.now_ms + boot_ms - reading.boot_ms))

    def now_ms(self) -> int:
        """The stamp of a record that is written now. Not less than the one before, but after `follow`."""
        assert self._steady is not None, "the store has recovered"
        return self._steady.now_ms()

    def follow(self) -> int:
        """Sets the clock where the wall clock is elsewhere. Returns by how many ms; a clock record has to follow then."""
        assert self._steady is not None, "the store has recovered"
        return self._steady.follow()

    def record(self, boot_id: str, by_ms: int) -> tuple[bytes, int, int]:
        """(body of a clock record, boot clock, time): then `recorded` with its position."""
        assert self._steady is not None, "the store has recovered"
        boot_ms, now_ms = self._steady.reading()
        return msgpack.packb([KIND, boot_id, boot_ms, now_ms, by_ms]), boot_ms, now_ms

    def recorded(self, position: int, boot_id: str, boot_ms: int, now_ms: int, by_ms: int) -> None:
        """A clock record is at `position` of the log."""
        known = self._reading
        since = known.since if known is not None and known.boot_id == boot_id else position
        if by_ms:
            self.set_count += 1
            self._steps.add(ClockStep(position, by_ms, now_ms, since))
            self.newest_ms = now_ms
        self.seen(position, now_ms)
        self._reading = ClockReading(boot_id, boot_ms, now_ms, since)

    # -- ages ------------------------------------------------------------------------------------

    @property
    def steps(self) -> list[ClockStep]:
        """In the order of the log; not for changing."""
        return self._steps.kept

    def true_ms(self, position: int, stamp_ms: int) -> int:
        """When the record at `position` was stored, by the clock as it is set now; or later where that is not known.

        Records of an earlier boot may have been stamped by a clock that was right. They count as stored later where the clock has been set
        forward since. Where it has been set back, only those with a later stamp than the clock then showed count as stored earlier.
        """
        return self._steps.true_ms(position, stamp_ms)

    def stretches(self) -> list[StampRange]:
        """In which stamps rise."""
        return self._steps.stretches()

    def forget(self, start: int) -> None:
        """The log begins at `start`: steps before it concern no record."""
        self._steps.forget(start)

    # -- the snapshot ----------------------------------------------------------------------------

    def plain(self) -> dict[str, object]:
        """For a snapshot of now."""
        reading = self._reading
        if reading is not None and self._steady is not None:
            boot_ms, now_ms = self._steady.reading()
            reading = reading._replace(boot_ms=boot_ms, now_ms=now_ms)
        steps = list(self.steps)
        return {"steps": SnapshotRows(len(steps), lambda: map(list, steps)), "reading": None if reading is None else list(reading)}


def stamps_of(newest_ms: int, plain: object) -> StoreClock:
    """From `plain` of a snapshot. Raises ValueError and TypeError where it is no such value.

    Older snapshots have a list of [position, stamp before, stamp after] of each step back.
    """
    if isinstance(plain, dict):
        steps, reading = [ClockStep(*map(int, row)) for row in plain["steps"]], plain["reading"]
        if reading is None:
            return StoreClock(newest_ms, steps)
        boot_id, *numbers = reading
        return StoreClock(newest_ms, steps, ClockReading(str(boot_id), *map(int, numbers)))
    if isinstance(plain, list):
        rows = [tuple(map(int, row)) for row in plain]
        return StoreClock(newest_ms, [ClockStep(position, after - before, after, position) for position, before, after in rows])
    raise TypeError("the clock of a snapshot is a map")
