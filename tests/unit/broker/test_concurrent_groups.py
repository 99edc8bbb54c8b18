"""QUERY with a start policy, pulls and commits by generation, DEAD_LETTER's checks: a concurrent group at the broker."""

from dataclasses import replace

import pytest

from lockstep.broker.groups.effects import PushQueueFree
from lockstep.protocol.bodies import (
    ConsumeFromWhere,
    ConsumerGroup,
    LockResult,
    LockVerdict,
    MessageModel,
    QueueOffset,
    ResetBody,
    SyncItem,
)
from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.headers.offsets import QueryConsumerOffsetHeader
from lockstep.protocol.names import retry_topic
from lockstep.protocol.topics.allocate import MANUAL
from support.coordination_kit import GROUP, TOPIC, Bench, Client, joined, layout, ordered


def concurrent(group: str = GROUP) -> ConsumerGroup:
    return ordered(group, ordered=False)


def member(bench: Bench, name: str = "a") -> Client:
    made = joined(bench, name, concurrent())
    return made


def begin(client: Client, queue_id: int, where: ConsumeFromWhere = ConsumeFromWhere.FIRST_OFFSET) -> LockResult | None:
    header = QueryConsumerOffsetHeader(GROUP, TOPIC, queue_id, where)
    return client.bench.c.lock_sync.query_start(client.connection, header, client.bench.now_ms)


def granted(client: Client, queue_id: int, where: ConsumeFromWhere = ConsumeFromWhere.FIRST_OFFSET) -> LockResult:
    response = begin(client, queue_id, where)
    assert response is not None
    assert response.verdict is LockVerdict.OK, response
    return response


def pulls(client: Client, queue_id: int, generation: int) -> bool:
    check = client.bench.c.pulls.admit(client.connection, (GROUP, TOPIC, queue_id), None, generation)
    assert check is not None
    return not check.stale


def commit(client: Client, queue_id: int, generation: int, offset: int) -> LockVerdict:
    responses = client.send_sync(SyncItem(GROUP, TOPIC, queue_id, None, generation, offset))
    assert responses is not None
    return responses[0].verdict


def test_first_query_resolves_the_start_policy_for_all_queues_of_the_topic() -> None:
    bench = Bench()
    a = member(bench)
    bench.ends.queues[TOPIC, 0] = bench.ends.queues[TOPIC, 1] = (10, 90)
    assert granted(a, 0, ConsumeFromWhere.LAST_OFFSET).offset == 90
    bench.ends.queues[TOPIC, 1] = (10, 120)
    assert granted(a, 1, ConsumeFromWhere.FIRST_OFFSET).offset == 90, "what came since is not skipped"


@pytest.mark.parametrize("where", ConsumeFromWhere)
def test_retry_topic_of_the_group_starts_at_its_first_message_for_any_start_policy(where: ConsumeFromWhere) -> None:
    """This broker had the messages once, and no other broker will have them."""
    own, others = retry_topic(GROUP), retry_topic("shipping")
    bench = Bench(layout(own, 1), layout(others, 1))
    bench.ends.queues[own, 0] = bench.ends.queues[others, 0] = (10, 90)
    a = joined(bench, "a", ordered(topics=(own, others), ordered=False))
    header = QueryConsumerOffsetHeader(GROUP, own, 0, where, 1_000)
    response = bench.c.lock_sync.query_start(a.connection, header, bench.now_ms, {(GROUP, own, 0): 50})
    assert response is not None
    assert (response.verdict, response.offset) == (LockVerdict.OK, 10)
    other = bench.c.lock_sync.query_start(a.connection, replace(header, topic=others), bench.now_ms, {(GROUP, others, 0): 50})
    assert other is not None
    assert other.offset == {ConsumeFromWhere.FIRST_OFFSET: 10, ConsumeFromWhere.LAST_OFFSET: 90, ConsumeFromWhere.TIMESTAMP: 50}[where]


def test_query_grants_a_queue_only_to_its_owner_by_the_member_list() -> None:
    bench = Bench()
    a, b = member(bench), member(bench, "b")
    verdicts = [(begin(a, i).verdict, begin(b, i).verdict) for i in range(2)]  # type: ignore[union-attr]
    assert verdicts == [(LockVerdict.OK, LockVerdict.NOT_YOURS), (LockVerdict.NOT_YOURS, LockVerdict.OK)]


def test_concurrent_commits_need_the_generation_and_never_lower_the_offset() -> None:
    bench = Bench()
    a = member(bench)
    response = granted(a, 0)
    assert commit(a, 0, response.generation, 7) is LockVerdict.OK
    assert commit(a, 0, response.generation, 5) is LockVerdict.OK
    assert bench.progress(0) == (7, 0)
    assert bench.owner(0) is None
    assert commit(a, 0, response.generation + 1, 9) is LockVerdict.STALE
    assert commit(a, 0, response.generation, 5_000) is LockVerdict.REFUSED


