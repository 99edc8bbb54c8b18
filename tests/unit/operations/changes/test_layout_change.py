"""The next layout of a topic: remaining queues keep their ids and their age."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.operations.changes.layouts.layout_change import alter_layout, parse_queue_counts
from lockstep.operations.errors import OperationError
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.topics.layouts import check_layout
from lockstep.protocol.topics.queue import WRITER_MAX, LayoutEntry, LayoutVersion, TopicLayout

BOTH = ("broker-a", "broker-b")


def layout(*entries: LayoutEntry, counter: int = 1) -> TopicLayout:
    return TopicLayout("orders", LayoutVersion(counter, 7), entries)


def entry(name: str, write: int, read: int | None = None, counter: int = 1) -> LayoutEntry:
    return LayoutEntry(name, write, write if read is None else read, counter)


def gone(name: str, counter: int) -> LayoutEntry:
    """Return the marker of a layout that removed queues."""
    return entry(name, 0, counter=counter)


TWO = layout(entry("broker-a", 2), entry("broker-b", 2))


@pytest.mark.parametrize(
    ("before", "brokers", "write", "read", "after"),
    [
        (TWO, BOTH, 3, 3, (*TWO.entries, entry("broker-a", 1, counter=2), entry("broker-b", 1, counter=2))),
        (TWO, ("broker-a",), 3, 3, (*TWO.entries, entry("broker-a", 1, counter=2))),
        (TWO, ("broker-c",), 2, 2, (*TWO.entries, entry("broker-c", 2, counter=2))),
        (TWO, BOTH, 1, 2, (entry("broker-a", 1, 2), entry("broker-b", 1, 2))),
        (TWO, BOTH, 1, 1, (entry("broker-a", 1), entry("broker-b", 1), gone("broker-a", 2), gone("broker-b", 2))),
        (layout(entry("broker-a", 1, 2)), ("broker-a",), 2, 2, (entry("broker-a", 2),)),
        (layout(entry("broker-a", 1, 2)), ("broker-a",), 3, 3, (entry("broker-a", 2), entry("broker-a", 1, counter=2))),
        (layout(entry("broker-a", 2), entry("broker-a", 2)), ("broker-a",), 1, 1, (entry("broker-a", 1), gone("broker-a", 2))),
        (layout(entry("broker-a", 2), gone("broker-a", 1)), ("broker-a",), 1, 1, (entry("broker-a", 1), gone("broker-a", 2))),
        (
            layout(entry("broker-a", 1), gone("broker-a", 1)),
            ("broker-a",),
            2,
            2,
            (entry("broker-a", 1), gone("broker-a", 1), entry("broker-a", 1, counter=2)),
        ),
    ],
)
def test_queues_are_added_and_removed_at_the_end(
    before: TopicLayout, brokers: tuple[str, ...], write: int, read: int, after: tuple[LayoutEntry, ...]
) -> None:
    made = alter_layout(before, dict.fromkeys(brokers, (write, read)), writer=9)
    assert (made.entries, made.version) == (after, LayoutVersion(2, 9))


def test_unchanged_counts_return_the_same_layout() -> None:
    assert alter_layout(TWO, dict.fromkeys(BOTH, (2, 2)), writer=9) is TWO


def test_deletion_has_no_queues_and_a_higher_counter() -> None:
    gone = TWO.deletion
    assert (gone.deleted, gone.version) == (True, LayoutVersion(2, WRITER_MAX))


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3), st.sets(st.sampled_from([*BOTH, "broker-c"]), min_size=1)), max_size=8))
def test_each_broker_has_the_last_requested_queues_after_any_changes(steps: list[tuple[int, int, set[str]]]) -> None:
    now, wanted = TWO, dict.fromkeys(BOTH, (2, 2))
    for write, more, brokers in steps:
        before = now
        now = alter_layout(before, dict.fromkeys(brokers, (write, write + more)), writer=9)
        wanted |= dict.fromkeys(brokers, (write, write + more))
        check_layout(now)
        assert {name: (now.write_count(name), now.read_count(name)) for name in wanted} == wanted
        for name, (_, read) in wanted.items():
            ids = [queue.queue_id for queue in now.read_queues if queue.broker_name == name]
            assert ids == list(range(read)), "what the broker serves is what the layout names"
        stayed = [queue for queue in before.read_queues if queue in now.number_of]
        assert all(now.added_in(queue) <= before.added_in(queue) for queue in stayed), "a queue never grows younger"


NAMES = st.sampled_from([*BOTH, "broker-c"])
ALTERED = st.dictionaries(NAMES, st.tuples(st.integers(0, 3), st.integers(0, 2)).map(lambda two: (two[0], sum(two))), min_size=1)
DRAINED = st.tuples(NAMES, NAMES)


def steps_of(now: TopicLayout, change: dict[str, tuple[int, int]] | tuple[str, str]) -> list[dict[str, tuple[int, int]]]:
    """Return the counts that a command requests, one after another: `topic alter`, or a drain of one broker whose queues another gets."""
    if isinstance(change, dict):
        return [change]
    source, target = change
    count = now.write_count(source)
    more = {target: (now.write_count(target) + count, now.read_count(target) + count)}
    return [more | {source: (0, now.read_count(source))}, {source: (0, 0)}]


@given(st.lists(ALTERED | DRAINED, max_size=12), st.lists(st.integers(1, 3), min_size=2, max_size=2))
def test_topic_keeps_its_age_and_a_queue_to_write_to_after_any_alters_drains_and_readded_queues(
    changes: list[dict[str, tuple[int, int]] | tuple[str, str]], counters: list[int]
) -> None:
    """The age (`began`) identifies the creation of a topic: brokers that see it rise delete the topic's messages."""
    counters[counters.index(min(counters))] = 1
    now = layout(*(entry(name, 2, counter=counter) for name, counter in zip(BOTH, counters, strict=True)), counter=3)
    for change in changes:
        for counts in steps_of(now, change):
            try:
                after = alter_layout(now, counts, writer=9)
            except OperationError:
                assert now.write_total == sum(now.write_count(name) for name in counts)
                assert not any(write for write, _ in counts.values())
                break
            check_layout(after)
            assert (after.began, after.write_total > 0) == (1, True)
            now = after


@pytest.mark.parametrize("topic", ["orders", "%RETRY%billing", "%DLQ%billing"])
def test_layout_without_a_queue_to_write_to_is_refused(topic: str) -> None:
    with pytest.raises(OperationError, match=f"nothing was changed: topic {topic} would have no queue to write to"):
        alter_layout(TopicLayout(topic, TWO.version, TWO.entries), dict.fromkeys(BOTH, (0, 2)), writer=9)


@pytest.mark.parametrize(
    ("requested", "words"),
    [
        ((None, None, None), "the number of queues is missing"),
        ((None, 2, None), "the number of queues is missing"),
        ((2, 2, None), "--queues sets both"),
        ((None, 3, 2), "would never be consumed"),
    ],
)
def test_missing_or_contradicting_counts_are_rejected(requested: tuple[int | None, int | None, int | None], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_queue_counts(*requested)
    assert parse_queue_counts(4, None, None) == (4, 4)
    assert parse_queue_counts(None, 2, 4) == (2, 4)
