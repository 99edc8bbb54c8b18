"""O7: how long a queue is idle."""

import pytest

from support.stories import C1, C2, B, P, Q, Story
from sweep.checkers.handover import check, handovers
from sweep.events import (
    BrokerOpened,
    ConsumerStarted,
    ConsumerStopBegan,
    ConsumerStopped,
    Fault,
    LeaveSent,
    PauseBegan,
    PowerCut,
    ProcessEnded,
    SendAcked,
    SendBegan,
)


def ready() -> Story:
    """C1 owns the queue since 10; the next message is there since 1."""
    story = Story().granted(10, 1).call(10.1, 10.2, 1, 0)
    return story.sent(1, b"m1", 1)


def taken(story: Story, t: float) -> Story:
    """C2 makes its first call at t."""
    return story.granted(t - 0.001, 2, C2).call(t, t + 0.1, 2, 1, where=C2)


@pytest.mark.parametrize(("t", "laws"), [(20.499, []), (20.5, []), (20.501, ["O7"])])
def test_500_ms_after_a_release(t: float, laws: list[str]) -> None:
    """No call had run for long: from the release at 20."""
    assert taken(ready().committed(20.002, 1, 1, released=True), t).broken(check) == laws


def test_from_the_end_of_the_running_listener() -> None:
    """Its call ended at 20, its release came 0.4 s later: both count."""
    story = ready().call(11, 20.0, 1, 1).committed(20.402, 1, 2, released=True)
    assert taken(story, 20.6).broken(check) == ["O7"]


@pytest.mark.parametrize(("t", "laws"), [(20.799, []), (20.801, ["O7"])])
def test_an_idle_owner_counts_from_when_somebody_came_who_should_have_the_queue(t: float, laws: list[str]) -> None:
    """Its last call ended at 20, C2 began to join at 20.3, the release came at once."""
    story = ready().call(11, 20.0, 1, 1).add(ConsumerStarted, 20.3, C2).committed(20.352, 1, 2, released=True)
    assert taken(story, t).broken(check) == laws


def test_a_call_that_was_given_up_and_goes_on_counts_from_its_release() -> None:
    story = ready().add(ConsumerStopBegan, 20, C1).call(19, 30, 1, 1).committed(23.002, 1, None, released=True)
    (one,) = handovers(taken(story, 23.1).history())
    assert one.seconds == pytest.approx(0.1)


def test_after_a_leave_from_the_stop() -> None:
    """Idle when it is stopped at 20, released at 23 only: H5 of the reference."""
    story = ready().add(ConsumerStopBegan, 20, C1).add(LeaveSent, 20, C1).committed(23.002, 1, 1, released=True)
    (one,) = handovers(taken(story, 23.1).history())
    assert (one.cause, one.since, one.seconds) == ("release", 20, pytest.approx(3.1))
    assert taken(story, 23.1).broken(check) != []


@pytest.mark.parametrize(("t", "laws"), [(23.999, []), (24.001, ["O7"])])
def test_grace_and_a_second_after_a_kill(t: float, laws: list[str]) -> None:
    assert taken(ready().add(ProcessEnded, 20, C1, how="kill"), t).broken(check) == laws


@pytest.mark.parametrize(("t", "laws"), [(40.999, []), (41.001, ["O7"])])
def test_session_timeout_and_a_second_after_silence(t: float, laws: list[str]) -> None:
    assert taken(ready().add(PauseBegan, 20, C1), t).broken(check) == laws
    gone = ready().add(ProcessEnded, 20, C1, how="power").add(PowerCut, 20, ("C1", 0))
    assert taken(gone, t).broken(check) == laws


@pytest.mark.parametrize(("t", "laws"), [(25.0, []), (25.001, ["O7"])])
def test_grace_and_a_second_after_a_brokers_open_port(t: float, laws: list[str]) -> None:
    story = ready().add(ProcessEnded, 20, B, how="kill").add(BrokerOpened, 21, ("B", 2), term=101)
    assert story.call(t, None, 1, 1).broken(check) == laws


def test_a_call_that_runs_over_the_restart_is_waited_for() -> None:
    story = ready().call(19, 24, 1, 1).add(ProcessEnded, 20, B, how="kill").add(BrokerOpened, 21, ("B", 2), term=101)
    assert story.call(27, None, 1, 2).broken(check) == []


def test_the_first_message_must_have_been_there() -> None:
    story = Story().granted(10, 1).call(10.1, 10.2, 1, 0).committed(20.002, 1, 1, released=True)
    story.add(SendBegan, 24, P, body=b"m1").add(SendAcked, 24.5, P, body=b"m1", offset=1)
    assert taken(story, 24.9).broken(check) == []


@pytest.mark.parametrize(
    ("kind", "t", "asserted"),
    [(Fault, 15, False), (Fault, 22, False), (ConsumerStarted, 15.1, False), (ConsumerStarted, 14.9, True), (PauseBegan, 19, False)],
)
def test_it_is_asserted_only_where_nothing_else_went_on(kind: type, t: float, asserted: bool) -> None:
    late = taken(ready().committed(20.002, 1, 1, released=True), 23).add(kind, t, P)
    assert late.broken(check) == ["O7"] * asserted
    (one,) = handovers(late.history())
    assert (one.alone, one.seconds) == (asserted, pytest.approx(3.0))


