"""A message's properties: `name 0x01 value 0x02 name 0x01 value`. RocketMQ: MessageDecoder.messageProperties2String, MessageConst.

Nothing is escaped, so names and values may not contain 0x01 or 0x02. Some RocketMQ releases write a trailing 0x02 and others don't:
lockstep reads both and writes none, as 4.9.8.
"""

from collections.abc import Mapping

from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError
from lockstep.protocol.messages.record import PROPERTIES_BYTES_MAX, TOPIC_BYTES_MAX
from lockstep.protocol.names import BROKER_NAME_BYTES_MAX

TAGS = "TAGS"
KEYS = "KEYS"
UNIQ_KEY = "UNIQ_KEY"
DELAY = "DELAY"
WAIT = "WAIT"
RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
REAL_TOPIC = "REAL_TOPIC"
REAL_QID = "REAL_QID"
TRAN_MSG = "TRAN_MSG"
PGROUP = "PGROUP"
PRODUCER_CLIENT = "__TXN_PRODUCER_CID__"
"""In a half message: the producer group and the client id of its sender, which are asked how the transaction has ended."""
TRANSACTION_ID = "__transactionId__"
"""The transaction of a message, as its sender has named it. RocketMQ: MessageConst.PROPERTY_TRANSACTION_ID."""
CHECK_IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
"""In a half message of RocketMQ's clients: how long after it was sent its sender is asked for the first time, in seconds."""
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
CLUSTER = "CLUSTER"
"""The cluster's name, which the broker adds to the sends of RocketMQ's clients."""
SHARDING_KEY = "__SHARDINGKEY"
TIMER_PREFIX = "TIMER_"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
TTL = "TTL"
MSG_TYPE = "MSG_TYPE"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
"""Request–reply: which request it is, whose client waits for the reply and for how many ms, that a message is a reply, and when the broker
passed it on. RocketMQ: RIP-16."""
OWN_PREFIX = "__LS_"
"""The prefix of lockstep's own properties: users can't set them, and MessageExt.properties hides them."""
LS_SEQ = "__LS_SEQ"
"""The position of a frame in an idempotent producer's stream (sequence.py)."""
SEQUENCE_DIGITS = 87
"""The fixed length of its value."""
REASON = f"{OWN_PREFIX}REASON"
"""In a copy for a retry or a dead letter: why the last call failed, as text."""
REASON_LENGTH_MAX = 200
"""The maximum number of characters of the reason."""
ORIGIN_QUEUE = f"{OWN_PREFIX}QUEUE"
"""In a copy: the queue id of the original message."""
ORIGIN_LAYOUT = f"{OWN_PREFIX}LAYOUT"
"""In a delayed message: `TopicLayout.began` of its topic at the time of the send, which distinguishes a topic that was created again."""
WAITED = f"{OWN_PREFIX}FROM"
"""In a copy that ends a wait, the first property: where the message waited. QUEUE:OFFSET is a place in SCHEDULE_TOPIC, tCODE:OFFSET a due
code (rooms.py) and an offset in TIMER_TOPIC, hCODE:OFFSET the same in HALF_TOPIC."""
CARRIED_DUE = f"{OWN_PREFIX}DUE"
"""In a message of a waiting room that was stored again: its due code."""
CARRIED_FIRST = f"{OWN_PREFIX}FIRST"
"""In the same: the offset in its room at which it was stored at first."""

SENT_PROPERTIES_BYTES_MAX = 30 << 10
"""How many of the 32,767 bytes of a record's properties a sender may use (see `sent_bytes`). The rest is reserved for its copies."""
_NUMBER, _LONG, _ID = 10, 20, 32
_RESERVED_BYTES = {
    name.encode(): value_bytes
    for name, value_bytes in {
        UNIQ_KEY: _ID,
        DELAY: _NUMBER,
        RETRY_TOPIC: TOPIC_BYTES_MAX,
        ORIGIN_MESSAGE_ID: _ID,
        REAL_TOPIC: TOPIC_BYTES_MAX,
        REAL_QID: _NUMBER,
        RECONSUME_TIME: _NUMBER,
        MAX_RECONSUME_TIMES: _NUMBER,
        CLUSTER: BROKER_NAME_BYTES_MAX,
        LS_SEQ: SEQUENCE_DIGITS,
        ORIGIN_QUEUE: _NUMBER,
        ORIGIN_LAYOUT: _LONG,
        WAITED: 1 + _LONG + 1 + _LONG,
        TIMER_DELAY_MS: _LONG,
        TIMER_DELIVER_MS: _LONG,
        CARRIED_DUE: _LONG,
        CARRIED_FIRST: _LONG,
        REASON: 4 * REASON_LENGTH_MAX,
    }.items()
}
"""Name → the length in bytes of its longest value, for properties that producers, brokers and copies add to a message."""
assert SENT_PROPERTIES_BYTES_MAX + sum(len(name) + value_bytes + 2 for name, value_bytes in _RESERVED_BYTES.items()) <= PROPERTIES_BYTES_MAX
COPY_GROWTH_BYTES_MAX = PROPERTIES_BYTES_MAX - SENT_PROPERTIES_BYTES_MAX + TOPIC_BYTES_MAX
"""By how much the record of a copy may be larger than the message's."""

NAME_END = "\x01"
VALUE_END = "\x02"

