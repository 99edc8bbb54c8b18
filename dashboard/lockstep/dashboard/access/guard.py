"""The checks before every page: who may request it, and what a browser may do with the response. An ASGI middleware.

Whose request it is, `login.py` finds out afterwards. A web page from elsewhere, in a browser on this machine, reads nothing, also without
logins: the Host of a request must be an address, `localhost` or a name from the
settings, because a page could have pointed its own name at this machine (DNS rebinding). Such a page could still have its pictures, frames
or scripts begin searches of the brokers' logs, without reading the responses: a browser reports that by Sec-Fetch-Site, and is refused. A
link from elsewhere is followed.

It serves a limited number of requests at once, so that many viewers cost it no more memory than that. The probe `/livez` is not among them,
nor are logins, which have a limit of their own.

Nothing can be changed, unless that is allowed. A form, also that of a login, must come from one of the dashboard's own pages, as the
browser says: Sec-Fetch-Site, or Origin where it does not send that.
"""

from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lockstep.runtime.connections.http_host import is_own_host

HEADERS = (
    (b"content-security-policy", b"default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""On every response. Pages have no script and no style but those of their own files."""
READING = ("GET", "HEAD")
REQUESTS_MAX = 64
BUSY = f"this dashboard serves at most {REQUESTS_MAX} requests at once, and they are all in use: ask again in a second"
PROBE, LOGIN, LOGOUT = "/livez", "/login", "/logout"


class Guard:
    """Passes a request on, or refuses it in one sentence."""

    def __init__(self, app: ASGIApp, names: Iterable[str] = (), *, changes: bool = False, login: bool = False) -> None:
        """`names`: own names, besides addresses and localhost. With `changes` forms of own pages are accepted, with `login` those of the
        login and the logout."""
        self._app = app
        self._names = tuple(names)
        self._changes = changes
        self._forms = (LOGIN, LOGOUT) if login else ()
        self._serving = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # the dashboard has no WebSocket, and its host runs the lifespan
        refusal = self._refusal(scope)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        is_apart = _path(scope) in (PROBE, LOGIN)
        if refusal is None and not is_apart and self._serving >= REQUESTS_MAX:
            refusal = 503, BUSY
        if refusal is not None:
            await _refuse(send_guarded, *refusal)
            return
        self._serving += not is_apart
        try:
            await self._app(scope, receive, send_guarded)
        finally:
            self._serving -= not is_apart

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Return the status and the reason if the request is refused."""
        hosts = _fields(scope, b"host")
        if len(hosts) != 1:
            return 400, "expected one Host"
        if not is_own_host(hosts[0], self._names):
            return 421, f"host {hosts[0][:80]!r} is not a name of this dashboard: use its address, or start it with --host-name"
        method = scope["method"]
        if method in READING:
            return (
                (403, "a page of another site has asked for this: open it as a page of its own")
                if _is_part_of_another_site(scope)
                else None
            )
        if method != "POST" or not (self._changes or _path(scope) in self._forms):
            return 405, f"{method[:20]}: expected GET, nothing can be changed here" + ("" if self._changes else " without --allow-changes")
        if not _is_own_form(scope, hosts[0]):
            return 403, "the form is not from a page of this dashboard: nothing was changed"
        return None


async def _refuse(send: Send, status: int, reason: str) -> None:
    body = reason.encode() + b"\n"
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body))]
    headers += [(b"retry-after", b"1")] if status == 503 else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _path(scope: Scope) -> str:
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    return path


def _fields(scope: Scope, wanted: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name == wanted]


def _is_part_of_another_site(scope: Scope) -> bool:
    """Return whether the browser says that it reads this for a page of another origin, as its picture, script or frame."""
    site, mode, kind = (_fields(scope, b"sec-fetch-" + name) for name in (b"site", b"mode", b"dest"))
    return site not in ([], ["same-origin"], ["none"]) and (mode != ["navigate"] or kind not in ([], ["document"]))


def _is_own_form(scope: Scope, host: str) -> bool:
    """Return whether the browser says that a page of this host has sent the request."""
    if site := _fields(scope, b"sec-fetch-site"):
        return site == ["same-origin"]
    # Browsers send that field only to https and to this machine.
    return [each.partition("://")[2].lower() for each in _fields(scope, b"origin")] == [host.lower()]
