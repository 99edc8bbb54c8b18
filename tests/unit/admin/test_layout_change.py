"""The next layout of a topic: remaining queues keep their ids and their age."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.admin.layout_change import alter_layout, parse_queue_counts
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.layouts import check_layout
from lockstep.protocol.queue import WRITER_MAX, LayoutEntry, LayoutVersion, TopicLayout

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
