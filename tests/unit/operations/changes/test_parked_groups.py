"""Parked keys and the commands that move a group or its queues: they are refused, or forget the keys and say so. group show counts them."""

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from lockstep.cli.change_command import carry_out
from lockstep.cli.commands.group import _show as show_group
from lockstep.operations.admin_client import AdminClient, BrokerResults
from lockstep.operations.changes import group_reset
from lockstep.operations.changes.broker_drain import BrokerDrain
from lockstep.operations.changes.group_reset import GroupReset
from lockstep.operations.changes.layouts import queue_move
from lockstep.operations.changes.layouts.drain import close_queues
from lockstep.operations.changes.park_change import ParkReplay
from lockstep.operations.changes.topic_alter import TopicAlter
from lockstep.operations.changes.topic_purge import TopicPurge
from lockstep.operations.errors import OperationError
from lockstep.operations.groups.group_query import read_group
from lockstep.operations.groups.group_report import GroupReport
from lockstep.protocol.bodies import GroupStatus, ParkAction, ParkControlBody
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support.parked_group import GROUP, TOPIC, Group, send, until_parked
from support.queue_moves import broker_named, layout_of, ordered_worker

KEYS = [f"k{number}" for number in range(10)]
one_broker = pytest.mark.lockstep(brokers=1)


def reset(cluster: TestCluster, to: str, *queues: str, drop_parked: bool = False, dry_run: bool = False, as_json: bool = False) -> Any:
    return carry_out(
        GroupReset(group=GROUP, to=to, queue=tuple(queues), drop_parked=drop_parked), cluster.nameserver, dry_run=dry_run, as_json=as_json
    )


def alter(
    cluster: TestCluster, queues: int | None = None, read: int | None = None, *, write: int | None = None, force: bool = False
) -> Coroutine[Any, Any, None]:
    return carry_out(TopicAlter(topic=TOPIC, queues=queues, write_queues=write, read_queues=read, force=force), cluster.nameserver)


async def committed(cluster: TestCluster) -> dict[str, int | None]:
    """Return the group's progress by broker: each has one queue."""
    found = await cluster.group_status(GROUP)
    assert found is not None
    return {line.broker: line.committed_offset for line in found.queues}


async def parked_at(group: Group) -> dict[str, int]:
    """Return the number of parked keys by broker."""
    names = [each.broker.name for each in await group.parked()]
    return {name: names.count(name) for name in names}


# ------------------------------------------------------------------------------------------------------------------- reset


