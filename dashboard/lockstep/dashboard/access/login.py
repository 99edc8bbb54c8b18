"""The login of browsers: a gate before all pages, the page of the login, and the logout.

The cookie is HttpOnly, SameSite=Strict and, by TLS, Secure. Its name has a random part, because browsers send a cookie of a host to all
ports of it, where another dashboard may be.
"""

from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from lockstep.dashboard.access.form_body import FormError, read_form
from lockstep.dashboard.access.guard import LOGIN, LOGOUT, PROBE
from lockstep.dashboard.access.sessions import SESSION, SESSION_S, BrowserSession, Sessions, session_of
from lockstep.dashboard.changes.pages import peer_of
from lockstep.dashboard.documents import refusal, wants_json
from lockstep.dashboard.render import PART, Templates
from lockstep.protocol.errors import AuthenticationError, ConfigError, LockstepError, NoPermissionError
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited

LOGINS_MAX = 16
"""Logins at a time: each that fails takes a second, and no other request waits for it."""
NO_SESSION = "log in first: this page needs a session of the dashboard"
BUSY = f"{LOGINS_MAX} logins are being checked, which is the most at a time: try again in a second"
STATUSES = ((FormError, 400), (ConfigError, 400), (AuthenticationError, 401), (NoPermissionError, 403))
log = get_logger("lockstep.dashboard")


def without_login(app: ASGIApp, session: BrowserSession) -> ASGIApp:
    """Return an application in which all requests have this session."""

    async def passed(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, SESSION: session}, receive, send)

    return passed


class BrowserLogin:
    """Serves the login and the logout, and lets no request without a session pass `gate`."""

    def __init__(self, sessions: Sessions, templates: Templates, cookie: str) -> None:
        """`cookie`: its name."""
        self._sessions = sessions
        self._templates = templates
        self._cookie = cookie
        self._checking = 0

    @property
    def routes(self) -> list[Route]:
        return [
            Route(LOGIN, self._show, methods=["GET"]),
            Route(LOGIN, self._log_in, methods=["POST"]),
            Route(LOGOUT, self._log_out, methods=["POST"]),
        ]

    def gate(self, app: ASGIApp) -> ASGIApp:
        """Return an application that passes requests with a session on, and those for the page of the login."""

        async def passed(scope: Scope, receive: Receive, send: Send) -> None:
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            if path not in (PROBE, LOGIN) and not path.startswith("/static/"):
                request = Request(scope)
                session = await self._sessions.find(request.cookies.get(self._cookie, ""))
                if session is None:
                    await self._refuse(request, path)(scope, receive, send)
                    return
                scope = {**scope, SESSION: session}
            await app(scope, receive, send)

        return passed

    def _refuse(self, request: Request, path: str) -> Response:
        if wants_json(request):
            return refusal(NO_SESSION, 401)
        query = request.url.query
        then = "/" if request.method == "POST" else quote(path) + (f"?{query}" if query else "")
        return self._page(request, then=then, status=401, ended=self._cookie in request.cookies)

    async def _show(self, request: Request) -> Response:
        return self._page(request)

    def _page(
        self, request: Request, *, then: str = "/", user: str = "", error: str | None = None, status: int = 200, ended: bool = False
    ) -> Response:
        if PART in request.headers:
            return PlainTextResponse(f"{NO_SESSION}\n", 401)
        values = {"then": then, "user": user, "error": error, "ended": ended, "action": f"{_root(request)}{LOGIN}"}
        return self._templates.page(request, "login.html", values, status)

    async def _log_in(self, request: Request) -> Response:
        if self._checking >= LOGINS_MAX:
            return self._page(request, error=BUSY, status=503)
        self._checking += 1
        user, then = "", "/"
        try:
            sent = await read_form(request)
            user, then = sent.get("user", "").strip(), _path(sent.get("then", ""))
            token = await self._sessions.begin(user, sent.get("password", ""))
        except LockstepError as error:
            status = next((each for kind, each in STATUSES if isinstance(error, kind)), 503)
            log_limited(log, "warning", "session.refused", peer=peer_of(request), status=status)
            return self._page(request, then=then, user=user, error=str(error), status=status)
        finally:
            self._checking -= 1
        response = RedirectResponse(_root(request) + then, 303)
        response.set_cookie(self._cookie, token, max_age=SESSION_S, **_scope(request))
        return response

    async def _log_out(self, request: Request) -> Response:
        self._sessions.end(session_of(request), "its user has logged out")
        response = RedirectResponse(f"{_root(request)}/", 303)
        response.delete_cookie(self._cookie, **_scope(request))
        return response


def _root(request: Request) -> str:
    root: str = request.scope.get("root_path", "")
    return root


def _scope(request: Request) -> dict[str, Any]:
    return {"path": _root(request) or "/", "secure": request.url.scheme == "https", "httponly": True, "samesite": "strict"}


def _path(text: str) -> str:
    """Return the path of this dashboard that a form names, or that of its first page: a text may name another site."""
    return text if text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable() else "/"
