"""docs/migration.md and docs/kafka.md: commands, settings, defaults and limits are compared with the code, the examples are run."""

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperCommand, TyperGroup

import lockstep.client
from lockstep.broker.config import BrokerConfig
from lockstep.client import Client, Message, OrderedRetry, Producer, PullConsumer, PushConsumer
from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.names import check_group, check_topic, dlq_topic, retry_topic
from lockstep.testing import TestCluster
from support.command_lines import OF_THE_LOADER, check_command
from support.commands import every_command
from support.page_commands import blocks

ROOT = Path(__file__).resolve().parents[1]
MIGRATION = (ROOT / "docs" / "migration.md").read_text()
KAFKA = (ROOT / "docs" / "kafka.md").read_text()
PAGES = {"migration.md": MIGRATION, "kafka.md": KAFKA}
USERS = {"Producer": Producer, "Client": Client, "PushConsumer": PushConsumer, "PullConsumer": PullConsumer}
MQADMIN = """
    updateTopic updateTopicList deleteTopic updateSubGroup updateSubGroupList setConsumeMode deleteSubGroup updateBrokerConfig
    updateTopicPerm topicRoute topicStatus topicClusterList addBroker removeBroker resetMasterFlushOffset brokerStatus queryMsgById
    queryMsgByKey queryMsgByUniqueKey queryMsgByOffset queryMsgTraceById printMsg printMsgByQueue sendMsgStatus brokerConsumeStats
    producerConnection consumerConnection consumerProgress consumerStatus cloneGroupOffset producer clusterList topicList updateKvConfig
    deleteKvConfig wipeWritePerm addWritePerm resetOffsetByTime skipAccumulatedMessage updateOrderConf cleanExpiredCQ
    deleteExpiredCommitLog cleanUnusedTopic startMonitoring statsAll allocateMQ checkMsgSendRT clusterRT getNamesrvConfig
    updateNamesrvConfig getBrokerConfig getConsumerConfig queryCq sendMessage consumeMessage updateStaticTopic remappingStaticTopic
    exportMetadata exportConfigs exportMetrics exportMetadataInRocksDB exportPopRecord haStatus getSyncStateSet getBrokerEpoch
    getControllerMetaData getControllerConfig updateControllerConfig electMaster cleanBrokerMetadata dumpCompactionLog
    getColdDataFlowCtrInfo updateColdDataFlowCtrGroupConfig removeColdDataFlowCtrGroupConfig setCommitLogReadAheadMode createUser
    updateUser deleteUser getUser listUser copyUser createAcl updateAcl deleteAcl getAcl listAcl copyAcl rocksDBConfigToJson
    checkRocksdbCqWriteProgress
"""
"""What MQAdminStartup of RocketMQ 5.3.3 registers, in its order."""


def rows(page: str, after: str) -> list[list[str]]:
    """Return the cells of the first table after this text."""
    table = re.search(r"^\|[-|]+\|\n((?:\|.*\n)+)", page.split(after, 1)[1], re.MULTILINE)
    assert table is not None, after
    return [[cell.strip() for cell in re.split(r"(?<=\s)\|(?=\s)", line[1:-1])] for line in table[1].splitlines()]


def prose(page: str) -> str:
    """Return the page without its blocks of code."""
    return re.sub(r"^```\w+\n.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)


def code_spans(page: str) -> list[str]:
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose(page))]


# --------------------------------------------------------------------------------------------------------------------- commands


def commands(page: str) -> list[str]:
    return [span for span in code_spans(page) if re.match(r"lockstep [a-z]", span)]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_on_the_page_exists_with_its_options(page: str) -> None:
    found = commands(PAGES[page])
    assert len(found) > 20
    for line in found:
        check_command(line)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("lockstep topic rename orders", "no such command"),
        ("lockstep topic", "not a whole command"),
        ("lockstep topic create orders --partitions 8", "[Nn]o such option"),
        ("lockstep topic create orders --queues many", "a valid integer"),
        ("lockstep group reset-offset billing", "Missing parameter: to"),
        ("lockstep broker --retention-days 3", "--retention-days"),
    ],
)
def test_invalid_command_is_noticed(line: str, error: str) -> None:
    with pytest.raises(Exception, match=error):
        check_command(line)


def test_page_has_each_command_of_mqadmin_once() -> None:
    registered = MQADMIN.split()
    assert f"All {len(registered)} commands" in MIGRATION
    assert [name.strip("`") for name, _ in rows(MIGRATION, "\n## mqadmin\n")] == registered


@pytest.mark.parametrize(("page", "table"), [("migration.md", "\n## mqadmin\n"), ("kafka.md", "\n## Commands\n")])
def test_each_foreign_command_has_one_of_lockstep_or_a_reason(page: str, table: str) -> None:
    for foreign, ours in rows(PAGES[page], table):
        assert commands(ours) or ours.startswith(("not needed: ", "not there")), foreign
        assert not ours.startswith("`") or ours.startswith("`lockstep "), foreign


