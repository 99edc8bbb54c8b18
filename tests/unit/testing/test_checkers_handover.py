"""O7: limits on the time in which a queue has no owner."""

import pytest

from support.histories import C1, C2, B, HistoryBuilder, P, Q
from sweep.checkers.handover import check, handovers
from sweep.events.consumers import ConsumerStarted, ConsumerStopBegan, ConsumerStopped
from sweep.events.locks import LeaveSent
from sweep.events.producers import SendAcked, SendBegan
from sweep.events.universe import BrokerOpened, Fault, PauseBegan, PowerCut, ProcessEnded


def ready() -> HistoryBuilder:
    """C1 has owned the queue since 10. The next message has been stored since 1."""
    builder = HistoryBuilder().granted(10, 1).call(10.1, 10.2, 1, 0)
    return builder.sent(1, b"m1", 1)


def taken(builder: HistoryBuilder, t: float) -> HistoryBuilder:
    """C2 makes its first call at t."""
    return builder.granted(t - 0.001, 2, C2).call(t, t + 0.1, 2, 1, where=C2)


@pytest.mark.parametrize(("t", "laws"), [(20.499, []), (20.5, []), (20.501, ["O7"])])
def test_handover_after_a_release_is_limited_to_500_ms(t: float, laws: list[str]) -> None:
    """No call was running: the time counts from the release at 20."""
    assert taken(ready().committed(20.002, 1, 1, released=True), t).broken(check) == laws


def test_handover_counts_from_the_end_of_the_last_call() -> None:
    """Its call ended at 20 and its release was sent 0.4 s later: the time counts from 20."""
    builder = ready().call(11, 20.0, 1, 1).committed(20.402, 1, 2, released=True)
    assert taken(builder, 20.6).broken(check) == ["O7"]


@pytest.mark.parametrize(("t", "laws"), [(20.799, []), (20.801, ["O7"])])
def test_handover_of_an_idle_queue_counts_from_the_start_of_the_new_member(t: float, laws: list[str]) -> None:
    """Its last call ended at 20, C2 started at 20.3, and the release was sent at once."""
    builder = ready().call(11, 20.0, 1, 1).add(ConsumerStarted, 20.3, C2).committed(20.352, 1, 2, released=True)
    assert taken(builder, t).broken(check) == laws


def test_handover_of_an_abandoned_call_counts_from_its_release() -> None:
    builder = ready().add(ConsumerStopBegan, 20, C1).call(19, 30, 1, 1).committed(23.002, 1, None, released=True)
    (one,) = handovers(taken(builder, 23.1).history())
    assert one.seconds == pytest.approx(0.1)


def test_handover_after_a_stop_counts_from_the_stop() -> None:
    """Idle when it is stopped at 20, released only at 23."""
    builder = ready().add(ConsumerStopBegan, 20, C1).add(LeaveSent, 20, C1).committed(23.002, 1, 1, released=True)
    (one,) = handovers(taken(builder, 23.1).history())
    assert (one.cause, one.since, one.seconds) == ("release", 20, pytest.approx(3.1))
    assert taken(builder, 23.1).broken(check) != []


@pytest.mark.parametrize(("t", "laws"), [(23.999, []), (24.001, ["O7"])])
def test_handover_after_a_kill_is_limited_to_the_grace_plus_one_second(t: float, laws: list[str]) -> None:
    assert taken(ready().add(ProcessEnded, 20, C1, how="kill"), t).broken(check) == laws


@pytest.mark.parametrize(("t", "laws"), [(40.999, []), (41.001, ["O7"])])
def test_handover_after_silence_is_limited_to_the_session_timeout_plus_one_second(t: float, laws: list[str]) -> None:
    assert taken(ready().add(PauseBegan, 20, C1), t).broken(check) == laws
    gone = ready().add(ProcessEnded, 20, C1, how="power").add(PowerCut, 20, ("C1", 0))
    assert taken(gone, t).broken(check) == laws


@pytest.mark.parametrize(("t", "laws"), [(25.0, []), (25.001, ["O7"])])
def test_consumption_after_a_broker_start_must_resume_within_the_grace_plus_one_second(t: float, laws: list[str]) -> None:
    builder = ready().add(ProcessEnded, 20, B, how="kill").add(BrokerOpened, 21, ("B", 2), term=101)
    assert builder.call(t, None, 1, 1).broken(check) == laws


def test_call_that_runs_across_a_broker_restart_delays_the_limit() -> None:
    builder = ready().call(19, 24, 1, 1).add(ProcessEnded, 20, B, how="kill").add(BrokerOpened, 21, ("B", 2), term=101)
    assert builder.call(27, None, 1, 2).broken(check) == []


def test_handover_without_a_pending_message_is_not_checked() -> None:
    builder = HistoryBuilder().granted(10, 1).call(10.1, 10.2, 1, 0).committed(20.002, 1, 1, released=True)
    builder.add(SendBegan, 24, P, body=b"m1").add(SendAcked, 24.5, P, body=b"m1", offset=1)
    assert taken(builder, 24.9).broken(check) == []


