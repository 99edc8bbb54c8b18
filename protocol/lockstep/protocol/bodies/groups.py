"""Status, settings and offsets of a group."""

from dataclasses import dataclass, field
from enum import Enum

from lockstep.protocol.bodies.heartbeat import ConsumerGroup, ListVersion, Subscription
from lockstep.protocol.done_ranges import Ranges


@dataclass(frozen=True, slots=True)
class QueueStatus:
    topic: str
    queue_id: int
    owner: str | None
    """Client id, or None if the queue is free."""
    epoch: int
    generation: int
    committed_offset: int
    """−1 if the group has no progress here."""
    max_offset: int
    attempts: int
    committed_ago_ms: int | None
    classic_lease_left_ms: int | None
    """Only for a classic holder; a session's lock lives as long as the session."""
    parked: int
    """The number of its parked keys."""
    disk_pulls: int
    """The number of pulls of the group that wait for the disk."""
    failing_ms: int | None = None
    """How long ago the first failed call at the committed offset was reported to this broker process; None if none was."""
    error: str | None = None
    """Why the last call failed."""
    done: Ranges | None = None
    """Finished offsets above the committed one (done_ranges.py)."""
    listed_owner: str | None = None
    """The member to which the member list gives the queue; None if there is none, or the list does not decide (ordering.md 5.5)."""
    owner_grace_ms: int | None = None
    """How long the owner, whose connection is lost, may still come back; None while it is connected, and for classic holders."""
    held_offset: int | None = None
    """The offset at which a pull of the group is held: its subscription matches no message before it. None if no pull is held."""
    gap_first: int | None = None
    """The first of the last messages that retention or a purge removed before the group consumed them; None if none are known. They are
    known until a commit has passed them, and by the broker process that saw them removed until it ends."""
    gap_end: int | None = None
    """The offset after these messages."""
    gap_ago_ms: int | None = None
    """How long ago they were removed, to the second; None if that was before the broker's start."""
    begins_at: int | None = None
    """The lowest offset at which the group may begin: messages before it are removed, or were there before the queue was added to the
    topic. None if the group has progress."""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    client_id: str
    session: str | None
    """The first 8 hex digits: the whole session id is a secret. None for a classic client."""
    address: str
    connected: bool
    heard_ago_ms: int
    subscriptions: tuple[Subscription, ...] | None = None
    """The member's subscriptions if they differ from the contract's (`subscription_policy` classic, classic clients). None if they are the
    contract's, as far as the broker knows since its start."""
    contract_version: int = 0
    """The version of the member's contract; the group's `contract` is the newest one."""
    grace_left_ms: int | None = None
    """How long the member, whose connection is lost, may still come back; None while it is connected, and for classic members."""


@dataclass(frozen=True, slots=True)
class JoinRefusal:
    """A client that was not admitted to the group."""

    client_id: str
    ago_ms: int
    remark: str


class SubscriptionPolicy(Enum):
    """How a broker treats a member with subscriptions that differ from the group's."""

    STRICT = "strict"
    """Refuse the member; the error shows both sides."""
    CLASSIC = "classic"
    """As RocketMQ: the latest member's subscriptions apply to all; the other members lose messages that only they subscribed to."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200), request and response. They outlive the members. RocketMQ: SubscriptionGroupConfig."""

    group: str = field(metadata={"wire": "groupName"})
    subscription_policy: SubscriptionPolicy = SubscriptionPolicy.STRICT
    consume_enable: bool = True
    """False: no member of the group receives messages; a pull fails with NO_PERMISSION."""
    next_contract_version: int | None = None
    """A contract of this version may be announced although it is not above those in force. Forgotten when it has been."""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    group: str
    version: ListVersion
    contract: ConsumerGroup | None
    members: tuple[MemberStatus, ...]
    queues: tuple[QueueStatus, ...]
    grants: int
    """Grants of queues since the broker's start."""
    settings: GroupSettings | None = None
    """None if no settings were stored."""
    overruled_count: int = 0
    """Since the broker's start: members with subscriptions that replaced others (`subscription_policy` classic)."""
    refusals: tuple[JoinRefusal, ...] = ()
    """The last clients that were not admitted, the newest last."""
    suspended_ms: int | None = None
    """How long no queue is granted yet, because the last start may have lost grants (ordering.md 8). None if queues are granted."""
    consumed: tuple[str, ...] | None = None
    """The topics that the members consume (ordering.md 11.6). None if that is not known: the group has no member here, or a member names
    no topic."""


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group at one broker, in one line."""

    group: str
    ordered: bool | None
    """None if the group has no contract here, because it has no members."""
    broadcasting: bool | None
    members: int
    lag: int
    """Messages that are stored in the queues of this broker and not committed, without those of topics that the group has left."""
    has_settings: bool
    """Whether settings of the group are stored here."""


@dataclass(frozen=True, slots=True)
class GroupStatusReply:
    """GROUP_STATUS (30005). `groups` has the names of all groups if the request named none; otherwise `status` is set."""

    groups: tuple[str, ...]
    status: GroupStatus | None = None
    summaries: tuple[GroupSummary, ...] | None = None
    """None if they were not requested."""


@dataclass(frozen=True, slots=True)
class QueueOffset:
    queue_id: int
    offset: int
    generation: int | None = None
    """In a reset by a member that seeks: the generation that the member knows. The reset is refused if another generation is in force.
    None: reset whatever the generation."""


@dataclass(frozen=True, slots=True)
class ResetBody:
    """RESET_OFFSETS (30007): moves a group to other offsets, running or not. Each queue gets a new generation, which ends its grant."""

    group: str
    topic: str
    queues: tuple[QueueOffset, ...]
    """The next offset to consume, within the bounds of the queue. Queues that are not listed stay unchanged."""
    drop_parked: bool = False
    """Forget the parked keys of the queues. Without it a queue with parked keys is not reset."""


@dataclass(frozen=True, slots=True)
class ResetReply:
    queues: tuple[QueueOffset, ...]
    """The group's progress before the reset, in the order of the request; −1 if it had none."""
