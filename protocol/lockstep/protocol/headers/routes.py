"""Broker ↔ nameserver, topics."""

from dataclasses import dataclass


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
    """A live name with another store id, or this store id with a lower term, is refused (BROKER_NAME_TAKEN)."""
    broker_id: int = 0


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
