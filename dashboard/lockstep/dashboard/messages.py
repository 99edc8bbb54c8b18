"""The pages of messages: those of a topic, the newest first, and one with its body and what became of it in each group."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.admin.client import AdminClient
from lockstep.admin.find import Criteria, Found
from lockstep.admin.message_query import brokers_to_search, find_by_id
from lockstep.admin.message_text import message_facts, message_json
from lockstep.admin.search_progress import SearchProgress
from lockstep.admin.targets import parse_period
from lockstep.admin.topic_search import find_in_topic
from lockstep.admin.tracking import MEANINGS, track_json, tracks
from lockstep.protocol.errors import LockstepError, RemoteProtocolError
from lockstep.protocol.headers.offsets import TIMESTAMP_MAX
from lockstep.protocol.message import MessageExt

ROWS = 50
SEARCH_S = 3.0
"""How long one page searches. Then it shows what was found, and how far the search came."""
FIND_S = 10.0
"""How long a message is looked for by the id that its producer gave it, for which logs are searched."""
TRACKS_S = 5.0
BODY_SHOWN = 64 * 1024
"""Bytes of a body that are shown."""
LINE_SHOWN = 120
HEX_SHOWN = 4 * 1024
"""Bytes of a body that is no text."""


@dataclass(frozen=True, slots=True)
class Body:
    """A body as it is shown."""

    kind: str
    """json, text, bytes, hidden or unreadable."""
    shown: str
    size: int
    """Bytes of the whole body."""
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A message in a list, without its body."""

    message_id: str
    broker: str
    queue_id: int
    queue_offset: int
    stored_ms: int
    tags: str | None
    sharding_key: str | None
    keys: tuple[str, ...]
    line: str
    """The beginning of the body."""


class Messages:
    """Reads messages for pages. Without `bodies` it shows none and searches none."""

    def __init__(self, admin: AdminClient, *, bodies: bool = True) -> None:
        self._admin = admin
        self.bodies = bodies

    async def of_topic(self, topic: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the newest messages of a topic that meet the query, and how far the search came."""
        wanted = {name: query.get(name, "").strip() for name in ("tag", "key", "body", "since", "until")}
        clock = self._admin.host.clock
        found = Found(ROWS, SearchProgress(clock, "messages", printed=False))
        error = None
        timed_out = False
        try:
            since_ms, until_ms = parse_period(wanted["since"] or None, wanted["until"] or None, clock.wall_ms())
            criteria = Criteria(
                topic,
                begin_ms=since_ms or 0,
                end_ms=TIMESTAMP_MAX if until_ms is None else until_ms,
                tags=wanted["tag"] or "*",
                sharding_key=wanted["key"] or None,
                body=wanted["body"] or None if self.bodies else None,
            )
            async with asyncio.timeout(SEARCH_S):
                await find_in_topic(self._admin, found, topic, criteria)
        except TimeoutError:
            timed_out = True
        except LockstepError as failure:
            error = str(failure)
        rows = [self.row(each) for each in found.messages]
        return {
            "topic": topic,
            "wanted": wanted,
            "rows": rows,
            "error": error,
            "failed": found.failed,
            "searched": found.progress.describe(),
            "timed_out": timed_out,
            "oldest_ms": found.messages[-1].stored_ms if len(found.messages) >= ROWS else None,
            "bodies": self.bodies,
        }

    async def one(self, message_id: str) -> dict[str, Any]:
        """Return one message, and what became of it in each group."""
        values: dict[str, Any] = {"id": message_id, "message": None, "error": None, "tracks": [], "no_tracks": None, "meanings": MEANINGS}
        try:
            async with asyncio.timeout(FIND_S):
                searched = brokers_to_search(await self._admin.brokers(), None)
                message, broker = await find_by_id(self._admin, searched, message_id, printed=False)
        except TimeoutError:
            return {**values, "error": f"it was not found within {FIND_S:g} s; `lockstep message show` has no such limit"}
        except LockstepError as error:
            return {**values, "error": str(error)}
        values |= {"message": message, "body": self.body(message)}
        try:
            async with asyncio.timeout(TRACKS_S):
                values["tracks"] = await tracks(self._admin, broker, message)
        except TimeoutError:
            values["no_tracks"] = f"the broker did not say within {TRACKS_S:g} s"
        except LockstepError as error:
            values["no_tracks"] = str(error)
        return values

    def document(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return what `lockstep message show --track --json` prints of the message of `one`, and why bodies or tracks are missing."""
        message = values["message"]
        hidden = {"body": None, "bodyError": "this dashboard shows no bodies (--no-bodies)"}
        shown = message_json(message) if self.bodies else message_facts(message) | hidden
        if values["no_tracks"] is not None:
            return shown | {"track": None, "trackError": values["no_tracks"]}
        return shown | {"track": [track_json(each) for each in values["tracks"]]}

    def body(self, message: MessageExt) -> Body:
        """Return the body: JSON laid out, text, or bytes in hexadecimal digits."""
        if not self.bodies:
            return Body("hidden", "", len(message.stored_body))
        try:
            body = bytes(message.body)
        except RemoteProtocolError as error:
            return Body("unreadable", str(error), len(message.stored_body))
        cut = len(body) > BODY_SHOWN
        try:
            text = body[:BODY_SHOWN].decode("utf-8", "ignore" if cut else "strict")
        except UnicodeDecodeError:
            return Body("bytes", body[:HEX_SHOWN].hex(" ", 4), len(body), len(body) > HEX_SHOWN)
        if not cut and text[:1] in ("{", "["):
            try:
                return Body("json", json.dumps(json.loads(text), indent=2, ensure_ascii=False), len(body))
            except (ValueError, RecursionError):
                pass
        return Body("text", text, len(body), cut)

    def row(self, message: MessageExt) -> Row:
        """Return what a list shows of a message."""
        place = message.broker_name, message.queue_id, message.queue_offset
        names = message.tags, message.sharding_key, message.keys
        return Row(message.offset_message_id, *place, message.stored_ms, *names, self.line(message))

    def line(self, message: MessageExt) -> str:
        """Return the beginning of the body, on one line."""
        if not self.bodies:
            return f"{len(message.stored_body)} bytes"
        try:
            body = bytes(message.body[: 4 * LINE_SHOWN])
        except RemoteProtocolError as error:
            return f"({error})"
        text = " ".join(body.decode("utf-8", "backslashreplace").split())
        return text if len(text) <= LINE_SHOWN else text[:LINE_SHOWN] + "…"
