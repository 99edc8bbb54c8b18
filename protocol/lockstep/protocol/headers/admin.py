"""Requests of tools: all but SettingsHeader of RocketMQ's alone."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SettingsHeader:
    """GET_BROKER_CONFIG (26), GET_NAMESRV_CONFIG (319), from native clients."""

    logins: bool = False
    """Report the last logins of users as well."""


@dataclass(frozen=True, slots=True)
class PutKvConfigHeader:
    """PUT_KV_CONFIG (100)."""

    namespace: str
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class KvConfigHeader:
    """GET_KV_CONFIG (101), DELETE_KV_CONFIG (102)."""

    namespace: str
    key: str


@dataclass(frozen=True, slots=True)
class KvConfigReply:
    value: str


@dataclass(frozen=True, slots=True)
class NamespaceHeader:
    """GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str


@dataclass(frozen=True, slots=True)
class ClusterHeader:
    """GET_TOPICS_BY_CLUSTER (224)."""

    cluster: str


@dataclass(frozen=True, slots=True)
class GroupConfigHeader:
    """GET_SUBSCRIPTIONGROUP_CONFIG (352)."""

    group: str


@dataclass(frozen=True, slots=True)
class StatsHeader:
    """VIEW_BROKER_STATS_DATA (315)."""

    stats_name: str
    stats_key: str
    """A topic, or TOPIC@GROUP."""
