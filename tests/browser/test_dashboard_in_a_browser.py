"""The dashboard in Chromium: one host, no errors, refreshes, a hidden tab, a lost server, hostile names. test_pictures.py has the rest.

`scripts/browser` installs the browser and runs these tests.
"""

import asyncio
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from browser.pages import GROUP, MESSAGE, PAGES, TOPIC
from lockstep.client import Message, MessageExt, OrderlyContext, Producer, PushConsumer
from support.processes import Program, program

if "LOCKSTEP_TEST_BROWSER" not in os.environ:
    pytest.skip("scripts/browser runs these tests", allow_module_level=True)

from playwright.sync_api import Browser, Page  # type: ignore[import-not-found, unused-ignore]

HOSTILE = "<script>document.title = 'hacked'</script>"
LIMIT_MS = 60_000


class Load:
    """Sends and consumes in a thread until it is closed."""

    def __init__(self, nameserver: str) -> None:
        self._nameserver = nameserver
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        assert self._ready.wait(60)

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        number = 0
        async with Producer("shop", nameserver=self._nameserver) as producer:
            await producer.send(Message(TOPIC, HOSTILE.encode(), sharding_key=HOSTILE, tags="t", properties={"name": HOSTILE}))
            consumer = PushConsumer(GROUP, nameserver=self._nameserver).subscribe(TOPIC)
            consumer.orderly(listen)
            async with consumer:
                self._ready.set()
                while not self._stop.is_set():
                    await producer.send(Message(TOPIC, b"%d" % number, sharding_key=f"k{number % 50}"))
                    number += 1
                    await asyncio.sleep(0.05)

    def close(self) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


async def listen(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
    """Accept everything."""


@pytest.fixture(scope="module")
def panel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    store = tmp_path_factory.mktemp("browser")
    with program("lockstep.admin.cli", "up", "--port", "0", "--brokers", "2", "--store", str(store), event="up.started") as up:
        nameserver = up.started["nameserver"]
        load = Load(nameserver)
        try:
            with serving(nameserver, "127.0.0.1:0", "--allow-changes") as made:
                yield made
        finally:
            load.close()


def serving(nameserver: str, listen: str, *options: str) -> Any:
    return program("lockstep.admin.cli", "dashboard", "--nameserver", nameserver, "--listen", listen, *options, event="dashboard.started")


@dataclass
class Tab:
    """A tab, what its console said, and what it requested."""

    page: Page
    base: str
    said: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self, path: str) -> None:
        self.page.goto(self.base + path)


def tab(browser: Browser, panel: Program, **options: Any) -> Tab:
    made = Tab(browser.new_context(**options).new_page(), panel.started["address"].rstrip("/"))
    made.page.on("console", lambda message: made.said.append(message.text))
    made.page.on("pageerror", lambda error: made.said.append(str(error)))
    made.page.on("request", lambda request: made.requests.append(request.url))
    return made


def test_pages_load_from_one_host_and_nothing_fails(browser: Browser, panel: Program) -> None:
    made = tab(browser, panel)
    made.open(f"/topics/{TOPIC}/messages")
    message = str(made.page.get_attribute("tbody a", "href")).rpartition("/")[2]
    for page in PAGES:
        made.open(page.replace(MESSAGE, message).replace("mailing", GROUP))
        made.page.wait_for_timeout(2_500)  # its parts are refreshed
    assert made.said == []
    assert all(url.startswith(made.base) for url in made.requests)
    made.page.context.close()


