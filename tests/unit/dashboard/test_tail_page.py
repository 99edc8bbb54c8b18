"""The live tail of a topic over a simulated cluster: rows as they come, in a limited number, for all who look."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from urllib.parse import quote
from zlib import crc32

import pytest

from lockstep.cli.change_command import carry_out
from lockstep.client import Message
from lockstep.dashboard import Dashboard
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes.topic_alter import TopicAlter
from lockstep.operations.changes.topic_delete import TopicDelete
from lockstep.operations.watch.live_tail import KEPT_MS, READERS_MAX, ROWS_MAX
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support.asgi import get
from support.panel import checked, dashboard, stored

TOPIC = "orders"
URL = f"/topics/{TOPIC}/tail"
LOOK_S = 0.7


async def words(on: Dashboard, url: str = URL) -> str:
    return checked(await get(on.app, url)).text


async def until_shown(on: Dashboard, text: str, url: str = URL) -> str:
    """Look at the page as a browser does, until it has this text. Return its words."""
    async with asyncio.timeout(60):
        while text not in (found := await words(on, url)):  # noqa: ASYNC110 as a browser does
            await asyncio.sleep(LOOK_S)
    return found


def numbers(text: str) -> list[int]:
    return [int(each) for each in re.findall(r"\bn(\d+)\b", text)]


async def send(cluster: TestCluster, *count: int, **options: str) -> None:
    await stored(cluster, *(Message(TOPIC, b"n%d" % n, **options) for n in range(*count)))  # type: ignore[arg-type]


async def keys_at(cluster: TestCluster, broker: str, count: int) -> list[str]:
    """Return sharding keys whose messages go to queues of this broker."""
    queues = (await AdminClient(Host.current(), cluster.nameserver).route(TOPIC)).layout.write_queues
    keys = (f"k{n}" for n in range(1_000))
    return list(islice((key for key in keys if queues[crc32(key.encode()) % len(queues)].broker_name == broker), count))


@asynccontextmanager
async def tailing(cluster: TestCluster, *, queues: int = 2, url: str = URL) -> AsyncIterator[Dashboard]:
    """A dashboard whose tail has begun."""
    await cluster.create_topic(TOPIC, queues=queues)
    async with dashboard(cluster) as on:
        await until_shown(on, "has come since then", url)
        yield on


async def test_messages_are_shown_as_they_come_the_newest_first(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=2)
    await send(cluster, 5)
    async with dashboard(cluster) as on:
        text = await words(on)
        assert "No message has come since then" in text, "it begins at the end"
        assert "Shown are messages stored after 20" in text
        for n in range(5, 9):
            await send(cluster, n, n + 1)
            text = await until_shown(on, f"n{n}")
        assert numbers(text) == [8, 7, 6, 5]
        assert "passed over" not in text
        part = await get(on.app, URL, x_part="rows")
        assert numbers(part.text) == [8, 7, 6, 5]
        assert (await get(on.app, URL, x_part="rows", if_none_match=part.headers["etag"])).status == 304
        assert f"{URL}" in checked(await get(on.app, f"/topics/{TOPIC}")).links


async def test_what_comes_too_fast_is_passed_over_and_counted(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    async with tailing(cluster, queues=3) as on:
        await send(cluster, 300)
        await until_shown(on, "n299")
        await asyncio.sleep(2)
        text = await words(on)
        found = numbers(text)
        over = int(re.findall(r"Messages passed over, because more arrive than are shown: (\d+)", text)[0])
        assert len(found) == len(set(found))
        assert len(found) + over == 300 if len(found) < ROWS_MAX else over <= 200
        assert over > 0


async def test_only_the_last_rows_are_kept(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    async with tailing(cluster) as on:
        for begin in range(0, 130, 10):
            await send(cluster, begin, begin + 10)
            await until_shown(on, f"n{begin + 9} ")
        text = await words(on)
        assert numbers(text) == list(range(129, 29, -1))
        assert "passed over" not in text


async def test_filter_looks_at_more_and_says_what_did_not_match(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    url = f"{URL}?tag=odd"
    async with tailing(cluster, url=url) as on:
        await stored(cluster, *(Message(TOPIC, b"n%d" % n, tags="odd" if n % 2 else "even") for n in range(30)))
        text = await until_shown(on, "n29", url)
        await asyncio.sleep(2)
        text = await words(on, url)
        assert all(n % 2 for n in numbers(text))
        assert len(numbers(text)) == 15
        assert "Messages that were read and did not match: 15" in text
        assert "passed over" not in text


async def test_key_and_body_are_filters_too(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=2)
    urls = [f"{URL}?key=k3", f"{URL}?body=n1", f"{URL}?key=k3&body=n1"]
    async with dashboard(cluster) as on:
        await asyncio.gather(*(words(on, url) for url in urls))
        await stored(cluster, *(Message(TOPIC, b"n%d." % n, sharding_key=f"k{n % 4}") for n in range(20)))
        await asyncio.gather(until_shown(on, "n19", urls[0]), until_shown(on, "n18", urls[1]), until_shown(on, "n15", urls[2]))
        await asyncio.sleep(2)
        by_key, by_body, by_both = [numbers(await words(on, url)) for url in urls]
        assert by_key == [19, 15, 11, 7, 3]
        assert sorted(by_body) == [1, *range(10, 20)]
        assert sorted(by_both) == [11, 15, 19]


async def test_broker_that_is_silent_is_named_and_holds_up_no_other_one(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    async with tailing(cluster, queues=1) as on:
        await send(cluster, 4)
        await until_shown(on, "n3")
        await cluster.pause("broker-b")
        text = await until_shown(on, "broker-b is left out: it has not responded for 0.5 s")
        keys = await keys_at(cluster, "broker-a", 3)
        await stored(cluster, *(Message(TOPIC, b"n%d" % n, sharding_key=key) for n, key in enumerate(keys, 10)))
        text = await until_shown(on, "n12")
        assert numbers(text)[:3] == [12, 11, 10]
        await cluster.resume("broker-b")
        await cluster.advance(seconds=10)
        await send(cluster, 20, 24)
        text = await until_shown(on, "n23")
        await asyncio.sleep(2)
        text = await words(on)
        assert "is left out" not in text
        assert sorted(numbers(text)) == [*range(4), 10, 11, 12, *range(20, 24)]


async def test_broker_that_is_slow_is_followed_late_and_in_order(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    async with tailing(cluster, queues=1) as on:
        cluster.slow_link("test", "broker-b", seconds=1.5)
        keys = [*await keys_at(cluster, "broker-a", 1), *await keys_at(cluster, "broker-b", 1)]
        messages = [Message(TOPIC, b"n%d" % n, sharding_key=keys[n % 2]) for n in range(16)]
        await cluster.start("shop", partial(stored, cluster, *messages))
        for _ in range(12):  # a response takes up to 3 s, longer than a round waits: one for the bounds, one for the messages
            await asyncio.sleep(1)
            text = await words(on)
        by_broker = {name: [int(n) for n in re.findall(rf"{name}:0 \d+ k\d+ n(\d+)", text)] for name in ("broker-a", "broker-b")}
        assert by_broker == {"broker-a": list(range(14, -1, -2)), "broker-b": list(range(15, 0, -2))}
        assert "passed over" not in text


async def test_killed_broker_is_named_and_followed_again_after_its_restart(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    async with tailing(cluster) as on:
        await send(cluster, 4)
        await until_shown(on, "n3")
        await cluster.kill("broker-b")
        await until_shown(on, "broker-b is left out")
        await cluster.restart("broker-b")
        await cluster.advance(seconds=10)
        await send(cluster, 4, 12)
        await until_shown(on, "n11")
        await asyncio.sleep(2)
        text = await words(on)
        assert "is left out" not in text
        assert sorted(numbers(text)) == list(range(12))


async def test_deleted_topic_is_told_and_its_next_creation_is_followed_from_its_first_message(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    async with tailing(cluster, queues=1) as on:
        await send(cluster, 6)
        await until_shown(on, "n5")
        await carry_out(TopicDelete(topic=TOPIC, force=True), cluster.nameserver)
        text = await until_shown(on, "The topic was deleted. What follows is older.")
        assert numbers(text) == [5, 4, 3, 2, 1, 0]
        assert (await get(on.app, URL)).status == 200
        await cluster.create_topic(TOPIC, queues=1)
        await send(cluster, 50, 54)
        text = await until_shown(on, "n53")
        assert sorted(numbers(text)) == [*range(6), *range(50, 54)]
        assert "was deleted" not in text


async def test_new_queues_join(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    async with tailing(cluster, queues=1) as on:
        await carry_out(TopicAlter(topic=TOPIC, queues=3), cluster.nameserver)
        await send(cluster, 18)
        await until_shown(on, "n17")
        await asyncio.sleep(8)
        text = await words(on)
        assert sorted(numbers(text)) == list(range(18))
        assert {f"broker-{name}:{number}" for name in "ab" for number in range(3)} <= set(text.split())


async def test_all_who_look_share_one_reader_which_ends_when_nobody_looks(
    lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = lockstep_cluster
    async with tailing(cluster) as on:
        asked = []
        offsets = on.watch.admin.offsets

        async def counted(*args: object) -> object:
            asked.append(args)
            return await offsets(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(on.watch.admin, "offsets", counted)
        for _ in range(10):
            await asyncio.gather(*(get(on.app, URL) for _ in range(20)))
            await asyncio.sleep(1)
        assert 2 * 9 <= len(asked) <= 2 * 11, "each of two brokers once a second"
        await asyncio.sleep(KEPT_MS / 1000 + 2)
        count = len(asked)
        await asyncio.sleep(60)
        assert len(asked) == count
        await send(cluster, 3)
        assert "No message has come since then" in await words(on), "it begins anew"


async def test_readers_are_limited_and_one_that_ended_leaves_its_place(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    async with dashboard(cluster) as on:
        for n in range(READERS_MAX):
            assert "has come since then" in await words(on, f"{URL}?tag=t{n}")
        got = await get(on.app, URL)
        assert got.status == 200
        assert "8 topics and filters are looked at already" in checked(got).text
        assert "has come since then" in await words(on, f"{URL}?tag=t0"), "those who look go on"
        await asyncio.sleep(KEPT_MS / 1000 + 2)
        assert "has come since then" in await words(on)


async def test_topic_that_does_not_exist_is_not_found_and_takes_no_place(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    async with dashboard(cluster) as on:
        await cluster.advance(seconds=2)
        for n in range(2 * READERS_MAX):
            got = await get(on.app, f"/topics/nothing{n}/tail")
            assert (got.status, f"There is no topic nothing{n}" in checked(got).text) == (404, True)
            await asyncio.sleep(1)
        got = await get(on.app, f"/topics/{quote('<script>')}/tail?tag={quote('<b>')}")
        assert (got.status, "There is no topic <script>" in checked(got).text) == (404, True)


async def test_without_a_nameserver_it_says_so_and_begins_when_one_answers(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await cluster.kill("nameserver-1")
    async with dashboard(cluster) as on:
        await until_shown(on, "The nameservers do not answer: no nameserver responds")
        await cluster.restart("nameserver-1")
        await until_shown(on, "has come since then")
        await cluster.kill("nameserver-1")
        await until_shown(on, "the brokers are read at their last addresses")


async def test_filter_that_is_no_filter_is_explained(lockstep_cluster: TestCluster) -> None:
    await lockstep_cluster.create_topic(TOPIC, queues=1)
    async with dashboard(lockstep_cluster) as on:
        assert "names no tag" in await words(on, f"{URL}?tag=||")
        checked(await get(on.app, f"{URL}?tag={'x' * 9_000}&body=%ff%00&key=%ed%a0%80"))


async def test_words_of_clients_are_only_words(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    hostile = "<script>alert(1)</script>\u202e'\"&"
    async with tailing(cluster) as on:
        await stored(cluster, Message(TOPIC, hostile.encode() + b"\n\n\xff n1", sharding_key=hostile, tags=hostile, keys=[hostile]))
        text = await until_shown(on, "n1")
        assert text.count("<script>alert(1)</script>") == 4
        assert "\u202e" not in text
        assert "\\xff n1" in text


async def test_without_bodies_none_is_shown_and_none_is_searched(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    async with dashboard(cluster, bodies=False) as on:
        await words(on, f"{URL}?body=secret")
        await stored(cluster, Message(TOPIC, b"secret"), Message(TOPIC, b"other one"))
        text = await until_shown(on, "9 bytes", f"{URL}?body=secret")
        assert "6 bytes" in text
        assert "secret" not in text
        assert "Text in the body" not in text
