"""GROUP_EVENTS: the last events of groups, their times, their limits, and how long hand-overs took."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.broker.groups.group_events import GroupEventLog
from lockstep.protocol.bodies import GroupEvent, GroupEventKind, QueueOffset, ResetBody
from lockstep.protocol.topics.queue import LayoutVersion, TopicLayout
from support.coordination_kit import GRACE, GROUP, TIMEOUT, TOPIC, Bench, ClassicClient, Client, joined, ordered

K = GroupEventKind
DATE_MS = 1_700_000_000_000
"""The wall clock of these tests is the bench's clock plus this."""


def told(bench: Bench, after: int = 0) -> list[GroupEvent]:
    """Return the events of the group above this number."""
    events = bench.c.state.events
    events.stamp(bench.now_ms, DATE_MS + bench.now_ms)
    return events.read(after, GROUP, 1_000)[0]


def lines(events: list[GroupEvent]) -> list[tuple[object, ...]]:
    """Return (kind, client, queue, why) of each event."""
    return [(event.kind, event.client_id, event.queue_id, event.why) for event in events]


def connected(bench: Bench, name: str) -> Client:
    client = joined(bench, name)
    return client


# ------------------------------------------------------------------------------------------------------- what is an event


def test_member_that_joins_is_granted_a_queue_releases_it_and_leaves() -> None:
    bench = Bench()
    a = connected(bench, "a")
    epoch = a.lock(0)[0].epoch
    a.beat()
    a.lock()
    a.commit(0, 5, release=True)
    a.held.clear()
    a.lock(0)
    a.leave()
    assert lines(told(bench)) == [
        (K.JOINED, "a", None, None),
        (K.GRANTED, "a", 0, None),
        (K.FREED, "a", 0, "released"),
        (K.GRANTED, "a", 0, None),
        (K.LEFT, "a", None, "it unregistered"),
    ]
    assert [event.epoch for event in told(bench) if event.kind is K.GRANTED] == [epoch, bench.epoch(0)]


def test_loss_of_a_connection_its_return_and_its_end_are_told_with_the_last_sign() -> None:
    bench = Bench()
    a = connected(bench, "a")
    a.lock(0, 2)
    heard_ms = DATE_MS + bench.now_ms
    bench.advance(1_000)
    a.close()
    a.connect()
    a.lock()
    bench.advance(1_000)
    a.close()
    before = told(bench)[-1].number
    bench.advance(GRACE)
    why = "its connection was lost, and the grace is over"
    assert lines(told(bench, before)) == [(K.LEFT, "a", None, why), (K.LOST, "a", 0, why), (K.LOST, "a", 2, why)]
    kinds = [event.kind for event in told(bench) if event.queue_id is None]
    assert kinds == [K.JOINED, K.DISCONNECTED, K.RECONNECTED, K.DISCONNECTED, K.LEFT]
    lost = [event for event in told(bench) if event.kind is K.LOST]
    assert [event.since_ms for event in lost] == [heard_ms + 1_000] * 2
    assert [event.wall_ms for event in lost] == [heard_ms + 2_000 + GRACE] * 2


def test_silent_member_is_told_from_one_without_a_connection() -> None:
    bench = Bench()
    a = connected(bench, "a")
    a.lock(1)
    bench.advance(TIMEOUT)
    why = "nothing was heard for the session timeout"
    assert lines(told(bench))[-2:] == [(K.LEFT, "a", None, why), (K.LOST, "a", 1, why)]


def test_queue_that_a_lock_does_not_name_is_freed_and_its_epoch_may_be_renewed() -> None:
    bench = Bench()
    a = connected(bench, "a")
    a.lock(0)
    kept = dict(a.held)
    a.lock(held={})
    bench.advance(700)
    a.lock(held=kept)
    freed, renewed = told(bench)[-2:]
    assert lines([freed, renewed]) == [(K.FREED, "a", 0, "its owner no longer names it"), (K.RENEWED, "a", 0, None)]
    assert (renewed.epoch, renewed.since_ms) == (kept[0], freed.wall_ms)


def test_reset_supersedes_the_epoch_of_the_owner_and_ends_a_free_one_without_a_word() -> None:
    bench = Bench()
    a = connected(bench, "a")
    a.lock(0)
    before = told(bench)[-1].number
    bench.c.admin.reset_progress(ResetBody(GROUP, TOPIC, (QueueOffset(0, 3), QueueOffset(1, 3))))
    a.lock()
    a.lock()
    events = told(bench, before)
    assert lines(events) == [(K.SUPERSEDED, "a", 0, "a reset"), (K.FREED, "a", 0, "its owner no longer names it")]
    assert events[0].epoch == bench.epoch(0)


def test_changed_contract_and_deleted_topic_end_grants() -> None:
    bench = Bench()
    a = connected(bench, "a")
    a.lock(0)
    a.groups = (ordered(expression="paid"),)
    a.beat()
    assert lines(told(bench))[-1] == (K.ENDED, "a", 0, "the group's contract was changed or dropped")
    a.held.clear()
    a.lock(0)
    bench.layouts.adopt(TopicLayout(TOPIC, LayoutVersion(2, 7), ()))
    bench.c.layout_changed(TOPIC)
    assert lines(told(bench))[-1] == (K.ENDED, "a", 0, "the topic was deleted")


def unlocked(classic: ClassicClient) -> None:
    classic.unlock(0)


def lease_over(classic: ClassicClient) -> None:
    classic.bench.advance(61_000)


