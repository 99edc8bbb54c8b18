"""Rules of copies that elect their master (docs/replication.md)."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from lockstep.broker.app import Broker
from lockstep.broker.office import rules, standing
from lockstep.broker.office.office import Office
from lockstep.broker.office.register import Entry, RegisterUnknownError, RegisterUnreachableError, Version
from lockstep.broker.office.rules import Called, OwnCopy, elected, with_members
from lockstep.broker.office.ruling import Ruling
from lockstep.broker.replication.following import Following
from lockstep.broker.replication.serving import ReplicaServer
from lockstep.broker.running import RunningBroker
from lockstep.broker.store.log.log_writer import LogWriter
from lockstep.broker.store.log.store_clock import StoreClock
from lockstep.runtime.clock import Clock
from lockstep.runtime.daemon import Tasks
from sweep.mutants.registry import Patches, mutant


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
