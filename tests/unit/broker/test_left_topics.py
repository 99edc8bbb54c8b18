"""Topics that a group has left: no contract in force subscribes to them, so they count in no lag, and the group's progress can be ended."""

from dataclasses import replace

import pytest

from lockstep.protocol.bodies import ConsumeFromWhere, ConsumerGroup, LockItem, LockVerdict, Subscription, SyncItem
from lockstep.protocol.errors import LocalProtocolError, NoPermissionError, ParkRefusedError
from lockstep.protocol.names import retry_topic
from lockstep.protocol.topics.allocate import MANUAL
from support.coordination_kit import GRACE, GROUP, TIMEOUT, TOPIC, Bench, ClassicClient, Client, layout, ordered, replay

LEFT = "refunds"
BOTH, KEPT = ordered(topics=(TOPIC, LEFT)), ordered(contract_version=1)


def bench_of_two() -> Bench:
    return Bench(layout(queues=2), layout(LEFT, queues=1))


def running(bench: Bench, name: str, contract: ConsumerGroup) -> Client:
    client = Client(bench, name, contract)
    assert client.connect() is not None
    return client


def take(client: Client, topic: str = LEFT, offset: int = 900) -> int:
    """Let the client hold queue 0 of the topic and commit there. Return the epoch."""
    reply = client.send_lock(LockItem(GROUP, topic, 0))
    assert reply is not None
    assert reply.items[0].verdict is LockVerdict.OK
    client.send_sync(SyncItem(GROUP, topic, 0, reply.items[0].epoch, offset=offset))
    return reply.items[0].epoch


def left(bench: Bench, topic: str = LEFT) -> bool:
    return bench.c.state.has_left(GROUP, topic)


def lag(bench: Bench) -> int:
    """Return what `group list` shows."""
    status = bench.c.status
    return sum(status.lag_of(key) for key in status.counted_queue_keys(GROUP))


def after_a_rolling_update() -> tuple[Bench, Client]:
    """Return a broker whose group has left a topic, in which it is 100 messages behind, and the group's member."""
    bench = bench_of_two()
    old = running(bench, "a", BOTH)
    take(old)
    new = running(bench, "b", KEPT)
    old.close()
    bench.advance(GRACE + 500)
    return bench, new


def test_topic_counts_until_no_contract_in_force_subscribes_to_it_and_nobody_holds_a_queue_of_it() -> None:
    bench = bench_of_two()
    old = running(bench, "a", BOTH)
    epoch = take(old)
    assert (left(bench), lag(bench)) == (False, 2_100)
    running(bench, "b", KEPT)
    assert (left(bench), lag(bench)) == (False, 2_100), "two contracts are in force"
    old.leave()
    assert (left(bench), lag(bench)) == (False, 2_100), "the old member may still call its listener"
    old.send_sync(SyncItem(GROUP, LEFT, 0, epoch, offset=950, release=True))
    assert (left(bench), lag(bench)) == (True, 2_000)
    assert not left(bench, TOPIC)
    assert not left(bench, retry_topic(GROUP))


def test_member_that_may_come_back_keeps_its_topics_until_its_grace_is_over() -> None:
    bench = bench_of_two()
    old = running(bench, "a", BOTH)
    take(old)
    running(bench, "b", KEPT)
    old.close()
    bench.advance(GRACE - 500)
    assert not left(bench)
    bench.advance(1_000)
    assert left(bench)


def test_restart_knows_what_was_left_and_counts_everything_again_when_no_member_comes_back() -> None:
    bench, _ = after_a_rolling_update()
    bench.restart()
    assert (left(bench), lag(bench)) == (True, 2_000), "members and contracts are recorded"
    bench.advance(TIMEOUT + 1_000)
    assert bench.lists() == ()
    assert (left(bench), lag(bench)) == (False, 100), "what a stopped group will subscribe to is not known"


def test_member_that_subscribes_again_brings_the_topic_back() -> None:
    bench, _ = after_a_rolling_update()
    again = running(bench, "c", replace(BOTH, contract_version=2))
    assert (left(bench), lag(bench)) == (False, 2_100)
    reply = again.send_lock(LockItem(GROUP, LEFT, 0))
    assert reply is not None
    assert reply.items[0].offset == 900, "the group goes on where it was"


