"""O1 (ordering.md 2.4): progress restarts or jumps only after a request or an event that causes it."""

from support.histories import ADMIN, C1, C2, HELD, B, HistoryBuilder, assert_faults, epoch
from sweep.checkers import delivery, keys, progress
from sweep.checkers.generations import check
from sweep.events.consumers import ConsumerStarted, QueueGapSeen
from sweep.events.progress import CommitSent, ProgressReset, PullReceived, ResetSent
from sweep.events.sends import LayoutSent


def reset(*, responded: bool = True) -> HistoryBuilder:
    """C1 has committed 5 when an operator sets the group to 1 at 3."""
    builder = HELD.committed(2, 1, 5).add(ResetSent, 3, ADMIN, offset=1, request=7)
    return builder.add(ProgressReset, 3.1, B, offset=1, before=5, request=7) if responded else builder


def test_first_grant_after_a_reset_starts_at_its_offset() -> None:
    """A reset without a response may have happened, or not."""

    def granted(generation: int, offset: int, *, responded: bool = True) -> HistoryBuilder:
        return reset(responded=responded).granted(4, 2, C2, generation=generation, offset=offset)

    def requested(t: float) -> HistoryBuilder:
        """The first LOCK is requested at 0.998, the reset at t: both responses waited for the disk."""
        builder = HistoryBuilder().add(ResetSent, t, ADMIN, offset=0, request=7).granted(1, 1)
        return builder.add(ProgressReset, 0.9995, B, offset=0, before=0, request=7).granted(2, 2, C1, generation=2)

    assert_faults(check, {
        "at its offset": (granted(2, 1), ""), "after it": (granted(2, 5), "O1"), "before it": (granted(2, 0), "O1"),
        "in the generation before": (granted(1, 5), "O1"), "unanswered, at its offset": (granted(2, 1, responded=False), ""),
        "unanswered, not executed": (granted(1, 5, responded=False), ""), "unanswered, elsewhere": (granted(2, 3, responded=False), "O1"),
        "two generations": (granted(2, 1).granted(5, 3, C1, generation=3, offset=1), "O1"),
        "sent after the first LOCK": (requested(0.9985), ""), "sent before it": (requested(0.997), "O1"),
        "LOCK in flight": (reset().granted(3.101, 2, C2, offset=5), ""),
    })  # fmt: skip
    assert_faults(progress.check, {
        "unanswered, at its offset": (granted(2, 1, responded=False), ""), "elsewhere": (granted(2, 2, responded=False), "O6"),
    })  # fmt: skip


def test_new_generation_without_a_cause_is_a_violation() -> None:
    cut = HELD.power_cut(2, 3).granted(4, 9, C1, generation=2)
    synced = HistoryBuilder(flush="sync").granted(1, 1).power_cut(2, 3).granted(4, 9, C1, generation=2)
    deleted = HELD.committed(2, 1, 5).add(LayoutSent, 3, ADMIN, counter=2, deleted=True)
    # A reset to 4 is sent before a power cut and executed after the start, whose first grant happens to begin at 4 as well.
    late = HELD.add(ResetSent, 1.5, ADMIN, offset=4, request=7).power_cut(2, 3).granted(4, 9, C1, generation=2, offset=4)
    late = late.add(ProgressReset, 5, B, offset=4, before=5, request=7)
    assert_faults(check, {
        "no cause": (HELD.granted(2, 2, C2, generation=2), "O1"), "the same": (HELD.granted(2, 2, C2, generation=1), ""),
        "power cut, async": (cut, ""), "power cut, sync": (synced, "O1"),
        "a reset after a power cut": (late.granted(5.1, 10, C1, generation=3, offset=4), ""),
        "deleted topic": (deleted.granted(4, 2, C2, generation=2, offset=0), ""),
    })  # fmt: skip


def test_grant_past_the_committed_offset_is_a_violation() -> None:
    sent = HELD.add(CommitSent, 2, C1, offset=6).granted(3, 2, C2, offset=6)
    assert_faults(check, {
        "at it": (HELD.committed(2, 1, 5).granted(3, 2, C2, offset=5), ""),
        "past it": (HELD.committed(2, 1, 5).granted(3, 2, C2, offset=6), "O1"),
        "a commit without a response": (sent, ""), "past that commit": (sent.granted(4, 3, C1, offset=7), "O1"),
        "a gap": (HELD.granted(2, 2, C2, offset=9).add(QueueGapSeen, 2.1, C2, first=0, end=9), ""),
    })  # fmt: skip


def test_commit_or_pull_of_the_old_generation_served_after_a_reset_is_a_violation() -> None:
    """The request was sent 2 ms before `t`."""

    def pulled(t: float) -> HistoryBuilder:
        return reset().add(PullReceived, t, C1, epoch=epoch(1), code=0, offset=5, request_t=t - 0.002)

    assert_faults(check, {
        "commit before": (reset().committed(3.101, 1, 6), ""), "commit after": (reset().committed(3.103, 1, 6), "O1"),
        "pull before": (pulled(3.101), ""), "pull after": (pulled(3.103), "O1"),
    })  # fmt: skip


def skipping(before: int, offset: int) -> HistoryBuilder:
    """m0, m1 and m2 are stored. After a reset from `before` to `offset`, m2 is done under a grant at 2. m1 is never done."""
    builder = HistoryBuilder().add(ConsumerStarted, 0.1, C1).granted(0.5, 1)
    for number in range(3):
        builder = builder.sent(1 + number / 10, b"m%d" % number, number)
    builder = builder.call(1.5, 1.6, 1, 0).committed(1.7, 1, 1)
    builder = builder.add(ResetSent, 2, ADMIN, offset=offset, request=7).add(ProgressReset, 2.1, B, offset=offset, before=before, request=7)
    builder = builder.granted(3, 2, C1, generation=2, offset=2).call(3.1, 3.2, 2, 2).committed(3.3, 2, 3)
    return builder.calm(3.4).read(9, b"m0", b"m1", b"m2")


def test_messages_skipped_by_a_reset_need_no_call_and_have_no_order() -> None:
    def back(before: int) -> HistoryBuilder:
        builder = skipping(before, 2).add(ResetSent, 4, ADMIN, offset=1, request=8)
        builder = builder.add(ProgressReset, 4.1, B, offset=1, before=3, request=8).granted(5, 3, C1, generation=3, offset=1)
        return builder.call(5.1, 5.2, 3, 1).call(5.3, 5.4, 3, 2)

    rows = {"skipped": (skipping(1, 2), ""), "begun after it": (skipping(2, 2), "O5"), "ended before it": (skipping(0, 1), "O5")}
    assert_faults(delivery.check, rows)
    assert_faults(keys.check, {"skipped": (back(1), ""), "not skipped": (back(2), "O4")})
