"""What a consumer subscribes to in a topic: tags, or a condition on properties."""

from dataclasses import dataclass

from lockstep.protocol.bodies import SQL92, Subscription
from lockstep.protocol.sql92 import SqlError, canonical_sql
from lockstep.protocol.tags import EXPRESSION_LENGTH_MAX, MATCH_ALL, TagFilter


@dataclass(frozen=True, slots=True)
class SqlExpression:
    """A condition on the properties of messages, as `sql` returns it."""

    condition: str
    """In its canonical form."""

    def __str__(self) -> str:
        return self.condition


Expression = str | SqlExpression
"""Tags, or a condition on properties."""


def sql(condition: str) -> SqlExpression:
    """Return a subscription to the messages whose properties meet an SQL92 condition. The broker evaluates it.

        consumer.subscribe("orders", sql("amount > 100 AND region IN ('eu', 'uk')"))

    Raises:
        SqlError: The condition is invalid, or has more than 8,192 characters, as it is or in the canonical form that the broker receives.
            Its text shows the place.
    """
    if len(condition) <= EXPRESSION_LENGTH_MAX:
        declared = canonical_sql(condition)
        if len(declared) <= EXPRESSION_LENGTH_MAX:
            return SqlExpression(declared)
        reason = f"the condition has {len(declared)} characters in its canonical form: at most {EXPRESSION_LENGTH_MAX}"
        raise SqlError(declared, EXPRESSION_LENGTH_MAX, reason)
    reason = f"the condition has {len(condition)} characters: at most {EXPRESSION_LENGTH_MAX}"
    raise SqlError(condition, EXPRESSION_LENGTH_MAX, reason)


def subscription_of(topic: str, expression: Expression, sub_version: int = 0) -> Subscription:
    """Return the subscription that HEART_BEAT declares."""
    if isinstance(expression, SqlExpression):
        return Subscription(topic, expression.condition, SQL92, sub_version)
    return Subscription(topic, expression, sub_version=sub_version)


def tag_filter_of(expression: Expression) -> TagFilter:
    """Return what the client checks of messages that the broker has filtered: their tags, of which the broker compares only hashes."""
    return MATCH_ALL if isinstance(expression, SqlExpression) else TagFilter.parse(expression)
