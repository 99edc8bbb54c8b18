import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.protocol.errors import ConfigError, LocalProtocolError
from lockstep.protocol.topics.allocate import (
    AVERAGE,
    AVERAGE_BY_CIRCLE,
    BY_BROKER,
    CONSISTENT_HASH,
    MANUAL,
    STRATEGIES,
    ByConfig,
    ByMachineRoom,
    MachineRoomNearby,
    Strategy,
    allocate,
    check_strategy,
    is_allowed_when_ordered,
    owner_of,
    strategy_spec,
)
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, MessageQueue, TopicLayout


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
def test_queues_are_allocated_as_by_rocketmq(strategy: str, queue_count: int, expected: list[list[int]]) -> None:
    members = [f"m{i}" for i in range(len(expected))]
    assert [ids(strategy, layout(("a", queue_count)), members, me) for me in members] == expected


def rocketmq_average(queue_count: int, member_count: int, index: int) -> list[int]:
    """Return the queue ids by the text of the rule: m = n mod c; size = 1 if n ≤ c else n div c + (1 if m > 0 and i < m) …"""
    rest = queue_count % member_count
    extra = rest > 0 and index < rest
    size = 1 if queue_count <= member_count else queue_count // member_count + (1 if extra else 0)
    start = index * size if extra else index * size + rest
    return list(range(start, start + max(0, min(size, queue_count - start))))


@pytest.mark.parametrize("member_count", range(1, 8))
@pytest.mark.parametrize("queue_count", range(17))
def test_average_equals_rocketmqs_formula(queue_count: int, member_count: int) -> None:
    members = [f"m{i}" for i in range(member_count)]
    for index, me in enumerate(members):
        assert ids(AVERAGE, layout(("a", queue_count)), members, me) == rocketmq_average(queue_count, member_count, index)


@given(STRATEGY, LAYOUTS, MEMBERS)
def test_every_queue_has_exactly_one_owner(strategy: str, layout: TopicLayout, members: list[str]) -> None:
    allocations = [queue for me in members for queue in allocate(strategy, None, layout, members, me)]
    assert sorted(allocations) == (sorted(layout.read_queues) if members else [])


@given(st.sampled_from([BY_BROKER, AVERAGE, AVERAGE_BY_CIRCLE]), LAYOUTS, MEMBERS)
def test_queue_counts_of_members_differ_by_at_most_one(strategy: str, layout: TopicLayout, members: list[str]) -> None:
    counts = [len(allocate(strategy, None, layout, members, me)) for me in members]
    assert not counts or max(counts) - min(counts) <= 1


@given(STRATEGY, LAYOUTS, MEMBERS, st.randoms(use_true_random=False))
def test_allocation_is_independent_of_the_order_of_members(strategy: str, layout: TopicLayout, members: list[str], random: object) -> None:
    shuffled = [*members, *members]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for me in members:
        assert allocate(strategy, None, layout, members, me) == allocate(strategy, None, layout, shuffled, me)


@given(STRATEGY, LAYOUTS, MEMBERS)
def test_owner_of_agrees_with_allocate(strategy: str, layout: TopicLayout, members: list[str]) -> None:
    for queue in layout.read_queues:
        owner = owner_of(layout, queue, members, strategy)
        assert (owner is None) == (not members)
        for me in members:
            assert (queue in allocate(strategy, queue.broker_name, layout, members, me)) == (owner == me)


@given(STRATEGY, LAYOUTS, MEMBERS)
def test_allocation_per_broker_is_a_part_of_the_whole_allocation(strategy: str, layout: TopicLayout, members: list[str]) -> None:
    for me in members:
        parts = [queue for broker in "abc" for queue in allocate(strategy, broker, layout, members, me)]
        assert sorted(parts) == sorted(allocate(strategy, None, layout, members, me))


@given(st.lists(st.integers(0, 5), min_size=3, max_size=3), MEMBERS)
def test_by_broker_equals_average_by_circle_with_equal_member_lists(counts: list[int], members: list[str]) -> None:
    sorted_layout = layout(*zip("abc", counts, strict=True))
    for me in members:
        assert allocate(BY_BROKER, None, sorted_layout, members, me) == allocate(AVERAGE_BY_CIRCLE, None, sorted_layout, members, me)


@given(LAYOUTS, st.dictionaries(st.sampled_from("abc"), MEMBERS))
def test_by_broker_with_unequal_lists_assigns_each_queue_once_and_only_to_members_of_its_broker(
    layout: TopicLayout, lists: dict[str, list[str]]
) -> None:
    everyone = sorted({member for members in lists.values() for member in members})
    allocations = [
        (queue, me) for me in everyone for broker, members in lists.items() for queue in allocate(BY_BROKER, broker, layout, members, me)
    ]
    assert len({queue for queue, _ in allocations}) == len(allocations)
    assert all(me in lists[queue.broker_name] for queue, me in allocations)
    assert {queue for queue, _ in allocations} == {queue for queue in layout.read_queues if lists.get(queue.broker_name)}


