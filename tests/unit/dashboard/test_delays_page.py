"""What waits for its time, on one page over a simulated cluster: numbers that move as time passes, brokers that are away."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from lockstep.client import ConcurrentlyContext, Message, MessageExt, PushConsumer
from lockstep.dashboard import Dashboard
from lockstep.protocol.bodies import DelayFigures, Overview
from lockstep.testing import TestCluster
from support.asgi import get
from support.delayed import send_delayed
from support.panel import checked, dashboard, stored

URL = "/delays"
TOPIC = "orders"


async def text(on: Dashboard) -> str:
    return checked(await get(on.app, URL)).text


async def periods(on: Dashboard) -> list[int]:
    """Return the numbers of the picture: overdue, within 1m, 1m to 5m, 5m to 30m, 30m to 2h, after 2h."""
    found = re.search(r"<desc>([^<]*)</desc>", (await get(on.app, URL)).text)
    assert found is not None
    return [int(each.rsplit(" ", 1)[1]) for each in found[1].split(", ")]


@pytest.mark.slow
async def test_messages_of_several_delays_at_two_brokers_come_nearer_until_none_waits(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    async with dashboard(cluster) as on:
        await cluster.advance(seconds=6)
        nothing = await text(on)
        assert "No message waits. A producer delays a message with await producer.send(message, delay=timedelta(seconds=30))" in nothing
        assert "Delay queues" not in nothing
        await send_delayed(cluster, TOPIC, {5: 4, 6: 2, 14: 6, 18: 8})
        await cluster.advance(seconds=10)
        assert "Messages that wait: 20" in await text(on)
        assert await periods(on) == [0, 4, 2, 6, 8, 0]
        assert re.search(r"1m 4 in \d\d s broker-a, broker-b 2m 2 in 1\d\d s broker-a, broker-b 10m 6 in 9 min", await text(on))
        await cluster.advance(minutes=1)
        assert await periods(on) == [0, 2, 0, 6, 8, 0]
        assert re.search(r"2m 2 in [45]\d s", await text(on))
        await cluster.advance(minutes=5)
        assert await periods(on) == [0, 0, 6, 0, 8, 0]
        await cluster.advance(hours=1)
        assert await periods(on) == [0, 0, 0, 0, 8, 0]
        assert "2h 8 in 53 min broker-a, broker-b" in await text(on)
        await cluster.advance(hours=1)
        assert "No message waits." in await text(on)


async def test_next_due_is_that_of_the_oldest_message(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    async with dashboard(cluster) as on:
        await send_delayed(cluster, TOPIC, {17: 2})
        await cluster.advance(minutes=20)
        await send_delayed(cluster, TOPIC, {17: 4})
        await cluster.advance(seconds=10)
        assert "1h 6 in 39 min" in await text(on)
        assert await periods(on) == [0, 0, 0, 0, 6, 0]
        await cluster.advance(minutes=15)
        assert await periods(on) == [0, 0, 0, 2, 4, 0]


async def test_retries_of_concurrent_groups_wait_there_too(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)

    def fail(messages: Sequence[MessageExt], context: ConcurrentlyContext) -> None:
        raise RuntimeError("not now")

    async def mail() -> None:
        consumer = PushConsumer("mailing", nameserver=cluster.nameserver).subscribe(TOPIC)
        consumer.concurrently(fail)
        async with consumer:
            await consumer.wait_closed()

    await cluster.start("mailing-1", mail)
    await cluster.advance(seconds=5)
    await stored(cluster, Message(TOPIC, b"x"))
    async with dashboard(cluster) as on:
        await cluster.advance(seconds=6)
        assert re.search(r"10s 1 in \d\.\d s broker-[ab]", await text(on))


async def test_broker_that_is_away_is_named_and_sums_are_without_it(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    async with dashboard(cluster) as on:
        await send_delayed(cluster, TOPIC, {18: 8})
        await cluster.advance(seconds=6)
        assert "Messages that wait: 8" in await text(on)
        await cluster.pause("broker-b")
        await cluster.advance(seconds=12)
        alone = await text(on)
        assert alone.count("broker-b") == 1
        assert "broker-b does not answer, so sums exclude it" in alone
        assert "2h 4 in 119 min broker-a " in alone
        await cluster.pause("broker-a")
        await cluster.advance(seconds=12)
        nobody = await text(on)
        assert "No message waits" not in nobody, "it is not known"
        assert "Messages that wait:" not in nobody
        await cluster.resume("broker-a")
        await cluster.resume("broker-b")
        await cluster.advance(seconds=12)
        assert "Messages that wait: 8" in await text(on)


def figures_of(on: Dashboard, broker: str) -> Overview:
    found = on.watch.looks[broker]
    assert isinstance(found, Overview)
    return found


@pytest.mark.lockstep(brokers=1)
async def test_overdue_messages_are_marked_and_unknown_times_are_a_dash(lockstep_cluster: TestCluster) -> None:
    async with dashboard(lockstep_cluster) as on:
        await lockstep_cluster.advance(seconds=6)
        delays = (DelayFigures(30_000, 3, -75_000, (3, 0, 0, 0, 0, 0)), DelayFigures(60_000, 7, None, None))
        on.watch.looks = {"broker-a": replace(figures_of(on, "broker-a"), delays=delays)}
        got = await get(on.app, URL)
        found = checked(got).text
        assert "Messages with the delay 30s are overdue for 75 s. The broker's log says why: delay.refused" in found
        assert "30s 3 overdue for 75 s broker-a 1m 7 – broker-a" in found
        assert "Messages whose broker has not looked up when they are due: 7" in found
        assert got.text.count('<tr class="bad">') == 1
        assert await periods(on) == [3, 0, 0, 0, 0, 0]
        on.watch.looks = {"broker-a": replace(figures_of(on, "broker-a"), delays=delays[1:])}
        assert "<svg" not in (await get(on.app, URL)).text


@pytest.mark.lockstep(brokers=1)
async def test_name_of_a_broker_is_only_a_word(lockstep_cluster: TestCluster) -> None:
    async with dashboard(lockstep_cluster) as on:
        await lockstep_cluster.advance(seconds=6)
        hostile = "<script>alert(1)</script>\u202e"
        own = replace(figures_of(on, "broker-a"), delays=(DelayFigures(-1, -5, -(10**15), (1, 2)), DelayFigures(10**15, 1, 10**15, ())))
        on.watch.looks = {hostile: own, hostile * 2: hostile}
        page = await text(on)
        assert "<script>alert(1)</script>\\u202e" in page
        assert "\u202e" not in page


async def test_json_is_as_new_as_the_request(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    async with dashboard(cluster) as on:
        await cluster.advance(seconds=6)
        await send_delayed(cluster, TOPIC, {16: 2})
        found = json.loads((await get(on.app, f"{URL}?format=json")).text)
        assert (found["waiting"], found["untimed"], found["failed"]) == (2, 0, {})
        (line,) = found["delays"]
        assert (line["delay_ms"], line["waiting"]) == (1_800_000, 2)
        assert 0 <= 1_800_000 - line["first_due_ms"] < 10_000
        assert [each["messages"] for each in found["due"]] == [0, 0, 0, 2, 0, 0]


async def test_the_page_is_in_the_navigation(lockstep_cluster: TestCluster) -> None:
    async with dashboard(lockstep_cluster) as on:
        await lockstep_cluster.advance(seconds=6)
        assert URL in checked(await get(on.app, "/")).links
        assert "没有等待的消息。" in checked(await get(on.app, f"{URL}?lang=zh-CN")).text
