"""RebalancePlan: a queue is gained or lost only by a member list or a layout."""

from hypothesis import given
from hypothesis import strategies as st

from lockstep.client.consumer.rebalance import ListChange, MemberLists, RebalancePlan, plan
from lockstep.protocol.bodies import ListVersion, MemberList
from lockstep.protocol.topics.allocate import ByConfig, MachineRoomNearby, Strategy
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, MessageQueue, TopicLayout


def layout(*counts: tuple[str, int], topic: str = "t", counter: int = 1) -> TopicLayout:
    return TopicLayout(topic, LayoutVersion(counter, 1), tuple(LayoutEntry(broker, count, count, counter) for broker, count in counts))


def members(*names: str, counter: int = 1, term: int = 1, classic: bool = False) -> MemberList:
    return MemberList(tuple(sorted(names)), ListVersion(term, counter), classic)


def lists(me: str = "m1", **of: MemberList) -> MemberLists:
    known = MemberLists(me)
    for broker, listed in of.items():
        known.adopt(broker, listed)
    return known


def wanted(
    layouts: dict[str, TopicLayout | None],
    known: MemberLists,
    previous: tuple[MessageQueue, ...] = (),
    *,
    me: str = "m1",
    strategy: Strategy = "by_broker",
    down: tuple[str, ...] = (),
) -> RebalancePlan:
    return plan(me, strategy, layouts, known, previous=dict.fromkeys(previous), reachable=lambda broker: broker not in down)


def q(broker: str, queue_id: int, topic: str = "t") -> MessageQueue:
    return MessageQueue(topic, broker, queue_id)


def test_queues_of_each_broker_are_divided_among_the_members_in_its_list() -> None:
    known = lists(a=members("m1", "m2"), b=members("m1"))
    round_ = wanted({"t": layout(("a", 2), ("b", 2))}, known)
    assert list(round_.wanted) == [q("a", 0), q("b", 0), q("b", 1)]
    assert round_.gained == tuple(round_.wanted)


def test_member_list_without_this_member_is_ignored() -> None:
    known = lists(a=members("m1", "m2"))
    assert not known.adopt("a", members("m2", counter=5))
    assert known.is_outdated("a")
    round_ = wanted({"t": layout(("a", 2))}, known, (q("a", 0),))
    assert list(round_.wanted) == [q("a", 0)]
    assert known.adopt("a", members("m1", "m2", "m0", counter=6))
    assert not known.is_outdated("a")


def test_queues_of_a_broker_without_a_member_list_are_neither_gained_nor_lost() -> None:
    assert list(wanted({"t": layout(("a", 2))}, lists()).wanted) == []
    assert wanted({"t": layout(("a", 2))}, lists(), (q("a", 1),)).lost == ()


def test_missing_route_does_not_revoke_queues() -> None:
    known = lists(a=members("m1"))
    assert wanted({"t": None}, known, (q("a", 0), q("a", 1))).lost == ()


def test_higher_layout_without_a_queue_revokes_it() -> None:
    known = lists(a=members("m1"))
    assert wanted({"t": layout(("a", 1), counter=2)}, known, (q("a", 0), q("a", 1))).lost == (q("a", 1),)
    deleted = TopicLayout("t", LayoutVersion(3, 1), ())
    assert wanted({"t": deleted}, known, (q("a", 0),)).lost == (q("a", 0),)


def test_member_list_that_assigns_a_queue_to_another_revokes_it() -> None:
    known = lists(a=members("m0", "m1"))
    round_ = wanted({"t": layout(("a", 2))}, known, (q("a", 0), q("a", 1)))
    assert (round_.lost, list(round_.wanted)) == ((q("a", 0),), [q("a", 1)])


def test_older_member_list_is_ignored_unless_its_term_is_higher() -> None:
    known = lists(a=members("m1", counter=9, term=1))
    assert not known.adopt("a", members("m0", "m1", counter=8, term=1))
    assert known.get("a") == members("m1", counter=9, term=1)
    assert known.adopt("a", members("m0", "m1", counter=1, term=2))


