"""Done ranges in the progress: what a group has finished above its committed offset, and when the broker forgets it."""

from typing import Any

import pytest

from lockstep.broker.classic.resets import ResetProcessor
from lockstep.broker.groups.tables.progress_table import Progress, ProgressTable
from lockstep.broker.journal import Journal
from lockstep.protocol.bodies import LockItem, LockVerdict, QueueOffset, ResetBody, SyncBody, SyncItem
from lockstep.protocol.done_ranges import RANGES_MAX, Ranges
from lockstep.protocol.headers.tools import ResetOffsetHeader
from support.coordination_kit import GROUP, TOPIC, Bench, Client, joined

KEY = (GROUP, TOPIC, 0)


def holding() -> tuple[Bench, Client, int]:
    """Return a broker and a member that holds queue 0, whose offsets are 0 … 999, and its epoch."""
    bench = Bench()
    member = joined(bench, "a")
    return bench, member, member.lock(0)[0].epoch


def commit(member: Client, epoch: int, offset: int, *done: int, attempts: int = 0) -> tuple[LockVerdict, str | None]:
    item = SyncItem(*KEY, epoch, None, offset, attempts, done=done)
    reply = member.bench.c.lock_sync.sync(member.connection, SyncBody((item,)), member.bench.now_ms)
    assert reply is not None
    return reply.items[0].verdict, reply.items[0].remark


def kept(bench: Bench) -> tuple[int, Ranges]:
    progress = bench.c.state.progress.get(KEY)
    assert progress is not None
    return progress.offset, progress.done


def test_ranges_are_added_to_those_that_are_known_until_a_commit_passes_them() -> None:
    bench, member, epoch = holding()
    assert commit(member, epoch, 2, 5, 8) == (LockVerdict.OK, None)
    commit(member, epoch, 2, 20, 21)
    assert kept(bench) == (2, (5, 8, 20, 21))
    commit(member, epoch, 3, 7, 10)
    assert kept(bench) == (3, (5, 10, 20, 21))
    commit(member, epoch, 10)
    assert kept(bench) == (10, (20, 21))
    commit(member, epoch, 30)
    assert kept(bench) == (30, ())


def test_finished_messages_are_no_lag() -> None:
    bench, member, epoch = holding()
    commit(member, epoch, 2, 5, 8, 20, 21)
    assert bench.c.status.lag_of(KEY) == 1_000 - 2 - 4
    status = bench.c.status.read(GROUP, bench.now_ms, str)
    assert status is not None
    (queue,) = [each for each in status.queues if each.queue_id == 0]
    assert (queue.committed_offset, queue.done) == (2, (5, 8, 20, 21))


def test_repeated_or_older_commit_changes_nothing() -> None:
    bench, member, epoch = holding()
    commit(member, epoch, 4, 6, 9, attempts=2)
    bench.flush()
    records = len(bench.records)
    commit(member, epoch, 4, 6, 9, attempts=2)
    commit(member, epoch, 4, attempts=1)
    commit(member, epoch, 3, 6, 7)
    bench.flush()
    assert (kept(bench), len(bench.records)) == ((4, (6, 9)), records)
    assert bench.progress(0) == (4, 2)


def test_commit_that_was_sent_before_a_dead_letter_moved_progress_still_adds_its_ranges() -> None:
    bench, member, epoch = holding()
    bench.c.lock_sync.commit_dead_letter(KEY, 0, bench.now_ms, advance=False)
    assert kept(bench) == (1, ())
    assert commit(member, epoch, 0, 1, 2, 5, 8, attempts=1) == (LockVerdict.OK, None)
    assert kept(bench) == (1, (1, 2, 5, 8))
    result = member.lock(0, held={})[0]
    assert (result.offset, result.done) == (1, (1, 2, 5, 8)), "the next owner begins at 2"


def test_ranges_are_granted_to_the_next_owner_and_outlive_a_restart() -> None:
    bench, member, epoch = holding()
    commit(member, epoch, 2, 5, 8)
    bench.restart()
    assert kept(bench) == (2, (5, 8))
    again = Client(bench, "b")
    member.connect()
    member.lock(held={})
    member.leave()
    again.connect()
    result = again.lock(0)[0]
    assert (result.verdict, result.offset, result.done) == (LockVerdict.OK, 2, (5, 8))


def test_lock_commits_ranges_with_a_renewal() -> None:
    bench, member, epoch = holding()
    reply = member.send_lock(LockItem(*KEY, epoch, 3, 0, (6, 7)))
    assert reply is not None
    assert reply.items[0].verdict is LockVerdict.OK
    assert kept(bench) == (3, (6, 7))


def test_ranges_outside_the_queue_or_not_above_the_offset_are_refused() -> None:
    bench, member, epoch = holding()
    for done in ((2, 4), (5, 5), (5, 1_001), (5,), (5, 6, 6, 8), tuple(range(5, 5 + 2 * (RANGES_MAX + 1)))):
        verdict, remark = commit(member, epoch, 2, *done)
        assert verdict is LockVerdict.REFUSED
        assert "done range" in str(remark)
    assert kept(bench) == (0, ())


def test_commit_under_an_older_epoch_adds_no_ranges() -> None:
    bench, member, epoch = holding()
    member.lock(0, held={})
    assert commit(member, epoch, 2, 5, 8)[0] is LockVerdict.STALE
    assert kept(bench) == (0, ())


