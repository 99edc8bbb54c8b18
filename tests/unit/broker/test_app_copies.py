"""A whole broker: send back, dead letters, delays."""

from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.broker.app import Broker
from lockstep.protocol.bodies import (
    LockItem,
    LockVerdict,
)
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.delays import delay_queue_id
from lockstep.protocol.headers.pull import SUBSCRIPTION, SUSPEND, PullHeader
from lockstep.protocol.headers.send import DeadLetterHeader, SendBackHeader, SendMessageHeader
from lockstep.protocol.messages.properties import SENT_PROPERTIES_BYTES_MAX, decode_properties
from lockstep.runtime.host import Host
from support.whole_broker import TOPIC, Client, dialled, heartbeat, join, kill, reconcile, running, settings, stored

GROUP = "g" * 120
"""The longest name that leaves room for `%RETRY%`."""


async def send_message(client: Client, body: bytes = b"m0", properties: str = "TAGS\x01paid\x02UNIQ_KEY\x01k") -> int:
    """Send a message to queue 0 of the topic and return its log position."""
    await client.done(RequestCode.SEND_MESSAGE, SendMessageHeader("p", TOPIC, 0, properties=properties), body)
    return (await stored(client, TOPIC))[-1].physical_offset


async def test_message_sent_back_is_redelivered_until_its_retries_are_used_up(tmp_path: Path) -> None:
    async with running(settings(tmp_path, message_delay_level="10ms")) as broker, dialled(broker) as client:
        await client.create()
        offset = await send_message(client)
        for times in range(1, 4):
            await client.done(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader(offset, "g", max_reconsume_times=2))
            if times == 3:
                break
            await wait_for_count(client, "%RETRY%g", times)
            again = (await stored(client, "%RETRY%g"))[-1]
            assert again.reconsume_times == times
            properties = decode_properties(again.properties)
            assert (properties["RETRY_TOPIC"], properties["TAGS"], properties["UNIQ_KEY"]) == (TOPIC, "paid", "k")
            offset = again.physical_offset
        (dead,) = await stored(client, "%DLQ%g")
        assert (dead.body, dead.reconsume_times) == (b"m0", 3)
        assert len(await stored(client, "%RETRY%g")) == 2


async def wait_for_count(client: Client, topic: str, count: int) -> None:
    """Wait by a long poll until queue 0 of the topic has `count` messages."""
    header = PullHeader("g", topic, 0, count - 1, 1, SUBSCRIPTION | SUSPEND, suspend_timeout_millis=9_000, max_msg_bytes=1 << 20)
    await client.done(RequestCode.PULL_MESSAGE, header)


