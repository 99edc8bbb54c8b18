"""C2 and R1 of ordered groups that dead-letter."""

import pytest

from support.concurrent_histories import BILLING_DEAD, ConcurrentHistoryBuilder
from support.histories import C1, C2, B
from sweep.checkers.dead_letters import check
from sweep.checkers.delivery import check as check_delivery
from sweep.checkers.steps import check as check_steps
from sweep.events.locks import ConnectionCut, SessionBound
from sweep.events.universe import CalmBegan, ProcessEnded
from sweep.history import CallResult


def builder(*, calls: int = 2) -> ConcurrentHistoryBuilder:
    """m0 failed `calls` times; billing allows 2 attempts."""
    reported = ConcurrentHistoryBuilder().joined(attempts_max=2)
    reported.granted(1, 1)
    for number in range(calls):
        reported.call(2 + number, 2.5 + number, 1, 0, attempt=number, result=CallResult.ERROR)
    return reported


def test_one_dead_letter_after_the_last_attempt_with_progress_after_it_is_allowed() -> None:
    good = builder().letter(4, 1, 0).copy(b"m0", 1, queue=BILLING_DEAD)
    good.granted(9, 2, C2, offset=1)
    assert good.broken(check) == []


@pytest.mark.parametrize(("attempts", "laws"), [(1, ["C2"]), (2, []), (3, [])])
def test_dead_letter_before_the_last_attempt_is_a_violation(attempts: int, laws: list[str]) -> None:
    assert builder().letter(4, 1, 0, attempts=attempts).copy(b"m0", 1, queue=BILLING_DEAD).broken(check) == laws


def test_dead_letter_of_a_group_without_a_limit_is_a_violation() -> None:
    reported = ConcurrentHistoryBuilder().joined()
    reported.granted(1, 1).call(2, 2.5, 1, 0, result=CallResult.ERROR)
    assert reported.letter(4, 1, 0).copy(b"m0", 1, queue=BILLING_DEAD).broken(check) == ["C2"]


def test_extra_attempt_is_a_violation_unless_the_dead_letter_could_not_be_written() -> None:
    assert builder(calls=3).broken(check) == ["C2"]
    assert builder(calls=2).letter(3.6, 1, 0, code=None).call(4, 4.1, 1, 0, attempt=2).broken(check) == []


@pytest.mark.parametrize(("cut", "laws"), [(3.4, []), (3.6, []), (4.5, ["C2"])])
def test_extra_attempt_is_allowed_while_the_connection_is_lost(cut: float, laws: list[str]) -> None:
    """The second call ended at 3.5."""
    reported = builder(calls=2).call(6, 6.1, 1, 0, attempt=2)
    assert reported.add(ConnectionCut, cut, C1, connection=1, session="s1").broken(check) == laws


def test_extra_attempt_on_a_new_connection_is_a_violation() -> None:
    reported = builder(calls=2).call(6, 6.1, 1, 0, attempt=2).add(ConnectionCut, 2.9, C1, connection=1, session="s1")
    assert reported.add(SessionBound, 3.2, C1, connection=2, session="s1").broken(check) == ["C2"]


def test_second_dead_letter_is_a_violation_unless_progress_could_not_advance() -> None:
    def twice(*, advance: bool) -> ConcurrentHistoryBuilder:
        reported = builder().letter(4, 1, 0, advance=advance).letter(5, 1, 0, advance=advance)
        return reported.copy(b"m0", 1, queue=BILLING_DEAD).copy(b"m0", 1, queue=BILLING_DEAD, offset=1)

    assert twice(advance=True).broken(check) == ["C2"]
    assert twice(advance=False).broken(check) == []


def test_dead_letter_that_was_never_requested_is_a_violation() -> None:
    assert builder().letter(4, 1, 0).copy(b"m0", 1, queue=BILLING_DEAD).copy(b"m7", 1, queue=BILLING_DEAD, offset=1).broken(check) == ["C2"]


def test_acknowledged_dead_letter_must_be_stored_unless_lost_by_a_power_cut() -> None:
    def lost(flush: str) -> ConcurrentHistoryBuilder:
        reported = ConcurrentHistoryBuilder(flush=flush).joined(attempts_max=2)
        reported.granted(1, 1).call(2, 2.5, 1, 0, 1, result=CallResult.ERROR).call(3, 3.5, 1, 0, 1, attempt=1, result=CallResult.ERROR)
        return reported.letter(4, 1, 0).letter(4.1, 1, 1).copy(b"m0", 1, queue=BILLING_DEAD)

    assert lost("async").broken(check) == ["R1"]
    assert lost("async").add(ProcessEnded, 4.2, B, how="power").broken(check) == []
    assert lost("sync").add(ProcessEnded, 4.2, B, how="power").broken(check) == ["R1"]


@pytest.mark.parametrize(("offset", "generation", "laws"), [(0, 1, ["C2"]), (1, 1, []), (0, 2, [])])
def test_start_before_a_dead_letter_in_its_generation_is_a_violation(offset: int, generation: int, laws: list[str]) -> None:
    reported = builder().letter(4, 1, 0).copy(b"m0", 1, queue=BILLING_DEAD)
    assert reported.granted(9, 2, C2, offset=offset, generation=generation).broken(check) == laws


def test_progress_may_pass_a_dead_letter_and_it_counts_as_handled() -> None:
    reported = builder().letter(4, 1, 0).call(5, 5.1, 1, 1)
    assert reported.committed(6, 1, 2).broken(check_steps) == []
    assert builder().call(5, 5.1, 1, 1).committed(6, 1, 2).broken(check_steps) == ["O5", "R4a"]
    ended = reported.sent(1, b"m0", 0).sent(1.1, b"m1", 1).add(CalmBegan, 5, ("", 0)).read(500, b"m0", b"m1")
    assert ended.broken(check_delivery) == []


@pytest.mark.parametrize(("ended", "laws"), [(4.002, []), (5.5, ["C2"]), (3.9, ["C2"])])
def test_broker_that_ended_during_the_write_may_duplicate_a_dead_letter(ended: float, laws: list[str]) -> None:
    """Requested at 4 without a response, requested again at 6."""
    reported = builder().letter(4, 1, 0, code=None).copy(b"m0", 1, queue=BILLING_DEAD).add(ProcessEnded, ended, B, how="exit")
    assert reported.letter(6, 1, 0).copy(b"m0", 1, queue=BILLING_DEAD, offset=1).broken(check) == laws