@pytest.mark.parametrize(
    ("kind", "t", "asserted"),
    [(Fault, 15, False), (Fault, 22, False), (ConsumerStarted, 15.1, False), (ConsumerStarted, 14.9, True), (PauseBegan, 19, False)],
)
def test_handover_time_is_asserted_only_without_other_recent_events(kind: type, t: float, asserted: bool) -> None:
    late = taken(ready().committed(20.002, 1, 1, released=True), 23).add(kind, t, P)
    assert late.broken(check) == ["O7"] * asserted
    (one,) = handovers(late.history())
    assert (one.undisturbed, one.seconds) == (asserted, pytest.approx(3.0))


def test_handover_time_is_only_reported_if_segments_can_be_lost() -> None:
    builder = taken(ready().committed(20.002, 1, 1, released=True), 23).add(Fault, 0.1, ("", 0), **{"kind": "late"})
    assert builder.broken(check) == []


def test_fault_long_before_the_handover_is_ignored() -> None:
    def builder(t: float) -> HistoryBuilder:
        reported = HistoryBuilder().granted(200, 1).call(200.1, 200.2, 1, 0).sent(1, b"m1", 1).add(Fault, t, ("", 0))
        return taken(reported.committed(210.002, 1, 1, released=True), 215)

    assert builder(89.9).broken(check) == ["O7"]
    assert builder(90.1).broken(check) == []


@pytest.mark.parametrize(("left_t", "laws"), [(20.0, []), (20.04, []), (20.06, ["O7"]), (None, ["O7"])])
def test_release_long_before_the_leave_of_a_stop_is_a_violation(left_t: float | None, laws: list[str]) -> None:
    builder = ready().add(ConsumerStopBegan, 20, C1).committed(20.012, 1, 1, released=True).add(ConsumerStopped, 21, C1)
    if left_t is not None:
        builder.add(LeaveSent, left_t, C1)
    assert builder.broken(check) == laws


def test_release_after_the_leave_and_a_second_leave_are_allowed() -> None:
    builder = ready().add(ConsumerStopBegan, 20, C1).add(LeaveSent, 20, C1).committed(22, 1, 1, released=True)
    assert builder.add(LeaveSent, 23, C1).add(ConsumerStopped, 24, C1).broken(check) == []


def test_text_of_a_late_handover_names_queue_owners_and_times() -> None:
    (found,) = check(taken(ready().committed(20.002, 1, 1, released=True), 23).history())
    for fact in (str(Q), "C1#11", "C2#12", "23.000", "20.000", "0.5 s", "release"):
        assert fact in found.text


@pytest.mark.parametrize(("target", "asserted"), [("C1", True), ("C2", False), ("C3", False), ("", False)])
def test_record_of_the_owners_own_fault_does_not_count_as_another_fault(target: str, asserted: bool) -> None:
    """The time counts against faults of the owner's machine; faults of the next owner's machine are separate."""
    killed = ready().add(Fault, 20, ("", 0), kind="kill", target=target).add(ProcessEnded, 20, C1, how="kill")
    (one,) = handovers(taken(killed, 25).history())
    assert (one.cause, one.undisturbed) == ("crash", asserted)


@pytest.mark.parametrize(("t", "earlier", "laws"), [(29.9, None, []), (30.1, None, ["O7"]), (30.1, 15, [])])
def test_queue_must_be_consumed_within_the_grace_plus_two_seconds_after_a_total_outage(
    t: float, earlier: float | None, laws: list[str]
) -> None:
    """The broker opens at 21 and the last consumer starts at 25. With the default grace the limit is 5 s."""
    builder = ready().add(Fault, 20, ("", 0), kind="everything").add(ProcessEnded, 20, B, how="kill").add(ProcessEnded, 20, C1, how="kill")
    builder.add(BrokerOpened, 21, ("B", 2), term=101).add(ConsumerStarted, 25, ("C1", 13))
    if earlier is not None:
        builder.add(Fault, earlier, P, kind="kill", target="P")
    found = [law for law in builder.call(t, None, 2, 1, where=C2).broken(check) if law == "O7"]
    assert found == laws
    assert [one.cause for one in handovers(builder.history())].count("all") == 1


@pytest.mark.parametrize(("t", "laws"), [(25.499, []), (25.501, ["O7"])])
def test_time_without_any_member_does_not_count(t: float, laws: list[str]) -> None:
    """The last member left at 20, the next one started at 25."""
    builder = ready().add(ConsumerStarted, 5, C1).add(ConsumerStopBegan, 20, C1).committed(20.002, 1, 1, released=True)
    assert taken(builder.add(ConsumerStarted, 25, C2), t).broken(check) == laws


def test_time_with_another_running_member_counts() -> None:
    builder = ready().add(ConsumerStarted, 5, C1).add(ConsumerStarted, 6, ("c", 9)).add(ConsumerStopBegan, 20, C1)
    builder = builder.committed(20.002, 1, 1, released=True).add(ConsumerStarted, 25, C2)
    assert taken(builder, 25.1).broken(check) == ["O7"]


def test_member_that_can_not_reach_the_broker_does_not_count() -> None:
    builder = ready().add(Fault, 1.5, ("", 0), kind="exile", target="c", facts=B[0]).add(ConsumerStarted, 6, ("c", 9))
    builder = builder.add(ConsumerStarted, 5, C1).add(ConsumerStopBegan, 20, C1).committed(20.002, 1, 1, released=True)
    assert taken(builder.add(ConsumerStarted, 25, C2), 25.1).broken(check) == []
