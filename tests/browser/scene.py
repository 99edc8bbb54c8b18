"""What the dashboard shows of a simulated cluster, as its pages were at one moment: the same at each run.

A shop runs for eight minutes. At the end a member of the group `billing` is killed, another one joins, one leaves; a key is parked, and the
bank does not respond for an order. `mailing` has dead letters, `reports` lags, and `audit` has lost its only member. Reminders of orders
wait for their time, and a bank does not say whether it has paid.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from browser.pages import MESSAGE, PAGES, TOPIC
from browser.shop import Shop
from lockstep.client import Message, Producer
from lockstep.dashboard import Dashboard
from lockstep.dashboard.render import HERE
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster, simulate
from support.asgi import Got, get

LOOKS = 5
"""Looks at each page, 2 s apart, before the last one: what is asked only while somebody looks is known then."""


@dataclass(frozen=True, slots=True)
class Scene:
    """The responses of the dashboard at one moment."""

    message: str
    """The id of a message in the topic."""
    responses: Mapping[tuple[str, str | None], Got]
    """(Path, part of the page or None for the whole) → response."""

    def show(self, context: Any) -> None:
        """Let each page of a Playwright context get these responses, whatever else there is in the network."""
        context.route("**/*", lambda route: self._respond(route))

    def _respond(self, route: Any) -> None:
        path = urlsplit(route.request.url).path
        if path.startswith("/static/"):
            route.fulfill(path=HERE / path.removeprefix("/"))
        elif (got := self.responses.get((path, route.request.headers.get("x-part")))) is not None:
            route.fulfill(status=got.status, headers=got.headers, body=got.body)
        else:
            route.abort()

    def path(self, page: str) -> str:
        """Return where a page of PAGES is."""
        return page.replace(MESSAGE, self.message)


def record() -> Scene:
    """Return the scene, after some half a minute of work. It runs in a thread of its own: Playwright has a loop in the calling one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(simulate, _record).result()


async def _record() -> Scene:
    async with TestCluster(brokers=2) as cluster:
        shop = Shop(cluster.nameserver)
        await cluster.create_topic(TOPIC, queues=4)
        dashboards = [Dashboard(cluster.nameserver, host=Host.current(), changes=changes) for changes in (False, True)]
        for dashboard in dashboards:
            await dashboard.start()
        for name in ("billing-1", "billing-2", "billing-3"):
            await cluster.start(name, shop.bill)
            await cluster.advance(seconds=1)
        for name, program in {"mailing-1": shop.mail, "mailing-2": shop.mail, "reports-1": shop.report, "audit-1": shop.audit}.items():
            await cluster.start(name, program)
        await cluster.start("shop-1", shop.sell)
        await cluster.start("reminders-1", shop.remind)
        await cluster.start("payments-1", shop.settle)
        await cluster.advance(minutes=4)
        await cluster.stop("audit-1")
        await cluster.advance(minutes=1)
        message = await _send(cluster, 1001)
        shop.declined.add("order-17")
        await cluster.kill("billing-2")
        await cluster.advance(seconds=35)
        await cluster.start("billing-4", shop.bill)
        await cluster.advance(seconds=40)
        await cluster.stop("billing-3")
        await cluster.advance(seconds=30)
        shop.unanswered.add("order-1003")
        await _send(cluster, 1003)
        await cluster.advance(seconds=30)
        responses: dict[tuple[str, str | None], Got] = {}
        for dashboard, changes in zip(dashboards, (False, True), strict=True):
            paths = [page.replace(MESSAGE, message) for page in PAGES if page.startswith("/changes") == changes]
            responses |= await _responses(dashboard, paths)
            await dashboard.stop()
    return Scene(message, responses)


async def _send(cluster: TestCluster, order: int) -> str:
    """Store that an order was paid. Return the id of the message."""
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        body = b'{"order": %d, "event": "paid", "amount": 49.9, "currency": "EUR"}' % order
        name = f"order-{order}"
        sent = await producer.send(Message(TOPIC, body, tags="paid", keys=[name], sharding_key=name, properties={"tenant": "north"}))
        return sent.offset_message_id


async def _responses(dashboard: Dashboard, paths: Sequence[str]) -> dict[tuple[str, str | None], Got]:
    for _ in range(LOOKS):
        for path in paths:
            if "/messages" not in path:  # these read messages each time, which would be the most that the charts show
                await get(dashboard.app, path)
        await asyncio.sleep(2)
    found: dict[tuple[str, str | None], Got] = {}
    for path in paths:
        got = found[path, None] = await get(dashboard.app, path)
        assert got.status == 200, (path, got.status)
        for part in re.findall(r'data-part="(\w+)"', got.text):
            found[path, part] = await get(dashboard.app, path, x_part=part)
    return found
