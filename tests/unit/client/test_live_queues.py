"""Round robin over the live queues: each in turn, and no other queue while one is live."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from lockstep.client.producer.machines.live_queues import LiveQueues, Ring

BROKERS = ["a", "a", "a", "b", "b", "c"]


def chosen(live: LiveQueues, count: int) -> list[int]:
    return [live.next() for _ in range(count)]


def test_queues_are_chosen_in_layout_order_from_the_start_position() -> None:
    live = LiveQueues(BROKERS, 4)
    assert chosen(live, 7) == [4, 5, 0, 1, 2, 3, 4], "none is live: all will do"
    for name in "abc":
        live.set_up(name, True)
    assert chosen(live, 13)[1:] == (chosen(live, 6) * 3)[:12]
    assert sorted(chosen(live, 6)) == [0, 1, 2, 3, 4, 5]


def test_excluded_broker_is_chosen_only_if_no_other_is_live() -> None:
    live = LiveQueues(BROKERS, 0)
    for name in "ab":
        live.set_up(name, True)
    live.leave_out(frozenset("a"))
    assert set(chosen(live, 8)) == {3, 4}
    live.set_up("b", False)
    assert set(chosen(live, 8)) == {0, 1, 2}


def test_moved_send_prefers_another_broker_over_another_queue_of_the_same_broker() -> None:
    live = LiveQueues(BROKERS, 0)
    for name in "ab":
        live.set_up(name, True)
    live.set_stalled(0, True)
    assert {live.next_elsewhere(0) for _ in range(8)} == {3, 4}
    live.leave_out(frozenset("b"))
    assert {live.next_elsewhere(0) for _ in range(8)} == {3, 4}, "better a slow broker than the one that failed"
    live.set_up("b", False)
    assert {live.next_elsewhere(0) for _ in range(8)} == {1, 2}
    assert not live.has_other_broker(0)


def test_queue_gets_a_run_of_messages_and_then_the_next_queue() -> None:
    live = LiveQueues(["a", "a", "b"], 1)
    for name in "ab":
        live.set_up(name, True)
    assert [live.next(3) for _ in range(10)] == [1, 1, 1, 2, 2, 2, 0, 0, 0, 1]
    assert [live.next(1) for _ in range(3)] == [2, 0, 1], "a shorter run ends the present one"


def test_run_ends_when_the_queue_stalls_or_its_broker_is_disconnected() -> None:
    live = LiveQueues(["a", "a", "b"], 0)
    for name in "ab":
        live.set_up(name, True)
    first = live.next(100)
    live.set_stalled(first, True)
    assert first not in [live.next(100) for _ in range(200)]
    live.set_up("a", False)
    assert {live.next(100) for _ in range(200)} == {2}


EVENTS = st.one_of(
    st.tuples(st.just("up"), st.sampled_from("abc"), st.booleans()),
    st.tuples(st.just("stalled"), st.integers(0, 5), st.booleans()),
    st.tuples(st.just("choose"), st.just(0), st.booleans()),
)


@given(st.lists(EVENTS, max_size=40), st.integers(0, 5))
def test_only_live_queues_are_chosen_and_equally_often(events: list[tuple[str, str | int, bool]], start: int) -> None:
    live, up, stalled = LiveQueues(BROKERS, start), dict.fromkeys("abc", False), dict.fromkeys(range(6), False)
    for event, which, flag in events:
        if event == "up":
            up[str(which)] = flag
            live.set_up(str(which), flag)
        elif event == "stalled":
            stalled[int(which)] = flag
            live.set_stalled(int(which), flag)
        else:
            live.next(1 if flag else 3)
        takes = [number for number in range(6) if up[BROKERS[number]] and not stalled[number]]
        assert live.any_live is bool(takes)
        assert set(live.live_brokers) == {BROKERS[number] for number in takes}
        for number in range(6):
            assert live.has_other_broker(number) is any(BROKERS[other] != BROKERS[number] for other in takes)
    usual = takes_or_all = [number for number in range(6) if up[BROKERS[number]] and not stalled[number]] or list(range(6))
    live_now = chosen(live, 2 * len(usual))
    counts = Counter(live_now)
    assert set(counts) <= set(takes_or_all)
    assert max(counts.values()) - min(counts.get(number, 0) for number in usual) <= 2
    assert Counter(chosen(live, len(usual) * 3)).keys() == set(usual)


def test_ring_continues_with_the_remaining_items_after_a_discard() -> None:
    ring = Ring([0, 1, 2, 3])
    assert [ring.next(), ring.next()] == [0, 1]
    ring.discard(0)
    ring.discard(9)
    assert len(ring) == 3
    assert 0 not in ring
    assert {ring.next() for _ in range(3)} == {1, 2, 3}
    ring.add(0)
    ring.add(0)
    assert sorted(ring.next() for _ in range(4)) == [0, 1, 2, 3]
