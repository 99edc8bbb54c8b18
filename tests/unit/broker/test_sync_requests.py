"""SYNC: commits and releases, the epoch or generation that they need, and refusals."""

import pytest

from lockstep.protocol.bodies import LockVerdict, SyncBody, SyncItem
from support.coordination_kit import GROUP, TOPIC, Bench, ClassicClient, Client, joined, ordered

OK, STALE, REFUSED = LockVerdict.OK, LockVerdict.STALE, LockVerdict.REFUSED


def test_offset_never_falls_within_a_generation_and_a_repeated_commit_is_ok() -> None:
    bench = Bench()
    a = joined(bench, "a")
    a.lock(0)
    assert [a.commit(0, offset) for offset in (5, 3, 5)] == [OK, OK, OK]
    assert bench.progress(0) == (5, 0)


def test_attempts_belong_to_the_committed_offset() -> None:
    bench = Bench()
    a = joined(bench, "a")
    a.lock(0)
    seen = []
    for offset, attempts in [(0, 1), (0, 2), (0, 1), (4, 0), (3, 9), (4, 1)]:
        a.commit(0, offset, attempts=attempts)
        seen.append(bench.progress(0))
    assert seen == [(0, 1), (0, 2), (0, 2), (4, 0), (4, 0), (4, 1)]


@pytest.mark.parametrize(("offset", "verdict"), [(999, OK), (1_000, OK), (1_001, REFUSED), (-1, REFUSED)])
def test_commit_beyond_the_end_is_rejected_and_changes_nothing(offset: int, verdict: LockVerdict) -> None:
    bench = Bench()
    a = joined(bench, "a")
    a.lock(0)
    assert a.commit(0, offset, release=True) is verdict
    assert bench.owner(0) == (None if verdict is OK else "a")
    assert bench.progress(0)[0] == (offset if verdict is OK else 0)


def test_negative_attempts_are_rejected() -> None:
    bench = Bench()
    a = joined(bench, "a")
    a.lock(0)
    assert a.commit(0, 1, attempts=-1) is REFUSED
    assert bench.progress(0) == (0, 0)


def test_release_without_an_offset_only_frees_the_queue() -> None:
    bench = Bench()
    a = joined(bench, "a")
    a.lock(0)
    a.commit(0, 5)
    epoch = bench.epoch(0)
    assert a.commit(0, None, release=True) is OK
    assert (bench.owner(0), bench.progress(0), bench.epoch(0)) == (None, (5, 0), epoch)


def test_superseded_epoch_is_stale_for_every_request_and_named_in_the_response() -> None:
    bench = Bench()
    a = joined(bench, "a")
    old = a.lock(1)[1].epoch
    b = joined(bench, "b")
    a.commit(1, 2, release=True)
    new = b.lock(1)[1].epoch
    responses = a.send_sync(SyncItem(GROUP, TOPIC, 1, old, offset=9), SyncItem(GROUP, TOPIC, 1, old, release=True))
    assert responses is not None
    assert [(response.verdict, response.epoch) for response in responses] == [(STALE, old)] * 2
    assert (bench.owner(1), bench.progress(1), bench.epoch(1)) == ("b", (2, 0), new)
    assert a.pull(1, old) is False


def test_response_to_an_empty_sync_has_the_list_versions() -> None:
    bench = Bench()
    a = joined(bench, "a")
    Client(bench, "b").connect()
    beaten = a.beat()
    assert beaten is not None
    reply = bench.c.lock_sync.sync(a.connection, SyncBody(), bench.now_ms)
    assert reply is not None
    assert reply.versions == {GROUP: beaten.groups[GROUP].list.version}


def test_concurrent_group_commits_under_its_generation_and_never_lowers_the_offset() -> None:
    bench = Bench()
    a = joined(bench, "a", ordered(ordered=False))
    classic = ClassicClient(bench, "tool")
    classic.connection = bench.new_connection()
    classic.update(0, 5)
    row = bench.c.status.read(GROUP, bench.now_ms, str)
    assert row is not None
    generation = row.queues[0].generation

    def commit(offset: int | None, number: int | None) -> LockVerdict:
        responses = a.send_sync(SyncItem(GROUP, TOPIC, 0, generation=number, offset=offset))
        assert responses is not None
        return responses[0].verdict

    assert commit(7, generation) is OK
    assert commit(6, generation) is OK
    assert bench.progress(0) == (7, 0)
    assert commit(9, generation + 1) is STALE
    assert commit(9, None) is REFUSED
    assert commit(1_001, generation) is REFUSED
    classic.update(0, 2)
    assert commit(9, generation) is STALE


def test_ordered_group_never_commits_without_the_epoch() -> None:
    bench = Bench()
    a = joined(bench, "a")
    generation = a.lock(0)[0].generation
    for _ in range(2):
        responses = a.send_sync(SyncItem(GROUP, TOPIC, 0, generation=generation, offset=7), SyncItem(GROUP, TOPIC, 0, offset=7))
        assert responses is not None
        assert [response.verdict for response in responses] == [REFUSED, REFUSED]
        assert bench.progress(0) == (0, 0)
        a.commit(0, None, release=True)


def test_queue_locked_by_another_client_is_not_committed_under_its_generation() -> None:
    bench = Bench()
    a, classic = Client(bench, "a", ordered(ordered=False)), ClassicClient(bench, "c")
    a.connect()
    classic.connect()
    classic.update(0, 3)
    assert classic.lock(0) == [0]
    status = bench.c.status.read(GROUP, bench.now_ms, str)
    assert status is not None
    responses = a.send_sync(SyncItem(GROUP, TOPIC, 0, generation=status.queues[0].generation, offset=7))
    assert responses is not None
    assert [response.verdict for response in responses] == [REFUSED]
    assert bench.progress(0) == (3, 0)
