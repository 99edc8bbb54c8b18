"""Hypothesis strategies for every dataclass on the wire, derived from its field types."""

import dataclasses
import enum
import inspect
import types
import typing
import zlib
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from hypothesis import strategies as st

from lockstep.protocol import bodies
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import RESPONSE_FLAG, Command
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers import admin, clients, offsets, park, pull, register, replication, routes, send, tools, transactions
from lockstep.protocol.topics import queue

SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(1 << 63), (1 << 63) - 1),
    str: st.text(max_size=12),
    bool: st.booleans(),
    bytes: st.binary(max_size=12),
}


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for a wire type: scalars, enums, dataclasses, tuple[X, …], dict[K, V], X | None."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*(st.none() if arg is type(None) else values_of(arg) for arg in args))
    if origin is tuple:
        return st.lists(values_of(args[0]), max_size=3).map(tuple)
    if origin in (dict, Mapping):
        return st.dictionaries(values_of(args[0]), values_of(args[1]), max_size=3)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from(list(kind))
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return st.builds(kind, **{field.name: values_of(hints[field.name]) for field in dataclasses.fields(kind)})
    return SCALARS[kind]


def dataclasses_in(*modules: types.ModuleType) -> list[type]:
    """Return the dataclasses that these modules define, in order."""
    return [
        member
        for module in modules
        for member in vars(module).values()
        if inspect.isclass(member) and dataclasses.is_dataclass(member) and member.__module__ == module.__name__
    ]


HEADERS = dataclasses_in(admin, clients, offsets, park, pull, register, replication, routes, send, tools, transactions)
BODY_MODULES = [
    import_module(f"lockstep.protocol.bodies.{name}")
    for name in (
        "heartbeat",
        "locks",
        "routes",
        "groups",
        "brokers",
        "parks",
        "purge",
        "running",
        "replication",
        "overview",
        "group_events",
        "waiting",
        "transactions",
    )
]
BODIES = [*dataclasses_in(*BODY_MODULES), queue.LayoutVersion, queue.LayoutEntry, queue.TopicLayout]


