"""?format=json: the pages' answers for programs are what the commands print with --json."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lockstep.cli.commands import delays, doctor, group, message, topic, why
from lockstep.client import Message, Producer
from lockstep.dashboard import Dashboard
from lockstep.dashboard.dashboard import Dashboard as Made
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support.asgi import get
from support.json_pages import ageless, parsed, printed
from support.why_kit import GROUP, TOPIC, Member, hang, send


@asynccontextmanager
async def dashboard(cluster: TestCluster, **options: Any) -> AsyncIterator[Made]:
    made = Dashboard(cluster.nameserver, host=Host.current(), **options)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def ids(cluster: TestCluster, *messages: Message) -> list[str]:
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        return [(await producer.send(each)).offset_message_id for each in messages]


async def test_json_of_a_page_is_that_of_its_command(lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=2)
    await cluster.start("a", Member(cluster).run)
    await send(cluster, 40, keys=40)
    await cluster.settled(GROUP)
    (sent,) = await ids(cluster, Message(TOPIC, "für 5 \u202e €".encode(), keys=["order-1"], tags="paid", sharding_key="k"))
    await cluster.settled(GROUP)
    where = cluster.nameserver
    async with dashboard(cluster) as on:
        pages = {
            f"/topics/{TOPIC}": topic._show(TOPIC, where, True),
            "/groups": group._list(where, True),
            f"/groups/{GROUP}": group._show(GROUP, where, True),
            f"/groups/{GROUP}/why": why._why(GROUP, None, None, None, where, True),
            "/delays": delays._delays(where, True),
            "/doctor": doctor._doctor(where, None, True),
            f"/messages/{sent}": message._show(sent, None, where, True, with_tracks=True),
        }
        for url, command in pages.items():
            expected = ageless(await printed(capsys, command))
            assert ageless(parsed(await get(on.app, f"{url}?format=json"))) == expected, url
            assert len(expected) > 1


async def test_json_of_a_group_that_stands_explains_it_as_the_command_does(
    lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await cluster.start("a", Member(cluster, hang).run)
    await send(cluster, 40, keys=40)
    await cluster.advance(seconds=5)
    async with dashboard(cluster) as on:
        expected = await printed(capsys, why._why(GROUP, None, None, None, cluster.nameserver, True))
        found = parsed(await get(on.app, f"/groups/{GROUP}/why?format=json"))
        assert found["counts"] == {"stalled": 2}
        assert ageless(found) == ageless(expected)


async def test_json_is_as_new_as_the_request_however_old_the_last_page_is(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    async with dashboard(cluster) as on:
        url = f"/topics/{TOPIC}?format=json"
        assert sum(queue["max_offset"] for queue in parsed(await get(on.app, url))["queues"]) == 0
        await cluster.advance(minutes=10)
        await send(cluster, 40, keys=40)
        assert sum(queue["max_offset"] for queue in parsed(await get(on.app, url))["queues"]) == 40


async def test_what_is_not_known_or_not_there_is_an_error_with_its_status(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    (sent,) = await ids(cluster, Message(TOPIC, b"one"))
    missing = sent[:-4] + "FFFF"
    async with dashboard(cluster) as on:
        for url, words in {
            "/topics/nothing": "no topic 'nothing'",
            "/groups/nobody": "no broker knows group nobody",
            "/groups/nobody/why": "no broker knows group nobody",
            f"/messages/{missing}": "was not found",
            "/messages/hello": "hello",
            "/nothing": "this page has no JSON",
        }.items():
            found = parsed(await get(on.app, f"{url}?format=json"), 404)
            assert list(found) == ["error"], url
            assert words in found["error"], url
        for url in ("/", "/topics", f"/topics/{TOPIC}/messages", "/messages"):
            assert parsed(await get(on.app, f"{url}?format=json"), 406) == {"error": "this page has no JSON"}
        assert (await get(on.app, "/doctor?format=xml")).headers["content-type"].startswith("text/html")


async def test_json_names_a_broker_that_does_not_respond_and_is_an_error_without_a_nameserver(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await cluster.start("a", Member(cluster).run)
    await cluster.advance(seconds=5)
    async with dashboard(cluster) as on:
        await cluster.kill("broker-b")
        for url in (f"/topics/{TOPIC}", "/groups", f"/groups/{GROUP}", f"/groups/{GROUP}/why", "/delays"):
            assert list(parsed(await get(on.app, f"{url}?format=json"))["failed"]) == ["broker-b"], url
        assert "broker broker-b: " in parsed(await get(on.app, "/groups/nobody?format=json"), 503)["error"]
        await cluster.kill("nameserver-1")
        await asyncio.sleep(60)
        for url in (f"/topics/{TOPIC}", "/groups", f"/groups/{GROUP}", f"/groups/{GROUP}/why"):
            assert "no nameserver responds" in parsed(await get(on.app, f"{url}?format=json"), 503)["error"], url


async def test_silent_brokers_make_json_an_error_in_bounded_time(lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    async with dashboard(cluster) as on:
        url = f"/topics/{TOPIC}?format=json"
        parsed(await get(on.app, url))
        await asyncio.sleep(60)
        monkeypatch.setattr(on.watch.admin, "route", lambda topic: asyncio.sleep(1_000))
        began = cluster.now
        assert parsed(await get(on.app, url), 503) == {"error": "the cluster has not answered within 10 s"}
        assert cluster.now - began < 15


async def test_message_is_not_looked_for_without_end(lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    (sent,) = await ids(cluster, Message(TOPIC, b"one"))
    async with dashboard(cluster) as on:
        monkeypatch.setattr(on.watch.admin, "view", lambda *_: asyncio.sleep(1_000))
        expected = "it was not found within 10 s; `lockstep message show` has no such limit"
        assert parsed(await get(on.app, f"/messages/{sent}?format=json"), 404) == {"error": expected}
        page = await get(on.app, f"/messages/{sent}")
        assert (page.status, expected in page.text) == (404, True)


async def test_json_has_no_body_where_bodies_are_hidden(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    (sent,) = await ids(cluster, Message(TOPIC, b"secret", tags="t"))
    async with dashboard(cluster, bodies=False) as on:
        got = await get(on.app, f"/messages/{sent}?format=json")
        assert "secret" not in got.text
        found = parsed(got)
        assert (found["body"], found["bodyError"], found["tags"]) == (None, "this dashboard shows no bodies (--no-bodies)", "t")


async def test_json_says_why_the_groups_of_a_message_are_not_known(lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    (sent,) = await ids(cluster, Message(TOPIC, b"one"))
    async with dashboard(cluster) as on:
        monkeypatch.setattr(on.watch.admin, "group_status", lambda *_, **__: asyncio.sleep(1_000))
        found = parsed(await get(on.app, f"/messages/{sent}?format=json"))
        assert (found["body"], found["track"], found["trackError"]) == ("one", None, "the broker did not say within 5 s")
