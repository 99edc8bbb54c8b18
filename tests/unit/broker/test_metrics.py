"""A broker's admin port: its metrics match the events, and ready means that clients can use the broker."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from lockstep.broker.app import Broker
from lockstep.broker.config import BrokerConfig
from lockstep.broker.figures.replica_metrics import render_starting
from lockstep.broker.store import Store
from lockstep.nameserver.app import Nameserver
from lockstep.nameserver.config import NameserverConfig
from lockstep.protocol.bodies import LockItem, RegisterStanding, SyncBody, SyncItem
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.headers.clients import UnregisterClientHeader
from lockstep.protocol.headers.offsets import UpdateConsumerOffsetHeader
from lockstep.protocol.headers.send import SendBackHeader
from lockstep.runtime.clock import Clock
from lockstep.runtime.host import Host
from lockstep.runtime.steady_clock import TRUST_MS
from support.http import fetch
from support.native import bodies
from support.until import until
from support.whole_broker import TOPIC, dialled, frame, heartbeat, join, kill, reconcile, running, settings, stored

YEAR_MS = 365 * 86_400_000


class ClockAhead(Clock):
    """Its wall clock is a year ahead."""

    def wall_ms(self) -> int:
        return super().wall_ms() + YEAR_MS


async def scrape(broker: Broker) -> dict[str, float]:
    """Return the values by metric name and labels, without the broker's own labels."""
    assert broker.admin_port is not None
    status, text = await fetch(broker.admin_port.address, "/metrics")
    assert status == 200
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found[re.sub(r'(cluster|node_type|node_id)="[^"]*",?', "", name).replace(",}", "}").replace("{}", "")] = float(value)
    return found


async def test_message_lag_and_member_metrics_equal_the_tables(tmp_path: Path) -> None:
    config = settings(tmp_path, admin_listen="127.0.0.1:0")
    async with running(config) as broker:
        async with dialled(broker) as client:
            await client.create()
            header, data, _ = frame(0, 5)
            await client.done(RequestCode.SEND_RECORDS, header, data)
            assert len(bodies(await client.pull(0))) == 5
            await client.done(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader("g", TOPIC, 0, 2))
            found = await scrape(broker)
        assert found['rocketmq_messages_in_total{topic="orders"}'] == 5
        assert found['rocketmq_throughput_in_total{topic="orders"}'] == len(data)
        assert found['rocketmq_messages_out_total{consumer_group="g",topic="orders"}'] == 5
        assert found['rocketmq_throughput_out_total{consumer_group="g",topic="orders"}'] == len(data)
        assert found['rocketmq_consumer_lag_messages{consumer_group="g",topic="orders"}'] == 3
        assert found['rocketmq_consumer_lag_latency{consumer_group="g",topic="orders"}'] >= 0
        assert found["rocketmq_topic_number"] == found["rocketmq_consumer_group_number"] == 1
        assert (found["lockstep_topics_max"], found["lockstep_topics_deleted"]) == (16_384, 0)
        assert (found["lockstep_topic_names"], found["lockstep_topic_names_limit"]) == (found["rocketmq_topic_number"], 98_304)
        assert found["rocketmq_broker_permission"] == 6
        assert found["lockstep_append_latency_seconds_count"] == 1
        assert not any("%" in name or "RMQ_SYS" in name for name in found), "the broker's own topics are nobody's load"
    async with running(config) as broker:
        found = await scrape(broker)
        assert found['rocketmq_messages_in_total{topic="orders"}'] == 5, "a restart is no new beginning"
        assert found['rocketmq_consumer_lag_messages{consumer_group="g",topic="orders"}'] == 3


async def test_topic_that_a_group_has_left_has_no_lag(tmp_path: Path) -> None:
    async with running(settings(tmp_path, admin_listen="127.0.0.1:0")) as broker, dialled(broker) as client:
        await client.create()
        header, data, _ = frame(0, 2)
        await client.done(RequestCode.SEND_RECORDS, header, data)
        await client.done(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader("g", TOPIC, 0, 1))
        lags = ("rocketmq_consumer_lag_messages", "rocketmq_consumer_lag_latency")
        assert {name for name in await scrape(broker) if name.startswith(lags)} == {
            f'{name}{{consumer_group="g",topic="orders"}}' for name in lags
        }
        await heartbeat(client, "b", "2" * 32, topic="bills")
        found = await scrape(broker)
        assert found['rocketmq_consumer_connections{consumer_group="g"}'] == 1
        assert not [name for name in found if name.startswith(lags)]


