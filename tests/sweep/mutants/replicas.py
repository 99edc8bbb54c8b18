"""Rules of the copies of a log (docs/replication.md)."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from lockstep.broker import running_replica
from lockstep.broker.office import beginning
from lockstep.broker.replication import asking, copy_identity, cutting, start_rules
from lockstep.broker.replication.copy_identity import CopyIdentity
from lockstep.broker.replication.following import Following
from lockstep.broker.replication.replica_set import Replica, ReplicaSet
from lockstep.broker.replication.serving import ReplicaServer
from lockstep.broker.replication.start_rules import CopyStatus, StartVerdict
from lockstep.broker.running import RunningBroker
from lockstep.broker.running_replica import RunningReplica
from lockstep.broker.state import BrokerState
from lockstep.broker.store import FlushMode, Recovery
from lockstep.broker.store.replica_log import ReplicaLog
from lockstep.broker.store.start.directory import StoreDirectory
from lockstep.runtime.host import Random
from sweep.mutants.registry import Patches, mutant

RULES = "tests/unit/broker/replication"


@mutant("replica")
def the_master_confirms_without_its_replicas(patch: Patches) -> None:
    """What every counted replica has is confirmed, not what the master has."""
    patch.set(ReplicaServer, "stored", lambda self: None)


@mutant("replica", "promote")
def the_set_shrinks_before_it_is_stored(patch: Patches) -> None:
    """A replica that leaves is waited for until the set without it is stored."""
    leaves = ReplicaSet._leaves

    def at_once(self: ReplicaSet, replica: Replica, now_ms: int, again_in_ms: int = 0) -> None:
        leaves(self, replica, now_ms, again_in_ms)
        replica.target = None

    patch.set(ReplicaSet, "_leaves", at_once)


@mutant("replica")
def the_set_shrinks_in_memory_alone(patch: Patches) -> None:
    """The set of replicas is stored whenever it changes."""
    store_set = ReplicaServer._store_set

    async def remembered(self: ReplicaServer, members: dict[str, str]) -> None:
        assert self.copy_identity is not None
        if self.copy_identity.members.keys() - members.keys():
            self.copy_identity = replace(self.copy_identity, members=dict(members))
            await asyncio.sleep(0)
            self.replicas.set_stored()
            self._changed()
        else:
            await store_set(self, members)

    patch.set(ReplicaServer, "_store_set", remembered)


@mutant("replica")
def a_replica_counts_when_it_is_in_the_stored_set(patch: Patches) -> None:
    """A replica that joins counts before the set with it is stored."""

    def members(self: ReplicaSet) -> list[Replica]:
        return [replica for replica in self.replicas.values() if replica.member in self.members]

    def wanted(self: ReplicaSet) -> dict[str, str] | None:
        joined = {each.member for each in self.replicas.values() if each.target is not None and each.stored >= each.target}
        found = (self.members | joined) - self._removing
        return None if found == self.members else {member: self.replicas[member].address for member in sorted(found)}

    patch.set(ReplicaSet, "counted", property(members))
    patch.set(ReplicaSet, "_wanted", wanted)


@mutant("promote", "replica", "power_all")
def a_member_keeps_its_id_over_a_power_cut(patch: Patches) -> None:
    """A replica that may lack what it acknowledged has another member id."""
    begin = copy_identity.begin_as_replica

    def same(
        directory: StoreDirectory, random: Random, boot_id: str, flush: FlushMode, *where: str, registered: bool = False
    ) -> CopyIdentity:
        if directory.boot() is not None:
            directory.mark_boot(boot_id, flush.value)
        return begin(directory, random, boot_id, flush, *where, registered=registered)

    for module in (running_replica, beginning):
        patch.set(module, "begin_as_replica", same)


@mutant("promote")
def a_start_does_not_ask_the_replicas(patch: Patches) -> None:
    """A master asks its replicas before it opens its port."""

    async def asked(self: RunningBroker, recovery: Recovery) -> None:
        return

    patch.set(RunningBroker, "ask_replicas", asked)


@mutant("promote", aimed=f"{RULES}/test_roles.py::test_answer_of_a_member_to_a_master_that_starts")
def a_start_compares_terms_alone(patch: Patches) -> None:
    """A start compares the ends of the logs too, and does not go on where a member of the set may have more."""
    judge = start_rules.judge_start

    def by_term(
        name: str, own: CopyStatus, members: Mapping[str, str], answers: Mapping[str, CopyStatus | None], addresses: Mapping[str, str]
    ) -> StartVerdict:
        empty = {member: status and CopyStatus(status.term, 0, may_have_forgotten=True) for member, status in answers.items()}
        return judge(name, own, members, empty, addresses)

    patch.set(start_rules, "judge_start", by_term)
    patch.set(asking, "judge_start", by_term)


@mutant("promote")
def a_promotion_assumes_no_loss(patch: Patches) -> None:
    """A promotion begins as after a power cut, unless the replica is known to have everything."""
    patch.set(StoreDirectory, "mark_restored", lambda self: None)


@mutant("promote", "replica")
def terms_begin_at_their_record(patch: Patches) -> None:
    """A term begins where the log ended before anything of it was appended."""
    record = BrokerState.record_term

    def later(self: BrokerState, begin: int, *, assumed_loss: bool) -> None:
        record(self, self._store.log_bounds[1], assumed_loss=assumed_loss)

    patch.set(BrokerState, "record_term", later)


@mutant("promote", aimed=f"{RULES}/test_cutting.py::test_cut_leaves_no_snapshot_and_no_synced_position_above")
def a_cut_leaves_the_synced_position(patch: Patches) -> None:
    """A cut moves the recorded synced position back before it cuts the log."""
    _cut_without(patch, "save_synced", lambda *_: None)


@mutant("promote", aimed=f"{RULES}/test_cutting.py::test_cut_leaves_no_snapshot_and_no_synced_position_above")
def a_cut_keeps_the_snapshots_above(patch: Patches) -> None:
    """A cut removes the snapshots of positions that it cuts."""
    _cut_without(patch, "snapshot_positions", lambda _: [])


def _cut_without(patch: Patches, name: str, nothing: Callable[..., Any]) -> None:
    cut = cutting.cut_log

    def without(*parts: Any) -> CopyIdentity:
        during = Patches()
        during.set(StoreDirectory, name, nothing)
        try:
            return cut(*parts)
        finally:
            during.undo()

    for module in (cutting, running_replica):
        patch.set(module, "cut_log", without)


@mutant("replica", "promote", aimed=f"{RULES}/test_cutting.py::test_copy_that_is_not_whole_is_not_started")
def an_interrupted_install_is_started(patch: Patches) -> None:
    """A copy that is not whole begins anew."""
    prepare = RunningReplica._prepare

    async def whole(self: RunningReplica, directory: StoreDirectory) -> bool:
        self._copy_identity = replace(self._copy_identity, installing=False)
        return await prepare(self, directory)

    patch.set(RunningReplica, "_prepare", whole)


@mutant("promote", "replica", aimed="tests/unit/broker/store/test_replica_log.py::test_only_what_is_confirmed_is_applied")
def what_is_not_confirmed_is_applied(patch: Patches) -> None:
    """A replica applies what is confirmed."""
    apply = ReplicaLog.apply

    async def everything(self: ReplicaLog, confirmed: int) -> None:
        await apply(self, max(confirmed, self._log.written))

    patch.set(ReplicaLog, "apply", everything)


@mutant("replica", "promote")
def received_is_told_as_stored(patch: Patches) -> None:
    """A replica tells what it has stored, by its own flush."""
    patch.set(ReplicaLog, "stored", property(lambda self: self._log.end))


@mutant("replica", "promote")
def the_next_bytes_are_told_as_stored(patch: Patches) -> None:
    """A replica tells what it has written, not what it is about to receive."""
    fetch = Following._fetch

    def ahead(self: Following, max_bytes: int) -> Any:
        header = fetch(self, max_bytes)
        return replace(header, stored=header.stored + 2_000, synced=header.synced + 2_000)

    patch.set(Following, "_fetch", ahead)


@mutant("replica", "promote", aimed=f"{RULES}/test_cutting.py::test_copy_that_is_cut_or_begun_anew_is_another_member")
def a_repaired_copy_keeps_its_id(patch: Patches) -> None:
    """A copy that was cut, or begun anew, has another member id."""
    patch.set(RunningReplica, "_become_another", lambda self: None)
