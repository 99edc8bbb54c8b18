"""D1 and R9 of delayed messages."""

import pytest

from support.concurrent_histories import ConcurrentHistoryBuilder, R
from support.histories import C1, C2, LOG, TERM, B, P
from sweep.checkers.delays import check, possible_duplicates
from sweep.checkers.delivery import check as check_delivery
from sweep.checkers.sends import check as check_sends
from sweep.events.consumers import ConsumerStarted
from sweep.events.sends import DelayedSendWritten
from sweep.events.universe import BrokerOpened, CalmBegan, ClockSet, ProcessEnded, WallClockJumped


def builder(flush: str = "async") -> ConcurrentHistoryBuilder:
    """m0 is sent at 2 with delay level 1 (1 s)."""
    reported = ConcurrentHistoryBuilder(flush=flush).joined()
    return reported.begun(1).delayed(2, b"m0", 1)


@pytest.mark.parametrize(("t", "laws"), [(2.997, ["D1"]), (2.999, []), (3.5, [])])
def test_early_delayed_message_is_a_violation(t: float, laws: list[str]) -> None:
    reported = builder().shared(t, t + 0.1, 0)
    assert reported.read(500, b"m0").broken(check) == laws
    ordered = builder().granted(1, 1).call(t, t + 0.1, 1, 0)
    assert ordered.read(500, b"m0").broken(check) == laws


@pytest.mark.parametrize("rate", [0.98, 1.02])
@pytest.mark.parametrize(("more_s", "laws"), [(-0.01, ["D1"]), (0.01, [])])
def test_delay_is_measured_by_the_boot_clock_of_the_broker(rate: float, more_s: float, laws: list[str]) -> None:
    """60 s of its clock are 61.2 s or 58.8 s of true time."""
    reported = ConcurrentHistoryBuilder().joined().begun(1).add(ClockSet, 1.5, ("B", 0), boot_ms=7_000.0, rate=rate).delayed(2, b"m0", 5)
    due = 2 + 60 / rate + more_s
    assert reported.shared(due, due + 1, 0).read(500, b"m0").broken(check) == laws


@pytest.mark.parametrize(("t", "laws"), [(61.9, ["D1"]), (62.1, [])])
def test_reboot_before_delivery_does_not_change_the_measured_delay(t: float, laws: list[str]) -> None:
    """The broker has not opened its port again: the message was delivered before the reboot."""
    reported = ConcurrentHistoryBuilder().joined().begun(1).add(ClockSet, 1.5, ("B", 0), boot_ms=90_000.0, rate=1.0).delayed(2, b"m0", 5)
    reported.add(ProcessEnded, 61.5, B, how="power").add(ClockSet, 61.6, ("B", 0), boot_ms=10_000.0, rate=1.0)
    assert reported.shared(t, t + 1, 0).read(500, b"m0").broken(check) == laws


@pytest.mark.parametrize("jump_s", [5.0, -5.0])
def test_recent_wall_clock_jump_does_not_excuse_an_early_message(jump_s: float) -> None:
    reported = builder().shared(2.2, 2.3, 0).add(WallClockJumped, 2.1, ("B", 0), jump_s=jump_s)
    assert reported.read(500, b"m0").broken(check) == ["D1"]


@pytest.mark.parametrize("at", [500.0, 800.0])
@pytest.mark.parametrize("jump_s", [5_000.0, -5_000.0, 0.1])
def test_permanent_wall_clock_jump_does_not_excuse_an_early_message(at: float, jump_s: float) -> None:
    """A running broker adopts the new wall clock after five minutes."""
    reported = ConcurrentHistoryBuilder().joined().begun(1).delayed(200, b"m0", 16)
    reported.shared(1_000, 1_000.1, 0).add(WallClockJumped, at, ("B", 0), jump_s=jump_s)
    assert reported.read(5_000, b"m0").broken(check) == ["D1"]


@pytest.mark.parametrize(("started", "how", "laws"), [(2.15, "power", []), (2.05, "power", ["D1"]), (2.15, "kill", ["D1"])])
def test_start_after_a_power_cut_with_a_wrong_wall_clock_excuses_an_early_message(started: float, how: str, laws: list[str]) -> None:
    reported = builder().shared(2.2, 2.3, 0).add(WallClockJumped, 2.1, ("B", 0), jump_s=5.0)
    reported.add(ProcessEnded, 2.02, B, how=how).add(BrokerOpened, started, (B[0], 2), term=TERM + 1)
    assert reported.read(500, b"m0").broken(check) == laws


@pytest.mark.parametrize(("stored_t", "laws"), [(3.0, []), (22.9, []), (23.1, ["D1"]), (3_603.0, ["D1"])])
def test_temporary_wall_clock_jump_does_not_excuse_a_late_message(stored_t: float, laws: list[str]) -> None:
    reported = builder().add(WallClockJumped, 1.9, ("B", 0), jump_s=3_600.0).add(WallClockJumped, 4.0, ("B", 0), jump_s=-3_600.0)
    assert reported.read(5_000, b"m0", stored_t=stored_t).broken(check) == laws


