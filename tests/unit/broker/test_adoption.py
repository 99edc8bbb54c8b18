"""A broker takes over the directory of RocketMQ's broker, and gives it back."""

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest

from lockstep.broker import adoption
from lockstep.broker.app import Broker
from lockstep.broker.export import export_store
from lockstep.broker.inspect_store import inspect_store
from lockstep.broker.store import foreign_checks
from lockstep.broker.store.append import ENTRY
from lockstep.broker.store.directory import StoreDirectory
from lockstep.broker.store.errors import AdoptionError, ExportError, IdentityError, StoreCorruptError
from lockstep.broker.store.foreign_config import config_text, parse_fastjson
from lockstep.broker.store.foreign_log import ForeignLog
from lockstep.broker.tables.topic_table import TopicTable
from lockstep.nameserver.app import Nameserver
from lockstep.nameserver.config import NameserverConfig
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import ConfigError, TransportError
from lockstep.protocol.headers.offsets import QueueHeader
from lockstep.protocol.headers.pull import SUBSCRIPTION, PullHeader
from lockstep.protocol.headers.send import SendMessageHeader
from lockstep.protocol.names import SCHEDULE_TOPIC
from lockstep.protocol.queue import LayoutEntry, LayoutVersion, TopicLayout
from lockstep.protocol.record import SYS_BORN_IPV6, SYS_IPV6_MASK, SYS_STORE_IPV6, RecordView, encode_record, split_records
from lockstep.protocol.sequence import FrameSequence, seal_frame
from lockstep.runtime.files import ReadOnlyFiles
from lockstep.runtime.host import Host
from support.foreign_store import FILE_BYTES, STORED_MS, ForeignDirectory, topic_entry
from support.native import bodies
from support.until import until
from support.whole_broker import Client, dialled, running, settings

SYSTEM = (
    topic_entry("TBW102", 8, perm=7),
    topic_entry("DefaultCluster", 16, perm=7),
    topic_entry("broker-a", 1, perm=7),
    topic_entry("DefaultCluster_REPLY_TOPIC", 1),
    topic_entry("rmq_sys_REVIVE_LOG_DefaultCluster", 8),
    topic_entry("rmq_sys_SYNC_BROKER_MEMBER_broker-a", 1, perm=1),
    topic_entry("SCHEDULE_TOPIC_XXXX", 18),
)
LEVEL_1 = 1
SECOND_MAGIC = bytes.fromhex("DAA320AB")
"""RocketMQ: MessageDecoder.MESSAGE_MAGIC_CODE_V2."""
FAR_MS = 4_102_444_800_000
"""2100-01-01: a timer that is never due in a test."""


@pytest.fixture
def foreign(tmp_path: Path) -> ForeignDirectory:
    """Return a directory with a log of two files: 40 messages in `orders`, and 3 in `later` with delays, of which one was delivered."""
    directory = ForeignDirectory(tmp_path / "store")
    for number in range(40):
        directory.add("orders", b"m%d" % number + bytes(500), queue_id=number % 2, properties=b"TAGS\x01a\x02")
    for number in range(3):
        directory.add_delayed(b"d%d" % number, topic="later", level=LEVEL_1)
    write(directory)
    return directory


def write(directory: ForeignDirectory, *topics: dict[str, Any]) -> None:
    offsets = {"orders@billing": {0: 5, 1: 20}, "rmq_sys_wheel_timer@CID_RMQ_SYS_TIMER": {0: 1}, "gone@billing": {0: 1}}
    entries = (topic_entry("orders", 2), topic_entry("later", 1), *SYSTEM, *topics)
    directory.write(*entries, offsets=offsets, disabled=("stopped",), delays={LEVEL_1: 1})


async def pull(client: Client, topic: str, queue_id: int, offset: int = 0) -> list[bytes]:
    header = PullHeader("g", topic, queue_id, offset, max_msg_nums=100, sys_flag=SUBSCRIPTION, max_msg_bytes=1 << 20)
    return [body.rstrip(b"\0") for body in bodies(await client.send_request(RequestCode.PULL_MESSAGE, header))]


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != "lock"}


def offset_of(broker: Broker, topic: str, queue_id: int, group: str = "billing") -> int | None:
    progress = broker.state.coordination.state.progress.get((group, topic, queue_id))
    return None if progress is None else progress.offset


async def start_fails(tmp_path: Path, error: type[Exception], match: str, **options: Any) -> None:
    """Assert that a start fails, with words, and changes nothing."""
    before = contents(tmp_path / "store")
    broker = Broker(settings(tmp_path, **options), Host.real())
    with pytest.raises(error, match=match):
        await broker.start()
    await broker.stop()
    assert contents(tmp_path / "store") == before


# ----------------------------------------------------------------------------------------------------------------------- adopt


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


