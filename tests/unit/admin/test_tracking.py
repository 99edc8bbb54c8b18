"""Each track type follows from a broker's status of a group. RocketMQ: messageTrackDetail."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from lockstep.admin import search_progress
from lockstep.admin.client import AdminClient
from lockstep.admin.commands.message import _show
from lockstep.admin.message_query import find_by_id
from lockstep.admin.tracking import MEANINGS, Track, TrackType, track, tracks
from lockstep.client import ConcurrentlyContext, OrderedRetry, OrderlyContext
from lockstep.protocol.bodies import (
    BrokerAddress,
    ConsumerGroup,
    ConsumeType,
    GroupStatus,
    GroupStatusReply,
    ListVersion,
    MemberStatus,
    MessageModel,
    QueueStatus,
    Subscription,
)
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import (
    BrokerSystemError,
    RequestCodeNotSupportedError,
    SubscriptionGroupNotExistError,
    TransportError,
)
from lockstep.protocol.message import Message, MessageExt, decode_messages, encode_message
from lockstep.protocol.record import INT64, QUEUE_OFFSET_AT
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support.why_kit import TOPIC, Member, hang, send

MEMBER = MemberStatus("c", "1234abcd", "10.0.0.1:1", True, 5)
CONTRACT = ConsumerGroup("g", (Subscription("t", "tagA || tagB"),))


def message(tag: str | None = "tagB", offset: int = 7, queue_id: int = 2) -> MessageExt:
    record = bytearray(encode_message(Message("t", b"x", tags=tag), queue_id, "A" * 32, 5))
    record[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8] = INT64.pack(offset)
    return decode_messages(bytes(record), "a")[0]


def status(committed: int = 8, contract: ConsumerGroup | None = CONTRACT, members: tuple[MemberStatus, ...] = (MEMBER,)) -> GroupStatus:
    queues = tuple(
        QueueStatus(topic, queue_id, None, 0, 0, offset, 20, 0, None, None)
        for topic, queue_id, offset in (("t", 0, 99), ("u", 2, 99), ("t", 2, committed))
    )
    return GroupStatus("g", ListVersion(1, 1), contract, members, queues)


def subscribed(expression: str) -> ConsumerGroup:
    return replace(CONTRACT, subscriptions=(Subscription("u", "other"), Subscription("t", expression)))


@pytest.mark.parametrize(
    ("given", "of", "type_"),
    [
        (status(-1), message(), TrackType.NOT_CONSUME_YET),
        (status(6), message(), TrackType.NOT_CONSUME_YET),
        (status(7), message(), TrackType.NOT_CONSUME_YET),
        (status(8), message(), TrackType.CONSUMED),
        (status(8, subscribed("*")), message(None), TrackType.CONSUMED),
        (status(8, subscribed("tagA")), message("tagA"), TrackType.CONSUMED),
        (status(8, subscribed("tagA")), message("tagB"), TrackType.CONSUMED_BUT_FILTERED),
        (status(8, subscribed("tagA")), message(None), TrackType.CONSUMED_BUT_FILTERED),
        (status(7, subscribed("tagA")), message("tagB"), TrackType.NOT_CONSUME_YET),
        (status(8, None), message(), TrackType.CONSUMED),
        (status(8, members=()), message(), TrackType.NOT_ONLINE),
        (status(6, None, ()), message(), TrackType.NOT_ONLINE),
        (status(8, replace(CONTRACT, consume_type=ConsumeType.CONSUME_ACTIVELY)), message(), TrackType.PULL),
        (status(8, replace(CONTRACT, message_model=MessageModel.BROADCASTING)), message(), TrackType.CONSUME_BROADCASTING),
    ],
)
def test_track_follows_from_members_kind_position_and_tags(given: GroupStatus, of: MessageExt, type_: TrackType) -> None:
    found = track(given, of)
    committed = given.queues[2].committed_offset
    assert found == Track("g", type_, None if committed < 0 else committed)


def test_message_that_was_finished_before_an_earlier_one_is_consumed() -> None:
    queues = status(3).queues
    above = replace(status(3), queues=(*queues[:2], replace(queues[2], done=(5, 8))))
    assert [track(above, message(offset=offset)).type for offset in (2, 4, 5, 7, 8)] == [
        TrackType.CONSUMED,
        TrackType.NOT_CONSUME_YET,
        TrackType.CONSUMED,
        TrackType.CONSUMED,
        TrackType.NOT_CONSUME_YET,
    ]


def test_each_track_type_has_a_meaning() -> None:
    assert MEANINGS.keys() == set(TrackType)


class FakeBroker(AdminClient):
    """A broker that knows five groups and returns the status of only one."""

    def __init__(self) -> None:
        super().__init__(Host.current(), "127.0.0.1:1")
        self.responses: dict[str | None, Exception | GroupStatusReply] = {
            None: GroupStatusReply(("broken", "elsewhere", "gone", "good", "silent"), None),
            "broken": BrokerSystemError("the table is being read"),
            "elsewhere": GroupStatusReply((), replace(status(), contract=None, queues=())),
            "gone": SubscriptionGroupNotExistError("just left"),
            "good": GroupStatusReply((), status()),
            "silent": TransportError("10.0.0.1:10911: closed"),
        }

    async def request(self, broker: BrokerAddress, code: RequestCode, header: object | None = None, body: bytes = b"") -> Command:
        raise RequestCodeNotSupportedError("it is of an earlier version: it finds no copies")

    async def group_status(self, broker: BrokerAddress, group: str | None, *, summaries: bool = False) -> GroupStatusReply:
        response = self.responses[group]
        if isinstance(response, Exception):
            raise response
        return response


async def test_group_with_an_error_is_unknown_with_the_reason_and_others_are_listed() -> None:
    found = await tracks(FakeBroker(), BrokerAddress("a", "c", "10.0.0.1:10911", True, 1), message())
    assert [(each.type, each.why) for each in found] == [
        (TrackType.UNKNOWN, "SYSTEM_ERROR: the table is being read"),
        (TrackType.CONSUMED, None),
        (TrackType.UNKNOWN, "10.0.0.1:10911: closed"),
    ]
    assert [each.group for each in found] == ["broken", "g", "silent"], "who has nothing to do with the topic is left out"


async def consumed(messages: Sequence[MessageExt], context: ConcurrentlyContext) -> None:
    if messages[0].body != b"4":
        return
    raise ValueError("no such account")


@pytest.mark.lockstep(brokers=1)
async def test_message_that_is_retried_and_then_dead_lettered(
    lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    settings = {"max_reconsume_times": 1}
    await cluster.start("a", Member(cluster, consumed, settings, concurrent=True).run)  # type: ignore[arg-type]
    await cluster.advance(seconds=3)
    ids = await send(cluster, 10)
    await cluster.advance(seconds=3)
    admin = AdminClient(Host.current(), cluster.nameserver)

    async def types(number: int) -> list[TrackType]:
        message, broker = await find_by_id(admin, list(await admin.brokers()), ids[number])
        return [each.type for each in await tracks(admin, broker, message)]

    assert await types(3) == [TrackType.CONSUMED]
    await cluster.stop("a")
    await cluster.start("b", Member(cluster, hang, settings, concurrent=True).run)  # type: ignore[arg-type]
    await cluster.advance(seconds=15)
    assert await types(4) == [TrackType.RETRYING], "the delay of its first retry is over, and nobody has accepted it"
    await cluster.kill("b")
    await cluster.advance(seconds=30)
    await cluster.start("c", Member(cluster, consumed, settings, concurrent=True).run)  # type: ignore[arg-type]
    await cluster.advance(seconds=30)
    assert await types(4) == [TrackType.DEAD_LETTERED]
    assert await types(3) == [TrackType.CONSUMED]
    monkeypatch.setattr(search_progress, "FIRST_MS", 0)
    capsys.readouterr()
    await types(4)
    assert capsys.readouterr().err == "", "only a command prints the progress of a long search"
    await _show(ids[4], None, cluster.nameserver, True, with_tracks=True)
    assert "lockstep: searched " in capsys.readouterr().err


@pytest.mark.lockstep(brokers=1)
async def test_message_of_a_parked_key_is_not_consumed(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)

    async def fails_on_k3(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        if messages[0].sharding_key == "k3":
            raise ValueError("no such account")

    retry = OrderedRetry(max_attempts=1, on_exhausted="park")
    await cluster.start("a", Member(cluster, fails_on_k3, {"retry": retry}).run)
    await cluster.advance(seconds=3)
    ids = await send(cluster, 20, keys=10)
    await cluster.advance(seconds=3)
    admin = AdminClient(Host.current(), cluster.nameserver)
    found = {}
    for number in (2, 3, 13):
        message, broker = await find_by_id(admin, list(await admin.brokers()), ids[number])
        found[number] = [each.type for each in await tracks(admin, broker, message)]
    assert found == {2: [TrackType.CONSUMED], 3: [TrackType.PARKED], 13: [TrackType.PARKED]}
