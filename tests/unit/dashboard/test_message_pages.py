"""The pages that search for messages, and the page of one: pages of results, limits, keys, hostile input, what belongs to a message."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import quote
from zlib import crc32

import pytest

from lockstep.client import Backoff, Message, MessageExt, MessageQueue, OrderedRetry, OrderlyContext, Producer
from lockstep.dashboard import Dashboard
from lockstep.dashboard.messages import lay_out
from lockstep.dashboard.search import message_search
from lockstep.dashboard.search.searches import SEARCHES_MAX
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.messages import related_messages
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import TransportError
from lockstep.protocol.headers.send import SendMessageHeader
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support.asgi import get
from support.panel import Checked, checked, dashboard, started, stored
from support.queue_moves import broker_named
from support.why_kit import GROUP, TOPIC, Member

MESSAGES = f"/topics/{TOPIC}/messages"
QUICK = OrderedRetry(max_attempts=2, on_exhausted="dlq", backoff=Backoff(first_ms=10, max_ms=10))


def older(page: Checked) -> str | None:
    """Return the link to older messages."""
    return next((link for link in page.links if "from=" in link and "lang=" not in link), None)


async def all_pages(on: Dashboard, url: str, pattern: str) -> list[list[str]]:
    """Return what is found on each page, from the first on."""
    path, found = url.partition("?")[0], []
    link: str | None = url.removeprefix(path)
    while link is not None:
        page = checked(await get(on.app, path + link))
        found.append(re.findall(pattern, page.text))
        link = older(page)
        assert len(found) < 50, "the pages go round in a circle"
    return found


# ------------------------------------------------------------------------------------------------------- messages of a topic


@pytest.mark.lockstep(brokers=1)
async def test_messages_of_one_batch_are_on_different_pages_each_once(lockstep_cluster: TestCluster) -> None:
    await lockstep_cluster.create_topic(TOPIC, queues=2)
    async with Producer("shop", nameserver=lockstep_cluster.nameserver) as producer:
        batch = [Message(TOPIC, b"n%03d" % number) for number in range(120)]
        await producer.send_batch(batch, queue=MessageQueue(TOPIC, "broker-a", 1))
    async with dashboard(lockstep_cluster) as on:
        shown = await all_pages(on, MESSAGES, r"n\d{3}")
        assert [len(page) for page in shown] == [50, 50, 20]
        assert [each for page in shown for each in page] == [f"n{number:03}" for number in range(119, -1, -1)]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("tag=||", "tag: subscription '||' names no tag"),
        ("tag=" + "x" * 9_000, "tag: the subscription has 9000 characters"),
        ("key=%01", "sharding key '\\x01' holds 0x01"),
        ("message_key=a+b", "message key 'a b' is several words"),
        ("message_key=%02", "message key '\\x02' holds"),
        ("queue=broker-a", "expected BROKER:NUMBER"),
        ("queue=broker-a:7", "topic orders has no queue broker-a:7"),
        ("offset=-1", "offset '-1': expected a whole number"),
        ("offset=" + "9" * 19, "expected a whole number"),
        ("offset=٣", "expected a whole number"),
        ("since=soon", "--since 'soon'"),
        ("until=9999-12-31T23:59:59-23:00", "is after the year 9999"),
        ("from=rubbish", "'rubbish' is no place to go on from"),
        ("from=%3Cscript%3E%00", "is no place to go on from"),
        ("from=99999999999999999999:a:1:1", "is no place to go on from"),
        ("message_key=k&from=1:broker-a:0:3", "is no place to go on from"),
        ("message_key=k&from=broker-a:9999999999999999999", "is no place to go on from"),
    ],
)
async def test_field_that_is_not_valid_is_told_and_blames_no_broker(lockstep_cluster: TestCluster, query: str, words: str) -> None:
    await lockstep_cluster.create_topic(TOPIC, queues=1)
    await stored(lockstep_cluster, Message(TOPIC, b"x"))
    async with dashboard(lockstep_cluster) as on:
        page = checked(await get(on.app, f"{MESSAGES}?{query}"))
        assert words in page.text
        assert "is left out" not in page.text
        assert "No message matches" not in page.text


@pytest.mark.lockstep(brokers=1)
async def test_messages_from_an_offset_of_one_queue_or_of_all(lockstep_cluster: TestCluster) -> None:
    await lockstep_cluster.create_topic(TOPIC, queues=2)
    async with Producer("shop", nameserver=lockstep_cluster.nameserver) as producer:
        for number in range(10):
            await producer.send(Message(TOPIC, b"n%03d" % number), queue=MessageQueue(TOPIC, "broker-a", number % 2))
    async with dashboard(lockstep_cluster) as on:
        assert await all_pages(on, f"{MESSAGES}?queue=broker-a:1&offset=2", r"n\d{3}") == [["n005", "n003", "n001"]]
        assert await all_pages(on, f"{MESSAGES}?offset=1", r"n\d{3}") == [["n003", "n002", "n001", "n000"]]
        assert await all_pages(on, f"{MESSAGES}?queue=broker-a:0", r"n\d{3}") == [["n008", "n006", "n004", "n002", "n000"]]


@pytest.mark.lockstep(brokers=1)
async def test_search_that_reached_its_limit_says_how_far_it_came_and_goes_on(
    lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lockstep_cluster.create_topic(TOPIC, queues=1)
    await stored(lockstep_cluster, *(Message(TOPIC, b"n%03d" % number) for number in range(60)))
    monkeypatch.setattr(message_search, "LIMITS", replace(message_search.LIMITS, messages=5))
    async with dashboard(lockstep_cluster) as on:
        page = checked(await get(on.app, f"{MESSAGES}?body=n003"))
        assert "this one has looked at 9 messages of 60 messages" in page.text
        assert "No message was found so far. Go on with older messages" in page.text
        shown = await all_pages(on, f"{MESSAGES}?body=n003", r"\bn\d{3}\b")
        assert [each for found in shown for each in found] == ["n003"]
        assert len(shown) > 5


async def test_silent_broker_is_left_out_and_the_others_are_shown(lockstep_cluster: TestCluster) -> None:
    await lockstep_cluster.create_topic(TOPIC, queues=1)
    await stored(lockstep_cluster, *(Message(TOPIC, b"n%03d" % number) for number in range(20)))
    async with dashboard(lockstep_cluster) as on:
        await lockstep_cluster.pause("broker-b")
        page = checked(await get(on.app, MESSAGES))
        assert "broker-b is left out: it has not responded for 1.5 s" in page.text
        assert len(re.findall(r"n\d{3}", page.text)) == 10


# -------------------------------------------------------------------------------------------------------------------- by key


async def test_messages_with_a_key_are_found_in_one_topic_and_in_all_page_by_page(
    lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_search, "ROWS", 7)
    for topic in (TOPIC, "others"):
        await lockstep_cluster.create_topic(topic, queues=2)
        batch = [Message(topic, f"{topic}-{number:02}".encode(), keys=["all", f"k{number % 3}"]) for number in range(30)]
        await stored(lockstep_cluster, *batch)
    async with dashboard(lockstep_cluster) as on:
        for url, topics, numbers in (
            ("/messages?message_key=all", ("others", TOPIC), range(30)),
            (f"/messages?message_key=k1&topic={TOPIC}", (TOPIC,), range(1, 30, 3)),
            (f"{MESSAGES}?message_key=k2", (TOPIC,), range(2, 30, 3)),
            ("/messages?message_key=none", (), range(0)),
        ):
            shown = await all_pages(on, url, r"o\w+ers-\d\d\b")
            wanted = sorted(f"{topic}-{number:02}" for topic in topics for number in numbers)
            assert sorted(each for page in shown for each in page) == wanted, url
            assert max(map(len, shown)) <= 7
        page = checked(await get(on.app, "/messages?message_key=all"))
        assert "/topics/others" in page.links
        assert "no topic 'nothing'" in checked(await get(on.app, "/messages?message_key=a&topic=nothing")).text
        assert "No message matches" not in checked(await get(on.app, "/messages")).text


async def test_brokers_that_fail_are_named_in_a_search_of_logs(lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that refuses at once is not forgotten because another one is silent."""
    await lockstep_cluster.create_topic(TOPIC, queues=1)
    await stored(lockstep_cluster, *(Message(TOPIC, b"n%03d" % number, keys=["all"]) for number in range(6)))
    query = AdminClient.query

    async def refused(self: AdminClient, broker: Any, header: Any) -> Any:
        if broker.name == "broker-a":
            raise TransportError("connection refused")
        return await query(self, broker, header)

    monkeypatch.setattr(AdminClient, "query", refused)
    async with dashboard(lockstep_cluster) as on:
        page = checked(await get(on.app, "/messages?message_key=all"))
        assert "broker-a is left out: connection refused" in page.text
        assert len(re.findall(r"\bn\d{3}", page.text)) == 3
        await lockstep_cluster.pause("broker-b")
        page = checked(await get(on.app, "/messages?message_key=all"))
        assert "broker-a is left out: connection refused" in page.text
        assert "broker-b is left out: it has not responded for 2.5 s" in page.text


