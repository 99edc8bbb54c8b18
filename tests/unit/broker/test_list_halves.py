"""LIST_HALVES: which half messages a page has, where the next one begins, and who may see them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from lockstep.broker.app import Broker
from lockstep.broker.processors.rooms import check_back, list_halves
from lockstep.broker.processors.rooms.waiting import LIMIT_MAX
from lockstep.protocol.bodies import EndTransactionBody, HalfMessage, HalfPage, HeartbeatBody
from lockstep.protocol.bodies.heartbeat import ProducerGroup
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.headers.send import SendRecordsHeader
from lockstep.protocol.headers.transactions import COMMIT, ROLLBACK, EndTransactionHeader, ListHalvesHeader
from lockstep.protocol.messages.record import encode_record
from lockstep.protocol.messages.rooms import half_properties, home_properties
from lockstep.protocol.names import HALF_TOPIC
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from support.logins import PASSWORD, logging_in, write_users
from support.whole_broker import LAYOUT, TOPIC, Client, dialled, running, settings

BILLS = TopicLayout("bills", LayoutVersion(1, 7), (LayoutEntry("broker-a", 1, 1, 1),))


async def send(client: Client, *ids: str, layout: TopicLayout = LAYOUT, group: str = "shop", client_id: str = "", **more: str) -> None:
    """Send half messages with these ids. Their bodies have 100 bytes. `client_id`: that of the client, if it has told it."""
    home = home_properties(layout.topic, 0, layout.began) + half_properties(group, client_id)
    for unique in ids:
        rest = "\x02".join(f"{name}\x01{value}" for name, value in {"UNIQ_KEY": unique, **more}.items())
        record = encode_record(HALF_TOPIC.encode(), 0, b"x" * 100, home + rest.encode(), born_ms=1)
        header = SendRecordsHeader(layout.topic, 0, 1, room=HALF_TOPIC, began=layout.began, producer_group=group)
        await client.done(RequestCode.SEND_RECORDS, header, record)


async def tell(client: Client, client_id: str) -> None:
    """Send the heartbeat of a producer with this client id."""
    body = HeartbeatBody(client_id, (), producers=(ProducerGroup("shop", checks=True),))
    await client.done(RequestCode.HEART_BEAT, body=encode_body(body))


async def ask(client: Client, **header: Any) -> Command:
    return await client.send_request(RequestCode.LIST_HALVES, ListHalvesHeader(**header))


async def page(client: Client, **header: Any) -> HalfPage:
    response = await ask(client, **header)
    assert response.code == ResponseCode.SUCCESS, response.remark
    return decode_body(HalfPage, response.body)


async def every_page(client: Client, **header: Any) -> list[HalfPage]:
    found = [await page(client, **header)]
    while (cursor := found[-1].cursor) is not None:
        found.append(await page(client, **{**header, "cursor": cursor}))
    return found


def ids(pages: list[HalfPage]) -> list[str]:
    return [row.message_id for each in pages for row in each.rows]


async def end(client: Client, outcome: int, *halves: HalfMessage) -> None:
    await client.done(RequestCode.END_TRANSACTION, EndTransactionHeader("shop", outcome), encode_body(EndTransactionBody(halves)))


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


async def test_row_says_what_waits_for_whose_decision(client: Client) -> None:
    await tell(client, "c1")
    await send(client, "A", client_id="c1", KEYS="a b", TAGS="paid", __SHARDINGKEY="1001", __transactionId__="T")
    await tell(client, "c2")
    await send(client, "B", layout=BILLS, client_id="c2")
    found = await page(client)
    first, second = found.rows
    assert (found.cursor, found.open, found.unread) == (None, 2, 0)
    assert (first.topic, first.queue_id, first.message_id, first.transaction_id, first.keys) == (TOPIC, 0, "A", "T", "a b")
    assert (first.tag, first.sharding_key, first.producer_group, first.client_id, first.offset) == ("paid", "1001", "shop", "c1", 0)
    assert first.expires_ms - first.sent_ms == 24 * 3_600_000
    assert (first.connected, first.expired) == (False, False)
    assert 200 < first.record_bytes < 400
    assert (second.topic, second.transaction_id, second.tag, second.sharding_key, second.client_id) == ("bills", "B", None, None, "c2")
    assert first.sent_ms <= second.sent_ms


async def test_row_says_whether_its_sender_is_connected(client: Client) -> None:
    await send(client, "unknown")
    await tell(client, "c1")
    await send(client, "A", client_id="c1")
    assert [(row.client_id, row.connected) for row in (await page(client)).rows] == [("", False), ("c1", True)]
    await tell(client, "c2")
    assert [(row.client_id, row.connected) for row in (await page(client)).rows] == [("", False), ("c1", False)]


async def test_pages_have_each_half_message_once(client: Client) -> None:
    names = [str(number) for number in range(20)]
    await send(client, *names)
    for limit in (1, 7, 19, 20, 1_000):
        assert ids(await every_page(client, limit=limit)) == names


async def test_only_messages_that_meet_all_conditions_are_listed(client: Client) -> None:
    await send(client, "1", KEYS="a ab", __transactionId__="T")
    await send(client, "2", KEYS="b a", group="bank")
    await send(client, "3", layout=BILLS, KEYS="a", __transactionId__="T")
    for conditions, expected in [
        ({}, ["1", "2", "3"]),
        ({"topic": ""}, ["1", "2", "3"]),
        ({"topic": "bills"}, ["3"]),
        ({"key": "a"}, ["1", "2", "3"]),
        ({"key": "b"}, ["2"]),
        ({"key": "b a"}, []),
        ({"producer_group": "bank"}, ["2"]),
        ({"transaction_id": "T"}, ["1", "3"]),
        ({"transaction_id": "2"}, ["2"]),
        ({"transaction_id": "T", "topic": TOPIC}, ["1"]),
        ({"expired": True}, []),
    ]:
        assert ids(await every_page(client, limit=1, **conditions)) == expected, conditions


@pytest.mark.parametrize(
    ("limits", "looks"),
    [({"LOOKED_MAX": 3}, [3, 3, 3, 1]), ({"READ_BYTES_MAX": 500}, [2, 2, 2, 2, 2]), ({"READ_BYTES_MAX": 1}, [1] * 10)],
)
async def test_request_ends_after_its_limits_with_few_rows_and_a_cursor(
    client: Client, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int], looks: list[int]
) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(list_halves, name, value)
    await send(client, *map(str, range(9)), KEYS="y")
    await send(client, "9", KEYS="x")
    assert [len(each.rows) for each in await every_page(client)] == looks
    pages = await every_page(client, key="x")
    assert (len(pages), ids(pages)) == (len(looks), ["9"])


async def test_messages_that_have_ended_are_not_listed(client: Client) -> None:
    await send(client, "committed", "left", "rolled back")
    first, _, last = (await page(client)).rows
    await end(client, COMMIT, HalfMessage(first.offset, first.message_id))
    await end(client, ROLLBACK, HalfMessage(last.offset, last.message_id))
    found = await page(client)
    assert (ids([found]), found.open, found.unread) == (["left"], 1, 0)


async def test_only_too_old_messages_are_listed_and_counted(broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await send(client, "A")
    running_broker = broker.running
    half = running_broker.state.transactions.from_offset(0, 1)[0]
    assert (ids(await every_page(client, expired=True)), running_broker.checks.is_expired(half)) == ([], False)
    monkeypatch.setattr(check_back, "HOUR_MS", -1)
    assert ids(await every_page(client, expired=True)) == ["A"]
    for expected in (1, 0):
        text = (await running_broker.render_metrics()).decode()
        (line,) = [each for each in text.splitlines() if each.startswith("lockstep_transactions_expired{")]
        assert float(line.split()[-1]) == expected
        if expected:
            await end(client, ROLLBACK, HalfMessage(half.offset, "A"))


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"limit": 0}, f"limit 0: expected 1 to {LIMIT_MAX}"),
        ({"limit": LIMIT_MAX + 1}, f"expected 1 to {LIMIT_MAX}"),
        ({"key": ""}, "key is empty"),
        ({"key": "a\x01b"}, "key"),
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
        await send(clients["ops"], "o")
        await send(clients["ops"], "b", layout=BILLS)
        for user, expected in [("ops", {"o", "b"}), ("shop", {"o"}), ("viewer", {"b"}), ("consumer", set())]:
            assert set(ids(await every_page(clients[user], limit=1))) == expected, user
        refused = await ask(clients["viewer"], topic=TOPIC)
        assert refused.code == ResponseCode.NO_PERMISSION
