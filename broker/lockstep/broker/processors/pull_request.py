"""One pull on its way to its response, the page that it asks for, and its filter."""

from dataclasses import dataclass
from functools import lru_cache

from lockstep.broker.groups.tables.lock_table import QueueKey
from lockstep.broker.groups.tables.park_table import ParkFilter
from lockstep.broker.store.queues.predicates import Keep
from lockstep.protocol.bodies import SQL92, TAG
from lockstep.protocol.errors import BrokerSystemError, LocalProtocolError, SubscriptionParseError
from lockstep.protocol.headers.pull import SUSPEND, PullHeader
from lockstep.protocol.sql92 import SqlError, compile_sql, count_comparisons, parse_sql
from lockstep.protocol.tags import TagFilter, check_expression
from lockstep.runtime.requests.request import Request

NATIVE_COUNT_MAX = 1_000
NATIVE_BYTES_MAX = 1 << 20
"""Messages and bytes in one response to a native client at most: so many are decoded in a millisecond."""
CLASSIC_COUNT_MAX = 32
CLASSIC_BYTES_MAX = 256 << 10
"""RocketMQ: maxTransferCountOnMessageInMemory, maxTransferBytesOnMessageInMemory."""


class Pull:
    """A pull from its request to its response. `offset` moves ahead of the request's while messages come that do not match its filter."""

    __slots__ = ("commit_seen", "deadline_ms", "due_ms", "failure", "fresh", "gap", "hidden", "is_counted", "late_ms", "offset", "request")

    def __init__(self, request: Request) -> None:
        header: PullHeader = request.header
        self.request = request
        self.offset = header.queue_offset
        self.fresh = True
        """Whether it was not served yet: filtered messages get a response at once."""
        self.commit_seen = False
        """Whether its commit bit was obeyed or refused. A pull is checked again after it has waited."""
        self.deadline_ms: int | None = None
        """When the pull is due, by the monotonic clock; None if it must not be held."""
        self.is_counted = False
        """Whether it was counted towards the limit of its user's requests."""
        self.late_ms: int | None = None
        """Until when it waits at most because its user is above a limit; None: it has not waited for that."""
        self.due_ms = 0
        """When it is tried again, if it waits for that."""
        self.gap: tuple[int, int] | None = None
        self.hidden: ParkFilter | None = None
        """What parked keys hid from the last read."""
        self.failure: Exception | None = None
        """Why the pull can't be served; it fails with this error."""

    @property
    def queue(self) -> QueueKey:
        """Return the group, the topic and the queue id."""
        header: PullHeader = self.request.header
        return header.consumer_group, header.topic, header.queue_id

    @property
    def suspends(self) -> bool:
        """Return whether its client lets it wait for messages. If not, an empty response means that there are none."""
        header: PullHeader = self.request.header
        return bool(header.sys_flag & SUSPEND) and header.suspend_timeout_millis > 0

    @property
    def inspects(self) -> bool:
        """Return whether an operator looks at parked messages of the group: no member receives them, so the pull is neither fenced nor
        counted, and tells no client of a reset."""
        header: PullHeader = self.request.header
        return header.key is not None and header.epoch is None


def page_of(header: PullHeader, *, native: bool = True) -> tuple[int, int]:
    """Return how many messages and bytes one response carries at most: the client's values within the broker's limits.

    Those of RocketMQ 5 name bytes too, mostly 2³¹ − 1.
    """
    if not native or header.max_msg_bytes is None:
        size = CLASSIC_BYTES_MAX if header.max_msg_bytes is None else max(1, min(header.max_msg_bytes, CLASSIC_BYTES_MAX))
        return max(1, min(header.max_msg_nums, CLASSIC_COUNT_MAX)), size
    return max(1, min(header.max_msg_nums, NATIVE_COUNT_MAX)), max(1, min(header.max_msg_bytes, NATIVE_BYTES_MAX))


EXAMINE_BYTES = 1 << 10
COMPARISON_BYTES = 512
"""What it costs to examine a record by a predicate, and for each comparison of it, as bytes of responses."""
PARSE_BYTES = 128
"""What it costs to parse a character of an SQL92 expression, as bytes of responses."""


@dataclass(frozen=True, slots=True)
class Filter:
    """What a subscription lets pass."""

    tag_hashes: frozenset[int] | None = None
    """None: every tag."""
    keep: Keep | None = None
    examine_bytes: int = 0
    """What it costs to examine one record."""

    def also(self, keep: Keep) -> "Filter":
        """Return a filter that lets pass what both this one and `keep` let pass."""
        mine = self.keep
        both = keep if mine is None else lambda properties, offset: keep(properties, offset) and mine(properties, offset)
        return Filter(self.tag_hashes, both, self.examine_bytes + EXAMINE_BYTES)


EVERY_MESSAGE = Filter()


def filter_of(kind: str, expression: str | None) -> Filter:
    """Return the filter of an expression. Raise SubscriptionParseError if it is not valid, BrokerSystemError for an unknown type."""
    if kind not in ("", TAG, SQL92):
        raise unsupported_filter(kind)
    found = _parse(kind == SQL92, expression)
    if isinstance(found, str):
        raise SubscriptionParseError(found)
    return found


@lru_cache(maxsize=512)
def _parse(is_sql: bool, expression: str | None) -> Filter | str:
    """Return the filter of an expression, or why it is not valid. Members repeat both with each pull."""
    try:
        if is_sql:
            condition = parse_sql(expression or "")
            cost = EXAMINE_BYTES + COMPARISON_BYTES * count_comparisons(condition)
            matches = compile_sql(condition)
            return Filter(keep=lambda properties, _: matches(properties), examine_bytes=cost)
        parsed = TagFilter.parse(expression)
    except SqlError as error:
        return error.remark
    except LocalProtocolError as error:
        return str(error)
    return EVERY_MESSAGE if parsed.all else Filter(parsed.hashes)


def check_given(kind: str, expression: str | None) -> int:
    """Check the length of an expression that a request brings, and return what it costs to parse it, as bytes of responses.

    Raise SubscriptionParseError if it is too long.
    """
    try:
        check_expression(expression or "")
    except LocalProtocolError as error:
        raise SubscriptionParseError(str(error)) from None
    return PARSE_BYTES * len(expression or "") if kind == SQL92 else 0


def unsupported_filter(kind: str | None) -> BrokerSystemError:
    return BrokerSystemError(f"the broker does not support filters of type {str(kind)[:40]}: use {TAG} or {SQL92}")