def test_segments_that_may_be_lost_at_any_time_make_every_time_a_report() -> None:
    story = taken(ready().committed(20.002, 1, 1, released=True), 23).add(Fault, 0.1, ("", 0), **{"kind": "late"})
    assert story.broken(check) == []


def test_a_fault_long_ago_is_over() -> None:
    def story(t: float) -> Story:
        told = Story().granted(200, 1).call(200.1, 200.2, 1, 0).sent(1, b"m1", 1).add(Fault, t, ("", 0))
        return taken(told.committed(210.002, 1, 1, released=True), 215)

    assert story(89.9).broken(check) == ["O7"]
    assert story(90.1).broken(check) == []


@pytest.mark.parametrize(("left_t", "laws"), [(20.0, []), (20.04, []), (20.06, ["O7"]), (None, ["O7"])])
def test_who_stops_leaves_before_he_releases(left_t: float | None, laws: list[str]) -> None:
    story = ready().add(ConsumerStopBegan, 20, C1).committed(20.012, 1, 1, released=True).add(ConsumerStopped, 21, C1)
    if left_t is not None:
        story.add(LeaveSent, left_t, C1)
    assert story.broken(check) == laws


def test_what_is_released_after_the_leave_is_good_and_a_second_leave_changes_nothing() -> None:
    story = ready().add(ConsumerStopBegan, 20, C1).add(LeaveSent, 20, C1).committed(22, 1, 1, released=True)
    assert story.add(LeaveSent, 23, C1).add(ConsumerStopped, 24, C1).broken(check) == []


def test_the_text_names_queue_owners_and_times() -> None:
    (found,) = check(taken(ready().committed(20.002, 1, 1, released=True), 23).history())
    for fact in (str(Q), "C1#11", "C2#12", "23.000", "20.000", "0.5 s", "release"):
        assert fact in found.text


@pytest.mark.parametrize(("target", "asserted"), [("C1", True), ("C2", False), ("C3", False), ("", False)])
def test_the_note_of_the_fault_itself_is_nothing_else(target: str, asserted: bool) -> None:
    """The time counts against faults of the owner's machine; faults of the next owner's machine are separate."""
    killed = ready().add(Fault, 20, ("", 0), kind="kill", target=target).add(ProcessEnded, 20, C1, how="kill")
    (one,) = handovers(taken(killed, 25).history())
    assert (one.cause, one.alone) == ("crash", asserted)


@pytest.mark.parametrize(("t", "earlier", "laws"), [(29.9, None, []), (30.1, None, ["O7"]), (30.1, 15, [])])
def test_after_everything_was_lost_a_queue_is_consumed_within_the_grace_and_two_seconds(
    t: float, earlier: float | None, laws: list[str]
) -> None:
    """The broker opens at 21, the last consumer starts at 25; with the usual grace that is 5 s."""
    story = ready().add(Fault, 20, ("", 0), kind="everything").add(ProcessEnded, 20, B, how="kill").add(ProcessEnded, 20, C1, how="kill")
    story.add(BrokerOpened, 21, ("B", 2), term=101).add(ConsumerStarted, 25, ("C1", 13))
    if earlier is not None:
        story.add(Fault, earlier, P, kind="kill", target="P")
    found = [law for law in story.call(t, None, 2, 1, where=C2).broken(check) if law == "O7"]
    assert found == laws
    assert [one.cause for one in handovers(story.history())].count("all") == 1


@pytest.mark.parametrize(("t", "laws"), [(25.499, []), (25.501, ["O7"])])
def test_while_the_group_has_nobody_no_time_counts(t: float, laws: list[str]) -> None:
    """The last member left at 20, the next one began to start at 25."""
    story = ready().add(ConsumerStarted, 5, C1).add(ConsumerStopBegan, 20, C1).committed(20.002, 1, 1, released=True)
    assert taken(story.add(ConsumerStarted, 25, C2), t).broken(check) == laws


def test_a_member_that_was_there_all_the_time_should_have_had_it() -> None:
    story = ready().add(ConsumerStarted, 5, C1).add(ConsumerStarted, 6, ("c", 9)).add(ConsumerStopBegan, 20, C1)
    story = story.committed(20.002, 1, 1, released=True).add(ConsumerStarted, 25, C2)
    assert taken(story, 25.1).broken(check) == ["O7"]


def test_a_member_that_can_not_reach_the_broker_could_not_have_had_it() -> None:
    story = ready().add(Fault, 1.5, ("", 0), kind="exile", target="c", facts=B[0]).add(ConsumerStarted, 6, ("c", 9))
    story = story.add(ConsumerStarted, 5, C1).add(ConsumerStopBegan, 20, C1).committed(20.002, 1, 1, released=True)
    assert taken(story.add(ConsumerStarted, 25, C2), 25.1).broken(check) == []
