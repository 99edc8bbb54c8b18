"""Messages are encoded when their frame is sealed."""

import pytest

from lockstep.client.producer.machines.encoder import NAMES_MAX, FrameEncoder
from lockstep.client.producer.machines.pending import EncodedRecords, PendingSend
from lockstep.client.producer.machines.routing import UNKEYED, Route
from lockstep.protocol.messages.ids import UNIQUE_PREFIX_BYTES, UniqueKeys
from lockstep.protocol.messages.message import Message, encode_message
from lockstep.protocol.messages.properties import UNIQ_KEY, split_properties
from lockstep.protocol.messages.record import SYS_COMPRESSED, RecordView
from lockstep.protocol.topics.queue import MessageQueue

WALL_MS = 1_700_000_000_000
QUEUE = MessageQueue("t", "a", 7)


class Caller:
    def done(self) -> bool:
        return False


def pending(*bodies: str, begun_ms: int = 100) -> PendingSend:
    messages = [Message("t", body.encode()) for body in bodies]
    return PendingSend(messages, UNKEYED, 1, Caller(), begun_ms, begun_ms + 1_000)


def encoder(compress_over: int | None = None) -> FrameEncoder:
    return FrameEncoder(UniqueKeys(bytes(UNIQUE_PREFIX_BYTES)), lambda: WALL_MS, compress_over)


def views(data: bytes) -> list[RecordView]:
    found, at = [], 0
    while at < len(data):
        found.append(RecordView(data, at))
        at += found[-1].total_size
    return found


def test_records_carry_the_queue_the_ids_and_when_each_send_was_called() -> None:
    data, sizes, ids = encoder().encode([pending("a", begun_ms=100), pending("b", "c", begun_ms=250)], QUEUE, 300)
    records = views(data)
    assert [record.body for record in records] == [b"a", b"b", b"c"]
    assert [record.total_size for record in records] == sizes
    assert {record.queue_id for record in records} == {7}
    assert [record.born_ms - WALL_MS for record in records] == [-200, -50, -50]
    assert [split_properties(record.properties.decode())[UNIQ_KEY] for record in records] == list(ids)
    assert len(set(ids)) == 3


def test_message_that_was_in_a_frame_keeps_its_id_in_the_next_one() -> None:
    made, first, second = encoder(), pending("a", "b"), pending("c")
    _, _, before = made.encode([first], QUEUE, 300)
    first.message_ids = before
    data, _, after = made.encode([second, first], MessageQueue("t", "b", 1), 900)
    assert list(after[1:]) == list(before)
    assert after[0] not in before
    assert [record.queue_id for record in views(data)] == [1, 1, 1]


def test_large_body_is_compressed() -> None:
    small, large = views(encoder(compress_over=100).encode([pending("x" * 99), pending("x" * 100)], QUEUE, 300)[0])
    assert not small.sys_flag & SYS_COMPRESSED
    assert large.sys_flag & SYS_COMPRESSED


def test_encoded_records_are_sent_as_they_are() -> None:
    record = encode_message(Message("t", b"x"), 0, "A" * 32, 5)
    given = PendingSend((), Route(("",)), 1, Caller(), 0, 1_000, records=EncodedRecords(record * 2, [len(record)] * 2))
    assert given.count == 2
    assert given.alone
    data, sizes, _ = encoder().encode([given], QUEUE, 300)
    assert (data, sizes) == (record * 2, [len(record)] * 2)


def named(*names: str) -> PendingSend:
    return PendingSend([Message("t", b"x", properties=dict.fromkeys(names, "1"))], UNKEYED, 1, Caller(), 100, 1_100)


def test_name_of_a_property_that_no_condition_can_name_is_sent_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    made = encoder()
    for _ in range(2):
        (record,) = views(made.encode([named("amount", "a.b", "order-id", "in", "größe")], QUEUE, 300)[0])
        assert split_properties(record.properties.decode())["a.b"] == "1"
    logged = [line for line in caplog.text.splitlines() if "property.not_for_conditions" in line]
    assert len(logged) == 4
    assert all(any(repr(name)[1:-1] in line for line in logged) for name in ("a.b", "order-id", "in"))


def test_names_of_properties_are_remembered_up_to_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    made = encoder()
    for first in range(0, 2 * NAMES_MAX, 128):
        made.encode([named(*(f"n-{number}" for number in range(first, first + 128)))], QUEUE, 300)
    assert caplog.text.count("property.not_for_conditions") == NAMES_MAX
