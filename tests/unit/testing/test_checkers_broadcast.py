"""B1–B4 and R5 of broadcasting groups: no requests to brokers, every message on every machine, bounded repetition, one call each."""

from support.broadcast_histories import AGAIN, BroadcastHistoryBuilder, N
from support.histories import C1, C2, Q, assert_faults
from sweep.checkers.broadcast import check
from sweep.events.consumers import QueueGapSeen
from sweep.events.locks import LockSent
from sweep.events.sends import SendBackSent
from sweep.history import CallResult

ERROR, CANCELLED = CallResult.ERROR, CallResult.CANCELLED
Builder = BroadcastHistoryBuilder


def joined(*, ordered: bool = False, each: bool = False) -> Builder:
    return Builder().joined(1, ordered=ordered, each=each)


TWO = joined().ended(b"m0", b"m1")
"""m0 and m1 are in the log at the end."""
FIRST = TWO.called(2, 3, 0)


def gap(builder: Builder, t: float, begin: int, end: int) -> Builder:
    return builder.add(QueueGapSeen, t, C1, queue=N, first=begin, end=end)


def test_broadcasting_member_that_locks_commits_or_sends_back_at_a_broker_is_a_violation() -> None:
    assert_faults(check, {
        "no such group": (Builder().ended(b"m0"), ""), "a lock": (joined().add(LockSent, 2, C1, items=((N, None),)), "B1"),
        "a commit": (joined().committed(2, 1, 5, queue=N), "B1"),
        "a send back": (joined().add(SendBackSent, 2, C1, group="news", level=0, retries_max=None), "B1"),
        "those of another group": (joined().add(LockSent, 2, C1, items=((Q, None),)).committed(2, 1, 5), ""),
    })  # fmt: skip


def test_every_message_must_be_handled_on_every_machine() -> None:
    def handled(result: CallResult, *, ordered: bool = False) -> Builder:
        return joined(ordered=ordered).ended(b"m0").called(2, 3, 0, result=result)

    interrupted = joined().ended(b"m0").called(2, None, 0)
    machines = TWO.joined(1, where=C2).called(2, 3, 0, 1)
    again = FIRST.stopped(4).joined(5, 1, AGAIN).called(6, 7, 1, where=AGAIN)
    retained = gap(joined(), 1.5, 0, 1).called(2, 3, 1).calm(50).read(500, b"m1", first=1)
    assert_faults(check, {
        "one machine": (machines, "B2 B2"), "both": (machines.called(2, 3, 0, 1, where=C2), ""), "an earlier process": (again, ""),
        "killed meanwhile": (interrupted.killed(3, C1), "B2"), "killed after its time limit": (interrupted.killed(6.1, C1), ""),
        "cancelled after its time limit": (joined().ended(b"m0").called(2, 6.1, 0, result=CANCELLED), ""),
        "cancelled": (handled(CANCELLED), "B2"), "failed": (handled(ERROR), ""), "failed, ordered": (handled(ERROR, ordered=True), "B2"),
        "removed by retention": (retained, ""), "a gap over what is there": (gap(TWO, 1.5, 0, 1).called(2, 3, 1), "B2"),
    })  # fmt: skip


def test_member_must_start_at_consume_from_where() -> None:
    def started(offset: int, *bodies: bytes, first: bool = False) -> Builder:
        """It starts at 0.05, and m1 is sent at 0.1."""
        bodies = bodies or (b"m0", b"m1")
        return Builder().joined(0.05, offset, first=first).ended(*bodies).called(2, 3, *range(offset, len(bodies)))

    assert_faults(check, {
        "FIRST_OFFSET": (started(0, first=True), ""), "FIRST_OFFSET later": (started(1, first=True), "B2"),
        "LAST_OFFSET": (started(1), ""), "LAST_OFFSET earlier": (started(0), "B2"),
        "LAST_OFFSET later": (started(2, b"m0", b"m1", b"m2"), "B2"),
    })  # fmt: skip


def test_member_past_the_lost_end_of_a_queue_may_miss_messages_that_reuse_its_offsets() -> None:
    """Unless it was told to begin the queue again, and had the time for it. A response after the end of its grant tells nobody."""
    cut = FIRST.pulled(2, 0, 5).power_cut(10)
    told, released = cut.pulled(12, 5, 0, moved=True), cut.revoked(11.999)
    late = released.pulled(12, 5, 0, moved=True)
    assert_faults(check, {
        "no cut": (FIRST.pulled(2, 0, 2), "B2"), "a cut": (FIRST.pulled(2, 0, 2).power_cut(10), ""),
        "a cut, and it had seen only m0": (FIRST.pulled(2, 0, 1).power_cut(10), "B2"), "told": (told, "B2"),
        "told, and dead": (told.killed(12.5, C1), ""), "begun again, and dead": (told.killed(12.5, C1).assigned(12.1, 0, grant=2), "B2"),
        "told, and its grant ended": (told.revoked(12.001), "B2"), "its grant had ended": (late, ""),
        "the grant of its request had ended": (released.assigned(11.9995, 5, grant=2).pulled(12, 5, 0, moved=True), ""),
        "its grant had ended, and the next was told": (late.assigned(13, 5, grant=2).pulled(14, 5, 0, moved=True), "B2"),
    })  # fmt: skip


def again(builder: Builder, *offsets: int, each: bool = False) -> Builder:
    """The next process of the machine begins at the first of these offsets, and is given them."""
    return builder.joined(30, offsets[0], AGAIN, ordered=each, each=each).called(31, 32, *offsets, where=AGAIN)


def called(*offsets: int) -> Builder:
    return joined().called(2, 2.1, *(offsets or (0,)))


