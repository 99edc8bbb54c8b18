"""Structured bodies of RocketMQ's tools, as fastjson writes them: members sorted by name, maps keyed by an object.

RocketMQ: TopicConfigSerializeWrapper, SubscriptionGroupWrapper, TopicStatsTable, KVTable.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from lockstep.protocol.bodies import GroupSettings
from lockstep.protocol.codec.fastjson import queue_key, write_key
from lockstep.protocol.codec.java import write_json

READ, WRITE, INHERIT = 4, 2, 1
"""Bits of a topic's permission. RocketMQ: PermName."""
LIST_BYTES_MAX = 512 << 10
"""The body of a request with a list of configurations: it is decoded in one turn of the loop."""
RETRY_TIMES, TIMEOUT_MINUTES = 16, 15
"""RocketMQ's defaults of consumers: retries of a message before it is dead-lettered, and the minutes after which a call has failed."""


def topic_config(topic: str, read_count: int, write_count: int) -> dict[str, Any]:
    """Return a TopicConfig with this broker's queues of a topic."""
    return {
        "attributes": {},
        "order": False,
        "perm": (READ if read_count else 0) | (WRITE if write_count else 0),
        "readQueueNums": read_count,
        "topicFilterType": "SINGLE_TAG",
        "topicName": topic,
        "topicSysFlag": 0,
        "writeQueueNums": write_count,
    }


def group_config(group: str, settings: GroupSettings | None) -> dict[str, Any]:
    """Return a SubscriptionGroupConfig: what an operator has set, and how the broker treats every group."""
    return {
        "attributes": {},
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": settings is None or settings.consume_enable,
        "consumeFromMinEnable": True,
        "consumeMessageOrderly": False,
        "consumeTimeoutMinute": TIMEOUT_MINUTES,
        "groupName": group,
        "groupSysFlag": 0,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": RETRY_TIMES,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }


def versioned_table(name: str, table: Mapping[str, Any], now_ms: int) -> bytes:
    """Return a table with its DataVersion. A version is not kept, so it is that of the time of the response."""
    return write_json({"dataVersion": {"counter": 0, "stateVersion": 0, "timestamp": now_ms}, name: table})


def topic_stats(topic: str, broker_name: str, queues: Iterable[tuple[int, int, int, int]]) -> bytes:
    """Return a TopicStatsTable of (queue id, first offset, end, store time of the last message)."""
    keyed = ((write_key(queue_key(broker_name, queue_id, topic)).decode(), *rest) for queue_id, *rest in queues)
    rows = (f'{key}:{{"lastUpdateTimestamp":{stored_ms},"maxOffset":{end},"minOffset":{first}}}' for key, first, end, stored_ms in keyed)
    return f'{{"offsetTable":{{{",".join(rows)}}}}}'.encode()


def properties_text(values: Mapping[str, str]) -> bytes:
    """Return the lines of a Java properties file."""
    return "".join(f"{name}={_escaped(value)}\n" for name, value in values.items()).encode()


def _escaped(value: str) -> str:
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"\\{text}" if text.startswith((" ", "\t")) else text
