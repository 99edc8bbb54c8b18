"""The clients that were not admitted to a group, as GROUP_STATUS shows them."""

from lockstep.broker.groups.join_refusals import KEPT_MAX, JoinRefusals
from lockstep.protocol.bodies import JoinRefusal


def test_newest_refusals_are_kept_one_for_each_client() -> None:
    refusals = JoinRefusals()
    for number in range(KEPT_MAX + 2):
        refusals.record("g", f"c{number}", "why", number * 100)
    refusals.record("g", "c5", "another\nreason", 2_000)
    found = refusals.of("g", 2_500)
    assert [each.client_id for each in found] == ["c2", "c3", "c4", "c6", "c7", "c8", "c9", "c5"]
    assert found[-1] == JoinRefusal("c5", 500, "another reason")
    assert refusals.of("other", 2_500) == ()


def test_admitted_client_and_forgotten_group_leave_nothing() -> None:
    refusals = JoinRefusals()
    refusals.record("g", "a", "why", 0)
    refusals.record("g", "b", "why", 0)
    refusals.forget_client("g", "a")
    assert [each.client_id for each in refusals.of("g", 0)] == ["b"]
    refusals.forget_client("g", "b")
    refusals.forget_client("unknown", "b")
    assert refusals.of("g", 0) == ()
    refusals.record("g", "a", "why", 0)
    refusals.drop_group("g")
    assert refusals.of("g", 0) == ()
