"""The pages over a simulated cluster: what they show, brokers that come and go, hostile names, parts that refresh."""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs, quote

import pytest
from fastapi import FastAPI

from lockstep.admin.topic_change import delete_topic
from lockstep.client import Message, MessageExt, OrderlyContext, Producer
from lockstep.dashboard import Dashboard
from lockstep.dashboard.render import HERE
from lockstep.protocol.bodies import BrokerAddress
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import RequestCodeNotSupportedError
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support.asgi import get
from support.panel import checked, dashboard, shown, stored
from support.why_kit import GROUP, TOPIC, Member, send

PAGES = [
    "/",
    "/topics",
    f"/topics/{TOPIC}",
    "/groups",
    f"/groups/{GROUP}",
    f"/groups/{GROUP}/why",
    f"/groups/{GROUP}/why?queue={TOPIC}@broker-a:0",
    f"/groups/{GROUP}/dead",
    f"/groups/{GROUP}/parked",
    f"/groups/{GROUP}/parked?count=1",
    "/delays",
    "/settings",
    "/doctor",
    f"/topics/{TOPIC}/messages",
    f"/topics/{TOPIC}/tail",
    "/messages",
    "/messages/7F0000",
    "/nothing",
]


async def started(cluster: TestCluster, *names: str) -> None:
    await cluster.create_topic(TOPIC, queues=2)
    for name in names:
        await cluster.start(name, Member(cluster).run)
        await cluster.advance(seconds=3)
    await send(cluster, 40, keys=40)
    await cluster.settled(GROUP)


async def test_every_page_is_sound_before_the_first_look_and_after_it(lockstep_cluster: TestCluster) -> None:
    await started(lockstep_cluster, "a")
    async with dashboard(lockstep_cluster) as on:
        for _ in range(2):
            for url in PAGES:
                got = await get(on.app, url)
                assert got.status == (404 if url in ("/nothing", "/messages/7F0000") else 200), url
                checked(got)
            await lockstep_cluster.advance(seconds=20)


