"""O7: limits on the time in which a queue has no owner."""

import pytest

from support.histories import C1, C2, B, HistoryBuilder, P, assert_faults
from sweep.checkers.handover import check, handovers
from sweep.events.consumers import ConsumerStarted, ConsumerStopBegan, ConsumerStopped
from sweep.events.locks import LeaveSent
from sweep.events.producers import SendAcked, SendBegan
from sweep.events.universe import Fault, PauseBegan, PowerCut

ANOTHER = ("c", 9)
"""Another member."""
READY = HistoryBuilder().granted(10, 1).call(10.1, 10.2, 1, 0).sent(1, b"m1", 1)
"""C1 has owned the queue since 10. The next message has been stored since 1."""


def freed(t: float = 20, offset: int | None = 1, builder: HistoryBuilder | None = None) -> HistoryBuilder:
    """C1 sends a release at t."""
    return (builder or READY).committed(t + 0.002, 1, offset, released=True)


def taken(builder: HistoryBuilder, t: float) -> HistoryBuilder:
    """C2 makes its first call at t."""
    return builder.granted(t - 0.001, 2, C2).call(t, t + 0.1, 2, 1, where=C2)


def restarted(builder: HistoryBuilder) -> HistoryBuilder:
    return builder.killed(20).opened(21)


def test_handover_has_a_limit_that_depends_on_its_cause() -> None:
    """The causes begin at 20, a restart at 21."""
    idle = freed(20.35, 2, READY.call(11, 20.0, 1, 1).add(ConsumerStarted, 20.3, C2))
    gone = READY.killed(20, C1, "power").add(PowerCut, 20, ("C1", 0))
    abandoned = freed(23, None, READY.add(ConsumerStopBegan, 20, C1).call(19, 30, 1, 1))
    stopped = freed(23, 1, READY.add(ConsumerStopBegan, 20, C1).add(LeaveSent, 20, C1))
    assert_faults(check, {
        "release, at 0.5 s": (taken(freed(), 20.5), ""), "release, after it": (taken(freed(), 20.501), "O7"),
        "release, and renewed": (taken(freed(), 20.5).granted(20.55, 2, C2, renewal=True), ""),
        "from the end of the last call": (taken(freed(20.4, 2, READY.call(11, 20.0, 1, 1)), 20.6), "O7"),
        "idle, from the start of the new member": (taken(idle, 20.799), ""), "idle, after it": (taken(idle, 20.801), "O7"),
        "abandoned, from its release": (taken(abandoned, 23.5), ""), "abandoned, after it": (taken(abandoned, 23.501), "O7"),
        "stop, from its begin": (taken(stopped, 23.1), "O7"), "kill, at the grace and 1 s": (taken(READY.killed(20, C1), 23.999), ""),
        "kill, after it": (taken(READY.killed(20, C1), 24.001), "O7"),
        "pause, at the session timeout and 1 s": (taken(READY.add(PauseBegan, 20, C1), 40.999), ""),
        "pause, after it": (taken(READY.add(PauseBegan, 20, C1), 41.001), "O7"),
        "power cut, at it": (taken(gone, 40.999), ""), "power cut, after it": (taken(gone, 41.001), "O7"),
        "restart, at the grace and 1 s": (restarted(READY).call(25.0, None, 1, 1), ""),
        "restart, after it": (restarted(READY).call(25.001, None, 1, 1), "O7"),
        "restart, during a call until 24": (restarted(READY.call(19, 24, 1, 1)).call(27, None, 1, 2), ""),
    })  # fmt: skip


