"""The page of a group: who held which queue, groups of many queues, what its viewers cost, what it lags behind."""

import asyncio
import re
from dataclasses import replace
from datetime import datetime

import pytest

from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support.asgi import get
from support.panel import checked, dashboard, shown, started
from support.why_kit import GROUP, TOPIC, Member, send


async def test_killed_member_is_shown_with_its_grace_and_its_successor(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await started(cluster, "a", "b")
    async with dashboard(cluster) as on:
        await cluster.advance(seconds=10)
        await shown(on, f"/groups/{GROUP}")
        await cluster.kill("b")
        await send(cluster, 40, keys=40)
        await cluster.settled(GROUP)
        await cluster.advance(seconds=6)
        text = await shown(on, f"/groups/{GROUP}")
        assert "2 lost with the owner (median 3.0 s" in text
        assert "its connection was lost, and the grace is over" in text


def bars(text: str) -> list[tuple[str, str, int, int]]:
    """Return (queue, member, from, until) of each bar of the lanes; the times are ms since 1970."""
    found = re.findall(r"<title>([^<]+?:\d+): ([^<]+?), (\S+Z) to (\S+Z),", text)
    return [(queue, member, *(int(datetime.fromisoformat(at).timestamp() * 1000 + 0.5) for at in times)) for queue, member, *times in found]


async def test_new_owner_is_never_shown_for_the_time_of_the_one_before(lockstep_cluster: TestCluster) -> None:
    """The brokers report an owner before the dashboard reads the events that made it one."""
    cluster = lockstep_cluster
    await started(cluster, "a", "b")
    await cluster.advance(seconds=70)
    async with dashboard(cluster) as on:
        await cluster.advance(seconds=12)
        lanes = f"/groups/{GROUP}?window=1"
        await get(on.app, lanes)
        await cluster.advance(seconds=5)  # so that the queues move soon after all events were read
        before = {(queue, member) for queue, member, *_ in bars((await get(on.app, lanes)).text)}
        assert len(before) == 4
        await cluster.kill("b")
        killed_ms = Host.current().clock.wall_ms()
        moved = set()
        for _ in range(30):
            await cluster.advance(seconds=0.4)
            for queue, member, from_ms, _ in bars((await get(on.app, lanes)).text):
                if (queue, member) not in before:
                    moved.add(queue)
                    assert from_ms >= killed_ms
        assert len(moved) == 2


async def test_lanes_are_by_the_clock_of_the_dashboard(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    cluster.set_wall_clock("broker-a", ahead_seconds=15)
    cluster.set_wall_clock("broker-b", ahead_seconds=-15)
    await started(cluster, "a")
    async with dashboard(cluster) as on:
        await cluster.advance(seconds=60)
        joined_ms = Host.current().clock.wall_ms()
        await cluster.start("b", Member(cluster).run)
        await cluster.advance(seconds=6)
        text = await shown(on, lanes := f"/groups/{GROUP}?window=1")
        assert "The clock of broker-a is 15 s ahead of the dashboard's; the times of its events" in text
        assert "The clock of broker-b is 15 s behind the dashboard's; the times of its events" in text
        page = (await get(on.app, lanes)).text
        now_ms = Host.current().clock.wall_ms()
        newest = {queue: max(bars(page), key=lambda bar: (bar[0] == queue, bar[2])) for queue, *_ in bars(page)}
        assert len(newest) == 4
        assert all(now_ms - 5_100 <= until_ms <= now_ms for _, _, _, until_ms in newest.values()), "no lane ends early"
        moved = [from_ms for _, _, from_ms, _ in newest.values() if from_ms > joined_ms]
        assert len(moved) == 2
        assert max(moved) - joined_ms < 6_000, "a broker whose clock is ahead shows its newest events"


async def test_many_queues_are_shown_at_a_glance(lockstep_cluster: TestCluster) -> None:
    await lockstep_cluster.create_topic(TOPIC, queues=16)
    await lockstep_cluster.start("a", Member(lockstep_cluster).run)
    await send(lockstep_cluster, 400, keys=400)
    await lockstep_cluster.settled(GROUP)
    async with dashboard(lockstep_cluster) as on:
        await lockstep_cluster.advance(seconds=8)
        assert "broker-a: 16 queues, highest 0 broker-b: 16 queues, highest 0" in await shown(on, f"/groups/{GROUP}")
        assert re.search(r"broker-b: 16 queues, highest \d\d 0 0 1\+", await shown(on, f"/topics/{TOPIC}"))


async def test_all_queues_are_within_reach_page_by_page(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=120)
    await cluster.start("a", Member(cluster).run)
    await cluster.advance(seconds=5)
    async with dashboard(cluster) as on:
        await cluster.advance(seconds=12)
        for url in (f"/groups/{GROUP}?window=15", f"/topics/{TOPIC}?"):
            queues = set()
            for page in (1, 2, 3, 9, "x"):
                text = (await get(on.app, f"{url}&page={page}", x_part="rest" if "group" in url else "queues")).text
                rows = re.findall(r"<td>(broker-[ab])</td><td class=\"n\">(?:<a [^>]*>)?(\d+)<", text)
                assert len(rows) == (40 if page in (3, 9) else 100), (url, page)
                queues |= set(rows)
                assert "240 queues" in text
                assert ("page=2" in text) == (page != 2), (url, page)
            assert len(queues) == 240
        text = await shown(on, f"/groups/{GROUP}")
        assert "176 queues that moved less often are not shown" in text
        assert re.search(r"Queues held .* yes \S+( \w+)? 240 ", text)


async def test_many_viewers_of_a_group_cost_its_brokers_one_question(
    lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await started(lockstep_cluster, "a")
    async with dashboard(lockstep_cluster) as on:
        await lockstep_cluster.advance(seconds=8)
        asked = []
        status = on.watch.admin.group_status

        async def counted(*args: object, **options: object) -> object:
            asked.append(args)
            return await status(*args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(on.watch.admin, "group_status", counted)
        for _ in range(10):
            await asyncio.gather(*(get(on.app, f"/groups/{GROUP}") for _ in range(20)))
            await asyncio.sleep(1)
        assert 2 * 4 <= len(asked) <= 2 * 6
        count = len(asked)
        await asyncio.sleep(60)
        assert len(asked) == count


async def test_group_says_what_is_stored_in_its_topics_and_that_its_lag_grows(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await started(cluster, "a")
    async with dashboard(cluster) as on:
        await cluster.advance(seconds=8)
        (known,) = on.watch.rates.groups
        growing = replace(known, lag=8, given_s=3.0, stored_s=12.0, gone_ms=None)
        on.watch.rates = replace(on.watch.rates, groups=(growing,))
        text = checked(await get(on.app, f"/groups/{GROUP}")).text
        assert "Behind 8 messages, growing" in text
        assert "Consumed 3.0 messages per second; stored in its topics: 12" in text
