"""A browser's request to an ASGI application in the same loop, real or simulated."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlencode

from starlette.types import ASGIApp


@dataclass(frozen=True, slots=True)
class Got:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


async def get(
    app: ASGIApp, url: str, *, method: str = "GET", host: str | None = "127.0.0.1:9880", root: str = "", data: bytes = b"", **headers: str
) -> Got:
    """Return the response to one request. In names of `headers` "_" stands for "-"; `host` None sends none."""
    path, _, query = url.partition("?")
    fields = [] if host is None else [(b"host", host.encode("latin-1"))]
    fields += [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": root + unquote(path),
        "raw_path": (root + path).encode(),
        "query_string": query.encode(),
        "root_path": root,
        "headers": fields,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 9880),
    }
    sent: list[Any] = []
    received = asyncio.Event()

    async def receive() -> Any:
        if received.is_set():  # the browser stays
            await asyncio.Event().wait()
        received.set()
        return {"type": "http.request", "body": data, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    begin = sent[0]
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return Got(begin["status"], {name.decode().lower(): value.decode("latin-1") for name, value in begin["headers"]}, body)


async def post(app: ASGIApp, url: str, form: Mapping[str, str], **headers: str) -> Got:
    """Return the response to a form that a page of the same origin has sent."""
    headers = {"content_type": "application/x-www-form-urlencoded", "sec_fetch_site": "same-origin", **headers}
    return await get(app, url, method="POST", data=urlencode(form).encode(), **headers)
