"""A reset of progress and classic members, whose requests carry no generation (ordering.md 12.5)."""

import pytest

from lockstep.broker.groups.legacy_clients import ANNOUNCED_MAX
from lockstep.broker.groups.pull_fence import PullCheck
from lockstep.protocol.bodies import LockVerdict, QueueOffset, ResetBody
from lockstep.protocol.errors import NoPermissionError
from support.coordination_kit import GROUP, TOPIC, Bench, ClassicClient, joined

KEY = (GROUP, TOPIC, 0)


def reset_to(bench: Bench, offset: int, generation: int | None = None) -> None:
    bench.c.admin.reset_progress(ResetBody(GROUP, TOPIC, (QueueOffset(0, offset, generation),)))


def pull(client: ClassicClient, offset: int) -> PullCheck:
    check = client.bench.c.pulls.admit(client.connection, KEY, None, offset=offset)
    assert check is not None
    return check


def running() -> tuple[Bench, ClassicClient]:
    """Return a member that has committed 50 and pulls from 80."""
    bench = Bench()
    me = ClassicClient(bench, "me")
    me.connect()
    me.update(0, 50)
    assert pull(me, 80) == PullCheck(may_commit=True)
    return bench, me


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("to", [10, 200])
def test_running_member_is_told_and_cannot_undo_the_reset(to: int, restarted: bool) -> None:
    bench, me = running()
    reset_to(bench, to)
    if restarted:
        bench.restart()
        me = ClassicClient(bench, "me")
        me.connect()
    with pytest.raises(NoPermissionError, match=f"was reset to {to}"):
        me.update(0, 60)
    assert pull(me, 80) == PullCheck(moved_to=to)
    with pytest.raises(NoPermissionError, match=f"was reset to {to}"):
        me.update(0, 61)  # Java 4.9 commits where it was for another 10 s
    me.update(0, to)
    assert pull(me, to) == PullCheck(may_commit=False), "its commit bit may be of the time before"
    me.update(0, to + 5)
    assert bench.progress(0) == (to + 5, 0)
    assert pull(me, to + 5) == PullCheck(may_commit=True)


@pytest.mark.parametrize("end", [1_000, 45])
def test_reader_above_a_lost_suffix_goes_back_to_the_groups_progress(end: int) -> None:
    """Messages that are stored later have the offsets of the lost ones. `end`: where the log ends after the loss."""
    bench, me = running()
    bench.ends.queues[TOPIC, 0] = (0, end)
    bench.restart(assumed_loss=True)
    bench.restart()
    bench.ends.queues[TOPIC, 0] = (0, 90)
    me = ClassicClient(bench, "me")
    me.connect()
    begin = min(50, end)
    with pytest.raises(NoPermissionError, match=f"was reset to {begin}, by a command or by a start"):
        me.update(0, 81)
    assert pull(me, 80) == PullCheck(moved_to=begin)
    assert pull(me, begin) == PullCheck(may_commit=False)
    me.update(0, 81)
    assert bench.progress(0) == (81, 0)


def test_reader_at_the_groups_progress_goes_on_after_a_loss() -> None:
    bench, me = running()
    bench.restart(assumed_loss=True)
    me.connect()
    assert pull(me, 50) == PullCheck(may_commit=False)
    assert pull(me, 80) == PullCheck(may_commit=True)


def test_held_pull_is_ended_by_the_reset() -> None:
    bench, _ = running()
    bench.c.state.pending.drain()
    reset_to(bench, 10)
    assert bench.stale() == [KEY]


def test_reader_that_chooses_its_offsets_is_told_once() -> None:
    bench, me = running()
    reset_to(bench, 10)
    assert [pull(me, 80).moved_to, pull(me, 80).moved_to] == [10, None]
    me.update(0, 60)
    assert bench.progress(0) == (60, 0)


def test_two_readers_that_take_turns_are_told_once_each() -> None:
    bench, me = running()
    other = ClassicClient(bench, "other")
    other.connect()
    reset_to(bench, 10)
    assert [pull(client, 80).moved_to for client in (me, other, me, other)] == [10, 10, None, None]