@pytest.mark.parametrize(
    ("how", "wrong_until", "laws"),
    [("", 60.0, ["D1"]), ("kill", 4.0, ["D1"]), ("kill", 60.0, ["D1"]), ("power", 2.6, ["D1"]), ("power", 4.0, []), ("power", 60.0, [])],
)
def test_only_a_boot_with_a_wrong_wall_clock_excuses_a_late_message(how: str, wrong_until: float, laws: list[str]) -> None:
    reported = builder().add(WallClockJumped, 1.9, ("B", 0), jump_s=3_600.0).add(WallClockJumped, wrong_until, ("B", 0), jump_s=-3_600.0)
    if how:
        opened = 40.0 if wrong_until == 2.6 else 3.0
        reported.add(ProcessEnded, 2.5, B, how=how).add(BrokerOpened, opened, (B[0], 2), term=TERM + 1)
    assert reported.read(5_000, b"m0", stored_t=101.0).broken(check) == laws


@pytest.mark.parametrize(("stored_t", "laws"), [(26.9, ["D1"]), (27.0, []), (46.9, []), (47.1, ["D1"])])
def test_lateness_of_a_repeated_send_counts_from_the_last_write_that_can_have_stored_it(stored_t: float, laws: list[str]) -> None:
    """m0 has a delay of 1 s. It was written at 2, to a disconnected broker, and at 26. A message before 27 is from the first write."""
    reported = builder().add(DelayedSendWritten, 26, P, queue=LOG, body=b"m0", level=1, request=9_000)
    assert reported.read(500, b"m0", stored_t=stored_t).broken(check) == laws


def test_time_without_a_running_broker_does_not_count_as_late() -> None:
    reported = builder().add(ProcessEnded, 2.5, B, how="kill").add(BrokerOpened, 100, (B[0], 2), term=TERM + 1)
    assert reported.read(5_000, b"m0", stored_t=101.0).broken(check) == []


@pytest.mark.parametrize("stored_t", [99.9, 101.0])
def test_reset_boot_clock_excuses_lateness_from_before_the_reboot(stored_t: float) -> None:
    reported = builder().add(ClockSet, 1.5, ("B", 0), boot_ms=7_000.0, rate=1.0)
    reported.add(ProcessEnded, 2.5, B, how="power").add(ClockSet, 99.0, ("B", 0), boot_ms=90_000_000.0, rate=1.0)
    reported.add(BrokerOpened, 100, (B[0], 2), term=TERM + 1)
    assert reported.read(5_000, b"m0", stored_t=stored_t).broken(check) == []


def test_clock_jump_of_another_machine_excuses_nothing() -> None:
    assert builder().shared(2.2, 2.3, 0).add(WallClockJumped, 2.1, ("P", 0), jump_s=5.0).read(500, b"m0").broken(check) == ["D1"]


@pytest.mark.parametrize(("t", "level", "laws"), [(12.9, 0, ["D1"]), (13.0, 0, []), (3.9, 1, ["D1"]), (4.0, 1, []), (7.9, 2, ["D1"])])
def test_retry_before_its_delay_level_is_a_violation(t: float, level: int, laws: list[str]) -> None:
    """Sent back at 3. By its retry count the first retry has level 3 (10 s)."""
    reported = ConcurrentHistoryBuilder().joined().begun(1).shared(2, 2.5, 0, done=0).back(3, 0, level=level).begun(3.5, queue=R)
    assert reported.shared(t, t + 0.1, 0, queue=R, retries=1, bodies=(b"m0",)).broken(check) == laws


def test_lost_delayed_message_is_a_violation() -> None:
    assert builder().read(500, b"m0").broken(check) == []
    assert builder().read(500, b"m1").broken(check) == ["D1"]


def test_delayed_message_may_be_lost_only_by_a_power_cut_soon_after_under_async_flush() -> None:
    assert builder().add(ProcessEnded, 2.3, B, how="power").read(500, b"m1").broken(check) == []
    assert builder().add(ProcessEnded, 2.3, B, how="kill").read(500, b"m1").broken(check) == ["D1"]
    assert builder().add(ProcessEnded, 9.3, B, how="power").read(500, b"m1").broken(check) == ["D1"]
    assert builder("sync").add(ProcessEnded, 2.3, B, how="power").read(500, b"m1").broken(check) == ["D1"]


def test_more_copies_of_a_delayed_message_than_writes_are_a_violation() -> None:
    assert builder().read(500, b"m0", b"m0").broken(check) == ["R9"]
    twice = ConcurrentHistoryBuilder().joined().delayed(2, b"m0", 1, writes=2)
    twice.read(500, b"m0", b"m0")
    assert twice.broken(check) == []
    assert possible_duplicates(twice.history()) == 1
    assert builder().add(BrokerOpened, 20, (B[0], 2), term=TERM + 1).read(500, b"m0", b"m0").broken(check) == []


def test_duplicate_of_a_delayed_message_is_not_a_violation_of_the_send_laws() -> None:
    """It is stored twice, which is a violation for a keyed send only."""
    twice = ConcurrentHistoryBuilder().joined().delayed(2, b"m0", 1, writes=2)
    assert twice.read(500, b"m0", b"m0").broken(check_sends) == []


def test_ordered_group_must_handle_a_delayed_message() -> None:
    reported = builder().add(ConsumerStarted, 0.5, C2).granted(1, 1).add(CalmBegan, 5, ("", 0)).read(500, b"m0").committed(9, 1, 1)
    assert reported.broken(check_delivery) == ["O5"]
    assert reported.call(4, 4.1, 1, 0, where=C1).broken(check_delivery) == []
