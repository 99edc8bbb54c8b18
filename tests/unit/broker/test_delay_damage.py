"""A flipped bit in a delayed message is never fatal and never changes the delivered message without a report."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.broker.delivery.home_delivery import ATTEMPTS_MAX, RETRY_MS, HomeDelivery
from lockstep.broker.delivery.message_copy import MessageCopy, stored_number
from lockstep.protocol.delays import delay_queue_id
from lockstep.protocol.errors import RemoteProtocolError
from lockstep.protocol.messages.properties import ORIGIN_LAYOUT, REAL_QID, WAITED
from lockstep.protocol.messages.record import PREPARED_OFFSET_AT, RecordView, encode_record, split_records
from lockstep.protocol.names import SCHEDULE_TOPIC
from support.delay_machine import LEVELS, Machine
from support.store_kit import LOG, confirmed

BODIES = (b"before", b"harmed", b"behind")
QUEUE = delay_queue_id(LEVELS[1])
HARMED = 1
PROPERTIES = b"TAGS\x01paid\x02KEYS\x01order-7\x02colour\x01red"


async def create_delayed(machine: Machine) -> None:
    """Return a cleanly stopped store with a snapshot and three messages that are delayed by a second."""
    await machine.start()
    for body in BODIES:
        record = encode_record(b"orders", 2, body, PROPERTIES, born_ms=1)
        machine.delays.append(MessageCopy.of(RecordView(record)), 2)
        await confirmed(machine.store)
    await machine.store.write_snapshot([])
    await machine.store.close()


def damaged_range(machine: Machine) -> tuple[int, int]:
    """Return [begin, end) of the harmed record in the log's file."""
    log = bytes(machine.files.names[LOG].cache)
    at = log.index(BODIES[HARMED])
    begin = log.rindex(b"\xda\xa3\x20\xa7", 0, at) - 4
    return begin, begin + int.from_bytes(log[begin : begin + 4], "big")


async def delivered_messages(machine: Machine) -> list[tuple[bytes, bytes, int, int, int, bytes]]:
    """Return body, properties, flag, system flag, birth time and host of each message in its topic, in order."""
    first, end = machine.store.bounds("orders", 2)
    found = []
    while first + len(found) < end:
        result = await machine.store.read_or_wait("orders", 2, first + len(found), 100, 1 << 20)
        data = b"".join(result.parts)
        for begin, _ in split_records(data):
            view = RecordView(data, begin)
            found.append((view.body, view.properties, view.flag, view.sys_flag, view.born_ms, view.born_host))
    return found


async def run_service(machine: Machine, count: int) -> None:
    """Run the service for `count` seconds; raise the error that ends it."""
    for _ in range(count):
        machine.clock.now_ms += RETRY_MS
        await machine.look()
        await machine.store._repairs.idle.wait()