def test_every_command_of_lockstep_is_on_the_page_for_mqadmin() -> None:
    """Except the servers, which the table of settings has."""

    def paths(below: object, path: str = "lockstep") -> Iterator[str]:
        if isinstance(below, TyperGroup):
            for name, each in below.commands.items():
                yield from paths(each, f"{path} {name}")
        else:
            yield path

    named = set(commands(MIGRATION.split("\n## mqadmin\n")[1]))
    missing = {path for path in paths(every_command()) if not any(f"{line} ".startswith(f"{path} ") for line in named)}
    assert not missing


# --------------------------------------------------------------------------------------------------------------------- settings


def printed(value: object) -> str:
    """Return a default as the pages print it."""
    if isinstance(value, tuple):
        value = ", ".join(map(str, value))
    text = value.name if isinstance(value, Enum) else "OrderedRetry()" if value == OrderedRetry() else str(value)
    return f"`{text}`" if text else ""


TABLES = [
    *((page, f"\n{what} of `{user}`", USERS[user], "") for page, what, user in (
        ("migration.md", "Keywords", "Producer"),
        ("migration.md", "Keywords", "Client"),
        ("migration.md", "Keywords", "PushConsumer"),
        ("migration.md", "Keywords", "PullConsumer"),
        ("kafka.md", "Keywords", "Producer"),
        ("kafka.md", "Keywords", "PullConsumer"),
    )),
    ("migration.md", "\nOptions of `lockstep broker`", BrokerConfig, "--"),
    ("kafka.md", "\nOptions of `lockstep broker`", BrokerConfig, "--"),
]  # fmt: skip


@pytest.mark.parametrize(("page", "table", "user", "dashes"), TABLES)
def test_settings_in_the_tables_have_the_stated_defaults(page: str, table: str, user: type, dashes: str) -> None:
    known = inspect.signature(user).parameters
    named = 0
    for foreign, foreign_default, name, default, remark in rows(PAGES[page], table):
        assert foreign or not foreign_default, name
        if name == "–":
            assert foreign, f"a row without a setting: {remark}"
            assert not default, foreign
            continue
        assert name.startswith(f"`{dashes}"), name
        setting = name.strip("`").removeprefix("--").replace("-", "_") if dashes else name.strip("`")
        assert setting in known, f"{user.__name__} has no {setting}"
        assert default == printed(known[setting].default), setting
        named += 1
    assert named > 3


SDK = {name: getattr(lockstep.client, name) for name in lockstep.client.__all__}
"""What users import, by its name: a name is imported when it is asked for."""


def names_of_the_sdk() -> set[str]:
    """Return the settings of the classes for users, and the names of everything that they return or pass on."""
    names: set[str] = set()
    for each in SDK.values():
        if inspect.isclass(each):
            names |= set(dir(each))
            names |= set(inspect.signature(each).parameters) if each in {*USERS.values(), Message, OrderedRetry} else set()
    return names


@pytest.mark.parametrize("page", PAGES)
def test_every_name_of_the_sdk_on_the_page_exists(page: str) -> None:
    ours = names_of_the_sdk()
    spans = code_spans(PAGES[page])
    metrics = {span for span in spans if re.fullmatch(r"(?:rocketmq|lockstep)_[a-z_]+", span)}
    foreign = {"read_committed", "read_uncommitted", "by_duration", "by_broker"}
    named = {span for span in spans if re.fullmatch(r"[a-z]+(?:_[a-z]+)+", span)} - metrics - foreign
    assert len(named) > 10
    assert not named - ours
    broker = "".join(path.read_text() for path in (ROOT / "broker").rglob("*.py"))
    assert metrics
    for metric in metrics:
        assert re.search(rf'"{metric.removesuffix("_total")}"', broker) or f'"{metric}"' in broker, metric


@pytest.mark.parametrize("page", PAGES)
def test_every_keyword_of_a_call_on_the_page_exists(page: str) -> None:
    """In `OrderedRetry(max_attempts=16)` that class has it; in `require="written"`, without a call, any class for users or any send."""
    callables: dict[str, Any] = {name: each for name, each in SDK.items() if inspect.isclass(each)}
    sends = {name: getattr(Producer, name) for name in ("send", "post", "send_batch", "send_oneway", "request")}
    keywords = set().union(*(inspect.signature(each).parameters for each in (*USERS.values(), OrderedRetry, *sends.values())))
    checked = 0
    for span in code_spans(PAGES[page]):
        if (alone := re.match(r"([a-z_]+)=", span)) and alone[1] != "acks":  # Kafka's
            assert alone[1] in keywords, span
            checked += 1
        for name, arguments in re.findall(r"(\w+)\(((?:[^()]|\([^()]*\))*)\)", span):
            for keyword in re.findall(r"(\w+)=", re.sub(r"\([^()]*\)", "", arguments)):
                assert keyword in inspect.signature((callables | sends)[name]).parameters, span
                checked += 1
    assert checked > 5


