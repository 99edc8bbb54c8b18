"""Rules of copies that elect their master (docs/replication.md)."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from lockstep.broker.app import Broker
from lockstep.broker.groups.coordination import Coordination
from lockstep.broker.groups.effect_runner import EffectRunner
from lockstep.broker.nameserver_registration import NameserverRegistration
from lockstep.broker.office import beginning, rules, standing
from lockstep.broker.office.etcd import EtcdRegister
from lockstep.broker.office.office import Office
from lockstep.broker.office.register import Entry, RegisterUnknownError, RegisterUnreachableError, Version
from lockstep.broker.office.rules import Called, OwnCopy, elected, with_members
from lockstep.broker.office.ruling import Ruling
from lockstep.broker.processors import pull
from lockstep.broker.processors.lock import LockProcessor
from lockstep.broker.processors.offset import OffsetProcessor
from lockstep.broker.replication.following import Following
from lockstep.broker.replication.serving import ReplicaServer
from lockstep.broker.running import RunningBroker
from lockstep.broker.store.log.log_writer import LogWriter
from lockstep.broker.store.log.store_clock import StoreClock
from lockstep.client.broker_link import BrokerLink
from lockstep.client.route_cache import RouteCache
from lockstep.protocol.codes import ResponseCode
from lockstep.runtime.clock import Clock
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.requests import dispatch
from sweep.mutants.registry import Patches, mutant

OFFICE = "tests/unit/broker/office"
AT_ONCE = "tests/unit/runtime/test_access.py::test_responses_that_need_no_proof_of_office_are_these"
PULLS = "tests/unit/broker/test_pull_parked.py"
DISPATCH = "tests/unit/runtime/test_dispatch.py"
EFFECTS = "tests/unit/broker/test_effect_runner.py"
REGISTRATION = "tests/unit/broker/test_nameserver_registration.py"
PROOF = "test_where_a_copy_may_become_master_everything_waits_until_all_have_heard_a_later_frame"


@mutant("failover")
def anybody_stands(patch: Patches) -> None:
    """Only a member of the set stands for election."""

    def anybody(entry: Entry, own: OwnCopy, address: str, term: int) -> Entry | None:
        replicas = {**entry.replicas, own.member: address}
        return elected(replace(entry, in_sync=tuple(sorted({*entry.in_sync, own.member})), replicas=replicas), own, address, term)

    patch.set(standing, "elected", anybody)


@mutant("register", "failover")
def the_set_changes_before_the_register_says_so(patch: Patches) -> None:
    """A member that leaves is waited for until the register has the set without it."""
    store, tasks = Ruling.store_members, Tasks()

    async def later(self: Ruling, members: dict[str, str], known: dict[str, str]) -> None:
        tasks.spawn(store(self, members, known), "mutant")
        await asyncio.sleep(0)

    patch.set(Ruling, "store_members", later)


async def _swap_once(self: Office, version: Version, wanted: Entry) -> bool:
    """Swap without asking again what came of it. Raises RegisterUnknownError."""
    while True:
        try:
            is_swapped = await self._register.swap(version, wanted)
        except RegisterUnreachableError:
            await asyncio.sleep(0.1)
            continue
        await self._read_surely()
        return is_swapped


@mutant("register")
def unknown_counts_as_failed(patch: Patches) -> None:
    """A swap of which nobody knows whether it was carried out counts as both until that is certain."""
    store_set, store_members = ReplicaServer._store_set, Ruling.store_members

    async def once(self: Ruling, members: dict[str, str], known: dict[str, str]) -> None:
        office = self._office
        if office.entry is not None and self._is_mine(office.entry):
            wanted = with_members(office.entry, members, {**known, **members})
            wanted = replace(wanted, write=f"{self.tenure.member}-{office._host.random.below(10**18)}")
            if await _swap_once(office, office.version, wanted):
                return
        await store_members(self, members, known)

    async def given_up(self: ReplicaServer, members: dict[str, str]) -> None:
        try:
            await store_set(self, members)
        except RegisterUnknownError:
            self.replicas._storing = None
            for replica in self.replicas.counted:
                if replica.member not in self.replicas.members:
                    replica.target = None
                    replica.not_before_ms = self._host.clock.boot_ms() + 1_000

    patch.set(Ruling, "store_members", once)
    patch.set(ReplicaServer, "_store_set", given_up)


@mutant("register")
def unknown_counts_as_done(patch: Patches) -> None:
    """A swap of which nobody knows whether it was carried out is asked for again."""

    async def done(self: Office, version: Version, wanted: Entry) -> bool:
        try:
            return await _swap_once(self, version, wanted)
        except RegisterUnknownError:
            self.entry = wanted
            return True

    patch.set(Office, "_swap_surely", done)


@mutant("failover")
def an_election_keeps_the_term(patch: Patches) -> None:
    """Each election begins a term."""
    patch.set(standing, "next_term", lambda last, wall_ms: max(1, last))


@mutant("failover")
def responses_leave_without_proof_of_office(patch: Patches) -> None:
    """A response leaves when every member of the set has heard its master after the request."""
    patch.set(ReplicaServer, "heard", lambda self: None)


@mutant("failover", aimed="tests/unit/broker/office/test_halting.py::test_elected_replica_tells_its_old_master_nothing_more")
def an_elected_replica_goes_on_acknowledging(patch: Patches) -> None:
    """Who is elected acknowledges nothing any more to the old master."""
    patch.set(Following, "halt", lambda self: None)


@mutant("failover")
def the_port_opens_before_the_term_is_confirmed(patch: Patches) -> None:
    """A master opens when all who may be elected have its term."""

    async def at_once(self: RunningBroker) -> None:
        if self.ruling is not None:
            self._tasks.spawn(self.ruling.watch(self.replicas.unheard_ms), "broker.office")

    patch.set(RunningBroker, "take_office", at_once)


@mutant("failover")
def a_deposed_master_stays(patch: Patches) -> None:
    """A master steps down when another copy is elected."""

    async def stays(self: Broker) -> None:
        return

    patch.set(Broker, "_step_down", stays)


@mutant("power_all")
def a_roll_call_does_not_wait_for_all(patch: Patches) -> None:
    """Who assumes a loss has an answer of every member of the set."""

    def first(entry: Entry, own: Called, answers: Iterable[Called]) -> bool:
        return max([own, *answers], key=lambda each: (each.term, each.end, each.member)) is own

    patch.set(standing, "called_first", first)


@mutant("power_all", aimed="tests/unit/broker/office/test_rules.py::test_loss_is_assumed_until_a_term_with_it_has_begun")
def a_loss_is_assumed_once(patch: Patches) -> None:
    """A loss that a term assumed which has not begun is one of the next term."""
    patch.set(rules, "_assumes", lambda entry, own: False)


@mutant("failover", aimed="tests/unit/broker/office/test_stepping_down.py::test_deposed_master_confirms_nothing_more")
def a_deposed_master_confirms_at_its_end(patch: Patches) -> None:
    """What a deposed master has not confirmed has no effect, not even by the sync of its end."""
    step_down = Broker._step_down

    async def confirming(self: Broker) -> None:
        during: Any = Patches()
        during.set(LogWriter, "fail", lambda self, error: None)
        try:
            await step_down(self)
        finally:
            during.undo()

    patch.set(Broker, "_step_down", confirming)


@mutant(
    "failover",
    aimed="tests/unit/testing/test_broker_copies.py::test_delay_is_kept_over_a_failover_to_a_machine_with_another_wall_clock",
)
def an_elected_copy_believes_its_wall_clock(patch: Patches) -> None:
    """A copy that is elected continues the clock of its master: a wall clock that differs makes no delayed message early or late."""
    start = StoreClock.start

    def believe(self: StoreClock, clock: Clock, boot_id: str, ahead_ms: int | None = None) -> int:
        return start(self, clock, boot_id)

    patch.set(StoreClock, "start", believe)


@mutant("failover", aimed=f"tests/unit/broker/store/test_replica_log.py::{PROOF}")
def a_response_joins_an_earlier_turn(patch: Patches) -> None:
    """What waits for confirmation waits for a frame that left after it was handled, also if it has appended nothing."""
    patch.set(LogWriter, "when_confirmed", lambda self, callback: self._waiters.call_when_confirmed(callback, self.turn_is_open))


@mutant("failover", aimed=AT_ONCE)
def an_empty_sync_is_answered_at_once(patch: Patches) -> None:
    """A SYNC without items proves that its session lives, so its response needs proof of office."""
    _at_once(patch, LockProcessor.sync)


@mutant("failover", aimed=AT_ONCE)
def offsets_are_told_at_once(patch: Patches) -> None:
    """A former master tells nobody the offset of a group: a client of RocketMQ would commit it at the new one."""
    _at_once(patch, OffsetProcessor.query)


def _at_once(patch: Patches, handler: Any) -> None:
    patch.set(handler, "__handles__", tuple(replace(spec, at_once=True) for spec in handler.__handles__))


@mutant("failover", aimed=f"{PULLS}::test_response_needs_proof_of_office_unless_it_is_true_at_a_former_master_too")
def a_moved_offset_is_a_fact(patch: Patches) -> None:
    """A former master moves no reader to another offset."""
    patch.set(pull, "_FACTS", (*pull._FACTS, ResponseCode.PULL_OFFSET_MOVED))


@mutant("failover", aimed=f"{DISPATCH}::test_every_response_waits_for_proof_of_office_but_facts_and_what_is_confirmed")
def a_written_send_needs_no_proof(patch: Patches) -> None:
    """The response to a send that waits for less than confirmation waits for proof of office."""
    deliver = dispatch._deliver
    patch.set(dispatch, "_deliver", lambda request, _, frame: deliver(request, request.send_proven, frame))


@mutant("register", aimed="tests/sim/test_elections.py::test_register_that_was_set_back_changes_nothing")
def a_register_that_was_set_back_is_believed(patch: Patches) -> None:
    """Nobody stands or follows where the register is at an earlier term than the log."""
    first = rules.first_step
    for module in (standing, beginning):
        patch.set(module, "first_step", lambda name, entry, own: first(name, entry, replace(own, term=0)))


@mutant("register", aimed=f"{OFFICE}/test_standing.py::test_term_of_a_new_master_is_above_those_of_its_log_and_of_the_register")
def a_term_is_not_above_that_of_the_log(patch: Patches) -> None:
    """A term that begins without an election by the set is above the last one of the log."""
    create, rule_alone = standing.Standing.create, standing.Standing._rule_alone
    patch.set(standing.Standing, "create", lambda self, own, *rest, **more: create(self, replace(own, term=0), *rest, **more))
    patch.set(standing.Standing, "_rule_alone", lambda self, own, *rest: rule_alone(self, replace(own, term=0), *rest))


@mutant("failover")
def each_election_assumes_a_loss(patch: Patches) -> None:
    """An election that can't have lost anything changes no epoch and no generation."""
    patch.set(rules, "_assumes", lambda entry, own: True)


