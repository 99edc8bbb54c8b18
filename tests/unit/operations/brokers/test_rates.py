"""Rates between two looks at a cluster: never negative, and unknown rather than 0."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.cli.commands.top import BARS, TREND_CELLS, Sort, keep_trends, ordered, trend_text
from lockstep.operations.brokers.rates import BrokerRates, GroupRates, Looks, TopicGroup, groups_of_topic, rates, rates_with_topics
from lockstep.protocol.bodies import BrokerStatus, FlowFigures, GroupFigures, NameserverStanding, Overview, TopicFigures
from lockstep.protocol.names import READER_GROUP, REPLAY_GROUP
from lockstep.runtime.metrics import BUCKETS_US

STATUS = BrokerStatus("broker-a", "c", "0123", 7, {}, 0, 100_000, 1, 1_000, 500, 10, (), 1_024, 0, 0, 0, 5, 0)
GROUP = GroupFigures("billing", True, False, 2, 4, 10, 0, 0, None, True)
FLOW = FlowFigures("orders", "billing", 100, 2_500, 1_000, 9_000, 0)


def look(up_ms: int, *, stored: int = 2_000, given: int = 1_000, lag: int | None = 100, grants: int = 10, term: int = 7) -> Overview:
    return Overview(
        replace(STATUS, up_ms=up_ms, term=term),
        5,
        3,
        2_048,
        (),
        0,
        (TopicFigures("orders", 4, stored, 0, stored), TopicFigures("%DLQ%billing", 1, 3, 0, 3)),
        (replace(GROUP, grants=grants),),
        (replace(FLOW, given=given, lag=lag),),
        (),
    )


def test_rates_are_by_the_brokers_own_clock() -> None:
    found = rates({"a": look(100_000)}, {"a": look(102_000, stored=2_100, given=1_300, grants=11, lag=80)})
    (broker,), (group,) = found.brokers, found.groups
    assert (broker.stored_s, broker.given_s, broker.lag, broker.connections, broker.unsynced_bytes) == (50, 150, 80, 5, 2_048)
    assert (group.given_s, group.lag, group.oldest_ms, group.grants_min) == (150, 80, 2_500, 30)
    assert group.gone_ms == 800, "it consumes 100/s more than arrive"
    assert (group.kind, group.members, group.held, group.dead_letters) == ("ordered", 2, 4, 3)


def test_messages_that_an_operator_looks_at_are_not_consumed() -> None:
    before, now = look(0), look(1_000, given=1_100)
    reads = replace(FLOW, group=READER_GROUP, given=5_000)
    (broker,) = rates({"a": before}, {"a": replace(now, flows=(*now.flows, reads))}).brokers
    assert broker.given_s == 100


def test_lag_that_grows_is_never_gone() -> None:
    (group,) = rates({"a": look(0)}, {"a": look(1_000, stored=2_500, given=1_100)}).groups
    assert (group.gone_ms, group.is_growing) == (None, True)


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ({}, "a missing look"),
        ({"a": "refused"}, "a look without a response"),
        ({"a": look(100_000, term=6)}, "another term"),
        ({"a": look(200_000)}, "a start of the broker"),
    ],
)
def test_rate_over_a_gap_is_unknown(before: Looks, why: str) -> None:
    found = rates(before, {"a": look(102_000, stored=9_000, given=9_000)})
    (broker,), (group,) = found.brokers, found.groups
    assert (broker.stored_s, broker.given_s, group.given_s, group.grants_min, group.gone_ms) == (None, None, None, None, None), why
    assert (broker.lag, group.lag) == (100, 100), "totals are known"


def dead(stored: int, unreplayed: int | None) -> int:
    """Return the dead letters of a group that had 6: how many of them are stored, and of those not replayed, if any was."""
    flows = () if unreplayed is None else (FlowFigures("%DLQ%billing", REPLAY_GROUP, unreplayed, None, 0, 0, 0),)
    shown = replace(look(0), topics=(TopicFigures("%DLQ%billing", 1, 6, 0, stored),), flows=flows)
    (group,) = rates({}, {"a": shown}).groups
    return group.dead_letters


def test_dead_letters_that_were_replayed_or_removed_need_no_attention() -> None:
    assert [dead(6, None), dead(6, 2), dead(6, 0)] == [6, 2, 0]
    assert [dead(1, None), dead(1, 5), dead(0, 6)] == [1, 1, 0], "retention has removed the others"


def test_groups_of_the_tools_are_not_watched() -> None:
    """A replay that has stopped is no consumer that lags, and has no member."""
    flows = (FLOW, *(FlowFigures("orders", name, 7, 99_000, 0, 0, 0) for name in (READER_GROUP, REPLAY_GROUP)))
    figures = (GROUP, *(replace(GROUP, group=name, members=0) for name in (READER_GROUP, REPLAY_GROUP)))
    shown = {"a": replace(look(0), flows=flows, groups=figures)}
    found, (topic,) = rates_with_topics({}, {"a": replace(shown["a"], topics=(TopicFigures("orders", 1, 9, 0, 5),))})
    assert [each.group for each in found.groups] == ["billing"]
    assert (found.brokers[0].lag, topic.lag) == (100, 100)
    assert groups_of_topic(shown, "orders") == {"billing": TopicGroup(100, 2_500)}


def test_broadcasting_group_lags_in_no_topic() -> None:
    """It may have progress from a time when it was not. One broker knows what it is, because only there it has a member now."""
    known = replace(GROUP, broadcasting=True)
    looks = {"a": replace(look(0), groups=(known,)), "b": replace(look(0), groups=(replace(GROUP, broadcasting=None),))}
    found, topics = rates_with_topics({}, looks)
    assert [each.lag for each in found.brokers] == [0, 0]
    assert [each.lag for each in topics if each.topic == "orders"] == [None]
    assert groups_of_topic(looks, "orders") == {"billing": TopicGroup(None, None)}


def test_topic_has_a_kind_its_bytes_and_how_many_groups_lag_in_it() -> None:
    def shown(up_ms: int, size: int) -> Overview:
        topics = tuple(TopicFigures(name, 1, 9, size * (name == "orders"), 9) for name in ("orders", "%RETRY%billing", "%DLQ%billing"))
        flows = [FlowFigures("orders", group, lag, None, 0, 0, 0) for group, lag in {"billing": 5, "mailing": 0, "audit": 2}.items()]
        return replace(look(up_ms), topics=topics, flows=tuple(flows))

    _, topics = rates_with_topics({"a": shown(0, 1_000), "b": shown(0, 0)}, {"a": shown(2_000, 5_000), "b": shown(2_000, 500)})
    assert [(each.topic, each.kind) for each in topics] == [
        ("%DLQ%billing", "dead letters"),
        ("%RETRY%billing", "retry"),
        ("orders", "topic"),
    ]
    assert (topics[2].size_s, topics[2].lag, topics[2].behind) == (2_250, 10, 2)
    _, topics = rates_with_topics({}, {"a": shown(2_000, 5_000)})
    assert (topics[2].size_s, topics[2].behind) == (None, 2)


def test_topic_stores_what_retention_has_left_of_it() -> None:
    looks = {name: replace(look(0), topics=(TopicFigures("orders", 1, 100, 0, 40),)) for name in "ab"}
    assert [each.messages for each in rates_with_topics({}, looks)[1]] == [80]


def test_falling_counter_has_no_rate() -> None:
    """Such as that of a topic that was deleted and made again."""
    found = rates({"a": look(0, stored=500)}, {"a": look(1_000, stored=400)})
    assert found.brokers[0].stored_s is None


def test_broker_that_does_not_respond_is_unknown_and_not_0() -> None:
    found = rates({"a": look(0), "b": look(0)}, {"a": look(1_000, given=1_100), "b": "the connection was refused"})
    assert [(each.broker, each.reason, each.lag) for each in found.brokers] == [("a", None, 100), ("b", "the connection was refused", None)]
    assert [each.given_s for each in found.groups] == [100], "of the brokers that responded"


def test_groups_are_summed_over_brokers() -> None:
    now = {"a": look(1_000, given=1_100, lag=5), "b": look(9_000, given=1_200, lag=7)}
    (group,) = rates({"a": look(0), "b": look(8_000)}, now).groups
    assert (group.lag, group.held, group.given_s, group.dead_letters) == (12, 8, 300, 6)


def test_broadcasting_group_has_no_lag() -> None:
    shown = replace(look(0), groups=(replace(GROUP, broadcasting=True, held=None),))
    found = rates({}, {"a": shown})
    assert (found.groups[0].kind, found.groups[0].lag, found.groups[0].held, found.brokers[0].lag) == ("broadcasting", None, None, 0)


@given(
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(6, 8), st.integers(0, 10_000)), min_size=2, max_size=6)
)
def test_no_rate_is_negative(looks: list[tuple[int, int, int, int]]) -> None:
    overviews = [look(up_ms, stored=stored, given=given, term=term) for up_ms, given, term, stored in looks]
    for before, now in pairwise(overviews):
        found = rates({"a": before}, {"a": now})
        values = [found.brokers[0].stored_s, found.brokers[0].given_s, found.groups[0].given_s, found.groups[0].grants_min]
        assert all(value is None or value >= 0 for value in values)


def group(name: str, **values: object) -> GroupRates:
    made = GroupRates(name, "ordered", 1, 1, 0, None, None, None, None, None, 0, 0, 0, True)
    return replace(made, **values)  # type: ignore[arg-type]


def test_groups_are_shown_in_the_order_that_is_asked_for() -> None:
    groups = [group("a", lag=5, given_s=1.0), group("b", lag=9, grants_min=2.0), group("c", given_s=7.0)]
    assert [each.group for each in ordered(groups, Sort.BEHIND)] == ["b", "a", "c"]
    assert [each.group for each in ordered(groups, Sort.RATE)] == ["c", "a", "b"]
    assert [each.group for each in ordered(groups, Sort.MOVES)] == ["b", "a", "c"]


def test_group_grows_if_messages_wait_and_more_are_stored_than_consumed() -> None:
    assert group("a", lag=1, given_s=1.0, stored_s=1.5).is_growing
    shrinking = (group("a", lag=1, given_s=2.0, stored_s=1.5), group("a", lag=0, given_s=0.0, stored_s=1.5))
    not_known = (group("a", lag=1, given_s=1.0), group("a", lag=1, stored_s=1.0), group("a", lag=None, given_s=0.0, stored_s=1.0))
    assert not any(each.is_growing for each in (*shrinking, *not_known))


def test_remarks_name_what_needs_attention() -> None:
    assert group("a").remarks == []
    bad = group("a", failing=2, parked=3, dead_letters=1_000, consume_enable=False, members=0, lag=4)
    expected = ["queues that fail: 2", "parked keys: 3", "dead letters: 1,000", "consumption is switched off", "no member"]
    assert bad.remarks == expected
    assert BrokerRates("a", None, nameservers=(NameserverStanding("n:1", "accepted"),)).remarks == []
    standings = (
        NameserverStanding("n:1", "accepted"),
        NameserverStanding("n:2", "refused", "the name is taken"),
        NameserverStanding("n:3", "pending"),
    )
    assert BrokerRates("a", None, refusal="no room", damaged_messages=2_000, nameservers=standings).remarks == [
        *("sends are refused: no room", "messages lost to damage: 2,000"),
        *("nameserver n:2: refused, the name is taken", "nameserver n:3: pending"),
    ]
    assert BrokerRates("a", "connection refused").remarks == ["connection refused"]


def appended(bucket: int, count: int = 1, *, buckets: int = len(BUCKETS_US) + 1) -> tuple[int, ...]:
    return tuple(count if index == bucket else 0 for index in range(buckets))


def test_p99_of_appends_is_the_bound_of_its_bucket_and_not_known_without_appends() -> None:
    def p99(before: tuple[int, ...], now: tuple[int, ...], **changes: int) -> str | None:
        looks = replace(look(0), append_counts=before), replace(look(1_000, **changes), append_counts=now)
        return rates({"a": looks[0]}, {"a": looks[1]}).brokers[0].append_p99

    none, mostly = appended(0, 0), appended(1, 99)
    assert p99(none, appended(0)) == "≤ 50 µs"
    assert p99(none, tuple(map(sum, zip(mostly, appended(5), strict=True)))) == "≤ 100 µs"
    assert p99(none, tuple(map(sum, zip(mostly, appended(5, 2), strict=True)))) == "≤ 2 ms"
    assert p99(none, appended(13)) == "≤ 5 s"
    assert p99(none, appended(14)) == "> 5 s"
    assert p99(mostly, mostly) is None
    assert p99(mostly, none) is None
    assert p99(none, mostly, term=8) is None
    assert p99(appended(0, 1, buckets=3), appended(0, 9, buckets=3)) is None, "a broker of another version has other buckets"


@given(st.lists(st.integers(0, 1_000_000), max_size=60))
def test_trend_has_its_highest_value_as_full_bar(lags: list[int]) -> None:
    text = trend_text(lags)
    assert len(text) <= TREND_CELLS
    assert (BARS[-1] in text) == (max(lags, default=0) > 0)


def test_trends_of_groups_that_are_gone_are_forgotten() -> None:
    trends: dict[str, object] = {}
    keep_trends(trends, [group("a", lag=3), group("b")])  # type: ignore[arg-type]
    keep_trends(trends, [group("a", lag=None)])  # type: ignore[arg-type]
    assert {name: list(lags) for name, lags in trends.items()} == {"a": [3, 0]}  # type: ignore[call-overload]
