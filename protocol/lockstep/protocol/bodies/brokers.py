"""Status and settings of a broker, and the offsets of its queues."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class OffsetRange:
    queue_id: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """TOPIC_OFFSETS (30004): the bounds of all queues of the topic at this broker."""

    queues: tuple[OffsetRange, ...]


@dataclass(frozen=True, slots=True)
class NameserverStanding:
    """The state of a broker's registration with one nameserver, as the broker sees it."""

    address: str
    standing: str
    """pending, unreachable, learning, contested, accepted or refused."""
    remark: str = ""
    """The reason of a refusal."""


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """GET_BROKER_RUNTIME_INFO (28): the status of a broker."""

    broker_name: str
    cluster: str
    store_id: str
    """The first 8 hex digits: the whole store id proves the broker's identity to nameservers."""
    term: int
    listeners: dict[str, str]
    """Listener name → the advertised address."""
    wall_ms: int
    """The broker's clock, ms since 1970."""
    up_ms: int
    """Time since its port opened."""
    log_bytes: int
    disk_total_bytes: int
    disk_free_bytes: int
    disk_reserve_bytes: int
    """The broker refuses a send that would leave less free space."""
    nameservers: tuple[NameserverStanding, ...]
    descriptor_limit: int
    """The limit of file descriptors of its process."""
    damaged_messages: int
    """Messages that were stored and lost to damage of the log. Consumers are notified of the gaps."""
    damaged_bytes: int
    """Bytes of the log in which no valid record was found."""
    topics_deleted: int
    """Deleted topics that the broker remembers."""
    topics_deleted_max: int
    """How many deleted topics it may remember."""
    delayed_messages: int
    """Messages that wait for their delay, for a retry, or for the end of their transaction."""
    disk_refusal: str | None = None
    """Why sends are refused for lack of room."""
    deferred_timers: dict[str, int] = field(default_factory=dict)
    """Topic → messages that waited for a delay or a time of day, are due, and can't be delivered now; under "" those that can't be read.
    The 100 topics with the most, of those that the user may see."""
    held_log: str | None = None
    """Why old files of the log are not removed: messages that wait can't be stored again."""


@dataclass(frozen=True, slots=True)
class BrokerSetting:
    """A setting of a running broker or nameserver. Values are written as in a TOML file; None stands for a setting that is not set."""

    name: str
    origin: str
    """The source of the present value: "default", "file …", "environment …", "flag …", or "set at run time"."""
    start_origin: str
    """The source of the value at the start."""
    value: str | None = None
    start_value: str | None = None
    """The value that a restart brings back."""
    fixed_because: str | None = None
    """Why the setting can't be changed while the server runs. None if it can."""


@dataclass(frozen=True, slots=True)
class UserLogin:
    """The last login of a user at a server since its start, of those of this kind."""

    user: str
    wall_ms: int
    """When, by the server's clock, ms since 1970."""
    peer: str
    """From where: ADDRESS:PORT."""
    signed: bool
    """Whether the user has signed a request, the first on its connection, and not given a password."""
    exposed: bool
    """Whether it came from another machine without TLS."""
    connections: int
    """All open connections of the user to the server."""


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """GET_BROKER_CONFIG (26), GET_NAMESRV_CONFIG (319): all settings of the server."""

    settings: tuple[BrokerSetting, ...]
    users_digest: str | None = None
    """That of the file of users in force. None if who asks has not logged in."""
    sees_all: bool = False
    """Whether who asks may see all topics and groups and their status."""
    logins: tuple[UserLogin, ...] | None = None
    """Those of the users of the file. None if they were not asked for."""
    reload_failure: str | None = None
    """Why a file of users, certificates or tokens can't be used, so that what was read before remains in force. None if all can."""


@dataclass(frozen=True, slots=True)
class ChangeSettings:
    """UPDATE_BROKER_CONFIG (25): new values, of all the settings or of none. RocketMQ sends lines of properties."""

    values: dict[str, str]
    """Name → text, as in a variable of the environment; "none" removes a value that need not be set."""


@dataclass(frozen=True, slots=True)
class SettingChange:
    setting: BrokerSetting
    """The setting after the change."""
    before: str | None = None


@dataclass(frozen=True, slots=True)
class SettingChanges:
    """The settings of the request, also those that had the value already."""

    changes: tuple[SettingChange, ...]