@mutant("register", aimed=f"{OFFICE}/test_etcd.py::test_entry_is_read_as_it_is_now")
def one_member_of_etcd_answers_for_all(patch: Patches) -> None:
    """The entry is read by the majority of etcd, not as one member has it."""
    call = EtcdRegister._call

    async def serializable(self: EtcdRegister, attempt: Any, path: str, asked: dict[str, Any]) -> dict[str, Any]:
        return await call(self, attempt, path, {**asked, "serializable": True})

    patch.set(EtcdRegister, "_call", serializable)


@mutant(
    "failover",
    aimed=f"{EFFECTS}::test_effects_wait_for_the_log_in_order_and_nothing_is_drained_while_notices_wait",
)
def effects_leave_before_they_are_confirmed(patch: Patches) -> None:
    """Clients are told of a change, and their connections closed, when the log has confirmed it."""
    drain = EffectRunner._drain

    def at_once(self: EffectRunner) -> None:
        self._when_confirmed = lambda callback: callback()
        drain(self)

    patch.set(EffectRunner, "_drain", at_once)


@mutant(
    "failover",
    aimed=f"{REGISTRATION}::test_layouts_are_registered_when_the_log_has_confirmed_them_whatever_the_reason",
)
def layouts_are_registered_before_they_are_confirmed(patch: Patches) -> None:
    """Nameservers learn a layout, or a deletion, when the log has confirmed it."""

    async def at_once(self: NameserverRegistration) -> None:
        return

    patch.set(NameserverRegistration, "confirmed", at_once)


