"""PURGE_TOPIC: what it removes, what it refuses, and what becomes of the groups that had not consumed it."""

from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.broker.app import Broker
from lockstep.broker.config import BrokerConfig
from lockstep.broker.groups.unconsumed import NAMED_MAX, describe_groups, unconsumed_groups
from lockstep.broker.offline.closed_state import closed_state
from lockstep.broker.store.health.check import check_store
from lockstep.protocol.bodies import (
    ConsumeFromWhere,
    LockItem,
    LockVerdict,
    ParkAction,
    ParkControlBody,
    PurgeBody,
    PurgedQueue,
    PurgeReply,
    QueueOffset,
    UnconsumedGroup,
)
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.fields import from_plain
from lockstep.protocol.headers.offsets import ViewMessageHeader
from lockstep.protocol.headers.park import ParkHeader
from lockstep.protocol.headers.pull import SUBSCRIPTION, SUSPEND, PullReply
from lockstep.protocol.headers.send import SendBackHeader
from lockstep.protocol.names import SCHEDULE_TOPIC, retry_topic
from lockstep.protocol.topics.queue import LayoutVersion
from lockstep.runtime.files import ReadOnlyFiles
from lockstep.runtime.host import Host
from support.coordination_kit import GROUP, TOPIC, Bench, Client, joined, layout, ordered
from support.whole_broker import LAYOUT, dialled, frame, heartbeat, join, kill, place, reconcile, running, settings, stored
from support.whole_broker import Client as Peer

FIRST, LAST = ConsumeFromWhere.FIRST_OFFSET, ConsumeFromWhere.LAST_OFFSET

# ---------------------------------------------------------------------------------------------------- who has not consumed it


def unconsumed(on: Bench, minimums: dict[int, int], topic: str = TOPIC) -> list[tuple[str, int, int]]:
    return [(each.group, each.messages, each.parked) for each in unconsumed_groups(on.c.state, topic, minimums)]


def committed(on: Bench, offset: int, group: str = GROUP, queue_id: int = 0) -> None:
    on.c.legacy.update_offset(99, (group, TOPIC, queue_id), offset, on.now_ms)


@pytest.mark.parametrize(("offset", "expected"), [(9, [(GROUP, 11, 0)]), (19, [(GROUP, 1, 0)]), (20, []), (21, [])])
def test_group_counts_while_its_progress_is_below(offset: int, expected: list[tuple[str, int, int]]) -> None:
    on = Bench()
    committed(on, offset)
    assert unconsumed(on, {0: 20, 1: 0}) == expected
    assert unconsumed(on, {1: 20}) == [], "it is not known where it would begin in that queue"
    assert unconsumed(on, {0: 20}, "other") == []


def test_messages_that_are_removed_already_do_not_count() -> None:
    on = Bench()
    committed(on, 5)
    on.ends.queues[TOPIC, 0] = (12, 1_000)
    assert [unconsumed(on, {0: minimum}) for minimum in (12, 13, 20)] == [[], [(GROUP, 1, 0)], [(GROUP, 8, 0)]]


@pytest.mark.parametrize(("minimum", "messages"), [(10, 0), (11, 1), (13, 3), (14, 3), (15, 3), (16, 4), (21, 8), (22, 8), (25, 8)])
def test_messages_that_were_finished_out_of_order_do_not_count(minimum: int, messages: int) -> None:
    on = Bench()
    member = joined(on, "a")
    member.lock(0)
    on.c.state.progress.record_commit((GROUP, TOPIC, 0), 10, 0, on.now_ms, done=(13, 15, 20, 30))
    assert unconsumed(on, {0: minimum}) == ([(GROUP, messages, 0)] if messages else [])


def test_group_that_begins_at_the_first_message_of_a_queue_counts() -> None:
    """It subscribed before the topic existed, or the queue was added after it began."""
    on = Bench(layout("other"))
    Client(on, "a", ordered(consume_from_where=LAST)).connect()
    on.layouts.adopt(layout(queues=2))
    on.c.topic_created(TOPIC)
    on.ends.queues[TOPIC, 1] = (7, 100)
    assert unconsumed(on, {0: 20, 1: 30}) == [(GROUP, 20 + 23, 0)]
    joined(on, "b", ordered(consume_from_where=LAST))
    committed(on, 15)
    assert unconsumed(on, {0: 20, 1: 30}) == [(GROUP, 5 + 23, 0)]


def test_group_that_has_not_begun_does_not_count() -> None:
    on = Bench()
    Client(on, "a", ordered(consume_from_where=FIRST)).connect()
    assert unconsumed(on, {0: 20}) == []


