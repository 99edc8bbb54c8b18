"""O3 and R4b: when a listener may be called."""

from support.histories import C1, C2, HELD, HistoryBuilder, Q, Where, assert_faults, epoch
from sweep.checkers.calls import check, overlaps
from sweep.events.consumers import ConsumerStarted, ConsumerStopBegan
from sweep.events.locks import LeaveSent, LockGranted, LockSent, StaleReceived
from sweep.events.universe import ClockSet


def excuses(builder: HistoryBuilder) -> list[str]:
    return [one.excuse for one in overlaps(builder.history())]


RUNNING = HELD.call(2, None, 1, 0)
"""C1 is granted and proven at 1 (asked 0.998: deadline 3.498); its call runs from 2."""


def over(builder: HistoryBuilder, t: float) -> HistoryBuilder:
    """C2 is granted just before its own call at t."""
    return builder.granted(t - 0.01, 2, C2).call(t, None, 2, 0, where=C2)


def test_call_of_a_newer_epoch_before_the_older_clients_deadline_is_a_violation() -> None:
    """Unless the older call has ended, or its client knows that its epoch is over. A clock at 0.893 of the true speed is 0.3 s late."""

    def slow(t: float) -> HistoryBuilder:
        return over(RUNNING, t).add(ClockSet, 0.998, ("C1", 0), boot_ms=998.0, rate=0.893)

    def stale(by: str, t: float = 2.49, number: int = 1) -> HistoryBuilder:
        return over(RUNNING, 2.5).add(StaleReceived, t, C1, by=by, epoch=epoch(number))

    assert_faults(check, {
        "before": (over(RUNNING, 3.497), "O3"), "at it": (over(RUNNING, 3.498), ""), "after": (over(RUNNING, 3.499), ""),
        "slow clock, before": (slow(3.78), "O3"), "slow clock, after": (slow(3.80), ""),
        "ended": (over(HELD.call(2, 2.1, 1, 0), 2.3), ""), "dead": (over(RUNNING.killed(2.2, C1), 2.6), ""),
        **{f"notified by {by}": (stale(by), "") for by in ("PULL", "SYNC", "LOCK")},
        "notified later": (stale("PULL", 2.51), "O3"), "notified of another": (stale("PULL", number=9), "O3"),
    })  # fmt: skip
    assert excuses(over(RUNNING, 3.497)) == []
    assert excuses(over(RUNNING, 3.498)) == ["its deadline passed"]
    assert excuses(stale("PULL")) == ["notified that its epoch is over"]


def test_call_starts_before_a_newer_grant_and_within_its_lease() -> None:
    """The lease ends at 3.498. A new connection proves nothing until its first LOCK."""
    newer = {"epoch": epoch(2), "session": "s2"}

    def at(boot_ms: int) -> HistoryBuilder:
        return HELD.call(3.4, None, 1, 0, boot_ms=boot_ms)

    def proven(t: float, connection: int = 1) -> HistoryBuilder:
        return HELD.proven(3, connection=connection).call(t, None, 1, 0)

    assert_faults(check, {
        "granted before": (HELD.add(LockGranted, 2.4, **newer).call(2.4, None, 1, 0), "O3"),
        "granted after": (HELD.add(LockGranted, 2.401, **newer).call(2.4, None, 1, 0), ""),
        "in its lease": (at(3497), ""), "at its end": (at(3498), "O3"), "after it": (at(3499), "O3"),
        "a SYNC extends it": (proven(5.49), ""), "until its end": (proven(5.50), "O3"), "another connection": (proven(5, 2), "O3"),
        "with a LOCK": (proven(5, 2).proven(3.1, connection=2, lock=True), ""), "no grant": (HistoryBuilder().call(2, None, 1, 0), "O3"),
    })  # fmt: skip