@mutant("failover", aimed="tests/unit/client/test_terms.py::test_route_of_a_higher_term_cuts_the_link_and_a_late_one_does_not_lead_back")
def a_link_of_a_lower_term_is_kept(patch: Patches) -> None:
    """A client that has heard of a higher term leaves its connection to the master before, although it is up."""
    patch.set(BrokerLink, "follow", lambda self, term: self._link.retry())


@mutant("failover", aimed="tests/unit/client/test_terms.py::test_term_that_the_broker_itself_has_named_counts_as_that_of_a_route")
def a_lower_term_is_followed(patch: Patches) -> None:
    """A client that has heard of a term uses neither a route nor a connection of a lower one."""
    patch.set(RouteCache, "hear", lambda self, broker_name, term: self._terms.update({broker_name: term}) or True)


@mutant("register", aimed=f"{OFFICE}/test_standing.py::test_term_of_a_new_master_is_above_those_of_its_log_and_of_the_register")
def the_term_before_is_that_of_the_log(patch: Patches) -> None:
    """A master tells nameservers the term that it has replaced in the register, which its log may lack."""
    of = standing.Tenure.of
    patch.set(standing.Tenure, "of", staticmethod(lambda entry, before: replace(of(entry, before), replaced_term=0)))


@mutant("register", aimed="tests/sim/test_elections.py::test_without_the_register_nothing_ends_and_nobody_is_elected")
def a_master_that_nobody_hears_is_ready(patch: Patches) -> None:
    """A master that can reach neither its set nor the register is suspended: it says so, and takes no sends."""
    patch.set(Ruling, "_suspend", lambda self, unproven_ms: None)


