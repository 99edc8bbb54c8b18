"""A fake broker for the tests of the client and of the commands. It serves the wire protocol on loopback and can be scripted."""

from support.fake_broker.cluster import (
    LOOPBACK,
    FakeBroker,
    FakeCluster,
    ThreadedCluster,
    fake_cluster,
    frozen_cluster,
    make_layout,
)
from support.fake_broker.groups import Lock, pulled
from support.fake_broker.sends import (
    Sent,
    Step,
    abort_connection,
    ignore,
    refuse,
    respond_later,
    sequence_of,
    store_and_disconnect,
    store_without_response,
    take,
)
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
    "abort_connection",
    "fake_cluster",
    "frozen_cluster",
    "ignore",
    "make_layout",
    "pulled",
    "refuse",
    "respond_later",
    "sequence_of",
    "store_and_disconnect",
    "store_without_response",
    "stored",
    "take",
]
