"""Rules of consumers (ordering.md 1, 3, 4, 5, 6)."""

import asyncio
from collections.abc import Iterable
from typing import Any

from lockstep.client.consumer import rebalance
from lockstep.client.consumer.base_consumer import RELEASE_WAIT_MS, BaseConsumer
from lockstep.client.consumer.calls.listener import Cancelled
from lockstep.client.consumer.calls.queue_worker import QueueWorker
from lockstep.client.consumer.grants import ownership
from lockstep.client.consumer.grants.broker_session import BrokerSession
from lockstep.client.consumer.grants.lease_timers import LockSchedule, ProofOfLife, ProofRequest
from lockstep.client.consumer.grants.ownership import OwnershipEvent, OwnershipState, QueueOwnership
from lockstep.client.consumer.membership import Membership
from lockstep.client.consumer.rebalance import ListChange, MemberLists
from lockstep.client.instance import Instance
from lockstep.protocol.bodies import ListVersion, MemberList
from lockstep.protocol.topics.allocate import BY_BROKER, allocate
from lockstep.protocol.topics.queue import MessageQueue, TopicLayout
from lockstep.runtime.host import RunningCalls
from lockstep.testing.simulation.host import SimClock
from sweep.mutants.registry import Patches, mutant


@mutant("net", "pause")
def no_deadline(patch: Patches) -> None:
    """No call starts past proven + grace − 500 ms."""
    patch.set(ProofOfLife, "_set_deadline", lambda self: setattr(self, "deadline_ms", 1 << 60))


@mutant(
    "late",
    "pause",
    aimed="tests/unit/client/test_lease_timers.py::test_liveness_is_proven_only_after_the_first_lock_response_of_a_connection",
)
def proof_before_lock(patch: Patches) -> None:
    """On a new connection there is no proof of life until the response to its first LOCK."""
    connected = ProofOfLife.connected

    def proven(self: ProofOfLife, connection: int, now_ms: int, grace_ms: int, session_timeout_ms: int) -> None:
        connected(self, connection, now_ms, grace_ms, session_timeout_ms)
        self._locked = True

    patch.set(ProofOfLife, "connected", proven)


@mutant("stubborn")
def cancellation_is_not_signalled(patch: Patches) -> None:
    """`context.cancelled` is set once the result of a call may no longer be accepted."""
    patch.set(Cancelled, "set", lambda self: None)
    patch.set(Cancelled, "is_set", lambda self: False)


@mutant("late")
def proof_counts_from_the_response(patch: Patches) -> None:
    """Proof of life counts from the request, not from its response."""
    proven = BrokerSession._proven

    def late(self: BrokerSession, stamp: ProofRequest) -> None:
        proven(self, ProofRequest(stamp.connection, self._clock.boot_ms(), stamp.lock))

    patch.set(BrokerSession, "_proven", late)


@mutant("churn", "broker")
def released_while_it_runs(patch: Patches) -> None:
    """A queue is released when its running listener has ended, not before."""
    patch.set(QueueOwnership, "running", property(lambda self: False, lambda self, value: None))


@mutant("churn", "swarm")
def not_fenced_at_the_drain_limit(patch: Patches) -> None:
    """Past the drain limit a release has no offset, and results of the call do not count any more."""
    tick = QueueOwnership.tick

    def unfenced(self: QueueOwnership, now_ms: int) -> bool:
        due = self.state is OwnershipState.DRAINING and self.drain_at_ms is not None and now_ms >= self.drain_at_ms
        gone = tick(self, now_ms)
        if due:
            self._fenced = False
            self.offset += 1
        return gone

    patch.set(QueueOwnership, "tick", unfenced)


@mutant("late", "churn", aimed="tests/unit/client/test_ownership.py::test_each_state_and_event_pair_follows_the_transition_table")
def release_not_awaited(patch: Patches) -> None:
    """A released queue is acquired again only after the response to the release."""
    patch.set(ownership, "TRANSITIONS", {**ownership.TRANSITIONS, (OwnershipState.RELEASING, OwnershipEvent.SENT): OwnershipState.GONE})


