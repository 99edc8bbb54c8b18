from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from lockstep.broker.groups.tables.group_table import GroupTable
from lockstep.broker.journal import Journal
from lockstep.protocol.fields import to_plain
from support.coordination_kit import TOPIC, ordered

CONTRACT = ordered("g")
NEXT = replace(ordered("g", ("t", TOPIC)), contract_version=1)


def test_each_list_change_draws_a_version_unique_among_groups() -> None:
    table = GroupTable(Journal())
    versions = []
    for name, client in [("g", "a"), ("h", "a"), ("g", "b")]:
        assert table.join(name, client, "s")
        group = table.get(name)
        assert group is not None
        versions.append(group.version)
    assert versions == [1, 2, 3]
    assert table.take_changed_lists() == ["g", "h"]
    assert table.take_changed_lists() == []


def test_new_session_of_a_member_changes_the_list_only_if_its_kind_changes() -> None:
    table = GroupTable(Journal())
    table.join("g", "a", "s1")
    table.take_changed_lists()
    assert not table.join("g", "a", "s1")
    assert not table.join("g", "a", "s2")
    assert table.groups_of_session("s1") == []
    assert [group.name for group in table.groups_of_session("s2")] == ["g"]
    assert table.take_changed_lists() == []
    assert table.join("g", "a", None)
    assert table.take_changed_lists() == ["g"]


def test_group_without_contract_and_members_is_forgotten() -> None:
    table = GroupTable(Journal())
    table.put_contract("g", CONTRACT)
    table.join("g", "a", "s")
    table.leave("g", "a")
    assert table.get("g") is not None
    table.end_contracts("g")
    assert table.get("g") is None
    table.leave("g", "a")
    assert list(table) == []


def test_members_are_listed_in_sorted_order() -> None:
    table = GroupTable(Journal())
    for client in "cab":
        table.join("g", client, client * 2)
    group = table.get("g")
    assert group is not None
    assert group.member_ids == ("a", "b", "c")
    assert not group.has_classic_members


CHANGES = st.one_of(
    st.tuples(st.just("group.member"), st.sampled_from("gh"), st.sampled_from("abc"), st.none(), st.just(0)),
    st.tuples(st.just("group.member"), st.sampled_from("gh"), st.sampled_from("abc"), st.sampled_from("sr"), st.sampled_from([0, 1, 2])),
    st.tuples(st.just("group.left"), st.sampled_from("gh"), st.sampled_from("abc")),
    st.tuples(
        st.just("group.contract"), st.sampled_from("gh"), st.sampled_from([None, to_plain(CONTRACT), to_plain(ordered("g", ("t", "u")))])
    ),
    st.tuples(st.just("group.contract"), st.just("g"), st.sampled_from([to_plain(NEXT), to_plain(replace(NEXT, contract_version=2))])),
    st.tuples(st.just("group.contract_ended"), st.just("g"), st.sampled_from([0, 1, 2])),
)


@given(st.lists(CHANGES, max_size=30))
def test_groups_of_a_session_and_of_a_topic_are_indexed_and_restored_from_a_snapshot(changes: list[tuple[object, ...]]) -> None:
    table = GroupTable(Journal())
    table.put_contract("g", CONTRACT)
    for change in changes:
        table.apply(change)
    again = GroupTable(Journal())
    again.restore(table.snapshot())
    for each in (table, again):
        for session in ("s", "r"):
            expected = [group.name for group in each if session in group.members.values()]
            assert sorted(group.name for group in each.groups_of_session(session)) == sorted(expected)
        for topic in (TOPIC, "t", "u"):
            assert sorted(group.name for group in each.groups_subscribed_to(topic)) == sorted(
                group.name for group in each if topic in group.topics
            )
        for group in each:
            assert (group.member_ids, group.has_classic_members) == (tuple(sorted(group.members)), None in group.members.values())
            shared = {topic: group.members_of(topic) for topic in group.topics}
            known = again.get(group.name)
            assert known is not None
            assert shared == {topic: known.members_of(topic) for topic in known.topics}
        assert each.snapshot() == table.snapshot()
