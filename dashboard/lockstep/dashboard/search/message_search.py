"""The pages that search: the messages of a topic, the newest first, and the messages of all topics with a key."""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from lockstep.dashboard.messages import Messages
from lockstep.dashboard.search.searches import BusyError, Searches
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.messages.find import OFFSET_MAX, Criteria, Found, check_key, find_key, format_positions, parse_positions
from lockstep.operations.messages.newest_first import parse_place
from lockstep.operations.messages.topic_search import TopicSearchLimits, find_in_topic
from lockstep.operations.progress import SearchProgress
from lockstep.operations.targets import parse_period, parse_queue
from lockstep.protocol.errors import ConfigError, LocalProtocolError, LockstepError, RequestTimeoutError
from lockstep.protocol.headers.offsets import TIMESTAMP_MAX
from lockstep.protocol.messages.properties import check_text
from lockstep.protocol.tags import TagFilter

ROWS = 50
LIMITS = TopicSearchLimits(seconds=3.0, messages=20_000, bytes=8 << 20, patience_s=1.5)
"""How much one page searches. Then it shows what was found, how far the search came, and where it goes on."""
KEY_PATIENCE_S = 2.5
"""After what a broker that does not respond is left out of a search by message key, in which each response may take a second."""
TOPIC_FIELDS = ("tag", "key", "body", "message_key", "queue", "offset", "since", "until")
KEY_FIELDS = ("message_key", "topic", "since", "until")
FROM = "from"
"""The parameter of the link to older messages."""


class MessageSearch:
    """Searches for pages. Without bodies none is searched."""

    def __init__(self, admin: AdminClient, messages: Messages, searches: Searches) -> None:
        self._admin = admin
        self._messages = messages
        self._searches = searches

    async def of_topic(self, topic: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the newest messages of a topic that meet the query, how far the search came, and a link to older ones."""
        wanted = _wanted(query, TOPIC_FIELDS)
        values = {"topic": topic, "bodies": self._messages.bodies}
        return {**values, **await self._searched(wanted, topic, query.get(FROM, ""))}

    async def by_key(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the newest messages with a key in all topics, or in one, as `of_topic` does. Without a key nothing is searched."""
        wanted = _wanted(query, KEY_FIELDS)
        if not wanted["message_key"]:
            return {**self._values(wanted, None, None), "asked": False}
        return {**await self._searched(wanted, wanted["topic"] or None, query.get(FROM, "")), "asked": True}

    async def _searched(self, wanted: Mapping[str, str], topic: str | None, after: str) -> dict[str, Any]:
        by_key = wanted["message_key"]
        found = Found(ROWS, SearchProgress(self._admin.host.clock, "bytes" if by_key else "messages"))
        error: LockstepError | None = None
        try:
            criteria = self._criteria(wanted, topic)
            if by_key:
                check_key("message key", by_key)
                positions = parse_positions(after) if after else None
                async with self._searches.turn():
                    await self._find_key(found, by_key, criteria, positions)
            elif topic is not None:
                before = parse_place(after) if after else None
                async with self._searches.turn():
                    await find_in_topic(self._admin, found, topic, criteria, before=before, limits=LIMITS)
        except LockstepError as failure:
            error = failure
        return self._values(wanted, found, error)

    def _criteria(self, wanted: Mapping[str, str], topic: str | None) -> Criteria:
        """Return what messages are wanted. Raise ConfigError or LocalProtocolError for values that nothing can meet."""
        since_ms, until_ms = parse_period(wanted["since"] or None, wanted["until"] or None, self._admin.host.clock.wall_ms())
        tags, key, queue = wanted.get("tag", ""), wanted.get("key", ""), wanted.get("queue", "")
        try:
            TagFilter.parse(tags)
        except LocalProtocolError as error:
            raise ConfigError(f"tag: {error}") from None
        if key:
            check_text("sharding key", key)
        return Criteria(
            topic,
            begin_ms=since_ms or 0,
            end_ms=TIMESTAMP_MAX if until_ms is None else until_ms,
            tags=tags or "*",
            sharding_key=key or None,
            body=wanted.get("body") or None if self._messages.bodies else None,
            queue=parse_queue(queue) if queue else None,
            offset_max=_offset(wanted.get("offset", "")),
        )

    async def _find_key(self, found: Found, key: str, criteria: Criteria, positions: Mapping[str, int | None] | None) -> None:
        try:
            async with asyncio.timeout(LIMITS.seconds):
                if criteria.topic is not None:
                    await self._admin.route(criteria.topic)  # a misspelt name is reported before all logs are searched
                await find_key(self._admin, found, key, criteria, positions=positions, patience_s=KEY_PATIENCE_S)
        except RequestTimeoutError:
            raise  # of a nameserver
        except TimeoutError:
            found.ended_early = True
        found.older = format_positions(found.positions) or None

    def _values(self, wanted: Mapping[str, str], found: Found | None, error: LockstepError | None) -> dict[str, Any]:
        older = None if found is None else found.older
        given = {name: value for name, value in wanted.items() if value}
        return {
            "wanted": wanted,
            "rows": [] if found is None else [self._messages.row(each) for each in found.messages],
            "error": None if error is None else str(error),
            "busy": isinstance(error, BusyError),
            "failed": {} if found is None else found.failed,
            "searched": "" if found is None else found.progress.describe(),
            "ended_early": found is not None and found.ended_early,
            "unread_bytes": 0 if found is None else found.unread_bytes,
            "unlooked": 0 if found is None else found.unlooked,
            "older": None if older is None else "?" + urlencode({**given, FROM: older}, quote_via=quote, safe=""),
        }


def _wanted(query: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: query.get(name, "").strip() for name in names}


def _offset(text: str) -> int | None:
    """Return the offset of a field, None if it is empty. Raise ConfigError for another text."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= OFFSET_MAX):
        raise ConfigError(f"offset {text[:40]!r}: expected a whole number, as in 1500")
    return int(text)
