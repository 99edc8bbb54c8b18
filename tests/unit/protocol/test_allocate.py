import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.protocol.allocate import AVERAGE, AVERAGE_BY_CIRCLE, BY_BROKER, STRATEGIES, allocate, owner_of
from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.queue import LayoutEntry, LayoutVersion, TopicLayout


def layout(*entries: tuple[str, int]) -> TopicLayout:
    return TopicLayout("t", LayoutVersion(1, 1), tuple(LayoutEntry(name, count, count, 1) for name, count in entries))


FOUR = layout(("a", 4))
TWO_BROKERS = layout(("a", 2), ("b", 3))
LAYOUTS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), max_size=4).map(lambda entries: layout(*entries))
MEMBERS = st.lists(st.sampled_from([f"m{i}" for i in range(12)]), max_size=7, unique=True)
STRATEGY = st.sampled_from(STRATEGIES)


def ids(strategy: str, layout: TopicLayout, members: list[str], me: str) -> list[int]:
    return [queue.queue_id for queue in allocate(strategy, None, layout, members, me)]


@pytest.mark.parametrize(
    ("strategy", "queue_count", "expected"),
    [
        (AVERAGE, 4, [[0, 1], [2, 3]]),
        (AVERAGE, 5, [[0, 1, 2], [3, 4]]),
        (AVERAGE, 8, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (AVERAGE, 2, [[0], [1], []]),
        (AVERAGE_BY_CIRCLE, 4, [[0, 2], [1, 3]]),
        (AVERAGE_BY_CIRCLE, 5, [[0, 3], [1, 4], [2]]),
        (AVERAGE_BY_CIRCLE, 2, [[0], [1], []]),
        (BY_BROKER, 5, [[0, 3], [1, 4], [2]]),
    ],
)
def test_queues_are_dealt_as_rocketmq_deals_them(strategy: str, queue_count: int, expected: list[list[int]]) -> None:
    members = [f"m{i}" for i in range(len(expected))]
    assert [ids(strategy, layout(("a", queue_count)), members, me) for me in members] == expected


def rocketmq_average(queue_count: int, member_count: int, index: int) -> list[int]:
    """Written from the rule's text: m = n mod c; size = 1 if n ≤ c else n div c + (1 if m > 0 and i < m) …"""
    rest = queue_count % member_count
    extra = rest > 0 and index < rest
    size = 1 if queue_count <= member_count else queue_count // member_count + (1 if extra else 0)
    start = index * size if extra else index * size + rest
    return list(range(start, start + max(0, min(size, queue_count - start))))


@pytest.mark.parametrize("member_count", range(1, 8))
@pytest.mark.parametrize("queue_count", range(17))
def test_average_is_rocketmqs_formula(queue_count: int, member_count: int) -> None:
    members = [f"m{i}" for i in range(member_count)]
    for index, me in enumerate(members):
        assert ids(AVERAGE, layout(("a", queue_count)), members, me) == rocketmq_average(queue_count, member_count, index)


@given(STRATEGY, LAYOUTS, MEMBERS)
def test_every_queue_has_exactly_one_owner(strategy: str, layout: TopicLayout, members: list[str]) -> None:
    dealt = [queue for me in members for queue in allocate(strategy, None, layout, members, me)]
    assert sorted(dealt) == (sorted(layout.read_queues) if members else [])


@given(STRATEGY, LAYOUTS, MEMBERS)
def test_no_member_has_two_queues_more_than_another(strategy: str, layout: TopicLayout, members: list[str]) -> None:
    counts = [len(allocate(strategy, None, layout, members, me)) for me in members]
    assert not counts or max(counts) - min(counts) <= 1


@given(STRATEGY, LAYOUTS, MEMBERS, st.randoms(use_true_random=False))
def test_the_order_of_the_list_changes_nothing(strategy: str, layout: TopicLayout, members: list[str], random: object) -> None:
    shuffled = [*members, *members]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for me in members:
        assert allocate(strategy, None, layout, members, me) == allocate(strategy, None, layout, shuffled, me)


@given(STRATEGY, LAYOUTS, MEMBERS)
def test_both_ends_agree_about_every_queue(strategy: str, layout: TopicLayout, members: list[str]) -> None:
    for queue in layout.read_queues:
        owner = owner_of(layout, queue, members, strategy)
        assert (owner is None) == (not members)
        for me in members:
            assert (queue in allocate(strategy, queue.broker_name, layout, members, me)) == (owner == me)


@given(STRATEGY, LAYOUTS, MEMBERS)
def test_one_brokers_queues_are_a_part_of_all(strategy: str, layout: TopicLayout, members: list[str]) -> None:
    for me in members:
        parts = [queue for broker in "abc" for queue in allocate(strategy, broker, layout, members, me)]
        assert sorted(parts) == sorted(allocate(strategy, None, layout, members, me))


@given(st.lists(st.integers(0, 5), min_size=3, max_size=3), MEMBERS)
def test_with_equal_lists_by_broker_is_average_by_circle(counts: list[int], members: list[str]) -> None:
    sorted_layout = layout(*zip("abc", counts, strict=True))
    for me in members:
        assert allocate(BY_BROKER, None, sorted_layout, members, me) == allocate(AVERAGE_BY_CIRCLE, None, sorted_layout, members, me)


@given(LAYOUTS, st.dictionaries(st.sampled_from("abc"), MEMBERS))
def test_with_unequal_lists_no_two_members_have_one_queue_and_none_has_one_it_cannot_reach(
    layout: TopicLayout, lists: dict[str, list[str]]
) -> None:
    everyone = sorted({member for members in lists.values() for member in members})
    dealt = [
        (queue, me) for me in everyone for broker, members in lists.items() for queue in allocate(BY_BROKER, broker, layout, members, me)
    ]
    assert len({queue for queue, _ in dealt}) == len(dealt)
    assert all(me in lists[queue.broker_name] for queue, me in dealt)
    assert {queue for queue, _ in dealt} == {queue for queue in layout.read_queues if lists.get(queue.broker_name)}


def test_a_queue_keeps_its_owner_when_the_layout_grows() -> None:
    grown = TopicLayout("t", LayoutVersion(2, 1), (*TWO_BROKERS.entries, LayoutEntry("a", 3, 3, 2)))
    for queue in TWO_BROKERS.read_queues:
        assert owner_of(grown, queue, ["m0", "m1"]) == owner_of(TWO_BROKERS, queue, ["m0", "m1"])


def test_who_is_not_a_member_has_nothing() -> None:
    assert allocate(BY_BROKER, None, FOUR, ["m0"], "m1") == ()
    assert allocate(AVERAGE, None, FOUR, [], "m1") == ()


def test_a_queue_outside_the_layout_has_no_owner() -> None:
    outside = layout(("a", 5)).read_queues[4]
    for strategy in STRATEGIES:
        assert owner_of(FOUR, outside, ["m0"], strategy) is None


def test_an_unknown_strategy_is_named() -> None:
    with pytest.raises(LocalProtocolError, match="'sticky' does not exist: expected one of by_broker"):
        allocate("sticky", None, FOUR, ["m0"], "m0")


def test_rocketmqs_rules_sort_the_queues_and_by_broker_takes_the_layouts_order() -> None:
    grown = layout(("b", 2), ("a", 2))
    assert [str(queue) for queue in allocate(AVERAGE, None, grown, ["m0", "m1"], "m0")] == ["t@a:0", "t@a:1"]
    assert [str(queue) for queue in allocate(AVERAGE_BY_CIRCLE, None, grown, ["m0", "m1", "m2"], "m0")] == ["t@a:0", "t@b:1"]
    assert [str(queue) for queue in allocate(BY_BROKER, None, grown, ["m0", "m1", "m2"], "m0")] == ["t@b:0", "t@a:1"]