async def start_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start with --adopt, and fail before what the other broker has left is recorded."""

    def killed(*_: object) -> None:
        raise StoreCorruptError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("lockstep.broker.app.adopt", killed)
        broker = Broker(settings(tmp_path, adopt=True), Host.real())
        with pytest.raises(StoreCorruptError, match="killed"):
            await broker.start()
        await broker.stop()


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

    async def ask(_host: Host, address: str, _topics: object) -> tuple[list[TopicLayout], bool]:
        asked.append(address)
        if address == "a:1":
            return [], True
        if len(asked) < 4:
            raise TransportError("refused")
        return [layout], True

    monkeypatch.setattr(adoption, "_layouts_at", ask)
    monkeypatch.setattr(adoption, "RETRY_S", 0)
    assert await adoption.cluster_layouts(Host.real(), ["a:1", "b:1"], ["orders"]) == {"orders": layout}
    assert asked == ["a:1", "b:1", "b:1", "b:1"]


async def test_many_topics_are_taken_over_in_turns_of_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier version sorted all queues for each topic, in one turn: other tasks, such as the admin port, waited for seconds."""
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


# --------------------------------------------------------------------------------------------------------------------- refusals


def wrong_hosts(directory: ForeignDirectory) -> None:
    directory.overwrite(directory.positions[3] + 36, SYS_IPV6_MASK.to_bytes(4, "big"))


def second_magic(directory: ForeignDirectory) -> None:
    directory.overwrite(directory.positions[3] + 4, SECOND_MAGIC)


@pytest.mark.parametrize(("harm", "words"), [(wrong_hosts, "its fields do not make its size"), (second_magic, "magic 0xdaa320ab")])
async def test_record_that_is_not_read_refuses_the_start_with_its_position(
    foreign: ForeignDirectory, tmp_path: Path, harm: Callable[[ForeignDirectory], None], words: str
) -> None:
    harm(foreign)
    foreign.write_log()
    await start_fails(tmp_path, StoreCorruptError, f"log position {foreign.positions[3]} .*{words}", adopt=True)


async def test_files_of_two_lengths_are_refused(foreign: ForeignDirectory, tmp_path: Path) -> None:
    with (tmp_path / "store" / "commitlog" / f"{FILE_BYTES:020d}").open("ab") as file:
        file.truncate(2 * FILE_BYTES)
    await start_fails(tmp_path, StoreCorruptError, "its log files are not of one length", adopt=True)


async def test_log_without_its_topics_is_refused(foreign: ForeignDirectory, tmp_path: Path) -> None:
    (tmp_path / "store" / "config" / "topics.json").unlink()
    await start_fails(
        tmp_path,
        StoreCorruptError,
        "topics.json is missing, and the log has messages of 1 topics, such as orders",
        adopt=True,
    )


@pytest.mark.parametrize("name", ["topics.json", "consumerOffset.json", "subscriptionGroup.json", "delayOffset.json"])
@pytest.mark.parametrize("content", ["[]", '{"x":', '{"topicConfigTable":{"a":1}}' + "x", "\ufffd"])
async def test_config_file_that_cannot_be_read_is_refused_by_name(
    foreign: ForeignDirectory, tmp_path: Path, name: str, content: str
) -> None:
    foreign.write_config(name, content)
    await start_fails(tmp_path, StoreCorruptError, f"config/{name} can't be read", adopt=True)


def no_log(directory: ForeignDirectory) -> None:
    (directory.root / "commitlog").rename(directory.root.parent / "elsewhere")


def no_last_log_file(directory: ForeignDirectory) -> None:
    (directory.root / "commitlog" / f"{FILE_BYTES:020d}").unlink()


def no_last_log_file_and_no_progress(directory: ForeignDirectory) -> None:
    no_last_log_file(directory)
    directory.write_queue("orders", 0)
    directory.write_config("consumerOffset.json", "{}")
    directory.write_config("delayOffset.json", "{}")


def delays_above_the_end(directory: ForeignDirectory) -> None:
    directory.write_config("delayOffset.json", '{"offsetTable":{1:4}}')


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (no_log, "offset 5 in queue 0 of orders, which ends at 0 .*storePathCommitLog"),
        (no_last_log_file, r"group billing has the offset 20 in queue 1 of orders, which ends at \d+ .*was a file not copied"),
        (no_last_log_file_and_no_progress, r"queue 0 of orders has a message at log position \d+, and the log ends at \d+"),
        (delays_above_the_end, "delivery of delayed messages has the offset 4 in queue 0 of SCHEDULE_TOPIC_XXXX, which ends at 3"),
    ],
)
async def test_directory_without_a_part_of_its_log_is_refused(
    foreign: ForeignDirectory, tmp_path: Path, harm: Callable[[ForeignDirectory], None], words: str
) -> None:
    harm(foreign)
    await start_fails(tmp_path, StoreCorruptError, words, adopt=True)
    found = await inspect_store(ReadOnlyFiles(), str(tmp_path / "store"))
    assert found.exit_code == 5


