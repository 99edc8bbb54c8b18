"""Records with IPv6 hosts, which only RocketMQ's brokers write: each reader finds the fields behind the hosts."""

from pathlib import Path

import pytest

from lockstep.broker.delivery.message_copy import MessageCopy, failed_copy
from lockstep.broker.store.log.stored_record import BadRecordError, read_record
from lockstep.broker.store.queues.predicates import stored_properties
from lockstep.protocol.errors import RemoteProtocolError
from lockstep.protocol.messages.message import decode_messages
from lockstep.protocol.messages.record import (
    NO_HOST,
    SYS_BORN_IPV6,
    SYS_STORE_IPV6,
    RecordView,
    head_of,
    host_address,
    record_bounds,
    store_time_of,
)
from support.foreign_store import STORED_MS, ForeignDirectory

IPV4, IPV6 = "127.0.0.1:10911", "[2001:db8::7]:10911"
BOTH = SYS_BORN_IPV6 | SYS_STORE_IPV6
FLAGS = [0, SYS_BORN_IPV6, SYS_STORE_IPV6, BOTH]


def stored(tmp_path: Path, flag: int) -> bytes:
    directory = ForeignDirectory(tmp_path)
    directory.add("orders", b"before")
    start = len(directory.log)
    directory.add("orders", b"hello", queue_id=3, properties=b"TAGS\x01TagA\x02", sys_flag=flag)
    return bytes(directory.log[start:])


@pytest.mark.parametrize("flag", FLAGS)
def test_every_field_is_found(tmp_path: Path, flag: int) -> None:
    data = stored(tmp_path, flag)
    born, store = IPV6 if flag & SYS_BORN_IPV6 else IPV4, IPV6 if flag & SYS_STORE_IPV6 else IPV4
    view = RecordView(b"junk" + data, 4)
    assert (view.body, view.topic, view.properties, view.total_size) == (b"hello", b"orders", b"TAGS\x01TagA\x02", len(data))
    assert (host_address(view.born_host), host_address(view.store_host)) == (born, store)
    assert (view.born_ms, view.store_ms, view.reconsume_times, view.prepared_offset) == (STORED_MS, STORED_MS, 0, 0)
    assert view.crc_matches()
    assert store_time_of(data) == STORED_MS
    assert stored_properties(data, 0, len(data)) == b"\x02TAGS\x01TagA\x02"
    topic_at, properties_at, end = record_bounds(data)
    assert (data[topic_at : properties_at - 2], data[properties_at:end]) == (b"orders", b"TAGS\x01TagA\x02")


@pytest.mark.parametrize("flag", FLAGS)
def test_client_reads_it_between_others(tmp_path: Path, flag: int) -> None:
    data, plain = stored(tmp_path, flag), stored(tmp_path / "plain", 0)
    _, message, last = decode_messages(plain + data + plain, "broker-a")
    assert (message.body, message.stored_body, message.body_bytes, message.tags) == (b"hello", b"hello", 5, "TagA")
    assert (message.stored_ms, message.born_ms, message.reconsume_times, message.queue_id) == (STORED_MS, STORED_MS, 0, 3)
    host = "20010DB800000000000000000000000700002A9F" if flag & SYS_STORE_IPV6 else "7F00000100002A9F"
    assert message.offset_message_id == host + f"{message.physical_offset:016X}"
    assert last.body == b"hello"


@pytest.mark.parametrize("flag", FLAGS)
def test_broker_reads_it_from_its_log(tmp_path: Path, flag: int) -> None:
    data = stored(tmp_path, flag)
    position = RecordView(data).physical_offset
    record = read_record(data, position, {})
    assert (record.topic, record.queue_id, record.queue_offset, record.size, record.store_ms) == ("orders", 3, 0, len(data), STORED_MS)
    body_at = head_of(data).size
    with pytest.raises(BadRecordError, match="CRC of its body"):
        read_record(data[:body_at] + b"j" + data[body_at + 1 :], position, {})


@pytest.mark.parametrize("flag", FLAGS)
def test_copy_has_ipv4_hosts(tmp_path: Path, flag: int) -> None:
    view = RecordView(stored(tmp_path, flag | 1))
    copy = MessageCopy.of(view)
    assert copy.sys_flag == 1
    assert copy.born_host == (NO_HOST if flag & SYS_BORN_IPV6 else view.born_host)
    again = RecordView(copy.frame())
    assert (again.body, again.topic, again.total_size) == (b"hello", b"orders", 91 + 5 + 6 + 9)
    assert len(failed_copy(view, "%RETRY%g", 0).properties["ORIGIN_MESSAGE_ID"]) == (56 if flag & SYS_STORE_IPV6 else 32)


@pytest.mark.parametrize("flag", FLAGS)
def test_each_cut_is_rejected(tmp_path: Path, flag: int) -> None:
    data = stored(tmp_path, flag)
    for count in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            RecordView(data[:count])
        with pytest.raises(BadRecordError):
            read_record(data[:count], RecordView(data).physical_offset, {})
        if count:
            with pytest.raises(RemoteProtocolError):
                decode_messages(data[:count], "broker-a")
