"""Makes pages from templates: whole, or one part of a page, which the script in the browser asks for again and again."""

from collections.abc import Callable, Mapping
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from lockstep.dashboard.language import COOKIE, LANGUAGES, chosen_language, install
from lockstep.operations.text import format_bytes, format_duration, format_time
from lockstep.runtime.logs.safe_text import printable, printable_lines

HERE = Path(__file__).parent
PART = "x-part"
"""The header that asks for one part of a page, by the name of its block."""
BASE = "base.html"
COOKIE_S = 365 * 86_400
STATIC_S = 365 * 86_400
DASH = "–"


def _count(value: float | None) -> str:
    return DASH if value is None else f"{value:,.0f}"


def _rate(value: float | None) -> str:
    return DASH if value is None else f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def _time(at_ms: int) -> Markup:
    """Return an element with the time in UTC, of which the script makes a local one, or only text if it is not a time of the calendar."""
    text = format_time(at_ms)
    if not text.endswith("Z"):
        return escape(text)
    return Markup('<time datetime="{0}" title="{0}">{0}</time>').format(text)


def _text(value: object) -> str:
    """Return a text of a peer: characters that are not printable, which could reorder a line, are escapes."""
    return DASH if value is None else printable(str(value))


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=12).hexdigest()


_CONTENTS = {path.name: path.read_bytes() for path in sorted((HERE / "static").iterdir())}  # world: files of the package
STATIC = {name: f"static/{name}?v={_digest(content)}" for name, content in _CONTENTS.items()}
"""Name of a file → its address below the root. Another content has another address, so browsers keep a file as long as they like."""


class Static(StaticFiles):
    """The script, the style sheet and the icon: kept by browsers for a year if their content is the one that the address names."""

    def __init__(self) -> None:
        super().__init__(directory=HERE / "static")

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        named = f"static/{path}?{scope['query_string'].decode('latin-1')}" in STATIC.values()
        response.headers["cache-control"] = f"public, max-age={STATIC_S}, immutable" if named else "no-cache"
        return response


def _query(request: Request) -> Callable[..., str]:
    """Return what templates make links to the same page with: the query of the request, but for what a link changes."""
    kept = {name: value for name, value in request.query_params.items() if name != COOKIE}
    return lambda **changed: "?" + urlencode(kept | changed)


@cache
def environment(language: str = "en") -> Environment:
    """Return what templates are rendered with, one for each language, which compiles each template once. Every value is escaped, and a name
    that a page does not give is an error."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {
        "count": _count,
        "rate": _rate,
        "bytes": lambda value: DASH if value is None else format_bytes(value),
        "duration": lambda value: format_duration(value) or DASH,
        "time": _time,
        "text": _text,
        "lines": printable_lines,
        "url": lambda value: quote(str(value), safe=""),
    }
    made.globals["static"] = STATIC
    install(made, language)
    return made


class Templates:
    """Renders pages."""

    def __init__(self) -> None:
        self._environments = {language: environment(language) for language in LANGUAGES}

    def page(self, request: Request, name: str, values: Mapping[str, Any], status: int = 200) -> Response:
        """Return the page, or the part that the request names. It has not changed (304) if the browser has the same text."""
        asked = request.query_params.get(COOKIE)
        language = chosen_language(asked, request.cookies.get(COOKIE), request.headers.get("accept-language", ""))
        made = self._environments[language]
        template = made.get_template(name)
        blocks = {**made.get_template(BASE).blocks, **template.blocks}
        root = request.scope.get("root_path", "")
        context = {
            "root": root,
            "path": quote(request.scope["path"]),
            "query": _query(request),
            "language": language,
            "languages": LANGUAGES,
            **values,
        }
        part = request.headers.get(PART)
        if part is None:
            text = template.render(context)
        elif part in blocks:
            text = "".join(blocks[part](template.new_context(context)))
        else:
            return Response(f"this page has no part {part[:40]!r}\n", 404, media_type="text/plain")
        tag = f'"{_digest(text.encode())}"'
        headers = {"etag": tag, "cache-control": "no-store", "vary": "Accept-Language, Cookie"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        response = HTMLResponse(text, status, headers)
        if asked == language and part is None:  # A part is refreshed by a page that may be open beside one of another language.
            response.set_cookie(COOKIE, language, max_age=COOKIE_S, path=root or "/", httponly=True, samesite="lax")
        return response