@pytest.mark.parametrize("page", PAGES)
def test_every_option_on_the_page_exists(page: str) -> None:
    def options_of(command: object) -> set[str]:
        if isinstance(command, TyperGroup):
            return set().union(*map(options_of, command.commands.values()))
        assert isinstance(command, TyperCommand)
        return {name for option in command.params for name in (*option.opts, *option.secondary_opts)}

    known = options_of(every_command()) | {f"--{name.replace('_', '-')}" for name in inspect.signature(BrokerConfig).parameters}
    spans = [span for span in code_spans(PAGES[page]) if not span.startswith(("lockstep ", "kafka-"))]
    named = {word for span in spans for word in span.split() if word.startswith("--")}
    assert len(named) > 8
    assert named <= known | OF_THE_LOADER


# ----------------------------------------------------------------------------------------------------------------------- limits


def test_names_are_limited_as_kafka_md_says() -> None:
    assert "1 to 127 characters of `a-z A-Z 0-9 _ - % |`. **A dot is not allowed**" in KAFKA
    check_topic("aZ9_-%|")
    check_topic("t" * 127)
    with pytest.raises(LocalProtocolError):
        check_topic("t" * 128)
    with pytest.raises(LocalProtocolError, match="illegal characters"):
        check_topic("orders.v1")
    check_topic("orders-v1")
    assert "up to 255; up to 120 if the group is concurrent and up to 122 if it is ordered with dead letters" in " ".join(KAFKA.split())
    for make, length in ((check_group, 255), (retry_topic, 120), (dlq_topic, 122)):
        make("g" * length)
        with pytest.raises(LocalProtocolError):
            make("g" * (length + 1))


def test_messages_are_limited_as_kafka_md_says() -> None:
    with pytest.raises(LocalProtocolError, match="length is zero"):
        Message("orders", b"")
    with pytest.raises(LocalProtocolError, match="expected bytes"):
        Message("orders", None)  # type: ignore[arg-type]
    assert "A body has at most 4 MiB" in KAFKA
    Message("orders", bytes(4 << 20))
    with pytest.raises(LocalProtocolError, match="over max value"):
        Message("orders", bytes((4 << 20) + 1))
    for invalid in ({"a": ""}, {"a": "\x01"}, {"a": "\x02"}, {"TAGS": "a"}, {"KEYS": "a"}, {"DELAY": "1"}, {"a": b"a"}):
        with pytest.raises(LocalProtocolError):
            Message("orders", b"a", properties=invalid)  # type: ignore[arg-type]
    assert "at most 30,720 bytes together" in KAFKA
    Message("orders", b"a", properties={"a": "v" * 30_718})
    with pytest.raises(LocalProtocolError, match="at most 30720"):
        Message("orders", b"a", properties={"a": "v" * 30_719})
    with pytest.raises(LocalProtocolError):
        Message("orders", b"a", sharding_key="")
    (tombstone,) = (span for span in code_spans(KAFKA) if span.startswith("Message(") and "deleted" in span)
    assert eval(tombstone, {"Message": Message}).tags == "deleted"


# --------------------------------------------------------------------------------------------------------------------- examples


@pytest.mark.simulated
async def test_examples_of_migration_md_send_and_consume_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    sender, consumer = (block.text for block in blocks(MIGRATION) if block.language == "python")
    assert "run(consumer)\n" in consumer
    assert "asyncio.run(main())\n" in sender
    async with TestCluster() as cluster:
        await cluster.create_topic("orders")
        sender, consumer = (text.replace("127.0.0.1:9876", cluster.nameserver) for text in (sender, consumer))
        sent: dict[str, Any] = {}
        exec(sender.replace("asyncio.run(main())\n", ""), sent)
        await sent["main"]()
        assert re.fullmatch(r"SEND_OK orders@broker-[ab]:\d 0\n", capsys.readouterr().out)
        consumed: dict[str, Any] = {}
        exec(consumer.replace("run(consumer)\n", ""), consumed)
        async with consumed["consumer"]:
            await cluster.settled("billing")
        assert capsys.readouterr().out == "1001 1001 paid\n"


# ------------------------------------------------------------------------------------------------------------------------ links


@pytest.mark.parametrize("page", PAGES)
def test_links_of_the_page_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([\w.]*)(?:#([\w-]+))?\)", PAGES[page])
    assert len(links) > 3
    for file, section in links:
        text = (ROOT / "docs" / (file or page)).read_text()
        titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
        assert not section or section in anchors, f"{file}#{section}"
