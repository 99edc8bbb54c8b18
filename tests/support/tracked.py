"""Messages and statuses of a group, as a broker returns them, from which tracks follow."""

from lockstep.protocol.bodies import ConsumerGroup, GroupStatus, ListVersion, MemberStatus, QueueStatus, Subscription
from lockstep.protocol.delays import delay_queue_id
from lockstep.protocol.messages.message import Message, MessageExt, decode_messages, encode_message
from lockstep.protocol.messages.properties import decode_properties, encode_properties
from lockstep.protocol.messages.record import INT64, QUEUE_OFFSET_AT, STORE_TIMESTAMP_AT, RecordView, encode_record
from lockstep.protocol.names import SCHEDULE_TOPIC

MEMBER = MemberStatus("c", "1234abcd", "10.0.0.1:1", True, 5)
CONTRACT = ConsumerGroup("g", (Subscription("t", "tagA || tagB"),))
STORED_MS = 1_700_000_000_000


def message(tag: str | None = "tagB", offset: int = 7, queue_id: int = 2, **properties: str) -> MessageExt:
    """Return a message of topic t."""
    return _stored(encode_message(Message("t", b"x", tags=tag, properties=properties), queue_id, "A" * 32, STORED_MS), offset)


def copy_in(topic: str, offset: int = 0, failures: int = 1, queue_id: int = 0, **properties: str) -> MessageExt:
    """Return a copy of `message()` in another topic."""
    record = RecordView(encode_message(Message("t", b"x", tags="tagB"), 2, "A" * 32, STORED_MS))
    kept = encode_properties({**decode_properties(record.properties), **properties})
    return _stored(encode_record(topic.encode(), queue_id, b"x", kept, born_ms=STORED_MS, reconsume_times=failures), offset)


def waiting(home: str, queue_id: int = 2, delay_ms: int = 30_000, failures: int = 0, offset: int = 99, **properties: str) -> MessageExt:
    """Return a message that waits in a delay queue for its way to a queue of topic `home`."""
    kept = {"REAL_TOPIC": home, "REAL_QID": str(queue_id), **properties}
    return copy_in(SCHEDULE_TOPIC, offset, failures, delay_queue_id(delay_ms), **kept)


def _stored(data: bytes, offset: int) -> MessageExt:
    record = bytearray(data)
    record[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + INT64.size] = INT64.pack(offset)
    record[STORE_TIMESTAMP_AT : STORE_TIMESTAMP_AT + INT64.size] = INT64.pack(STORED_MS)
    return decode_messages(bytes(record), "a")[0]


def status(
    committed: int = 8,
    contract: ConsumerGroup | None = CONTRACT,
    members: tuple[MemberStatus, ...] = (MEMBER,),
    *,
    group: str = "g",
    retries: int = -1,
) -> GroupStatus:
    """Return the status of a group with this progress in queue 2 of topic t, and in its retry topic."""
    places = (("t", 0, 99), ("u", 2, 99), ("t", 2, committed), (f"%RETRY%{group}", 0, retries))
    queues = tuple(
        QueueStatus(topic, queue_id, None, 0, 0, offset, 20, 0, None, None, parked=0, disk_pulls=0) for topic, queue_id, offset in places
    )
    return GroupStatus(group, ListVersion(1, 1), contract, members, queues, grants=0)
