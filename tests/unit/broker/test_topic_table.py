"""TopicTable: how a layout is created, and that concurrent creators of one topic end with one layout."""

import pytest

from lockstep.broker.config import BrokerConfig
from lockstep.broker.journal import Journal, decode_changes
from lockstep.broker.tables.topic_table import ASKED_ENTRIES_MAX, COUNTER_STEP_MAX, KIND, NAMES_MAX, TOPICS_MAX, TopicTable
from lockstep.nameserver.topic_quota import LAYOUTS_MAX
from lockstep.protocol.errors import BrokerSystemError, LocalProtocolError, MessageIllegalError, NoPermissionError, TopicNotExistError
from lockstep.protocol.fields import to_plain
from lockstep.protocol.topics.layouts import COUNTER_MAX, ENTRIES_MAX, QUEUES_PER_BROKER_MAX, LayoutTable, check_layout
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout


def layout(counter: int, writer: int = 7, *, queues: int = 4, broker: str = "broker-a", topic: str = "t") -> TopicLayout:
    entries = (LayoutEntry(broker, queues, queues, counter),) if queues else ()
    return TopicLayout(topic, LayoutVersion(counter, writer), entries)


def table() -> TopicTable:
    return TopicTable(LayoutTable(), Journal(), "broker-a", new_writer=lambda: 9)


DELETED = layout(5, queues=0)
RULES = {
    "none, with queues": (None, layout(1), layout(1)),
    "none, with any counter": (None, layout(9), layout(9)),
    "live, the same": (layout(2), layout(2), layout(2)),
    "live, a lower counter": (layout(2), layout(1, 9), layout(2)),
    "live, an equal counter of a higher writer": (layout(2, 7), layout(2, 8, queues=9), layout(2, 7)),
    "live, a higher counter": (layout(2), layout(3, 1), layout(3, 1)),
    "live, deleted by a higher counter": (layout(2), layout(3, queues=0), layout(3, queues=0)),
    "deleted, deleted by the same": (DELETED, DELETED, DELETED),
    "deleted, created with the first counter": (DELETED, layout(1, 9), layout(6, 9)),
    "deleted, created with its own counter": (DELETED, layout(5, 9), layout(6, 9)),
    "deleted, created above": (DELETED, layout(7, 9), layout(7, 9)),
}


@pytest.mark.parametrize("name", RULES)
def test_create_follows_the_layout_version_rules(name: str) -> None:
    here, requested, expected = RULES[name]
    topics = table()
    if here is not None:
        topics.adopt([here])
    assert topics.create(requested) == expected
    assert topics.layouts.get("t") == expected


@pytest.mark.parametrize("here", [None, DELETED, layout(9, 6, queues=0)])
def test_unknown_topic_cannot_be_deleted(here: TopicLayout | None) -> None:
    topics = table()
    topics.adopt([here] if here else [])
    with pytest.raises(TopicNotExistError, match="lockstep topic create t"):
        topics.create(layout(9, queues=0))


def test_adopted_layout_replaces_one_with_a_lower_version() -> None:
    topics, reported = table(), list[str]()
    topics.on_changed = reported.append
    topics.adopt([layout(2, 7), layout(1, topic="u")])
    topics.adopt([layout(2, 6), layout(2, 7), layout(1, 9)])
    topics.adopt([layout(2, 8)])
    assert reported == ["t", "u", "t"]


def test_each_change_is_journaled_once_and_reported_once() -> None:
    journal, reported = Journal(), list[str]()
    topics = TopicTable(LayoutTable(), journal, "broker-a", reported.append)
    topics.create(layout(1))
    topics.create(layout(1, 9))
    topics.adopt([layout(1)])
    topics.create(layout(2, queues=0))
    assert (reported, len(journal)) == (["t", "t"], 2)


def test_missed_deletion_is_applied_with_the_layout_that_recreated_the_topic() -> None:
    reported: list[bool] = []
    journal = Journal(lambda: None)
    topics = TopicTable(LayoutTable(), journal, "broker-a", lambda topic: reported.append(topics.find_layout(topic) is None))
    topics.adopt([layout(1)])
    topics.create(layout(3))
    assert reported == [False, True, False], "deleted, then created again"
    topics.adopt([layout(6)])
    assert reported == [False, True, False, True, False]
    again = TopicTable(LayoutTable(), Journal(lambda: None), "broker-a")
    changes = [change for body in journal.encode(1 << 20) for change in decode_changes(body)]
    assert [again.apply(change) for change in changes] == [None, "t", "t"], "and so a start finds it in the log"
    assert again.layouts.all() == topics.layouts.all()
    assert [again.apply(change) for change in changes] == [None] * 3, "of what a snapshot has already, nothing is deleted again"


