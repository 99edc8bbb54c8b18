"""D1 of retries."""

from support.concurrent_histories import ConcurrentHistoryBuilder, R
from support.histories import assert_faults
from sweep.checkers.delays import check
from sweep.events.universe import ClockSet, WallClockJumped

BROKER = ("B", 0)
Builder = ConcurrentHistoryBuilder
BEGUN = Builder().joined().begun(1)


def sent_back(builder: Builder = BEGUN, t: float = 2, level: int = 1) -> Builder:
    """m0 is sent back at t. Level 1 is a delay of 1 s; by its retry count the first retry has level 3 (10 s)."""
    return builder.shared(t - 0.6, t - 0.5, 0, done=0).back(t, 0, level=level)


def called(builder: Builder, t: float) -> Builder:
    """Call the listener with the retry at t."""
    return builder.shared(t, t + 0.1, 0, queue=R, retries=1, bodies=(b"m0",))


def copied(builder: Builder, stored_t: float) -> Builder:
    """Add the copy that the final reading found in the topic of retries."""
    return builder.copy(b"m0", 1, queue=R, stored_t=stored_t)


def jumped(builder: Builder, t: float, jump_s: float, until: float | None = None) -> Builder:
    """Set the broker's wall clock, and set it back at `until`."""
    builder = builder.add(WallClockJumped, t, BROKER, jump_s=jump_s)
    return builder if until is None else builder.add(WallClockJumped, until, BROKER, jump_s=-jump_s)


def test_early_retry_is_a_violation() -> None:
    def again(t: float, level: int) -> Builder:
        return called(sent_back(level=level), t)

    assert_faults(check, {
        "by its count, before": (again(11.9, 0), "D1"), "by its count, after": (again(12.0, 0), ""),
        "by its level, before": (again(2.997, 1), "D1"), "by its level, after": (again(2.999, 1), ""),
        "by another level": (again(6.9, 2), "D1"), "dead-lettered": (again(2.1, -1), ""),
        "sent back twice": (called(sent_back(level=1).back(2.9, 0, level=1), 3.0), ""),
    })  # fmt: skip


def test_delay_is_measured_by_the_boot_clock_of_the_broker() -> None:
    """60 s of its clock are 61.2 s or 58.8 s of true time. A reboot changes nothing before the broker has opened its port again."""

    def ran(rate: float, more_s: float) -> Builder:
        return called(sent_back(BEGUN.add(ClockSet, 1.1, BROKER, boot_ms=7_000.0, rate=rate), level=5), 2 + 60 / rate + more_s)

    rebooted = sent_back(BEGUN.add(ClockSet, 1.1, BROKER, boot_ms=90_000.0, rate=1.0), level=5).killed(61.5, how="power")
    rebooted = rebooted.add(ClockSet, 61.6, BROKER, boot_ms=10_000.0, rate=1.0)
    rows = {f"{rate}, {more_s} s": (ran(rate, more_s), laws) for rate in (0.98, 1.02) for more_s, laws in ((-0.01, "D1"), (0.01, ""))}
    assert_faults(check, {**rows, "reboot, before": (called(rebooted, 61.9), "D1"), "reboot, after": (called(rebooted, 62.1), "")})


def test_only_a_start_after_a_power_cut_with_a_wrong_wall_clock_excuses_an_early_retry() -> None:
    """Of a permanent jump a running broker adopts the new wall clock after five minutes."""

    def started(t: float, how: str) -> Builder:
        return called(jumped(sent_back(), 2.1, 5.0).killed(2.02, how=how).opened(t), 2.2)

    permanent = called(sent_back(t=200, level=16), 1_000)
    assert_faults(check, {
        "forward": (called(jumped(sent_back(), 2.1, 5.0), 2.2), "D1"), "back": (called(jumped(sent_back(), 2.1, -5.0), 2.2), "D1"),
        "another machine": (called(sent_back().add(WallClockJumped, 2.1, ("P", 0), jump_s=5.0), 2.2), "D1"),
        "power cut": (started(2.15, "power"), ""), "opened before the jump": (started(2.05, "power"), "D1"),
        "kill": (started(2.15, "kill"), "D1"), "permanent": (jumped(permanent, 500, 5_000.0), "D1"),
    })  # fmt: skip


def test_temporary_wall_clock_jump_does_not_excuse_a_late_retry() -> None:
    """Only a boot with a clock that is wrong for longer does."""

    def stored(t: float) -> Builder:
        return copied(jumped(sent_back(), 1.9, 3_600.0, 4.0), t)

    def wrong(until: float, how: str = "", opened: float = 3.0) -> Builder:
        builder = jumped(sent_back(), 1.9, 3_600.0, until)
        return copied(builder.killed(2.5, how=how).opened(opened) if how else builder, 101.0)

    assert_faults(check, {
        "in time": (stored(3.0), ""), "at the limit": (stored(22.9), ""), "after it": (stored(23.1), "D1"),
        "an hour": (stored(3_603.0), "D1"),
        "no start": (wrong(60.0), "D1"), "kill": (wrong(4.0, "kill"), "D1"), "kill, long": (wrong(60.0, "kill"), "D1"),
        "right at the boot": (wrong(2.6, "power", 40.0), "D1"), "power": (wrong(4.0, "power"), ""), "long": (wrong(60.0, "power"), ""),
    })  # fmt: skip


def test_time_without_a_running_broker_does_not_count_as_late() -> None:
    """A copy of a repeated send back is late if it is late for each request that can have stored it: at 2, to a disconnected broker, and
    at 26."""

    def repeated(stored_t: float) -> Builder:
        return copied(sent_back().back(26, 0, level=1), stored_t)

    def rebooted(stored_t: float) -> Builder:
        builder = sent_back(BEGUN.add(ClockSet, 1.1, BROKER, boot_ms=7_000.0, rate=1.0)).killed(2.5, how="power")
        return copied(builder.add(ClockSet, 99.0, BROKER, boot_ms=90_000_000.0, rate=1.0).opened(100), stored_t)

    assert_faults(check, {
        "by the first request": (repeated(25.9), "D1"), "by the second": (repeated(26.2), ""), "in time": (repeated(46.9), ""),
        "late for both": (repeated(47.1), "D1"),
        "down until 100": (copied(sent_back().killed(2.5).opened(100), 101.0), ""),
        "a reset boot clock, before the start": (rebooted(99.9), ""), "and after it": (rebooted(101.0), ""),
        "by the one with the longer delay": (copied(sent_back(level=5).back(26, 0, level=1), 62.1), ""),
        "too late for it": (copied(sent_back(level=5).back(26, 0, level=1), 82.1), "D1"),
        "dead letter": (sent_back(level=-1).copy(b"m0", 1, stored_t=101.0), ""),
    })  # fmt: skip
