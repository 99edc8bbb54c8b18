"""R3: one holder of a queue at a time."""

import pytest

from lockstep.protocol.codes import ResponseCode
from support.histories import C1, C2, TERM, B, HistoryBuilder, Q, epoch
from sweep.checkers.ownership import check
from sweep.events.locks import GrantReceived, LockRefused, LockSent, StaleReceived
from sweep.events.progress import CommitSent, ProgressReset, PullReceived
from sweep.events.universe import BrokerOpened, Fault, PowerCut, ProcessEnded
from sweep.history import ItemVerdict

B2 = ("B", 2)


def moved(t: float) -> HistoryBuilder:
    """C1 is granted at 1 (deadline 3.498), C2 gets a grant at t."""
    return HistoryBuilder().granted(1, 1).granted(t + 0.001, 2, C2)


@pytest.mark.parametrize(("t", "laws"), [(3.497, ["R3"]), (3.498, []), (3.499, [])])
def test_grant_before_the_holders_lease_expires_is_a_violation(t: float, laws: list[str]) -> None:
    assert moved(t).broken(check) == laws


def test_holder_that_released_was_notified_or_is_dead_no_longer_holds() -> None:
    assert moved(2).broken(check) == ["R3"]
    assert moved(2).add(CommitSent, 1.5, C1, released=True).broken(check) == []
    assert moved(2).add(StaleReceived, 1.5, C1).broken(check) == []
    assert moved(2).add(LockRefused, 1.5, verdict=ItemVerdict.NOT_YOURS).broken(check) == []
    assert moved(2).add(LockRefused, 1.5, verdict=ItemVerdict.HELD).broken(check) == ["R3"]
    assert moved(2).committed(1.5, 1, 1, verdict=ItemVerdict.STALE).broken(check) == []
    assert moved(2).add(ProcessEnded, 1.5, C1, how="kill").broken(check) == []
    assert moved(2).add(LockSent, 1.5, C1).broken(check) == []
    assert moved(2).add(LockSent, 1.5, C1, items=((Q, epoch(1)),)).broken(check) == ["R3"]
    assert moved(2).add(ProgressReset, 1.5, B, offset=0).broken(check) == ["R3"], "it has not heard of it"
    assert moved(2).add(Fault, 1.5, ("B", 0), kind="wipe", target="broker-a").broken(check) == []


def test_renewal_restores_ownership_only_if_requested_after_the_release() -> None:
    renewal = {"epoch": epoch(1), "renewal": True}
    early = moved(2).add(CommitSent, 1.5, C1, released=True).add(GrantReceived, 1.6, C1, **renewal)
    assert early.broken(check) == []
    late = moved(2).add(CommitSent, 1.5, C1, released=True).add(LockSent, 1.55, C1, items=((Q, epoch(1)),))
    assert late.add(GrantReceived, 1.6, C1, **renewal).broken(check) == ["R3"]


def restarted(heard_t: float, *, how: str = "kill") -> HistoryBuilder:
    """C1 holds the queue and last sent a request at `heard_t`. The broker ends at 5 and opens its port at 6."""
    builder = HistoryBuilder().granted(1, 1).proven(heard_t, C1).add(ProcessEnded, 5, B, how=how)
    if how == "power":
        builder.add(PowerCut, 5, ("B", 0))
    return builder.add(BrokerOpened, 6, B2, term=TERM + 1)


@pytest.mark.parametrize(("t", "laws"), [(6.6, ["R3"]), (8.69, ["R3"]), (8.71, [])])
def test_grant_within_the_grace_after_a_broker_start_is_a_violation(t: float, laws: list[str]) -> None:
    assert restarted(4.0).granted(t, 2, C2).broken(check) == laws
    assert restarted(2.0).granted(t, 2, C2).broken(check) == [], "its session may have ended before the broker did"
    assert restarted(4.0).add(CommitSent, 4.5, C1, released=True).granted(t, 2, C2).broken(check) == []
    assert restarted(4.0, how="power").granted(t, 2, C2).broken(check) == [], "the broker may have lost the grant"


def test_session_may_acquire_its_own_queue_again() -> None:
    assert HistoryBuilder().granted(1, 1).granted(2, 2).broken(check) == []


def test_epoch_used_by_two_sessions_is_a_violation() -> None:
    assert HistoryBuilder().granted(1, 1).granted(9, 1, C2).broken(check) == ["R3"]
    assert "R3" in HistoryBuilder().granted(1, 1).committed(2, 1, 1, C2).broken(check)


def fenced() -> HistoryBuilder:
    """C2 got its grant at 5."""
    return HistoryBuilder().granted(1, 1).granted(5.001, 2, C2)


@pytest.mark.parametrize(("request_t", "laws"), [(4.999, []), (5.0, []), (5.001, ["R3"])])
def test_request_of_an_older_epoch_accepted_after_the_newer_grant_is_a_violation(request_t: float, laws: list[str]) -> None:
    for released in (False, True):
        assert fenced().committed(request_t + 0.002, 1, 1, released=released).broken(check) == laws
    assert fenced().granted(request_t + 0.002, 1, renewal=True).broken(check) == laws


@pytest.mark.parametrize(("response_t", "laws"), [(4.999, []), (5.0, []), (5.001, ["R3"])])
def test_pull_response_of_an_older_epoch_after_the_newer_grant_is_a_violation(response_t: float, laws: list[str]) -> None:
    pull = {"request_t": 4.0, "response_t": response_t, "code": 0, "epoch": epoch(1)}
    assert fenced().add(PullReceived, 6, C1, **pull).broken(check) == laws


def test_refusal_of_an_older_epoch_is_allowed() -> None:
    assert fenced().committed(6, 1, 1, verdict=ItemVerdict.STALE).broken(check) == []
    assert (
        fenced().add(PullReceived, 6, C1, request_t=5.5, response_t=5.6, code=int(ResponseCode.STALE_EPOCH), epoch=epoch(1)).broken(check)
        == []
    )
