"""The broker of a message is asked what became of it in each group. What follows from its responses: test_message_track.py."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from lockstep.cli import reporter
from lockstep.cli.commands.message import _show
from lockstep.cli.commands.message_find import _find
from lockstep.cli.commands.why import _why
from lockstep.client import ConcurrentlyContext, Message, MessageExt, OrderedRetry, OrderlyContext, Producer, sql
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.errors import OperationError
from lockstep.operations.explain.why_question import ask
from lockstep.operations.messages.find import Criteria
from lockstep.operations.messages.message_query import find_by_id
from lockstep.operations.messages.message_track import Track, TrackType
from lockstep.operations.messages.tracking import track_with_copies, tracks
from lockstep.protocol.bodies import BrokerAddress, GroupStatus, GroupStatusReply
from lockstep.protocol.errors import BrokerSystemError, SubscriptionGroupNotExistError, TransportError
from lockstep.protocol.headers.offsets import QueryMessageHeader, QueryMessageReply
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support.tracked import STORED_MS, copy_in, message, status, waiting
from support.why_kit import GROUP, TOPIC, Member, accept, hang, send

BROKER = BrokerAddress("a", "c", "10.0.0.1:10911", True, 1)


class FakeBroker(AdminClient):
    """A broker that knows groups, and has copies of one message in its log."""

    def __init__(self, groups: dict[str, Exception | GroupStatus], copies: Sequence[MessageExt] = (), topics: Sequence[str] = ()) -> None:
        super().__init__(Host.current(), "127.0.0.1:1")
        self.groups = groups
        self.copies = copies
        self.known = tuple(topics)
        self.searches: list[QueryMessageHeader] = []
        self.refusal: Exception | None = None

    async def topics(self) -> tuple[str, ...]:
        return self.known

    async def query(self, broker: BrokerAddress, header: QueryMessageHeader) -> tuple[QueryMessageReply, bytes]:
        self.searches.append(header)
        if self.refusal is not None:
            raise self.refusal
        return QueryMessageReply(1, 1), b"".join(each._data for each in self.copies)

    async def group_status(self, broker: BrokerAddress, group: str | None, *, summaries: bool = False) -> GroupStatusReply:
        if group is None:
            return GroupStatusReply(tuple(self.groups))
        response = self.groups[group]
        if isinstance(response, Exception):
            raise response
        return GroupStatusReply((), response)


async def test_group_with_an_error_is_unknown_with_the_reason_and_others_are_listed() -> None:
    fake = FakeBroker(
        {
            "broken": BrokerSystemError("the table is being read"),
            "elsewhere": status(-1, None, group="elsewhere"),
            "gone": SubscriptionGroupNotExistError("just left"),
            "good": status(group="good"),
            "silent": TransportError("10.0.0.1:10911: closed"),
        }
    )
    assert [(each.group, each.type, each.why) for each in await tracks(fake, BROKER, message())] == [
        ("broken", TrackType.UNKNOWN, "SYSTEM_ERROR: the table is being read"),
        ("good", TrackType.CONSUMED, None),
        ("silent", TrackType.UNKNOWN, "10.0.0.1:10911: closed"),
    ]


async def test_one_search_finds_the_newest_copies_of_all_groups() -> None:
    names = [f"g{number:02}" for number in range(20)]
    copies = [waiting("%RETRY%g00", 0, failures=2), copy_in("%DLQ%g01"), copy_in("%RETRY%g00"), copy_in("%RETRY%g01"), message()]
    fake = FakeBroker({name: status(group=name) for name in names}, copies, [f"%RETRY%{name}" for name in names])
    found = {each.group: each for each in await tracks(fake, BROKER, message())}
    assert [(header.topic, header.key, header.begin_timestamp, header.unique_key, header.waiting) for header in fake.searches] == [
        (None, message().message_id, STORED_MS, True, True)
    ]
    assert (found["g00"].type, found["g00"].failures) == (TrackType.RETRYING, 2)
    assert found["g01"].type is TrackType.DEAD_LETTERED
    assert {found[name].type for name in names[2:]} == {TrackType.CONSUMED}


@pytest.mark.parametrize(
    ("given", "topics", "of"),
    [
        (status(), ["t", "%RETRY%other", "%DLQ%other"], message()),
        (status(7), ["t", "%RETRY%g", "%DLQ%g"], message()),
        (status(), ["t", "%RETRY%g", "%DLQ%g"], waiting("t")),
    ],
    ids=["neither topic exists", "not reached", "delayed"],
)
async def test_no_search_is_made_where_no_copy_can_be(given: GroupStatus, topics: list[str], of: MessageExt) -> None:
    fake = FakeBroker({"g": given}, [copy_in("%DLQ%g")], topics)
    (found,) = await tracks(fake, BROKER, of)
    assert found == await track_with_copies(fake, BROKER, given, of)
    assert found.type is not TrackType.DEAD_LETTERED
    assert fake.searches == []


async def test_search_that_fails_leaves_unknown_who_may_have_copies() -> None:
    fake = FakeBroker({"g": status(), "h": status(7, group="h")}, topics=["%DLQ%g"])
    fake.refusal = TransportError("10.0.0.1:10911: closed")
    assert await tracks(fake, BROKER, message()) == [
        Track("g", TrackType.UNKNOWN, why="its copies could not be searched for: 10.0.0.1:10911: closed"),
        Track("h", TrackType.NOT_CONSUME_YET, 7, online=True),
    ]
    with pytest.raises(OperationError, match="could not be searched for"):
        await track_with_copies(fake, BROKER, status(), message())


class Looked:
    """What the commands say of a message."""

    def __init__(self, cluster: TestCluster, capsys: pytest.CaptureFixture[str]) -> None:
        self._nameserver = cluster.nameserver
        self._admin = AdminClient(Host.current(), cluster.nameserver)
        self._capsys = capsys

    async def track(self, message_id: str) -> Track:
        """Return the track of the only group."""
        message, broker = await self.message(message_id)
        (found,) = await tracks(self._admin, broker, message)
        return found

    async def message(self, message_id: str) -> tuple[MessageExt, BrokerAddress]:
        return await find_by_id(self._admin, list(await self._admin.brokers()), message_id)

    async def printed(self, work: Any) -> str:
        self._capsys.readouterr()
        await work
        return self._capsys.readouterr().out

    async def why(self, message_id: str) -> str:
        return await self.printed(_why(GROUP, message_id, None, None, self._nameserver, False))

    async def show(self, message_id: str) -> str:
        return await self.printed(_show(message_id, None, self._nameserver, False, with_tracks=True))

    async def find(self, message_id: str, topic: str | None) -> str:
        return await self.printed(_find(None, message_id, Criteria(topic), (None, None), 20, True, self._nameserver, False))


@pytest.fixture
def looked(lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]) -> Looked:
    return Looked(lockstep_cluster, capsys)


async def fails(messages: Sequence[MessageExt], context: ConcurrentlyContext) -> None:
    raise ValueError("no such account")


@pytest.mark.lockstep(brokers=1)
async def test_message_that_waits_for_its_next_retry_is_retrying(lockstep_cluster: TestCluster, looked: Looked) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await cluster.start("a", Member(cluster, fails, concurrent=True).run)  # type: ignore[arg-type]
    await cluster.advance(seconds=3)
    (message_id,) = await send(cluster, 1)
    await cluster.advance(seconds=8)
    found = await looked.track(message_id)
    assert (found.type, found.failures, found.error) == (TrackType.RETRYING, 1, "ValueError: no such account")
    assert found.due_ms is not None
    assert found.due_ms - Host.current().clock.wall_ms() in range(1, 10_001), "the first retry is due 10 s after the failed call"
    assert ": retry 1 is due in " in await looked.why(message_id)
    await cluster.advance(seconds=12)
    found = await looked.track(message_id)
    assert (found.type, found.failures) == (TrackType.RETRYING, 2)
    await cluster.kill("a")
    await cluster.advance(seconds=60)
    found = await looked.track(message_id)
    assert (found.type, found.failures, found.due_ms, found.online) == (TrackType.RETRYING, 2, None, False)
    assert (await looked.why(message_id)).count("no member of the group is connected") == 1


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.lockstep(brokers=1)
async def test_recalled_message_is_found_by_both_ids_also_when_it_would_have_been_due(
    lockstep_cluster: TestCluster, looked: Looked, restarts: bool
) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await cluster.start("a", Member(cluster, accept).run)
    await cluster.advance(seconds=3)
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        sent = await producer.send(Message(TOPIC, b"x", sharding_key="k1"), delay=timedelta(minutes=30))
        other = await producer.send(Message(TOPIC, b"y", sharding_key="k1"), delay=timedelta(minutes=30))
        offset_id = (await looked.message(sent.message_id))[0].offset_message_id
        assert "recalled" not in await looked.show(sent.message_id)
        await producer.recall(sent.recall_handle)
    if restarts:
        await cluster.kill("broker-a")
        await cluster.restart("broker-a")
        await cluster.advance(seconds=5)
    for _ in range(2):
        for message_id in (sent.message_id, offset_id):
            assert (await looked.track(message_id)).type is TrackType.RECALLED
            shown = await looked.show(message_id)
            assert "it was recalled while it waited for its delay: it will not be delivered" in shown
            assert "RECALLED" in shown
        assert "it was recalled while it waited" in (await looked.why(sent.message_id)).splitlines()[0]
        assert await looked.find(sent.message_id, TOPIC) == ""
        await cluster.advance(hours=1)
    assert (await looked.track(other.message_id)).type is TrackType.CONSUMED


@pytest.mark.lockstep(brokers=1)
async def test_delayed_message_is_found_by_both_ids_with_the_time_at_which_it_is_due(lockstep_cluster: TestCluster, looked: Looked) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await cluster.start("a", Member(cluster, accept).run)
    await cluster.advance(seconds=3)
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        sent = await producer.send(Message(TOPIC, b"x", sharding_key="k1"), delay=timedelta(seconds=30))
    sent_ms = Host.current().clock.wall_ms()
    await cluster.advance(seconds=10)
    offset_id = (await looked.message(sent.message_id))[0].offset_message_id
    for message_id in (sent.message_id, offset_id):
        found = await looked.track(message_id)
        assert (found.group, found.type) == (GROUP, TrackType.DELAYED)
        assert found.due_ms is not None
        assert abs(found.due_ms - sent_ms - 30_000) < 1_000
    first, *rest = (await looked.why(sent.message_id)).splitlines()
    assert first.startswith(f"message {sent.message_id} goes to {TOPIC}@broker-a:0: it waits for its delay")
    assert "has nothing to do" in rest[0]
    shown = await looked.show(sent.message_id)
    assert f"topic              {TOPIC}\n" in shown
    assert "DELAYED" in shown
    assert " due=" in await looked.find(sent.message_id, TOPIC)
    examine = await ask(AdminClient(Host.current(), cluster.nameserver), GROUP, sent.message_id, None, None)
    assert "it waits for its delay" in ((await examine()).note or "")
    await cluster.advance(seconds=30)
    place = f"message {sent.message_id} is at offset 0 of {TOPIC}@broker-a:0"
    assert (await examine()).note == f"{place}: the group's progress is past the message; the group's progress is 1"
    assert (await looked.track(sent.message_id)).type is TrackType.CONSUMED
    assert (await looked.find(sent.message_id, TOPIC)).count("\n") == 1, "what was delivered waits no longer"
    with pytest.raises(OperationError, match=f"does not wait any more: find it by the id {sent.message_id}"):
        await looked.track(offset_id)


@pytest.mark.lockstep(brokers=1)
async def test_message_that_sql_refuses_is_filtered(lockstep_cluster: TestCluster, looked: Looked) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await cluster.start("a", Member(cluster, accept, expression=sql("amount > 100")).run)
    await cluster.advance(seconds=3)
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        sent = [await producer.send(Message(TOPIC, b"x", properties={"amount": amount})) for amount in ("99", "101")]
    await cluster.advance(seconds=10)
    assert (await looked.track(sent[0].message_id)).type is TrackType.CONSUMED_BUT_FILTERED
    assert (await looked.track(sent[1].message_id)).type is TrackType.CONSUMED


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
    monkeypatch.setattr(reporter, "FIRST_MS", 0)
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
