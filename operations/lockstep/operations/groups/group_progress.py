"""Progress of a group outside of its brokers: in the file of `lockstep group export`, or of another group. Pure."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lockstep.operations.groups.group_report import QueueLine
from lockstep.operations.text import format_time
from lockstep.protocol.done_ranges import count
from lockstep.protocol.errors import ConfigError, LocalProtocolError
from lockstep.protocol.names import check_broker_name, check_group, check_topic, group_of_topic
from lockstep.protocol.topics.queue import MessageQueue

FORMAT = 1
OFFSET_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """The committed offsets of a group."""

    group: str
    offsets: Mapping[MessageQueue, int]
    finished_above: int = 0
    """Messages above the committed offsets that the group has finished, and that a group which begins at these offsets gets again."""
    parked: Mapping[MessageQueue, int] = field(default_factory=dict)
    """The number of parked keys of each queue that has some."""


def progress_of(group: str, lines: Iterable[QueueLine], topic: str | None = None) -> GroupProgress:
    """Return the progress in one topic or in all, except in retry topics. Queues without progress are left out."""
    offsets, parked, finished = {}, {}, 0
    for line in lines:
        if line.committed_offset is None or group_of_topic(line.topic) is not None or topic not in (None, line.topic):
            continue
        queue = line.queue
        offsets[queue] = line.committed_offset
        finished += count(line.done)
        if line.parked:
            parked[queue] = line.parked
    return GroupProgress(group, offsets, finished, parked)


def to_json(progress: GroupProgress, now_ms: int) -> dict[str, Any]:
    """Return the document of `lockstep group export`."""
    queues = [
        {"topic": queue.topic, "broker": queue.broker_name, "queue_id": queue.queue_id, "offset": offset}
        for queue, offset in sorted(progress.offsets.items(), key=lambda item: (item[0].topic, item[0].broker_name, item[0].queue_id))
    ]
    return {"format": FORMAT, "group": progress.group, "exported_at": format_time(now_ms), "queues": queues}


def from_json(text: str) -> GroupProgress:
    """Return the progress in the document of `lockstep group export`. Raise ConfigError, which says what is wrong, for any other text."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"not a file of `lockstep group export`: it is not JSON ({error})") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT or not isinstance(document.get("queues"), list):
        raise ConfigError(f'not a file of `lockstep group export`: expected {{"format": {FORMAT}, "group": …, "queues": […]}}')
    group: Any = document.get("group")
    try:
        check_group(group)
    except LocalProtocolError as error:
        raise ConfigError(f"the file of `lockstep group export` has no valid group: {error}") from None
    offsets: dict[MessageQueue, int] = {}
    for number, row in enumerate(document["queues"]):
        queue, offset = _row(row, number)
        if queue in offsets:
            raise ConfigError(f"queue {number} of the file, {queue}, is in it twice: remove one")
        offsets[queue] = offset
    return GroupProgress(group, offsets)


def _row(row: Any, number: int) -> tuple[MessageQueue, int]:
    if not isinstance(row, dict):
        raise ConfigError(f"queue {number} of the file is not an object")
    topic: Any = row.get("topic")
    broker: Any = row.get("broker")
    try:
        check_topic(topic)
        check_broker_name(broker)
    except LocalProtocolError as error:
        raise ConfigError(f"queue {number} of the file: {error}") from None
    return MessageQueue(topic, broker, _number(row, "queue_id", number)), _number(row, "offset", number)


def _number(row: dict[str, Any], name: str, number: int) -> int:
    value = row.get(name)
    if type(value) is not int or not 0 <= value <= OFFSET_MAX:
        raise ConfigError(f"queue {number} of the file: {name} is {str(value)[:40]!r}, expected a number from 0 to {OFFSET_MAX}")
    return value
