"""Rules about damage of a store: it is refused or reported, never ignored (docs/operations.md, Damage and repair)."""

from typing import Any

from lockstep.broker.delivery.delayed_delivery import DelayedDelivery
from lockstep.broker.processors import pull
from lockstep.broker.rocketmq_store import adoption, foreign_store, opening
from lockstep.broker.rocketmq_store.foreign_log import ForeignLog
from lockstep.broker.store import ReadStatus, store
from lockstep.broker.store.errors import StoreCorruptError
from lockstep.broker.store.health.path_watch import PathWatch
from lockstep.broker.store.health.scrub import Scrub
from lockstep.broker.store.health.scrubber import Scrubber
from lockstep.broker.store.log import commit_log, scan, waiting_records
from lockstep.broker.store.log.commit_log import CommitLog
from lockstep.broker.store.queues import consume_queue
from lockstep.broker.store.queues.consume_queue import QueueFiles
from lockstep.broker.store.queues.reader import Check
from lockstep.broker.store.start import directory, snapshot_choice, survey
from lockstep.broker.store.start.directory import StoreDirectory
from lockstep.broker.store.start.queue_recovery import QueueRecovery
from lockstep.broker.store.start.recovery import Recoverer
from lockstep.broker.store.start.snapshot import Snapshots, encode_parts
from lockstep.broker.store.start.snapshot_choice import SnapshotEvidence, snapshot_evidence
from lockstep.runtime.descriptors import SHORTAGE
from sweep.mutants.registry import Patches, mutant

TESTS = "tests/unit/broker/store"


@mutant("rot", aimed=f"{TESTS}/test_read.py::test_wrong_entries_are_rebuilt_from_the_log_and_no_message_is_lost")
def queue_entries_are_not_checked(patch: Patches) -> None:
    """A consume-queue entry read from a file names a record of its topic, queue and offset, or is written again from the log."""
    patch.set(Check, "run", lambda self, data, position: None)


@mutant("rot", aimed=f"{TESTS}/test_cut_corrupt.py::test_first_file_removed_by_retention_is_distinguished_from_a_missing_one")
def the_start_of_the_log_is_not_recorded(patch: Patches) -> None:
    """The beginning of the log is recorded before retention removes files below it: a missing first file stops the start."""
    patch.set(StoreDirectory, "read_start", lambda self: None)


@mutant("rot", aimed=f"{TESTS}/test_path_watch.py::test_sync_flush_confirms_nothing_after_the_files_are_removed")
def removed_files_are_synced_as_if_they_were_there(patch: Patches) -> None:
    """A sync is confirmed only while the paths of the log, the lock and the synced length still name the open files."""
    patch.set(PathWatch, "check", lambda self: None)


@mutant("rot", aimed=f"{TESTS}/test_damage_laws.py::test_damage_is_rejected_or_reported_and_no_other_message_is_lost")
def queue_files_are_cut_before_the_log_was_read(patch: Patches) -> None:
    """A start that is refused has changed no file."""
    patch.set(QueueFiles, "postpone_changes", lambda self: None)


@mutant("rot", aimed=f"{TESTS}/test_foreign_directory.py::test_foreign_log_with_an_unreadable_record_is_rejected_with_its_position")
def a_foreign_log_is_adopted_unread(patch: Patches) -> None:
    """The log of a directory without an identity is read to its end before anything is written."""

    async def unread(*_: Any, **__: Any) -> ForeignLog:
        return ForeignLog()

    patch.set(foreign_store, "read_whole", unread)


BROKER = "tests/unit/broker/"


@mutant("files", aimed=BROKER + "test_adoption.py::test_start_without_the_flag_is_refused")
def a_foreign_directory_is_adopted_unasked(patch: Patches) -> None:
    """A start takes over what another broker has written only with --adopt."""
    patch.set(opening, "refusal", lambda root, reason: StoreCorruptError("adopted"))


@mutant("files", aimed=BROKER + "test_adoption_and_export.py::test_directory_in_which_the_other_broker_has_run_is_taken_over_again")
def another_broker_runs_unnoticed(patch: Patches) -> None:
    """What another broker has written to config/*.json since is noticed."""
    patch.set(foreign_store, "known_content", foreign_store.present_content)


@mutant("files", aimed=BROKER + "test_adoption_refusals.py::test_unfinished_work_is_refused_unless_it_is_named")
def unfinished_work_is_left_behind(patch: Patches) -> None:
    """Work that this version does not continue is refused by name."""
    patch.set(opening, "check_unfinished", lambda root, unfinished, without: None)


