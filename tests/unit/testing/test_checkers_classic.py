"""L1, locks of clients without a session: valid for 60 s, one holder, renewed and taken over as in RocketMQ."""

from support.histories import C1, C2, HELD, B, HistoryBuilder, Q, assert_faults, epoch
from sweep.checkers import ownership
from sweep.checkers.classic import check
from sweep.checkers.messages import first_offsets
from sweep.events.locks import ClassicLocked, ClassicUnlocked, ClassicUnlockSent, LockGranted
from sweep.events.progress import CommitResponded
from sweep.history import ItemVerdict

OK, REFUSED = ItemVerdict.OK, ItemVerdict.REFUSED


def lock(builder: HistoryBuilder, t: float, who: str = "c1", *, granted: bool = True, process: int = 1) -> HistoryBuilder:
    """Record a lock that was requested 2 ms before its response."""
    facts = {"client_id": who, "client": 11 if who == "c1" else 12, "granted": granted, "request_t": t - 0.002}
    return builder.add(ClassicLocked, t, ("B", process), **facts)


def locked(flush: str = "async") -> HistoryBuilder:
    """c1 gets the lock at 2: it was requested at 1.998."""
    return lock(HistoryBuilder(flush=flush), 2)


def cut(flush: str = "async") -> HistoryBuilder:
    return locked(flush).power_cut(3, 4)


def session(builder: HistoryBuilder, t: float, process: int = 1) -> HistoryBuilder:
    return builder.add(LockGranted, t, ("B", process), epoch=epoch(1), session="s2", client=12)


def test_classic_lock_can_be_taken_over_only_after_60_s() -> None:
    """Or once it is unlocked."""

    def unlocked(where: tuple[str, int], who: str) -> HistoryBuilder:
        return locked().add(ClassicUnlockSent, 4, where, client_id=who)

    answered = unlocked(C1, "c1").add(ClassicUnlocked, 4.001, B, client_id="c1", request_t=4)
    assert_faults(check, {
        "a client, before": (lock(locked(), 61.997, "c2"), "classic"), "a client, after": (lock(locked(), 61.999, "c2"), ""),
        "a session, before": (session(locked(), 61.997), "classic"), "a session, after": (session(locked(), 61.999), ""),
        "before, and it was renewed": (lock(lock(locked(), 40), 70, "c2"), "classic"),
        "after, and it was renewed": (lock(lock(locked(), 40), 100.1, "c2"), ""),
        "unlocked": (lock(unlocked(C1, "c1"), 5, "c2"), ""), "unlocked by another": (lock(unlocked(C2, "c2"), 5, "c2"), "classic"),
        "unlocked, taken over and locked again": (lock(lock(answered, 5, "c2"), 6), "classic"),
    })  # fmt: skip


def test_classic_lock_that_a_power_cut_removed_is_trusted_for_30_s() -> None:
    """Clocks may differ by 1.5 s."""
    assert_faults(check, {
        "a client, before": (lock(cut(), 30.4, "c2", process=2), "classic"), "a client, after": (lock(cut(), 30.6, "c2", process=2), ""),
        "its holder, before": (lock(cut(), 30.4, process=2), ""), "its holder, after": (lock(cut(), 30.6, process=2), ""),
        "a session, before": (session(cut(), 30.4, 2), "classic"), "a session, after": (session(cut(), 30.6, 2), ""),
        "sync flush removes nothing": (lock(cut("sync"), 34, "c2", process=2), "classic"),
    })  # fmt: skip


def test_classic_lock_is_refused_to_others_only_and_while_it_is_valid() -> None:
    restarted = locked().killed(50).opened(51)
    assert_faults(check, {
        "to its holder": (lock(locked(), 61.9, granted=False), "classic"), "to its last holder": (lock(locked(), 62.1, granted=False), ""),
        "to another, within the tolerance": (lock(locked(), 64.4, "c2", granted=False), ""),
        "to another, after it ended": (lock(locked(), 64.6, "c2", granted=False), "classic"),
        "to another, and a start has extended it": (lock(restarted, 70, "c2", granted=False, process=2), ""),
        "to its last holder, and a session has the queue": (lock(session(locked(), 62.1), 70, granted=False), ""),
    })  # fmt: skip


def updated(builder: HistoryBuilder, t: float, client: int, verdict: ItemVerdict) -> HistoryBuilder:
    facts = {"epoch": None, "offset": 5, "by": "UPDATE", "session": None, "client": client, "verdict": verdict, "request_t": t - 0.002}
    return builder.add(CommitResponded, t, B, **facts)


def test_offset_is_accepted_only_from_the_lock_holder() -> None:
    assert_faults(check, {
        "from another": (updated(locked(), 3, 12, OK), "classic"), "refused": (updated(locked(), 3, 12, REFUSED), ""),
        "from the holder": (updated(locked(), 3, 11, OK), ""), "after the lock": (updated(locked(), 62.1, 12, OK), ""),
    })  # fmt: skip


def test_classic_client_gets_nothing_of_a_queue_that_a_session_holds() -> None:
    """The proof of the session ends at 3.498."""
    assert_faults(ownership.check, {
        "a lock": (lock(HELD, 2, "c2"), "R3"), "a lock after the proof": (lock(HELD, 3.6, "c2"), ""),
        "a refused lock": (lock(HELD, 2, "c2", granted=False), ""), "an offset": (updated(HELD, 2, 12, OK), "R3"),
        "a refused offset": (updated(HELD, 2, 12, REFUSED), ""), "an offset after the proof": (updated(HELD, 3.6, 12, OK), ""),
    })  # fmt: skip


def test_group_of_classic_clients_starts_at_the_first_message() -> None:
    assert first_offsets(locked().history()) == {Q: 0}
    assert first_offsets(lock(HistoryBuilder(), 2, granted=False).history()) == {}