def test_redelivery_after_a_regular_stop_is_a_violation() -> None:
    def late(end: float) -> Builder:
        """Stop at 2.1, which takes 2 s, during a call."""
        return joined().called(2, end, 0).stopped(4.1, took_s=2.0)

    assert_faults(check, {
        "the next": (again(called(0, 1).stopped(2.3), 2), ""), "again": (again(called(0, 1).stopped(2.3), 0), "B3"),
        "a call that ended before the limit": (again(late(3.8), 0), "B3"), "a call at the limit": (again(late(4.0), 0), ""),
        "before the stop": (joined().joined(5, 0, AGAIN), "B3"), "after a kill": (joined().killed(4, C1).joined(5, 0, AGAIN), ""),
        "a disk fault": (again(called().disk_failed(2.0, 10).stopped(2.5), 0), ""),
        "a gap before it": (again(gap(called(), 3, 1, 4).called(4, 4.1, 4).stopped(6), 4), "B3"),
        "after a gap": (again(gap(called(), 3, 1, 4).called(4, 4.1, 4).stopped(6), 5), ""),
    })  # fmt: skip


def test_crash_may_repeat_only_the_last_second() -> None:
    """Time in which the process was suspended or its disk failed does not count. With commit="each" only the running call is repeated."""

    def killed(t: float, how: str = "kill") -> Builder:
        return again(called().killed(t, C1, how), 0)

    def suspended(t: float) -> Builder:
        return again(called().suspended(2.5, 8).killed(t, C1), 0)

    def failing(since: float, until: float, t: float) -> Builder:
        return again(called().disk_failed(since, until).killed(t, C1), 0)

    def committed(*, each: bool) -> Builder:
        return again(joined(ordered=True, each=each).called(2, 2.1, 0).called(2.2, None, 1).killed(2.3, C1), 0, each=each)

    assert_faults(check, {
        "killed": (killed(3.0), ""), "killed later": (killed(3.3), "B3"), "cut": (killed(3.0, "power"), ""),
        "cut later": (killed(3.3, "power"), "B3"), "suspended": (suspended(8.1), ""), "suspended, later": (suspended(8.9), "B3"),
        "disk fault": (failing(2.5, 4, 5.0), ""), "disk fault, later": (failing(2.5, 4, 5.2), "B3"),
        "during a disk fault": (failing(2.5, 20, 19), ""), "written before a disk fault": (failing(4, 8, 7), "B3"),
        "above the lowest unhandled one": (again(joined().called(2, None, 0).called(2, 2.1, 1).killed(9, C1), 0, 1), ""),
        "each": (committed(each=True), "B3"), "each second": (committed(each=False), ""),
    })  # fmt: skip


def test_any_message_may_be_repeated_if_the_broker_lost_messages() -> None:
    """A message with an offset of a lost one is no repetition."""
    told = called().called(2, 2.1, 1).stopped(4).joined(12, 2, AGAIN).pulled(13, 2, 0, AGAIN, moved=True)
    restarted = told.assigned(13.1, 0, AGAIN, 2).called(14, 15, 0, where=AGAIN, grant=2)
    # Messages 1 and 2 are lost after a member handled them: it is told, and begins the queue again.
    lost = gap(called(0, 1, 2).power_cut(10).pulled(11, 3, 1, moved=True), 11, 1, 3)
    lost = lost.assigned(11.1, 0, grant=2).called(12, 12.1, 0, grant=2)
    handled = lost.called(13, 13.1, 1, grant=2)
    assert_faults(check, {
        "no cut": (restarted, "B3"), "a cut": (restarted.power_cut(10), ""),
        "stopped": (again(lost.stopped(20), 1), ""), "killed": (again(lost.killed(20, C1), 1), ""),
        "stopped, called": (again(handled.stopped(20), 1), "B3"), "killed, called": (again(handled.killed(20, C1), 1), "B3"),
    })  # fmt: skip


def test_ordered_broadcast_listener_must_get_consecutive_offsets() -> None:
    """It may be given new messages where a gap was reported. A concurrent one is given none again."""

    def then(*offsets: int, gap_end: int = 0, result: CallResult = CallResult.SUCCESS, ordered: bool = True) -> Builder:
        builder = joined(ordered=ordered).called(2, 2.1, 0, result=result)
        for t, offset in enumerate(offsets, 3):
            builder = builder.called(t, t + 0.1, offset)
        return gap(builder, 2.5, 1, gap_end) if gap_end else builder

    assert_faults(check, {
        "the next": (then(1), ""), "left out": (then(2), "B4"), "again": (then(0), "B4"),
        "failed, and again": (then(0, result=ERROR), ""), "failed, and the next": (then(1, result=ERROR), "B4"),
        "a gap": (then(4, gap_end=4), ""), "no gap": (then(4), "B4"), "left out after a gap": (then(4, 6, gap_end=4), "B4"),
        "in a gap": (then(1, 2, gap_end=4), ""), "in a gap, again": (then(1, 2, 2, gap_end=4), "B4"),
        "concurrent, the next": (then(1, result=ERROR, ordered=False), ""), "again after it": (then(0, result=ERROR, ordered=False), "B4"),
        "not assigned": (Builder().joined(1, None).called(2, 2.1, 0), "B4"),
        "an earlier grant": (joined().called(2, 2.1, 0).called(3, 3.1, 0, grant=0), ""),
    })  # fmt: skip


def test_end_of_every_queue_must_be_reached_in_time() -> None:
    assert_faults(check, {
        "never begun": (joined().joined(1, None, C2).ended(b"m0").called(2, 3, 0), "R5"),
        "in time": (FIRST.called(138, 139, 1), ""), "late": (FIRST.called(140, 141, 1), "R5"),
    })  # fmt: skip
