"""The page of a topic's messages as they come."""

from collections.abc import Mapping
from typing import Any

from lockstep.dashboard.messages import MessageRow, Messages
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.messages.find import Criteria
from lockstep.operations.watch.live_tail import READERS_MAX, ROWS_MAX, LiveTails
from lockstep.protocol.errors import LockstepError
from lockstep.runtime.daemon import Tasks


class TailPage:
    """Follows the topics whose page is open. Without bodies none is searched."""

    def __init__(self, tasks: Tasks, messages: Messages) -> None:
        self._messages = messages
        self._tails: LiveTails[MessageRow] = LiveTails(tasks, messages.row)

    async def of_topic(self, admin: AdminClient, topic: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the last messages of a topic that meet the query, and what is left out."""
        wanted = {name: query.get(name, "").strip() for name in ("tag", "key", "body")}
        body = wanted["body"] if self._messages.bodies else ""
        criteria = Criteria(tags=wanted["tag"] or "*", sharding_key=wanted["key"] or None, body=body or None)
        tail, error = None, None
        try:
            tail = await self._tails.look(admin, topic, criteria)
            if tail is None:
                error = f"{READERS_MAX} topics and filters are looked at already, which is the most at a time: close another page"
        except LockstepError as failure:
            error = str(failure)
        return {
            "topic": topic,
            "wanted": wanted,
            "bodies": self._messages.bodies,
            "filtered": criteria != Criteria(),
            "tail": tail,
            "missing": tail is not None and tail.missing,
            "error": error,
            "rows_max": ROWS_MAX,
        }
