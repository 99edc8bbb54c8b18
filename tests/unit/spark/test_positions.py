"""The start and the end offsets of a read, from a cluster with three topics."""

import asyncio
import json
from bisect import bisect_left
from typing import Any

import pytest

from lockstep.protocol.errors import ConfigError, TopicNotExistError
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, MessageQueue, TopicLayout
from lockstep.spark.options import SourceOptions
from lockstep.spark.positions import Subscribed, ends, starts, subscribed

FIRST, STEP_MS = 10, 100
"""Each queue has the offsets 10 … 19, stored at 1000, 1100 … 1900 ms; queue 2 is empty at 10."""


class FakeCluster:
    """`orders` and `orders-eu` on two brokers with 2 + 1 queues, `bills` on one with 1."""

    def __init__(self) -> None:
        two = (LayoutEntry("a", 2, 2, 1), LayoutEntry("b", 1, 1, 1))
        layouts = (("orders", two), ("orders-eu", two), ("bills", (LayoutEntry("a", 1, 1, 1),)))
        self.layouts = {name: TopicLayout(name, LayoutVersion(1, 1), entries) for name, entries in layouts}

    async def topics(self) -> tuple[str, ...]:
        return (*self.layouts, "just-deleted")

    async def layout(self, topic: str) -> TopicLayout:
        if topic not in self.layouts:
            raise TopicNotExistError(topic)
        return self.layouts[topic]

    async def bounds(self, layouts: Any) -> dict[MessageQueue, tuple[int, int]]:
        return {queue: (FIRST, FIRST if queue.broker_name == "b" else 20) for layout in layouts for queue in layout.read_queues}

    async def offset_at(self, queue: MessageQueue, ms: int) -> int:
        stored = [] if queue.broker_name == "b" else range(1_000, 2_000, STEP_MS)
        return FIRST + bisect_left(stored, ms)

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        return {"a:0": 15, "a:1": 3}.get(f"{queue.broker_name}:{queue.queue_id}")


def found(now: dict[MessageQueue, int]) -> dict[str, int]:
    return {f"{queue.topic} {queue.broker_name}:{queue.queue_id}": offset for queue, offset in now.items()}


def parse(**options: Any) -> SourceOptions:
    given = {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}
    chosen = {} if {"subscribePattern", "assign"} & given.keys() else {"subscribe": "orders"}
    return SourceOptions.parse({"nameserver": "h:1", **chosen, **given})


def look(options: SourceOptions) -> Subscribed:
    return asyncio.run(subscribed(FakeCluster(), options))  # type: ignore[arg-type]


def begin(**options: Any) -> dict[str, int]:
    """Return the start offsets of topic orders, by queue without the topic's name."""
    given = parse(**options)
    made = asyncio.run(starts(FakeCluster(), given, look(given), default="earliest"))  # type: ignore[arg-type]
    return {name.removeprefix("orders "): offset for name, offset in found(made).items()}


def end(**options: Any) -> dict[str, int]:
    given = parse(**options)
    made = asyncio.run(ends(FakeCluster(), given, look(given)))  # type: ignore[arg-type]
    return {name.removeprefix("orders "): offset for name, offset in found(made).items()}


def queues(**options: Any) -> list[str]:
    return [f"{queue.topic} {queue.broker_name}:{queue.queue_id}" for queue in look(parse(**options)).bounds]


def of(topic: str) -> list[str]:
    return [f"{topic} a:0", f"{topic} a:1", f"{topic} b:0"]


def test_several_topics_are_read_together() -> None:
    assert queues(subscribe="orders,bills") == ["bills a:0", *of("orders")]
    with pytest.raises(TopicNotExistError):
        queues(subscribe="orders,just-deleted")


def test_pattern_selects_existing_topics_by_full_match() -> None:
    assert queues(subscribePattern="orders.*|just.*") == of("orders") + of("orders-eu")
    assert queues(subscribePattern="order") == []


