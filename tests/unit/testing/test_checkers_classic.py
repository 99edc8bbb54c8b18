"""Locks of clients without a session: valid for 60 s, one holder, renewed and taken over as in RocketMQ."""

import pytest

from support.histories import B, HistoryBuilder, Q, epoch
from sweep.checkers import ownership
from sweep.checkers.classic import check
from sweep.checkers.messages import first_offsets
from sweep.events.locks import ClassicLocked, ClassicUnlocked, ClassicUnlockSent, LockGranted
from sweep.events.progress import CommitResponded
from sweep.events.universe import BrokerOpened, PowerCut, ProcessEnded
from sweep.history import ItemVerdict


def lock(builder: HistoryBuilder, t: float, who: str = "c1", *, granted: bool = True, process: int = 1) -> HistoryBuilder:
    """Record a lock that was requested 2 ms before its response."""
    facts = {"client_id": who, "client": 11 if who == "c1" else 12, "granted": granted, "request_t": t - 0.002}
    return builder.add(ClassicLocked, t, ("B", process), **facts)


@pytest.mark.parametrize(("t", "laws"), [(61.997, ["classic"]), (61.999, [])])
def test_classic_lock_can_be_taken_over_only_after_60_s(t: float, laws: list[str]) -> None:
    """c1 asked at 1.998."""
    assert lock(lock(HistoryBuilder(), 2), t, "c2").broken(check) == laws
    grant = {"epoch": epoch(1), "session": "s2", "client": 12}
    assert lock(HistoryBuilder(), 2).add(LockGranted, t, B, **grant).broken(check) == laws


@pytest.mark.parametrize(("t", "laws"), [(30.4, ["classic"]), (30.6, [])])
def test_classic_lock_that_a_power_cut_removed_is_trusted_for_30_s(t: float, laws: list[str]) -> None:
    """c1 was granted it at 2; clocks may differ by 1.5 s."""

    def cut() -> HistoryBuilder:
        builder = lock(HistoryBuilder(flush="async"), 2).add(ProcessEnded, 3, B, how="power").add(PowerCut, 3, ("B", 0))
        return builder.add(BrokerOpened, 4, ("B", 2), term=101, flush="async")

    assert lock(cut(), t, "c2", process=2).broken(check) == laws
    assert lock(cut(), t, "c1", process=2).broken(check) == []
    assert cut().add(LockGranted, t, ("B", 2), epoch=epoch(1), session="s2", client=12).broken(check) == laws


def test_each_renewal_extends_a_classic_lock_by_60_s() -> None:
    assert lock(lock(lock(HistoryBuilder(), 2), 40), 70, "c2").broken(check) == ["classic"]
    assert lock(lock(lock(HistoryBuilder(), 2), 40), 100.1, "c2").broken(check) == []


def test_unlocked_classic_lock_can_be_taken_over_immediately() -> None:
    builder = lock(lock(HistoryBuilder(), 2), 5, "c2")
    assert builder.broken(check) == ["classic"]
    assert builder.add(ClassicUnlockSent, 4, ("C1", 11), client_id="c1").broken(check) == []
    other = lock(lock(HistoryBuilder(), 2), 5, "c2").add(ClassicUnlockSent, 4, ("C2", 12), client_id="c2")
    assert other.broken(check) == ["classic"], "what another unlocks has no effect"


def test_classic_lock_is_free_after_the_unlock_response() -> None:
    builder = lock(HistoryBuilder(), 2).add(ClassicUnlockSent, 4, ("C1", 11), client_id="c1")
    builder.add(ClassicUnlocked, 4.001, B, client_id="c1", request_t=4)
    assert lock(lock(builder, 5, "c2"), 6).broken(check) == ["classic"]


@pytest.mark.parametrize(("t", "laws"), [(61.9, ["classic"]), (62.1, [])])
def test_refusal_of_a_classic_lock_to_its_holder_is_a_violation(t: float, laws: list[str]) -> None:
    assert lock(lock(HistoryBuilder(), 2), t, granted=False).broken(check) == laws


@pytest.mark.parametrize(("t", "laws"), [(64.4, []), (64.6, ["classic"])])
def test_refusal_of_an_expired_classic_lock_is_a_violation(t: float, laws: list[str]) -> None:
    assert lock(lock(HistoryBuilder(), 2), t, "c2", granted=False).broken(check) == laws


def test_broker_restart_extends_every_classic_lock_by_60_s() -> None:
    builder = lock(HistoryBuilder(), 2).add(ProcessEnded, 50, B, how="kill").add(BrokerOpened, 51, ("B", 2), term=101)
    assert lock(builder, 70, "c2", granted=False, process=2).broken(check) == []


def test_session_granted_after_the_classic_lock_may_hold_the_queue() -> None:
    builder = lock(HistoryBuilder(), 2).add(LockGranted, 62.1, B, epoch=epoch(1), session="s2", client=12)
    assert lock(builder, 70, "c1", granted=False).broken(check) == []


def test_power_cut_under_async_flush_may_lose_a_classic_lock() -> None:
    def builder(flush: str) -> HistoryBuilder:
        reported = lock(HistoryBuilder(flush=flush), 2).add(ProcessEnded, 3, B, how="power").add(PowerCut, 3, ("B", 0))
        return lock(reported.add(BrokerOpened, 4, ("B", 2), term=101, flush=flush), 34, "c2", process=2)

    assert builder("async").broken(check) == []
    assert builder("sync").broken(check) == ["classic"]


@pytest.mark.parametrize(("client", "t", "verdict", "laws"), [
    (12, 3, ItemVerdict.OK, ["classic"]),
    (12, 3, ItemVerdict.REFUSED, []),
    (11, 3, ItemVerdict.OK, []),
    (12, 62.1, ItemVerdict.OK, []),
])  # fmt: skip
def test_offset_accepted_from_a_client_other_than_the_lock_holder_is_a_violation(
    client: int, t: float, verdict: ItemVerdict, laws: list[str]
) -> None:
    facts = {"epoch": None, "offset": 5, "by": "UPDATE", "session": None, "client": client, "verdict": verdict, "request_t": t - 0.002}
    assert lock(HistoryBuilder(), 2).add(CommitResponded, t, B, **facts).broken(check) == laws


def test_classic_lock_of_a_queue_held_by_a_session_is_a_violation() -> None:
    held = HistoryBuilder().granted(1, 1)
    assert lock(held, 2, "c2").broken(ownership.check) == ["R3"]
    assert lock(HistoryBuilder().granted(1, 1), 3.6, "c2").broken(ownership.check) == [], "its proof is over"
    assert lock(HistoryBuilder().granted(1, 1), 2, "c2", granted=False).broken(ownership.check) == []


@pytest.mark.parametrize(("t", "verdict", "laws"), [(2, ItemVerdict.OK, ["R3"]), (2, ItemVerdict.REFUSED, []), (3.6, ItemVerdict.OK, [])])
def test_offset_accepted_without_an_epoch_while_a_session_holds_the_queue_is_a_violation(
    t: float, verdict: ItemVerdict, laws: list[str]
) -> None:
    facts = {"epoch": None, "offset": 5, "by": "UPDATE", "session": None, "client": 12, "verdict": verdict, "request_t": t - 0.002}
    assert HistoryBuilder().granted(1, 1).add(CommitResponded, t, B, **facts).broken(ownership.check) == laws


def test_group_of_classic_clients_starts_at_the_first_message() -> None:
    assert first_offsets(lock(HistoryBuilder(), 2).history()) == {Q: 0}
    assert first_offsets(lock(HistoryBuilder(), 2, granted=False).history()) == {}
