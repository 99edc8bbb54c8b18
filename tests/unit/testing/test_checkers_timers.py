"""D1, R9, W1 and W2 of messages that wait for any delay or until a time of day."""

from typing import Any

import pytest

from support.histories import LOG, P, assert_faults
from support.timer_histories import TimerHistoryBuilder, time_of_day_ms
from sweep.checkers.delivery import check as check_delivery
from sweep.checkers.messages import Messages
from sweep.checkers.sends import check as check_sends
from sweep.checkers.timers import check, possible_duplicates
from sweep.events.consumers import ConsumerStarted
from sweep.events.members import MemberCallBegan
from sweep.events.readers import PollReturned
from sweep.events.sends import FrameResponded, LayoutSent
from sweep.events.universe import ClockSet, MessageStored, WallClockJumped
from sweep.history import RecallOutcome as Outcome
from sweep.history import SendOutcome

BROKER = ("B", 0)
Builder = TimerHistoryBuilder


def begun(**facts: Any) -> Builder:
    return Builder(**facts).joined().begun(1)


def waiting(**facts: Any) -> Builder:
    """m0 is sent at 2, and waits for 1 s."""
    return begun().timer(2, delay_ms=1_000, **facts)


def until(t: float, **facts: Any) -> Builder:
    """m0 is sent at 2, and waits until t."""
    return begun().timer(2, until=t, **facts)


def jumped(builder: Builder, t: float, jump_s: float) -> Builder:
    """Set the broker's wall clock."""
    return builder.add(WallClockJumped, t, BROKER, jump_s=jump_s)


def called(builder: Builder, t: float) -> Builder:
    return builder.shared(t, t + 0.1, 0).read(500, b"m0")


def stamped(builder: Builder, t: float) -> Builder:
    """Let the broker respond to a send at t, by a clock that shows the true time."""
    return builder.add(FrameResponded, t, ("B", 1), queue=LOG, code=0, offset=9, position=9_000, stamp_ms=time_of_day_ms(t), request=1)


def test_early_timer_is_a_violation_whoever_is_given_it() -> None:
    """By the boot clock of the broker's machine; its wall clock counts for a time of day only."""
    facts: dict[str, Any] = {"queue": LOG._replace(group="billing"), "messages": ((0, b"m0"),)}
    fast = begun().add(ClockSet, 1.5, BROKER, boot_ms=7_000.0, rate=1.02).timer(2, delay_ms=60_000)
    assert_faults(check, {
        "before": (called(waiting(), 2.997), "D1"), "after": (called(waiting(), 2.999), ""),
        "ordered": (waiting().granted(1, 1).call(2.9, 3, 1, 0).read(500, b"m0"), "D1"),
        "broadcast": (waiting().add(MemberCallBegan, 2.9, ("C1", 11), **facts).read(500, b"m0"), "D1"),
        "polled": (waiting().add(PollReturned, 2.9, ("C1", 11), reader=1, assigned=True, **facts).read(500, b"m0"), "D1"),
        "fast clock, before": (called(fast, 2 + 60 / 1.02 - 0.01), "D1"), "fast clock, after": (called(fast, 2 + 60 / 1.02 + 0.01), ""),
        "set forward": (called(jumped(waiting(), 2.1, 5.0), 2.9), "D1"),
        "boot with a clock that is ahead": (called(jumped(waiting(), 2.1, 5.0).power_cut(2.2, 2.4), 2.9), ""),
    })  # fmt: skip


