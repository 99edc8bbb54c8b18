"""A tab of the browser over a real cluster, which a shop and a group keep busy."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from browser.pages import GROUP, TOPIC
from lockstep.client import ConcurrentlyContext, Message, MessageExt, OrderlyContext, Producer, PushConsumer
from support.processes import Program, program

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page, Response  # type: ignore[import-not-found, unused-ignore]

HOSTILE = "<script>document.title = 'hacked'</script>"
EVENTS = "first\n\ndata: <b>second</b>\n\nevent: third"
"""A body that would be three events in a stream of them."""
LIMIT_MS = 60_000
FAST = """{
  const [now, later] = [performance.now.bind(performance), setTimeout];
  performance.now = () => 50 * now();
  window.setTimeout = (act, milliseconds) => later(act, milliseconds / 50);
}"""
"""Lets the clock of a page's script run 50 times as fast."""
LETTERS, FAILING, LETTERS_COUNT = "letters", "mailing", 20
"""A topic, the group that gives up on its messages, and how many there are."""


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
            await producer.send(Message(TOPIC, EVENTS.encode(), sharding_key="events"))
            consumer = PushConsumer(GROUP, nameserver=self._nameserver).subscribe(TOPIC)
            consumer.orderly(listen)
            failing = PushConsumer(FAILING, nameserver=self._nameserver, max_reconsume_times=0).subscribe(LETTERS)
            failing.concurrently(fail)
            async with consumer, failing:
                for _ in range(LETTERS_COUNT):
                    await producer.send(Message(LETTERS, b"x"))
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


async def fail(messages: Sequence[MessageExt], context: ConcurrentlyContext) -> None:
    raise RuntimeError("the customer has no address")


def serving(nameserver: str, listen: str, *options: str) -> Any:
    return program("lockstep.cli.main", "dashboard", "--nameserver", nameserver, "--listen", listen, *options, event="dashboard.started")


@dataclass
class Tab:
    """A tab, what its console said, and what it requested."""

    page: "Page"
    base: str
    said: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    refreshed: list[str] = field(default_factory=list)
    """The parts of pages that the script was sent, one after the other."""

    def open(self, path: str) -> None:
        self.page.goto(self.base + path)

    def until_refreshed(self, times: int = 1) -> None:
        """Return when each part of the page that is open was refreshed so many times more."""
        opened = "found => found.filter(each => !each.closest('details:not([open])')).map(each => each.dataset.part)"
        wanted = self.page.eval_on_selector_all("[data-part]", opened)
        before, waited_ms = len(self.refreshed), 0
        while any(self.refreshed[before:].count(part) < times for part in wanted):
            assert waited_ms < LIMIT_MS, (self.page.url, wanted, self.refreshed[before:])
            self.page.wait_for_timeout(50)
            waited_ms += 50

    def until_changed(self, shown: str) -> None:
        """Return when this JavaScript expression has another value on the page that is open."""
        before, waited_ms = self.page.evaluate(shown), 0
        while self.page.evaluate(shown) == before:
            assert waited_ms < LIMIT_MS, (self.page.url, shown, before)
            self.page.wait_for_timeout(500)
            waited_ms += 500

    def send_form(self, path: str, fields: Mapping[str, str], button: str) -> None:
        """Open a form, fill it in, and send it."""
        self.open(path)
        for name, value in fields.items():
            filled = self.page.locator(f"form.change [name={name}]")
            if filled.evaluate("each => each.tagName") == "SELECT":
                filled.select_option(value)
            else:
                filled.fill(value)
        self.page.click(f"text={button}")

    def close(self) -> None:
        self.page.context.close()


def tab(browser: "Browser", panel: Program, *, fast: bool = False, base: str | None = None, **options: Any) -> Tab:
    """Return a new tab. `fast`: its script is FAST. `base`: where the dashboard is found, if not where it listens."""
    return in_context(browser.new_context(**options), base or panel.started["address"].rstrip("/"), fast=fast)


def in_context(context: "BrowserContext", base: str, *, fast: bool) -> Tab:
    """Return a new tab of a context."""
    made = Tab(context.new_page(), base)
    if fast:
        made.page.add_init_script(FAST)
    made.page.on("console", lambda message: made.said.append(message.text))
    made.page.on("pageerror", lambda error: made.said.append(str(error)))
    made.page.on("request", lambda request: made.requests.append(request.url))
    made.page.on("response", lambda response: note(made.refreshed, response))
    return made


def note(refreshed: list[str], response: "Response") -> None:
    part = response.request.headers.get("x-part")
    if part is not None and response.status in (200, 304):
        refreshed.append(part)