def example_of(kind: Any, name: str = "") -> Any:
    """Return a fixed value of a wire type with every optional field set, for the golden bytes."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        (inner,) = [arg for arg in args if arg is not type(None)]
        return example_of(inner, name)
    if origin is tuple:
        return (example_of(args[0], name),)
    if origin in (dict, Mapping):
        return {f"{name}-b": example_of(args[1], f"{name}-b"), f"{name}-a": example_of(args[1], f"{name}-a")}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return list(kind)[-1]
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{field.name: example_of(hints[field.name], field.name) for field in dataclasses.fields(kind)})
    return {int: zlib.crc32(name.encode()) << 7, str: name, bool: True, bytes: name.encode()}[kind]


R = RequestCode
REQUESTS: dict[RequestCode, tuple[type | None, type | None]] = {
    R.SEND_MESSAGE: (send.SendMessageHeader, None),
    R.PULL_MESSAGE: (pull.PullHeader, None),
    R.LITE_PULL_MESSAGE: (pull.PullHeader, None),
    R.SEND_MESSAGE_V2: (send.SendMessageV2Header, None),
    R.SEND_BATCH_MESSAGE: (send.SendMessageV2Header, None),
    R.CHECK_CLIENT_CONFIG: (None, bodies.CheckClientConfigBody),
    R.QUERY_CONSUMER_OFFSET: (offsets.QueryConsumerOffsetHeader, None),
    R.UPDATE_CONSUMER_OFFSET: (offsets.UpdateConsumerOffsetHeader, None),
    R.UPDATE_AND_CREATE_TOPIC: (routes.CreateTopicHeader, queue.TopicLayout),
    R.UPDATE_BROKER_CONFIG: (None, bodies.ChangeSettings),
    R.GET_BROKER_CONFIG: (admin.SettingsHeader, None),
    R.SEARCH_OFFSET_BY_TIMESTAMP: (offsets.SearchOffsetHeader, None),
    R.GET_MAX_OFFSET: (offsets.QueueHeader, None),
    R.GET_MIN_OFFSET: (offsets.QueueHeader, None),
    R.GET_EARLIEST_MSG_STORETIME: (offsets.QueueHeader, None),
    R.QUERY_MESSAGE: (offsets.QueryMessageHeader, None),
    R.VIEW_MESSAGE_BY_ID: (offsets.ViewMessageHeader, None),
    R.HEART_BEAT: (None, bodies.HeartbeatBody),
    R.UNREGISTER_CLIENT: (clients.UnregisterClientHeader, None),
    R.GET_CONSUMER_LIST_BY_GROUP: (clients.GroupHeader, None),
    R.NOTIFY_CONSUMER_IDS_CHANGED: (clients.NotifyHeader, None),
    R.LOCK_BATCH_MQ: (None, bodies.SessionLockBody),
    R.UNLOCK_BATCH_MQ: (None, bodies.LockBatchBody),
    R.REGISTER_BROKER: (routes.RegisterBrokerHeader, bodies.RegisterBody),
    R.UNREGISTER_BROKER: (routes.UnregisterBrokerHeader, None),
    R.GET_ROUTEINFO_BY_TOPIC: (offsets.TopicHeader, None),
    R.GET_BROKER_CLUSTER_INFO: (None, None),
    R.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: (None, None),
    R.SYNC: (None, bodies.SyncBody),
    R.QUEUE_FREE: (None, bodies.QueueFreeBody),
    R.LAYOUTS_CHANGED: (None, bodies.RegisterReply),
    R.SEND_RECORDS: (send.SendRecordsHeader, None),
    R.TOPIC_OFFSETS: (offsets.TopicHeader, None),
    R.GROUP_STATUS: (clients.GroupStatusHeader, None),
    R.CONSUMER_SEND_MSG_BACK: (send.SendBackHeader, None),
    R.DEAD_LETTER: (send.DeadLetterHeader, None),
    R.RESET_OFFSETS: (None, bodies.ResetBody),
    R.PARK: (park.ParkHeader, None),
    R.PARK_END: (park.ParkEndHeader, None),
    R.PARK_CONTROL: (None, bodies.ParkControlBody),
    R.OVERVIEW: (None, None),
    R.GROUP_EVENTS: (clients.GroupEventsHeader, None),
    R.FORGET_PROGRESS: (clients.ForgetProgressHeader, None),
    R.PURGE_TOPIC: (None, bodies.PurgeBody),
    R.LIST_WAITING: (offsets.ListWaitingHeader, None),
    R.AUTHENTICATE: (clients.AuthenticateHeader, None),
    R.REPLICA_FOLLOW: (replication.ReplicaFollowHeader, bodies.LogTerms),
    R.REPLICA_FETCH: (replication.ReplicaFetchHeader, None),
    R.REPLICA_ACK: (replication.ReplicaAckHeader, None),
    R.REPLICA_FILE: (replication.ReplicaFileHeader, None),
    R.REPLICA_STATUS: (replication.ReplicaStatusHeader, None),
    R.REPLICA_PROMOTE: (replication.ReplicaPromoteHeader, None),
    R.REPLICA_HAND_OVER: (replication.ReplicaHandOverHeader, None),
    R.REPLICA_FORGET: (replication.ReplicaForgetHeader, None),
    R.REGISTER_READ: (register.RegisterReadHeader, None),
    R.REGISTER_SWAP: (register.RegisterSwapHeader, None),
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (None, bodies.GroupSettings),
    R.DELETE_SUBSCRIPTIONGROUP: (clients.DeleteGroupHeader, None),
    R.GET_BROKER_RUNTIME_INFO: (None, None),
    R.FORGET_DELETIONS: (routes.ForgetDeletionsHeader, None),
    R.HOLD_WRITES: (routes.HoldWritesHeader, None),
    R.GET_CONSUMER_CONNECTION_LIST: (clients.GroupHeader, None),
    R.GET_PRODUCER_CONNECTION_LIST: (tools.ProducerGroupHeader, None),
    R.GET_CONSUME_STATS: (tools.ConsumeStatsHeader, None),
    R.RESET_CONSUMER_CLIENT_OFFSET: (tools.ResetClientHeader, None),
    R.GET_CONSUMER_STATUS_FROM_CLIENT: (tools.ConsumerStatusHeader, None),
    R.INVOKE_BROKER_TO_RESET_OFFSET: (tools.ResetOffsetHeader, None),
    R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: (tools.ConsumerStatusHeader, None),
    R.QUERY_TOPIC_CONSUME_BY_WHO: (tools.TopicNameHeader, None),
    R.QUERY_CONSUME_TIME_SPAN: (tools.TopicGroupHeader, None),
    R.GET_CONSUMER_RUNNING_INFO: (tools.RunningInfoHeader, None),
    R.QUERY_CORRECTION_OFFSET: (tools.CorrectionOffsetHeader, None),
    R.CONSUME_MESSAGE_DIRECTLY: (tools.ConsumeDirectlyHeader, None),
    R.CLONE_GROUP_OFFSET: (tools.CloneOffsetHeader, None),
    R.GET_BROKER_CONSUME_STATS: (tools.BrokerConsumeStatsHeader, None),
    R.QUERY_CONSUME_QUEUE: (tools.ConsumeQueueHeader, None),
    R.SEND_REPLY_MESSAGE: (send.SendMessageHeader, None),
    R.SEND_REPLY_MESSAGE_V2: (send.SendMessageV2Header, None),
    R.PUSH_REPLY_MESSAGE_TO_CLIENT: (tools.PushReplyHeader, None),
    R.GET_ALL_PRODUCER_INFO: (None, None),
    R.QUERY_TOPICS_BY_CONSUMER: (tools.GroupNameHeader, None),
    R.QUERY_SUBSCRIPTION_BY_CONSUMER: (tools.TopicGroupHeader, None),
    R.UPDATE_AND_CREATE_TOPIC_LIST: (None, None),
    R.GET_ALL_TOPIC_CONFIG: (None, None),
    R.PUT_KV_CONFIG: (admin.PutKvConfigHeader, None),
    R.GET_KV_CONFIG: (admin.KvConfigHeader, None),
    R.DELETE_KV_CONFIG: (admin.KvConfigHeader, None),
    R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: (None, None),
    R.GET_TOPIC_STATS_INFO: (offsets.TopicHeader, None),
    R.WIPE_WRITE_PERM_OF_BROKER: (None, None),
    R.DELETE_TOPIC_IN_BROKER: (offsets.TopicHeader, None),
    R.DELETE_TOPIC_IN_NAMESRV: (offsets.TopicHeader, None),
    R.GET_KVLIST_BY_NAMESPACE: (admin.NamespaceHeader, None),
    R.GET_TOPICS_BY_CLUSTER: (admin.ClusterHeader, None),
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: (None, None),
    R.GET_SYSTEM_TOPIC_LIST_FROM_NS: (None, None),
    R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: (None, None),
    R.CLEAN_EXPIRED_CONSUMEQUEUE: (None, None),
    R.GET_UNIT_TOPIC_LIST: (None, None),
    R.GET_HAS_UNIT_SUB_TOPIC_LIST: (None, None),
    R.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: (None, None),
    R.VIEW_BROKER_STATS_DATA: (admin.StatsHeader, None),
    R.CLEAN_UNUSED_TOPIC: (None, None),
    R.UPDATE_NAMESRV_CONFIG: (None, None),
    R.GET_NAMESRV_CONFIG: (admin.SettingsHeader, None),
    R.ADD_WRITE_PERM_OF_BROKER: (None, None),
    R.DELETE_EXPIRED_COMMITLOG: (None, None),
    R.GET_TOPIC_CONFIG: (offsets.TopicHeader, None),
    R.GET_SUBSCRIPTIONGROUP_CONFIG: (admin.GroupConfigHeader, None),
    R.QUERY_ASSIGNMENT: (None, None),
    R.RECALL_MESSAGE: (send.RecallMessageHeader, None),
    R.END_TRANSACTION: (transactions.EndTransactionHeader, bodies.EndTransactionBody),
    R.LIST_HALVES: (transactions.ListHalvesHeader, None),
    R.CHECK_TRANSACTION_STATE: (transactions.CheckTransactionHeader, None),
}
"""Header and body of every request. The bodies of RocketMQ's tools, which are JSON, are in tests/sim/java/topics.txt."""

