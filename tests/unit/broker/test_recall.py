"""RECALL_MESSAGE, and RocketMQ's SEND_MESSAGE of a message that waits: what is taken back never arrives, and nothing else is taken back."""

import asyncio
from base64 import b64encode, urlsafe_b64encode
from struct import pack
from typing import Any

import pytest

from lockstep.broker.processors.rooms.timer_lookup import CANDIDATES_MAX
from lockstep.broker.store import FlushMode
from lockstep.protocol.codec import CODECS
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import BINARY, JSON, MSGPACK, Command
from lockstep.protocol.delays import delay_queue_id
from lockstep.protocol.headers.send import (
    RecallMessageHeader,
    RecallMessageReply,
    SendMessageHeader,
    SendMessageV2Header,
    SendRecordsHeader,
    SendReply,
)
from lockstep.protocol.messages.properties import decode_properties
from lockstep.protocol.messages.recall import RecallHandle
from lockstep.protocol.messages.record import encode_record
from lockstep.protocol.messages.rooms import home_properties
from lockstep.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC
from support.coordination_kit import BROKER
from support.store_kit import ASYNC, STARTED_MS, SYNC, confirmed
from support.timer_machine import DAY_MS, ReadGate, TimerMachine, delay, until

WITH_OFFSET = pytest.mark.parametrize("with_offset", [True, False], ids=["lockstep's handle", "RocketMQ's handle"])
DUE_MS = 60_000


def handle_of(given: str, *, with_offset: bool) -> str:
    """Return a handle as lockstep's brokers give it, or as RocketMQ's do."""
    return given if with_offset else RecallHandle.decode(given)._replace(offset=None).encode()


def changed(given: str, **words: Any) -> str:
    return RecallHandle.decode(given)._replace(**words).encode()


async def check_nothing_waits(machine: TimerMachine, expected: list[bytes]) -> None:
    """Let all be due that waits, and check what has arrived."""
    await machine.pass_ms(2 * DUE_MS)
    assert sorted(await machine.arrived()) == expected
    assert len(machine.state.timers) == 0
    await machine.stop()


# ------------------------------------------------------------------------------------------------------------------ what is recalled


@pytest.mark.parametrize("restarts", ["", "log", "snapshot"])
@WITH_OFFSET
@pytest.mark.parametrize("kind", ["delay", "time of day"])
async def test_recalled_message_never_arrives_and_others_do(kind: str, with_offset: bool, restarts: str) -> None:
    machine = await TimerMachine().start()
    when = delay(DUE_MS) if kind == "delay" else until(STARTED_MS + DUE_MS)
    handles = await machine.send((b"0", when), (b"1", when), (b"2", when))
    response = await machine.recall(handle_of(handles[1], with_offset=with_offset))
    assert response.code == ResponseCode.SUCCESS
    assert CODECS[MSGPACK].read_fields(RecallMessageReply, response.fields) == RecallMessageReply("ID000001")
    assert len(machine.state.timers) == 2
    if restarts:
        await machine.restart(snapshot=restarts == "snapshot")
    await check_nothing_waits(machine, [b"0", b"2"])


@pytest.mark.parametrize("restarts", ["", "log", "snapshot"])
@WITH_OFFSET
async def test_recall_that_is_repeated_is_answered_as_the_first_one_and_writes_nothing(with_offset: bool, restarts: str) -> None:
    machine = await TimerMachine().start()
    handle = handle_of(await machine.put(b"x", delay(DUE_MS)), with_offset=with_offset)
    assert (await machine.recall(handle)).code == ResponseCode.SUCCESS
    if restarts:
        await machine.restart(snapshot=restarts == "snapshot")
    end = machine.store.log_bounds[1]
    for _ in range(2):
        assert (await machine.recall(handle)).code == ResponseCode.SUCCESS
        await machine.pass_ms(DUE_MS, step_ms=DUE_MS)
    assert machine.store.log_bounds[1] == end
    await check_nothing_waits(machine, [])


