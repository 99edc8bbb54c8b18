"""The requests of pyrocketmq (tt67wq/pyrocketmq), a client in Python, byte by byte as it sends them. No code of the product is used.

Its headers have no blanks, a number as the language and the version 1. Its bodies have blanks, and heartbeats name the subscriptions
`subscriptionData` and have versions in nanoseconds. It reads routes by `ast.literal_eval`.
"""

import ast
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from support.java_wire import JSON, JavaWire, java_wire

CLIENT = "10.0.0.7@4711"
SUB_VERSION = 1_764_190_000_123_456_789


class PyrocketmqWire(JavaWire):
    """One connection of its pool."""

    def _header(self, code: int, fields: Mapping[str, Any], version: int) -> bytes:
        plain = {"code": code, "language": 3, "version": 1, "opaque": self.opaque, "flag": 0, **({"extFields": fields} if fields else {})}
        return json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode()


@asynccontextmanager
async def pyrocketmq_wire(address: str) -> AsyncIterator[PyrocketmqWire]:
    async with java_wire(address, JSON) as wire:
        yield PyrocketmqWire(wire.reader, wire.writer, JSON)


def send(topic: str, properties: Mapping[str, str], *, queue_id: int = 0, reconsume_times: int = 0) -> dict[str, str]:
    """Return the fields of SEND_MESSAGE. All of them are given, and properties end with a separator."""
    return {
        "producerGroup": "pg",
        "topic": topic,
        "queueId": str(queue_id),
        "sysFlag": "0",
        "bornTimestamp": "1764190000123",
        "flag": "0",
        "reconsumeTimes": str(reconsume_times),
        "unitMode": "false",
        "maxReconsumeTimes": "16",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "batch": "false",
        "properties": "".join(f"{name}\x01{value}\x02" for name, value in properties.items()),
    }


def heartbeat(group: str, topic: str, *tags: str) -> bytes:
    """Return the body of HEART_BEAT."""
    subscription = {"topic": topic, "subString": "||".join(tags) or "*", "subVersion": SUB_VERSION, "expressionType": "TAG"}
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionData": [{**subscription, "tagsSet": list(tags)}],
    }
    return json.dumps({"clientID": CLIENT, "producerDataSet": [], "consumerDataSet": [consumer]}).encode()


def pull(group: str, topic: str, offset: int, *, sys_flag: int = 2, expression: str = "*") -> dict[str, str]:
    """Return the fields of PULL_MESSAGE."""
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": "0",
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": str(sys_flag),
        "commitOffset": "0",
        "suspendTimeoutMillis": "20000",
        "subscription": expression,
        "subVersion": "0",
        "expressionType": "TAG",
        "supportCompressionType": "0",
    }


def send_back(group: str, topic: str, position: int) -> dict[str, str]:
    """Return the fields of CONSUMER_SEND_MSG_BACK. Its body is that of the message."""
    ids = {"originMsgId": "7F000001000000000000000000000000", "originTopic": topic}
    return {"group": group, "offset": str(position), "delayLevel": "1", **ids, "unitMode": "false", "maxReconsumeTimes": "16"}


def read_route(body: bytes) -> tuple[dict[str, str], dict[str, int]]:
    """Return the addresses of brokers and the counts of queues to write to, as the client reads them: with these names, else it ends."""
    route = ast.literal_eval(body.decode())
    queues = {
        queue["brokerName"]: queue["writeQueueNums"] for queue in route["queueDatas"] if (queue["perm"], queue["topicSynFlag"]) == (6, 0)
    }
    return {broker["brokerName"]: broker["brokerAddrs"][0] for broker in route["brokerDatas"]}, queues
