"""A whole broker: the state that survives a restart."""

from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.broker.app import Broker
from lockstep.broker.classic.relay import RELAY_LANE
from lockstep.broker.processors.cold_reads import COLD_COUNT_MAX
from lockstep.broker.processors.topic import ROUTE_LANE
from lockstep.broker.running import LANES, RunningBroker
from lockstep.broker.store import Store
from lockstep.broker.store.health.repair import RUNNING_MAX as REPAIRS_AT_ONCE
from lockstep.protocol.bodies import (
    ConsumerGroup,
    HeartbeatBody,
    LockItem,
    LockVerdict,
    SessionLockBody,
    SessionLockReply,
    Subscription,
    SyncBody,
    SyncItem,
)
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.errors import ConfigError, LockstepError
from lockstep.protocol.headers.offsets import QueueHeader
from lockstep.protocol.headers.send import SendRecordsHeader
from lockstep.protocol.messages.record import encode_record
from lockstep.protocol.messages.sequence import FrameSequence, seal_frame
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from lockstep.runtime.clock import Clock
from lockstep.runtime.host import THREADS_MAX, Host
from support.native import bodies
from support.whole_broker import (
    LAYOUT,
    PRODUCER,
    TOPIC,
    Client,
    dialled,
    frame,
    heartbeat,
    join,
    kill,
    place,
    reconcile,
    running,
    settings,
    stop,
)


async def pull_all(client: Client) -> list[bytes]:
    """Return all messages of queue 0, with as many pulls as necessary."""
    found: list[bytes] = []
    while (response := await client.pull(len(found))).code == ResponseCode.SUCCESS:
        found += bodies(response)
    return found


@pytest.mark.parametrize("end", [stop, kill])
async def test_messages_topics_sequences_and_locks_survive_a_restart(
    tmp_path: Path, end: Callable[[Broker], Coroutine[Any, Any, None]]
) -> None:
    broker = Broker(settings(tmp_path), Host.real())
    await broker.start()
    header, data, crc = frame(0, 3)
    async with dialled(broker) as client:
        await client.create()
        first = place(await client.done(RequestCode.SEND_RECORDS, header, data))
        grant = await join(client, "a@1#0", "0" * 32)
        await client.done(RequestCode.SYNC, body=encode_body(SyncBody((SyncItem("g", TOPIC, 0, epoch=grant, offset=2, attempts=1),))))
        term = broker.term
        await end(broker)
    async with running(settings(tmp_path)) as again, dialled(again) as client:
        assert again.term > term
        assert place(await client.done(RequestCode.SEND_RECORDS, header, data)) == replace(first, store_host=again.address)
        following, more, _ = frame(3, 1, crc=crc)
        assert place(await client.done(RequestCode.SEND_RECORDS, following, more)).queue_offset == 3
        assert await pull_all(client) == [b"m0", b"m1", b"m2", b"m3"]
        assert await client.create() == LAYOUT
        await heartbeat(client, "a@1#0", "0" * 32, connection=2)
        response = await reconcile(client, LockItem("g", TOPIC, 0, epoch=grant))
        assert (response.verdict, response.epoch, response.offset, response.attempts) == (LockVerdict.OK, grant, 2, 1)


class SuspendedClock(Clock):
    """The clock of a machine that was suspended for a day."""

    def boot_ms(self) -> int:
        return super().boot_ms() + 86_400_000


async def test_leases_are_measured_on_the_clock_that_counts_suspension(tmp_path: Path) -> None:
    clock = SuspendedClock()
    broker = Broker(settings(tmp_path), replace(Host.real(), clock=clock))
    try:
        await broker.start()
        async with dialled(broker) as client:
            await client.create()
            epoch = await join(client, "a@1#0", "0" * 32)
            for request in ("heartbeat", "lock", "sync", "anything"):
                if request == "heartbeat":
                    await heartbeat(client, "a@1#0", "0" * 32)
                elif request == "lock":
                    assert (await reconcile(client, LockItem("g", TOPIC, 0, epoch))).verdict is LockVerdict.OK
                elif request == "sync":
                    await client.done(RequestCode.SYNC, body=encode_body(SyncBody()))
                else:
                    await client.done(RequestCode.GET_MAX_OFFSET, QueueHeader(TOPIC, 0))
                broker.state.coordination.tick(clock.boot_ms() + 4_000)  # the grace of the start is over
                assert broker.state.coordination.membership.member_list("g") is not None, f"{request} was heard"
    finally:
        await broker.stop()


