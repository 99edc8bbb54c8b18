"""lockstep tx show: one transaction, its messages that wait and those that were committed, and what to do next."""

from collections.abc import Coroutine
from typing import Any

import pytest

from lockstep.broker.processors.rooms import check_back
from lockstep.cli.change_command import carry_out
from lockstep.cli.commands.tx import _show
from lockstep.client import Client, Message, MessageQueue, Producer, TransactionProducer, TransactionStatus
from lockstep.operations.changes.waiting.transaction_end import TransactionCommit, TransactionEnd, TransactionRollback
from lockstep.testing import TestCluster
from support.ended_command import Run
from support.undecided import undecided

KEYS = ("a", "b", "käse", "a'b$(x)")


def show(cluster: TestCluster, name: str, *, as_json: bool = False) -> Coroutine[Any, Any, None]:
    return _show(name, cluster.nameserver, as_json)  # type: ignore[arg-type]


def end(cluster: TestCluster, change: TransactionEnd) -> Coroutine[Any, Any, None]:
    return carry_out(change, cluster.nameserver, dry_run=False, as_json=False)  # type: ignore[arg-type]


async def created(cluster: TestCluster) -> tuple[list[Message], list[MessageQueue]]:
    """Create topics. Return the messages of a transaction, and queues of both brokers for them."""
    for topic in ("orders", "bills"):
        await cluster.create_topic(topic, queues=1)
    return [Message("orders", b"x", keys=[key], tags="paid") for key in KEYS], [MessageQueue("orders", name, 0) for name in cluster.brokers]


async def test_half_messages_of_a_transaction_are_shown_by_its_id_and_by_that_of_each_message(
    lockstep_cluster: TestCluster, run: Run
) -> None:
    cluster = lockstep_cluster
    messages, queues = await created(cluster)
    async with undecided(cluster, messages, queues) as block, undecided(cluster, messages[:1], group="bank"):
        shown = await run(show(cluster, block.id))
        assert f"transaction {block.id}: 4 messages wait for its end\n" in shown.out
        assert all(key in shown.out for key in KEYS)
        assert shown.out.count(", which has sent the messages and is connected, is asked until ") == 1
        assert "broker-a and broker-b: client" in shown.out
        assert "look into the database of shop first" in shown.out
        assert f"`lockstep tx commit {block.id} --reason TEXT`" in shown.out
        report = (await run(show(cluster, block.id, as_json=True))).json
        assert (report["transaction_id"], report["committed"], report["complete"]) == (block.id, [], True)
        assert [(each["keys"], each["broker"], each["client_connected"], each["expired"]) for each in report["open"]] == [
            ([key], cluster.brokers[number % 2], True, False) for number, key in enumerate(KEYS)
        ]
        for each in report["open"]:
            assert (await run(show(cluster, each["message_id"], as_json=True))).json["open"] == report["open"]


async def test_message_says_who_is_asked_when_its_sender_has_gone_and_who_decides_when_it_is_too_old(
    lockstep_cluster: TestCluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = lockstep_cluster
    messages, queues = await created(cluster)
    async with undecided(cluster, messages[:1], queues) as block:
        pass
    await cluster.advance(seconds=2)
    shown = await run(show(cluster, block.id))
    assert "is not connected: another client of producer group shop is asked until" in shown.out
    assert "(gone)" in shown.out
    monkeypatch.setattr(check_back, "HOUR_MS", -1)
    shown = await run(show(cluster, block.id))
    assert "broker-a: nobody is asked any more since" in shown.out
    assert "too old" in shown.out


async def test_what_was_committed_is_shown_with_its_place(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    messages, queues = await created(cluster)
    async with undecided(cluster, messages, queues) as block:
        report = (await run(show(cluster, block.id, as_json=True))).json
        first = report["open"][0]["message_id"]
        await run(end(cluster, TransactionCommit(transaction_id=first, reason="by phone", yes=True)))
        await cluster.advance(seconds=1)
        shown = await run(show(cluster, block.id))
        assert f"transaction {block.id}: 3 messages wait for its end and 1 was committed" in shown.out
        assert "a part of it was committed: if the rest is rolled back, only that part is delivered" in shown.out
        await run(end(cluster, TransactionCommit(transaction_id=block.id, reason="by phone", yes=True)))
        await cluster.advance(seconds=1)
        for name in (block.id, first, first.lower()):
            report = (await run(show(cluster, name, as_json=True))).json
            assert (report["transaction_id"], report["open"]) == (block.id, []), name
            places = {(each["topic"], each["broker"], each["queue_offset"], *each["keys"]) for each in report["committed"]}
            assert places == {("orders", cluster.brokers[number % 2], number // 2, key) for number, key in enumerate(KEYS)}, name
        assert "it was committed: `lockstep message show " in (await run(show(cluster, block.id))).out


async def test_messages_that_the_producer_has_committed_are_shown(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    await created(cluster)
    producer = TransactionProducer("shop", nameserver=cluster.nameserver)
    producer.check(lambda *_: TransactionStatus.UNKNOWN)
    async with producer, producer.transaction() as block:
        for topic in ("orders", "bills"):
            await block.send(Message(topic, b"x", keys=[topic]))
    report = (await run(show(cluster, block.id, as_json=True))).json
    assert sorted(each["topic"] for each in report["committed"]) == ["bills", "orders"]


async def test_nothing_is_left_of_what_was_rolled_back_or_never_sent(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    messages, queues = await created(cluster)
    async with undecided(cluster, messages, queues) as block:
        await run(end(cluster, TransactionRollback(transaction_id=block.id, reason="by phone", yes=True)))
        for name in (block.id, "ab" * 16, "no id", "", "a'b$(x)", "x" * 40_000):
            ended = await run(show(cluster, name))
            assert (ended.out, ended.error != "") == ("", True), name[:40]
        assert "it was rolled back, retention has removed its messages, or it was never sent" in (await run(show(cluster, block.id))).error


async def test_message_of_no_transaction_is_not_taken_for_one(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    await created(cluster)
    async with Producer("shop", client=Client(cluster.nameserver)) as producer:
        sent = await producer.send(Message("orders", b"x", keys=["order-1"]))
    assert f"is of no transaction: `lockstep message show {sent.message_id}` shows it" in (await run(show(cluster, sent.message_id))).error
    assert "order-1 is the key of a message, and not an id: `lockstep tx ls --key order-1`" in (await run(show(cluster, "order-1"))).error


async def test_broker_that_does_not_respond_is_named_and_the_others_are_shown(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    messages, queues = await created(cluster)
    async with undecided(cluster, messages, queues) as block:
        await cluster.kill("broker-b")
        ended = await run(show(cluster, block.id, as_json=True))
        assert (len(ended.json["open"]), ended.json["complete"], list(ended.json["failed"])) == (2, False, ["broker-b"])
        assert "brokers that did not respond may have further messages of it" in ended.json["next"]
        assert "broker-b" in ended.error
        assert "broker-b" in (await run(show(cluster, "ab" * 16))).error
