"""A directory that goes to RocketMQ's broker and comes back."""

import shutil
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest

from lockstep.broker.app import Broker
from lockstep.broker.offline.inspect_store import inspect_store
from lockstep.broker.replication.copy_identity import CopyIdentity, Role, save_copy_identity
from lockstep.broker.rocketmq_store.errors import AdoptionError, ExportError
from lockstep.broker.rocketmq_store.export import export_store
from lockstep.broker.rocketmq_store.foreign_config import parse_fastjson
from lockstep.broker.rocketmq_store.opening import open_store
from lockstep.broker.store.errors import StoreCorruptError
from lockstep.broker.store.start.directory import StoreDirectory
from lockstep.protocol.bodies import EndTransactionBody, HalfMessage
from lockstep.protocol.codec.fastjson import read_fastjson
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.headers.send import SendMessageHeader, SendRecordsHeader
from lockstep.protocol.headers.transactions import ROLLBACK, EndTransactionHeader
from lockstep.protocol.messages.record import encode_record
from lockstep.protocol.messages.rooms import half_properties, home_properties
from lockstep.protocol.names import HALF_TOPIC
from lockstep.runtime.files import ReadOnlyFiles
from lockstep.runtime.host import Host
from support.adoption import LEVEL_1, SECOND_MAGIC, contents, foreign_directory, offset_of, pull, start_fails, start_that_is_killed
from support.foreign_store import FILE_BYTES, ForeignDirectory, topic_entry
from support.until import until
from support.whole_broker import Client, dialled, place, running, settings


@pytest.fixture
def foreign(tmp_path: Path) -> ForeignDirectory:
    return foreign_directory(tmp_path)


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


async def test_store_without_its_record_of_the_other_brokers_files_is_taken_over_again(foreign: ForeignDirectory, tmp_path: Path) -> None:
    root = tmp_path / "store"
    async with running(settings(tmp_path, adopt=True)) as broker:
        await commit(broker, 15)
    (root / "lockstep" / "apache").unlink()
    await start_fails(tmp_path, AdoptionError, "is not as this store has read or written it last")
    for adopts in (True, False):
        async with running(settings(tmp_path, adopt=adopts)) as broker:
            assert offset_of(broker, "orders", 0) == 15
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable":{"orders@billing":{0:7,1:20}}}')
    await start_fails(tmp_path, AdoptionError, "config/consumerOffset.json is not as this store")


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


async def send_half(client: Client, broker: Broker) -> HalfMessage:
    """Send a half message to orders, as lockstep's clients do."""
    began = broker.state.topics.require_layout("orders").began
    properties = home_properties("orders", 0, began) + half_properties("shop", "") + b"UNIQ_KEY\x01id"
    record = encode_record(HALF_TOPIC.encode(), 0, b"half", properties, born_ms=1)
    header = SendRecordsHeader("orders", 0, 1, durable=True, room=HALF_TOPIC, began=began, producer_group="shop")
    return HalfMessage(place(await client.done(RequestCode.SEND_RECORDS, header, record)).queue_offset, "id")


async def test_export_waits_for_transactions_and_then_passes_over_half_messages(tmp_path: Path) -> None:
    root = tmp_path / "store"
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        await client.create()
        half = await send_half(client, broker)
    with pytest.raises(ExportError, match="1 half messages, whose transactions are not decided"):
        await export_store(Host.real(), str(root))
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        await client.done(RequestCode.END_TRANSACTION, EndTransactionHeader("shop", ROLLBACK), encode_body(EndTransactionBody((half,))))
    await export_store(Host.real(), str(root))
    offsets = read_fastjson((root / "config" / "consumerOffset.json").read_bytes(), what="the offsets")["offsetTable"]
    assert offsets["RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS"] == {0: 1}


@pytest.mark.parametrize("identity", [CopyIdentity("a", Role.REPLICA), CopyIdentity("a", Role.MASTER, members={"b": "host:1"})])
async def test_store_with_copies_is_neither_exported_nor_taken_over(
    foreign: ForeignDirectory, tmp_path: Path, identity: CopyIdentity
) -> None:
    async with running(settings(tmp_path, adopt=True)):
        pass
    directory = StoreDirectory(Host.real().files, str(tmp_path / "store"))
    save_copy_identity(directory, identity)
    before = contents(tmp_path / "store")
    with pytest.raises(ExportError, match="has replicas, or is one"):
        await export_store(Host.real(), str(tmp_path / "store"))
    assert contents(tmp_path / "store") == before
    foreign.write_config("topics.json", {"topicConfigTable": {"new": topic_entry("new")}})
    with pytest.raises(AdoptionError, match="its log is not theirs any more"):
        await open_store(settings(tmp_path).store_config(), Host.real(), settings(tmp_path).identity(), adopt=True)
