"""Settings of a running broker: each change has its effect at once, a request changes all of its settings or none, and it is logged."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.broker.app import Broker
from lockstep.broker.config import BrokerConfig
from lockstep.broker.groups.group_limits import GroupLimits
from lockstep.broker.groups.tables.activity_table import DAY_MS
from lockstep.broker.running_settings import FIXED, RunningSettings
from lockstep.broker.store import Store
from lockstep.protocol.bodies import (
    BrokerSetting,
    BrokerSettings,
    ChangeSettings,
    ConsumerGroup,
    HeartbeatBody,
    SettingChanges,
    Subscription,
)
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.errors import BrokerError, MessageIllegalError, NoPermissionError
from lockstep.protocol.headers.offsets import UpdateConsumerOffsetHeader
from lockstep.protocol.headers.pull import SUBSCRIPTION, SUSPEND
from lockstep.protocol.headers.routes import CreateTopicHeader
from lockstep.protocol.headers.send import SendRecordsHeader
from lockstep.protocol.messages.properties import NAME_END, TIMER_DELAY_MS, UNIQ_KEY
from lockstep.protocol.messages.record import encode_record
from lockstep.protocol.messages.rooms import half_properties, home_properties
from lockstep.protocol.names import HALF_TOPIC, TIMER_TOPIC
from lockstep.runtime.configuration.reported_settings import SET
from lockstep.runtime.configuration.settings import declared_settings
from lockstep.runtime.files import DiskSpace, RealFiles
from lockstep.runtime.host import Host
from lockstep.runtime.logs import log
from support.until import until
from support.whole_broker import LAYOUT, TOPIC, Client, dialled, settings

MIB = 1 << 20
HOUR_MS = 3_600_000
SPACE = DiskSpace(total_bytes=1_000 * MIB, free_bytes=500 * MIB)
"""A disk of which half is used."""


class Disk(RealFiles):
    """The files of this machine, on a disk with the space that a test sets."""

    def __init__(self) -> None:
        self.space = SPACE

    def disk_space(self, path: str) -> DiskSpace:
        return self.space


@dataclass
class Running:
    """A broker with small files, and a connection to it."""

    broker: Broker
    client: Client
    disk: Disk

    @property
    def store(self) -> Store:
        assert self.broker._store is not None
        return self.broker._store

    async def set(self, **texts: str) -> SettingChanges:
        response = await self.client.done(RequestCode.UPDATE_BROKER_CONFIG, body=encode_body(ChangeSettings(texts)))
        return decode_body(SettingChanges, response.body)

    async def get(self) -> dict[str, BrokerSetting]:
        response = await self.client.done(RequestCode.GET_BROKER_CONFIG)
        return {each.name: each for each in decode_body(BrokerSettings, response.body).settings}

    async def create(self, topic: str, *, auto: bool = False) -> ResponseCode:
        header = CreateTopicHeader(topic, 1, 1, auto=auto)
        return ResponseCode((await self.client.send_request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code)

    async def commit(self, group: str, queue_id: int = 0) -> ResponseCode:
        """Commit for a group that may be new."""
        header = UpdateConsumerOffsetHeader(group, TOPIC, queue_id, 0)
        return ResponseCode((await self.client.send_request(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code)

    async def join(self, group: str) -> ResponseCode:
        """Join a group as a classic member."""
        body = HeartbeatBody("member", (ConsumerGroup(group, (Subscription(TOPIC),)),))
        return ResponseCode((await self.client.send_request(RequestCode.HEART_BEAT, body=encode_body(body))).code)

    async def send(self) -> ResponseCode:
        return ResponseCode((await self.client.send(TOPIC, b"m")).code)

    async def send_timer(self, delay_ms: int, body_bytes: int = 1) -> ResponseCode:
        properties = home_properties(TOPIC, 0, LAYOUT.began) + f"{TIMER_DELAY_MS}{NAME_END}{delay_ms}".encode()
        record = encode_record(TIMER_TOPIC.encode(), 0, bytes(body_bytes), properties, born_ms=1)
        header = SendRecordsHeader(TOPIC, 0, 1, room=TIMER_TOPIC, began=LAYOUT.began)
        return ResponseCode((await self.client.send_request(RequestCode.SEND_RECORDS, header, record)).code)

    async def send_half(self) -> ResponseCode:
        properties = home_properties(TOPIC, 0, LAYOUT.began) + half_properties("shop", "") + f"{UNIQ_KEY}{NAME_END}1".encode()
        record = encode_record(HALF_TOPIC.encode(), 0, b"m", properties, born_ms=1)
        header = SendRecordsHeader(TOPIC, 0, 1, room=HALF_TOPIC, began=LAYOUT.began, producer_group="shop")
        return ResponseCode((await self.client.send_request(RequestCode.SEND_RECORDS, header, record)).code)

    async def fill(self, mib: int) -> None:
        """Store so much, and two snapshots, so that retention may remove all files of the log but the last."""
        for _ in range(4 * mib):
            assert (await self.client.send(TOPIC, bytes(MIB // 4))).code == ResponseCode.SUCCESS
        for _ in range(2):
            await self.store.write_snapshot(self.broker.state.take_snapshot())
            await self.commit("snapshots")

    async def kept_from(self, later_ms: int = 0) -> int:
        """Return the first kept offset of queue 0 after a round of retention at a later time."""
        await self.store.retention(self.store.now_ms() + later_ms)
        return self.store.bounds(TOPIC, 0)[0]

    def hold(self, count: int, queue_id: int = 0) -> list["asyncio.Future[Any]"]:
        """Send pulls that find nothing."""
        header = {"sys_flag": SUBSCRIPTION | SUSPEND, "suspend_timeout_millis": 30_000, "subscription": "*"}
        pulls = [self.client.pull(queue_id=queue_id, **header) for _ in range(count)]
        for pull in pulls:
            pull.add_done_callback(lambda ended: ended.exception())  # the end of the test ends those that still wait
        return pulls

    def held(self) -> int:
        return self.broker.running.pulls.held_count


@asynccontextmanager
async def started(path: Path, origins: dict[str, str] | None = None, **values: Any) -> AsyncIterator[Running]:
    disk = Disk()
    broker = Broker(settings(path, segment_mib=1, **values), replace(Host.real(), files=disk), origins)
    try:
        await broker.start()
        async with dialled(broker) as client:
            await client.create()
            yield Running(broker, client, disk)
    finally:
        await broker.stop()


async def log_level(on: Running) -> None:
    await on.set(log_level="error")
    assert log.level() == "error"


async def auto_create_topics(on: Running) -> None:
    assert await on.create("new", auto=True) == ResponseCode.TOPIC_NOT_EXIST
    await on.set(auto_create_topics="true")
    assert await on.create("new", auto=True) == ResponseCode.SUCCESS


async def topics_max(on: Running) -> None:
    await on.set(topics_max="1")
    assert await on.create("new") == ResponseCode.NO_PERMISSION
    await on.set(topics_max="2")
    assert await on.create("new") == ResponseCode.SUCCESS


async def retention_hours(on: Running) -> None:
    await on.fill(3)
    assert await on.kept_from(2 * HOUR_MS) == 0
    await on.set(retention_hours="1.5")
    assert await on.kept_from(2 * HOUR_MS) > 0


async def disk_used_percent_max(on: Running) -> None:
    await on.fill(3)
    assert await on.kept_from() == 0
    await on.set(disk_used_percent_max="49")
    assert await on.kept_from() > 0


async def log_mib_max(on: Running) -> None:
    await on.fill(3)
    assert await on.kept_from() == 0
    await on.set(log_mib_max="1")
    assert await on.kept_from() > 0


async def disk_reserve_mib(on: Running) -> None:
    assert await on.send() == ResponseCode.SUCCESS
    await on.set(disk_reserve_mib="501")
    assert await on.send() == ResponseCode.SERVICE_NOT_AVAILABLE
    await on.set(disk_reserve_mib="499")
    assert await on.send() == ResponseCode.SUCCESS


async def groups_max(on: Running) -> None:
    assert await on.commit("first") == ResponseCode.SUCCESS
    await on.set(groups_max="1")
    assert await on.commit("second") == ResponseCode.NO_PERMISSION
    await on.set(groups_max="2")
    assert await on.commit("second") == ResponseCode.SUCCESS


async def progress_max(on: Running) -> None:
    assert await on.commit("g", 0) == ResponseCode.SUCCESS
    await on.set(progress_max="1")
    assert await on.commit("g", 1) == ResponseCode.NO_PERMISSION
    await on.set(progress_max="2")
    assert await on.commit("g", 1) == ResponseCode.SUCCESS


async def members_max(on: Running) -> None:
    assert await on.join("first") == ResponseCode.SUCCESS
    await on.set(members_max="1")
    assert await on.join("second") == ResponseCode.NO_PERMISSION
    await on.set(members_max="2")
    assert await on.join("second") == ResponseCode.SUCCESS


async def subscriptions_mib_max(on: Running) -> None:
    limits, large = GroupLimits(on.broker.state.coordination.state), (Subscription(TOPIC, "x" * 2 * MIB),)
    limits.check_subscription_room("g", "member", large)
    await on.set(subscriptions_mib_max="1")
    with pytest.raises(NoPermissionError, match="subscriptions-mib-max"):
        limits.check_subscription_room("g", "member", large)


async def group_idle_days(on: Running) -> None:
    await on.commit("g")
    coordination = on.broker.state.coordination
    for _ in range(2):
        coordination.set_day((coordination.state.activity.today + 1) * DAY_MS)
    assert not coordination.admin.is_idle("g")
    await on.set(group_idle_days="2")
    assert coordination.admin.is_idle("g")


async def held_pulls_max(on: Running) -> None:
    waiting = [pull for queue_id in range(4) for pull in on.hold(300, queue_id)]
    await until(lambda: on.held() == 1_200)
    await on.set(held_pulls_max="1000")
    await until(lambda: sum(pull.done() for pull in waiting) == 200)
    assert (on.held(), all(pull.done() for pull in waiting[:200])) == (1_000, True)


async def held_pulls_per_group_max(on: Running) -> None:
    others, waiting = on.hold(3, 1), on.hold(5)
    await until(lambda: on.held() == 8)
    await on.set(held_pulls_per_group_max="3")
    await until(lambda: sum(pull.done() for pull in waiting) == 2)
    assert [pull.result().code for pull in waiting[:2]] == [ResponseCode.PULL_NOT_FOUND] * 2
    assert (on.held(), any(pull.done() for pull in others)) == (6, False)


async def scrub_kib_per_s(on: Running) -> None:
    await on.set(scrub_kib_per_s="0")
    await on.store.scrubber.run(asyncio.Event())
    assert on.store.scrubber.pass_count == 0
    await on.set(scrub_kib_per_s=str(1 << 20))
    await on.store.scrubber.run(asyncio.Event())
    assert on.store.scrubber.pass_count == 1


async def catch_up_mib_s(on: Running) -> None:
    assert on.broker.running.replicas.catch_up_bytes_s == 64 << 20
    await on.set(catch_up_mib_s="0")
    assert on.broker.running.replicas.catch_up_bytes_s == 0


async def timer_days_max(on: Running) -> None:
    assert await on.send_timer(DAY_MS) == ResponseCode.SUCCESS
    await on.set(timer_days_max="0.5")
    assert await on.send_timer(DAY_MS) == ResponseCode.MESSAGE_ILLEGAL
    assert await on.send_timer(DAY_MS // 2) == ResponseCode.SUCCESS


async def timer_pending_max(on: Running) -> None:
    assert await on.send_timer(DAY_MS) == ResponseCode.SUCCESS
    await on.set(timer_pending_max="1")
    assert await on.send_timer(DAY_MS) == ResponseCode.SYSTEM_BUSY
    await on.set(timer_pending_max="2")
    assert await on.send_timer(DAY_MS) == ResponseCode.SUCCESS


async def timer_mib_max(on: Running) -> None:
    assert await on.send_timer(DAY_MS, 600_000) == ResponseCode.SUCCESS
    await on.set(timer_mib_max="1")
    assert await on.send_timer(DAY_MS, 600_000) == ResponseCode.SYSTEM_BUSY
    await on.set(timer_mib_max="2")
    assert await on.send_timer(DAY_MS, 600_000) == ResponseCode.SUCCESS


async def transactions_open_max(on: Running) -> None:
    assert await on.send_half() == ResponseCode.SUCCESS
    await on.set(transactions_open_max="1")
    assert await on.send_half() == ResponseCode.SYSTEM_BUSY
    await on.set(transactions_open_max="2")
    assert await on.send_half() == ResponseCode.SUCCESS


async def transaction_check_ms(on: Running) -> None:
    assert on.broker.running.checks.terms() == (6_000, 24)
    await on.set(transaction_check_ms="10")
    assert on.broker.running.checks.terms() == (10, 24)


async def transaction_hours_max(on: Running) -> None:
    await on.set(transaction_hours_max="0.5")
    assert on.broker.running.checks.terms() == (6_000, 0.5)


EFFECTS: dict[str, Callable[[Running], Awaitable[None]]] = {
    effect.__name__: effect
    for effect in (
        log_level,
        auto_create_topics,
        topics_max,
        retention_hours,
        disk_used_percent_max,
        log_mib_max,
        disk_reserve_mib,
        groups_max,
        progress_max,
        members_max,
        subscriptions_mib_max,
        group_idle_days,
        held_pulls_max,
        held_pulls_per_group_max,
        scrub_kib_per_s,
        catch_up_mib_s,
        timer_days_max,
        timer_pending_max,
        timer_mib_max,
        transactions_open_max,
        transaction_check_ms,
        transaction_hours_max,
    )
}


@pytest.mark.usefixtures("logging_as_it_was")
@pytest.mark.parametrize("name", EFFECTS)
async def test_change_of_a_setting_takes_effect_at_once(name: str, tmp_path: Path) -> None:
    async with started(tmp_path) as on:
        await EFFECTS[name](on)


def test_each_setting_needs_a_restart_or_has_a_test_of_its_effect() -> None:
    assert FIXED.keys() | EFFECTS.keys() == declared_settings(BrokerConfig).keys()
    assert not FIXED.keys() & EFFECTS.keys()


async def test_get_has_each_setting_with_its_origin_and_whether_it_may_change(tmp_path: Path) -> None:
    origins = {"groups_max": "environment LOCKSTEP_GROUPS_MAX", "log_mib_max": "default"}
    async with started(tmp_path, origins, groups_max=77) as on:
        await on.set(log_mib_max="10")
        found = await on.get()
        assert list(found) == list(declared_settings(BrokerConfig))
        assert found["groups_max"] == BrokerSetting("groups_max", *[origins["groups_max"]] * 2, "77", "77")
        assert found["log_mib_max"] == BrokerSetting("log_mib_max", SET, "default", "10", None)
        assert found["flush"] == BrokerSetting("flush", "default", "default", '"async"', '"async"', FIXED["flush"])
        assert found["segment_mib"].origin == "the program that made the server"
        assert {each.name for each in found.values() if each.fixed_because is None} == EFFECTS.keys()


def made(**values: Any) -> tuple[RunningSettings, list[BrokerConfig]]:
    """Return settings, and the configurations that were applied."""
    applied: list[BrokerConfig] = []
    return RunningSettings(BrokerConfig(**values), {}, applied.append), applied


@pytest.mark.parametrize(
    ("texts", "error", "words"),
    [
        ({"retentin_hours": "1"}, MessageIllegalError, "unknown setting 'retentin_hours'; did you mean 'retention_hours'?"),
        ({"retention_hours": "0"}, MessageIllegalError, r"retention_hours = '0' \(of the request\): expected a number above 0"),
        ({"held_pulls_max": "999"}, MessageIllegalError, "expected an integer of at least 1,000"),
        ({"groups_max": "none"}, MessageIllegalError, "groups_max = 'none'"),
        ({"log_level": "loud"}, MessageIllegalError, "expected debug or info or warning or error"),
        ({"auto_create_topics": "2"}, MessageIllegalError, "expected true or false"),
        ({"flush": "sync"}, NoPermissionError, "flush needs a restart: start the broker with --flush sync"),
        ({"insecure": "no"}, NoPermissionError, "start the broker with --no-insecure"),
        ({"nameserver": "none"}, NoPermissionError, r"start the broker without --nameserver \("),
        ({"listen": "a:1, b:2"}, NoPermissionError, "--listen a:1 --listen b:2"),
        ({"listen": "a:1," * 50_000}, NoPermissionError, r"start the broker with --listen a:1 [^(]{150,190} \("),
        ({"retention_hours": "1e308"}, MessageIllegalError, "retention_hours: a number of at most 9,223,372,036,854,775,807 is expected"),
        ({"groups_max": str(1 << 63)}, MessageIllegalError, "groups_max: a number of at most"),
        ({"x" * 100_000: "1"}, MessageIllegalError, "unknown setting 'x{200}'"),
        ({"groups_max": "x" * 100_000}, MessageIllegalError, "groups_max = 'x{199} "),
    ],
)
def test_request_with_an_invalid_value_or_a_fixed_setting_changes_nothing(
    texts: dict[str, str], error: type[BrokerError], words: str
) -> None:
    found, applied = made()
    with pytest.raises(error, match=words) as refused:
        found.change({"topics_max": "5", **texts}, "peer")
    assert refused.value.remark.startswith("nothing was changed: ")
    assert (applied, found.config) == ([], BrokerConfig())


def test_all_settings_of_a_request_are_applied_together_under_either_spelling() -> None:
    found, applied = made(log_mib_max=10)
    changes = found.change({"topics-max": "5", "log_mib_max": "none", "retention_hours": "1.5"}, "peer").changes
    assert applied == [found.config] == [BrokerConfig(topics_max=5, retention_hours=1.5)]
    assert [(each.setting.name, each.before, each.setting.value) for each in changes] == [
        ("topics_max", "16384", "5"),
        ("log_mib_max", "10", None),
        ("retention_hours", "72", "1.5"),
    ]


def test_setting_that_has_its_value_of_the_start_again_has_its_origin_again() -> None:
    found = RunningSettings(BrokerConfig(retention_hours=24), {"retention_hours": "flag --retention-hours"}, lambda _: None)
    origins = [found.change({"retention_hours": text}, "peer").changes[0].setting.origin for text in ("1", "24")]
    assert origins == [SET, "flag --retention-hours"]


def test_change_is_logged_with_its_peer_and_an_equal_value_is_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    found, _ = made()
    found.change({"topics_max": "5", "groups_max": "10000"}, "10.0.0.9:5555")
    assert [record.getMessage() for record in caplog.records] == [
        "setting.changed name=topics_max before=16384 after=5 peer=10.0.0.9:5555",
    ]


@pytest.mark.usefixtures("logging_as_it_was")
def test_log_level_of_the_admin_port_is_reported_and_stays_when_another_setting_changes() -> None:
    log.configure("info")
    found, _ = made()
    log.set_level("debug")
    found.change({"topics_max": "5"}, "peer")
    reported = {each.name: each for each in found.report().settings}["log_level"]
    assert (reported.value, reported.origin, log.level()) == ('"debug"', SET, "debug")


@pytest.mark.usefixtures("logging_as_it_was")
def test_change_of_the_log_level_is_logged_whatever_the_level(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("info")
    made()[0].change({"log_level": "error"}, "peer")
    assert '"before": "info", "after": "error"' in capsys.readouterr().out


async def test_shorter_retention_than_a_delay_is_reported_as_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with started(tmp_path) as on:
        await on.set(retention_hours="1.5")
        await on.set(topics_max="5")
    (warning,) = [record.getMessage() for record in caplog.records if "delay.outlives_retention" in record.getMessage()]
    assert "delays=['2h'] retention_hours=1.5" in warning