async def test_search_of_logs_that_takes_too_long_goes_on_where_it_ended(
    lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request finds one message here, and the third never ends."""
    await lockstep_cluster.create_topic(TOPIC, queues=1)
    await stored(lockstep_cluster, *(Message(TOPIC, b"n%03d" % number, keys=["all"]) for number in range(12)))
    asked, query = [0], AdminClient.query

    async def one_at_a_time(self: AdminClient, broker: Any, header: Any) -> Any:
        asked[0] += 1
        if asked[0] % 3 == 0:
            await asyncio.Event().wait()
        return await query(self, broker, replace(header, max_num=1))

    monkeypatch.setattr(AdminClient, "query", one_at_a_time)
    async with dashboard(lockstep_cluster) as on:
        page = checked(await get(on.app, "/messages?message_key=all"))
        assert "Go on with older messages" in page.text
        shown = await all_pages(on, "/messages?message_key=all", r"n\d{3}")
        assert sorted(each for found in shown for each in found) == [f"n{number:03}" for number in range(12)]
        assert len(shown) > 2


@pytest.mark.lockstep(brokers=1)
async def test_bytes_that_a_disk_could_not_read_are_told(lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await lockstep_cluster.create_topic(TOPIC, queues=1)
    await stored(lockstep_cluster, Message(TOPIC, b"x", keys=["k"]))
    query = AdminClient.query

    async def damaged(self: AdminClient, *args: Any) -> Any:
        reply, data = await query(self, *args)
        return replace(reply, unread_bytes=4_096), data

    monkeypatch.setattr(AdminClient, "query", damaged)
    async with dashboard(lockstep_cluster) as on:
        page = checked(await get(on.app, "/messages?message_key=k"))
        assert "4.1 kB could not be read from the disks of the brokers" in page.text
        assert "broker-a:0" in page.text


# --------------------------------------------------------------------------------------------------------------- one message


async def test_message_with_a_hostile_time_of_birth_is_shown(lockstep_cluster: TestCluster) -> None:
    await lockstep_cluster.create_topic(TOPIC, queues=1)
    async with dashboard(lockstep_cluster) as on:
        admin = on.watch.admin
        header = SendMessageHeader("test", TOPIC, 0, born_timestamp=2**62)
        await admin.request(await broker_named(admin, "broker-b"), RequestCode.SEND_MESSAGE, header, b"x")
        (link,) = [each for each in checked(await get(on.app, MESSAGES)).links if each.startswith("/messages/")]
        assert f"Sent {2**62} ms" in checked(await get(on.app, link)).text
        assert f'"born_at": "{2**62} ms"' in (await get(on.app, f"{link}?format=json")).text


async def test_body_is_shown_with_its_checksum_and_can_be_downloaded(lockstep_cluster: TestCluster) -> None:
    await lockstep_cluster.create_topic(TOPIC, queues=1)
    body = bytes(range(250, 256)) + b"<script>" + bytes(20)
    (sent,) = await stored(lockstep_cluster, Message(TOPIC, body))
    async with dashboard(lockstep_cluster) as on:
        page = await get(on.app, f"/messages/{sent}")
        assert f"34 bytes, stored as 34 with the CRC-32 {crc32(body) & 0x7FFFFFFF:08x} that are not text" in checked(page).text
        assert "00000000  fa fb fc fd fe ff 3c 73 63 72 69 70 74 3e 00 00  ......&lt;script&gt;..\n" in page.text
        assert f"/messages/{sent}/body" in checked(page).links
        got = await get(on.app, f"/messages/{sent}/body")
        assert (got.status, got.body) == (200, body)
        assert got.headers["content-type"] == "application/octet-stream"
        assert got.headers["content-disposition"] == f"attachment; filename={sent}.bin"
        assert got.headers["x-content-type-options"] == "nosniff"
        for wrong in ("hello", quote('x"\r\nset-cookie: a=b'), sent[:-2] + "FF"):
            assert (await get(on.app, f"/messages/{wrong}/body")).status == 404
    async with dashboard(lockstep_cluster, bodies=False) as on:
        page = await get(on.app, f"/messages/{sent}")
        assert f"CRC-32 {crc32(body) & 0x7FFFFFFF:08x}" in page.text
        assert f"/messages/{sent}/body" not in checked(page).links
        assert (await get(on.app, f"/messages/{sent}/body")).status == 403


async def test_messages_before_and_after_it_with_its_sharding_key_are_linked(
    lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lockstep_cluster.create_topic(TOPIC, queues=1)
    ids = await stored(lockstep_cluster, *(Message(TOPIC, b"x", sharding_key=f"k{number % 300}") for number in range(900)))
    async with dashboard(lockstep_cluster) as on:
        for number, before, after in ((7, None, 307), (307, 7, 607), (607, 307, None)):
            page = checked(await get(on.app, f"/messages/{ids[number]}"))
            links = [each.removeprefix("/messages/") for each in page.links if each.startswith("/messages/") and not each.endswith("body")]
            assert links == [ids[each] for each in (before, after) if each is not None]
            assert ("No message of this key is stored before it" in page.text) == (before is None)
            assert ("No message of this key is stored after it" in page.text) == (after is None)
        monkeypatch.setattr(related_messages, "LOOK_MAX", 50)
        far = checked(await get(on.app, f"/messages/{ids[307]}")).text
        assert "None of the 4,096 messages before it has this key." in far
        assert "None of the 4,096 messages after it has this key." in far


async def refuse(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
    raise RuntimeError("card declined")


async def test_dead_letter_and_its_original_are_linked_and_each_group_has_its_explanation(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await cluster.start("member", Member(cluster, refuse, {"retry": QUICK}).run)
    (sent,) = await stored(cluster, Message(TOPIC, b"x", sharding_key="k"))
    await cluster.settled(GROUP)
    async with dashboard(cluster) as on:
        page = checked(await get(on.app, f"/messages/{sent}"))
        assert f"{GROUP} DEAD_LETTERED" in page.text
        assert any(link.startswith(f"/groups/{GROUP}/why?queue={TOPIC}%40broker-") for link in page.links)
        assert f"Its copies %DLQ%{GROUP}" in page.text
        (copy,) = [each for each in page.links if re.fullmatch(r"/messages/[0-9A-F]{32}", each)]
        assert copy != f"/messages/{sent}"
        letter = checked(await get(on.app, copy))
        assert f"It is a copy of {sent}" in letter.text
        assert f"/messages/{sent}" in letter.links


# ------------------------------------------------------------------------------------------------------------------- its cost


@asynccontextmanager
async def stuck_queries(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[object]]:
    """Let no search of a log end. Yield those that have begun."""
    begun: list[object] = []

    async def stuck(self: AdminClient, *args: object) -> Any:
        begun.append(args)
        await asyncio.Event().wait()

    monkeypatch.setattr(AdminClient, "query", stuck)
    yield begun


@pytest.mark.lockstep(brokers=1)
async def test_few_searches_run_at_a_time_and_one_that_waits_too_long_is_told(
    lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Dashboard(lockstep_cluster.nameserver, host=Host.current())
    async with stuck_queries(monkeypatch) as begun:
        url = "/messages/AC11000100002A9F4D7C35D0A1B20003"
        first = [asyncio.ensure_future(get(made.app, url)) for _ in range(SEARCHES_MAX)]
        await asyncio.sleep(1)
        others = ("/messages?message_key=k", f"{url}?format=json", f"{url}/body", MESSAGES)
        refused = await asyncio.gather(*(get(made.app, other) for other in others))
        assert {(got.status, "4 searches are running" in got.text) for got in refused} == {(503, True)}
        assert len(begun) == SEARCHES_MAX
        assert {each.status for each in await asyncio.gather(*first)} == {404}
        assert (await get(made.app, "/messages?message_key=k")).status == 200
    await made.stop()


@pytest.mark.lockstep(brokers=1)
async def test_open_page_that_refreshes_its_notices_searches_nothing_again(
    lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Dashboard(lockstep_cluster.nameserver, host=Host.current())
    async with stuck_queries(monkeypatch) as begun:
        for url in ("/messages/AC11000100002A9F4D7C35D0A1B20003", "/messages?message_key=k", f"{MESSAGES}?message_key=k"):
            got = await get(made.app, url, x_part="notices")
            assert (got.status, "etag" in got.headers) == (200, True)
        assert begun == []
    await made.stop()


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
        assert re.search(r"3 bytes, .* that are not text · Download 00000000 ff 00 01 \.\.\.", pages[2])
        assert re.search(r"100,000 bytes, .*; only the beginning is shown", pages[3])
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


@pytest.mark.parametrize(
    ("written", "laid_out"),
    [
        ('{"a":1, "a":2}', '{\n  "a": 1,\n  "a": 2\n}'),
        ("[1.10,1E2,1e400, 12345678901234567890.123]", "[\n  1.10,\n  1E2,\n  1e400,\n  12345678901234567890.123\n]"),
        (
            '{"\\u00e9{,":["]:\\"", null], "b" : { }, "c":[ ]}',
            '{\n  "\\u00e9{,": [\n    "]:\\"",\n    null\n  ],\n  "b": {},\n  "c": []\n}',
        ),
        ("[1,]", None),
        ('{"a"}', None),
        (
            "[" * 50 + "]" * 50,
            "\n".join(
                [*("  " * depth + "[" for depth in range(49)), "  " * 49 + "[]", *("  " * depth + "]" for depth in range(48, -1, -1))]
            ),
        ),
        ("[" * 51 + "]" * 51, None),
        ("[" * 100_000, None),
        ("[" * 40 + "1," * 32_000 + "1" + "]" * 40, None),
    ],
    ids=["names", "numbers", "strings", "comma", "no value", "deep", "too deep", "very deep", "too long"],
)
def test_json_is_laid_out_as_it_is_written(written: str, laid_out: str | None) -> None:
    """What can't be laid out, or would be far longer than the body, is shown as it is."""
    assert lay_out(written) == laid_out


async def test_line_of_a_body_says_that_it_is_cut(lockstep_cluster: TestCluster) -> None:
    await lockstep_cluster.create_topic(TOPIC, queues=1)
    cut = "汉" * 39 + " " * 360 + "字" * 10
    await stored(lockstep_cluster, *(Message(TOPIC, body.encode()) for body in ("a" + " " * 600 + "b", cut, "c" * 120, "d" * 121)))
    async with dashboard(lockstep_cluster) as on:
        text = checked(await get(on.app, MESSAGES)).text
        assert "a…" in text
        assert "汉" * 39 + " 字…" in text
        assert "c" * 120 + "…" not in text
        assert "d" * 120 + "…" in text


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
