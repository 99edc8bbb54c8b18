"""D1 and R9 of delayed messages."""

from support.concurrent_histories import ConcurrentHistoryBuilder, M, R
from support.histories import C2, LOG, P, assert_faults
from sweep.checkers.delays import check, possible_duplicates
from sweep.checkers.delivery import check as check_delivery
from sweep.checkers.sends import check as check_sends
from sweep.events.consumers import ConsumerStarted
from sweep.events.sends import DelayedSendWritten
from sweep.events.universe import ClockSet, WallClockJumped

BROKER = ("B", 0)
Builder = ConcurrentHistoryBuilder
BEGUN = Builder().joined().begun(1)


def delayed(flush: str = "async", *, writes: int = 1) -> Builder:
    """m0 is sent at 2 with delay level 1 (1 s)."""
    return Builder(flush=flush).joined().begun(1).delayed(2, b"m0", 1, writes=writes)


def jumped(builder: Builder, t: float, jump_s: float, until: float | None = None) -> Builder:
    """Set the broker's wall clock, and set it back at `until`."""
    builder = builder.add(WallClockJumped, t, BROKER, jump_s=jump_s)
    return builder if until is None else builder.add(WallClockJumped, until, BROKER, jump_s=-jump_s)


def called(builder: Builder, t: float) -> Builder:
    return builder.shared(t, t + 0.1, 0).read(5_000, b"m0")


def test_early_delayed_message_is_a_violation() -> None:
    ordered = delayed().granted(1, 1).read(500, b"m0")

    def retried(t: float, level: int) -> Builder:
        """Sent back at 3. By its retry count the first retry has level 3 (10 s)."""
        builder = BEGUN.shared(2, 2.5, 0, done=0).back(3, 0, level=level).begun(3.5, queue=R)
        return builder.shared(t, t + 0.1, 0, queue=R, retries=1, bodies=(b"m0",))

    assert_faults(check, {
        "before": (called(delayed(), 2.997), "D1"), "after": (called(delayed(), 2.999), ""), "later": (called(delayed(), 3.5), ""),
        "ordered, before": (ordered.call(2.997, 3, 1, 0), "D1"), "ordered, after": (ordered.call(2.999, 3, 1, 0), ""),
        "retry by its count, before": (retried(12.9, 0), "D1"), "retry by its count, after": (retried(13.0, 0), ""),
        "retry by its level, before": (retried(3.9, 1), "D1"), "retry by its level, after": (retried(4.0, 1), ""),
        "retry by another level": (retried(7.9, 2), "D1"),
    })  # fmt: skip


def test_delay_is_measured_by_the_boot_clock_of_the_broker() -> None:
    """60 s of its clock are 61.2 s or 58.8 s of true time. A reboot changes nothing before the broker has opened its port again."""

    def ran(rate: float, more_s: float) -> Builder:
        return called(BEGUN.add(ClockSet, 1.5, BROKER, boot_ms=7_000.0, rate=rate).delayed(2, b"m0", 5), 2 + 60 / rate + more_s)

    rebooted = BEGUN.add(ClockSet, 1.5, BROKER, boot_ms=90_000.0, rate=1.0).delayed(2, b"m0", 5).killed(61.5, how="power")
    rebooted = rebooted.add(ClockSet, 61.6, BROKER, boot_ms=10_000.0, rate=1.0)
    rows = {f"{rate}, {more_s} s": (ran(rate, more_s), laws) for rate in (0.98, 1.02) for more_s, laws in ((-0.01, "D1"), (0.01, ""))}
    assert_faults(check, {**rows, "reboot, before": (called(rebooted, 61.9), "D1"), "reboot, after": (called(rebooted, 62.1), "")})


def test_only_a_start_after_a_power_cut_with_a_wrong_wall_clock_excuses_an_early_message() -> None:
    """Of a permanent jump a running broker adopts the new wall clock after five minutes."""

    def started(t: float, how: str) -> Builder:
        return called(jumped(delayed(), 2.1, 5.0).killed(2.02, how=how).opened(t), 2.2)

    permanent = called(BEGUN.delayed(200, b"m0", 16), 1_000)
    assert_faults(check, {
        "forward": (called(jumped(delayed(), 2.1, 5.0), 2.2), "D1"), "back": (called(jumped(delayed(), 2.1, -5.0), 2.2), "D1"),
        "another machine": (called(delayed().add(WallClockJumped, 2.1, ("P", 0), jump_s=5.0), 2.2), "D1"),
        "power cut": (started(2.15, "power"), ""), "opened before the jump": (started(2.05, "power"), "D1"),
        "kill": (started(2.15, "kill"), "D1"), "permanent": (jumped(permanent, 500, 5_000.0), "D1"),
    })  # fmt: skip