async def test_group_without_unread_messages_has_a_lag_of_zero(tmp_path: Path) -> None:
    async with running(settings(tmp_path, admin_listen="127.0.0.1:0")) as broker, dialled(broker) as client:
        await client.create()
        header, data, _ = frame(0, 2)
        await client.done(RequestCode.SEND_RECORDS, header, data)
        await client.done(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader("g", TOPIC, 0, 2))
        found = await scrape(broker)
        assert found['rocketmq_consumer_lag_messages{consumer_group="g",topic="orders"}'] == 0
        assert not [name for name in found if name.startswith("rocketmq_consumer_lag_latency")]


async def test_message_age_does_not_grow_when_the_clock_is_set_forward(tmp_path: Path) -> None:
    async with running(settings(tmp_path, admin_listen="127.0.0.1:0")) as broker, dialled(broker) as client:
        await client.create()
        header, data, _ = frame(0, 2)
        await client.done(RequestCode.SEND_RECORDS, header, data)
        await client.done(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader("g", TOPIC, 0, 1))
        assert broker._store is not None
        steady = broker._store._state.stamps._steady
        assert steady is not None
        steady._stray_ms, steady._strayed_for_ms = YEAR_MS, TRUST_MS
        steady._clock = ClockAhead()
        broker._store.follow_clock()
        found = await scrape(broker)
        assert 0 <= found['rocketmq_consumer_lag_latency{consumer_group="g",topic="orders"}'] < YEAR_MS


async def test_waiting_copy_exports_what_its_register_says() -> None:
    found = []
    for register in (
        RegisterStanding("witness://w:1", None, "refused"),
        RegisterStanding("witness://w:1", 40),
        RegisterStanding("witness://w:1", 4_000, "refused", 7, "a"),
    ):
        text = (await render_starting(BrokerConfig(), register)).decode()
        found.append(dict(re.findall(r"^lockstep_(?:register_)?(\w+)\{.* (\S+)$", text, re.MULTILINE)))
    assert found == [
        {"role": "1.0", "reached": "0.0"},
        {"role": "1.0", "reached": "1.0", "term": "0.0"},
        {"role": "1.0", "reached": "0.0", "term": "7.0"},
    ]


async def test_disk_error_omits_only_the_metrics_that_read_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    async with running(settings(tmp_path, admin_listen="127.0.0.1:0")) as broker, dialled(broker) as client:
        await client.create()
        header, data, _ = frame(0, 2)
        await client.done(RequestCode.SEND_RECORDS, header, data)
        await client.done(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader("g", TOPIC, 0, 1))
        monkeypatch.setattr(Store, "read", unreadable)
        found = await scrape(broker)
        assert found['rocketmq_consumer_lag_messages{consumer_group="g",topic="orders"}'] == 1
        assert not [name for name in found if name.startswith("rocketmq_consumer_lag_latency")]


async def test_dead_letters_are_counted_by_group_over_a_restart(tmp_path: Path) -> None:
    config, counted = settings(tmp_path, admin_listen="127.0.0.1:0"), 'rocketmq_send_to_dlq_messages_total{consumer_group="g"}'
    async with running(config) as broker, dialled(broker) as client:
        await client.create()
        header, data, _ = frame(0, 1)
        await client.done(RequestCode.SEND_RECORDS, header, data)
        assert counted not in await scrape(broker)
        for _ in range(2):
            await client.done(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader((await stored(client, TOPIC))[0].physical_offset, "g", -1))
        assert (await scrape(broker))[counted] == 2
    async with running(config) as broker:
        assert (await scrape(broker))[counted] == 2


async def test_held_queues_and_grants_are_counted(tmp_path: Path) -> None:
    held, grants = 'lockstep_queues_held{consumer_group="g"}', 'lockstep_queue_grants_total{consumer_group="g"}'
    async with running(settings(tmp_path, admin_listen="127.0.0.1:0")) as broker, dialled(broker) as client:
        await client.create()
        assert held not in await scrape(broker), "nobody has heard of the group"
        await heartbeat(client, "a@1#0", "0" * 32)
        assert (await scrape(broker))[held] == 0, "it is ordered, and holds nothing yet"
        epoch = await join(client, "a@1#0", "0" * 32)
        found = await scrape(broker)
        assert (found[held], found[grants]) == (1, 1)
        release = SyncBody((SyncItem("g", TOPIC, 0, epoch, release=True),))
        await client.done(RequestCode.SYNC, body=encode_body(release))
        found = await scrape(broker)
        assert (found[held], found[grants]) == (0, 1)
        await reconcile(client, LockItem("g", TOPIC, 0))
        found = await scrape(broker)
        assert (found[held], found[grants]) == (1, 2)


