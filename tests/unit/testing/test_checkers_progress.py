"""O1, O2, O6, R6: each clause accepts a correct history and finds its violation."""

from support.histories import B2, C2, HELD, B, HistoryBuilder, assert_faults, epoch
from sweep.checkers.progress import check
from sweep.events.locks import LockGranted
from sweep.events.progress import ProgressReset
from sweep.history import ItemVerdict


def moved(offset: int, *, generation: int = 1) -> HistoryBuilder:
    """C1 commits 5 and C2 gets the queue at `offset`."""
    return HELD.committed(2, 1, 5).granted(3, 2, C2, offset=offset, generation=generation)


def test_grant_begins_at_the_accepted_offset_or_above() -> None:
    def requested(t: float) -> HistoryBuilder:
        """C2's grant below the commit, which was accepted at 1.999, is requested at t."""
        grant = {"epoch": epoch(2), "offset": 4, "session": "s2", "client": 12, "request_t": t}
        return HELD.committed(2, 1, 5).add(LockGranted, 3, **grant)

    reset = HELD.committed(2, 1, 5).add(ProgressReset, 2.5, B, offset=0).granted(3, 2, C2, generation=2)
    assert_faults(check, {
        "at it": (moved(5), ""), "below": (moved(4), "O1 O6"), "below, in a new generation": (moved(4, generation=2), "O6"),
        "reset": (reset, ""),
        "requested before it": (requested(1.9985), ""), "with it": (requested(1.999), ""), "after it": (requested(1.9995), "O1 O6"),
        "a stale commit": (HELD.committed(2, 1, 5, verdict=ItemVerdict.STALE).granted(3, 2, C2), ""),
    })  # fmt: skip


def test_acquisition_without_a_higher_epoch_is_a_violation() -> None:
    third, second = HistoryBuilder().granted(1, 3), HistoryBuilder().granted(1, 1, generation=2)
    assert_faults(check, {
        "lower": (third.granted(2, 2, C2), "O1"), "equal": (third.granted(2, 3, C2), "O1"), "higher": (third.granted(2, 4, C2), ""),
        "a renewal": (HELD.granted(2, 1, renewal=True), ""),
        "a renewal below a newer epoch": (HELD.granted(2, 2, C2).granted(3, 1, renewal=True), "O1"),
        "a lower term of a start": (HistoryBuilder().opened(5, term=99), "O1"),
        "an equal term": (HistoryBuilder().opened(5, term=100), "O1"), "a higher term": (HistoryBuilder().opened(5, term=101), ""),
        "an epoch of the term before": (HistoryBuilder().opened(5, term=101).granted(6, 1), ""),
        "an epoch of another term": (HistoryBuilder().add(LockGranted, 6, epoch=epoch(1, term=99)), "O1"),
        "an equal generation": (second.granted(2, 2, C2, generation=2), ""),
        "a lower generation": (second.granted(2, 2, C2, generation=1), "O1"),
    })  # fmt: skip


def test_message_first_accepted_twice_is_a_violation() -> None:
    assert_faults(check, {
        "once": (moved(5).committed(4, 2, 7, C2), ""), "twice": (moved(4).committed(4, 2, 5, C2), "O1 O2 O6"),
        "only repeated": (moved(4).committed(4, 2, 4, C2), "O1 O6"),
        "a late commit of an older epoch": (HELD.granted(2, 2, C2).committed(3, 2, 3, C2).committed(4, 1, 2), "O2"),
    })  # fmt: skip


def test_power_cut_under_async_flush_may_lose_commits_of_one_interval_and_one_sync() -> None:
    """C1's commit of 5 is received at t, the broker ends at 10, opens again at 11 and grants the queue. 1.5 s before 10 it is synced."""

    def committed(t: float, flush: str = "async") -> HistoryBuilder:
        return HistoryBuilder(flush=flush).granted(1, 1).committed(t, 1, 5)

    def granted(builder: HistoryBuilder, offset: int = 4) -> HistoryBuilder:
        grant = {"epoch": epoch(9, 101), "offset": offset, "generation": 2, "session": "s2", "request_t": 11.5}
        return builder.add(LockGranted, 12, B2, **grant)

    def cut(t: float, flush: str = "async") -> HistoryBuilder:
        return granted(committed(t, flush).power_cut(10, 11))

    assert_faults(check, {
        "killed, at it": (granted(committed(9.9).killed(10).opened(11), 5), ""),
        "killed, below": (granted(committed(9.9).killed(10).opened(11)), "R6"),
        "cut, before": (cut(8.5), "R6"), "cut, at the limit": (cut(8.502), ""), "cut, after": (cut(8.504), ""),
        "cut, under sync flush": (cut(9.999, "sync"), "R6"),
    })  # fmt: skip
