"""How RocketMQ's tools change topics: what is refused so that no message is lost and no key changes its queue too early."""

import pytest

from lockstep.broker.classic.topic_changes import CreateTopicFields, TopicChanges, TopicConfig, TopicCounts, counts_of
from lockstep.broker.tables.topic_table import TopicTable
from lockstep.broker.tables.write_holds import WriteHolds
from lockstep.protocol.bodies import MessageModel, ParkState
from lockstep.protocol.errors import BrokerSystemError, LocalProtocolError, MessageIllegalError, NoPermissionError
from lockstep.protocol.topics.layouts import QUEUES_PER_BROKER_MAX
from lockstep.protocol.topics.queue import TopicLayout
from support.coordination_kit import BROKER, GROUP, TOPIC, Bench, Client, joined, layout, ordered


class World:
    """A broker with topics, whose queues hold 1,000 messages each, as `Bench` has them."""

    def __init__(self, *layouts: TopicLayout) -> None:
        self.bench = Bench(*layouts)
        self.topics = TopicTable(self.bench.layouts, self.bench.journal, BROKER, new_writer=lambda: 9)
        self.holds = WriteHolds()
        self.new: list[str] = []
        self.open_halves = 0
        self.changes = TopicChanges(self.topics, self.bench.c, self.holds, self.new.append, self.bench.ends, lambda: self.open_halves)

    def put(self, read: int, write: int, topic: str = TOPIC) -> tuple[int, int]:
        """Return the counts of queues to read and to write that are then in force."""
        self.changes.put(TopicCounts(topic, read, write), 0)
        return self.counts(topic)

    def counts(self, topic: str = TOPIC) -> tuple[int, int]:
        found = self.topics.require_layout(topic)
        return self.topics.own_read_count(found), self.topics.own_write_count(found)

    def commit(self, group: str, *queue_ids: int, offset: int = 1_000, topic: str = TOPIC) -> None:
        """Commit as a client of RocketMQ that is in no group."""
        for queue_id in queue_ids:
            self.bench.c.legacy.update_offset(77, (group, topic, queue_id), offset, self.bench.now_ms)


def test_new_topic_gets_its_queues_if_the_disk_has_room() -> None:
    world = World()
    assert world.put(4, 2, "new") == (4, 2)
    assert world.new == ["new"]
    world.put(4, 4, "new")
    assert world.new == ["new"], "it is not new any more"


def test_more_queues_are_added_and_closed_ones_are_opened() -> None:
    world = World()
    assert world.put(6, 6) == (6, 6)
    assert world.put(6, 2) == (6, 2)
    before = world.topics.require_layout(TOPIC)
    assert world.put(6, 2) == (6, 2)
    assert world.topics.require_layout(TOPIC) is before, "nothing has changed"
    assert world.put(8, 8) == (8, 8)


def test_queues_that_a_group_has_not_consumed_are_not_removed() -> None:
    world = World()
    world.commit("tools", 0, 1, 2, offset=1_000)
    world.commit("tools", 3, offset=998)
    with pytest.raises(NoPermissionError, match="group tools has not consumed 2 messages"):
        world.put(2, 2)
    assert world.counts() == (4, 4)
    world.commit("tools", 3)
    assert world.put(2, 2) == (2, 2)


def test_group_without_progress_in_a_removed_queue_has_all_of_its_messages_to_consume() -> None:
    world = World()
    world.bench.ends.queues[TOPIC, 3] = 400, 1_000
    world.commit("tools", 0, 1)
    with pytest.raises(NoPermissionError, match="has not consumed 1600 messages"):
        world.put(2, 2)


def test_group_that_has_left_the_topic_holds_up_no_change() -> None:
    world = World(layout(), layout("bills"))
    Client(world.bench, "a", ordered(topics=("bills",))).connect()
    world.commit(GROUP, 0, 1, 2, 3, offset=998)
    assert world.put(6, 6) == (6, 6)
    assert world.put(2, 2) == (2, 2)


def test_queues_of_a_broadcasting_group_are_not_removed() -> None:
    world = World()
    Client(world.bench, "a", ordered(ordered=False, message_model=MessageModel.BROADCASTING)).connect()
    with pytest.raises(NoPermissionError, match="is broadcasting"):
        world.put(2, 2)
    assert world.put(4, 2) == (4, 2), "closed queues are still read"


@pytest.mark.parametrize("counts", [(4, 2), (6, 6)], ids=["closed", "added"])
def test_keys_move_when_the_ordered_group_has_consumed_the_topic(counts: tuple[int, int]) -> None:
    world = World()
    a = joined(world.bench, "a")
    a.lock(0, 1, 2, 3)
    with pytest.raises(NoPermissionError, match=f"group {GROUP} consumes topic {TOPIC} in order"):
        world.put(*counts)
    for queue_id in range(4):
        a.commit(queue_id, 1_000)
    world.open_halves = 1
    with pytest.raises(NoPermissionError, match=f"group {GROUP} consumes topic {TOPIC} in order"):
        world.put(*counts)
    world.open_halves = 0
    assert world.put(*counts) == counts


@pytest.mark.parametrize("counts", [(4, 2), (6, 6)], ids=["closed", "added"])
def test_keys_do_not_move_between_brokers_under_an_ordered_group(counts: tuple[int, int]) -> None:
    world = World(layout(others=2))
    a = joined(world.bench, "a")
    a.lock(0, 1, 2, 3)
    for queue_id in range(4):
        a.commit(queue_id, 1_000)
    with pytest.raises(NoPermissionError, match="lockstep topic alter"):
        world.put(*counts)


