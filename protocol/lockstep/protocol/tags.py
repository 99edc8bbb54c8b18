"""Tags: their hash in the consume queue, and subscription expressions `a || b`. RocketMQ: FilterAPI, MessageExtBrokerInner."""

from dataclasses import dataclass
from functools import lru_cache

from lockstep.protocol.errors import LocalProtocolError

ALL = "*"


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

    @classmethod
    def parse(cls, expression: str | None) -> "TagFilter":
        """None, empty and `*` take everything; else the tags between `||`. Raises LocalProtocolError where no tag is left (`||`)."""
        text = (expression or "").strip()
        if text in ("", ALL):
            return TAKE_ALL
        tags = frozenset(tag for tag in (part.strip() for part in text.split("||")) if tag)
        if not tags:
            raise LocalProtocolError(f"subscription {text[:80]!r} names no tag: expected `*` or `tag || tag`")
        return cls(False, tags, frozenset(java_string_hash(tag) for tag in tags))

    def matches_hash(self, code: int) -> bool:
        """The broker's side: may pass a message whose tag only shares the hash."""
        return self.all or code in self.hashes

    def matches_tag(self, tag: str | None) -> bool:
        """The client's side: exact. A message without a tag is dropped where tags are asked for."""
        return self.all or tag in self.tags


TAKE_ALL = TagFilter(True, frozenset(), frozenset())