def test_reset_rejects_pulls_and_commits_of_the_old_generation_and_wakes_held_pulls() -> None:
    bench = Bench()
    a = member(bench)
    old = granted(a, 0).generation
    commit(a, 0, old, 50)
    bench.c.state.pending.drain()
    bench.c.legacy.update_offset(99, (GROUP, TOPIC, 0), 10, bench.now_ms)
    assert bench.stale() == [(GROUP, TOPIC, 0)]
    assert not pulls(a, 0, old)
    assert commit(a, 0, old, 60) is LockVerdict.STALE
    again = granted(a, 0)
    assert (again.offset, again.generation > old) == (10, True)
    assert pulls(a, 0, again.generation)


def test_progress_and_generation_survive_a_restart() -> None:
    bench = Bench()
    a = member(bench)
    generation = granted(a, 0).generation
    commit(a, 0, generation, 50)
    bench.restart()
    a.connect()
    response = granted(a, 0)
    assert (response.generation, response.offset) == (generation, 50)


def test_query_of_an_ordered_group_or_by_a_non_member_is_rejected() -> None:
    bench = Bench()
    a = joined(bench, "a", ordered())
    refused = begin(a, 0)
    assert refused is not None
    assert refused.verdict is LockVerdict.REFUSED
    b = joined(bench, "b", concurrent("other"))
    header = QueryConsumerOffsetHeader(GROUP, TOPIC, 0, ConsumeFromWhere.FIRST_OFFSET)
    stranger = bench.c.lock_sync.query_start(b.connection, header, bench.now_ms)
    assert stranger is not None
    assert stranger.verdict is LockVerdict.NOT_YOURS
    assert bench.c.lock_sync.query_start(999, header, bench.now_ms) is None, "a connection without a session is closed"
    assert bench.closed() == [999]


def test_dead_letter_needs_the_current_epoch_and_happens_once() -> None:
    bench = Bench()
    a = joined(bench, "a", ordered())
    epoch = a.lock(0)[0].epoch
    assert bench.c.lock_sync.is_dead_lettered(a.connection, (GROUP, TOPIC, 0), epoch, 4) is False
    bench.c.lock_sync.commit_dead_letter((GROUP, TOPIC, 0), 4, bench.now_ms)
    assert bench.progress(0) == (5, 0)
    assert bench.c.lock_sync.is_dead_lettered(a.connection, (GROUP, TOPIC, 0), epoch, 4) is True, "the repeat of a lost response"
    assert bench.c.lock_sync.is_dead_lettered(a.connection, (GROUP, TOPIC, 0), epoch - 1, 5) is None
    assert bench.c.lock_sync.is_dead_lettered(999, (GROUP, TOPIC, 0), epoch, 5) is None


def test_manual_members_start_in_any_queue_and_commit_under_its_generation() -> None:
    bench = Bench()
    a, b = (Client(bench, name, ordered(GROUP, ordered=False, allocate=MANUAL, subscriptions=())) for name in "ab")
    for client in (a, b):
        client.connect()
    one, same, other = granted(a, 0), granted(b, 0), granted(b, 1)
    assert one.generation == same.generation == other.generation, "nobody deals"
    assert commit(a, 0, one.generation, 1) is LockVerdict.OK
    bench.c.admin.reset_progress(ResetBody(GROUP, TOPIC, (QueueOffset(0, 0),)))
    assert not pulls(b, 0, same.generation)
    assert commit(b, 0, same.generation, 1) is LockVerdict.STALE
    assert granted(b, 0).generation > same.generation
    stranger = begin(Client(bench, "c"), 0)
    assert stranger is None or stranger.verdict is LockVerdict.NOT_YOURS


@pytest.mark.parametrize("ordered_too", [True, False])
def test_broadcast_group_has_no_progress_at_the_broker(ordered_too: bool) -> None:
    bench = Bench()
    a = joined(bench, "a", ordered(GROUP, ordered=ordered_too, message_model=MessageModel.BROADCASTING))
    response = begin(a, 0)
    assert response is not None
    assert response.verdict is LockVerdict.REFUSED
    assert commit(a, 0, 1, 1) is LockVerdict.REFUSED
    with pytest.raises(LocalProtocolError, match="each member keeps its own progress"):
        bench.c.admin.reset_progress(ResetBody(GROUP, TOPIC, (QueueOffset(0, 0),)))
    assert not [effect for effect in bench.c.state.pending.drain() if isinstance(effect, PushQueueFree)], (
        "no queue of it is anybody's to lock"
    )