@pytest.mark.parametrize(("end", "kind", "why"), [(unlocked, K.FREED, "unlocked"), (lease_over, K.LOST, "its lease is over")])
def test_classic_owner_is_told_like_any_other(end: Callable[[ClassicClient], None], kind: GroupEventKind, why: str) -> None:
    bench = Bench()
    classic = ClassicClient(bench, "java")
    classic.connect()
    classic.lock(0)
    locked_ms = DATE_MS + bench.now_ms
    end(classic)
    classic.close()
    events = told(bench)
    assert lines(events) == [
        (K.JOINED, "java", None, None),
        (K.GRANTED, "java", 0, None),
        (kind, "java", 0, why),
        (K.LEFT, "java", None, "its connection was closed"),
    ]
    assert events[2].since_ms == (locked_ms if kind is K.LOST else None)


def test_session_that_takes_the_place_of_an_earlier_one_joins() -> None:
    bench = Bench()
    first = connected(bench, "a")
    first.close()
    Client(bench, "a", session="f" * 32).connect()
    assert [event.kind for event in told(bench)] == [K.JOINED, K.DISCONNECTED, K.JOINED]


# --------------------------------------------------------------------------------------------------------------- hand-overs


def handover_ms(log: GroupEventLog) -> list[int]:
    """Return the durations so far, as upper bounds of their buckets in milliseconds."""
    return [bound // 1_000 for bound, count in zip(log.handovers.bounds, log.handovers.counts, strict=False) for _ in range(count)]


def test_hand_over_lasts_from_the_last_sign_of_the_owner_to_the_next_grant() -> None:
    bench = Bench()
    a, b = connected(bench, "a"), connected(bench, "b")
    a.lock(0)
    b.lock(1)
    told(bench)
    for _ in range(3):
        bench.advance(500)
        b.lock()
    a.close()
    bench.advance(GRACE)
    told(bench)
    assert b.lock(0)[0].epoch
    granted = told(bench)[-1]
    assert granted.since_ms == granted.wall_ms
    assert handover_ms(bench.c.state.events) == [5_000]  # 1.5 s of silence and the grace of 3 s
    assert bench.c.state.events.handovers.total_us == 4_500_000


def test_time_without_a_member_that_could_take_the_queue_does_not_count() -> None:
    bench = Bench()
    a = connected(bench, "a")
    a.lock(0)
    a.commit(0, 1, release=True)
    a.leave()
    told(bench)
    bench.advance(3_600_000, 10_000)
    b = connected(bench, "b")
    told(bench)
    bench.advance(7, 7)
    b.lock(0)
    told(bench)
    assert bench.c.state.events.handovers.total_us == 7_000


def test_grant_of_a_queue_that_was_never_held_and_a_renewal_are_no_hand_overs() -> None:
    bench = Bench()
    a = connected(bench, "a")
    a.lock(0)
    kept = dict(a.held)
    a.lock(held={})
    a.lock(held=kept)
    told(bench)
    assert sum(bench.c.state.events.handovers.counts) == 0


# ------------------------------------------------------------------------------------------------------------------- limits

ADDED = st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60)


@given(added=ADDED, after=st.integers(-1, 70), count_max=st.integers(1, 9))
def test_reader_that_continues_gets_every_kept_event_once_and_learns_what_was_dropped(
    added: list[tuple[str, bool]], after: int, count_max: int
) -> None:
    log = GroupEventLog(events_max=20, per_group_max=8)
    everything = {}
    for number, (group, stamps) in enumerate(added, 1):
        log.add_member_event(K.JOINED, group, str(number))
        everything[number] = group
        if stamps:
            log.stamp(0, 0)
    log.stamp(0, 0)
    for group in (None, "a"):
        numbers, last = [], after
        while (page := log.read(last, group, count_max))[0]:
            assert len(page[0]) <= count_max
            numbers += [event.number for event in page[0]]
            assert page[1] >= numbers[-1]
            last = page[1]
        assert page[1] == len(added)
        kept = [number for number, name in everything.items() if number > after and group in (None, name)]
        dropped = log.dropped(after, group)
        missing = [number for number in kept if number not in numbers]
        assert numbers == [number for number in kept if number not in missing]
        assert all(number < log.first or number <= dropped.get(everything[number], 0) for number in missing)
        for name, number in dropped.items():
            assert number >= log.first
            assert number > after
            assert number not in numbers
            assert everything[number] == name
    assert len(log.read(-1, None, 1 << 30)[0]) <= 20
    assert all(len(log.read(-1, name, 1 << 30)[0]) <= 8 for name in "abc")


def test_group_whose_queues_move_all_the_time_does_not_displace_the_events_of_another() -> None:
    log = GroupEventLog(events_max=100, per_group_max=10)
    log.add_member_event(K.JOINED, "quiet", "q")
    for number in range(500):
        log.add_queue_event(K.GRANTED, ("busy", "orders", number), "b", number)
        log.stamp(0, 0)
    assert [event.client_id for event in log.read(0, "quiet", 9)[0]] == ["q"]
    assert log.dropped(0, None) == {"busy": 491}


def test_clock_set_back_makes_no_hand_over_negative() -> None:
    log = GroupEventLog()
    log.add_queue_event(K.FREED, (GROUP, TOPIC, 0), "a", 1, "released", 90)
    log.stamp(100, 5_000)
    log.add_queue_event(K.GRANTED, (GROUP, TOPIC, 0), "b", 2)
    log.stamp(110, 3_000)
    assert log.handovers.total_us == 0
    assert [event.since_ms for event in log.read(0, None, 9)[0]] == [4_990, 5_000]
