"""Requests of RocketMQ's tools for the status and the settings of the broker. RocketMQ: AdminBrokerProcessor.

Settings are shown and never changed: UPDATE_BROKER_CONFIG was the way in of CVE-2023-33246, because a setting was a path and a command.
"""

import asyncio
import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NoReturn

from lockstep.broker.classic.admin_bodies import properties_text
from lockstep.broker.classic.rates import SAMPLE_MS, Rates, Totals
from lockstep.broker.classic.windows import STEP_S, Windows
from lockstep.broker.config import MIB, BrokerConfig
from lockstep.broker.processors.pull import PullProcessor
from lockstep.broker.running_settings import RunningSettings
from lockstep.broker.state import BrokerState
from lockstep.broker.store import Store
from lockstep.protocol.bodies import BrokerStatus
from lockstep.protocol.codec.java import write_json
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import NATIVE_VERSION
from lockstep.protocol.delays import delay_queue_id
from lockstep.protocol.errors import BrokerSystemError, NoPermissionError
from lockstep.protocol.frame import BODY_BYTES_MAX
from lockstep.protocol.headers.admin import StatsHeader
from lockstep.protocol.names import SCHEDULE_TOPIC, is_system_topic
from lockstep.runtime.clock import Clock
from lockstep.runtime.dispatch import handles
from lockstep.runtime.metrics import Slices
from lockstep.runtime.request import HandlerResult, Request

SECRETS = frozenset(field.name for field in dataclasses.fields(BrokerConfig) if not field.repr)
"""Settings that are never shown."""
GIB = 1 << 30
NEVER_WAITS = (
    "dispatchBehindBytes",
    "pageCacheLockTimeMills",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueSize",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "sendThreadPoolQueueSize",
)
"""What tools expect of RocketMQ's thread pools and of its dispatcher, which this broker does not have."""
ABSENT = {
    "filterServerNums": "0",
    "msgTraceTopicName": "RMQ_SYS_TRACE_TOPIC",
    "slaveReadEnable": "false",
    "traceOn": "false",
    "traceTopicEnable": "false",
    "useTLS": "false",
}
"""RocketMQ's settings of what this broker does not have. `mqadmin exportConfigs` 4.9 fails without them."""


class BrokerAdminProcessor:
    """Handles requests for the status and the settings of the broker by RocketMQ's tools."""

    def __init__(self, settings: RunningSettings, statistics: "Statistics", information: Callable[[], Mapping[str, str]]) -> None:
        """`information` returns the present runtime information."""
        self._settings = settings
        self._statistics = statistics
        self._information = information

    @handles(RequestCode.VIEW_BROKER_STATS_DATA, StatsHeader, native=False, classic=True)
    def view_stats(self, request: Request) -> HandlerResult:
        """Return what one topic or one group counted in the last minute, hour and day."""
        header: StatsHeader = request.header
        windows = self._statistics.windows.get(header.stats_name)
        counts = None if windows is None else windows.read(header.stats_key)
        if counts is None:
            known = ", ".join(self._statistics.windows)
            raise BrokerSystemError(f"there are no statistics {header.stats_name[:80]} of {header.stats_key[:80]!r}; there are {known}")
        return request.reply(body=write_json({name: {"sum": each.sum, "tps": each.tps} for name, each in sorted(counts.items())}))

    @handles(RequestCode.GET_BROKER_RUNTIME_INFO, native=False, classic=True)
    def runtime_info(self, request: Request) -> HandlerResult:
        return request.reply(body=write_json({"table": self._information()}))

    @handles(RequestCode.GET_BROKER_CONFIG, native=False, classic=True)
    def report(self, request: Request) -> HandlerResult:
        return request.reply(body=properties_text(properties(self._settings)))

    @handles(RequestCode.UPDATE_BROKER_CONFIG, native=False, classic=True)
    def refuse_change(self, request: Request) -> NoReturn:
        raise NoPermissionError(
            "settings are not changed by RocketMQ's tools: use `lockstep broker config set`, or start the broker with other settings"
        )

    @handles(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, native=False, classic=True)
    @handles(RequestCode.CLEAN_UNUSED_TOPIC, native=False, classic=True)
    @handles(RequestCode.DELETE_EXPIRED_COMMITLOG, native=False, classic=True)
    def clean(self, request: Request) -> HandlerResult:
        """Do nothing: retention removes what is expired every 10 s, and the deletion of a topic removes its queues."""
        return request.reply()


def properties(settings: RunningSettings) -> dict[str, str]:
    """Return the settings by their names here, and those that RocketMQ also has by its names."""
    values = {each.name: _property(each.value) for each in settings.report().settings if each.name not in SECRETS}
    config = settings.config
    own = {name: value for name, value in values.items() if value is not None}
    return {
        **own,
        **ABSENT,
        "autoCreateSubscriptionGroup": "true",
        "autoCreateTopicEnable": str(config.auto_create_topics).lower(),
        "brokerClusterName": config.cluster,
        "brokerId": "0",
        "brokerName": config.name,
        "brokerRole": "ASYNC_MASTER",
        "diskMaxUsedSpaceRatio": str(config.disk_used_percent_max),
        "fileReservedTime": f"{config.retention_hours:g}",
        "flushDiskType": f"{config.flush.upper()}_FLUSH",
        "mappedFileSizeCommitLog": str(config.segment_mib * MIB),
        "maxMessageSize": str(BODY_BYTES_MAX),
        "messageDelayLevel": config.message_delay_level,
        "namesrvAddr": ";".join(config.nameservers()),
    }