async def test_offsets_are_lowered_to_the_ends_of_queues_if_the_other_broker_was_killed(foreign: ForeignDirectory, tmp_path: Path) -> None:
    """The offsets may be on the disk before the log."""
    foreign.write_config("consumerOffset.json", '{"offsetTable":{"orders@billing":{0:5,1:999}}}')
    (tmp_path / "store" / "abort").write_text("4711")
    found = await inspect_store(ReadOnlyFiles(), str(tmp_path / "store"))
    assert found.exit_code == 0
    assert "was killed: group billing has the offset 999 in queue 1 of orders, which ends at 20 (1 of this kind)" in found.start
    async with running(settings(tmp_path, adopt=True)) as broker:
        assert offset_of(broker, "orders", 1) == 20


async def test_offset_in_a_queue_whose_messages_have_all_been_removed_is_none_of_a_missing_log(tmp_path: Path) -> None:
    """The consume queue tells where it ends. Its first entries are those of removed files."""
    directory = ForeignDirectory(tmp_path / "store")
    directory.add("orders", b"first" + bytes(FILE_BYTES - 200))
    directory.add("orders", b"last", queue_id=1)
    directory.write(topic_entry("orders", 2), offsets={"orders@billing": {0: 70, 1: 1}})
    (tmp_path / "store" / "commitlog" / f"{0:020d}").unlink()
    directory.write_queue("orders", 0, list(range(70)))
    async with running(settings(tmp_path, adopt=True)) as broker:
        assert offset_of(broker, "orders", 1) == 1


def empty_offsets(directory: ForeignDirectory) -> None:
    directory.write_config("consumerOffset.json", "")


def empty_delays_and_copy(directory: ForeignDirectory) -> None:
    directory.write_config("delayOffset.json", "")
    directory.write_config("delayOffset.json.bak", " ")


def no_offsets(directory: ForeignDirectory) -> None:
    (directory.root / "config" / "consumerOffset.json").unlink()


def no_delays(directory: ForeignDirectory) -> None:
    (directory.root / "config" / "delayOffset.json").unlink()


def rocksdb(directory: ForeignDirectory) -> None:
    (directory.root / "config" / "metadata").mkdir()
    directory.write_config("metadata/CURRENT", "MANIFEST-000004")


def no_file(directory: ForeignDirectory) -> None:
    (directory.root / "config" / "topics.json").unlink()
    (directory.root / "config" / "topics.json").mkdir()


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (empty_offsets, "consumerOffset.json is empty, and there is no copy"),
        (empty_delays_and_copy, "delayOffset.json is empty, and there is no copy"),
        (no_offsets, "consumerOffset.json is missing, and .* has 2 groups, such as billing: each would consume all messages again"),
        (no_delays, "delayOffset.json is missing, and the log has messages with a delay"),
        (rocksdb, "config/metadata is a RocksDB"),
        (no_file, "topics.json is a directory, expected a file"),
    ],
)
async def test_missing_part_of_the_configuration_is_refused(
    foreign: ForeignDirectory, tmp_path: Path, harm: Callable[[ForeignDirectory], None], words: str
) -> None:
    harm(foreign)
    found = await inspect_store(ReadOnlyFiles(), str(tmp_path / "store"))
    assert found.exit_code == 5
    await start_fails(tmp_path, StoreCorruptError, words, adopt=True)


def one_topic(name: str, **changes: Any) -> str:
    entries = [topic_entry("orders", 2), {**topic_entry(name), **changes}]
    return json.dumps({"topicConfigTable": {entry["topicName"]: entry for entry in entries}})


LONG = "g" * 100_000


@pytest.mark.parametrize(
    ("name", "content", "code", "words"),
    [
        ("consumerOffset.json", '{"offsetTable":{"orders@billing":{0:1e999}}}', 5, "the number inf: expected"),
        ("consumerOffset.json", '{"offsetTable":{"orders@billing":{0:2.5}}}', 5, "the number 2.5: expected"),
        ("consumerOffset.json", '{"offsetTable":{"orders@billing":{0:true}}}', 5, "the number True: expected"),
        ("consumerOffset.json", '{"offsetTable":{"orders@billing":{"1_0":1}}}', 5, "the key '1_0': expected a number"),
        ("consumerOffset.json", r'{"offsetTable":{"orders@b\ud800":{0:1}}}', 5, "surrogates not allowed"),
        ("consumerOffset.json", '{"offsetTable":{"orders@b c":{0:1}}}', 4, "group 'b c' contains illegal characters"),
        ("consumerOffset.json", f'{{"offsetTable":{{"orders@{LONG}":{{0:1}}}}}}', 4, "has 100000 characters"),
        ("subscriptionGroup.json", r'{"subscriptionGroupTable":{"g\ud800":{"consumeEnable":false}}}', 5, "surrogates not allowed"),
        ("subscriptionGroup.json", '{"subscriptionGroupTable":{"b c":{"consumeEnable":false}}}', 4, "contains illegal characters"),
        ("subscriptionGroup.json", '{"subscriptionGroupTable":{"g":{"consumeEnable":1}}}', 5, "consumeEnable of group g is 1"),
        ("subscriptionGroup.json", '{"subscriptionGroupTable":{"g":null}}', 5, "has no attribute"),
        ("topics.json", one_topic("x\ud800", perm=7), 5, "surrogates not allowed"),
        ("topics.json", one_topic("b c"), 4, "topic 'b c' contains illegal characters"),
        ("topics.json", one_topic("many", readQueueNums=16_385), 4, "topic many has 16385 queues, 16384 allowed"),
        ("topics.json", one_topic("many", readQueueNums=-3), 5, "the number -3: expected 0 to"),
        ("topics.json", one_topic("many", readQueueNums=2**80), 5, "the number 12089.*: expected 0 to"),
        ("topics.json", one_topic("many", attributes=[1]), 5, "has no attribute"),
        ("delayOffset.json", '{"offsetTable":{1:1e999}}', 5, "the number inf: expected"),
        ("delayOffset.json", '{"offsetTable":{2000000000000:5}}', 5, "the number 2000000000000: expected"),
    ],
)
async def test_value_that_cannot_be_taken_over_is_refused_before_anything_is_written(
    foreign: ForeignDirectory, tmp_path: Path, name: str, content: str, code: int, words: str
) -> None:
    foreign.write_config(name, content)
    found = await inspect_store(ReadOnlyFiles(), str(tmp_path / "store"))
    assert found.exit_code == code
    await start_fails(tmp_path, AdoptionError if code == 4 else StoreCorruptError, f"config/{name}.*{words}", adopt=True)


