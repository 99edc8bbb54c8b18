"""The page of messages that wait for any delay or until a time of day: of a topic, or of all."""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from lockstep.dashboard.search.searches import BusyError, Searches
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.messages.timers import TimerCriteria, TimerList, format_positions, parse_positions
from lockstep.operations.targets import parse_due
from lockstep.protocol.errors import LockstepError, RequestTimeoutError, TopicNotExistError

ROWS = 50
SECONDS = 3.0
"""How long the brokers of one page are asked. Then it shows what was found, and where the list goes on."""
FIELDS = ("message_key", "key", "before")
FROM = "from"
"""The parameter of the link to later messages."""


class TimersPage:
    """Lists messages that wait, those that are due first."""

    def __init__(self, admin: AdminClient, searches: Searches) -> None:
        self._admin = admin
        self._searches = searches

    async def list(self, topic: str | None, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the messages of a topic, or of all, that meet the query, and a link to later ones."""
        wanted = {name: query.get(name, "").strip() for name in FIELDS}
        found: TimerList | None = None
        error: LockstepError | None = None
        ended_early = False
        try:
            positions = parse_positions(query[FROM]) if query.get(FROM) else None
            found = TimerList(self._admin, self._criteria(topic, wanted), positions)
            async with self._searches.turn(), asyncio.timeout(SECONDS):
                await found.read(ROWS)
        except RequestTimeoutError as failure:
            error = failure
        except TimeoutError:
            ended_early = True
        except LockstepError as failure:
            error = failure
        later = {} if found is None else found.positions
        link = {**{name: value for name, value in wanted.items() if value}, FROM: format_positions(later)}
        return {
            "topic": topic,
            "wanted": wanted,
            "rows": [] if found is None else found.found,
            "now_ms": self._admin.host.clock.wall_ms(),
            "failed": {} if found is None else found.failed,
            "unread": 0 if found is None else found.unread,
            "ended_early": ended_early,
            "error": None if error is None else str(error),
            "busy": isinstance(error, BusyError),
            "missing": isinstance(error, TopicNotExistError),
            "later": "?" + urlencode(link, quote_via=quote, safe="") if later else None,
        }

    def _criteria(self, topic: str | None, wanted: Mapping[str, str]) -> TimerCriteria:
        before = wanted["before"]
        before_ms = parse_due("due before", before, self._admin.host.clock.wall_ms()) if before else None
        return TimerCriteria(topic, before_ms, wanted["message_key"] or None, wanted["key"] or None)