def test_member_that_assigns_its_queues_by_hand_may_consume_any_topic() -> None:
    bench = bench_of_two()
    ClassicClient(bench, "tool").update(0, 5)
    bench.c.legacy.update_offset(99, (GROUP, LEFT, 0), 5, bench.now_ms)
    running(bench, "a", ordered(topics=(), ordered=False, allocate=MANUAL))
    assert not left(bench)
    with pytest.raises(NoPermissionError, match=rf"clients at broker-a may consume it: a\. .*group forget {GROUP} --topic {LEFT}"):
        bench.c.admin.forget_progress(GROUP, LEFT)


def test_topics_of_classic_members_are_known_from_their_heartbeats() -> None:
    bench = bench_of_two()
    bench.c.legacy.update_offset(99, (GROUP, LEFT, 0), 5, bench.now_ms)
    a, b = ClassicClient(bench, "a", ordered(topics=(TOPIC, retry_topic(GROUP)))), ClassicClient(bench, "b", BOTH)
    b.connect()
    a.connect()
    assert not left(bench), "b consumes it, although the last heartbeat did not name it"
    b.close()
    assert left(bench)
    bench.restart()
    assert bench.lists() == ("a",)
    assert not left(bench), "the broker does not know yet what it subscribes to"
    a.connect()
    assert left(bench)
    ClassicClient(bench, "puller", ordered(topics=(retry_topic(GROUP),))).connect()
    assert not left(bench), "one that names no topic pulls by hand"


def test_progress_in_a_left_topic_ends_and_the_group_begins_again_by_its_start_policy() -> None:
    bench, member = after_a_rolling_update()
    take(member, TOPIC, 7)
    assert bench.c.admin.forget_progress(GROUP, LEFT) == 1
    assert bench.c.state.progress.topics_of_group(GROUP) == [TOPIC]
    assert bench.c.state.locks.topics_of_group(GROUP) == [TOPIC]
    assert bench.c.state.progress.since(GROUP, LEFT) is None
    assert bench.c.admin.forget_progress(GROUP, LEFT) == 0
    bench.flush()
    assert replay(bench).snapshot() == bench.c.snapshot()
    late = (Subscription(TOPIC), Subscription(LEFT))
    again = running(bench, "c", replace(KEPT, contract_version=2, subscriptions=late, consume_from_where=ConsumeFromWhere.LAST_OFFSET))
    reply = again.send_lock(LockItem(GROUP, LEFT, 0))
    assert reply is not None
    assert reply.items[0].offset == 1_000
    assert bench.progress(0) == (7, 0)


def test_progress_does_not_end_while_the_topic_is_consumed_or_held() -> None:
    bench = bench_of_two()
    old = running(bench, "a", BOTH)
    epoch = take(old)
    with pytest.raises(NoPermissionError, match="may consume it: a"):
        bench.c.admin.forget_progress(GROUP, LEFT)
    old.leave()
    with pytest.raises(NoPermissionError, match="hold queues of it"):
        bench.c.admin.forget_progress(GROUP, LEFT)
    assert bench.progress(0, topic=LEFT) == (900, 0)
    old.send_sync(SyncItem(GROUP, LEFT, 0, epoch, release=True))
    assert bench.c.admin.forget_progress(GROUP, LEFT) == 1, "of a stopped group too"


def test_late_commit_of_a_member_that_has_left_does_not_bring_the_progress_back() -> None:
    bench = bench_of_two()
    old = running(bench, "a", BOTH)
    epoch = take(old)
    old.leave()
    old.send_sync(SyncItem(GROUP, LEFT, 0, epoch, release=True))
    bench.c.admin.forget_progress(GROUP, LEFT)
    results = old.send_sync(SyncItem(GROUP, LEFT, 0, epoch, offset=990))
    assert results is not None
    assert results[0].verdict is LockVerdict.STALE
    assert bench.c.state.progress.get((GROUP, LEFT, 0)) is None


def test_retries_parked_keys_and_wrong_names_are_refused() -> None:
    bench, _ = after_a_rolling_update()
    with pytest.raises(NoPermissionError, match="ends with the group"):
        bench.c.admin.forget_progress(GROUP, retry_topic(GROUP))
    for names in (("", LEFT), (GROUP, "no such/topic")):
        with pytest.raises(LocalProtocolError):
            bench.c.admin.forget_progress(*names)
    bench.c.state.parks.park((GROUP, LEFT, 0), "k", 905, 3, "e", bench.now_ms)
    with pytest.raises(ParkRefusedError):
        bench.c.admin.forget_progress(GROUP, LEFT)
    assert bench.progress(0, topic=LEFT) == (900, 0)