def test_reset_forgets_the_ranges() -> None:
    bench, member, epoch = holding()
    commit(member, epoch, 2, 5, 8)
    bench.c.admin.reset_progress(ResetBody(GROUP, TOPIC, (QueueOffset(0, 2),)))
    assert kept(bench) == (2, ())


def test_loss_of_a_suffix_of_the_log_forgets_the_ranges_beyond_its_end() -> None:
    """New messages will have these offsets."""
    bench, member, epoch = holding()
    commit(member, epoch, 2, 5, 8, 20, 30)
    before = bench.c.state.progress.get(KEY)
    bench.ends.queues[TOPIC, 0] = (0, 25)
    bench.restart(assumed_loss=True)
    assert kept(bench) == (2, (5, 8, 20, 25))
    after = bench.c.state.progress.get(KEY)
    assert before is not None
    assert after is not None
    assert after.generation > before.generation
    bench.ends.queues[TOPIC, 0] = (0, 1)
    bench.restart(assumed_loss=True)
    assert kept(bench) == (1, ())


def test_retention_moves_progress_past_ranges() -> None:
    bench, member, epoch = holding()
    commit(member, epoch, 2, 5, 8, 20, 30)
    bench.retention_moved({(TOPIC, 0): 6})
    assert kept(bench) == (8, (20, 30)), "6 and 7 are finished"
    bench.retention_moved({(TOPIC, 0): 10})
    assert kept(bench) == (10, (20, 30))


def test_gap_is_reported_until_a_commit_passes_it_although_retention_has_moved_progress_past_its_end() -> None:
    bench, member, epoch = holding()
    commit(member, epoch, 0, 5, 150)
    bench.retention_moved({(TOPIC, 0): 100})
    assert kept(bench) == (150, ())
    commit(member, epoch, 0, 5, 150, 160, 161)
    commit(member, epoch, 150, 160, 161)
    result = member.lock(0, held={})[0]
    assert (result.offset, result.gap_first, result.gap_end) == (150, 0, 100)
    commit(member, member.held[0], 151)
    assert member.lock(0, held={})[0].gap_first is None


def test_status_tells_what_retention_removed_and_when_as_long_as_this_process_knows_it() -> None:
    bench, member, epoch = holding()

    def told() -> tuple[int | None, int | None, int | None]:
        status = bench.c.status.read_queue(KEY, bench.now_ms)
        return status.gap_first, status.gap_end, status.gap_ago_ms

    assert told() == (None, None, None)
    bench.c.tick(bench.now_ms)
    bench.retention_moved({(TOPIC, 0): 100})
    bench.now_ms += 5_000
    assert told() == (0, 100, 5_000)
    commit(member, epoch, 101)
    assert told() == (0, 100, 5_000), "a commit has passed them, and they are lost all the same"
    bench.c.tick(bench.now_ms)
    bench.retention_moved({(TOPIC, 0): 300})
    bench.restart()
    assert told() == (101, 300, None), "the gap is durable, its time is not"
    bench.c.state.progress.drop_topic(TOPIC)
    assert told() == (None, None, None)


@pytest.mark.parametrize(
    ("target", "force", "moved"), [(2, False, [2]), (6, False, [2]), (50, False, []), (50, True, [50]), (1, False, [1])]
)
def test_reset_by_rocketmqs_tools_brings_finished_messages_again(target: int, force: bool, moved: list[int]) -> None:
    """To the committed offset too, and to one above it, which does not rise without force."""
    bench, member, epoch = holding()
    commit(member, epoch, 2, 5, 8)
    nothing: Any = None
    resets = ResetProcessor(bench.c, nothing, nothing, nothing, nothing)
    found = resets._moved(ResetOffsetHeader(TOPIC, GROUP, -1, force), {0: target})
    assert [queue.offset for queue in found] == moved


def test_dead_letter_is_finished_where_it_is() -> None:
    bench, member, epoch = holding()
    commit(member, epoch, 2, 5, 8, attempts=1)
    sync = bench.c.lock_sync
    assert sync.is_dead_lettered(member.connection, KEY, epoch, 4) is False
    sync.commit_dead_letter(KEY, 4, bench.now_ms, advance=False)
    assert kept(bench) == (2, (4, 8))
    assert bench.progress(0) == (2, 1)
    assert sync.is_dead_lettered(member.connection, KEY, epoch, 4) is True
    sync.commit_dead_letter(KEY, 2, bench.now_ms, advance=False)
    assert kept(bench) == (3, (4, 8))
    sync.commit_dead_letter(KEY, 3, bench.now_ms, advance=False)
    assert kept(bench) == (8, ()), "the first unfinished message is the one after the range"


def test_snapshot_restores_ranges() -> None:
    table = ProgressTable(Journal())
    table.set_progress(KEY, Progress(1, 2, done=(5, 8)))
    table.set_progress((GROUP, TOPIC, 1), Progress(1, 2, unannounced=True))
    table.set_progress((GROUP, TOPIC, 2), Progress(1, 2, unannounced=True, done=(3, 4)))
    again = ProgressTable(Journal())
    again.restore(table.snapshot())
    assert list(again) == sorted(table)
    assert again.snapshot() == table.snapshot()
