"""lockstep tx ls | commit | rollback: the transactions of which no producer has said how they have ended."""

from collections.abc import Coroutine
from typing import Any

import pytest

from lockstep.broker.processors.rooms import check_back
from lockstep.cli.change_command import carry_out
from lockstep.cli.commands.message import _show
from lockstep.cli.commands.message_find import _find
from lockstep.cli.commands.tx import _list
from lockstep.client import Message
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.brokers.doctor_query import examine
from lockstep.operations.changes.waiting.transaction_end import TransactionCommit, TransactionEnd, TransactionRollback
from lockstep.operations.messages.find import Criteria
from lockstep.operations.messages.halves import list_halves
from lockstep.operations.messages.message_query import find_by_id
from lockstep.operations.messages.message_text import message_facts, message_line
from lockstep.operations.messages.waiting import waiting_of
from lockstep.protocol.headers.transactions import ListHalvesHeader
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support.delayed import listening
from support.ended_command import Run
from support.undecided import undecided


def ls(cluster: TestCluster, *, limit: int = 100, as_json: bool = False, **wanted: Any) -> Coroutine[Any, Any, None]:
    return _list(ListHalvesHeader(**wanted), limit, cluster.nameserver, as_json)  # type: ignore[arg-type]


def end(cluster: TestCluster, change: TransactionEnd, *, dry_run: bool = False, as_json: bool = False) -> Coroutine[Any, Any, None]:
    return carry_out(change, cluster.nameserver, dry_run=dry_run, as_json=as_json)  # type: ignore[arg-type]


def show(cluster: TestCluster, message_id: str) -> Coroutine[Any, Any, None]:
    return _show(message_id, None, cluster.nameserver, False, with_tracks=False)  # type: ignore[arg-type]


def find(cluster: TestCluster, key: str) -> Coroutine[Any, Any, None]:
    return _find(key, None, Criteria(), (None, None), 20, False, cluster.nameserver, False)  # type: ignore[arg-type]


def paid(*names: str) -> list[Message]:
    return [Message("orders", name.encode(), sharding_key=name, keys=[f"key-{name}"], tags="paid") for name in names]


async def test_half_messages_of_all_brokers_are_listed(lockstep_cluster: TestCluster, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_back, "HOUR_MS", 60_000)
    cluster = lockstep_cluster
    async with listening(cluster), undecided(cluster, paid(*"abcdef")) as block:
        shown = await run(ls(cluster))
        assert [line[5] for line in shown.lines[1:]] == [f"key-{name}" for name in "abcdef"]
        assert {(line[1], line[3], line[6], line[8]) for line in shown.lines[1:]} == {("orders", block.id, "shop", "yes")}
        found = (await run(ls(cluster, as_json=True, topic="orders", producer_group="shop", transaction_id=block.id))).json
        assert (len(found["messages"]), found["open"], found["complete"], found["failed"]) == (6, 6, True, {})
        assert {(each["tags"], each["expired"]) for each in found["messages"]} == {("paid", False)}
        one = found["messages"][3]["message_id"]
        assert [each["message_id"] for each in (await run(ls(cluster, as_json=True, transaction_id=one))).json["messages"]] == [one]
        assert [each["keys"] for each in (await run(ls(cluster, as_json=True, key="key-c"))).json["messages"]] == [["key-c"]]
        assert "is several words" in (await run(ls(cluster, key="key-a key-b"))).error
        for other in ({"key": "key"}, {"producer_group": "other"}, {"transaction_id": "other"}, {"expired": True}):
            assert "no such half message waits" in (await run(ls(cluster, **other))).out
        assert "these are the first 2 of 6" in (await run(ls(cluster, limit=2))).out
        await cluster.advance(minutes=25)
        assert len((await run(ls(cluster, as_json=True, expired=True))).json["messages"]) == 6
        assert "too old" in (await run(ls(cluster))).out
        findings = [each for each in await examine(AdminClient(Host.current(), cluster.nameserver)) if each.check == "transactions decided"]
        assert [(each.where, each.problem) for each in findings] == [
            ("orders", "6 messages of transactions of producer group shop are too old to be asked about")
        ]
        assert "no-such-topic" in (await run(ls(cluster, topic="no-such-topic"))).error


@pytest.mark.parametrize("change", [TransactionCommit, TransactionRollback])
async def test_transaction_is_decided_by_hand(lockstep_cluster: TestCluster, run: Run, change: type[TransactionEnd]) -> None:
    cluster = lockstep_cluster
    async with listening(cluster) as (_, seen), undecided(cluster, paid("a", "b")) as block:
        assert "say why by --reason" in (await run(end(cluster, change(transaction_id=block.id, yes=True)))).error
        plan = change(transaction_id=block.id, reason="by phone")
        assert f"2 messages of transaction {block.id} (orders) {change.effect}." in (await run(end(cluster, plan, dry_run=True))).out
        assert "nothing was changed: to do it, run `lockstep tx" in (await run(end(cluster, plan))).error
        await cluster.advance(seconds=5)
        assert not seen
        done = await run(end(cluster, change(transaction_id=block.id, reason="by phone", yes=True)))
        assert f"2 messages of transaction {block.id} were {change.done}" in done.out
        await cluster.advance(seconds=5)
        assert sorted(message.body for _, message in seen) == ([b"a", b"b"] if change is TransactionCommit else [])
        again = await run(end(cluster, change(transaction_id=block.id, reason="by phone", yes=True)))
        assert "no half message of transaction" in again.out


async def test_half_message_is_found_as_one_that_waits_for_its_transaction(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    async with listening(cluster), undecided(cluster, paid("a")) as block:
        admin = AdminClient(Host.current(), cluster.nameserver)
        (half,) = (await list_halves(admin, ListHalvesHeader())).found
        message, _ = await find_by_id(admin, await admin.brokers(), half.row.message_id)
        waiting = waiting_of(message)
        assert waiting is not None
        assert (waiting.queue.topic, waiting.due_ms, waiting.transaction_id) == ("orders", None, block.id)
        assert message_facts(message)["undecided_transaction"] == block.id
        assert f"undecided-transaction={block.id}" in message_line(message)
        step = f"transaction {block.id} is not decided: `lockstep tx show {block.id}` says who is asked, and how to decide"
        assert step in (await run(show(cluster, half.row.message_id))).out
        assert step in (await run(find(cluster, "key-a"))).told
        await run(end(cluster, TransactionCommit(transaction_id=block.id, reason="by phone", yes=True)))
        await cluster.advance(seconds=5)
        message, _ = await find_by_id(admin, await admin.brokers(), half.row.message_id)
        assert (message.stored_topic, waiting_of(message)) == ("orders", None)
        assert "tx show" not in (await run(show(cluster, half.row.message_id))).out
