"""Conditions as functions of a record's properties. They decode nothing, and never raise."""

import operator
import re
from collections.abc import Callable
from typing import Any

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
    Text,
    Value,
)
from lockstep.protocol.sql92.parser import INTEGER_DIGITS_MAX

Truth = bool | None
"""True, false, or unknown."""
SqlPredicate = Callable[[bytes], bool]
"""Returns whether a message passes. It gets the properties as they are stored, after one VALUE_END."""
Evaluate = Callable[[bytes], Truth]

NUMBER_BYTES_MAX = 64
"""A longer text is no number: a property may have thousands of digits."""
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def compile_sql(condition: Condition) -> SqlPredicate:
    """Return the predicate of a condition."""
    evaluate = _evaluator(condition)
    return lambda properties: evaluate(properties) is True


def _evaluator(condition: Condition) -> Evaluate:
    match condition:
        case Comparison():
            return _comparison(condition)
        case Between(value, low, high, negated):
            inside = _all([_comparison(Comparison(value, ">=", low)), _comparison(Comparison(value, "<=", high))])
            return _not(inside) if negated else inside
        case In(name, texts, negated):
            read, wanted = _property(name), frozenset(text.encode() for text in texts)
            return lambda properties: None if (value := read(properties)) is None else (value in wanted) is not negated
        case Contains():
            return _contains(condition)
        case IsNull(operand, negated):
            if isinstance(operand, PropertyName):
                mark = _mark(operand)
                return lambda properties: (mark in properties) is negated
            inner = _evaluator(operand)
            return lambda properties: (inner(properties) is None) is not negated
        case Not(inner_condition):
            return _not(_evaluator(inner_condition))
        case And(conditions):
            return _all([_evaluator(each) for each in conditions])
        case Or(conditions):
            return _any([_evaluator(each) for each in conditions])
        case Boolean(value):
            return lambda properties: value


def _all(conditions: list[Evaluate]) -> Evaluate:
    def evaluate(properties: bytes) -> Truth:
        found: Truth = True
        for each in conditions:
            truth = each(properties)
            if truth is False:
                return False
            if truth is None:
                found = None
        return found

    return evaluate


def _any(conditions: list[Evaluate]) -> Evaluate:
    def evaluate(properties: bytes) -> Truth:
        found: Truth = False
        for each in conditions:
            truth = each(properties)
            if truth is True:
                return True
            if truth is None:
                found = None
        return found

    return evaluate


def _not(inner: Evaluate) -> Evaluate:
    return lambda properties: None if (truth := inner(properties)) is None else not truth


def _contains(condition: Contains) -> Evaluate:
    """As in RocketMQ, a missing property makes both forms false: it contains nothing, and it is nothing that could not contain it."""
    read, text, negated = _property(condition.name), condition.text.encode(), condition.negated
    tests: dict[str, Callable[[bytes], bool]] = {
        "CONTAINS": lambda value: text in value,
        "STARTSWITH": lambda value: value.startswith(text),
        "ENDSWITH": lambda value: value.endswith(text),
    }
    test = tests[condition.search]
    return lambda properties: (value := read(properties)) is not None and test(value) is not negated


def _comparison(condition: Comparison) -> Evaluate:
    left, right = condition.left, condition.right
    compare = _COMPARE[condition.ordering]
    if isinstance(left, Number) or isinstance(right, Number) or condition.ordering not in ("=", "<>"):
        return _compare_with(compare, _number(left), _number(right))
    if isinstance(left, Boolean) or isinstance(right, Boolean):
        return _compare_with(compare, _truth(left), _truth(right))
    return _compare_with(compare, _bytes(left), _bytes(right))


def _compare_with(compare: Callable[[Any, Any], bool], left: "PropertyReader", right: "PropertyReader") -> Evaluate:
    if isinstance(right, _Constant):
        other = right.value
        return lambda properties: None if (found := left(properties)) is None else compare(found, other)

    def evaluate(properties: bytes) -> Truth:
        one, other = left(properties), right(properties)
        return None if one is None or other is None else compare(one, other)

    return evaluate


class _Constant:
    """A value that does not depend on the message."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __call__(self, properties: bytes) -> object:
        return self.value


PropertyReader = Callable[[bytes], object | None] | _Constant
"""Returns a value, or None if it is missing or has another type."""


def _mark(name: PropertyName) -> bytes:
    return b"\x02" + name.name.encode() + b"\x01"


def _property(name: PropertyName) -> Callable[[bytes], bytes | None]:
    mark = _mark(name)
    length = len(mark)

    def read(properties: bytes) -> bytes | None:
        at = properties.rfind(mark)  # of a name that occurs twice, the last value counts
        if at < 0:
            return None
        end = properties.find(b"\x02", at + length)
        return properties[at + length :] if end < 0 else properties[at + length : end]

    return read


def _bytes(value: Value) -> PropertyReader:
    if isinstance(value, PropertyName):
        return _property(value)
    assert isinstance(value, Text), "numbers and truth values are not compared as texts"
    return _Constant(value.value.encode())


def _truth(value: Value) -> PropertyReader:
    """Read a truth value as Java's Boolean.parseBoolean: every text but "true", in upper or lower case, is false."""
    if isinstance(value, PropertyName):
        read = _property(value)
        return lambda properties: None if (found := read(properties)) is None else found.lower() == b"true"
    assert isinstance(value, Boolean), "the parser lets nothing else be compared with a truth value"
    return _Constant(value.value)


def _number(value: Value) -> PropertyReader:
    if isinstance(value, Number):
        return _Constant(value.value)
    assert isinstance(value, PropertyName), "the parser lets nothing else be compared with a number"
    read = _property(value)

    def read_number(properties: bytes) -> int | float | None:
        text = read(properties)
        if text is None:
            return None
        if len(text) > NUMBER_BYTES_MAX:
            return None
        if text.isdigit() and len(text) <= INTEGER_DIGITS_MAX:
            return int(text)
        if _NUMBER.fullmatch(text) is None:
            return None
        return int(text) if text[:1] in b"+-" and len(text) <= INTEGER_DIGITS_MAX and text[1:].isdigit() else float(text)

    return read_number