async def run_with_damage(flip: int, *, sealed: bool) -> None:
    machine = Machine()
    await create_delayed(machine)
    begin, end = damaged_range(machine)
    if not sealed:
        machine.files.overwrite(LOG, begin + PREPARED_OFFSET_AT, bytes(8))
    machine.files.flip(LOG, begin + flip // 8 % (end - begin), flip % 8)
    await machine.start()
    await run_service(machine, 10)
    found = await delivered_messages(machine)
    bodies = [body for body, *_ in found]
    if sealed:
        whole = [(body, f"{WAITED}\x01{QUEUE}:{offset}\x02".encode() + PROPERTIES, 0, 0, 1, bytes(8)) for offset, body in enumerate(BODIES)]
        assert found == whole[:HARMED] + whole[HARMED + 1 :]
        assert machine.store.damage.lost() == [(SCHEDULE_TOPIC, QUEUE, HARMED, HARMED + 1)]
        assert machine.table.next_offset(QUEUE) == len(BODIES)
    else:
        assert bodies[0] == b"before"
    await machine.store.close()


@settings(max_examples=120, deadline=None)
@given(flip=st.integers(0, 8 * 300))
def test_any_flipped_bit_of_a_delayed_message_is_found_and_the_others_delivered(flip: int) -> None:
    asyncio.run(run_with_damage(flip, sealed=True))


@settings(max_examples=60, deadline=None)
@given(flip=st.integers(0, 8 * 300))
def test_any_flipped_bit_of_a_delayed_message_of_rocketmqs_broker_is_not_fatal(flip: int) -> None:
    asyncio.run(run_with_damage(flip, sealed=False))


@pytest.mark.parametrize("name", [ORIGIN_LAYOUT, REAL_QID])
async def test_non_numeric_property_of_a_stored_message_is_counted_as_damage(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Such a message once ended every start with exit code 1."""
    machine = Machine()
    await create_delayed(machine)
    begin, end = damaged_range(machine)
    machine.files.overwrite(LOG, begin + PREPARED_OFFSET_AT, bytes(8))
    log = bytes(machine.files.names[LOG].cache)
    machine.files.flip(LOG, log.index(name.encode() + b"\x01", begin, end) + len(name) + 1, 6)
    await machine.start()
    await run_service(machine, 3)
    assert [body for body, *_ in await delivered_messages(machine)] == [b"before", b"behind"]
    assert machine.store.damage.lost() == [(SCHEDULE_TOPIC, QUEUE, HARMED, HARMED + 1)]
    assert sum("delay.undeliverable" in record.getMessage() for record in caplog.records) == 1
    await machine.store.close()


@pytest.mark.parametrize("text", ["", "x", "-1", "1.0", " 1", "\u0661", "9" * 5_000])
def test_non_numeric_stored_number_is_reported_as_damage(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="expected a number"):
        stored_number(REAL_QID, text)


def missing(*_: object, **__: object) -> None:
    raise KeyError("missing")


@pytest.mark.parametrize("place", ["deliver", "stored_ms", "read_or_wait", "parts"])
async def test_message_with_an_unexpected_error_is_skipped_after_all_attempts(
    place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine()
    await create_delayed(machine)
    await machine.start()
    store, home = machine.store, machine.home
    deliver, stored_ms, read_some = home.deliver, store.stored_ms, store.read_or_wait
    begin, _ = damaged_range(machine)

    async def failing_read(topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int) -> object:
        result = await read_some(topic, queue_id, offset, 1 if place == "parts" else max_count, max_bytes)
        if offset <= HARMED < offset + result.count:
            if place == "read_or_wait":
                raise KeyError("missing")
            result.parts[0] = b"\0" * len(result.parts[0])
        return result

    if place == "deliver":
        monkeypatch.setattr(home, place, lambda record, ended: missing() if ended.offset == HARMED else deliver(record, ended))
    elif place == "stored_ms":
        monkeypatch.setattr(store, place, lambda at, stamp: missing() if at == begin else stored_ms(at, stamp))
    else:
        monkeypatch.setattr(store, "read_or_wait", failing_read)
    await run_service(machine, 10)
    monkeypatch.undo()
    found = [body for body, *_ in await delivered_messages(machine)]
    failed = [record for record in caplog.records if "delay.failed" in record.getMessage()]
    assert all(record.exc_info for record in failed), "with its traceback"
    if place != "read_or_wait":
        assert found == [b"before", b"behind"]
        assert len(failed) == ATTEMPTS_MAX
        assert store.damage.lost() == [(SCHEDULE_TOPIC, QUEUE, HARMED, HARMED + 1)]
    assert machine.table.next_offset(QUEUE) == len(BODIES)
    await store.close()


async def test_unexpected_error_that_disappears_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    await create_delayed(machine)
    await machine.start()
    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(HomeDelivery, "deliver", missing)
            await run_service(machine, ATTEMPTS_MAX - 1)
        await run_service(machine, 1)
    assert [body for body, *_ in await delivered_messages(machine)] == list(BODIES)
    await machine.store.close()
