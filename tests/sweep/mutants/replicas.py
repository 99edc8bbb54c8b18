"""Rules of the copies of a log (docs/replication.md)."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from lockstep.broker import running_replica
from lockstep.broker.office import beginning
from lockstep.broker.replication import asking, closed_copy, copy_identity, cutting, following, log_parting, promotion, start_rules
from lockstep.broker.replication.closed_copy import ClosedCopy
from lockstep.broker.replication.copy_identity import CopyIdentity, Role
from lockstep.broker.replication.following import Following
from lockstep.broker.replication.installing import Install
from lockstep.broker.replication.log_parting import Parting, PartingAction, Term
from lockstep.broker.replication.master_clock import MasterClock
from lockstep.broker.replication.refetching import refetch
from lockstep.broker.replication.replica_set import Replica, ReplicaSet
from lockstep.broker.replication.serving import ReplicaServer
from lockstep.broker.replication.start_rules import CopyStatus, StartVerdict
from lockstep.broker.running import RunningBroker
from lockstep.broker.running_replica import RunningReplica
from lockstep.broker.state import BrokerState
from lockstep.broker.store import FlushMode, Recovery, Store
from lockstep.broker.store.log.checkpoint import Checkpointer
from lockstep.broker.store.log.log_writer import LogWriter
from lockstep.broker.store.replica_log import ReplicaLog
from lockstep.broker.store.start.directory import StoreDirectory
from lockstep.protocol.fields import from_plain
from lockstep.protocol.headers.replication import ReplicaFetchReply
from lockstep.runtime.host import Random
from sweep.mutants.registry import Patches, mutant

RULES = "tests/unit/broker/replication"
STORE = "tests/unit/broker/store"


@mutant("replica")
def the_master_confirms_without_its_replicas(patch: Patches) -> None:
    """What every counted replica has is confirmed, not what the master has."""
    patch.set(ReplicaServer, "stored", lambda self: None)


@mutant("replica", "promote")
def the_set_shrinks_before_it_is_stored(patch: Patches) -> None:
    """A replica that leaves is waited for until the set without it is stored."""
    leaves = ReplicaSet._leaves

    def at_once(self: ReplicaSet, replica: Replica, *rest: Any, **more: Any) -> None:
        leaves(self, replica, *rest, **more)
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
        joined = {each.member for each in self.replicas.values() if each.target is not None and each.log.has >= each.target}
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


@mutant("promote", "replica", aimed=f"{RULES}/test_pairs.py::test_term_of_a_promoted_copy_begins_where_its_log_ended")
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

    for module in (cutting, closed_copy):
        patch.set(module, "cut_log", without)


@mutant("replica", "promote", aimed=f"{RULES}/test_cutting.py::test_copy_that_is_not_whole_is_not_started")
def an_interrupted_install_is_started(patch: Patches) -> None:
    """A copy that is not whole begins anew."""
    prepare = ClosedCopy.prepare

    async def whole(self: ClosedCopy, directory: StoreDirectory) -> bool:
        self.identity = replace(self.identity, installing=False)
        return await prepare(self, directory)

    patch.set(ClosedCopy, "prepare", whole)


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
    patch.set(ClosedCopy, "_become_another", lambda self: None)


@mutant("replica", aimed=f"{RULES}/test_replica_set.py::test_replica_joins_when_it_has_what_was_written_when_it_was_counted")
def a_replica_joins_before_it_has_caught_up(patch: Patches) -> None:
    """A replica joins the set when it has what was written when it was counted."""
    progress = ReplicaSet.progress

    def at_once(self: ReplicaSet, member: str, stored: int, *rest: Any, **more: Any) -> None:
        progress(self, member, stored, *rest, **more)
        replica = self.replicas[member]
        replica.target = None if replica.target is None else min(replica.target, stored)

    patch.set(ReplicaSet, "progress", at_once)


@mutant("replica", aimed=f"{RULES}/test_replica_set.py::test_member_that_stores_nothing_leaves_and_comes_back_when_it_does")
def a_replica_that_stores_nothing_stays(patch: Patches) -> None:
    """A member leaves the set that stores nothing of what it lacks."""
    patch.set(Replica, "stuck", lambda self, now_ms: self.frames.is_stuck(now_ms) and "no frame")


@mutant("failover", aimed=f"{RULES}/test_replica_set.py::test_member_leaves_that_tells_what_it_has_and_never_hears_a_later_frame")
def a_replica_that_hears_no_frame_stays(patch: Patches) -> None:
    """A member leaves the set that hears no frame of the master: responses wait for what it hears."""
    patch.set(Replica, "stuck", lambda self, now_ms: self.log.is_stuck(now_ms) and "no bytes")


@mutant("failover", aimed=f"{RULES}/test_serving.py::test_replica_joins_when_it_has_all_of_a_new_masters_log_confirmed_or_not")
def a_new_master_admits_by_what_it_has_confirmed(patch: Patches) -> None:
    """A replica joins the set of a new master when it has all of that one's log: an earlier master may have confirmed it."""

    def by_confirmed(self: ReplicaServer, session: Any, header: Any, trouble: str = "") -> None:
        confirmed, now_ms = self._store.writer.confirmed, self._host.clock.boot_ms()
        self.replicas.progress(session.member, header.stored, header.synced, header.applied, confirmed, now_ms, trouble)
        self._changed()

    patch.set(ReplicaServer, "_progress", by_confirmed)


