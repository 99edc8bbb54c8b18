"""LIST_WAITING: which timers a page has, in what order, where the next one begins, and who may see them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.broker.app import Broker
from lockstep.broker.processors.rooms import waiting
from lockstep.broker.processors.rooms.waiting import LIMIT_MAX, SLICE_RECORDS
from lockstep.protocol.bodies import WaitingPage, WaitingRow
from lockstep.protocol.codec.msgpack_body import decode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.headers.offsets import ListWaitingHeader
from lockstep.protocol.headers.send import RecallMessageHeader, SendRecordsHeader
from lockstep.protocol.messages.properties import TIMER_DELAY_MS, TIMER_DELIVER_MS
from lockstep.protocol.messages.recall import RecallHandle
from lockstep.protocol.messages.record import encode_record
from lockstep.protocol.messages.rooms import home_properties
from lockstep.protocol.names import TIMER_TOPIC
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from lockstep.runtime.host import Host
from support.logins import PASSWORD, logging_in, write_users
from support.until import until
from support.whole_broker import LAYOUT, TOPIC, Client, dialled, running, settings

HOUR_MS = 3_600_000
BILLS = TopicLayout("bills", LayoutVersion(1, 7), (LayoutEntry("broker-a", 1, 1, 1),))


async def send(client: Client, *delays_ms: int, layout: TopicLayout = LAYOUT, at_ms: int | None = None, **properties: str) -> None:
    """Send timers, one for each delay, or one for a time of day. Their bodies have 100 bytes."""
    whens = [f"{TIMER_DELAY_MS}\x01{delay_ms}" for delay_ms in delays_ms] or [f"{TIMER_DELIVER_MS}\x01{at_ms}"]
    home = home_properties(layout.topic, 0, layout.began)
    for when in whens:
        rest = "".join(f"\x02{name}\x01{value}" for name, value in properties.items())
        record = encode_record(TIMER_TOPIC.encode(), 0, b"x" * 100, home + (when + rest).encode(), born_ms=1)
        header = SendRecordsHeader(layout.topic, 0, 1, room=TIMER_TOPIC, began=layout.began)
        await client.done(RequestCode.SEND_RECORDS, header, record)


async def ask(client: Client, **header: Any) -> Command:
    return await client.send_request(RequestCode.LIST_WAITING, ListWaitingHeader(**header))


async def page(client: Client, **header: Any) -> WaitingPage:
    response = await ask(client, **header)
    assert response.code == ResponseCode.SUCCESS, response.remark
    return decode_body(WaitingPage, response.body)


async def every_page(client: Client, **header: Any) -> list[WaitingPage]:
    found = [await page(client, **header)]
    while (cursor := found[-1].cursor) is not None:
        found.append(await page(client, cursor=cursor, **header))
    return found


def rows(pages: list[WaitingPage]) -> list[WaitingRow]:
    return [row for each in pages for row in each.rows]


def ids(pages: list[WaitingPage]) -> list[str]:
    return [row.message_id for row in rows(pages)]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running(settings(tmp_path)) as found:
        yield found


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Client]:
    async with dialled(broker) as found:
        await found.create()
        await found.create(BILLS)
        yield found


async def test_row_says_what_waits_where_it_goes_and_when_it_is_due(client: Client) -> None:
    now_ms = Host.current().clock.wall_ms()
    at_ms = now_ms + HOUR_MS
    await send(client, at_ms=at_ms, UNIQ_KEY="B", KEYS="a b", TAGS="paid", __SHARDINGKEY="1001")
    await send(client, 2 * HOUR_MS, layout=BILLS)
    found = await page(client)
    first, second = found.rows
    assert (found.cursor, found.pending, found.unread) == (None, 2, 0)
    assert (first.topic, first.queue_id, first.message_id, first.keys) == (TOPIC, 0, "B", "a b")
    assert (first.tag, first.sharding_key, first.due_ms, first.absolute, first.offset) == ("paid", "1001", at_ms, True, 0)
    assert RecallHandle.decode(first.handle) == RecallHandle(TOPIC, "broker-a", at_ms, "B", 0)
    assert 200 < first.record_bytes < 400
    assert (second.topic, second.message_id, second.keys, second.tag, second.sharding_key) == ("bills", "", "", None, None)
    assert (second.due_ms, second.absolute, second.handle) == (second.stored_ms + 2 * HOUR_MS, False, ""), "no id, no handle"


async def test_pages_have_each_timer_once_as_they_are_due(client: Client) -> None:
    delays = [HOUR_MS + number * 977_777 % 300_000 for number in range(100)]
    for number, delay_ms in enumerate(delays):
        await send(client, delay_ms, UNIQ_KEY=str(number))
    for limit in (1, 7, 99, 100, 1_000):
        pages = await every_page(client, limit=limit)
        assert [len(each.rows) for each in pages[:-1]] == [limit] * (len(pages) - 1)
        assert len(pages[-1].rows) > 0
        found = rows(pages)
        assert [(row.due_ms, row.offset) for row in found] == sorted((row.due_ms, row.offset) for row in found)
        assert sorted(map(int, ids(pages))) == list(range(100))


async def test_only_messages_that_meet_all_conditions_are_listed(client: Client) -> None:
    await send(client, HOUR_MS, UNIQ_KEY="1", KEYS="a ab", __SHARDINGKEY="s")
    await send(client, 2 * HOUR_MS, UNIQ_KEY="2", KEYS="b a")
    await send(client, 3 * HOUR_MS, UNIQ_KEY="3", layout=BILLS, KEYS="a", __SHARDINGKEY="s")
    due_ms = [row.due_ms for row in (await page(client)).rows]
    for conditions, expected in [
        ({}, ["1", "2", "3"]),
        ({"topic": ""}, ["1", "2", "3"]),
        ({"topic": "bills"}, ["3"]),
        ({"key": "a"}, ["1", "2", "3"]),
        ({"key": "b"}, ["2"]),
        ({"key": "b a"}, []),
        ({"sharding_key": "s"}, ["1", "3"]),
        ({"sharding_key": "s", "topic": TOPIC}, ["1"]),
        ({"due_before_ms": due_ms[1]}, ["1"]),
        ({"due_before_ms": due_ms[1] + 1}, ["1", "2"]),
        ({"due_before_ms": due_ms[0]}, []),
    ]:
        assert ids(await every_page(client, limit=1, **conditions)) == expected, conditions
    assert (await page(client, due_before_ms=due_ms[1])).cursor is None, "none is due before that time later"


@pytest.mark.parametrize(
    ("limits", "looks"),
    [({"LOOKED_MAX": 3}, [3, 3, 3, 1]), ({"READ_BYTES_MAX": 500}, [2, 2, 2, 2, 2]), ({"READ_BYTES_MAX": 1}, [1] * 10)],
)
async def test_request_ends_after_its_limits_with_few_rows_and_a_cursor(
    client: Client, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int], looks: list[int]
) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(waiting, name, value)
    for number in range(10):
        await send(client, HOUR_MS + number, UNIQ_KEY=str(number), KEYS="x" if number == 9 else "y")
    assert [len(each.rows) for each in await every_page(client)] == looks
    pages = await every_page(client, key="x")
    assert (len(pages), ids(pages)) == (len(looks), ["9"])


async def test_page_is_made_in_many_turns_of_the_loop(client: Client) -> None:
    count = 2_000
    home = home_properties(TOPIC, 0, LAYOUT.began) + f"{TIMER_DELAY_MS}\x01{HOUR_MS}".encode()
    records = encode_record(TIMER_TOPIC.encode(), 0, b"x", home, born_ms=1) * count
    await client.done(RequestCode.SEND_RECORDS, SendRecordsHeader(TOPIC, 0, count, room=TIMER_TOPIC, began=LAYOUT.began), records)
    asked, turns = asyncio.ensure_future(page(client, key="x")), 0
    while not asked.done():
        turns += 1
        await asyncio.sleep(0)
    assert asked.result().pending == count
    assert turns >= count / SLICE_RECORDS


async def test_delivered_and_recalled_messages_and_those_of_deleted_topics_are_not_listed(client: Client, broker: Broker) -> None:
    for name, layout in (("recalled", LAYOUT), ("left", LAYOUT), ("gone", BILLS)):
        await send(client, HOUR_MS, UNIQ_KEY=name, layout=layout)
    assert ids([await page(client)]) == ["recalled", "left", "gone"]
    await send(client, 1, UNIQ_KEY="delivered")
    await until(lambda: len(broker.running.state.timers) == 3)
    handle = (await page(client)).rows[0].handle
    await client.done(RequestCode.RECALL_MESSAGE, RecallMessageHeader(TOPIC, handle))
    await client.create(replace(BILLS, version=LayoutVersion(2, 7), entries=()))
    found = await page(client)
    assert (ids([found]), found.pending) == (["left"], 2)


async def test_handle_names_one_message_while_it_waits(client: Client) -> None:
    await send(client, HOUR_MS, HOUR_MS, UNIQ_KEY="A", KEYS="k")
    first, second = (await page(client)).rows
    found = await page(client, recall_handle=second.handle)
    assert (found.rows, found.cursor, found.pending) == ((second,), None, 2)
    classic = RecallHandle.decode(first.handle)._replace(offset=None).encode()
    assert set((await page(client, recall_handle=classic)).rows) == {row for row in (first, second) if row.due_ms == first.due_ms}
    for wrong in (
        RecallHandle.decode(first.handle)._replace(message_id="B"),
        RecallHandle.decode(first.handle)._replace(topic="bills"),
        RecallHandle.decode(first.handle)._replace(offset=99),
    ):
        assert (await page(client, recall_handle=wrong.encode())).rows == ()
    await client.done(RequestCode.RECALL_MESSAGE, RecallMessageHeader(TOPIC, first.handle))
    assert (await page(client, recall_handle=first.handle)).rows == ()


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"limit": 0}, f"limit 0: expected 1 to {LIMIT_MAX}"),
        ({"limit": LIMIT_MAX + 1}, f"expected 1 to {LIMIT_MAX}"),
        ({"cursor": ""}, "expected the cursor of the response before"),
        ({"cursor": "x"}, "expected the cursor of the response before"),
        ({"key": ""}, "key"),
        ({"sharding_key": "a\x01b"}, "sharding key"),
        ({"recall_handle": "x"}, "no recall handle"),
        ({"recall_handle": RecallHandle(TOPIC, "broker-b", 1, "A", 0).encode()}, "the handle is of broker broker-b, this is broker-a"),
    ],
)
async def test_request_that_asks_for_nothing_sensible_is_refused(client: Client, header: dict[str, Any], words: str) -> None:
    response = await ask(client, **header)
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert words in (response.remark or "")


async def test_user_sees_the_messages_of_topics_to_which_it_sends_or_that_it_may_get(tmp_path: Path) -> None:
    rules = {
        "ops": "super = true",
        "shop": f'role = "producer"\ntopics = ["{TOPIC}"]',
        "viewer": 'role = "viewer"\ntopics = ["bills"]',
        "consumer": f'role = "consumer"\ntopics = ["{TOPIC}"]\ngroups = ["g"]',
    }
    path = write_users(tmp_path / "users.toml", {name: [PASSWORD] for name in rules}, rules)
    async with running(settings(tmp_path, security=path)) as broker, AsyncExitStack() as stack:
        clients = {name: await stack.enter_async_context(dialled(broker, logging_in(name))) for name in rules}
        await clients["ops"].create()
        await clients["ops"].create(BILLS)
        await send(clients["ops"], HOUR_MS, UNIQ_KEY="o")
        await send(clients["ops"], HOUR_MS, UNIQ_KEY="b", layout=BILLS)
        for user, expected in [("ops", {"o", "b"}), ("shop", {"o"}), ("viewer", {"b"}), ("consumer", set())]:
            assert set(ids(await every_page(clients[user], limit=1))) == expected, user
        refused = await ask(clients["viewer"], topic=TOPIC)
        assert refused.code == ResponseCode.NO_PERMISSION
        (row,) = (await page(clients["shop"])).rows
        assert (await page(clients["viewer"], recall_handle=row.handle)).rows == ()