def test_two_concurrent_calls_of_a_queue_in_one_process_are_a_violation() -> None:
    """Also a LOCK of the queue while its old call runs."""

    def locked(builder: HistoryBuilder, where: Where = C1) -> HistoryBuilder:
        return builder.add(LockSent, 2.3, where, items=((Q, None),))

    assert_faults(check, {
        "one after the other": (HELD.call(2, 2.2, 1, 0).call(2.3, None, 1, 1), ""), "two": (RUNNING.call(2.3, None, 1, 1), "O3"),
        "in two processes": (RUNNING.call(2.3, None, 1, 0, where=C2), "O3"),
        "a LOCK after it": (locked(HELD.call(2, 2.2, 1, 0)), ""), "a LOCK meanwhile": (locked(RUNNING), "O3"),
        "a LOCK of another process": (locked(RUNNING, C2), ""),
    })  # fmt: skip


def test_queue_is_released_during_a_call_only_past_the_drain_limit() -> None:
    """The limit is 2 s, in a stop the timeout of the stop. After such a release, or such a timeout, calls may overlap."""

    def draining(sent_t: float, stop_ms: int | None = None) -> HistoryBuilder:
        facts = {} if stop_ms is None else {"stop_ms": stop_ms}
        builder = HistoryBuilder().add(ConsumerStarted, 0.5, C1, drain_ms=2_000, **facts).granted(1, 1).call(1.5, None, 1, 0)
        return builder.committed(sent_t + 0.002, 1, None, released=True)

    def stopping(sent_t: float, kind: type) -> HistoryBuilder:
        return draining(sent_t, 500).add(kind, 1.6, C1)

    released = over(draining(3.6).proven(3.5), 3.8)

    def stopped(t: float) -> HistoryBuilder:
        builder = HistoryBuilder().add(ConsumerStarted, 0.5, C1, stop_ms=1_000).granted(1, 1).call(1.5, None, 1, 0).proven(2)
        return over(builder.add(ConsumerStopBegan, 2.1, C1), t)

    assert_faults(check, {
        "with an offset, after it": (HELD.call(2, 2.2, 1, 0).committed(2.3, 1, 1, released=True), ""),
        "with an offset, meanwhile": (RUNNING.committed(2.3, 1, 1, released=True), "O3"),
        "before": (draining(3.499), "O3"), "at it": (draining(3.5), ""), "after": (draining(3.501), ""),
        "stop, before": (stopping(1.999, ConsumerStopBegan), "O3"), "stop, after": (stopping(2.0, ConsumerStopBegan), ""),
        "leave, before": (stopping(1.999, LeaveSent), "O3"), "leave, after": (stopping(2.0, LeaveSent), ""),
        "another's call after the release": (released, ""),
        "locked again": (released.add(LockSent, 3.65, C1, items=((Q, epoch(1)),)), "O3"),
        "another's call before the stop timeout": (stopped(3.05), "O3"), "after it": (stopped(3.15), ""),
    })  # fmt: skip
    assert excuses(released) == ["released past its drain limit"]


def test_threaded_call_may_start_up_to_10_ms_after_it_was_scheduled() -> None:
    """Its deadline is 3.498. A suspension in between does not count."""
    threaded = HistoryBuilder().add(ConsumerStarted, 0.5, C1, threaded=True).granted(1, 1)

    def at(t: float, builder: HistoryBuilder) -> HistoryBuilder:
        return builder.call(t, t, 1, 0)

    assert_faults(check, {
        "3.5": (at(3.5, threaded), ""), "3.506": (at(3.506, threaded), ""), "3.51": (at(3.51, threaded), "O3"),
        "soon after a grant": (at(2.005, threaded.granted(2, 2, C2)), ""), "later": (at(2.05, threaded.granted(2, 2, C2)), "O3"),
        "after a suspension": (at(9.005, threaded.suspended(3.4, 9)), ""), "later than that": (at(9.02, threaded.suspended(3.4, 9)), "O3"),
    })  # fmt: skip


def test_text_of_an_overlap_names_queue_epochs_processes_and_times() -> None:
    (found,) = check(over(RUNNING, 3.4).history())
    facts = ("billing orders@broker-a:0", str(epoch(1)), str(epoch(2)), "C1#11", "C2#12", "2.000", "3498")
    assert all(fact in str(found) for fact in facts)
