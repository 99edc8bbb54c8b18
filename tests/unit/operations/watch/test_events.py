"""The events of several brokers over an hour, and of which periods they are not known."""

from lockstep.operations.watch.events import KEPT_MS, EventHistory
from lockstep.protocol.bodies import GroupEvent, GroupEventKind, GroupEvents


def reply(term: int, *numbers: int, wall_ms: int, began_ms: int = 1_000, first: int = 1, dropped: tuple[str, ...] = ()) -> GroupEvents:
    """Return events of group g, each at its number in seconds."""
    events = tuple(GroupEvent(number, number * 1_000, GroupEventKind.JOINED, "g", f"c{number}") for number in numbers)
    return GroupEvents(term, wall_ms, began_ms, first, max(numbers, default=0), events, dict.fromkeys(dropped, 1))


def numbers(history: EventHistory, group: str = "g") -> list[int]:
    return [placed.event.number for placed in history.of(group)]


def test_reader_continues_where_it_was_and_knows_all_since_the_start_of_the_broker() -> None:
    history = EventHistory()
    assert history.after("a") == (0, None)
    assert history.add("a", reply(7, 2, 3, wall_ms=9_000))
    assert history.after("a") == (3, 7)
    assert not history.add("a", GroupEvents(7, 10_000, 1_000, 1, 3, (), {}))
    assert (numbers(history), numbers(history, "other")) == ([2, 3], [])
    assert history.unknown(10_000) == {"a": [(0, 1_000)]}


def test_broker_that_is_not_reached_tells_nothing_until_it_is_reached_again() -> None:
    history = EventHistory()
    history.add("a", reply(7, 2, wall_ms=9_000))
    assert history.unknown(15_000) == {"a": [(0, 1_000), (9_000, 15_000)]}
    history.add("a", reply(7, 12, wall_ms=15_000))
    assert history.unknown(15_000) == {"a": [(0, 1_000)]}


def test_time_between_the_last_look_and_the_next_start_is_unknown() -> None:
    history = EventHistory()
    history.add("a", reply(7, 2, wall_ms=9_000))
    history.add("a", reply(8, 20, wall_ms=30_000, began_ms=14_000))
    assert history.unknown(30_000) == {"a": [(0, 1_000), (9_000, 14_000)]}
    assert history.after("a") == (20, 8)
    assert numbers(history) == [2, 20]


def test_starts_of_brokers_are_known_for_an_hour() -> None:
    history = EventHistory()
    history.add("a", reply(7, 2, wall_ms=9_000))
    history.add("a", reply(7, 3, wall_ms=12_000))
    history.add("a", reply(8, 20, wall_ms=30_000, began_ms=14_000))
    assert history.starts() == {"a": [1_000, 14_000]}
    history.add("a", GroupEvents(8, 2_000 + KEPT_MS, 14_000, 1, 20, (), {}))
    assert history.starts() == {"a": [14_000]}


def test_events_that_the_broker_has_dropped_are_unknown() -> None:
    for missed in (reply(7, 20, wall_ms=30_000, first=18), reply(7, 20, wall_ms=30_000, dropped=("g",))):
        history = EventHistory()
        history.add("a", reply(7, 2, wall_ms=9_000))
        history.add("a", missed)
        assert history.unknown(30_000) == {"a": [(0, 1_000), (9_000, 20_000)]}
    first = EventHistory()
    first.add("a", reply(7, 20, wall_ms=30_000, first=20))
    assert first.unknown(30_000) == {"a": [(0, 20_000)]}


def test_times_of_a_broker_are_moved_by_the_difference_of_its_clock() -> None:
    """It is 15 s behind."""
    history = EventHistory()
    late = GroupEvent(1, 5_000, GroupEventKind.GRANTED, "g", "c", None, "orders", 0, 1, 4_000)
    history.add("a", GroupEvents(7, 9_000, 1_000, 1, 1, (late,), {}), (23_990, 24_010))
    (placed,) = history.of("g")
    assert (placed.event.wall_ms, placed.event.since_ms) == (20_000, 19_000)
    assert history.unknown(24_000) == {"a": [(0, 16_000)]}
    assert history.clock_differences(200) == {"a": -15_000}
    history.add("b", reply(8, wall_ms=24_008), (23_990, 24_010))
    assert history.unknown(24_008)["b"] == [(0, 1_000)]
    assert history.clock_differences(1) == {"a": -15_000}, "that of b may be equal"


def test_period_ends_where_the_events_of_all_brokers_that_respond_are_known() -> None:
    history = EventHistory()
    assert history.known_until(50_000, 10_000) == 50_000
    history.add("a", reply(7, wall_ms=45_000), (44_999, 45_001))
    history.add("b", reply(7, wall_ms=43_000), (42_999, 43_001))
    for now_ms, until_ms in ((50_000, 43_000), (52_999, 43_000), (53_000, 45_000), (54_999, 45_000), (55_000, 55_000)):
        assert history.known_until(now_ms, 10_000) == until_ms
    assert (history.read_since(44_999), history.read_since(45_000)) == ({"a"}, set())
    assert history.unknown(45_000, ["c"])["c"] == [(0, 45_000)], "it was never read"


def test_events_are_kept_for_an_hour_and_up_to_a_limit() -> None:
    history = EventHistory(events_max=3)
    history.add("a", reply(7, 1, 2, 3, 4, wall_ms=9_000))
    assert numbers(history) == [2, 3, 4]
    history.add("a", reply(7, wall_ms=3_500 + KEPT_MS))
    assert numbers(history) == [4]


def test_time_of_events_that_were_removed_above_the_limit_is_unknown() -> None:
    history = EventHistory(events_max=3)
    history.add("a", reply(7, 1, 2, 3, 4, wall_ms=9_000))
    assert history.unknown(9_000) == {"a": [(0, 2_000)]}
    history.add("b", reply(8, 1, wall_ms=5_000, began_ms=1_500))
    history.add("b", reply(8, 7, wall_ms=9_000, first=7))
    assert history.unknown(9_000) == {"a": [(0, 4_000)], "b": [(0, 4_000), (5_000, 7_000)]}
