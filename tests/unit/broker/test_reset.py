"""RESET_OFFSETS: a new generation, the end of the grant, all queues or none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.protocol.bodies import ConsumeFromWhere, ConsumerGroup, LockVerdict, QueueOffset, ResetBody, SyncItem
from lockstep.protocol.errors import LocalProtocolError, LockstepError, StaleEpochError, TopicNotExistError
from lockstep.protocol.headers.offsets import QueryConsumerOffsetHeader
from support.coordination_kit import GRACE, GROUP, TOPIC, Bench, Client, joined, layout, ordered, replay


def reset(bench: Bench, offsets: dict[int, int], group: str = GROUP, topic: str = TOPIC) -> list[tuple[int, int]]:
    """Return (queue id, offset before) from the response."""
    body = ResetBody(group, topic, tuple(QueueOffset(queue_id, offset) for queue_id, offset in offsets.items()))
    return [(each.queue_id, each.offset) for each in bench.c.admin.reset_progress(body).queues]


def holder(bench: Bench, *queue_ids: int) -> Client:
    client = joined(bench, "a")
    client.lock(*queue_ids)
    return client


def generation(bench: Bench, queue_id: int) -> int:
    return {key[2]: progress.generation for key, progress in bench.c.state.progress if key[:2] == (GROUP, TOPIC)}[queue_id]


def test_reset_of_a_held_queue_fences_its_holder_and_sets_the_offset() -> None:
    bench = Bench()
    a = holder(bench, 0, 1)
    assert a.commit(0, 500) is LockVerdict.OK
    epoch, old = a.held[0], generation(bench, 0)
    bench.c.state.pending.drain()
    assert reset(bench, {0: 100}) == [(0, 500)]
    assert bench.stale() == [(GROUP, TOPIC, 0)], "its held pull gets a response at once"
    assert bench.epoch(0) > epoch
    assert generation(bench, 0) > old
    assert a.commit(0, 600) is LockVerdict.STALE, "a finished result of the old generation"
    assert a.pull(0) is False
    assert bench.progress(0) == (100, 0)
    responses = a.lock(0, held={1: a.held[1]})
    assert (responses[0].verdict, responses[0].offset, responses[1].verdict) == (LockVerdict.OK, 100, LockVerdict.OK)


def test_member_with_a_reset_queue_is_notified_to_lock_it_again() -> None:
    bench = Bench()
    a = holder(bench, 0)
    bench.c.state.pending.drain()
    reset(bench, {0: 0})
    assert bench.pushed() == {a.connection: [0]}


def test_reset_queue_is_not_granted_to_others_before_its_holder_knows() -> None:
    """The queue may be draining while the list gives it to another member: both would process it concurrently."""
    bench = Bench()
    a = holder(bench, 0, 1)
    b = joined(bench, "b")
    old = a.held[1]
    reset(bench, {1: 0})
    assert b.verdicts(1) == {1: LockVerdict.HELD}
    assert a.verdicts(held={0: a.held[0], 1: old}) == {0: LockVerdict.OK, 1: LockVerdict.STALE}
    assert b.verdicts(1) == {1: LockVerdict.HELD}, "the response may still be on its way"
    assert a.verdicts(held={0: a.held[0]}) == {0: LockVerdict.OK}
    assert b.verdicts(1) == {1: LockVerdict.OK}


@pytest.mark.parametrize("restarts", ["before the LOCK", "after the LOCK", "twice", "from a snapshot"])
def test_restart_grants_a_reset_queue_to_no_member_before_its_holder_knows(restarts: str) -> None:
    bench = Bench()
    a = holder(bench, 0, 1)
    b = joined(bench, "b")
    old = dict(a.held)
    reset(bench, {1: 0})

    def restart() -> None:
        if restarts == "from a snapshot":
            kept = bench.c.snapshot()
            bench.restart()
            bench.c.restore(kept)
        else:
            bench.restart()
        for client in (a, b):
            client.connection = 0
            client.connect()

    if restarts != "after the LOCK":
        restart()
    assert a.verdicts(held=old) == {0: LockVerdict.OK, 1: LockVerdict.STALE}
    if restarts in ("after the LOCK", "twice"):
        restart()
        assert a.verdicts(held=old) == {0: LockVerdict.OK, 1: LockVerdict.STALE}, "the first response was lost"
    assert b.verdicts(1) == {1: LockVerdict.HELD}, "the response may still be on its way"
    assert a.verdicts(held={0: old[0]}) == {0: LockVerdict.OK}
    assert b.verdicts(1) == {1: LockVerdict.OK}


def test_lost_stale_response_grants_a_reset_queue_to_no_member() -> None:
    bench = Bench()
    a = holder(bench, 0, 1)
    b = joined(bench, "b")
    old = dict(a.held)
    reset(bench, {1: 0})
    for _ in range(3):
        assert a.verdicts(held=old) == {0: LockVerdict.OK, 1: LockVerdict.STALE}
        a.close()
        a.connect()
        assert b.verdicts(1) == {1: LockVerdict.HELD}
    assert a.commit(0, 5) is LockVerdict.OK


@pytest.mark.parametrize("how", ["release", "end", "omit"])
def test_holder_that_releases_after_a_reset_frees_the_queue(how: str) -> None:
    bench = Bench()
    a = holder(bench, 0)
    joined(bench, "b")
    reset(bench, {0: 0})
    if how == "release":
        assert a.commit(0, 5, release=True) is LockVerdict.STALE
    elif how == "omit":
        a.verdicts(held={})
    else:
        a.close()
        bench.advance(GRACE + 1)
    assert bench.owner(0) is None
    assert bench.progress(0) == (0, 0)


def test_reset_keeps_the_grant_of_other_queues() -> None:
    bench = Bench()
    a = holder(bench, 0, 1)
    a.commit(1, 7)
    reset(bench, {0: 0})
    assert a.commit(1, 8) is LockVerdict.OK


def test_reset_clears_the_attempts() -> None:
    bench = Bench()
    a = holder(bench, 0)
    a.commit(0, 5, attempts=3)
    reset(bench, {0: 5})
    assert bench.progress(0) == (5, 0)


def test_seek_of_a_member_is_rejected_after_another_reset() -> None:
    bench = Bench()
    a = holder(bench, 0, 1)
    a.commit(0, 500)
    known = generation(bench, 0)
    reset(bench, {0: 100})
    back = ResetBody(GROUP, TOPIC, (QueueOffset(1, 0), QueueOffset(0, 300, known)))
    with pytest.raises(StaleEpochError, match=f"generation {known} of {GROUP} at {TOPIC} queue 0 has ended"):
        bench.c.admin.reset_progress(back)
    assert bench.progress(0) == (100, 0)
    bench.c.admin.reset_progress(ResetBody(GROUP, TOPIC, (QueueOffset(0, 50, generation(bench, 0)),)))
    assert bench.progress(0) == (50, 0)


def test_reset_of_a_stopped_group_is_durable_and_its_next_start_offset() -> None:
    bench = Bench()
    a = holder(bench, 0)
    a.commit(0, 500)
    a.leave()
    a.close()
    bench.advance(60_000)
    assert reset(bench, {0: 20}) == [(0, 500)]
    bench.restart()
    assert bench.progress(0) == (20, 0)
    b = joined(bench, "b")
    assert b.lock(0)[0].offset == 20


def test_group_may_be_reset_before_its_first_start() -> None:
    """The start policy then applies to the other queues only."""
    bench = Bench()
    assert reset(bench, {0: 77}) == [(0, -1)]
    a = joined(bench, "a", ordered(consume_from_where=ConsumeFromWhere.LAST_OFFSET))
    responses = a.lock(0, 1)
    assert (responses[0].offset, responses[1].offset) == (77, 1_000)


def test_reset_makes_earlier_concurrent_commits_and_pulls_stale() -> None:
    bench = Bench()
    a = joined(bench, "a", ConsumerGroup(GROUP, ordered().subscriptions, consume_from_where=ConsumeFromWhere.FIRST_OFFSET))
    header = QueryConsumerOffsetHeader(GROUP, TOPIC, 0, ConsumeFromWhere.FIRST_OFFSET)
    begun = bench.c.lock_sync.query_start(a.connection, header, bench.now_ms)
    assert begun is not None
    bench.c.state.pending.drain()
    reset(bench, {0: 40})
    assert bench.stale() == [(GROUP, TOPIC, 0)]
    responses = a.send_sync(SyncItem(GROUP, TOPIC, 0, None, begun.generation, 50))
    assert responses is not None
    assert responses[0].verdict is LockVerdict.STALE
    again = bench.c.lock_sync.query_start(a.connection, header, bench.now_ms)
    assert again is not None
    assert (again.offset, again.generation > begun.generation) == (40, True)


@pytest.mark.parametrize(("offset", "fits"), [(9, False), (10, True), (90, True), (91, False), (-1, False)])
def test_reset_offset_must_be_within_the_queue(offset: int, fits: bool) -> None:
    bench = Bench()
    bench.ends.queues[TOPIC, 0] = (10, 90)
    if fits:
        reset(bench, {0: offset})
        assert bench.progress(0)[0] == offset
    else:
        with pytest.raises(LocalProtocolError, match="expected 10 to 90; nothing was reset here"):
            reset(bench, {1: 5, 0: offset})
        assert list(bench.c.state.progress) == [], "the queue that could be set neither"


@pytest.mark.parametrize(("queue_id", "topic"), [(4, TOPIC), (-1, TOPIC), (0, "other")])
def test_reset_of_an_unknown_queue_is_rejected(queue_id: int, topic: str) -> None:
    with pytest.raises(TopicNotExistError, match="has no readable queue"):
        reset(Bench(), {queue_id: 0}, topic=topic)


def test_reset_in_a_deleted_topic_is_rejected() -> None:
    bench = Bench()
    bench.layouts.adopt(layout(queues=0, counter=2))
    bench.c.layout_changed(TOPIC)
    with pytest.raises(TopicNotExistError):
        reset(bench, {0: 0})


@given(st.lists(st.tuples(st.sampled_from(["reset", "commit"]), st.integers(0, 1), st.integers(0, 1_000)), max_size=12))
def test_offset_never_falls_within_a_generation_for_any_resets(steps: list[tuple[str, int, int]]) -> None:
    bench = Bench()
    a = holder(bench, 0, 1)
    last: dict[int, tuple[int, int]] = {}
    for step, queue_id, offset in steps:
        if step == "reset":
            reset(bench, {queue_id: offset})
            a.lock(queue_id, held={other: epoch for other, epoch in a.held.items() if other != queue_id})
        else:
            a.commit(queue_id, offset)
        now = generation(bench, queue_id), bench.progress(queue_id)[0]
        assert now >= last.get(queue_id, (0, 0))
        last[queue_id] = now
    bench.flush()
    again = replay(bench)
    assert dict(again.state.progress) == dict(bench.c.state.progress)


def test_reset_requires_a_group_name() -> None:
    with pytest.raises(LockstepError, match="group is blank"):
        reset(Bench(), {0: 0}, group=" ")
