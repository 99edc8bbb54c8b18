"""GROUP_EVENTS over the wire: pages, terms, and a group that nobody knows."""

import asyncio

import pytest

from lockstep.broker.processors import group_events
from lockstep.operations.admin_client import AdminClient
from lockstep.protocol.bodies import BrokerAddress, GroupEventKind, GroupEvents
from lockstep.protocol.codec.msgpack_body import decode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.headers.clients import GroupEventsHeader
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support.why_kit import GROUP, TOPIC, Member, send

QUEUES = 16


async def started(cluster: TestCluster) -> tuple[AdminClient, BrokerAddress]:
    """Start a member that is granted all queues."""
    await cluster.create_topic(TOPIC, queues=QUEUES)
    await cluster.start("a", Member(cluster).run)
    await send(cluster, 160, keys=160)
    await cluster.settled(GROUP)
    admin = AdminClient(Host.current(), cluster.nameserver)
    (broker,) = await admin.brokers()
    return admin, broker


async def read(admin: AdminClient, broker: BrokerAddress, header: GroupEventsHeader) -> GroupEvents:
    return decode_body(GroupEvents, (await admin.request(broker, RequestCode.GROUP_EVENTS, header)).body)


@pytest.mark.lockstep(brokers=1)
async def test_pages_of_a_few_events_are_all_events(lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    admin, broker = await started(lockstep_cluster)
    whole = await admin.group_events(broker, GROUP)
    assert [event.kind for event in whole.events] == [GroupEventKind.JOINED] + [GroupEventKind.GRANTED] * QUEUES
    monkeypatch.setattr(group_events, "EVENTS_PER_RESPONSE_MAX", 3)
    first = await read(admin, broker, GroupEventsHeader(0, None, GROUP))
    assert (first.events, first.last) == (whole.events[:3], whole.events[2].number)
    assert (await admin.group_events(broker, GROUP)).events == whole.events


@pytest.mark.lockstep(brokers=1)
async def test_reader_that_names_another_term_gets_all_events(lockstep_cluster: TestCluster) -> None:
    admin, broker = await started(lockstep_cluster)
    whole = await read(admin, broker, GroupEventsHeader())
    assert len(whole.events) == 1 + QUEUES
    assert (await read(admin, broker, GroupEventsHeader(whole.last, whole.term))).events == ()
    assert (await read(admin, broker, GroupEventsHeader(whole.last, whole.term - 1))).events == whole.events
    assert (await read(admin, broker, GroupEventsHeader(1, None))).events == whole.events[1:]


@pytest.mark.lockstep(brokers=1)
async def test_events_of_a_term_end_with_it_and_the_reader_learns_when_the_next_began(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    admin, broker = await started(cluster)
    before = await read(admin, broker, GroupEventsHeader())
    await cluster.restart("broker-a")
    await cluster.settled(GROUP)
    (broker,) = await admin.brokers()
    after = await read(admin, broker, GroupEventsHeader(before.last, before.term))
    assert after.term > before.term
    assert before.wall_ms <= after.began_ms <= after.wall_ms
    assert all(event.kind is not GroupEventKind.JOINED for event in after.events)


@pytest.mark.lockstep(brokers=1)
async def test_unknown_group_has_no_events(lockstep_cluster: TestCluster) -> None:
    admin, broker = await started(lockstep_cluster)
    found = await admin.group_events(broker, "nobody")
    assert (found.events, found.dropped) == ((), {})
    await asyncio.sleep(1)
    assert (await read(admin, broker, GroupEventsHeader(1 << 62, found.term, "nobody"))).events == ()