@mutant("pause", "churn", aimed="tests/unit/client/test_ownership.py::test_queue_is_not_locked_again_while_its_old_call_runs")
def locked_while_an_old_call_runs(patch: Patches) -> None:
    """A queue whose old listener still runs in this process is not locked again by it."""
    patch.set(QueueOwnership, "may_acquire", property(lambda self: self.state is OwnershipState.WANTED))


@mutant(
    "stubborn",
    aimed="tests/unit/client/test_outlived_calls.py::test_queue_is_not_locked_again_in_the_process_while_a_call_of_a_stopped_consumer_runs",
)
def outlived_calls_are_not_awaited(patch: Patches) -> None:
    """A queue is not locked by a new consumer of the process while a call of a stopped one still runs on it."""
    patch.set(RunningCalls, "notify_when_ended", lambda self, key, callback: False)


@mutant("late", "pause")
def prefetch_kept_when_fenced(patch: Patches) -> None:
    """A client that receives STALE drops the queue and its prefetched messages."""
    patch.set(QueueWorker, "grant_ended", lambda self, fenced: None)


@mutant("handover")
def drained_before_leaving(patch: Patches) -> None:
    """Stop leaves the member lists first, then drains and releases."""

    async def stop(self: BaseConsumer) -> None:
        instance, membership = self._instance, self._membership
        assert instance is not None
        assert membership is not None
        try:
            async with asyncio.timeout((self._settings.stop_timeout_ms + RELEASE_WAIT_MS) / 1000):
                await membership.drain(self._settings.stop_timeout_ms)
                await instance.leave(self.group)
        except TimeoutError:
            pass
        finally:
            instance.unregister_consumer(self.group)
            await self._release_instance(instance)
            self.ended.set()

    patch.set(BaseConsumer, "_stop", stop)


@mutant(
    "disk",
    "broker",
    aimed="tests/unit/client/test_push_consumer_life.py::test_heartbeat_in_flight_during_a_stop_does_not_rejoin_the_group",
)
def left_once(patch: Patches) -> None:
    """A heartbeat on its way when a consumer leaves does not keep it on the list."""
    patch.set(Membership, "_leave_again", lambda self, link: None)


@mutant("late", "swarm", aimed="tests/unit/client/test_rebalance.py::test_member_list_without_this_member_is_ignored")
def a_list_without_this_client_is_used(patch: Patches) -> None:
    """A member list without this client is not used: send a heartbeat, request the list again, drop nothing."""

    def adopt(self: MemberLists, broker_name: str, members: MemberList) -> ListChange:
        self.record_version(broker_name, members.version)
        change = self._change(self._lists.get(broker_name), members)
        self._lists[broker_name] = members
        return change

    patch.set(MemberLists, "adopt", adopt)


@mutant(
    "single",
    aimed="tests/unit/client/test_broker_session.py::test_empty_sync_is_sent_every_third_of_the_grace_period_while_a_queue_is_held",
)
def no_proof_of_life(patch: Patches) -> None:
    """A session sends a request every grace/3 while it holds a lock, and every 5 s in any case."""
    patch.set(ProofOfLife, "due_ms", lambda self, holding: 1 << 60)


@mutant(
    "net",
    "machines",
    aimed="tests/unit/client/test_broker_session.py::test_empty_sync_without_response_for_the_grace_period_triggers_a_reconnect",
)
def silence_is_not_detected(patch: Patches) -> None:
    """An empty SYNC without a response within the grace ends the connection."""
    patch.set(BrokerSession, "_watch_silence", lambda self, now_ms: None)


@mutant("late")
def late_results_are_not_offered(patch: Patches) -> None:
    """After a reconnect LOCK names the held queues with their offsets: finished work is committed."""
    lock_item = QueueOwnership.lock_item

    def without(self: QueueOwnership) -> Any:
        from dataclasses import replace

        item = lock_item(self)
        return item if item is None or item.epoch is None else replace(item, offset=None)

    patch.set(QueueOwnership, "lock_item", without)


