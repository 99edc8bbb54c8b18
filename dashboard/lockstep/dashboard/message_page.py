"""The page of one message: its body, what became of it in each group, and the messages that belong to it."""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

from starlette.responses import PlainTextResponse, Response

from lockstep.dashboard.messages import Messages
from lockstep.dashboard.search.searches import BusyError, Searches
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.messages.find import Found
from lockstep.operations.messages.message_query import brokers_to_search, find_by_id, was_recalled
from lockstep.operations.messages.message_text import message_facts, message_json
from lockstep.operations.messages.message_track import TrackType, track_json, track_text
from lockstep.operations.messages.related_messages import LOOK_MAX, copies_of, find_copies, find_neighbours, origin_of
from lockstep.operations.messages.tracking import tracks
from lockstep.operations.messages.waiting import home_queue, waiting_of
from lockstep.operations.progress import SearchProgress
from lockstep.protocol.bodies import BrokerAddress
from lockstep.protocol.errors import LockstepError, RemoteProtocolError, RequestTimeoutError
from lockstep.protocol.messages.message import MessageExt

T = TypeVar("T")

FIND_S = 10.0
"""How long a message is looked for by the id that its producer gave it, for which logs are searched."""
BROKER_S = 5.0
"""How long the page waits for the broker of the message, which reports its state and its neighbours."""
LATE = f"the broker did not say within {BROKER_S:g} s"
COPIES_S = 3.0
COPIES_MAX = 20
WITH_COPIES = (TrackType.RETRYING, TrackType.DEAD_LETTERED)
NO_BODIES = "this dashboard shows no bodies (--no-bodies)"


class MessagePage:
    """Reads one message for its page, for its JSON, or for the download of its body."""

    def __init__(self, admin: AdminClient, messages: Messages, searches: Searches) -> None:
        self._admin = admin
        self._messages = messages
        self._searches = searches

    async def one(self, message_id: str, *, related: bool = True) -> dict[str, Any]:
        """Return one message and what became of it in each group, and with `related` the messages that belong to it."""
        values: dict[str, Any] = {"id": message_id, "message": None, "error": None, "busy": False, "tracks": [], "no_tracks": None}
        values |= {"meanings": {}, "home": None, "waiting": None, "neighbours": None, "no_neighbours": None, "looked": LOOK_MAX}
        values |= {"recalled": False, "origin": None, "copies": [], "no_copies": None}
        try:
            async with self._searches.turn():
                message, broker = await self._find(message_id)
                values |= {"message": message, "body": self._messages.body(message), "origin": origin_of(message)}
                values |= {"home": home_queue(message), "waiting": waiting_of(message)}
                values |= {"recalled": await was_recalled(self._admin, broker, message)}
                readers = [self._read_tracks, self._read_neighbours] if related else [self._read_tracks]
                await asyncio.gather(*(read(values, message, broker) for read in readers))
                if related and any(each.type in WITH_COPIES for each in values["tracks"]):
                    await self._read_copies(values, message, broker)
        except LockstepError as error:
            values |= {"error": str(error), "busy": isinstance(error, BusyError)}
        return values

    async def _find(self, message_id: str) -> tuple[MessageExt, BrokerAddress]:
        """Return the message and its broker. Raise LockstepError if it was not found."""
        late = f"it was not found within {FIND_S:g} s; `lockstep message show` has no such limit"

        async def found() -> tuple[MessageExt, BrokerAddress]:
            return await find_by_id(self._admin, brokers_to_search(await self._admin.brokers(), None), message_id)

        return await _within(FIND_S, found(), late)

    async def _read_tracks(self, values: dict[str, Any], message: MessageExt, broker: BrokerAddress) -> None:
        try:
            found = await _within(BROKER_S, tracks(self._admin, broker, message), LATE)
            now_ms = self._admin.host.clock.wall_ms()
            values |= {"tracks": found, "now_ms": now_ms, "meanings": {each.group: track_text(each, now_ms) for each in found}}
        except LockstepError as error:
            values["no_tracks"] = str(error)

    async def _read_neighbours(self, values: dict[str, Any], message: MessageExt, broker: BrokerAddress) -> None:
        if message.sharding_key is not None and waiting_of(message) is None:
            try:
                values["neighbours"] = await _within(BROKER_S, find_neighbours(self._admin, broker, message), LATE)
            except LockstepError as error:
                values["no_neighbours"] = str(error)

    async def _read_copies(self, values: dict[str, Any], message: MessageExt, broker: BrokerAddress) -> None:
        found = Found(COPIES_MAX, SearchProgress(self._admin.host.clock))
        try:
            await _within(COPIES_S, find_copies(self._admin, found, broker, message), f"the search for copies ended after {COPIES_S:g} s")
        except LockstepError as error:
            values["no_copies"] = str(error)
        for reason in found.failed.values():
            values["no_copies"] = reason
        values["copies"] = copies_of(found, message)

    def document(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return what `lockstep message show --track --json` prints of the message of `one`, and why bodies or tracks are missing."""
        message = values["message"]
        shown = message_json(message) if self._messages.bodies else message_facts(message) | {"body": None, "bodyError": NO_BODIES}
        shown |= {"recalled": values["recalled"]}
        if values["no_tracks"] is not None:
            return shown | {"track": None, "trackError": values["no_tracks"]}
        return shown | {"track": [track_json(each, values["now_ms"]) for each in values["tracks"]]}

    async def body(self, message_id: str) -> Response:
        """Return the body as a file. 403 if no bodies are shown, 404 if there is no such message, 409 if it can't be decompressed."""
        if not self._messages.bodies:
            return PlainTextResponse(f"{NO_BODIES}\n", 403)
        try:
            async with self._searches.turn():
                message, _ = await self._find(message_id)
            body = bytes(message.body)
        except BusyError as error:
            return PlainTextResponse(f"{error}\n", 503)
        except RemoteProtocolError as error:
            return PlainTextResponse(f"the body can't be read: {error}\n", 409)
        except LockstepError as error:
            return PlainTextResponse(f"{error}\n", 404)
        name = f"attachment; filename={message.offset_message_id}.bin"
        return Response(body, headers={"content-disposition": name, "cache-control": "no-store"}, media_type="application/octet-stream")


async def _within(seconds: float, work: Awaitable[T], late: str) -> T:
    """Return what `work` returns. Raise RequestTimeoutError with the text `late` if it takes longer."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except RequestTimeoutError:
        raise
    except TimeoutError:
        raise RequestTimeoutError(late) from None
