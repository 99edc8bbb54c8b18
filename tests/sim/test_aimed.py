"""Interleavings in which a single rule decides: random runs rarely reach them, or other rules hide the rule's absence."""

import re

import pytest

from lockstep.protocol.bodies import LockVerdict, SessionLockBody
from lockstep.testing.simulation import SimFiles
from support.coordination_kit import GRACE, Bench, Client, joined, replay
from sweep.seeds import run_one


def pair(bench: Bench) -> tuple[Client, Client]:
    """Members a (queues 0, 2) and b (queues 1, 3), both connected."""
    a, b = joined(bench, "a"), joined(bench, "b")
    bench.c.state.pending.drain()
    return a, b


def test_member_that_lost_a_lock_remains_a_member() -> None:
    bench = Bench()
    a, _ = pair(bench)
    epoch = a.lock(0)[0].epoch
    version = bench.c.membership.member_list("billing")
    assert a.verdicts(held={0: epoch + 1}) == {0: LockVerdict.STALE}
    assert bench.lists() == ("a", "b")
    assert bench.c.membership.member_list("billing") == version, "and nobody has to rebalance"


def test_lock_renewed_after_a_release_is_restored_by_a_restart() -> None:
    bench = Bench()
    a, _ = pair(bench)
    epoch = a.lock(0)[0].epoch
    assert a.commit(0, 0, epoch=epoch, release=True) is LockVerdict.OK
    assert bench.owner(0) is None
    assert a.verdicts(held={0: epoch}) == {0: LockVerdict.OK}
    bench.flush()
    assert replay(bench).snapshot() == bench.c.snapshot()


def test_connection_of_an_evicted_client_is_closed() -> None:
    """Otherwise its next HEART_BEAT would bind the same connection again, and an empty SYNC would prove a lock of another client."""
    bench = Bench()
    a, b = pair(bench)
    a.lock(0)
    connection = a.connection
    for _ in range(60):
        bench.advance(GRACE // 3)
        b.beat()
    assert bench.lists() == ("b",)
    assert connection in bench.closed()
    assert a.beat() is None, "what still arrives on it means nothing"


def test_late_lock_on_an_older_connection_releases_no_queue() -> None:
    """A LOCK that was delayed on an old connection names fewer queues than its session holds now."""
    bench = Bench()
    a, b = pair(bench)
    late = a.connection
    a.connect()
    assert bench.closed() == [late]
    epoch = a.lock(0)[0].epoch
    bench.c.lock_sync.lock(late, SessionLockBody(()), bench.now_ms)
    assert bench.owner(0) == "a"
    assert a.commit(0, 1, epoch=epoch) is LockVerdict.OK
    assert b.verdicts(0) == {0: LockVerdict.NOT_YOURS}


def test_pull_under_an_older_epoch_is_stale() -> None:
    bench = Bench()
    a, _ = pair(bench)
    epoch = a.lock(0)[0].epoch
    assert a.pull(0, epoch) is True
    again = a.lock(0, held={})[0].epoch
    assert again > epoch
    assert a.pull(0, epoch) is False


def test_snapshot_is_written_only_once_the_log_is_durable_up_to_its_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """This is checked at the operation that creates the file. A start would ignore a snapshot ahead of the log, so no run can show it."""
    tick = SimFiles.tick
    made: list[int] = []
    ahead: list[tuple[str, str, int]] = []

    def look(self: SimFiles, operation: str, path: str, process: int) -> None:
        tick(self, operation, path, process)
        if operation == "create" and (name := re.search(r"/snapshot-(\d+)", path)):
            made.append(int(name[1]))
            for log, inode in self.names.items():
                if re.fullmatch(r".*/\d{20}", log) and "consumequeue" not in log:
                    unsynced = [int(log[-20:]) + offset for offset, data in inode.pending if data]
                    ahead.extend((path, log, at) for at in unsynced if at < made[-1])

    monkeypatch.setattr(SimFiles, "tick", look)
    run_one(3, "disk", storm_s=15.0)
    assert made
    assert not ahead
