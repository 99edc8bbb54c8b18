"""The store host in records and message ids: the broker's address if it fits, otherwise a substitute for its store."""

from pathlib import Path

from lockstep.protocol.codes import RequestCode
from lockstep.protocol.headers.offsets import ViewMessageHeader
from lockstep.protocol.headers.send import SendRecordsReply
from lockstep.protocol.messages.ids import is_derived_store_host, message_id_of, offset_message_id
from lockstep.protocol.messages.message import decode_messages
from lockstep.protocol.messages.record import RecordView
from support.whole_broker import dialled, frame, place, running, settings


async def store_with_address(path: Path, advertised: str, queue_id: int = 0) -> tuple[SendRecordsReply, str]:
    """Send one message to a broker with this address; return its position and the id in its record."""
    config = settings(path, advertise=(advertised,))
    async with running(config) as broker, dialled(broker) as client:
        await client.create()
        header, data, _ = frame(0, 1, queue_id=queue_id)
        found = place(await client.done(RequestCode.SEND_RECORDS, header, data))
        record = (await client.done(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(found.physical_offset))).body
        view = RecordView(record)
        (message,) = decode_messages(bytes(record), "broker-a")
        assert message.offset_message_id == message_id_of(view.store_host, view.physical_offset)
        assert message.offset_message_id == offset_message_id(found.store_host, found.physical_offset)
        return found, message.offset_message_id


async def test_brokers_with_dns_names_give_different_message_ids_at_equal_offsets(tmp_path: Path) -> None:
    (first, first_id), (second, second_id) = [await store_with_address(tmp_path / name, "localhost:0") for name in ("a", "b")]
    assert first.physical_offset == second.physical_offset
    assert first_id != second_id
    assert is_derived_store_host(first.store_host)
    assert is_derived_store_host(second.store_host)


async def test_store_host_survives_a_restart_under_another_name(tmp_path: Path) -> None:
    first, _ = await store_with_address(tmp_path, "localhost:0")
    again, _ = await store_with_address(tmp_path, "LOCALHOST:0", 1)
    assert again.store_host == first.store_host