def test_queue_keeps_its_owner_when_the_layout_grows() -> None:
    grown = TopicLayout("t", LayoutVersion(2, 1), (*TWO_BROKERS.entries, LayoutEntry("a", 3, 3, 2)))
    for queue in TWO_BROKERS.read_queues:
        assert owner_of(grown, queue, ["m0", "m1"]) == owner_of(TWO_BROKERS, queue, ["m0", "m1"])


def test_client_that_is_not_a_member_gets_no_queue() -> None:
    assert allocate(BY_BROKER, None, FOUR, ["m0"], "m1") == ()
    assert allocate(AVERAGE, None, FOUR, [], "m1") == ()


def test_queue_outside_the_layout_has_no_owner() -> None:
    outside = layout(("a", 5)).read_queues[4]
    for strategy in STRATEGIES:
        assert owner_of(FOUR, outside, ["m0"], strategy) is None


def test_error_for_an_unknown_strategy_names_it() -> None:
    with pytest.raises(LocalProtocolError, match="'sticky' does not exist: expected one of by_broker"):
        allocate("sticky", None, FOUR, ["m0"], "m0")


def test_rocketmq_strategies_sort_the_queues_and_by_broker_uses_the_layout_order() -> None:
    grown = layout(("b", 2), ("a", 2))
    assert [str(queue) for queue in allocate(AVERAGE, None, grown, ["m0", "m1"], "m0")] == ["t@a:0", "t@a:1"]
    assert [str(queue) for queue in allocate(AVERAGE_BY_CIRCLE, None, grown, ["m0", "m1", "m2"], "m0")] == ["t@a:0", "t@b:1"]
    assert [str(queue) for queue in allocate(BY_BROKER, None, grown, ["m0", "m1", "m2"], "m0")] == ["t@b:0", "t@a:1"]


# ------------------------------------------------------------------------------------------------- RocketMQ's other strategies

ROOMS = layout(("hz@a", 3), ("sh@b", 2), ("plain", 2))


def allocations(strategy: Strategy, layout: TopicLayout, members: list[str]) -> list[list[str]]:
    found = [allocate(strategy, None, layout, members, me) for me in members]
    return [[f"{queue.broker_name}:{queue.queue_id}" for queue in queues] for queues in found]


@pytest.mark.parametrize(
    ("rooms", "member_count", "expected"),
    [
        (("hz",), 1, [["hz@a:0", "hz@a:1", "hz@a:2"]]),
        (("hz",), 2, [["hz@a:0", "hz@a:2"], ["hz@a:1"]]),
        (("hz", "sh"), 2, [["hz@a:0", "hz@a:1", "sh@b:1"], ["hz@a:2", "sh@b:0"]]),
        (("hz", "sh"), 3, [["hz@a:0", "sh@b:0"], ["hz@a:1", "sh@b:1"], ["hz@a:2"]]),
        (("sh",), 3, [["sh@b:0"], ["sh@b:1"], []]),
        (("moon",), 2, [[], []]),
    ],
)
def test_machine_room_assigns_equal_ranges_and_then_the_remainder_one_by_one(
    rooms: tuple[str, ...], member_count: int, expected: list[list[str]]
) -> None:
    """mod = n div c, rem = n mod c: [i·mod, i·mod + mod) and, if rem > i, queue i + mod·c; of brokers idc@name only."""
    assert allocations(ByMachineRoom(rooms), ROOMS, [f"m{i}" for i in range(member_count)]) == expected


def room_of_member(member: str) -> str:
    return member.partition("-")[0]


def room_of_queue(queue: MessageQueue) -> str:
    return queue.broker_name.partition("@")[0]


@pytest.mark.parametrize(
    ("within", "members", "expected"),
    [
        ("average", ["hz-1", "sh-1"], [["hz@a:0", "hz@a:1", "hz@a:2", "plain:0"], ["plain:1", "sh@b:0", "sh@b:1"]]),
        ("AVG", ["hz-1", "hz-2"], [["hz@a:0", "hz@a:1", "plain:0", "sh@b:0"], ["hz@a:2", "plain:1", "sh@b:1"]]),
        ("AVG_BY_CIRCLE", ["hz-1", "hz-2", "plain-1"], [["hz@a:0", "hz@a:2", "sh@b:0"], ["hz@a:1", "sh@b:1"], ["plain:0", "plain:1"]]),
    ],
)
def test_nearby_assigns_a_rooms_queues_within_the_room_and_those_of_an_empty_room_to_all(
    within: str, members: list[str], expected: list[list[str]]
) -> None:
    assert allocations(MachineRoomNearby(room_of_queue, room_of_member, within), ROOMS, members) == expected


@pytest.mark.parametrize("response", ["", None, 7])
def test_invalid_machine_room_raises(response: object) -> None:
    with pytest.raises(LocalProtocolError, match="room of m0 is"):
        allocate(MachineRoomNearby(room_of_queue, lambda _: response), None, ROOMS, ["m0"], "m0")  # type: ignore[arg-type, return-value]