def test_deletion_and_the_layout_that_follows_it_are_replayed() -> None:
    topics = table()
    changes = [(KIND, to_plain(each)) for each in (layout(1), layout(2, 0, queues=0), layout(3))]
    assert [topics.apply(change) for change in changes] == [None, "t", None]


def test_layout_that_keeps_the_oldest_queue_is_not_a_deletion() -> None:
    reported: list[bool] = []
    topics = TopicTable(LayoutTable(), Journal(lambda: None), "broker-a", lambda topic: reported.append(topics.find_layout(topic) is None))
    topics.adopt([layout(1)])
    kept = layout(1).entries
    topics.adopt([TopicLayout("t", LayoutVersion(5, 7), (*kept, LayoutEntry("broker-b", 1, 1, 5)))])
    topics.adopt([TopicLayout("t", LayoutVersion(6, 7), (*kept, LayoutEntry("broker-a", 1, 1, 6)))])
    assert reported == [False] * 3


def test_layout_of_an_earlier_creation_is_outbid_for_any_counter() -> None:
    reported: list[bool] = []
    topics = TopicTable(
        LayoutTable(),
        Journal(lambda: None),
        "broker-a",
        lambda topic: reported.append(topics.find_layout(topic) is None),
        new_writer=lambda: 9,
    )
    topics.adopt([layout(4)])
    topics.adopt([TopicLayout("t", LayoutVersion(8, 7), layout(1).entries)])
    assert topics.require_layout("t") == TopicLayout("t", LayoutVersion(9, 9), layout(4).entries)
    assert reported == [False, False]
    last = TopicLayout("t", LayoutVersion(COUNTER_MAX, 7), layout(1).entries)
    topics.adopt([last])
    assert topics.require_layout("t") == last, "no counter is left above it"


def test_table_is_rebuilt_from_the_log_and_from_a_snapshot() -> None:
    journal = Journal()
    topics = TopicTable(LayoutTable(), journal, "broker-a")
    topics.create(layout(1))
    topics.create(layout(2, queues=8))
    topics.create(layout(1, topic="u", broker="broker-b"))
    topics.create(layout(3, queues=0))
    (body,) = journal.encode(1 << 20)
    replayed, restored = table(), table()
    assert [replayed.apply(change) for change in decode_changes(body)] == [None, "t", None, "t"]
    restored.restore(topics.snapshot())
    assert replayed.layouts.all() == restored.layouts.all() == topics.layouts.all()


def own(*entries: tuple[int, int], counter: int) -> TopicLayout:
    """Return a layout with (queues, added in) of this broker, and one queue of another."""
    mine = tuple(LayoutEntry("broker-a", count, count, added_in) for count, added_in in entries)
    return TopicLayout("t", LayoutVersion(counter, 7), (LayoutEntry("broker-b", 1, 1, 1), *mine))


GONE = own((0, 1), (0, 2), counter=2)
BACK = own((0, 1), (0, 2), (3, 3), counter=3)
AGAIN = TopicLayout("t", LayoutVersion(5, 7), (LayoutEntry("broker-a", 3, 3, 5),))
"""Of a later creation than the others."""


