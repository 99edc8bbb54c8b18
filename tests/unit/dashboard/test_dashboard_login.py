"""Browsers log in as users of the cluster: who gets in, as whom pages ask and change, and when a session ends."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lockstep.broker.app import Broker
from lockstep.dashboard import Dashboard
from lockstep.dashboard.access import sessions
from lockstep.dashboard.access.login import LOGINS_MAX, _path
from lockstep.dashboard.changes.replays import Running
from lockstep.dashboard.config import DashboardConfig
from lockstep.dashboard.render import PART
from lockstep.nameserver.app import Nameserver
from lockstep.nameserver.config import NameserverConfig
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes.layouts.layout_publish import create_and_wait
from lockstep.operations.changes.replay import ReplayTarget
from lockstep.protocol.errors import ConfigError
from lockstep.runtime.host import Host
from support.asgi import Got, get, post
from support.logins import PASSWORD, write_users
from support.whole_broker import settings

RULES = {
    "broker-a": 'brokers = ["broker-a"]',
    "panel": 'role = "viewer"',
    "reader": 'role = "viewer"',
    "ops": 'role = "operator"',
    "narrow": 'role = "viewer"\ntopics = ["orders*"]',
    "denied": 'role = "viewer"\ndeny = ["Get topic:secret"]',
    "blind": 'allow = ["Get topic:*", "Get group:*"]',
}
TOPIC = "secret"
CREATE = {"topic": "orders", "queues": "2", "brokers": ""}


def write_rules(path: Path, rules: Mapping[str, str] = RULES) -> str:
    return write_users(path / "users.toml", {name: [PASSWORD] for name in rules}, rules)


class Browser:
    """Keeps a cookie and sends it, as a browser on this machine does."""

    def __init__(self, panel: "Panel", root: str = "") -> None:
        self.panel = panel
        self.root = root
        self.cookie = ""

    def _kept(self, got: Got) -> Got:
        if "set-cookie" in got.headers:
            self.cookie = got.headers["set-cookie"].partition(";")[0]
        return got

    async def get(self, url: str, **headers: str) -> Got:
        return self._kept(await get(self.panel.dashboard.app, url, root=self.root, cookie=self.cookie, **headers))

    async def post(self, url: str, form: Mapping[str, str], **headers: str) -> Got:
        return self._kept(await post(self.panel.dashboard.app, url, form, cookie=self.cookie, **headers))

    async def log_in(self, user: str, password: str = PASSWORD, then: str = "/") -> Got:
        return await self.post("/login", {"user": user, "password": password, "then": then})

    async def planned(self, change: str, **values: str) -> Got:
        """Return the page of a change's plan."""
        token = re.search(r'name="token" value="(\w+)"', (await self.get(f"/changes/{change}")).text)
        assert token is not None
        return await self.post(f"/changes/{change}", {**values, "token": token[1], "step": "plan"})


class Panel:
    """A dashboard over a cluster whose servers require logins."""

    def __init__(self, path: Path, nameserver: Nameserver, broker: Broker, dashboard: Dashboard) -> None:
        self.path = path
        self.nameserver = nameserver
        self.broker = broker
        self.dashboard = dashboard

    @property
    def sessions(self) -> list[sessions.BrowserSession]:
        return list(self.dashboard._sessions._sessions.values())

    async def logged_in(self, user: str) -> Browser:
        browser = Browser(self)
        assert (await browser.log_in(user)).status == 303
        return browser

    async def change_users(self, rules: Mapping[str, str]) -> None:
        write_rules(self.path, rules)
        for server in (self.nameserver, self.broker):
            await server._watch.reload()


@asynccontextmanager
async def panel(path: Path) -> AsyncIterator[Panel]:
    (path / "password").write_text(PASSWORD)
    users = write_rules(path)
    host = Host.real()
    nameserver = Nameserver(NameserverConfig(listen=("127.0.0.1:0",), security=users), host)
    await nameserver.start()

    def url(user: str) -> str:
        return f"lockstep://{user}@{nameserver.address}/?password_file={path / 'password'}"

    broker = Broker(settings(path, name="broker-a", nameserver=url("broker-a"), security=users), host)
    await broker.start()
    await create_and_wait(AdminClient(host, url("ops")).address, TOPIC, 1)
    dashboard = Dashboard(url("panel"), host=host, changes=True)
    await dashboard.start()
    try:
        yield Panel(path, nameserver, broker, dashboard)
    finally:
        await dashboard.stop()
        await broker.stop()
        await nameserver.stop()


@pytest.fixture
async def on(tmp_path: Path) -> AsyncIterator[Panel]:
    async with panel(tmp_path) as found:
        yield found