def test_parked_key_counts_while_its_messages_wait_below() -> None:
    on = Bench()
    committed(on, 50)
    on.c.state.parks.park((GROUP, TOPIC, 0), "k", 10, 3, "poisoned", 0)
    assert [unconsumed(on, {0: minimum}) for minimum in (10, 11, 60)] == [[], [(GROUP, 0, 1)], [(GROUP, 10, 1)]]
    on.c.parking.control(ParkControlBody(ParkAction.REPLAY, GROUP, TOPIC, "k"))
    assert unconsumed(on, {0: 11}) == [(GROUP, 0, 1)]
    on.c.state.parks.commit_replay((GROUP, TOPIC, 0), "k", 50)
    on.c.state.parks.end_replay((GROUP, TOPIC, 0), "k", 0)
    assert unconsumed(on, {0: 50}) == []


def test_groups_with_the_most_messages_are_named_first() -> None:
    on = Bench()
    for number in range(NAMED_MAX + 2):
        committed(on, number, f"g{number}")
    named = describe_groups(unconsumed_groups(on.c.state, TOPIC, {0: 20}))
    assert named.startswith("g0 (20 messages), g1 (19 messages), ")
    assert named.endswith("g7 (13 messages) and 2 others")
    assert describe_groups([UnconsumedGroup("g", 1, 2)]) == "g (1 messages, 2 parked keys)"


# ------------------------------------------------------------------------------------------------------------- whole brokers


async def send_purge(peer: Peer, offsets: dict[int, int], topic: str = TOPIC, **options: bool) -> Command:
    body = PurgeBody(topic, tuple(QueueOffset(queue_id, offset) for queue_id, offset in offsets.items()), **options)
    return await peer.send_request(RequestCode.PURGE_TOPIC, None, bytes(encode_body(body)))


async def purged(peer: Peer, offsets: dict[int, int], **options: bool) -> PurgeReply:
    response = await send_purge(peer, offsets, **options)
    assert response.code == ResponseCode.SUCCESS, response.remark
    return decode_body(PurgeReply, response.body)


async def refused(peer: Peer, offsets: dict[int, int], topic: str = TOPIC, **options: bool) -> tuple[ResponseCode, str]:
    response = await send_purge(peer, offsets, topic, **options)
    return ResponseCode(response.code), response.remark or ""


async def fill(peer: Peer, queue_id: int = 0, count: int = 10) -> int:
    """Send messages. Return the log offset of the first one."""
    header, data, _ = frame(0, count, queue_id=queue_id)
    return place(await peer.done(RequestCode.SEND_RECORDS, header, data)).physical_offset


async def offsets_in(peer: Peer, queue_id: int = 0) -> list[int]:
    for first in range(11):
        if found := await stored(peer, TOPIC, queue_id, first):
            return [record.queue_offset for record in found]
    return []


def progress(broker: Broker, queue_id: int = 0) -> tuple[int, tuple[int, int] | None]:
    state = broker.running.state.coordination.state
    found = state.progress.get(("g", TOPIC, queue_id))
    assert found is not None
    return found.offset, found.gap


async def test_purge_removes_what_is_below_in_the_named_queues_and_survives_a_kill(tmp_path: Path) -> None:
    config = settings(tmp_path)
    broker = Broker(config, Host.real())
    await broker.start()
    async with dialled(broker) as peer:
        await peer.create()
        await fill(peer, 0)
        await fill(peer, 1)
        reply = await purged(peer, {0: 4, 1: 0})
        assert reply == PurgeReply((PurgedQueue(0, 0, 4), PurgedQueue(1, 0, 0)), (), 0)
        assert (await offsets_in(peer, 0), await offsets_in(peer, 1)) == ([*range(4, 10)], [*range(10)])
        assert (await purged(peer, {0: 2})).queues == (PurgedQueue(0, 4, 4),), "nothing is left there"
        assert (await purged(peer, {1: 10})).queues == (PurgedQueue(1, 0, 10),)
    await kill(broker)
    async with running(config) as broker, dialled(broker) as peer:
        assert (await offsets_in(peer, 0), await offsets_in(peer, 1)) == ([*range(4, 10)], [])