async def test_deleted_topic_and_its_messages_stay_hidden_after_a_restart(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        await client.create()
        header, data, _ = frame(0, 3)
        await client.done(RequestCode.SEND_RECORDS, header, data)
        await client.create(TopicLayout(TOPIC, LayoutVersion(2, 7), ()))
        assert (await client.pull()).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await client.create()).version == LayoutVersion(3, 7)
        await kill(broker)
    async with running(settings(tmp_path)) as again, dialled(again) as client:
        assert (await client.create()).version == LayoutVersion(3, 7)
        assert bodies(await client.pull()) == []


@pytest.mark.parametrize(
    ("end", "boot", "flush", "flush_now", "held"),
    [
        (kill, "other", "async", "async", True),
        (kill, "other", "async", "sync", True),
        (kill, "same", "async", "async", False),
        (kill, "other", "sync", "async", False),
        (stop, "other", "async", "async", False),
    ],
)
async def test_loss_is_assumed_only_after_an_unclean_stop_a_reboot_and_async_flush(
    tmp_path: Path, end: Callable[[Broker], Coroutine[Any, Any, None]], boot: str, flush: str, flush_now: str, held: bool
) -> None:
    broker = Broker(settings(tmp_path, flush=flush), replace(Host.real(), boot_id=lambda: "same"))
    await broker.start()
    await end(broker)
    again = Broker(settings(tmp_path, flush=flush_now), replace(Host.real(), boot_id=lambda: boot))
    try:
        await again.start()
        assert again.state.coordination.state.grants_suspended is held
    finally:
        await again.stop()


async def test_start_abandoned_before_its_term_is_stored_is_not_a_clean_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next start would forget the crash that happened before."""
    broker = Broker(settings(tmp_path), replace(Host.real(), boot_id=lambda: "first"))
    await broker.start()
    await kill(broker)
    blocked = Broker(settings(tmp_path), replace(Host.real(), boot_id=lambda: "second"))
    with monkeypatch.context() as patch:
        patch.setattr(RunningBroker, "enter_term", refuse_term)
        with pytest.raises(ConfigError):
            await blocked.start()
    await blocked.stop()
    again = Broker(settings(tmp_path), replace(Host.real(), boot_id=lambda: "second"))
    try:
        await again.start()
        assert again.state.coordination.state.grants_suspended
    finally:
        await again.stop()


async def test_broker_that_never_started_does_not_log_that_it_stopped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with running(settings(tmp_path / "one")) as one:
        two = Broker(settings(tmp_path / "two", listen=(one.address,)), Host.real())
        with pytest.raises(LockstepError, match="address already in use"):
            await two.start()
        await two.stop()
        assert "broker.stopped" not in caplog.text
    assert caplog.text.count("broker.stopped") == 1


async def test_boot_id_is_stored_after_the_term_is_durable_and_before_the_port_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed in between must not forget the machine's crash; no fence may be reported that a crash could take back."""
    broker = Broker(settings(tmp_path), Host.real())
    seen: list[int] = []
    mark_boot = Store.mark_boot

    async def watched(store: Store, boot_id: str) -> None:
        assert broker.term > 0
        assert len(broker.state.journal) == 0
        assert store._log.synced == store._log.end > 0
        assert not broker.running.server._open
        seen.append(broker.term)
        await mark_boot(store, boot_id)

    monkeypatch.setattr(Store, "mark_boot", watched)
    try:
        await broker.start()
        assert seen == [broker.term]
    finally:
        await broker.stop()


async def refuse_term(*_: object) -> None:
    raise ConfigError("given up")


def test_thread_pool_has_a_free_thread_for_log_syncs() -> None:
    single = ("a snapshot", "retention", "delayed messages", "the scrub", "a scrape", "check-back")
    in_lanes = sum(lane.concurrency for name, lane in LANES.items() if name not in (ROUTE_LANE, RELAY_LANE))
    others = COLD_COUNT_MAX + REPAIRS_AT_ONCE + in_lanes + len(single)
    assert others < THREADS_MAX