async def test_too_many_topics_are_refused(foreign: ForeignDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_checks, "ADOPTED_MAX", 1)
    await start_fails(tmp_path, AdoptionError, "topics.json: 2 topics, 1 allowed", adopt=True)


async def test_names_of_topics_that_are_not_taken_over_may_have_other_characters(foreign: ForeignDirectory, tmp_path: Path) -> None:
    write(foreign, topic_entry("broker.a", perm=7), topic_entry("my.cluster_REPLY_TOPIC"))
    async with running(settings(tmp_path, adopt=True)) as broker:
        assert sorted(layout.topic for layout in broker.state.layouts.all()) == ["later", "orders"]


@pytest.mark.parametrize(("option", "word"), [("name", "broker broker-a"), ("cluster", "cluster DefaultCluster")])
async def test_other_name_than_the_one_that_the_topics_tell_is_refused(
    foreign: ForeignDirectory, tmp_path: Path, option: str, word: str
) -> None:
    await start_fails(tmp_path, IdentityError, f"is that of {word}.*--{option}", adopt=True, **{option: "other"})


async def test_topics_without_an_entry_are_named(foreign: ForeignDirectory, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    foreign.add("created-later", b"x")
    foreign.write_log()
    with caplog.at_level("INFO"):
        async with running(settings(tmp_path, adopt=True)):
            pass
    (adopted,) = [record.getMessage() for record in caplog.records if "store.adopted" in record.getMessage()]
    assert re.search(r"unknown_topics\W+created-later", adopted), adopted


def transactions(directory: ForeignDirectory) -> None:
    first, second = directory.add_half(), directory.add_half()
    directory.add_half()
    directory.end_halves(first, second)


def timers(directory: ForeignDirectory) -> None:
    directory.add_timer(FAR_MS)
    directory.add_timer(1_000)
    (directory.root / "config" / "timercheck").write_bytes((2_000).to_bytes(8, "big").ljust(4096, b"\0"))


def pop(directory: ForeignDirectory) -> None:
    directory.add("rmq_sys_REVIVE_LOG_DefaultCluster", b"checkpoint", queue_id=3)


def compaction(directory: ForeignDirectory) -> None:
    write(directory, {**topic_entry("latest", 1), "attributes": {"cleanup.policy": "COMPACTION"}})


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (transactions, "transactions", "1 messages of transactions that were neither committed nor rolled back"),
        (timers, "timers", "1 messages with a delay of any length"),
        (pop, "pop", "1 records of POP consumers"),
        (compaction, "compaction", "1 topics with compaction, such as latest"),
    ],
)
async def test_unfinished_work_is_refused_unless_it_is_named(
    foreign: ForeignDirectory, tmp_path: Path, make: Callable[[ForeignDirectory], None], kind: str, words: str
) -> None:
    make(foreign)
    foreign.write_log()
    await start_fails(tmp_path, AdoptionError, f"{words}.*--adopt-without {kind}", adopt=True)
    async with running(settings(tmp_path, adopt=True, adopt_without=(kind,))) as broker, dialled(broker) as client:
        assert len(await pull(client, "orders", 0)) == 20