@mutant("files", aimed=BROKER + "test_adoption.py::test_topic_that_the_cluster_has_or_has_deleted_keeps_its_messages")
def adopted_topics_ignore_the_cluster(patch: Patches) -> None:
    """The layout of an adopted topic follows the cluster's, or its deletion."""

    async def nothing(*_: Any) -> dict[str, Any]:
        return {}

    patch.set(adoption, "cluster_layouts", nothing)


@mutant("files", aimed=BROKER + "test_adoption.py::test_record_that_is_read_as_a_torn_frame_is_not_cut")
def records_of_the_other_broker_are_cut(patch: Patches) -> None:
    """What the start has read as records of the other broker is no unfinished tail."""
    original = Recoverer.__init__

    def unknown(self: Recoverer, *args: Any, adopted_end: int | None, **more: Any) -> None:
        original(self, *args, adopted_end=None if adopted_end is None else 0, **more)

    patch.set(Recoverer, "__init__", unknown)


@mutant("rot", aimed="tests/unit/broker/test_pull.py::test_messages_lost_to_damage_are_skipped_with_offset_moved")
def lost_messages_are_no_gap(patch: Patches) -> None:
    """Messages that damage has lost get OFFSET_MOVED as response: the client notifies its listener of the gap."""
    patch.set(pull, "CODES", {**pull.CODES, ReadStatus.LOST: pull.CODES[ReadStatus.NO_MATCHED]})


@mutant("rot", aimed=f"{TESTS}/test_postponed_snapshots.py::test_zero_entry_is_not_mistaken_for_one_removed_by_retention")
def zero_entries_count_as_removed(patch: Patches) -> None:
    """An entry that names no place in the log is not taken for one of a message that retention has removed."""
    patch.set(consume_queue, "names_place", lambda position, size: True)


@mutant("files", aimed=f"{TESTS}/test_postponed_snapshots.py::test_postponed_snapshot_leaves_its_consume_queues_to_the_next_one")
def a_snapshot_that_is_put_off_counts_its_queues_as_synced(patch: Patches) -> None:
    """Consume-queue files that a snapshot could not sync are synced by the next one."""
    patch.set(QueueFiles, "mark_unsynced", lambda self, paths, directories: None)


@mutant("files", aimed=f"{TESTS}/test_postponed_snapshots.py::test_retention_keeps_segments_that_a_snapshot_needs_until_it_is_removed")
def snapshots_that_are_to_be_removed_need_no_log(patch: Patches) -> None:
    """Retention keeps the log that a snapshot needs until its file is removed: a crash leaves no snapshot without its log."""
    patch.set(Snapshots, "needs_from", property(lambda self: min((needed for _, needed in self.kept), default=None)))
    patch.set(snapshot_choice, "snapshot_evidence", lambda *of: _passed_is_ahead(snapshot_evidence(*of)))


def _passed_is_ahead(evidence: SnapshotEvidence) -> SnapshotEvidence:
    return SnapshotEvidence.AHEAD if evidence is SnapshotEvidence.PASSED else evidence


@mutant("files", aimed=f"{TESTS}/test_postponed_snapshots.py::test_start_removes_a_snapshot_older_than_the_log_if_a_newer_one_is_valid")
def an_old_snapshot_stops_the_start(patch: Patches) -> None:
    """A snapshot from before the beginning of the log is removed when a newer one fits, and stops no start."""
    patch.set(snapshot_choice, "snapshot_evidence", lambda *of: _passed_is_ahead(snapshot_evidence(*of)))


@mutant("rot", aimed=f"{TESTS}/test_wrong_entries.py::test_entry_below_the_log_start_at_the_snapshot_hides_no_message")
def entries_below_the_snapshots_log_count_as_removed(patch: Patches) -> None:
    """An entry that names a place below the beginning of the log at the time of the snapshot is wrong."""
    patch.set(store, "encode_parts", lambda *values: encode_parts(*(*values[:8], 0)))


@mutant("files", aimed=f"{TESTS}/test_next_file.py::test_next_log_file_removed_or_replaced_by_another_program_loses_no_message")
def any_file_becomes_the_next_of_the_log(patch: Patches) -> None:
    """The next file of the log is renamed only while its path names the file that is open."""

    def unlooked(self: Any) -> None:
        if self._next is None and self._next_path is not None:
            self._next = self._files.open(self._next_path, create=True)

    patch.set(CommitLog, "_open_next", unlooked)


@mutant("files", aimed=f"{TESTS}/test_next_file.py::test_without_a_free_inode_sends_are_rejected_while_state_records_have_room")
def a_missing_inode_is_a_failed_disk(patch: Patches) -> None:
    """Without an inode or quota for the next file of the log sends are refused, and the broker continues."""
    patch.set(commit_log, "NO_FILE", SHORTAGE)


