"""Half messages of RocketMQ's clients: SEND_MESSAGE with TRAN_MSG, and END_TRANSACTION, which mostly wants no response."""

import asyncio
from typing import Any, cast

import pytest

from lockstep.protocol.codec import CODECS
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import BINARY, JSON, ONEWAY_FLAG, Command
from lockstep.protocol.headers.send import SendMessageHeader, SendMessageV2Header, SendReply
from lockstep.protocol.headers.transactions import COMMIT, ROLLBACK, UNKNOWN, EndTransactionHeader
from lockstep.protocol.messages.properties import decode_properties
from lockstep.protocol.messages.record import RecordView
from lockstep.protocol.messages.rooms import read_half
from lockstep.protocol.names import HALF_TOPIC
from support.broker_fakes import FakeEndpoint
from support.store_kit import confirmed
from support.timer_machine import TimerMachine

OK, ILLEGAL = ResponseCode.SUCCESS, ResponseCode.MESSAGE_ILLEGAL
TURNS = 50
"""Turns of the loop in which a response comes that waits for nothing."""
PREPARED = 4
"""RocketMQ: MessageSysFlag.TRANSACTION_PREPARED_TYPE."""
COMPRESSED = 1
SENT = (("UNIQ_KEY", "7F0001"), ("TRAN_MSG", "true"), ("PGROUP", "shop"), ("TAGS", "paid"), ("WAIT", "true"))
V5 = 461
"""A version of 5.x, as on the wire."""


def text_of(*pairs: tuple[str, object]) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs)


async def send(machine: TimerMachine, *more: tuple[str, object], codec: int = JSON, second_form: bool = False, **how: Any) -> Command:
    flags, version, topic = how.get("sys_flag", PREPARED), how.get("version", 409), how.get("topic", "orders")
    text = text_of(*how.get("pairs", SENT), *more)
    if second_form:
        header: object = SendMessageV2Header("other", topic, "TBW102", 4, 2, flags, 5, 3, text, batch=how.get("batch", False))
        return await machine.ask(RequestCode.SEND_MESSAGE_V2, header, b"body", codec=codec, version=version)
    header = SendMessageHeader("other", topic, 2, sys_flag=flags, born_timestamp=5, flag=3, properties=text, batch=how.get("batch", False))
    return await machine.ask(RequestCode.SEND_MESSAGE, header, b"body", codec=codec, version=version)


def reply_of(response: Command) -> SendReply:
    assert response.code == OK, response.remark
    return CODECS[response.codec].read_fields(SendReply, response.fields)


async def half_record(machine: TimerMachine, offset: int) -> RecordView:
    result = await machine.store.read_or_wait(HALF_TOPIC, 0, offset, 1, 1)
    return RecordView(b"".join(result.parts))


async def end(machine: TimerMachine, outcome: int, offset: int, codec: int = JSON, **given: Any) -> int:
    header = EndTransactionHeader(given.pop("group", "shop"), outcome, offset, 77, given.pop("msg_id", "7F0001"), **given)
    return (await machine.ask(RequestCode.END_TRANSACTION, header, codec=codec)).code


async def creating_machine() -> TimerMachine:
    """Return a machine on which a send creates its topic, which the nameservers never know."""
    machine = TimerMachine()
    machine.known = asyncio.Event().wait
    return await machine.start()


@pytest.mark.parametrize("restarts", ["", "log", "snapshot"])
@pytest.mark.parametrize("second_form", [False, True])
@pytest.mark.parametrize("codec", [JSON, BINARY])
async def test_half_message_is_stored_as_one_and_committed_as_a_plain_message(codec: int, second_form: bool, restarts: str) -> None:
    machine = await TimerMachine().start()
    for number in range(2):
        immunity = ("CHECK_IMMUNITY_TIME_IN_SECONDS", 9)
        reply = reply_of(await send(machine, immunity, codec=codec, second_form=second_form, sys_flag=PREPARED | COMPRESSED))
        assert (reply.queue_id, reply.queue_offset) == (2, number), "the offset is that in the room: END_TRANSACTION names it"
        assert reply.transaction_id is None
    record = await half_record(machine, 0)
    found = read_half(record.properties)
    assert found is not None
    assert (found.topic, found.queue_id, found.began, found.group, found.client_id) == (b"orders", 2, 1, b"shop", b"")
    if restarts:
        await machine.restart(snapshot=restarts == "snapshot")
    assert (await machine.arrived(), len(machine.state.transactions)) == ([], 2)
    assert await end(machine, COMMIT, 1, codec) == OK
    assert await end(machine, ROLLBACK, 0, codec) == OK
    (copy,) = await machine.records()
    assert list(decode_properties(copy.properties)) == ["__LS_FROM", "UNIQ_KEY", "TAGS", immunity[0], "CLUSTER"]
    assert (copy.body, copy.flag, copy.born_ms, copy.sys_flag) == (b"body", 3, 5, COMPRESSED)
    await machine.stop()