@pytest.mark.parametrize(("delay_ms", "delivered"), [(1_000, 1), (7_000, 1), (7_000, 3)])
async def test_messages_that_wait_by_another_table_of_delays_are_refused(
    foreign: ForeignDirectory, tmp_path: Path, delay_ms: int, delivered: int
) -> None:
    """Their entries have the time when they are due. Those that were delivered do not matter."""
    entries = b"".join(ENTRY.pack(position, 100, STORED_MS + delay_ms) for position in foreign.positions_of(SCHEDULE_TOPIC, LEVEL_1 - 1))
    folder = tmp_path / "store" / "consumequeue" / SCHEDULE_TOPIC / "0"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}").write_bytes(entries.ljust(32 * ENTRY.size, b"\0"))
    foreign.write_config("delayOffset.json", f'{{"offsetTable":{{1:{delivered}}}}}')
    if (delay_ms, delivered) == (7_000, 1):
        words = "level 1 wait 7s by RocketMQ's messageDelayLevel, and would wait 1s here"
        await start_fails(tmp_path, AdoptionError, words, adopt=True)
        return
    async with running(settings(tmp_path, adopt=True)) as broker:
        await until(lambda: broker.state.delays.next_offset(LEVEL_1 - 1) == 3)


def test_unknown_kind_of_work_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="adopt_without is 'everything': expected transactions, timers, pop, compaction"):
        settings(tmp_path, adopt_without=("everything",))


# ------------------------------------------------------------------------------------------------------------------- there and back


async def test_export_writes_what_an_import_reads(foreign: ForeignDirectory, tmp_path: Path) -> None:
    root = tmp_path / "store"
    async with running(settings(tmp_path, adopt=True)) as broker, dialled(broker) as client:
        await until(lambda: broker.state.delays.next_offset(LEVEL_1 - 1) == 3)
        await client.done(RequestCode.SEND_MESSAGE, SendMessageHeader("p", "orders", 0), b"ours")
        progress = broker.state.coordination.state.progress
        progress.record_commit(("billing", "orders", 0), 9, 0, 1)
    before = {name: data for name, data in contents(root).items() if not name.startswith("config/")}
    exported = await export_store(Host.real(), str(root))
    assert (exported.topics, exported.groups, exported.queues, exported.delayed_messages) == (2, 1, 2, 0)
    assert exported.settings["mappedFileSizeCommitLog"] == str(FILE_BYTES)
    after = contents(root)
    assert {name for name in before if after.get(name) != before[name]} == {"lockstep/apache"}

    def table(name: str, key: str) -> dict[str, Any]:
        found = parse_fastjson(after[f"config/{name}"])[key]
        assert isinstance(found, dict)
        return found

    topics = table("topics.json", "topicConfigTable")
    assert topics["orders"] == {**topic_entry("orders", 2), "topicSysFlag": 0}
    assert topics["TBW102"]["perm"] == 7, "RocketMQ's own topics remain"
    assert topics["LOCKSTEP_SYS_STATE"]["perm"] == 0
    assert table("consumerOffset.json", "offsetTable") == {
        "orders@billing": {"0": 9, "1": 20},
        "rmq_sys_wheel_timer@CID_RMQ_SYS_TIMER": {"0": 1},
    }
    groups = table("subscriptionGroup.json", "subscriptionGroupTable")
    assert (groups["billing"]["retryMaxTimes"], groups["billing"]["consumeEnable"], groups["stopped"]["consumeEnable"]) == (3, True, False)
    assert table("delayOffset.json", "offsetTable") == {"1": 3}
    async with running(settings(tmp_path)) as broker:
        assert offset_of(broker, "orders", 0) == 9, "RocketMQ's broker has not run: no flag is needed"


async def test_directory_in_which_the_other_broker_has_run_is_taken_over_again(foreign: ForeignDirectory, tmp_path: Path) -> None:
    root = tmp_path / "store"
    async with running(settings(tmp_path, adopt=True)):
        pass
    await export_store(Host.real(), str(root))
    offsets = (root / "config" / "consumerOffset.json").read_text().replace("0:5", "0:7")
    (root / "config" / "consumerOffset.json").write_text(offsets)
    await start_fails(tmp_path, AdoptionError, "config/consumerOffset.json is not as this store has read or written it last")
    with pytest.raises(AdoptionError):
        await export_store(Host.real(), str(root))
    async with running(settings(tmp_path, adopt=True)) as broker:
        assert offset_of(broker, "orders", 0) == 7
    async with running(settings(tmp_path)) as broker:
        assert offset_of(broker, "orders", 0) == 7


async def test_directory_that_the_other_broker_has_left_open_is_noticed_by_its_process_id(
    foreign: ForeignDirectory, tmp_path: Path
) -> None:
    async with running(settings(tmp_path, adopt=True)):
        pass
    (tmp_path / "store" / "abort").write_text("4711")
    await start_fails(tmp_path, AdoptionError, "`abort` has a process id")
    broker = Broker(settings(tmp_path, adopt=True), Host.real())
    await broker.start()
    assert (tmp_path / "store" / "abort").read_bytes() == b""
    await broker.stop()