async def test_reset_is_refused_at_every_broker_while_any_has_parked_keys(
    lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """The broker that would be reset first has none."""
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    group = Group(cluster)
    await group.park(40, 10, *KEYS)
    at_a = [each for each in await group.parked() if each.broker.name == "broker-a"]
    admin = AdminClient(Host.current(), cluster.nameserver)
    group.poison.clear()
    await admin.control_parked(at_a[0].broker, ParkControlBody(ParkAction.REPLAY, GROUP))
    await until_parked(group, *(each.row.key for each in await group.parked() if each.broker.name == "broker-b"))
    before, count = await committed(cluster), (await parked_at(group))["broker-b"]
    for dry_run in (False, True):
        with pytest.raises(OperationError) as refused:
            await reset(cluster, "beginning", dry_run=dry_run)
        assert str(refused.value) == (
            f"nothing was changed: keys of group {GROUP} are parked ({count} in {TOPIC} broker-b:0), and a reset would deliver their "
            f"messages again, or never. Replay or drop them (`lockstep park ls {GROUP}` lists them), or forget them with --drop-parked"
        )
    assert await committed(cluster) == before
    assert capsys.readouterr().out == ""
    await cluster.stop("worker")
    await reset(cluster, "beginning", "broker-a:0")
    assert (await committed(cluster), await parked_at(group)) == ({**before, "broker-a": 0}, {"broker-b": count}), "others can be reset"


@one_broker
async def test_reset_forgets_parked_keys_if_it_is_told_to_and_counts_them(
    lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    group = Group(cluster)
    await group.park(50, 10, "k3", "k7")
    group.poison.clear()
    await reset(cluster, "end", drop_parked=True, dry_run=True)
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "Group billing consumes 0 messages again and skips 0, as things are now.",
        "Running members are fenced, and continue from there without a restart.",
        "2 parked keys are forgotten, with 10 messages that wait for them.",
        "nothing was changed (--dry-run)",
    ]
    assert await parked_at(group) == {"broker-a": 2}
    await reset(cluster, "end", drop_parked=True, as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert (shown["done"], shown["parked_keys"], shown["waiting"], shown["waiting_complete"]) == (True, 2, 10, True)
    assert [queue["parked"] for queue in shown["queues"]] == [2]
    assert await parked_at(group) == {}
    await send(cluster, 10, 10, start=50)
    await cluster.settled(GROUP)
    assert (group.of_key("k3"), group.of_key("k7")) == ([53], [57]), "the keys are in the main flow again"
    await reset(cluster, "end", drop_parked=True)
    assert capsys.readouterr().out.splitlines()[-1].endswith(", parked keys to forget: 0, with 0 waiting messages")
    await reset(cluster, "end")
    assert capsys.readouterr().out.splitlines()[-1] == "group billing: messages to consume again: 0, messages to skip: 0"


@one_broker
async def test_key_that_is_parked_between_the_check_and_the_reset_is_reported(
    lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await Group(cluster).park(20, 10, "k3")

    async def read_before(admin: AdminClient, name: str) -> tuple[GroupReport | None, BrokerResults[GroupStatus]]:
        found, statuses = await read_group(admin, name)
        assert found is not None
        return replace(found, queues=tuple(replace(line, parked=0) for line in found.queues)), statuses

    monkeypatch.setattr(group_reset, "read_group", read_before)
    with pytest.raises(
        OperationError, match=r"broker broker-a did not reset orders: PARK_REFUSED: group billing is not reset in orders queue 0"
    ):
        await reset(cluster, "end")


@one_broker
async def test_reset_that_forgets_keys_is_not_made_if_their_messages_cannot_be_counted(
    lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    group = Group(cluster)
    await group.park(20, 10, "k3")

    async def unreadable(self: AdminClient, *args: object, **options: object) -> tuple[bytes, int]:
        raise OperationError("the disk is broken")

    monkeypatch.setattr(AdminClient, "pull", unreadable)
    with pytest.raises(
        OperationError, match=r"nothing was changed: the waiting messages .* can't be counted: broker broker-a: the disk is"
    ):
        await reset(cluster, "end", drop_parked=True)
    assert await parked_at(group) == {"broker-a": 1}


# ------------------------------------------------------------------------------------------------------------- moves of queues


async def test_queues_do_not_change_while_keys_are_parked(lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=2)
    admin = AdminClient(Host.current(), cluster.nameserver)
    group, other = Group(cluster), Group(cluster, "audit", poison={"k1", "k2"})
    await cluster.start("other", other.member)
    await group.park(40, 10, "k3")
    await until_parked(other, "k1", "k2")
    await cluster.settled("audit")
    before = await layout_of(admin, TOPIC)
    for queues, why in ((3, "messages of a key would be consumed out of order"), (1, "messages in the removed queues would be lost")):
        with pytest.raises(OperationError) as refused:
            await alter(cluster, queues)
        assert str(refused.value) == (
            f"nothing was changed: groups have parked keys in {TOPIC} (audit: 2, billing: 1), and {why}. Replay or drop them (`lockstep "
            f"park ls --topic {TOPIC}` lists them), or use --force"
        )
    for refused_work in (close_queues(admin, TOPIC, "broker-a"), carry_out(BrokerDrain(name="broker-a"), cluster.nameserver)):
        with pytest.raises(OperationError, match=r"parked keys in orders \(audit: 2, billing: 1\)"):
            await refused_work
    assert await layout_of(admin, TOPIC) == before
    capsys.readouterr()
    await alter(cluster, 2)
    assert capsys.readouterr().out == f"topic {TOPIC} has that many queues already\n"
    await alter(cluster, read=3, write=2)
    assert len((await layout_of(admin, TOPIC)).read_queues) == 6, "no key moves if only queues to read are added"
    await alter(cluster, 3, force=True)
    assert len((await layout_of(admin, TOPIC)).write_queues) == 6
    assert "order per key ended" in capsys.readouterr().out


@one_broker
async def test_queues_change_when_no_key_is_parked_any_more(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    group = Group(cluster)
    await group.park(40, 10, "k3")
    group.poison.clear()
    with pytest.raises(OperationError, match="parked keys in orders"):
        await alter(cluster, 2)
    for each in await group.parked():
        await AdminClient(Host.current(), cluster.nameserver).control_parked(
            each.broker, ParkControlBody(ParkAction.REPLAY, GROUP, key="k3")
        )
    await until_parked(group)
    await cluster.settled(GROUP)
    await alter(cluster, 2)
    await send(cluster, 40, 10, start=40)
    await cluster.settled(GROUP)
    assert group.of_key("k3") == list(range(3, 80, 10))


@one_broker
async def test_key_that_is_parked_while_the_writes_are_held_stops_the_change(
    lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the hold begins the message is tried for the last times. It is parked next, and then the group has no lag."""
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    admin = AdminClient(Host.current(), cluster.nameserver)
    group = Group(cluster, backoff_ms=2_200, poison={"k3"})  # it is parked after a look at the parked keys and before one at the lag
    await cluster.start("worker", group.member)
    await send(cluster, 4, 10)
    await cluster.until(lambda: group.failed == 1, "the first failed call")
    lags: list[int] = []
    real = queue_move.read_lag

    async def read_lag(*args: Any) -> Any:
        lag = await real(*args)
        lags.append(lag.total)
        return lag

    monkeypatch.setattr(queue_move, "read_lag", read_lag)
    before = await layout_of(admin, TOPIC)
    with pytest.raises(OperationError, match=r"parked keys in orders \(billing: 1\)"):
        await alter(cluster, 2)
    assert (lags[0] > 0, lags[-1], len(lags) > 2) == (True, 0, True)
    assert await layout_of(admin, TOPIC) == before


async def test_drain_waits_until_parked_keys_are_gone(lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """The keys are parked in a queue that is closed to writers already."""
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    admin = AdminClient(Host.current(), cluster.nameserver)
    group = Group(cluster)
    await group.park(40, 10, *KEYS)
    at_a = [each for each in await group.parked() if each.broker.name == "broker-a"]
    await carry_out(TopicAlter(topic=TOPIC, write_queues=0, read_queues=1, broker=("broker-a",), force=True), cluster.nameserver)
    capsys.readouterr()
    draining = asyncio.create_task(carry_out(BrokerDrain(name="broker-a"), cluster.nameserver))
    await asyncio.sleep(5)
    assert not draining.done()
    assert f"waiting for the groups of broker-a: parked keys in {TOPIC}: {GROUP}: {len(at_a)}\n" in capsys.readouterr().err
    group.poison.clear()
    await admin.control_parked(at_a[0].broker, ParkControlBody(ParkAction.REPLAY, GROUP))
    await draining
    assert (await layout_of(admin, TOPIC)).brokers == ("broker-b",)
    assert {each.broker.name for each in await group.parked()} == {"broker-b"}, "they hold up nothing"


async def test_change_is_refused_if_a_broker_does_not_list_its_parked_keys(
    lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await cluster.start("worker", ordered_worker(cluster, GROUP, TOPIC, []))
    await send(cluster, 10, 10)
    await cluster.settled(GROUP)

    async def silent(self: AdminClient, *args: object) -> Any:
        raise OperationError("no response within 5000 ms")

    monkeypatch.setattr(AdminClient, "control_parked", silent)
    with pytest.raises(OperationError, match=r"is unknown \(broker broker-a: no response within 5000 ms; broker broker-b: "):
        await alter(cluster, 2)


# -------------------------------------------------------------------------------------------------------------- group show


async def test_group_show_counts_the_parked_keys_of_each_queue(lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    group = Group(cluster)
    await group.park(40, 10)
    await show_group(GROUP, cluster.nameserver, False)
    assert "parked" not in capsys.readouterr().out
    group.poison.update(KEYS)
    await send(cluster, 40, 10, start=40)
    await until_parked(group, *KEYS)
    counts = await parked_at(group)
    await show_group(GROUP, cluster.nameserver, False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[1:4]] == ["parked", str(counts["broker-a"]), str(counts["broker-b"])]
    assert lines[4] == f"messages of the parked keys wait until they are replayed or dropped: `lockstep park ls {GROUP}`"
    await show_group(GROUP, cluster.nameserver, True)
    assert [queue["parked"] for queue in json.loads(capsys.readouterr().out)["queues"]] == list(counts.values())
    await cluster.kill("broker-b")
    with pytest.raises(OperationError, match="incomplete"):
        await show_group(GROUP, cluster.nameserver, True)
    assert [queue["parked"] for queue in json.loads(capsys.readouterr().out)["queues"]] == [counts["broker-a"], None]
    admin = AdminClient(Host.current(), cluster.nameserver)
    (status,) = [(await admin.group_status(await broker_named(admin, "broker-a"), GROUP)).status]
    assert status is not None
    assert [queue.parked for queue in status.queues] == [counts["broker-a"]]


# ------------------------------------------------------------------------------------------------------------------- purge


@one_broker
async def test_forced_purge_removes_what_waits_for_a_replay_and_says_so(
    lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    group = Group(cluster)
    await group.park(50, 10, "k3", "k7")
    group.poison.clear()
    with pytest.raises(OperationError, match=r"not all of it was consumed by billing \(0 messages, 2 parked keys\)"):
        await carry_out(TopicPurge(topic=TOPIC, to="end"), cluster.nameserver)
    await carry_out(TopicPurge(topic=TOPIC, to="end", force=True), cluster.nameserver, dry_run=True)
    lost = "Messages that wait for the replay of parked keys are removed too, and are not copied to the dead letters."
    assert lost in capsys.readouterr().out.splitlines()
    await carry_out(TopicPurge(topic=TOPIC, to="end", force=True), cluster.nameserver)
    await carry_out(ParkReplay(group=GROUP, every=True), cluster.nameserver)
    await until_parked(group)
    await send(cluster, 10, 10, start=50)
    await cluster.settled(GROUP)
    assert group.of_key("k3") == [53]
    assert await AdminClient(Host.current(), cluster.nameserver).topics() == (TOPIC,), "there is no dead-letter topic"
