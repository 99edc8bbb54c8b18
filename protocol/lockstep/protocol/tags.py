"""Tags: their hash in the consume queue, and subscription expressions `a || b`. RocketMQ: FilterAPI, MessageExtBrokerInner."""

import re
from dataclasses import dataclass
from functools import lru_cache

from lockstep.protocol.errors import LocalProtocolError

ALL = "*"

_LIST_SIGNS = re.compile(r"[\s,;&|]")
EXPRESSION_LENGTH_MAX = 8_192
"""Characters of an expression: some hundred tags. RocketMQ has no limit of its own, only that of a frame."""


def java_string_hash(text: str) -> int:
    """Java's String.hashCode: h = 31·h + UTF-16 unit, wrapped to int32."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(units), 2):
        value = (31 * value + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value


@lru_cache(maxsize=4096)
def tags_code(tag: str | None) -> int:
    """What the consume queue's entry carries: the tag's hash as int32, 0 without a tag."""
    return java_string_hash(tag) if tag else 0


@dataclass(frozen=True, slots=True)
class TagFilter:
    """A parsed tag expression. The broker compares hashes, the client then compares strings. RocketMQ: SubscriptionData."""

    all: bool
    tags: frozenset[str]
    hashes: frozenset[int]
    """The broker's side: a message passes whose tag only shares the hash."""

    @classmethod
    def parse(cls, expression: str | None) -> "TagFilter":
        """None, empty and `*` take everything; else the tags between `||`. LocalProtocolError where no tag is left, or far too many are."""
        if expression is not None:
            check_expression(expression)
        text = (expression or "").strip()
        if text in ("", ALL):
            return TAKE_ALL
        tags = frozenset(tags_of(text))
        return cls(False, tags, frozenset(java_string_hash(tag) for tag in tags))

    def looks_mistyped(self) -> tuple[str, ...]:
        """Tags with a blank or a sign that people write between tags ("a, b"). They are legal, RocketMQ sends them, and hardly meant."""
        return tuple(sorted(filter(_LIST_SIGNS.search, self.tags)))

    def matches_tag(self, tag: str | None) -> bool:
        """The client's side: exact. A message without a tag is dropped where tags are asked for."""
        return self.all or tag in self.tags


def tags_of(expression: str) -> set[str]:
    """The tags between `||`, of an expression that does not take everything. LocalProtocolError where it names none."""
    tags = {tag for part in expression.split("||") if (tag := part.strip())}
    if not tags:
        raise LocalProtocolError(f"subscription {expression[:80]!r} names no tag: expected `*` or `tag || tag`")
    return tags


TAKE_ALL = TagFilter(True, frozenset(), frozenset())


def check_expression(expression: str) -> None:
    """LocalProtocolError for a subscription expression, of whatever type, that is too long."""
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise LocalProtocolError(f"the subscription has {len(expression)} characters: at most {EXPRESSION_LENGTH_MAX}")
