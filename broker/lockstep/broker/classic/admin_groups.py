"""Requests of RocketMQ's tools for the settings of groups. RocketMQ: SubscriptionGroupConfig, AdminBrokerProcessor.

Of a SubscriptionGroupConfig, `consumeEnable` is kept. The other members have one value here (admin_bodies.group_config): another one is
refused, except for those that have no effect, or that `mqadmin updateSubGroup` always sends.
"""

from dataclasses import dataclass, replace

from lockstep.broker.classic.admin_bodies import LIST_BYTES_MAX, RETRY_TIMES, TIMEOUT_MINUTES, group_config, versioned_table
from lockstep.broker.groups.coordination import Coordination
from lockstep.broker.processors.group_changes import GroupChangesProcessor
from lockstep.broker.processors.query import QUERY_LANE
from lockstep.protocol.bodies import GroupSettings
from lockstep.protocol.codec.java import write_json
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import MessageIllegalError, SubscriptionGroupNotExistError
from lockstep.protocol.headers.admin import GroupConfigHeader
from lockstep.protocol.names import check_group
from lockstep.runtime.clock import Clock
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import GET, UPDATE, inside, on_group
from lockstep.runtime.requests.request import AuditedChange, HandlerResult, PendingResponse, Request
from lockstep.runtime.security.rights import Kind, resource
from lockstep.runtime.turn import TurnBudget

GROUPS_MAX = 1_000
"""Groups of one UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""


@dataclass(frozen=True, slots=True)
class CustomizedRetryPolicy:
    """RocketMQ: CustomizedRetryPolicy. The delays are the broker's (`message_delay_level`)."""

    next: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """RocketMQ: GroupRetryPolicy."""

    type: str = "CUSTOMIZED"
    customized_retry_policy: CustomizedRetryPolicy | None = None


@dataclass(frozen=True, slots=True)
class SubscribedTopic:
    """RocketMQ: SimpleSubscriptionData."""

    topic: str


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """RocketMQ: SubscriptionGroupConfig, without `consumeFromMinEnable`, `consumeBroadcastEnable`, `brokerId` and
    `whichBrokerWhenConsumeSlowly`, which are not read."""

    group_name: str
    consume_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = RETRY_TIMES
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = TIMEOUT_MINUTES
    group_retry_policy: RetryPolicy | None = None
    subscription_data_set: tuple[SubscribedTopic, ...] | None = None
    attributes: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class GroupConfigList:
    """RocketMQ: SubscriptionGroupList."""

    group_config_list: tuple[GroupConfig, ...]


def check_config(config: GroupConfig) -> None:
    """Raise MessageIllegalError, which names the member and the next step, for a value that this broker can't have."""
    check_group(config.group_name)
    policy = config.group_retry_policy or RetryPolicy()
    delays = "the delays of retries are the broker's setting message_delay_level"
    for name, value, only, why in (
        ("retryMaxTimes", config.retry_max_times, RETRY_TIMES, "each consumer sends its own maxReconsumeTimes"),
        ("retryQueueNums", config.retry_queue_nums, 1, "`lockstep topic alter %RETRY%GROUP --queues N` adds queues for retries"),
        ("consumeMessageOrderly", config.consume_message_orderly, False, "whether a group is ordered is decided by its consumers"),
        ("notifyConsumerIdsChangedEnable", config.notify_consumer_ids_changed_enable, True, "members are always notified of changes"),
        ("groupSysFlag", config.group_sys_flag, 0, "units are not supported"),
        ("consumeTimeoutMinute", config.consume_timeout_minute, TIMEOUT_MINUTES, "each consumer has its own consumeTimeout"),
        ("groupRetryPolicy", policy.type, "CUSTOMIZED", delays),
        ("customizedRetryPolicy", policy.customized_retry_policy, None, delays),
        ("subscriptionDataSet", list(config.subscription_data_set or ()), [], "the subscriptions of a group are those of its consumers"),
        ("attributes", config.attributes or {}, {}, "groups have no attributes"),
    ):
        if value != only:
            raise MessageIllegalError(
                f"nothing was changed: group {config.group_name} with {name} {str(value)[:80]}: only {only} is supported; {why}"
            )


class GroupAdminProcessor:
    """Handles requests for the settings of groups by RocketMQ's tools."""

    def __init__(self, native: GroupChangesProcessor, coordination: Coordination, clock: Clock, budget: TurnBudget) -> None:
        """`native` stores settings; `budget` limits what lanes do in one turn of the loop."""
        self._native = native
        self._coordination = coordination
        self._clock = clock
        self._budget = budget

    @handles(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        None,
        GroupConfig,
        needs=[on_group(UPDATE, name="group_name")],
        native=False,
        classic=True,
    )
    def configure(self, request: Request) -> HandlerResult:
        check_config(request.body)
        self._store(request, request.body)
        return PendingResponse(request.reply())

    @handles(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        None,
        GroupConfigList,
        needs=[inside("Update each group", changes=True)],
        lane=QUERY_LANE,
        body_bytes_max=LIST_BYTES_MAX,
        native=False,
        classic=True,
    )
    async def configure_all(self, request: Request) -> HandlerResult:
        """Store the settings of each group. Nothing is changed if one of them is refused for its values."""
        body: GroupConfigList = request.body
        if len(body.group_config_list) > GROUPS_MAX:
            raise MessageIllegalError(f"{len(body.group_config_list)} groups in one request: at most {GROUPS_MAX}")
        for config in body.group_config_list:
            check_config(config)
            request.user.check_group(config.group_name, UPDATE)
        for config in body.group_config_list:
            await self._budget.take()
            self._store(request, config)
        request.change = AuditedChange(", ".join(resource(Kind.GROUP, config.group_name) for config in body.group_config_list))
        return PendingResponse(request.reply())

    @handles(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupConfigHeader, needs=[on_group(GET, name="group")], native=False, classic=True)
    def group_config(self, request: Request) -> HandlerResult:
        header: GroupConfigHeader = request.header
        state = self._coordination.state
        if header.group not in state.activity:
            raise SubscriptionGroupNotExistError(f"group {header.group} is unknown at {state.config.broker_name}")
        return request.reply(body=write_json(group_config(header.group, state.settings.get(header.group))))

    @handles(
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        needs=[inside("groups that may be listed")],
        lane=QUERY_LANE,
        native=False,
        classic=True,
    )
    async def all_group_configs(self, request: Request) -> HandlerResult:
        """Return all groups that the broker knows, also those without settings."""
        table = {}
        for group in filter(request.user.sees_group, self._coordination.status.groups()):
            await self._budget.take()
            table[group] = group_config(group, self._coordination.state.settings.get(group))
        return request.reply(body=versioned_table("subscriptionGroupTable", table, self._clock.wall_ms()))

    def _store(self, request: Request, config: GroupConfig) -> None:
        """Store what is kept. The group's other settings, which `lockstep` made, remain."""
        settings = self._coordination.state.settings.get(config.group_name) or GroupSettings(config.group_name)
        self._native.store_settings(request, replace(settings, consume_enable=config.consume_enable))