@pytest.mark.parametrize(
    ("here", "after", "added"),
    [
        pytest.param(GONE, BACK, {0: True, 1: True, 2: True}, id="all were removed"),
        pytest.param(own((1, 1), (0, 2), counter=2), own((1, 1), (0, 2), (2, 3), counter=3), {1: True, 2: True}, id="some were removed"),
        pytest.param(own((3, 1), counter=1), BACK, {0: True, 1: True, 2: True}, id="removed while this broker was away"),
        pytest.param(own((3, 1), counter=1), own((1, 1), (0, 2), (2, 3), counter=3), {1: True, 2: True}, id="some while it was away"),
        pytest.param(BACK, own((0, 1), (3, 3), (0, 4), counter=4), {}, id="others are removed again"),
        pytest.param(own((2, 1), counter=1), own((2, 1), (2, 2), counter=2), {2: False, 3: False}, id="new ones"),
        pytest.param(own((1, 1), (0, 2), counter=2), own((1, 1), (0, 2), counter=3), {}, id="none"),
        pytest.param(own((2, 1), counter=1), own(counter=2), {}, id="lost to another layout, and kept"),
        pytest.param(AGAIN, own((4, 1), counter=9), {}, id="an older one has lost"),
        pytest.param(layout(4, queues=0), AGAIN, {0: False, 1: False, 2: False}, id="created again"),
        pytest.param(own((2, 1), counter=1), AGAIN, {0: False, 1: False, 2: False}, id="deleted and created again while it was away"),
        pytest.param(layout(4, queues=0), own((2, 1), counter=9), {}, id="deleted again"),
        pytest.param(own((2, 1), counter=1), layout(3, queues=0), {}, id="deleted"),
    ],
)
def test_queues_that_a_layout_adds_are_reported_with_whether_they_were_removed_before(
    here: TopicLayout, after: TopicLayout, added: dict[int, bool]
) -> None:
    """That decides where groups begin in a queue that had messages before (ordering.md 7.2)."""
    seen: dict[int, bool] = {}
    topics = TopicTable(
        LayoutTable(),
        Journal(),
        "broker-a",
        stored_queue_ids=lambda _topic: [0, 1],
        on_added=lambda _topic, queues: seen.update(queues),
    )
    topics.adopt([here])
    seen.clear()
    topics.adopt([after])
    assert seen == added


def test_topic_that_comes_to_exist_is_reported_once_before_the_change() -> None:
    seen: list[str] = []
    topics = TopicTable(LayoutTable(), Journal(), "broker-a", seen.append, on_created=lambda topic: seen.append(f"created {topic}"))
    topics.create(own((1, 1), counter=1))
    topics.create(own((1, 1), (1, 2), counter=2))
    topics.create(topics.require_layout("t").deletion)
    topics.adopt([TopicLayout("t", LayoutVersion(9, 7), (LayoutEntry("broker-a", 1, 1, 9),))])
    assert seen == ["created t", "t", "t", "t", "created t", "t"]
    seen.clear()
    topics.adopt([TopicLayout("t", LayoutVersion(20, 7), (LayoutEntry("broker-a", 1, 1, 15),))])
    assert seen == ["t", "created t", "t"], "it was deleted and created again while this broker was away"


def test_unknown_topic_is_reported_with_the_next_step() -> None:
    with pytest.raises(TopicNotExistError, match="lockstep topic create nowhere"):
        table().require_layout("nowhere")


@pytest.mark.parametrize(("queue_id", "there"), [(-1, False), (0, True), (3, True), (4, False)])
def test_only_queues_of_this_broker_are_readable_and_writable(queue_id: int, there: bool) -> None:
    topics = table()
    both = TopicLayout("t", LayoutVersion(1, 7), (LayoutEntry("broker-a", 4, 4, 1), LayoutEntry("broker-b", 9, 9, 1)))
    topics.create(both)
    for check in (topics.check_readable, topics.check_writable):
        if there:
            check("t", queue_id)
        else:
            with pytest.raises(BrokerSystemError, match=f"queue {queue_id} "):
                check("t", queue_id)


def test_queues_of_deleted_topics_and_other_brokers_are_rejected() -> None:
    topics = table()
    topics.adopt([layout(1), layout(1, topic="u", broker="broker-b"), layout(2, queues=0)])
    with pytest.raises(TopicNotExistError):
        topics.check_writable("t", 0)
    with pytest.raises(BrokerSystemError, match="broker-a has 0"):
        topics.check_readable("u", 0)


# -------------------------------------------------------------------------------------------------------------- classic tools


def test_classic_create_adds_queues_of_this_broker() -> None:
    topics = table()
    made = topics.create_own("t", 4, 4)
    assert made == layout(1, 9)
    assert topics.create_own("t", 4, 4) == made


def test_classic_create_appends_a_second_broker() -> None:
    topics = table()
    topics.adopt([layout(1, broker="broker-b")])
    made = topics.create_own("t", 2, 2)
    assert made.entries == (LayoutEntry("broker-b", 4, 4, 1), LayoutEntry("broker-a", 2, 2, 2))
    assert made.version == LayoutVersion(2, 9)


def test_classic_create_adds_queues_and_removes_none() -> None:
    topics = table()
    topics.create_own("t", 4, 4)
    assert topics.create_own("t", 6, 6).entries[-1] == LayoutEntry("broker-a", 2, 2, 2)
    for read, write in [(5, 6), (6, 5), (2, 2), (8, 7)]:
        with pytest.raises(NoPermissionError, match="lockstep topic alter"):
            topics.create_own("t", read, write)