async def test_clients_from_5_on_get_the_id_of_the_transaction() -> None:
    machine = await TimerMachine().start()
    assert reply_of(await send(machine, version=V5)).transaction_id == "7F0001"
    await machine.stop()


@pytest.mark.parametrize("restarts", ["", "log", "snapshot"])
async def test_group_of_the_property_counts_and_that_of_the_header_without_one(restarts: str) -> None:
    machine = await TimerMachine().start()
    await send(machine)
    await send(machine, pairs=[pair for pair in SENT if pair[0] != "PGROUP"])
    if restarts:
        await machine.restart(snapshot=restarts == "snapshot")
    assert [found and found.group for found in [read_half((await half_record(machine, at)).properties) for at in range(2)]] == [
        b"shop",
        b"other",
    ]
    assert await end(machine, COMMIT, 1) == ResponseCode.TRANSACTION_STATE_GROUP_WRONG
    assert await end(machine, COMMIT, 1, group="other") == OK
    await machine.stop()


REFUSED: dict[str, tuple[list[tuple[str, object]], dict[str, Any]]] = {
    "delay level": ([("DELAY", 3)], {}),
    "delay": ([("TIMER_DELAY_MS", 5_000)], {}),
    "seconds": ([("TIMER_DELAY_SEC", 5)], {}),
    "time of day": ([("TIMER_DELIVER_MS", 1_900_000_000_000)], {}),
    "batch": ([], {"batch": True, "second_form": True}),
    "topic of retries": ([], {"topic": "%RETRY%g"}),
    "its home": ([("REAL_TOPIC", "bills")], {}),
    "its queue": ([("REAL_QID", 3)], {}),
    "its client": ([("__TXN_PRODUCER_CID__", "x")], {}),
    "own names": ([("__LS_FIRST", 0)], {}),
    "group": ([], {"pairs": [*SENT[:2], ("PGROUP", "not a group")]}),
    "no transaction": ([], {"pairs": SENT[:1]}),
    "false": ([], {"pairs": [SENT[0], ("TRAN_MSG", "false")]}),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_half_message_that_would_not_be_what_it_says_is_refused_and_not_stored(name: str) -> None:
    more, how = REFUSED[name]
    machine = await TimerMachine().start()
    machine.create_topic("%RETRY%g")
    response = await send(machine, *more, **how)
    if name == "its client":  # the broker's own value counts
        assert response.code == OK
        found = read_half((await half_record(machine, 0)).properties)
        assert found is not None
        assert found.client_id == b""
    else:
        assert (response.code, machine.store.end_offset(HALF_TOPIC, 0)) == (ILLEGAL, 0)
    assert machine.store.end_offset("orders", 2) == 0
    await machine.stop()


@pytest.mark.parametrize("topic", ["%RETRY%shop", "fresh"])
@pytest.mark.parametrize("more", [("DELAY", 3), ("TIMER_DELAY_MS", 5_000), ("TIMER_DELAY_SEC", 5), ("RETRY_TOPIC", "orders")])
async def test_half_message_that_is_refused_creates_no_topic(more: tuple[str, object], topic: str) -> None:
    machine = await creating_machine()
    assert (await send(machine, more, topic=topic)).code == ILLEGAL
    assert (machine.state.topics.find_layout(topic), machine.store.end_offset(HALF_TOPIC, 0)) == (None, 0)
    await machine.stop()


async def test_more_open_half_messages_than_the_limit_are_refused() -> None:
    """SYSTEM_BUSY to clients that repeat a send then, and SERVICE_NOT_AVAILABLE to older ones."""
    machine = TimerMachine()
    machine.halves_max = 1
    await machine.start()
    assert (await send(machine)).code == OK
    assert (await send(machine, version=V5)).code == ResponseCode.SYSTEM_BUSY
    assert (await send(machine)).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert await end(machine, ROLLBACK, 0) == OK
    assert (await send(machine)).code == OK
    await machine.stop()


@pytest.mark.parametrize("codec", [JSON, BINARY])
async def test_repeated_and_opposite_decisions_get_rocketmqs_codes(codec: int) -> None:
    machine = await TimerMachine().start()
    for _ in range(2):
        await send(machine, codec=codec)
    for _ in range(2):
        assert await end(machine, COMMIT, 0, codec) == OK
        assert await end(machine, ROLLBACK, 1, codec) == OK
    assert await end(machine, ROLLBACK, 0, codec) == ResponseCode.TRANSACTION_SHOULD_COMMIT
    assert await end(machine, COMMIT, 1, codec) == ResponseCode.TRANSACTION_SHOULD_ROLLBACK
    assert await end(machine, COMMIT, 2, codec) == ResponseCode.QUERY_NOT_FOUND
    assert await end(machine, COMMIT, 0, codec, msg_id="7F0002") == ResponseCode.QUERY_NOT_FOUND
    assert await end(machine, COMMIT, 0, codec, msg_id="") == OK, "a client that does not name the id"
    assert await end(machine, COMMIT, 0, codec, group="other") == ResponseCode.TRANSACTION_STATE_GROUP_WRONG
    assert await machine.arrived() == [b"body"]
    await machine.stop()


@pytest.mark.parametrize("codec", [JSON, BINARY])
@pytest.mark.parametrize(("outcome", "is_open", "stored"), [(COMMIT, 0, [b"body"]), (ROLLBACK, 0, []), (UNKNOWN, 1, [])])
@pytest.mark.parametrize("from_check", [False, True])
async def test_decision_without_a_response_is_carried_out(
    outcome: int, is_open: int, stored: list[bytes], from_check: bool, codec: int
) -> None:
    """As all of RocketMQ's clients send it. One that does not know the outcome is asked at its time, not at once."""
    machine = await TimerMachine().start()
    await send(machine, codec=codec)
    header = EndTransactionHeader("shop", outcome, 0, 77, "7F0001", from_transaction_check=from_check, transaction_id="7F0001")
    endpoint = FakeEndpoint()
    fields = CODECS[codec].write_fields(header)
    command = Command(int(RequestCode.END_TRANSACTION), 1, flag=ONEWAY_FLAG, version=409, fields=fields, codec=codec)
    machine.dispatcher(command, cast(Any, endpoint))
    assert await end(machine, UNKNOWN, 0, codec) == OK, "the lane has done what came before"
    await confirmed(machine.store)
    assert (await machine.arrived(), len(machine.state.transactions)) == (stored, is_open)
    assert (endpoint.sent, machine.asked_soon) == ([], [])
    await machine.stop()


async def test_response_to_a_half_message_comes_when_it_is_on_the_disk() -> None:
    """Whatever WAIT says: a producer that runs its local transaction counts on the message."""
    machine = await TimerMachine().start()
    for pairs in (SENT, [*SENT[:-1], ("WAIT", "false")]):
        reply_of(await send(machine, pairs=pairs))
        open_before = len(machine.state.transactions)
        await machine.lose_power()
        await machine.start()
        assert len(machine.state.transactions) == open_before > 0
    await machine.stop()


@pytest.mark.parametrize("plain", [False, True])
async def test_response_to_a_message_that_creates_its_topic_comes_when_the_nameservers_know_that(plain: bool) -> None:
    """Such a client asks for the route at once, and then not for 20 to 30 s."""
    machine, known = TimerMachine(), asyncio.Event()

    async def wait() -> None:
        await known.wait()

    machine.known = wait
    await machine.start()
    how: dict[str, Any] = {"pairs": SENT[:1], "sys_flag": 0} if plain else {}
    sending = asyncio.ensure_future(send(machine, topic="fresh", **how))
    await machine.turns_until(lambda: machine.store.end_offset(*(("fresh", 2) if plain else (HALF_TOPIC, 0))) == 1)
    await machine.store.sync()
    for _ in range(TURNS):
        await asyncio.sleep(0)
    assert not sending.done()
    known.set()
    assert reply_of(await sending).queue_offset == 0
    await machine.stop()