@mutant("late", aimed="tests/unit/client/test_instance.py::test_link_is_up_after_the_heartbeat_response_and_connection_numbers_increase")
def connection_numbers_do_not_rise(patch: Patches) -> None:
    """HEART_BEAT carries a connection number that rises with each connect."""
    describe = Instance._describe

    def same(self: Instance, link: Any, _connection: int) -> Any:
        return describe(self, link, 1)

    patch.set(Instance, "_describe", same)


@mutant("churn", "pause")
def draining_queues_are_not_named(patch: Patches) -> None:
    """LOCK also names draining queues."""
    lock_item = QueueOwnership.lock_item
    patch.set(QueueOwnership, "lock_item", lambda self: None if self.state is OwnershipState.DRAINING else lock_item(self))


@mutant("late", aimed="tests/unit/client/test_ownership.py::test_queue_with_a_release_in_flight_is_not_named_in_lock")
def a_release_on_its_way_is_named(patch: Patches) -> None:
    """LOCK does not name a queue whose release was sent on this connection."""
    patch.set(ownership, "_HOLDING", ownership._HOLDING | {OwnershipState.RELEASED})


@mutant("handover")
def locks_are_sent_on_schedule_only(patch: Patches) -> None:
    """LOCK is sent at once on a trigger: a new list, QUEUE_FREE, STALE, the end of an old call, a confirmed release."""
    patch.set(LockSchedule, "trigger", lambda self: None)


@mutant("handover", aimed="tests/unit/client/test_lease_timers.py::test_trigger_during_a_lock_sends_another_after_its_response")
def a_trigger_during_a_lock_is_dropped(patch: Patches) -> None:
    """A trigger while a LOCK is in flight sends another one after it."""
    trigger = LockSchedule.trigger
    patch.set(LockSchedule, "trigger", lambda self: None if self.in_flight else trigger(self))


@mutant("net", "swarm", aimed="tests/unit/client/test_rebalance.py::test_queues_of_each_broker_are_divided_among_the_members_in_its_list")
def one_list_allocates_all_queues(patch: Patches) -> None:
    """The queues of a broker are allocated among the members on that broker's list."""

    def dealt(me: str, layout: TopicLayout, lists: MemberLists, before: Iterable[MessageQueue]) -> list[MessageQueue]:
        names = rebalance._brokers(layout)
        members = next((members for name in names if (members := lists.get(name)) is not None), None)
        if members is None:
            return [queue for queue in before if queue in layout.number_of]
        return [queue for name in names for queue in allocate(BY_BROKER, name, layout, members.members, me)]

    patch.set(rebalance, "_by_broker", dealt)


@mutant("broker", "power", aimed="tests/unit/client/test_rebalance.py::test_older_member_list_is_ignored_unless_its_term_is_higher")
def lists_are_counted_without_the_term(patch: Patches) -> None:
    """The lists of a restarted broker are newer than all earlier ones: a version is (term, counter)."""

    def key(version: ListVersion | None) -> tuple[int, int]:
        return (-1, -1) if version is None else (0, version.counter)

    patch.set(rebalance, "version_key", key)


@mutant("pause", "swarm")
def leases_by_the_wall_clock(patch: Patches) -> None:
    """Proofs of life are measured on a clock that cannot be set."""
    patch.set(SimClock, "boot_ms", SimClock.wall_ms)


@mutant(
    aimed="tests/unit/client/test_ownership.py::test_queue_wanted_again_after_a_lost_release_of_a_grant_that_was_not_wanted_gets_a_new_one"
)
def a_grant_that_was_not_wanted_is_kept(patch: Patches) -> None:
    """A grant that came when the queue was not wanted is released, also if the queue is wanted again."""
    become = QueueOwnership._become

    def keep(self: QueueOwnership, state: OwnershipState) -> None:
        self._was_held = True
        become(self, state)

    patch.set(QueueOwnership, "_become", keep)
