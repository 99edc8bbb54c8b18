"""What `store inspect` says of a directory of RocketMQ's broker, and the text of its configuration."""

from pathlib import Path

import pytest

from lockstep.broker.offline.inspect_store import inspect_store
from lockstep.broker.rocketmq_store.foreign_config import config_text, parse_fastjson
from lockstep.protocol.errors import ConfigError
from lockstep.runtime.files import ReadOnlyFiles
from support.adoption import FAR_MS, LEVEL_1, contents, foreign_directory, wrong_hosts
from support.foreign_store import FILE_BYTES, STORED_MS, ForeignDirectory
from support.until import until
from support.whole_broker import running, settings


@pytest.fixture
def foreign(tmp_path: Path) -> ForeignDirectory:
    return foreign_directory(tmp_path)


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
    foreign.add_timer(FAR_MS)
    foreign.write_log()
    found = await inspect_store(ReadOnlyFiles(), str(tmp_path / "store"))
    assert found.exit_code == 4
    assert "is refused even so" in found.start
    assert [each.kind for each in found.unfinished] == ["timers"]
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


def test_bare_numbers_are_keys_and_strings_are_left_alone() -> None:
    text = rb'{"a@b":{0:5,1:6 , 12 :7},"t":"{1:2}","u":"\"{3:4","n":{ -1:0}}'
    assert parse_fastjson(text) == {"a@b": {"0": 5, "1": 6, "12": 7}, "t": "{1:2}", "u": '"{3:4', "n": {"-1": 0}}


def test_text_is_read_as_it_was_written() -> None:
    plain = {"offsetTable": {"a@b": {0: 5, 12: 7}, "7": {}}, "list": [1, "2"], "none": {}}
    text = config_text(plain)
    assert b"\t0:5," in text
    assert parse_fastjson(text) == {"offsetTable": {"a@b": {"0": 5, "12": 7}, "7": {}}, "list": [1, "2"], "none": {}}
