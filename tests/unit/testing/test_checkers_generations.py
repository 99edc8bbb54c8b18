"""O1 (ordering.md 2.4): progress restarts or jumps only after a request or an event that causes it."""

import pytest

from support.histories import C1, C2, B, HistoryBuilder, epoch
from sweep.checkers import delivery, keys, progress
from sweep.checkers.generations import check
from sweep.events.consumers import ConsumerStarted, QueueGapSeen
from sweep.events.progress import CommitSent, ProgressReset, PullReceived, ResetSent
from sweep.events.sends import LayoutSent
from sweep.events.universe import BrokerOpened, CalmBegan, PowerCut, ProcessEnded

ADMIN = ("A", 31)


def reset(offset: int, *, responded: bool = True, before: int = 5) -> HistoryBuilder:
    """C1 has committed 5 when an operator sets the group to `offset` at 3."""
    builder = HistoryBuilder().granted(1, 1).committed(2, 1, 5).add(ResetSent, 3, ADMIN, offset=offset, request=7)
    return builder.add(ProgressReset, 3.1, B, offset=offset, before=before, request=7) if responded else builder


@pytest.mark.parametrize(("responded", "generation", "offset", "laws"), [
    (True, 2, 1, []),
    (True, 2, 5, ["O1"]),
    (True, 2, 0, ["O1"]),
    (True, 1, 5, ["O1"]),
    (False, 2, 1, []),
    (False, 1, 5, []),
    (False, 2, 3, ["O1"]),
])  # fmt: skip
def test_first_grant_after_a_reset_must_start_at_its_offset(responded: bool, generation: int, offset: int, laws: list[str]) -> None:
    """A reset without a response may have happened, or not."""
    assert reset(1, responded=responded).granted(4, 2, C2, generation=generation, offset=offset).broken(check) == laws


def test_new_generation_without_a_cause_is_a_violation() -> None:
    assert HistoryBuilder().granted(1, 1).granted(2, 2, C2, generation=2).broken(check) == ["O1"]
    assert HistoryBuilder().granted(1, 1).granted(2, 2, C2, generation=1).broken(check) == []


def test_reset_causes_one_new_generation() -> None:
    builder = reset(1).granted(4, 2, C2, generation=2, offset=1).granted(5, 3, C1, generation=3, offset=1)
    assert builder.broken(check) == ["O1"]


@pytest.mark.parametrize(("sent_t", "laws"), [(0.9985, []), (0.997, ["O1"])])
def test_reset_sent_after_the_first_lock_request_applies_to_the_next_grant(sent_t: float, laws: list[str]) -> None:
    """Requested at 0.998, with responses at 0.999: both responses waited for the disk."""
    builder = HistoryBuilder().add(ResetSent, sent_t, ADMIN, offset=0, request=7).granted(1, 1)
    builder.add(ProgressReset, 0.9995, B, offset=0, before=0, request=7)
    assert builder.granted(2, 2, C1, generation=2).broken(check) == laws


def test_lock_in_flight_during_a_reset_may_get_the_old_offset() -> None:
    builder = reset(1).granted(3.101, 2, C2, offset=5)
    assert builder.broken(check) == []


@pytest.mark.parametrize(("flush", "laws"), [("async", []), ("sync", ["O1"])])
def test_power_cut_under_async_flush_may_cause_a_new_generation(flush: str, laws: list[str]) -> None:
    builder = HistoryBuilder(flush=flush).granted(1, 1).add(ProcessEnded, 2, B, how="power").add(PowerCut, 2, ("B", 0))
    builder.add(BrokerOpened, 3, ("B", 2), term=101, flush=flush)
    assert builder.granted(4, 9, C1, generation=2).broken(check) == laws


def test_deleted_topic_may_cause_a_new_generation() -> None:
    builder = HistoryBuilder().granted(1, 1).committed(2, 1, 5).add(LayoutSent, 3, ADMIN, counter=2, deleted=True)
    assert builder.granted(4, 2, C2, generation=2, offset=0).broken(check) == []


@pytest.mark.parametrize(("offset", "laws"), [(5, []), (6, ["O1"])])
def test_grant_past_the_committed_offset_is_a_violation(offset: int, laws: list[str]) -> None:
    assert HistoryBuilder().granted(1, 1).committed(2, 1, 5).granted(3, 2, C2, offset=offset).broken(check) == laws


def test_commit_without_a_response_may_have_been_accepted() -> None:
    builder = HistoryBuilder().granted(1, 1).add(CommitSent, 2, C1, offset=6)
    assert builder.granted(3, 2, C2, offset=6).broken(check) == []
    assert builder.granted(4, 3, C1, offset=7).broken(check) == ["O1"]


def test_reported_gap_may_move_a_groups_offset() -> None:
    builder = HistoryBuilder().granted(1, 1).granted(2, 2, C2, offset=9)
    assert builder.broken(check) == ["O1"]
    assert builder.add(QueueGapSeen, 2.1, C2, first=0, end=9).broken(check) == []


@pytest.mark.parametrize(("t", "laws"), [(3.101, []), (3.103, ["O1"])])
def test_commit_or_pull_of_the_old_generation_served_after_a_reset_is_a_violation(t: float, laws: list[str]) -> None:
    """The request was sent 2 ms before `t`."""
    assert reset(1).committed(t, 1, 6).broken(check) == laws
    pulled = reset(1).add(PullReceived, t, C1, epoch=epoch(1), code=0, offset=5, request_t=t - 0.002)
    assert pulled.broken(check) == laws


def test_reset_without_a_response_may_lower_the_offset() -> None:
    assert reset(1, responded=False).granted(4, 2, C2, generation=2, offset=1).broken(progress.check) == []
    assert reset(1, responded=False).granted(4, 2, C2, generation=2, offset=2).broken(progress.check) == ["O6"]


def skipping(before: int, offset: int) -> HistoryBuilder:
    """m0, m1 and m2 are stored. After a reset from `before` to `offset`, m2 is done under a grant at 2. m1 is never done."""
    builder = HistoryBuilder().add(ConsumerStarted, 0.1, C1).granted(0.5, 1)
    for number in range(3):
        builder.sent(1 + number / 10, b"m%d" % number, number)
    builder.call(1.5, 1.6, 1, 0).committed(1.7, 1, 1)
    builder.add(ResetSent, 2, ADMIN, offset=offset, request=7).add(ProgressReset, 2.1, B, offset=offset, before=before, request=7)
    builder.granted(3, 2, C1, generation=2, offset=2).call(3.1, 3.2, 2, 2).committed(3.3, 2, 3)
    return builder.add(CalmBegan, 3.4, ("", 0)).read(9, b"m0", b"m1", b"m2")


@pytest.mark.parametrize(("before", "offset", "laws"), [(1, 2, []), (2, 2, ["O5"]), (0, 1, ["O5"])])
def test_only_messages_skipped_by_a_reset_need_no_call(before: int, offset: int, laws: list[str]) -> None:
    assert skipping(before, offset).broken(delivery.check) == laws


def test_order_of_a_key_is_not_checked_across_a_skip_and_a_reset_backward() -> None:
    def builder(before: int) -> HistoryBuilder:
        back = skipping(before, 2).add(ResetSent, 4, ADMIN, offset=1, request=8)
        back.add(ProgressReset, 4.1, B, offset=1, before=3, request=8).granted(5, 3, C1, generation=3, offset=1)
        return back.call(5.1, 5.2, 3, 1).call(5.3, 5.4, 3, 2)

    assert builder(1).broken(keys.check) == []
    assert builder(2).broken(keys.check) == ["O4"]