async def test_without_a_session_no_page_is_served_and_no_name_is_told(on: Panel) -> None:
    guest = Browser(on)
    names = (TOPIC, "broker-a", on.nameserver.address)
    for route in on.dashboard.routes:
        path = re.sub(r"[{}]", "", getattr(route, "path", ""))
        is_open = path in ("/livez", "/login")
        for headers, url in (({}, path), ({PART.replace("-", "_"): "notices"}, path), ({}, f"{path}?format=json")):
            got = await guest.get(url, **headers)
            assert (got.status != 401) == (is_open and (path, headers.keys()) != ("/login", {"x_part"})), (url, got.status)
            assert not [name for name in names if name in got.text.replace(f'value="{path}"', "")], url
        if not is_open:
            assert (await guest.post(path, {})).status == 401
    assert (await guest.get("/static/app.js")).status == 200
    missing = await guest.get("/static/none")
    assert (missing.status, missing.text) == (404, "not found\n")


async def test_login_leads_to_the_page_that_was_asked_for_and_the_cookie_is_for_this_dashboard_only(on: Panel) -> None:
    browser = Browser(on)
    page = await browser.get("/topics?q=%22x%22")
    then = re.search(r'name="then" value="([^"]*)"', page.text)
    assert then is not None
    assert then[1] == "/topics?q=%22x%22"
    got = await browser.log_in("reader", then=then[1])
    assert (got.status, got.headers["location"]) == (303, then[1])
    name, *attributes = got.headers["set-cookie"].split("; ")
    assert re.fullmatch(r"lockstep_session_[0-9a-f]{8}=[0-9a-f]{64}", name)
    assert sorted(attributes) == ["HttpOnly", f"Max-Age={sessions.SESSION_S}", "Path=/", "SameSite=strict"]
    shown = await browser.get("/")
    assert (shown.status, "Log out reader" in shown.text) == (200, True)
    assert (await Browser(on).get("/")).status == 401
    (session,) = on.sessions
    assert session.credentials is not None
    assert session.credentials.password is None, "it is forgotten"
    assert (await browser.post("/logout", {})).status == 303
    assert (on.sessions, session.credentials._salted) == ([], {})
    browser.cookie = name
    ended = await browser.get("/")
    assert (ended.status, "The session has ended." in ended.text) == (401, True)


async def test_cookie_of_a_page_by_tls_behind_a_path_is_secure_and_for_that_path(on: Panel) -> None:
    async def by_tls(scope: dict[str, object], *rest: object) -> None:
        await on.dashboard.app({**scope, "scheme": "https"}, *rest)  # type: ignore[arg-type]

    got = await post(by_tls, "/login", {"user": "reader", "password": PASSWORD}, root="/lockstep")  # type: ignore[arg-type]
    assert got.headers["location"] == "/lockstep/"
    assert {"Secure", "Path=/lockstep"} <= set(got.headers["set-cookie"].split("; "))


@pytest.mark.parametrize(
    ("user", "password", "status", "words"),
    [
        ("reader", "wrong password", 401, "the user or the password is wrong"),
        ("nobody", PASSWORD, 401, "the user or the password is wrong"),
        ("", PASSWORD, 400, "is not the name of a user"),
        ("a b", PASSWORD, 400, "is not the name of a user"),
        ("reader", "short", 400, "expected 8 to 256"),
        ("blind", PASSWORD, 403, "user blind may not Get cluster"),
        ("narrow", PASSWORD, 403, "it needs Get on all of them"),
        ("denied", PASSWORD, 403, "it needs Get on all of them"),
        ("broker-a", PASSWORD, 403, "it needs Get on all of them"),
    ],
)
async def test_who_may_not_see_the_whole_cluster_is_told_why_and_gets_no_session(
    on: Panel, user: str, password: str, status: int, words: str
) -> None:
    browser = Browser(on)
    got = await browser.log_in(user, password)
    assert (got.status, words in got.text) == (status, True), got.text
    assert (browser.cookie, on.sessions) == ("", [])
    assert password not in got.text


async def test_change_is_made_as_the_user_who_has_logged_in_and_refused_in_the_words_of_the_broker(on: Panel) -> None:
    reader, ops = await on.logged_in("reader"), await on.logged_in("ops")
    for browser, status, words in ((reader, 409, "user reader may not Create"), (ops, 303, "")):
        page = await browser.planned("topic-create", **CREATE)
        assert page.status == 200, page.text
        form = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page.text))
        got = await browser.post("/changes/topic-create", form)
        assert (got.status, words in got.text) == (status, True), got.text
    assert "orders" in await (ops_client := on.sessions[-1].admin).topics()
    assert ops_client.has_login


async def test_form_of_another_session_or_another_site_is_refused(on: Panel) -> None:
    reader, ops = await on.logged_in("reader"), await on.logged_in("ops")
    stolen = {**CREATE, "step": "plan", "token": on.sessions[0].form_token}
    assert (await reader.post("/changes/topic-create", stolen)).status == 200
    assert (await ops.post("/changes/topic-create", stolen)).status == 403
    for path in ("/login", "/logout"):
        assert (await ops.post(path, {"user": "ops", "password": PASSWORD}, sec_fetch_site="same-site")).status == 403
    assert len(on.sessions) == 2