def test_time_of_day_has_come_by_the_wall_clock_of_the_brokers_machine() -> None:
    twice = jumped(jumped(until(10), 3, 5.9), 4, -5.9)
    assert_faults(check, {
        "before": (called(until(10), 9.9), "D1"), "after": (called(until(10), 10.0), ""),
        "set forward": (called(jumped(until(10), 3, 6.0), 4.1), ""), "set forward, before": (called(jumped(until(10), 3, 6.0), 3.9), "D1"),
        "set back": (called(jumped(until(10), 3, -6.0), 15.9), "D1"), "set back, after": (called(jumped(until(10), 3, -6.0), 16.0), ""),
        "for a moment, too short": (called(twice, 9.9), "D1"), "for a moment": (called(jumped(jumped(until(10), 4, 7), 5, -7), 9.9), ""),
        "another machine": (called(until(10).add(WallClockJumped, 3, P, jump_s=6.0), 4.1), "D1"),
    })  # fmt: skip


def test_time_of_day_has_come_by_the_clock_of_the_store() -> None:
    """Which stamps the message, unless it was set back just then."""

    def stored(stored_t: float) -> Builder:
        return until(10).read(500, b"m0", stored_t=stored_t)

    assert_faults(check, {
        "before": (stored(9.99), "D1"), "after": (stored(10.0), ""), "set back": (jumped(stored(9.99), 3, -1.0), ""),
        "set forward": (jumped(stored(9.99), 3, 1.0), "D1"),
    })  # fmt: skip


def test_late_timer_is_a_violation() -> None:
    """Times at which its broker did not run, or its clocks had not reached a time of day, do not count."""

    def stored(builder: Builder, t: float) -> Builder:
        return builder.read(500, b"m0", stored_t=t)

    down = waiting().killed(2.5).opened(100)
    back = jumped(until(10), 3, -60.0)
    assert_faults(check, {
        "in time": (stored(waiting(), 23.0), ""), "late": (stored(waiting(), 23.1), "D1"),
        "no response, sent again": (stored(begun().timer(2, delay_ms=1_000, acked=False).frame(30, acked=False), 50.9), ""),
        "no response, late": (stored(begun().timer(2, delay_ms=1_000, acked=False).frame(30, acked=False), 51.1), "D1"),
        "down": (stored(down, 101.0), ""), "down, then late": (stored(down, 124.0), "D1"),
        "time of day": (stored(stamped(until(10), 11), 31.0), ""), "time of day, late": (stored(stamped(until(10), 11), 31.1), "D1"),
        "by the wall clock": (stored(stamped(back, 71), 90.9), ""), "by the wall clock, late": (stored(stamped(back, 71), 91.2), "D1"),
        "clock of the store": (stored(stamped(until(10), 50), 70.0), ""),
        "by that clock, late": (stored(stamped(until(10), 50), 70.1), "D1"),
        "clock of the store unknown": (stored(until(10), 400.0), ""),
        "boot with a wrong clock": (stored(jumped(waiting(), 2.1, 600.0).power_cut(2.5, 3.0), 300.0), ""),
    })  # fmt: skip


def test_timer_is_late_by_its_place_in_the_log_whatever_its_stamp_says() -> None:
    """It was stored after each frame that is before it in the log. A repeat of a frame was stored at its first write."""
    before = waiting(position=100).sent(40, b"m8", 8, position=800)
    repeated = waiting(position=100).frame(4, b"m8", acked=False).frame(40, b"m8", position=800)
    assert_faults(check, {
        "after a frame": (before.placed(500, 900, stored_t=3.1), "D1"), "before it": (before.placed(500, 700, stored_t=90.0), ""),
        "after a repeat": (repeated.placed(500, 900, stored_t=90.0).placed(500, 800, b"m8", offset=1), ""),
    })  # fmt: skip