@mutant("failover", "promote", aimed=f"{RULES}/test_log_parting.py::test_parting")
def logs_part_by_length_alone(patch: Patches) -> None:
    """Two logs are equal up to the end of the last term that both have, not up to the end of the shorter one."""
    patch.set(log_parting, "end_of_term", lambda terms, index, log_end: log_end)


@mutant("promote", aimed=f"{RULES}/test_log_parting.py::test_replica_keeps_just_what_both_logs_have")
def terms_of_one_number_are_one_term(patch: Patches) -> None:
    """Terms of the same number are told apart by their beginning and by their writer."""
    patch.set(Term, "key", property(lambda self: self.number))


@mutant("promote", aimed=f"{RULES}/test_log_parting.py::test_parting")
def what_was_confirmed_is_cut(patch: Patches) -> None:
    """A replica cuts nothing that it knows to be confirmed, unless a later term says that a loss was assumed."""

    def cutting_it(action: PartingAction, keep: int = 0) -> Parting:
        return Parting(PartingAction.TRUNCATE if action is PartingAction.REFUSE else action, keep)

    patch.set(log_parting, "Parting", cutting_it)


@mutant("replica", "failover", aimed=f"{STORE}/test_replica_log.py::test_snapshot_waits_for_the_copies_and_fails_with_the_store")
def a_snapshot_does_not_wait_for_the_copies(patch: Patches) -> None:
    """A snapshot is written when every copy has the log up to its position: what only the master has may be cut."""
    write = Checkpointer.write

    async def alone(self: Checkpointer, *parts: Any) -> None:
        during = Patches()
        during.set(LogWriter, "confirmed", property(lambda self: self._log.written))
        try:
            await write(self, *parts)
        finally:
            during.undo()

    patch.set(Checkpointer, "write", alone)


@mutant("power_all", "promote", aimed=f"{RULES}/test_copy_identity.py::test_new_directory_is_a_new_member_that_has_forgotten_nothing")
def a_replica_does_not_record_its_boot(patch: Patches) -> None:
    """A replica records the boot and the flush mode of its start before it acknowledges anything."""
    mark = StoreDirectory.mark_boot

    def of_masters(self: StoreDirectory, boot_id: str, flush: str) -> None:
        found = copy_identity.read_copy_identity(self)
        if found is None or found.role is Role.MASTER:
            mark(self, boot_id, flush)

    patch.set(StoreDirectory, "mark_boot", of_masters)


@mutant("replica", aimed=f"{STORE}/test_retention.py::test_files_that_a_replica_still_copies_are_kept_while_there_is_room")
def the_log_that_a_replica_copies_is_not_pinned(patch: Patches) -> None:
    """Files that are only old are kept while a replica still copies them."""
    patch.set(Store, "pin_log", lambda self, pinned: None)


@mutant("replica_retention", aimed=f"{STORE}/test_replica_log.py::test_files_that_the_first_sync_after_a_start_covers_are_removed_after_it")
def a_replica_keeps_what_its_master_has_removed(patch: Patches) -> None:
    """A replica removes the files that its master has removed."""

    async def kept(self: Store, log_start: int) -> None:
        return

    patch.set(Store, "follow_retention", kept)


@mutant("failover", aimed="tests/unit/broker/office/test_standing.py::test_copy_that_is_being_made_or_mended_does_not_stand")
def a_damaged_copy_stands(patch: Patches) -> None:
    """A copy that is being made, or mended, does not stand for election."""
    patch.set(RunningReplica, "is_whole", lambda self: True)


@mutant("promote", aimed=f"{RULES}/test_promotion.py::test_promotion_that_may_lose_something_is_refused")
def a_copy_that_may_have_forgotten_is_promoted(patch: Patches) -> None:
    """A replica that may lack what it acknowledged is not promoted unasked."""
    check = promotion.check_promotion
    for module in (promotion, running_replica):
        patch.set(
            module, "check_promotion", lambda host, own, *rest, **more: check(host, replace(own, may_have_forgotten=False), *rest, **more)
        )


