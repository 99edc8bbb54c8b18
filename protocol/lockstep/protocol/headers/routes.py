"""Requests between broker and nameserver, and about topics."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RegisterBrokerHeader:
    """REGISTER_BROKER (103). Body: RegisterBody."""

    broker_name: str
    cluster_name: str
    broker_addr: str
    """host:port of the listener named `internal`."""
    store_id: str
    """32 hex digits, random, in the store: it distinguishes two brokers of the same name."""
    term: int
    """The term of this start. The nameserver responds with BROKER_NAME_TAKEN if another start with this name is registered and alive, or
    if it accepted this store with a higher term, and with REGISTRATION_PENDING while it checks whether the registered one is alive."""
    proof: str = field(repr=False)
    """32 hex digits, random, in the store, sent to nameservers only and never disclosed."""
    previous_term: int
    """The term of the last start before this one that was certainly accepted. The nameserver responds with BROKER_NAME_TAKEN if it is
    lower than the last accepted term of this store, unless that is one of `RegisterBody.tried`, from the same address."""
    broker_id: int = 0
    office: bool | None = None
    """True if the term stands in a register, which gives each term to one copy of the log. Then a higher term of the same store replaces
    the registered one at once, and BROKER_NAME_TAKEN names the accepted term if this one is not higher."""


@dataclass(frozen=True, slots=True)
class UnregisterBrokerHeader:
    """UNREGISTER_BROKER (104)."""

    broker_name: str
    cluster_name: str
    broker_addr: str
    store_id: str
    term: int
    broker_id: int = 0


@dataclass(frozen=True, slots=True)
class CreateTopicHeader:
    """UPDATE_AND_CREATE_TOPIC (17). Body: the TopicLayout on which the creator continues. The response's body is the TopicLayout in force.

    Without a body (a classic tool) the broker makes a layout of its own queues from the counts in this header.
    """

    topic: str
    read_queue_nums: int = 8
    write_queue_nums: int = 8
    perm: int = 6
    auto: bool = False
    """Whether a first send creates the topic: the broker responds with TOPIC_NOT_EXIST unless it allows automatic creation."""
    hold_id: str | None = None
    """Put the layout into force only while this hold of the topic's writes is (HOLD_WRITES): no client has written meanwhile."""


@dataclass(frozen=True, slots=True)
class HoldWritesHeader:
    """HOLD_WRITES (30010): refuse every send to the topic as SYSTEM_BUSY, so that its queues can be moved."""

    topic: str
    hold_id: str
    """Any text that identifies the command."""
    lease_ms: int
    """How long the hold lasts if it is not renewed, at most 60,000; 0 ends it."""


@dataclass(frozen=True, slots=True)
class HoldWritesReply:
    begun: bool
    """Whether the hold began with this request. After a renewal it means that clients may have written to the topic meanwhile."""


@dataclass(frozen=True, slots=True)
class ForgetDeletionsHeader:
    """FORGET_DELETIONS (30009), to brokers and nameservers: forget the topics that were deleted with at most this layout counter."""

    counter_max: int
    """0 forgets none and only requests the number of remembered topics."""


@dataclass(frozen=True, slots=True)
class ForgetDeletionsReply:
    forgotten: int
    remembered: int
    """The number of deleted topics that are still remembered."""
