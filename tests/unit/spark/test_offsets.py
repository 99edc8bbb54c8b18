"""Offsets as JSON that never varies, a limit that is divided exactly, ranges that become tasks without a gap."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.protocol.errors import ConfigError
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, MessageQueue, TopicLayout
from lockstep.spark.offsets import QueueRange, from_plain, ranges_between, share_limit, split_tasks, to_plain

QUEUES = [MessageQueue(topic, broker, number) for topic in ("a", "b") for broker in ("x", "y") for number in (0, 2, 10)]
COUNTS = st.dictionaries(st.sampled_from(QUEUES), st.integers(0, 1_000))


def layout(topic: str, *brokers: str) -> TopicLayout:
    return TopicLayout(topic, LayoutVersion(1, 1), tuple(LayoutEntry(name, 4, 4, 1) for name in brokers))


@given(COUNTS, st.randoms())
def test_json_of_offsets_does_not_depend_on_their_order(offsets: dict[MessageQueue, int], shuffle: object) -> None:
    items = list(offsets.items())
    shuffle.shuffle(items)  # type: ignore[attr-defined]
    assert json.dumps(to_plain(dict(items))) == json.dumps(to_plain(offsets))
    assert from_plain(json.loads(json.dumps(to_plain(offsets))), {}) == offsets


def test_offsets_are_written_as_documented() -> None:
    assert to_plain({MessageQueue("orders", "broker-a", 10): 5, MessageQueue("orders", "broker-a", 2): 7}) == {
        "orders": {"broker-a:2": 7, "broker-a:10": 5}
    }
    assert list(to_plain({QUEUES[2]: 1, QUEUES[1]: 1})["a"]) == ["x:2", "x:10"]


def test_queue_without_a_broker_is_accepted_only_if_one_broker_holds_the_topic() -> None:
    assert from_plain({"t": {"3": 9}}, {"t": layout("t", "only")}) == {MessageQueue("t", "only", 3): 9}
    with pytest.raises(ConfigError, match='2 brokers hold it, so write "BROKER:3"'):
        from_plain({"t": {"3": 9}}, {"t": layout("t", "a", "b")})


@pytest.mark.parametrize("plain", [{"t": {"a:x": 1}}, {"t": {"a:0": "1"}}, {"t": {":0": 1}}, {"t": {"a:0": True}}])
def test_invalid_offset_is_reported(plain: dict[str, dict[str, object]]) -> None:
    with pytest.raises(ConfigError, match="offset of topic t"):
        from_plain(plain, {})


@given(COUNTS, st.integers(1, 5_000))
def test_limit_is_used_exactly_and_no_share_exceeds_its_queue(available: dict[MessageQueue, int], limit: int) -> None:
    shares = share_limit(available, limit)
    assert sum(shares.values()) == min(limit, sum(available.values()))
    assert all(0 < share <= available[queue] for queue, share in shares.items())
    waiting = [queue for queue, count in available.items() if count]
    if limit >= len(waiting):
        assert set(shares) == set(waiting), "each queue that has something gives something"
    assert share_limit(dict(reversed(available.items())), limit) == shares


def test_limit_is_shared_in_proportion() -> None:
    a, b, c = QUEUES[:3]
    assert share_limit({a: 3_000, b: 1_000, c: 0}, 400) == {a: 300, b: 100}
    assert share_limit({a: 1_000_000, b: 1}, 100) == {a: 99, b: 1}


def test_start_at_or_above_the_end_is_an_empty_range() -> None:
    a, b, c, d = QUEUES[:4]
    assert ranges_between({a: 5, b: 7, c: 9}, {a: 5, b: 6, c: 12, d: 3}) == [QueueRange(c, 9, 12)]


@given(COUNTS, st.one_of(st.none(), st.integers(1, 12)), st.one_of(st.none(), st.integers(1, 12)))
def test_tasks_cover_every_message_once_and_in_order(available: dict[MessageQueue, int], low: int | None, high: int | None) -> None:
    ranges = [QueueRange(queue, 100, 100 + count) for queue, count in sorted(available.items())]
    tasks = split_tasks(ranges, low, high)
    pieces = sorted(piece for task in tasks for piece in task)
    for range_ in ranges:
        own = [piece for piece in pieces if piece.queue == range_.queue]
        assert sum(piece.count for piece in own) == range_.count
        assert all(before.end == after.start for before, after in pairwise(own))
    assert all(task == sorted(task) and task for task in tasks if task)
    if high is not None:
        assert len(tasks) <= high
    if low is not None and high is None and sum(available.values()) >= low:
        assert len(tasks) >= low


def test_long_queue_is_split_more_than_a_short_one() -> None:
    a, b = QUEUES[:2]
    counts = [(task[0].queue, task[0].count) for task in split_tasks([QueueRange(a, 0, 90), QueueRange(b, 0, 10)], 4, None)]
    assert counts == [(a, 30), (a, 30), (a, 30), (b, 10)]
