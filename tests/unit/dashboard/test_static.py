"""The script and the style sheet: a browser that has them asks again only when they are others."""

from hashlib import blake2b

from starlette.applications import Starlette
from starlette.routing import Mount

from lockstep.dashboard.render import HERE, STATIC, Static
from support.asgi import get


async def test_address_of_a_static_file_changes_with_its_content() -> None:
    app = Starlette(routes=[Mount("/static", Static())])
    for name, address in STATIC.items():
        content = (HERE / "static" / name).read_bytes()
        path, _, version = address.partition("?v=")
        assert (path, version) == (f"static/{name}", blake2b(content, digest_size=12).hexdigest())
    for address, kept in ((STATIC["app.js"], True), ("static/app.js", False), ("static/app.js?v=old", False)):
        got = await get(app, f"/{address}")
        assert (got.status, "immutable" in got.headers["cache-control"]) == (200, kept), address
