"""Who may ask the dashboard, and what a browser may do with the answer."""

import asyncio
from typing import Any

import pytest

from lockstep.dashboard.access.guard import HEADERS, REQUESTS_MAX, Guard
from support.asgi import get


async def page(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"secret"})


GUARD = Guard(page, ["Panel.example"])


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9880", 200),
        ("[::1]:9880", 200),
        ("10.1.2.3", 200),
        ("localhost:9880", 200),
        ("LOCALHOST", 200),
        ("panel.example", 200),
        ("panel.example.:80", 200),
        ("evil.example", 421),
        ("evil.example:9880", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example", 421),
        ("panel.example.evil", 421),
        ("", 421),
        (None, 400),
    ],
)
async def test_host_must_be_an_address_or_a_name_of_the_dashboard(host: str | None, status: int) -> None:
    got = await get(GUARD, "/", host=host)
    assert got.status == status
    assert (got.body == b"secret") == (status == 200)


async def test_two_hosts_are_refused() -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        scope["headers"] = [(b"host", b"127.0.0.1"), (b"host", b"evil.example")]
        await GUARD(scope, receive, send)

    assert (await get(refuse, "/")).status == 400


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "x" * 100])
async def test_nothing_but_reading_is_accepted(method: str) -> None:
    got = await get(GUARD, "/groups/billing", method=method)
    assert (got.status, b"nothing can be changed here without --allow-changes" in got.body) == (405, True)
    assert len(got.body) < 200


@pytest.mark.parametrize(
    ("site", "mode", "dest", "status"),
    [
        ("cross-site", "no-cors", "image", 403),
        ("cross-site", "no-cors", "script", 403),
        ("cross-site", "cors", "empty", 403),
        ("cross-site", "navigate", "iframe", 403),
        ("same-site", "no-cors", "image", 403),
        ("cross-site", "navigate", "document", 200),
        ("same-origin", "cors", "empty", 200),
        ("same-origin", "no-cors", "script", 200),
        ("none", "navigate", "document", 200),
    ],
)
async def test_page_of_another_site_has_no_part_from_here_but_may_link_here(site: str, mode: str, dest: str, status: int) -> None:
    got = await get(GUARD, "/messages/7F0000", sec_fetch_site=site, sec_fetch_mode=mode, sec_fetch_dest=dest)
    assert got.status == status
    assert (got.body == b"secret") == (status == 200)


@pytest.mark.parametrize("host", ["127.0.0.1", "evil.example"])
async def test_every_response_forbids_scripts_of_others_frames_and_sniffing(host: str) -> None:
    got = await get(GUARD, "/", host=host)
    assert {name.decode(): value.decode() for name, value in HEADERS}.items() <= got.headers.items()
    assert "unsafe" not in got.headers["content-security-policy"]


async def test_other_kinds_of_connections_are_ignored() -> None:
    async def never(*_: Any) -> None:
        raise AssertionError

    await Guard(never)({"type": "lifespan"}, never, never)
    await Guard(never)({"type": "websocket"}, never, never)


async def test_requests_above_the_limit_are_refused_with_the_reason_and_the_probe_never_is() -> None:
    free = asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        if not scope["path"].endswith("/livez"):
            await free.wait()
        await page(scope, receive, send)

    guard = Guard(slow)
    waiting = [asyncio.create_task(get(guard, "/")) for _ in range(REQUESTS_MAX)]
    await asyncio.sleep(0)
    for root in ("", "/lockstep"):
        assert (await get(guard, "/livez", root=root)).status == 200
        refused = await get(guard, "/groups", root=root)
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert f"at most {REQUESTS_MAX} requests at once" in refused.text
        assert {name.decode() for name, _ in HEADERS} <= refused.headers.keys()
    assert (await get(guard, "/livez", host="evil.example")).status == 421
    free.set()
    assert [got.status for got in await asyncio.gather(*waiting)] == [200] * REQUESTS_MAX
    assert (await get(guard, "/groups")).status == 200


async def test_request_that_fails_gives_its_place_back() -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("broken")

    guard = Guard(broken)
    for _ in range(REQUESTS_MAX + 1):
        with pytest.raises(RuntimeError, match="broken"):
            await get(guard, "/")
