"""O5 and R5 at the end of a run."""

import pytest

from support.histories import C1, B, HistoryBuilder, Q, epoch
from sweep.checkers.delivery import check, recovery_s
from sweep.events.consumers import ConsumerStarted, QueueGapSeen
from sweep.events.locks import LockGranted
from sweep.events.progress import CommitResponded
from sweep.events.sends import DeadLetterSent
from sweep.events.universe import BrokerOpened, CalmBegan, CopyStored, PowerCut, ProcessEnded
from sweep.history import CallResult, QueueKey


def builder(*, calm_t: float = 5.0, expression: str = "*", begin: int = 0) -> HistoryBuilder:
    """m0 and m1 are acknowledged; the group is granted the queue at `begin`."""
    reported = HistoryBuilder().add(ConsumerStarted, 0.5, C1, expressions=(("orders", expression),)).add(CalmBegan, calm_t, ("", 0))
    reported.sent(1, b"m0", 0, tags="B").sent(1.1, b"m1", 1, tags="A").read(500, b"m0", b"m1")
    return reported.granted(2, 1, offset=begin)


def test_run_with_all_messages_done_and_accepted_has_no_violation() -> None:
    good = builder().call(3, 3.1, 1, 0, 1).committed(6, 1, 2)
    assert good.broken(check) == []
    recovered = recovery_s(good.history())
    assert recovered == pytest.approx(0.999)


def test_message_that_no_call_has_done_is_a_violation() -> None:
    assert builder().call(3, 3.1, 1, 1).committed(6, 1, 2).broken(check) == ["O5"]
    assert builder().call(3, 3.1, 1, 0, 1, result=CallResult.ERROR).committed(6, 1, 2).broken(check) == ["O5", "O5"]


def test_stored_dead_letter_counts_even_without_a_response() -> None:
    def lettered(body: bytes, group: str = "billing") -> HistoryBuilder:
        reported = (
            builder().call(3, 3.1, 1, 1).add(DeadLetterSent, 3.2, C1, queue=Q, epoch=1, offset=0, attempts=4, advance=True, request=9)
        )
        place = QueueKey("", "broker-a", f"%DLQ%{group}", 0)
        reported.add(CopyStored, 501, ("", 0), queue=place, offset=0, body=body, retries=1, origin="")
        return reported.committed(6, 1, 2)

    assert lettered(b"m0").broken(check) == []
    assert lettered(b"m1").broken(check) == ["O5"], "it was asked for, and is not there"
    assert lettered(b"m0", "audit").broken(check) == ["O5"], "another group's"


def test_another_message_at_the_offset_does_not_count() -> None:
    assert builder().call(3, 3.1, 1, 0, 1, bodies=(b"x", b"m1")).committed(6, 1, 2).broken(check) == ["O5"]


def test_filtered_messages_gaps_and_messages_before_the_start_need_no_call() -> None:
    assert builder(expression="A").call(3, 3.1, 1, 1).committed(6, 1, 2).broken(check) == []
    assert builder().add(QueueGapSeen, 2.5, C1, first=0, end=1).call(3, 3.1, 1, 1).committed(6, 1, 2).broken(check) == []
    assert builder(begin=1).call(3, 3.1, 1, 1).committed(6, 1, 2).broken(check) == []


@pytest.mark.parametrize(
    ("cut", "written", "flush", "laws"),
    [
        (False, False, "sync", ["O5"]),
        (True, False, "sync", ["O5"]),
        (False, True, "sync", ["O5"]),
        (True, True, "sync", []),
        (True, False, "async", []),
    ],
)
def test_message_removed_by_retention_before_delivery_is_a_violation_unless_a_power_cut_may_have_lost_it(
    cut: bool, written: bool, flush: str, laws: list[str]
) -> None:
    reported = HistoryBuilder(flush=flush).add(ConsumerStarted, 0.5, C1).add(CalmBegan, 5.0, ("", 0)).granted(0.8, 1)
    reported.sent(1, b"m0", 0, written=written).sent(1.1, b"m1", 1).call(3, 3.1, 1, 1)
    if cut:
        reported.add(ProcessEnded, 3.5, B, how="power").add(PowerCut, 3.5, ("B", 0))
    assert reported.committed(6, 1, 2).read(500, b"m1", first=1).broken(check) == laws


@pytest.mark.parametrize(
    ("flush", "granted_t", "cut", "laws"),
    [
        ("async", 3.4, True, []),
        ("async", 0.8, True, ["O5"]),  # synced before the power was cut
        ("sync", 3.4, True, ["O5"]),
        ("async", 3.4, False, ["O5"]),  # a killed process loses nothing
    ],
)
def test_group_may_start_again_only_if_a_power_cut_may_have_lost_its_start(
    flush: str, granted_t: float, cut: bool, laws: list[str]
) -> None:
    reported = HistoryBuilder(flush=flush).add(ConsumerStarted, 0.5, C1).add(CalmBegan, 5.0, ("", 0)).granted(granted_t, 1, offset=0)
    reported.add(ProcessEnded, 3.5, B, how="power" if cut else "kill")
    if cut:
        reported.add(PowerCut, 3.5, ("B", 0))
    again = ("B", 2)
    reported.add(BrokerOpened, 4, again, term=101, flush=flush)
    reported.sent(4.1, b"m0", 0, answerer=again).sent(4.2, b"m1", 1, answerer=again).read(500, b"m0", b"m1")
    reported.add(LockGranted, 4.5, again, offset=1, generation=2, epoch=epoch(2))
    reported.call(4.6, 4.7, 2, 1).add(CommitResponded, 6, again, epoch=epoch(2), offset=2)
    assert reported.broken(check) == laws


def test_queue_that_is_not_committed_to_its_end_is_a_violation() -> None:
    stuck = builder().call(3, 3.1, 1, 0, 1).committed(6, 1, 1)
    assert stuck.broken(check) == ["R5"]
    assert recovery_s(stuck.history()) is None


def test_queue_that_was_never_granted_is_a_violation() -> None:
    reported = HistoryBuilder().add(ConsumerStarted, 0.5, C1).add(CalmBegan, 5, ("", 0)).sent(1, b"m0", 0).read(500, b"m0")
    assert reported.broken(check) == ["R5"]
    (found,) = check(reported.history())
    assert str(Q) in found.text


@pytest.mark.parametrize(("t", "laws"), [(95.0, []), (95.002, ["R5"])])
def test_end_must_be_reached_within_90_s_after_faults_stop(t: float, laws: list[str]) -> None:
    """The response to a commit received at t was sent 1 ms before."""
    assert builder().call(3, 3.1, 1, 0, 1).committed(t, 1, 2).broken(check) == laws


def test_run_whose_faults_never_stop_is_not_checked() -> None:
    assert HistoryBuilder().add(ConsumerStarted, 0.5, C1).sent(1, b"m0", 0).read(500, b"m0").broken(check) == []


def test_concurrent_group_needs_no_lock_grants() -> None:
    reported = HistoryBuilder().add(ConsumerStarted, 0.5, C1, ordered=False).add(CalmBegan, 5, ("", 0)).sent(1, b"m0", 0).read(500, b"m0")
    assert reported.broken(check) == []