def test_acknowledged_timer_may_be_lost_only_by_a_power_cut_soon_after_under_async_flush() -> None:
    def lost(t: float, how: str = "power", flush: str = "async", **facts: Any) -> Builder:
        return begun(flush=flush).timer(2, delay_ms=1_000, **facts).killed(t, how=how).opened(t + 1).read(500, b"m1")

    deleted: dict[str, Any] = {"topic": "orders", "deleted": True, "broker": "broker-a"}
    left = waiting().sent(2.9, b"m7", 1, acked=2.95).read(500, b"m7", first=1)
    later = waiting().sent(2.9, b"m7", 1, acked=3.1).read(500, b"m7", first=1)
    of_day = stamped(until(10), 11).sent(9.9, b"m7", 1, acked=9.95).read(500, b"m7", first=1)
    far = stamped(jumped(until(10), 3, -3_600.0), 11).read(500, b"m1")
    assert_faults(check, {
        "there": (waiting().read(500, b"m0"), ""), "lost": (waiting().read(500, b"m1"), "D1"),
        "not acknowledged": (waiting(acked=False).read(500, b"m1"), ""), "power cut": (lost(2.3), ""),
        "kill": (lost(2.3, "kill"), "D1"), "later": (lost(9.3), "D1"), "sync": (lost(2.3, flush="sync"), "D1"),
        "only written": (lost(2.3, flush="sync", written=True), ""), "removed by retention": (waiting().read(500, b"m1", first=1), ""),
        "retention, an earlier one is left": (left, "D1"), "retention, a later one": (later, ""),
        "retention, time of day": (of_day, "D1"),
        "deleted": (waiting().add(LayoutSent, 2.5, P, counter=2, **deleted).read(500, b"m1"), ""),
        "deleted before": (waiting().add(LayoutSent, 1.5, P, counter=1, **deleted).read(500, b"m1"), "D1"),
        "recalled": (waiting().recall(2.1, Outcome.RECALLED).read(500, b"m1"), ""),
        "may be recalled": (waiting().recall(2.1, Outcome.UNKNOWN).read(500, b"m1"), ""),
        "its process ended": (waiting().recall(2.1, None).read(500, b"m1"), ""),
        "forged": (waiting().recall(2.1, Outcome.UNKNOWN, form="other id").read(500, b"m1"), "D1"),
        "time of day, lost": (stamped(until(10), 11).read(500, b"m1"), "D1"), "not yet": (far, ""),
    })  # fmt: skip


def test_timer_is_stored_once_for_each_stream_that_carried_it_and_a_keyed_one_once() -> None:
    other, again = LOG._replace(broker="broker-b"), {"sequence": (0, 2, 0)}

    def moved(key: str | None) -> Builder:
        sent = waiting(key=key, acked=False).frame(3, queue=other)
        return sent.read(500, b"m0").add(MessageStored, 500, ("", 0), queue=other, offset=0, body=b"m0")

    assert_faults(check, {
        "once": (waiting().frame(3).read(500, b"m0"), ""), "twice": (waiting().frame(3).read(500, b"m0", b"m0"), "R9"),
        "given up": (waiting(acked=False).frame(3, **again).read(500, b"m0", b"m0"), ""),
        "two brokers": (moved(None), ""), "keyed, two brokers": (moved("k"), "R9"),
        "keyed, given up": (waiting(key="k", acked=False).frame(3, **again).read(500, b"m0", b"m0"), "R9"),
        "given by a broker to which it was not sent": (waiting().read(500, b"m0").shared(4, 4.1, 0, queue=other), "R9"),
    })  # fmt: skip
    assert_faults(check_sends, {"twice": (waiting(key="k").read(500, b"m0", b"m0"), "")})
    assert possible_duplicates(moved(None).history()) == 1


