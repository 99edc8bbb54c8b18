"""R3: one holder of a queue at a time."""

from typing import Any

from lockstep.protocol.codes import ResponseCode
from support.histories import C1, C2, HELD, B, HistoryBuilder, Q, assert_faults, epoch
from sweep.checkers.ownership import check
from sweep.events.locks import GrantReceived, LockRefused, LockSent, StaleReceived
from sweep.events.progress import CommitSent, ProgressReset, PullReceived
from sweep.events.universe import Fault
from sweep.history import ItemVerdict


def moved(t: float) -> HistoryBuilder:
    """C1 is granted at 1 (deadline 3.498), C2 gets a grant at t."""
    return HELD.granted(t + 0.001, 2, C2)


def test_grant_before_the_holders_lease_expires_is_a_violation() -> None:
    """Unless the holder has released, was notified, or is dead."""
    renewal = {"epoch": epoch(1), "renewal": True}
    named = {"items": ((Q, epoch(1)),)}
    released = moved(2).add(CommitSent, 1.5, C1, released=True)
    assert_faults(check, {
        "before": (moved(3.497), "R3"), "at the deadline": (moved(3.498), ""), "after": (moved(3.499), ""), "released": (released, ""),
        "notified by STALE": (moved(2).add(StaleReceived, 1.5, C1), ""),
        "notified by NOT_YOURS": (moved(2).add(LockRefused, 1.5, verdict=ItemVerdict.NOT_YOURS), ""),
        "HELD": (moved(2).add(LockRefused, 1.5, verdict=ItemVerdict.HELD), "R3"),
        "a stale commit": (moved(2).committed(1.5, 1, 1, verdict=ItemVerdict.STALE), ""), "dead": (moved(2).killed(1.5, C1), ""),
        "left out in a LOCK": (moved(2).add(LockSent, 1.5, C1), ""), "named in a LOCK": (moved(2).add(LockSent, 1.5, C1, **named), "R3"),
        "reset, of which it has not heard": (moved(2).add(ProgressReset, 1.5, B, offset=0), "R3"),
        "a new store": (moved(2).add(Fault, 1.5, ("B", 0), kind="wipe", target="broker-a"), ""),
        "renewed, requested before the release": (released.add(GrantReceived, 1.6, C1, **renewal), ""),
        "renewed after it": (released.add(LockSent, 1.55, C1, **named).add(GrantReceived, 1.6, C1, **renewal), "R3"),
        "its own": (HELD.granted(2, 2), ""),
    })  # fmt: skip


def test_grant_within_the_grace_after_a_broker_start_is_a_violation() -> None:
    """The broker ends at 5 and opens its port at 6. C1 has held the queue since 1, and last sent a request at `heard_t`."""

    def proven(heard_t: float) -> HistoryBuilder:
        return HELD.proven(heard_t, C1)

    def started(heard_t: float) -> HistoryBuilder:
        return proven(heard_t).killed(5).opened(6)

    rows = {}
    for t, laws in ((6.6, "R3"), (8.69, "R3"), (8.71, "")):
        rows[f"{t}"] = started(4.0).granted(t, 2, C2), laws
        rows[f"{t}, the session may have ended first"] = started(2.0).granted(t, 2, C2), ""
        rows[f"{t}, released"] = started(4.0).add(CommitSent, 4.5, C1, released=True).granted(t, 2, C2), ""
        rows[f"{t}, the grant may be lost"] = proven(4.0).power_cut(5, 6).granted(t, 2, C2), ""
    assert_faults(check, rows)


def test_request_of_an_older_epoch_accepted_after_the_newer_grant_is_a_violation() -> None:
    """C2 got its grant at 5."""
    fenced = HELD.granted(5.001, 2, C2)

    def pull(**facts: Any) -> HistoryBuilder:
        return fenced.add(PullReceived, 6, C1, epoch=epoch(1), **facts)

    rows = {
        "granted to two sessions": (HELD.granted(9, 1, C2), "R3"),
        "committed by two sessions": (HELD.committed(2, 1, 1, C2), "R3"),
        "a stale commit": (fenced.committed(6, 1, 1, verdict=ItemVerdict.STALE), ""),
        "a stale pull": (pull(request_t=5.5, response_t=5.6, code=int(ResponseCode.STALE_EPOCH)), ""),
    }
    for t, laws in ((4.999, ""), (5.0, ""), (5.001, "R3")):
        rows[f"commit at {t}"] = fenced.committed(t + 0.002, 1, 1), laws
        rows[f"release at {t}"] = fenced.committed(t + 0.002, 1, 1, released=True), laws
        rows[f"renewal at {t}"] = fenced.granted(t + 0.002, 1, renewal=True), laws
        rows[f"pull that was served at {t}"] = pull(request_t=4.0, response_t=t, code=0), laws
    assert_faults(check, rows)
