"""O5 and R5 at the end of a run."""

import pytest

from support.histories import C1, HistoryBuilder, Q, assert_faults, epoch
from sweep.checkers.delivery import check, recovery_s
from sweep.events.consumers import ConsumerStarted, QueueGapSeen
from sweep.events.locks import LockGranted
from sweep.events.progress import CommitResponded
from sweep.events.sends import DeadLetterSent
from sweep.events.universe import CopyStored
from sweep.history import CallResult, QueueKey


def granted(*, expression: str = "*", begin: int = 0) -> HistoryBuilder:
    """m0 and m1 are acknowledged; the group is granted the queue at `begin`. Faults end at 5."""
    builder = HistoryBuilder().add(ConsumerStarted, 0.5, C1, expressions=(("orders", expression),)).calm(5)
    return builder.sent(1, b"m0", 0, tags="B").sent(1.1, b"m1", 1, tags="A").read(500, b"m0", b"m1").granted(2, 1, offset=begin)


def both(t: float, upto: int = 2) -> HistoryBuilder:
    """Both are handled, and a commit is accepted: received at t, its response was sent 1 ms before."""
    return granted().call(3, 3.1, 1, 0, 1).committed(t, 1, upto)


def second(builder: HistoryBuilder) -> HistoryBuilder:
    """Only m1 is handled."""
    return builder.call(3, 3.1, 1, 1).committed(6, 1, 2)


def test_acknowledged_message_is_handled_filtered_reported_as_a_gap_or_dead_lettered() -> None:
    def lettered(body: bytes, group: str = "billing") -> HistoryBuilder:
        """A dead letter of m0 was requested, without a response."""
        builder = second(granted()).add(DeadLetterSent, 3.2, C1, queue=Q, epoch=1, offset=0, attempts=4, advance=True, request=9)
        place = QueueKey("", "broker-a", f"%DLQ%{group}", 0)
        return builder.add(CopyStored, 501, ("", 0), queue=place, offset=0, body=body, retries=1, origin="")

    assert_faults(check, {
        "handled": (both(6), ""), "not handled": (second(granted()), "O5"),
        "failed": (granted().call(3, 3.1, 1, 0, 1, result=CallResult.ERROR).committed(6, 1, 2), "O5 O5"),
        "another message": (granted().call(3, 3.1, 1, 0, 1, bodies=(b"x", b"m1")).committed(6, 1, 2), "O5"),
        "filtered": (second(granted(expression="A")), ""), "before the start": (second(granted(begin=1)), ""),
        "a gap": (second(granted()).add(QueueGapSeen, 2.5, C1, first=0, end=1), ""),
        "dead-lettered": (lettered(b"m0"), ""), "a dead letter of another message": (lettered(b"m1"), "O5"),
        "a dead letter of another group": (lettered(b"m0", "audit"), "O5"),
    })  # fmt: skip


def test_message_removed_by_retention_before_delivery_is_a_violation_unless_a_power_cut_may_have_lost_it() -> None:
    def removed(flush: str, *, cut: bool = False, written: bool = False) -> HistoryBuilder:
        builder = HistoryBuilder(flush=flush).add(ConsumerStarted, 0.5, C1).calm(5).granted(0.8, 1)
        builder = builder.sent(1, b"m0", 0, written=written).sent(1.1, b"m1", 1).read(500, b"m1", first=1)
        return second(builder.power_cut(3.5) if cut else builder)

    assert_faults(check, {
        "no cut": (removed("sync"), "O5"), "cut": (removed("sync", cut=True), "O5"),
        "written, no cut": (removed("sync", written=True), "O5"), "written, cut": (removed("sync", cut=True, written=True), ""),
        "async, cut": (removed("async", cut=True), ""),
    })  # fmt: skip


def test_group_may_start_again_only_if_a_power_cut_may_have_lost_its_start() -> None:
    again = ("B", 2)

    def restarted(flush: str, granted_t: float, *, cut: bool = True) -> HistoryBuilder:
        builder = HistoryBuilder(flush=flush).add(ConsumerStarted, 0.5, C1).calm(5).granted(granted_t, 1, offset=0)
        builder = builder.power_cut(3.5, 4) if cut else builder.killed(3.5).opened(4)
        builder = builder.sent(4.1, b"m0", 0, answerer=again).sent(4.2, b"m1", 1, answerer=again).read(500, b"m0", b"m1")
        builder = builder.add(LockGranted, 4.5, again, offset=1, generation=2, epoch=epoch(2)).call(4.6, 4.7, 2, 1)
        return builder.add(CommitResponded, 6, again, epoch=epoch(2), offset=2)

    assert_faults(check, {
        "async": (restarted("async", 3.4), ""), "synced before": (restarted("async", 0.8), "O5"), "sync": (restarted("sync", 3.4), "O5"),
        "killed": (restarted("async", 3.4, cut=False), "O5"),
    })  # fmt: skip


def test_end_must_be_reached_within_90_s_after_faults_stop() -> None:
    sent = HistoryBuilder().sent(1, b"m0", 0).read(500, b"m0")
    started = sent.add(ConsumerStarted, 0.5, C1)
    shared = sent.add(ConsumerStarted, 0.5, C1, ordered=False)
    assert_faults(check, {
        "in time": (both(95.0), ""), "late": (both(95.002), "R5"), "never": (both(6, 1), "R5"), "never granted": (started.calm(5), "R5"),
        "faults never stop": (started, ""), "a concurrent group": (shared.calm(5), ""),
    })  # fmt: skip
    assert recovery_s(both(6).history()) == pytest.approx(0.999)
    assert recovery_s(both(6, 1).history()) is None
    (found,) = check(started.calm(5).history())
    assert str(Q) in found.text
