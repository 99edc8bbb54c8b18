"""lockstep message find, and message show with a producer's id."""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from lockstep.cli import main as cli
from lockstep.cli.commands.message import _show
from lockstep.cli.commands.message_find import _find
from lockstep.cli.reporter import EVERY_MS, FIRST_MS, StderrReporter
from lockstep.client import Message, MessageQueue, Producer, SendResult
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.messages.find import Criteria
from lockstep.operations.messages.message_query import place_of
from lockstep.operations.progress import SearchProgress
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import LocalProtocolError, TopicNotExistError
from lockstep.protocol.headers.offsets import QueryMessageHeader
from lockstep.protocol.headers.send import SendMessageHeader
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support.clocks import SetClock
from support.ended_command import Run
from support.queue_moves import broker_named

two_brokers = pytest.mark.lockstep(brokers=2)


def find(
    cluster: TestCluster,
    key: str | None = None,
    message_id: str | None = None,
    since: str | None = None,
    until: str | None = None,
    *,
    limit: int = 20,
    everywhere: bool = False,
    as_json: bool = True,
    **criteria: Any,
) -> Coroutine[Any, Any, None]:
    return _find(key, message_id, Criteria(**criteria), (since, until), limit, everywhere, cluster.nameserver, as_json)


async def send(cluster: TestCluster, count: int = 8, topic: str = "orders") -> list[SendResult]:
    """Send messages to the first queue of each broker in turn, one every second."""
    results = []
    async with Producer("test", nameserver=cluster.nameserver) as producer:
        for number in range(count):
            message = Message(topic, f"{topic} {number}".encode(), tags="even" if number % 2 == 0 else "odd", keys=["all", f"k{number}"])
            results.append(await producer.send(message, queue=MessageQueue(topic, f"broker-{'ab'[number // 2 % 2]}", 0)))
            await cluster.advance(seconds=1)
    return results


def numbered(*numbers: int, topic: str = "orders") -> list[str]:
    return [f"{topic} {number}" for number in numbers]


# --------------------------------------------------------------------------------------------------------------------- by key