@pytest.mark.parametrize("here", [None, DELETED])
@pytest.mark.parametrize(("read", "write"), [(0, 0), (-1, 4), (4, -1), (4, 0)])
def test_classic_create_without_queues_is_rejected_with_the_permitted_range(here: TopicLayout | None, read: int, write: int) -> None:
    topics = table()
    topics.adopt([] if here is None else [here])
    with pytest.raises(MessageIllegalError, match=f"t was not created: {read} queues to read, {write} to write, expected 1 to 16384"):
        topics.create_own("t", read, write)
    assert topics.find_layout("t") is None


def test_invalid_layout_is_skipped_and_the_others_are_adopted() -> None:
    topics = table()
    assert topics.adopt([layout(2, queues=1 << 40), layout(1, topic="u")]) == 1
    assert topics.layouts.get("t") is None
    assert topics.require_layout("u") == layout(1, topic="u")


def test_classic_create_recreates_a_deleted_topic() -> None:
    topics = table()
    topics.adopt([DELETED])
    assert topics.create_own("t", 4, 4) == layout(6, 9)


@pytest.mark.parametrize(
    ("requested", "error"),
    [
        (layout(1, topic="a b"), LocalProtocolError),
        (layout(1, topic="t" * 128), LocalProtocolError),
        (layout(1, topic="TBW102"), NoPermissionError),
        (layout(1, topic="LOCKSTEP_SYS_STATE"), NoPermissionError),
        (layout(0), MessageIllegalError),
        (layout(1, queues=-1), MessageIllegalError),
        (layout(1, queues=QUEUES_PER_BROKER_MAX + 1), MessageIllegalError),
        (layout(1, broker="a b"), MessageIllegalError),
    ],
)
def test_invalid_layout_is_rejected(requested: TopicLayout, error: type[Exception]) -> None:
    topics = table()
    with pytest.raises(error):
        topics.create(requested)
    assert topics.layouts.get(requested.topic) is None


# ------------------------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize("here", [0, 1, 7])
def test_requested_counter_may_be_at_most_2_to_the_20_above_the_current_one(here: int) -> None:
    topics = table()
    if here:
        topics.create(layout(here))
    with pytest.raises(
        MessageIllegalError, match=f"topic t: layout counter {here + COUNTER_STEP_MAX + 1} is more than 1048576 above {here}"
    ):
        topics.create(layout(here + COUNTER_STEP_MAX + 1))
    assert topics.create(layout(here + COUNTER_STEP_MAX)) == topics.require_layout("t")


def test_raised_counter_is_checked_against_the_maximum() -> None:
    """After a deletion with the highest counter the topic stays deleted, and its layout can be registered."""
    topics = table()
    topics.adopt([layout(COUNTER_MAX, queues=0)])
    for create in (lambda: topics.create(layout(1)), lambda: topics.create_own("t", 1, 1)):
        with pytest.raises(MessageIllegalError, match="expected 1 to 9007199254740992"):
            create()
    found = topics.layouts.get("t")
    assert found is not None
    check_layout(found)


def test_topic_with_the_highest_counter_cannot_be_changed() -> None:
    topics = table()
    topics.adopt([layout(COUNTER_MAX)])
    assert topics.create(layout(1)) == layout(COUNTER_MAX)
    with pytest.raises(MessageIllegalError, match="layout counter"):
        topics.create(layout(COUNTER_MAX).deletion)
    with pytest.raises(MessageIllegalError, match="layout counter"):
        topics.create_own("t", 9, 9)


def test_topic_above_the_limit_is_rejected_by_name() -> None:
    topics = TopicTable(LayoutTable(), Journal(), "broker-a", topics_max=2)
    topics.create(layout(1, topic="a"))
    topics.create(layout(1, topic="b"))
    for create in (lambda: topics.create(layout(1, topic="c")), lambda: topics.create_own("c", 1, 1)):
        with pytest.raises(NoPermissionError, match="topic c was not created: the cluster has 2 topics, topics_max allows 2"):
            create()
    topics.create_own("%RETRY%g", 1, 1, for_group=True)  # a message that was acknowledged waits for it
    topics.create(layout(2, topic="%RETRY%g", queues=0))
    topics.create(layout(2, topic="a", queues=8))
    topics.create(layout(3, topic="a", queues=0))
    topics.create(layout(1, topic="c"))
    assert topics.adopt([layout(1, topic="d")]) == 1, "what the cluster has it keeps"
    with pytest.raises(NoPermissionError, match="topic a "):
        topics.create(layout(4, topic="a"))


