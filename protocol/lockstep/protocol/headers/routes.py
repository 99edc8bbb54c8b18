"""Broker ↔ nameserver, topics."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RegisterBrokerHeader:
    """REGISTER_BROKER (103). Body: RegisterBody."""

    broker_name: str
    cluster_name: str
    broker_addr: str
    """host:port of the listener named `internal`."""
    store_id: str
    """32 hex digits, random, in the store: two brokers of one name are told apart by it."""
    term: int
    """Of this start. BROKER_NAME_TAKEN where another start of the name is registered and answers, or this store was accepted with a higher
    term; REGISTRATION_PENDING while the one that is registered is asked whether it is still there."""
    broker_id: int = 0
    proof: str | None = field(default=None, repr=False)
    """32 hex digits, random, in the store, told to nameservers alone and disclosed by nobody. None: an earlier version."""
    previous_term: int | None = None
    """Of the start before this one. BROKER_NAME_TAKEN where it is lower than the term that was accepted last of this store. None: an
    earlier version."""


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
    """UPDATE_AND_CREATE_TOPIC (17). Body: TopicLayout, the one the creator goes on with. Answer's body: the TopicLayout in force.

    Without a body (a classic tool): the broker makes a layout of its own queues from the counts here.
    """

    topic: str
    read_queue_nums: int = 8
    write_queue_nums: int = 8
    perm: int = 6
    auto: bool = False
    """Created by a first send: refused with TOPIC_NOT_EXIST unless the broker allows it."""


@dataclass(frozen=True, slots=True)
class ForgetDeletionsHeader:
    """FORGET_DELETIONS (30009), to brokers and nameservers: forget the deleted topics whose deletion has at most this layout counter."""

    counter_max: int
    """0: forget none, answer how many are remembered."""


@dataclass(frozen=True, slots=True)
class ForgetDeletionsReply:
    forgotten: int
    remembered: int
    """Deleted topics that are remembered now."""
