"""Interleavings in which one rule alone decides: where a swarm needs luck, or where other rules mend what its absence breaks."""

import re

import pytest

from lockstep.protocol.bodies import LockVerdict, SessionLockBody
from lockstep.testing.simulation import SimFiles
from support.coordination_kit import GRACE, Bench, Client, replay
from sweep.seeds import run_one


def pair(bench: Bench) -> tuple[Client, Client]:
    """Members a (queues 0, 2) and b (queues 1, 3), both connected."""
    a, b = Client(bench, "a"), Client(bench, "b")
    a.connect()
    b.connect()
    bench.c.state.pending.drain()
    return a, b


def test_who_has_lost_a_lock_is_still_a_member() -> None:
    bench = Bench()
    a, _ = pair(bench)
    epoch = a.lock(0)[0].epoch
    version = bench.c.membership.member_list("billing")
    assert a.verdicts(held={0: epoch + 1}) == {0: LockVerdict.STALE}
    assert bench.lists() == ("a", "b")
    assert bench.c.membership.member_list("billing") == version, "and nobody has to rebalance"


def test_a_hold_that_was_renewed_after_a_release_is_found_again_by_a_start() -> None:
    bench = Bench()
    a, _ = pair(bench)
    epoch = a.lock(0)[0].epoch
    assert a.commit(0, 0, epoch=epoch, release=True) is LockVerdict.OK
    assert bench.owner(0) is None
    assert a.verdicts(held={0: epoch}) == {0: LockVerdict.OK}
    bench.flush()
    assert replay(bench).snapshot() == bench.c.snapshot()


def test_what_a_silent_client_wakes_up_on_is_closed() -> None:
    """Else its next HEART_BEAT would bind the same connection anew, and an empty SYNC would prove a lock that somebody else has."""
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


def test_what_comes_late_on_an_older_connection_frees_nothing() -> None:
    """A LOCK that waited in an old connection's socket names less than its session holds by now."""
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


def test_a_pull_under_an_epoch_that_was_beaten_is_stale() -> None:
    bench = Bench()
    a, _ = pair(bench)
    epoch = a.lock(0)[0].epoch
    assert a.pull(0, epoch) is True
    again = a.lock(0, held={})[0].epoch
    assert again > epoch
    assert a.pull(0, epoch) is False


def test_a_snapshot_begins_when_the_log_is_durable_up_to_its_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the very operation that makes its file: a start would ignore one that is ahead of the log, so no universe can show it."""
    tick, made, ahead = SimFiles.tick, [], []

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
