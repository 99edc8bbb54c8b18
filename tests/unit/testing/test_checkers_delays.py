"""D1 and R9 of delayed messages."""

import pytest

from support.shared_stories import R, SharedStory
from support.stories import C1, C2, LOG, TERM, B, P
from sweep.checkers.delays import check, possible_duplicates
from sweep.checkers.delivery import check as check_delivery
from sweep.checkers.sends import check as check_sends
from sweep.events import BrokerOpened, CalmBegan, ClockSet, ConsumerStarted, DelayedSendWritten, ProcessEnded, WallClockJumped


def story(flush: str = "async") -> SharedStory:
    """m0 waits for level 1 (1 s) from 2 on."""
    told = SharedStory(flush=flush).joined()
    return told.begun(1).delayed(2, b"m0", 1)


@pytest.mark.parametrize(("t", "laws"), [(2.997, ["D1"]), (2.999, []), (3.5, [])])
def test_a_delayed_message_is_never_early(t: float, laws: list[str]) -> None:
    told = story().shared(t, t + 0.1, 0)
    assert told.read(500, b"m0").broken(check) == laws
    ordered = story().granted(1, 1).call(t, t + 0.1, 1, 0)
    assert ordered.read(500, b"m0").broken(check) == laws


@pytest.mark.parametrize("rate", [0.98, 1.02])
@pytest.mark.parametrize(("more_s", "laws"), [(-0.01, ["D1"]), (0.01, [])])
def test_a_delay_is_counted_by_the_boot_clock_of_the_broker(rate: float, more_s: float, laws: list[str]) -> None:
    """Of 60 s it counts 61.2 s or 58.8 s of true time."""
    told = SharedStory().joined().begun(1).add(ClockSet, 1.5, ("B", 0), boot_ms=7_000.0, rate=rate).delayed(2, b"m0", 5)
    due = 2 + 60 / rate + more_s
    assert told.shared(due, due + 1, 0).read(500, b"m0").broken(check) == laws


@pytest.mark.parametrize(("t", "laws"), [(61.9, ["D1"]), (62.1, [])])
def test_a_machine_that_boots_again_before_the_message_is_given_sets_its_boot_clock_only(t: float, laws: list[str]) -> None:
    """Its broker has not opened its port again: the message was delivered before the boot, and its consumer had it."""
    told = SharedStory().joined().begun(1).add(ClockSet, 1.5, ("B", 0), boot_ms=90_000.0, rate=1.0).delayed(2, b"m0", 5)
    told.add(ProcessEnded, 61.5, B, how="power").add(ClockSet, 61.6, ("B", 0), boot_ms=10_000.0, rate=1.0)
    assert told.shared(t, t + 1, 0).read(500, b"m0").broken(check) == laws


@pytest.mark.parametrize("jump_s", [5.0, -5.0])
def test_a_wall_clock_that_was_set_just_now_makes_nothing_due_sooner(jump_s: float) -> None:
    told = story().shared(2.2, 2.3, 0).add(WallClockJumped, 2.1, ("B", 0), jump_s=jump_s)
    assert told.read(500, b"m0").broken(check) == ["D1"]


@pytest.mark.parametrize("at", [500.0, 800.0])
@pytest.mark.parametrize("jump_s", [5_000.0, -5_000.0, 0.1])
def test_one_that_is_set_for_good_makes_nothing_due_sooner(at: float, jump_s: float) -> None:
    """A broker that runs follows it after five minutes."""
    told = SharedStory().joined().begun(1).delayed(200, b"m0", 16)
    told.shared(1_000, 1_000.1, 0).add(WallClockJumped, at, ("B", 0), jump_s=jump_s)
    assert told.read(5_000, b"m0").broken(check) == ["D1"]


@pytest.mark.parametrize(("started", "how", "laws"), [(2.15, "power", []), (2.05, "power", ["D1"]), (2.15, "kill", ["D1"])])
def test_a_start_after_a_power_cut_believes_the_wall_clock(started: float, how: str, laws: list[str]) -> None:
    told = story().shared(2.2, 2.3, 0).add(WallClockJumped, 2.1, ("B", 0), jump_s=5.0)
    told.add(ProcessEnded, 2.02, B, how=how).add(BrokerOpened, started, (B[0], 2), term=TERM + 1)
    assert told.read(500, b"m0").broken(check) == laws


@pytest.mark.parametrize(("stored_t", "laws"), [(3.0, []), (22.9, []), (23.1, ["D1"]), (3_603.0, ["D1"])])
def test_a_delayed_message_is_never_late_although_a_clock_was_wrong_for_seconds(stored_t: float, laws: list[str]) -> None:
    told = story().add(WallClockJumped, 1.9, ("B", 0), jump_s=3_600.0).add(WallClockJumped, 4.0, ("B", 0), jump_s=-3_600.0)
    assert told.read(5_000, b"m0", stored_t=stored_t).broken(check) == laws