def test_change_between_member_lists_is_classified() -> None:
    known = MemberLists("m1")
    assert known.adopt("a", members("m1")) is ListChange.OTHER
    assert known.adopt("b", members("m1")) is ListChange.OTHER
    assert known.adopt("a", members("m1", counter=2)) is ListChange.NONE
    assert known.adopt("a", members("m1", "m2", counter=3)) is ListChange.NEW_MEMBER
    assert known.adopt("b", members("m1", "m2", counter=2)) is ListChange.KNOWN_MEMBER
    assert known.adopt("b", members("m1", "m2", "m3", counter=3)) is ListChange.NEW_MEMBER
    assert known.adopt("a", members("m1", "m3", counter=4)) is ListChange.OTHER
    assert known.adopt("a", members("m1", "m2", "m3", counter=5)) is ListChange.KNOWN_MEMBER
    assert known.adopt("a", members("m1", "m2", "m3", counter=6, classic=True)) is ListChange.OTHER


def test_newer_list_version_marks_the_list_as_outdated() -> None:
    known = lists(a=members("m1", counter=3))
    assert not known.record_version("a", ListVersion(1, 3))
    assert known.record_version("a", ListVersion(1, 4))
    assert known.is_outdated("a")
    known.adopt("a", members("m1", counter=4))
    assert not known.is_outdated("a")


def test_rocketmq_strategies_use_the_list_of_the_first_reachable_broker() -> None:
    known = lists(a=members("m1"), b=members("m1", "m2"))
    everything = layout(("a", 2), ("b", 2))
    assert len(wanted({"t": everything}, known, strategy="average").wanted) == 4
    assert list(wanted({"t": everything}, known, strategy="average", down=("a",)).wanted) == [q("a", 0), q("a", 1)]
    previous = (q("b", 1),)
    assert list(wanted({"t": everything}, known, previous, strategy="average", down=("a", "b")).wanted) == [q("b", 1)]


def test_classic_member_forces_rocketmqs_average_strategy() -> None:
    known = lists(a=members("m1", "m2", classic=True), b=members("m1", "m2"))
    assert list(wanted({"t": layout(("a", 2), ("b", 2))}, known).wanted) == [q("a", 0), q("a", 1)]


@given(st.lists(st.sampled_from(["m1", "m2", "m3", "m4"]), min_size=1, unique=True), st.integers(0, 9), st.integers(0, 9))
def test_equal_member_lists_assign_each_queue_exactly_once(names: list[str], a: int, b: int) -> None:
    everything = layout(("a", a), ("b", b))
    owned: list[MessageQueue] = []
    for me in names:
        known = lists(me, a=members(*names), b=members(*names))
        owned += wanted({"t": everything}, known, me=me).wanted
    assert sorted(owned) == sorted(everything.read_queues)


def test_each_strategy_assigns_all_queues_by_one_member_list() -> None:
    room = MachineRoomNearby(lambda queue: queue.broker_name, lambda member: {"m1": "b", "m2": "a"}[member])
    known = lists(a=members("m1", "m2"), b=members("m1"))
    everything: dict[str, TopicLayout | None] = {"t": layout(("a", 2), ("b", 2))}
    assert list(wanted(everything, known, strategy=room).wanted) == [q("b", 0), q("b", 1)]
    assert list(wanted(everything, known, strategy=ByConfig((q("b", 1), q("a", 7)))).wanted) == [q("b", 1)]
    assert list(wanted(everything, lists(), strategy=ByConfig((q("b", 1),))).wanted) == [], "not before a list names me"


def test_topic_that_some_members_share_is_divided_among_them() -> None:
    listed = MemberList(("m0", "m1", "m2"), ListVersion(1, 1), shares=(("m1", "m2"), ("m0",)), topic_shares={"u": 0, "v": 1})
    layouts: dict[str, TopicLayout | None] = {topic: layout(("a", 4), topic=topic) for topic in "tuv"}
    for strategy in ("by_broker", "average_by_circle"):
        round_ = wanted(layouts, lists(a=listed), strategy=strategy)
        assert list(round_.wanted) == [q("a", 1), q("a", 0, "u"), q("a", 2, "u")]


def test_change_of_the_members_of_a_topic_takes_effect_at_once() -> None:
    known = lists(a=members("m0", "m1"))
    partial = MemberList(("m0", "m1"), ListVersion(1, 2), shares=(("m0",),), topic_shares={"u": 0})
    assert known.adopt("a", partial) is ListChange.OTHER
    assert known.adopt("a", MemberList(("m0", "m1"), ListVersion(1, 3), shares=(("m0",),), topic_shares={"u": 0})) is ListChange.NONE
    assert known.adopt("a", members("m0", "m1", counter=4)) is ListChange.OTHER
