"""The pages of messages that wait, of a topic and of all, and the form that recalls them, over a simulated cluster."""

import html
import re
from datetime import timedelta

import pytest

from lockstep.client import Client, Message, MessageQueue, Producer
from lockstep.dashboard.search import waiting_page
from lockstep.testing import TestCluster
from support.asgi import get
from support.panel import checked, dashboard
from unit.dashboard.test_changes import panel

TOPIC = "orders"
ALL, OF_TOPIC = "/delays/waiting", f"/topics/{TOPIC}/waiting"
HOSTILE = "<script>alert(1)</script>\u202e'\"&"


async def remind(cluster: TestCluster, count: int, *, topic: str = TOPIC, minutes: int = 60, sharding_key: str | None = None) -> list[str]:
    """Send messages that are due in an hour and every minute from then on. Return their handles."""
    async with Producer("reminders", client=Client(cluster.nameserver)) as producer:
        found = []
        for number in range(count):
            queue = None if sharding_key else MessageQueue(topic, cluster.brokers[number % len(cluster.brokers)], 0)
            message = Message(topic, b"secret", tags="due", keys=[f"n{number}.", "all"], sharding_key=sharding_key)
            found.append((await producer.send(message, queue=queue, delay=timedelta(minutes=minutes + number))).recall_handle)
        return found


def keys(text: str) -> list[int]:
    return [int(each) for each in re.findall(r"n(\d+)\. all", text)]


async def test_messages_are_listed_as_they_are_due_fifty_a_page(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await cluster.create_topic("bills", queues=1)
    assert waiting_page.ROWS == 50
    await remind(cluster, 101)
    await remind(cluster, 1, topic="bills", minutes=1)
    async with dashboard(cluster) as on:
        listed, url = list[list[int]](), OF_TOPIC
        for _ in range(3):
            got = await get(on.app, url)
            listed.append(keys(checked(got).text))
            assert "secret" not in got.text, "bodies are not listed"
            later = re.search(r'<a href="(\?from=[^"]*)">Later</a>', got.text)
            url = OF_TOPIC + html.unescape(later[1]) if later else ""
        assert listed == [list(range(50)), list(range(50, 100)), [100]]
        assert url == ""
        first = checked(await get(on.app, ALL))
        assert re.search(r"Time left Topic Queue Id .*? in (59|60) s bills broker-a:0 [0-9A-F]{32} due n0\. all", first.text)
        assert keys(first.text) == [0, *range(waiting_page.ROWS - 1)]
        assert f"/topics/{TOPIC}/waiting" in first.links
        (link, *_) = [each for each in first.links if each.startswith("/messages/")]
        message = checked(await get(on.app, link))
        assert "Due" in message.text
        for url, wanted in ((f"/topics/{TOPIC}", OF_TOPIC), ("/delays", ALL)):
            assert wanted in checked(await get(on.app, url)).links


async def test_list_has_only_messages_that_meet_the_form(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    async with dashboard(cluster) as on:
        assert "No message waits." in checked(await get(on.app, OF_TOPIC)).text
        await remind(cluster, 5)
        await remind(cluster, 1, minutes=200, sharding_key="k 1")
        for query, expected in [
            ("", [0, 1, 2, 3, 4, 0]),
            ("?message_key=n3.", [3]),
            ("?key=k+1", [0]),
            ("?before=61m", [0, 1]),
            ("?before=61m&message_key=n1.", [1]),
        ]:
            got = await get(on.app, OF_TOPIC + query)
            assert (got.status, keys(checked(got).text)) == (200, expected), query
        assert "No message matches." in checked(await get(on.app, f"{OF_TOPIC}?message_key=none")).text
        for query, words in [
            ("?before=yesterday", "due before 'yesterday': expected a duration from now"),
            ("?message_key=a+b", "is several words"),
            ("?from=x", "is no place to go on from"),
            (f"?from=broker-a:{'x' * 9}:1:1", "broker-a is left out: SYSTEM_ERROR: cursor 'xxxxxxxxx': expected the cursor"),
        ]:
            got = await get(on.app, OF_TOPIC + query)
            assert (got.status, words in checked(got).text) == (200, True), query
        got = await get(on.app, "/topics/nobody/waiting")
        assert (got.status, "no topic 'nobody'" in checked(got).text) == (404, True)


async def test_broker_that_is_killed_is_named_and_the_others_are_listed(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await remind(cluster, 6)
    async with dashboard(cluster) as on:
        await cluster.kill("broker-b")
        text = checked(await get(on.app, OF_TOPIC)).text
        assert "broker-b is left out" in text
        assert keys(text) == [0, 2, 4]


async def test_search_that_takes_long_ends_and_goes_on_later(lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await remind(cluster, 2)
    async with dashboard(cluster) as on:
        await get(on.app, OF_TOPIC)
        monkeypatch.setattr(waiting_page, "SECONDS", 0.0)
        page = checked(await get(on.app, OF_TOPIC))
        assert "A page searches for 3 s: later messages may match." in page.text
        assert "No message was found so far." in page.text


async def test_words_of_producers_are_only_words(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await remind(cluster, 1, sharding_key=HOSTILE)
    async with dashboard(cluster) as on:
        got = await get(on.app, OF_TOPIC)
        assert "<script>alert" not in got.text
        assert "\u202e" not in checked(got).text


async def test_message_is_recalled_by_the_link_beside_it_and_all_with_a_key_by_the_form(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    handles = await remind(cluster, 3)
    async with panel(cluster) as on:
        page = checked(await get(on.dashboard.app, OF_TOPIC))
        links = [each for each in page.links if "timer-recall?handle=" in each]
        assert len(links) == 3
        form = checked(await get(on.dashboard.app, links[1]))
        assert form.wrong == []
        plan = await on.planned("timer-recall", handle=handles[1])
        assert f"of topic {TOPIC}, which is due at" in plan
        assert f"lockstep timer recall '{handles[1]}' --yes" in plan or f"lockstep timer recall {handles[1]} --yes" in plan
        assert keys(checked(await get(on.dashboard.app, OF_TOPIC)).text) == [0, 1, 2], "a plan changes nothing"
        assert "was recalled: it will not be delivered" in await on.done("timer-recall", handle=handles[1])
        assert keys(checked(await get(on.dashboard.app, OF_TOPIC)).text) == [0, 2]
        assert "does not wait at broker-b" in await on.planned("timer-recall", handle=handles[1])
        assert "name a HANDLE" in await on.planned("timer-recall")
        done = await on.done("timer-recall", topic=TOPIC, key="all")
        assert f"2 messages of topic {TOPIC} with the key all were recalled" in done
        assert "No message waits." in checked(await get(on.dashboard.app, OF_TOPIC)).text
    async with dashboard(cluster) as on_alone:
        await remind(cluster, 1)
        assert "timer-recall" not in (await get(on_alone.app, OF_TOPIC)).text


async def test_plan_is_shown_again_if_another_message_has_the_key_now(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await remind(cluster, 1)
    async with panel(cluster) as on:
        form = await on.form("timer-recall", topic=TOPIC, key="all")
        await remind(cluster, 1)
        got = await on.sent("timer-recall", form)
        assert (got.status, "things have changed, and nothing was done" in got.text) == (409, True)
        assert keys(checked(await get(on.dashboard.app, OF_TOPIC)).text) == [0, 0]