def test_figures_go_on_without_a_reload_and_stop_while_paused(browser: Browser, panel: Program) -> None:
    made = tab(browser, panel)
    made.open(f"/groups/{GROUP}")
    shown = "[...document.querySelectorAll('[aria-label=Queues] td')].map(each => each.textContent).join()"
    before = made.page.evaluate(shown)
    for _ in range(LIMIT_MS // 500):
        made.page.wait_for_timeout(500)
        if made.page.evaluate(shown) != before:
            break
    assert made.page.evaluate(shown) != before
    made.page.keyboard.press("p")
    made.page.wait_for_timeout(1_000)
    count = len(made.requests)
    made.page.wait_for_timeout(4_000)
    assert len(made.requests) == count
    made.page.context.close()


def test_live_tail_grows_without_a_reload(browser: Browser, panel: Program) -> None:
    made = tab(browser, panel)
    made.open(f"/topics/{TOPIC}/tail")
    made.page.wait_for_selector("[data-part=rows] tbody tr:nth-child(5)", timeout=LIMIT_MS)
    assert sum(url.endswith("/tail") for url in made.requests) > 1
    assert made.said == []
    made.page.context.close()


def test_hidden_tab_asks_for_nothing(browser: Browser, panel: Program) -> None:
    made = tab(browser, panel)
    made.page.add_init_script("Object.defineProperty(document, 'hidden', {get: () => window.isHidden === true})")
    made.open(f"/groups/{GROUP}")
    made.page.evaluate("window.isHidden = true")
    made.page.wait_for_timeout(1_000)
    count = len(made.requests)
    made.page.wait_for_timeout(6_000)
    assert len(made.requests) == count
    with made.page.expect_request("**/*", timeout=LIMIT_MS):
        made.page.evaluate("window.isHidden = false")
    made.page.context.close()


def test_words_of_clients_are_no_markup(browser: Browser, panel: Program) -> None:
    made = tab(browser, panel)
    made.open(f"/topics/{TOPIC}/messages?key={HOSTILE}")
    assert HOSTILE in made.page.inner_text("tbody")
    made.page.click("tbody a")
    assert HOSTILE in made.page.inner_text("pre")
    assert "hacked" not in made.page.title()
    assert made.said == []
    made.page.context.close()


def test_keyboard_reaches_the_search_and_the_content(browser: Browser, panel: Program) -> None:
    made = tab(browser, panel)
    made.open("/groups")
    made.page.keyboard.press("/")
    assert made.page.evaluate("document.activeElement.id") == "search"
    made.page.keyboard.type("bill")
    made.page.keyboard.press("Enter")
    made.page.wait_for_url("**/groups?q=bill*", timeout=LIMIT_MS)
    made.page.keyboard.press("Tab")
    assert made.page.evaluate("document.activeElement.className") == "skip"
    made.page.context.close()


def test_keys_lead_to_pages_and_show_what_they_do(browser: Browser, panel: Program) -> None:
    made = tab(browser, panel)
    made.open("/")
    made.page.keyboard.press("?")
    assert made.page.is_visible("#help")
    made.page.keyboard.press("Escape")
    assert not made.page.is_visible("#help")
    made.page.keyboard.type("gt")
    made.page.wait_for_url("**/topics", timeout=LIMIT_MS)
    assert made.said == []
    made.page.context.close()


def test_chosen_colours_stay_on_the_next_page(browser: Browser, panel: Program) -> None:
    made = tab(browser, panel, color_scheme="light")
    made.open("/")
    back = "getComputedStyle(document.body).backgroundColor"
    light = made.page.evaluate(back)
    made.page.select_option("#theme", "dark")
    assert made.page.evaluate(back) != light
    made.open("/groups")
    assert made.page.evaluate(back) != light
    made.page.select_option("#theme", "auto")
    assert made.page.evaluate(back) == light
    made.page.context.close()


def test_lost_dashboard_is_told_and_the_page_goes_on_when_it_is_back(browser: Browser, panel: Program) -> None:
    nameserver = panel.started["nameserver"]
    with serving(nameserver, "127.0.0.1:0") as other:
        made = tab(browser, other)
        listen_on = other.started["address"].removeprefix("http://").rstrip("/")
        made.open("/groups")
        assert other.stop() == 0
        made.page.wait_for_selector("#lost:not([hidden])", timeout=LIMIT_MS)
    with serving(nameserver, listen_on):
        made.page.wait_for_selector("#lost", state="hidden", timeout=LIMIT_MS)
    made.page.context.close()


def test_group_is_reset_by_forms(browser: Browser, panel: Program) -> None:
    made = tab(browser, panel)
    made.open(f"/groups/{GROUP}")
    made.page.click("text=Reset")
    made.page.get_by_label("To", exact=True).fill("end")
    made.page.click("text=Show what it does")
    assert f"lockstep group reset-offset {GROUP} --to end" in made.page.inner_text("pre")
    made.page.click("button.do")
    assert made.page.evaluate("document.activeElement.name") == "typed", "the browser asks for the name"
    made.page.get_by_label("to confirm").fill(GROUP)
    made.page.click("button.do")
    assert f"Group {GROUP} continues from the new offsets" in made.page.inner_text("pre")
    assert made.said == []
    made.page.context.close()


def test_form_of_another_site_changes_nothing(browser: Browser, panel: Program, tmp_path: Path) -> None:
    """A page from elsewhere sends the form itself: without the token, and the browser says where it comes from."""
    made = tab(browser, panel)
    elsewhere = tmp_path / "evil.html"
    fields = {"topic": "stolen", "queues": "1", "broker": "", "step": "do", "token": "x", "digest": "x"}
    inputs = "".join(f'<input name="{name}" value="{value}">' for name, value in fields.items())
    elsewhere.write_text(f'<form method="post" action="{made.base}/changes/topic-create">{inputs}<button>Go</button></form>')
    made.page.goto(elsewhere.as_uri())
    made.page.click("button")
    assert "the form is not from a page of this dashboard" in made.page.inner_text("body")
    made.page.context.close()
