"""Limits of users at a broker: what is refused, what waits, what is never touched, and whom it concerns."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lockstep.broker.app import Broker
from lockstep.broker.processors.producer_owners import SILENT_MS, ProducerOwners
from lockstep.broker.processors.pull import LATE_MS
from lockstep.broker.processors.user_quotas import HELD_RETRY_MS, PULL_SPACING_MS, RETRY_MS_MIN, UserQuotas
from lockstep.client import Client as SdkClient
from lockstep.client import ConsumeOrderlyStatus, Message, MessageExt, OrderlyContext, Producer, PushConsumer
from lockstep.nameserver.app import Nameserver
from lockstep.nameserver.config import NameserverConfig
from lockstep.protocol.bodies import SyncBody, SyncItem
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import AuthenticationError, NoPermissionError
from lockstep.protocol.headers.offsets import UpdateConsumerOffsetHeader
from lockstep.protocol.headers.pull import SUBSCRIPTION, SUSPEND
from lockstep.protocol.headers.send import SendMessageHeader
from lockstep.runtime.clock import Clock
from lockstep.runtime.host import Host
from lockstep.runtime.requests import login
from lockstep.runtime.security.users import watch_users
from support.clocks import SetClock
from support.logins import PASSWORD, logging_in, write_users
from support.loops import until
from support.whole_broker import TOPIC, Client, dialled, frame, join, place, running, settings

RIGHTS = f'role = "consumer"\ntopics = ["{TOPIC}"]\ngroups = ["g"]\nallow = ["Pub topic:{TOPIC}"]'
NAMES = ("ops", "shop", "rival", "broker")
ONE_A_SECOND = "bytes_in_per_s = 1"
"""The first send takes it for minutes."""


def write(path: Path, **limits: str) -> str:
    """Write users, of whom some have limits."""
    rules = {name: f"{RIGHTS}\nlimits = {{ {limits.get(name, '')} }}" for name in NAMES}
    return write_users(path, {name: [PASSWORD] for name in NAMES}, {**rules, "ops": "super = true", "broker": 'brokers = ["broker-a"]'})


@dataclass
class Market:
    """A broker with users, whose limits a test may change."""

    broker: Broker
    path: Path
    stack: AsyncExitStack

    @property
    def quotas(self) -> UserQuotas:
        return self.broker.running.quotas

    async def as_user(self, name: str) -> Client:
        return await self.stack.enter_async_context(dialled(self.broker, logging_in(name)))

    def limit(self, **limits: str) -> None:
        """Change the limits, as if the broker had looked at the file now."""
        write(self.path, **limits)
        assert self.broker._security.users is not None
        assert self.broker._security.users.look(0)


@pytest.fixture
async def market(tmp_path: Path) -> AsyncIterator[Market]:
    path = tmp_path / "users.toml"
    write(path)
    async with running(settings(tmp_path, security=str(path), audit="off")) as broker, AsyncExitStack() as stack:
        found = Market(broker, path, stack)
        await (await found.as_user("ops")).create()
        yield found


async def send(client: Client, first: int = 0, **values: Any) -> Command:
    header, body, _ = frame(first, 1, **values)
    return await client.send_request(RequestCode.SEND_RECORDS, header, body)


def held_pull(client: Client, offset: int = 0, ms: int = 30_000) -> Any:
    return client.pull(offset, sys_flag=SUBSCRIPTION | SUSPEND, suspend_timeout_millis=ms)


async def test_user_above_a_limit_of_sends_is_told_when_to_send_again_and_others_are_not_delayed(market: Market) -> None:
    market.quotas._clock = SetClock()
    shop, rival = await market.as_user("shop"), await market.as_user("rival")
    single = SendMessageHeader("p", TOPIC, 0)
    for limits, limit in ((ONE_A_SECOND, "bytes_in_per_s"), ("requests_per_s = 1", "requests_per_s")):
        market.limit(shop=limits)
        await shop.done(RequestCode.SEND_MESSAGE, single, b"m" * 200)
        response = await shop.send_request(RequestCode.SEND_MESSAGE, single, b"m" * 200)
        assert response.code == ResponseCode.SYSTEM_BUSY
        retry_ms = response.fields["retryAfterMs"]
        assert response.remark == f"user shop is above its limit {limit} at this broker; retry after {retry_ms} ms"
        assert retry_ms >= (100_000 if limit == "bytes_in_per_s" else RETRY_MS_MIN)
        await rival.done(RequestCode.SEND_MESSAGE, single, b"m" * 200)
        assert market.quotas.exceeded["shop", limit] == 1
    market.limit(shop="bytes_in_per_s = '1GiB'")
    await shop.done(RequestCode.SEND_MESSAGE, single, b"m" * 200)


async def test_repeat_of_a_stored_frame_gets_its_first_response_and_a_new_one_waits(market: Market) -> None:
    market.limit(shop=ONE_A_SECOND)
    shop = await market.as_user("shop")
    header, body, crc = frame(0, 1)
    first = await shop.send_request(RequestCode.SEND_RECORDS, header, body)
    again = await shop.send_request(RequestCode.SEND_RECORDS, header, body)
    assert place(again) == place(first)
    assert (await send(shop, 1, crc=crc)).code == ResponseCode.SYSTEM_BUSY


async def test_requests_that_decide_who_owns_a_queue_are_neither_refused_nor_counted(market: Market) -> None:
    market.limit(shop="requests_per_s = 1, bytes_in_per_s = 1, bytes_out_per_s = 1")
    shop = await market.as_user("shop")
    await send(shop)
    for _ in range(20):
        epoch = await join(shop, "c1", "5" * 32)
        await shop.done(RequestCode.SYNC, body=encode_body(SyncBody((SyncItem("g", TOPIC, 0, epoch, 0),))))
        await shop.done(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader("g", TOPIC, 1, 0))
    assert market.quotas.exceeded == {}


async def test_pull_above_a_limit_waits_for_its_turn_and_is_answered_without_messages_at_its_deadline(market: Market) -> None:
    rival, shop = await market.as_user("rival"), await market.as_user("shop")
    await send(rival)
    market.limit(shop="bytes_out_per_s = 1")
    assert (await held_pull(shop)).code == ResponseCode.SUCCESS
    response = await held_pull(shop, ms=50)
    assert (response.code, response.body) == (ResponseCode.PULL_RETRY_IMMEDIATELY, b"")
    assert [response.fields[name] for name in ("nextBeginOffset", "minOffset", "maxOffset")] == [0, 0, 1]
    refused = await shop.pull()
    assert refused.code == ResponseCode.SYSTEM_BUSY, "nothing would mean that the queue is empty"
    assert refused.fields["retryAfterMs"] > LATE_MS
    waiting = held_pull(shop)
    await rival.done(RequestCode.SEND_MESSAGE, SendMessageHeader("p", TOPIC, 0), b"m")
    assert (await held_pull(rival)).code == ResponseCode.SUCCESS, "a message, which has woken the other pull too"
    assert (waiting.done(), market.broker.running.pulls.held_count) == (False, 1)
    market.limit()
    await rival.done(RequestCode.SEND_MESSAGE, SendMessageHeader("p", TOPIC, 0), b"m")
    assert (await waiting).code == ResponseCode.SUCCESS


async def test_pull_that_waits_ends_with_its_connection_and_with_the_broker(market: Market) -> None:
    rival, shop, other = await market.as_user("rival"), await market.as_user("shop"), await market.as_user("shop")
    await send(rival)
    market.limit(shop="bytes_out_per_s = 1")
    await held_pull(shop)
    gone, waiting = held_pull(other), held_pull(shop)
    await until(lambda: market.broker.running.pulls.held_count == 2)
    gone.add_done_callback(lambda ended: ended.exception())
    other.endpoint.abort("gone")
    await until(lambda: market.broker.running.pulls.held_count == 1)
    market.broker.running.pulls.stop()
    assert (await waiting).code == ResponseCode.SUCCESS


async def test_pulls_above_the_number_that_may_wait_are_refused(market: Market) -> None:
    market.limit(shop="held_pulls = 2")
    shop, rival = await market.as_user("shop"), await market.as_user("rival")
    pulls = [held_pull(shop) for _ in range(2)]
    refused = await held_pull(shop)
    assert (refused.code, refused.fields["retryAfterMs"]) == (ResponseCode.SYSTEM_BUSY, HELD_RETRY_MS)
    assert "2 pulls of user shop wait at this broker, its limit held_pulls" in (refused.remark or "")
    pulls.append(held_pull(rival))
    await send(rival)
    assert {(await pull).code for pull in pulls} == {ResponseCode.SUCCESS}
    await send(rival, 1)
    assert (await held_pull(shop)).code == ResponseCode.SUCCESS


async def test_login_above_the_number_of_connections_is_refused_with_words_and_open_ones_stay(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "FAILED_S", 0.0)
    market.limit(shop="connections = 2")
    first, second = await market.as_user("shop"), await market.as_user("shop")
    with pytest.raises(AuthenticationError, match="user shop has 2 connections to this server, its limit"):
        await market.as_user("shop")
    await send(first)
    await market.as_user("rival")
    second.endpoint.close("done")
    connections = market.broker.running.server.endpoints
    await until(lambda: [each.identity.name for each in connections.values() if each.identity is not None].count("shop") == 1)
    await send(await market.as_user("shop"), 1)


def test_pulls_that_wait_are_tried_again_one_after_the_other(tmp_path: Path) -> None:
    users = watch_users(write(tmp_path / "users", shop="bytes_out_per_s = 1000"))
    quotas = UserQuotas(users, Clock())
    quotas.count_pulled("shop", 1_000_000)
    due_ms = [quotas.pull_due_ms("shop") for _ in range(1_000)]
    assert all(later - earlier >= PULL_SPACING_MS for earlier, later in pairwise(due_ms))
    assert quotas.exceeded == {("shop", "bytes_out_per_s"): 1_000}


def test_user_with_all_its_producer_ids_gets_no_new_one_until_one_is_silent(tmp_path: Path) -> None:
    users = watch_users(write(tmp_path / "users", shop="producer_ids = 2"))
    owners = ProducerOwners(UserQuotas(users, Clock()), owners_max=6)
    for now_ms, producer_id in enumerate(("a", "b", "a")):
        owners.check(producer_id, "shop", now_ms)
    with pytest.raises(NoPermissionError, match="user shop has sent under 2 producer ids"):
        owners.check("c", "shop", 10)
    owners.check("a", "shop", 10)
    owners.check("c", "shop", SILENT_MS + 5)
    with pytest.raises(NoPermissionError, match="in use by another user"):
        owners.check("c", "rival", SILENT_MS + 5)
    for each in range(10):
        owners.check(f"r{each}", "rival", SILENT_MS + 5)
    for producer_id in ("a", "c"):
        with pytest.raises(NoPermissionError, match="in use by another user"):
            owners.check(producer_id, "rival", SILENT_MS + 5)
    owners.check("b", "rival", SILENT_MS + 5)


@pytest.mark.simulated
async def test_consumer_keeps_its_queues_while_the_sends_of_its_connection_are_refused(tmp_path: Path) -> None:
    """One user, one Client, one connection: refusals must not cost the proof of life, and nothing is lost or out of order."""
    path, password, host = tmp_path / "users.toml", tmp_path / "password", Host.current()
    password.write_text(PASSWORD)
    write(path, shop="bytes_in_per_s = '2KiB', bytes_out_per_s = '2KiB', requests_per_s = 20")
    nameserver = Nameserver(NameserverConfig(listen=("127.0.0.1:0",), security=str(path)), host)
    await nameserver.start()
    address = f"lockstep://broker@{nameserver.address}/?password_file={password}"
    short = {"disconnect_grace_ms": 1_000, "session_timeout_ms": 1_000}
    handled, events = list[bytes](), list[str]()
    async with running(settings(tmp_path, security=str(path), nameserver=address, **short)) as broker, AsyncExitStack() as stack:
        async with dialled(broker, logging_in("ops")) as ops:
            await ops.create()
        client = SdkClient(nameserver.address, user="shop", password=PASSWORD)
        consumer = PushConsumer("g", client=client)
        consumer.subscribe(TOPIC)
        consumer.on_event(lambda event: events.append(type(event).__name__))

        @consumer.orderly
        async def listen(messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
            handled.extend(message.body for message in messages)
            return ConsumeOrderlyStatus.SUCCESS

        await stack.enter_async_context(consumer)
        producer = await stack.enter_async_context(Producer("p", client=client, send_timeout_ms=120_000))
        await until(lambda: events.count("QueueAssigned") == 4)
        bodies = [b"%03d" % number + b" " * 1_000 for number in range(60)]
        for body in bodies:
            await producer.send(Message(TOPIC, body, sharding_key="k"))
        await until(lambda: len(handled) == len(bodies))
        assert handled == bodies
        assert events == ["QueueAssigned"] * 4
        assert broker.running.quotas.exceeded["shop", "bytes_in_per_s"] > 10
    await nameserver.stop()
