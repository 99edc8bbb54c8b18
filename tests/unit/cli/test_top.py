"""lockstep top: what it prints of a cluster, once."""

import json
from collections.abc import Sequence

import pytest
from rich.console import Console, ConsoleDimensions

from lockstep.cli.commands.top import Sort, _screen, _top
from lockstep.client import MessageExt, OrderlyContext
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.brokers.overviews import read_overviews
from lockstep.operations.brokers.rates import rates
from lockstep.protocol.bodies import GroupSettings
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support.why_kit import GROUP, TOPIC, Member, hang, send


async def test_figures_of_two_brokers_and_their_groups(lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]) -> None:
    await lockstep_cluster.create_topic(TOPIC, queues=2)
    await lockstep_cluster.start("a", Member(lockstep_cluster, hang).run)
    await lockstep_cluster.settled(GROUP)
    await send(lockstep_cluster, 40, keys=20)
    await lockstep_cluster.advance(seconds=5)
    await _top(lockstep_cluster.nameserver, 2, Sort.BEHIND, True, True)
    shown = json.loads(capsys.readouterr().out)
    assert [(each["broker"], each["reason"], each["stored_s"]) for each in shown["brokers"]] == [
        ("broker-a", None, 0),
        ("broker-b", None, 0),
    ]
    (group,) = shown["groups"]
    assert (group["group"], group["kind"], group["members"], group["held"], group["lag"]) == (GROUP, "ordered", 1, 4, 40)
    assert 5_000 <= group["oldest_ms"] < 10_000
    assert (group["given_s"], group["gone_ms"], group["grants_min"]) == (0, None, 0)


async def test_rates_are_those_between_the_looks(lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]) -> None:
    got: list[MessageExt] = []

    async def listen(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        got.extend(messages)

    await lockstep_cluster.create_topic(TOPIC, queues=1)
    await lockstep_cluster.start("a", Member(lockstep_cluster, listen).run)
    await lockstep_cluster.settled(GROUP)
    before = await read_overviews(AdminClient(Host.current(), lockstep_cluster.nameserver))
    await send(lockstep_cluster, 40, keys=20)
    await lockstep_cluster.until(lambda: len(got) == 40, "all messages")
    await lockstep_cluster.advance(seconds=1)
    found = rates(before, await read_overviews(AdminClient(Host.current(), lockstep_cluster.nameserver)))
    assert sum(each.stored_s or 0 for each in found.brokers) > 0
    assert found.groups[0].given_s == pytest.approx(sum(each.given_s or 0 for each in found.brokers))
    assert found.groups[0].lag == 0


@pytest.mark.lockstep(brokers=2)
async def test_broker_that_is_away_is_a_row_with_the_reason(lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]) -> None:
    await lockstep_cluster.create_topic(TOPIC, queues=1)
    await lockstep_cluster.kill("broker-b")
    await _top(lockstep_cluster.nameserver, 1, Sort.BEHIND, True, False)
    lines = capsys.readouterr().out.splitlines()
    columns = ["broker", "in/s", "out/s", "behind", "connections", "p99", "append", "unsynced", "free", "disk", "up", "remark"]
    assert lines[0].split() == columns
    (away,) = [line for line in lines if line.startswith("broker-b")]
    assert away.split()[1:9] == ["-"] * 8
    assert len(away.split()) > 9, "the reason"
    assert lines[-1] == "no groups"


@pytest.mark.lockstep(brokers=1)
async def test_group_that_needs_attention_says_why(lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]) -> None:
    await lockstep_cluster.create_topic(TOPIC, queues=1)
    await lockstep_cluster.start("a", Member(lockstep_cluster, hang).run)
    await lockstep_cluster.settled(GROUP)
    admin = AdminClient(Host.current(), lockstep_cluster.nameserver)
    (broker,) = await admin.brokers()
    await admin.configure(broker, GroupSettings(GROUP, consume_enable=False))
    look = await read_overviews(admin)
    found = rates({}, look)
    assert [each.consume_enable for each in found.groups] == [False]
    screen = _screen(found, Sort.BEHIND, {}, "every 2 s", ConsoleDimensions(200, 24))
    console = Console(width=200, file=None, record=True)
    console.print(screen)
    text = console.export_text()
    assert "consumption is switched off" in text
    assert text.splitlines()[-1].strip() == "every 2 s"


@pytest.mark.lockstep(brokers=1)
async def test_more_groups_than_the_screen_has_lines_are_counted(lockstep_cluster: TestCluster) -> None:
    await lockstep_cluster.create_topic(TOPIC, queues=1)
    admin = AdminClient(Host.current(), lockstep_cluster.nameserver)
    (broker,) = await admin.brokers()
    for number in range(30):
        await admin.configure(broker, GroupSettings(f"g{number}", consume_enable=False))
    found = rates({}, await read_overviews(admin))
    assert len(found.groups) == 30
    console = Console(width=200, record=True)
    console.print(_screen(found, Sort.BEHIND, {}, "every 2 s", ConsoleDimensions(200, 17)))
    lines = console.export_text().splitlines()
    assert len(lines) <= 17
    assert lines[-1].strip() == "every 2 s; 20 more groups"
