from dataclasses import replace

import pytest

from lockstep.broker.contract import contract_of, differences
from lockstep.protocol.bodies import ConsumerGroup, ConsumeType, MessageModel, StartPoint, Subscription
from support.coordination_kit import ordered


@pytest.mark.parametrize(("expression", "same"), [("a||b", "b || a"), ("a || a", "a"), (" * ", "*"), ("", "*"), ("a ||", "a")])
def test_expressions_that_let_the_same_tags_pass_are_one_contract(expression: str, same: str) -> None:
    assert contract_of(ordered(expression=expression)) == contract_of(ordered(expression=same))


def test_an_expression_of_another_type_is_compared_as_it_is() -> None:
    one, two = (ConsumerGroup("g", (Subscription("t", text, "SQL92"),)) for text in ("a||b", "b||a"))
    assert differences(contract_of(one), contract_of(two)) == ["subscription of t: SQL92 'a||b' here, SQL92 'b||a' asked for"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"ordered": False}, "ordered: True here, False asked for"),
        ({"message_model": MessageModel.BROADCASTING}, "message_model: CLUSTERING here, BROADCASTING asked for"),
        ({"consume_type": ConsumeType.CONSUME_ACTIVELY}, "consume_type: CONSUME_PASSIVELY here, CONSUME_ACTIVELY asked for"),
        (
            {"consume_from_where": StartPoint.LAST_OFFSET},
            "consume_from_where: CONSUME_FROM_FIRST_OFFSET here, CONSUME_FROM_LAST_OFFSET asked for",
        ),
        ({"consume_timestamp_ms": 5}, "consume_timestamp_ms: None here, 5 asked for"),
        ({"allocate": "average"}, "allocate: by_broker here, average asked for"),
        ({"order_by": "key"}, "order_by: queue here, key asked for"),
        ({"subscriptions": ()}, "subscription of orders: '*' here, none asked for"),
    ],
)
def test_every_field_of_a_contract_is_named_with_both_sides(change: dict[str, object], line: str) -> None:
    here = contract_of(ordered())
    assert differences(here, contract_of(replace(ordered(), **change))) == [line]  # type: ignore[arg-type]


def test_equal_contracts_differ_in_nothing() -> None:
    assert differences(contract_of(ordered()), contract_of(ordered())) == []