async def test_pages_show_topics_groups_and_brokers(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await started(cluster, "a", "b")
    async with dashboard(cluster) as on:
        await cluster.advance(seconds=12)
        front = await shown(on, "/")
        assert "broker-a" in front
        assert "broker-b" in front
        assert "No group fails" in front
        assert re.search(r"Hand-overs \d", front)
        assert re.search(r"≤ \d+ (µs|ms)|–", front)
        assert re.search(r"Examination 0 problems, \d\d checks passed", front)
        topics = await shown(on, "/topics")
        assert "1 topics" in topics
        assert TOPIC in topics
        assert GROUP in await shown(on, f"/topics/{TOPIC}")
        assert f"{GROUP} ordered 2 4 0" in await shown(on, "/groups")
        group = await shown(on, f"/groups/{GROUP}")
        assert "2 queues moved to another member: 2 released by the owner" in group
        assert "A joined" in group
        assert f"{TOPIC}@broker-a:0" in group
        assert "moves" in await shown(on, f"/groups/{GROUP}/why") or "idle" in await shown(on, f"/groups/{GROUP}/why")
        assert "checks passed" in await shown(on, "/doctor")


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
        assert "The clock of broker-a is 15 s ahead of the one of this dashboard" in text
        assert "The clock of broker-b is 15 s behind the one of this dashboard" in text
        page = (await get(on.app, lanes)).text
        now_ms = Host.current().clock.wall_ms()
        newest = {queue: max(bars(page), key=lambda bar: (bar[0] == queue, bar[2])) for queue, *_ in bars(page)}
        assert len(newest) == 4
        assert all(now_ms - 5_100 <= until_ms <= now_ms for _, _, _, until_ms in newest.values()), "no lane ends early"
        moved = [from_ms for _, _, from_ms, _ in newest.values() if from_ms > joined_ms]
        assert len(moved) == 2
        assert max(moved) - joined_ms < 6_000, "a broker whose clock is ahead shows its newest events"


async def test_broker_that_is_away_is_named_and_is_never_a_zero(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await started(cluster, "a")
    async with dashboard(cluster) as on:
        await cluster.advance(seconds=10)
        await shown(on, f"/topics/{TOPIC}")
        await cluster.pause("broker-b")
        await cluster.advance(seconds=12)
        front = await shown(on, "/")
        assert "broker-b does not answer, sums are without it" in front
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
            assert re.search(r"broker-b is not registered, sums are without it\. It has not answered since \S+Z", front)
            for title in ("Stored", "Consumed", "Behind", "Hand-overs"):
                assert re.search(rf"{title} [\d.]+ [^–]*? last hour, without broker-b", front), (title, front)
            for url in ("/groups", f"/groups/{GROUP}", "/topics", f"/topics/{TOPIC}"):
                assert "Sums are without broker-b." in await shown(on, url)
        await cluster.restart("broker-b")
        await cluster.advance(seconds=15)
        for url in ("/", "/groups"):
            assert "without broker-b" not in await shown(on, url)


async def test_broker_that_is_too_old_is_said_to_be_that(lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = lockstep_cluster
    await started(cluster, "a")
    async with dashboard(cluster) as on:
        refused = {RequestCode.GROUP_EVENTS}
        request = on.watch.admin.request

        async def older(broker: BrokerAddress, code: RequestCode, *args: object) -> object:
            if broker.name == "broker-b" and code in refused:
                raise RequestCodeNotSupportedError(f"request code {code} is not supported")
            return await request(broker, code, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(on.watch.admin, "request", older)
        await cluster.advance(seconds=12)
        front = await shown(on, "/")
        assert "broker-b is older than this dashboard: no history of its queues." in front
        assert "without broker-b" not in front
        refused.add(RequestCode.OVERVIEW)
        await cluster.advance(seconds=12)
        front = await shown(on, "/")
        assert "broker-b is older than this dashboard: no rates, no history. Sums are without it." in front
        assert "broker-b does not answer" not in front


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
        assert "Nothing was appended, or it is not known." in (await get(on.app, "/", x_part="latency")).text
        await started(lockstep_cluster, "a")
        await lockstep_cluster.advance(seconds=12)
        part = await get(on.app, "/", x_part="latency")
        counts = [int(count) for count in re.findall(r"<p>(\d+) appends: half of them ≤ [^.]*, all of them ≤ ", part.text)]
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


def listener(word: str) -> Callable[[Sequence[MessageExt], OrderlyContext], None]:
    def fail(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        raise RuntimeError(word)

    return fail


async def test_words_of_clients_are_only_words(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    hostile = "<script>alert(1)</script>\u202e\x07'\"&"
    await cluster.start("a", Member(cluster, listener(hostile)).run)
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        await producer.send(Message(TOPIC, hostile.encode(), sharding_key=hostile.replace("\x07", "")))
    async with dashboard(cluster) as on:
        await cluster.advance(seconds=12)
        for url in (f"/groups/{GROUP}", f"/groups/{GROUP}/why"):
            text = await shown(on, url)
            assert "<script>alert(1)</script>" in text
            assert "\u202e" not in text
        for url in (
            "/topics?q=<script>alert(1)</script>",
            "/groups/<script>alert(1)</script>",
            "/topics/%3Cscript%3E",
            "/groups?sort=<b>&page=-1",
        ):
            checked(await get(on.app, url))


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
        assert "176 queues, which moved less, have no lane here" in text
        assert re.search(r"Queues held .* yes \S+( \w+)? 240 ", text)


async def test_topic_that_was_just_created_is_listed(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await started(cluster, "a")
    async with dashboard(cluster) as on:
        await cluster.advance(seconds=6)
        assert "Topics without messages" not in await shown(on, "/topics")
        await cluster.create_topic("invoices", queues=1)
        await cluster.advance(seconds=6)
        text = await shown(on, "/topics")
        assert "Topics without messages invoices" in text
        assert f"{TOPIC} " in text
        assert "invoices" not in await shown(on, f"/topics?q={TOPIC}")
        assert "Topics without messages invoices" in await shown(on, "/topics?q=INV")
        await stored(cluster, Message("invoices", b"x"))
        await cluster.advance(seconds=6)
        assert "Topics without messages" not in await shown(on, "/topics")


async def test_topic_says_which_queue_has_a_key_and_how_it_is_laid_out(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await started(cluster, "a")
    async with dashboard(cluster) as on:
        await cluster.advance(seconds=6)
        async with Producer("checker", nameserver=cluster.nameserver) as producer:
            for key in ("1001", "<b>&é"):
                queue = (await producer.send(Message(TOPIC, b"x", sharding_key=key))).queue
                text = await shown(on, f"/topics/{TOPIC}?key={quote(key)}")
                assert f"{key} goes to queue {queue.queue_id} of {queue.broker_name}." in text
        text = await shown(on, f"/topics/{TOPIC}")
        assert "goes to queue" not in text
        assert "Layout, version 1" in text
        assert "broker-a 2 2 1 broker-b 2 2 1" in text


async def test_part_of_a_page_is_sent_alone_and_only_if_it_has_changed(lockstep_cluster: TestCluster) -> None:
    await started(lockstep_cluster, "a")
    async with dashboard(lockstep_cluster) as on:
        await lockstep_cluster.advance(seconds=8)
        whole = await get(on.app, "/groups")
        part = await get(on.app, "/groups", x_part="list")
        assert part.text.strip() in whole.text
        assert "<html" not in part.text
        again = await get(on.app, "/groups", x_part="list", if_none_match=part.headers["etag"])
        assert (again.status, again.body) == (304, b"")
        await send(lockstep_cluster, 4_000, keys=40)
        await lockstep_cluster.advance(seconds=8)
        changed = await get(on.app, "/groups", x_part="list", if_none_match=part.headers["etag"])
        assert changed.status == 200
        assert (await get(on.app, "/groups", x_part="secrets")).status == 404


async def test_every_part_that_a_page_refreshes_can_be_asked_for(lockstep_cluster: TestCluster) -> None:
    await started(lockstep_cluster, "a")
    async with dashboard(lockstep_cluster) as on:
        await lockstep_cluster.advance(seconds=8)
        for url in PAGES:
            whole = await get(on.app, url)
            parts = re.findall(r'data-part="(\w+)"', whole.text)
            assert parts[0] == "notices"
            for name in parts:
                part = await get(on.app, url, x_part=name)
                assert part.status in (200, whole.status), (url, name)
                assert "etag" in part.headers, (url, name)


async def test_figures_of_a_while_ago_are_shown_with_their_time(lockstep_cluster: TestCluster) -> None:
    """The time stays equal while the answer does, so that a part that has not changed is not sent again."""
    cluster = lockstep_cluster
    await started(cluster, "a")
    urls = [f"/topics/{TOPIC}", f"/groups/{GROUP}", f"/groups/{GROUP}/dead", f"/groups/{GROUP}/parked", "/settings", "/doctor"]
    async with dashboard(cluster) as on:
        await cluster.advance(seconds=8)
        for url in urls:
            assert "As of" not in await shown(on, url)
        read_ms = Host.current().clock.wall_ms()
        await cluster.advance(seconds=60)
        for url in urls:
            (time, *others) = set(re.findall(r"As of (\S+Z) ", checked(await get(on.app, url)).text))
            assert others == []
            assert 0 <= read_ms - datetime.fromisoformat(time).timestamp() * 1000 < 30_000, url
            assert "As of" not in await shown(on, url), "it is newer now"


async def test_dashboard_whose_watch_has_stopped_says_since_when(lockstep_cluster: TestCluster) -> None:
    await started(lockstep_cluster, "a")
    async with dashboard(lockstep_cluster) as on:
        await lockstep_cluster.advance(seconds=8)
        await on.tasks.cancel_all()
        assert "These figures are old" not in checked(await get(on.app, "/")).text
        await lockstep_cluster.advance(seconds=30)
        pages = [await get(on.app, "/", x_part="notices")]
        assert re.search(r"no look at the cluster has ended since \S+Z ", checked(pages[0]).text)
        await lockstep_cluster.advance(seconds=3)
        pages.append(await get(on.app, "/", x_part="notices"))
        assert pages[0].headers["etag"] == pages[1].headers["etag"]


async def test_links_carry_the_path_under_which_a_proxy_serves_the_dashboard(lockstep_cluster: TestCluster) -> None:
    await started(lockstep_cluster, "a")
    async with dashboard(lockstep_cluster) as on:
        await lockstep_cluster.advance(seconds=8)
        for url in PAGES:
            page = checked(await get(on.app, url, root="/lockstep"))
            assert page.links
            assert all(link.startswith(("/lockstep/", "?", "#")) for link in page.links), url


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


async def test_group_and_topic_that_are_deleted_while_somebody_looks_are_told_and_not_asked_for_again(
    lockstep_cluster: TestCluster,
) -> None:
    cluster = lockstep_cluster
    await started(cluster, "a")
    async with dashboard(cluster) as on:
        await cluster.advance(seconds=8)
        for url in (f"/groups/{GROUP}", f"/topics/{TOPIC}"):
            part = await get(on.app, url, x_part="figures")
            assert ("deleted" in part.text, "data-gone" in part.text) == (False, False)
        await cluster.kill("a")
        await cluster.advance(seconds=60)
        admin = on.watch.admin
        for broker in await admin.brokers():
            await admin.delete_group(broker, GROUP)
        await delete_topic(admin, (await admin.route(TOPIC)).layout)
        for url, said in ((f"/groups/{GROUP}", f"The group {GROUP} was deleted"), (f"/topics/{TOPIC}", f"The topic {TOPIC} was deleted")):
            await get(on.app, url, x_part="figures")
            await cluster.advance(seconds=8)
            part = await get(on.app, url, x_part="figures")
            assert (said in part.text, "data-gone" in part.text, "–" in part.text, "etag" in part.headers) == (True, True, False, True), url


async def test_charts_say_the_highest_value_and_have_all_values_for_the_script(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await started(cluster, "a")
    async with dashboard(cluster) as on:
        assert "data-until" in (await get(on.app, "/")).text, "there is a chart before the first value"
        await cluster.advance(seconds=8)
        await send(cluster, 400, keys=40)
        await cluster.advance(seconds=16)
        for url, count in (("/", 4), (f"/topics/{TOPIC}", 1), (f"/groups/{GROUP}", 3)):
            text = (await get(on.app, url)).text
            charts = re.findall(r'class="chart".*?data-values="([^"]*)" data-ticks="120" data-until="(\d+)" data-step="5000"', text)
            assert len(charts) == count, url
            for values, until in charts:
                assert len(values.split(",")) == on.watch.series.tick + 1
                assert 0 <= on.host.clock.wall_ms() - int(until) <= 5_000
        stored = on.watch.series.last(f"topic/{TOPIC}/in")
        page = (await get(on.app, f"/topics/{TOPIC}")).text
        assert f'data-values="{",".join("" if each is None else f"{each:.1f}".removesuffix(".0") for each in stored)}"' in page
        assert f"highest {max(each for each in stored if each is not None):,.0f}" in page


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


async def test_browsers_keep_no_page_and_a_static_file_for_as_long_as_it_is_the_same(lockstep_cluster: TestCluster) -> None:
    await started(lockstep_cluster, "a")
    async with dashboard(lockstep_cluster) as on:
        await lockstep_cluster.advance(seconds=8)
        for url in PAGES:
            for got in (await get(on.app, url), await get(on.app, url, x_part="notices")):
                assert got.headers["cache-control"] == "no-store", url
        tag = (await get(on.app, "/groups")).headers["etag"]
        assert (await get(on.app, "/groups", if_none_match=tag)).headers["cache-control"] == "no-store"


async def test_links_keep_the_filters_of_the_page(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=120)
    async with dashboard(cluster) as on:
        await cluster.advance(seconds=8)
        for url in ("/groups?q=%22%3Cb%3E&sort=name", "/topics?all=1&q=a%26b", f"/topics/{TOPIC}/messages?tag=t&since=2h"):
            page = checked(await get(on.app, f"{url}&lang=en"))
            (link,) = [link for link in page.links if "lang=" in link]
            assert parse_qs(link[1:]) == {**parse_qs(url.partition("?")[2]), "lang": ["zh-CN"]}
        (following,) = [link for link in checked(await get(on.app, f"/topics/{TOPIC}?key=k%26&lang=en")).links if "page=" in link]
        assert parse_qs(following[1:]) == {"key": ["k&"], "page": ["2"]}


def test_templates_and_static_files_name_no_other_host_and_have_no_script_of_their_own() -> None:
    for path in [*Path(HERE, "templates").iterdir(), *Path(HERE, "static").iterdir()]:
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "//" not in re.sub(r"^//.*|(?<=\s)//.*", "", text, flags=re.MULTILINE), path
        assert not re.search(r"\|\s*safe|\sstyle=|\son\w+=", text), path
        assert not re.search(r"<script>|<style>|javascript:", text), path
    assert len((HERE / "static/app.js").read_text().splitlines()) <= 200
    assert len((HERE / "static/app.css").read_text().splitlines()) <= 250


async def test_application_of_a_user_mounts_the_dashboard(lockstep_cluster: TestCluster) -> None:
    await started(lockstep_cluster, "a")
    async with dashboard(lockstep_cluster) as on:
        await lockstep_cluster.advance(seconds=8)
        app = FastAPI()
        app.mount("/lockstep", on.app)
        got = await get(app, "/lockstep/groups")
        assert got.status == 200
        assert all(link.startswith(("/lockstep/", "?", "#")) for link in checked(got).links)
        assert (await get(app, "/lockstep/groups", host="evil.example")).status == 421


async def test_messages_of_a_topic_are_listed_the_newest_first_and_filtered(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=2)
    await stored(cluster, *(Message(TOPIC, b"n%03d" % n, sharding_key=f"k{n % 7}", tags="odd" if n % 2 else "even") for n in range(120)))
    async with dashboard(cluster) as on:
        first = checked(await get(on.app, f"/topics/{TOPIC}/messages"))
        assert re.findall(r"n\d{3}", first.text) == [f"n{n:03}" for n in range(119, 69, -1)]
        (older,) = [link for link in first.links if link.startswith("?from=")]
        second = checked(await get(on.app, f"/topics/{TOPIC}/messages{older}"))
        assert re.findall(r"n\d{3}", second.text) == [f"n{n:03}" for n in range(69, 19, -1)]
        tagged = checked(await get(on.app, f"/topics/{TOPIC}/messages?tag=odd&key=k3"))
        assert re.findall(r"n\d{3}", tagged.text) == [f"n{n:03}" for n in range(119, -1, -1) if n % 2 and n % 7 == 3]
        assert "n117" in checked(await get(on.app, f"/topics/{TOPIC}/messages?body=n117")).text
        assert "--since 'soon'" in checked(await get(on.app, f"/topics/{TOPIC}/messages?since=soon")).text
        assert "no topic 'nothing'" in checked(await get(on.app, "/topics/nothing/messages")).text


async def test_message_is_shown_with_its_body_and_what_became_of_it(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await started(cluster, "a")
    hostile = "<script>alert(1)</script>\n\u202e"
    ids = await stored(
        cluster,
        Message(TOPIC, b'{"amount": 5, "to": ["x"]}', keys=["order-1"], properties={hostile[:20]: hostile[:20]}),
        Message(TOPIC, hostile.encode()),
        Message(TOPIC, b"\xff\x00\x01"),
        Message(TOPIC, b"x" * 100_000),
    )
    await cluster.settled(GROUP)
    async with dashboard(cluster) as on:
        pages = [checked(await get(on.app, f"/messages/{each}")).text for each in ids]
        assert '{ "amount": 5, "to": [ "x" ] }' in pages[0]
        assert f"{GROUP} CONSUMED" in pages[0]
        assert "<script>alert(1)" in pages[0]
        assert "<script>alert(1)</script> \\u202e" in pages[1]
        assert re.search(r"3 bytes, .* that are no text · Download 00000000 ff 00 01 \.\.\.", pages[2])
        assert re.search(r"100,000 bytes, .*; what follows is the beginning", pages[3])
        assert "x" * 65_536 in pages[3]
        assert "x" * 65_537 not in pages[3]
        async with Producer("shop", nameserver=cluster.nameserver) as producer:
            sent = await producer.send(Message(TOPIC, b"later"), delay=timedelta(minutes=5))
        delayed = checked(await get(on.app, f"/messages/{sent.message_id}")).text
        assert f"Topic {TOPIC}" in delayed
        assert f"{GROUP} DELAYED" in delayed
        assert "it is due in 4 min" in delayed
        found = await get(on.app, f"/messages?id={ids[0]}", root="/lockstep")
        assert (found.status, found.headers["location"]) == (303, f"/lockstep/messages/{ids[0]}")
        missing = await get(on.app, f"/messages/{ids[0][:-1]}{'0' if ids[0][-1] != '0' else '1'}")
        assert (missing.status, "was not found" in missing.text) == (404, True)
        assert "no message id" in (await get(on.app, "/messages/hello")).text or "expected" in (await get(on.app, "/messages/hello")).text


async def test_without_bodies_none_is_shown_and_none_is_searched(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    ids = await stored(cluster, Message(TOPIC, b"secret"), Message(TOPIC, b"other"))
    hidden = Dashboard(cluster.nameserver, host=Host.current(), bodies=False)
    for url in (f"/messages/{ids[0]}", f"/topics/{TOPIC}/messages", f"/topics/{TOPIC}/messages?body=secret"):
        page = checked(await get(hidden.app, url))
        assert "secret" not in page.text.replace("?body=secret", "")
    assert page.text.count("bytes") == 2, "the search for a body is no search at all"
    await hidden.stop()
