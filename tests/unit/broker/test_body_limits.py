"""The body limit of each request; valid requests fit."""

import pytest

from lockstep.broker.processors.client import ClientProcessor
from lockstep.broker.processors.group_changes import GroupChangesProcessor
from lockstep.broker.processors.lock import LockProcessor
from lockstep.broker.processors.offset import OffsetProcessor
from lockstep.broker.processors.pull import PullProcessor
from lockstep.broker.processors.purge import PurgeProcessor
from lockstep.broker.processors.query import QueryProcessor
from lockstep.broker.processors.send import SendProcessor
from lockstep.broker.processors.send_back import SendBackProcessor
from lockstep.broker.processors.send_message import SendMessageProcessor
from lockstep.broker.processors.status import StatusProcessor
from lockstep.broker.processors.topic import TopicProcessor
from lockstep.nameserver.processor import RouteProcessor
from lockstep.protocol.bodies import DataVersion, LockItem, RegisterBody, SessionLockBody, SyncBody, SyncItem
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode as R
from lockstep.protocol.topics.layouts import ENTRY_COUNT_MAX
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from lockstep.runtime.limits import HEARTBEAT_BYTES_MAX, LAYOUTS_BYTES_MAX, MEMBER_BYTES_MAX, RECORDS_BYTES_MAX, REQUEST_BYTES_MAX
from lockstep.runtime.requests.dispatch import HandlerSpec

BROKER = (
    ClientProcessor,
    LockProcessor,
    OffsetProcessor,
    PullProcessor,
    PurgeProcessor,
    QueryProcessor,
    SendProcessor,
    SendMessageProcessor,
    SendBackProcessor,
    StatusProcessor,
    GroupChangesProcessor,
    TopicProcessor,
)
MEMBER = {R.LOCK_BATCH_MQ, R.UNLOCK_BATCH_MQ, R.SYNC, R.RESET_OFFSETS, R.PURGE_TOPIC}
LARGER = {
    **dict.fromkeys(MEMBER, MEMBER_BYTES_MAX),
    R.HEART_BEAT: HEARTBEAT_BYTES_MAX,
    R.UPDATE_AND_CREATE_TOPIC: LAYOUTS_BYTES_MAX,
    R.REGISTER_BROKER: LAYOUTS_BYTES_MAX,
    R.SEND_MESSAGE: RECORDS_BYTES_MAX,
    R.SEND_RECORDS: RECORDS_BYTES_MAX,
    R.SEND_MESSAGE_V2: RECORDS_BYTES_MAX,
    R.SEND_BATCH_MESSAGE: RECORDS_BYTES_MAX,
}
QUEUES_MAX = 16_384
"""Queues of one topic at one broker, all held by one member."""


def marks(processors: tuple[type, ...]) -> dict[int, HandlerSpec]:
    found = [mark for each in processors for name in dir(each) for mark in getattr(getattr(each, name), "__handles__", ())]
    return {mark.code: mark for mark in found}


@pytest.mark.parametrize("processors", [BROKER, (RouteProcessor,)], ids=["broker", "nameserver"])
def test_body_limit_is_64_kib_for_requests_without_queues_layouts_or_messages(processors: tuple[type, ...]) -> None:
    for code, mark in marks(processors).items():
        assert mark.body_bytes_max == LARGER.get(R(code), REQUEST_BYTES_MAX), R(code).name
    assert (REQUEST_BYTES_MAX, MEMBER_BYTES_MAX, LAYOUTS_BYTES_MAX, RECORDS_BYTES_MAX) == (64 << 10, 2 << 20, 4 << 20, 16 << 20)


def test_lock_and_sync_of_all_queues_of_a_broker_fit_the_body_limit() -> None:
    group, topic = "payments-lock_sync", "orders-of-the-day"
    lock = SessionLockBody(tuple(LockItem(group, topic, queue_id, 1_800_000_000_000) for queue_id in range(QUEUES_MAX)))
    sync = SyncBody(tuple(SyncItem(group, topic, queue_id, 1_800_000_000_000, 0, 1 << 60) for queue_id in range(QUEUES_MAX)))
    for body in (lock, sync):
        data = encode_body(body)
        assert len(data) <= MEMBER_BYTES_MAX
        assert decode_body(type(body), data) == body


def entries(count: int, counter: int = 3) -> tuple[LayoutEntry, ...]:
    return tuple(LayoutEntry(f"production-cluster-broker-{number:04}", 16, 16, counter) for number in range(count))


def test_longest_layout_and_4096_layouts_of_eight_brokers_fit_the_body_limit() -> None:
    longest = TopicLayout("t" * 127, LayoutVersion(1 << 53, (1 << 32) - 1), entries(ENTRY_COUNT_MAX))
    assert decode_body(TopicLayout, encode_body(longest)) == longest
    assert len(encode_body(longest)) <= LAYOUTS_BYTES_MAX
    layouts = tuple(
        TopicLayout(f"a-topic-with-a-name-of-usual-length-{number}", LayoutVersion(3, 1 << 31), entries(8)) for number in range(4_096)
    )
    body = RegisterBody({"internal": "127.0.0.1:10911"}, layouts, DataVersion(1, 1))
    data = encode_body(body)
    assert len(data) <= LAYOUTS_BYTES_MAX
    assert decode_body(RegisterBody, data) == body
