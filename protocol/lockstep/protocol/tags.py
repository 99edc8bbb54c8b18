"""Tags: their hash in the consume queue, and subscription expressions `a || b`. RocketMQ: FilterAPI, MessageExtBrokerInner."""

import re
from dataclasses import dataclass
from functools import lru_cache

from lockstep.protocol.errors import LocalProtocolError

ALL = "*"

_LIST_SIGNS = re.compile(r"[\s,;&|]")
EXPRESSION_LENGTH_MAX = 8_192
"""The maximum number of characters of an expression: some hundred tags. RocketMQ has no limit of its own, only that of a frame."""


def java_string_hash(text: str) -> int:
    """Compute Java's String.hashCode: h = 31·h + UTF-16 unit, wrapped to int32."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(units), 2):
        value = (31 * value + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value


@lru_cache(maxsize=4096)
def tags_code(tag: str | None) -> int:
    """Return the tag's hash as int32, as in an entry of the consume queue; 0 without a tag."""
    return java_string_hash(tag) if tag else 0


@dataclass(frozen=True, slots=True)
class TagFilter:
    """A parsed tag expression. The broker compares hashes, the client then compares strings. RocketMQ: SubscriptionData."""

    all: bool
    tags: frozenset[str]
    hashes: frozenset[int]
    """The hashes that the broker compares: it also passes a message whose tag only has the same hash."""

    @classmethod
    def parse(cls, expression: str | None) -> "TagFilter":
        """Parse an expression. None, an empty one and `*` match everything; others list tags between `||`.

        Raises LocalProtocolError if the expression has no tag, or is too long.
        """
        if expression is not None:
            check_expression(expression)
        text = (expression or "").strip()
        if text in ("", ALL):
            return MATCH_ALL
        tags = frozenset(parse_tags(text))
        return cls(False, tags, frozenset(java_string_hash(tag) for tag in tags))

    def suspicious_tags(self) -> tuple[str, ...]:
        """Return tags with a blank or a separator that users mistake for `||` ("a, b"). They are legal and RocketMQ sends them, but they
        are hardly intended."""
        return tuple(sorted(filter(_LIST_SIGNS.search, self.tags)))

    def matches_tag(self, tag: str | None) -> bool:
        """Return whether a message matches exactly, as the client checks. A message without a tag does not match a list of tags."""
        return self.all or tag in self.tags


def parse_tags(expression: str) -> set[str]:
    """Return the tags between `||` of an expression that does not match everything. Raise LocalProtocolError if it has none."""
    tags = {tag for part in expression.split("||") if (tag := part.strip())}
    if not tags:
        raise LocalProtocolError(f"subscription {expression[:80]!r} names no tag: expected `*` or `tag || tag`")
    return tags


MATCH_ALL = TagFilter(True, frozenset(), frozenset())


def check_expression(expression: str) -> None:
    """Raise LocalProtocolError for a subscription expression, of whatever type, that is too long."""
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise LocalProtocolError(f"the subscription has {len(expression)} characters: at most {EXPRESSION_LENGTH_MAX}")
