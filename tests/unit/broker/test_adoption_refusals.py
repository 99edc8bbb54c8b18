"""What a broker refuses to take over from the directory of RocketMQ's broker, and with which words."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.broker.offline.inspect_store import inspect_store
from lockstep.broker.rocketmq_store import foreign_checks
from lockstep.broker.rocketmq_store.errors import AdoptionError
from lockstep.broker.store.errors import IdentityError, StoreCorruptError
from lockstep.broker.store.log.append import ENTRY
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.names import SCHEDULE_TOPIC
from lockstep.runtime.files import ReadOnlyFiles
from support.adoption import (
    FAR_MS,
    LEVEL_1,
    SECOND_MAGIC,
    foreign_directory,
    offset_of,
    pull,
    start_fails,
    write,
    wrong_hosts,
)
from support.foreign_store import FILE_BYTES, STORED_MS, ForeignDirectory, topic_entry
from support.until import until
from support.whole_broker import dialled, running, settings


@pytest.fixture
def foreign(tmp_path: Path) -> ForeignDirectory:
    return foreign_directory(tmp_path)


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
    with pytest.raises(ConfigError, match="adopt_without is 'everything': expected timers, pop, compaction"):
        settings(tmp_path, adopt_without=("everything",))
