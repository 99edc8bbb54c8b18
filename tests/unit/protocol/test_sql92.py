"""Conditions on properties: RocketMQ's grammar, three-valued logic, canonical texts, errors that show the place."""

import re
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.messages.properties import encode_properties
from lockstep.protocol.sql92 import SqlError, canonical_sql, compile_sql, count_comparisons, parse_sql
from lockstep.protocol.sql92.nodes import (
    And,
    Between,
    Boolean,
    Comparison,
    Condition,
    Contains,
    In,
    IsNull,
    Not,
    Number,
    Or,
    PropertyName,
    Value,
)
from lockstep.protocol.sql92.parser import COMPARISONS_MAX, DEPTH_MAX, TEXTS_MAX
from lockstep.protocol.sql92.tokens import TEXT_LENGTH_MAX
from support.sql_cases import MESSAGE, TRUTHS, conditions, messages


def stored(properties: Mapping[str, str]) -> bytes:
    return b"\x02" + encode_properties(properties)


def passes(expression: str, properties: Mapping[str, str] = MESSAGE) -> bool:
    return compile_sql(parse_sql(expression))(stored(properties))


def truth(expression: str, properties: Mapping[str, str] = MESSAGE) -> bool | None:
    """Return true, false or unknown: a message passes the expression, its negation, or neither."""
    yes, no = passes(expression, properties), passes(f"NOT ({expression})", properties)
    assert not (yes and no)
    assert passes(f"({expression}) IS NULL", properties) is (not yes and not no)
    return True if yes else False if no else None


@pytest.mark.parametrize(("expression", "expected"), TRUTHS)
def test_condition_is_true_false_or_unknown(expression: str, expected: bool | None) -> None:
    assert truth(expression) is expected


@pytest.mark.parametrize("number", ["", " 1", "1 ", "1_0", "0x10", "1e", "e1", ".", "+", "١", "1L", "NaN", "Infinity", "1,5"])
def test_text_that_is_no_number_makes_a_comparison_unknown(number: str) -> None:
    assert truth("a > 0", {"a": number}) is None
    assert truth("a <= 0", {"a": number}) is None


@pytest.mark.parametrize(
    ("number", "value"), [("1.", "1"), (".5", "0.5"), ("+7", "7"), ("-2", "-2"), ("1E3", "1000"), ("1e-2", "0.01"), ("007", "7")]
)
def test_numbers_of_every_form_are_read(number: str, value: str) -> None:
    assert truth(f"a = {value}", {"a": number}) is True
    assert truth(f"a < {value}", {"a": number}) is False


def test_integers_are_compared_exactly() -> None:
    assert passes("a > 900719925474099200", {"a": "900719925474099201"})
    assert not passes("a = 900719925474099200", {"a": "900719925474099201"})


def test_names_are_whole_and_values_end_where_the_property_ends() -> None:
    assert not passes("b = 'x'", {"ab": "x"})
    assert not passes("a = 'x'", {"ab": "x"})
    assert passes("a = '' AND b = 'x'", {"a": "", "b": "x"})
    assert passes("TAGS = 'paid' AND KEYS CONTAINS '1001'", {"TAGS": "paid", "KEYS": "1001 1002"})
    assert compile_sql(parse_sql("a = 'x'"))(b"\x02a\x01x\x02"), "some releases of RocketMQ end properties with 0x02"
    assert compile_sql(parse_sql("a = 'y'"))(b"\x02a\x01x\x02a\x01y"), "the last value of a name counts, as when properties are decoded"


@pytest.mark.parametrize(
    ("expression", "canonical"),
    [
        ("a>5", "a > 5"),
        ("a  >5.50\nand b in('y','x','x')", "a > 5.5 AND b IN ('x', 'y')"),
        ("((a > 5))", "a > 5"),
        ("(a > 1 or b > 1) AND (c > 1 and d > 1)", "(a > 1 OR b > 1) AND c > 1 AND d > 1"),
        ("a > 1 OR (b > 1 OR c > 1)", "a > 1 OR b > 1 OR c > 1"),
        ("not (a is null)", "NOT (a IS NULL)"),
        ("a not between -1 and +2L", "a NOT BETWEEN -1 AND 2"),
        ("a CONTAINS 'it''s' and b=true", "a CONTAINS 'it''s' AND b = TRUE"),
        ("a>5 is null", "(a > 5) IS NULL"),
    ],
)
def test_equal_conditions_have_one_canonical_text(expression: str, canonical: str) -> None:
    assert str(parse_sql(expression)) == canonical
    assert str(parse_sql(canonical)) == canonical


