"""Conditions and messages for tests of SQL92 subscriptions: against their definition, and against RocketMQ's own filter."""

from hypothesis import strategies as st

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
)

MESSAGE = {"amount": "150", "price": "5.5", "region": "eu", "paid": "True", "note": "it's", "word": "many", "zero": "-0", "big": "9" * 30}
"""Properties of a message."""
TRUTHS: tuple[tuple[str, bool | None], ...] = (
    ("amount > 100", True),
    ("amount>=150 and amount<=150", True),
    ("amount < 150", False),
    ("100 < amount", True),
    ("amount = 150", True),
    ("amount = 150.0", True),
    ("amount <> 1.5e2", False),
    ("amount = +150L", True),
    ("price > 5", True),
    ("price BETWEEN 5 AND 6", True),
    ("price NOT BETWEEN 5 AND 6", False),
    ("big > 1", True),
    ("zero = 0", True),
    ("zero > -1", True),
    ("amount > price", True),
    ("word > 1", None),
    ("word = 1", None),
    ("missing > 1", None),
    ("missing = 'x'", None),
    ("missing <> 'x'", None),
    ("missing BETWEEN 1 AND 2", None),
    ("region = 'eu'", True),
    ("'eu' = region", True),
    ("region <> 'eu'", False),
    ("region = 'EU'", False),
    ("region = word", False),
    ("note = 'it''s'", True),
    ("region IN ('uk', 'eu')", True),
    ("region NOT IN ('uk', 'eu')", False),
    ("missing IN ('x')", None),
    ("missing NOT IN ('x')", None),
    ("paid = TRUE", True),
    ("paid <> true", False),
    ("paid = FALSE", False),
    ("word = TRUE", False),
    ("word = FALSE", True),
    ("word <> FALSE", False),
    ("missing = TRUE", None),
    ("region IS NULL", False),
    ("region IS NOT NULL", True),
    ("missing IS NULL", True),
    ("missing IS NOT NULL", False),
    ("(missing > 1) IS NULL", True),
    ("word CONTAINS 'an'", True),
    ("word NOT CONTAINS 'an'", False),
    ("word STARTSWITH 'ma'", True),
    ("word ENDSWITH 'ma'", False),
    ("missing CONTAINS 'x'", False),
    ("missing NOT CONTAINS 'x'", False),
    ("missing NOT STARTSWITH 'x'", False),
    ("missing NOT ENDSWITH 'x'", False),
    ("TRUE", True),
    ("FALSE", False),
    ("1 < 2", True),
    ("'a' = 'b'", False),
    ("TRUE = FALSE", False),
    ("missing = 'x' AND region = 'eu'", None),
    ("missing = 'x' AND region = 'uk'", False),
    ("missing = 'x' OR region = 'eu'", True),
    ("missing = 'x' OR region = 'uk'", None),
    ("region = 'uk' OR region = 'eu' AND amount > 1", True),
    ("(region = 'uk' OR region = 'eu') AND amount < 1", False),
    ("NOT (region = 'uk') AND NOT (amount < 1)", True),
    ("amount > 100 -- a comment\n AND /* another */ region = 'eu'", True),
)
"""Conditions, and whether they are true, false or unknown for that message."""

NAMES = st.sampled_from(["a", "b", "c"])
WORDS = st.sampled_from(["", "1", "1.0", "2", "-3", "1e1", "x", "xy", "true", "FALSE", "it's", "é"])
names = NAMES.map(PropertyName)
numbers = st.sampled_from([0, 1, 2, -3, 1.5, 10]).map(Number)
texts = WORDS.map(Text)
ordered_values = names | numbers
comparisons: st.SearchStrategy[Condition] = st.one_of(
    st.builds(Comparison, ordered_values, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), ordered_values),
    st.builds(Comparison, names, st.sampled_from(["=", "<>"]), texts | st.booleans().map(Boolean)),
    st.builds(
        lambda value, bounds, negated: Between(value, Number(min(bounds)), Number(max(bounds)), negated),
        names,
        st.tuples(st.integers(-3, 3), st.integers(-3, 3)),
        st.booleans(),
    ),
    st.builds(
        lambda name, found, negated: In(name, tuple(sorted(found)), negated), names, st.sets(WORDS, min_size=1, max_size=3), st.booleans()
    ),
    st.builds(Contains, names, st.sampled_from(["CONTAINS", "STARTSWITH", "ENDSWITH"]), WORDS.filter(bool), st.booleans()),
    st.builds(IsNull, names, st.booleans()),
    st.booleans().map(Boolean),
)


def joined(conditions: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
    several = st.lists(conditions, min_size=2, max_size=3)
    return st.one_of(
        several.map(lambda found: And(tuple(inner for each in found for inner in (each.conditions if isinstance(each, And) else (each,))))),
        several.map(lambda found: Or(tuple(inner for each in found for inner in (each.conditions if isinstance(each, Or) else (each,))))),
        conditions.map(Not),
        st.builds(IsNull, conditions, st.booleans()),
    )


conditions = st.recursive(comparisons, joined, max_leaves=6)
messages = st.dictionaries(NAMES, WORDS, max_size=3)