@pytest.mark.parametrize("restarts", ["", "log", "snapshot"])
async def test_recall_of_a_delivered_message_is_too_late(restarts: str) -> None:
    machine = await TimerMachine().start()
    handle = await machine.put(b"x", delay(DUE_MS))
    await machine.pass_ms(DUE_MS, step_ms=DUE_MS)
    if restarts:
        await machine.restart(snapshot=restarts == "snapshot")
    end = machine.store.log_bounds[1]
    response = await machine.recall(handle)
    assert response.code == ResponseCode.ILLEGAL_OPERATION
    assert "does not wait any more" in str(response.remark)
    assert (await machine.recall(handle_of(handle, with_offset=False))).code == ResponseCode.QUERY_NOT_FOUND
    assert machine.store.log_bounds[1] == end
    await check_nothing_waits(machine, [b"x"])


async def test_recall_of_a_message_whose_record_the_delivery_is_reading_takes_it_back() -> None:
    machine = await TimerMachine().start()
    handle = await machine.put(b"x", delay(DUE_MS))
    await machine.put(b"y", delay(DUE_MS))
    gate = ReadGate(machine.store)
    machine.clock.now_ms += DUE_MS
    machine.timers.on_arrival()
    await gate.reached.wait()
    assert (await machine.recall(handle)).code == ResponseCode.SUCCESS
    gate.go.set()
    await machine.look()
    assert await machine.arrived() == [b"y"]
    await check_nothing_waits(machine, [b"y"])


@WITH_OFFSET
async def test_recall_of_a_message_that_is_put_aside_takes_it_back(with_offset: bool) -> None:
    """The writes of its topic are held."""
    machine = await TimerMachine().start()
    machine.holds.hold("orders", "h", DUE_MS, machine.clock.boot_ms())
    handle = await machine.put(b"x", delay(1_000))
    await machine.put(b"y", delay(1_000))
    await machine.pass_ms(2_000)
    assert machine.timers.deferred_counts == {"orders": 2}
    assert (await machine.recall(handle_of(handle, with_offset=with_offset))).code == ResponseCode.SUCCESS
    machine.holds.release("orders", "h")
    await check_nothing_waits(machine, [b"y"])


async def test_recall_is_taken_while_the_disk_is_full() -> None:
    machine = await TimerMachine(disk_reserve_bytes=100_000).start()
    handle = await machine.put(b"x", delay(DUE_MS))
    machine.files.capacity_bytes = machine.files.used_bytes() + 10_000
    assert machine.store.disk_status().refusal is not None
    assert (await machine.recall(handle)).code == ResponseCode.SUCCESS
    await machine.restart()
    await check_nothing_waits(machine, [])


@pytest.mark.parametrize("flush", [ASYNC, SYNC])
@pytest.mark.parametrize("synced", [False, True], ids=["message not on the disk", "message on the disk"])
async def test_message_whose_recall_was_answered_never_arrives_after_a_power_cut(synced: bool, flush: FlushMode) -> None:
    machine = await TimerMachine(flush=flush).start()
    handle = await machine.put(b"x", delay(DUE_MS))
    await machine.put(b"y", delay(DUE_MS))
    if synced:
        await machine.store.sync()
    assert (await machine.recall(handle)).code == ResponseCode.SUCCESS
    await machine.lose_power()
    await machine.start()
    await check_nothing_waits(machine, [b"y"])


async def test_repeated_recall_is_answered_when_the_disk_has_the_first_one() -> None:
    machine = await TimerMachine().start()
    handle = await machine.put(b"x", delay(DUE_MS))
    await machine.store.sync()
    await asyncio.gather(machine.recall(handle), machine.recall(handle))
    await machine.lose_power()
    await machine.start()
    await check_nothing_waits(machine, [])


# --------------------------------------------------------------------------------------------------------------- what is not recalled


@WITH_OFFSET
async def test_handle_that_differs_from_the_message_takes_nothing_back(with_offset: bool) -> None:
    """A handle is plain text: a user of one topic could name a message of another one."""
    machine = await TimerMachine().start()
    given = handle_of(await machine.put(b"x", delay(DUE_MS)), with_offset=with_offset)
    await machine.put(b"y", delay(DUE_MS + 1))
    wrong = [
        (changed(given, topic="bills"), "bills"),
        (changed(given, message_id="ID000001"), "orders"),
        (changed(given, message_id="ID00000"), "orders"),
        (changed(given, due_ms=STARTED_MS + DUE_MS + 1), "orders"),
        (changed(given, due_ms=0), "orders"),
        (changed(given, offset=1), "orders"),
        (changed(given, offset=2), "orders"),
        (changed(given, offset=10**17), "orders"),
    ]
    end = machine.store.log_bounds[1]
    for handle, topic in wrong:
        response = await machine.recall(handle, topic)
        assert response.code == ResponseCode.QUERY_NOT_FOUND, RecallHandle.decode(handle)
    assert (machine.store.log_bounds[1], len(machine.state.timers)) == (end, 2)
    await check_nothing_waits(machine, [b"x", b"y"])