async def test_negative_delay_level_dead_letters_and_an_unknown_offset_is_rejected(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        await client.create()
        offset = await send_message(client)
        await client.done(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader(offset, "g", -1))
        assert [record.body for record in await stored(client, "%DLQ%g")] == [b"m0"]
        refused = await client.send_request(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader(offset + 1, "g"))
        assert refused.code == ResponseCode.QUERY_NOT_FOUND
        assert "no message begins at log offset" in (refused.remark or "")
        refused = await client.send_request(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader(offset, "g" * 200, -1))
        assert "at most" in (refused.remark or "")


async def test_dead_letter_sent_back_again_keeps_its_attempts_and_reason(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        await client.create()
        offset = await send_message(client)
        await client.done(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader(offset, "g", max_reconsume_times=0))
        (first,) = await stored(client, "%DLQ%g")
        await client.done(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader(first.physical_offset, "g", -1))
        _, again = await stored(client, "%DLQ%g")
        facts = [(each.body, each.reconsume_times, decode_properties(each.properties)) for each in (first, again)]
        assert facts[0] == facts[1]
        assert facts[1][2]["__LS_REASON"] == "failed once"
        await client.done(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader(again.physical_offset, "other", -1))
        (others,) = await stored(client, "%DLQ%other")
        assert (others.reconsume_times, decode_properties(others.properties)["__LS_REASON"]) == (2, "given up")


async def test_dead_letter_keeps_the_reason_and_the_number_of_failed_calls_also_after_a_replay(tmp_path: Path) -> None:
    async with running(settings(tmp_path, message_delay_level="10ms")) as broker, dialled(broker) as client:
        await client.create()
        offset = await send_message(client)
        failed = SendBackHeader(offset, "g", max_reconsume_times=0, reason="ValueError: no\nstock " + "x" * 300)
        await client.done(RequestCode.CONSUMER_SEND_MSG_BACK, failed)
        (letter,) = await stored(client, "%DLQ%g")
        reason = decode_properties(letter.properties)["__LS_REASON"]
        assert (letter.reconsume_times, reason[:24], len(reason)) == (1, "ValueError: no stock xxx", 200)
        replay = SendBackHeader(letter.physical_offset, "g", 1, max_reconsume_times=1_000)
        await client.done(RequestCode.CONSUMER_SEND_MSG_BACK, replay)
        await wait_for_count(client, "%RETRY%g", 1)
        (again,) = await stored(client, "%RETRY%g")
        assert again.reconsume_times == 1, "the replay is no failed call"
        assert "__LS_REASON" not in decode_properties(again.properties)
        failed = SendBackHeader(again.physical_offset, "g", max_reconsume_times=0, reason="KeyError: 'sku'")
        await client.done(RequestCode.CONSUMER_SEND_MSG_BACK, failed)
        _, letter = await stored(client, "%DLQ%g")
        assert (letter.reconsume_times, decode_properties(letter.properties)["__LS_REASON"]) == (2, "KeyError: 'sku'")


async def test_send_back_that_names_another_message_than_the_stored_one_is_rejected(tmp_path: Path) -> None:
    """The consumer received a message that a power cut removed, and another message is at its position now."""
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        await client.create()
        offset = await send_message(client)
        refused = await client.send_request(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader(offset, "g", -1, "another"))
        assert refused.code == ResponseCode.QUERY_NOT_FOUND
        assert "holds message k, not another" in (refused.remark or "")
        await client.done(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader(offset, "g", -1, "k"))
        assert [record.body for record in await stored(client, "%DLQ%g")] == [b"m0"]


async def test_dead_letter_and_its_commit_are_one_write(tmp_path: Path) -> None:
    """A broker that is killed after the response has both; a repetition of the request writes nothing."""
    config = settings(tmp_path)
    broker = Broker(config, Host.real())
    await broker.start()
    async with dialled(broker) as client:
        await client.create()
        for number in range(3):
            await send_message(client, b"m%d" % number)
        epoch = await join(client, "a@1#0", "0" * 32)
        letter = DeadLetterHeader("g", TOPIC, 0, epoch, 1, 4, "ValueError: no")
        await client.done(RequestCode.DEAD_LETTER, letter)
        await client.done(RequestCode.DEAD_LETTER, letter)
        stale = await client.send_request(RequestCode.DEAD_LETTER, replace(letter, epoch=epoch - 1))
        assert stale.code == ResponseCode.STALE_EPOCH
        await kill(broker)
    async with running(config) as again, dialled(again) as client:
        (dead,) = await stored(client, "%DLQ%g")
        assert (dead.body, decode_properties(dead.properties)["__LS_REASON"]) == (b"m1", "ValueError: no")
        await heartbeat(client, "a@1#0", "0" * 32, connection=2)
        response = await reconcile(client, LockItem("g", TOPIC, 0, epoch))
        assert (response.verdict, response.offset, response.attempts) == (LockVerdict.OK, 2, 0)


async def test_delayed_messages_survive_a_kill_and_are_delivered_once(tmp_path: Path) -> None:
    config = settings(tmp_path, message_delay_level="10ms 2s")
    broker = Broker(config, Host.real())
    await broker.start()
    async with dialled(broker) as client:
        await client.create()
        for level in (1, 2, 2):
            await client.done(RequestCode.SEND_MESSAGE, SendMessageHeader("p", TOPIC, 0, properties=f"DELAY\x01{level}"), b"%d" % level)
        await wait_for_count(client, TOPIC, 1)
        await kill(broker)
    async with running(config) as again, dialled(again) as client:
        await wait_for_count(client, TOPIC, 2)
        await wait_for_count(client, TOPIC, 3)
        found = await stored(client, TOPIC)
        assert [record.body for record in found] == [b"1", b"2", b"2"]
        assert all("DELAY" not in decode_properties(record.properties) for record in found)


async def test_non_numeric_delay_level_is_rejected(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        await client.create()
        refused = await client.send_request(RequestCode.SEND_MESSAGE, SendMessageHeader("p", TOPIC, 0, properties="DELAY\x01soon"), b"x")
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert refused.remark == "property DELAY is 'soon': expected the number of a delay level"


@pytest.mark.parametrize("delay", ["", "DELAY\x011\x02"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("REAL_TOPIC", "property REAL_TOPIC is set by the broker"),
        ("REAL_QID", "property REAL_QID is set by the broker"),
        ("PGROUP", "property PGROUP is set by the broker"),
        ("TRAN_MSG", "property TRAN_MSG is not true"),
        ("RETRY_TOPIC", "the properties RETRY_TOPIC, ORIGIN_MESSAGE_ID, RECONSUME_TIME are set by the broker"),
        ("__LS_REASON", "property names beginning with __LS_ are lockstep's own"),
    ],
)
async def test_property_that_only_the_broker_sets_is_refused_in_a_send(tmp_path: Path, name: str, words: str, delay: str) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        await client.create()
        header = SendMessageHeader("p", TOPIC, 0, properties=f"{delay}{name}\x01orders")
        refused = await client.send_request(RequestCode.SEND_MESSAGE, header, b"x")
        assert (refused.code, words in str(refused.remark)) == (ResponseCode.MESSAGE_ILLEGAL, True), refused


async def test_message_with_the_longest_properties_is_delayed_retried_and_dead_lettered(tmp_path: Path) -> None:
    """Its copies have more properties than the message itself, and there is room for them."""
    longest = "TAGS\x01paid\x02a\x01" + "x" * (SENT_PROPERTIES_BYTES_MAX - 12)
    refused = f"{longest}x"
    async with running(settings(tmp_path, message_delay_level="10ms")) as broker, dialled(broker) as client:
        await client.create()
        for properties in (refused, refused + "\x02DELAY\x011"):
            response = await client.send_request(RequestCode.SEND_MESSAGE, SendMessageHeader("p", TOPIC, 0, properties=properties), b"x")
            assert (response.code, f"at most {SENT_PROPERTIES_BYTES_MAX}" in str(response.remark)) == (ResponseCode.MESSAGE_ILLEGAL, True)
        await client.done(RequestCode.SEND_MESSAGE, SendMessageHeader("p", TOPIC, 0, properties=f"{longest}\x02DELAY\x011"), b"x")
        await wait_for_count(client, TOPIC, 1)
        (message,) = await stored(client, TOPIC)
        assert message.properties == f"__LS_FROM\x01{delay_queue_id(10)}:0\x02{longest}".encode()
        for times in range(1, 4):
            await client.done(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader(message.physical_offset, GROUP))
            await wait_for_count(client, f"%RETRY%{GROUP}", times)
            message = (await stored(client, f"%RETRY%{GROUP}"))[-1]
        epoch = await join(client, "a@1#0", "0" * 32)
        await client.done(RequestCode.DEAD_LETTER, DeadLetterHeader("g", TOPIC, 0, epoch, 0, 4, "\U0001f4a3" * 200))
        assert [record.reconsume_times for record in await stored(client, "%DLQ%g")] == [4]
