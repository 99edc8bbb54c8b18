"""HEART_BEAT as RocketMQ's clients of all languages write it."""

from typing import Any

import pytest

from lockstep.broker.classic.heartbeat import read_heartbeat
from lockstep.broker.groups.heartbeats import HeartbeatCache
from lockstep.protocol.bodies import ConsumeFromWhere, ConsumerGroup, ConsumeType, MessageModel, ProducerGroup, Subscription
from lockstep.protocol.codec.java import write_json
from lockstep.protocol.codec.plain import pack_plain
from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError

SUBSCRIPTION = {
    "topic": "orders",
    "subString": "a || b",
    "subVersion": 7,
    "expressionType": "TAG",
    "codeSet": [1],
    "classFilterMode": False,
}
GROUP = {"groupName": "billing", "subscriptionDataSet": [SUBSCRIPTION], "unitMode": False}
READ = ConsumerGroup("billing", (Subscription("orders", "a || b", "TAG", 7),), consume_from_where=ConsumeFromWhere.LAST_OFFSET)


def only_group(**changed: Any) -> ConsumerGroup:
    (group,) = read_heartbeat({"clientID": "c", "consumerDataSet": [GROUP | changed]}).consumers
    return group


def test_heartbeat_of_a_java_client_is_read() -> None:
    body = read_heartbeat({"clientID": "10.0.0.1@7", "producerDataSet": [{"groupName": "shop"}], "consumerDataSet": [GROUP]})
    assert (body.client_id, body.producers, body.consumers) == ("10.0.0.1@7", (ProducerGroup("shop"),), (READ,))
    assert body.session is None


@pytest.mark.parametrize(
    ("changed", "read"),
    [
        ({"messageModel": "BROADCASTING"}, ("message_model", MessageModel.BROADCASTING)),
        ({"messageModel": 0}, ("message_model", MessageModel.BROADCASTING)),
        ({"messageModel": "1"}, ("message_model", MessageModel.CLUSTERING)),
        ({"messageModel": None}, ("message_model", MessageModel.CLUSTERING)),
        ({"consumeType": "CONSUME_ACTIVELY"}, ("consume_type", ConsumeType.CONSUME_ACTIVELY)),
        ({"consumeType": 1}, ("consume_type", ConsumeType.CONSUME_PASSIVELY)),
        ({"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"}, ("consume_from_where", ConsumeFromWhere.FIRST_OFFSET)),
        ({"consumeFromWhere": 4}, ("consume_from_where", ConsumeFromWhere.FIRST_OFFSET)),
        ({"consumeFromWhere": 5}, ("consume_from_where", ConsumeFromWhere.TIMESTAMP)),
    ],
)
def test_enums_are_read_by_name_and_by_number(changed: dict[str, Any], read: tuple[str, object]) -> None:
    assert getattr(only_group(**changed), read[0]) == read[1]


@pytest.mark.parametrize(
    ("changed", "read"),
    [
        ({"subscriptionDataSet": None, "subscriptionData": [SUBSCRIPTION]}, READ.subscriptions),
        ({"subscriptionDataSet": None}, ()),
        ({"subscriptionDataSet": [SUBSCRIPTION | {"subString": None}]}, (Subscription("orders", "*", "TAG", 7),)),
        ({"subscriptionDataSet": [SUBSCRIPTION | {"subString": ""}]}, (Subscription("orders", "*", "TAG", 7),)),
        ({"subscriptionDataSet": [SUBSCRIPTION | {"subVersion": "-8"}]}, (Subscription("orders", "a || b", "TAG", -8),)),
        ({"subscriptionDataSet": [SUBSCRIPTION | {"expressionType": None}]}, READ.subscriptions),
        ({"subscriptionDataSet": [SUBSCRIPTION | {"expressionType": "SQL92"}]}, (Subscription("orders", "a || b", "SQL92", 7),)),
    ],
)
def test_subscriptions_are_read_in_the_form_of_each_client(changed: dict[str, Any], read: tuple[Subscription, ...]) -> None:
    assert only_group(**changed).subscriptions == read


@pytest.mark.parametrize(
    ("plain", "said"),
    [
        ([], "HeartbeatData: expected an object, got list"),
        ({}, "clientID: expected a string, got NoneType"),
        ({"clientID": "c", "producerDataSet": {}}, "producerDataSet: expected a list, got dict"),
        ({"clientID": "c", "producerDataSet": [{}]}, "producerDataSet.groupName: expected a string"),
        ({"clientID": "c", "consumerDataSet": [7]}, "consumerDataSet: expected an object, got int"),
        (
            {"clientID": "c", "consumerDataSet": [GROUP | {"messageModel": 2}]},
            "messageModel: expected one of BROADCASTING, CLUSTERING, got int",
        ),
        ({"clientID": "c", "consumerDataSet": [GROUP | {"messageModel": True}]}, "messageModel: expected one of"),
        (
            {"clientID": "c", "consumerDataSet": [GROUP | {"subscriptionDataSet": [SUBSCRIPTION | {"subVersion": "soon"}]}]},
            "subVersion of topic orders: expected a number",
        ),
    ],
)
def test_part_that_can_not_be_read_is_named(plain: Any, said: str) -> None:
    with pytest.raises(RemoteProtocolError, match=said):
        read_heartbeat(plain)


def test_one_text_is_read_by_the_codec_of_its_frame() -> None:
    """The bytes of a JSON body may also be msgpack: the cache must not mix them up."""
    cache = HeartbeatCache()
    raw = write_json({"clientID": "c", "consumerDataSet": [GROUP]})
    assert cache.read(raw, native=False).body.client_id == "c"
    with pytest.raises(RemoteProtocolError):
        cache.read(raw)
    native = pack_plain({"clientID": "c"})
    assert cache.read(native).body.client_id == "c"
    with pytest.raises(RemoteProtocolError):
        cache.read(native, native=False)


def test_limits_of_lists_hold_for_json() -> None:
    many = [SUBSCRIPTION | {"topic": f"t{number}"} for number in range(5_000)]
    with pytest.raises(LocalProtocolError, match=r"names 5000 .*allowed"):
        HeartbeatCache().read(write_json({"clientID": "c", "consumerDataSet": [GROUP | {"subscriptionDataSet": many}]}), native=False)