async def test_unreadable_record_behind_our_log_is_not_cut(foreign: ForeignDirectory, tmp_path: Path) -> None:
    """The other broker appends in the second format: a start that took it for an unfinished tail would cut it."""
    root = tmp_path / "store"
    async with running(settings(tmp_path, adopt=True)):
        pass
    await export_store(Host.real(), str(root))
    found = await inspect_store(ReadOnlyFiles(), str(root))
    other = ForeignDirectory(tmp_path / "other")
    other.add("orders", b"x")
    data = bytearray(other._log)
    data[4:8] = SECOND_MAGIC
    data[28:36] = found.log_end.to_bytes(8, "big")
    start = found.log_end // FILE_BYTES * FILE_BYTES
    with (root / "commitlog" / f"{start:020d}").open("r+b") as file:
        file.seek(found.log_end - start)
        file.write(data)
    (root / "config" / "consumerOffset.json").write_text("{}")
    await start_fails(tmp_path, StoreCorruptError, f"log position {found.log_end} .*magic 0xdaa320ab", adopt=True)


async def test_old_files_that_the_other_broker_has_removed_are_not_missed(foreign: ForeignDirectory, tmp_path: Path) -> None:
    root = tmp_path / "store"
    async with running(settings(tmp_path, adopt=True)):
        pass
    await export_store(Host.real(), str(root))
    (root / "commitlog" / f"{0:020d}").unlink()
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable":{"orders@billing":{0:3,1:19}}}')
    async with running(settings(tmp_path, adopt=True)) as broker, dialled(broker) as client:
        low = broker.state.coordination.state.bounds.bounds("orders", 0)[0]
        assert 0 < low < 20
        assert await pull(client, "orders", 0, low) == [b"m%d" % number for number in range(2 * low, 40, 2)]
        progress = broker.state.coordination.state.progress.get(("billing", "orders", 0))
        assert progress is not None
        assert (progress.offset, progress.gap) == (low, (3, low)), "the group is told what it has not consumed"
        assert offset_of(broker, "orders", 1) == 19


