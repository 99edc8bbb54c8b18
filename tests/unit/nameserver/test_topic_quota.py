"""How many topics one broker may register at a nameserver, and when they are forgotten."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.nameserver import topic_quota
from lockstep.nameserver.broker_record import Registration
from lockstep.nameserver.route_table import FORGET_MS, RouteTable
from lockstep.nameserver.topic_quota import SILENCE_MS
from lockstep.protocol.topics import layouts as protocol_layouts
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from support.counting import Steps

ROOM = 24


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_quota, "LAYOUTS_MAX", ROOM)


def layouts(prefix: str, count: int, counter: int = 1) -> tuple[TopicLayout, ...]:
    return tuple(
        TopicLayout(f"{prefix}-{number}", LayoutVersion(counter, 7), (LayoutEntry(prefix, 1, 1, counter),)) for number in range(count)
    )


def make_registration(
    name: str, wanted: tuple[TopicLayout, ...] = (), *, part: int = 0, parts: int = 1, full: bool = False
) -> Registration:
    return Registration(name, "c", f"{name:0>32}", 1, {"internal": "10.0.0.1:1"}, wanted, name, 0, part, parts, full)


def topics(table: RouteTable) -> list[str]:
    return [layout.topic for layout in table.layouts.all()]


# ---------------------------------------------------------------------------------------------------------------------- shares


def test_broker_may_use_half_of_the_free_topics_and_rejected_ones_are_named() -> None:
    table = RouteTable()
    change = table.register(make_registration("one", layouts("one", ROOM)), 1, 0)
    assert (len(change.adopted), len(change.refused), change.joined, change.routed) == (ROOM // 2, ROOM // 2, True, True)
    assert "one-12" in change.refused[0].reason
    assert "broker 'one'" in change.refused[0].reason


@given(st.lists(st.integers(0, 2 * ROOM), max_size=12))
def test_next_broker_has_its_share_regardless_of_other_brokers(wanted: list[int]) -> None:
    """Each leaves as much space as it uses."""
    table = RouteTable()
    for number, count in enumerate(wanted):
        assert table.register(make_registration(f"b-{number}", layouts(f"b-{number}", count)), number, 0).joined
    free = ROOM - len(table.layouts)
    assert free >= ROOM >> len(wanted)
    honest = table.register(make_registration("honest", layouts("honest", ROOM)), 99, 1)
    assert len(honest.adopted) == (free + 1) // 2


def test_broker_keeps_and_changes_its_topics_when_the_table_is_full() -> None:
    table = RouteTable()
    own = layouts("own", 2)
    table.register(make_registration("honest", own), 1, 0)
    for number in range(ROOM):
        table.register(make_registration(f"b-{number}", layouts(f"b-{number}", ROOM)), 2, 1)
    assert len(table.layouts) == ROOM
    change = table.register(make_registration("honest", layouts("own", 3, counter=2)), 1, 2)
    assert (change.adopted, [each.topic for each in change.refused]) == (("own-0", "own-1"), ["own-2"])


# ------------------------------------------------------------------------------------------------------------- topics are forgotten


def test_topics_only_a_forgotten_broker_had_are_forgotten() -> None:
    table = RouteTable()
    table.register(make_registration("honest", layouts("own", 1)), 1, 0)
    table.register(make_registration("stranger", layouts("s", ROOM)), 2, 0)
    table.connection_closed(2, 0)
    table.register(make_registration("honest", layouts("own", 1)), 1, 1)
    table.expire(10)
    table.register(make_registration("honest", layouts("own", 1)), 1, SILENCE_MS)
    table.expire(9 + SILENCE_MS)
    assert len(table.layouts) > 1
    table.expire(10 + SILENCE_MS)
    assert (topics(table), table.layouts.entry_count, table.layouts.user_topics()) == (["own-0"], 1, ("own-0",))
    assert len(table.register(make_registration("other", layouts("o", ROOM)), 3, 10 + SILENCE_MS).adopted) == ROOM // 2


def test_parts_of_an_unfinished_registration_are_forgotten() -> None:
    table = RouteTable()
    table.register(make_registration("stranger", layouts("s", 5), parts=2), 2, 0)
    table.expire(0)
    table.expire(SILENCE_MS)
    assert topics(table) == []


def test_topic_is_kept_while_another_registered_broker_has_it() -> None:
    table = RouteTable()
    table.register(make_registration("first", layouts("t", 2)), 1, 0)
    table.register(make_registration("second", layouts("t", 1)), 2, 0)
    table.connection_closed(1, 0)
    for now_ms in (0, FORGET_MS, FORGET_MS + SILENCE_MS - 1, FORGET_MS + SILENCE_MS):
        table.register(make_registration("second", layouts("t", 1)), 2, now_ms)
        assert topics(table) == ["t-0", "t-1"]
        table.expire(now_ms)
    assert topics(table) == ["t-0"]


def test_topic_of_a_routed_broker_is_kept_as_long_as_the_broker() -> None:
    table = RouteTable()
    table.register(make_registration("first", layouts("t", 1)), 1, 0)
    table.connection_closed(1, 0)
    table.expire(FORGET_MS - 1)
    assert table.route("t-0", "internal", 0) is not None
    table.expire(2 * FORGET_MS)
    table.expire(2 * FORGET_MS + SILENCE_MS)
    assert topics(table) == []


def test_suspension_of_the_nameserver_forgets_no_topic() -> None:
    table = RouteTable()
    table.register(make_registration("stranger", layouts("t", 1), parts=2), 1, 0)
    table.expire(0)
    table.exclude_pause(10 * SILENCE_MS, 10 * SILENCE_MS)
    table.expire(10 * SILENCE_MS + SILENCE_MS - 1)
    assert topics(table) == ["t-0"]
    table.expire(11 * SILENCE_MS)
    assert topics(table) == []


def test_forgotten_deletions_no_longer_count() -> None:
    table = RouteTable()
    deleted = tuple(layout.deletion for layout in layouts("t", ROOM // 2))
    table.register(make_registration("one", deleted), 1, 0)
    assert table.forget_deletions(3) == ROOM // 2
    assert len(table.register(make_registration("one", layouts("u", ROOM // 2)), 1, 0).adopted) == ROOM // 2


# ----------------------------------------------------------------------------------------------------- brokers that take no more


def test_full_broker_is_routed_and_gets_only_newer_layouts_of_its_own_topics() -> None:
    table = RouteTable()
    table.register(make_registration("other", (*layouts("a", 3), *layouts("own", 2, counter=2))), 1, 0)
    learning = table.register(make_registration("honest", layouts("own", 2)), 2, 0)
    assert (len(learning.missing), learning.routed) == (5, False)
    full = table.register(make_registration("honest", layouts("own", 2), full=True), 2, 0)
    assert (full.missing, full.routed) == (layouts("own", 2, counter=2), False)
    assert table.register(make_registration("honest", layouts("own", 2, counter=2), full=True), 2, 0).routed


# ------------------------------------------------------------------------------------------------------------------------ work


@pytest.mark.parametrize("full", [False, True])
def test_work_of_a_response_is_independent_of_the_known_topics(monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
    monkeypatch.setattr(topic_quota, "LAYOUTS_MAX", 10_000)
    monkeypatch.setattr(protocol_layouts, "PART_LAYOUTS_MAX", 4)

    def lines(known: int) -> int:
        table = RouteTable()
        table.register(make_registration("one", layouts("one", known)), 1, 0)
        with Steps("lockstep/") as steps:
            change = table.register(make_registration("two", full=full), 2, 0)
        assert len(change.missing) == (0 if full else 4)
        return steps.count

    assert lines(500) == lines(50)
