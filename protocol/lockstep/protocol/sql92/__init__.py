"""Subscriptions by SQL92: conditions on the properties of a message. RocketMQ: SqlFilter, SelectorParser.

    amount > 100 AND region IN ('eu', 'uk') AND note IS NOT NULL

A property is a text or is missing. A condition is true, false or unknown (three-valued logic of SQL), and a message passes if it is
true. docs/guide.md has the operators, and what differs from those of RocketMQ.
"""

from lockstep.protocol.sql92.nodes import count_comparisons
from lockstep.protocol.sql92.parser import canonical_sql, parse_sql
from lockstep.protocol.sql92.predicate import SqlPredicate, compile_sql
from lockstep.protocol.sql92.tokens import SqlError, can_be_named

__all__ = ["SqlError", "SqlPredicate", "can_be_named", "canonical_sql", "compile_sql", "count_comparisons", "parse_sql"]
