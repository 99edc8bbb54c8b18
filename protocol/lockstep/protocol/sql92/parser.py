"""The grammar of SQL92 conditions. RocketMQ: SelectorParser.jj.

    or          and (OR and)*
    and         equality (AND equality)*
    equality    comparison ((= | <>) comparison | IS [NOT] NULL)*
    comparison  unary ((> | >= | < | <=) unary | [NOT] BETWEEN unary AND unary | [NOT] IN ('…', …)
                       | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) '…')*
    unary       (+ | - | NOT) unary | 'text' | number | TRUE | FALSE | NULL | name | ( or )

NOT binds more strongly than a comparison, so `NOT a = 1` is refused: write `NOT (a = 1)` or `a <> 1`.
"""

from collections.abc import Callable
from typing import NoReturn, cast

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
    Ordering,
    PropertyName,
    Text,
    TextSearch,
    Value,
)
from lockstep.protocol.sql92.tokens import SqlError, Token, tokens

COMPARISONS_MAX = 64
"""Comparisons of one expression. Each is evaluated for every message."""
TEXTS_MAX = 256
"""Texts in the lists of one expression."""
DEPTH_MAX = 32
"""How many levels of parentheses, signs and NOT may be nested."""
INTEGER_DIGITS_MAX = 18

_VALUES = (PropertyName, Text, Number, Boolean)
_OPERANDS = frozenset(("name", "text", "number", "TRUE", "FALSE", "NULL", "+", "-", "("))
"""The words with which a value begins."""
_NESTING = frozenset(("NOT", "+", "-", "("))
"""The words that begin one more level."""


class _Null:
    """The word NULL, which is valid only after IS."""


_NULL = _Null()
Operand = Value | Condition | _Null


def parse_sql(expression: str) -> Condition:
    """Return the condition of an expression; its `str` is canonical. Raise SqlError if it is not valid."""
    return _Parser(expression).parse()


def canonical_sql(expression: str) -> str:
    """Return the canonical text of an expression. Raise SqlError if it is not valid, or nested too deeply in that form."""
    text = str(parse_sql(expression))
    parse_sql(text)
    return text


