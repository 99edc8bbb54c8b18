"""The dashboard in Chromium: one host, no errors, refreshes, a hidden tab, a lost server, hostile names. test_script.py and
test_pictures.py have the rest.

`scripts/browser` installs the browser and runs these tests.
"""

import os
import re
from pathlib import Path

import pytest

from browser.pages import GROUP, MESSAGE, PAGES, TOPIC
from browser.proxy import below
from browser.tab import EVENTS, HOSTILE, LIMIT_MS, serving, tab
from support.processes import Program

if "LOCKSTEP_TEST_BROWSER" not in os.environ:
    pytest.skip("scripts/browser runs these tests", allow_module_level=True)

from playwright.sync_api import Browser  # type: ignore[import-not-found, unused-ignore]


def test_pages_load_from_one_host_and_nothing_fails(browser: Browser, panel: Program) -> None:
    made = tab(browser, panel, fast=True)
    made.open(f"/topics/{TOPIC}/messages")
    message = str(made.page.get_attribute("tbody a", "href")).rpartition("/")[2]
    for page in PAGES:
        made.open(page.replace(MESSAGE, message))
        made.until_refreshed()
    assert made.said == []
    assert all(url.startswith(made.base) for url in made.requests)
    made.close()


def test_links_forms_and_parts_work_below_the_path_of_a_proxy(browser: Browser, panel: Program) -> None:
    with (
        serving(panel.started["nameserver"], "127.0.0.1:0", "--allow-changes", "--root-path", "/lockstep") as other,
        below("/lockstep", other.started["address"]) as base,
    ):
        made = tab(browser, other, fast=True, base=base)
        made.open("/")
        for place in ("topics", "groups", "messages", "settings", "doctor", "cluster"):
            made.page.click(f"header [data-place={place}]")
            made.until_refreshed()
        made.page.click("header a[hreflang=zh-CN]")
        assert made.page.get_attribute("html", "lang") == "zh-CN"
        made.page.click("header a[hreflang=en]")
        made.send_form("/changes/topic-create", {"topic": "below", "queues": "1"}, "Show what it does")
        made.page.click("button.do")
        made.page.wait_for_selector("text=Topic below created", timeout=LIMIT_MS)
        made.open("/topics/below")
        made.until_refreshed()
        assert made.said == []
        assert all(url.startswith(f"{base}/") for url in made.requests)
        made.close()


def test_chinese_pages_are_chinese_fit_a_narrow_screen_and_refresh(browser: Browser, panel: Program) -> None:
    made = tab(browser, panel, fast=True, locale="zh-CN", viewport={"width": 390, "height": 800})
    for page in PAGES:
        if MESSAGE not in page:
            made.open(page)
            assert made.page.get_attribute("html", "lang") == "zh-CN"
            assert re.search("[\u4e00-\u9fff]", made.page.inner_text("h1")), page
            made.until_refreshed()
            assert re.search("[\u4e00-\u9fff]", made.page.inner_text("main")), page
            assert made.page.evaluate("document.documentElement.scrollWidth") <= 390, page
    assert made.said == []
    made.close()


def test_other_language_keeps_the_filters_and_is_kept(browser: Browser, panel: Program) -> None:
    made = tab(browser, panel, locale="en-US")
    made.open(f"/groups?q={GROUP[:4]}&sort=name")
    made.page.click("header a[hreflang=zh-CN]")
    assert made.page.get_attribute("html", "lang") == "zh-CN"
    assert (made.page.input_value("#search"), made.page.input_value("[name=sort]")) == (GROUP[:4], "name")
    made.open("/topics")
    assert made.page.get_attribute("html", "lang") == "zh-CN"
    assert made.said == []
    made.close()


def test_figures_go_on_without_a_reload_and_stop_while_paused(browser: Browser, panel: Program) -> None:
    made = tab(browser, panel)
    made.open(f"/groups/{GROUP}")
    made.until_changed("[...document.querySelectorAll('[aria-label=Queues] td')].map(each => each.textContent).join()")
    made.page.keyboard.press("p")
    made.page.wait_for_timeout(1_000)
    count = len(made.requests)
    made.page.wait_for_timeout(4_000)
    assert len(made.requests) == count
    made.close()


def test_live_tail_grows_without_a_reload(browser: Browser, panel: Program) -> None:
    made = tab(browser, panel)
    made.open(f"/topics/{TOPIC}/tail")
    made.page.wait_for_selector("[data-part=rows] tbody tr:nth-child(5)", timeout=LIMIT_MS)
    made.until_changed("document.querySelector('[data-part=rows] tbody tr').textContent")
    assert sum(url.endswith("/tail") for url in made.requests) > 1
    assert made.said == []
    made.close()


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
    made.close()


def test_words_of_clients_are_no_markup(browser: Browser, panel: Program) -> None:
    made = tab(browser, panel)
    made.open(f"/topics/{TOPIC}/messages?key={HOSTILE}")
    assert HOSTILE in made.page.inner_text("tbody")
    made.page.click("tbody a")
    assert HOSTILE in made.page.inner_text("pre")
    assert "hacked" not in made.page.title()
    assert made.said == []
    made.close()


def test_body_that_looks_like_a_stream_of_events_stays_text(browser: Browser, panel: Program) -> None:
    made = tab(browser, panel)
    made.open(f"/topics/{TOPIC}/messages?key=events")
    assert EVENTS.split() == made.page.inner_text("tbody td:last-child").split()
    made.page.click("tbody a")
    assert made.page.inner_text("pre") == EVENTS
    assert made.page.locator("main b").count() == 0
    assert made.said == []
    made.close()


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
    made.close()


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
    made.close()


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
    made.close()


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
    made.close()


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
    assert f"Group {GROUP}: messages to consume again: 0, " in made.page.inner_text("pre")
    assert made.said == []
    made.close()


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
    made.close()
