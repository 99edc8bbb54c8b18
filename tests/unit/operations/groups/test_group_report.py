"""The report of one group, merged from all its brokers."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.cli.commands.group import print_report
from lockstep.operations.groups.group_report import report, topics_of
from lockstep.protocol.bodies import ConsumerGroup, GroupSettings, GroupStatus, ListVersion, MemberStatus, QueueStatus, Subscription
from lockstep.protocol.topics.queue import MessageQueue

CONTRACT = ConsumerGroup("g", (Subscription("orders", "a || b", sub_version=1), Subscription("bills")), ordered=True)


def member(name: str, *, connected: bool = True, heard: int = 100, session: str | None = "12345678") -> MemberStatus:
    return MemberStatus(name, session, f"{name}:1", connected, heard)


def queue(topic: str = "orders", queue_id: int = 0, *, committed: int = 3, end: int = 10, lease: int | None = None) -> QueueStatus:
    return QueueStatus(topic, queue_id, "x", 5, 1, committed, end, 2, 700, lease, parked=0, disk_pulls=0)


def status(*members: MemberStatus, queues: tuple[QueueStatus, ...] = (), contract: ConsumerGroup | None = CONTRACT) -> GroupStatus:
    return GroupStatus("g", ListVersion(1, 1), contract, members, queues, grants=0)


def queues_at(*brokers: str) -> list[MessageQueue]:
    return [MessageQueue("orders", broker, 0) for broker in brokers]


def test_queues_of_an_unreached_broker_are_listed_without_values() -> None:
    made = report("g", {"a": status(queues=(queue(),))}, [*queues_at("a", "b", "c"), MessageQueue("orders", "b", 1)], {"b": "refused"})
    assert [(line.broker, line.queue_id, line.reached, line.max_offset, line.lag) for line in made.queues] == [
        ("a", 0, True, 10, 7),
        ("b", 0, False, None, None),
        ("b", 1, False, None, None),
    ]
    assert (made.lag, made.unreached) == (7, ("b",))


def test_member_is_missing_at_a_broker_with_queues_whose_list_lacks_it() -> None:
    made = report("g", {"a": status(member("x"), member("y")), "b": status(member("x")), "c": status()}, queues_at("a", "b"))
    assert [(line.client_id, line.missing_at) for line in made.members] == [("x", ()), ("y", ("b",))]


def test_member_is_missing_at_a_broker_that_does_not_know_its_group() -> None:
    made = report("g", {"a": status(member("x"))}, queues_at("a", "b", "c"), {"c": "refused"}, without_group=["b", "elsewhere"])
    assert [(line.client_id, line.missing_at) for line in made.members] == [("x", ("b",))]


def test_unreached_broker_is_not_called_missing() -> None:
    assert report("g", {"a": status(member("x"))}, queues_at("a", "silent")).members[0].missing_at == ()


def test_member_in_its_grace_at_any_broker_is_not_connected() -> None:
    made = report("g", {"a": status(member("x", heard=900)), "b": status(member("x", connected=False, heard=50))}, queues_at("a", "b"))
    assert (made.members[0].connected, made.members[0].heard_ago_ms) == (False, 50)


def test_queue_without_progress_lags_by_all_its_messages() -> None:
    made = report("g", {"a": status(queues=(queue(committed=-1, end=10), queue(queue_id=1, committed=12, end=10)))}, queues_at("a"))
    assert [(line.committed_offset, line.lag) for line in made.queues] == [(None, 10), (12, 0)]
    assert made.lag == 10


def test_messages_that_are_finished_above_the_committed_offset_are_no_lag() -> None:
    made = report("g", {"a": status(queues=(replace(queue(committed=2, end=10), done=(4, 7, 8, 9)),))}, queues_at("a"))
    assert [(line.committed_offset, line.lag, line.done) for line in made.queues] == [(2, 4, (4, 7, 8, 9))]


def running(*topics: str, queues: tuple[QueueStatus, ...] = (), known: bool = True) -> GroupStatus:
    """Return the status at a broker with a member that consumes these topics."""
    return replace(status(member("x"), queues=queues), consumed=topics if known else None)


def free(topic: str) -> QueueStatus:
    return replace(queue(topic), owner=None)


@pytest.mark.parametrize(
    ("statuses", "left"),
    [
        pytest.param({"a": running("bills", queues=(free("orders"), free("bills")))}, ("orders",), id="no member consumes it"),
        pytest.param({"a": running("bills", queues=(queue("orders"),))}, (), id="a member that left still holds it"),
        pytest.param({"a": running("bills", queues=(free("orders"),)), "b": running("orders")}, (), id="a member at another broker does"),
        pytest.param({"a": running("bills"), "b": status(queues=(free("orders"),))}, ("orders",), id="no member where its queues are"),
        pytest.param({"a": status(queues=(free("orders"),))}, (), id="the group is stopped"),
        pytest.param({"a": running(queues=(free("orders"),), known=False)}, (), id="a member may assign queues by hand"),
    ],
)
def test_topic_that_no_member_consumes_is_left_and_is_no_lag(statuses: dict[str, GroupStatus], left: tuple[str, ...]) -> None:
    made = report("g", statuses, queues_at("a"))
    assert made.left == left
    assert [line.lag for line in made.queues if line.topic in left] == [None] * len(left)
    assert made.lag == 7 * sum(line.topic not in left for line in made.queues)


def test_topics_of_an_older_contract_in_force_are_consumed_too() -> None:
    newest = ConsumerGroup("g", (Subscription("bills"),), ordered=True, contract_version=1)
    assert report("g", {"a": replace(running("bills", "orders"), contract=newest)}, ()).consumed == ("bills", "orders")


def test_no_topic_is_known_to_be_left_while_a_broker_does_not_respond() -> None:
    made = report("g", {"a": running("bills", queues=(free("orders"),))}, queues_at("a"), {"b": "refused"})
    assert (made.left, made.lag) == ((), 7)


def test_queue_in_which_the_group_has_not_begun_lags_by_what_it_may_receive() -> None:
    made = report("g", {"a": status(queues=(replace(queue(committed=-1, end=10), begins_at=8),))}, queues_at("a"))
    assert [(line.committed_offset, line.lag) for line in made.queues] == [(None, 2)]


def test_parked_keys_are_counted_for_brokers_that_were_reached() -> None:
    queues = (replace(queue(), parked=2), queue(queue_id=1))
    made = report("g", {"a": status(queues=queues)}, queues_at("a", "b"), {"b": "refused"})
    assert [(line.broker, line.parked) for line in made.queues] == [("a", 2), ("a", 0), ("b", None)]


def test_queues_are_sorted_by_topic_broker_and_id_with_all_values() -> None:
    at_b, at_a = (queue(queue_id=1, lease=40), queue()), (queue("zebra"), queue())
    made = report("g", {"b": status(queues=at_b), "a": status(queues=at_a)}, queues_at("a", "b"))
    places = [(line.topic, line.broker, line.queue_id) for line in made.queues]
    assert places == [("orders", "a", 0), ("orders", "b", 0), ("orders", "b", 1), ("zebra", "a", 0)]
    line = made.queues[2]
    assert (line.owner, line.epoch, line.classic_lease_left_ms) == ("x", "5", 40)
    assert (line.committed_ago_ms, line.attempts, line.generation) == (700, 2, "1")


def test_brokers_with_different_contracts_are_named_with_the_fields() -> None:
    other = replace(CONTRACT, ordered=False, subscriptions=CONTRACT.subscriptions[:1])
    newer = replace(CONTRACT, subscriptions=tuple(replace(one, sub_version=9) for one in CONTRACT.subscriptions))
    made = report("g", {"a": status(), "b": status(contract=other), "c": status(contract=newer), "d": status(contract=None)}, [])
    assert made.conflicts == ("b and a have different contracts: subscriptions, ordered",)
    assert made.ordered is True


def test_members_own_subscription_overrides_the_contracts_for_it() -> None:
    other = replace(member("y"), subscriptions=(Subscription("orders", "c"),))
    made = report("g", {"a": status(member("x"), other)}, queues_at("a"))
    assert [(line.client_id, line.subscription, line.topics) for line in made.members] == [
        ("x", {"orders": "a || b", "bills": "*"}, ("bills", "orders")),
        ("y", {"orders": "c"}, ("orders",)),
    ]
    assert made.subscription == {"orders": "a || b", "bills": "*"}


def test_classic_members_have_a_subscription_without_a_contract() -> None:
    classic = replace(member("z", session=None), subscriptions=(Subscription("orders", "c"),))
    made = report("g", {"a": status(classic, member("y"), contract=None)}, queues_at("a"))
    assert [line.subscription for line in made.members] == [{}, {"orders": "c"}]
    assert made.subscription == {}


def test_brokers_with_different_settings_are_named_with_the_fixing_command() -> None:
    here = replace(status(), settings=GroupSettings("g", consume_enable=False))
    made = report("g", {"a": status(), "b": here, "c": here}, [])
    assert made.conflicts == ()
    assert made.unequal_settings == ("b and a have different settings", "c and a have different settings")
    assert made.update_command == "lockstep group update g --subscription-policy strict --no-consume"
    assert report("g", {"b": here, "c": here}, []).unequal_settings == ()


def test_group_without_members_has_progress_and_no_contract() -> None:
    made = report("g", {"a": status(queues=(queue(),), contract=None)}, queues_at("a"))
    assert (made.ordered, made.members, len(made.queues)) == (None, (), 1)


def test_topics_are_the_subscribed_ones_and_those_with_progress() -> None:
    assert topics_of([status(queues=(queue("old"),)), status(contract=None)]) == ("bills", "old", "orders")


@given(st.dictionaries(st.sampled_from("abc"), st.sets(st.sampled_from("xyz"))), st.sets(st.sampled_from("abcd")))
def test_member_is_listed_or_missing_at_each_broker_of_the_layout(lists: dict[str, set[str]], layout: set[str]) -> None:
    made = report("g", {broker: status(*map(member, sorted(names))) for broker, names in lists.items()}, queues_at(*sorted(layout)))
    assert [line.client_id for line in made.members] == sorted({name for names in lists.values() for name in names})
    for line in made.members:
        assert set(line.missing_at) == {broker for broker in layout & set(lists) if line.client_id not in lists[broker]}


def test_members_are_counted_by_the_version_of_their_contract() -> None:
    newest = replace(CONTRACT, contract_version=3)
    old, new = member("x"), replace(member("y"), contract_version=3)
    made = report("g", {"a": status(old, new, contract=newest), "b": status(old, contract=CONTRACT)}, queues_at("a", "b"))
    assert made.members_by_version == {0: 1, 3: 1}
    assert made.contract_version == 3
    assert made.conflicts == ("b and a have different contracts: version",)


def test_version_that_may_join_is_no_difference_of_settings() -> None:
    here = replace(status(), settings=GroupSettings("g", next_contract_version=2))
    assert report("g", {"a": here, "b": replace(status(), settings=GroupSettings("g"))}, []).unequal_settings == ()


def test_lost_messages_of_a_queue_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    lost = replace(queue(), gap_first=1, gap_end=3, gap_ago_ms=7_000)
    print_report(report("g", {"a": status(queues=(lost, queue(queue_id=1)))}, queues_at("a")))
    assert capsys.readouterr().out.splitlines()[-1] == (
        "orders a queue 0: retention or a purge removed offsets 1 to 2 7.0 s ago, before the group had consumed them all"
    )
