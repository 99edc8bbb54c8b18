"""A fake broker for the tests of the client and of the commands. It serves the wire protocol on loopback and can be scripted."""

from support.fake_broker.cluster import (
    LOOPBACK,
    FakeBroker,
    FakeCluster,
    ThreadedCluster,
    fake_cluster,
    frozen_cluster,
    make_layout,
    threaded_cluster,
)
from support.fake_broker.groups import Lock, pulled
from support.fake_broker.sends import Sent, Step, answer_later, hang_up, ignore, lose_answer, refuse, store_and_hang_up
from support.fake_broker.wire import ANY_GROUP, STORE_HOST, Received, stored

__all__ = [
    "ANY_GROUP",
    "LOOPBACK",
    "STORE_HOST",
    "FakeBroker",
    "FakeCluster",
    "Lock",
    "Received",
    "Sent",
    "Step",
    "ThreadedCluster",
    "answer_later",
    "fake_cluster",
    "frozen_cluster",
    "hang_up",
    "ignore",
    "lose_answer",
    "make_layout",
    "pulled",
    "refuse",
    "store_and_hang_up",
    "stored",
    "threaded_cluster",
]
