"""RocketMQ's `mqadmin` about consumer groups, by what it prints, with a running Java consumer. And request–reply of Java programs."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from lockstep.client import ConcurrentlyContext, Message, MessageExt, Producer, PushConsumer
from support.cluster import Cluster, running_cluster
from support.java_tools import JavaProgram, JavaTools
from support.java_wire import JSON, JavaWire, java_wire

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

VERSIONS = {"4.9.8": "V4_9_8", "5.3.3": "V5_3_3"}
TOPIC_QUEUES, MESSAGES = 2, 3
EARLY = ("-s", "1000")
"""A time before all messages, in ms since 1970."""
Run = Callable[..., Awaitable[str]]
"""Run a command of mqadmin, and return what it prints."""


@pytest.fixture(scope="module", params=VERSIONS)
def tools(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> JavaTools:
    return JavaTools.fetch(request.param, tmp_path_factory.mktemp(f"tools-{request.param}"), "Member", "Ask")


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as cluster:
        await cluster.nameserver()
        await cluster.broker("broker-a", "--auto-create-topics")
        await cluster.command("topic", "create", "orders", "--queues", str(TOPIC_QUEUES))
        yield cluster


async def send(wire: JavaWire) -> str:
    """Send messages to each queue of `orders`. Return the offsetMsgId of the last one."""
    message_id = ""
    for queue_id in range(TOPIC_QUEUES):
        for number in range(MESSAGES):
            header = {"a": "pg", "b": "orders", "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": 1, "h": 0, "i": "TAGS\x01TagA"}
            reply = await wire.call(310, header, f"{queue_id}-{number}".encode())
            assert reply.code == 0, reply.remark
            message_id = reply.fields["msgId"]
    return message_id


async def offsets(wire: JavaWire, group: str) -> list[int]:
    found = [await wire.call(14, {"consumerGroup": group, "topic": "orders", "queueId": each}) for each in range(TOPIC_QUEUES)]
    return [int(reply.fields["offset"]) for reply in found]


async def until_committed(wire: JavaWire) -> None:
    while await offsets(wire, "cg") != [MESSAGES] * TOPIC_QUEUES:
        pass


def rows(printed: str, *columns: str) -> list[list[str]]:
    """Return the fields of the printed lines that begin with these."""
    lines = [line.split() for line in printed.splitlines()]
    return [line[len(columns) :] for line in lines if line[: len(columns)] == list(columns)]


def handled(lines: list[str]) -> int:
    return sum(line.startswith("handled ") for line in lines)


async def test_commands_about_groups_print_what_they_print_with_rocketmqs_broker(tools: JavaTools, servers: Cluster) -> None:
    async def mqadmin(command: str, *arguments: str) -> str:
        return await tools.mqadmin(servers.nameservers, command, *arguments)

    address = servers.addresses["broker-a"]
    async with java_wire(address, JSON) as wire:
        async with tools.running("Member", servers.nameservers, "cg", "orders", "m1") as member:
            client_id = await started(member)
            message_id = await send(wire)
            await member.until(lambda lines: handled(lines) == TOPIC_QUEUES * MESSAGES)
            await until_committed(wire)
            await commands_with_a_member(tools, mqadmin, client_id, message_id)
            printed = await mqadmin("resetOffsetByTime", "-g", "cg", "-t", "orders", *EARLY)
            assert sorted(rows(printed, "broker-a")) == [["0", "0"], ["1", "0"]], printed
            await member.until(lambda lines: handled(lines) >= 2 * TOPIC_QUEUES * MESSAGES)
            await until_committed(wire)
            await member.end()
        await commands_without_members(mqadmin, wire, address)


async def started(member: JavaProgram) -> str:
    """Return the client id of a member when it has started."""
    lines = await member.until(lambda lines: any(line.startswith("started ") for line in lines))
    return next(line.split()[1] for line in lines if line.startswith("started "))


async def commands_with_a_member(tools: JavaTools, mqadmin: Run, client_id: str, message_id: str) -> None:
    version = VERSIONS[tools.version]
    printed = await mqadmin("consumerConnection", "-g", "cg")
    ((_, *rest),) = rows(printed, client_id)
    assert rest == ["JAVA", version], printed
    assert rows(printed, "orders") == [["TagA", "||", "TagB"]]
    assert rows(printed, "ConsumeType:") == [["CONSUME_PASSIVELY"]]
    assert rows(printed, "ConsumeFromWhere:") == [["CONSUME_FROM_FIRST_OFFSET"]]
    printed = await mqadmin("consumerProgress", "-g", "cg")
    assert [row[:4] for row in rows(printed, "orders", "broker-a")] == [["0", "3", "3", "0"], ["1", "3", "3", "0"]], printed
    assert "Diff Total: 0" in printed
    printed = await mqadmin("consumerProgress")
    ((count, *rest),) = rows(printed, "cg")
    assert (count, rest[0], rest[1:3]) == ("1", version, ["PUSH", "CLUSTERING"]), printed
    printed = await mqadmin("consumerStatus", "-g", "cg", "-i", client_id)
    assert rows(printed, "PROP_CLIENT_VERSION", ":") == [[version]], printed
    offsets_there = sorted(row for row in rows(printed, "orders", "broker-a") if len(row) == 2)
    assert offsets_there == [["0", "3"], ["1", "3"]], printed
    printed = await mqadmin("producerConnection", "-g", "CLIENT_INNER_PRODUCER", "-t", "orders")
    assert re.search(rf"LANGUAGE=JAVA|language=JAVA|{re.escape(client_id)}", printed), printed
    topic = () if tools.version.startswith("4.") else ("-t", "orders")
    printed = await mqadmin("queryMsgById", "-i", message_id, "-g", "cg", "-d", client_id, *topic)
    assert "consumeResult=CR_SUCCESS" in printed, printed


async def commands_without_members(mqadmin: Run, wire: JavaWire, address: str) -> None:
    printed = await mqadmin("resetOffsetByTime", "-g", "cg", "-t", "orders", *EARLY)
    found = sorted(rows(printed, "broker-a"))
    assert found == [["0", "3", "3", "0", "0"], ["1", "3", "3", "0", "0"]], printed
    assert await offsets(wire, "cg") == [0, 0]
    await wire.call(15, {"consumerGroup": "cg", "topic": "orders", "queueId": 1, "commitOffset": 2})
    printed = await mqadmin("cloneGroupOffset", "-s", "cg", "-d", "copy", "-t", "orders")
    assert "clone group offset success" in printed, printed
    assert await offsets(wire, "copy") == [0, 2]
    printed = await mqadmin("deleteSubGroup", "-g", "cg", "-b", address, "-r", "true")
    assert f"delete subscription group [cg] from broker [{address}] success" in printed, printed
    assert (await wire.call(208, {"consumerGroup": "cg"})).code == 26


@pytest.mark.parametrize("form", ["JSON", "ROCKETMQ"])
async def test_java_program_gets_replies(tools: JavaTools, servers: Cluster, form: str) -> None:
    async with tools.running("Ask", servers.nameservers, "orders", form=form) as program:
        await program.until(lambda lines: sum(line.startswith(("answer", "failed", "no answer")) for line in lines) == 3)
        async with program.changed:
            answers = [line for line in program.lines if line.startswith("answer ")]
    assert answers == ["answer re: one", "answer re: two", "answer re: three"]


@pytest.mark.parametrize("form", ["JSON", "ROCKETMQ"])
async def test_java_program_gets_replies_of_a_consumer_of_the_sdk(tools: JavaTools, servers: Cluster, form: str) -> None:
    consumer = PushConsumer("answering", nameserver=servers.nameservers).subscribe("orders")

    @consumer.concurrently
    async def answer(messages: Sequence[MessageExt], _: ConcurrentlyContext) -> None:
        for message in messages:
            await consumer.reply(message, b"re: " + message.body, timeout_ms=30_000)

    async with consumer, tools.running("Ask", servers.nameservers, "orders", "asks", form=form) as program:
        await program.until(lambda lines: sum(line.startswith(("answer", "failed", "no answer")) for line in lines) == 3)
    assert program.lines == ["answer re: one", "answer re: two", "answer re: three"]


@pytest.mark.parametrize("form", ["JSON", "ROCKETMQ"])
async def test_java_program_replies_to_a_producer_of_the_sdk(tools: JavaTools, servers: Cluster, form: str) -> None:
    """Some 8 KiB: its producer compresses them."""
    async with tools.running("Ask", servers.nameservers, "orders", "replies", form=form) as program:
        await program.until(lambda lines: "started" in lines)
        async with Producer("asking-sdk", nameserver=servers.nameservers) as producer:
            bodies = [b"one", b"two", b"three " * 1_400]
            replies = [await producer.request(Message("orders", body), timeout_ms=60_000) for body in bodies]
        assert [reply.body for reply in replies] == [b"re: " + body for body in bodies]
        await program.until(lambda lines: lines.count("replied SEND_OK") == 3)
