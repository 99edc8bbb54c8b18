"""HEART_BEAT as RocketMQ's clients write it. RocketMQ: HeartbeatData, ConsumerData, SubscriptionData.

Sets may be missing or null, enums are names or numbers, numbers may be text; pyrocketmq names the subscriptions `subscriptionData`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.protocol.bodies import ConsumeFromWhere, ConsumerGroup, ConsumeType, HeartbeatBody, MessageModel, ProducerGroup, Subscription
from lockstep.protocol.errors import RemoteProtocolError

_FROM_WHERE = (
    ("CONSUME_FROM_LAST_OFFSET", ConsumeFromWhere.LAST_OFFSET),
    ("CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST", ConsumeFromWhere.LAST_OFFSET),
    ("CONSUME_FROM_MIN_OFFSET", ConsumeFromWhere.FIRST_OFFSET),
    ("CONSUME_FROM_MAX_OFFSET", ConsumeFromWhere.LAST_OFFSET),
    ("CONSUME_FROM_FIRST_OFFSET", ConsumeFromWhere.FIRST_OFFSET),
    ("CONSUME_FROM_TIMESTAMP", ConsumeFromWhere.TIMESTAMP),
)
_MODELS = (("BROADCASTING", MessageModel.BROADCASTING), ("CLUSTERING", MessageModel.CLUSTERING))
_TYPES = (
    ("CONSUME_ACTIVELY", ConsumeType.CONSUME_ACTIVELY),
    ("CONSUME_PASSIVELY", ConsumeType.CONSUME_PASSIVELY),
    ("CONSUME_POP", ConsumeType.CONSUME_PASSIVELY),
)
_INT64 = 1 << 63


def read_heartbeat(plain: Any) -> HeartbeatBody:
    """Return the heartbeat of a client without a session. Raise RemoteProtocolError, which names the part that can't be read."""
    body = _map(plain, "HeartbeatData")
    consumers = tuple(map(_consumer, _list(body.get("consumerDataSet"), "consumerDataSet")))
    producers = [_map(each, "producerDataSet") for each in _list(body.get("producerDataSet"), "producerDataSet")]
    groups = tuple(ProducerGroup(_text(each.get("groupName"), "producerDataSet.groupName")) for each in producers)
    return HeartbeatBody(_text(body.get("clientID"), "clientID"), consumers, groups)


def _consumer(plain: Any) -> ConsumerGroup:
    entry = _map(plain, "consumerDataSet")
    group = _text(entry.get("groupName"), "consumerDataSet.groupName")
    found = entry.get("subscriptionDataSet")
    subscriptions = _list(entry.get("subscriptionData") if found is None else found, f"subscriptionDataSet of group {group}")
    return ConsumerGroup(
        group,
        tuple(map(_subscription, subscriptions)),
        message_model=_member(entry.get("messageModel"), _MODELS, MessageModel.CLUSTERING, "messageModel"),
        consume_type=_member(entry.get("consumeType"), _TYPES, ConsumeType.CONSUME_PASSIVELY, "consumeType"),
        consume_from_where=_member(entry.get("consumeFromWhere"), _FROM_WHERE, ConsumeFromWhere.LAST_OFFSET, "consumeFromWhere"),
    )


def _subscription(plain: Any) -> Subscription:
    entry = _map(plain, "subscriptionDataSet")
    topic = _text(entry.get("topic"), "subscriptionDataSet.topic")
    expression = entry.get("subString")
    version = entry.get("subVersion", 0)
    if isinstance(version, str) and version.removeprefix("-").isdecimal() and len(version) <= 20:
        version = int(version)
    if type(version) is not int or not -_INT64 <= version < _INT64:
        raise RemoteProtocolError(f"subVersion of topic {topic[:80]}: expected a number of 64 bits")
    kind = entry.get("expressionType") or "TAG"
    return Subscription(topic, "*" if expression is None else _text(expression, "subString") or "*", _text(kind, "expressionType"), version)


def _member(value: Any, members: Sequence[tuple[str, Any]], default: Any, what: str) -> Any:
    """Return the member of one of Java's enums, which a client names or numbers."""
    if value is None:
        return default
    for number, (name, member) in enumerate(members):
        if value == name or value == str(number) or (type(value) is int and value == number):
            return member
    got = repr(value[:40]) if isinstance(value, str) else type(value).__name__
    raise RemoteProtocolError(f"{what}: expected one of {', '.join(name for name, _ in members)}, got {got}")


def _map(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"{what}: expected an object, got {type(value).__name__}")
    return value


def _list(value: Any, what: str) -> Sequence[Any]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise RemoteProtocolError(f"{what}: expected a list, got {type(value).__name__}")
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise RemoteProtocolError(f"{what}: expected a string, got {type(value).__name__}")
    return value