@pytest.mark.parametrize(
    ("expression", "at", "reason"),
    [
        ("", 0, "the expression is empty"),
        ("amount >> 100", 8, "expected a property, a number or a text after '>', got '>'"),
        ("amount > ", 9, "after '>', got the end"),
        ("amount > 100 region", 13, "expected AND, OR or the end, got 'region'"),
        ("a = NULL", 4, "NULL is not compared: write IS NULL or IS NOT NULL"),
        ("a > NULL", 4, "NULL is not compared"),
        ("NULL IS NULL", 0, "IS NULL tests a property or a condition"),
        ("a IS 5", 5, "expected NULL, got '5'"),
        ("a", 0, "a is a property, not a condition: write a = TRUE, a = '…' or a IS NOT NULL"),
        ("NOT a = 1", 4, "a is a property, not a condition"),
        ("a > 1 AND 5", 10, "expected a condition, such as amount > 100"),
        ("TRUE > FALSE", 0, "only properties and numbers have an order"),
        ("a < 'x'", 4, "only properties and numbers have an order"),
        ("a IN (1)", 6, "expected a text in quotes, got '1'"),
        ("a IN ('x' 'y')", 10, "expected ',' or ')', got"),
        ("a IN 'x'", 5, "expected '(' after IN"),
        ("5 IN ('x')", 0, "IN takes a property before it"),
        ("a BETWEEN 3 AND 0", 10, "BETWEEN 3 AND 0 is never true"),
        ("a BETWEEN 'x' AND 'y'", 10, "only properties and numbers have an order"),
        ("a BETWEEN 1 OR 2", 12, "expected AND and the upper bound of BETWEEN"),
        ("a CONTAINS b", 11, "expected a text in quotes after CONTAINS, got 'b'"),
        ("a CONTAINS ''", 11, "CONTAINS takes a text that is not empty"),
        ("a > 1 = b", 0, "= compares values"),
        ("5 = 'x'", 4, "a number, a text and a truth value are never equal"),
        ("a = 'x", 4, "this text has no closing quote"),
        ("a > 1 /* b", 6, "this comment has no end"),
        ("a LIKE 'x'", 2, "expected a comparison after a (=, <>, <, <=, >, >=, IS, IN, BETWEEN, CONTAINS …), got 'LIKE'"),
        ("a + 1 > 2", 2, "expected a comparison after a (=, <>, <, <=, >, >=, IS, IN, BETWEEN, CONTAINS …), got '+'"),
        ("- a > 2", 2, "expected a number after '-'"),
        ("a > 1; b", 5, "unexpected character ';'"),
        ("a > 1 AND a.b = 'x'", 10, "a property 'a.b' can't be named: a name in a condition has letters of ASCII, digits, _ and $"),
        ("order-id IS NULL", 0, "a property 'order-id' can't be named"),
        ("a = b.c", 4, "a property 'b.c' can't be named"),
        ("größe > 1", 0, "a property 'größe' can't be named"),
        ("名 > 1", 0, "a property '名' can't be named"),
        ("a = b; c", 5, "unexpected character ';'"),
        ("(a > 1", 6, "expected AND, OR or ')', got the end"),
        ("a > 1e999", 4, "the number is too large"),
        ("a > " + "9" * 19, 4, "an integer has at most 18 digits"),
        ("a > 1.5L", 4, "a number that ends in L is an integer"),
        ("(" * (DEPTH_MAX + 1) + "a > 1", DEPTH_MAX, f"nested more than {DEPTH_MAX} levels"),
        ("NOT " * (DEPTH_MAX + 1) + "a > 1", 4 * DEPTH_MAX, f"nested more than {DEPTH_MAX} levels"),
        (" OR ".join(["a > 1"] * (COMPARISONS_MAX + 1)), 9 * COMPARISONS_MAX + 2, f"more than {COMPARISONS_MAX} comparisons"),
        (f"a IN ({', '.join(['?'] * (TEXTS_MAX + 1))})".replace("?", "'x'"), 6 + 5 * TEXTS_MAX, f"more than {TEXTS_MAX} listed texts"),
        ("x" * (TEXT_LENGTH_MAX + 1), TEXT_LENGTH_MAX, f"at most {TEXT_LENGTH_MAX}"),
    ],
)
def test_expression_that_can_not_be_used_is_refused_with_the_place(expression: str, at: int, reason: str) -> None:
    with pytest.raises(SqlError) as refused:
        parse_sql(expression)
    assert refused.value.at == at
    assert reason in refused.value.reason
    assert refused.value.remark == f"{refused.value.reason}, at character {at + 1} of the SQL92 expression"
    assert isinstance(refused.value, LocalProtocolError)


