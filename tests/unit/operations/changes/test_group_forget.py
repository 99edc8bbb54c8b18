"""lockstep group forget: what it prints and ends, and what it refuses; and drains that wait for it."""

import asyncio
import json
from typing import Any

import pytest

from lockstep.cli.change_command import carry_out
from lockstep.cli.commands.group import _show
from lockstep.client import Message, Producer
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes.broker_drain import BrokerDrain
from lockstep.operations.changes.group_forget import GroupForget
from lockstep.operations.changes.layouts.layout_publish import create_and_wait
from lockstep.operations.changes.layouts.write_hold import WriteHold
from lockstep.operations.errors import OperationError
from lockstep.operations.groups.group_query import list_groups
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support.queue_moves import consuming, layout_of

TOPIC = "orders"


def forget(cluster: TestCluster, topic: str = TOPIC, group: str = "billing", *, dry_run: bool = False, as_json: bool = False) -> Any:
    return carry_out(GroupForget(group=group, topic=topic), cluster.nameserver, dry_run=dry_run, as_json=as_json)


async def left_topic(cluster: TestCluster) -> None:
    """Let an ordered group consume 3 messages of the topic, and leave it by a rolling update with 2 more unconsumed."""
    await create_and_wait(cluster.nameserver, TOPIC, 1, ["broker-a"])
    await cluster.create_topic("bills", queues=1)
    await cluster.start("old", consuming(cluster, "billing", 0, TOPIC, "bills"))
    await send(cluster, 3)
    await cluster.settled("billing")
    await cluster.start("new", consuming(cluster, "billing", 1, "bills"))
    await cluster.stop("old")
    await send(cluster, 2)


async def send(cluster: TestCluster, count: int) -> None:
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        for number in range(count):
            await producer.send(Message(TOPIC, b"%d" % number, sharding_key="k"))


async def test_left_topic_is_shown_and_its_progress_ends_on_command(
    lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = lockstep_cluster
    await left_topic(cluster)
    await _show("billing", cluster.nameserver, False)
    shown = capsys.readouterr().out
    assert "group billing: ordered, members: 1, lag: 0\n" in shown
    assert "no contract in force subscribes to orders: the group has left it" in shown
    assert "`lockstep group forget billing --topic orders` ends its progress there" in shown
    lines, _ = await list_groups(AdminClient(Host.current(), cluster.nameserver))
    assert [(line.group, line.lag) for line in lines] == [("billing", 0)]
    await forget(cluster, dry_run=True)
    shown = capsys.readouterr().out.splitlines()
    assert shown[1].split() == [TOPIC, "broker-a", "0", "3", "5"]
    assert shown[2].startswith("The progress of group billing in orders ends, in 1 queues")
    assert shown[-1] == "nothing was changed (--dry-run)"
    await forget(cluster, as_json=True)
    queues = [{"queue": "orders@broker-a:0", "offset": 3, "end": 5}]
    assert json.loads(capsys.readouterr().out) == {"group": "billing", "topic": TOPIC, "done": True, "queues": queues}
    with pytest.raises(OperationError, match="nothing was changed: group billing has no progress in orders"):
        await forget(cluster)
    await cluster.settled("billing")
    await cluster.stop("new")
    lines, _ = await list_groups(AdminClient(Host.current(), cluster.nameserver))
    assert [(line.group, line.lag) for line in lines] == [("billing", 0)], "a stopped group does not lag there either"


async def test_progress_in_a_topic_that_members_consume_does_not_end(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await left_topic(cluster)
    with pytest.raises(OperationError, match=r"nothing was changed: members of group billing may consume bills: .*@.*group forget billing"):
        await forget(cluster, "bills")
    with pytest.raises(OperationError, match="no broker knows group nobody"):
        await forget(cluster, group="nobody")


async def test_drain_waits_for_a_group_without_members_and_holds_no_writes_meanwhile(
    lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = lockstep_cluster
    await left_topic(cluster)
    await cluster.stop("new")
    draining = asyncio.create_task(carry_out(BrokerDrain(name="broker-a"), cluster.nameserver))
    await cluster.advance(seconds=30)
    assert not draining.done()
    said = capsys.readouterr().err
    assert "waiting for the groups of broker-a: orders: billing: 2, and it has no member" in said
    assert "(`lockstep group forget billing --topic orders` ends the progress of a group that will not come back)" in said
    async with WriteHold(AdminClient(Host.current(), cluster.nameserver), TOPIC):
        pass  # another command may hold the writes: the drain does not
    await send(cluster, 1)
    await forget(cluster)
    await draining
    assert "broker-a" not in (await layout_of(AdminClient(Host.current(), cluster.nameserver), TOPIC)).brokers


async def test_drain_does_not_wait_for_a_topic_that_the_group_has_left(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await left_topic(cluster)
    await carry_out(BrokerDrain(name="broker-a"), cluster.nameserver)
    for topic in (TOPIC, "bills"):
        assert (await layout_of(AdminClient(Host.current(), cluster.nameserver), topic)).brokers == ("broker-b",)
