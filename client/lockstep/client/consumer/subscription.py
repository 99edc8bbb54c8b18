"""What a consumer subscribes to in a topic: tags, or a condition on properties."""

from dataclasses import dataclass

from lockstep.protocol.bodies import SQL92, Subscription
from lockstep.protocol.sql92 import canonical_sql
from lockstep.protocol.tags import MATCH_ALL, TagFilter, check_expression


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
        LocalProtocolError: The condition is invalid or has more than 8,192 characters. The text of an SqlError shows the place.
    """
    check_expression(condition)
    return SqlExpression(canonical_sql(condition))


def subscription_of(topic: str, expression: Expression, sub_version: int = 0) -> Subscription:
    """Return the subscription that HEART_BEAT declares."""
    if isinstance(expression, SqlExpression):
        return Subscription(topic, expression.condition, SQL92, sub_version)
    return Subscription(topic, expression, sub_version=sub_version)


def tag_filter_of(expression: Expression) -> TagFilter:
    """Return what the client checks of messages that the broker has filtered: their tags, of which the broker compares only hashes."""
    return MATCH_ALL if isinstance(expression, SqlExpression) else TagFilter.parse(expression)