class _Parser:
    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._source = tokens(expression)
        self._tokens: list[Token] = []
        """Those that were read so far: the first error ends the parser, however long the expression is."""
        self._next = 0
        self._depth = 0
        self._comparisons = self._texts = 0

    def parse(self) -> Condition:
        at = self._token.at
        if self._token.kind == "end":
            self._fail("the expression is empty: write '*' as a tag expression for all messages")
        found = self._condition(self._or(), at)
        if self._token.kind != "end":
            self._fail(f"expected AND, OR or the end, got {self._token}")
        return found

    # ---------------------------------------------------------------------------------------------------------------- words

    @property
    def _token(self) -> Token:
        return self._at(self._next)

    def _at(self, number: int) -> Token:
        """Return a word; the last one if there are fewer."""
        while len(self._tokens) <= number and (not self._tokens or self._tokens[-1].kind != "end"):
            self._tokens.append(next(self._source))
        return self._tokens[min(number, len(self._tokens) - 1)]

    def _take(self, *kinds: str) -> Token | None:
        """Return the next word and go on if it is of one of these kinds, else None."""
        token = self._token
        if token.kind not in kinds:
            return None
        self._next += 1
        return token

    def _need(self, kind: str, what: str) -> Token:
        return self._take(kind) or self._fail(f"expected {what}, got {self._token}")

    def _fail(self, reason: str, at: int | None = None) -> NoReturn:
        raise SqlError(self._expression, self._token.at if at is None else at, reason)

    def _count(self, at: int) -> None:
        self._comparisons += 1
        if self._comparisons > COMPARISONS_MAX:
            self._fail(f"the expression has more than {COMPARISONS_MAX} comparisons", at)

    # --------------------------------------------------------------------------------------------------------------- grammar

    def _or(self) -> Operand:
        return self._joined("OR", self._and, Or)

    def _and(self) -> Operand:
        return self._joined("AND", self._equality, And)

    def _joined(self, word: str, part: Callable[[], Operand], node: type[And] | type[Or]) -> Operand:
        at = self._token.at
        first = part()
        if self._token.kind != word:
            return first
        found = [self._condition(first, at)]
        while self._take(word):
            at = self._token.at
            found.append(self._condition(part(), at))
        flat = [inner for each in found for inner in (each.conditions if isinstance(each, node) else (each,))]
        return node(tuple(flat))

    def _equality(self) -> Operand:
        at = self._token.at
        left = self._comparison()
        while token := self._take("=", "<>", "IS"):
            self._count(token.at)
            if token.kind == "IS":
                negated = self._take("NOT") is not None
                self._need("NULL", "NULL")
                if isinstance(left, Text | Number | _Null):
                    self._fail("IS NULL tests a property or a condition", at)
                left = IsNull(left, negated)
                continue
            right_at = self._token.at
            right = self._comparison()
            left = self._comparable(left, at, token.kind, right, right_at)
        return left

    def _comparison(self) -> Operand:
        at = self._token.at
        left = self._unary()
        while True:
            if token := self._take(">", ">=", "<", "<="):
                self._count(token.at)
                right_at = self._token.at
                left = Comparison(self._number(left, at), cast(Ordering, token.kind), self._number(self._unary(), right_at))
                continue
            negated = self._token.kind == "NOT"
            token = self._at(self._next + negated)
            if token.kind not in ("BETWEEN", "IN", "CONTAINS", "STARTSWITH", "ENDSWITH"):
                return left
            self._next += 1 + negated
            self._count(token.at)
            if token.kind == "BETWEEN":
                left = self._between(left, at, negated)
            elif not isinstance(left, PropertyName):
                self._fail(f"{token.kind} takes a property before it", at)
            elif token.kind == "IN":
                left = self._in(left, negated)
            else:
                text = _text(self._need("text", f"a text in quotes after {token.kind}"))
                if not text:
                    self._fail(f"{token.kind} takes a text that is not empty", self._tokens[self._next - 1].at)
                left = Contains(left, cast(TextSearch, token.kind), text, negated)

    def _between(self, left: Operand, at: int, negated: bool) -> Between:
        low_at = self._token.at
        low = self._number(self._unary(), low_at)
        self._need("AND", "AND and the upper bound of BETWEEN")
        high_at = self._token.at
        high = self._number(self._unary(), high_at)
        if isinstance(low, Number) and isinstance(high, Number) and low.value > high.value:
            self._fail(f"BETWEEN {low} AND {high} is never true: the lower bound comes first", low_at)
        return Between(self._number(left, at), low, high, negated)

    def _in(self, name: PropertyName, negated: bool) -> In:
        self._need("(", "'(' after IN")
        texts = set()
        while True:
            token = self._need("text", "a text in quotes")
            self._texts += 1
            if self._texts > TEXTS_MAX:
                self._fail(f"the expression has more than {TEXTS_MAX} listed texts", token.at)
            texts.add(_text(token))
            if not self._take(","):
                self._need(")", "',' or ')'")
                return In(name, tuple(sorted(texts)), negated)

    def _unary(self) -> Operand:
        token = self._token
        if token.kind not in _NESTING:
            return self._primary(token)
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._fail(f"the expression is nested more than {DEPTH_MAX} levels deep")
        part = self._nested(token)
        self._depth -= 1
        return part

    def _nested(self, token: Token) -> Operand:
        if self._take("NOT"):
            at = self._token.at
            return Not(self._condition(self._unary(), at))
        if self._take("+", "-"):
            at = self._token.at
            operand = self._unary()
            if not isinstance(operand, Number):
                self._fail(f"expected a number after {token.text!r}", at)
            return Number(-operand.value) if token.kind == "-" else operand
        self._take("(")
        inner = self._or()
        self._need(")", "AND, OR or ')'")
        return inner

    def _primary(self, token: Token) -> Operand:
        if self._take("text"):
            return Text(_text(token))
        if self._take("number"):
            return self._read_number(token)
        if self._take("TRUE", "FALSE"):
            return Boolean(token.kind == "TRUE")
        if self._take("NULL"):
            return _NULL
        if self._take("name"):
            return PropertyName(token.text)
        previous = f" after {self._tokens[self._next - 1]}" if self._next else ""
        self._fail(f"expected a property, a number or a text{previous}, got {token}")

    def _read_number(self, token: Token) -> Number:
        digits = token.text.rstrip("lL")
        if digits.isdecimal():
            if len(digits) > INTEGER_DIGITS_MAX:
                self._fail(f"an integer has at most {INTEGER_DIGITS_MAX} digits", token.at)
            return Number(int(digits))
        if len(digits) < len(token.text):
            self._fail("a number that ends in L is an integer", token.at)
        value = float(digits)
        if value == float("inf"):
            self._fail("the number is too large", token.at)
        return Number(value)

    # ----------------------------------------------------------------------------------------------------------------- kinds

    def _condition(self, part: Operand, at: int) -> Condition:
        """Check that a part is a condition."""
        if isinstance(part, PropertyName):
            if self._token.kind in _OPERANDS:
                self._fail(f"expected a comparison after {part} (=, <>, <, <=, >, >=, IS, IN, BETWEEN, CONTAINS …), got {self._token}")
            self._fail(f"{part} is a property, not a condition: write {part} = TRUE, {part} = '…' or {part} IS NOT NULL", at)
        if isinstance(part, Text | Number | _Null):
            self._fail("expected a condition, such as amount > 100", at)
        return part

    def _number(self, part: Operand, at: int) -> Value:
        """Check that a part can be ordered: a property, or a number."""
        if isinstance(part, PropertyName | Number):
            return part
        if isinstance(part, _Null):
            self._fail("NULL is not compared: write IS NULL or IS NOT NULL", at)
        self._fail("only properties and numbers have an order: expected one of them", at)

    def _comparable(self, left: Operand, at: int, ordering: str, right: Operand, right_at: int) -> Comparison:
        for part, place in ((left, at), (right, right_at)):
            if isinstance(part, _Null):
                self._fail("NULL is not compared: write IS NULL or IS NOT NULL", place)
            if not isinstance(part, _VALUES):
                self._fail(f"{ordering} compares values: expected a property, a number, a text, TRUE or FALSE, not a condition", place)
        if not isinstance(left, PropertyName) and not isinstance(right, PropertyName) and type(left) is not type(right):
            self._fail("a number, a text and a truth value are never equal", right_at)
        return Comparison(cast(Value, left), cast(Ordering, ordering), cast(Value, right))


def _text(token: Token) -> str:
    return token.text[1:-1].replace("''", "'")