def test_group_topic_is_rejected_near_the_nameservers_name_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.broker.tables.topic_table.NAMES_MAX", 3)
    topics = TopicTable(LayoutTable(), Journal(), "broker-a", topics_max=2)
    topics.create(layout(1, topic="a"))
    topics.create_own("%RETRY%g", 1, 1, for_group=True)
    topics.create_own("%DLQ%g", 1, 1, for_group=True)
    topics.create(layout(2, topic="%DLQ%g", queues=0))
    before = topics.snapshot()
    with pytest.raises(
        NoPermissionError, match="topic %RETRY%h was not created: the cluster has 2 topics and remembers 1 deleted ones, 3 together are"
    ):
        topics.create_own("%RETRY%h", 1, 1, for_group=True)
    assert topics.snapshot() == before
    topics.create_own("%DLQ%g", 1, 1, for_group=True)  # a known name adds none
    assert topics.create_own("%RETRY%g", 1, 1, for_group=True) == topics.require_layout("%RETRY%g")


def test_nameservers_accept_more_topic_names_than_a_broker_creates() -> None:
    """And the default limits leave room for two topics of each group."""
    assert TOPICS_MAX + 2 * BrokerConfig().groups_max < NAMES_MAX < LAYOUTS_MAX // 2
    assert ASKED_ENTRIES_MAX < ENTRIES_MAX


def test_group_topic_may_use_entries_up_to_the_nameservers_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.broker.tables.topic_table.ASKED_ENTRIES_MAX", 1)
    monkeypatch.setattr("lockstep.broker.tables.topic_table.ENTRIES_MAX", 2)
    topics = table()
    topics.create(layout(1, topic="a"))
    with pytest.raises(NoPermissionError, match="have 1, 1 are allowed"):
        topics.create(layout(1, topic="b"))
    topics.create_own("%RETRY%g", 1, 1, for_group=True)
    with pytest.raises(NoPermissionError, match="have 2, 2 are allowed"):
        topics.create_own("%DLQ%g", 1, 1, for_group=True)


def test_layout_entries_of_all_topics_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.broker.tables.topic_table.ASKED_ENTRIES_MAX", 3)
    topics = table()
    topics.create(layout(1, topic="a").with_queues("broker-b", 1, 1, 7))
    topics.create(layout(1, topic="b"))
    for refused in (layout(1, topic="c"), topics.require_layout("b").with_queues("broker-b", 1, 1, 7)):
        with pytest.raises(
            NoPermissionError, match=f"topic {refused.topic} was not changed: its layout would have 1 entries more.* have 3, 3 are"
        ):
            topics.create(refused)
    topics.create(layout(2, topic="b", queues=8))
    topics.create(layout(3, topic="b", queues=0))
    topics.create(layout(1, topic="c"))
    topics.create_own("%RETRY%g", 1, 1, for_group=True)  # a message that was acknowledged waits for it
    assert topics.adopt([layout(1, topic="d")]) == 1, "what the cluster has it keeps"


@pytest.mark.parametrize(("limit", "figure"), [("ADOPTED_MAX", 3), ("TOMBSTONES_MAX", 1), ("ADOPTED_ENTRIES_MAX", 3)])
def test_full_broker_adopts_no_unknown_topic_and_every_newer_layout_of_known_ones(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, limit: str, figure: int
) -> None:
    topics = table()
    monkeypatch.setattr(f"lockstep.broker.tables.topic_table.{limit}", figure)
    deleted = layout(2, topic="c", queues=0)
    assert (topics.adopt([layout(1, topic="a"), layout(1, topic="b")]), topics.is_full) == (2, False)
    assert topics.adopt([deleted, *(layout(1, topic=f"d-{number}") for number in range(9))]) == (1 if figure == 1 else 2)
    assert topics.is_full
    assert "topics.not_adopted" in caplog.text
    known = topics.layouts.all()
    assert topics.adopt([layout(4, topic=each.topic) for each in known]) == len(known)


def test_new_topic_is_rejected_while_too_many_deletions_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.broker.tables.topic_table.TOMBSTONES_MAX", 2)
    topics = table()
    topics.adopt([layout(2, topic=name, queues=0) for name in ("a", "b")])
    with pytest.raises(NoPermissionError, match="topic c was not created: the cluster remembers 2 deleted topics"):
        topics.create(layout(1, topic="c"))
    topics.create(layout(1, topic="a"))
    topics.create(layout(1, topic="c"))