@pytest.mark.parametrize("counts", [(4, 2), (6, 6), (2, 2)], ids=["closed", "added", "removed"])
def test_keys_do_not_move_while_one_is_parked_also_if_the_group_has_stopped(counts: tuple[int, int]) -> None:
    world = World()
    world.commit(GROUP, 0, 1, 2, 3)
    parks, queue = world.bench.c.state.parks, (GROUP, TOPIC, 3)
    parks.park(queue, "k3", 7, 3, "failed", 1)
    with pytest.raises(
        NoPermissionError, match=rf"group {GROUP} has 1 parked keys in queues \d to 3 of topic {TOPIC}, and .*park ls {GROUP}"
    ):
        world.put(*counts)
    assert world.counts() == (4, 4)
    parks.set_state(parks.rows(queue)[0], ParkState.DROPPING)
    with pytest.raises(NoPermissionError, match="1 parked keys"):
        world.put(*counts)
    parks.end_replay(queue, "k3", 0)
    assert world.put(*counts) == counts


def test_queues_without_parked_keys_are_removed() -> None:
    world = World()
    world.commit(GROUP, 0, 1, 2, 3)
    world.put(4, 2)
    world.bench.c.state.parks.park((GROUP, TOPIC, 1), "k3", 7, 3, "failed", 1)
    assert world.put(2, 2) == (2, 2)


def test_last_queue_to_write_to_is_not_closed() -> None:
    with pytest.raises(NoPermissionError, match="no queue to write to"):
        World().put(4, 0)
    assert World(layout(others=2)).put(4, 0) == (4, 0)


def test_topic_whose_queues_are_being_moved_is_not_changed() -> None:
    world = World()
    world.holds.hold(TOPIC, "another command", 10_000, 0)
    with pytest.raises(NoPermissionError, match="are being moved"):
        world.put(8, 8)


def test_deleted_topic_is_gone_and_deleting_it_again_succeeds() -> None:
    world = World()
    world.changes.delete(TOPIC)
    assert world.topics.find_layout(TOPIC) is None
    counter = world.topics.layouts.get(TOPIC)
    world.changes.delete(TOPIC)
    world.changes.delete("unknown")
    assert world.topics.layouts.get(TOPIC) is counter


@pytest.mark.parametrize("prefix", ["%RETRY%", "%DLQ%"])
def test_topic_of_a_group_is_deleted_only_if_it_is_empty_everywhere(prefix: str) -> None:
    topic = f"{prefix}{GROUP}"
    world = World(layout(topic, 1))
    with pytest.raises(NoPermissionError, match="holds 1000 messages"):
        world.changes.delete(topic)
    world.bench.ends.queues[topic, 0] = 1_000, 1_000
    world.changes.delete(topic)
    assert world.topics.find_layout(topic) is None
    world = World(layout(topic, 1, others=1))
    world.bench.ends.queues[topic, 0] = 0, 0
    with pytest.raises(NoPermissionError, match="has queues at broker-b"):
        world.changes.delete(topic)


@pytest.mark.parametrize(
    ("asked", "counts"),
    [
        (CreateTopicFields("t", 4, 2), (4, 2)),
        (CreateTopicFields("t", 4, 4, perm=7), (4, 4)),
        (CreateTopicFields("t", 4, 4, perm=4), (4, 0)),
        (CreateTopicFields("t", 4, 0, perm=6), (4, 4)),
        (CreateTopicFields("t", 1, 1, attributes="+message.type=FIFO,-cleanup.policy"), (1, 1)),
        (TopicConfig("t", 3, 3, attributes={"+message.type": "DELAY"}), (3, 3)),
        (TopicConfig("t"), (16, 16)),
    ],
)
def test_counts_follow_from_the_permission(asked: CreateTopicFields | TopicConfig, counts: tuple[int, int]) -> None:
    assert counts_of(asked) == TopicCounts("t", *counts)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (CreateTopicFields("t", perm=2), "perm 2"),
        (CreateTopicFields("t", perm=0), "perm 0"),
        (CreateTopicFields("t", perm=14), "perm 14"),
        (CreateTopicFields("t", 0, 4), "0 queues to read"),
        (CreateTopicFields("t", 4, -1), "-1 to write"),
        (CreateTopicFields("t", QUEUES_PER_BROKER_MAX + 1, 1), "expected 1 to 16384"),
        (CreateTopicFields("t", topic_filter_type="MULTI_TAG"), "MULTI_TAG"),
        (CreateTopicFields("t", topic_sys_flag=1), "topicSysFlag 1"),
        (CreateTopicFields("t", attributes="+message.type=TRANSACTION"), "message.type=TRANSACTION"),
        (CreateTopicFields("t", attributes="+cleanup.policy=COMPACTION"), "cleanup.policy"),
        (TopicConfig("t", attributes={"queue.type": "BatchCQ"}), "queue.type"),
    ],
)
def test_what_a_topic_cannot_have_is_refused_with_words(asked: CreateTopicFields | TopicConfig, said: str) -> None:
    with pytest.raises(MessageIllegalError, match=said):
        counts_of(asked)


@pytest.mark.parametrize("topic", ["TBW102", "LOCKSTEP_SYS_STATE", "rmq_sys_x", "SCHEDULE_TOPIC_XXXX"])
def test_system_topics_are_refused_as_in_rocketmq(topic: str) -> None:
    with pytest.raises(BrokerSystemError, match="the broker's own"):
        counts_of(CreateTopicFields(topic))
    with pytest.raises(BrokerSystemError, match="the broker's own"):
        World().changes.delete(topic)
    with pytest.raises(LocalProtocolError):
        counts_of(TopicConfig("no such/name"))
