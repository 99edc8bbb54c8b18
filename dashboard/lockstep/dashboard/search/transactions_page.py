"""The page of messages whose transactions are not decided: to a topic, or to all."""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from lockstep.dashboard.search.searches import BusyError, Searches
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.messages.find import format_positions, parse_positions
from lockstep.operations.messages.halves import HalfList
from lockstep.protocol.errors import LockstepError, RequestTimeoutError, TopicNotExistError
from lockstep.protocol.headers.transactions import ListHalvesHeader

ROWS = 50
SECONDS = 3.0
"""How long the brokers of one page are asked. Then it shows what was found, and where the list goes on."""
FIELDS = ("id", "message_key", "producers", "expired")
FROM = "from"
"""The parameter of the link to further messages."""


class TransactionsPage:
    """Lists half messages, those that were sent first."""

    def __init__(self, admin: AdminClient, searches: Searches) -> None:
        self._admin = admin
        self._searches = searches

    async def list(self, topic: str | None, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the half messages to a topic, or to all, that meet the query, and a link to further ones."""
        wanted = {name: query.get(name, "").strip() for name in FIELDS}
        found: HalfList | None = None
        error: LockstepError | None = None
        ended_early = False
        try:
            positions = parse_positions(query[FROM]) if query.get(FROM) else None
            found = HalfList(self._admin, _header(topic, wanted), positions)
            async with self._searches.turn(), asyncio.timeout(SECONDS):
                await found.read(ROWS)
        except RequestTimeoutError as failure:
            error = failure
        except TimeoutError:
            ended_early = True
        except LockstepError as failure:
            error = failure
        further = {} if found is None or error is not None else found.positions
        link = {**{name: value for name, value in wanted.items() if value}, FROM: format_positions(further)}
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
            "further": "?" + urlencode(link, quote_via=quote, safe="") if further else None,
        }


def _header(topic: str | None, wanted: Mapping[str, str]) -> ListHalvesHeader:
    names = wanted["producers"] or None, wanted["id"] or None, wanted["message_key"] or None
    return ListHalvesHeader(topic, *names, bool(wanted["expired"]))