RESERVED_PREFIXES = (OWN_PREFIX, "__RMQ.TRANSIENT.", TIMER_PREFIX)
RESERVED = frozenset(
    f"{TAGS} {KEYS} {UNIQ_KEY} {DELAY} {WAIT} {RETRY_TOPIC} {ORIGIN_MESSAGE_ID} {REAL_TOPIC} {REAL_QID} {TRAN_MSG} {PGROUP} "
    f"{RECONSUME_TIME} {MAX_RECONSUME_TIMES} {SHARDING_KEY} {TIMER_DELAY_SEC} {TIMER_DELAY_MS} {TIMER_DELIVER_MS} "
    f"TRAN_PREPARED_QUEUE_OFFSET TRANSACTION_CHECK_TIMES {CHECK_IMMUNITY} {TRANSACTION_ID} {PRODUCER_CLIENT} "
    f"MIN_OFFSET MAX_OFFSET CONSUME_START_TIME {CLUSTER} MSG_REGION TRACE_ON "
    f"{CORRELATION_ID} {REPLY_TO_CLIENT} {TTL} {MSG_TYPE} ARRIVE_TIME {PUSH_REPLY_TIME} INSTANCE_ID "
    "BUYER_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG INNER_MULTI_DISPATCH INNER_MULTI_QUEUE_OFFSET "
    "POP_CK POP_CK_OFFSET 1ST_POP_TIME INNER_NUM INNER_BASE DUP_INFO EXTEND_UNIQ_INFO TRACE_CONTEXT __BORNHOST BORN_TIMESTAMP "
    "__CRC32# DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID SHARDING_KEY".split()
)
"""Names that a user may not set, because RocketMQ or lockstep gives them a meaning. RocketMQ: MessageConst.STRING_HASH_SET."""


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Return the stored form, in the order of the mapping. Reserved names are not checked: see `check_user_properties`."""
    return VALUE_END.join([f"{name}{NAME_END}{value}" for name, value in properties.items()]).encode()


def decode_properties(data: bytes | bytearray | memoryview | str) -> dict[str, str]:
    """Return the properties by name, with or without a trailing 0x02.

    A pair without name or value is dropped, as RocketMQ does; of two pairs with one name the last one counts. Raises RemoteProtocolError
    for bytes that are not UTF-8.
    """
    if isinstance(data, str):
        text = data
    else:
        try:
            text = str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"properties are not UTF-8: {error.reason} at byte {error.start}") from None
    return split_properties(text)


def split_properties(text: str) -> dict[str, str]:
    """Decode like `decode_properties`, from a text. It raises nothing."""
    properties = {}
    for pair in text.split(VALUE_END):
        name, _, value = pair.partition(NAME_END)
        if name and value:
            properties[name] = value
    return properties


def has_property(text: str, name: str) -> bool:
    """Return whether the text of properties has this name, with a value."""
    return name in text and name in split_properties(text)


def sent_bytes(properties: bytes) -> int:
    """Return how many bytes of stored properties count for SENT_PROPERTIES_BYTES_MAX: all but those with reserved space.

    A copy of a message, and a copy of that, never has more: properties that fit once always fit.
    """
    count = 0
    for pair in properties.split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        reserved = _RESERVED_BYTES.get(name)
        if reserved is not None:
            count += max(0, len(value) - reserved)
        elif pair:
            count += len(pair) + 1
    return max(0, count - 1)


def check_sent_bytes(size: int, what: str = "properties, tags, keys and sharding key") -> None:
    """Raise LocalProtocolError if `size`, the bytes that a sender uses, exceeds the limit."""
    if size > SENT_PROPERTIES_BYTES_MAX:
        raise LocalProtocolError(f"{what} have {size} bytes: at most {SENT_PROPERTIES_BYTES_MAX}; put large values into the body")


def one_line_reason(reason: str) -> str:
    """Return the reason as it is stored: one line of at most REASON_LENGTH_MAX characters."""
    return "".join(char if char.isprintable() else " " for char in reason[:REASON_LENGTH_MAX]).strip()


def is_reserved(name: str) -> bool:
    """Return whether a user may not set a property of this name."""
    return name in RESERVED or name.startswith(RESERVED_PREFIXES)


def check_user_properties(properties: Mapping[str, str]) -> None:
    """Raise LocalProtocolError for reserved names, empty names or values, 0x01 or 0x02, and text that is not Unicode."""
    for name, value in properties.items():
        check_text("property name", name)
        check_text(f"property {name!r}", value)
        if is_reserved(name):
            raise LocalProtocolError(f"property {name!r} is reserved: choose another name (tags, keys and sharding_key are arguments)")


def check_text(what: str, text: object) -> None:
    """Raise LocalProtocolError unless `text` is valid in a property: a str, not empty, Unicode, without 0x01 and 0x02."""
    if not isinstance(text, str):
        raise LocalProtocolError(f"{what} is a {type(text).__name__}: expected str")
    if not text:
        raise LocalProtocolError(f"{what} is empty: RocketMQ drops properties without a name or value, leave it out")
    if NAME_END in text or VALUE_END in text:
        raise LocalProtocolError(f"{what} {text[:40]!r} holds 0x01 or 0x02, which separate properties on the wire")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise LocalProtocolError(f"{what} {text[:40]!r} holds half a surrogate pair, which is not UTF-8") from None
