"""System topics: clients can't create, delete, send to or read them, and no layout makes them exist."""

import pytest

from lockstep.broker.journal import Journal
from lockstep.broker.processors.topic import TopicProcessor
from lockstep.broker.tables.topic_table import TopicTable
from lockstep.broker.tables.write_holds import WriteHolds
from lockstep.protocol.errors import LocalProtocolError, NoPermissionError, TopicNotExistError
from lockstep.protocol.messages.message import Message
from lockstep.protocol.names import NOT_SENDABLE, SYSTEM_PREFIXES, SYSTEM_TOPICS, is_sendable_topic, is_system_topic
from lockstep.protocol.topics.layouts import LayoutTable, check_layout
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from support.broker_fakes import FakeHost

OWN = (*sorted(NOT_SENDABLE), "rmq_sys_wheel_timer", *(f"{prefix}anything" for prefix in SYSTEM_PREFIXES))
"""Written by brokers only."""
RESERVED = tuple(sorted(SYSTEM_TOPICS - NOT_SENDABLE))
"""RocketMQ's other system topics: sends to them need an existing topic, and the broker never creates it."""


def layout(topic: str, counter: int = 1) -> TopicLayout:
    return TopicLayout(topic, LayoutVersion(counter, 7), (LayoutEntry("broker-a", 1, 1, counter),))


def table() -> TopicTable:
    return TopicTable(LayoutTable(), Journal(), "broker-a")


@pytest.mark.parametrize("topic", [*OWN, *RESERVED])
def test_system_topic_cannot_be_created_or_deleted(topic: str) -> None:
    assert is_system_topic(topic)
    topics = table()
    for create in (
        lambda: topics.create(layout(topic)),
        lambda: topics.create_own(topic, 1, 1),
        lambda: TopicProcessor(topics, WriteHolds(), FakeHost().clock, auto_create=True).find_or_create(topic, 1),
        lambda: topics.create(layout(topic).deletion),
    ):
        with pytest.raises(NoPermissionError, match=topic):
            create()
    assert topics.layouts.get(topic) is None


@pytest.mark.parametrize("topic", OWN)
def test_layout_of_the_brokers_own_topic_is_never_adopted(topic: str) -> None:
    """Its deletion would take the delayed messages with it."""
    topics = table()
    for each in (layout(topic), layout(topic).deletion):
        with pytest.raises(LocalProtocolError, match=topic):
            check_layout(each)
        assert topics.adopt([each]) == 0
    assert topics.layouts.get(topic) is None


@pytest.mark.parametrize("topic", OWN)
def test_clients_can_neither_send_to_nor_read_a_broker_topic(topic: str) -> None:
    topics = table()
    assert not is_sendable_topic(topic)
    for check in (topics.check_writable, topics.check_readable):
        with pytest.raises(NoPermissionError, match=topic):
            check(topic, 0)
    with pytest.raises(LocalProtocolError, match=topic):
        Message(topic, b"x")


@pytest.mark.parametrize("topic", RESERVED)
def test_other_system_topics_do_not_exist_but_may_have_a_layout(topic: str) -> None:
    assert is_sendable_topic(topic)
    with pytest.raises(TopicNotExistError):
        table().check_writable(topic, 0)
    check_layout(layout(topic))
