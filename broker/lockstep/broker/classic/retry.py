"""A failed message that a client of RocketMQ sends to `%RETRY%group` itself. RocketMQ: SendMessageProcessor.handleRetryAndDLQ.

Java and C++ do so if CONSUMER_SEND_MSG_BACK has failed, and Java's ordered consumers with a message on which they give up. Go and
pyrocketmq do so more often. The message has all properties of the one that was consumed, so those that brokers and consumers have added are
taken away. How often it has failed is in the header; Go has it in a property.
"""

from dataclasses import replace

from lockstep.protocol.delays import RETRIES_MAX
from lockstep.protocol.errors import LocalProtocolError, MessageIllegalError
from lockstep.protocol.headers.send import SendMessageHeader
from lockstep.protocol.messages.properties import (
    DELAY,
    MAX_RECONSUME_TIMES,
    ORIGIN_MESSAGE_ID,
    OWN_PREFIX,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    RECONSUME_TIME,
    RETRY_TOPIC,
    encode_properties,
    split_properties,
)
from lockstep.protocol.names import RETRY_PREFIX, check_topic, retry_topic

VERSION_WITH_LIMIT = 121
"""RocketMQ's version 3.4.9, from which the header names the limit of retries."""
MARKS = (RETRY_TOPIC, ORIGIN_MESSAGE_ID, RECONSUME_TIME)
"""Properties that only a retry has."""
_DROPPED = frozenset({RECONSUME_TIME, MAX_RECONSUME_TIMES, REAL_TOPIC, REAL_QID, PGROUP, DELAY}) | frozenset(
    {"MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME", "WAIT", "MSG_REGION", "TRACE_ON"}
)
_DIGITS_MAX = 10
"""The digits of the largest int32, which Java's ordered consumers name as a limit."""


def is_retry(header: SendMessageHeader) -> bool:
    """Return whether the send has anything that only a retry may have."""
    if header.reconsume_times != 0:
        return True
    if not any(mark in header.properties for mark in MARKS):
        return False
    pairs = split_properties(header.properties)
    return any(mark in pairs for mark in MARKS)


def check_retry_topic(header: SendMessageHeader) -> str:
    """Return the group of a retry. Raise MessageIllegalError if it is sent anywhere but to a topic of retries."""
    group = header.topic.removeprefix(RETRY_PREFIX)
    if not header.topic.startswith(RETRY_PREFIX):
        raise MessageIllegalError(
            f"a message for topic {header.topic} has reconsume times or a property of retries ({', '.join(MARKS)}): "
            f"they are for topics {RETRY_PREFIX}GROUP, leave them out"
        )
    retry_topic(group)
    return group


def retries_used_up(header: SendMessageHeader, version: int) -> bool:
    """Return whether the message is to be dead-lettered. `version`: that of the client."""
    pairs = split_properties(header.properties)
    limit = RETRIES_MAX
    if MAX_RECONSUME_TIMES in pairs:
        limit = _number(pairs, MAX_RECONSUME_TIMES)
    elif version >= VERSION_WITH_LIMIT and header.max_reconsume_times is not None:
        limit = header.max_reconsume_times
    return failed_calls(header) >= limit


def failed_calls(header: SendMessageHeader) -> int:
    """Return how often the group has failed on the message. Raise MessageIllegalError if that is not a number."""
    count = max(header.reconsume_times, _number(split_properties(header.properties), RECONSUME_TIME))
    if header.reconsume_times < 0:
        raise MessageIllegalError(f"reconsume times {header.reconsume_times}: expected 0 or more")
    return count


def as_stored(header: SendMessageHeader) -> SendMessageHeader:
    """Return the header of the message to store: with the count of failed calls, and without what brokers and consumers have added."""
    pairs = {
        name: value
        for name, value in split_properties(header.properties).items()
        if name not in _DROPPED and not name.startswith(OWN_PREFIX)
    }
    if RETRY_TOPIC in pairs:
        try:
            check_topic(pairs[RETRY_TOPIC])
        except LocalProtocolError as error:
            raise MessageIllegalError(f"property {RETRY_TOPIC}: {error}") from None
    return replace(header, properties=encode_properties(pairs).decode(), reconsume_times=failed_calls(header))


def _number(pairs: dict[str, str], name: str) -> int:
    text = pairs.get(name, "0")
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX):
        raise MessageIllegalError(f"property {name} is {text[:40]!r}: expected a number")
    return int(text)