@mutant("replica", aimed=f"{RULES}/test_cutting.py::test_damage_is_replaced_by_what_is_confirmed_and_the_rest_is_cut")
def a_repair_takes_more_than_is_confirmed(patch: Patches) -> None:
    """A damaged file is replaced up to what this copy knows to be confirmed: behind it the two logs may differ."""

    async def all_of_it(host: Any, directory: Any, identity: Any, starts: Any, confirmed: int, endpoint: Any) -> None:
        await refetch(host, directory, identity, starts, confirmed + 1_000, endpoint)

    patch.set(closed_copy, "refetch", all_of_it)


@mutant("replica", aimed=f"{RULES}/test_cutting.py::test_damaged_copy_is_mended_by_its_master_also_with_cut_corrupt")
def a_replica_cuts_what_is_damaged(patch: Patches) -> None:
    """A replica ignores --cut-corrupt: its master has what is damaged."""
    patch.set(running_replica, "replace", lambda it, **changes: it if "cut_corrupt" in changes else replace(it, **changes))


@mutant("failover", aimed=f"{RULES}/test_following.py::test_response_that_does_not_continue_the_log_is_refused")
def a_lower_term_is_heard(patch: Patches) -> None:
    """A replica takes nothing of another term than that of the master that it follows."""
    _believing(patch, "term")


@mutant("replica", aimed=f"{RULES}/test_following.py::test_response_that_does_not_continue_the_log_is_refused")
def a_missing_response_is_not_noticed(patch: Patches) -> None:
    """A replica takes the responses of its master in order, without a gap."""
    _believing(patch, "number")


@mutant("replica", aimed=f"{RULES}/test_following.py::test_response_that_does_not_continue_the_log_is_refused")
def the_sum_of_copied_bytes_is_not_compared(patch: Patches) -> None:
    """A replica compares the bytes that it receives with their CRC."""
    _believing(patch, "crc")


@mutant("promote", aimed=f"{RULES}/test_following.py::test_log_is_complete_when_the_master_has_ended_its_own_and_this_one_has_all_of_it")
def a_log_is_complete_before_its_end(patch: Patches) -> None:
    """A replica has everything of a master that has stopped in order when its log ends where that one's does."""
    _believing(patch, "written")


def _believing(patch: Patches, field: str) -> None:
    """Let a replica take this field of a response for what it has to be."""

    class Believed(int):
        __hash__ = int.__hash__

        def __eq__(self, other: object) -> bool:
            return True

        def __ne__(self, other: object) -> bool:
            return False

    def read(kind: Any, fields: Any) -> Any:
        reply = from_plain(kind, fields)
        return replace(reply, **{field: Believed(getattr(reply, field))}) if kind is ReplicaFetchReply else reply

    patch.set(following, "from_plain", read)


@mutant("failover", aimed=f"{RULES}/test_installing.py::test_new_copy_has_the_log_the_tables_and_the_names_of_its_master")
def a_replica_has_a_proof_of_its_own(patch: Patches) -> None:
    """All copies of a log have one proof: for nameservers they are one store, whose terms rise."""
    run = Install.run

    async def with_another(self: Install, *parts: Any) -> None:
        await run(self, *parts)
        self._directory.replace(f"{self._directory.own}/proof", self._host.random.token(16).hex().encode())

    patch.set(Install, "run", with_another)


@mutant(
    "replica",
    aimed=f"{RULES}/test_cutting.py::test_store_that_a_scrub_reads_is_closed_after_it_however_often_the_replica_is_cancelled",
)
def a_cancelled_replica_closes_its_store_at_once(patch: Patches) -> None:
    """A store is closed when nothing reads it any more, however often its replica is cancelled."""

    async def directly(task: Any) -> Any:
        return await task

    patch.set(running_replica, "to_its_end", directly)


@mutant(
    "failover",
    aimed=f"{RULES}/test_serving.py::test_member_that_connects_and_is_cut_off_in_turn_leaves_where_responses_wait_for_what_it_hears",
)
def a_member_that_hears_nothing_counts_as_up_to_date(patch: Patches) -> None:
    """A master under a register lets a member go that does not hear its frames."""
    progress: Callable[..., None] = ReplicaSet.progress

    def without_frames(self: ReplicaSet, *has: Any) -> None:
        progress(self, *has[:-1], 0)

    patch.set(ReplicaSet, "progress", without_frames)


@mutant("failover", aimed=f"{RULES}/test_master_clock.py::test_another_master_has_another_clock_from_its_first_response_on")
def the_clock_of_the_master_before_is_kept(patch: Patches) -> None:
    """Nothing is concluded for another master's clock from that of the one before."""
    heard = MasterClock.heard
    patch.set(MasterClock, "heard", lambda self, term, boot_ms, time_ms: heard(self, 1, boot_ms, time_ms))
