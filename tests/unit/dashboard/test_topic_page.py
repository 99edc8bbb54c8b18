"""The pages of topics: their list, one topic, and its messages."""

import re
from urllib.parse import quote

from lockstep.client import Message, Producer
from lockstep.testing import TestCluster
from support.asgi import get
from support.panel import checked, dashboard, shown, started, stored
from support.why_kit import TOPIC


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
