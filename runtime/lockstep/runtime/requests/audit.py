"""The audit: who has logged in, what was refused for missing rights, and who has changed what. One event each:

| event      | outcome                  | of                                                                                             |
|------------|--------------------------|------------------------------------------------------------------------------------------------|
| `login`    | `done`, `failed`         | a login                                                                                        |
| `request`  | `denied`                 | a request that was refused for missing rights, or for want of a login                          |
| `change`   | `done`, `denied`,        | a request that changes something: its needs say so (Need.changes), or its handler does         |
|            | `failed`                 | (Request.change)                                                                               |
| `left_out` |                          | requests that failed or were denied, above EVENTS_MAX a second and user: how many              |

It has no bodies of messages and no passwords.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import AuthenticationError
from lockstep.protocol.object_text import text_of
from lockstep.runtime.clock import Clock
from lockstep.runtime.logs.audit_file import AuditFile
from lockstep.runtime.logs.log import audit_logger
from lockstep.runtime.logs.log_limit import LoopEventLimit
from lockstep.runtime.requests.request import Request
from lockstep.runtime.security.authenticated_user import AccessDeniedError, LoginRefusedError

OFF, STDOUT = "off", "stdout"
"""Targets of the audit that are no file. `stdout`: the log, wherever that is written."""
VALUE_LENGTH_MAX = 4_000
"""The longest JSON of a value before or after a change. A longer one is cut, and is a text then."""

AuditFacts = Mapping[str, object]
AuditWriter = Callable[[AuditFacts], bool]
"""Writes one event. Returns False if it was dropped."""


class RequestAudit:
    """The audit of one server."""

    def __init__(self, server: str, write: AuditWriter | None = None, on_hangup: Callable[[], None] | None = None) -> None:
        """`server` is its name in each event. Without `write` refusals and failed logins are counted, and nothing else. `on_hangup`: what
        SIGHUP does."""
        self.on_hangup = on_hangup
        self._server = server
        self._write = write
        self._limit = LoopEventLimit(self._left_out)
        self.denied: Counter[str] = Counter()
        """Requests that were refused for missing rights, by user."""
        self.failed_logins: Counter[str] = Counter()
        """By user; those of unknown users by an empty text."""
        self.dropped = 0
        """Events that could not be written."""

    @property
    def is_written(self) -> bool:
        """Return whether events are written."""
        return self._write is not None

    def logged_in(self, user: str, peer: str) -> None:
        """Note a login."""
        self._add("login", user, peer=peer, outcome="done")

    def login_failed(self, user: str, peer: str, reason: str) -> None:
        """Note a login that was refused. `user`: who was named, or an empty text if there is no such user."""
        self.failed_logins[user] += 1
        self._add("login", user, peer=peer, outcome="failed", reason=reason)

    def failed(self, request: Request, error: Exception) -> None:
        """Note that a request has failed. Most failures are nothing for the audit."""
        is_denied = isinstance(error, AccessDeniedError | AuthenticationError)
        if isinstance(error, LoginRefusedError) or (is_denied and request.code == RequestCode.AUTHENTICATE):
            user = error.user if isinstance(error, LoginRefusedError) else ""
            self.failed_logins[user] += 1
            if self._limit.allows(user):
                self._add("login", user, peer=request.endpoint.peer, outcome="failed", reason=text_of(error))
            return
        if is_denied:
            self.denied[request.user.name] += 1
        if self._write is None or not (is_denied or request.change is not None):
            return
        if self._limit.allows(request.user.name):
            self._add_request(request, "denied" if is_denied else "failed", text_of(error), getattr(error, "resource", ""))

    def done(self, request: Request, response: Command) -> None:
        """Note that a request which changes something was carried out, also one that gets no response."""
        if self._write is not None:
            is_done = response.code == ResponseCode.SUCCESS
            self._add_request(request, "done" if is_done else "failed", None if is_done else response.remark)

    def _add_request(self, request: Request, outcome: str, reason: str | None, resource: str = "") -> None:
        change = request.change
        facts = {"reason": reason}
        if change is not None:
            resource = change.resource or resource
            facts |= {"before": _cut(change.before), "after": _cut(change.after)}
        kept = {key: value for key, value in facts.items() if value is not None}
        place = {"peer": request.endpoint.peer, "request": _name(request.code), "resource": _cut(resource)}
        self._add("request" if change is None else "change", request.user.name, **place, outcome=outcome, **kept)

    def _left_out(self, user: str, count: int) -> None:
        self._add("left_out", user, count=count)

    def _add(self, event: str, user: str, **facts: object) -> None:
        if self._write is not None and not self._write({"event": event, "server": self._server, "user": user or None, **facts}):
            self.dropped += 1


def _name(code: int) -> str:
    try:
        return RequestCode(code).name
    except ValueError:
        return str(code)


def _cut(value: object) -> Any:
    text = json.dumps(value, default=str)
    return value if len(text) <= VALUE_LENGTH_MAX else f"{text[:VALUE_LENGTH_MAX]}…"


def to_log(facts: AuditFacts) -> bool:
    """Write an event to the log, whatever its level is."""
    rest: dict[str, Any] = {key: value for key, value in facts.items() if key != "event"}
    audit_logger().info(str(facts["event"]), **rest)
    return True


def to_file(file: AuditFile, clock: Clock) -> AuditWriter:
    """Return what appends events to a file, as lines of JSON in ASCII, each with its time first."""

    def write(facts: AuditFacts) -> bool:
        time = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        return file.append(json.dumps({"time": time, **facts}, default=str).encode())

    return write
