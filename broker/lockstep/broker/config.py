"""Settings of a broker."""

from typing import Literal

from pydantic import Field, model_validator

from lockstep.broker.coordination import CoordinationConfig
from lockstep.broker.store import FlushMode, Identity, StoreConfig
from lockstep.broker.store.config import OPEN_FILES_MAX
from lockstep.broker.tables.topic_table import TOPICS_MAX
from lockstep.protocol.bodies import Limits
from lockstep.protocol.delays import DELAY_LEVELS, parse_levels
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.frame import BODY_BYTES_MAX, FRAME_BYTES_MAX, HEADER_BYTES_MAX
from lockstep.protocol.names import INTERNAL_LISTENER, check_broker_name, check_cluster_name
from lockstep.runtime.descriptors import DescriptorBudget
from lockstep.runtime.link import parse_address
from lockstep.runtime.listen_address import parse_listen_address
from lockstep.runtime.server_settings import ServerSettings

MIB = 1 << 20
FEATURES = ("ordered", "sync", "records", "sequences", "layouts", "concurrent", "delays", "dead_letters", "durable_sends")
"""Abilities that this broker reports in the response to HEART_BEAT."""


class BrokerConfig(ServerSettings):
    """Settings of a broker."""

    name: str = Field(default="broker-a", description="Name of the broker. Clients find the broker by it, and the store is bound to it.")
    cluster: str = Field(default="DefaultCluster", description="Name of the cluster.")
    listen: tuple[str, ...] = Field(
        default=("127.0.0.1:10911",),
        min_length=1,
        description="[NAME=]HOST:PORT to listen on; without a name the listener is `internal`. Port 0 takes any free port.",
    )
    advertise: tuple[str, ...] = Field(
        default=(), description="[NAME=]HOST:PORT at which clients reach listener NAME, if that is not the address it listens on."
    )
    nameserver: str | None = Field(
        default=None, description="HOST:PORT;HOST:PORT of the nameservers; without one the broker runs alone and opens at once."
    )
    store: str | None = Field(default=None, description="Directory of the log; by default lockstep-store/NAME in the working directory.")
    flush: Literal["async", "sync"] = Field(
        default="async",
        description="async: acknowledged sends survive a killed process; sync: also a power cut, because each send waits for the disk.",
    )
    auto_create_topics: bool = Field(default=False, description="Create a topic with its first send.")
    topics_max: int = Field(
        default=TOPICS_MAX,
        ge=1,
        le=65_536,
        description="Topics of the cluster; one more is refused. Those of groups (retry, dead letters) count, and are not refused.",
    )
    disconnect_grace_ms: int = Field(
        default=3_000, ge=1_000, le=600_000, description="How long a consumer whose connection closed keeps its queues."
    )
    session_timeout_ms: int = Field(default=20_000, ge=1_000, le=600_000, description="Silence after which a consumer's session ends.")
    segment_mib: int = Field(default=1_024, ge=1, le=2_047, description="Length of the log's files, for a new store.")
    retention_hours: float = Field(default=72, gt=0, description="Age above which messages are removed, a whole file at a time.")
    disk_used_percent_max: int = Field(default=80, ge=1, le=100, description="Use of the disk above which the oldest messages are removed.")
    log_mib_max: int | None = Field(default=None, ge=1, description="Size of the log above which its oldest files are removed.")
    disk_reserve_mib: int | None = Field(
        default=None, ge=0, description="Free space below which sends are refused; by default 256, or 5 % of a small disk."
    )
    groups_max: int = Field(default=10_000, ge=1, description="Known groups; above it new ones are refused.")
    progress_max: int = Field(default=2_000_000, ge=1, description="Queues of groups with progress; above it no group begins in more.")
    members_max: int = Field(default=50_000, ge=1, description="Members of all groups; one more is refused.")
    subscriptions_mib_max: int = Field(
        default=128, ge=1, description="Memory of the subscriptions of groups and members; above it new subscriptions are refused."
    )
    group_idle_days: int = Field(
        default=30, ge=0, description="Days without a member and without a commit after which a group is forgotten; 0 disables this."
    )
    held_pulls_max: int = Field(
        default=200_000, ge=1_000, description="Pulls that wait for messages at a time; above it the oldest gets its response."
    )
    held_pulls_per_group_max: int = Field(
        default=1_024, ge=1, description="Pulls of one group that wait at one queue at a time; above it the oldest gets its response."
    )
    cut_corrupt: bool = Field(
        default=False, description="Start with a damaged log and skip the damaged parts, which are set aside and reported."
    )
    scrub_kib_per_s: int = Field(
        default=128, ge=0, le=1 << 20, description="How fast the background scrub reads the log to find damage; 0 disables it."
    )
    message_delay_level: str = Field(default=DELAY_LEVELS, description="Delays of the delay levels, level 1 first (RocketMQ's table).")

    @model_validator(mode="after")
    def _check(self) -> "BrokerConfig":
        try:
            check_broker_name(self.name)
            check_cluster_name(self.cluster)
            listeners = self.listeners()
            self.nameservers()
            advertised = self.advertised()
            self.delay_levels_ms()
        except LockstepError as error:
            raise ValueError(str(error)) from None
        if INTERNAL_LISTENER not in listeners:
            raise ValueError(f"no listener is named {INTERNAL_LISTENER!r}: brokers and tools need it")
        if unknown := sorted(set(advertised) - set(listeners)):
            raise ValueError(f"advertised listener {unknown[0]!r} is not a listener: known are {', '.join(listeners)}")
        return self

    def admin_hosts(self, own_name: str) -> tuple[str, ...]:
        """Return the host names that the admin port accepts: the machine's own, the advertised ones, and those of the settings."""
        return own_name, *(parse_address(address)[0] for address in self.advertised().values()), *self.admin_host

    def advertised(self) -> dict[str, str]:
        """Return listener name → "host:port", for listeners with an advertised address."""
        return {name: f"{host}:{port}" for name, host, port in map(parse_listen_address, self.advertise)}

    def nameservers(self) -> tuple[str, ...]:
        """Return the addresses of the nameservers."""
        addresses = tuple(part.strip() for part in (self.nameserver or "").replace(",", ";").split(";") if part.strip())
        for address in addresses:
            parse_address(address)
        return addresses

    def delay_levels_ms(self) -> tuple[int, ...]:
        return parse_levels(self.message_delay_level)

    def store_path(self) -> str:
        return self.store or f"lockstep-store/{self.name}"

    def identity(self) -> Identity:
        return Identity(self.cluster, self.name)

    def coordination(self) -> CoordinationConfig:
        return CoordinationConfig(
            broker_name=self.name,
            limits=Limits(FRAME_BYTES_MAX, HEADER_BYTES_MAX, BODY_BYTES_MAX),
            features=FEATURES,
            disconnect_grace_ms=self.disconnect_grace_ms,
            session_timeout_ms=self.session_timeout_ms,
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
