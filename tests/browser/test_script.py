"""The script of the pages in Chromium: it refreshes them, shows times, reads charts, and stops where there is nothing more to ask.

`scripts/browser` runs these tests.
"""

import os
import re
from datetime import UTC, datetime, timedelta

import pytest

from browser.pages import GROUP, TOPIC
from browser.tab import FAILING, LETTERS_COUNT, LIMIT_MS, Tab, in_context, tab
from lockstep.dashboard.changes.forms import form_of
from lockstep.operations.changes.catalogue import CHANGES
from support.processes import Program

if "LOCKSTEP_TEST_BROWSER" not in os.environ:
    pytest.skip("scripts/browser runs these tests", allow_module_level=True)

from playwright.sync_api import Browser  # type: ignore[import-not-found, unused-ignore]

ZONE, OFFSET = "Asia/Kolkata", timedelta(hours=5, minutes=30)
TABS = 9
"""More than a browser has connections to one host."""
REFRESHES = 200
GROWN_NODES_MAX, GROWN_BYTES_MAX = 1_500, 1_500_000
"""What a page may have grown by after REFRESHES: less than 8 nodes for each."""
ALWAYS_NEW = """{
  const ask = fetch;
  window.fetch = (address, { headers, ...options }) => ask(address, { headers: { "X-Part": headers["X-Part"] }, ...options });
}"""
"""Lets the script ask for a part as if it had none, so that it puts every response into the page."""


def test_time_of_another_day_has_its_date(browser: Browser, panel: Program) -> None:
    made = tab(browser, panel, timezone_id=ZONE)
    made.open(f"/topics/{TOPIC}/messages")
    first = "tbody time >> nth=0"
    at = datetime.fromisoformat(str(made.page.get_attribute(first, "datetime")))
    local = (at + OFFSET).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    if (datetime.now(UTC) + OFFSET).date() == (at + OFFSET).date():
        assert made.page.inner_text(first) in (local.partition(" ")[2], local), "it is today, unless midnight has just passed"
    made.page.clock.set_fixed_time(at + timedelta(days=7))
    made.page.click("#times")
    assert made.page.inner_text(first) == at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    made.page.click("#times")
    assert made.page.inner_text(first) == local
    made.close()


def test_axis_of_the_owners_has_the_time_that_is_chosen_and_names_its_zone(browser: Browser, panel: Program) -> None:
    made = tab(browser, panel, fast=True, timezone_id=ZONE)
    made.open(f"/groups/{GROUP}")
    made.page.wait_for_selector(".picture .zone", state="attached", timeout=LIMIT_MS)
    made.page.keyboard.press("p")
    for zone, offset in (("UTC+05:30", OFFSET), ("UTC", timedelta(0))):
        assert made.page.text_content(".picture .zone") == zone
        marks = made.page.eval_on_selector_all(
            ".picture [data-ms]:not(.zone)", "found => found.map(each => [Number(each.dataset.ms), each.textContent])"
        )
        assert marks
        for at_ms, text in marks:
            assert text == (datetime.fromtimestamp(at_ms / 1000, UTC) + offset).strftime("%H:%M:%S")
        made.page.click("#times")
    assert made.said == []
    made.close()


def readings(made: Tab) -> list[str]:
    return [each.replace("\u00a0", " ").strip() for each in made.page.locator(".read").all_inner_texts()]


def test_charts_of_a_page_are_read_at_one_time_by_pointer_and_by_keys(browser: Browser, panel: Program) -> None:
    made = tab(browser, panel, timezone_id=ZONE)
    made.open("/")
    made.page.wait_for_function("Number(document.querySelector('.chart').dataset.until) > 0", timeout=LIMIT_MS)
    assert readings(made) == [""] * 4
    box = made.page.locator(".plot").nth(1).bounding_box()
    assert box is not None
    made.page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 10)
    shown = readings(made)
    assert all(re.fullmatch(r"(\S+ )?\d\d:\d\d:\d\d  (\S+)", each) for each in shown), shown
    assert len({each.partition("  ")[0] for each in shown}) == 1, "one time"
    assert made.page.locator(".cross:visible").count() == 4
    made.page.mouse.move(1, 1)
    assert readings(made) == [""] * 4
    chart = made.page.locator(".chart").first
    chart.focus()
    last = chart.get_attribute("aria-valuetext")
    made.page.keyboard.press("ArrowLeft")
    before = chart.get_attribute("aria-valuetext")
    assert (last == before, chart.get_attribute("aria-valuenow")) == (False, "-1")
    values = str(chart.get_attribute("data-values")).split(",")
    expected = "–" if len(values) < 2 or not values[-2] else f"{float(values[-2]):,.1f}".removesuffix(".0")
    assert readings(made)[0].partition("  ")[2] == expected
    made.until_refreshed()
    assert made.page.evaluate("document.activeElement.className") == "chart", "a refresh keeps the focus and the time"
    assert readings(made)[0].partition("  ")[0] == str(before).partition("  ")[0]
    made.page.keyboard.press("End")
    assert chart.get_attribute("aria-valuenow") == "0"
    made.page.keyboard.press("Tab")
    made.page.evaluate("document.activeElement.blur()")
    assert readings(made) == [""] * 4
    assert made.said == []
    made.close()