@pytest.mark.parametrize(
    ("how", "wrong_until", "laws"),
    [("", 60.0, ["D1"]), ("kill", 4.0, ["D1"]), ("kill", 60.0, ["D1"]), ("power", 2.6, ["D1"]), ("power", 4.0, []), ("power", 60.0, [])],
)
def test_late_is_what_no_boot_with_a_wrong_wall_clock_excuses(how: str, wrong_until: float, laws: list[str]) -> None:
    told = story().add(WallClockJumped, 1.9, ("B", 0), jump_s=3_600.0).add(WallClockJumped, wrong_until, ("B", 0), jump_s=-3_600.0)
    if how:
        opened = 40.0 if wrong_until == 2.6 else 3.0
        told.add(ProcessEnded, 2.5, B, how=how).add(BrokerOpened, opened, (B[0], 2), term=TERM + 1)
    assert told.read(5_000, b"m0", stored_t=101.0).broken(check) == laws


@pytest.mark.parametrize(("stored_t", "laws"), [(26.9, ["D1"]), (27.0, []), (46.9, []), (47.1, ["D1"])])
def test_a_send_that_was_written_again_is_late_by_the_last_writing_that_can_have_stored_it(stored_t: float, laws: list[str]) -> None:
    """m0 waits for 1 s. It was written at 2, for a broker that was cut off, and at 26: what arrives before 27 is of the first writing."""
    told = story().add(DelayedSendWritten, 26, P, queue=LOG, body=b"m0", level=1, request=9_000)
    assert told.read(500, b"m0", stored_t=stored_t).broken(check) == laws


def test_the_time_in_which_no_broker_ran_is_not_late() -> None:
    told = story().add(ProcessEnded, 2.5, B, how="kill").add(BrokerOpened, 100, (B[0], 2), term=TERM + 1)
    assert told.read(5_000, b"m0", stored_t=101.0).broken(check) == []


@pytest.mark.parametrize("stored_t", [99.9, 101.0])
def test_a_boot_clock_that_begins_again_says_nothing_of_the_time_before_also_before_the_port_is_open(stored_t: float) -> None:
    told = story().add(ClockSet, 1.5, ("B", 0), boot_ms=7_000.0, rate=1.0)
    told.add(ProcessEnded, 2.5, B, how="power").add(ClockSet, 99.0, ("B", 0), boot_ms=90_000_000.0, rate=1.0)
    told.add(BrokerOpened, 100, (B[0], 2), term=TERM + 1)
    assert told.read(5_000, b"m0", stored_t=stored_t).broken(check) == []


def test_another_machines_clock_means_nothing() -> None:
    assert story().shared(2.2, 2.3, 0).add(WallClockJumped, 2.1, ("P", 0), jump_s=5.0).read(500, b"m0").broken(check) == ["D1"]


@pytest.mark.parametrize(("t", "level", "laws"), [(12.9, 0, ["D1"]), (13.0, 0, []), (3.9, 1, ["D1"]), (4.0, 1, []), (7.9, 2, ["D1"])])
def test_a_retry_waits_for_its_level(t: float, level: int, laws: list[str]) -> None:
    """Sent back at 3: by its number of tries the first one waits for level 3, 10 s."""
    told = SharedStory().joined().begun(1).shared(2, 2.5, 0, done=0).back(3, 0, level=level).begun(3.5, queue=R)
    assert told.shared(t, t + 0.1, 0, queue=R, retries=1, bodies=(b"m0",)).broken(check) == laws


def test_what_was_acknowledged_is_there_at_the_end() -> None:
    assert story().read(500, b"m0").broken(check) == []
    assert story().read(500, b"m1").broken(check) == ["D1"]


def test_a_power_cut_may_take_it_under_async_flush_soon_after_and_never_else() -> None:
    assert story().add(ProcessEnded, 2.3, B, how="power").read(500, b"m1").broken(check) == []
    assert story().add(ProcessEnded, 2.3, B, how="kill").read(500, b"m1").broken(check) == ["D1"]
    assert story().add(ProcessEnded, 9.3, B, how="power").read(500, b"m1").broken(check) == ["D1"]
    assert story("sync").add(ProcessEnded, 2.3, B, how="power").read(500, b"m1").broken(check) == ["D1"]


def test_it_is_there_as_often_as_it_was_written_and_that_is_counted() -> None:
    assert story().read(500, b"m0", b"m0").broken(check) == ["R9"]
    twice = SharedStory().joined().delayed(2, b"m0", 1, writes=2)
    twice.read(500, b"m0", b"m0")
    assert twice.broken(check) == []
    assert possible_duplicates(twice.history()) == 1
    assert story().add(BrokerOpened, 20, (B[0], 2), term=TERM + 1).read(500, b"m0", b"m0").broken(check) == []


def test_nothing_else_is_asked_of_its_places() -> None:
    """It is stored twice, which a keyed send's message must not be; and it was sent."""
    twice = SharedStory().joined().delayed(2, b"m0", 1, writes=2)
    assert twice.read(500, b"m0", b"m0").broken(check_sends) == []


def test_an_ordered_group_has_to_do_it_too() -> None:
    told = story().add(ConsumerStarted, 0.5, C2).granted(1, 1).add(CalmBegan, 5, ("", 0)).read(500, b"m0").committed(9, 1, 1)
    assert told.broken(check_delivery) == ["O5"]
    assert told.call(4, 4.1, 1, 0, where=C1).broken(check_delivery) == []
