"""A watch of a cluster: rates, brokers that come and go, silence, and no nameserver at the start."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from lockstep.client import Message, Producer, kept_connection
from lockstep.client.errors import QueueUnavailableError
from lockstep.operations.admin_client import REDIAL_MS, AdminClient
from lockstep.operations.groups.group_history import hand_overs
from lockstep.operations.groups.ownership import lanes
from lockstep.operations.watch.absence import AWAITED_MS, Why
from lockstep.operations.watch.watch import INTERVAL_MS, Watch
from lockstep.protocol.bodies import BrokerAddress, Overview
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import BrokerSystemError, TransportError
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support.why_kit import GROUP, TOPIC, Member, send

RATE = 20
INTERVAL_S = INTERVAL_MS / 1000


@asynccontextmanager
async def watching(nameserver: str) -> AsyncIterator[Watch]:
    tasks = Tasks()
    watch = Watch(Host.current(), nameserver, tasks)
    tasks.spawn(watch.run(), "watch")
    try:
        yield watch
    finally:
        await tasks.cancel_all()


def producing(cluster: TestCluster) -> Callable[[], object]:
    async def run() -> None:
        async with Producer("shop", nameserver=cluster.nameserver) as producer:
            number = 0
            while True:
                with suppress(QueueUnavailableError):  # its broker was killed
                    await producer.send(Message(TOPIC, b"%d" % number, sharding_key=f"k{number % 50}"))
                number += 1
                await asyncio.sleep(1 / RATE)

    return run


async def started(cluster: TestCluster) -> None:
    await cluster.create_topic(TOPIC, queues=4)
    await cluster.start("member", Member(cluster).run)
    await cluster.start("producer", producing(cluster))  # type: ignore[arg-type]


def known(values: Sequence[float | None]) -> list[bool]:
    return [value is not None for value in values]


async def test_rates_follow_what_is_sent_and_consumed(lockstep_cluster: TestCluster) -> None:
    await started(lockstep_cluster)
    async with watching(lockstep_cluster.nameserver) as watch:
        await lockstep_cluster.advance(seconds=40)
        for name in ("in", "out", f"group/{GROUP}/out"):
            assert watch.series.last(name)[0] is None, "the first look has no rate"
            assert all(RATE * 0.7 < value < RATE * 1.1 for value in watch.series.last(name, 6) if value is not None)
            assert known(watch.series.last(name, 6)) == [True] * 6
        assert watch.problem is None
        assert {each.group for each in watch.rates.groups} == {GROUP}


async def test_killed_broker_is_a_gap_with_a_reason_and_its_restart_no_negative_rate(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await started(cluster)
    async with watching(cluster.nameserver) as watch:
        await cluster.advance(seconds=30)
        await cluster.kill("broker-b")
        await cluster.advance(seconds=2 * INTERVAL_S)
        assert "broker-b" not in watch.brokers or isinstance(watch.looks["broker-b"], str)
        await cluster.restart("broker-b")
        await cluster.advance(seconds=5 * INTERVAL_S)
        assert not isinstance(watch.looks["broker-b"], str)
        values = watch.series.last("broker/broker-b/in")
        assert False in known(values[1:])
        assert known(values)[-2:] == [True, True]
        assert all(value >= 0 for value in values if value is not None)


async def test_silent_broker_delays_no_other_one(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await started(cluster)
    async with watching(cluster.nameserver) as watch:
        await cluster.advance(seconds=30)
        await cluster.pause("broker-b")
        await cluster.advance(seconds=9.5)
        assert "respon" in str(watch.looks["broker-b"])
        assert not isinstance(watch.looks["broker-a"], str)
        assert all(known(watch.series.last("broker/broker-a/in", 2)))
        assert watch.series.last("lag", 1) == watch.series.last("in", 1) == [None], "the sum is not known"
        await cluster.resume("broker-b")
        await cluster.advance(seconds=30)
        assert not isinstance(watch.looks["broker-b"], str)


async def test_silent_nameserver_delays_no_broker(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await started(cluster)
    async with watching(cluster.nameserver) as watch:
        await cluster.advance(seconds=30)
        await cluster.pause("nameserver-1")
        await cluster.advance(seconds=60)
        assert watch.problem is not None
        assert "no nameserver responds" in watch.problem
        assert all(known(watch.series.last("in", 11)))
        await cluster.resume("nameserver-1")
        await cluster.advance(seconds=12)
        assert watch.problem is None


async def test_nameserver_that_responds_is_asked_first(lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = lockstep_cluster
    unreachable, dialled, connect = "10.9.9.9:9876", Counter[str](), kept_connection.connect

    async def counted(host: Host, address: str, **options: Any) -> Any:
        dialled[address] += 1
        if address != unreachable:
            return await connect(host, address, **options)
        await asyncio.sleep(3)
        raise TransportError("no route to host")

    monkeypatch.setattr(kept_connection, "connect", counted)
    admin = AdminClient(Host.current(), f"{unreachable};{cluster.nameserver}")
    async with admin.keep_connections(redial=True):
        found = await asyncio.gather(*(admin.brokers() for _ in range(50)))
        assert {len(each) for each in found} == {2}
        assert dialled == {unreachable: 1, cluster.nameserver: 1}, "those that waited for the dial do not dial in turn"
        await cluster.advance(seconds=REDIAL_MS / 1000)
        await admin.brokers()
        assert dialled[unreachable] == 1, "the one that has responded is asked first"
        await cluster.kill("nameserver-1")
        for _ in range(3):
            with pytest.raises(TransportError, match="no nameserver responds"):
                await admin.brokers()
        assert dialled[unreachable] == 2, "the failure is remembered for a moment"
        await cluster.advance(seconds=REDIAL_MS / 1000)
        with pytest.raises(TransportError, match="no nameserver responds"):
            await admin.brokers()
        assert dialled[unreachable] == 3
        await cluster.restart("nameserver-1")
        await cluster.advance(seconds=REDIAL_MS / 1000)
        await admin.brokers()


async def test_sums_wait_for_a_broker_that_is_gone_for_a_while_and_then_go_on_without_it(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await started(cluster)
    sums = ("in", "out", "lag", "moves", f"group/{GROUP}/lag", f"group/{GROUP}/out", f"topic/{TOPIC}/in")
    async with watching(cluster.nameserver) as watch:
        await cluster.advance(seconds=30)
        assert watch.rates.left_out == ()
        await cluster.kill("broker-b")
        killed_ms = Host.current().clock.wall_ms()
        await cluster.advance(seconds=120)
        (broker_a,) = [each for each in watch.rates.brokers if each.broker == "broker-a"]
        assert watch.rates.left_out == ("broker-b",)
        assert (watch.rates.total(lambda each: each.stored_s), watch.rates.total(lambda each: each.lag)) == (
            broker_a.stored_s,
            broker_a.lag,
        )
        absence = watch.absent["broker-b"]
        assert (absence.why, absence.reason) == (Why.GONE, "it is not registered")
        assert absence.answered_ms is not None
        assert 0 <= killed_ms - absence.answered_ms <= INTERVAL_MS
        for name in sums:
            values = known(watch.series.last(name))
            assert values[-8:] == [True] * 8, name
            gap = values[2:].index(False)
            assert AWAITED_MS / INTERVAL_MS - 1 <= values[2:].count(False) <= AWAITED_MS / INTERVAL_MS + 1, name
            assert not any(values[2:][gap : gap + 5]), name
        await cluster.restart("broker-b")
        await cluster.advance(seconds=30)
        assert (watch.absent, watch.rates.left_out) == ({}, ())
        await cluster.kill("broker-a")
        await cluster.kill("broker-b")
        await cluster.advance(seconds=120)
        assert watch.rates.left_out == ("broker-a", "broker-b")
        found = watch.rates
        assert [found.total(lambda each: each.stored_s), found.total(lambda each: each.lag), found.grants_min] == [None] * 3, "never 0"


async def test_broker_that_is_gone_is_asked_no_more_until_it_registers(
    lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = lockstep_cluster
    await started(cluster)
    async with watching(cluster.nameserver) as watch:
        asked = []
        overview = watch.admin.overview

        async def counted(broker: BrokerAddress) -> Overview:
            asked.append(broker.name)
            return await overview(broker)

        monkeypatch.setattr(watch.admin, "overview", counted)
        await cluster.advance(seconds=10)
        await cluster.kill("broker-b")
        await cluster.advance(seconds=60)
        asked.clear()
        await cluster.advance(seconds=60)
        assert set(asked) == {"broker-a"}
        await cluster.restart("broker-b")
        await cluster.advance(seconds=10)
        assert watch.absent == {}


async def test_broker_that_refuses_its_events_gives_its_figures_and_one_that_refuses_figures_is_absent(
    lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = lockstep_cluster
    await started(cluster)
    async with watching(cluster.nameserver) as watch:
        refused: set[RequestCode] = {RequestCode.GROUP_EVENTS}
        request = watch.admin.request

        async def refusing(broker: BrokerAddress, code: RequestCode, *args: Any) -> Any:
            if broker.name == "broker-b" and code in refused:
                raise BrokerSystemError(f"{code.name} fails")
            return await request(broker, code, *args)

        monkeypatch.setattr(watch.admin, "request", refusing)
        await cluster.advance(seconds=20)
        assert isinstance(watch.looks["broker-b"], Overview)
        assert watch.absent == {}
        refused.add(RequestCode.OVERVIEW)
        await cluster.advance(seconds=60)
        assert watch.absent["broker-b"].why is Why.SILENT
        assert watch.looks["broker-b"] == "SYSTEM_ERROR: OVERVIEW fails"
        refused.clear()
        await cluster.advance(seconds=10)
        assert watch.absent == {}


async def test_broker_at_the_address_of_another_one_is_not_taken_for_it(
    lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = lockstep_cluster
    await started(cluster)
    async with watching(cluster.nameserver) as watch:
        brokers = watch.admin.brokers

        async def swapped() -> tuple[BrokerAddress, ...]:
            a, b = await brokers()
            return a, replace(b, address=a.address)

        monkeypatch.setattr(watch.admin, "brokers", swapped)
        await cluster.advance(seconds=10)
        assert watch.looks["broker-b"] == "broker-a responds at its address"


async def test_nameserver_may_come_later_and_go_again(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await started(cluster)
    await cluster.advance(seconds=3)
    await cluster.kill("nameserver-1")
    async with watching(cluster.nameserver) as watch:
        await cluster.advance(seconds=8)
        assert watch.problem is not None
        assert "no nameserver responds" in watch.problem
        assert watch.brokers == {}
        await cluster.restart("nameserver-1")
        await cluster.advance(seconds=60)
        assert (watch.problem, sorted(watch.brokers)) == (None, ["broker-a", "broker-b"])
        await cluster.kill("nameserver-1")
        await cluster.advance(seconds=8)
        assert watch.problem is not None
        assert all(not isinstance(look, str) for look in watch.looks.values()), "the brokers are asked at their last addresses"


async def test_events_are_followed_over_the_restart_of_a_broker(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=2)
    async with watching(cluster.nameserver) as watch:
        for name in ("a", "b"):
            await cluster.start(name, Member(cluster).run)
            await cluster.advance(seconds=10)
        await cluster.restart("broker-a")
        await cluster.advance(seconds=10)
        await cluster.kill("b")
        await cluster.advance(seconds=20)
        await send(cluster, 40, keys=40)
        await cluster.settled(GROUP)
        moved = hand_overs(watch.events.of(GROUP))
        assert sorted((each.broker, each.lost) for each in moved) == [
            *(("broker-a", False), ("broker-a", True)),
            *(("broker-b", False), ("broker-b", True)),
        ]
        now_ms = Host.current().clock.wall_ms()
        drawn = lanes(watch.events.of(GROUP), (now_ms - 60_000, now_ms), unknown=watch.events.unknown(now_ms))
        silent = [(lane.broker, span.until_ms - (span.alive_until_ms or 0)) for lane in drawn for span in lane.spans if span.alive_until_ms]
        assert sorted(broker for broker, _ in silent) == ["broker-a", "broker-b"]
        assert all(3_000 <= silent_ms < 30_000 for _, silent_ms in silent)
        assert sum(not span.known for lane in drawn if lane.broker == "broker-a" for span in lane.spans) >= 2
