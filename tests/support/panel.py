"""The dashboard over a simulated cluster, and what its pages show."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from html.parser import HTMLParser

from lockstep.client import Message, MessageQueue, Producer
from lockstep.dashboard import Dashboard
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support.asgi import Got, get
from support.why_kit import GROUP, TOPIC, Member, send

EMPTY = ("meta", "link", "input", "br", "path", "rect", "line", "circle")


class Checked(HTMLParser):
    """Reads a page, and notes what must not be in one."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        if self.open:
            self.wrong.append(f"not closed: {self.open}")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.wrong += [f"{tag} has {name}" for name in named if name == "style" or name.startswith("on")]
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "action")]
        if tag == "svg" and not named.get("aria-label"):
            self.wrong.append("a picture without a name")
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if tag in EMPTY:
            return
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> closes another element")

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style") and data.strip():
            self.wrong.append(f"text in {self.open[-1]}")
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def checked(got: Got) -> Checked:
    page = Checked(got.text)
    assert page.wrong == []
    assert not [link for link in page.links if "//" in link], "one host is asked"
    return page


@asynccontextmanager
async def dashboard(cluster: TestCluster, *, bodies: bool = True) -> AsyncIterator[Dashboard]:
    made = Dashboard(cluster.nameserver, host=Host.current(), bodies=bodies)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def shown(on: Dashboard, url: str) -> str:
    """Return the words of a page once what it asks for has been answered."""
    await get(on.app, url)
    await asyncio.sleep(4)
    return checked(await get(on.app, url)).text


async def stored(cluster: TestCluster, *messages: Message) -> list[str]:
    """Send messages, those without a key to one queue after another. Return their offset message ids."""
    turns = itertools.count()

    def next_queue(queues: Sequence[MessageQueue], _: Message) -> MessageQueue:
        return queues[next(turns) % len(queues)]

    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        sends = (producer.send(each, selector=None if each.sharding_key else next_queue) for each in messages)
        return [(await send).offset_message_id for send in sends]


async def started(cluster: TestCluster, *names: str) -> None:
    """Create the topic with 2 queues, start these members of the group, and wait until they have handled 40 messages."""
    await cluster.create_topic(TOPIC, queues=2)
    for name in names:
        await cluster.start(name, Member(cluster).run)
        await cluster.advance(seconds=3)
    await send(cluster, 40, keys=40)
    await cluster.settled(GROUP)