async def test_alerts_on_no_members_no_held_queue_and_the_first_dead_letter_can_fire(tmp_path: Path) -> None:
    """A series with the value 0 exists as long as the group is known, even after a restart."""
    config = settings(tmp_path, admin_listen="127.0.0.1:0")
    members, held = 'rocketmq_consumer_connections{consumer_group="g"}', 'lockstep_queues_held{consumer_group="g"}'
    dead = 'rocketmq_send_to_dlq_messages_total{consumer_group="g"}'
    async with running(config) as broker:
        async with dialled(broker) as client:
            await client.create()
            epoch = await join(client, "a@1#0", "0" * 32)
            found = await scrape(broker)
            assert (found[members], found[held], found[dead]) == (1, 1, 0)
            release = SyncBody((SyncItem("g", TOPIC, 0, epoch, release=True),))
            await client.done(RequestCode.SYNC, body=encode_body(release))
            await client.done(RequestCode.UNREGISTER_CLIENT, UnregisterClientHeader("a@1#0", None, "g"))
        found = await scrape(broker)
        assert (found[members], found[held]) == (0, 0)
    async with running(config) as broker:
        found = await scrape(broker)
        assert (found[members], found[held]) == (0, 0)


async def test_group_without_locks_has_no_held_queues_metric(tmp_path: Path) -> None:
    async with running(settings(tmp_path, admin_listen="127.0.0.1:0")) as broker, dialled(broker) as client:
        await client.create()
        await client.done(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader("g", TOPIC, 0, 0))
        found = await scrape(broker)
        assert found['rocketmq_consumer_connections{consumer_group="g"}'] == 0
        assert 'lockstep_queues_held{consumer_group="g"}' not in found


async def ready(broker: Broker) -> tuple[int, list[str]]:
    assert broker.admin_port is not None
    status, text = await fetch(broker.admin_port.address, "/readyz")
    return status, json.loads(text)["reasons"]


async def test_readiness_requires_start_registration_and_free_disk(tmp_path: Path) -> None:
    nameserver = Nameserver(NameserverConfig(listen=("127.0.0.1:0",), admin_listen="127.0.0.1:0"), Host.real())
    try:
        await nameserver.start()
        await follow_readiness(nameserver, tmp_path)
    finally:
        await nameserver.stop()


async def follow_readiness(nameserver: Nameserver, tmp_path: Path) -> None:
    assert nameserver.admin_port is not None
    assert (await fetch(nameserver.admin_port.address, "/readyz"))[0] == 200
    async with running(settings(tmp_path, admin_listen="127.0.0.1:0", nameserver=nameserver.address)) as broker:
        assert await ready(broker) == (200, [])
        assert (await fetch(nameserver.admin_port.address, "/metrics"))[1].count(
            '{broker="broker-a",cluster="DefaultCluster",node_type="nameserver"} 1.0'
        ) == 1
        assert broker._gate.closed_because is None
        broker._gate.closed_because = "the broker is shutting down"
        assert await ready(broker) == (503, ["the broker is shutting down"])
        broker._gate.closed_because = None
        await nameserver.stop()
        await until(lambda: bool(broker.health().unready))
        status, (reason,) = await ready(broker)
        assert (status, "not registered with any nameserver" in reason) == (503, True)
        assert (await fetch(broker.admin_port.address, "/livez"))[0] == 200  # type: ignore[union-attr]


async def test_full_disk_is_alive_but_not_ready(tmp_path: Path) -> None:
    async with running(settings(tmp_path, admin_listen="127.0.0.1:0", disk_reserve_mib=1 << 30)) as broker:
        status, (reason,) = await ready(broker)
        assert (status, "the disk has" in reason) == (503, True)
        found = await scrape(broker)
        assert found["rocketmq_broker_permission"] == 4


async def test_admin_port_reports_recovery_progress(tmp_path: Path) -> None:
    config = settings(tmp_path, admin_listen="127.0.0.1:0", segment_mib=64)
    broker = Broker(config, Host.real())
    await broker.start()
    async with dialled(broker) as client:
        await client.create()
        crc = 0
        for first in range(60):
            header, body, crc = frame(first, 1, crc=crc, body=b"m" * 500_000)
            await client.done(RequestCode.SEND_RECORDS, header, body)
    await kill(broker)
    broker = Broker(config, Host.real())
    assert broker.admin_port is not None
    starting = asyncio.create_task(broker.start())
    reported = []
    while not starting.done():
        if broker.admin_port.address:
            reported.append(await ready(broker))
        await asyncio.sleep(0)
    await starting
    assert await ready(broker) == (200, [])
    await broker.stop()
    read_to = [int(found[1]) for status, reasons in reported if (found := re.search(r"log read to (\d+)", str(reasons))) and status == 503]
    assert len(set(read_to)) > 1, reported
    assert read_to == sorted(read_to)