def test_handover_time_is_asserted_only_without_other_recent_events() -> None:
    """The hand-over takes 3 s."""

    def after(kind: type, t: float) -> HistoryBuilder:
        return taken(freed(), 23).add(kind, t, P)

    def later(t: float) -> HistoryBuilder:
        owned = HistoryBuilder().granted(200, 1).call(200.1, 200.2, 1, 0).sent(1, b"m1", 1).add(Fault, t, ("", 0))
        return taken(freed(210, builder=owned), 215)

    idle = freed(builder=HistoryBuilder().granted(10, 1).call(10.1, 10.2, 1, 0))
    idle = idle.add(SendBegan, 24, P, body=b"m1").add(SendAcked, 24.5, P, body=b"m1", offset=1)
    assert_faults(check, {
        "no message before 24.5": (taken(idle, 24.9), ""),
        "fault before": (after(Fault, 15), ""), "fault meanwhile": (after(Fault, 22), ""), "pause": (after(PauseBegan, 19), ""),
        "start within 5 s": (after(ConsumerStarted, 15.1), ""), "start 5 s before": (after(ConsumerStarted, 14.9), "O7"),
        "segments can be lost": (taken(freed(), 23).add(Fault, 0.1, ("", 0), kind="late"), ""),
        "fault within 120 s": (later(90.1), ""), "fault 120 s before": (later(89.9), "O7"),
    })  # fmt: skip


@pytest.mark.parametrize(("target", "asserted"), [("C1", True), ("C2", False), ("C3", False), ("", False)])
def test_record_of_the_owners_own_fault_does_not_count_as_another_fault(target: str, asserted: bool) -> None:
    """The time counts against faults of the owner's machine; faults of the next owner's machine are separate."""
    (one,) = handovers(taken(READY.add(Fault, 20, ("", 0), kind="kill", target=target).killed(20, C1), 25).history())
    assert (one.cause, one.undisturbed) == ("crash", asserted)


def test_stop_leaves_the_group_before_it_releases_a_queue() -> None:
    stopped = READY.add(ConsumerStopBegan, 20, C1).add(ConsumerStopped, 24, C1)
    never = freed(20.01, 1, stopped)
    assert_faults(check, {
        "at once": (never.add(LeaveSent, 20.0, C1), ""), "within 50 ms": (never.add(LeaveSent, 20.04, C1), ""),
        "after 50 ms": (never.add(LeaveSent, 20.06, C1), "O7"), "never": (never, "O7"),
        "twice": (freed(22, 1, stopped).add(LeaveSent, 20, C1).add(LeaveSent, 23, C1), ""),
    })  # fmt: skip


def test_queue_is_consumed_within_the_grace_plus_two_seconds_after_a_total_outage() -> None:
    """The broker opens at 21 and the last consumer starts at 25. With the default grace the limit is 5 s."""

    def outage(t: float, *faults: float) -> HistoryBuilder:
        builder = READY.add(Fault, 20, ("", 0), kind="everything").killed(20).killed(20, C1).opened(21).add(ConsumerStarted, 25, ("C1", 13))
        for earlier in faults:
            builder = builder.add(Fault, earlier, P, kind="kill", target="P")
        return builder.call(t, None, 2, 1, where=C2)

    rows = {"in time": (outage(29.9), ""), "late": (outage(30.1), "O7"), "late, after another fault": (outage(30.1, 15), "")}
    assert_faults(check, rows)
    assert [one.cause for one in handovers(outage(30.1).history())].count("all") == 1


def test_time_without_any_member_does_not_count() -> None:
    """The last member left at 20, the next one started at 25."""

    def alone(t: float, *, other: bool = False, exiled: bool = False) -> HistoryBuilder:
        builder = READY.add(ConsumerStarted, 5, C1).add(ConsumerStopBegan, 20, C1)
        if other:
            builder = builder.add(ConsumerStarted, 6, ANOTHER)
        if exiled:
            builder = builder.add(Fault, 1.5, ("", 0), kind="exile", target="c", facts=B[0])
        return taken(freed(builder=builder).add(ConsumerStarted, 25, C2), t)

    assert_faults(check, {
        "in time": (alone(25.499), ""), "late": (alone(25.501), "O7"), "another member": (alone(25.1, other=True), "O7"),
        "another member that can't reach the broker": (alone(25.1, other=True, exiled=True), ""),
    })  # fmt: skip