async def test_unchecked_sequence_property_does_not_reach_the_log(tmp_path: Path) -> None:
    """Recovery would take its CRC for that of a torn frame, and lose everything acknowledged after it."""
    broker = Broker(settings(tmp_path), Host.real())
    await broker.start()
    _, data, _ = frame(0, 1)
    plain = SendRecordsHeader(TOPIC, 0, 1)
    async with dialled(broker) as client:
        await client.create()
        refused = await client.send_request(RequestCode.SEND_RECORDS, plain, data.replace(b"__LS_SEQ\x01ab", b"__LS_SEQ\x01cd"))
        assert (refused.code, "__LS_" in str(refused.remark)) == (ResponseCode.MESSAGE_ILLEGAL, True)
        await client.done(RequestCode.SEND_RECORDS, plain, encode_record(TOPIC.encode(), 0, b"behind it", b"", born_ms=1))
        await kill(broker)
    async with running(settings(tmp_path)) as again, dialled(again) as client:
        await client.create()
        assert bodies(await client.pull()) == [b"behind it"]


async def test_numbers_beyond_int64_are_rejected_and_snapshots_can_be_written(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        await client.create()
        for epoch, first in ((1, (1 << 64) - 1), (1 << 63, 0), (1, (1 << 63) - 1)):
            header = SendRecordsHeader(TOPIC, 0, 1, None, None, PRODUCER, 0, epoch, first, True, 0)
            refused = await client.send_request(RequestCode.SEND_RECORDS, header, encode_record(TOPIC.encode(), 0, b"x", b"", born_ms=1))
            assert (refused.code, "does not fit" in str(refused.remark)) == (ResponseCode.MESSAGE_ILLEGAL, True)
        data, sealed = seal_frame(
            [encode_record(TOPIC.encode(), 0, b"x", b"", born_ms=1)],
            FrameSequence(PRODUCER, 0, (1 << 63) - 1, (1 << 63) - 2, 1, True, 0),
            0,
        )
        place = (1 << 63) - 1, (1 << 63) - 2
        await client.done(RequestCode.SEND_RECORDS, SendRecordsHeader(TOPIC, 0, 1, None, None, PRODUCER, 0, *place, True, sealed.crc), data)
        await broker.running.maintenance.snapshot()


async def test_changes_of_a_turn_larger_than_a_log_file_are_split(tmp_path: Path) -> None:
    count = 12_000
    wide = TopicLayout(TOPIC, LayoutVersion(1, 7), (LayoutEntry("broker-a", count, count, 1),))
    config = settings(tmp_path, segment_mib=1)
    broker = Broker(config, Host.real())
    await broker.start()
    async with dialled(broker) as client:
        await client.create(wide)
        await heartbeat(client, "a@1#0", "0" * 32)
        items = tuple(LockItem("g", TOPIC, queue_id) for queue_id in range(count))
        response = await client.done(RequestCode.LOCK_BATCH_MQ, body=encode_body(SessionLockBody(items)))
        granted = decode_body(SessionLockReply, response.body).items
        assert {item.verdict for item in granted} == {LockVerdict.OK}
        await kill(broker)
    async with running(config) as again, dialled(again) as client:
        await heartbeat(client, "a@1#0", "0" * 32, connection=2)
        response = await client.done(
            RequestCode.LOCK_BATCH_MQ, body=encode_body(SessionLockBody(tuple(LockItem("g", TOPIC, x.queue_id, x.epoch) for x in granted)))
        )
        assert {item.verdict for item in decode_body(SessionLockReply, response.body).items} == {LockVerdict.OK}


async def test_contract_larger_than_a_log_file_is_rejected_and_the_broker_continues(tmp_path: Path) -> None:
    async with running(settings(tmp_path, segment_mib=1)) as broker, dialled(broker) as client:
        group = ConsumerGroup("g", (Subscription(TOPIC, "x" * 1_040_000),), ordered=True)
        refused = await client.send_request(RequestCode.HEART_BEAT, body=encode_body(HeartbeatBody("a@1#0", (group,), session="0" * 32)))
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert refused.remark == "the subscription has 1040000 characters: at most 8192"
        await heartbeat(client, "a@1#0", "0" * 32)


@pytest.mark.parametrize(("hours", "reported"), [(3, 0), (2, 1)])
async def test_delay_longer_than_retention_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture, hours: float, reported: int) -> None:
    async with running(settings(tmp_path, retention_hours=hours)):
        lines = [record.getMessage() for record in caplog.records if "delay.outlives_retention" in record.getMessage()]
    assert len(lines) == reported
    assert all("2h" in line for line in lines)
