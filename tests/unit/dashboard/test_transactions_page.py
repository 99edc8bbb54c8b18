"""The pages of transactions that are not decided, of a topic and of all, and the forms that decide, over a simulated cluster."""

import html
import re
from contextlib import AbstractAsyncContextManager

import pytest

from lockstep.broker.processors.rooms import check_back
from lockstep.client import Message, MessageQueue, Transaction
from lockstep.dashboard.search import transactions_page
from lockstep.testing import TestCluster
from support.asgi import get
from support.panel import checked, dashboard
from support.undecided import undecided as begun
from unit.dashboard.test_changes import panel

TOPIC = "orders"
ALL, OF_TOPIC = "/transactions", f"/topics/{TOPIC}/transactions"
HOSTILE = "<script>alert(1)</script>\u202e'\"&"


def undecided(
    cluster: TestCluster, count: int, *, topic: str = TOPIC, group: str = "shop", sharding_key: str | None = None
) -> AbstractAsyncContextManager[Transaction]:
    """Return a transaction that is not decided, with messages at each broker in turn."""
    messages = [Message(topic, b"secret", tags="paid", keys=[f"n{number}.", "all"], sharding_key=sharding_key) for number in range(count)]
    queues = [MessageQueue(topic, broker, 0) for broker in cluster.brokers]
    return begun(cluster, messages, () if sharding_key else queues, group=group)


def keys(text: str) -> list[int]:
    return [int(each) for each in re.findall(r"n(\d+)\. all", text)]


async def test_messages_are_listed_as_they_were_sent_fifty_a_page(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await cluster.create_topic("bills", queues=1)
    assert transactions_page.ROWS == 50
    async with undecided(cluster, 101) as block, undecided(cluster, 1, topic="bills") as other, dashboard(cluster) as on:
        listed, url = list[list[int]](), OF_TOPIC
        while url:
            got = await get(on.app, url)
            listed.append(keys(checked(got).text))
            assert "secret" not in got.text, "bodies are not listed"
            further = re.search(r'<a href="(\?from=[^"]*)">Further ones</a>', got.text)
            url = OF_TOPIC + html.unescape(further[1]) if further else ""
        assert listed == [list(range(50)), list(range(50, 100)), [100]]
        page = checked(await get(on.app, f"{ALL}?id={other.id}"))
        assert re.search(rf" yes bills broker-a:0 shop \S+ n0\. all {other.id} [0-9A-F]{{32}} paid", page.text)
        for link in ("/topics/bills/transactions", f"/transactions?id={other.id}"):
            assert link in page.links
        (message,) = [each for each in page.links if each.startswith("/messages/")]
        assert block.id not in page.text
        shown = checked(await get(on.app, message))
        assert ("secret" in shown.text, f"/transactions?id={other.id}" in shown.links) == (True, True)
        for url, wanted in ((f"/topics/{TOPIC}", OF_TOPIC), ("/delays", ALL), (OF_TOPIC, ALL)):
            assert wanted in checked(await get(on.app, url)).links


async def test_list_has_only_messages_that_meet_the_form(lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    async with dashboard(cluster) as on:
        assert "No transaction waits for a decision." in checked(await get(on.app, OF_TOPIC)).text
        async with undecided(cluster, 4) as block, undecided(cluster, 1, group="bank"):
            for query, expected in [
                ("", [0, 1, 2, 3, 0]),
                ("?message_key=n3.", [3]),
                ("?producers=bank", [0]),
                (f"?id={block.id}", [0, 1, 2, 3]),
                (f"?id={block.id}&message_key=n1.", [1]),
                ("?expired=1", []),
            ]:
                got = await get(on.app, OF_TOPIC + query)
                assert (got.status, keys(checked(got).text)) == (200, expected), query
            assert "No message matches." in checked(await get(on.app, f"{OF_TOPIC}?message_key=none")).text
            monkeypatch.setattr(check_back, "HOUR_MS", -1)
            got = await get(on.app, f"{OF_TOPIC}?expired=1")
            assert (keys(checked(got).text), got.text.count('<tr class="bad">')) == ([0, 1, 2, 3, 0], 5)
            for query, words in [
                ("?message_key=a+b", "is several words"),
                ("?from=x", "is no place to go on from"),
            ]:
                got = await get(on.app, OF_TOPIC + query)
                assert (got.status, words in checked(got).text) == (200, True), query
        assert "(not connected)" in checked(await get(on.app, ALL)).text
        got = await get(on.app, "/topics/nobody/transactions")
        assert (got.status, "no topic 'nobody'" in checked(got).text) == (404, True)


async def test_broker_that_is_killed_is_named_and_the_others_are_listed(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    async with undecided(cluster, 6), dashboard(cluster) as on:
        await cluster.kill("broker-b")
        text = checked(await get(on.app, OF_TOPIC)).text
        assert "broker-b is left out" in text
        assert keys(text) == [0, 2, 4]


async def test_search_that_takes_long_ends_and_goes_on_by_a_link(lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    async with undecided(cluster, 2), dashboard(cluster) as on:
        await get(on.app, OF_TOPIC)
        monkeypatch.setattr(transactions_page, "SECONDS", 0.0)
        page = checked(await get(on.app, OF_TOPIC))
        assert "A page searches for 3 s: further messages may match." in page.text
        assert "No message was found so far." in page.text


async def test_words_of_producers_are_only_words(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    async with undecided(cluster, 1, sharding_key=HOSTILE), dashboard(cluster) as on:
        got = await get(on.app, OF_TOPIC)
        assert "alert(1)" in checked(got).text
        assert "<script>alert" not in got.text
        assert "\u202e" not in checked(got).text


@pytest.mark.parametrize(("change", "done"), [("tx-commit", "committed"), ("tx-rollback", "rolled back")])
async def test_transaction_is_decided_by_the_link_beside_it(lockstep_cluster: TestCluster, change: str, done: str) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    async with undecided(cluster, 3) as block, undecided(cluster, 1), panel(cluster) as on:
        page = checked(await get(on.dashboard.app, OF_TOPIC))
        link = f"/changes/{change}?transaction_id={block.id}"
        assert (page.links.count(link), len([each for each in page.links if f"/changes/{change}?" in each])) == (3, 4)
        form = await get(on.dashboard.app, link)
        assert (checked(form).wrong, f'value="{block.id}"' in form.text) == ([], True)
        assert "say why by --reason" in await on.planned(change, transaction_id=block.id)
        plan = await on.planned(change, transaction_id=block.id, reason="by phone")
        assert f"3 messages of transaction {block.id} (orders) will" in plan
        assert keys(checked(await get(on.dashboard.app, OF_TOPIC)).text) == [0, 1, 2, 0], "a plan changes nothing"
        assert f"3 messages of transaction {block.id} were {done}" in await on.done(change, transaction_id=block.id, reason="by phone")
        assert keys(checked(await get(on.dashboard.app, OF_TOPIC)).text) == [0]
        async with dashboard(cluster) as on_alone:
            assert "/changes/tx-" not in (await get(on_alone.app, OF_TOPIC)).text
