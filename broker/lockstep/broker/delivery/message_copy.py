"""Copies a stored message to another queue (retry, dead letter, delay), and defines the properties that the copy keeps."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lockstep.broker.store.log.stored_record import Ended, waited_value
from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError
from lockstep.protocol.messages.ids import message_id_of
from lockstep.protocol.messages.properties import (
    CARRIED_DUE,
    CARRIED_FIRST,
    DELAY,
    ORIGIN_LAYOUT,
    ORIGIN_MESSAGE_ID,
    ORIGIN_QUEUE,
    OWN_PREFIX,
    PGROUP,
    PRODUCER_CLIENT,
    REAL_QID,
    REAL_TOPIC,
    REASON,
    RETRY_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    WAITED,
    decode_properties,
    encode_properties,
    one_line_reason,
)
from lockstep.protocol.messages.record import NO_HOST, SYS_BORN_IPV6, SYS_IPV6_MASK, RecordView, encode_record
from lockstep.protocol.messages.rooms import DUE_SHIFT
from lockstep.protocol.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, check_topic

RECONSUME_TIMES_MAX = (1 << 31) - 1
"""The largest number of a record's field."""
NUMBER_DIGITS_MAX = 20
"""The digits of a 64-bit number."""
_KEPT = {REASON, ORIGIN_QUEUE, ORIGIN_LAYOUT}
_OF_THE_WAIT = {DELAY, ORIGIN_LAYOUT, TIMER_DELAY_MS, TIMER_DELIVER_MS}
"""Properties of a message that waits, which its delivered copy does not have. REAL_TOPIC and REAL_QID become its topic and queue."""


@dataclass(frozen=True, slots=True)
class MessageCopy:
    """A message without its offsets. `properties` are those that the copy keeps, without lockstep's own."""

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
    def of(cls, record: RecordView) -> "MessageCopy":
        """Return the copy of a stored record. Raise RemoteProtocolError if the properties are not UTF-8 or the topic is not ASCII.

        It has IPv4 hosts: a born host of IPv6, of a record that RocketMQ's broker has stored, is left out.
        """
        properties = {
            name: value for name, value in decode_properties(record.properties).items() if not name.startswith(OWN_PREFIX) or name in _KEPT
        }
        try:
            topic = record.topic.decode("ascii")
        except UnicodeDecodeError:
            raise RemoteProtocolError(f"topic {record.topic[:40]!r} is not ASCII") from None
        sys_flag = record.sys_flag & ~SYS_IPV6_MASK
        born_host = NO_HOST if record.sys_flag & SYS_BORN_IPV6 else record.born_host
        facts = (record.flag, sys_flag, record.born_ms, born_host, record.reconsume_times)
        return cls(topic, record.queue_id, record.body, properties, *facts)

    def frame(self) -> bytes:
        """Return the record, with the broker's fields zero.

        Raises LocalProtocolError if the properties are too long, which never happens for a message accepted from a sender (`sent_bytes`).
        """
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

    def sent_to(self, topic: str, queue_id: int) -> "MessageCopy":
        return replace(self, topic=topic, queue_id=queue_id)

    @property
    def origin_topic(self) -> str:
        """Return the topic to which the message was sent: for a copy, that of the first one."""
        return self.properties.get(RETRY_TOPIC) or self.properties.get(REAL_TOPIC) or self.topic

    def as_delayed(self, level: int, queue_id: int, topic_began: int) -> "MessageCopy":
        """Return the copy that waits in a delay queue."""
        destination = {REAL_TOPIC: self.topic, REAL_QID: str(self.queue_id), ORIGIN_LAYOUT: str(topic_began)}
        properties = {**self.properties, DELAY: str(level), **destination}
        return replace(self, topic=SCHEDULE_TOPIC, queue_id=queue_id, properties=properties)

    def as_delivered(self) -> "MessageCopy":
        """Return the copy to deliver when the delay has passed. Raise RemoteProtocolError if its destination is missing or invalid."""
        properties = {name: value for name, value in self.properties.items() if name not in _OF_THE_WAIT}
        topic, queue_id = properties.pop(REAL_TOPIC, ""), stored_number(REAL_QID, properties.pop(REAL_QID, ""))
        try:
            check_topic(topic)
        except LocalProtocolError as error:
            raise RemoteProtocolError(f"property {REAL_TOPIC} of a delayed message: {error}") from None
        return replace(self, topic=topic, queue_id=queue_id, properties=properties)

    def as_timer(self, topic_began: int, name: str, value: int) -> "MessageCopy":
        """Return the copy that waits in the room of timers. `name`: TIMER_DELAY_MS or TIMER_DELIVER_MS, with its value in ms."""
        first = {REAL_TOPIC: self.topic, REAL_QID: str(self.queue_id), ORIGIN_LAYOUT: str(topic_began), name: str(value)}
        return replace(self, topic=TIMER_TOPIC, queue_id=0, properties={**first, **self.properties, **first})

    def as_half(self, topic_began: int, group: str, client_id: str, carried: tuple[int, int] | None = None) -> "MessageCopy":
        """Return the copy that waits in the room of half messages. `group`, `client_id`: its sender. `carried`: when (ms) and at which
        offset of the room it was stored at first, if it was."""
        home = {REAL_TOPIC: self.topic, REAL_QID: str(self.queue_id), ORIGIN_LAYOUT: str(topic_began)}
        first = home | {TRAN_MSG: "true", PGROUP: group, PRODUCER_CLIENT: client_id}
        if carried is not None:
            first |= {CARRIED_DUE: str(carried[0] << DUE_SHIFT), CARRIED_FIRST: str(carried[1])}
        return replace(self, topic=HALF_TOPIC, queue_id=0, properties={**first, **self.properties, **first})

    def ending(self, ended: Ended) -> "MessageCopy":
        """Return the copy that says that it ends the wait of this message."""
        return replace(self, properties={WAITED: waited_value(ended), **self.properties})

    @property
    def origin_began(self) -> int:
        """Return the `topic_began` of `as_delayed`, or 0 if unknown. Raises RemoteProtocolError if the property is not a number."""
        return stored_number(ORIGIN_LAYOUT, self.properties.get(ORIGIN_LAYOUT, "0"))


def stored_number(name: str, text: str) -> int:
    """Return the number in a property that the broker has stored. Raise RemoteProtocolError if it is not one, which means damage."""
    if not (text.isascii() and text.isdecimal() and len(text) <= NUMBER_DIGITS_MAX):
        raise RemoteProtocolError(f"property {name} is {text[:40]!r}: expected a number")
    return int(text)


def failed_copy(record: RecordView, topic: str, queue_id: int, reason: str = "", failures: int = 1) -> MessageCopy:
    """Return the copy of a message that a group failed to process, for a retry or as a dead copy. `failures`: the failed calls that the
    record does not count yet.

    RocketMQ: SendMessageProcessor.consumerSendMsgBack.
    """
    copy = MessageCopy.of(record)
    properties = {name: value for name, value in copy.properties.items() if name not in (DELAY, REASON)}
    if RETRY_TOPIC not in properties:
        properties |= {RETRY_TOPIC: copy.topic, ORIGIN_QUEUE: str(copy.queue_id)}
    properties.setdefault(ORIGIN_MESSAGE_ID, message_id_of(record.store_host, record.physical_offset))
    if text := one_line_reason(reason):
        properties[REASON] = text
    times = min(copy.reconsume_times + failures, RECONSUME_TIMES_MAX)
    return replace(copy, topic=topic, queue_id=queue_id, properties=properties, reconsume_times=times)