def change(made: Tab, path: str, fields: dict[str, str], typed: str = "") -> None:
    """Plan a change and carry it out; both pages can refresh their parts."""
    made.send_form(path, fields, "Show what it does")
    made.until_refreshed()
    if typed:
        made.page.fill("[name=typed]", typed)
    made.page.click("button.do")
    made.page.wait_for_selector("text=Done", timeout=LIMIT_MS)
    made.until_refreshed()
    assert made.page.is_hidden("#lost")


def test_deleted_topic_is_told_on_its_page_which_asks_no_more(browser: Browser, panel: Program) -> None:
    made, other = tab(browser, panel, fast=True), tab(browser, panel, fast=True)
    change(made, "/changes/topic-create", {"topic": "doomed", "queues": "1"})
    other.open("/topics/doomed")
    other.until_refreshed()
    change(made, "/changes/topic-delete", {"topic": "doomed"}, "doomed")
    other.page.wait_for_selector("text=The topic doomed was deleted.", timeout=LIMIT_MS)
    count = len(other.requests)
    other.page.wait_for_timeout(1_000)
    assert len(other.requests) == count
    assert other.page.is_hidden("#lost")
    assert (made.said, other.said) == ([], [])
    made.close()
    other.close()


REQUIRED = {"topic": TOPIC, "group": GROUP, "broker": "broker-a", "address": "127.0.0.1:1"}
GIVEN: dict[str, dict[str, str]] = {
    "topic-create": {"topic": "planned"},
    "topic-alter": {"queues": "16"},
    "topic-purge": {"to": "end"},
    "send": {"body": "x"},
    "group-reset": {"to": "end"},
    "group-settings": {"consume": "no"},
    "dlq-replay": {"group": FAILING},
}
FORMS = {
    form.name: {field.name: REQUIRED.get(field.name, "1") for field in form.fields if field.declared.required} | GIVEN.get(form.name, {})
    for form in map(form_of, CHANGES)
    if form.title
}


def test_every_page_that_answers_a_form_refreshes_its_parts(browser: Browser, panel: Program) -> None:
    made = tab(browser, panel, fast=True)
    made.open("/changes")
    links = made.page.eval_on_selector_all("main ul a", "found => found.map(each => each.pathname)")
    assert {link.rpartition("/")[2] for link in links} == FORMS.keys()
    for name, fields in FORMS.items():
        made.send_form(f"/changes/{name}", fields, "Show what it does")
        made.until_refreshed(3)
        assert made.page.is_hidden("#lost"), name
    assert all("409 (Conflict)" in line for line in made.said), "plans that are refused"
    made.close()


def test_stop_of_a_replay_leads_to_the_list_which_goes_on(browser: Browser, panel: Program) -> None:
    made = tab(browser, panel, fast=True)
    made.open(f"/groups/{FAILING}/dead")
    made.page.wait_for_selector(f"tbody tr:nth-child({LETTERS_COUNT})", timeout=LIMIT_MS)
    change(made, "/changes/dlq-replay", {"group": FAILING, "to": "retry", "rate": "1"}, FAILING)
    made.open("/changes")
    stop = made.page.locator("button:has-text('Stop')")
    stop.focus()
    made.until_changed("document.querySelector('[data-part=replays]').textContent")
    assert made.page.evaluate("document.activeElement.id") == f"stop-{FAILING}", "a refresh keeps the keyboard on the button of its row"
    stop.click()
    made.page.wait_for_url("**/changes", timeout=LIMIT_MS)
    made.page.wait_for_selector("text=stopped", timeout=LIMIT_MS)
    made.until_refreshed(3)
    assert made.page.is_hidden("#lost")
    assert made.said == []
    made.close()


def test_nine_tabs_are_refreshed_at_once(browser: Browser, panel: Program) -> None:
    context = browser.new_context()
    base = panel.started["address"].rstrip("/")
    tabs = [in_context(context, base, fast=False) for _ in range(TABS)]
    for made in tabs:
        made.open(f"/groups/{GROUP}")
    for made in tabs:
        made.until_refreshed()
        assert made.page.is_hidden("#lost")
        assert made.said == []
    context.close()


def size(made: Tab) -> tuple[int, int]:
    """Return the nodes and the bytes that the page has after a collection of garbage."""
    session = made.page.context.new_cdp_session(made.page)
    session.send("Performance.enable")
    session.send("HeapProfiler.collectGarbage")
    found = {each["name"]: int(each["value"]) for each in session.send("Performance.getMetrics")["metrics"]}
    session.detach()
    return found["Nodes"], found["JSHeapUsedSize"]


def test_page_does_not_grow_with_its_refreshes(browser: Browser, panel: Program) -> None:
    made = tab(browser, panel, fast=True)
    made.page.add_init_script(ALWAYS_NEW)
    made.open(f"/groups/{GROUP}")
    made.until_refreshed(10)
    nodes, used = size(made)
    before = len(made.refreshed)
    while len(made.refreshed) < before + REFRESHES:
        made.until_refreshed(10)
    grown_nodes, grown = (after - before for after, before in zip(size(made), (nodes, used), strict=True))
    assert grown_nodes <= GROWN_NODES_MAX
    assert grown <= GROWN_BYTES_MAX
    made.close()