async def test_purge_is_refused_while_a_group_has_not_consumed_it_and_changes_nothing(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as peer, dialled(broker) as member:
        await peer.create()
        await fill(peer, 0)
        await fill(peer, 1)
        await join(member, "a@1#0", "a" * 32)
        code, remark = await refused(peer, {0: 4, 1: 2})
        assert code is ResponseCode.NO_PERMISSION
        assert "orders was not purged at broker-a: not all of it was consumed by g (6 messages)" in remark
        assert "--force" in remark
        assert (await offsets_in(peer, 0), await offsets_in(peer, 1)) == ([*range(10)], [*range(10)])
        for force in (False, True):
            reply = await purged(peer, {0: 4, 1: 2}, dry_run=True, force=force)
            assert reply == PurgeReply((PurgedQueue(0, 0, 4), PurgedQueue(1, 0, 2)), (UnconsumedGroup("g", 6, 0),), 1)
        assert (await offsets_in(peer, 0), progress(broker)) == ([*range(10)], (0, None))


async def test_forced_purge_moves_the_groups_and_reports_the_gap(tmp_path: Path) -> None:
    config = settings(tmp_path)
    async with running(config) as broker, dialled(broker) as peer, dialled(broker) as member:
        await peer.create()
        await fill(peer, 0)
        epoch = await join(member, "a@1#0", "a" * 32)
        held = member.pull(10, epoch=epoch, sys_flag=SUBSCRIPTION | SUSPEND, suspend_timeout_millis=20_000)
        reply = await purged(peer, {0: 4, 2: 0}, force=True)
        assert reply.groups == (UnconsumedGroup("g", 4, 0),)
        assert (progress(broker), progress(broker, 1)) == ((4, (0, 4)), (0, None))
        response = await member.pull(1, epoch=epoch)
        moved = from_plain(PullReply, response.fields)
        assert (ResponseCode(response.code), moved.next_begin_offset) == (ResponseCode.PULL_OFFSET_MOVED, 4)
        assert not held.done(), "it is above the purge, and waits on"
        header, data, _ = frame(10, 1, crc=frame(0, 10)[2])
        await peer.done(RequestCode.SEND_RECORDS, header, data)
        assert from_plain(PullReply, (await held).fields).next_begin_offset == 11
    async with running(config) as broker, dialled(broker) as member:
        await heartbeat(member, "a@1#0", "a" * 32, 2)
        result = await reconcile(member, LockItem("g", TOPIC, 0))
        assert (result.offset, result.gap_first, result.gap_end) == (4, 0, 4)


async def test_forced_purge_moves_parked_keys(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as peer, dialled(broker) as member:
        await peer.create()
        await fill(peer, 0)
        await join(member, "a@1#0", "a" * 32)
        state = broker.running.state.coordination.state
        state.parks.park(("g", TOPIC, 0), "k", 2, 3, "poisoned", 0)
        state.progress.record_commit(("g", TOPIC, 0), 6, 0, 0)
        code, remark = await refused(peer, {0: 5})
        assert (code, "g (0 messages, 1 parked keys)" in remark) == (ResponseCode.NO_PERMISSION, True)
        await purged(peer, {0: 5}, force=True)
        assert ([row.next for row in state.parks.rows(("g", TOPIC, 0))], progress(broker)) == ([5], (6, None))


@pytest.mark.parametrize(
    ("offsets", "topic", "words"),
    [
        ({0: 11}, TOPIC, "expected one offset from 0 to 10"),
        ({0: -1}, TOPIC, "expected one offset from 0 to 10"),
        ({0: 4, 9: 0}, TOPIC, "has no readable queue 9"),
        ({0: 4}, "unknown", "topic unknown does not exist"),
        ({0: 4}, SCHEDULE_TOPIC, "is the broker's own"),
        ({0: 4}, "no topic", "topic"),
    ],
)
async def test_purge_that_names_what_is_not_there_changes_nothing(tmp_path: Path, offsets: dict[int, int], topic: str, words: str) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as peer:
        await peer.create()
        await fill(peer, 0)
        for options in ({}, {"force": True}, {"dry_run": True}):
            assert words in (await refused(peer, offsets, topic, **options))[1]
        twice = PurgeBody(TOPIC, (QueueOffset(0, 1), QueueOffset(0, 2)))
        response = await peer.send_request(RequestCode.PURGE_TOPIC, None, bytes(encode_body(twice)))
        assert "expected one offset from 0 to 10 for each queue" in (response.remark or "")
        assert await offsets_in(peer) == [*range(10)]


@pytest.mark.parametrize("how", ["purge", "deletion"])
async def test_message_is_not_found_by_its_log_offset_when_it_is_purged_or_deleted(tmp_path: Path, how: str) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as peer:
        made = await peer.create()
        at = await fill(peer, 0)
        header = ViewMessageHeader(at)
        assert (await peer.send_request(RequestCode.VIEW_MESSAGE_BY_ID, header)).code == ResponseCode.SUCCESS
        if how == "purge":
            await purged(peer, {0: 1})
        else:
            await peer.create(made.deletion)
        response = await peer.send_request(RequestCode.VIEW_MESSAGE_BY_ID, header)
        assert f"no message begins at log offset {at}" in (response.remark or "")


async def test_message_in_hand_is_sent_back_after_its_purge(tmp_path: Path) -> None:
    """Otherwise its member calls it again and again, and the span limit of the queue ends the pulls of all others."""
    async with running(settings(tmp_path)) as broker, dialled(broker) as peer, dialled(broker) as member:
        await peer.create()
        at = await fill(peer, 0)
        await join(member, "a@1#0", "a" * 32)
        await purged(peer, {0: 9}, force=True)
        header = SendBackHeader(at, "g", 0, "", TOPIC, max_reconsume_times=16)
        response = await member.send_request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
        assert response.code == ResponseCode.SUCCESS, response.remark
        assert broker.running.state.topics.find_layout(retry_topic("g")) is not None


@pytest.mark.parametrize("parked", [False, True])
async def test_message_that_was_purged_is_not_parked_and_its_member_drops_the_queue(tmp_path: Path, parked: bool) -> None:
    """`parked`: an earlier PARK was carried out, and its response was lost."""
    async with running(settings(tmp_path)) as broker, dialled(broker) as peer, dialled(broker) as member:
        await peer.create()
        await fill(peer, 0)
        epoch = await join(member, "a@1#0", "a" * 32)
        state = broker.running.state.coordination.state
        if parked:
            state.parks.park(("g", TOPIC, 0), "k", 0, 3, "poisoned", 0)
        await purged(peer, {0: 4}, force=True)
        response = await member.send_request(RequestCode.PARK, ParkHeader("g", TOPIC, 0, epoch, 0, 3, "x"))
        assert (response.code, "was removed, the queue begins at 4" in (response.remark or "")) == (ResponseCode.STALE_EPOCH, True)
        assert [row.next for row in state.parks.rows(("g", TOPIC, 0))] == [4] * parked
        result = await reconcile(member, LockItem("g", TOPIC, 0))
        assert (result.verdict, result.offset) == (LockVerdict.OK, 4)
        assert result.epoch != epoch


@pytest.mark.parametrize(("offset", "after"), [(7, 20), (20, 20), (25, 25)])
def test_commit_without_an_epoch_from_below_a_purge_is_no_reset(offset: int, after: int) -> None:
    """A classic client commits at intervals what it had at hand."""
    on = Bench()
    committed(on, 5)
    on.ends.queues[TOPIC, 0] = (20, 1_000)
    on.retention_moved({(TOPIC, 0): 20})
    before = on.c.state.progress.get((GROUP, TOPIC, 0))
    assert before is not None
    committed(on, offset)
    progress = on.c.state.progress.get((GROUP, TOPIC, 0))
    assert progress is not None
    assert (progress.generation, progress.offset) == (before.generation, after)


# ------------------------------------------------------------------------------------------------------- lockstep store check


@pytest.mark.parametrize("removal", ["purged", "deleted", "deleted and created again"])
async def test_check_of_a_killed_store_does_not_miss_what_was_removed_since_its_snapshot(
    tmp_path: Path, removal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot has the bounds of the queue from before, and the files of an emptied queue are removed at once."""
    config = settings(tmp_path)
    small = replace(config.store_config(), queue_file_entries=4)
    monkeypatch.setattr(BrokerConfig, "store_config", lambda _: small)
    async with running(config) as broker, dialled(broker) as client:
        await client.create()
        header, body, _ = frame(0, 20)
        await client.done(RequestCode.SEND_RECORDS, header, body)
        await broker.running.maintenance.snapshot()
        if removal == "purged":
            purge = PurgeBody(TOPIC, (QueueOffset(0, 20),))
            await client.done(RequestCode.PURGE_TOPIC, body=encode_body(purge))
        else:
            deleted = (await client.create()).deletion
            await client.create(deleted)
            if removal != "deleted":
                await client.create(replace(LAYOUT, version=LayoutVersion(deleted.version.counter + 1, 7)))
        await kill(broker)
    report = await check_store(ReadOnlyFiles(), str(tmp_path / "store"), lambda position, end: None, closed_state)
    assert (report.problems, report.record_count > 20) == ([], True)