def test_queues_are_assigned_by_their_number_over_all_brokers() -> None:
    assert queues(assign={"orders": [2, 0], "bills": [0]}) == ["bills a:0", "orders a:0", "orders b:0"]
    with pytest.raises(ConfigError, match="queue 3 of topic orders, which has 3 queues, numbered from 0"):
        queues(assign={"orders": [3]})


def test_starting_offsets_are_words_or_offsets() -> None:
    assert begin() == begin(startingOffsets="earliest") == {"a:0": 10, "a:1": 10, "b:0": 10}
    assert begin(startingOffsets="latest") == {"a:0": 20, "a:1": 20, "b:0": 10}
    assert begin(startingOffsets={"orders": {"a:0": -2, "a:1": -1}}) == {"a:0": 10, "a:1": 20, "b:0": 10}, "unnamed: the first message"


def test_group_starts_at_its_commit_or_the_first_stored_message() -> None:
    assert begin(startingOffsets="group", group="g") == {"a:0": 15, "a:1": 10, "b:0": 10}


LATEST = {"startingOffsetsByTimestampStrategy": "latest"}


def test_starting_timestamp_is_the_first_message_at_or_after_it() -> None:
    assert begin(startingTimestamp="1499", **LATEST) == begin(startingTimestamp="1500", **LATEST) == {"a:0": 15, "a:1": 15, "b:0": 10}
    with pytest.raises(ConfigError, match="orders@b:0 has no message at or after 1500 ms"):
        begin(startingTimestamp="1500")


def test_queues_without_a_timestamp_start_at_their_first_message() -> None:
    assert begin(startingOffsetsByTimestamp={"orders": {"a:1": 1_801}}) == {"a:0": 10, "a:1": 19, "b:0": 10}


def test_global_timestamp_precedes_timestamps_by_queue_and_those_precede_offsets() -> None:
    by_queue = {"orders": {"a:0": 1_100, "a:1": 1_100}}
    offsets = {"orders": {"a:0": 18, "a:1": 18}}
    all_three = {"startingTimestamp": "1500", "startingOffsetsByTimestamp": by_queue, "startingOffsets": offsets}
    assert begin(**all_three, **LATEST) == {"a:0": 15, "a:1": 15, "b:0": 10}
    del all_three["startingTimestamp"]
    assert begin(**all_three) == {"a:0": 11, "a:1": 11, "b:0": 10}
    del all_three["startingOffsetsByTimestamp"]
    assert begin(**all_three) == {"a:0": 18, "a:1": 18, "b:0": 10}


def test_ending_timestamp_precedes_ending_offsets() -> None:
    assert end() == {"a:0": 20, "a:1": 20, "b:0": 10}
    assert end(endingOffsets={"orders": {"a:0": 12, "a:1": -1}}) == {"a:0": 12, "a:1": 20, "b:0": 10}
    assert end(endingTimestamp="1500", endingOffsets={"orders": {"a:0": 12}}) == {"a:0": 15, "a:1": 15, "b:0": 10}
    by_queue = {"orders": {"a:0": 1_500, "b:0": 5_000}}
    assert end(endingOffsetsByTimestamp=by_queue, endingOffsets={"orders": {"a:0": 12}}) == {"a:0": 15, "a:1": 20, "b:0": 10}
    assert end(endingOffsetsByTimestamp=by_queue, endingTimestamp="1200")["a:0"] == 12
    with pytest.raises(ConfigError, match=r"endingOffsets has -2 \(earliest\)"):
        end(endingOffsets={"orders": {"a:0": -2}})


def test_unknown_queue_is_rejected_unless_fail_on_data_loss_is_false() -> None:
    named = {"orders": {"a:0": 12, "a:7": 99}}
    for option in ("startingOffsets", "endingOffsets", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp"):
        with pytest.raises(ConfigError, match=f"{option} names orders@a:7, which this read does not include: it reads orders@a:0"):
            (end if option.startswith("ending") else begin)(**{option: named})
    assert begin(startingOffsets=named, failOnDataLoss="false") == {"a:0": 12, "a:1": 10, "b:0": 10}
    assert end(endingOffsets=named, failOnDataLoss="false") == {"a:0": 12, "a:1": 20, "b:0": 10}