@WITH_OFFSET
async def test_recall_before_its_message_is_confirmed_is_refused_for_now(with_offset: bool) -> None:
    """A send may be answered when it is written: its sender knows the handle before anybody can read the message."""
    machine = await TimerMachine(flush=SYNC).start()
    began = machine.state.topics.require_layout("orders").began
    properties = home_properties("orders", 2, began) + delay(DUE_MS) + b"\x02UNIQ_KEY\x01ID000000"
    record = encode_record(TIMER_TOPIC.encode(), 0, b"x", properties, born_ms=1)
    header = SendRecordsHeader("orders", 2, 1, durable=False, room=TIMER_TOPIC, began=began)
    assert (await machine.ask(RequestCode.SEND_RECORDS, header, record)).code == ResponseCode.SUCCESS
    handle = handle_of(RecallHandle("orders", BROKER, STARTED_MS + DUE_MS, "ID000000", 0).encode(), with_offset=with_offset)
    refused = await machine.recall(handle)
    assert (refused.code, refused.remark) == (
        ResponseCode.SYSTEM_BUSY,
        "the message at offset 0 of rmq_sys_wheel_timer is not confirmed yet; retry after 100 ms",
    )
    await confirmed(machine.store)
    assert (await machine.recall(handle)).code == ResponseCode.SUCCESS
    await check_nothing_waits(machine, [])


@WITH_OFFSET
async def test_handle_of_another_topic_or_broker_than_the_request_is_refused(with_offset: bool) -> None:
    machine = await TimerMachine().start()
    given = handle_of(await machine.put(b"x", delay(DUE_MS)), with_offset=with_offset)
    for handle, topic, words in (
        (given, "bills", "the handle is of topic orders, the request of topic bills"),
        (changed(given, topic="bills"), "orders", "the handle is of topic bills, the request of topic orders"),
        (changed(given, broker_name="broker-b"), "orders", "the handle is of broker broker-b, this is broker-a"),
    ):
        response = await machine.recall(handle, topic)
        assert (response.code, response.remark) == (ResponseCode.SYSTEM_ERROR, words)
    await check_nothing_waits(machine, [b"x"])


def words(*of: str) -> str:
    return urlsafe_b64encode(" ".join(of).encode()).decode()


NO_HANDLES = [
    "",
    "no handle",
    "a",
    "é" * 10,
    "\u0661" * 8,
    "x" * 2_000,
    "A" * 1_028,
    b64encode(b"\xff\xfe" * 20).decode(),
    words("v1", "orders", "broker-a", str(STARTED_MS + DUE_MS)),
    words("v1", "orders", "broker-a", "ID000000", "0"),
    words("v2", "orders", "broker-a", str(STARTED_MS + DUE_MS), "ID000000", "0"),
    words("v1", "orders", "broker-a", "9" * 5_000, "ID000000", "0"),
    words("v1", "orders", "broker-a", "9" * 19, "ID000000", "0"),
    words("v1", "orders", "broker-a", "-1", "ID000000", "0"),
    words("v1", "orders", "broker-a", "\u0661", "ID000000", "0"),
    words("v1", "orders", "broker-a", str(STARTED_MS + DUE_MS), "ID000000", "-1"),
    words("v1", "orders", "broker-a", str(STARTED_MS + DUE_MS), "ID000000", "x"),
    words("v1", "orders", "broker-a", str(STARTED_MS + DUE_MS), "ID000000", ""),
    words("v1", "orders", "broker-a", str(STARTED_MS + DUE_MS), "ID000000", "9" * 5_000),
]


@pytest.mark.parametrize("text", NO_HANDLES, ids=range(len(NO_HANDLES)))
async def test_text_that_is_no_handle_is_refused(text: str) -> None:
    machine = await TimerMachine().start()
    await machine.put(b"x", delay(DUE_MS))
    response = await machine.recall(text)
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "is no recall handle" in str(response.remark)
    assert len(str(response.remark)) < 400
    await check_nothing_waits(machine, [b"x"])


