"""Requests of RocketMQ's tools for the status and the settings of the broker. RocketMQ: AdminBrokerProcessor.

Settings are shown and never changed: UPDATE_BROKER_CONFIG was the way in of CVE-2023-33246, because a setting was a path and a command.
"""

import dataclasses
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import NoReturn

from lockstep.broker.classic.admin_bodies import properties_text
from lockstep.broker.classic.statistics import Statistics
from lockstep.broker.config import MIB, BrokerConfig
from lockstep.broker.processors.query import QUERY_LANE
from lockstep.broker.running_settings import RunningSettings
from lockstep.protocol.codec.java import write_json
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import BrokerSystemError, NoPermissionError
from lockstep.protocol.frame import BODY_BYTES_MAX
from lockstep.protocol.headers.admin import StatsHeader
from lockstep.protocol.names import TRACE_TOPIC
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import GET, UPDATE, on_cluster
from lockstep.runtime.requests.request import HandlerResult, Request

SECRETS = frozenset(field.name for field in dataclasses.fields(BrokerConfig) if not field.repr)
"""Settings that are never shown."""
ABSENT = {
    "filterServerNums": "0",
    "msgTraceTopicName": TRACE_TOPIC,
    "slaveReadEnable": "false",
    "traceOn": "false",
    "useTLS": "false",
}
"""RocketMQ's settings of what this broker does not have. `mqadmin exportConfigs` 4.9 fails without them."""


class BrokerAdminProcessor:
    """Handles requests for the status and the settings of the broker by RocketMQ's tools."""

    def __init__(
        self,
        settings: RunningSettings,
        statistics: Statistics,
        information: Callable[[], Awaitable[Mapping[str, str]]],
        address: Callable[[], str],
    ) -> None:
        """`information` returns the present runtime information, `address` the broker's."""
        self._settings = settings
        self._statistics = statistics
        self._information = information
        self._address = address

    @handles(RequestCode.VIEW_BROKER_STATS_DATA, StatsHeader, needs=[on_cluster(GET)], native=False, classic=True)
    def view_stats(self, request: Request) -> HandlerResult:
        """Return what one topic or one group counted in the last minute, hour and day."""
        header: StatsHeader = request.header
        windows = self._statistics.windows.get(header.stats_name)
        counts = None if windows is None else windows.read(header.stats_key)
        if counts is None:
            known = ", ".join(self._statistics.windows)
            raise BrokerSystemError(f"there are no statistics {header.stats_name[:80]} of {header.stats_key[:80]!r}; there are {known}")
        return request.reply(body=write_json({name: {"sum": each.sum, "tps": each.tps} for name, each in sorted(counts.items())}))

    @handles(RequestCode.GET_BROKER_RUNTIME_INFO, needs=[on_cluster(GET)], lane=QUERY_LANE, native=False, classic=True, at_once=True)
    async def runtime_info(self, request: Request) -> HandlerResult:
        return request.reply(body=write_json({"table": await self._information()}))

    @handles(RequestCode.GET_BROKER_CONFIG, needs=[on_cluster(GET)], native=False, classic=True, at_once=True)
    def report(self, request: Request) -> HandlerResult:
        return request.reply(body=properties_text(properties(self._settings, self._address())))

    @handles(RequestCode.UPDATE_BROKER_CONFIG, needs=[on_cluster(UPDATE)], native=False, classic=True)
    def refuse_change(self, request: Request) -> NoReturn:
        raise NoPermissionError(
            "settings are not changed by RocketMQ's tools: use `lockstep broker config set`, or start the broker with other settings"
        )

    @handles(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, needs=[on_cluster(UPDATE)], native=False, classic=True)
    @handles(RequestCode.CLEAN_UNUSED_TOPIC, needs=[on_cluster(UPDATE)], native=False, classic=True)
    @handles(RequestCode.DELETE_EXPIRED_COMMITLOG, needs=[on_cluster(UPDATE)], native=False, classic=True)
    def clean(self, request: Request) -> HandlerResult:
        """Do nothing: retention removes what is expired every 10 s, and the deletion of a topic removes its queues."""
        return request.reply()


def properties(settings: RunningSettings, address: str) -> dict[str, str]:
    """Return the settings by their names here, and those that RocketMQ also has by its names. `address`: the broker's, for its port."""
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
        "listenPort": address.rpartition(":")[2],
        "mappedFileSizeCommitLog": str(config.segment_mib * MIB),
        "maxMessageSize": str(BODY_BYTES_MAX),
        "messageDelayLevel": config.message_delay_level,
        "namesrvAddr": ";".join(config.nameservers()),
        "traceTopicEnable": str(config.trace_topic).lower(),
    }


def _property(toml: str | None) -> str | None:
    """Return the value of a setting, which is written as in a TOML file, as RocketMQ's tools show it."""
    value = None if toml is None else json.loads(toml)
    if isinstance(value, list):
        return ",".join(map(str, value))
    return value if value is None or isinstance(value, str) else str(value).lower()