def _property(toml: str | None) -> str | None:
    """Return the value of a setting, which is written as in a TOML file, as RocketMQ's tools show it."""
    value = None if toml is None else json.loads(toml)
    if isinstance(value, list):
        return ",".join(map(str, value))
    return value if value is None or isinstance(value, str) else str(value).lower()


class Statistics:
    """Samples of what was stored and delivered since the start: of the whole broker, of each topic, and of each group in a topic."""

    def __init__(self) -> None:
        self.rates = Rates()
        self.windows = {name: Windows() for name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE", "GROUP_GET_NUMS", "GROUP_GET_SIZE")}
        """RocketMQ's names of statistics → topic, or TOPIC@GROUP, → counts."""

    async def run(self, store: Store, pulls: PullProcessor, clock: Clock) -> None:
        """Sample every SAMPLE_MS, for ever."""
        before = await _read_counts(store, pulls)
        for name, windows in self.windows.items():
            windows.begin(before[name])
        stored_before = sum(before["TOPIC_PUT_NUMS"].values())
        self.rates.begin(clock.monotonic_ms(), clock.wall_ms())
        while True:
            await asyncio.sleep(SAMPLE_MS / 1000)
            counts = await _read_counts(store, pulls)
            put, transferred = (sum(counts[name].values()) for name in ("TOPIC_PUT_NUMS", "GROUP_GET_NUMS"))
            totals = Totals(put - stored_before, transferred, pulls.found_count, pulls.empty_count)
            self.rates.add(clock.monotonic_ms(), clock.wall_ms(), totals)
            for name, windows in self.windows.items():
                windows.add(counts[name])
                await asyncio.sleep(0)


async def _read_counts(store: Store, pulls: PullProcessor) -> dict[str, Counter[str]]:
    """Return the totals of each topic and group, by the names of `Statistics.windows`."""
    messages, sizes, got, got_sizes = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    slices = Slices()
    for topic, count, _, size in store.queue_totals():
        await slices.step()
        if not is_system_topic(topic):
            messages[topic] += count
            sizes[topic] += size
    for (topic, group), given in list(pulls.delivered.items()):
        await slices.step()
        got[f"{topic}@{group}"], got_sizes[f"{topic}@{group}"] = given.messages, given.size
    return {"TOPIC_PUT_NUMS": messages, "TOPIC_PUT_SIZE": sizes, "GROUP_GET_NUMS": got, "GROUP_GET_SIZE": got_sizes}


assert SAMPLE_MS == STEP_S * 1_000


def runtime_info(status: BrokerStatus, rates: Rates, state: BrokerState, store: Store, config: BrokerConfig) -> dict[str, str]:
    """Return the runtime information: RocketMQ's names of what this broker has, every value as text."""
    put, transferred, found, missed = rates.per_s()
    now, today, yesterday = rates.newest, rates.this_morning, rates.yesterday_morning
    began_ms = status.wall_ms - status.up_ms
    used = 1 - status.disk_free_bytes / status.disk_total_bytes if status.disk_total_bytes else 0.0
    table = {
        "bootTimestamp": str(began_ms),
        "brokerActive": "true",
        "brokerVersion": str(NATIVE_VERSION),
        "brokerVersionDesc": "V4_9_8",
        "commitLogDirCapacity": f"Total : {status.disk_total_bytes / GIB:.1f} GiB, Free : {status.disk_free_bytes / GIB:.1f} GiB.",
        "commitLogDiskRatio": f"{used:.4f}",
        "consumeQueueDiskRatio": f"{used:.4f}",
        "getFoundTps": _rates(found),
        "getMissTps": _rates(missed),
        "getTotalTps": _rates([sum(pair) for pair in zip(found, missed, strict=True)]),
        "getTransferedTps": _rates(transferred),
        "getTransferredTps": _rates(transferred),
        "msgGetTotalTodayMorning": str(today.transferred),
        "msgGetTotalTodayNow": str(now.transferred),
        "msgGetTotalYesterdayMorning": str(yesterday.transferred),
        "msgPutTotalTodayMorning": str(today.put),
        "msgPutTotalTodayNow": str(now.put),
        "msgPutTotalYesterdayMorning": str(yesterday.put),
        "putTps": _rates(put),
        "remainHowManyDataToFlush": f"{store.writer.unsynced_bytes} B",
        "runtime": _duration(status.up_ms),
        "startAcceptSendRequestTimeStamp": str(began_ms),
    }
    for level, delay_ms in enumerate(config.delay_levels_ms(), 1):
        queue_id = delay_queue_id(delay_ms)
        delivered, end = state.delays.next_offset(queue_id), store.bounds(SCHEDULE_TOPIC, queue_id)[1]
        if end:
            table[f"scheduleMessageOffset_{level}"] = f"{delivered},{end}"
    # A request is handled when it is read, and a queue's entry is made with its message: there is nothing that waits in front of them.
    table |= dict.fromkeys(NEVER_WAITS, "0")
    return dict(sorted(table.items()))


def _rates(per_s: "tuple[float, ...] | list[float]") -> str:
    """Return the rates of the three periods. Tools read three numbers."""
    return " ".join(f"{rate:.3f}" for rate in per_s)


def _duration(ms: int) -> str:
    seconds = ms // 1000
    parts = seconds // 86_400, seconds // 3_600 % 24, seconds // 60 % 60, seconds % 60
    return "[ {} days, {} hours, {} minutes, {} seconds ]".format(*parts)
