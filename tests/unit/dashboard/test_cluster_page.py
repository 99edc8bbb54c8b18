"""The page of the cluster: brokers that are away or gone, what needs attention, the latency of appends."""

import asyncio
import re
from dataclasses import replace

import pytest

from lockstep.testing import TestCluster
from support.asgi import get
from support.panel import checked, dashboard, shown, started
from support.why_kit import GROUP, TOPIC


async def test_broker_that_is_away_is_named_and_is_never_a_zero(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await started(cluster, "a")
    async with dashboard(cluster) as on:
        await cluster.advance(seconds=10)
        await shown(on, f"/topics/{TOPIC}")
        await cluster.pause("broker-b")
        await cluster.advance(seconds=12)
        front = await shown(on, "/")
        assert "broker-b does not answer, so sums exclude it" in front
        assert "– – – – –" in front
        assert "broker-b is left out" in await shown(on, f"/topics/{TOPIC}")
        assert "broker-b is left out" in await shown(on, f"/groups/{GROUP}")
        await cluster.resume("broker-b")
        await cluster.advance(seconds=30)
        assert "broker-b does not answer" not in await shown(on, "/")


async def test_sums_without_a_broker_that_is_gone_are_shown_and_name_it(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await started(cluster, "a")
    async with dashboard(cluster) as on:
        await cluster.advance(seconds=10)
        await shown(on, "/")
        await cluster.kill("broker-b")
        for _ in range(3):
            await cluster.advance(seconds=25)
            front = await shown(on, "/")
            assert re.search(r"broker-b is not registered, so sums exclude it\. It has not answered since \S+Z", front)
            for title in ("Stored", "Consumed", "Behind", "Hand-overs"):
                assert re.search(rf"{title} [\d.]+ [^–]*? last hour, without broker-b", front), (title, front)
            for url in ("/groups", f"/groups/{GROUP}", "/topics", f"/topics/{TOPIC}"):
                assert "Sums exclude broker-b." in await shown(on, url)
        await cluster.restart("broker-b")
        await cluster.advance(seconds=15)
        for url in ("/", "/groups"):
            assert "without broker-b" not in await shown(on, url)


async def test_front_page_tells_what_the_doctor_has_found(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await started(cluster, "a")
    async with dashboard(cluster) as on:
        assert "The examination has not ended yet" in (await get(on.app, "/")).text
        await cluster.kill("broker-b")
        await cluster.advance(seconds=70)
        await shown(on, "/")
        await cluster.advance(seconds=10)
        front = await shown(on, "/")
        found = re.search(r"Examination (.*) (\d+) problems", front)
        assert found is not None, front
        assert "broker-b" in found[1]
        assert int(found[2]) > 0


async def test_without_a_nameserver_pages_say_so_and_keep_the_last_figures(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await started(cluster, "a")
    await cluster.kill("nameserver-1")
    async with dashboard(cluster) as on:
        await cluster.advance(seconds=8)
        for url in ("/", "/topics", "/groups"):
            assert "The nameservers do not answer" in await shown(on, url)
        assert "no nameserver responds" in await shown(on, f"/groups/{GROUP}")
        await cluster.restart("nameserver-1")
        await cluster.advance(seconds=60)
        assert "do not answer" not in await shown(on, "/")
        await cluster.kill("nameserver-1")
        await cluster.advance(seconds=8)
        front = await shown(on, "/")
        assert "The nameservers do not answer" in front
        assert "broker-a" in front


@pytest.mark.lockstep(brokers=1)
async def test_first_hundred_groups_that_need_attention_are_listed_and_the_others_counted(lockstep_cluster: TestCluster) -> None:
    await started(lockstep_cluster, "worker")
    async with dashboard(lockstep_cluster) as on:
        await asyncio.sleep(6)
        (known,) = on.watch.rates.groups
        on.watch.rates = replace(on.watch.rates, groups=tuple(replace(known, group=f"g{number}", failing=1) for number in range(103)))
        text = checked(await get(on.app, "/")).text
        assert "g99 :" in text
        assert "g100" not in text
        assert "3 more groups need attention: All groups" in text


async def test_page_of_the_cluster_shows_how_long_appends_took(lockstep_cluster: TestCluster) -> None:
    async with dashboard(lockstep_cluster) as on:
        await lockstep_cluster.advance(seconds=8)
        assert "Nothing was appended, or the latency is not known." in (await get(on.app, "/", x_part="latency")).text
        await started(lockstep_cluster, "a")
        await lockstep_cluster.advance(seconds=12)
        part = await get(on.app, "/", x_part="latency")
        counts = [int(count) for count in re.findall(r"<p>(\d+) appends: p50 ≤ [^.]*, maximum ≤ ", part.text)]
        assert len(counts) == 2
        assert min(counts) > 0
        assert part.text.count('class="heat-') >= 2


async def test_cluster_without_topics_and_groups_says_what_makes_them(lockstep_cluster: TestCluster) -> None:
    async with dashboard(lockstep_cluster) as on:
        await lockstep_cluster.advance(seconds=8)
        assert "lockstep topic create NAME makes one" in await shown(on, "/topics")
        assert "A group begins with its first consumer" in await shown(on, "/groups")
        got = await get(on.app, f"/groups/{GROUP}")
        assert (got.status, "No broker knows this group" in got.text) == (404, True)
        assert "no topic 'orders'" in await shown(on, f"/topics/{TOPIC}")
        assert f"no broker knows group {GROUP}" in await shown(on, f"/groups/{GROUP}/why")
