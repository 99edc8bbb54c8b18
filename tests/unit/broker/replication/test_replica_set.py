"""Who has to have what is confirmed: a member of the stored set has all that was ever confirmed, whatever is lost, silent or slow."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.broker.replication.replica_set import BEAT_MS, JOIN_BYTES, LOST_MS, REJOIN_MS, SILENT_MS, STUCK_MS, ReplicaSet


class World:
    """A master with its log, and replicas. The set is stored some steps after it is wanted, or never in a run that ends."""

    def __init__(self) -> None:
        self.written = self.now_ms = self.confirmed = 0
        self.has = dict.fromkeys("abc", 0)
        """What each replica has stored, told or not."""
        self.set = ReplicaSet({}, 0)
        self.storing: dict[str, str] | None = None

    def step(self, what: str, who: str, number: int) -> None:
        replicas = self.set.replicas
        match what:
            case "write":
                self.written += number * JOIN_BYTES // 50
            case "connect":
                self.set.connected(who, f"host-{who}", self.now_ms)
            case "copy" if who in replicas and replicas[who].connected:
                self.has[who] = min(self.written, self.has[who] + number * JOIN_BYTES // 40)
            case "cut" if who in replicas:  # a replica begins anew
                if who not in self.set.members | (self.storing or {}).keys():
                    self.has[who] = 0
                    self.set.disconnected(who, self.now_ms)
            case "tell" if who in replicas and replicas[who].connected:
                trouble = "its disk is full" if number == 99 else ""
                self.set.progress(who, self.has[who], 0, 0, self.written, self.now_ms, trouble)
            case "lose" if who in replicas:
                self.set.disconnected(who, self.now_ms)
            case "time":
                self.now_ms += number * 20
                self.set.tick(self.now_ms)
            case "forget":
                self.set.forget(who, self.now_ms)
            case "store":
                if self.storing is None:
                    self.storing = self.set.begin_storing()
                else:
                    self.set.set_stored()
                    self.storing = None
        stored = self.set.stored()
        self.confirmed = max(self.confirmed, self.written if stored is None else min(self.written, stored))

    def check(self) -> None:
        counted = {replica.member for replica in self.set.counted}
        assert self.set.members <= counted
        assert self.storing is None or self.storing.keys() <= counted, "who is being added counts already"
        for member in self.set.members | (self.storing or {}).keys():
            assert self.has[member] >= self.confirmed, f"{member} is in the set and lacks what was confirmed"


STEPS = st.tuples(
    st.sampled_from(["write", "connect", "copy", "copy", "tell", "tell", "lose", "time", "store", "store", "forget", "cut"]),
    st.sampled_from("abc"),
    st.integers(0, 99),
)


@settings(max_examples=500)
@given(st.lists(STEPS, min_size=20, max_size=150))
def test_members_have_all_that_was_confirmed(steps: list[Any]) -> None:
    world = World()
    for what, who, number in steps:
        world.step(what, who, number)
        world.check()


def stored(replicas: ReplicaSet) -> dict[str, str] | None:
    """Store the set that is wanted, and return it."""
    wanted = replicas.begin_storing()
    if wanted is not None:
        replicas.set_stored()
    return wanted


def joined(now_ms: int = 0) -> ReplicaSet:
    """Return a set with the member `a`, which has all of 100 bytes."""
    replicas = ReplicaSet({}, now_ms)
    replicas.connected("a", "host-a", now_ms)
    replicas.progress("a", 100, 0, 0, 100, now_ms)
    stored(replicas)
    assert replicas.members == {"a"}
    return replicas


def test_replica_joins_when_it_has_what_was_written_when_it_was_counted() -> None:
    replicas = ReplicaSet({}, 0)
    replicas.connected("a", "host-a", 0)
    assert (replicas.stored(), replicas.begin_storing()) == (None, None)
    replicas.progress("a", 0, 0, 0, JOIN_BYTES + 1, 10)
    assert (replicas.stored(), replicas.begin_storing()) == (None, None), "it is too far behind: nothing waits for it"
    replicas.progress("a", 1, 0, 0, JOIN_BYTES + 1, 20)
    assert (replicas.stored(), replicas.begin_storing()) == (1, None)
    replicas.progress("a", JOIN_BYTES + 1, 7, 0, JOIN_BYTES + 900, 30)
    assert (replicas.stored(), replicas.synced(), replicas.begin_storing()) == (JOIN_BYTES + 1, 7, {"a": "host-a"})
    assert replicas.members == frozenset(), "before the set is stored"
    replicas.disconnected("a", 40)
    assert replicas.stored() == JOIN_BYTES + 1, "it may be in the stored set"
    for now_ms in range(40, 41 + LOST_MS, 50):
        replicas.tick(now_ms)
    replicas.set_stored()
    replicas.tick(41 + LOST_MS)
    assert (stored(replicas), replicas.stored()) == ({}, None)


def test_member_that_is_lost_or_silent_or_in_trouble_counts_until_the_set_without_it_is_stored() -> None:
    cases = (
        ("lost", LOST_MS, "its connection was lost 300 ms ago"),
        ("silent", SILENT_MS, "it has told nothing for 1000 ms"),
        ("in trouble", 0, "its disk is full"),
    )
    for what, after_ms, reason in cases:
        replicas = joined()
        if what == "lost":
            replicas.disconnected("a", 0)
        elif what == "in trouble":
            replicas.progress("a", 100, 0, 0, 100, 0, "its disk is full")
        for now_ms in range(0, after_ms, 50):
            replicas.tick(now_ms)
            assert replicas.begin_storing() is None, (what, now_ms)
        replicas.tick(after_ms)
        assert (replicas.begin_storing(), replicas.stored()) == ({}, 100), what
        assert replicas.replicas["a"].left_because == reason
        replicas.set_stored()
        assert (replicas.begin_storing(), replicas.stored()) == (None, None), what


def test_member_that_was_silent_or_in_trouble_stays_out_for_a_while_and_one_that_was_lost_does_not() -> None:
    for silent in (False, True):
        replicas = joined()
        if not silent:
            replicas.disconnected("a", 0)
        for now_ms in range(0, SILENT_MS + 1, 50):
            replicas.tick(now_ms)
        assert stored(replicas) == {}
        replicas.connected("a", "host-a", 1_100)
        replicas.progress("a", 100, 0, 0, 100, 1_100)
        assert (replicas.stored() is None) is silent
        replicas.progress("a", 100, 0, 0, 100, SILENT_MS + REJOIN_MS)
        assert stored(replicas) == {"a": "host-a"}


def test_pause_of_the_master_is_no_silence_of_its_members_and_no_fault_of_their_disks() -> None:
    replicas = joined()
    replicas.progress("a", 100, 0, 0, 150, 0, frame=1, last_frame=2)
    replicas.tick(60_000)
    assert replicas.begin_storing() is None
    replicas.progress("a", 100, 0, 0, 150, 60_000, frame=1, last_frame=2)
    replicas.tick(60_000)
    assert replicas.begin_storing() is None
    for now_ms in range(60_000, 60_000 + SILENT_MS + 50, 50):
        replicas.tick(now_ms)
    assert replicas.begin_storing() == {}


def every(step_ms: int, until_ms: int, replicas: ReplicaSet, happens: Callable[[int], None]) -> int | None:
    """Let something happen in steps. Return when the set without the member was wanted, None if never."""
    for now_ms in range(step_ms, until_ms + 1, step_ms):
        happens(now_ms)
        replicas.tick(now_ms)
        if replicas.begin_storing() is not None:
            return now_ms
    return None


def test_member_that_stores_nothing_leaves_and_comes_back_when_it_does() -> None:
    """Its disk hangs: it asks every beat, and tells the same each time."""
    replicas = joined()

    def beat(now_ms: int) -> None:
        replicas.progress("a", 100, 0, 0, 150 + now_ms, now_ms)

    left_ms = every(BEAT_MS, STUCK_MS * 3, replicas, beat)
    assert left_ms == STUCK_MS + BEAT_MS
    assert replicas.replicas["a"].left_because == "it has stored nothing of what it lacks for 3000 ms"
    replicas.set_stored()
    for now_ms in range(left_ms, left_ms + 2 * REJOIN_MS, BEAT_MS):
        beat(now_ms)
        assert replicas.stored() is None, "nothing waits for it while it is stuck"
    replicas.progress("a", 151, 0, 0, 160, left_ms + 2 * REJOIN_MS)
    assert replicas.stored() == 151


@pytest.mark.parametrize(
    ("stored", "written"),
    [
        (lambda now_ms: 100 + now_ms // (STUCK_MS - BEAT_MS), lambda now_ms: 100 + 10 * now_ms),
        (lambda now_ms: 100, lambda now_ms: 100),
        (lambda now_ms: 100 + now_ms - now_ms % STUCK_MS, lambda now_ms: 100 + now_ms - now_ms % STUCK_MS),
    ],
    ids=["slow", "idle", "sometimes idle"],
)
def test_member_that_is_slow_or_lacks_nothing_stays(stored: Callable[[int], int], written: Callable[[int], int]) -> None:
    replicas = joined()
    assert every(BEAT_MS, 60_000, replicas, lambda now_ms: replicas.progress("a", stored(now_ms), 0, 0, written(now_ms), now_ms)) is None


@pytest.mark.parametrize("hears", [False, True])
def test_member_leaves_that_tells_what_it_has_and_never_hears_a_later_frame(hears: bool) -> None:
    """It connects, tells that its log is whole, and is cut off before it has an answer, in turn. Pulls wait for what it hears."""
    replicas = joined()

    def flap(now_ms: int) -> None:
        replicas.connected("a", "host-a", now_ms)
        replicas.progress("a", 100, 0, 0, 100, now_ms, frame=now_ms if hears else 0, last_frame=now_ms + 1)
        replicas.disconnected("a", now_ms)

    assert every(BEAT_MS, 60_000, replicas, flap) == (None if hears else STUCK_MS + BEAT_MS)
    assert replicas.replicas["a"].left_because == ("" if hears else "it has heard nothing of this master for 3000 ms")


@pytest.mark.parametrize("period_ms", [100, 500, SILENT_MS])
def test_member_leaves_that_connects_and_is_cut_off_in_turn(period_ms: int) -> None:
    replicas = joined()

    def flap(now_ms: int) -> None:
        if now_ms % period_ms == 0:
            replicas.connected("a", "host-a", now_ms)
        elif now_ms % period_ms == period_ms // 2:
            replicas.disconnected("a", now_ms)

    replicas.disconnected("a", 0)
    left_ms = every(50, 60_000, replicas, flap)
    assert left_ms is not None
    assert left_ms <= SILENT_MS


def test_members_of_the_stored_set_count_from_the_start_on() -> None:
    replicas = ReplicaSet({"a": "host-a", "b": "host-b"}, 0)
    assert replicas.stored() == 0
    replicas.connected("a", "host-a2", 1)
    replicas.progress("a", 50, 50, 50, 70, 1)
    assert replicas.stored() == 0
    for now_ms in range(0, LOST_MS + 1, 50):
        replicas.tick(now_ms)
    assert stored(replicas) == {"a": "host-a2"}
    assert replicas.stored() == 50


def test_forgotten_member_leaves_the_set() -> None:
    replicas = joined()
    assert not replicas.forget("x", 0)
    assert replicas.forget("a", 0)
    assert replicas.begin_storing() == {}