def test_recalled_timer_is_stored_nowhere_and_given_to_nobody() -> None:
    """Before a loss it may have been given: the loss took its delivery, and the message waited again."""
    recalled, removing = waiting().recall(2.5, Outcome.RECALLED), begun(removes_nothing=False).timer(2, delay_ms=1_000)
    streams = waiting(acked=False).frame(2.1, sequence=(0, 2, 0)).recall(2.5, Outcome.RECALLED)
    cut = waiting().shared(3.1, 3.2, 0).power_cut(3.3, 3.4).recall(4, Outcome.RECALLED)
    assert_faults(check, {
        "recalled": (recalled.read(500, b"m1"), ""), "stored": (recalled.read(500, b"m0"), "W1"),
        "given": (recalled.shared(3.1, 3.2, 0).read(500, b"m1"), "W1"),
        "another form": (waiting().recall(2.5, Outcome.RECALLED, form="classic").read(500, b"m0"), "W1"),
        "forged": (waiting().recall(2.5, Outcome.RECALLED, form="other topic").read(500, b"m0"), "W1"),
        "forged due": (waiting().recall(2.5, Outcome.RECALLED, form="other due").read(500, b"m0"), "W1"),
        "of a carried one": (removing.recall(2.5, Outcome.RECALLED, form="other due").read(500, b"m1"), ""),
        "refused": (waiting().recall(2.5, Outcome.REFUSED).read(500, b"m0"), ""),
        "one of two": (streams.read(500, b"m0"), ""), "both of two": (streams.read(500, b"m0", b"m0"), "W1"),
        "given before a loss": (cut.read(500, b"m1"), ""), "and after it": (cut.read(500, b"m0"), "W1"),
        "power cut after it": (recalled.power_cut(2.7, 2.8).shared(3.1, 3.2, 0).read(500, b"m0"), "W1 W1"),
    })  # fmt: skip


def test_refusal_of_a_recall_is_true() -> None:
    removing = begun(removes_nothing=False).timer(2, delay_ms=1_000)
    late, missing = waiting().recall(2.5, Outcome.TOO_LATE), waiting().recall(2.5, Outcome.NOT_FOUND)
    again = waiting().recall(2.5, Outcome.RECALLED).recall(2.7, Outcome.TOO_LATE)
    deleted = late.add(LayoutSent, 2.3, P, topic="orders", counter=2, deleted=True)
    assert_faults(check, {
        "delivered": (late.read(500, b"m0"), ""), "given": (late.shared(3.1, 3.2, 0).read(500, b"m1"), "D1"),
        "never": (late.read(500, b"m1"), "D1 W2"), "recalled before": (again.read(500, b"m1"), ""),
        "deleted": (deleted.read(500, b"m1"), ""),
        "retention": (removing.recall(2.5, Outcome.TOO_LATE).read(500, b"m1", first=1), ""),
        "no such message": (missing.read(500, b"m0"), "W2"), "lost": (missing.power_cut(2.6, 2.7).read(500, b"m1"), ""),
        "without the offset": (waiting().recall(2.5, Outcome.NOT_FOUND, form="classic").read(500, b"m0"), ""),
        "forged": (waiting().recall(2.5, Outcome.NOT_FOUND, form="other id").read(500, b"m0"), ""),
        "retention took its record": (removing.recall(2.5, Outcome.NOT_FOUND).read(500, b"m0"), ""),
    })  # fmt: skip


def test_group_handles_timers_and_has_time_for_them_after_they_were_stored() -> None:
    committed = waiting().add(ConsumerStarted, 0.5, ("C2", 12)).granted(1, 1).calm(5).read(500, b"m0").committed(9, 1, 1)
    assert_faults(check_delivery, {"not called": (committed, "O5"), "called": (committed.call(4, 4.1, 1, 0), "")})
    messages = Messages(stamped(waiting(), 4).read(500, b"m0", stored_t=60.0).history())
    assert messages.due_since(messages.places[b"m0"][0], 5.0) == pytest.approx(60.0)


def test_timer_that_failed_as_not_stored_is_not_delivered() -> None:
    from sweep.events.producers import SendFailed

    def failed(outcome: SendOutcome) -> Builder:
        return waiting(acked=False).add(SendFailed, 2.5, P, body=b"m0", outcome=outcome).read(500, b"m0")

    assert_faults(check_sends, {"not stored": (failed(SendOutcome.NOT_STORED), "R9"), "unknown": (failed(SendOutcome.UNKNOWN), "")})
