"""A broker takes over the directory of RocketMQ's broker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lockstep.broker.app import Broker
from lockstep.broker.rocketmq_store import adoption
from lockstep.broker.rocketmq_store.errors import AdoptionError
from lockstep.broker.rocketmq_store.foreign_log import ForeignLog
from lockstep.broker.store.errors import StoreCorruptError
from lockstep.broker.tables.topic_table import TopicTable
from lockstep.nameserver.app import Nameserver
from lockstep.nameserver.config import NameserverConfig
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import TransportError
from lockstep.protocol.headers.offsets import QueueHeader
from lockstep.protocol.messages.record import SYS_BORN_IPV6, SYS_IPV6_MASK, SYS_STORE_IPV6, RecordView, encode_record, split_records
from lockstep.protocol.messages.sequence import FrameSequence, seal_frame
from lockstep.protocol.names import SCHEDULE_TOPIC
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from lockstep.runtime.host import Host
from lockstep.runtime.security.client_security import NO_SECURITY
from support.adoption import (
    LEVEL_1,
    foreign_directory,
    offset_of,
    pull,
    start_fails,
    start_that_is_killed,
)
from support.foreign_store import FILE_BYTES, STORED_MS, ForeignDirectory, topic_entry
from support.until import until
from support.whole_broker import dialled, running, settings


@pytest.fixture
def foreign(tmp_path: Path) -> ForeignDirectory:
    return foreign_directory(tmp_path)


async def test_start_without_the_flag_is_refused(foreign: ForeignDirectory, tmp_path: Path) -> None:
    await start_fails(tmp_path, AdoptionError, "start with --adopt to take it over")


async def test_config_files_alone_need_the_flag(tmp_path: Path) -> None:
    ForeignDirectory(tmp_path / "store").write(topic_entry("orders", 3))
    await start_fails(tmp_path, AdoptionError, "another program made it")
    async with running(settings(tmp_path, adopt=True)) as broker:
        layout = broker.state.topics.require_layout("orders")
        assert (layout.version.counter, layout.read_count("broker-a"), layout.write_count("broker-a")) == (1, 3, 3)


async def test_messages_topics_and_progress_are_taken_over(foreign: ForeignDirectory, tmp_path: Path) -> None:
    async with running(settings(tmp_path, adopt=True)) as broker, dialled(broker) as client:
        assert await pull(client, "orders", 0) == [b"m%d" % number for number in range(0, 40, 2)]
        assert await pull(client, "orders", 1) == [b"m%d" % number for number in range(1, 40, 2)]
        assert sorted(layout.topic for layout in broker.state.layouts.all()) == ["later", "orders"]
        assert offset_of(broker, "orders", 0) == 5
        assert offset_of(broker, "orders", 1) == 20
        assert broker.state.coordination.state.progress.groups() == ["billing"]
        assert not broker.state.coordination.state.settings.may_consume("stopped")
        assert broker.state.coordination.state.settings.may_consume("billing")
    async with running(settings(tmp_path)) as broker:
        assert offset_of(broker, "orders", 0) == 5, "the next start needs no flag and keeps the progress"
    assert len(list((tmp_path / "store" / "commitlog").iterdir())) == 2
    assert {path.stat().st_size for path in (tmp_path / "store" / "commitlog").iterdir()} == {FILE_BYTES}


async def test_delayed_messages_are_delivered_once_from_the_stored_offset(foreign: ForeignDirectory, tmp_path: Path) -> None:
    async with running(settings(tmp_path, adopt=True)) as broker:
        await until(lambda: broker.state.delays.next_offset(LEVEL_1 - 1) == 3)
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        assert await pull(client, "later", 0) == [b"d1", b"d2"]


async def test_records_with_ipv6_hosts_are_served_and_delivered(tmp_path: Path) -> None:
    """RocketMQ's brokers write them; lockstep's copies of them have IPv4 hosts."""
    directory = ForeignDirectory(tmp_path / "store")
    flags = (0, SYS_STORE_IPV6, SYS_BORN_IPV6, SYS_IPV6_MASK)
    for number in range(200):
        directory.add("orders", b"m%d" % number, queue_id=number // 2 % 2, properties=b"TAGS\x01paid\x02", sys_flag=flags[number % 4])
    delayed = b"DELAY\x011\x02REAL_TOPIC\x01later\x02REAL_QID\x010\x02"
    directory.add(SCHEDULE_TOPIC, b"late", properties=delayed, sys_flag=SYS_IPV6_MASK)
    directory.write(topic_entry("orders", 2), topic_entry("later", 1))
    async with running(settings(tmp_path, adopt=True)) as broker:
        await until(lambda: broker.state.delays.next_offset(LEVEL_1 - 1) == 1)
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        found = await pull(client, "orders", 0) + await pull(client, "orders", 1)
        assert set(found) == {b"m%d" % number for number in range(200)}
        assert await pull(client, "later", 0) == [b"late"]
        earliest = await client.send_request(RequestCode.GET_EARLIEST_MSG_STORETIME, QueueHeader("orders", 1))
        assert earliest.fields["timestamp"] == STORED_MS
    assert len(list((tmp_path / "store" / "commitlog").iterdir())) > 1


async def test_topic_closed_to_writers_and_stored_queues_above_the_count_stay_readable(tmp_path: Path) -> None:
    directory = ForeignDirectory(tmp_path / "store")
    directory.add("orders", b"high", queue_id=5)
    directory.write(topic_entry("orders", 2, perm=4))
    async with running(settings(tmp_path, adopt=True)) as broker, dialled(broker) as client:
        layout = broker.state.topics.require_layout("orders")
        assert (layout.read_count("broker-a"), layout.write_count("broker-a")) == (6, 0)
        assert await pull(client, "orders", 5) == [b"high"]


@pytest.mark.parametrize("empty", [False, True])
async def test_copy_counts_if_the_other_broker_was_killed_while_it_replaced_a_file(
    foreign: ForeignDirectory, tmp_path: Path, empty: bool
) -> None:
    path = tmp_path / "store" / "config" / "consumerOffset.json"
    path.rename(path.with_name("consumerOffset.json.bak"))
    if empty:
        path.touch()
    async with running(settings(tmp_path, adopt=True)) as broker:
        assert offset_of(broker, "orders", 0) == 5


async def test_start_that_was_killed_before_everything_was_taken_over_is_repeated(
    foreign: ForeignDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start_that_is_killed(tmp_path, monkeypatch)
    broker = Broker(settings(tmp_path), Host.real())
    with pytest.raises(AdoptionError, match="--adopt"):
        await broker.start()
    await broker.stop()
    async with running(settings(tmp_path, adopt=True)) as broker:
        assert offset_of(broker, "orders", 0) == 5


async def test_retry_that_the_other_broker_copied_from_our_frame_is_a_message(tmp_path: Path) -> None:
    """It keeps the property with which a frame begins, and no frame follows."""
    (first, *_), _ = records_of_a_frame(3)
    directory = ForeignDirectory(tmp_path / "store")
    properties = RecordView(first).properties + b"\x02RETRY_TOPIC\x01orders\x02"
    directory.add("%RETRY%billing", b"again", properties=properties)
    directory.add("orders", b"next")
    directory.write(topic_entry("orders", 1), topic_entry("%RETRY%billing", 1))
    for adopts in (True, False):
        async with running(settings(tmp_path, adopt=adopts)) as broker, dialled(broker) as client:
            assert await pull(client, "%RETRY%billing", 0) == [b"again"]
            assert await pull(client, "orders", 0) == [b"next"]


async def test_record_that_is_read_as_a_torn_frame_is_not_cut(tmp_path: Path) -> None:
    (first, *_), _ = records_of_a_frame(3)
    directory = ForeignDirectory(tmp_path / "store")
    directory.add("orders", b"copy", properties=RecordView(first).properties)
    directory.add("orders", b"next")
    directory.write(topic_entry("orders", 1))
    log = (tmp_path / "store" / "commitlog" / f"{0:020d}").read_bytes()
    broker = Broker(settings(tmp_path, adopt=True), Host.real())
    with pytest.raises(StoreCorruptError, match="of the 3 records of the frame at 0"):
        await broker.start()
    await broker.stop()
    assert (tmp_path / "store" / "commitlog" / f"{0:020d}").read_bytes() == log


def records_of_a_frame(count: int) -> tuple[list[bytes], FrameSequence]:
    """Return the records of a frame of an idempotent producer."""
    records = [encode_record(b"orders", 0, b"%d" % number, b"", born_ms=1) for number in range(count)]
    data, sequence = seal_frame(records, FrameSequence("ab" * 16, 0, 1, 0, count, True, 0), 0)
    return [data[begin:end] for begin, end in split_records(data)], sequence


@asynccontextmanager
async def nameserver() -> AsyncIterator[str]:
    server = Nameserver(NameserverConfig(listen=("127.0.0.1:0",)), Host.real())
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop()


@pytest.mark.parametrize("deleted", [False, True])
async def test_topic_that_the_cluster_has_or_has_deleted_keeps_its_messages(
    foreign: ForeignDirectory, tmp_path: Path, deleted: bool
) -> None:
    """A deletion deletes each layout that was made without knowledge of it, with its messages."""
    layout = TopicLayout("orders", LayoutVersion(1, 7), (LayoutEntry("broker-b", 3, 3, 1),))
    other = {"name": "broker-b", "store": str(tmp_path / "other")}
    async with nameserver() as address, running(settings(tmp_path, nameserver=address, **other)) as broker, dialled(broker) as client:
        await client.create(layout)
        if deleted:
            await client.create(layout.deletion)
        async with running(settings(tmp_path, nameserver=address, adopt=True)) as ours, dialled(ours) as own_client:
            await until(lambda: broker.state.topics.require_layout("orders") == ours.state.topics.require_layout("orders"))
            assert len(await pull(own_client, "orders", 0)) == 20
            assert offset_of(ours, "orders", 0) == 5
            found = ours.state.topics.require_layout("orders")
            assert (found.read_count("broker-a"), found.read_count("broker-b")) == (2, 0 if deleted else 3)


@pytest.mark.parametrize("registers", [True, False])
async def test_nameserver_that_has_just_started_is_asked_again(
    foreign: ForeignDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registers: bool
) -> None:
    """It knows no deletion before the other brokers have registered. If there are none, the start goes on without."""
    layout = TopicLayout("orders", LayoutVersion(1, 7), (LayoutEntry("broker-b", 3, 3, 1),))
    other = {"name": "broker-b", "store": str(tmp_path / "other")}
    async with nameserver() as address, running(settings(tmp_path, nameserver=address, **other)) as broker, dialled(broker) as client:
        await client.create(layout)
        await client.create(layout.deletion)
    layouts_at, asked = adoption._layouts_at, 0

    async with nameserver() as address, AsyncExitStack() as stack:

        async def ask(*args: Any) -> tuple[list[TopicLayout], bool]:
            nonlocal asked
            asked += 1
            answer = await layouts_at(*args)
            if asked == 1:
                assert not answer[1], "no broker has registered"
                if registers:
                    await stack.enter_async_context(running(settings(tmp_path, nameserver=address, **other)))
            return answer

        monkeypatch.setattr(adoption, "_layouts_at", ask)
        monkeypatch.setattr(adoption, "RETRY_S", 0)
        monkeypatch.setattr(adoption, "SETTLE_MS", 1)
        ours = await stack.enter_async_context(running(settings(tmp_path, nameserver=address, adopt=True)))
        assert ours.state.topics.require_layout("orders").version.counter == (3 if registers else 1)
        assert asked > 1


async def test_every_nameserver_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """One alone may have been without contact to the others' brokers."""
    layout = TopicLayout("orders", LayoutVersion(2, 7), (LayoutEntry("broker-b", 3, 3, 1),))
    asked: list[str] = []

    async def ask(_host: Host, address: str, _security: object, _topics: object) -> tuple[list[TopicLayout], bool]:
        asked.append(address)
        if address == "a:1":
            return [], True
        if len(asked) < 4:
            raise TransportError("refused")
        return [layout], True

    monkeypatch.setattr(adoption, "_layouts_at", ask)
    monkeypatch.setattr(adoption, "RETRY_S", 0)
    assert await adoption.cluster_layouts(Host.real(), ["a:1", "b:1"], NO_SECURITY, ["orders"]) == {"orders": layout}
    assert asked == ["a:1", "b:1", "b:1", "b:1"]


async def test_many_topics_are_taken_over_in_turns_of_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If all queues were sorted for each topic, in one turn, other tasks, such as the admin port, would wait for seconds."""
    directory = ForeignDirectory(tmp_path / "store")
    names = [f"t{number}" for number in range(60)]
    for name in names:
        directory.add(name, b"x")
    directory.write(*(topic_entry(name) for name in names))
    at_turn = [0]
    create = TopicTable.create

    def count_turns() -> None:
        at_turn[0] += 1
        handle[0] = asyncio.get_running_loop().call_soon(count_turns)

    def created(self: TopicTable, *args: Any, **more: Any) -> TopicLayout:
        turns.append(at_turn[0])
        return create(self, *args, **more)

    turns: list[int] = []
    monkeypatch.setattr(TopicTable, "create", created)
    handle = [asyncio.get_running_loop().call_soon(count_turns)]
    async with running(settings(tmp_path, adopt=True)):
        handle[0].cancel()
    assert len(set(turns)) == len(turns) == 60
    log = ForeignLog()
    assert log.topics is log.topics, "it is computed once"