def test_temporary_wall_clock_jump_does_not_excuse_a_late_message() -> None:
    """Only a boot with a clock that is wrong for longer does."""

    def stored(t: float) -> Builder:
        return jumped(delayed(), 1.9, 3_600.0, 4.0).read(5_000, b"m0", stored_t=t)

    def wrong(until: float, how: str = "", opened: float = 3.0) -> Builder:
        builder = jumped(delayed(), 1.9, 3_600.0, until)
        return (builder.killed(2.5, how=how).opened(opened) if how else builder).read(5_000, b"m0", stored_t=101.0)

    assert_faults(check, {
        "in time": (stored(3.0), ""), "at the limit": (stored(22.9), ""), "after it": (stored(23.1), "D1"),
        "an hour": (stored(3_603.0), "D1"),
        "no start": (wrong(60.0), "D1"), "kill": (wrong(4.0, "kill"), "D1"), "kill, long": (wrong(60.0, "kill"), "D1"),
        "right at the boot": (wrong(2.6, "power", 40.0), "D1"), "power": (wrong(4.0, "power"), ""), "long": (wrong(60.0, "power"), ""),
    })  # fmt: skip


def test_time_without_a_running_broker_does_not_count_as_late() -> None:
    """The lateness of a repeated send counts from the last write that can have stored it: at 2, to a disconnected broker, and at 26."""

    def repeated(stored_t: float) -> Builder:
        builder = delayed().add(DelayedSendWritten, 26, P, queue=LOG, body=b"m0", level=1, request=9_000)
        return builder.read(500, b"m0", stored_t=stored_t)

    def rebooted(stored_t: float) -> Builder:
        builder = delayed().add(ClockSet, 1.5, BROKER, boot_ms=7_000.0, rate=1.0).killed(2.5, how="power")
        return builder.add(ClockSet, 99.0, BROKER, boot_ms=90_000_000.0, rate=1.0).opened(100).read(5_000, b"m0", stored_t=stored_t)

    assert_faults(check, {
        "by the first write": (repeated(26.9), "D1"), "by the second": (repeated(27.0), ""), "in time": (repeated(46.9), ""),
        "late for both": (repeated(47.1), "D1"),
        "down until 100": (delayed().killed(2.5).opened(100).read(5_000, b"m0", stored_t=101.0), ""),
        "a reset boot clock, before the start": (rebooted(99.9), ""), "and after it": (rebooted(101.0), ""),
    })  # fmt: skip


def test_delayed_message_may_be_lost_only_by_a_power_cut_soon_after_under_async_flush() -> None:
    def lost(t: float, how: str = "power", flush: str = "async") -> Builder:
        return delayed(flush).killed(t, how=how).read(500, b"m1")

    assert_faults(check, {
        "there": (delayed().read(500, b"m0"), ""), "lost": (delayed().read(500, b"m1"), "D1"), "power cut": (lost(2.3), ""),
        "kill": (lost(2.3, "kill"), "D1"), "later": (lost(9.3), "D1"), "sync": (lost(2.3, flush="sync"), "D1"),
    })  # fmt: skip


def test_more_copies_of_a_delayed_message_than_writes_are_a_violation() -> None:
    """But not of the laws of sends: those hold for a keyed send. An ordered group must handle the message."""
    committed = delayed().add(ConsumerStarted, 0.5, C2).granted(1, 1).calm(5).read(500, b"m0").committed(9, 1, 1)

    def twice(writes: int = 1) -> Builder:
        return delayed(writes=writes).read(500, b"m0", b"m0")

    assert_faults(check, {"written once": (twice(), "R9"), "written twice": (twice(2), ""), "and a start": (twice().opened(20), "R9")})
    elsewhere = delayed().shared(4, 4.1, 0, queue=M._replace(broker="broker-b")).read(500, b"m0")
    assert_faults(check, {"given by a broker to which it was not written": (elsewhere, "R9")})
    assert_faults(check_sends, {"written twice": (twice(2), "")})
    assert possible_duplicates(twice(2).history()) == 1
    assert_faults(check_delivery, {"not called": (committed, "O5"), "called": (committed.call(4, 4.1, 1, 0), "")})
