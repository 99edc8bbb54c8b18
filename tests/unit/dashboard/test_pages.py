"""What all pages have in common: they are sound, hostile names are only words, parts refresh, links and forms lead where they should."""

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from urllib.parse import parse_qs, quote

import pytest
from fastapi import FastAPI

from lockstep.client import Message, MessageExt, OrderlyContext, Producer
from lockstep.dashboard.render import HERE
from lockstep.operations.changes.topic_delete import delete_topic
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support.asgi import get
from support.panel import checked, dashboard, shown, started
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
    "/delays/waiting",
    "/transactions",
    "/settings",
    "/doctor",
    f"/topics/{TOPIC}/messages",
    f"/topics/{TOPIC}/tail",
    f"/topics/{TOPIC}/waiting",
    f"/topics/{TOPIC}/transactions",
    "/messages",
    "/messages/7F0000",
    "/nothing",
]


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
        assert "No group is failing" in front
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
        assert "progressing" in await shown(on, f"/groups/{GROUP}/why") or "idle" in await shown(on, f"/groups/{GROUP}/why")
        assert "checks passed" in await shown(on, "/doctor")


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
        assert re.search(r"the cluster was last read at \S+Z ", checked(pages[0]).text)
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


async def test_browsers_keep_no_page_and_a_static_file_for_as_long_as_it_is_the_same(lockstep_cluster: TestCluster) -> None:
    await started(lockstep_cluster, "a")
    async with dashboard(lockstep_cluster) as on:
        await lockstep_cluster.advance(seconds=8)
        for url in PAGES:
            for got in (await get(on.app, url), await get(on.app, url, x_part="notices")):
                assert got.headers["cache-control"] == "no-store", url
        tag = (await get(on.app, "/groups")).headers["etag"]
        assert (await get(on.app, "/groups", if_none_match=tag)).headers["cache-control"] == "no-store"


@pytest.mark.parametrize("root", ["", "/lockstep"])
@pytest.mark.parametrize("topic", ["%DLQ%dead", "%RETRY%cart", "%DLQ%billing"])
async def test_forms_lead_to_the_page_itself(lockstep_cluster: TestCluster, topic: str, root: str) -> None:
    """A name may have what looks like a byte that is percent-encoded."""
    async with dashboard(lockstep_cluster) as on:
        for page in ("", "/messages", "/tail"):
            url = f"/topics/{quote(topic, safe='')}{page}"
            forms = re.findall(r'<form class="tools" method="get" action="([^"]*)"', (await get(on.app, url, root=root)).text)
            assert {*forms} <= {f"{root}{url}"}
            assert forms or not page, url


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