def test_failing_machine_room_function_raises() -> None:
    def fails(_: MessageQueue) -> str:
        raise KeyError("no such rack")

    with pytest.raises(LocalProtocolError, match="KeyError: 'no such rack'"):
        allocate(MachineRoomNearby(fails, room_of_member), None, ROOMS, ["m0"], "m0")


def test_config_strategy_assigns_the_given_queues_of_the_topic() -> None:
    mine = ByConfig((MessageQueue("t", "a", 2), MessageQueue("t", "a", 2), MessageQueue("t", "b", 0), MessageQueue("u", "a", 0)))
    assert [queue.queue_id for queue in allocate(mine, None, FOUR, [], "whoever")] == [2], "only what the topic has"


def rocketmq_ring(member_names: list[str], queue: MessageQueue) -> str:
    """Return the owner by the text of the rule: ten nodes `cid-k` per client; hash = first 4 bytes of MD5; the next node clockwise."""
    ring = {int(hashlib.md5(f"{name}-{k}".encode()).hexdigest()[:8], 16): name for name in member_names for k in range(10)}
    at = int(hashlib.md5(f"MessageQueue [topic=t, brokerName=a, queueId={queue.queue_id}]".encode()).hexdigest()[:8], 16)
    return ring[min((place for place in ring if place >= at), default=min(ring))]


@pytest.mark.parametrize("member_count", [1, 2, 5, 13])
def test_consistent_hash_equals_rocketmqs_ring(member_count: int) -> None:
    members = [f"10.0.0.{i}@4711#{i:016x}" for i in range(member_count)]
    for queue in layout(("a", 40)).read_queues:
        assert owner_of(layout(("a", 40)), queue, members, CONSISTENT_HASH) == rocketmq_ring(members, queue)


@given(st.integers(1, 30), MEMBERS, st.sampled_from([f"m{i}" for i in range(12)]))
def test_consistent_hash_moves_only_the_queues_of_a_leaving_member(count: int, members: list[str], gone: str) -> None:
    everything, left = layout(("a", count)), [name for name in members if name != gone]
    for queue in everything.read_queues:
        before, after = (owner_of(everything, queue, each, CONSISTENT_HASH) for each in (members, left))
        assert before in (after, gone)


@given(LAYOUTS, MEMBERS, st.sampled_from(["average", "average_by_circle", "consistent_hash"]))
def test_nearby_and_machine_room_assign_no_queue_twice(layout: TopicLayout, members: list[str], within: str) -> None:
    nearby = MachineRoomNearby(lambda queue: queue.broker_name, lambda member: "abc"[int(member[1:]) % 3], within)
    for strategy, all_of_them in ((nearby, True), (ByMachineRoom(("a",)), False)):
        found = [queue for me in members for queue in allocate(strategy, None, layout, members, me)]
        assert len(found) == len(set(found))
        assert not (all_of_them and members) or sorted(found) == sorted(layout.read_queues)


@pytest.mark.parametrize(
    ("requested", "word", "ordered"),
    [
        ("by_broker", "by_broker", True),
        ("AVG", "average", True),
        ("AVG_BY_CIRCLE", "average_by_circle", True),
        ("CONSISTENT_HASH", "consistent_hash", True),
        (ByMachineRoom(("sh", "hz")), "machine_room: hz, sh", True),
        (MachineRoomNearby(room_of_queue, room_of_member), "machine_room_nearby: average", False),
        (ByConfig(()), "config", False),
        ("by_hand", "by_hand", False),
    ],
)
def test_strategy_spec_names_the_strategy_and_ordered_groups_allow_only_deterministic_ones(
    requested: Strategy, word: str, ordered: bool
) -> None:
    assert strategy_spec(requested if requested == MANUAL else check_strategy(requested)) == word
    assert is_allowed_when_ordered(word) is ordered


@pytest.mark.parametrize("name", ["CONFIG", "MACHINE_ROOM", "MACHINE_ROOM_NEARBY", "machine_room"])
def test_strategy_name_without_its_parameters_is_rejected(name: str) -> None:
    with pytest.raises(ConfigError, match="needs parameters: pass allocate="):
        check_strategy(name)


@pytest.mark.parametrize("wrong", ["sticky", "by_hand", 7, None])
def test_invalid_strategy_is_rejected(wrong: object) -> None:
    with pytest.raises(ConfigError, match="allocate"):
        check_strategy(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("rooms", [(), ("",), ("a@b",), ("a,b",), ("a" * 300,)])
def test_invalid_machine_room_names_are_rejected(rooms: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="rooms"):
        ByMachineRoom(rooms)


def test_nearby_rejects_by_broker_as_its_inner_strategy() -> None:
    with pytest.raises(ConfigError, match="within 'by_broker'"):
        MachineRoomNearby(room_of_queue, room_of_member, "by_broker")
