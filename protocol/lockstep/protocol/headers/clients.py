"""Membership and locks. HEART_BEAT, LOCK_BATCH_MQ, UNLOCK_BATCH_MQ and SYNC have structured bodies and no header fields."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class AuthenticateHeader:
    """AUTHENTICATE (30026): the body is the client's message of the mechanism, that of the response the server's (RFC 5802)."""

    mechanism: str


@dataclass(frozen=True, slots=True)
class UnregisterClientHeader:
    """UNREGISTER_CLIENT (35). For a client with a session: removes it from the group's member list at once, but keeps the session and
    its locks."""

    client_id: str = field(metadata={"wire": "clientID"})
    producer_group: str | None = None
    consumer_group: str | None = None


@dataclass(frozen=True, slots=True)
class GroupHeader:
    """GET_CONSUMER_LIST_BY_GROUP (38)."""

    consumer_group: str


@dataclass(frozen=True, slots=True)
class GroupStatusHeader:
    """GROUP_STATUS (30005)."""

    consumer_group: str | None = None
    """None requests the names of all groups."""
    summaries: bool | None = None
    """True requests a summary of each group as well as its name, if `consumer_group` is None."""


@dataclass(frozen=True, slots=True)
class GroupEventsHeader:
    """GROUP_EVENTS (30015)."""

    after: int = 0
    """Only events with higher numbers are returned."""
    term: int | None = None
    """The term in which `after` was returned. Of another term all events are returned."""
    consumer_group: str | None = None
    """None requests the events of all groups."""


@dataclass(frozen=True, slots=True)
class DeleteGroupHeader:
    """DELETE_SUBSCRIPTIONGROUP (207). RocketMQ: DeleteSubscriptionGroupRequestHeader. Either flag also deletes the group's progress."""

    group: str = field(metadata={"wire": "groupName"})
    clean_offset: bool = False
    """The flag of RocketMQ 5."""
    remove_offset: bool = False
    """The flag of RocketMQ 4.9."""


@dataclass(frozen=True, slots=True)
class ForgetProgressHeader:
    """FORGET_PROGRESS (30016): end a group's progress in one topic. Refused while a member consumes the topic, or holds a queue of it."""

    consumer_group: str
    topic: str


@dataclass(frozen=True, slots=True)
class ForgetProgressReply:
    queues: int
    """The number of queues in which the group had progress."""


@dataclass(frozen=True, slots=True)
class NotifyHeader:
    """NOTIFY_CONSUMER_IDS_CHANGED (40), broker → client, one-way."""

    consumer_group: str
    list_term: int | None = field(default=None, metadata={"native": True})
    list_counter: int | None = field(default=None, metadata={"native": True})
