from dataclasses import replace

import msgpack  # type: ignore[import-untyped]
import pytest

from lockstep.broker.groups.contract import SPEC_LENGTH_MAX, SUBSCRIPTION_BYTES_MAX, TOPICS_PER_GROUP_MAX, contract_of, differences
from lockstep.protocol.bodies import ConsumeFromWhere, ConsumerGroup, ConsumeType, MessageModel, Subscription
from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.fields import to_plain
from lockstep.protocol.names import GROUP_BYTES_MAX, TOPIC_BYTES_MAX
from lockstep.protocol.tags import EXPRESSION_LENGTH_MAX
from support.coordination_kit import ordered


@pytest.mark.parametrize(("expression", "same"), [("a||b", "b || a"), ("a || a", "a"), (" * ", "*"), ("", "*"), ("a ||", "a")])
def test_expressions_with_equal_tags_are_one_contract(expression: str, same: str) -> None:
    assert contract_of(ordered(expression=expression)) == contract_of(ordered(expression=same))


def test_expressions_of_another_type_are_compared_as_text() -> None:
    one, two = (ConsumerGroup("g", (Subscription("t", text, "SQL92"),)) for text in ("a||b", "b||a"))
    assert differences(contract_of(one), contract_of(two)) == ["subscription of t: 'SQL92 a||b' here, 'SQL92 b||a' asked for"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"ordered": False}, "ordered: True here, False asked for"),
        ({"message_model": MessageModel.BROADCASTING}, "message_model: CLUSTERING here, BROADCASTING asked for"),
        ({"consume_type": ConsumeType.CONSUME_ACTIVELY}, "consume_type: CONSUME_PASSIVELY here, CONSUME_ACTIVELY asked for"),
        (
            {"consume_from_where": ConsumeFromWhere.LAST_OFFSET},
            "consume_from_where: CONSUME_FROM_FIRST_OFFSET here, CONSUME_FROM_LAST_OFFSET asked for",
        ),
        ({"consume_timestamp_ms": 5}, "consume_timestamp_ms: None here, 5 asked for"),
        ({"allocate": "average"}, "allocate: by_broker here, average asked for"),
        ({"order_by": "key"}, "order_by: queue here, key asked for"),
        ({"retry": "3 attempts"}, "retry: unlimited here, 3 attempts asked for"),
        ({"subscriptions": ()}, "subscription of orders: '*' here, none asked for"),
    ],
)
def test_each_differing_field_is_reported_with_both_values(change: dict[str, object], line: str) -> None:
    here = ordered(retry="unlimited")
    assert differences(contract_of(here), contract_of(replace(here, **change))) == [line]  # type: ignore[arg-type]


def test_equal_contracts_have_no_differences() -> None:
    assert differences(contract_of(ordered()), contract_of(ordered())) == []


def wide(topics: int, expression_bytes: int = 1, name_bytes: int = 5) -> ConsumerGroup:
    return ConsumerGroup("g", tuple(Subscription(f"{number:0{name_bytes}d}", "x" * expression_bytes) for number in range(topics)))


FULL = SUBSCRIPTION_BYTES_MAX // EXPRESSION_LENGTH_MAX


@pytest.mark.parametrize(
    ("fits", "too_much"),
    [
        (wide(TOPICS_PER_GROUP_MAX), wide(TOPICS_PER_GROUP_MAX + 1)),
        (wide(1, EXPRESSION_LENGTH_MAX), wide(1, EXPRESSION_LENGTH_MAX + 1)),
        (wide(FULL, EXPRESSION_LENGTH_MAX - 5), wide(FULL, EXPRESSION_LENGTH_MAX - 4)),
        (wide(1, 1, TOPIC_BYTES_MAX), wide(1, 1, TOPIC_BYTES_MAX + 1)),
        (ordered(group="g" * GROUP_BYTES_MAX), ordered(group="g" * (GROUP_BYTES_MAX + 1))),
        (ordered(allocate="a" * SPEC_LENGTH_MAX), ordered(allocate="a" * (SPEC_LENGTH_MAX + 1))),
        (ordered(order_by="a" * SPEC_LENGTH_MAX), ordered(order_by="a" * (SPEC_LENGTH_MAX + 1))),
        (ordered(retry="a" * SPEC_LENGTH_MAX), ordered(retry="a" * (SPEC_LENGTH_MAX + 1))),
        (ConsumerGroup("g", (Subscription("t", "x", "S" * 255),)), ConsumerGroup("g", (Subscription("t", "x", "S" * 256),))),
        (ConsumerGroup("g", (Subscription("t", "x", "é" * 127),)), ConsumerGroup("g", (Subscription("t", "x", "é" * 128),))),
        (
            ConsumerGroup("g", (Subscription("t", "x" * EXPRESSION_LENGTH_MAX, "SQL92"),)),
            ConsumerGroup("g", (Subscription("t", "x" * (EXPRESSION_LENGTH_MAX + 1), "SQL92"),)),
        ),
        (ordered(topics=("t", "u")), ordered(topics=("t", "t"))),
        (ordered(expression="a ||"), ordered(expression="||")),
    ],
)
def test_group_fields_have_size_limits(fits: ConsumerGroup, too_much: ConsumerGroup) -> None:
    contract_of(fits)
    with pytest.raises(LocalProtocolError):
        contract_of(too_much)


def test_largest_contract_fits_the_smallest_log_file() -> None:
    """A change is never split; one that fits no file would end the broker."""
    topics = TOPICS_PER_GROUP_MAX
    largest = wide(topics, SUBSCRIPTION_BYTES_MAX // topics - TOPIC_BYTES_MAX, TOPIC_BYTES_MAX)
    word = "é" * (SPEC_LENGTH_MAX // 2)
    typed = tuple(replace(each, expression_type=word) for each in largest.subscriptions)
    largest = replace(largest, subscriptions=typed, allocate=word, order_by=word, retry=word)
    contract_of(largest)
    assert len(msgpack.packb(("group.contract", "g" * GROUP_BYTES_MAX, to_plain(contract_of(largest))))) < 950_000


@pytest.mark.parametrize("word", ["config", "machine_room_nearby: average", "by_hand"])
def test_ordered_group_accepts_only_allocation_by_list_and_layout(word: str) -> None:
    contract_of(ordered(allocate=word, ordered=False))
    with pytest.raises(LocalProtocolError, match="its members could disagree about a queue"):
        contract_of(ordered(allocate=word))
    for fine in ("by_broker", "average", "average_by_circle", "consistent_hash", "machine_room: hz"):
        contract_of(ordered(allocate=fine))
