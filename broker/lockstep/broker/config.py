"""Settings of a broker."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from lockstep.broker.groups.coordination import CoordinationConfig
from lockstep.broker.office.opening import RegisterUrl
from lockstep.broker.rocketmq_store.foreign_store import LEFT_OUT
from lockstep.broker.store import FlushMode, Identity, StoreConfig
from lockstep.broker.store.config import OPEN_FILES_MAX
from lockstep.broker.tables.topic_table import TOPICS_MAX
from lockstep.protocol.bodies import Limits
from lockstep.protocol.delays import DELAY_LEVELS, parse_levels
from lockstep.protocol.errors import ConfigError, LockstepError
from lockstep.protocol.frame import BODY_BYTES_MAX, FRAME_BYTES_MAX, HEADER_BYTES_MAX
from lockstep.protocol.messages.rooms import TIMER_DAYS_MAX
from lockstep.protocol.names import INTERNAL_LISTENER, check_broker_name, check_cluster_name
from lockstep.runtime.configuration.server_settings import ServerSettings
from lockstep.runtime.configuration.settings import Range
from lockstep.runtime.connections.address import parse_address
from lockstep.runtime.connections.cluster_address import ClusterAddress
from lockstep.runtime.connections.listen_address import parse_listen_address
from lockstep.runtime.descriptors import DescriptorBudget
from lockstep.runtime.security.last_good import last_good_hint
from lockstep.runtime.security.server_security import ServerSecurity
from lockstep.runtime.security.users import Users
from lockstep.runtime.security.watched_files import WatchedFiles

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class BrokerConfig(ServerSettings):
    """Settings of a broker. `lockstep broker config` shows and changes those of a running one."""

    name: Annotated[str, "Name of the broker. Clients find the broker by it, and the store is bound to it."] = "broker-a"
    cluster: Annotated[str, "Name of the cluster."] = "DefaultCluster"
    listen: Annotated[
        tuple[str, ...], Range(1), "[NAME=]HOST:PORT to listen on; without a name the listener is `internal`. Port 0 takes any free port."
    ] = ("127.0.0.1:10911",)
    advertise: Annotated[
        tuple[str, ...], "[NAME=]HOST:PORT at which clients reach listener NAME, if that is not the address it listens on."
    ] = ()
    nameserver: Annotated[
        str | None,
        "HOST:PORT;HOST:PORT of the nameservers, or a URL (lockstep://HOST:PORT/?tls_ca=FILE). Without one the broker runs alone and opens "
        "at once.",
    ] = None
    store: Annotated[str | None, "Directory of the log; by default lockstep-store/NAME in the working directory."] = None
    flush: Annotated[
        Literal["async", "sync"],
        "async: acknowledged sends survive a killed process; sync: also a power cut, because each send waits for the disk.",
    ] = "async"
    replica_of: Annotated[
        str | None,
        "HOST:PORT of the broker of this name whose log this one copies. It serves nobody until it is promoted (lockstep replica promote).",
    ] = None
    ha: Annotated[
        str | None,
        "etcd://HOST:PORT,HOST:PORT or witness://HOST:PORT of the register by which the copies of this broker elect their master.",
    ] = None
    silence_ms: Annotated[
        int, Range(500, 600_000), "With --ha: how long a master may be silent before one of its replicas stands for election."
    ] = 3_000
    alone: Annotated[
        bool,
        "Start as the master although a replica of the set does not answer: messages that only it has are lost, and its start as a master "
        "must not follow.",
    ] = False
    catch_up_mib_s: Annotated[
        int, Range(0), "MiB a second of old log that a master reads for each replica that is behind; 0 does not limit it."
    ] = 64
    auto_create_topics: Annotated[bool, "Create a topic with its first send."] = False
    trace_topic: Annotated[bool, "Take the message traces of RocketMQ's clients: create RMQ_SYS_TRACE_TOPIC."] = False
    topics_max: Annotated[
        int,
        Range(1, 65_536),
        "Topics of the cluster; one more is refused. Those of groups (retry, dead letters) count, and are not refused.",
    ] = TOPICS_MAX
    disconnect_grace_ms: Annotated[int, Range(1_000, 600_000), "How long a consumer whose connection closed keeps its queues."] = 3_000
    session_timeout_ms: Annotated[int, Range(1_000, 600_000), "Silence after which a consumer's session ends."] = 20_000
    segment_mib: Annotated[int, Range(1, 2_047), "Length of the log's files, for a new store."] = 1_024
    retention_hours: Annotated[float, Range(0, above=True), "Age above which messages are removed, a whole file at a time."] = 72
    disk_used_percent_max: Annotated[int, Range(1, 100), "Use of the disk above which the oldest messages are removed."] = 80
    log_mib_max: Annotated[int | None, Range(1), "Size of the log above which its oldest files are removed."] = None
    disk_reserve_mib: Annotated[
        int | None, Range(0), "Free space below which sends are refused; by default 256, or 5 % of a small disk."
    ] = None
    groups_max: Annotated[int, Range(1), "Known groups; above it new ones are refused."] = 10_000
    progress_max: Annotated[int, Range(1), "Queues of groups with progress; above it no group begins in more."] = 2_000_000
    members_max: Annotated[int, Range(1), "Members of all groups; one more is refused."] = 50_000
    subscriptions_mib_max: Annotated[
        int, Range(1), "Memory of the subscriptions of groups and members; above it new subscriptions are refused."
    ] = 128
    group_idle_days: Annotated[
        int, Range(0), "Days without a member and without a commit after which a group is forgotten; 0 disables this."
    ] = 30
    held_pulls_max: Annotated[int, Range(1_000), "Pulls that wait for messages at a time; above it the oldest gets its response."] = 200_000
    held_pulls_per_group_max: Annotated[
        int, Range(1), "Pulls of one group that wait at one queue at a time; above it the oldest gets its response."
    ] = 1_024
    cut_corrupt: Annotated[bool, "Start with a damaged log and skip the damaged parts, which are set aside and reported."] = False
    security_last_good: Annotated[
        bool, "Start with the last users that this broker could read (a copy in its store), although --security names other ones."
    ] = False
    adopt: Annotated[bool, "Take over a store to which RocketMQ's broker has written; without it such a store is refused."] = False
    adopt_without: Annotated[
        tuple[str, ...],
        "With --adopt: unfinished work of that broker to leave behind (timers, pop, compaction); otherwise it is refused.",
    ] = ()
    scrub_kib_per_s: Annotated[int, Range(0, 1 << 20), "How fast the background scrub reads the log to find damage; 0 disables it."] = 128
    timer_days_max: Annotated[float, Range(0, above=True), "The longest delay of a message, in days."] = TIMER_DAYS_MAX
    timer_pending_max: Annotated[int, Range(1), "Messages that wait for a delay of any length; above it further ones are refused."] = (
        5_000_000
    )
    timer_mib_max: Annotated[
        int | None,
        Range(1),
        "Log bytes that such messages may take; above it further ones are refused. Default: a quarter of what retention keeps.",
    ] = None
    transaction_check_ms: Annotated[int, Range(1), "How soon the producer of a half message is first asked for its outcome."] = 6_000
    transaction_hours_max: Annotated[float, Range(0, above=True), "How long producers are asked for the outcome of a transaction."] = 24.0
    transactions_open_max: Annotated[int, Range(1), "Half messages without an outcome; above it further ones are refused."] = 100_000
    message_delay_level: Annotated[str, "Delays of the delay levels, level 1 first (RocketMQ's table)."] = DELAY_LEVELS

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            check_broker_name(self.name)
            check_cluster_name(self.cluster)
            self.nameservers()
            self.delay_levels_ms()
        except LockstepError as error:
            raise ConfigError(str(error)) from None
        if self.replica_of is not None:
            parse_address(self.replica_of)
            if self.alone or self.adopt:
                other = "alone" if self.alone else "adopt"
                raise ConfigError(f"replica_of and {other} exclude each other: a replica copies its master's log")
        if self.ha is not None:
            RegisterUrl.parse(self.ha)
            if clash := next((name for name in ("replica_of", "alone", "adopt") if getattr(self, name)), None):
                raise ConfigError(f"ha and {clash} exclude each other: the register says which copy is the master")
        if self.security_last_good and self.security is None:
            raise ConfigError("security_last_good needs users: set security to the file that has them")
        if unknown := sorted(set(self.adopt_without) - set(LEFT_OUT)):
            raise ConfigError(f"adopt_without is {unknown[0]!r}: expected {', '.join(LEFT_OUT)}")
        listeners, advertised = self.listeners(), self.advertised()
        if INTERNAL_LISTENER not in listeners:
            raise ConfigError(f"no listener is named {INTERNAL_LISTENER!r}: brokers and tools need it")
        if self.ha is not None and not listeners[INTERNAL_LISTENER][1]:
            raise ConfigError("ha needs a fixed port: the register has the address at which this copy is found, also after a restart")
        if unnamed := sorted(set(advertised) - set(listeners)):
            raise ConfigError(f"advertised listener {unnamed[0]!r} is not a listener: known are {', '.join(listeners)}")

    def admin_hosts(self, own_name: str) -> tuple[str, ...]:
        """Return the host names that the admin port accepts: the machine's own, the advertised ones, and those of the settings."""
        return own_name, *(parse_address(address)[0] for address in self.advertised().values()), *self.admin_host

    def advertised(self) -> dict[str, str]:
        """Return listener name → "host:port", for listeners with an advertised address."""
        return {name: f"{host}:{port}" for name, host, port in map(parse_listen_address, self.advertise)}

    def cluster_address(self) -> ClusterAddress:
        """Return the nameservers, possibly none, and how they are connected to."""
        return ClusterAddress.parse(self.nameserver) if self.nameserver else ClusterAddress(())

    def open_security(self) -> ServerSecurity:
        """Read the files. Raise ConfigError if they can't be used."""
        copy = None if self.security_last_good else self.users_copy()
        return replace(super().open_security(), peers=self.cluster_address().security(environment={}), users_copy=copy)

    def open_users(self, path: str) -> WatchedFiles[Users]:
        """Read the file of users, or its copy if that is asked for. Raise ConfigError if it can't be used, which names the copy."""
        copy = self.users_copy()
        if self.security_last_good:
            return super().open_users(copy)
        try:
            return super().open_users(path)
        except ConfigError as error:
            raise ConfigError(f"{error}{last_good_hint(copy)}") from error

    def users_copy(self) -> str:
        """Return the path of the copy of the last file of users that could be used."""
        return f"{self.store_path()}/lockstep/users.toml"

    def nameservers(self) -> tuple[str, ...]:
        """Return the addresses of the nameservers."""
        return self.cluster_address().nameservers

    def delay_levels_ms(self) -> tuple[int, ...]:
        return parse_levels(self.message_delay_level)

    def timer_ms_max(self) -> int:
        return int(self.timer_days_max * 86_400_000)

    def store_path(self) -> str:
        return self.store or f"lockstep-store/{self.name}"

    def identity(self) -> Identity:
        return Identity(self.cluster, self.name)

    def coordination(self) -> CoordinationConfig:
        return CoordinationConfig(
            broker_name=self.name,
            limits=Limits(FRAME_BYTES_MAX, HEADER_BYTES_MAX, BODY_BYTES_MAX),
            disconnect_grace_ms=self.disconnect_grace_ms,
            session_timeout_ms=self.session_timeout_ms,
            delay_levels_ms=self.delay_levels_ms(),
            groups_max=self.groups_max,
            progress_max=self.progress_max,
            members_max=self.members_max,
            subscription_bytes_max=self.subscriptions_mib_max * MIB,
            group_idle_days=self.group_idle_days,
        )

    def budget(self, descriptor_limit: int) -> DescriptorBudget:
        """Divide the process's file descriptors between connections and open files."""
        return DescriptorBudget.of(descriptor_limit, self.connections_max, OPEN_FILES_MAX)

    def store_config(self) -> StoreConfig:
        return StoreConfig(
            path=self.store_path(),
            flush=FlushMode(self.flush),
            segment_bytes=self.segment_mib * MIB,
            retention_ms=int(self.retention_hours * 3_600_000),
            disk_used_percent_max=self.disk_used_percent_max,
            log_bytes_max=None if self.log_mib_max is None else self.log_mib_max * MIB,
            disk_reserve_bytes=None if self.disk_reserve_mib is None else self.disk_reserve_mib * MIB,
            cut_corrupt=self.cut_corrupt,
            scrub_bytes_per_s=self.scrub_kib_per_s << 10,
        )