@pytest.mark.parametrize(
    "expression",
    [
        "(" * DEPTH_MAX + "a > 1" + ")" * DEPTH_MAX,
        "NOT " * (DEPTH_MAX - 1) + "(a > 1)",
        "NOT (" * (DEPTH_MAX // 2) + "a > 1" + ")" * (DEPTH_MAX // 2),
        "a > " + "+" * DEPTH_MAX + "1",
    ],
)
def test_expression_may_have_as_many_levels_as_the_limit_says(expression: str) -> None:
    parse_sql(expression)
    with pytest.raises(SqlError, match=f"nested more than {DEPTH_MAX} levels"):
        parse_sql(f"({expression})")


def test_canonical_text_that_is_nested_too_deeply_is_refused_when_it_is_declared() -> None:
    """Each NOT has parentheses there. The broker parses this form."""
    expression = "NOT " * 18 + "(a = 1)"
    parse_sql(expression)
    with pytest.raises(SqlError, match="nested more than"):
        canonical_sql(expression)


def test_first_error_ends_the_parser_however_long_the_expression_is() -> None:
    with pytest.raises(SqlError) as refused:
        parse_sql("=" * 30_000 + "?")
    assert refused.value.at == 0, "the character that begins no word was not reached"


@pytest.mark.parametrize(
    ("expression", "count"),
    [("a = 1", 1), ("a = 1 AND b = 2 OR NOT (c IN ('x', 'y'))", 3), ("(a = 1 OR b = 1) IS NULL", 2), ("a IS NULL", 1), ("TRUE", 1)],
)
def test_comparisons_are_counted(expression: str, count: int) -> None:
    assert count_comparisons(parse_sql(expression)) == count


def test_long_text_is_no_number() -> None:
    assert truth("a > 1", {"a": "9" * 64}) is True
    assert truth("a > 1", {"a": "9" * 65}) is None


def test_error_shows_the_place_with_a_caret() -> None:
    with pytest.raises(SqlError) as refused:
        parse_sql("amount > 100 AND region IN ('eu', 'uk') AND\nprice >> 5 AND note IS NOT NULL")
    line, caret = str(refused.value).split("\n")
    assert line == "… 0 AND region IN ('eu', 'uk') AND price >> 5 AND note IS NOT  …"
    assert line[caret.index("^")] == ">"
    assert line[caret.index("^") - 1] == ">"


@given(conditions)
def test_canonical_text_of_every_condition_is_read_as_that_condition(condition: Condition) -> None:
    assert parse_sql(str(condition)) == condition


@given(conditions, messages)
def test_compiled_condition_equals_its_interpretation(condition: Condition, message: dict[str, str]) -> None:
    assert passes(str(condition), message) is (interpret(condition, message) is True)


@given(st.text(st.sampled_from("ab'()=<>-+.,/*; 0159eEL\n\x00ANDORINTSULé"), max_size=30))
def test_any_text_is_a_condition_or_is_refused(text: str) -> None:
    try:
        canonical = str(parse_sql(text))
    except SqlError:
        return
    assert str(parse_sql(canonical)) == canonical


@given(conditions, st.binary(max_size=40))
def test_predicates_never_raise(condition: Condition, properties: bytes) -> None:
    assert compile_sql(condition)(b"\x02" + properties) in (True, False)


def interpret(condition: Condition, message: Mapping[str, str]) -> bool | None:
    """Return the value of a condition by the definitions of docs/guide.md, one by one."""
    match condition:
        case Boolean(value):
            return value
        case Not(inner):
            return negation(interpret(inner, message))
        case And(found):
            values = [interpret(each, message) for each in found]
            return False if False in values else None if None in values else True
        case Or(found):
            values = [interpret(each, message) for each in found]
            return True if True in values else None if None in values else False
        case IsNull(PropertyName(name), negated):
            return (name not in message) is not negated
        case IsNull(inner, negated):
            return (interpret(inner, message) is None) is not negated
        case In(PropertyName(name), listed, negated):
            return None if name not in message else (message[name] in listed) is not negated
        case Contains(PropertyName(name), search, text, negated):
            if name not in message:
                return False
            value = message[name]
            found = {"CONTAINS": text in value, "STARTSWITH": value.startswith(text), "ENDSWITH": value.endswith(text)}[search]
            return found is not negated
        case Between(value, low, high, negated):
            inside = interpret(And((Comparison(value, ">=", low), Comparison(value, "<=", high))), message)
            return negation(inside) if negated else inside
        case Comparison(left, ordering, right):
            return compare(left, ordering, right, message)


def negation(value: bool | None) -> bool | None:
    return None if value is None else not value


def compare(left: Value, ordering: str, right: Value, message: Mapping[str, str]) -> bool | None:
    one, other = (message.get(each.name) if isinstance(each, PropertyName) else each.value for each in (left, right))
    if one is None or other is None:
        return None
    if isinstance(left, Boolean) or isinstance(right, Boolean):
        one, other = str(one).lower() == "true", str(other).lower() == "true"
    elif isinstance(left, Number) or isinstance(right, Number) or ordering not in ("=", "<>"):
        numbers = [each if not isinstance(each, str) else number_of(each) for each in (one, other)]
        if None in numbers:
            return None
        one, other = numbers  # type: ignore[assignment]
    if ordering == "=":
        return one == other
    if ordering == "<>":
        return one != other
    return {"<": one < other, "<=": one <= other, ">": one > other, ">=": one >= other}[ordering]  # type: ignore[operator]


def number_of(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", text, re.ASCII) else None
