"""Rules of stored messages as clients see them: their ids, and their cached bodies."""

from lockstep.broker import running
from lockstep.client.consumer.grants.broker_session import BrokerSession
from lockstep.protocol.messages import message
from lockstep.protocol.messages.ids import store_host_of
from sweep.mutants.registry import Patches, mutant


@mutant(
    "swarm",
    aimed="tests/unit/broker/test_store_host.py::test_brokers_with_dns_names_give_different_message_ids_at_equal_offsets",
)
def brokers_with_names_share_a_store_host(patch: Patches) -> None:
    """The store host of a broker that advertises no IPv4 address identifies its store."""
    patch.set(running, "store_host_of", lambda address, store_id: bytes(8))


@mutant(
    "swarm",
    aimed="tests/unit/broker/test_store_host.py::test_store_host_survives_a_restart_under_another_name",
)
def the_store_host_follows_the_name(patch: Patches) -> None:
    """The store host of a broker that advertises no IPv4 address does not change with the name that it advertises."""
    patch.set(running, "store_host_of", lambda address, store_id: store_host_of(address, address))


@mutant(
    "swarm",
    aimed="tests/unit/protocol/test_message.py::test_large_decompressed_bodies_are_not_kept_in_memory",
)
def large_decompressed_bodies_are_kept(patch: Patches) -> None:
    """A message does not keep a decompressed body of 64 KiB or more."""
    patch.set(message, "BODY_CACHE_BYTES_MAX", 1 << 40)


@mutant("swarm", aimed="tests/unit/client/test_many_held_queues.py::test_cost_of_a_commit_is_independent_of_the_number_of_held_queues")
def each_commit_scans_all_queues(patch: Patches) -> None:
    """The session reports progress of one queue without a scan of its other queues."""
    watch_calls = BrokerSession._watch_calls

    def all_of_them(self: BrokerSession, now_ms: int) -> int:
        for own in self._workers:
            self._watch(own)
        return watch_calls(self, now_ms)

    patch.set(BrokerSession, "_watch_calls", all_of_them)