def test_broker_remembers_a_fixed_number_of_connections_that_it_told() -> None:
    bench, me = running()
    reset_to(bench, 10)
    assert pull(me, 80).moved_to == 10
    others = [ClassicClient(bench, f"other-{number}") for number in range(ANNOUNCED_MAX)]
    for other in others:
        other.connect()
        assert pull(other, 80).moved_to == 10
    assert [pull(client, 80).moved_to for client in (me, others[-1], me)] == [10, None, None]


@pytest.mark.parametrize("has_another", [False, True])
def test_member_that_starts_after_the_reset_is_told_nothing(has_another: bool) -> None:
    bench = Bench()
    if has_another:
        ClassicClient(bench, "another").connect()
    reset_to(bench, 10)
    me = ClassicClient(bench, "me")
    me.connect()
    assert bench.c.legacy.query_offset(KEY, young=False) == 10
    assert pull(me, 10).moved_to is None
    assert pull(me, 80).moved_to is None


def test_commit_of_a_session_under_the_new_generation_ends_it() -> None:
    bench = Bench()
    native = joined(bench, "native")
    native.lock(0)
    reset_to(bench, 10)
    assert native.lock(0, held={})[0].offset == 10
    assert native.commit(0, 20, release=True) is LockVerdict.OK
    me = ClassicClient(bench, "me")
    me.connect()
    assert pull(me, 80).moved_to is None
    me.update(0, 30)
    assert bench.progress(0) == (30, 0)


def test_seek_of_a_member_is_told_to_nobody() -> None:
    bench, me = running()
    progress = bench.c.state.progress.get(KEY)
    assert progress is not None
    reset_to(bench, 10, progress.generation)
    assert pull(me, 80).moved_to is None


def test_second_reset_is_told_as_well() -> None:
    bench, me = running()
    reset_to(bench, 10)
    assert pull(me, 80).moved_to == 10
    reset_to(bench, 20)
    assert pull(me, 80).moved_to == 20


@pytest.mark.parametrize("native", [False, True])
def test_reset_leaves_a_queue_to_the_classic_client_whose_lease_runs(native: bool) -> None:
    """Its listener runs on, so nobody else may begin (O3)."""
    bench, me = running()
    other = ClassicClient(bench, "other")
    other.connect()
    member = joined(bench, "native")
    assert me.lock(0) == [0]
    epoch = bench.epoch(0)
    reset_to(bench, 10)
    assert member.lock(0)[0].verdict is not LockVerdict.OK if native else other.lock(0) == []
    with pytest.raises(NoPermissionError, match="held by me"):
        other.update(0, 40)
    assert pull(me, 80).moved_to == 10
    assert (me.lock(0), bench.epoch(0)) == ([0], epoch), "its lease is renewed"
    bench.now_ms += bench.c.state.config.classic_lock_ms + 1
    assert other.lock(0) == [0], "after the lease as ever"


def test_reset_is_told_again_on_another_connection() -> None:
    """The response may be lost with its connection."""
    bench, me = running()
    reset_to(bench, 10)
    assert pull(me, 80).moved_to == 10
    me.close()
    me.connect()
    with pytest.raises(NoPermissionError, match="was reset to 10"):
        me.update(0, 60)
    assert [pull(me, 80).moved_to, pull(me, 80).moved_to] == [10, None]


def test_commit_after_a_reset_is_applied_when_no_classic_member_is_left() -> None:
    """RocketMQ's tools write the offsets themselves then."""
    bench, me = running()
    reset_to(bench, 10)
    tool = ClassicClient(bench, "tool")
    tool.connection = bench.new_connection()
    with pytest.raises(NoPermissionError, match="was reset to 10"):
        tool.update(0, 30)
    bench.c.membership.unregister(me.connection, "me", GROUP, bench.now_ms)
    tool.update(0, 30)
    tool.update(0, 40)
    assert bench.progress(0) == (40, 0)