@pytest.mark.parametrize("rules", [{}, {"reader": 'role = "viewer"\ntopics = ["orders"]'}, {"reader": ""}])
async def test_session_ends_with_the_user_or_the_rights(on: Panel, rules: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    reader, ops = await on.logged_in("reader"), await on.logged_in("ops")
    await on.change_users({name: rule for name, rule in RULES.items() if name != "reader"} | dict(rules))
    monkeypatch.setattr(sessions, "CHECK_MS", 0)
    assert (await ops.get("/")).status == 200
    assert (await reader.get("/")).status == 401
    assert [each.user for each in on.sessions] == ["ops"]


async def test_session_goes_on_while_no_nameserver_responds_and_ends_after_its_time(on: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = await on.logged_in("reader")
    monkeypatch.setattr(sessions, "CHECK_MS", 0)
    monkeypatch.setattr(sessions, "SESSION_S", 0)
    brief = await on.logged_in("reader")
    await asyncio.sleep(0)
    assert (await brief.get("/")).status == 401
    await on.nameserver.stop()
    assert (await reader.get("/")).status == 200
    got = await Browser(on).log_in("reader")
    assert (got.status, "no nameserver responds" in got.text) == (503, True)


async def test_oldest_session_ends_when_there_are_too_many(on: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SESSIONS_MAX", 2)
    browsers = [await on.logged_in(user) for user in ("reader", "ops", "ops")]
    assert [(await each.get("/")).status for each in browsers] == [401, 200, 200]


async def test_failed_logins_keep_no_page_and_no_other_login_waiting(on: Panel) -> None:
    reader = await on.logged_in("reader")
    failing = [asyncio.create_task(Browser(on).log_in("reader", "wrong password")) for _ in range(LOGINS_MAX - 1)]
    await asyncio.sleep(0)
    assert (await Browser(on).log_in("ops")).status == 303
    failing.append(asyncio.create_task(Browser(on).log_in("reader", "wrong password")))
    await asyncio.sleep(0)
    assert not [each for each in failing if each.done()], "a server answers a failed login after a second"
    assert (await Browser(on).log_in("ops")).status == 503
    assert (await reader.get("/")).status == 200
    assert {(await each).status for each in failing} == {401}


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/topics?q=a", "/topics?q=a"),
        ("", "/"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
        ("/a\r\nSet-Cookie: b", "/"),
    ],
)
def test_login_leads_to_no_other_site(text: str, path: str) -> None:
    assert _path(text) == path


async def test_dashboard_without_a_user_asks_for_no_login_unless_it_is_told_to(on: Panel) -> None:
    for login, status in ((None, 406), (False, 406), (True, 401)):
        assert (await get(Dashboard(on.nameserver.address, login=login).app, "/?format=json")).status == status


async def test_replay_ends_with_the_session_in_which_it_was_begun_and_no_other_user_stops_it(on: Panel) -> None:
    changes = on.dashboard._changes
    assert changes is not None
    ops = await on.logged_in("ops")
    (session,) = on.sessions
    running = Running(session, "billing", ReplayTarget.RETRY, 1, 0, task=on.dashboard.tasks.spawn(asyncio.Event().wait(), "replay"))
    changes.replays._running["billing"] = running
    reader = await on.logged_in("reader")
    form = {"group": "billing", "token": on.sessions[1].form_token}
    refused = await reader.post("/changes/stop-replay", form)
    assert (refused.status, "user ops has begun the replay of billing" in refused.text) == (409, True)
    assert running.outcome is None
    await ops.post("/logout", {})
    assert running.outcome == "stopped: the session of ops has ended"
    assert running.task is not None
    assert running.task.cancelling()
    del changes.replays._running["billing"]


@pytest.mark.parametrize(
    ("settings", "login"),
    [
        ({}, None),
        ({"require_login": False}, False),
        ({"require_login": True}, True),
        ({"listen": "0.0.0.0:1", "insecure": "plaintext"}, True),
        ({"listen": "0.0.0.0:1", "insecure": True}, None),
        ({"listen": "0.0.0.0:1", "insecure": True, "require_login": True}, True),
        ({"listen": "0.0.0.0:1", "insecure": True, "require_login": False}, False),
    ],
)
def test_login_is_required_by_default_where_other_machines_reach_the_dashboard(settings: dict[str, Any], login: bool | None) -> None:
    config = DashboardConfig(**settings)
    assert (config.login, config.has_secrets) == (login, login is True)
    assert DashboardConfig(**settings, nameserver="lockstep://panel@n1:1").has_secrets


def test_dashboard_without_a_login_for_other_machines_needs_a_word() -> None:
    with pytest.raises(ConfigError, match=r"requires no login \(leave --no-require-login out\).*pass --insecure if"):
        DashboardConfig(listen="0.0.0.0:1", insecure="plaintext", require_login=False)