@two_brokers
async def test_messages_with_a_key_are_found_at_all_brokers_the_newest_first(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    for topic in ("orders", "others"):
        await cluster.create_topic(topic, queues=1)
        await send(cluster, topic=topic)
    found = await run(find(cluster, "all"))
    assert found.bodies == numbered(*range(7, -1, -1), topic="others") + numbered(*range(7, -1, -1))
    shown = found.json
    assert (shown["cut"], shown["complete"], shown["failed"], shown["unit"]) == (False, True, {}, "bytes")
    assert shown["searched"] == shown["total"] > 0
    assert (await run(find(cluster, "all", topic="orders"))).bodies == numbered(*range(7, -1, -1))
    assert (await run(find(cluster, "k3"))).bodies == ["others 3", "orders 3"]
    assert (await run(find(cluster, "all", topic="orders", tags="odd"))).bodies == numbered(7, 5, 3, 1)
    assert (await run(find(cluster, "all", body="rders 3"))).bodies == ["orders 3"]
    nothing = await run(find(cluster, "k"))
    assert (nothing.bodies, nothing.error) == ([], "")
    assert "nothing was found; searched: " in nothing.told


@two_brokers
async def test_result_that_is_cut_says_how_to_go_on(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic("orders", queues=1)
    await send(cluster)
    bodies: list[str] = []
    until = None
    for _ in range(8):
        found = await run(find(cluster, "all", limit=3, until=until))
        bodies += [body for body in found.bodies if body not in bodies]
        if not found.json["cut"]:
            break
        assert "these are the newest 3: others may be older. To go on, add --until " in found.told
        until = found.told.partition("--until ")[2].partition(",")[0]
        assert until == found.json["messages"][-1]["stored_at"]
    assert bodies == numbered(*range(7, -1, -1))


@two_brokers
async def test_times_select(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic("orders", queues=1)
    await send(cluster)
    stored = {each["body"]: each["stored_at"] for each in (await run(find(cluster, "all"))).json["messages"]}
    period = {"since": stored["orders 2"], "until": stored["orders 5"]}
    assert (await run(find(cluster, "all", **period))).bodies == numbered(5, 4, 3, 2)
    by_time = await run(find(cluster, topic="orders", **period))
    assert by_time.bodies == numbered(5, 4, 3, 2)
    assert (by_time.json["searched"], by_time.json["total"], by_time.json["unit"]) == (4, 4, "messages")
    assert (await run(find(cluster, topic="orders", tags="odd", **period))).bodies == numbered(5, 3)
    assert (await run(find(cluster, topic="orders", since=stored["orders 2"], limit=2))).bodies == numbered(7, 6)
    cut = await run(find(cluster, topic="orders", until=stored["orders 2"], limit=2))
    assert (cut.bodies, cut.json["cut"]) == (numbered(2, 1), True)


@two_brokers
async def test_broker_that_fails_is_named_and_the_others_are_shown(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic("orders", queues=1)
    await send(cluster)
    await cluster.kill("broker-b")
    for search in (find(cluster, "all"), find(cluster, topic="orders", since="1h")):
        found = await run(search)
        assert found.bodies == numbered(5, 4, 1, 0)
        assert list(found.json["failed"]) == ["broker-b"]
        assert not found.json["complete"]
        assert "the result is incomplete: broker broker-b: " in found.error


async def test_unknown_topic_is_reported_before_anything_is_searched(lockstep_cluster: TestCluster) -> None:
    with pytest.raises(TopicNotExistError):
        await find(lockstep_cluster, "all", topic="ordres")


@two_brokers
async def test_long_search_goes_on_at_its_cursor_and_an_interrupted_one_shows_what_it_found(
    lockstep_cluster: TestCluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request is limited to one message here. The second one of each broker never ends."""
    cluster = lockstep_cluster
    await cluster.create_topic("orders", queues=1)
    await send(cluster)
    asked, reached, query = Counter[str](), asyncio.Event(), AdminClient.query

    async def one_at_a_time(self: AdminClient, broker: Any, header: QueryMessageHeader) -> Any:
        asked[broker.name] += 1
        if stuck and asked[broker.name] > 1:
            if asked.total() == 4:
                reached.set()
            await asyncio.Event().wait()
        return await query(self, broker, replace(header, max_num=1))

    monkeypatch.setattr(AdminClient, "query", one_at_a_time)
    stuck = False
    assert (await run(find(cluster, "all"))).bodies == numbered(*range(7, -1, -1))
    assert asked.total() >= 8
    stuck = True
    asked.clear()

    async def interrupted() -> None:
        task = asyncio.ensure_future(find(cluster, "all"))
        await reached.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    found = await run(interrupted())
    assert found.bodies == numbered(7, 5)
    assert "the search has ended early: " in found.told
    assert 0 < found.json["searched"] < found.json["total"]


# --------------------------------------------------------------------------------------------------------------------- by id


@two_brokers
async def test_message_is_found_and_shown_by_its_producers_id(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic("orders", queues=1)
    results = await send(cluster)
    message_id = results[3].message_id
    assert (await run(find(cluster, message_id=message_id))).bodies == ["orders 3"]
    assert (await run(find(cluster, message_id=message_id.lower()))).bodies == ["orders 3"]
    shown = await run(_show(message_id, None, cluster.nameserver, True, with_tracks=False))
    assert (shown.json["body"], shown.json["offset_message_id"]) == ("orders 3", results[3].offset_message_id)
    assert (await run(_show(message_id, "broker-b", cluster.nameserver, True, with_tracks=False))).json["body"] == "orders 3"
    elsewhere = await run(_show(message_id, "broker-a", cluster.nameserver, True, with_tracks=False))
    assert f"no message has the id {message_id}, which a producer gave" in elsewhere.error
    unknown = message_id[:-4] + "FFFF"
    assert (
        "retention has removed it, or it was not stored"
        in (await run(_show(unknown, None, cluster.nameserver, True, with_tracks=False))).error
    )


@two_brokers
async def test_copies_that_were_stored_later_are_found_on_request(lockstep_cluster: TestCluster, run: Run) -> None:
    """The copy that is sent here has the id of the original, as one of a retry has."""
    cluster = lockstep_cluster
    await cluster.create_topic("orders", queues=1)
    (sent, *_) = await send(cluster, 1)
    await cluster.advance(minutes=11)
    admin = AdminClient(Host.current(), cluster.nameserver)
    header = SendMessageHeader("test", "orders", 0, properties=f"UNIQ_KEY\x01{sent.message_id}")
    await admin.request(await broker_named(admin, "broker-b"), RequestCode.SEND_MESSAGE, header, b"copy")
    assert (await run(find(cluster, message_id=sent.message_id))).bodies == ["orders 0"]
    copies = (await run(find(cluster, message_id=sent.message_id, everywhere=True))).json["messages"]
    assert [each["topic"] for each in copies] == ["orders", "orders"]
    shown = await run(_show(sent.message_id, None, cluster.nameserver, True, with_tracks=False))
    assert shown.json["offset_message_id"] == sent.offset_message_id


@pytest.mark.parametrize(
    ("message_id", "place"),
    [
        ("7F00000100002A9F0000000000000007", ("127.0.0.1:10911", 7)),
        ("AC11000100002A9F4D7C35D0A1B20003", None),
        ("7F00000100012A9F0000000000000007", None),
        ("FD000000000000000000000000000002499F30946E0988E5A07A0000", None),
    ],
)
def test_ids_that_producers_gave_are_told_from_offset_ids(message_id: str, place: object) -> None:
    assert place_of(message_id) == place


def test_text_that_is_no_id_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="expected 32 hex digits"):
        place_of("order-7")


# --------------------------------------------------------------------------------------------------------------------- usage


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "say what to find: --key KEY, --id MSGID, or --topic TOPIC with --since"),
        (["--topic", "orders"], "say what to find"),
        (["--since", "2h"], "name it with --topic"),
        (["--tag", "paid"], "name it with --topic"),
        (["--key", "two words"], "is several words"),
        (["--key", " "], "is several words"),
        (["--key", ""], "--key is empty"),
        (["--key", "a", "--id", "b"], "exclude each other"),
        (["--key", "a", "--all"], "--all belongs to --id"),
        (["--key", "a", "--topic", "no topic"], "illegal characters"),
        (["--key", "a", "--since", "soon"], "--since 'soon': expected a time"),
        (["--key", "a", "--since", "1h", "--until", "2h"], "is before --since"),
        (["--topic", "orders", "--body", ""], "--body is empty"),
        (["--topic", "orders", "--sharding-key", ""], "--sharding-key is empty"),
        (["--key", "a", "--limit", "0"], "limit"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_is_wrong(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["message", "find", "--nameserver", "127.0.0.1:1", *arguments])
    assert (exit_info.value.code, words in capsys.readouterr().err) == (2, True)


# --------------------------------------------------------------------------------------------------------------------- progress


def test_progress_is_printed_with_rate_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    clock = SetClock()
    progress = SearchProgress(clock, reporter=StderrReporter())
    progress.update("a", 1_000_000_000, 7_000_000_000)
    assert capsys.readouterr().err == ""
    clock.now_ms += FIRST_MS
    progress.update("b", 1_000_000_000, 1_000_000_000)
    assert capsys.readouterr().err == "lockstep: searched 2.0 GB of 10.0 GB, 1.0 GB/s, 8.0 s left\n"
    clock.now_ms += EVERY_MS - 1
    progress.update("b", 500, 1_000)
    assert capsys.readouterr().err == ""
    clock.now_ms += 1
    progress.update("a", 7_000_000_000, 0)
    assert "searched 9.0 GB of 9.0 GB" in capsys.readouterr().err
    assert (progress.done, progress.total) == (9_000_000_500, 9_000_001_500)


def test_progress_on_a_terminal_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    clock = SetClock()
    progress = SearchProgress(clock, "messages", StderrReporter())
    for _ in range(3):
        clock.now_ms += FIRST_MS
        progress.update("a", 100, 900)
    progress.end()
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert printed.count("\r") == 3
    assert "searched 100 messages of 1000 messages, 50 messages/s" in printed
