"""Requests of RocketMQ's clients for java_wire.py, and connections to a broker."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from support.cluster import Cluster
from support.java_wire import JSON, JavaWire, java_wire

CLIENT = "10.0.0.1@4711#99"
PULL = {"maxMsgNums": "32", "commitOffset": "0", "suspendTimeoutMillis": "15000", "subVersion": "0", "expressionType": "TAG"}
GROUP = {"consumerGroup": "cg", "topic": "orders", "queueId": "0"}


def heartbeat(group: str = "cg", client_id: str = CLIENT) -> bytes:
    """Return the body of a consumer's HEART_BEAT."""
    subscription = {"topic": "orders", "subString": "*", "subVersion": 1, "expressionType": "TAG"}
    consumer = {"groupName": group, "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [subscription]}
    return json.dumps({"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": [{"groupName": "pg"}]}).encode()


def send(topic: str = "orders", properties: str = "", **changes: object) -> dict[str, Any]:
    """Return the fields of SEND_MESSAGE_V2."""
    numbers = {"d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0", "j": "0"}
    return {"a": "pg", "b": topic, "c": "TBW102", **numbers, "i": properties, "k": "false", "m": "false", "n": "broker-a", **changes}


def pull(offset: int, *, topic: str = "orders", suspend: bool = False, **changes: object) -> dict[str, Any]:
    """Return the fields of PULL_MESSAGE with an expression."""
    return {**GROUP, **PULL, "topic": topic, "queueOffset": str(offset), "sysFlag": "6" if suspend else "4", "subscription": "*", **changes}


@asynccontextmanager
async def java_broker(cluster: Cluster, *options: str, kind: int = JSON) -> AsyncIterator[JavaWire]:
    """Start a nameserver and a broker with the topic `orders` of 4 queues, and connect to the broker."""
    await cluster.nameserver()
    await cluster.broker("broker-a", *options)
    await cluster.command("topic", "create", "orders", "--queues", "4")
    async with java_wire(cluster.addresses["broker-a"], kind) as broker:
        yield broker
