"""group list: what the brokers report about all groups becomes one line for each group."""

from lockstep.operations.groups.group_list import GroupLine, group_lines
from lockstep.protocol.bodies import GroupStatusReply, GroupSummary


def reply(*summaries: GroupSummary) -> GroupStatusReply:
    return GroupStatusReply(tuple(each.group for each in summaries), None, summaries)


def test_members_are_those_of_the_broker_with_most_and_lags_are_added() -> None:
    a = reply(GroupSummary("billing", True, False, 3, 10, False), GroupSummary("idle", None, None, 0, 7, False))
    b = reply(GroupSummary("billing", True, False, 2, 5, False))
    assert group_lines({"a": a, "b": b}) == [
        GroupLine("billing", "ordered", 3, 15, ("a", "b")),
        GroupLine("idle", None, 0, 7, ("a",)),
    ]


def test_kind_is_that_of_any_broker_with_a_contract() -> None:
    a, b = reply(GroupSummary("mailing", None, None, 0, 1, False)), reply(GroupSummary("mailing", False, False, 1, 1, False))
    assert group_lines({"a": a, "b": b}) == [GroupLine("mailing", "concurrent", 1, 2, ("a", "b"))]


def test_broadcasting_group_has_no_lag() -> None:
    assert group_lines({"a": reply(GroupSummary("feed", True, True, 2, 0, False))}) == [
        GroupLine("feed", "broadcasting, ordered", 2, None, ("a",))
    ]