REPLIES: dict[RequestCode, tuple[type | None, type | None]] = {
    R.SEND_MESSAGE: (send.SendReply, None),
    R.PULL_MESSAGE: (pull.PullReply, None),
    R.LITE_PULL_MESSAGE: (pull.PullReply, None),
    R.SEND_MESSAGE_V2: (send.SendReply, None),
    R.SEND_BATCH_MESSAGE: (send.SendReply, None),
    R.SEND_REPLY_MESSAGE: (send.SendReply, None),
    R.SEND_REPLY_MESSAGE_V2: (send.SendReply, None),
    R.QUERY_CONSUMER_OFFSET: (offsets.ProgressReply, None),
    R.SEARCH_OFFSET_BY_TIMESTAMP: (offsets.OffsetReply, None),
    R.GET_MAX_OFFSET: (offsets.OffsetReply, None),
    R.GET_MIN_OFFSET: (offsets.MinOffsetReply, None),
    R.GET_EARLIEST_MSG_STORETIME: (offsets.StoreTimeReply, None),
    R.QUERY_MESSAGE: (offsets.QueryMessageReply, None),
    R.UPDATE_AND_CREATE_TOPIC: (None, bodies.CreateTopicReply),
    R.HEART_BEAT: (None, bodies.HeartbeatReply),
    R.GET_CONSUMER_LIST_BY_GROUP: (None, bodies.MemberList),
    R.LOCK_BATCH_MQ: (None, bodies.SessionLockReply),
    R.UNLOCK_BATCH_MQ: (None, bodies.LockBatchReply),
    R.REGISTER_BROKER: (None, bodies.RegisterReply),
    R.GET_ROUTEINFO_BY_TOPIC: (None, bodies.TopicRoute),
    R.GET_BROKER_CLUSTER_INFO: (None, bodies.ClusterInfo),
    R.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: (None, bodies.TopicList),
    R.SYNC: (None, bodies.SyncReply),
    R.SEND_RECORDS: (send.SendRecordsReply, None),
    R.TOPIC_OFFSETS: (None, bodies.TopicOffsets),
    R.GROUP_STATUS: (None, bodies.GroupStatusReply),
    R.RESET_OFFSETS: (None, bodies.ResetReply),
    R.PARK_END: (park.ParkEndReply, None),
    R.PARK_CONTROL: (None, bodies.ParkControlReply),
    R.OVERVIEW: (None, bodies.Overview),
    R.GROUP_EVENTS: (None, bodies.GroupEvents),
    R.FORGET_PROGRESS: (clients.ForgetProgressReply, None),
    R.PURGE_TOPIC: (None, bodies.PurgeReply),
    R.LIST_WAITING: (None, bodies.WaitingPage),
    R.AUTHENTICATE: (None, None),
    R.REPLICA_FOLLOW: (replication.ReplicaFollowReply, None),
    R.REPLICA_FETCH: (replication.ReplicaFetchReply, None),
    R.REPLICA_FILE: (replication.ReplicaFileReply, None),
    R.REPLICA_STATUS: (None, bodies.ReplicaStatus),
    R.REGISTER_READ: (register.RegisterReadReply, None),
    R.REGISTER_SWAP: (register.RegisterSwapReply, None),
    R.GET_CONSUMER_RUNNING_INFO: (None, bodies.RunningInfo),
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (None, bodies.GroupSettings),
    R.UPDATE_BROKER_CONFIG: (None, bodies.SettingChanges),
    R.GET_BROKER_CONFIG: (None, bodies.BrokerSettings),
    R.GET_NAMESRV_CONFIG: (None, bodies.BrokerSettings),
    R.GET_BROKER_RUNTIME_INFO: (None, bodies.BrokerStatus),
    R.FORGET_DELETIONS: (routes.ForgetDeletionsReply, None),
    R.HOLD_WRITES: (routes.HoldWritesReply, None),
    R.GET_KV_CONFIG: (admin.KvConfigReply, None),
    R.GET_TOPICS_BY_CLUSTER: (None, bodies.TopicList),
    R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: (None, bodies.TopicList),
    R.RECALL_MESSAGE: (send.RecallMessageReply, None),
    R.END_TRANSACTION: (None, bodies.EndTransactionReply),
    R.LIST_HALVES: (None, bodies.HalfPage),
}
"""Header and body of every response that has one."""


def example_frames() -> dict[str, Command]:
    """Return a command of every kind, by name."""
    frames = {}
    for kind, table, flag in (("request", REQUESTS, 0), ("reply", REPLIES, RESPONSE_FLAG)):
        for code, (header, body) in table.items():
            fields = to_plain(example_of(header)) if header else {}
            encoded = encode_body(example_of(body)) if body else b""
            frames[f"{kind}.{code.name}"] = Command(int(code) if not flag else 0, 7, flag, fields=fields, body=encoded)
    for refusal in ResponseCode:
        frames[f"refusal.{refusal.name}"] = Command(int(refusal), -1, RESPONSE_FLAG, remark="why")
    return frames
