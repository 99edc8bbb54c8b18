"""Requests of RocketMQ's clients for java_wire.py."""

import json


def heartbeat(group: str, client_id: str) -> bytes:
    """Return the body of a consumer's HEART_BEAT."""
    subscription = {"topic": "orders", "subString": "*", "subVersion": 1, "expressionType": "TAG"}
    consumer = {"groupName": group, "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [subscription]}
    return json.dumps({"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": [{"groupName": "pg"}]}).encode()


def send(topic: str = "orders", properties: str = "") -> dict[str, str]:
    """Return the fields of SEND_MESSAGE_V2."""
    numbers = {"d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0", "j": "0"}
    return {"a": "pg", "b": topic, "c": "TBW102", **numbers, "i": properties, "k": "false", "m": "false", "n": "broker-a"}


def pull(offset: int) -> dict[str, str]:
    """Return the fields of PULL_MESSAGE with an expression."""
    place = {"consumerGroup": "cg", "topic": "orders", "queueId": "0", "queueOffset": str(offset), "maxMsgNums": "32", "commitOffset": "0"}
    return {**place, "sysFlag": "4", "suspendTimeoutMillis": "15000", "subVersion": "0", "expressionType": "TAG", "subscription": "*"}