@pytest.mark.parametrize("killed", [False, True])
async def test_other_broker_has_removed_the_whole_log_of_ours(
    foreign: ForeignDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """The state of our last snapshot is gone. All of it that counts is in the files of the other broker."""
    root = tmp_path / "store"
    async with running(settings(tmp_path, adopt=True)) as broker:
        await until(lambda: broker.state.delays.next_offset(LEVEL_1 - 1) == 3)
        term = broker.term
        progress = broker.state.coordination.state.progress.get(("billing", "orders", 0))
        assert progress is not None
    await export_store(Host.real(), str(root))
    end = (await inspect_store(ReadOnlyFiles(), str(root))).log_end
    other = ForeignDirectory(tmp_path / "other")
    other.continue_at((end // FILE_BYTES + 1) * FILE_BYTES, {("orders", 0): 20, ("orders", 1): 20, ("later", 0): 2})
    for number in range(10):
        other.add("orders", b"n%d" % number, queue_id=number % 2)
    shutil.rmtree(root / "commitlog")
    other.write_log()
    (tmp_path / "other" / "commitlog").rename(root / "commitlog")
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable":{"orders@billing":{0:22,1:20}}}')
    found = await inspect_store(ReadOnlyFiles(), str(root))
    assert found.exit_code == 0
    if killed:
        await start_that_is_killed(tmp_path, monkeypatch)
    async with running(settings(tmp_path, adopt=True)) as broker, dialled(broker) as client:
        assert await pull(client, "orders", 0, 20) == [b"n%d" % number for number in range(0, 10, 2)]
        assert (offset_of(broker, "orders", 0), offset_of(broker, "orders", 1)) == (22, 20)
        assert broker.term > term
        after = broker.state.coordination.state.progress.get(("billing", "orders", 0))
        assert after is not None
        assert after.generation > progress.generation
        await commit(broker, 24)
        kept = root.with_name("copy")
        shutil.copytree(root, kept)
    async with running(settings(tmp_path)) as broker:
        assert offset_of(broker, "orders", 0) == 24
    assert not list(root.glob("lockstep/set-aside-*"))
    shutil.rmtree(root)
    kept.rename(root)
    async with running(settings(tmp_path)) as broker:
        assert offset_of(broker, "orders", 1) == 20, "without a snapshot: the log holds all state from its first file on"


async def test_progress_in_a_queue_whose_messages_have_all_been_removed_since_remains(tmp_path: Path) -> None:
    root = tmp_path / "store"
    directory = ForeignDirectory(root)
    for _ in range(3):
        directory.add("quiet", bytes(4000))
    for _ in range(6):
        directory.add("orders", bytes(4000))
    directory.write(topic_entry("orders", 1), topic_entry("quiet", 1), offsets={"quiet@billing": {0: 3}})
    async with running(settings(tmp_path, adopt=True)):
        pass
    await export_store(Host.real(), str(root))
    (root / "commitlog" / f"{0:020d}").unlink()
    (root / "config" / "subscriptionGroup.json").write_text('{"subscriptionGroupTable":{}}')
    async with running(settings(tmp_path, adopt=True)) as broker:
        progress = broker.state.coordination.state.progress.get(("billing", "quiet", 0))
        assert progress is not None
        assert (progress.offset, progress.gap) == (3, None)


async def test_removed_config_files_do_not_count_as_those_of_another_broker(foreign: ForeignDirectory, tmp_path: Path) -> None:
    async with running(settings(tmp_path, adopt=True)):
        pass
    for path in (tmp_path / "store" / "config").iterdir():
        path.unlink()
    async with running(settings(tmp_path)) as broker:
        assert offset_of(broker, "orders", 0) == 5


async def commit(broker: Broker, offset: int, queue_id: int = 0) -> None:
    broker.state.coordination.state.progress.record_commit(("billing", "orders", queue_id), offset, 0, 1)


@pytest.mark.parametrize("replaced", [0, 1, 2, 3])
async def test_export_that_fails_between_two_files_is_repeated_and_is_no_work_of_the_other_broker(
    foreign: ForeignDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: int
) -> None:
    root = tmp_path / "store"
    async with running(settings(tmp_path, adopt=True)) as broker:
        await commit(broker, 15)
    replace, count = StoreDirectory.replace, 0

    def full(self: StoreDirectory, path: str, *chunks: bytes) -> None:
        nonlocal count
        if path.startswith(f"{root}/config/") and path.endswith(".json"):
            if count == replaced:
                raise OSError(ENOSPC, "no space left on device")
            count += 1
        replace(self, path, *chunks)

    with monkeypatch.context() as patch:
        patch.setattr(StoreDirectory, "replace", full)
        with pytest.raises(OSError, match="no space"):
            await export_store(Host.real(), str(root))
    async with running(settings(tmp_path)) as broker:
        assert offset_of(broker, "orders", 0) == 15
    await export_store(Host.real(), str(root))
    offsets = parse_fastjson((root / "config" / "consumerOffset.json").read_bytes())["offsetTable"]
    assert offsets["orders@billing"]["0"] == 15


async def test_export_keeps_the_content_before_as_the_copy(foreign: ForeignDirectory, tmp_path: Path) -> None:
    config = tmp_path / "store" / "config"
    async with running(settings(tmp_path, adopt=True)):
        pass
    before = {path.name: path.read_bytes() for path in config.iterdir()}
    await export_store(Host.real(), str(tmp_path / "store"))
    assert {name: (config / f"{name}.bak").read_bytes() for name in before} == before


@pytest.mark.parametrize("started_since", [True, False])
async def test_progress_is_lowered_only_by_what_continues_an_export(foreign: ForeignDirectory, tmp_path: Path, started_since: bool) -> None:
    """RocketMQ's broker begins with the content of its files: without an export, or with an old one, it is behind."""
    root = tmp_path / "store"
    async with running(settings(tmp_path, adopt=True)) as broker:
        await until(lambda: broker.state.delays.next_offset(LEVEL_1 - 1) == 3)
        await commit(broker, 15)
    await export_store(Host.real(), str(root))
    if started_since:
        async with running(settings(tmp_path)):
            pass
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable":{"orders@billing":{0:7,1:20}}}')
    (root / "config" / "delayOffset.json").write_text('{"offsetTable":{1:2}}')
    broker = Broker(settings(tmp_path, adopt=True), Host.real())
    await broker.start()
    await until(lambda: broker.state.delays.next_offset(LEVEL_1 - 1) == 3)
    assert offset_of(broker, "orders", 0) == (15 if started_since else 7)
    await broker.stop()
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        again = [] if started_since else [b"d2"]
        assert await pull(client, "later", 0) == [b"d1", b"d2", *again]


async def test_copy_of_a_removed_file_counts_only_when_a_directory_is_taken_over(foreign: ForeignDirectory, tmp_path: Path) -> None:
    async with running(settings(tmp_path, adopt=True)) as broker:
        await commit(broker, 15)
    path = tmp_path / "store" / "config" / "consumerOffset.json"
    path.rename(path.with_name("consumerOffset.json.bak"))
    path.with_name("consumerOffset.json.bak").write_text('{"offsetTable":{"orders@billing":{0:3,1:9}}}')
    for adopts in (False, True):
        async with running(settings(tmp_path, adopt=adopts)) as broker:
            assert offset_of(broker, "orders", 0) == 15


async def test_store_that_an_older_version_has_continued_needs_no_flag(foreign: ForeignDirectory, tmp_path: Path) -> None:
    root = tmp_path / "store"
    async with running(settings(tmp_path, adopt=True)) as broker:
        await commit(broker, 15)
    (root / "lockstep" / "apache").unlink()
    for adopts in (True, False):
        async with running(settings(tmp_path, adopt=adopts)) as broker:
            assert offset_of(broker, "orders", 0) == 15
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable":{"orders@billing":{0:7,1:20}}}')
    await start_fails(tmp_path, AdoptionError, "config/consumerOffset.json is not as this store")
    (root / "lockstep" / "apache").unlink()
    (root / "abort").write_text("4711")
    await start_fails(tmp_path, AdoptionError, "`abort` has a process id")


async def test_files_that_the_other_broker_writes_to_a_store_of_ours_are_noticed(tmp_path: Path) -> None:
    """It had none of them before, and no export."""
    async with running(settings(tmp_path)):
        pass
    ForeignDirectory(tmp_path / "store").write_config("topics.json", {"topicConfigTable": {}})
    await start_fails(tmp_path, AdoptionError, "config/topics.json is not as this store")


async def test_export_refuses_what_the_other_broker_would_lose(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with pytest.raises(ConfigError, match="no lockstep/identity"):
        await export_store(Host.real(), str(root))
    async with running(settings(tmp_path, message_delay_level="1s 7h")) as broker, dialled(broker) as client:
        await client.create()
        delayed = SendMessageHeader("p", "orders", 0, properties="DELAY\x012\x02")
        await client.done(RequestCode.SEND_MESSAGE, delayed, b"late")
    before = contents(root)
    with pytest.raises(ExportError, match="whose delay RocketMQ's table lacks \\(7h\\)"):
        await export_store(Host.real(), str(root))
    assert contents(root) == before
    (root / "abort").touch()
    with pytest.raises(ExportError, match="was not stopped in order"):
        await export_store(Host.real(), str(root))


# ----------------------------------------------------------------------------------------------------------------------- inspect


async def test_inspect_changes_nothing_and_says_what_a_start_would_do(foreign: ForeignDirectory, tmp_path: Path) -> None:
    root = tmp_path / "store"
    before = contents(root)
    found = await inspect_store(ReadOnlyFiles(), str(root))
    assert contents(root) == before
    assert (found.owner, found.cluster, found.broker) == ("rocketmq", "DefaultCluster", "broker-a")
    assert (found.log_files, found.log_file_bytes, found.records, found.oldest_ms) == (2, FILE_BYTES, 43, STORED_MS)
    assert [(each.topic, each.queues, each.messages, each.known) for each in found.topics] == [
        ("later", 0, 0, True),
        ("orders", 2, 40, True),
    ]
    assert [(each.group, each.topic, each.queues, each.behind) for each in found.groups] == [("billing", "orders", 2, 15)]
    assert found.delayed_messages == 2
    assert (found.exit_code, found.start.partition(":")[0]) == (0, "needs --adopt")
    async with running(settings(tmp_path, adopt=True)) as broker:
        await until(lambda: broker.state.delays.next_offset(LEVEL_1 - 1) == 3)
    found = await inspect_store(ReadOnlyFiles(), str(root))
    assert (found.owner, found.start, found.delayed_messages) == ("lockstep", "opens it", 0)
    assert [(each.group, each.topic, each.queues, each.behind) for each in found.groups] == [("billing", "orders", 2, 15)]
    (root / "config" / "delayOffset.json").write_text("{}")
    found = await inspect_store(ReadOnlyFiles(), str(root))
    assert (found.owner, found.exit_code) == ("both", 0)


async def test_inspect_reports_the_refusal_of_a_start(foreign: ForeignDirectory, tmp_path: Path) -> None:
    transactions(foreign)
    foreign.write_log()
    found = await inspect_store(ReadOnlyFiles(), str(tmp_path / "store"))
    assert found.exit_code == 4
    assert "is refused even so" in found.start
    assert [each.kind for each in found.unfinished] == ["transactions"]
    wrong_hosts(foreign)
    foreign.write_log()
    found = await inspect_store(ReadOnlyFiles(), str(tmp_path / "store"))
    assert found.exit_code == 5
    assert f"log position {foreign.positions[3]}" in found.start


async def test_inspect_of_an_empty_directory_says_that_a_store_is_made(tmp_path: Path) -> None:
    found = await inspect_store(ReadOnlyFiles(), str(tmp_path))
    assert (found.owner, found.start) == ("nobody", "makes a new store")
    with pytest.raises(ConfigError, match="does not exist"):
        await inspect_store(ReadOnlyFiles(), str(tmp_path / "nowhere"))


# ------------------------------------------------------------------------------------------------------------------- fastjson's text


def test_bare_numbers_are_keys_and_strings_are_left_alone() -> None:
    text = rb'{"a@b":{0:5,1:6 , 12 :7},"t":"{1:2}","u":"\"{3:4","n":{ -1:0}}'
    assert parse_fastjson(text) == {"a@b": {"0": 5, "1": 6, "12": 7}, "t": "{1:2}", "u": '"{3:4', "n": {"-1": 0}}


def test_text_is_read_as_it_was_written() -> None:
    plain = {"offsetTable": {"a@b": {0: 5, 12: 7}, "7": {}}, "list": [1, "2"], "none": {}}
    text = config_text(plain)
    assert b"\t0:5," in text
    assert parse_fastjson(text) == {"offsetTable": {"a@b": {"0": 5, "12": 7}, "7": {}}, "list": [1, "2"], "none": {}}
