"""O1, O2, O6, R6: each clause accepts a correct history and finds its violation."""

import pytest

from support.histories import C1, C2, B, HistoryBuilder, epoch
from sweep.checkers.progress import check
from sweep.events.locks import LockGranted
from sweep.events.progress import ProgressReset
from sweep.events.universe import BrokerOpened, PowerCut, ProcessEnded
from sweep.history import ItemVerdict

B2 = ("B", 2)


def moved(offset: int, *, generation: int = 1) -> HistoryBuilder:
    """C1 commits 5 and C2 gets the queue at `offset`."""
    return HistoryBuilder().granted(1, 1).committed(2, 1, 5).granted(3, 2, C2, offset=offset, generation=generation)


def test_grant_at_the_accepted_offset_is_allowed() -> None:
    assert moved(5).broken(check) == []


def test_lower_offset_within_a_generation_is_a_violation() -> None:
    assert moved(4).broken(check) == ["O1", "O6"]


def test_grant_need_not_include_a_commit_accepted_after_its_request() -> None:
    for request_t, laws in ((1.9985, []), (1.999, []), (1.9995, ["O1", "O6"])):
        grant = {"epoch": epoch(2), "offset": 4, "session": "s2", "client": 12, "request_t": request_t}
        assert HistoryBuilder().granted(1, 1).committed(2, 1, 5).add(LockGranted, 3, **grant).broken(check) == laws, request_t


def test_commit_with_a_stale_response_was_not_accepted() -> None:
    builder = HistoryBuilder().granted(1, 1).committed(2, 1, 5, verdict=ItemVerdict.STALE).granted(3, 2, C2)
    assert builder.broken(check) == []


@pytest.mark.parametrize(("number", "laws"), [(2, ["O1"]), (3, ["O1"]), (4, [])])
def test_acquisition_without_a_higher_epoch_is_a_violation(number: int, laws: list[str]) -> None:
    assert HistoryBuilder().granted(1, 3).granted(2, number, C2).broken(check) == laws


def test_renewal_below_a_newer_epoch_is_a_violation() -> None:
    assert HistoryBuilder().granted(1, 1).granted(2, 1, renewal=True).broken(check) == []
    assert HistoryBuilder().granted(1, 1).granted(2, 2, C2).granted(3, 1, renewal=True).broken(check) == ["O1"]


@pytest.mark.parametrize(("term", "laws"), [(99, ["O1"]), (100, ["O1"]), (101, [])])
def test_broker_start_without_a_higher_term_is_a_violation(term: int, laws: list[str]) -> None:
    assert HistoryBuilder().add(BrokerOpened, 5, B2, term=term).broken(check) == laws


def test_epoch_of_another_term_than_its_brokers_is_a_violation() -> None:
    assert HistoryBuilder().add(BrokerOpened, 5, B2, term=101).granted(6, 1, C1).broken(check) == []
    wrong = HistoryBuilder().add(LockGranted, 6, epoch=epoch(1, term=99))
    assert wrong.broken(check) == ["O1"]


def test_lower_generation_is_a_violation() -> None:
    assert HistoryBuilder().granted(1, 1, generation=2).granted(2, 2, C2, generation=2).broken(check) == []
    assert HistoryBuilder().granted(1, 1, generation=2).granted(2, 2, C2, generation=1).broken(check) == ["O1"]


def test_message_first_accepted_twice_is_a_violation() -> None:
    good = HistoryBuilder().granted(1, 1).committed(2, 1, 5).granted(3, 2, C2, offset=5).committed(4, 2, 7, C2)
    assert good.broken(check) == []
    bad = HistoryBuilder().granted(1, 1).committed(2, 1, 5).granted(3, 2, C2, offset=4).committed(4, 2, 5, C2)
    assert "O2" in bad.broken(check)
    only_repeated = HistoryBuilder().granted(1, 1).committed(2, 1, 5).granted(3, 2, C2, offset=4).committed(4, 2, 4, C2)
    assert "O2" not in only_repeated.broken(check)


def test_late_commit_of_an_older_epoch_is_a_violation() -> None:
    builder = HistoryBuilder().granted(1, 1).granted(2, 2, C2).committed(3, 2, 3, C2).committed(4, 1, 2)
    assert builder.broken(check) == ["O2"]


def test_higher_generation_may_start_lower_only_after_a_reset() -> None:
    assert moved(4, generation=2).broken(check) == ["O6"]
    reset = HistoryBuilder().granted(1, 1).committed(2, 1, 5).add(ProgressReset, 2.5, B, offset=0).granted(3, 2, C2, generation=2)
    assert reset.broken(check) == []


def restarted(how: str, offset: int, *, committed_t: float, flush: str = "async") -> HistoryBuilder:
    """C1's commit of 5 is received at `committed_t`, the broker ends at 10, opens again at 11 and grants at `offset`."""
    builder = HistoryBuilder(flush=flush).granted(1, 1).committed(committed_t, 1, 5).add(ProcessEnded, 10, B, how=how)
    if how == "power":
        builder.add(PowerCut, 10, ("B", 0))
    builder.add(BrokerOpened, 11, B2, term=101)
    grant = {"epoch": epoch(9, 101), "offset": offset, "generation": 2, "session": "s2", "request_t": 11.5}
    return builder.add(LockGranted, 12, B2, **grant)


def test_lost_commit_after_a_kill_is_a_violation() -> None:
    assert restarted("kill", 5, committed_t=9.9).broken(check) == []
    assert restarted("kill", 4, committed_t=9.9).broken(check) == ["R6"]


@pytest.mark.parametrize(("committed_t", "laws"), [(8.499, ["R6"]), (8.501, []), (8.503, [])])
def test_power_cut_under_async_flush_may_lose_commits_of_one_interval_and_one_sync(committed_t: float, laws: list[str]) -> None:
    """The broker loses power at 10; one flush interval (500 ms) and one sync (at most 1 s) before it is 8.5."""
    assert restarted("power", 4, committed_t=committed_t + 0.001).broken(check) == laws


def test_lost_commit_after_a_power_cut_under_sync_flush_is_a_violation() -> None:
    assert restarted("power", 4, committed_t=9.999, flush="sync").broken(check) == ["R6"]
