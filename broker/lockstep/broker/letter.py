"""A stored message on its way to another queue: what of it stays, and how it is stored there."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lockstep.protocol.errors import RemoteProtocolError
from lockstep.protocol.ids import message_id_of
from lockstep.protocol.names import SCHEDULE_TOPIC
from lockstep.protocol.properties import (
    DELAY,
    HOME_LAYOUT,
    ORIGIN_MESSAGE_ID,
    ORIGIN_QUEUE,
    OWN_PREFIX,
    REAL_QID,
    REAL_TOPIC,
    REASON,
    REASON_LENGTH_MAX,
    RETRY_TOPIC,
    decode_properties,
    encode_properties,
)
from lockstep.protocol.record import RecordView, encode_record

_KEPT = {REASON, ORIGIN_QUEUE, HOME_LAYOUT}


@dataclass(frozen=True, slots=True)
class Letter:
    """A message without its place. `properties` are those that go with it: lockstep's own stay behind."""

    topic: str
    queue_id: int
    body: bytes
    properties: Mapping[str, str]
    flag: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    reconsume_times: int

    @classmethod
    def of(cls, record: RecordView) -> "Letter":
        """RemoteProtocolError where the properties are not UTF-8."""
        properties = {
            name: value for name, value in decode_properties(record.properties).items() if not name.startswith(OWN_PREFIX) or name in _KEPT
        }
        topic = record.topic.decode("ascii")
        facts = (record.flag, record.sys_flag, record.born_ms, record.born_host, record.reconsume_times)
        return cls(topic, record.queue_id, record.body, properties, *facts)

    def frame(self) -> bytes:
        """The record, the broker's fields zero. LocalProtocolError where the properties are too long, which those of a message that was
        taken from a sender never are (`sent_bytes`)."""
        return encode_record(
            self.topic.encode(),
            self.queue_id,
            self.body,
            encode_properties(self.properties),
            flag=self.flag,
            sys_flag=self.sys_flag,
            born_ms=self.born_ms,
            reconsume_times=self.reconsume_times,
        )

    def sent_to(self, topic: str, queue_id: int) -> "Letter":
        return replace(self, topic=topic, queue_id=queue_id)

    @property
    def home(self) -> str:
        """The topic to which it belongs: of a copy the one in which it lay at first."""
        return self.properties.get(RETRY_TOPIC) or self.properties.get(REAL_TOPIC) or self.topic

    def waiting(self, level: int, queue_id: int, home_began: int) -> "Letter":
        """As it waits in a queue of delays."""
        place = {REAL_TOPIC: self.topic, REAL_QID: str(self.queue_id), HOME_LAYOUT: str(home_began)}
        properties = {**self.properties, DELAY: str(level), **place}
        return replace(self, topic=SCHEDULE_TOPIC, queue_id=queue_id, properties=properties)

    def delivered(self) -> "Letter":
        """As it goes on when its time has come. RemoteProtocolError where it does not say where to."""
        properties = {name: value for name, value in self.properties.items() if name not in (DELAY, HOME_LAYOUT)}
        topic, queue_id = properties.pop(REAL_TOPIC, ""), properties.pop(REAL_QID, "")
        if not topic or not queue_id.isdecimal():
            raise RemoteProtocolError(f"a delayed message names no place: {REAL_TOPIC} {topic!r}, {REAL_QID} {queue_id!r}")
        return replace(self, topic=topic, queue_id=int(queue_id), properties=properties)


def plain_words(reason: str) -> str:
    """As it is kept: one line, not too long."""
    return "".join(char if char.isprintable() else " " for char in reason[:REASON_LENGTH_MAX]).strip()


def failed_copy(record: RecordView, topic: str, queue_id: int, reason: str = "") -> Letter:
    """What a group could not handle, as it is stored for a further try or for good. RocketMQ: SendMessageProcessor.consumerSendMsgBack."""
    letter = Letter.of(record)
    properties = {name: value for name, value in letter.properties.items() if name not in (DELAY, REASON)}
    if RETRY_TOPIC not in properties:
        properties |= {RETRY_TOPIC: letter.topic, ORIGIN_QUEUE: str(letter.queue_id)}
    properties.setdefault(ORIGIN_MESSAGE_ID, message_id_of(record.store_host, record.physical_offset))
    if words := plain_words(reason):
        properties[REASON] = words
    return replace(letter, topic=topic, queue_id=queue_id, properties=properties, reconsume_times=letter.reconsume_times + 1)