@mutant(
    "failover",
    aimed=f"{OFFICE}/test_standing.py::test_copy_that_was_elected_does_not_rule_if_another_one_was_elected_before_it_could_read_that",
)
def an_election_that_is_over_counts(patch: Patches) -> None:
    """Who was elected does not rule if another copy was elected before it could read that."""

    async def carried_out(self: Office, version: Version, wanted: Entry) -> bool:
        is_swapped = await self._register.swap(version, wanted)
        await self._read_surely()
        return is_swapped

    patch.set(Office, "_swap_surely", carried_out)


@mutant(
    "failover",
    aimed="tests/unit/broker/replication/test_serving.py"
    "::test_snapshot_that_waits_for_a_lost_replica_does_not_hold_up_the_end_of_its_master",
)
def the_end_waits_for_a_lost_replica(patch: Patches) -> None:
    """A master that ends waits for no replica any more: what waited for one goes on."""

    def stop(self: ReplicaServer) -> None:
        self._timer.cancel()
        self._store.writer.copies = None

    patch.set(ReplicaServer, "stop", stop)


@mutant("failover", aimed="tests/unit/broker/test_coordination.py::test_sessions_outlast_a_suspension_and_the_grace_after_it")
def a_suspension_counts_as_silence(patch: Patches) -> None:
    """No session ends while its master refuses all clients, nor before they have had the grace to come back."""
    patch.set(Coordination, "keep_sessions", lambda self, now_ms: None)


@mutant("register", aimed=f"{OFFICE}/test_ruling.py::test_requests_are_refused_that_would_wait_for_proof_in_vain")
def requests_wait_for_proof_in_vain(patch: Patches) -> None:
    """A suspended master, and one whose responses wait for proof in great number, refuses requests at once."""
    patch.set(RunningBroker, "_check_office", lambda self: None)