async def test_record_that_cannot_be_read_is_reported_and_the_message_waits_on(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = await TimerMachine().start()
    handle = await machine.put(b"x", delay(DUE_MS))

    async def failing(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(machine.store, "read_or_wait", failing)
        response = await machine.recall(handle)
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "offset 0 of rmq_sys_wheel_timer can't be read" in str(response.remark)
    await check_nothing_waits(machine, [b"x"])


@pytest.mark.parametrize("more", [0, 1])
async def test_rocketmqs_handle_of_a_ms_with_too_many_messages_is_refused_and_lockstep_s_is_not(more: int) -> None:
    machine = await TimerMachine().start()
    bodies = [b"%d" % number for number in range(CANDIDATES_MAX + more)]
    handles = [
        handle for at in range(0, len(bodies), 500) for handle in await machine.send(*((b, delay(DUE_MS)) for b in bodies[at : at + 500]))
    ]
    response = await machine.recall(handle_of(handles[7], with_offset=False))
    assert response.code == (ResponseCode.SYSTEM_BUSY if more else ResponseCode.SUCCESS)
    assert len(machine.state.timers) == (len(bodies) if more else len(bodies) - 1)
    for handle in handles[8], handles[-1]:
        assert (await machine.recall(handle)).code == ResponseCode.SUCCESS
    gone = {bodies[8], bodies[-1], *([] if more else [bodies[7]])}
    await check_nothing_waits(machine, sorted(set(bodies) - gone))


@pytest.mark.parametrize("codec", [JSON, BINARY])
async def test_client_of_rocketmq_recalls_by_the_handle_that_it_was_given(codec: int) -> None:
    machine = await TimerMachine().start()
    handle = await machine.put(b"x", delay(DUE_MS))
    for _ in range(2):
        response = await machine.ask(RequestCode.RECALL_MESSAGE, RecallMessageHeader("orders", handle, "p"), codec=codec)
        assert response.code == ResponseCode.SUCCESS
        assert CODECS[codec].read_fields(RecallMessageReply, response.fields) == RecallMessageReply("ID000000")
    await check_nothing_waits(machine, [])


# ----------------------------------------------------------------------------------------------------------- sends of RocketMQ's clients


def properties(*pairs: tuple[str, object]) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs)


SENT = (("UNIQ_KEY", "7F0001"), ("TAGS", "paid"), ("WAIT", "true"))


async def send_message(machine: TimerMachine, *pairs: tuple[str, object], codec: int = JSON) -> Command:
    header = SendMessageHeader("p", "orders", 2, born_timestamp=5, flag=3, properties=properties(*SENT, *pairs))
    return await machine.ask(RequestCode.SEND_MESSAGE, header, b"body", codec=codec)


def reply_of(response: Command) -> SendReply:
    assert response.code == ResponseCode.SUCCESS, response.remark
    return CODECS[response.codec].read_fields(SendReply, response.fields)


PAST, LATER = 1_000, STARTED_MS + 90_000
WAITS: dict[str, tuple[list[tuple[str, object]], str, int, int]] = {
    "seconds": ([("TIMER_DELAY_SEC", 90)], "TIMER_DELAY_MS", 90_000, 90_000),
    "ms": ([("TIMER_DELAY_MS", 1_500)], "TIMER_DELAY_MS", 1_500, 1_500),
    "time of day": ([("TIMER_DELIVER_MS", LATER)], "TIMER_DELIVER_MS", LATER, 90_000),
    "time of day in the past": ([("TIMER_DELIVER_MS", PAST)], "TIMER_DELIVER_MS", PAST, PAST - STARTED_MS),
    "seconds before ms": ([("TIMER_DELAY_MS", 1_500), ("TIMER_DELAY_SEC", 90)], "TIMER_DELAY_MS", 90_000, 90_000),
    "ms before a time of day": ([("TIMER_DELIVER_MS", LATER), ("TIMER_DELAY_MS", 1_500)], "TIMER_DELAY_MS", 1_500, 1_500),
    "all": ([("TIMER_DELIVER_MS", LATER), ("TIMER_DELAY_MS", 1_500), ("TIMER_DELAY_SEC", 2)], "TIMER_DELAY_MS", 2_000, 2_000),
    "level 0": ([("DELAY", 0), ("TIMER_DELAY_MS", 1_500)], "TIMER_DELAY_MS", 1_500, 1_500),
    "longest": ([("TIMER_DELAY_SEC", 40 * 86_400)], "TIMER_DELAY_MS", 40 * DAY_MS, 40 * DAY_MS),
}


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("codec", [JSON, BINARY])
@pytest.mark.parametrize("name", WAITS)
async def test_message_of_rocketmqs_client_waits_and_arrives_without_the_properties_of_its_wait(
    name: str, codec: int, restarts: bool
) -> None:
    given, stored_name, value, due_ms = WAITS[name]
    machine = await TimerMachine().start()
    reply = reply_of(await send_message(machine, *given, codec=codec))
    waiting = await machine.stored_timer(0)
    home = f"REAL_TOPIC\x01orders\x02REAL_QID\x012\x02__LS_LAYOUT\x011\x02{stored_name}\x01{value}\x02".encode()
    assert waiting.properties.startswith(home)
    rest = decode_properties(waiting.properties[len(home) :])
    assert rest == {"UNIQ_KEY": "7F0001", "TAGS": "paid", "CLUSTER": "DefaultCluster", **({"DELAY": "0"} if name == "level 0" else {})}
    assert (reply.queue_id, reply.queue_offset) == (2, 0)
    assert reply.recall_handle is not None
    assert RecallHandle.decode(reply.recall_handle) == RecallHandle("orders", "broker-a", STARTED_MS + due_ms, "7F0001", 0)
    if restarts:
        await machine.restart()
    if due_ms > 0:
        await machine.pass_ms(due_ms - 1, step_ms=DAY_MS)
        assert await machine.arrived() == []
        machine.clock.now_ms += 1
    await machine.look()
    (copy,) = await machine.records()
    names = list(decode_properties(copy.properties))
    assert names == ["__LS_FROM", *rest]
    assert (copy.body, copy.flag, copy.born_ms) == (b"body", 3, 5)
    await machine.stop()


@pytest.mark.parametrize("codec", [JSON, BINARY])
async def test_handle_of_the_answer_takes_the_message_back(codec: int) -> None:
    machine = await TimerMachine().start()
    handle = reply_of(await send_message(machine, ("TIMER_DELAY_SEC", 90), codec=codec)).recall_handle
    response = await machine.ask(RequestCode.RECALL_MESSAGE, RecallMessageHeader("orders", str(handle)), codec=codec)
    assert response.code == ResponseCode.SUCCESS
    await machine.restart()
    await check_nothing_waits(machine, [])


async def test_second_form_of_the_request_waits_too() -> None:
    machine = await TimerMachine().start()
    text = properties(*SENT, ("TIMER_DELAY_MS", 1_500))
    header = SendMessageV2Header("p", "orders", "TBW102", 4, 2, 0, 5, 3, text)
    reply = reply_of(await machine.ask(RequestCode.SEND_MESSAGE_V2, header, b"body", codec=JSON))
    assert reply.recall_handle is not None
    await machine.pass_ms(1_500)
    assert await machine.arrived() == [b"body"]
    await machine.stop()


async def test_message_without_an_id_waits_and_has_no_handle() -> None:
    machine = await TimerMachine().start()
    header = SendMessageHeader("p", "orders", 2, properties=properties(("TIMER_DELAY_MS", 1_500)))
    assert reply_of(await machine.ask(RequestCode.SEND_MESSAGE, header, b"body", codec=JSON)).recall_handle is None
    await machine.pass_ms(1_500)
    assert await machine.arrived() == [b"body"]
    await machine.stop()


async def test_level_of_a_message_with_both_counts_and_its_copy_has_no_property_of_a_timer() -> None:
    """As in RocketMQ. A consumer that sends its message back would be refused for such a property."""
    machine = await TimerMachine().start()
    names = [("TIMER_DELAY_SEC", 90), ("TIMER_DELAY_MS", 9), ("TIMER_DELIVER_MS", LATER)]
    for pair in names:
        reply = reply_of(await send_message(machine, ("DELAY", 3), pair))
        assert reply.recall_handle is None
    assert (machine.store.end_offset(TIMER_TOPIC, 0), machine.store.end_offset(SCHEDULE_TOPIC, delay_queue_id(10_000))) == (0, 3)
    for record in await machine.records(SCHEDULE_TOPIC, delay_queue_id(10_000)):
        assert not any(name.startswith("TIMER_") for name in decode_properties(record.properties))
    await machine.stop()


WRONG = ["0", "-1", "+5", "5s", "x", "1.5", " 5", "5 ", "\u0665", "0x5", "9" * 16, "9" * 17, "9" * 5_000, "00"]


@pytest.mark.parametrize("value", WRONG, ids=lambda value: value[:20])
@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
async def test_value_that_is_no_time_is_refused_with_the_property_and_stores_nothing(name: str, value: str) -> None:
    machine = await TimerMachine().start()
    end = machine.store.log_bounds[1]
    response = await send_message(machine, (name, value))
    assert response.code == ResponseCode.MESSAGE_ILLEGAL
    assert f"property {name} is " in str(response.remark)
    assert "expected a number above 0" in str(response.remark)
    assert machine.store.log_bounds[1] == end
    await machine.stop()


@pytest.mark.parametrize(
    "pair", [("TIMER_DELAY_SEC", 40 * 86_400 + 1), ("TIMER_DELAY_MS", 40 * DAY_MS + 1), ("TIMER_DELIVER_MS", STARTED_MS + 40 * DAY_MS + 1)]
)
async def test_wait_above_the_limit_is_refused_with_the_limit_and_stores_nothing(pair: tuple[str, int]) -> None:
    machine = await TimerMachine().start()
    end = machine.store.log_bounds[1]
    response = await send_message(machine, pair)
    assert response.code == ResponseCode.MESSAGE_ILLEGAL
    assert "at most 40 (timer_days_max)" in str(response.remark)
    assert machine.store.log_bounds[1] == end
    await machine.stop()


@pytest.mark.parametrize("pair", [("TIMER_DELAY_SEC", 5), ("TIMER_DELAY_MS", 5_000), ("TIMER_DELIVER_MS", LATER)], ids=lambda pair: pair[0])
async def test_timer_to_a_topic_of_retries_in_a_batch_or_of_a_native_client_is_refused(pair: tuple[str, int]) -> None:
    machine = await TimerMachine().start()
    end = machine.store.log_bounds[1]
    text, inner = properties(*SENT, pair), properties(pair).encode()
    plain = properties(*SENT)
    message = pack(">iiiii", 22 + 4 + len(inner), 0, 0, 0, 4) + b"body" + pack(">h", len(inner)) + inner
    single = pack(">iiiii", 22 + 4, 0, 0, 0, 4) + b"body" + pack(">h", 0)
    retry = SendMessageHeader("p", "%RETRY%g", 0, properties=text, reconsume_times=1)
    responses = [
        await machine.ask(RequestCode.SEND_MESSAGE, retry, b"body", codec=JSON),
        await machine.ask(RequestCode.SEND_BATCH_MESSAGE, batch(text), single, codec=JSON),
        await machine.ask(RequestCode.SEND_BATCH_MESSAGE, batch(plain), single + message, codec=JSON),
        await send_message(machine, pair, codec=MSGPACK),
    ]
    for response, said in zip(responses, (pair[0], pair[0], "message 2 is delayed or a retry", pair[0]), strict=True):
        assert response.code == ResponseCode.MESSAGE_ILLEGAL
        assert said in str(response.remark)
    assert machine.store.log_bounds[1] == end
    await machine.stop()


def batch(text: str) -> SendMessageV2Header:
    return SendMessageV2Header("p", "orders", "TBW102", 4, 2, 0, 5, 0, text, batch=True)


async def test_timer_for_a_topic_whose_writes_are_held_is_refused_for_now() -> None:
    machine = await TimerMachine().start()
    machine.holds.hold("orders", "h", DUE_MS, machine.clock.boot_ms())
    response = await send_message(machine, ("TIMER_DELAY_MS", 1_500))
    assert response.code == ResponseCode.SYSTEM_BUSY
    machine.holds.release("orders", "h")
    reply_of(await send_message(machine, ("TIMER_DELAY_MS", 1_500)))
    await machine.pass_ms(1_500)
    assert await machine.arrived() == [b"body"]
    await machine.stop()