@mutant("rot", aimed=f"{TESTS}/test_cut_corrupt.py::test_damaged_size_field_loses_no_intact_record")
def a_damaged_size_is_used(patch: Patches) -> None:
    """The size of a damaged record is used only if the lengths of its fields agree with it: the size itself may be damaged."""
    patch.set(scan, "record_bounds", lambda data: None)


DELAYED = "tests/unit/broker/test_delay_damage.py"


@mutant("rot", aimed=f"{DELAYED}::test_any_flipped_bit_of_a_delayed_message_is_found_and_the_others_delivered")
def delayed_messages_have_no_checksum(patch: Patches) -> None:
    """A delayed message has a CRC of all its bytes, since the broker decides by its properties and its store time."""
    patch.set(waiting_records, "seal", lambda data, begin, end: None)


@mutant("rot", aimed=f"{DELAYED}::test_message_with_an_unexpected_error_is_skipped_after_all_attempts")
def an_error_at_a_delayed_message_ends_the_broker(patch: Patches) -> None:
    """An unexpected error while a delayed message is delivered ends neither the process nor the delivery of the others."""

    def ended(self: Any, queue_id: int, offset: int, error: Exception) -> bool:
        raise error

    patch.set(DelayedDelivery, "_record_failure", ended)


LOSSES = f"{TESTS}/test_losses.py"


@mutant("rot", aimed=f"{LOSSES}::test_event_manifest_metric_and_check_name_the_same_lost_messages")
def a_log_without_its_first_file_begins_later(patch: Patches) -> None:
    """With --cut-corrupt a missing first file is damage like that of any other: its messages are lost, by queue and offset."""
    first = survey._first
    patch.set(survey, "_first", lambda found, *rest: found[0].start if found and rest[-1] else first(found, *rest))


@mutant("rot", aimed=f"{LOSSES}::test_event_manifest_metric_and_check_name_the_same_lost_messages")
def losses_below_the_snapshot_are_not_reported(patch: Patches) -> None:
    """A start without a file below its snapshot names the lost messages before it changes a file."""

    async def unlooked(self: Any, snapshot: Any, wrong: Any, on_progress: Any) -> Any:
        return wrong, []

    patch.set(QueueRecovery, "compare_below", unlooked)


@mutant("rot", aimed=f"{LOSSES}::test_check_finds_a_last_message_after_the_snapshot_by_the_queue_entries")
def the_offset_of_a_lost_last_message_is_given_again(patch: Patches) -> None:
    """The offset of a lost last message of a queue is not used again."""
    patch.set(QueueRecovery, "add_lost_ends", lambda self, damaged, end: [])


@mutant("rot", aimed=f"{LOSSES}::test_scrub_finds_lost_messages_at_both_ends_of_a_queue")
def a_scrub_ignores_the_end_of_a_queue(patch: Patches) -> None:
    """A scrub and a check find messages that are missing at the end of a queue."""

    async def unlooked(self: Any) -> None:
        pass

    patch.set(Scrub, "_look_behind", unlooked)


@mutant("rot", aimed=f"{LOSSES}::test_scrub_finds_lost_messages_at_both_ends_of_a_queue")
def a_queue_begins_with_the_first_record_that_is_found(patch: Patches) -> None:
    """A scrub and a check find messages that are missing at the beginning of a queue."""
    patch.set(Scrubber, "first", lambda self, key: None)


@mutant("rot", aimed=f"{LOSSES}::test_start_fails_if_the_first_file_and_the_start_record_are_missing")
def the_snapshot_does_not_name_the_start_of_the_log(patch: Patches) -> None:
    """Without `lockstep/start` the newest snapshot names the beginning of the log: a missing first file stops the start."""
    for module in (foreign_store, store):
        patch.set(module, "recorded_start", lambda files, directory: directory.read_start())


@mutant("files", aimed=f"{TESTS}/test_misplaced.py::test_foreign_names_in_the_directory_are_ignored_and_left_unchanged")
def any_name_is_a_queue(patch: Patches) -> None:
    """Files among the consume queues whose name is not a topic or a queue id are not touched."""

    def listed(files: Any, queues: str) -> list[tuple[str, int]]:
        return [(topic, int(name)) for topic in files.listdir(queues) for name in files.listdir(f"{queues}/{topic}") if name.isdecimal()]

    patch.set(directory, "queue_directories", listed)


@mutant("files", aimed=f"{TESTS}/test_misplaced.py::test_directory_in_place_of_a_file_is_rejected_with_exit_5_and_its_path")
def a_misplaced_directory_is_a_failed_disk(patch: Patches) -> None:
    """A directory in the place of a file is refused with exit 5 and its path: exit 3 means that the disk has failed."""
    patch.set(store, "misplaced", lambda error, root: None)
